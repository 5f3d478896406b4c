//! Reads, compares and restores rule versions.

use std::collections::HashMap;

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use tollgate_engine::rules::entry;

use super::db::{Authorship, Db, SHORT_TIMEOUT, Write, are_storable, read_boolean, with_timeout};
use super::error::Conflict;
use super::model::{Action, Change, ExpectedVersion, Page, PageRequest, StoredRule, Version, WriteOutcome};
use super::paging::{Cursor, build_page};
use super::rules::{RuleRow, change_rule, describe_rule, missing_rule, parse_stored, rule_audit_entry};
use super::sql::{MAX_ROWS_PER_STATEMENT, Sql};
use super::{ControlError, Result, orphans, size};

/// A row of the table `versions`.
#[derive(Debug)]
pub(super) struct VersionRow {
    pub(super) version: i64,
    action: Action,
    enabled: bool,
    text: Option<String>,
    authorship: Authorship,
}

impl VersionRow {
    fn from_row(row: &AnyRow) -> Result<Self> {
        let action: String = row.try_get("action")?;
        Ok(Self {
            version: row.try_get("version")?,
            action: Action::parse(&action).unwrap_or(Action::Update),
            enabled: read_boolean(row, "enabled")?,
            text: row.try_get("text")?,
            authorship: Authorship::from_row(row)?,
        })
    }

    async fn find_version_row(
        connection: &mut AnyConnection,
        domain: &str,
        id: &str,
        version: i64,
    ) -> Result<Option<Self>> {
        if !are_storable([domain, id]) {
            return Ok(None);
        }
        let row = select_versions(domain, id).push(" AND version = ").bind(version).fetch_optional(connection).await?;
        row.as_ref().map(Self::from_row).transpose()
    }

    /// Returns the last version of a rule, even if the rule was deleted. Returns `None` if the rule never existed.
    pub(super) async fn find_last_version(
        connection: &mut AnyConnection,
        domain: &str,
        id: &str,
    ) -> Result<Option<Self>> {
        if !are_storable([domain, id]) {
            return Ok(None);
        }
        let row = select_versions(domain, id).push(" ORDER BY version DESC LIMIT 1").fetch_optional(connection).await?;
        row.as_ref().map(Self::from_row).transpose()
    }

    fn into_version(self) -> Version {
        let Authorship { author, at_ms, comment } = self.authorship;
        let rule = self.text.as_deref().map(parse_stored);
        Version { version: self.version, action: self.action, enabled: self.enabled, rule, author, at_ms, comment }
    }
}

fn select_versions(domain: &str, id: &str) -> Sql {
    let mut query =
        Sql::new("SELECT version, action, enabled, text, author, at_ms, comment FROM versions WHERE domain = ");
    query.bind(domain).push(" AND id = ").bind(id);
    query
}

/// A rule to write. The action is `None` if only the position of the rule changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleWrite<'w> {
    pub(super) domain: &'w str,
    pub(super) row: &'w RuleRow,
    pub(super) action: Option<Action>,
}

/// The versions of rules.
#[derive(Debug)]
pub struct History<'c> {
    pub(super) db: &'c Db,
}

