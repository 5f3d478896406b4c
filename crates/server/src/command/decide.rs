//! `tollgate decide`: requests from lines of JSON, decided at the times they say.

mod moment;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use tollgate::clock::{Clock, ManualClock, PreciseClock};
use tollgate_engine::{Engine, MemoryStore};

use crate::app::App;
use crate::config::count;
use crate::config::raw::DecideArgs;
use crate::http::limits::MAX_BODY;
use crate::http::line;
use crate::http::problem::Problem;
use crate::retrieve::file::{Watched, parse};
use moment::take_moment;

/// Answers every line; fails if one could not be understood.
///
/// # Errors
/// When the rules or the requests cannot be read, or the answers cannot be written.
pub fn run(args: &DecideArgs) -> anyhow::Result<ExitCode> {
    let clock = Arc::new(ManualClock::at(0));
    let store = MemoryStore::with_clock(count("--capacity", &args.capacity)?, clock.clone())?;
    let app = App::new(Engine::new(store)?.with_clock(clock.clone()), None);
    if let Some(path) = &args.rules {
        let name = path.display().to_string();
        let text = Watched::new(path.clone()).read().with_context(|| format!("cannot read {name}"))?;
        let rules = match parse(&name, &text).and_then(|rules| app.engine.put(&rules).map(|_| rules)) {
            Ok(rules) => rules,
            Err(mistakes) => {
                super::tell(&mistakes)?;
                return Ok(ExitCode::FAILURE);
            }
        };
        rules.left_out().map_or(Ok(()), super::tell)?;
    }
    let input: Box<dyn Read> = match &args.requests {
        Some(path) => Box::new(File::open(path).with_context(|| format!("cannot read {}", path.display()))?),
        None => Box::new(std::io::stdin().lock()),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let mut times = Times::new(clock);
    let mut input = BufReader::new(input);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    let (mut bytes, mut number, mut fine) = (Vec::new(), 0, true);
    while let Some(whole) = read_line(&mut input, &mut bytes)? {
        number += 1;
        if bytes.trim_ascii().is_empty() {
            continue;
        }
        let answer = match whole {
            true => match times.take(&mut bytes) {
                Ok(()) => runtime.block_on(line::check(&app, &bytes)).map_err(with_at),
                Err(problem) => Err(problem),
            },
            false => Err(Problem::bad_request(format!("a line has at most {MAX_BODY} bytes"))),
        };
        match answer {
            Ok(answer) => out.write_all(&answer)?,
            Err(problem) => {
                fine = false;
                out.write_all(&problem.in_line(number).to_json())?;
            }
        }
        out.write_all(b"\n")?;
        // Whoever asks line by line sees each answer; a file is answered in larger pieces.
        if input.buffer().is_empty() {
            out.flush()?;
        }
    }
    out.flush()?;
    Ok(if fine { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// A field that is none and may be meant for the time, which only lines have.
fn with_at(problem: Problem) -> Problem {
    const TIMES: [&str; 6] = ["time", "timestamp", "ts", "now", "date", "when"];
    let field = problem.detail().strip_prefix("unknown field `").and_then(|rest| rest.split_once('`'));
    match field {
        Some((field, rest)) if rest.starts_with(", expected") && TIMES.contains(&field) => {
            Problem::bad_request(format!("unknown field `{field}`; when a request happens is called `at`"))
        }
        Some(_) | None => problem,
    }
}

/// Reads up to the end of a line and says whether it is short enough; `None` at the end of everything. Of what is too
/// long no more is kept than of others.
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
        whole &= line.len() + taken <= MAX_BODY;
        if whole {
            line.extend_from_slice(&piece[..taken]);
        }
        input.consume(taken + usize::from(end.is_some()));
        if end.is_some() {
            // An empty line is one, too.
            return Ok(Some(whole));
        }
    }
}

/// When requests happen: as they say, or as they come, which the first one decides.
struct Times {
    clock: Arc<ManualClock>,
    real: PreciseClock,
    said: Option<bool>,
    last: u64,
}

impl Times {
    fn new(clock: Arc<ManualClock>) -> Self {
        Self { clock, real: PreciseClock::new(), said: None, last: 0 }
    }

    /// Moves the clock to when a request happens, and takes that out of it.
    fn take(&mut self, line: &mut [u8]) -> Result<(), Problem> {
        let moment = take_moment(line)?;
        let said = *self.said.get_or_insert(moment.is_some());
        let wrong = |detail: &str| Err(Problem::bad_request(detail).at("/at"));
        let nanos = match (moment, said) {
            (Some(_), false) => return wrong("the first line has no `at`, so requests happen when they are read"),
            (Some(nanos), true) if nanos < self.last => return wrong("`at` is earlier than in a line before"),
            (Some(nanos), true) => nanos,
            (None, true) => self.last,
            (None, false) => self.real.wall(self.real.mono()).as_nanos().max(self.last),
        };
        self.last = nanos;
        self.clock.set(nanos);
        Ok(())
    }
}
