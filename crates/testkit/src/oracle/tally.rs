//! What came out of a replay, counted.

use std::collections::BTreeMap;
use std::fmt::{self, Debug};

/// Why a step was not compared. There are no other reasons. A case whose limiter we cannot make has all its steps skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Skip {
    /// The operation returned an error: nothing was decided.
    Error,
    /// The clock went back earlier in the case.
    ClockBack,
    /// An argument is the first or last number of 64 bits.
    Extreme,
    /// The recorded state before the step is none that our limit can be in, such as a bucket above its capacity.
    Unholdable,
    /// Our types refuse the limit.
    RefusedLimit,
    /// The clock is before 1970, where our clocks begin.
    BeforeTime,
    /// The clock is too far in the future for ours.
    BeyondTime,
    /// This field is missing, negative or of another kind.
    Field(&'static str),
    /// The reference has no such operation.
    UnknownOperation,
}

impl fmt::Display for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Error => "returned an error",
            Self::ClockBack => "after the clock went back",
            Self::Extreme => "64-bit limit as argument",
            Self::Unholdable => "state we cannot hold",
            Self::RefusedLimit => "limit that our types refuse",
            Self::BeforeTime => "clock before 1970",
            Self::BeyondTime => "clock too far in the future",
            Self::UnknownOperation => "unknown operation",
            Self::Field(name) => return write!(f, "field `{name}` missing, negative or of another kind"),
        })
    }
}

/// A deliberate difference: where a reference errs, and what we do instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// A few words.
    pub name: &'static str,
    /// What the reference does, and why we do not.
    pub reason: &'static str,
}

/// How one step went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// Verdict, remaining and wait are those of the reference.
    Equal,
    /// They are not, on purpose.
    ByRule(&'static Rule),
    /// They are not.
    Differs(Mismatch),
    /// Not compared.
    Skipped(Skip),
}

impl Seen {
    /// Whether it is as the reference had it, or different for a known reason.
    pub fn is_explained(&self) -> bool {
        matches!(self, Self::Equal | Self::ByRule(_))
    }

    /// This, unless it differs and `rule` holds.
    #[must_use]
    pub fn unless(self, rule: &'static Rule, holds: impl FnOnce() -> bool) -> Self {
        match self {
            Self::Differs(_) if holds() => Self::ByRule(rule),
            Self::Equal | Self::ByRule(_) | Self::Differs(_) | Self::Skipped(_) => self,
        }
    }
}

/// What the reference said and what we said, as far as they were compared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mismatch {
    /// The reference.
    pub expected: String,
    /// We.
    pub got: String,
}

/// Compares the parts of an answer one by one.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    shown: Mismatch,
    differs: bool,
}

impl Comparison {
    /// Nothing compared yet: equal.
    pub fn new() -> Self {
        Self::default()
    }

    /// Must be the same.
    #[must_use]
    #[expect(clippy::needless_pass_by_value, reason = "most are numbers made for the comparison")]
    pub fn same<T: PartialEq + Debug>(self, what: &str, expected: T, got: T) -> Self {
        let differs = expected != got;
        self.note(what, &expected, &got, differs)
    }

    /// May be one unit longer than the reference says, which rounded down.
    #[must_use]
    pub fn up_to_one_more(self, what: &str, expected: i128, got: i128) -> Self {
        self.note(what, &expected, &got, !(expected..=expected + 1).contains(&got))
    }

    /// May be one unit more or less: the reference rounded on the way.
    #[must_use]
    pub fn near(self, what: &str, expected: i128, got: i128) -> Self {
        self.note(what, &expected, &got, expected.abs_diff(got) > 1)
    }

    fn note(mut self, what: &str, expected: &dyn Debug, got: &dyn Debug, differs: bool) -> Self {
        self.shown.expected += &format!(" {what}={expected:?}");
        self.shown.got += &format!(" {what}={got:?}");
        self.differs |= differs;
        self
    }

    /// Equal or not.
    pub fn seen(self) -> Seen {
        if self.differs { Seen::Differs(self.shown) } else { Seen::Equal }
    }
}

/// The count of one file.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// The file and the way it was replayed.
    pub title: String,
    /// Cases replayed.
    pub cases: usize,
    /// Steps in them, each in exactly one of the counts below.
    pub steps: usize,
    /// The same as the reference.
    pub equal: usize,
    /// Different for a named reason.
    pub by_rule: BTreeMap<&'static Rule, usize>,
    /// Not compared.
    pub skipped: BTreeMap<Skip, usize>,
    /// Different for no known reason: where, and how.
    pub differing: Vec<String>,
}

impl Tally {
    /// An empty one.
    pub fn new(title: impl Into<String>) -> Self {
        Self { title: title.into(), ..Self::default() }
    }

    /// Counts one step; `place` says which, should it differ.
    pub fn count(&mut self, seen: Seen, place: impl FnOnce() -> String) {
        self.steps += 1;
        match seen {
            Seen::Equal => self.equal += 1,
            Seen::ByRule(rule) => *self.by_rule.entry(rule).or_default() += 1,
            Seen::Skipped(skip) => *self.skipped.entry(skip).or_default() += 1,
            Seen::Differs(Mismatch { expected, got }) => {
                self.differing.push(format!("{}\n  expected{expected}\n  got     {got}", place()));
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
            self.equal,
            self.differing.len(),
        )?;
        for (skip, count) in &self.skipped {
            writeln!(f, "  skipped  {count:>5}  {skip}")?;
        }
        for (rule, count) in &self.by_rule {
            writeln!(f, "  rule     {count:>5}  {}: {}", rule.name, rule.reason)?;
        }
        self.differing.iter().try_for_each(|difference| writeln!(f, "  DIFFERS  {difference}"))
    }
}
