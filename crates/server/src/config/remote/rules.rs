//! Arguments of `tollgate rules`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::{Change, ServerArgs, Shown};

/// What to do with the rules of a server.
#[derive(Clone, Debug, Args)]
pub struct RulesArgs {
    /// The server to ask.
    #[command(flatten)]
    pub server: ServerArgs,

    /// What to do.
    #[command(subcommand)]
    pub command: RulesCommand,
}

/// What can be done with rules.
#[derive(Clone, Debug, Subcommand)]
pub enum RulesCommand {
    /// List rules, of one domain or of all.
    List(ListArgs),
    /// Show a rule, as a file that can be edited and applied.
    Get(GetArgs),
    /// Put the rules of files in force, all of them or none.
    #[command(after_help = APPLY_EXAMPLES)]
    Apply(ApplyArgs),
    /// Delete a rule; its history stays.
    Delete(DeleteArgs),
    /// Show what changed between two versions of a rule.
    Diff(DiffArgs),
    /// List the versions of a rule, newest first.
    History(HistoryArgs),
    /// Make an earlier version of a rule the current one.
    Rollback(RollbackArgs),
    /// Write rules as a file that `apply` takes back; what is not in it is told in comments.
    Export(ExportArgs),
    /// Put a rule in force again.
    Enable(SwitchArgs),
    /// Take a rule out of force, and keep it.
    Disable(SwitchArgs),
    /// Other numbers for one customer.
    #[command(after_help = OVERRIDES_EXAMPLES)]
    Overrides(OverridesArgs),
    /// List the nodes that follow the server, and what they run; the status is 1 if one refuses its rules.
    Nodes(Shown),
    /// Tell where the server's own rules come from, and which it runs; the status is 1 if it refused newer ones.
    Status(Shown),
    /// Have the server look for mistakes in files, and change nothing.
    Validate(ValidateArgs),
}

/// A rule.
#[derive(Clone, Debug, Args)]
pub struct Which {
    /// Whose rule
    #[arg(value_name = "DOMAIN")]
    pub domain: String,

    /// Its id
    #[arg(value_name = "RULE")]
    pub id: String,
}

/// Which rules to list.
#[derive(Clone, Debug, Args)]
pub struct ListArgs {
    /// Whose rules; everybody's unless given
    #[arg(value_name = "DOMAIN")]
    pub domain: Option<String>,

    /// Only rules whose id or text contains this
    #[arg(long, short = 'q', value_name = "TEXT")]
    pub search: Option<String>,

    /// Only rules that are in force
    #[arg(long, conflicts_with = "disabled")]
    pub enabled: bool,

    /// Only rules that are disabled
    #[arg(long)]
    pub disabled: bool,

    /// At most so many of each domain
    #[arg(long, value_name = "COUNT")]
    pub limit: Option<usize>,

    /// How to show them.
    #[command(flatten)]
    pub shown: Shown,
}

/// Which rule to show.
#[derive(Clone, Debug, Args)]
pub struct GetArgs {
    /// The rule.
    #[command(flatten)]
    pub which: Which,

    /// An earlier version; the current one unless given
    #[arg(long, value_name = "VERSION")]
    pub version: Option<i64>,

    /// How to show it.
    #[command(flatten)]
    pub shown: Shown,
}

/// What to apply, and how.
#[derive(Clone, Debug, Args)]
pub struct ApplyArgs {
    /// Rule files, or folders whose *.yaml, *.yml and *.json are taken; `-` is the standard input
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,

    /// Only tell what would change; the status is 0 if nothing would, 1 if something would, 2 if that cannot be told
    #[arg(long)]
    pub plan: bool,

    /// Delete rules that the files do not have, in the domains that they name
    #[arg(long)]
    pub prune: bool,

    /// Do not ask
    #[arg(long, short = 'y')]
    pub yes: bool,

    /// What the change is for; kept in the history and in the audit log
    #[arg(long, short = 'm', value_name = "TEXT")]
    pub comment: Option<String>,

    /// How to show what is done.
    #[command(flatten)]
    pub shown: Shown,
}

/// What to delete.
#[derive(Clone, Debug, Args)]
pub struct DeleteArgs {
    /// The rule.
    #[command(flatten)]
    pub which: Which,

    /// How.
    #[command(flatten)]
    pub change: Change,
}

/// What to compare.
#[derive(Clone, Debug, Args)]
pub struct DiffArgs {
    /// The rule.
    #[command(flatten)]
    pub which: Which,

    /// From this version; the one before unless given
    #[arg(value_name = "FROM")]
    pub from: Option<i64>,

    /// To this version; the current one unless given
    #[arg(value_name = "TO")]
    pub to: Option<i64>,
}

/// Whose history.
#[derive(Clone, Debug, Args)]
pub struct HistoryArgs {
    /// The rule.
    #[command(flatten)]
    pub which: Which,

    /// At most so many, the newest
    #[arg(long, value_name = "COUNT")]
    pub limit: Option<usize>,

    /// How to show it.
    #[command(flatten)]
    pub shown: Shown,
}

/// What to go back to.
#[derive(Clone, Debug, Args)]
pub struct RollbackArgs {
    /// The rule.
    #[command(flatten)]
    pub which: Which,

    /// This version; unless given, the last one that said something else
    ///
    /// Called again, it goes one further back, and not to what it came from: for that, name the version.
    #[arg(value_name = "VERSION")]
    pub version: Option<i64>,

    /// How.
    #[command(flatten)]
    pub change: Change,

    /// How to show what it is now.
    #[command(flatten)]
    pub shown: Shown,
}

