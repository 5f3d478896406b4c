//! `tollgate doctor`: checks everything that `tollgate serve` would need with the same flags. Also checks a running
//! server.
//!
//! Each finding is one line: the status, the name of the check, the finding and, unless the status is ok, the remedy.

mod certificate;
mod machine;
mod rules;
mod running;
mod store;

use std::fmt;
use std::io::Write;
use std::process::ExitCode;

use clap::Args;
use tollgate::clock::{Clock, PreciseClock};

use super::args::ServeArgs;
use super::config::Config;
use super::warnings;
use crate::cli::exit_code;
use crate::cli::remote::ServerArgs;

#[derive(Clone, Debug, Args)]
pub(in crate::cli) struct DoctorArgs {
    #[command(flatten)]
    serve: ServeArgs,

    #[command(flatten)]
    server: ServerArgs,
}

pub(in crate::cli) const EXAMPLES: &str = "\
Examples:
  tollgate doctor                                                 what `tollgate serve` needs, and a server on 127.0.0.1:8080
  tollgate doctor --rules rules.yaml --store redis://10.0.0.5     with the flags, or the environment, of `tollgate serve`
  tollgate doctor --server https://10.0.0.9:8080 --token …        and a server elsewhere

It writes nothing, with three exceptions: it tries the script of a shared store on a key of its own, creates the tables of an
empty database, and creates and removes the Unix socket of --rls. The exit status is 1 if a line is an error.";

/// The status of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum FindingStatus {
    Ok,
    Warning,
    Error,
}

/// The result of a check.
#[derive(Debug)]
struct DoctorFinding {
    status: FindingStatus,
    name: &'static str,
    /// The finding and, unless the status is ok, the remedy.
    text: String,
}

impl DoctorFinding {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { status: FindingStatus::Ok, name, text: found.into() }
    }

    fn warning(name: &'static str, found: impl fmt::Display, action: impl fmt::Display) -> Self {
        Self { status: FindingStatus::Warning, name, text: format!("{found}; {action}") }
    }

    fn error(name: &'static str, found: impl fmt::Display, action: impl fmt::Display) -> Self {
        Self { status: FindingStatus::Error, name, text: format!("{found}; {action}") }
    }
}

impl fmt::Display for DoctorFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = match self.status {
            FindingStatus::Ok => "ok",
            FindingStatus::Warning => "warning",
            FindingStatus::Error => "error",
        };
        // Joins the lines, because a message from another program may have several lines.
        let text = self.text.split_whitespace().collect::<Vec<_>>().join(" ");
        write!(f, "{status:<9}{:<14}{text}", self.name)
    }
}

/// Prints all findings. The exit status is 1 if a finding is an error.
///
/// # Errors
/// Returns an error if the findings cannot be printed.
pub(in crate::cli) fn run(args: &DoctorArgs) -> anyhow::Result<ExitCode> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut out = std::io::stdout().lock();
    let mut failed = false;
    let mut print = |findings: Vec<DoctorFinding>| -> std::io::Result<()> {
        for finding in findings {
            failed |= finding.status == FindingStatus::Error;
            writeln!(out, "{finding}")?;
        }
        Ok(())
    };
    match Config::new(args.serve.clone()) {
        Ok(config) => {
            print(check_configuration(&config))?;
            print(runtime.block_on(rules::check_rules_source(&config)))?;
            print(runtime.block_on(store::check_store(&config)))?;
            print(runtime.block_on(machine::check_ports(&config)))?;
            print(vec![machine::check_open_files(&config)])?;
            print(vec![machine::check_certificate(&config, wall_seconds())])?;
        }
        Err(error) => {
            print(vec![DoctorFinding::error("configuration", format!("{error:#}"), "nothing else was checked")])?;
        }
    }
    print(runtime.block_on(running::check_running_server(&args.server)))?;
    Ok(exit_code(!failed))
}

fn check_configuration(config: &Config) -> Vec<DoctorFinding> {
    let command_line: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    let warnings = warnings::config_warnings(config, &command_line);
    if warnings.is_empty() {
        return vec![DoctorFinding::ok("configuration", "valid")];
    }
    // The text of a warning already contains the remedy, after a semicolon.
    let finding = |text| DoctorFinding { status: FindingStatus::Warning, name: "configuration", text };
    warnings.into_iter().map(finding).collect()
}

/// Returns the wall clock of this machine in microseconds since 1970.
fn wall_micros() -> u64 {
    let clock = PreciseClock::new();
    clock.wall(clock.mono()).as_nanos() / 1_000
}

fn wall_seconds() -> i64 {
    i64::try_from(wall_micros() / 1_000_000).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_is_one_line() {
        let finding = DoctorFinding::error("store", "it said:\n  no", "ask again");
        assert_eq!(finding.to_string(), "error    store         it said: no; ask again");
    }
}
