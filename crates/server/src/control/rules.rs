//! Rules one by one: looking at them, and the one way in which one is changed.

use serde_json::Value;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use tollgate_engine::rules::entry;
use tollgate_engine::rules::{MAX_RULES, Source};

use super::audit::Line;
use super::cut::{Cursor, page_of};
use super::db::{SHORT, Write, storable, truth, within};
use super::history::Keeping;
use super::model::{Action, Change, Cut, DomainSummary, Expected, Page, Search, StoredRule};
use super::sql::Sql;
use super::weight::{self, check_weight};
use super::{Control, ControlError, Result, Written};

/// The longest text of one rule.
pub const MAX_RULE_BYTES: usize = 64 << 10;

/// A rule as it is kept.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    pub(super) id: String,
    pub(super) position: i64,
    pub(super) version: i64,
    pub(super) enabled: bool,
    pub(super) text: String,
    pub(super) overrides: i64,
    pub(super) author: String,
    pub(super) at_ms: i64,
    pub(super) comment: Option<String>,
}

impl Kept {
    pub(super) fn read(row: &AnyRow) -> Result<Self> {
        Ok(Self {
            id: row.try_get("id")?,
            position: row.try_get("position")?,
            version: row.try_get("version")?,
            enabled: truth(row, "enabled")?,
            text: row.try_get("text")?,
            overrides: row.try_get("overrides")?,
            author: row.try_get("author")?,
            at_ms: row.try_get("at_ms")?,
            comment: row.try_get("comment")?,
        })
    }

    pub(super) async fn find(connection: &mut AnyConnection, domain: &str, id: &str) -> Result<Option<Self>> {
        if !storable(domain) || !storable(id) {
            return Ok(None);
        }
        let query = "SELECT id, position, version, enabled, text, overrides, author, at_ms, comment FROM rules \
                     WHERE domain = $1 AND id = $2";
        let row = sqlx::query(query).bind(domain).bind(id).fetch_optional(connection).await?;
        row.as_ref().map(Self::read).transpose()
    }

    pub(super) fn stored(self, domain: &str) -> StoredRule {
        StoredRule {
            domain: domain.into(),
            rule: value_of(&self.text),
            overrides: self.overrides,
            id: self.id,
            version: self.version,
            enabled: self.enabled,
            author: self.author,
            at_ms: self.at_ms,
            comment: self.comment,
        }
    }
}

/// What is kept was written by us; what cannot be read is shown as it is.
pub(super) fn value_of(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.into()))
}

/// Whether two rules say the same, in whatever order.
pub(super) fn same(one: &str, other: &str) -> bool {
    one == other || (one.len() == other.len() && value_of(one) == value_of(other))
}

/// In words.
pub(super) fn rule_in_words(domain: &str, id: &str) -> String {
    format!("rule `{id}` of the domain `{domain}`")
}

pub(super) fn missing(domain: &str, id: &str) -> ControlError {
    ControlError::Missing(rule_in_words(domain, id))
}

/// A rule by itself, from whatever people wrote.
pub(super) fn read_rule(text: &[u8], domain: &str, id: &str) -> Result<String> {
    check_size(text.len())?;
    let json = entry::one(&Source { name: "rule", text }, domain, id)?.json;
    check_size(json.len())?;
    Ok(json)
}

pub(super) fn check_size(bytes: usize) -> Result<()> {
    if bytes > MAX_RULE_BYTES {
        return Err(ControlError::Full(format!("a rule has at most {MAX_RULE_BYTES} bytes, this has {bytes}")));
    }
    Ok(())
}

