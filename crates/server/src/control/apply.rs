//! Operations on whole rule files: validate, plan, apply in one transaction, and export.

use std::collections::{BTreeSet, HashMap, HashSet};

use sqlx::{AnyConnection, Row};
use tokio::task::spawn_blocking;
use tollgate_engine::rules::Source;
use tollgate_engine::rules::entry::{self, SplitFiles};

use super::db::{self, Db, LONG_TIMEOUT, Write, are_storable, with_timeout};
use super::error::Conflict;
use super::history::{self, RuleWrite};
use super::model::{Action, Change, ExpectedVersion, Finding, OtherRulesPolicy, Plan, Validation};
use super::orphans::{self, Orphans};
use super::plan::{DomainChanges, FileChanges, RuleChange, StoredRules, compare_file, plan_warnings};
use super::rules::{self, RuleRow, check_match_limit, check_rule_count, check_rule_size, rule_audit_entry};
use super::snapshot::{self, DomainRules, ExportRow};
use super::sql::Sql;
use super::{ControlError, Result, size};

/// Above this number of domains, a single query reads all rules, which is cheaper than one query per domain.
const MAX_DOMAIN_QUERIES: usize = 50;

/// The operations on whole rule files.
#[derive(Debug)]
pub struct RuleFiles<'c> {
    pub(super) db: &'c Db,
}

impl RuleFiles<'_> {
    /// Returns the mistakes in a rule file, as `tollgate check` would print them, and warnings. Some warnings compare
    /// the limits of the file with the limits of the stored rules.
    ///
    /// # Errors
    /// Returns an error if the database is unreachable. Mistakes in the file are not an error.
    pub async fn validate(&self, text: &[u8]) -> Result<Validation> {
        let taken = match split_file(text).await {
            Ok(taken) => taken,
            Err(ControlError::Mistakes(mistakes)) => {
                let more_mistakes = mistakes.unlisted_count();
                let mistakes = mistakes.as_slice().iter().map(Finding::from).collect();
                return Ok(Validation { rules: 0, mistakes, more_mistakes, warnings: Vec::new() });
            }
            Err(error) => return Err(error),
        };
        let stored =
            with_timeout(LONG_TIMEOUT, async { load_rules(&mut *self.db.begin_read().await?, &taken.domains).await })
                .await?;
        run_blocking(move || {
            let warnings = plan_warnings(&taken, &stored).iter().map(Finding::from).collect();
            Validation { rules: taken.entries.len(), mistakes: Vec::new(), more_mistakes: 0, warnings }
        })
        .await
    }

    /// Returns the changes that [`apply`](Self::apply) would make.
    ///
    /// # Errors
    /// Returns an error if the file has mistakes or the database is unreachable.
    pub async fn plan(&self, text: &[u8], others: OtherRulesPolicy) -> Result<Plan> {
        let taken = split_file(text).await?;
        let (revision, stored, orphans) = with_timeout(LONG_TIMEOUT, async {
            let mut tx = self.db.begin_read().await?;
            let revision = db::revision(&mut tx).await?;
            Ok((revision, load_rules(&mut tx, &taken.domains).await?, orphans::find_orphans(&mut tx).await?))
        })
        .await?;
        let mut changes = run_blocking(move || compare_file(taken, stored, others)).await?;
        orphans::warn_about_orphans(&mut changes, &orphans);
        Ok(changes.into_plan(revision, false))
    }

    /// Applies a rule file in one transaction. `change.expected` is compared with the revision of the database. Refuses
    /// the file if it contains a domain for which `allowed` returns false.
    ///
    /// # Errors
    /// Returns an error if the file has mistakes or contains a domain that is not allowed, or if the rules would exceed
    /// their maximum size or count. Returns an error if the database is unreachable or not at the expected revision.
    /// Nothing is changed in any of these cases, except possibly if the connection broke during the commit.
    pub async fn apply(
        &self,
        change: &Change,
        text: &[u8],
        others: OtherRulesPolicy,
        allowed: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<Plan> {
        let taken = split_file(text).await?;
        if let Some(domain) = taken.domains.iter().find(|domain| !allowed(domain)) {
            return Err(ControlError::Invalid(format!("no permission to change rules of the domain `{domain}`")));
        }
        with_timeout(LONG_TIMEOUT, async {
            let mut write = self.db.begin_write(change).await?;
            check_revision(&mut write).await?;
            let changes = apply_in_transaction(&mut write, taken, others).await?;
            if changes.planned.is_empty() {
                let revision = write.revision - 1;
                write.rollback().await?;
                return Ok(changes.into_plan(revision, true));
            }
            Ok(changes.into_plan(write.commit().await?, true))
        })
        .await
    }

    /// Returns the rules of a domain that nodes run now, and the rules that they would run after
    /// [`apply`](Self::apply). `domain` may be `None` if the file has only one domain. The file is applied in a
    /// transaction that is rolled back.
    ///
    /// # Errors
    /// Returns an error if the file has mistakes or does not contain the domain, or if the database is unreachable.
    /// Also returns an error if the rules would exceed their maximum size or count.
    pub async fn preview(&self, text: &[u8], others: OtherRulesPolicy, domain: Option<&str>) -> Result<Preview> {
        let taken = split_file(text).await?;
        let domain = choose_domain(&taken.domains, domain)?;
        with_timeout(LONG_TIMEOUT, async {
            let mut write = self.db.begin_write(&Change::by_author("preview")).await?;
            let before = DomainRules::read(&mut write.tx, &domain).await?;
            apply_in_transaction(&mut write, taken, others).await?;
            let after = DomainRules::read(&mut write.tx, &domain).await?;
            write.rollback().await?;
            run_blocking(move || Preview { domain, before: before.into_file(), after: after.into_file() }).await
        })
        .await
    }

    /// Returns a formatted rule file that [`apply`](Self::apply) accepts. The file contains the rules of `domains` (or
    /// of all domains if `domains` is empty). If `rule` is given, the file contains only the rule with that id.
    /// Comments at the head of the file mention the overrides and the disabled rules. Applying the file does not change
    /// these overrides and rules.
    ///
    /// # Errors
    /// Returns an error if a domain has no rules, if a domain lacks the given rule, or if the database is unreachable.
    pub async fn export(&self, domains: &[String], rule: Option<&str>) -> Result<String> {
        let rules = with_timeout(LONG_TIMEOUT, async {
            let mut tx = self.db.begin_read().await?;
            if domains.is_empty() {
                return ExportRow::list(&mut tx, None).await;
            }
            let mut rules = Vec::new();
            for domain in domains.iter().collect::<BTreeSet<_>>() {
                let found = match are_storable([domain]) {
                    true => ExportRow::list(&mut tx, Some(domain)).await?,
                    false => Vec::new(),
                };
                if found.is_empty() {
                    return Err(ControlError::Missing(format!("domain `{domain}` with rules")));
                }
                let found: Vec<ExportRow> = match rule {
                    Some(rule) => found.into_iter().filter(|row| row.id == rule).collect(),
                    None => found,
                };
                if let Some(rule) = rule.filter(|_| found.is_empty()) {
                    return Err(ControlError::Missing(format!("rule `{rule}` in domain `{domain}`")));
                }
                rules.extend(found);
            }
            Ok(rules)
        })
        .await?;
        run_blocking(move || Ok(snapshot::to_yaml(&rules)?)).await?
    }
}

