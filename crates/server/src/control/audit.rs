//! The audit log. Each entry contains the author, the action, and the values before and after the change. The entry of
//! a change to the database is written in the same transaction as the change.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use sqlx::Row;
use sqlx::any::AnyRow;
use tollgate_engine::Enforcement;
use utoipa::ToSchema;

use super::Result;
use super::api::bounds::MAX_SUBJECT_CHARS;
use super::db::{Db, SHORT_TIMEOUT, Write, are_storable, now_ms, with_timeout};
use super::model::{AuditEntry, AuditSearch, Change, FleetMode, Page, PageRequest};
use super::paging::{Cursor, build_page};
use super::rules::parse_stored;
use super::sql::{MAX_ROWS_PER_STATEMENT, Sql};

/// An action that does not change the database, such as a reset. Nodes report their actions in this form.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ActionNote {
    /// Time of the action, in milliseconds since 1970.
    pub at_ms: i64,
    /// The name of the token, or `local` if no token is required.
    pub author: String,
    /// The action.
    pub action: NotedAction,
    /// The domain that the action applies to, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The key or server that the action applies to.
    pub subject: String,
}

impl ActionNote {
    /// Returns a note with the current time. Truncates strings to [`MAX_SUBJECT_CHARS`] and removes characters that
    /// a database cannot store.
    pub fn with_current_time(author: &str, action: NotedAction, domain: Option<&str>, subject: &str) -> Self {
        Self::new_truncated(now_ms(), author, action, domain, subject)
    }

    /// Truncates and cleans the note's strings so that the database can store them.
    #[must_use]
    pub fn into_storable(self) -> Self {
        Self::new_truncated(self.at_ms, &self.author, self.action, self.domain.as_deref(), &self.subject)
    }

    fn new_truncated(at_ms: i64, author: &str, action: NotedAction, domain: Option<&str>, subject: &str) -> Self {
        let cut = |text: &str| text.chars().filter(|char| *char != '\0').take(MAX_SUBJECT_CHARS).collect();
        Self { at_ms, author: cut(author), action, domain: domain.map(cut), subject: cut(subject) }
    }
}

/// The kind of action in a note.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub enum NotedAction {
    /// Counters were reset.
    Reset,
    /// Refusals were enforced again.
    Enforce,
    /// Refusals were no longer enforced.
    Observe,
}

impl NotedAction {
    /// Returns the kind of the note's subject.
    pub const fn subject_kind(self) -> &'static str {
        match self {
            Self::Reset => "key",
            Self::Enforce | Self::Observe => "enforcement",
        }
    }

    /// Returns the action in one word, as in JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Reset => "reset",
            Self::Enforce => "enforce",
            Self::Observe => "observe",
        }
    }
}

impl From<FleetMode> for NotedAction {
    fn from(mode: FleetMode) -> Self {
        match mode {
            FleetMode::Enforce => Self::Enforce,
            FleetMode::Observe => Self::Observe,
        }
    }
}

impl From<Enforcement> for NotedAction {
    fn from(mode: Enforcement) -> Self {
        match mode {
            Enforcement::Enforce => Self::Enforce,
            Enforcement::Observe => Self::Observe,
        }
    }
}

/// An entry to append. [`append_entries`] adds the author, the time and the comment of the write transaction.
#[derive(Debug)]
pub(super) struct NewEntry<'e> {
    pub(super) kind: &'e str,
    pub(super) action: &'e str,
    pub(super) domain: Option<&'e str>,
    pub(super) subject: String,
    /// The old value, as JSON.
    pub(super) before: Option<&'e str>,
    /// The new value, as JSON.
    pub(super) after: Option<&'e str>,
}