impl Control {
    /// The domains that have rules, by name, with what is in them.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn domains(&self) -> Result<Vec<DomainSummary>> {
        let query = "SELECT domain, COUNT(*) AS rules, CAST(SUM(overrides) AS BIGINT) AS overrides, \
                     (SELECT a.revision FROM audit a WHERE a.domain = r.domain AND a.kind IN ('rule', 'override') \
                     ORDER BY a.seq DESC LIMIT 1) AS revision FROM rules r GROUP BY domain";
        let rows = within(SHORT, async { Ok(sqlx::query(query).fetch_all(self.db.pool()).await?) }).await?;
        let read = |row: &AnyRow| {
            Ok(DomainSummary {
                domain: row.try_get("domain")?,
                rules: row.try_get("rules")?,
                overrides: row.try_get("overrides")?,
                revision: row.try_get("revision")?,
            })
        };
        let mut domains = rows.iter().map(read).collect::<Result<Vec<_>>>()?;
        // Databases differ in what they take for alphabetical.
        domains.sort_by(|one, other| one.domain.cmp(&other.domain));
        Ok(domains)
    }

    /// Rules of a domain, in their order. Who searches, searches through all of them.
    ///
    /// # Errors
    /// When `after` was made up, or the database cannot be asked.
    pub async fn rules(&self, domain: &str, search: &Search, cut: &Cut) -> Result<Page<StoredRule>> {
        let (limit, after) = cut.read()?;
        if !storable(domain) || search.text.as_ref().is_some_and(|text| !storable(text)) {
            return Ok(Page { items: Vec::new(), next: None });
        }
        let mut query = Sql::new(
            "SELECT id, position, version, enabled, text, overrides, author, at_ms, comment FROM rules WHERE domain = ",
        );
        query.bind(domain);
        if let Some(Cursor { number, name }) = after {
            query.push(" AND (position, id) > (").bind(number).and(name).push(")");
        }
        if let Some(enabled) = search.enabled {
            query.push(" AND enabled = ").bind(i64::from(enabled));
        }
        if let Some(text) = &search.text {
            let pattern = like(text);
            query.push(" AND (LOWER(id) LIKE LOWER(").bind(pattern.as_str()).push(") ESCAPE '!'");
            query.push(" OR LOWER(text) LIKE LOWER(").bind(pattern.as_str()).push(") ESCAPE '!')");
        }
        query.push(" ORDER BY position, id LIMIT ").bind(limit + 1);
        let rows = within(SHORT, async { Ok(query.query()?.fetch_all(self.db.pool()).await?) }).await?;
        let page = page_of(&rows, limit, Kept::read, |last| Cursor { number: last.position, name: last.id.clone() })?;
        Ok(Page { items: page.items.into_iter().map(|kept| kept.stored(domain)).collect(), next: page.next })
    }

    /// One rule.
    ///
    /// # Errors
    /// When there is no such rule, or the database cannot be asked.
    pub async fn rule(&self, domain: &str, id: &str) -> Result<StoredRule> {
        within(SHORT, async {
            let mut connection = self.db.pool().acquire().await?;
            let kept = Kept::find(&mut connection, domain, id).await?;
            kept.map(|kept| kept.stored(domain)).ok_or_else(|| missing(domain, id))
        })
        .await
    }

    /// Makes a rule, or replaces it. `text` is YAML or JSON, with or without its `id`.
    ///
    /// # Errors
    /// When it has mistakes, is not what was expected, does not fit, or the database cannot be asked.
    pub async fn put_rule(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        text: &[u8],
        expected: Expected,
    ) -> Result<Written<StoredRule>> {
        let text = read_rule(text, domain, id)?;
        let make = |kept: Option<&Kept>| Ok((text, kept.is_none_or(|kept| kept.enabled), Action::Update));
        self.change_rule(change, domain, id, expected, make).await
    }

    /// Changes parts of a rule. `patch` is a JSON merge patch (RFC 7396).
    ///
    /// # Errors
    /// As [`put_rule`](Self::put_rule), and when there is no such rule.
    pub async fn patch_rule(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        patch: &[u8],
        expected: Expected,
    ) -> Result<Written<StoredRule>> {
        check_size(patch.len())?;
        let patch: Value = serde_json::from_slice(patch)
            .map_err(|error| ControlError::Invalid(format!("this is no JSON merge patch: {error}")))?;
        let make = |kept: Option<&Kept>| {
            let kept = kept.ok_or_else(|| missing(domain, id))?;
            let mut rule = value_of(&kept.text);
            merge(&mut rule, patch);
            // Over several lines, so that mistakes have a place that says something.
            let whole = serde_json::to_vec_pretty(&rule).map_err(|error| ControlError::Invalid(error.to_string()))?;
            Ok((read_rule(&whole, domain, id)?, kept.enabled, Action::Update))
        };
        self.change_rule(change, domain, id, expected, make).await
    }

    /// Gives a rule to nodes, or takes it from them; it stays here.
    ///
    /// # Errors
    /// When there is no such rule, it is not what was expected, or the database cannot be asked.
    pub async fn set_enabled(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        enabled: bool,
        expected: Expected,
    ) -> Result<Written<StoredRule>> {
        let make = |kept: Option<&Kept>| {
            let kept = kept.ok_or_else(|| missing(domain, id))?;
            Ok((kept.text.clone(), enabled, if enabled { Action::Enable } else { Action::Disable }))
        };
        self.change_rule(change, domain, id, expected, make).await
    }

    /// Deletes a rule. Its history stays, and so do its overrides, which apply again when it comes back.
    ///
    /// # Errors
    /// When there is no such rule, it is not what was expected, or the database cannot be asked.
    pub async fn delete_rule(&self, change: &Change, domain: &str, id: &str, expected: Expected) -> Result<()> {
        let revision = within(SHORT, async {
            let mut write = self.db.write(change).await?;
            let kept = Kept::find(&mut write.tx, domain, id).await?;
            write.expect(domain, id, kept.as_ref(), expected).await?;
            let kept = kept.ok_or_else(|| missing(domain, id))?;
            write.remove(domain, &[&kept]).await?;
            if write.last_position(domain).await?.is_none() {
                write.weight -= weight::of_domain(domain);
            }
            write.commit().await
        })
        .await?;
        self.tell(revision);
        Ok(())
    }

    /// Every change of one rule comes through here. `make` says what it is to be, given what it is.
    pub(super) async fn change_rule(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        expected: Expected,
        make: impl FnOnce(Option<&Kept>) -> Result<(String, bool, Action)>,
    ) -> Result<Written<StoredRule>> {
        let (written, revision) = within(SHORT, async {
            let mut write = self.db.write(change).await?;
            let kept = Kept::find(&mut write.tx, domain, id).await?;
            write.expect(domain, id, kept.as_ref(), expected).await?;
            let (text, enabled, action) = make(kept.as_ref())?;
            let created = kept.is_none();
            if let Some(kept) = kept.clone().filter(|kept| kept.enabled == enabled && same(&kept.text, &text)) {
                write.undo().await?;
                return Ok((Written { now: kept.stored(domain), created, changed: false }, None));
            }
            let now = write.store(domain, id, kept.as_ref(), text, enabled, action).await?;
            let revision = write.commit().await?;
            Ok((Written { now: now.stored(domain), created, changed: true }, Some(revision)))
        })
        .await?;
        if let Some(revision) = revision {
            self.tell(revision);
        }
        Ok(written)
    }
}

