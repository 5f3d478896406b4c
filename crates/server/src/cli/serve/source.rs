//! Determines the source of rules from the flags.

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::{Context, bail, ensure};

use super::args::ServeArgs;
use crate::client::{Client, Secret};
use crate::control::api::bounds::MAX_NODE_NAME_CHARS;
use crate::control::sqlite_url;
use crate::rules_source::poll::FollowConfig;
use crate::rules_source::xds::XdsConfig;

/// The source of rules.
#[derive(Clone, Debug)]
pub(super) enum RulesConfig {
    /// No rules. Requests contain inline limits.
    Inline,
    /// A file or a folder of files.
    File(PathBuf),
    /// This server's own database. The server is then a rules service for other nodes.
    Database(DatabaseConfig),
    /// The rules service of another server.
    Service(FollowConfig),
    /// An xDS server.
    Xds(XdsConfig),
}

/// A database for rules.
#[derive(Clone, Debug)]
pub(super) struct DatabaseConfig {
    /// The URL of the database, which may contain a password.
    pub(super) url: Secret,
    /// The directory of the database, if the database is a file.
    pub(super) data: Option<PathBuf>,
}

/// Determines the source from the flags.
///
/// # Errors
/// Returns an error if the flags name two sources or an invalid source.
pub(super) fn rules_config(raw: &ServeArgs, http: Option<SocketAddr>) -> anyhow::Result<RulesConfig> {
    let data = (raw.data != "off").then(|| PathBuf::from(&raw.data));
    ensure!(!raw.data.is_empty(), "--data is empty: name a directory, or write off");
    if let (Some(_), Some(_)) = (&raw.rules, &raw.database) {
        bail!("--rules and --database are both sources of rules: leave one of them out");
    }
    let node = || -> anyhow::Result<String> {
        let node = raw.node.clone().unwrap_or_else(|| default_node_name(http));
        ensure!(
            is_printable_without_spaces(&node) && node.len() <= MAX_NODE_NAME_CHARS,
            "--node: a name has 1 to {MAX_NODE_NAME_CHARS} printable ASCII characters without spaces"
        );
        Ok(node)
    };
    if let Some(url) = raw.rules.as_deref().filter(|rules| XdsConfig::is_xds_url(rules)) {
        ensure!(
            raw.rules_token.is_none(),
            "--rules-token is for a rules service of Tollgate; an xDS server takes no token"
        );
        let own = raw.rules_cert.as_deref().zip(raw.rules_key.as_deref());
        return Ok(RulesConfig::Xds(XdsConfig::new(url, raw.rules_ca.as_deref(), own, node()?).context("--rules")?));
    }
    ensure!(
        raw.rules_cert.is_none(),
        "--rules-cert is for an xDS server, and none is given: add --rules xds+tls://host:port"
    );
    if let Some(url) = raw.rules.as_deref().filter(|rules| rules.contains("://")) {
        let token = raw.rules_token.clone().map(Secret::new);
        ensure!(
            token.as_ref().is_none_or(|token| is_printable_without_spaces(token.reveal())),
            "--rules-token: invalid characters in the token"
        );
        let client = Client::new(url, token, raw.rules_ca.as_deref()).context("--rules")?;
        ensure!(
            client.url().username().is_empty() && client.url().password().is_none(),
            "--rules: the address of a rules service cannot have a user or a password; set a token with --rules-token"
        );
        return Ok(RulesConfig::Service(FollowConfig { client, node: node()?, data }));
    }
    for (flag, given) in [
        ("--rules-token", raw.rules_token.is_some()),
        ("--rules-ca", raw.rules_ca.is_some()),
        ("--node", raw.node.is_some() && !raw.store.starts_with("peers://")),
    ] {
        ensure!(!given, "{flag} is for following a rules service, and none is given: add --rules https://host:port");
    }
    if let Some(file) = &raw.rules {
        return Ok(RulesConfig::File(file.into()));
    }
    if let Some(url) = &raw.database {
        // The rest of the URL may contain a password, so it is not shown.
        let scheme = url.split_once("://").map_or("", |(scheme, _)| scheme);
        ensure!(
            matches!(scheme, "postgres" | "postgresql"),
            "--database {scheme}://…: write postgres://user:password@host/name"
        );
        return Ok(RulesConfig::Database(DatabaseConfig { url: Secret::new(url), data: None }));
    }
    Ok(match data {
        Some(data) => RulesConfig::Database(DatabaseConfig {
            url: Secret::new(sqlite_url(&data.join("rules.db"))),
            data: Some(data),
        }),
        None => RulesConfig::Inline,
    })
}

fn is_printable_without_spaces(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Returns a node name that is probably unique: the host name and the HTTP port.
fn default_node_name(http: Option<SocketAddr>) -> String {
    let host =
        std::fs::read_to_string("/proc/sys/kernel/hostname").or_else(|_| std::fs::read_to_string("/etc/hostname"));
    let host = host.unwrap_or_default();
    let host = Some(host.trim()).filter(|host| is_printable_without_spaces(host)).unwrap_or("node");
    match http.map_or(0, |http| http.port()) {
        0 => format!("{host}:pid-{}", std::process::id()),
        port => format!("{host}:{port}"),
    }
}
