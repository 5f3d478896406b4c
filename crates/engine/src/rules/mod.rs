//! The rule language: parses text into checked rules.
//!
//! ```yaml
//! domain: api
//! rules:
//!   - id: per-client               # identity of the rule; its limits may change
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
//! A request matches every rule whose `when` and, if given, `if`, `only` and `schedule` hold. A value in `when` is
//! compared as a string, or as a pattern ([`Glob`]) if it contains a star or a brace. A list matches if one of its
//! values matches. A missing attribute in `per` counts as a separate value. For example, all requests without an API
//! key share one counter, so omitting the key does not avoid the limit. To exempt such requests, add `api_key: {
//! present: true }` to `when`.
//!
//! Parsing has two stages: the first checks the syntax, the second checks the meaning. Parsing does not stop at the
//! first mistake: up to [`Mistakes::MAX`] mistakes are listed, with file, line and column, and further mistakes are
//! counted. No input causes a panic, and time and memory are bounded.

mod check;
mod cidr;
pub mod entry;
mod expression;
mod format;
mod glob;
mod import;
pub mod keys;
mod limit;
mod metadata;
mod mistake;
mod numbered_name;
mod raw;
mod reference;
mod rule;
mod suggest;
mod text;
mod timestamp;
pub(crate) mod warn;
mod write;

pub use cidr::Cidr;
pub(crate) use cidr::{CountedAddress, is_address_attribute, parse_address};
pub use expression::Expression;
pub use format::{FormatterError, format};
pub use glob::Glob;
pub(crate) use glob::{CapturePosition, Segment, matches_rest, segment_matches, split_segment};
pub use import::{Dialect, ImportedRules, ReadIncluded};
pub(crate) use limit::WEEKDAYS;
pub use limit::{LimitMistake, LimitText};
pub use metadata::Metadata;
pub use mistake::{Mistake, Mistakes, Position};
pub use reference::reference_page;
pub(crate) use rule::ENFORCE_ALL;
pub use rule::{
    Ban, Condition, Consistency, CostCase, DefaultCost, Effect, LimitSet, OnChange, OnExceed, OnFault, Origin,
    Override, Pattern, PerElement, Refusal, Rule, RulePosition, SyncEvery, Test,
};
pub use text::{MAX_ALIASED, MAX_DEPTH, MAX_FILE_BYTES, MAX_NODES};
pub use timestamp::{TimeError, TimeErrorText, parse_time};

pub(crate) use mistake::MistakeCollector;
pub(crate) use numbered_name::split_numbered_name;
pub use suggest::nearest_word;

/// Maximum number of rules across all files.
pub const MAX_RULES: usize = 100_000;

/// The text of a rule file and its name in messages.
#[derive(Clone, Copy, Debug)]
pub struct Source<'a> {
    /// The name, usually a path.
    pub name: &'a str,
    /// The content, as YAML or JSON.
    pub text: &'a [u8],
}

/// Reads a value file. The first argument is the name of the rule file. The second is the name of the value file, as
/// written in the rule file.
pub type ReadFile<'a> = &'a dyn Fn(&str, &str) -> Result<Vec<u8>, String>;

/// Checked rules, ready to be loaded.
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
    hides_positions: bool,
    is_partial: bool,
}

impl Rules {
    /// Reads and checks all files together.
    ///
    /// # Errors
    /// Returns all mistakes in all files.
    pub fn read(sources: &[Source<'_>]) -> Result<Self, Mistakes> {
        Self::read_with(sources, &|_, _| Err("reading files is not supported here".into()))
    }

    /// Like [`read`](Self::read), but rules may refer to value files. `file` is called with the name of the rule file
    /// and the name of the value file. `file` returns the content of the value file, or the reason why the file cannot
    /// be read.
    ///
    /// # Errors
    /// Returns all mistakes in all files.
    pub fn read_with(sources: &[Source<'_>], file: ReadFile<'_>) -> Result<Self, Mistakes> {
        let (domains, notes, left_out) = read_files(sources, check::Checker::new(file));
        notes.finish().map_err(|mistakes| mistakes.with_snippets(sources))?;
        let left_out = left_out.finish().err().map(|left_out| left_out.with_snippets(sources));
        Ok(Self { domains, left_out, hides_positions: false, is_partial: false })
    }

    /// Reads only the rules without mistakes, so that warnings can be reported for them. The result must not be loaded,
    /// because the invalid rules are missing.
    #[must_use]
    pub fn read_valid(sources: &[Source<'_>], file: ReadFile<'_>) -> Self {
        let (domains, ..) = read_files(sources, check::Checker::skipping_invalid(file));
        Self { domains, left_out: None, hides_positions: false, is_partial: true }
    }

    /// Returns whether rules with mistakes were left out.
    pub(crate) fn is_partial(&self) -> bool {
        self.is_partial
    }

    /// Marks the text of the rules as not visible to users, for example because it is in a database. Messages then
    /// contain names instead of positions.
    #[must_use]
    pub fn with_hidden_positions(self) -> Self {
        Self { hides_positions: true, ..self }
    }

    pub(crate) fn hides_positions(&self) -> bool {
        self.hides_positions
    }

    /// Returns the parts of imported files that rules cannot express, if any.
    pub fn left_out(&self) -> Option<&Mistakes> {
        self.left_out.as_ref()
    }

    /// Returns the domains in the order in which they first occur.
    pub fn domains(&self) -> &[Domain] {
        &self.domains
    }

    /// Returns the number of rules.
    pub fn len(&self) -> usize {
        self.domains.iter().map(|domain| domain.rules.len()).sum()
    }

    /// Returns whether there are no rules.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Returns the domains, the mistakes, and the parts that imports left out.
fn read_files(
    sources: &[Source<'_>],
    mut checker: check::Checker<'_>,
) -> (Vec<Domain>, MistakeCollector, MistakeCollector) {
    let (mut notes, mut left_out) = (MistakeCollector::new(""), MistakeCollector::new(""));
    for source in sources {
        notes.set_file(source.name);
        left_out.set_file(source.name);
        let before = notes.count();
        let tree = text::parse_tree(source.text, &mut notes);
        let tree = tree.and_then(|tree| import::translate_if_envoy(tree, &mut notes, &mut left_out));
        // If reading the tree reported mistakes, its rules may be incomplete. A checker that skips invalid rules then
        // skips the whole file.
        if let Some(tree) = tree.filter(|_| notes.count() == before || !checker.skips_invalid()) {
            for domain in raw::read_domains(&tree, &mut notes) {
                checker.check_domain(&domain, &mut notes);
            }
        }
    }
    (checker.finish(&mut notes), notes, left_out)
}

/// A named set of rules. A request names its domain.
#[derive(Clone, Debug)]
pub struct Domain {
    pub(crate) name: Box<str>,
    pub(crate) rules: Vec<Rule>,
}

impl Domain {
    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the rules in the order in which they were written.
    pub fn rules(&self) -> &[Rule] {
        &self.rules
    }
}

#[cfg(test)]
mod tests;
