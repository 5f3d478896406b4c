//! Reads, writes and deletes single rules.

use serde_json::Value;
use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use tollgate_engine::Item;
use tollgate_engine::rules::entry;
use tollgate_engine::rules::{MAX_RULES, Source};

use super::apply::run_blocking;
use super::audit::NewEntry;
use super::db::{Authorship, Db, SHORT_TIMEOUT, Write, are_storable, read_boolean, with_timeout};
use super::history::{self, RuleWrite, VersionRow};
use super::model::{Action, Change, DomainSummary, Page, PageRequest, RuleSearch, StoredRule, WriteOutcome};
use super::paging::{Cursor, build_page};
use super::sql::Sql;
use super::{ControlError, Result, orphans, size};

/// The maximum size of one rule, in bytes.
pub const MAX_RULE_BYTES: usize = 64 << 10;

/// The columns of [`RuleRow`].
pub(super) const RULE_COLUMNS: &str = "id, position, version, enabled, text, overrides, author, at_ms, comment";

/// A row of the table `rules`.
#[derive(Clone, Debug)]
pub(super) struct RuleRow {
    pub(super) id: String,
    pub(super) position: i64,
    pub(super) version: i64,
    pub(super) enabled: bool,
    pub(super) text: String,
    pub(super) overrides: i64,
    pub(super) authorship: Authorship,
}

impl RuleRow {
    pub(super) fn from_row(row: &AnyRow) -> Result<Self> {
        Ok(Self {
            id: row.try_get("id")?,
            position: row.try_get("position")?,
            version: row.try_get("version")?,
            enabled: read_boolean(row, "enabled")?,
            text: row.try_get("text")?,
            overrides: row.try_get("overrides")?,
            authorship: Authorship::from_row(row)?,
        })
    }

    pub(super) async fn find_rule(connection: &mut AnyConnection, domain: &str, id: &str) -> Result<Option<Self>> {
        if !are_storable([domain, id]) {
            return Ok(None);
        }
        let mut query = Sql::new("SELECT ");
        query.push(RULE_COLUMNS).push(" FROM rules WHERE domain = ").bind(domain).push(" AND id = ").bind(id);
        query.fetch_optional(connection).await?.as_ref().map(Self::from_row).transpose()
    }

    pub(super) fn into_stored(self, domain: &str) -> StoredRule {
        let Authorship { author, at_ms, comment } = self.authorship;
        StoredRule {
            domain: domain.into(),
            rule: parse_stored(&self.text),
            overrides: self.overrides,
            id: self.id,
            version: self.version,
            enabled: self.enabled,
            author,
            at_ms,
            comment,
        }
    }
}

/// Parses JSON that this service stored. Invalid JSON is returned as a string value.
pub(super) fn parse_stored(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|_| Value::String(text.into()))
}

/// Returns whether two rules are equal, ignoring the order of their keys.
pub(super) fn same_rule(one: &str, other: &str) -> bool {
    one == other || (one.len() == other.len() && parse_stored(one) == parse_stored(other))
}

/// Returns the description of a rule for messages.
pub(super) fn describe_rule(domain: &str, id: &str) -> String {
    format!("rule `{id}` of the domain `{domain}`")
}

pub(super) fn missing_rule(domain: &str, id: &str) -> ControlError {
    ControlError::Missing(describe_rule(domain, id))
}

/// Parses one rule, YAML or JSON, and returns it as one line of JSON.
pub(super) fn parse_rule(text: &[u8], domain: &str, id: &str) -> Result<String> {
    check_rule_size(text.len())?;
    let json = entry::parse_rule(&Source { name: "rule", text }, domain, id)?.json;
    check_rule_size(json.len())?;
    Ok(json)
}

pub(super) fn check_rule_size(bytes: usize) -> Result<()> {
    if bytes > MAX_RULE_BYTES {
        return Err(ControlError::Full(format!("rule too large: {bytes} bytes (maximum {MAX_RULE_BYTES})")));
    }
    Ok(())
}

pub(super) fn check_rule_count(rules: i64) -> Result<()> {
    if rules > MAX_RULES as i64 {
        return Err(ControlError::Full(format!("too many rules: {rules} (maximum {MAX_RULES})")));
    }
    Ok(())
}

/// The rules of all domains.
#[derive(Debug)]
pub struct Rules<'c> {
    pub(super) db: &'c Db,
}

