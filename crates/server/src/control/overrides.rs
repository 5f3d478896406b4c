//! Overrides: limits that replace a rule's limits for one attribute value, such as one customer. Overrides are stored
//! separately from the rule.

use serde_json::{Value, json};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use tollgate_engine::rules::Source;
use tollgate_engine::rules::entry::{self, EntryOverride};

use super::audit::NewEntry;
use super::db::{Db, SHORT_TIMEOUT, Write, are_storable, with_timeout};
use super::error::Conflict;
use super::model::{Action, Change, Page, PageRequest, StoredOverride, WriteOutcome};
use super::paging::{Cursor, build_page};
use super::rules::{RuleRow, check_rule_size, describe_rule, missing_rule, parse_stored};
use super::sql::Sql;
use super::{ControlError, Result, size};

/// Maximum number of overrides of a rule, including overrides in its text. The rule language has the same maximum.
const MAX_OVERRIDES: i64 = 100_000;
/// Maximum length of an attribute value, in bytes.
const MAX_VALUE_BYTES: usize = 1024;

/// The columns of [`OverrideRow`].
pub(super) const OVERRIDE_COLUMNS: &str = "value, attribute, effect, until, o.version, o.author, o.at_ms";

/// A row of the table `overrides`.
#[derive(Clone, Debug)]
pub(super) struct OverrideRow {
    pub(super) value: String,
    pub(super) attribute: String,
    pub(super) effect: String,
    pub(super) until: Option<String>,
    version: i64,
    author: String,
    at_ms: i64,
}

impl OverrideRow {
    pub(super) fn from_row(row: &AnyRow) -> Result<Self> {
        Ok(Self {
            value: row.try_get("value")?,
            attribute: row.try_get("attribute")?,
            effect: row.try_get("effect")?,
            until: row.try_get("until")?,
            version: row.try_get("version")?,
            author: row.try_get("author")?,
            at_ms: row.try_get("at_ms")?,
        })
    }

    async fn find_override(
        connection: &mut AnyConnection,
        domain: &str,
        id: &str,
        value: &str,
    ) -> Result<Option<Self>> {
        if !are_storable([domain, id, value]) {
            return Ok(None);
        }
        let mut query = select_overrides();
        query.bind(domain).push(" AND o.id = ").bind(id).push(" AND value = ").bind(value);
        query.fetch_optional(connection).await?.as_ref().map(Self::from_row).transpose()
    }

    /// Returns all overrides of a rule, ordered by value.
    pub(super) async fn load_overrides(connection: &mut AnyConnection, domain: &str, id: &str) -> Result<Vec<Self>> {
        let mut query = select_overrides();
        query.bind(domain).push(" AND o.id = ").bind(id).push(" ORDER BY value");
        query.fetch_all(connection).await?.iter().map(Self::from_row).collect()
    }

    pub(super) fn as_entry(&self) -> EntryOverride<'_> {
        let Self { attribute, value, effect, until, .. } = self;
        EntryOverride { attribute, value, effect, until: until.as_deref() }
    }

    pub(super) fn size(&self) -> i64 {
        size::override_size(&self.attribute, &self.value, &self.effect, self.until.as_deref())
    }

    fn into_stored(self, rule: &str, rule_deleted: bool) -> StoredOverride {
        StoredOverride {
            rule: rule.into(),
            effect: parse_stored(&self.effect),
            value: self.value,
            attribute: self.attribute,
            until: self.until,
            version: self.version,
            author: self.author,
            at_ms: self.at_ms,
            rule_deleted,
        }
    }

    /// Returns the override as JSON for the audit log.
    fn to_audit_json(&self) -> String {
        let mut json = parse_stored(&self.effect);
        if let Value::Object(map) = &mut json {
            map.insert("attribute".into(), json!(self.attribute));
            map.extend(self.until.as_ref().map(|until| ("until".to_owned(), json!(until))));
        }
        json.to_string()
    }
}

