//! The rule language: from text to checked rules.
//!
//! ```yaml
//! domain: api
//! rules:
//!   - id: per-client               # what the rule is known by; its numbers may change
//!     when: { path: "/v1/**", method: [GET, POST] }
//!     per: [api_key]               # counted separately for each value; empty: one counter for all
//!     limit: 100/s
//!     burst: 200
//!   - id: login
//!     when: { path: /login, api_key: { present: false } }
//!     per: [client_ip]
//!     limits: [ { limit: 5/m, algorithm: sliding_log }, { limit: 100/day, algorithm: fixed_window } ]
//!     on_exceed: deny              # deny (default) | shadow
//!     on_fault: closed             # local (default) | open | closed
//! ```
//!
//! A request meets every rule whose `when` holds. A value in `when` is compared as text; a star makes it a pattern
//! ([`Glob`]); of a list, one has to match. An attribute of `per` that a request does not have counts as a value of its
//! own: all requests without an API key share one counter, so that leaving it out is no way around the limit. Who wants them left
//! alone adds `api_key: { present: true }` to `when`.
//!
//! Reading goes in two stages, what was written and what it means, and does not stop at the first mistake: all of them are
//! told, with file, line and column. Whatever the text, reading it neither panics nor takes more than a bounded amount of
//! time and memory.

mod check;
mod glob;
mod limit;
mod mistake;
mod raw;
mod text;
mod words;

use std::sync::Arc;

use tollgate::{Cost, Limits};

pub use glob::Glob;
pub(crate) use glob::{Segment, matches_rest, segment_matches, split_segment};
pub use limit::{LimitMistake, LimitText};
pub use mistake::{Mistake, Mistakes, Place};
pub use text::{MAX_ALIASED, MAX_DEPTH, MAX_FILE_BYTES, MAX_NODES};

pub(crate) use mistake::Notes;

/// The most rules there may be, over all files.
pub const MAX_RULES: usize = 100_000;

/// The text of a rule file, and what to call it in messages.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// Mostly its path.
    pub name: &'a str,
    /// YAML or JSON.
    pub text: &'a [u8],
}

/// Rules that have been checked, ready to be put in force.
///
/// ```
/// use tollgate_engine::rules::{Rules, Source};
///
/// let text = "domain: api\nrules:\n- id: all\n  limt: 100/s\n";
/// let mistakes = Rules::read(&[Source { name: "rules.yaml", text: text.as_bytes() }]).unwrap_err();
/// assert_eq!(
///     mistakes.to_string(),
///     "rules.yaml:3:3: the rule has no `limit`; add one like `limit: 100/s`, or `unlimited: true`\n\
///      rules.yaml:4:3: `limt` is not a key of a rule; did you mean `limit`?"
/// );
/// ```
#[derive(Clone, Debug, Default)]
pub struct Rules {
    domains: Vec<Domain>,
}

impl Rules {
    /// Reads and checks all files together.
    ///
    /// # Errors
    /// Everything that is wrong with any of them.
    pub fn read(sources: &[Source<'_>]) -> Result<Self, Mistakes> {
        let mut notes = Notes::new("");
        let mut checker = check::Checker::new();
        for source in sources {
            notes.turn_to(source.name);
            if let Some(tree) = text::read(source.text, &mut notes) {
                for domain in raw::read(&tree, &mut notes) {
                    checker.domain(&domain, &mut notes);
                }
            }
        }
        notes.finish()?;
        Ok(Self { domains: checker.finish() })
    }

    /// The domains, in the order in which they were first named.
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// How many rules there are.
    pub fn len(&self) -> usize {
        self.domains.iter().map(|domain| domain.rules.len()).sum()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Rules under one name. Requests name the domain they belong to.
#[derive(Clone, Debug)]
pub struct Domain {
    pub(crate) name: Box<str>,
    pub(crate) rules: Vec<Rule>,
}

impl Domain {
    /// What requests call it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// In the order in which they were written.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }
}

/// When it applies, what it counts by, its limits, and what happens when they are exceeded or in doubt.
#[derive(Clone, Debug)]
pub struct Rule {
    pub(crate) id: Box<str>,
    pub(crate) place: Where,
    pub(crate) when: Vec<Condition>,
    pub(crate) per: Vec<Box<str>>,
    /// None if it is unlimited.
    pub(crate) limits: Option<Limits>,
    pub(crate) cost: Cost,
    pub(crate) on_exceed: OnExceed,
    pub(crate) on_fault: OnFault,
}

impl Rule {
    /// Its identity within the domain.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Where it was written.
    pub fn place(&self) -> &Where {
        &self.place
    }

    /// All of these must hold.
    pub fn when(&self) -> &[Condition] {
        &self.when
    }

    /// The attributes whose values are counted separately.
    pub fn per(&self) -> &[Box<str>] {
        &self.per
    }

    /// The limits, unless it has none on purpose.
    pub fn limits(&self) -> Option<&Limits> {
        self.limits.as_ref()
    }

    /// What a request weighs that does not say so itself.
    pub fn cost(&self) -> Cost {
        self.cost
    }

    /// What happens beyond the limits.
    pub fn on_exceed(&self) -> OnExceed {
        self.on_exceed
    }

    /// What happens when the store does not answer.
    pub fn on_fault(&self) -> OnFault {
        self.on_fault
    }
}

/// Where a rule was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Where {
    /// The name of the file.
    pub file: Arc<str>,
    /// The place in it.
    pub place: Place,
}

/// What one attribute must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// The name of the attribute.
    pub attribute: Box<str>,
    /// What is asked of its value. Of a name that occurs several times, one value has to do.
    pub test: Test,
}

/// What is asked of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// It matches one of these, of which there is at least one.
    AnyOf(Vec<Pattern>),
    /// There is one, whatever it is.
    Present,
    /// There is none.
    Absent,
}

/// What a value is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Exactly this.
    Equals(Box<str>),
    /// Anything that matches.
    Glob(Glob),
}

/// What happens to a request beyond the limits of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnExceed {
    /// It is refused.
    #[default]
    Deny,
    /// It passes, and that it would have been refused is told.
    Shadow,
}

impl OnExceed {
    const WORDS: &[(&str, Self)] = &[("deny", Self::Deny), ("shadow", Self::Shadow)];
}

/// What happens to a request when the store does not answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnFault {
    /// It is decided in this process, by this node's share of the limits.
    #[default]
    Local,
    /// It passes.
    Open,
    /// It is refused.
    Closed,
}

impl OnFault {
    const WORDS: &[(&str, Self)] = &[("local", Self::Local), ("open", Self::Open), ("closed", Self::Closed)];
}

#[cfg(test)]
mod tests;