impl History<'_> {
    /// Returns the versions of a rule, newest first, even if the rule was deleted.
    ///
    /// # Errors
    /// Returns an error if the rule never existed, if the page's `after` is invalid, or if the database is unreachable.
    pub async fn list(&self, domain: &str, id: &str, page: &PageRequest) -> Result<Page<Version>> {
        let (limit, after) = page.parse()?;
        if !are_storable([domain, id]) {
            return Err(missing_rule(domain, id));
        }
        let mut query = select_versions(domain, id);
        query.push(" AND version < ").bind(after.as_ref().map_or(i64::MAX, |after| after.number));
        query.push(" ORDER BY version DESC LIMIT ").bind(limit + 1);
        let rows = with_timeout(SHORT_TIMEOUT, query.fetch_all(self.db.pool())).await?;
        if rows.is_empty() && after.is_none() {
            return Err(missing_rule(domain, id));
        }
        let read = |row: &AnyRow| Ok(VersionRow::from_row(row)?.into_version());
        build_page(&rows, limit, read, |last| Cursor::from_number(last.version))
    }

    /// Returns one version.
    ///
    /// # Errors
    /// Returns an error if the version does not exist or the database is unreachable.
    pub async fn get(&self, domain: &str, id: &str, version: i64) -> Result<Version> {
        self.find_version(domain, id, version).await.map(VersionRow::into_version)
    }

    async fn find_version(&self, domain: &str, id: &str, version: i64) -> Result<VersionRow> {
        let missing = || ControlError::Missing(format!("version {version} of the {}", describe_rule(domain, id)));
        with_timeout(SHORT_TIMEOUT, async {
            let row = VersionRow::find_version_row(&mut *self.db.pool().acquire().await?, domain, id, version).await?;
            row.ok_or_else(missing)
        })
        .await
    }

    /// Returns the line diff of two versions. Each line begins with `-`, `+` or a space. Version 0 is empty.
    ///
    /// # Errors
    /// Returns an error if a version does not exist or the database is unreachable.
    pub async fn diff(&self, domain: &str, id: &str, from: i64, to: i64) -> Result<String> {
        let text = async |version: i64| match version {
            0 => Ok(None),
            version => self.find_version(domain, id, version).await.map(|row| row.text),
        };
        Ok(diff_of_rules(text(from).await?.as_deref(), text(to).await?.as_deref()))
    }

    /// Restores the text of an earlier version as a new version. A disabled rule stays disabled. A deleted rule is
    /// created again, enabled or disabled as in the earlier version.
    ///
    /// # Errors
    /// Returns an error if the earlier version does not exist or is a deletion, if the rule is not at the expected
    /// version, or if the database is unreachable. Also returns an error if the rules would exceed their maximum size
    /// or count.
    pub async fn rollback(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        version: i64,
    ) -> Result<WriteOutcome<StoredRule>> {
        let earlier = self.find_version(domain, id, version).await?;
        let Some(text) = earlier.text else {
            let why = format!(
                "version {version} of the {} records its deletion; delete the rule instead",
                describe_rule(domain, id)
            );
            return Err(ControlError::Invalid(why));
        };
        let make = |row: Option<&RuleRow>| Ok((text, row.map_or(earlier.enabled, |row| row.enabled), Action::Rollback));
        change_rule(self.db, change, domain, id, make).await
    }
}

/// Checks that a rule is at the version that the writer expects.
pub(super) async fn check_version(
    write: &mut Write<'_>,
    domain: &str,
    id: &str,
    current: Option<&RuleRow>,
) -> Result<()> {
    if write.expected.matches(current.map(|row| row.version)) {
        return Ok(());
    }
    let known = match write.expected {
        ExpectedVersion::Version(version) => VersionRow::find_version_row(&mut write.tx, domain, id, version).await?,
        ExpectedVersion::Anything | ExpectedVersion::Absent | ExpectedVersion::Present => None,
    };
    let last = VersionRow::find_last_version(&mut write.tx, domain, id).await?;
    Err(ControlError::Conflict(Box::new(Conflict {
        what: format!("the {}", describe_rule(domain, id)),
        number: "version",
        expected: write.expected.version(),
        current: current.map(|row| row.version),
        rule: current.map(|row| row.clone().into_stored(domain)),
        by: last.map(|last| (last.authorship.author, last.action, last.authorship.at_ms)),
        diff: known.map(|known| diff_of_rules(known.text.as_deref(), current.map(|row| row.text.as_str()))),
    })))
}

/// Returns the last version number of each rule that has a history.
pub(super) async fn last_versions(
    write: &mut Write<'_>,
    rules: &[(&str, &str)],
) -> Result<HashMap<(String, String), i64>> {
    let mut last = HashMap::new();
    for rules in rules.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut query = Sql::new("SELECT v.domain, v.id, MAX(v.version) AS version FROM (");
        query.push_rows(rules, |row, (domain, id)| {
            row.bind(*domain).bind_next(*id);
        });
        query.push(") AS w JOIN versions v ON v.domain = w.column1 AND v.id = w.column2 GROUP BY v.domain, v.id");
        for row in query.fetch_all(&mut *write.tx).await? {
            last.insert((row.try_get("domain")?, row.try_get("id")?), row.try_get("version")?);
        }
    }
    Ok(last)
}

