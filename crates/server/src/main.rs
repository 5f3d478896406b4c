//! The `tollgate` program.

use std::process::ExitCode;

use tollgate_server::command;
use tollgate_server::config::raw::{Cli, Command};

fn main() -> ExitCode {
    let words = Cli::read(std::env::args_os()).unwrap_or_else(|error| error.exit());
    let outcome = match words.command {
        Command::Serve(args) => command::serve::run(*args),
        Command::Check(args) => command::check::run(&args),
        Command::Decide(args) => command::decide::run(&args),
        Command::Fmt(args) => command::fmt::run(&args),
        Command::Import(args) => command::import::run(&args),
        Command::Explain(args) => command::explain::run(&args),
        Command::Rules(args) => command::rules::run(&args),
        Command::Tokens(args) => command::tokens::run(&args),
        Command::Keys(args) => command::keys::run(&args),
        Command::Audit(args) => command::audit::run(&args),
    };
    outcome.unwrap_or_else(|error| {
        command::report(&error);
        ExitCode::FAILURE
    })
}