impl Rules<'_> {
    /// Returns the domains that have rules, sorted by name.
    ///
    /// # Errors
    /// Returns an error if the database is unreachable.
    pub async fn domains(&self) -> Result<Vec<DomainSummary>> {
        let query = "SELECT domain, COUNT(*) AS rules, CAST(SUM(overrides) AS BIGINT) AS overrides, \
                     (SELECT a.revision FROM audit a WHERE a.domain = r.domain AND a.kind IN ('rule', 'override') \
                     ORDER BY a.seq DESC LIMIT 1) AS revision FROM rules r GROUP BY domain";
        let rows = with_timeout(SHORT_TIMEOUT, Sql::new(query).fetch_all(self.db.pool())).await?;
        let read = |row: &AnyRow| {
            Ok(DomainSummary {
                domain: row.try_get("domain")?,
                rules: row.try_get("rules")?,
                overrides: row.try_get("overrides")?,
                revision: row.try_get("revision")?,
            })
        };
        let mut domains = rows.iter().map(read).collect::<Result<Vec<_>>>()?;
        // Sorts in code, because the collation order differs between databases.
        domains.sort_by(|one, other| one.domain.cmp(&other.domain));
        Ok(domains)
    }

    /// Returns the rules of a domain that match `search`, sorted by position.
    ///
    /// # Errors
    /// Returns an error if the page's `after` is invalid or the database is unreachable.
    pub async fn list(&self, domain: &str, search: &RuleSearch, page: &PageRequest) -> Result<Page<StoredRule>> {
        let (limit, after) = page.parse()?;
        if !are_storable([domain, search.text.as_deref().unwrap_or_default()]) {
            return Ok(Page::default());
        }
        let mut query = Sql::new("SELECT ");
        query.push(RULE_COLUMNS).push(" FROM rules WHERE domain = ").bind(domain);
        if let Some(Cursor { number, name }) = after {
            query.push(" AND (position, id) > (").bind(number).bind_next(name).push(")");
        }
        if let Some(enabled) = search.enabled {
            query.push(" AND enabled = ").bind(i64::from(enabled));
        }
        if let Some(text) = &search.text {
            let pattern = like_pattern(text);
            query.push(" AND (LOWER(id) LIKE LOWER(").bind(pattern.as_str()).push(") ESCAPE '!'");
            query.push(" OR LOWER(text) LIKE LOWER(").bind(pattern.as_str()).push(") ESCAPE '!')");
        }
        query.push(" ORDER BY position, id LIMIT ").bind(limit + 1);
        let rows = with_timeout(SHORT_TIMEOUT, query.fetch_all(self.db.pool())).await?;
        let cursor = |last: &RuleRow| Cursor { number: last.position, name: last.id.clone() };
        let page = build_page(&rows, limit, RuleRow::from_row, cursor)?;
        Ok(Page { items: page.items.into_iter().map(|row| row.into_stored(domain)).collect(), next: page.next })
    }

    /// Returns one rule.
    ///
    /// # Errors
    /// Returns an error if the rule does not exist or the database is unreachable.
    pub async fn get(&self, domain: &str, id: &str) -> Result<StoredRule> {
        with_timeout(SHORT_TIMEOUT, async {
            let row = RuleRow::find_rule(&mut *self.db.pool().acquire().await?, domain, id).await?;
            row.map(|row| row.into_stored(domain)).ok_or_else(|| missing_rule(domain, id))
        })
        .await
    }

    /// Creates or replaces a rule. `text` is YAML or JSON, with or without its `id`.
    ///
    /// # Errors
    /// Returns an error if `text` has mistakes, if the stored rule is not at the expected version, or if the database
    /// is unreachable. Also returns an error if the rules would exceed their maximum size or count.
    pub async fn put(&self, change: &Change, domain: &str, id: &str, text: &[u8]) -> Result<WriteOutcome<StoredRule>> {
        let text = parse_rule(text, domain, id)?;
        let make = |row: Option<&RuleRow>| Ok((text, row.is_none_or(|row| row.enabled), Action::Update));
        change_rule(self.db, change, domain, id, make).await
    }

    /// Changes parts of a rule with a JSON merge patch (RFC 7396).
    ///
    /// # Errors
    /// Returns an error in the same cases as [`put`](Self::put), and if the rule does not exist.
    pub async fn patch(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        patch: &[u8],
    ) -> Result<WriteOutcome<StoredRule>> {
        check_rule_size(patch.len())?;
        let patch: Value = serde_json::from_slice(patch)
            .map_err(|error| ControlError::Invalid(format!("not a JSON merge patch: {error}")))?;
        let make = |row: Option<&RuleRow>| {
            let row = row.ok_or_else(|| missing_rule(domain, id))?;
            let mut rule = parse_stored(&row.text);
            apply_merge_patch(&mut rule, patch);
            // Pretty-printed, so that mistakes have useful line numbers.
            let whole = serde_json::to_vec_pretty(&rule).map_err(|error| ControlError::Invalid(error.to_string()))?;
            Ok((parse_rule(&whole, domain, id)?, row.enabled, Action::Update))
        };
        change_rule(self.db, change, domain, id, make).await
    }

    /// Enables or disables a rule. Nodes receive enabled rules only.
    ///
    /// # Errors
    /// Returns an error if the rule does not exist or is not at the expected version, or if the database is
    /// unreachable.
    pub async fn set_enabled(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        enabled: bool,
    ) -> Result<WriteOutcome<StoredRule>> {
        let make = |row: Option<&RuleRow>| {
            let row = row.ok_or_else(|| missing_rule(domain, id))?;
            Ok((row.text.clone(), enabled, if enabled { Action::Enable } else { Action::Disable }))
        };
        change_rule(self.db, change, domain, id, make).await
    }

    /// Deletes a rule. The history and the overrides of the rule remain.
    ///
    /// # Errors
    /// Returns an error if the rule does not exist or is not at the expected version, or if the database is
    /// unreachable.
    pub async fn delete(&self, change: &Change, domain: &str, id: &str) -> Result<()> {
        with_timeout(SHORT_TIMEOUT, async {
            let mut write = self.db.begin_write(change).await?;
            let row = RuleRow::find_rule(&mut write.tx, domain, id).await?;
            history::check_version(&mut write, domain, id, row.as_ref()).await?;
            let row = row.ok_or_else(|| missing_rule(domain, id))?;
            history::delete_rules(&mut write, domain, &[row]).await?;
            if last_position(&mut write, domain).await?.is_none() {
                write.size -= size::domain_size(domain);
            }
            write.commit().await.map(drop)
        })
        .await
    }
}

