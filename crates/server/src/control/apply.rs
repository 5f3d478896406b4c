//! Whole files: what one would change, and changing it in one transaction.

use std::collections::HashSet;

use sqlx::{AnyConnection, Row};
use tokio::task::spawn_blocking;
use tollgate_engine::rules::Source;
use tollgate_engine::rules::entry::{self, TakenApart};

use super::audit::Line;
use super::db::{LONG, Write, within};
use super::error::Conflict;
use super::history::Keeping;
use super::model::{Action, Change, Expected, Finding, Plan, Validation};
use super::outlive::{LeftBehind, left_behind};
use super::plan::{DomainWork, Stored, Work, findings, work_out};
use super::rules::{Kept, check_count, check_size};
use super::weight::{self, check_weight};
use super::{Control, ControlError, Others, Result};

/// From so many domains on, it is less work to look at all rules than to ask for each domain.
const MANY_DOMAINS: usize = 50;

impl Control {
    /// What is wrong with a rule file and what is probably not meant, as `tollgate check` tells it. Never fails for what is in the
    /// text.
    ///
    /// # Errors
    /// When the database cannot be asked.
    pub async fn validate(&self, text: &[u8]) -> Result<Validation> {
        let taken = match take_apart(text).await {
            Ok(taken) => taken,
            Err(ControlError::Mistakes(mistakes)) => {
                let mistakes = mistakes.as_slice().iter().map(Finding::from).collect();
                return Ok(Validation { rules: 0, mistakes, warnings: Vec::new() });
            }
            Err(error) => return Err(error),
        };
        let stored = within(LONG, async {
            let mut tx = self.db.read().await?;
            let stored = load(&mut tx, &taken.domains).await?;
            tx.rollback().await?;
            Ok(stored)
        })
        .await?;
        blocking(move || {
            let warnings = findings(&taken, &stored).iter().map(Finding::from).collect();
            Validation { rules: taken.entries.len(), mistakes: Vec::new(), warnings }
        })
        .await
    }

    /// What [`apply`](Self::apply) would do.
    ///
    /// # Errors
    /// When the file has mistakes, or the database cannot be asked.
    pub async fn plan(&self, text: &[u8], others: Others) -> Result<Plan> {
        let taken = take_apart(text).await?;
        let (revision, work) = within(LONG, async {
            let mut tx = self.db.read().await?;
            let revision: i64 = sqlx::query("SELECT revision FROM head").fetch_one(&mut *tx).await?.try_get(0)?;
            let stored = load(&mut tx, &taken.domains).await?;
            let mut work = blocking(move || work_out(taken, stored, others)).await?;
            work.tell_of_overrides(&left_behind(&mut tx).await?);
            tx.rollback().await?;
            Ok((revision, work))
        })
        .await?;
        Ok(plan_of(work, revision, false))
    }

    /// Makes the rules of the domains that a file names what the file says, in one transaction. `expected` is about the revision of
    /// everything. `allowed` says in which domains; a file that names another one is refused as invalid.
    ///
    /// # Errors
    /// When the file has mistakes, names a domain that is not allowed, something does not stand as expected, it does not fit, or the
    /// database cannot be asked. Then nothing was changed.
    pub async fn apply(
        &self,
        change: &Change,
        text: &[u8],
        others: Others,
        expected: Expected,
        allowed: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Plan> {
        let taken = take_apart(text).await?;
        if let Some(domain) = taken.domains.iter().find(|domain| !allowed(domain)) {
            return Err(ControlError::Invalid(format!("the rules of the domain `{domain}` may not be changed by you")));
        }
        let (plan, revision) = within(LONG, async {
            let mut write = self.db.write(change).await?;
            write.expect_revision(expected).await?;
            let stored = load(&mut write.tx, &taken.domains).await?;
            let mut work = blocking(move || work_out(taken, stored, others)).await?;
            if work.is_empty() {
                let revision = write.revision - 1;
                write.undo().await?;
                return Ok((plan_of(work, revision, true), None));
            }
            let left = left_behind(&mut write.tx).await?;
            work.tell_of_overrides(&left);
            for domain in std::mem::take(&mut work.domains) {
                write.carry_out(domain, &left).await?;
            }
            check_count(write.rules)?;
            check_weight(write.weight)?;
            let revision = write.commit().await?;
            Ok((plan_of(work, revision, true), Some(revision)))
        })
        .await?;
        if let Some(revision) = revision {
            self.tell(revision);
        }
        Ok(plan)
    }
}

impl Write<'_> {
    /// Whether everything stands at the revision that the writer takes for granted.
    async fn expect_revision(&mut self, expected: Expected) -> Result<()> {
        let (current, empty) = (self.revision - 1, self.rules == 0);
        let holds = match expected {
            Expected::Anything => true,
            Expected::Nothing => empty,
            Expected::Something => !empty,
            Expected::Version(revision) => revision == current,
        };
        if holds {
            return Ok(());
        }
        let query = "SELECT author, at_ms FROM audit WHERE seq = $1";
        let last = sqlx::query(query).bind(self.audit).fetch_optional(&mut *self.tx).await?;
        let by =
            last.map(|row| Ok::<_, sqlx::Error>((row.try_get(0)?, Action::Update, row.try_get(1)?))).transpose()?;
        Err(ControlError::Conflict(Box::new(Conflict {
            what: "the set of rules".into(),
            current: (!empty || current > 0).then_some(current),
            rule: None,
            by,
            diff: None,
        })))
    }

