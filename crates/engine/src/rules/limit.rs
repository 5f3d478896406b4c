//! Parses the limit of a rule or of a request.

mod calendar;
mod inline;
mod parse;

use tollgate::core::{Nanos, Phase, Steps};
use tollgate::{
    Concurrency, FixedWindow, IntervalBucket, LeakyBucket, Limit, LimitError, Rate, SlidingLog, SlidingSlices,
    SlidingWindow, TokenBucket,
};

use super::keys;
use super::raw::shorten;
use super::suggest::{join_with_and, suggest_valid};
use crate::calendar::Calendar;
pub(crate) use calendar::{WEEKDAYS, read_zone};
pub use inline::{LimitMistake, LimitText};
pub(crate) use parse::{
    BOOLEAN_HELP, not_a_boolean_message, not_a_count_message, parse_boolean, parse_count, parse_length,
};
use parse::{parse_quota, suggest_rate};

/// The parts of a limit as strings, as written in a rule or a request.
pub(crate) struct WrittenLimit<'w> {
    pub(crate) limit: Option<&'w str>,
    pub(crate) algorithm: Option<&'w str>,
    pub(crate) option: &'w dyn Fn(&str) -> Option<&'w str>,
    /// Number of calendar windows in the preceding limits of the same rule.
    pub(crate) position: usize,
    /// Whether the limit belongs to an override and inherited the algorithm and options of the rule's limit.
    pub(crate) inherits: bool,
}

/// Each algorithm with its options and a description.
pub(crate) const ALGORITHMS: &[(&str, &[&str], &str)] = &[
    ("token_bucket", &["burst", "initial", "max_debt"], "refills continuously; admits `burst` at one instant"),
    (
        "leaky_bucket",
        &["burst", "free", "max_wait", "initial", "max_debt"],
        "admits at a constant rate: the decision says how long to hold each request",
    ),
    (
        "interval_bucket",
        &["burst", "phase", "offset", "max_wait", "initial", "max_debt"],
        "refills the whole count at the end of each period",
    ),
    (
        "fixed_window",
        &["phase", "zone", "anchor", "initial", "max_debt"],
        "counts from zero in each window, day or month",
    ),
    ("sliding_window", &["initial", "max_debt"], "counts this window and a weighted part of the previous one"),
    ("sliding_slices", &["precision", "initial", "max_debt"], "counts the last period, to the precision of a slice"),
    (
        "sliding_log",
        &["minimum_gap", "count_refused", "initial", "max_debt"],
        "counts the last period exactly, for limits up to 1024",
    ),
    ("concurrency", &["lease", "max_debt"], "counts slots held at the same time"),
];

const NO_LIMIT_HELP: &str = "for no limit write `unlimited: true` instead of `limit`";
const ZERO_LIMIT_HELP: &str = "to refuse everything write `deny: true` instead of `limit`";

const PHASE_NAMES: &[&str] = &["epoch", "first_request", "spread"];

/// Default number of slices in a window.
const DEFAULT_SLICES: u64 = 10;

/// Default time after which an unreleased slot is freed.
pub(super) const DEFAULT_LEASE: Nanos = Nanos::from_secs(60);

/// Returns the limit, or a list of at least one mistake.
pub(crate) fn parse_limit<'w>(words: &'w WrittenLimit<'w>) -> Result<(Limit, Option<Calendar>), Vec<LimitMistake>> {
    let mut reader = LimitParser { words, mistakes: Vec::new(), has_calendar_mistake: false };
    let calendar = reader.parse_calendar();
    reader.has_calendar_mistake = !reader.mistakes.is_empty();
    match reader.build_limit(calendar.as_ref()).map(|limit| (limit, calendar)) {
        Some(limit) if reader.mistakes.is_empty() => Ok(limit),
        Some(_) | None => {
            if reader.mistakes.is_empty() {
                reader.add_mistake("limit", "invalid limit");
            }
            Err(reader.mistakes)
        }
    }
}

struct LimitParser<'w> {
    words: &'w WrittenLimit<'w>,
    mistakes: Vec<LimitMistake>,
    /// Whether the limit is a calendar window with a mistake. The rate of such a limit is not checked.
    has_calendar_mistake: bool,
}

