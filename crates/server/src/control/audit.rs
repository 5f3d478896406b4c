//! The audit log: who changed what, from what to what. Lines are written in the transaction of the change itself.

use sqlx::Row;
use sqlx::any::AnyRow;

use super::cut::{Cursor, page_of};
use super::db::{SHORT, Write, storable, within};
use super::model::{AuditSearch, Change, Cut, Entry, Page};
use super::sql::Sql;
use super::{Control, ControlError, Result};

/// How many rows are written at once. More would be fewer statements, and yet slower: SQLite looks for the name of each value among
/// those of all others in the statement.
pub(super) const ROWS: usize = 32;

/// Whether a statement for so many rows will be asked for again, and is worth being kept.
pub(super) fn is_usual(rows: usize) -> bool {
    rows == 1 || rows == ROWS
}

/// One line, but for who and when.
#[derive(Debug)]
pub(super) struct Line<'l> {
    pub(super) kind: &'static str,
    pub(super) action: &'l str,
    pub(super) domain: Option<&'l str>,
    pub(super) subject: String,
    /// JSON, as it was.
    pub(super) before: Option<&'l str>,
    /// JSON, as it is since.
    pub(super) after: Option<&'l str>,
}

impl Write<'_> {
    /// Writes lines into the log.
    pub(super) async fn log(&mut self, lines: &[Line<'_>]) -> Result<()> {
        for lines in lines.chunks(ROWS) {
            let mut query = Sql::new(
                "INSERT INTO audit (seq, revision, at_ms, author, kind, action, domain, subject, comment, before_json, \
                 after_json) ",
            );
            query.rows(lines, |row, line| {
                self.audit += 1;
                row.bind(self.audit)
                    .and(self.revision)
                    .and(self.at_ms)
                    .and(self.author.as_str())
                    .and(line.kind)
                    .and(line.action)
                    .and(line.domain)
                    .and(line.subject.as_str())
                    .and(self.comment.as_deref())
                    .and(line.before)
                    .and(line.after);
            });
            query.query()?.persistent(is_usual(lines.len())).execute(&mut *self.tx).await?;
        }
        Ok(())
    }
}

impl Control {
    /// The audit log, newest first.
    ///
    /// # Errors
    /// When `after` was made up, or the database cannot be asked.
    pub async fn audit(&self, search: &AuditSearch, cut: &Cut) -> Result<Page<Entry>> {
        let (limit, after) = cut.read()?;
        let wanted = [
            (" AND domain = ", &search.domain),
            (" AND author = ", &search.author),
            (" AND subject = ", &search.subject),
        ];
        if wanted.iter().any(|(_, text)| text.as_ref().is_some_and(|text| !storable(text))) {
            return Ok(Page { items: Vec::new(), next: None });
        }
        let mut query = Sql::new(
            "SELECT seq, revision, at_ms, author, kind, action, domain, subject, comment, before_json, after_json FROM audit \
             WHERE seq < ",
        );
        query.bind(after.map_or(i64::MAX, |after| after.number));
        for (condition, text) in wanted {
            if let Some(text) = text {
                query.push(condition).bind(text.as_str());
            }
        }
        query.push(" ORDER BY seq DESC LIMIT ").bind(limit + 1);
        within(SHORT, async {
            let rows = query.query()?.fetch_all(self.db.pool()).await?;
            page_of(&rows, limit, entry, |last| Cursor { number: last.seq, name: String::new() })
        })
        .await
    }

    /// Writes down something that was not done to the database: the kill switch, a reset. Makes no revision, so that
    /// no node is woken by it.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn note(
        &self,
        change: &Change,
        kind: &'static str,
        action: &str,
        domain: Option<&str>,
        subject: &str,
    ) -> Result<()> {
        for text in [kind, action, subject, domain.unwrap_or_default(), &change.author]
            .into_iter()
            .chain(change.comment.as_deref())
        {
            if !storable(text) {
                return Err(ControlError::Invalid("a note has no characters of the value zero".into()));
            }
        }
        within(SHORT, async {
            let mut write = self.db.write(change).await?;
            write.revision -= 1;
            let line = Line { kind, action, domain, subject: subject.into(), before: None, after: None };
            write.log(&[line]).await?;
            write.commit().await?;
            Ok(())
        })
        .await
    }
}

fn entry(row: &AnyRow) -> Result<Entry> {
    let json = |column: &str| -> Result<Option<serde_json::Value>> {
        let text: Option<String> = row.try_get(column)?;
        // What is kept was written by us; what cannot be read is shown as it is.
        Ok(text.map(|text| serde_json::from_str(&text).unwrap_or(serde_json::Value::String(text))))
    };
    Ok(Entry {
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