    async fn carry_out(&mut self, work: DomainWork, left: &LeftBehind) -> Result<()> {
        let domain = &*work.name;
        self.remove(domain, &work.deletes.iter().collect::<Vec<_>>()).await?;
        self.weight += match (work.had, work.has) {
            (false, true) => weight::of_domain(domain),
            (true, false) => -weight::of_domain(domain),
            (true, true) | (false, false) => 0,
        };
        let new = work.writes.iter().filter(|write| write.old.is_none());
        let new: Vec<(&str, &str)> = new.map(|write| (domain, &*write.id)).collect();
        let last = self.last_versions(&new).await?;
        let mut kept = Vec::with_capacity(work.writes.len());
        for write in &work.writes {
            let (old, text) = (write.old.as_ref(), write.text.as_deref());
            let before = old.map_or(0, |old| weight::of_rule(&old.text));
            if let Some(text) = text {
                check_size(text.len())?;
                self.weight += weight::of_rule(text) - before;
                if old.is_some_and(|old| old.overrides > 0) {
                    self.check_overrides(domain, &write.id, text).await?;
                }
            }
            let overrides = match (old, text) {
                (Some(old), _) => old.overrides,
                (None, Some(text)) if left.contains_key(&(domain.to_owned(), write.id.clone())) => {
                    self.bring_back_overrides(domain, &write.id, text).await?
                }
                (None, _) => 0,
            };
            self.rules += i64::from(old.is_none());
            kept.push(match (old, text) {
                (Some(old), None) => (Kept { position: write.position, ..old.clone() }, None),
                (old, text) => {
                    let went = || last.get(&(domain.to_owned(), write.id.clone())).copied().unwrap_or(0);
                    let kept = Kept {
                        id: write.id.clone(),
                        position: write.position,
                        version: old.map_or_else(went, |old| old.version) + 1,
                        enabled: old.is_none_or(|old| old.enabled),
                        text: text.unwrap_or_default().into(),
                        overrides,
                        author: self.author.clone(),
                        at_ms: self.at_ms,
                        comment: self.comment.clone(),
                    };
                    (kept, Some(if old.is_some() { Action::Update } else { Action::Create }))
                }
            });
        }
        let keeping: Vec<Keeping<'_>> =
            kept.iter().map(|(kept, action)| Keeping { domain, kept, action: *action }).collect();
        self.keep(&keeping).await?;
        let told = work.writes.iter().zip(&kept).filter(|(write, (_, action))| action.is_some() || write.moved);
        let lines: Vec<Line<'_>> = told
            .map(|(write, (kept, action))| Line {
                kind: "rule",
                action: action.map_or("move", Action::as_str),
                domain: Some(domain),
                subject: kept.id.clone(),
                before: write.old.as_ref().map(|old| &*old.text),
                after: Some(&kept.text),
            })
            .collect();
        self.log(&lines).await
    }
}

async fn take_apart(text: &[u8]) -> Result<TakenApart> {
    let text = text.to_vec();
    Ok(blocking(move || entry::take_apart(&[Source { name: "rules", text: &text }])).await??)
}

/// Does something that takes long elsewhere; others are served meanwhile.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    spawn_blocking(work).await.map_err(|error| sqlx::Error::Io(std::io::Error::other(error)).into())
}

/// The rules of domains, in order.
async fn load(connection: &mut AnyConnection, domains: &[String]) -> Result<Stored> {
    let mut stored = Stored::new();
    if domains.len() > MANY_DOMAINS {
        let wanted: HashSet<&str> = domains.iter().map(|domain| &**domain).collect();
        let query = "SELECT domain, id, position, version, enabled, text, overrides, author, at_ms, comment FROM rules \
                     ORDER BY domain, position, id";
        for row in &sqlx::query(query).fetch_all(connection).await? {
            let domain: String = row.try_get("domain")?;
            if wanted.contains(&*domain) {
                stored.entry(domain).or_default().push(Kept::read(row)?);
            }
        }
        return Ok(stored);
    }
    for domain in domains {
        let query = "SELECT id, position, version, enabled, text, overrides, author, at_ms, comment FROM rules \
                     WHERE domain = $1 ORDER BY position, id";
        let rows = sqlx::query(query).bind(domain.as_str()).fetch_all(&mut *connection).await?;
        if !rows.is_empty() {
            stored.insert(domain.clone(), rows.iter().map(Kept::read).collect::<Result<_>>()?);
        }
    }
    Ok(stored)
}

fn plan_of(work: Work, revision: i64, applied: bool) -> Plan {
    let Work { changes, unchanged, warnings, .. } = work;
    Plan { revision, applied, changes, unchanged, warnings }
}
