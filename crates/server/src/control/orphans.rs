//! Overrides whose rule was deleted.
//!
//! Deleting a rule keeps its overrides, because customers may have paid for them and a rollback or a file may create
//! the rule again. The overrides then apply again. A new rule that is incompatible with one of its old overrides is
//! refused. While their rule is deleted, overrides do not count towards the total size and nodes do not receive them,
//! but they can be listed and deleted.

use std::collections::HashMap;

use sqlx::{AnyConnection, Row};
use tollgate_engine::rules::entry::{self, EntryOverride};

use super::db::Write;
use super::overrides::OverrideRow;
use super::plan::{FileChanges, MAX_WARNINGS};
use super::rules::describe_rule;
use super::{ControlError, Result};

/// The override count of each deleted rule, by domain and id.
pub(super) type Orphans = HashMap<(String, String), i64>;

/// Finds overrides without a rule.
pub(super) async fn find_orphans(connection: &mut AnyConnection) -> Result<Orphans> {
    let query = "SELECT o.domain, o.id, COUNT(*) AS overrides FROM overrides o \
                 LEFT JOIN rules r ON r.domain = o.domain AND r.id = o.id WHERE r.id IS NULL GROUP BY o.domain, o.id";
    let rows = sqlx::query(query).fetch_all(connection).await?;
    let read = |row: &sqlx::any::AnyRow| Ok(((row.try_get("domain")?, row.try_get("id")?), row.try_get("overrides")?));
    rows.iter().map(read).collect()
}

/// Adds warnings about overrides whose rule the file deletes, and about orphans whose rule the file creates again.
pub(super) fn warn_about_orphans(changes: &mut FileChanges, orphans: &Orphans) {
    for domain in &changes.domains {
        let name = &domain.name;
        let deleted = domain.deletes.iter().filter(|row| row.overrides > 0).map(|row| {
            format!(
                "{name}/{} has {}, kept in case the rule is created again",
                row.id,
                format_override_count(row.overrides)
            )
        });
        let created = domain.writes.iter().filter(|write| write.old.is_none()).filter_map(|write| {
            let overrides = format_override_count(*orphans.get(&(name.clone(), write.id.clone()))?);
            Some(format!("{name}/{} was deleted before; {overrides} of the deleted rule will apply again", write.id))
        });
        let room = MAX_WARNINGS.saturating_sub(changes.warnings.len());
        changes.warnings.extend(deleted.chain(created).take(room));
    }
}

fn format_override_count(overrides: i64) -> String {
    format!("{overrides} override{}", if overrides == 1 { "" } else { "s" })
}

/// Checks that the overrides of a rule are compatible with its new text.
pub(super) async fn check_overrides(write: &mut Write<'_>, domain: &str, id: &str, text: &str) -> Result<()> {
    check_compatible(domain, id, text, &OverrideRow::load_overrides(&mut write.tx, domain, id).await?)
}

/// Checks that the new text of a re-created rule is compatible with its orphaned overrides. Adds their size to the
/// total size and returns their count.
pub(super) async fn reattach_overrides(write: &mut Write<'_>, domain: &str, id: &str, text: &str) -> Result<i64> {
    let overrides = OverrideRow::load_overrides(&mut write.tx, domain, id).await?;
    check_compatible(domain, id, text, &overrides)?;
    write.size += overrides.iter().map(OverrideRow::size).sum::<i64>();
    Ok(overrides.len() as i64)
}

/// Subtracts the `count` overrides of a deleted rule from the total size. Their rows remain.
pub(super) async fn subtract_override_sizes(write: &mut Write<'_>, domain: &str, id: &str, count: i64) -> Result<()> {
    if count > 0 {
        write.size -=
            OverrideRow::load_overrides(&mut write.tx, domain, id).await?.iter().map(OverrideRow::size).sum::<i64>();
    }
    Ok(())
}

fn check_compatible(domain: &str, id: &str, text: &str, overrides: &[OverrideRow]) -> Result<()> {
    if overrides.is_empty() {
        return Ok(());
    }
    let entries: Vec<EntryOverride<'_>> = overrides.iter().map(OverrideRow::as_entry).collect();
    let Err(mistakes) = entry::with_overrides(text, &entries) else { return Ok(()) };
    // The submitted text does not contain the incompatible override, so the message names it.
    let unfit = entries.iter().find(|one| entry::with_overrides(text, std::slice::from_ref(*one)).is_err());
    let value = unfit.map_or("", |one| one.value);
    let why = mistakes.as_slice().first().map(|mistake| mistake.problem.clone()).unwrap_or_default();
    let rule = describe_rule(domain, id);
    Err(ControlError::Invalid(format!(
        "the override for `{value}` does not fit this {rule}: {why}; change or delete the override first"
    )))
}
