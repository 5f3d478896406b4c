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
//!     on_exceed: deny              # deny (default) | shadow | drop | delay
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
mod cidr;
pub mod entry;
mod expression;
mod format;
mod glob;
mod import;
pub mod keys;
mod limit;
mod mistake;
mod moment;
mod nth;
mod raw;
mod reference;
mod rule;
mod text;
pub(crate) mod warn;
mod words;
mod write;

pub use cidr::Cidr;
pub(crate) use cidr::address;
pub use expression::Expression;
pub use format::{FormatError, format};
pub use glob::Glob;
pub(crate) use glob::{CapturePlace, Segment, matches_rest, segment_matches, split_segment};
pub use import::{Dialect, Imported, ReadIncluded};
pub(crate) use limit::WEEKDAYS;
pub use limit::{LimitMistake, LimitText};
pub use mistake::{Mistake, Mistakes, Place};
pub use moment::{NoMoment, NoMomentText, moment};
pub use reference::reference;
pub(crate) use rule::ALL;
pub use rule::{
    Ban, Condition, CostOf, Counted, Effect, LimitSet, OnChange, OnExceed, OnFault, Origin, Override, Pattern, Refusal,
    Rule, Test, Where,
};
pub use text::{MAX_ALIASED, MAX_DEPTH, MAX_FILE_BYTES, MAX_NODES};

pub(crate) use mistake::Notes;
pub(crate) use nth::nth_of;
pub use words::nearest;

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

/// Reads a file with values that a rule file names.
pub type ReadFile<'a> = &'a dyn Fn(&str, &str) -> Result<Vec<u8>, String>;

/// Rules that have been checked, ready to be put in force.
///
/// ```
/// use tollgate_engine::rules::{Rules, Source};
///
/// let text = "domain: api\nrules:\n- id: all\n  limt: 100/s\n";
/// let mistakes = Rules::read(&[Source { name: "rules.yaml", text: text.as_bytes() }]).unwrap_err();
/// assert_eq!(
///     mistakes.to_string(),
///     "rules.yaml:4:3: `limt` is not a key of a rule; did you mean `limit`?"
/// );
/// ```
#[derive(Clone, Debug, Default)]
pub struct Rules {
    domains: Vec<Domain>,
    left_out: Option<Mistakes>,
    kept: bool,
    sound: bool,
}

impl Rules {
    /// Reads and checks all files together.
    ///
    /// # Errors
    /// Everything that is wrong with any of them.
    pub fn read(sources: &[Source<'_>]) -> Result<Self, Mistakes> {
        Self::read_with(sources, &|_, _| Err("files are not read here".into()))
    }

    /// [`read`](Self::read), with conditions that name files with values. `file` is given the name of the rule file and
    /// the name of the file in it, and returns what is in it or why it cannot be read.
    ///
    /// # Errors
    /// Everything that is wrong with any of them.
    pub fn read_with(sources: &[Source<'_>], file: ReadFile<'_>) -> Result<Self, Mistakes> {
        let (domains, notes, left_out) = read_files(sources, check::Checker::new(file));
        notes.finish().map_err(|mistakes| mistakes.with_snippets(sources))?;
        let left_out = left_out.finish().err().map(|left_out| left_out.with_snippets(sources));
        Ok(Self { domains, left_out, kept: false, sound: false })
    }

    /// The rules among others with mistakes that have none themselves, so that what is probably not meant can be told of these, too.
    /// They are not to be put in force: who knows what the others would have been.
    #[must_use]
    pub fn sound(sources: &[Source<'_>], file: ReadFile<'_>) -> Self {
        let (domains, ..) = read_files(sources, check::Checker::of_sound_rules(file));
        Self { domains, left_out: None, kept: false, sound: true }
    }

    /// Whether these are only the ones without mistakes.
    pub(crate) fn are_only_sound(&self) -> bool {
        self.sound
    }

    /// The same, of a text that nobody sees, such as that of a database: places in it mean nothing to people, who are told its
    /// name instead.
    #[must_use]
    pub fn kept(self) -> Self {
        Self { kept: true, ..self }
    }

    /// Whether its text is one that nobody sees.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept
    }

    /// What files that were written for something else say and rules cannot, if there is something.
    pub fn left_out(&self) -> Option<&Mistakes> {
        self.left_out.as_ref()
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

/// The domains, what is wrong, and what cannot be carried over.
fn read_files(sources: &[Source<'_>], mut checker: check::Checker<'_>) -> (Vec<Domain>, Notes, Notes) {
    let (mut notes, mut left_out) = (Notes::new(""), Notes::new(""));
    for source in sources {
        notes.turn_to(source.name);
        left_out.turn_to(source.name);
        let before = notes.count();
        let tree = text::read(source.text, &mut notes);
        let tree = tree.and_then(|tree| import::translate(tree, &mut notes, &mut left_out));
        // Of a file that could only be read in part, nobody knows which rules are meant as they are.
        if let Some(tree) = tree.filter(|_| notes.count() == before || !checker.only_sound()) {
            for domain in raw::read(&tree, &mut notes) {
                checker.domain(&domain, &mut notes);
            }
        }
    }
    (checker.finish(), notes, left_out)
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

#[cfg(test)]
mod tests;
