//! Versions: what a rule was, who made it so, and what changed in between.

use std::collections::HashMap;

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use tollgate_engine::rules::entry;

use super::audit::{Line, ROWS, is_usual};
use super::cut::{Cursor, page_of};
use super::db::{SHORT, Write, storable, truth, within};
use super::error::Conflict;
use super::model::{Action, Change, Cut, Expected, Page, StoredRule, Version};
use super::rules::{Kept, missing, rule_in_words, value_of};
use super::sql::Sql;
use super::{Control, ControlError, Result, Written, weight};

/// A version as it is kept.
#[derive(Debug)]
pub(super) struct Past {
    pub(super) version: i64,
    action: Action,
    enabled: bool,
    text: Option<String>,
    author: String,
    at_ms: i64,
    comment: Option<String>,
}

impl Past {
    fn read(row: &AnyRow) -> Result<Self> {
        let action: String = row.try_get("action")?;
        Ok(Self {
            version: row.try_get("version")?,
            action: Action::from_str(&action).unwrap_or(Action::Update),
            enabled: truth(row, "enabled")?,
            text: row.try_get("text")?,
            author: row.try_get("author")?,
            at_ms: row.try_get("at_ms")?,
            comment: row.try_get("comment")?,
        })
    }

    async fn find(connection: &mut AnyConnection, domain: &str, id: &str, version: i64) -> Result<Option<Self>> {
        if !storable(domain) || !storable(id) {
            return Ok(None);
        }
        let query = "SELECT version, action, enabled, text, author, at_ms, comment FROM versions \
                     WHERE domain = $1 AND id = $2 AND version = $3";
        let row = sqlx::query(query).bind(domain).bind(id).bind(version).fetch_optional(connection).await?;
        row.as_ref().map(Self::read).transpose()
    }

    fn shown(self) -> Version {
        Version {
            version: self.version,
            action: self.action,
            enabled: self.enabled,
            rule: self.text.as_deref().map(value_of),
            author: self.author,
            at_ms: self.at_ms,
            comment: self.comment,
        }
    }
}

/// A rule to be written, and what is done to it; nothing if only its place among the others changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Keeping<'k> {
    pub(super) domain: &'k str,
    pub(super) kept: &'k Kept,
    pub(super) action: Option<Action>,
}

impl Control {
    /// Versions of a rule, newest first, also of one that is gone.
    ///
    /// # Errors
    /// When there never was such a rule, `after` was made up, or the database cannot be asked.
    pub async fn versions(&self, domain: &str, id: &str, cut: &Cut) -> Result<Page<Version>> {
        let (limit, after) = cut.read()?;
        if !storable(domain) || !storable(id) {
            return Err(missing(domain, id));
        }
        let query = "SELECT version, action, enabled, text, author, at_ms, comment FROM versions \
                     WHERE domain = $1 AND id = $2 AND version < $3 ORDER BY version DESC LIMIT $4";
        let begin = after.as_ref().map_or(i64::MAX, |after| after.number);
        let rows = within(SHORT, async {
            Ok(sqlx::query(query).bind(domain).bind(id).bind(begin).bind(limit + 1).fetch_all(self.db.pool()).await?)
        })
        .await?;
        if rows.is_empty() && after.is_none() {
            return Err(missing(domain, id));
        }
        let read = |row: &AnyRow| Ok(Past::read(row)?.shown());
        page_of(&rows, limit, read, |last| Cursor { number: last.version, name: String::new() })
    }

    /// One version.
    ///
    /// # Errors
    /// When there is no such version, or the database cannot be asked.
    pub async fn version(&self, domain: &str, id: &str, version: i64) -> Result<Version> {
        self.past(domain, id, version).await.map(Past::shown)
    }

    async fn past(&self, domain: &str, id: &str, version: i64) -> Result<Past> {
        within(SHORT, async {
            let mut connection = self.db.pool().acquire().await?;
            let past = Past::find(&mut connection, domain, id, version).await?;
            past.ok_or_else(|| missing_version(domain, id, version))
        })
        .await
    }

    /// What changed between two versions, line by line, with `-`, `+` and space. Version 0 stands for the time before the first.
    ///
    /// # Errors
    /// When there is no such version, or the database cannot be asked.
    pub async fn diff(&self, domain: &str, id: &str, from: i64, to: i64) -> Result<String> {
        let text = async |version: i64| match version {
            0 => Ok(None),
            version => self.past(domain, id, version).await.map(|past| past.text),
        };
        Ok(diff_of(text(from).await?.as_deref(), text(to).await?.as_deref()))
    }

