//! Replays access logs against rules, and reports the requests and keys that the rules would have refused.
//!
//! ```text
//!  logs ─▶ chunk: read, parse, sort ─▶ merge: one sequence by time ─┬▶ tally: decide, count ─▶ report ─▶ text, html, JSON
//!          (a thread for each log)     spread whole seconds         └▶ suggest: peaks of clients
//! ```
//!
//! Memory use does not depend on the length of the logs: chunk buffers are reused, timelines have a limited number of
//! columns, and the number of stored keys is limited. The command line and the API both call [`replay`].

mod attributes;
pub mod bounds;
mod chunk;
pub mod format;
mod html;
mod input;
mod keys;
mod merge;
mod problems;
mod report;
mod requests;
mod show;
pub(crate) mod simulation;
mod suggest;
mod svg;
mod tally;
mod text;
mod timeline;

use std::fmt;
use std::path::PathBuf;

use jiff::tz::TimeZone;
use tollgate_engine::rules::{Mistakes, Rules};

pub use attributes::Mapping;
pub use input::{Log, ReadBounds};
pub use merge::ReplayProgress;
pub use problems::{LineProblem, ProblemCount, Problems};
pub use report::{
    AtOnceReport, CandidateReport, ComparisonReport, KeyCount, LogReport, PeakReport, Report, RuleReport, RunReport,
    SuggestionReport, TimelineReport,
};

use bounds::MAX_LOGS;
use input::{LogSource, ReadOptions};
use keys::KeyFormatter;
use merge::{Consumer, LineAttributes};
use requests::{LineFile, RequestWriter};
use simulation::Simulation;
use suggest::{Peaks, Trial, TrialError};
use tally::{LoadedRuleSet, RuleSetPass, TimeChoice};

/// Options of a replay.
#[derive(Clone, Debug)]
pub struct ReplayOptions {
    /// The rules.
    pub rules: Option<Rules>,
    /// The old rules to compare the results with.
    pub against: Option<Rules>,
    /// The domain whose rules are replayed. Optional if the rules have only one domain.
    pub domain: Option<String>,
    /// The format of the logs; detected by default.
    pub format: Option<String>,
    /// The time zone of timestamps without a zone.
    pub zone: TimeZone,
    /// Attributes that the user maps to a field or sets to a constant value.
    pub mapping: Mapping,
    /// The attributes that identify a client. If this is not empty, per-client limits are suggested.
    pub suggest: Vec<String>,
    /// Maximum number of keys with counters.
    pub capacity: usize,
    /// Whether keys are shown as hashes.
    pub hash_keys: bool,
    /// The file to write requests to, in the input format of `tollgate decide`.
    pub requests: Option<PathBuf>,
    /// The file to write decisions to, in the output format of `tollgate decide`. Requests with whole-second times are
    /// spread over their second.
    pub decisions: Option<PathBuf>,
    /// Bounds on reading the logs.
    pub bounds: ReadBounds,
}

impl Default for ReplayOptions {
    fn default() -> Self {
        Self {
            rules: None,
            against: None,
            domain: None,
            format: None,
            zone: TimeZone::UTC,
            mapping: Mapping::default(),
            suggest: Vec::new(),
            capacity: 1_000_000,
            hash_keys: false,
            requests: None,
            decisions: None,
            bounds: ReadBounds::default(),
        }
    }
}

/// An error of a replay.
#[derive(Debug)]
pub enum ReplayError {
    /// The logs or the options are invalid.
    Invalid(String),
    /// The rules cannot be used.
    Rules(Mistakes),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid(why) => f.write_str(why),
            Self::Rules(mistakes) => mistakes.fmt(f),
        }
    }
}

impl std::error::Error for ReplayError {}

