//! `tollgate rules enforcement`: the fleet-wide kill switch.

use std::io::Write;

use clap::{Args, ValueEnum};
use reqwest::Method;
use serde_json::json;

use crate::cli::remote::output::OutputArgs;
use crate::cli::remote::{CommentArgs, Remote, with_comment, with_json};
use crate::control::model::{FleetMode, FleetSwitch};

#[derive(Clone, Debug, Args)]
pub(super) struct EnforcementArgs {
    /// The new mode of all nodes; without it, the current mode is shown
    #[arg(value_name = "MODE")]
    mode: Option<EnforcementModeArg>,

    #[command(flatten)]
    comment: CommentArgs,

    #[command(flatten)]
    output: OutputArgs,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum EnforcementModeArg {
    /// Refuse requests above their limits
    Enforce,
    /// Let every request pass, and report the requests that would have been refused
    Observe,
}

/// Shows or sets the fleet-wide kill switch.
pub(super) fn run(remote: &Remote, args: &EnforcementArgs) -> anyhow::Result<()> {
    let path = ["v1", "fleet", "enforcement"];
    let answer = match args.mode {
        None => remote.get(&path)?,
        Some(mode) => {
            let mode = match mode {
                EnforcementModeArg::Enforce => FleetMode::Enforce,
                EnforcementModeArg::Observe => FleetMode::Observe,
            };
            let request = with_json(remote.request(Method::PUT, &path)?, json!({"mode": mode}).to_string());
            remote.send(with_comment(request, &args.comment), "waiting for an answer")?
        }
    };
    answer.print(args.output, |switch: FleetSwitch| {
        let line = match switch.mode {
            FleetMode::Enforce => "enforce: requests above their limits are refused",
            FleetMode::Observe => "observe: every request passes, on all nodes",
        };
        Ok(writeln!(std::io::stdout(), "{line}")?)
    })
}