fn select_overrides() -> Sql {
    let mut query = Sql::new("SELECT ");
    query.push(OVERRIDE_COLUMNS).push(" FROM overrides o WHERE o.domain = ");
    query
}

/// The overrides of all rules.
#[derive(Debug)]
pub struct Overrides<'c> {
    pub(super) db: &'c Db,
}

impl Overrides<'_> {
    /// Returns the overrides of a rule, ordered by value. Expired overrides and overrides of a deleted rule are listed
    /// until they are deleted.
    ///
    /// # Errors
    /// Returns an error if neither the rule nor an override of it exists, if the page's `after` is invalid, or if the
    /// database is unreachable.
    pub async fn list(&self, domain: &str, id: &str, page: &PageRequest) -> Result<Page<StoredOverride>> {
        let (limit, after) = page.parse()?;
        if !are_storable([domain, id]) {
            return Err(missing_rule(domain, id));
        }
        with_timeout(SHORT_TIMEOUT, async {
            let mut connection = self.db.pool().acquire().await?;
            let rule_deleted = RuleRow::find_rule(&mut connection, domain, id).await?.is_none();
            let first_page = after.is_none();
            let mut query = select_overrides();
            // Without `after`, the list starts after the empty string, because every value sorts after it.
            query.bind(domain).push(" AND o.id = ").bind(id).push(" AND value > ");
            query.bind(after.unwrap_or_default().name).push(" ORDER BY value LIMIT ").bind(limit + 1);
            let rows = query.fetch_all(&mut *connection).await?;
            if rule_deleted && first_page && rows.is_empty() {
                return Err(missing_rule(domain, id));
            }
            let read = |row: &AnyRow| Ok(OverrideRow::from_row(row)?.into_stored(id, rule_deleted));
            build_page(&rows, limit, read, |last| Cursor::from_name(&last.value))
        })
        .await
    }

    /// Returns the overrides of all rules of a domain, including deleted rules, ordered by rule and value.
    ///
    /// # Errors
    /// Returns an error if the page's `after` is invalid or the database is unreachable.
    pub async fn list_in_domain(&self, domain: &str, page: &PageRequest) -> Result<Page<StoredOverride>> {
        let (limit, after) = page.parse()?;
        if !are_storable([domain]) {
            return Ok(Page::default());
        }
        // The cursor is `id value`. Ids contain no spaces, so the first space separates id and value.
        let after = after.unwrap_or_default().name;
        let (id, value) = after.split_once(' ').unwrap_or_default();
        let mut query = Sql::new("SELECT o.id, r.id AS of_rule, ");
        query
            .push(OVERRIDE_COLUMNS)
            .push(" FROM overrides o LEFT JOIN rules r ON r.domain = o.domain AND r.id = o.id ");
        query.push("WHERE o.domain = ").bind(domain).push(" AND (o.id, value) > (").bind(id).bind_next(value);
        query.push(") ORDER BY o.id, value LIMIT ").bind(limit + 1);
        let rows = with_timeout(SHORT_TIMEOUT, query.fetch_all(self.db.pool())).await?;
        let read = |row: &AnyRow| {
            let rule_deleted = row.try_get::<Option<String>, _>("of_rule")?.is_none();
            Ok(OverrideRow::from_row(row)?.into_stored(row.try_get("id")?, rule_deleted))
        };
        build_page(&rows, limit, read, |last| Cursor::from_name(format!("{} {}", last.rule, last.value)))
    }

    /// Returns one override.
    ///
    /// # Errors
    /// Returns an error if the rule has no override for `value`, or if the database is unreachable.
    pub async fn get(&self, domain: &str, id: &str, value: &str) -> Result<StoredOverride> {
        with_timeout(SHORT_TIMEOUT, async {
            let mut connection = self.db.pool().acquire().await?;
            let row = OverrideRow::find_override(&mut connection, domain, id, value).await?;
            let row = row.ok_or_else(|| missing_override(domain, id, value))?;
            let rule_deleted = RuleRow::find_rule(&mut connection, domain, id).await?.is_none();
            Ok(row.into_stored(id, rule_deleted))
        })
        .await
    }

    /// Creates or replaces an override. `text` is an override as in a file, without `when`. The `attribute` of the
    /// override defaults to the first attribute of the rule's `per`.
    ///
    /// # Errors
    /// Returns an error if the rule does not exist, if `text` has mistakes, or if the database is unreachable. Also
    /// returns an error if the stored override is not at the expected version or has another attribute, or if a maximum
    /// size or count would be exceeded.
    pub async fn put(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        value: &str,
        text: &[u8],
    ) -> Result<WriteOutcome<StoredOverride>> {
        check_rule_size(text.len())?;
        if value.is_empty() || value.len() > MAX_VALUE_BYTES || !are_storable([value]) {
            let why = format!("invalid value: use 1 to {MAX_VALUE_BYTES} bytes without NUL characters");
            return Err(ControlError::Invalid(why));
        }
        with_timeout(SHORT_TIMEOUT, async {
            let mut write = self.db.begin_write(change).await?;
            let rule = RuleRow::find_rule(&mut write.tx, domain, id).await?.ok_or_else(|| missing_rule(domain, id))?;
            let old = OverrideRow::find_override(&mut write.tx, domain, id, value).await?;
            check_version(&write, domain, id, value, old.as_ref())?;
            let given = entry::parse_override_for_value(&Source { name: "override", text }, &rule.text, value)?;
            if let Some(old) = old.as_ref().filter(|old| old.attribute != given.attribute) {
                return Err(override_exists_error(domain, id, old, &given.attribute));
            }
            let new = OverrideRow {
                value: value.into(),
                attribute: given.attribute,
                effect: given.effect,
                until: given.until,
                version: write.revision,
                author: write.authorship.author.clone(),
                at_ms: write.authorship.at_ms,
            };
            let content = |one: &OverrideRow| (one.attribute.clone(), parse_stored(&one.effect), one.until.clone());
            if let Some(old) = old.clone().filter(|old| content(old) == content(&new)) {
                write.rollback().await?;
                return Ok(WriteOutcome { value: old.into_stored(id, false), created: false, changed: false });
            }
            store_override(&mut write, domain, &rule, old.as_ref(), &new).await?;
            write.commit().await?;
            Ok(WriteOutcome { value: new.into_stored(id, false), created: old.is_none(), changed: true })
        })
        .await
    }

    /// Deletes an override.
    ///
    /// # Errors
    /// Returns an error if the rule has no override for `value`, if that override is not at the expected version, or if
    /// the database is unreachable.
    pub async fn delete(&self, change: &Change, domain: &str, id: &str, value: &str) -> Result<()> {
        with_timeout(SHORT_TIMEOUT, async {
            let mut write = self.db.begin_write(change).await?;
            let old = OverrideRow::find_override(&mut write.tx, domain, id, value).await?;
            check_version(&write, domain, id, value, old.as_ref())?;
            let old = old.ok_or_else(|| missing_override(domain, id, value))?;
            let mut delete = Sql::new("DELETE FROM overrides WHERE domain = ");
            delete.bind(domain).push(" AND id = ").bind(id).push(" AND value = ").bind(value);
            delete.execute(&mut *write.tx).await?;
            // The total size does not include overrides of a deleted rule, so nothing is subtracted for them.
            if add_to_count(&mut write, domain, id, -1).await? {
                write.size -= old.size();
            }
            log_override(&mut write, domain, id, Some(&old), None, Action::Delete).await?;
            write.commit().await.map(drop)
        })
        .await
    }
}

