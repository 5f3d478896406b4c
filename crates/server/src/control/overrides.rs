//! Overrides: other numbers for one customer, as small resources beside a rule.

use serde_json::{Value, json};
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use tollgate_engine::rules::Source;
use tollgate_engine::rules::entry::{self, EntryOverride};

use super::audit::Line;
use super::cut::{Cursor, page_of};
use super::db::{SHORT, Write, storable, within};
use super::error::Conflict;
use super::model::{Action, Change, Cut, Expected, Page, StoredOverride};
use super::rules::{Kept, check_size, missing, rule_in_words, value_of};
use super::weight::{self, check_weight};
use super::{Control, ControlError, Result, Written};

/// How many a rule may have, its own included; the language has no room for more.
const MAX_OVERRIDES: i64 = 100_000;
/// The longest value.
const MAX_VALUE_BYTES: usize = 1024;

/// An override as it is kept.
#[derive(Clone, Debug)]
pub(super) struct Exception {
    pub(super) value: String,
    pub(super) attribute: String,
    pub(super) effect: String,
    pub(super) until: Option<String>,
    version: i64,
    author: String,
    at_ms: i64,
}

impl Exception {
    pub(super) fn read(row: &AnyRow) -> Result<Self> {
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

    async fn find(connection: &mut AnyConnection, domain: &str, id: &str, value: &str) -> Result<Option<Self>> {
        if ![domain, id, value].into_iter().all(storable) {
            return Ok(None);
        }
        let query = "SELECT value, attribute, effect, until, version, author, at_ms FROM overrides \
                     WHERE domain = $1 AND id = $2 AND value = $3";
        let row = sqlx::query(query).bind(domain).bind(id).bind(value).fetch_optional(connection).await?;
        row.as_ref().map(Self::read).transpose()
    }

    pub(super) fn as_entry(&self) -> EntryOverride<'_> {
        EntryOverride {
            attribute: &self.attribute,
            value: &self.value,
            effect: &self.effect,
            until: self.until.as_deref(),
        }
    }

    pub(super) fn weight(&self) -> i64 {
        weight::of_override(&self.attribute, &self.value, &self.effect, self.until.as_deref())
    }

    fn stored(self, rule: &str) -> StoredOverride {
        StoredOverride {
            rule: rule.into(),
            effect: value_of(&self.effect),
            value: self.value,
            attribute: self.attribute,
            until: self.until,
            version: self.version,
            author: self.author,
            at_ms: self.at_ms,
            rule_deleted: false,
        }
    }

    /// As the audit log has it.
    fn logged(&self) -> String {
        let mut shown = value_of(&self.effect);
        if let Value::Object(map) = &mut shown {
            map.insert("attribute".into(), json!(self.attribute));
            if let Some(until) = &self.until {
                map.insert("until".into(), json!(until));
            }
        }
        shown.to_string()
    }
}

impl Control {
    /// Overrides of a rule, by value. Those that have ended stay until they are deleted, and those of a rule that was deleted, too.
    ///
    /// # Errors
    /// When there is no such rule and none is left of it, `after` was made up, or the database cannot be asked.
    pub async fn overrides(&self, domain: &str, id: &str, cut: &Cut) -> Result<Page<StoredOverride>> {
        let (limit, after) = cut.read()?;
        let query = "SELECT value, attribute, effect, until, version, author, at_ms FROM overrides \
                     WHERE domain = $1 AND id = $2 AND value > $3 ORDER BY value LIMIT $4";
        within(SHORT, async {
            let mut connection = self.db.pool().acquire().await?;
            if !storable(domain) || !storable(id) {
                return Err(missing(domain, id));
            }
            let rule_deleted = Kept::find(&mut connection, domain, id).await?.is_none();
            let from_start = after.is_none();
            // No value is empty, so all of them come after nothing.
            let begin = after.map(|after| after.name).unwrap_or_default();
            let rows = sqlx::query(query)
                .bind(domain)
                .bind(id)
                .bind(begin)
                .bind(limit + 1)
                .fetch_all(&mut *connection)
                .await?;
            if rule_deleted && from_start && rows.is_empty() {
                return Err(missing(domain, id));
            }
            let read = |row: &AnyRow| Ok(StoredOverride { rule_deleted, ..Exception::read(row)?.stored(id) });
            page_of(&rows, limit, read, |last| Cursor { number: 0, name: last.value.clone() })
        })
        .await
    }