/// Writes rules. Also writes a new version for each rule that has an action.
pub(super) async fn write_rules(write: &mut Write<'_>, rules: &[RuleWrite<'_>]) -> Result<()> {
    for rules in rules.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut insert = Sql::new(
            "INSERT INTO rules (domain, id, position, version, enabled, text, overrides, author, at_ms, comment) ",
        );
        insert.push_rows(rules, |values, RuleWrite { domain, row, .. }| {
            values
                .bind(*domain)
                .bind_next(row.id.as_str())
                .bind_next(row.position)
                .bind_next(row.version)
                .bind_next(i64::from(row.enabled))
                .bind_next(row.text.as_str())
                .bind_next(row.overrides)
                .bind_next(row.authorship.author.as_str())
                .bind_next(row.authorship.at_ms)
                .bind_next(row.authorship.comment.as_deref());
        });
        insert.push(
            " ON CONFLICT (domain, id) DO UPDATE SET position = excluded.position, version = excluded.version, \
             enabled = excluded.enabled, text = excluded.text, overrides = excluded.overrides, \
             author = excluded.author, at_ms = excluded.at_ms, comment = excluded.comment",
        );
        insert.execute(&mut *write.tx).await?;
    }
    add_versions(write, rules).await
}

async fn add_versions(write: &mut Write<'_>, rules: &[RuleWrite<'_>]) -> Result<()> {
    let versions: Vec<_> = rules.iter().filter_map(|rule| Some((rule.domain, rule.row, rule.action?))).collect();
    for versions in versions.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut insert =
            Sql::new("INSERT INTO versions (domain, id, version, action, enabled, text, author, at_ms, comment) ");
        insert.push_rows(versions, |values, (domain, row, action)| {
            values
                .bind(*domain)
                .bind_next(row.id.as_str())
                .bind_next(row.version)
                .bind_next(action.as_str())
                .bind_next(i64::from(row.enabled))
                .bind_next((*action != Action::Delete).then_some(row.text.as_str()))
                .bind_next(row.authorship.author.as_str())
                .bind_next(row.authorship.at_ms)
                .bind_next(row.authorship.comment.as_deref());
        });
        insert.execute(&mut *write.tx).await?;
    }
    Ok(())
}

/// Deletes rules of a domain and records each deletion as a version. The overrides of the rules remain.
pub(super) async fn delete_rules(write: &mut Write<'_>, domain: &str, rules: &[RuleRow]) -> Result<()> {
    for row in rules {
        orphans::subtract_override_sizes(write, domain, &row.id, row.overrides).await?;
        write.rules -= 1;
        write.size -= size::rule_size(&row.text);
    }
    for rules in rules.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut delete = Sql::new("DELETE FROM rules WHERE domain = ");
        delete.bind(domain).push(" AND id IN (");
        delete.push_rows(rules, |values, row| {
            values.bind(row.id.as_str());
        });
        delete.push(")").execute(&mut *write.tx).await?;
    }
    let deleted =
        |row: &RuleRow| RuleRow { version: row.version + 1, authorship: write.authorship.clone(), ..row.clone() };
    let deleted: Vec<RuleRow> = rules.iter().map(deleted).collect();
    let action = Some(Action::Delete);
    let versions: Vec<RuleWrite<'_>> = deleted.iter().map(|row| RuleWrite { domain, row, action }).collect();
    add_versions(write, &versions).await?;
    let action = Action::Delete.as_str();
    let entries: Vec<_> =
        rules.iter().map(|row| rule_audit_entry(domain, &row.id, action, Some(&row.text), None)).collect();
    write.append_to_audit_log(&entries).await
}

/// Returns the line diff of two rules, formatted as in rule files.
pub(super) fn diff_of_rules(old: Option<&str>, new: Option<&str>) -> String {
    let lines = |json: &str| entry::rule_to_yaml(json).unwrap_or_else(|_| json.into());
    let (old, new) = (old.map(lines).unwrap_or_default(), new.map(lines).unwrap_or_default());
    let mut out = String::new();
    let mut add = |sign: char, line: &str| {
        out.push(sign);
        out.push_str(line.trim_end_matches('\n'));
        out.push('\n');
    };
    // Fast path for created and deleted rules, because a file may contain thousands of new rules.
    if old.is_empty() || new.is_empty() {
        old.lines().for_each(|line| add('-', line));
        new.lines().for_each(|line| add('+', line));
        return out;
    }
    for change in similar::TextDiff::from_lines(&old, &new).iter_all_changes() {
        let sign = match change.tag() {
            similar::ChangeTag::Delete => '-',
            similar::ChangeTag::Insert => '+',
            similar::ChangeTag::Equal => ' ',
        };
        add(sign, change.value());
    }
    out
}