/// Adds `added` to the override count of a rule. Returns whether the rule exists.
async fn add_to_count(write: &mut Write<'_>, domain: &str, id: &str, added: i64) -> Result<bool> {
    let mut update = Sql::new("UPDATE rules SET overrides = overrides + ");
    update.bind(added).push(" WHERE domain = ").bind(domain).push(" AND id = ").bind(id);
    Ok(update.execute(&mut *write.tx).await? > 0)
}

/// Writes one override and its audit entry.
async fn store_override(
    write: &mut Write<'_>,
    domain: &str,
    rule: &RuleRow,
    old: Option<&OverrideRow>,
    new: &OverrideRow,
) -> Result<()> {
    if old.is_none() {
        let in_text = parse_stored(&rule.text).get("overrides").and_then(Value::as_array).map_or(0, Vec::len) as i64;
        if rule.overrides + in_text >= MAX_OVERRIDES {
            return Err(ControlError::Full(format!("too many overrides of one rule (maximum {MAX_OVERRIDES})")));
        }
        add_to_count(write, domain, &rule.id, 1).await?;
    }
    write.size += new.size() - old.map_or(0, OverrideRow::size);
    size::check_total_size(write.size)?;
    let mut insert = Sql::new(
        "INSERT INTO overrides (domain, id, value, attribute, effect, until, version, author, at_ms) VALUES (",
    );
    insert
        .bind(domain)
        .bind_next(rule.id.as_str())
        .bind_next(new.value.as_str())
        .bind_next(new.attribute.as_str())
        .bind_next(new.effect.as_str())
        .bind_next(new.until.as_deref())
        .bind_next(new.version)
        .bind_next(new.author.as_str())
        .bind_next(new.at_ms)
        .push(
            ") ON CONFLICT (domain, id, value) DO UPDATE SET attribute = excluded.attribute, effect = excluded.effect, \
             until = excluded.until, version = excluded.version, author = excluded.author, at_ms = excluded.at_ms",
        );
    insert.execute(&mut *write.tx).await?;
    let action = if old.is_none() { Action::Create } else { Action::Update };
    log_override(write, domain, &rule.id, old, Some(new), action).await
}