/// Changes one rule. The closure `make` receives the current row and returns the new text, the enabled flag and the
/// action.
pub(super) async fn change_rule(
    db: &Db,
    change: &Change,
    domain: &str,
    id: &str,
    make: impl FnOnce(Option<&RuleRow>) -> Result<(String, bool, Action)>,
) -> Result<WriteOutcome<StoredRule>> {
    with_timeout(SHORT_TIMEOUT, async {
        let mut write = db.begin_write(change).await?;
        let old = RuleRow::find_rule(&mut write.tx, domain, id).await?;
        history::check_version(&mut write, domain, id, old.as_ref()).await?;
        let (text, enabled, action) = make(old.as_ref())?;
        if let Some(old) = old.clone().filter(|old| old.enabled == enabled && same_rule(&old.text, &text)) {
            write.rollback().await?;
            return Ok(WriteOutcome { value: old.into_stored(domain), created: false, changed: false });
        }
        let new = store_rule(&mut write, domain, id, old.as_ref(), text, enabled, action).await?;
        if enabled {
            check_match_limit(&mut write, domain, &new.text).await?;
        }
        write.commit().await?;
        Ok(WriteOutcome { value: new.into_stored(domain), created: old.is_none(), changed: true })
    })
    .await
}

/// Writes one rule, its version and its audit entry.
async fn store_rule(
    write: &mut Write<'_>,
    domain: &str,
    id: &str,
    old: Option<&RuleRow>,
    text: String,
    enabled: bool,
    action: Action,
) -> Result<RuleRow> {
    if old.is_some_and(|old| old.overrides > 0 && old.text != text) {
        orphans::check_overrides(write, domain, id, &text).await?;
    }
    let (position, version, action, overrides) = match old {
        Some(old) => (old.position, old.version + 1, action, old.overrides),
        None => {
            let last = VersionRow::find_last_version(&mut write.tx, domain, id).await?;
            let overrides = match &last {
                Some(_) => orphans::reattach_overrides(write, domain, id, &text).await?,
                None => 0,
            };
            let version = last.map_or(0, |last| last.version);
            let position = last_position(write, domain).await?;
            // The first rule of a domain also adds the size of the JSON around the domain's rules.
            write.size += if position.is_none() { size::domain_size(domain) } else { 0 };
            write.rules += 1;
            check_rule_count(write.rules)?;
            let action = if action == Action::Update { Action::Create } else { action };
            (position.map_or(1, |last| last + 1), version + 1, action, overrides)
        }
    };
    write.size += size::rule_size(&text) - old.map_or(0, |old| size::rule_size(&old.text));
    size::check_total_size(write.size)?;
    let authorship = write.authorship.clone();
    let row = RuleRow { id: id.into(), position, version, enabled, text, overrides, authorship };
    history::write_rules(write, &[RuleWrite { domain, row: &row, action: Some(action) }]).await?;
    let before = old.map(|old| &*old.text);
    write.append_to_audit_log(&[rule_audit_entry(domain, id, action.as_str(), before, Some(&row.text))]).await?;
    Ok(row)
}

