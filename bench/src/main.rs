//! Measures Tollgate's limiters and the peers side by side in one run. `scripts/bench` builds and starts this program.

mod child;
mod contender;
mod flood;
mod instructions;
mod keys;
mod layer;
mod measure;
mod memory;
mod ours;
mod pause;
mod peers;
mod report;
mod snapshot;
mod speed;
mod waiting;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::measure::Plan;
use crate::report::Report;

const USAGE: &str = "usage: tollgate-bench [--repetitions N] [filter]

Measures the library beside its peers and prints one line per comparison:
  case=keyed-million ours=… peer=governor-dashmap theirs=… ratio=… goal=1.8 pass
Smaller numbers are better; a larger ratio (theirs ÷ ours) is better. A filter selects the cases
whose name contains it: direct, keyed, keyed-million, 2t, batch16, interval-bucket, sliding-slices, acquire, waiters,
layer, memory, pause, snapshot, flood, instructions.
Prints a table of goals at the end. Exit status 1: a goal was missed.";

/// With 20 ms per repetition, all cases take about two minutes.
const REPETITIONS: usize = 25;

fn main() -> ExitCode {
    match start(std::env::args().skip(1).collect()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("tollgate-bench: {error:#}");
            ExitCode::from(2)
        }
    }
}

fn start(arguments: Vec<String>) -> Result<ExitCode> {
    if let Some((child::CHILD_ARGUMENT, task)) = arguments.split_first().map(|(first, rest)| (&**first, rest)) {
        child::run_child_task(task)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut plan = Plan { repetitions: REPETITIONS, slice: Duration::from_millis(20) };
    let mut filter = None;
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" | "-h" => {
                println!("{USAGE}");
                return Ok(ExitCode::SUCCESS);
            }
            "--repetitions" => {
                let number = arguments.next().context("--repetitions needs a number")?;
                plan.repetitions = number.parse().context("--repetitions needs a number")?;
                ensure!(plan.repetitions > 0, "--repetitions must be at least 1");
            }
            flag if flag.starts_with('-') => bail!("unknown option {flag}\n{USAGE}"),
            _ if filter.is_some() => bail!("too many filters (maximum 1)\n{USAGE}"),
            _ => filter = Some(argument),
        }
    }
    measure_all(plan, &filter.unwrap_or_default())
}

fn measure_all(plan: Plan, filter: &str) -> Result<ExitCode> {
    let mut report = Report::new(filter);
    speed::run(&mut report, plan)?;
    waiting::run(&mut report, plan)?;
    layer::run(&mut report, plan)?;
    memory::run(&mut report)?;
    pause::run(&mut report)?;
    snapshot::run(&mut report)?;
    flood::run(&mut report)?;
    instructions::run(&mut report)?;
    ensure!(!report.is_empty(), "nothing was measured: no case name contains {filter:?}, or valgrind is missing");
    let all_hold = report.finish();
    Ok(ExitCode::from(u8::from(!all_hold)))
}