async fn log_override(
    write: &mut Write<'_>,
    domain: &str,
    id: &str,
    old: Option<&OverrideRow>,
    new: Option<&OverrideRow>,
    action: Action,
) -> Result<()> {
    let (before, after) = (old.map(OverrideRow::to_audit_json), new.map(OverrideRow::to_audit_json));
    let value = old.or(new).map_or("", |one| &one.value);
    let entry = NewEntry {
        kind: "override",
        action: action.as_str(),
        domain: Some(domain),
        subject: format!("{id}/overrides/{value}"),
        before: before.as_deref(),
        after: after.as_deref(),
    };
    write.append_to_audit_log(&[entry]).await
}

fn describe_override(domain: &str, id: &str, value: &str) -> String {
    format!("override for `{value}` of the {}", describe_rule(domain, id))
}

fn missing_override(domain: &str, id: &str, value: &str) -> ControlError {
    ControlError::Missing(describe_override(domain, id, value))
}

/// Returns the error for a value whose stored override has another attribute. The stored override must not be replaced
/// silently.
fn override_exists_error(domain: &str, id: &str, old: &OverrideRow, attribute: &str) -> ControlError {
    let OverrideRow { value, attribute: existing, effect, .. } = old;
    ControlError::Taken(format!(
        "there already is an {} for the attribute `{existing}`: {effect}; an override for `{attribute}` would replace it, so \
         delete the existing one first with DELETE or `tollgate rules overrides delete`",
        describe_override(domain, id, value)
    ))
}

fn check_version(write: &Write<'_>, domain: &str, id: &str, value: &str, old: Option<&OverrideRow>) -> Result<()> {
    if write.expected.matches(old.map(|old| old.version)) {
        return Ok(());
    }
    Err(ControlError::Conflict(Box::new(Conflict {
        what: format!("the {}", describe_override(domain, id, value)),
        number: "version",
        expected: write.expected.version(),
        current: old.map(|old| old.version),
        rule: None,
        by: old.map(|old| (old.author.clone(), Action::Update, old.at_ms)),
        diff: None,
    })))
}