/// Replays logs and reports the decisions. Blocks until all logs are read.
///
/// # Errors
/// Returns an error if the beginning of a log cannot be read, if its format is unknown, or if the rules or options are
/// invalid. If reading fails later in a log, the report contains the error instead.
pub fn replay(
    logs: &[Log],
    options: &ReplayOptions,
    show: &mut dyn FnMut(ReplayProgress),
) -> Result<Report, ReplayError> {
    if logs.len() > MAX_LOGS {
        return Err(ReplayError::Invalid(format!("too many logs: {} (maximum {MAX_LOGS})", logs.len())));
    }
    let reads_twice = !options.suggest.is_empty();
    if reads_twice && logs.iter().any(|log| matches!(log, Log::StandardInput)) {
        let why = "suggestions read the log twice, and the standard input can be read only once; name files instead \
                   (they may be compressed)";
        return Err(ReplayError::Invalid(why.into()));
    }
    let rule_run = |rules: &Rules| LoadedRuleSet::load(rules, options);
    let main = options.rules.as_ref().map(rule_run).transpose()?;
    let against = options.against.as_ref().map(rule_run).transpose()?;
    let attributes = needed_attributes([&main, &against], options);
    check_mapping(&options.mapping, &attributes)?;
    let read_options = ReadOptions {
        format: options.format.as_deref(),
        zone: options.zone.clone(),
        mapping: &options.mapping,
        attributes: &attributes.names,
        bounds: &options.bounds,
    };
    let mut sources = Vec::new();
    for log in logs {
        sources.extend(LogSource::prepare(log, &read_options).map_err(ReplayError::Invalid)?);
    }
    let names = KeyFormatter::new(options.hash_keys);
    let has_whole_seconds = sources.iter().any(|source| source.has_whole_seconds);
    let once = |rules: &Option<Rules>| rules.as_ref().filter(|_| has_whole_seconds).map(rule_run).transpose();
    let (at_once, against_at_once) = (once(&options.rules)?, once(&options.against)?);
    let pass = |run, against, times| RuleSetPass::new(run, against, &attributes, times, names.clone());
    let decisions = options.decisions.as_deref().map(LineFile::create).transpose()?;
    let mut main = main.map(|run| pass(run, against, TimeChoice::Spread).with_decisions_file(decisions));
    let mut at_once = at_once.map(|run| pass(run, against_at_once, TimeChoice::Logged));
    let mut peaks = reads_twice.then(|| Peaks::new(&options.suggest, &attributes, has_whole_seconds));
    let mut requests = match (&options.requests, &main) {
        (Some(path), Some(main)) => Some(RequestWriter {
            file: LineFile::create(path)?,
            domain: main.domain().to_owned(),
            attributes: &attributes,
        }),
        (Some(_), None) => {
            return Err(ReplayError::Invalid("requests can be written only with rules; name a rule file".into()));
        }
        (None, _) => None,
    };
    let mut consumers: Vec<&mut dyn Consumer> = Vec::new();
    consumers.extend(main.as_mut().map(|pass| pass as &mut dyn Consumer));
    consumers.extend(at_once.as_mut().map(|pass| pass as &mut dyn Consumer));
    consumers.extend(peaks.as_mut().map(|peaks| peaks as &mut dyn Consumer));
    consumers.extend(requests.as_mut().map(|requests| requests as &mut dyn Consumer));
    let passes = if reads_twice { 2 } else { 1 };
    let mut show_pass = |pass: u32, progress: ReplayProgress| show(ReplayProgress { pass: (pass, passes), ..progress });
    let count = attributes.names.len();
    let summary = merge::merge_logs(&sources, count, &options.zone, consumers, &mut |progress| show_pass(1, progress));
    requests.map_or(Ok(()), |requests| requests.file.finish())?;
    let suggestion = match &peaks {
        Some(peaks) => {
            let candidates = peaks.candidates();
            let mut trial = Trial::new(&options.suggest, &attributes, candidates, options.capacity)?;
            merge::merge_logs(&sources, count, &options.zone, vec![&mut trial], &mut |progress| show_pass(2, progress));
            let domain = options.domain.as_deref().unwrap_or("api");
            Some(trial.finish(&options.suggest, domain, peaks))
        }
        None => None,
    };
    let log_names: Vec<String> = sources.iter().map(|source| source.name.clone()).collect();
    let (result, against) = main.map(RuleSetPass::finish).transpose()?.unzip();
    let (at_once, against_at_once) = at_once.map(RuleSetPass::finish).transpose()?.unzip();
    Ok(Report {
        logs: sources.iter().map(log_report).collect(),
        lines: summary.lines,
        left_out: summary.problems.left_out_count(),
        problems: summary.problems.list(&log_names),
        errors: summary.errors,
        first_ms: summary.first.map(|first| first / 1_000_000),
        last_ms: summary.first.map(|_| summary.last / 1_000_000),
        result,
        at_once,
        against: against.flatten(),
        against_at_once: against_at_once.flatten(),
        suggestion,
    })
}