/// Returns the audit entry of a change to a rule.
pub(super) fn rule_audit_entry<'e>(
    domain: &'e str,
    id: &str,
    action: &'e str,
    before: Option<&'e str>,
    after: Option<&'e str>,
) -> NewEntry<'e> {
    NewEntry { kind: "rule", action, domain: Some(domain), subject: id.into(), before, after }
}

/// Checks the number of enabled rules in a domain that certainly match the same request: rules without `when`, and
/// rules with equal `when`. Nodes refuse a domain with too many such rules. Call this after writing the rule whose text
/// is `changed`. Reads only the rules that may have to be counted together with `changed`: rules without `when`, and
/// rules whose text contains the `when` values of `changed` that need no escaping. Reads all rules if `changed` is
/// empty.
pub(super) async fn check_match_limit(write: &mut Write<'_>, domain: &str, changed: &str) -> Result<()> {
    let mut query = Sql::new("SELECT COUNT(*) FROM rules WHERE enabled = 1 AND domain = ");
    let count = query.bind(domain).fetch_optional(&mut *write.tx).await?.map(|row| row.try_get(0)).transpose()?;
    if count.unwrap_or(0_i64) <= Item::MAX_RULES as i64 {
        return Ok(());
    }
    let mut query = Sql::new("SELECT text FROM rules WHERE enabled = 1 AND domain = ");
    query.bind(domain).push(" AND (text NOT LIKE '{\"id\":\"' || id || '\",\"when\":{\"%'");
    // A stored rule begins with `id`, followed by `when` if the rule has it.
    query.push(" OR (id = id");
    for value in when_values_without_escapes(&parse_stored(changed)["when"]) {
        query.push(" AND text LIKE ").bind(like_pattern(&value)).push(" ESCAPE '!'");
    }
    let rows = query.push(")) ORDER BY position, id").fetch_all(&mut *write.tx).await?;
    let texts = rows.iter().map(|row| row.try_get(0)).collect::<std::result::Result<Vec<String>, _>>()?;
    if texts.len() <= Item::MAX_RULES {
        return Ok(());
    }
    let file = entry::to_json([(domain, texts.iter().map(String::as_str))]);
    run_blocking(move || entry::split_files(&[Source { name: "rules", text: file.as_bytes() }]).map(drop)).await??;
    Ok(())
}

/// Returns the values in `when` that need no escaping, so that the text of every rule with an equal `when` contains
/// them.
fn when_values_without_escapes(when: &Value) -> Vec<String> {
    let values = when.as_object().into_iter().flat_map(serde_json::Map::values);
    let texts = values.filter_map(|value| match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    });
    texts.filter(|text| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._*".contains(&byte))).collect()
}

async fn last_position(write: &mut Write<'_>, domain: &str) -> Result<Option<i64>> {
    let mut query = Sql::new("SELECT position FROM rules WHERE domain = ");
    let row = query.bind(domain).push(" ORDER BY position DESC LIMIT 1").fetch_optional(&mut *write.tx).await?;
    Ok(row.map(|row| row.try_get(0)).transpose()?)
}

/// Returns a LIKE pattern that matches any string that contains `text` literally.
fn like_pattern(text: &str) -> String {
    format!("%{}%", text.replace('!', "!!").replace('%', "!%").replace('_', "!_"))
}

/// Applies a merge patch (RFC 7396).
fn apply_merge_patch(target: &mut Value, patch: Value) {
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
            apply_merge_patch(target.entry(key).or_insert(Value::Null), value);
        }
    }
}
