//! Arguments of `tollgate tokens`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};

use super::{ServerArgs, Shown};

/// What to do with tokens.
#[derive(Clone, Debug, Args)]
pub struct TokensArgs {
    /// The server to ask.
    #[command(flatten)]
    pub server: ServerArgs,

    /// The data directory of a server, to go to its database without asking it
    ///
    /// For the first token, before a server listens. The server may run meanwhile.
    #[arg(long, value_name = "DIR", global = true, help_heading = "Database", conflicts_with = "database")]
    pub data: Option<PathBuf>,

    /// The database itself, like postgres://user@host/db, without asking a server
    #[arg(long, value_name = "URL", global = true, help_heading = "Database")]
    pub database: Option<String>,

    /// What to do.
    #[command(subcommand)]
    pub command: TokensCommand,
}

/// What can be done with tokens.
#[derive(Clone, Debug, Subcommand)]
pub enum TokensCommand {
    /// Make a token; it is shown this once.
    Create(TokenCreateArgs),
    /// List tokens, without their secrets.
    List(Shown),
    /// Make a token useless, for good; every node knows within a second.
    Revoke(TokenRevokeArgs),
}

/// What token to make.
#[derive(Clone, Debug, Args)]
pub struct TokenCreateArgs {
    /// What it may do
    #[arg(long, value_name = "ROLE")]
    pub role: RoleName,

    /// Whose it is, which is the author of what is done with it; the role unless given
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Change things only in this domain; may be given several times
    #[arg(long = "domain", value_name = "NAME")]
    pub domains: Vec<String>,

    /// When it ends by itself: after a time like 90d or 12h, or at one like 2030-01-31T18:00:00Z
    #[arg(long, value_name = "WHEN")]
    pub expires: Option<String>,

    /// How to show it.
    #[command(flatten)]
    pub shown: Shown,
}

/// Which token to revoke.
#[derive(Clone, Debug, Args)]
pub struct TokenRevokeArgs {
    /// Its id, as `tokens list` shows it
    #[arg(value_name = "ID")]
    pub id: String,

    /// How to show it.
    #[command(flatten)]
    pub shown: Shown,
}

/// What a token may do; each may also do what those before it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum RoleName {
    /// Look at everything but tokens; ask for decisions and settle them.
    Reader,
    /// Overrides, reset, the kill switch.
    Operator,
    /// Rules of its domains.
    Editor,
    /// Everything, tokens included.
    Admin,
}

/// Shown below the help of `tokens`.
pub const TOKENS_EXAMPLES: &str = "\
Examples:
  tollgate tokens create --role admin --data tollgate-data       the first one, before the server listens
  tollgate tokens create --role editor --name ci --domain api --expires 90d
  tollgate tokens list
  tollgate tokens revoke 3f9a0c21";
