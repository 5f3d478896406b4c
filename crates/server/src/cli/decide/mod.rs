//! `tollgate decide`: decides requests from JSON lines, at the times given in them.

mod request_time;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use clap::Args;
use tollgate::clock::{Clock, ManualClock, PreciseClock};
use tollgate_engine::rules::Source;

use super::serve::parse_count;
use super::{exit_code, files, print_mistakes};
use crate::app::App;
use crate::http::bounds::MAX_BODY_BYTES;
use crate::http::decide_json_request;
use crate::http::problem::Problem;
use crate::replay::simulation::simulated_engine;
use crate::rules_source::file::parse_all;
use request_time::remove_at;

#[derive(Clone, Debug, Args)]
pub(super) struct DecideArgs {
    /// A rule file, a configuration file of the reference Envoy service, or a folder of such files; without rules,
    /// requests use inline limits
    #[arg(long, value_name = "PATH")]
    rules: Option<PathBuf>,

    /// The requests, one JSON object per line; the standard input by default
    #[arg(value_name = "FILE")]
    requests: Option<PathBuf>,

    /// The maximum number of keys, such as 500k or 10M
    #[arg(long, value_name = "KEYS", default_value = "1M")]
    capacity: String,
}

pub(super) const EXAMPLES: &str = "\
Examples:
  tollgate decide --rules rules.yaml requests.jsonl
  echo '{\"key\":\"alice\",\"limit\":\"3/m\"}' | tollgate decide
  echo '{\"at\":1700000000000,\"domain\":\"api\",\"attributes\":{\"path\":\"/login\"}}' | tollgate decide --rules rules.yaml

Each line is the body of a POST to /v1/check, and is answered by a line with the body of the response. If the first line \
has `at`, milliseconds since 1970 or a time like 2030-01-31T18:00:00Z, 2030-01-31T18:00:00+01:00 or \
2030-01-31T18:00[Europe/Paris], the lines set the time: `at` must never decrease, and a line without it has the time of \
the previous line. Otherwise each request is decided at the time it is read.

For an invalid line, the output has the problem and the line number in its place, and the exit status is 1.";

/// Prints one answer per line of input. The exit status is 1 if a line is invalid.
///
/// # Errors
/// Returns an error if the rules or the requests cannot be read, or the answers cannot be written.
pub(super) fn run(args: &DecideArgs) -> anyhow::Result<ExitCode> {
    let (engine, clock) = simulated_engine(parse_count("--capacity", &args.capacity)?)?;
    let app = App::new(engine, None);
    if let Some(path) = &args.rules {
        let files = files::read_path(path)?;
        let sources: Vec<Source<'_>> = files.iter().map(|file| file.as_source()).collect();
        let rules = match parse_all(&sources).and_then(|rules| app.engine.put(&rules).map(|_| rules)) {
            Ok(rules) => rules,
            Err(mistakes) => {
                print_mistakes(&mistakes)?;
                return Ok(ExitCode::FAILURE);
            }
        };
        rules.left_out().map_or(Ok(()), print_mistakes)?;
    }
    let input: Box<dyn Read> = match &args.requests {
        Some(path) => Box::new(File::open(path).with_context(|| format!("cannot read {}", path.display()))?),
        None => Box::new(std::io::stdin().lock()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let mut times = RequestClock::new(clock);
    let mut input = BufReader::new(input);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let (mut bytes, mut number, mut success) = (Vec::new(), 0, true);
    while let Some(whole) = read_line(&mut input, &mut bytes)? {
        number += 1;
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        let answer = match whole {
            true => match times.set_time(&mut bytes) {
                Ok(()) => runtime.block_on(decide_json_request(&app, &bytes)).map_err(add_at_hint),
                Err(problem) => Err(problem),
            },
            false => Err(Problem::bad_request(format!("line too long (maximum {MAX_BODY_BYTES} bytes)"))),
        };
        match answer {
            Ok(answer) => out.write_all(&answer)?,
            Err(problem) => {
                success = false;
                out.write_all(&problem.with_line(number).to_json())?;
            }
        }
        out.write_all(b"\n")?;
        // Flushes when no further input is buffered, so that an interactive caller gets each answer immediately.
        if input.buffer().is_empty() {
            out.flush()?;
        }
    }
    out.flush()?;
    Ok(exit_code(success))
}

/// Adds a hint about `at` to an error about an unknown field with a name like `time`.
fn add_at_hint(problem: Problem) -> Problem {
    const TIME_NAMES: [&str; 6] = ["time", "timestamp", "ts", "now", "date", "when"];
    let field = problem.detail().strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'));
    match field {
        Some((field, rest)) if rest.starts_with(", expected") && TIME_NAMES.contains(&field) => {
            Problem::bad_request(format!("unknown field `{field}`; the time of a request is `at`"))
        }
        Some(_) | None => problem,
    }
}

/// Reads a line. Returns whether `line` contains the whole line: `Some(false)` if the line has more than
/// [`MAX_BODY_BYTES`] bytes, and `None` at the end of the input.
fn read_line(input: &mut impl BufRead, line: &mut Vec<u8>) -> std::io::Result<Option<bool>> {
    line.clear();
    let mut whole = true;
    loop {
        let piece = input.fill_buf()?;
        if piece.is_empty() {
            return Ok((!line.is_empty()).then_some(whole));
        }
        let end = piece.iter().position(|byte| *byte == b'\n');
        let taken = end.unwrap_or(piece.len());
        whole &= line.len() + taken <= MAX_BODY_BYTES;
        if whole {
            line.extend_from_slice(&piece[..taken]);
        }
        input.consume(taken + usize::from(end.is_some()));
        if end.is_some() {
            // Empty lines are counted too, so that line numbers stay correct.
            return Ok(Some(whole));
        }
    }
}

/// Sets the clock before each request. If the first request has an `at`, the clock follows `at`. Otherwise the clock
/// follows the real time.
struct RequestClock {
    clock: Arc<ManualClock>,
    real: PreciseClock,
    follows_at: Option<bool>,
    last: u64,
}

impl RequestClock {
    fn new(clock: Arc<ManualClock>) -> Self {
        Self { clock, real: PreciseClock::new(), follows_at: None, last: 0 }
    }

    /// Sets the clock to the time of a request, and removes `at` from the line.
    fn set_time(&mut self, line: &mut [u8]) -> Result<(), Problem> {
        let at = remove_at(line)?;
        let follows_at = *self.follows_at.get_or_insert(at.is_some());
        let wrong = |detail: &str| Err(Problem::bad_request(detail).with_pointer("/at"));
        let nanos = match (at, follows_at) {
            (Some(_), false) => return wrong("the first line has no `at`, so no later line may have one"),
            (Some(nanos), true) if nanos < self.last => return wrong("`at` is earlier than in a previous line"),
            (Some(nanos), true) => nanos,
            (None, true) => self.last,
            (None, false) => self.real.wall(self.real.mono()).as_nanos().max(self.last),
        };
        self.last = nanos;
        self.clock.set(nanos);
        Ok(())
    }
}