impl Write<'_> {
    /// Writes one rule, its version and the line in the log.
    async fn store(
        &mut self,
        domain: &str,
        id: &str,
        old: Option<&Kept>,
        text: String,
        enabled: bool,
        action: Action,
    ) -> Result<Kept> {
        if old.is_some_and(|old| old.overrides > 0 && old.text != text) {
            self.check_overrides(domain, id, &text).await?;
        }
        let (position, version, action, overrides) = match old {
            Some(old) => (old.position, old.version + 1, action, old.overrides),
            None => {
                let last = self.last_version(domain, id).await?;
                let overrides = match &last {
                    Some(_) => self.bring_back_overrides(domain, id, &text).await?,
                    None => 0,
                };
                let version = last.map_or(0, |last| last.version);
                let position = self.last_position(domain).await?;
                // The first rule of a domain brings the domain along.
                self.weight += if position.is_none() { weight::of_domain(domain) } else { 0 };
                self.rules += 1;
                check_count(self.rules)?;
                let action = if action == Action::Update { Action::Create } else { action };
                (position.map_or(1, |last| last + 1), version + 1, action, overrides)
            }
        };
        self.weight += weight::of_rule(&text) - old.map_or(0, |old| weight::of_rule(&old.text));
        check_weight(self.weight)?;
        let kept = Kept {
            id: id.into(),
            position,
            version,
            enabled,
            text,
            overrides,
            author: self.author.clone(),
            at_ms: self.at_ms,
            comment: self.comment.clone(),
        };
        self.keep(&[Keeping { domain, kept: &kept, action: Some(action) }]).await?;
        let line = Line {
            kind: "rule",
            action: action.as_str(),
            domain: Some(domain),
            subject: id.into(),
            before: old.map(|old| &*old.text),
            after: Some(&kept.text),
        };
        self.log(&[line]).await?;
        Ok(kept)
    }

    async fn last_position(&mut self, domain: &str) -> Result<Option<i64>> {
        let query = "SELECT position FROM rules WHERE domain = $1 ORDER BY position DESC LIMIT 1";
        let row = sqlx::query(query).bind(domain).fetch_optional(&mut *self.tx).await?;
        Ok(row.map(|row| row.try_get(0)).transpose()?)
    }
}

/// Whether there are not too many.
pub(super) fn check_count(rules: i64) -> Result<()> {
    if rules > MAX_RULES as i64 {
        return Err(ControlError::Full(format!("there are at most {MAX_RULES} rules")));
    }
    Ok(())
}

/// A pattern that means a text literally, anywhere.
fn like(text: &str) -> String {
    let mut pattern = String::from("%");
    for letter in text.chars() {
        if matches!(letter, '%' | '_' | '!') {
            pattern.push('!');
        }
        pattern.push(letter);
    }
    pattern.push('%');
    pattern
}

/// RFC 7396.
fn merge(target: &mut Value, patch: Value) {
    let Value::Object(patch) = patch else {
        *target = patch;
        return;
    };
    if !target.is_object() {
        *target = Value::Object(serde_json::Map::new());
    }
    let Value::Object(target) = target else { return };
    for (key, value) in patch {
        if value.is_null() {
            target.remove(&key);
        } else {
            merge(target.entry(key).or_insert(Value::Null), value);
        }
    }
}