    /// Overrides of all rules of a domain, also of those that were deleted, by rule and value.
    ///
    /// # Errors
    /// When `after` was made up, or the database cannot be asked.
    pub async fn overrides_of_domain(&self, domain: &str, cut: &Cut) -> Result<Page<StoredOverride>> {
        let (limit, after) = cut.read()?;
        if !storable(domain) {
            return Ok(Page { items: Vec::new(), next: None });
        }
        // Ids have no spaces. No value is empty, so all of a rule come after nothing.
        let begin = after.map(|after| after.name).unwrap_or_default();
        let (id, value) = begin.split_once(' ').unwrap_or_default();
        let query = "SELECT o.id, value, attribute, effect, until, o.version, o.author, o.at_ms, r.id AS of_rule FROM overrides o \
                     LEFT JOIN rules r ON r.domain = o.domain AND r.id = o.id \
                     WHERE o.domain = $1 AND (o.id, value) > ($2, $3) ORDER BY o.id, value LIMIT $4";
        let query = sqlx::query(query).bind(domain).bind(id).bind(value).bind(limit + 1);
        let rows = within(SHORT, async { Ok(query.fetch_all(self.db.pool()).await?) }).await?;
        let read = |row: &AnyRow| {
            let rule_deleted = row.try_get::<Option<String>, _>("of_rule")?.is_none();
            Ok(StoredOverride { rule_deleted, ..Exception::read(row)?.stored(row.try_get("id")?) })
        };
        page_of(&rows, limit, read, |last| Cursor { number: 0, name: format!("{} {}", last.rule, last.value) })
    }

    /// One override.
    ///
    /// # Errors
    /// When there is none for the value, or the database cannot be asked.
    pub async fn override_for(&self, domain: &str, id: &str, value: &str) -> Result<StoredOverride> {
        within(SHORT, async {
            let mut connection = self.db.pool().acquire().await?;
            let found = Exception::find(&mut connection, domain, id, value).await?;
            let found = found.ok_or_else(|| missing_override(domain, id, value))?;
            let rule_deleted = Kept::find(&mut connection, domain, id).await?.is_none();
            Ok(StoredOverride { rule_deleted, ..found.stored(id) })
        })
        .await
    }

    /// Makes an override, or replaces it. `text` is an override as in a file, without `when`; with `attribute` if it is not the
    /// first one that the rule counts by.
    ///
    /// # Errors
    /// When there is no such rule, the override has mistakes, is not what was expected, is there for another attribute, does not
    /// fit, or the database cannot be asked.
    pub async fn put_override(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        value: &str,
        text: &[u8],
        expected: Expected,
    ) -> Result<Written<StoredOverride>> {
        check_size(text.len())?;
        if value.is_empty() || value.len() > MAX_VALUE_BYTES || !storable(value) {
            let why = format!("a value has 1 to {MAX_VALUE_BYTES} bytes and no character of the value zero");
            return Err(ControlError::Invalid(why));
        }
        let (written, revision) = within(SHORT, async {
            let mut write = self.db.write(change).await?;
            let rule = Kept::find(&mut write.tx, domain, id).await?.ok_or_else(|| missing(domain, id))?;
            let old = Exception::find(&mut write.tx, domain, id, value).await?;
            expect(domain, id, value, old.as_ref(), expected)?;
            let given = entry::one_override(&Source { name: "override", text }, &rule.text, value)?;
            if let Some(old) = old.as_ref().filter(|old| old.attribute != given.attribute) {
                return Err(taken(domain, id, old, &given.attribute));
            }
            let new = Exception {
                value: value.into(),
                attribute: given.attribute,
                effect: given.effect,
                until: given.until,
                version: write.revision,
                author: write.author.clone(),
                at_ms: write.at_ms,
            };
            let says = |one: &Exception| (one.attribute.clone(), value_of(&one.effect), one.until.clone());
            if let Some(old) = old.clone().filter(|old| says(old) == says(&new)) {
                write.undo().await?;
                return Ok((Written { now: old.stored(id), created: false, changed: false }, None));
            }
            write.put_override(domain, &rule, old.as_ref(), &new).await?;
            let revision = write.commit().await?;
            Ok((Written { now: new.stored(id), created: old.is_none(), changed: true }, Some(revision)))
        })
        .await?;
        if let Some(revision) = revision {
            self.tell(revision);
        }
        Ok(written)
    }