/// The values of the given options.
struct Options {
    burst: Option<u64>,
    free: Option<u64>,
    max_wait: Option<Nanos>,
    phase: Option<Phase>,
    offset: Option<Nanos>,
    precision: Option<Nanos>,
    minimum_gap: Option<Nanos>,
    count_refused: Option<bool>,
    lease: Option<Nanos>,
    initial: Option<u64>,
    max_debt: Option<u64>,
}

impl<'w> LimitParser<'w> {
    /// Builds the limit. Parses all options first, so that all mistakes are reported.
    fn build_limit(&mut self, calendar: Option<&Calendar>) -> Option<Limit> {
        let algorithm = self.check_algorithm();
        let quota = match (algorithm, calendar) {
            (Some("concurrency"), _) => self.parse_slot_count().map(|leases| (leases, Nanos::ZERO)),
            (_, Some(calendar)) => self.count_per_window().map(|count| (count, calendar.average_length())),
            (_, None) if self.has_calendar_mistake => self.count_per_window().and(None),
            (Some(_), None) => self.parse_count_and_period(),
            (None, None) => None,
        };
        let options = Options {
            burst: self.count_option("burst"),
            free: self.count_option("free"),
            max_wait: self.length_option("max_wait"),
            phase: self.phase_option(),
            offset: self.length_option("offset"),
            precision: self.length_option("precision"),
            minimum_gap: self.length_option("minimum_gap"),
            count_refused: self.boolean_option("count_refused"),
            lease: self.length_option("lease"),
            initial: self.count_option("initial"),
            max_debt: self.count_option("max_debt"),
        };
        // An unknown zone does not affect the parameters.
        let (count, per) = quota.filter(|_| self.mistakes.iter().all(|mistake| mistake.word == "zone"))?;
        match algorithm? {
            "token_bucket" => self.build_token_bucket(count, per, &options),
            "leaky_bucket" => self.build_leaky_bucket(count, per, &options),
            "interval_bucket" => self.build_interval_bucket(count, per, &options),
            "fixed_window" => self.build_fixed_window(count, per, calendar, &options),
            "sliding_window" => self.build_sliding_window(count, per, &options),
            "sliding_slices" => self.build_sliding_slices(count, per, &options),
            "sliding_log" => self.build_sliding_log(count, per, &options),
            _ => self.build_concurrency(count, &options),
        }
    }

