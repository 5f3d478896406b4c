//! Counts of the results of a replay.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};

/// Reason why a step was not compared. If the player of a case cannot be created, all its steps are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skip {
    /// The operation returned an error, so nothing was decided.
    Error,
    /// Earlier in the case, the clock went back.
    ClockBack,
    /// An argument is the smallest or largest 64-bit number.
    Extreme,
    /// Our limit cannot represent the recorded state, such as a bucket above its capacity.
    ImpossibleState,
    /// Our types reject the limit.
    RefusedLimit,
    /// The time is before 1970, where our clocks start.
    BeforeTime,
    /// The time is too far in the future for our clocks.
    BeyondTime,
    /// This field is missing, negative or of another type.
    Field(&'static str),
    /// The replay does not know the operation or the algorithm.
    UnknownOperation,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "returned an error",
            Self::ClockBack => "after the clock went back",
            Self::Extreme => "smallest or largest 64-bit number as argument",
            Self::ImpossibleState => "state that our limit cannot have",
            Self::RefusedLimit => "limit that our types refuse",
            Self::BeforeTime => "clock before 1970",
            Self::BeyondTime => "clock too far in the future",
            Self::UnknownOperation => "unknown operation",
            Self::Field(name) => return write!(f, "field `{name}` missing, negative or of another type"),
        })
    }
}

/// A deliberate difference: a case in which a reference errs and our behaviour differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KnownDifference {
    /// Short name for the output.
    pub name: &'static str,
    /// The behaviour of the reference, then the behaviour of Tollgate.
    pub reason: &'static str,
}

/// The result of one step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StepResult {
    /// Verdict, remaining amount and wait agree with the reference.
    Equal,
    /// The answers differ for a known reason.
    ByRule(&'static KnownDifference),
    /// The answers differ without a known reason.
    Differs(Mismatch),
    /// The step was not compared.
    Skipped(Skip),
}

impl StepResult {
    /// Returns whether the results are equal or differ for a known reason.
    pub fn is_explained(&self) -> bool {
        matches!(self, Self::Equal | Self::ByRule(_))
    }

    /// Returns `ByRule(rule)` if this is `Differs` and `holds` returns true. Otherwise returns the result unchanged.
    #[must_use]
    pub fn or_known_difference(self, rule: &'static KnownDifference, holds: impl FnOnce() -> bool) -> Self {
        match self {
            Self::Differs(_) if holds() => Self::ByRule(rule),
            Self::Equal | Self::ByRule(_) | Self::Differs(_) | Self::Skipped(_) => self,
        }
    }
}

/// The compared parts of both answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mismatch {
    /// Answer of the reference.
    pub expected: String,
    /// Our answer.
    pub got: String,
}

/// Compares an answer part by part.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    shown: Mismatch,
    differs: bool,
}

impl Comparison {
    /// Returns a comparison without parts, which counts as equal.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part that must be equal.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "most arguments are numbers computed for the comparison")]
    pub fn expect_equal<T: PartialEq + Debug>(self, what: &str, expected: T, got: T) -> Self {
        let differs = expected != got;
        self.add_part(what, &expected, &got, differs)
    }

    /// Adds a part in which our number may be one unit larger, because the reference rounds down.
    #[must_use]
    pub fn expect_at_most_one_more(self, what: &str, expected: i128, got: i128) -> Self {
        self.add_part(what, &expected, &got, !(expected..=expected + 1).contains(&got))
    }

    /// Adds a part that may differ by one unit, because the reference rounds intermediate results.
    #[must_use]
    pub fn expect_within_one(self, what: &str, expected: i128, got: i128) -> Self {
        self.add_part(what, &expected, &got, expected.abs_diff(got) > 1)
    }

    fn add_part(mut self, what: &str, expected: &dyn Debug, got: &dyn Debug, differs: bool) -> Self {
        self.shown.expected += &format!(" {what}={expected:?}");
        self.shown.got += &format!(" {what}={got:?}");
        self.differs |= differs;
        self
    }

    /// Returns the result of the comparison.
    pub fn result(self) -> StepResult {
        if self.differs { StepResult::Differs(self.shown) } else { StepResult::Equal }
    }
}

/// Counts for one replay.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// File and mode of the replay.
    pub title: String,
    /// Cases replayed.
    pub cases: usize,
    /// Number of steps. Each step is in exactly one of the counts below.
    pub steps: usize,
    /// Steps equal to the reference.
    pub equal_steps: usize,
    /// Steps that differ for a known reason.
    pub by_rule: BTreeMap<&'static KnownDifference, usize>,
    /// Steps that were not compared.
    pub skipped: BTreeMap<Skip, usize>,
    /// Steps that differ without a known reason: location and both answers.
    pub differing_steps: Vec<String>,
}

impl Tally {
    /// Returns empty counts.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// Counts one step. `place` returns the location of the step, and is called only if the step differs.
    pub fn add_result(&mut self, seen: StepResult, place: impl FnOnce() -> String) {
        self.steps += 1;
        match seen {
            StepResult::Equal => self.equal_steps += 1,
            StepResult::ByRule(rule) => *self.by_rule.entry(rule).or_default() += 1,
            StepResult::Skipped(skip) => *self.skipped.entry(skip).or_default() += 1,
            StepResult::Differs(Mismatch { expected, got }) => {
                self.differing_steps.push(format!("{}\n  expected{expected}\n  got     {got}", place()));
            }
        }
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let by_rule: usize = self.by_rule.values().sum();
        let skipped: usize = self.skipped.values().sum();
        writeln!(
            f,
            "{}: cases={} steps={} equal={} differing={} by_rule={by_rule} skipped={skipped}",
            self.title,
            self.cases,
            self.steps,
            self.equal_steps,
            self.differing_steps.len(),
        )?;
        for (skip, count) in &self.skipped {
            writeln!(f, "  skipped  {count:>5}  {skip}")?;
        }
        for (rule, count) in &self.by_rule {
            writeln!(f, "  rule     {count:>5}  {}: {}", rule.name, rule.reason)?;
        }
        self.differing_steps.iter().try_for_each(|difference| writeln!(f, "  DIFFERS  {difference}"))
    }
}