/// What to export.
#[derive(Clone, Debug, Args)]
pub struct ExportArgs {
    /// Whose rules; everybody's unless given
    #[arg(value_name = "DOMAIN")]
    pub domains: Vec<String>,
}

/// What to switch on or off.
#[derive(Clone, Debug, Args)]
pub struct SwitchArgs {
    /// The rule.
    #[command(flatten)]
    pub which: Which,

    /// How.
    #[command(flatten)]
    pub change: Change,

    /// How to show what it is now.
    #[command(flatten)]
    pub shown: Shown,
}

/// What to look through.
#[derive(Clone, Debug, Args)]
pub struct ValidateArgs {
    /// Rule files, or folders whose *.yaml, *.yml and *.json are taken; `-` is the standard input
    #[arg(value_name = "PATH", required = true)]
    pub paths: Vec<PathBuf>,

    /// How to show what was found.
    #[command(flatten)]
    pub shown: Shown,
}

/// What to do with overrides.
#[derive(Clone, Debug, Args)]
pub struct OverridesArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: OverridesCommand,
}

/// What can be done with overrides.
#[derive(Clone, Debug, Subcommand)]
pub enum OverridesCommand {
    /// List the overrides of a rule, or of all rules of a domain.
    List(OverridesListArgs),
    /// Give one customer other numbers.
    Set(Box<OverrideSetArgs>),
    /// Take them away again.
    Delete(OverrideDeleteArgs),
}

/// Whose overrides.
#[derive(Clone, Debug, Args)]
pub struct OverridesListArgs {
    /// Whose rules
    #[arg(value_name = "DOMAIN")]
    pub domain: String,

    /// The rule; all of them unless given
    #[arg(value_name = "RULE")]
    pub id: Option<String>,

    /// At most so many
    #[arg(long, value_name = "COUNT")]
    pub limit: Option<usize>,

    /// How to show them.
    #[command(flatten)]
    pub shown: Shown,
}

/// Which override, and what it says.
#[derive(Clone, Debug, Args)]
pub struct OverrideSetArgs {
    /// The rule.
    #[command(flatten)]
    pub which: Which,

    /// For whom: the value of the attribute the rule counts by
    #[arg(value_name = "VALUE")]
    pub value: String,

    /// What.
    #[command(flatten)]
    pub effect: OverrideEffect,

    /// When it ends by itself, like 2030-01-31T18:00:00Z
    #[arg(long, value_name = "TIME")]
    pub until: Option<String>,

    /// The attribute, if it is not the first that the rule counts by; needed where that is one or another (`a or b`)
    #[arg(long, value_name = "NAME")]
    pub attribute: Option<String>,

    /// How.
    #[command(flatten)]
    pub change: Change,

    /// How to show what it is now.
    #[command(flatten)]
    pub shown: Shown,
}

/// What applies instead of the rule's own numbers.
#[derive(Clone, Debug, Args)]
#[group(required = true, multiple = true)]
pub struct OverrideEffect {
    /// So much, like 1000/s
    #[arg(long, value_name = "LIMIT")]
    pub limit: Option<String>,

    /// So much at once
    #[arg(long, value_name = "COUNT")]
    pub burst: Option<u64>,

    /// Counted by this algorithm; that of the rule unless given
    #[arg(long, value_name = "NAME")]
    pub algorithm: Option<String>,

    /// No limit
    #[arg(long, conflicts_with_all = ["limit", "burst", "algorithm", "deny"])]
    pub unlimited: bool,

    /// Nothing at all
    #[arg(long, conflicts_with_all = ["limit", "burst", "algorithm"])]
    pub deny: bool,

    /// Anything an override can say, as JSON, such as '{"limits":["10/s","1000/h"]}'
    #[arg(long, value_name = "JSON", conflicts_with_all = ["limit", "burst", "algorithm", "unlimited", "deny"])]
    pub effect: Option<String>,
}

/// Which override to delete.
#[derive(Clone, Debug, Args)]
pub struct OverrideDeleteArgs {
    /// The rule.
    #[command(flatten)]
    pub which: Which,

    /// For whom it is
    #[arg(value_name = "VALUE")]
    pub value: String,

    /// How.
    #[command(flatten)]
    pub change: Change,
}

/// Shown below the help of `rules`.
pub const RULES_EXAMPLES: &str = "\
Examples:
  tollgate rules list api
  tollgate rules get api login > login.yaml          edit it, then:
  tollgate rules apply login.yaml
  tollgate rules history api login
  tollgate rules rollback api login 3
  tollgate rules overrides set api per-client acme --limit 1000/s

The status is 0 if it was done, 1 if something is wrong or differs, and 2 if it was not asked for properly.";

const APPLY_EXAMPLES: &str = "\
Examples:
  tollgate rules apply rules.yaml
  tollgate rules apply --plan rules/                        what would change, for a review
  tollgate rules apply --yes --prune -m \"$COMMIT\" rules/     from continuous integration
  tollgate rules export | tollgate rules apply --plan -     nothing would change

The files are looked through first, as `tollgate check` does. Then the plan is shown, and carried out if nothing has \
changed in between; where the standard input is a terminal, after asking. All files are applied together, all of \
them or none.";

const OVERRIDES_EXAMPLES: &str = "\
Examples:
  tollgate rules overrides set api per-client acme --limit 1000/s --burst 2000
  tollgate rules overrides set api per-client trial-7 --unlimited --until 2030-01-31T18:00:00Z
  tollgate rules overrides list api                  of all rules; with a rule, of that one
  tollgate rules overrides delete api per-client acme

What a customer has spent stays spent: an override changes the numbers, not the counter.";