    /// Returns the name of the algorithm, and reports options that the algorithm does not have.
    fn check_algorithm(&mut self) -> Option<&'static str> {
        let name = self.words.algorithm.unwrap_or("token_bucket");
        let Some((name, takes, _)) = ALGORITHMS.iter().find(|(algorithm, ..)| *algorithm == name) else {
            let names: Vec<&str> = ALGORITHMS.iter().map(|(name, ..)| *name).collect();
            let problem = format!("`{}` is not an algorithm", shorten(name));
            self.add_mistake_with_help("algorithm", problem, suggest_valid(name, &names));
            return None;
        };
        for keys::Key { name: option, .. } in keys::LIMIT_OPTIONS {
            if (self.words.option)(option).is_some() && !takes.contains(option) {
                let takers = ALGORITHMS.iter().filter(|(_, takes, _)| takes.contains(option));
                let takers: Vec<&str> = takers.map(|(name, ..)| *name).collect();
                let help = format!("it belongs to {}; {name} takes {}", join_with_and(&takers), join_with_and(takes));
                self.add_mistake_with_help(option, format!("{name} has no option `{option}`"), help);
            }
        }
        Some(name)
    }

    fn build_token_bucket(&mut self, count: u64, per: Nanos, options: &Options) -> Option<Limit> {
        let rate = self.or_report("limit", Rate::new(count, per))?;
        let bucket = self.or_report("burst", TokenBucket::new(rate, options.burst.unwrap_or(count)))?;
        let bucket = self.apply_option("max_debt", options.max_debt, bucket, TokenBucket::max_debt)?;
        self.apply_option("initial", options.initial, bucket, TokenBucket::initial).map(Limit::from)
    }

    fn build_leaky_bucket(&mut self, count: u64, per: Nanos, options: &Options) -> Option<Limit> {
        let rate = self.or_report("limit", Rate::new(count, per))?;
        let bucket = self.or_report("burst", LeakyBucket::new(rate, options.burst.unwrap_or(count)))?;
        let bucket = self.apply_option("free", options.free, bucket, LeakyBucket::free)?;
        let bucket = options.max_wait.map_or(bucket, |max_wait| bucket.max_wait(max_wait));
        let bucket = self.apply_option("max_debt", options.max_debt, bucket, LeakyBucket::max_debt)?;
        self.apply_option("initial", options.initial, bucket, LeakyBucket::initial).map(Limit::from)
    }

    fn build_interval_bucket(&mut self, count: u64, period: Nanos, options: &Options) -> Option<Limit> {
        let bucket = self.or_report("limit", IntervalBucket::new(count, period))?;
        let bucket = self.apply_option("burst", options.burst, bucket, IntervalBucket::burst)?;
        let steps = match (options.phase, options.offset) {
            (None | Some(Phase::Epoch), offset) => Steps::Aligned(offset.unwrap_or(Nanos::ZERO)),
            (Some(Phase::FirstRequest), None) => Steps::FirstRequest,
            (Some(Phase::FirstRequest), Some(_)) => {
                let problem = "`offset` has no effect with `phase: first_request`";
                self.add_mistake_with_help("offset", problem, "remove it, or write `phase: epoch`");
                return None;
            }
            (Some(Phase::Spread | Phase::Given(_)), _) => {
                let help = "valid: `epoch`, optionally with an `offset`, and `first_request`";
                self.add_mistake_with_help("phase", "an interval bucket has no `phase: spread`", help);
                return None;
            }
        };
        let bucket = self.apply_option("max_wait", options.max_wait, bucket.steps(steps), IntervalBucket::max_wait)?;
        let bucket = self.apply_option("max_debt", options.max_debt, bucket, IntervalBucket::max_debt)?;
        self.apply_option("initial", options.initial, bucket, IntervalBucket::initial).map(Limit::from)
    }

    fn build_fixed_window(
        &mut self,
        count: u64,
        length: Nanos,
        calendar: Option<&Calendar>,
        options: &Options,
    ) -> Option<Limit> {
        let window = self.or_report("limit", FixedWindow::new(count, length))?;
        let window = match (calendar, options.phase) {
            (Some(_), None) => window.phase(Phase::Given(self.words.position)),
            (Some(_), Some(_)) => {
                let problem = "`phase` has no effect on calendar windows";
                self.add_mistake_with_help("phase", problem, "remove it, or `zone` and `anchor`");
                return None;
            }
            (None, Some(phase)) => window.phase(phase),
            (None, None) => window,
        };
        let window = self.apply_option("max_debt", options.max_debt, window, FixedWindow::max_debt)?;
        self.apply_option("initial", options.initial, window, FixedWindow::initial).map(Limit::from)
    }

    fn build_sliding_window(&mut self, count: u64, length: Nanos, options: &Options) -> Option<Limit> {
        let window = self.or_report("limit", SlidingWindow::new(count, length))?;
        let window = self.apply_option("max_debt", options.max_debt, window, SlidingWindow::max_debt)?;
        self.apply_option("initial", options.initial, window, SlidingWindow::initial).map(Limit::from)
    }

    fn build_sliding_slices(&mut self, count: u64, length: Nanos, options: &Options) -> Option<Limit> {
        let tenth = Nanos::from_nanos(length.as_nanos().div_ceil(DEFAULT_SLICES));
        let precision = options.precision.unwrap_or(tenth);
        let word = if options.precision.is_some() { "precision" } else { "limit" };
        let slices = self.or_report(word, SlidingSlices::new(count, length, precision))?;
        let slices = self.apply_option("max_debt", options.max_debt, slices, SlidingSlices::max_debt)?;
        self.apply_option("initial", options.initial, slices, SlidingSlices::initial).map(Limit::from)
    }

    fn build_sliding_log(&mut self, count: u64, length: Nanos, options: &Options) -> Option<Limit> {
        let log = self.or_report("limit", SlidingLog::new(count, length))?;
        let log = self.apply_option("max_debt", options.max_debt, log, SlidingLog::max_debt)?;
        let log = self.apply_option("initial", options.initial, log, SlidingLog::initial)?;
        let log = self.apply_option("minimum_gap", options.minimum_gap, log, SlidingLog::minimum_gap)?;
        Some(if options.count_refused == Some(true) { log.count_refused() } else { log }.into())
    }

    fn build_concurrency(&mut self, count: u64, options: &Options) -> Option<Limit> {
        let leases = self.or_report("limit", Concurrency::new(count, options.lease.unwrap_or(DEFAULT_LEASE)))?;
        self.apply_option("max_debt", options.max_debt, leases, Concurrency::max_debt).map(Limit::from)
    }

    fn given_limit(&mut self) -> Option<&'w str> {
        if self.words.limit.is_none() {
            self.add_mistake_with_help("limit", "missing `limit`", "write it like `limit: 100/s`, 5/15m or 10k/day");
        }
        self.words.limit
    }

    fn parse_slot_count(&mut self) -> Option<u64> {
        let text = self.given_limit()?;
        let leases = parse_count(text);
        if leases.is_none() {
            let problem = format!("`{}` is not a number of slots", shorten(text));
            self.add_mistake_with_help(
                "limit",
                problem,
                "concurrency counts requests in progress; write it like `limit: 10`",
            );
        }
        leases
    }

    /// Returns the count and the period as written. A window of 5/15m is 15 minutes long, although its rate in lowest
    /// terms is 20/h.
    fn parse_count_and_period(&mut self) -> Option<(u64, Nanos)> {
        let text = self.given_limit()?;
        if matches!(text, "unlimited" | "none" | "infinite") {
            self.add_mistake_with_help("limit", format!("`{text}` is not a rate"), NO_LIMIT_HELP);
            return None;
        }
        let quota = parse_quota(text);
        if let Err(error @ LimitError::Zero { what: "the count of the rate" }) = &quota {
            self.add_mistake_with_help("limit", error.to_string(), ZERO_LIMIT_HELP);
            return None;
        }
        if let (Err(error), Some(written)) = (&quota, suggest_rate(text)) {
            let error = error.to_string();
            let problem = error.split_once("; ").map_or(&*error, |(problem, _)| problem);
            self.add_mistake_with_help("limit", problem, format!("write it as {written}"));
            return None;
        }
        self.or_report("limit", quota)
    }

    fn phase_option(&mut self) -> Option<Phase> {
        match (self.words.option)("phase")? {
            "epoch" => Some(Phase::Epoch),
            "first_request" => Some(Phase::FirstRequest),
            "spread" => Some(Phase::Spread),
            other => {
                self.add_mistake_with_help(
                    "phase",
                    format!("`{}` is not a phase", shorten(other)),
                    suggest_valid(other, PHASE_NAMES),
                );
                None
            }
        }
    }

    fn count_option(&mut self, option: &'static str) -> Option<u64> {
        let text = (self.words.option)(option)?;
        let count = parse_count(text);
        if count.is_none() {
            self.add_mistake_with_help(option, not_a_count_message(text), "write it like 200 or 10k");
        }
        count
    }

    fn length_option(&mut self, option: &'static str) -> Option<Nanos> {
        let text = (self.words.option)(option)?;
        let length = parse_length(text);
        if length.is_none() {
            let problem = format!("`{}` is not a duration", shorten(text));
            self.add_mistake_with_help(option, problem, "write it like 500ms, 30s or 5m");
        }
        length
    }

    fn boolean_option(&mut self, option: &'static str) -> Option<bool> {
        let text = (self.words.option)(option)?;
        let boolean = parse_boolean(text);
        if boolean.is_none() {
            self.add_mistake_with_help(option, not_a_boolean_message(text), BOOLEAN_HELP);
        }
        boolean
    }

    fn or_report<T>(&mut self, word: &'static str, made: Result<T, LimitError>) -> Option<T> {
        let note = |error: LimitError| match error.to_string().split_once("; ") {
            Some((problem, help)) => self.add_mistake_with_help(word, problem, help),
            None => self.add_mistake(word, error.to_string()),
        };
        made.map_err(note).ok()
    }

    /// Applies an option if it is given.
    fn apply_option<T, V>(
        &mut self,
        word: &'static str,
        value: Option<V>,
        limit: T,
        with: impl FnOnce(T, V) -> Result<T, LimitError>,
    ) -> Option<T> {
        match value {
            Some(value) => self.or_report(word, with(limit, value)),
            None => Some(limit),
        }
    }

    fn add_mistake(&mut self, word: &'static str, problem: impl Into<String>) {
        self.mistakes.push(LimitMistake { word, problem: problem.into(), help: None });
    }

    fn add_mistake_with_help(&mut self, word: &'static str, problem: impl Into<String>, help: impl Into<String>) {
        self.mistakes.push(LimitMistake { word, problem: problem.into(), help: Some(help.into()) });
    }
}

#[cfg(test)]
mod tests;