    /// Makes an earlier version the current one, as a new version. A rule that is disabled stays so; one that was deleted comes
    /// back as that version was.
    ///
    /// # Errors
    /// When there is no such version, the rule is not what was expected, or the database cannot be asked.
    pub async fn rollback(
        &self,
        change: &Change,
        domain: &str,
        id: &str,
        version: i64,
        expected: Expected,
    ) -> Result<Written<StoredRule>> {
        let past = self.past(domain, id, version).await?;
        let Some(text) = past.text else {
            let why =
                format!("version {version} of the {} is its deletion; delete it instead", rule_in_words(domain, id));
            return Err(ControlError::Invalid(why));
        };
        let make = |kept: Option<&Kept>| Ok((text, kept.map_or(past.enabled, |kept| kept.enabled), Action::Rollback));
        self.change_rule(change, domain, id, expected, make).await
    }
}

impl Write<'_> {
    /// Whether a rule stands as the writer takes for granted.
    pub(super) async fn expect(
        &mut self,
        domain: &str,
        id: &str,
        kept: Option<&Kept>,
        expected: Expected,
    ) -> Result<()> {
        if expected.holds(kept.map(|kept| kept.version)) {
            return Ok(());
        }
        let known = match expected {
            Expected::Version(version) => Past::find(&mut self.tx, domain, id, version).await?,
            Expected::Anything | Expected::Nothing | Expected::Something => None,
        };
        let last = self.last_version(domain, id).await?;
        let current = kept.map(|kept| kept.text.as_str());
        Err(ControlError::Conflict(Box::new(Conflict {
            what: format!("the {}", rule_in_words(domain, id)),
            current: kept.map(|kept| kept.version),
            rule: kept.map(|kept| kept.clone().stored(domain)),
            by: last.map(|last| (last.author, last.action, last.at_ms)),
            diff: known.map(|known| diff_of(known.text.as_deref(), current)),
        })))
    }

    pub(super) async fn last_version(&mut self, domain: &str, id: &str) -> Result<Option<Past>> {
        if !storable(domain) || !storable(id) {
            return Ok(None);
        }
        let query = "SELECT version, action, enabled, text, author, at_ms, comment FROM versions \
                     WHERE domain = $1 AND id = $2 ORDER BY version DESC LIMIT 1";
        let row = sqlx::query(query).bind(domain).bind(id).fetch_optional(&mut *self.tx).await?;
        row.as_ref().map(Past::read).transpose()
    }

    /// The numbers of the last versions of rules that are not there, if they were.
    pub(super) async fn last_versions(&mut self, rules: &[(&str, &str)]) -> Result<HashMap<(String, String), i64>> {
        let mut last = HashMap::new();
        for rules in rules.chunks(ROWS) {
            let mut query = Sql::new("SELECT v.domain, v.id, MAX(v.version) AS version FROM (");
            query.rows(rules, |row, (domain, id)| {
                row.bind(*domain).and(*id);
            });
            query.push(") AS w JOIN versions v ON v.domain = w.column1 AND v.id = w.column2 GROUP BY v.domain, v.id");
            for row in query.query()?.persistent(is_usual(rules.len())).fetch_all(&mut *self.tx).await? {
                last.insert((row.try_get("domain")?, row.try_get("id")?), row.try_get("version")?);
            }
        }
        Ok(last)
    }

    /// Writes rules, and a version of each that is more than moved.
    pub(super) async fn keep(&mut self, rules: &[Keeping<'_>]) -> Result<()> {
        for rules in rules.chunks(ROWS) {
            let mut query = Sql::new(
                "INSERT INTO rules (domain, id, position, version, enabled, text, overrides, author, at_ms, comment) ",
            );
            query.rows(rules, |row, Keeping { domain, kept, .. }| {
                row.bind(*domain)
                    .and(kept.id.as_str())
                    .and(kept.position)
                    .and(kept.version)
                    .and(i64::from(kept.enabled))
                    .and(kept.text.as_str())
                    .and(kept.overrides)
                    .and(kept.author.as_str())
                    .and(kept.at_ms)
                    .and(kept.comment.as_deref());
            });
            query.push(
                " ON CONFLICT (domain, id) DO UPDATE SET position = excluded.position, version = excluded.version, \
                 enabled = excluded.enabled, text = excluded.text, overrides = excluded.overrides, \
                 author = excluded.author, at_ms = excluded.at_ms, comment = excluded.comment",
            );
            query.query()?.persistent(is_usual(rules.len())).execute(&mut *self.tx).await?;
        }
        let versions: Vec<&Keeping<'_>> = rules.iter().filter(|keeping| keeping.action.is_some()).collect();
        self.add_versions(&versions).await
    }

    async fn add_versions(&mut self, versions: &[&Keeping<'_>]) -> Result<()> {
        for versions in versions.chunks(ROWS) {
            let mut query =
                Sql::new("INSERT INTO versions (domain, id, version, action, enabled, text, author, at_ms, comment) ");
            query.rows(versions, |row, Keeping { domain, kept, action }| {
                let action = action.unwrap_or(Action::Update);
                row.bind(*domain)
                    .and(kept.id.as_str())
                    .and(kept.version)
                    .and(action.as_str())
                    .and(i64::from(kept.enabled))
                    .and((action != Action::Delete).then_some(kept.text.as_str()))
                    .and(kept.author.as_str())
                    .and(kept.at_ms)
                    .and(kept.comment.as_deref());
            });
            query.query()?.persistent(is_usual(versions.len())).execute(&mut *self.tx).await?;
        }
        Ok(())
    }

    /// Takes rules of a domain away, and writes the versions in which they are gone. Their overrides stay behind.
    pub(super) async fn remove(&mut self, domain: &str, rules: &[&Kept]) -> Result<()> {
        for kept in rules {
            self.leave_overrides(domain, &kept.id, kept.overrides).await?;
            self.rules -= 1;
            self.weight -= weight::of_rule(&kept.text);
        }
        for rules in rules.chunks(ROWS) {
            let mut query = Sql::new("DELETE FROM rules WHERE domain = ");
            query.bind(domain).push(" AND id IN (");
            query.rows(rules, |row, kept| {
                row.bind(kept.id.as_str());
            });
            query.push(")");
            query.query()?.persistent(is_usual(rules.len())).execute(&mut *self.tx).await?;
        }
        let gone: Vec<Kept> = rules
            .iter()
            .map(|kept| Kept {
                version: kept.version + 1,
                author: self.author.clone(),
                at_ms: self.at_ms,
                comment: self.comment.clone(),
                ..(*kept).clone()
            })
            .collect();
        let gone: Vec<Keeping<'_>> =
            gone.iter().map(|kept| Keeping { domain, kept, action: Some(Action::Delete) }).collect();
        self.add_versions(&gone.iter().collect::<Vec<_>>()).await?;
        let lines: Vec<Line<'_>> = rules
            .iter()
            .map(|kept| Line {
                kind: "rule",
                action: Action::Delete.as_str(),
                domain: Some(domain),
                subject: kept.id.clone(),
                before: Some(&kept.text),
                after: None,
            })
            .collect();
        self.log(&lines).await
    }
}

fn missing_version(domain: &str, id: &str, version: i64) -> ControlError {
    ControlError::Missing(format!("version {version} of the {}", rule_in_words(domain, id)))
}

/// What differs between two rules, as the lines in which files have them.
pub(super) fn diff_of(old: Option<&str>, new: Option<&str>) -> String {
    // What is kept was written by us; what cannot be read is shown as it is.
    let lines =
        |json: Option<&str>| json.map(|json| entry::lines(json).unwrap_or_else(|_| json.into())).unwrap_or_default();
    let (old, new) = (lines(old), lines(new));
    let mut out = String::new();
    let mut add = |sign: char, line: &str| {
        out.push(sign);
        out.push_str(line.trim_end_matches('\n'));
        out.push('\n');
    };
    // Files with thousands of new rules have nothing to compare.
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

impl Action {
    /// In one word.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Create => "create",
            Self::Update => "update",
            Self::Delete => "delete",
            Self::Rollback => "rollback",
            Self::Enable => "enable",
            Self::Disable => "disable",
        }
    }

    fn from_str(word: &str) -> Option<Self> {
        let all = [Self::Create, Self::Update, Self::Delete, Self::Rollback, Self::Enable, Self::Disable];
        all.into_iter().find(|action| action.as_str() == word)
    }
}
