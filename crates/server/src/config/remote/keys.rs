//! Arguments of `tollgate keys`.

use clap::{Args, Subcommand};

use super::{ServerArgs, Shown};

/// What to do with what was spent.
#[derive(Clone, Debug, Args)]
pub struct KeysArgs {
    /// The server to ask.
    #[command(flatten)]
    pub server: ServerArgs,

    /// What to do.
    #[command(subcommand)]
    pub command: KeysCommand,
}

/// What can be done with what was spent.
#[derive(Clone, Debug, Subcommand)]
pub enum KeysCommand {
    /// Show what a request has left, and take nothing; the status is 1 if it would be refused.
    Peek(KeyArgs),
    /// Forget what was spent by the counters that a request meets, and lift bans.
    Reset(KeyArgs),
    /// Give back what a decision took.
    Refund(RefundArgs),
    /// Show who uses most, by rule.
    Top(TopArgs),
}

/// A request, by which its counters are found.
#[derive(Clone, Debug, Args)]
pub struct KeyArgs {
    /// Whose rules
    #[arg(value_name = "DOMAIN")]
    pub domain: String,

    /// What is known about the request, such as api_key=acme
    #[arg(value_name = "NAME=VALUE")]
    pub attributes: Vec<String>,

    /// What the request weighs; each rule says for itself unless given
    #[arg(long, value_name = "COST")]
    pub cost: Option<u64>,

    /// How to show it.
    #[command(flatten)]
    pub shown: Shown,
}

/// What to give back.
#[derive(Clone, Debug, Args)]
pub struct RefundArgs {
    /// The `receipt` of the decision
    #[arg(value_name = "RECEIPT")]
    pub receipt: String,

    /// How to show it.
    #[command(flatten)]
    pub shown: Shown,
}

/// Of what to show the top.
#[derive(Clone, Debug, Args)]
pub struct TopArgs {
    /// Only rules of this domain
    #[arg(value_name = "DOMAIN")]
    pub domain: Option<String>,

    /// Only this rule
    #[arg(value_name = "RULE")]
    pub rule: Option<String>,

    /// At most so many keys of each rule
    #[arg(long, value_name = "COUNT", default_value_t = 10)]
    pub limit: usize,

    /// How to show them.
    #[command(flatten)]
    pub shown: Shown,
}

/// Shown below the help of `keys`.
pub const KEYS_EXAMPLES: &str = "\
Examples:
  tollgate keys peek api path=/login client_ip=192.0.2.1
  tollgate keys reset api path=/login client_ip=192.0.2.1
  tollgate keys top api";
