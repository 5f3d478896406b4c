//! What was written for the commands that speak to a server: which server, and how its answer is to be shown.

pub mod keys;
pub mod rules;
pub mod tokens;

use std::path::PathBuf;

use clap::Args;

/// Which server, and as whom.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Server")]
pub struct ServerArgs {
    /// The server to ask
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8080", env = "TOLLGATE_SERVER", global = true)]
    pub server: String,

    /// The token to show, if the server asks for one; better in the environment, where other users do not see it
    #[arg(long, value_name = "TOKEN", env = "TOLLGATE_TOKEN", hide_env_values = true, global = true)]
    pub token: Option<String>,

    /// Certificates (PEM) to believe besides the usual ones, for a server with one of your own authority
    #[arg(long, value_name = "FILE", env = "TOLLGATE_CA", global = true)]
    pub ca: Option<PathBuf>,
}

/// How an answer is shown.
#[derive(Clone, Copy, Debug, Args)]
pub struct Shown {
    /// For scripts: one JSON document, as the server sent it
    #[arg(long)]
    pub json: bool,
}

/// How a change is made.
#[derive(Clone, Debug, Args)]
pub struct Change {
    /// What the change is for; kept in the history and in the audit log
    #[arg(long, short = 'm', value_name = "TEXT")]
    pub comment: Option<String>,

    /// Change nothing unless this version is the current one
    #[arg(long, value_name = "VERSION")]
    pub if_version: Option<i64>,
}

/// Which lines of the audit log.
#[derive(Clone, Debug, Args)]
pub struct AuditArgs {
    /// The server to ask.
    #[command(flatten)]
    pub server: ServerArgs,

    /// Only about this domain
    #[arg(long, value_name = "NAME")]
    pub domain: Option<String>,

    /// Only by this author, the name of a token
    #[arg(long, value_name = "NAME")]
    pub author: Option<String>,

    /// Only about this rule, override or token
    #[arg(long, value_name = "NAME")]
    pub subject: Option<String>,

    /// At most so many, the newest
    #[arg(long, value_name = "COUNT", default_value_t = 50)]
    pub limit: usize,

    /// Also show what changed, line by line
    #[arg(long)]
    pub changes: bool,

    /// How to show them.
    #[command(flatten)]
    pub shown: Shown,
}

/// Shown below the help of `audit`.
pub const AUDIT_EXAMPLES: &str = "\
Examples:
  tollgate audit
  tollgate audit --domain api --author ci --changes
  tollgate audit --limit 1000 --json > audit.json

Newest first.";
