//! The command line: one module per command, with its arguments. Errors name the problem and the remedy.

mod audit;
mod check;
mod decide;
mod explain;
mod faults;
mod files;
mod fmt;
mod import;
mod keys;
mod manual;
mod nodes;
mod remote;
mod replay;
mod rules;
mod serve;
mod snippets;
mod tokens;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{ArgMatches, CommandFactory, FromArgMatches, Parser, Subcommand};
use tollgate_engine::rules::Mistakes;

/// An exact, fast and bounded rate limiter.
#[derive(Debug, Parser)]
#[command(name = "tollgate", version, about, long_about = LONG_ABOUT, after_help = EXAMPLES, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Answer requests over HTTP, the Redis protocol and Envoy's rate-limit service.
    #[command(after_help = serve::EXAMPLES)]
    Serve(Box<serve::ServeArgs>),
    /// Check the configuration and environment of a server, and a running server.
    #[command(after_help = serve::doctor::EXAMPLES)]
    Doctor(Box<serve::doctor::DoctorArgs>),
    /// Check rule files for mistakes.
    #[command(after_help = check::EXAMPLES)]
    Check(check::CheckArgs),
    /// Decide requests from JSON lines, at the times given in them.
    #[command(after_help = decide::EXAMPLES)]
    Decide(decide::DecideArgs),
    /// Replay access logs: what would these rules have refused?
    #[command(after_help = replay::EXAMPLES)]
    Replay(Box<replay::ReplayArgs>),
    /// Format rule files, keeping their comments.
    #[command(after_help = fmt::EXAMPLES)]
    Fmt(fmt::FmtArgs),
    /// Convert limits of Envoy or nginx to rules.
    #[command(after_help = import::EXAMPLES)]
    Import(import::ImportArgs),
    /// Print a configuration for a reverse proxy.
    #[command(after_help = snippets::EXAMPLES)]
    Snippets(snippets::SnippetsArgs),
    /// Explain how a request is decided.
    #[command(after_help = explain::EXAMPLES)]
    Explain(explain::ExplainArgs),
    /// Show and change the rules of a server.
    #[command(after_help = rules::EXAMPLES)]
    Rules(rules::RulesArgs),
    /// Manage the tokens of a server.
    #[command(after_help = tokens::EXAMPLES)]
    Tokens(tokens::TokensArgs),
    /// Show and reset counters.
    #[command(after_help = keys::EXAMPLES)]
    Keys(keys::KeysArgs),
    /// Show the servers that share limits with a server.
    #[command(after_help = nodes::EXAMPLES)]
    Nodes(nodes::NodesArgs),
    /// Show who changed what, and when.
    #[command(after_help = audit::EXAMPLES)]
    Audit(audit::AuditArgs),
    /// Print completions for a shell.
    #[command(after_help = manual::COMPLETION_EXAMPLES)]
    Completions(manual::CompletionsArgs),
    /// Print the manual page, or write a page for each command.
    #[command(after_help = manual::MAN_EXAMPLES)]
    Man(manual::ManArgs),
}

const LONG_ABOUT: &str = "\
An exact, fast and bounded rate limiter.

`tollgate serve` needs no configuration: it listens on this machine only, keeps counters in memory and rules in the \
directory tollgate-data, and accepts requests with inline limits even before it has rules.";

const EXAMPLES: &str = "\
Examples:
  tollgate serve
  curl -i -d '{\"key\":\"alice\",\"limit\":\"3/m\"}' http://127.0.0.1:8080/v1/check
  redis-cli -p 6380 CL.THROTTLE alice 2 3 60";

impl Cli {
    /// Parses a command line.
    ///
    /// # Errors
    /// Returns an error if the command line is invalid or requests help.
    fn parse_command_line<W: Into<OsString> + Clone>(words: impl IntoIterator<Item = W>) -> Result<Self, clap::Error> {
        let matches = Self::command().try_get_matches_from(words)?;
        // `--rules` and `--server` exclude each other on the command line. TOLLGATE_SERVER is ignored here, because the
        // variable may be set for other commands.
        let written = |args: &ArgMatches, id| args.value_source(id) == Some(ValueSource::CommandLine);
        if let Some(("explain", args)) = matches.subcommand()
            && written(args, "rules")
            && written(args, "server")
        {
            let problem = "the argument '--rules <PATH>' cannot be used with '--server <URL>': choose one of them";
            return Err(Self::command().error(ErrorKind::ArgumentConflict, problem));
        }
        Self::from_arg_matches(&matches)
    }

    fn run(self) -> anyhow::Result<ExitCode> {
        match self.command {
            Command::Serve(args) => serve::run(*args),
            Command::Doctor(args) => serve::doctor::run(&args),
            Command::Check(args) => check::run(&args),
            Command::Decide(args) => decide::run(&args),
            Command::Replay(args) => replay::run(&args),
            Command::Fmt(args) => fmt::run(&args),
            Command::Import(args) => import::run(&args),
            Command::Snippets(args) => snippets::run(&args),
            Command::Explain(args) => explain::run(&args),
            Command::Rules(args) => rules::run(&args),
            Command::Tokens(args) => tokens::run(&args),
            Command::Keys(args) => keys::run(&args),
            Command::Nodes(args) => nodes::run(&args),
            Command::Audit(args) => audit::run(&args),
            Command::Completions(args) => manual::print_completions(&args),
            Command::Man(args) => manual::print_manual(&args),
        }
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse_command_line(std::env::args_os()).unwrap_or_else(|error| error.exit());
    cli.run().unwrap_or_else(|error| {
        print_error(&error);
        ExitCode::FAILURE
    })
}

/// Prints why a command failed.
fn print_error(error: &anyhow::Error) {
    // A pipe closed by its reader, such as `head`, is not an error.
    let closed = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::BrokenPipe;
    if error.downcast_ref().is_some_and(closed) {
        return;
    }
    // A failure to write the message is ignored, because that failure could not be reported either.
    let _ = writeln!(std::io::stderr(), "tollgate: {error:#}");
}

/// Prints the mistakes in rule files to the standard error stream. Each mistake takes several lines.
fn print_mistakes(mistakes: &Mistakes) -> std::io::Result<()> {
    let mut out = std::io::stderr().lock();
    for mistake in mistakes.as_slice() {
        write!(out, "{}", mistake.to_detailed_text())?;
    }
    if mistakes.unlisted_count() > 0 {
        writeln!(out, "and {} more", mistakes.unlisted_count())?;
    }
    Ok(())
}

/// Returns status 0 if `success`, otherwise 1.
fn exit_code(success: bool) -> ExitCode {
    if success { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Returns a count with its noun: "1 rule", "2 rules".
fn count_with_noun(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
