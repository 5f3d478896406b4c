//! Counts the lines that were skipped or moved in time, by reason.

use serde::Serialize;
use utoipa::ToSchema;

/// Why a line was skipped or moved in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineProblem {
    /// The line has neither the format of its log nor any other known format.
    Unreadable,
    /// The line has a known format, but not the format of its log.
    OtherFormat,
    /// The line contains bytes that do not occur in text.
    Binary,
    /// The line is too long.
    TooLong,
    /// The time of the line is missing or invalid.
    NoTime,
    /// The time of the line is more than a day in the future.
    Future,
    /// The line is more than a minute earlier than the previous lines.
    Backwards,
    /// The line is at most a minute earlier than the previous line, and is decided at the time of that line.
    Late,
    /// The engine does not accept the line's attributes.
    Invalid,
}

impl LineProblem {
    /// All problems, in the order of the variants.
    pub const ALL: [Self; 9] = [
        Self::Unreadable,
        Self::OtherFormat,
        Self::Binary,
        Self::TooLong,
        Self::NoTime,
        Self::Future,
        Self::Backwards,
        Self::Late,
        Self::Invalid,
    ];

    /// Returns the name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Self::Unreadable => "unreadable",
            Self::OtherFormat => "other_format",
            Self::Binary => "binary",
            Self::TooLong => "too_long",
            Self::NoTime => "no_time",
            Self::Future => "future",
            Self::Backwards => "backwards",
            Self::Late => "late",
            Self::Invalid => "invalid",
        }
    }

    /// Returns a description of the problem and its effect.
    pub fn describe(self) -> &'static str {
        match self {
            Self::Unreadable => "left out: not in the format of the log",
            Self::OtherFormat => "left out: in a format other than the log's",
            Self::Binary => "left out: binary",
            Self::TooLong => "left out: longer than 32 KiB",
            Self::NoTime => "left out: no valid time",
            Self::Future => "left out: more than a day in the future",
            Self::Backwards => "left out: more than a minute earlier than the previous lines",
            Self::Late => "out of order: decided at the time of the previous lines",
            Self::Invalid => "left out: not a valid request",
        }
    }

    /// Returns whether lines with this problem were skipped.
    pub fn is_left_out(self) -> bool {
        self != Self::Late
    }
}

/// The number of lines with each problem, and the position of the first such line.
#[derive(Clone, Debug, Default)]
pub struct Problems {
    counts: [u64; LineProblem::ALL.len()],
    first: [Option<(usize, u64)>; LineProblem::ALL.len()],
}

impl Problems {
    /// Counts a line of a log.
    pub(super) fn add(&mut self, problem: LineProblem, log: usize, line: u64) {
        self.counts[problem as usize] += 1;
        self.first[problem as usize].get_or_insert((log, line));
    }

    /// Adds the counts of a later chunk.
    pub(super) fn add_counts(&mut self, later: &Self) {
        for (place, count) in later.counts.iter().enumerate() {
            self.counts[place] += count;
            self.first[place] = self.first[place].or(later.first[place]);
        }
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Returns the number of lines with a problem.
    pub fn count(&self, problem: LineProblem) -> u64 {
        self.counts[problem as usize]
    }

    /// Returns the number of skipped lines.
    pub fn left_out_count(&self) -> u64 {
        LineProblem::ALL.into_iter().filter(|problem| problem.is_left_out()).map(|problem| self.count(problem)).sum()
    }

    /// Returns the problems that occurred, with their counts and first occurrences.
    pub(super) fn list(&self, logs: &[String]) -> Vec<ProblemCount> {
        let occurred = LineProblem::ALL.into_iter().filter(|problem| self.count(*problem) > 0);
        let count = |problem: LineProblem| {
            let first = self.first[problem as usize];
            let place = first.and_then(|(log, line)| {
                let log = logs.get(log)?;
                Some(if line == 0 { log.clone() } else { format!("{log}:{line}") })
            });
            let (problem, lines, description) = (problem.name(), self.count(problem), problem.describe());
            ProblemCount { problem, description, lines, first: place }
        };
        occurred.map(count).collect()
    }
}

/// The number of lines with a problem.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ProblemCount {
    /// The name of the problem.
    pub problem: &'static str,
    /// The problem, and its effect on the lines.
    pub description: &'static str,
    /// The number of lines.
    pub lines: u64,
    /// The log and line number of the first such line.
    pub first: Option<String>,
}