/// Appends entries within a write transaction.
pub(super) async fn append_entries(write: &mut Write<'_>, entries: &[NewEntry<'_>]) -> Result<()> {
    for entries in entries.chunks(MAX_ROWS_PER_STATEMENT) {
        let mut insert = Sql::new(
            "INSERT INTO audit (seq, revision, at_ms, author, kind, action, domain, subject, comment, before_json, \
             after_json) ",
        );
        insert.push_rows(entries, |row, entry| {
            write.audit += 1;
            row.bind(write.audit)
                .bind_next(write.revision)
                .bind_next(write.authorship.at_ms)
                .bind_next(write.authorship.author.as_str())
                .bind_next(entry.kind)
                .bind_next(entry.action)
                .bind_next(entry.domain)
                .bind_next(entry.subject.as_str())
                .bind_next(write.authorship.comment.as_deref())
                .bind_next(entry.before)
                .bind_next(entry.after);
        });
        insert.execute(&mut *write.tx).await?;
    }
    Ok(())
}

/// The audit log.
#[derive(Debug)]
pub struct AuditLog<'c> {
    pub(super) db: &'c Db,
}

impl AuditLog<'_> {
    /// Returns entries, newest first.
    ///
    /// # Errors
    /// Returns an error if the page's `after` is invalid or the database is unreachable.
    pub async fn list(&self, search: &AuditSearch, page: &PageRequest) -> Result<Page<AuditEntry>> {
        let (limit, after) = page.parse()?;
        let conditions = [
            (" AND domain = ", search.domain.as_deref()),
            (" AND author = ", search.author.as_deref()),
            (" AND subject = ", search.subject.as_deref()),
        ];
        if !are_storable(conditions.map(|(_, text)| text.unwrap_or_default())) {
            return Ok(Page::default());
        }
        let mut query = Sql::new(
            "SELECT seq, revision, at_ms, author, kind, action, domain, subject, comment, before_json, after_json FROM audit \
             WHERE seq < ",
        );
        query.bind(after.map_or(i64::MAX, |after| after.number));
        for (condition, text) in conditions {
            if let Some(text) = text {
                query.push(condition).bind(text);
            }
        }
        query.push(" ORDER BY seq DESC LIMIT ").bind(limit + 1);
        let rows = with_timeout(SHORT_TIMEOUT, query.fetch_all(self.db.pool())).await?;
        build_page(&rows, limit, read_entry, |last| Cursor::from_number(last.seq))
    }

    /// Records `notes` (actions that do not change the database) in one transaction, all with the same comment. Creates
    /// no revision, so waiting nodes are not woken.
    ///
    /// # Errors
    /// Returns an error if the database is unreachable. No entry is written then, except possibly if the connection
    /// broke during the commit.
    pub async fn record_notes(&self, notes: &[ActionNote], comment: Option<String>) -> Result<()> {
        let Some(first) = notes.first() else { return Ok(()) };
        with_timeout(SHORT_TIMEOUT, async {
            let mut write = self.db.begin_write(&Change { comment, ..Change::by_author(&*first.author) }).await?;
            write.revision -= 1;
            for ActionNote { at_ms, author, action, domain, subject } in notes {
                (write.authorship.author, write.authorship.at_ms) = (author.clone(), *at_ms);
                let entry = NewEntry {
                    kind: action.subject_kind(),
                    action: action.as_str(),
                    domain: domain.as_deref(),
                    subject: subject.clone(),
                    before: None,
                    after: None,
                };
                write.append_to_audit_log(&[entry]).await?;
            }
            write.commit().await.map(drop)
        })
        .await
    }
}

fn read_entry(row: &AnyRow) -> Result<AuditEntry> {
    let json = |column| -> Result<Option<Value>> {
        Ok(row.try_get::<Option<String>, _>(column)?.as_deref().map(parse_stored))
    };
    Ok(AuditEntry {
        seq: row.try_get("seq")?,
        revision: row.try_get("revision")?,
        at_ms: row.try_get("at_ms")?,
        author: row.try_get("author")?,
        kind: row.try_get("kind")?,
        action: row.try_get("action")?,
        domain: row.try_get("domain")?,
        subject: row.try_get("subject")?,
        comment: row.try_get("comment")?,
        before: json("before_json")?,
        after: json("after_json")?,
    })
}
