//! Overrides and the rules they are about: what goes together, and what stays while a rule is away.
//!
//! A rule that is deleted leaves its overrides behind, since they are what customers have bought, and a rule may come back: by going
//! back to a version, or from a file. Then they apply again, or the rule is refused as long as one of them does not go with it.
//! While it is away they weigh nothing, for nodes are not given them, and they can be listed and deleted.

use std::collections::HashMap;

use sqlx::{AnyConnection, Row};
use tollgate_engine::rules::entry::{self, EntryOverride};

use super::db::Write;
use super::overrides::Exception;
use super::plan::{MAX_WARNINGS, Work};
use super::rules::rule_in_words;
use super::{ControlError, Result};

/// How many overrides there are of each rule that is not there, by domain and id.
pub(super) type LeftBehind = HashMap<(String, String), i64>;

/// Looks for overrides without a rule.
pub(super) async fn left_behind(connection: &mut AnyConnection) -> Result<LeftBehind> {
    let query = "SELECT o.domain, o.id, COUNT(*) AS overrides FROM overrides o \
                 LEFT JOIN rules r ON r.domain = o.domain AND r.id = o.id WHERE r.id IS NULL GROUP BY o.domain, o.id";
    let mut left = LeftBehind::new();
    for row in &sqlx::query(query).fetch_all(connection).await? {
        left.insert((row.try_get("domain")?, row.try_get("id")?), row.try_get("overrides")?);
    }
    Ok(left)
}

impl Work {
    /// Tells of overrides that stay behind rules that go, and of those that are there for rules that come.
    pub(super) fn tell_of_overrides(&mut self, left: &LeftBehind) {
        for domain in &self.domains {
            let name = &domain.name;
            let goes = domain.deletes.iter().filter(|kept| kept.overrides > 0).map(|kept| {
                let overrides = count(kept.overrides);
                format!("{name}/{} has {overrides} beside it, kept for when the rule comes back", kept.id)
            });
            let comes = domain.writes.iter().filter(|write| write.old.is_none()).filter_map(|write| {
                let overrides = count(*left.get(&(name.clone(), write.id.clone()))?);
                Some(format!("{name}/{} was deleted before, and {overrides} from then will apply again", write.id))
            });
            let room = MAX_WARNINGS.saturating_sub(self.warnings.len());
            self.warnings.extend(goes.chain(comes).take(room));
        }
    }
}

fn count(overrides: i64) -> String {
    format!("{overrides} override{}", if overrides == 1 { "" } else { "s" })
}

impl Write<'_> {
    async fn all_overrides(&mut self, domain: &str, id: &str) -> Result<Vec<Exception>> {
        let query = "SELECT value, attribute, effect, until, version, author, at_ms FROM overrides \
                     WHERE domain = $1 AND id = $2 ORDER BY value";
        let rows = sqlx::query(query).bind(domain).bind(id).fetch_all(&mut *self.tx).await?;
        rows.iter().map(Exception::read).collect()
    }

    /// Whether the overrides of a rule still mean something when it becomes `text`.
    pub(super) async fn check_overrides(&mut self, domain: &str, id: &str, text: &str) -> Result<()> {
        let overrides = self.all_overrides(domain, id).await?;
        go_together(domain, id, text, &overrides)
    }

    /// The overrides that are there for a rule that comes back as `text` apply again; how many that are.
    pub(super) async fn bring_back_overrides(&mut self, domain: &str, id: &str, text: &str) -> Result<i64> {
        let overrides = self.all_overrides(domain, id).await?;
        go_together(domain, id, text, &overrides)?;
        self.weight += overrides.iter().map(Exception::weight).sum::<i64>();
        Ok(overrides.len() as i64)
    }

    /// The overrides of a rule that goes apply to nothing until it is back.
    pub(super) async fn leave_overrides(&mut self, domain: &str, id: &str, count: i64) -> Result<()> {
        if count > 0 {
            self.weight -= self.all_overrides(domain, id).await?.iter().map(Exception::weight).sum::<i64>();
        }
        Ok(())
    }
}

fn go_together(domain: &str, id: &str, text: &str, overrides: &[Exception]) -> Result<()> {
    if overrides.is_empty() {
        return Ok(());
    }
    let entries: Vec<EntryOverride<'_>> = overrides.iter().map(Exception::as_entry).collect();
    let Err(mistakes) = entry::with_overrides(text, &entries) else { return Ok(()) };
    // The one that does not fit is named, since it is not in the text that was given.
    let unfit = entries.iter().find(|one| entry::with_overrides(text, std::slice::from_ref(*one)).is_err());
    let value = unfit.map_or("", |one| one.value);
    let why = mistakes.as_slice().first().map(|mistake| mistake.problem.clone()).unwrap_or_default();
    let what = rule_in_words(domain, id);
    Err(ControlError::Invalid(format!(
        "the override for `{value}` does not go with this {what}: {why}; change or delete the override first"
    )))
}
