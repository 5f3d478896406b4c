//! `tollgate completions SHELL` and `tollgate man`: print pages that are generated from the definition of the command
//! line.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::Cli;

#[derive(Clone, Debug, Args)]
pub(super) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

#[derive(Clone, Debug, Args)]
pub(super) struct ManArgs {
    /// Write a page for each command into this directory instead of printing the main page
    #[arg(long, value_name = "DIR")]
    output: Option<PathBuf>,
}

pub(super) const COMPLETION_EXAMPLES: &str = "\
Examples:
  tollgate completions bash > /usr/share/bash-completion/completions/tollgate
  tollgate completions zsh > \"${fpath[1]}/_tollgate\"
  tollgate completions fish > ~/.config/fish/completions/tollgate.fish";

pub(super) const MAN_EXAMPLES: &str = "\
Examples:
  tollgate man | man -l -
  tollgate man --output /usr/share/man/man1";

/// Prints the completions of a shell.
///
/// # Errors
/// Returns an error if the completions cannot be printed.
pub(super) fn print_completions(args: &CompletionsArgs) -> anyhow::Result<ExitCode> {
    // Generates in memory first, because the generator panics if a write fails (for example to a closed pipe).
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tollgate", &mut script);
    std::io::stdout().write_all(&script)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the main manual page, or writes the pages of all commands.
///
/// # Errors
/// Returns an error if a page cannot be printed or written.
pub(super) fn print_manual(args: &ManArgs) -> anyhow::Result<ExitCode> {
    match &args.output {
        Some(directory) => {
            let wrong = || format!("cannot write manual pages into {}", directory.display());
            clap_mangen::generate_to(Cli::command(), directory).with_context(wrong)?;
        }
        None => {
            let mut page = Vec::new();
            clap_mangen::Man::new(Cli::command()).render(&mut page)?;
            std::io::stdout().write_all(&page)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}