    /// Deletes an override.
    ///
    /// # Errors
    /// When there is none for the value, it is not what was expected, or the database cannot be asked.
    pub async fn delete_override(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        value: &str,
        expected: Expected,
    ) -> Result<()> {
        let revision = within(SHORT, async {
            let mut write = self.db.write(change).await?;
            let old = Exception::find(&mut write.tx, domain, id, value).await?;
            expect(domain, id, value, old.as_ref(), expected)?;
            let old = old.ok_or_else(|| missing_override(domain, id, value))?;
            let delete = "DELETE FROM overrides WHERE domain = $1 AND id = $2 AND value = $3";
            sqlx::query(delete).bind(domain).bind(id).bind(value).execute(&mut *write.tx).await?;
            let count = "UPDATE rules SET overrides = overrides - 1 WHERE domain = $1 AND id = $2";
            let counted = sqlx::query(count).bind(domain).bind(id).execute(&mut *write.tx).await?;
            // Without its rule it weighs nothing.
            if counted.rows_affected() > 0 {
                write.weight -= old.weight();
            }
            write.log_override(domain, id, Some(&old), None, Action::Delete).await?;
            write.commit().await
        })
        .await?;
        self.tell(revision);
        Ok(())
    }
}

impl Write<'_> {
    async fn put_override(
        &mut self,
        domain: &str,
        rule: &Kept,
        old: Option<&Exception>,
        new: &Exception,
    ) -> Result<()> {
        if old.is_none() {
            let own = value_of(&rule.text).get("overrides").and_then(Value::as_array).map_or(0, Vec::len) as i64;
            if rule.overrides + own >= MAX_OVERRIDES {
                return Err(ControlError::Full(format!("a rule has at most {MAX_OVERRIDES} overrides")));
            }
            let count = "UPDATE rules SET overrides = overrides + 1 WHERE domain = $1 AND id = $2";
            sqlx::query(count).bind(domain).bind(rule.id.as_str()).execute(&mut *self.tx).await?;
        }
        self.weight += new.weight() - old.map_or(0, Exception::weight);
        check_weight(self.weight)?;
        let put = "INSERT INTO overrides (domain, id, value, attribute, effect, until, version, author, at_ms) \
                   VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9) ON CONFLICT (domain, id, value) DO UPDATE SET \
                   attribute = excluded.attribute, effect = excluded.effect, until = excluded.until, \
                   version = excluded.version, author = excluded.author, at_ms = excluded.at_ms";
        sqlx::query(put)
            .bind(domain)
            .bind(rule.id.as_str())
            .bind(new.value.as_str())
            .bind(new.attribute.as_str())
            .bind(new.effect.as_str())
            .bind(new.until.as_deref())
            .bind(new.version)
            .bind(new.author.as_str())
            .bind(new.at_ms)
            .execute(&mut *self.tx)
            .await?;
        let action = if old.is_none() { Action::Create } else { Action::Update };
        self.log_override(domain, &rule.id, old, Some(new), action).await
    }

    async fn log_override(
        &mut self,
        domain: &str,
        id: &str,
        old: Option<&Exception>,
        new: Option<&Exception>,
        action: Action,
    ) -> Result<()> {
        let (before, after) = (old.map(Exception::logged), new.map(Exception::logged));
        let value = old.or(new).map_or("", |one| &one.value);
        let line = Line {
            kind: "override",
            action: action.as_str(),
            domain: Some(domain),
            subject: subject(id, value),
            before: before.as_deref(),
            after: after.as_deref(),
        };
        self.log(&[line]).await
    }
}

/// What the audit log calls an override.
fn subject(id: &str, value: &str) -> String {
    format!("{id}/overrides/{value}")
}

fn in_words(domain: &str, id: &str, value: &str) -> String {
    format!("override for `{value}` of the {}", rule_in_words(domain, id))
}

fn missing_override(domain: &str, id: &str, value: &str) -> ControlError {
    ControlError::Missing(in_words(domain, id, value))
}

/// A value has one override in a rule, whichever attribute it is of. One that somebody else set must not go away unseen.
fn taken(domain: &str, id: &str, old: &Exception, attribute: &str) -> ControlError {
    let Exception { value, attribute: there, effect, .. } = old;
    ControlError::Taken(format!(
        "there is an {} already, as a value of `{there}`: {effect}; it would be lost to the one of `{attribute}`, so delete it first if \
         that is meant, with DELETE or `tollgate rules overrides delete`",
        in_words(domain, id, value)
    ))
}

fn expect(domain: &str, id: &str, value: &str, old: Option<&Exception>, expected: Expected) -> Result<()> {
    if expected.holds(old.map(|old| old.version)) {
        return Ok(());
    }
    Err(ControlError::Conflict(Box::new(Conflict {
        what: format!("the {}", in_words(domain, id, value)),
        current: old.map(|old| old.version),
        rule: None,
        by: old.map(|old| (old.author.clone(), Action::Update, old.at_ms)),
        diff: None,
    })))
}
