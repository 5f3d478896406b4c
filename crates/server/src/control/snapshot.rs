//! Builds snapshots for nodes (the enabled rules with their overrides as one file, the valid tokens, and the kill
//! switch) and exports rules as files.

use std::collections::HashMap;

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use tollgate_engine::rules::Mistakes;
use tollgate_engine::rules::entry::{self, EntryOverride};

use super::apply::run_blocking;
use super::db::{self, Db, LONG_TIMEOUT, read_boolean, with_timeout};
use super::fleet::read_mode;
use super::model::Snapshot;
use super::overrides::{self, OverrideRow};
use super::sql::Sql;
use super::tokens::load_verifiers;
use super::{Result, sha256_hex};

/// Maximum number of lines about overrides and disabled rules at the head of an exported file.
const MAX_HEADING_LINES: usize = 50;

/// A rule to be written into a file.
#[derive(Debug)]
pub(super) struct ExportRow {
    domain: String,
    pub(super) id: String,
    text: String,
    enabled: bool,
    overrides: i64,
}

impl ExportRow {
    /// Reads the rules of a domain, or of all domains, in order.
    pub(super) async fn list(connection: &mut AnyConnection, domain: Option<&str>) -> Result<Vec<Self>> {
        let mut query = Sql::new("SELECT domain, id, text, enabled, overrides FROM rules");
        if let Some(domain) = domain {
            query.push(" WHERE domain = ").bind(domain);
        }
        let rows = query.push(" ORDER BY domain, position, id").fetch_all(connection).await?;
        rows.iter().map(Self::from_row).collect()
    }

    fn from_row(row: &AnyRow) -> Result<Self> {
        Ok(Self {
            domain: row.try_get("domain")?,
            id: row.try_get("id")?,
            text: row.try_get("text")?,
            enabled: read_boolean(row, "enabled")?,
            overrides: row.try_get("overrides")?,
        })
    }
}

/// The overrides of each rule, by the rule's domain and id.
type OverridesByRule = HashMap<(String, String), Vec<OverrideRow>>;

/// Builds the snapshot of the current revision.
pub(super) async fn build_snapshot(db: &Db) -> Result<Snapshot> {
    let (revision, mode, rules, overrides, tokens) = with_timeout(LONG_TIMEOUT, async {
        let mut tx = db.begin_read().await?;
        let revision = db::revision(&mut tx).await?;
        let rules = ExportRow::list(&mut tx, None).await?;
        let mode = read_mode(&mut tx).await?;
        Ok((revision, mode, rules, read_overrides(&mut tx).await?, load_verifiers(&mut tx).await?))
    })
    .await?;
    // Runs on a blocking thread, because building megabytes of text would delay other requests.
    let (rules, checksum) = run_blocking(move || {
        let file = to_node_file(rules, &overrides);
        let checksum = sha256_hex(file.as_bytes());
        (file, checksum)
    })
    .await?;
    Ok(Snapshot { revision, checksum, rules, tokens, mode })
}

/// Returns the enabled rules with their overrides as a rule file for nodes.
fn to_node_file(mut rules: Vec<ExportRow>, overrides: &OverridesByRule) -> String {
    rules.retain(|rule| rule.enabled);
    insert_overrides(&mut rules, overrides);
    entry::to_json(group_by_domain(&rules))
}

/// The rules of a domain and the overrides of all domains, as read within a transaction.
#[derive(Debug)]
pub(super) struct DomainRules(Vec<ExportRow>, OverridesByRule);

impl DomainRules {
    pub(super) async fn read(connection: &mut AnyConnection, domain: &str) -> Result<Self> {
        Ok(Self(ExportRow::list(connection, Some(domain)).await?, read_overrides(connection).await?))
    }

    /// Returns the rule file that nodes would run.
    pub(super) fn into_file(self) -> String {
        to_node_file(self.0, &self.1)
    }
}

async fn read_overrides(connection: &mut AnyConnection) -> Result<OverridesByRule> {
    let mut query = Sql::new("SELECT o.domain, o.id, ");
    query.push(overrides::OVERRIDE_COLUMNS).push(" FROM overrides o ORDER BY o.domain, o.id, value");
    let mut overrides = OverridesByRule::new();
    for row in &query.fetch_all(connection).await? {
        let rule = (row.try_get("domain")?, row.try_get("id")?);
        overrides.entry(rule).or_default().push(OverrideRow::from_row(row)?);
    }
    Ok(overrides)
}

fn insert_overrides(rules: &mut [ExportRow], overrides: &OverridesByRule) {
    if overrides.is_empty() {
        return;
    }
    for rule in rules {
        let Some(own) = overrides.get(&(rule.domain.clone(), rule.id.clone())) else { continue };
        let entries: Vec<EntryOverride<'_>> = own.iter().map(OverrideRow::as_entry).collect();
        match entry::with_overrides(&rule.text, &entries) {
            Ok(text) => rule.text = text,
            // Overrides were compatible with their rule when they were written. If an override is no longer compatible,
            // all overrides of the rule are left out, so that nodes still receive the rules.
            Err(mistakes) => {
                tracing::error!(rule.domain, rule.id, %mistakes, "overrides do not fit their rule; ignored");
            }
        }
    }
}

/// Groups ordered rules by domain. Sorts the domains in code, because the collation order differs between databases.
fn group_by_domain(rules: &[ExportRow]) -> Vec<(&str, Vec<&str>)> {
    let chunks = rules.chunk_by(|one, other| one.domain == other.domain);
    let domains = chunks.map(|rules| (&*rules[0].domain, rules.iter().map(|rule| &*rule.text).collect()));
    let mut domains: Vec<(&str, Vec<&str>)> = domains.collect();
    domains.sort_by_key(|(domain, _)| *domain);
    domains
}

/// Returns rules as a formatted file. Comments at the head of the file mention the overrides and the disabled rules,
/// because a rule file cannot contain them.
pub(super) fn to_yaml(rules: &[ExportRow]) -> Result<String, Mistakes> {
    Ok(file_heading(rules) + &entry::to_yaml(group_by_domain(rules))?)
}

fn file_heading(rules: &[ExportRow]) -> String {
    if rules.is_empty() {
        return "# There are no rules.\n".into();
    }
    let mut lines = rules.iter().flat_map(|rule| {
        let ExportRow { domain, id, .. } = rule;
        let disabled = (!rule.enabled).then(|| format!("# - {domain}/{id} is disabled\n"));
        let overrides = (rule.overrides > 0).then(|| {
            let plural = if rule.overrides == 1 { "" } else { "s" };
            format!("# - {domain}/{id} has {} override{plural}\n", rule.overrides)
        });
        disabled.into_iter().chain(overrides)
    });
    let listed: String = lines.by_ref().take(MAX_HEADING_LINES).collect();
    if listed.is_empty() {
        return listed;
    }
    let more = match lines.count() {
        0 => String::new(),
        more => format!("# - and {more} more\n"),
    };
    format!(
        "# These settings are not part of the file. Applying the file here keeps them; on another server, set them again\n\
         # (tollgate rules overrides list, tollgate rules disable):\n{listed}{more}"
    )
}
