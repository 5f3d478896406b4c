//! What nodes are to run: all enabled rules with their overrides as one file, made once for each revision.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use sqlx::any::AnyRow;
use sqlx::{AnyConnection, Row};
use tokio::task::spawn_blocking;
use tollgate_engine::rules::entry::{self, EntryOverride};

use super::db::{LONG, storable, truth, within};
use super::hex::sha256;
use super::model::Snapshot;
use super::overrides::Exception;
use super::tokens::verifiers;
use super::{Control, ControlError, Result};

/// A rule on its way to nodes.
#[derive(Debug)]
struct Given {
    domain: String,
    id: String,
    text: String,
    enabled: bool,
    /// How many overrides it has beside it.
    overrides: i64,
}

/// The overrides of each rule that has some.
type Exceptions = HashMap<(String, String), Vec<Exception>>;

impl Control {
    /// What nodes are to run now; made once for each revision. While the database is away, the last one is still given.
    ///
    /// # Errors
    /// When the database cannot be asked and none was made yet for what was last told.
    pub async fn snapshot(&self) -> Result<Arc<Snapshot>> {
        let mut made = self.made.lock().await;
        let told = *self.told.borrow();
        if let Some(made) = made.as_ref().filter(|made| made.revision == told) {
            return Ok(made.clone());
        }
        let (revision, rules, exceptions, tokens) = within(LONG, async {
            let mut tx = self.db.read().await?;
            let revision: i64 = sqlx::query("SELECT revision FROM head").fetch_one(&mut *tx).await?.try_get(0)?;
            let query = "SELECT domain, id, text, enabled, overrides FROM rules WHERE enabled = 1 \
                         ORDER BY domain, position, id";
            let rows = sqlx::query(query).fetch_all(&mut *tx).await?;
            let rules = rows.iter().map(Given::read).collect::<Result<Vec<_>>>()?;
            let exceptions = read_exceptions(&mut tx).await?;
            let tokens = verifiers(&mut tx).await?;
            tx.rollback().await?;
            Ok((revision, rules, exceptions, tokens))
        })
        .await?;
        // Megabytes of text are put together elsewhere; others are served meanwhile.
        let together = spawn_blocking(move || put_together(rules, &exceptions));
        let (rules, checksum) = together.await.map_err(|error| sqlx::Error::Io(std::io::Error::other(error)))?;
        let snapshot = Arc::new(Snapshot { revision, checksum, rules, tokens });
        *made = Some(snapshot.clone());
        drop(made);
        self.tell(revision);
        Ok(snapshot)
    }

    /// All rules of domains, or of all domains if none is named, as a rule file in its one form. [`apply`](Self::apply) takes it
    /// back. Overrides beside rules, and which rules are disabled, are told in comments at its head: they stay as they are when it
    /// is applied.
    ///
    /// # Errors
    /// When there is no such domain, or the database cannot be asked.
    pub async fn export(&self, domains: &[String]) -> Result<String> {
        let rules = within(LONG, async {
            let mut tx = self.db.read().await?;
            let mut rules = Vec::new();
            if domains.is_empty() {
                let query = "SELECT domain, id, text, enabled, overrides FROM rules ORDER BY domain, position, id";
                rules = sqlx::query(query).fetch_all(&mut *tx).await?;
            }
            for domain in &domains.iter().collect::<BTreeSet<_>>() {
                let query = "SELECT domain, id, text, enabled, overrides FROM rules WHERE domain = $1 \
                             ORDER BY position, id";
                let rows = match storable(domain) {
                    true => sqlx::query(query).bind(domain.as_str()).fetch_all(&mut *tx).await?,
                    false => Vec::new(),
                };
                if rows.is_empty() {
                    return Err(ControlError::Missing(format!("domain `{domain}` with rules")));
                }
                rules.extend(rows);
            }
            tx.rollback().await?;
            rules.iter().map(Given::read).collect::<Result<Vec<_>>>()
        })
        .await?;
        let written = spawn_blocking(move || {
            let domains = by_domain(&rules);
            let file =
                entry::to_yaml(domains.iter().map(|(domain, rules)| (*domain, rules.iter().map(|rule| &*rule.text))))?;
            Ok::<_, ControlError>(beside(&rules) + &file)
        });
        written.await.map_err(|error| sqlx::Error::Io(std::io::Error::other(error)))?
    }
}