impl LoadedRuleSet {
    /// Loads rules into an engine and chooses the domain to replay.
    fn load(rules: &Rules, options: &ReplayOptions) -> Result<Self, ReplayError> {
        let names: Vec<&str> = rules.domains().iter().map(|domain| domain.name()).collect();
        let domain = match (&options.domain, &*names) {
            (Some(domain), names) if names.contains(&&**domain) => domain.clone(),
            (Some(domain), names) => {
                let known = names.join(", ");
                return Err(ReplayError::Invalid(format!("unknown domain `{domain}`; the rules have: {known}")));
            }
            (None, [only]) => (*only).to_owned(),
            (None, names) => {
                let known = names.join(", ");
                return Err(ReplayError::Invalid(format!("choose a domain with --domain; the rules have: {known}")));
            }
        };
        let simulation =
            Simulation::new(options.capacity).map_err(|error| ReplayError::Invalid(format!("--capacity: {error}")))?;
        simulation.engine.put(rules).map_err(ReplayError::Rules)?;
        Ok(Self::new(simulation, domain))
    }
}

impl From<TrialError> for ReplayError {
    fn from(error: TrialError) -> Self {
        match error {
            TrialError::Capacity(why) => Self::Invalid(why),
            TrialError::Rules(mistakes) => Self::Rules(mistakes),
        }
    }
}

/// Returns the attributes that the rules or the suggestions need.
fn needed_attributes<'r>(
    runs: impl IntoIterator<Item = &'r Option<LoadedRuleSet>>,
    options: &ReplayOptions,
) -> LineAttributes {
    let mut names: Vec<Box<str>> = options.suggest.iter().map(|name| name.as_str().into()).collect();
    for run in runs.into_iter().flatten() {
        names.extend(run.attributes());
    }
    names.sort_unstable();
    names.dedup();
    let constant = |name: &str| {
        let set = options.mapping.set.iter().find(|(attribute, _)| attribute == name);
        set.map(|(_, value)| value.as_bytes().into())
    };
    let constants = names.iter().map(|name| constant(name)).collect();
    LineAttributes { names, constants }
}

/// Checks that every attribute in the mapping is needed by a rule or by the suggestions. Any other name is probably a
/// typo.
fn check_mapping(mapping: &Mapping, attributes: &LineAttributes) -> Result<(), ReplayError> {
    let is_read = |name: &str| name == "time" || attributes.names.iter().any(|known| **known == *name);
    let mut names = mapping.map.iter().chain(&mapping.set).map(|(name, _)| name);
    match names.find(|name| !is_read(name)) {
        None => Ok(()),
        Some(name) => {
            let known = attributes.names.join(", ");
            Err(ReplayError::Invalid(format!("the attribute `{name}` is not used; used attributes: {known}")))
        }
    }
}

fn log_report(source: &LogSource) -> LogReport {
    LogReport {
        name: source.name.clone(),
        format: source.format.name().to_owned(),
        whole_seconds: source.has_whole_seconds,
        missing_attributes: source.missing.iter().map(|name| name.to_string()).collect(),
    }
}