/// The rules of a domain before and after a file is applied, as rule files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Preview {
    /// The domain.
    pub domain: String,
    /// The rules that nodes run.
    pub before: String,
    /// The rules that nodes would run after the file is applied.
    pub after: String,
}

/// Returns the domain to preview: `named`, or the only domain of the file if `named` is `None`.
fn choose_domain(domains: &[String], named: Option<&str>) -> Result<String> {
    let known = || domains.join(", ");
    match (named, domains) {
        (Some(named), _) if domains.iter().any(|domain| domain == named) => Ok(named.to_owned()),
        (None, [only]) => Ok(only.clone()),
        (Some(named), _) => {
            Err(ControlError::Invalid(format!("the file has no domain `{named}`; its domains are: {}", known())))
        }
        (None, _) => Err(ControlError::Invalid(format!("choose a domain of the file with `domain`: {}", known()))),
    }
}

/// Applies a file within the transaction `write` and returns the changes.
async fn apply_in_transaction(
    write: &mut Write<'_>,
    taken: SplitFiles,
    others: OtherRulesPolicy,
) -> Result<FileChanges> {
    let stored = load_rules(&mut write.tx, &taken.domains).await?;
    // Comparing 100 000 rules may take longer than the default idle timeout of a transaction.
    write.allow_idle().await?;
    let mut changes = run_blocking(move || compare_file(taken, stored, others)).await?;
    if changes.planned.is_empty() {
        return Ok(changes);
    }
    let orphans = orphans::find_orphans(&mut write.tx).await?;
    orphans::warn_about_orphans(&mut changes, &orphans);
    for domain in std::mem::take(&mut changes.domains) {
        let name = domain.name.clone();
        apply_domain(write, domain, &orphans).await?;
        // The file was checked without the stored rules. A request may match stored rules and rules of the file, so
        // both are checked together here.
        if others == OtherRulesPolicy::Keep {
            check_match_limit(write, &name, "").await?;
        }
    }
    check_rule_count(write.rules)?;
    size::check_total_size(write.size)?;
    Ok(changes)
}

/// Checks that the database is at the revision that the writer expects.
async fn check_revision(write: &mut Write<'_>) -> Result<()> {
    let (current, empty) = (write.revision - 1, write.rules == 0);
    let matches = match write.expected {
        ExpectedVersion::Anything => true,
        ExpectedVersion::Absent => empty,
        ExpectedVersion::Present => !empty,
        ExpectedVersion::Version(revision) => revision == current,
    };
    if matches {
        return Ok(());
    }
    let mut query = Sql::new("SELECT author, at_ms FROM audit WHERE seq = ");
    let last = query.bind(write.audit).fetch_optional(&mut *write.tx).await?;
    let by = last.map(|row| Ok::<_, sqlx::Error>((row.try_get(0)?, Action::Update, row.try_get(1)?))).transpose()?;
    Err(ControlError::Conflict(Box::new(Conflict {
        what: "the set of rules".into(),
        number: "revision",
        expected: write.expected.version(),
        current: (!empty || (current > 0 && write.expected.version().is_some())).then_some(current),
        rule: None,
        by,
        diff: None,
    })))
}