impl Given {
    fn read(row: &AnyRow) -> Result<Self> {
        Ok(Self {
            domain: row.try_get("domain")?,
            id: row.try_get("id")?,
            text: row.try_get("text")?,
            enabled: truth(row, "enabled")?,
            overrides: row.try_get("overrides")?,
        })
    }
}

/// So many rules are named of which a file does not say everything.
const MAX_NAMED: usize = 50;

/// What a file does not say about its rules, as comments.
fn beside(rules: &[Given]) -> String {
    if rules.is_empty() {
        return "# There are no rules.\n".into();
    }
    let mut lines = rules.iter().flat_map(|rule| {
        let Given { domain, id, .. } = rule;
        let disabled = (!rule.enabled).then(|| format!("# - {domain}/{id} is disabled\n"));
        let overrides = (rule.overrides > 0).then(|| {
            let plural = if rule.overrides == 1 { "" } else { "s" };
            format!("# - {domain}/{id} has {} override{plural} beside it\n", rule.overrides)
        });
        disabled.into_iter().chain(overrides)
    });
    let named: String = lines.by_ref().take(MAX_NAMED).collect();
    if named.is_empty() {
        return named;
    }
    let more = match lines.count() {
        0 => String::new(),
        more => format!("# - and {more} more\n"),
    };
    format!(
        "# Not in this file, left alone where it is applied to these rules, and to be set anew where it is applied to others\n\
         # (tollgate rules overrides list, tollgate rules disable):\n{named}{more}"
    )
}

async fn read_exceptions(connection: &mut AnyConnection) -> Result<Exceptions> {
    let query = "SELECT domain, id, value, attribute, effect, until, version, author, at_ms FROM overrides \
                 ORDER BY domain, id, value";
    let mut exceptions = Exceptions::new();
    for row in &sqlx::query(query).fetch_all(connection).await? {
        let rule = (row.try_get("domain")?, row.try_get("id")?);
        exceptions.entry(rule).or_default().push(Exception::read(row)?);
    }
    Ok(exceptions)
}

/// The file, and its checksum.
fn put_together(mut rules: Vec<Given>, exceptions: &Exceptions) -> (String, String) {
    if !exceptions.is_empty() {
        for rule in &mut rules {
            let Some(own) = exceptions.get(&(rule.domain.clone(), rule.id.clone())) else { continue };
            let entries: Vec<EntryOverride<'_>> = own.iter().map(Exception::as_entry).collect();
            match entry::with_overrides(&rule.text, &entries) {
                Ok(text) => rule.text = text,
                // They went together when they were written. One rule must not keep all others from nodes.
                Err(mistakes) => {
                    tracing::error!(rule.domain, rule.id, %mistakes, "overrides do not go with their rule and are left out");
                }
            }
        }
    }
    let domains = by_domain(&rules);
    let file = entry::to_json(domains.iter().map(|(domain, rules)| (*domain, rules.iter().map(|rule| &*rule.text))));
    let checksum = sha256(file.as_bytes());
    (file, checksum)
}

/// Rules that are in order, by domain; domains by name, whatever the database takes for alphabetical.
fn by_domain(rules: &[Given]) -> Vec<(&str, &[Given])> {
    let mut domains: Vec<(&str, &[Given])> =
        rules.chunk_by(|one, other| one.domain == other.domain).map(|rules| (&*rules[0].domain, rules)).collect();
    domains.sort_by_key(|(domain, _)| *domain);
    domains
}