/// Writes the changes of one domain.
async fn apply_domain(write: &mut Write<'_>, changes: DomainChanges, orphans: &Orphans) -> Result<()> {
    let domain = &*changes.name;
    history::delete_rules(write, domain, &changes.deletes).await?;
    write.size += match (changes.had_rules, changes.has_rules) {
        (false, true) => size::domain_size(domain),
        (true, false) => -size::domain_size(domain),
        (true, true) | (false, false) => 0,
    };
    let new = changes.writes.iter().filter(|change| change.old.is_none());
    let new: Vec<(&str, &str)> = new.map(|change| (domain, &*change.id)).collect();
    let last_versions = history::last_versions(write, &new).await?;
    let mut rows = Vec::with_capacity(changes.writes.len());
    for change in &changes.writes {
        rows.push(new_row(write, domain, change, orphans, &last_versions).await?);
    }
    let writes: Vec<RuleWrite<'_>> =
        rows.iter().map(|(row, action)| RuleWrite { domain, row, action: *action }).collect();
    history::write_rules(write, &writes).await?;
    let logged = changes.writes.iter().zip(&rows).filter(|(change, (_, action))| action.is_some() || change.moved);
    let entries: Vec<_> = logged
        .map(|(change, (row, action))| {
            let before = change.old.as_ref().map(|old| &*old.text);
            rule_audit_entry(domain, &row.id, action.map_or("move", Action::as_str), before, Some(&row.text))
        })
        .collect();
    write.append_to_audit_log(&entries).await
}

/// Returns the new row of a rule and the action. The action is `None` if only the position changes.
async fn new_row(
    write: &mut Write<'_>,
    domain: &str,
    change: &RuleChange,
    orphans: &Orphans,
    last_versions: &HashMap<(String, String), i64>,
) -> Result<(RuleRow, Option<Action>)> {
    let RuleChange { old, text, id, position, .. } = change;
    let (id, position) = (id.clone(), *position);
    let text = match (text, old) {
        (Some(text), _) => text.clone(),
        (None, Some(old)) => return Ok((RuleRow { position, ..old.clone() }, None)),
        (None, None) => String::new(),
    };
    check_rule_size(text.len())?;
    write.size += size::rule_size(&text);
    let authorship = write.authorship.clone();
    if let Some(old) = old {
        write.size -= size::rule_size(&old.text);
        if old.overrides > 0 {
            orphans::check_overrides(write, domain, &id, &text).await?;
        }
        return Ok((
            RuleRow { id, position, version: old.version + 1, text, authorship, ..old.clone() },
            Some(Action::Update),
        ));
    }
    let key = (domain.to_owned(), id.clone());
    let overrides = match orphans.contains_key(&key) {
        true => orphans::reattach_overrides(write, domain, &id, &text).await?,
        false => 0,
    };
    write.rules += 1;
    let version = last_versions.get(&key).copied().unwrap_or(0) + 1;
    Ok((RuleRow { id, position, version, enabled: true, text, overrides, authorship }, Some(Action::Create)))
}

async fn split_file(text: &[u8]) -> Result<SplitFiles> {
    let text = text.to_vec();
    Ok(run_blocking(move || entry::split_files(&[Source { name: "rules", text: &text }])).await??)
}

/// Runs long work on a blocking thread, so that it does not delay other calls.
pub(super) async fn run_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Result<T> {
    spawn_blocking(work).await.map_err(|error| sqlx::Error::Io(std::io::Error::other(error)).into())
}

/// Reads the rules of the given domains, sorted by position.
async fn load_rules(connection: &mut AnyConnection, domains: &[String]) -> Result<StoredRules> {
    let select = || {
        let mut query = Sql::new("SELECT domain, ");
        query.push(rules::RULE_COLUMNS).push(" FROM rules");
        query
    };
    let mut rows = Vec::new();
    if domains.len() > MAX_DOMAIN_QUERIES {
        rows = select().push(" ORDER BY domain, position, id").fetch_all(&mut *connection).await?;
    } else {
        for domain in domains {
            let mut query = select();
            query.push(" WHERE domain = ").bind(domain.as_str()).push(" ORDER BY position, id");
            rows.extend(query.fetch_all(&mut *connection).await?);
        }
    }
    let wanted: HashSet<&str> = domains.iter().map(|domain| &**domain).collect();
    let mut stored = StoredRules::new();
    for row in &rows {
        let domain: String = row.try_get("domain")?;
        if wanted.contains(&*domain) {
            stored.entry(domain).or_default().push(RuleRow::from_row(row)?);
        }
    }
    Ok(stored)
}

impl FileChanges {
    fn into_plan(self, revision: i64, applied: bool) -> Plan {
        let Self { planned: changes, unchanged, warnings, .. } = self;
        Plan { revision, applied, changes, unchanged, warnings }
    }
}
