//! Mistakes in rule files: position, problem and suggestion.

use std::fmt;
use std::sync::Arc;

/// A position in a rule file. Lines and columns are counted from 1. Columns count characters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Position {
    /// The line.
    pub line: u32,
    /// The column.
    pub column: u32,
}

/// A mistake in a rule file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The name of the file, as given.
    pub file: Arc<str>,
    /// The position in the file.
    pub position: Position,
    /// What is wrong.
    pub problem: String,
    /// A suggestion, if there is one.
    pub help: Option<String>,
    /// The line with the mistake, if known, and the number of characters before the position.
    pub snippet: Option<(Box<str>, usize)>,
}

impl Mistake {
    /// Adds the line with the mistake. `text` is the content of the file.
    #[must_use]
    pub fn with_source_line(mut self, text: &[u8]) -> Self {
        self.snippet = line_snippet(text, self.position);
        self
    }

    /// Formats the mistake over several lines: position and problem, the line, and the suggestion.
    ///
    /// ```
    /// use tollgate_engine::rules::{Rules, Source};
    ///
    /// let text = "domain: api\nrules:\n- {id: all, limt: 100/s, unlimited: true}\n";
    /// let mistakes = Rules::read(&[Source { name: "rules.yaml", text: text.as_bytes() }]).unwrap_err();
    /// assert_eq!(
    ///     mistakes.as_slice()[0].to_detailed_text(),
    ///     "rules.yaml:3:13: `limt` is not a key of a rule\n\
    ///     \x20 | - {id: all, limt: 100/s, unlimited: true}\n\
    ///     \x20 |             ^\n\
    ///     \x20 = did you mean `limit`?\n"
    /// );
    /// ```
    pub fn to_detailed_text(&self) -> String {
        let Position { line, column } = self.position;
        let mut text = format!("{}:{line}:{column}: {}\n", self.file, self.problem);
        if let Some((snippet, before)) = &self.snippet {
            text += &format!("  | {snippet}\n  | {}^\n", " ".repeat(*before));
        }
        if let Some(help) = &self.help {
            text += &format!("  = {help}\n");
        }
        text
    }
}

/// Maximum number of characters in a snippet.
const MAX_SNIPPET_CHARS: usize = 100;
/// Maximum number of snippet characters before the position.
const MAX_SNIPPET_CHARS_BEFORE: usize = 60;

fn line_snippet(text: &[u8], position: Position) -> Option<(Box<str>, usize)> {
    let line = text.split(|byte| *byte == b'\n').nth(position.line.checked_sub(1)? as usize)?;
    let line = String::from_utf8_lossy(line);
    let column = position.column.saturating_sub(1) as usize;
    let skipped = column.saturating_sub(MAX_SNIPPET_CHARS_BEFORE);
    let shown = line.chars().skip(skipped).take(MAX_SNIPPET_CHARS);
    // Control characters are shown as spaces.
    let shown: String = shown.map(|char| if char.is_control() { ' ' } else { char }).collect();
    Some((shown.trim_end().into(), column - skipped))
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Position { line, column } = self.position;
        write!(f, "{}:{line}:{column}: {}", self.file, self.problem)?;
        match &self.help {
            Some(help) => write!(f, "; {help}"),
            None => Ok(()),
        }
    }
}

/// All mistakes in a set of files. Files with a mistake are not loaded, and the running rules do not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistakes {
    found: Vec<Mistake>,
    left_out: usize,
}

impl Mistakes {
    /// Maximum number of listed mistakes. Further mistakes are only counted.
    pub const MAX: usize = 100;

    /// Returns the mistakes, sorted by file and position. The list has at most [`Mistakes::MAX`] elements.
    pub fn as_slice(&self) -> &[Mistake] {
        &self.found
    }

    /// Adds the source line to each mistake.
    pub(crate) fn with_snippets(mut self, sources: &[super::Source<'_>]) -> Self {
        for mistake in &mut self.found {
            let source = sources.iter().find(|source| *source.name == *mistake.file);
            mistake.snippet = source.and_then(|source| line_snippet(source.text, mistake.position));
        }
        self
    }

    /// Returns the number of mistakes that are not listed because there are more than [`Mistakes::MAX`].
    pub fn unlisted_count(&self) -> usize {
        self.left_out
    }
}

impl fmt::Display for Mistakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, mistake) in self.found.iter().enumerate() {
            let separator = if position == 0 { "" } else { "\n" };
            write!(f, "{separator}{mistake}")?;
        }
        if self.left_out > 0 {
            write!(f, "\nand {} more", self.left_out)?;
        }
        Ok(())
    }
}

impl std::error::Error for Mistakes {}

/// Collects mistakes while a file is parsed, so that parsing can continue.
#[derive(Debug)]
pub(crate) struct MistakeCollector {
    file: Arc<str>,
    found: Vec<Mistake>,
    left_out: usize,
}

impl MistakeCollector {
    pub(crate) fn new(file: &str) -> Self {
        Self { file: file.into(), found: Vec::new(), left_out: 0 }
    }

    /// Continues with another file.
    pub(crate) fn set_file(&mut self, file: &str) {
        self.file = file.into();
    }

    pub(crate) fn file(&self) -> &Arc<str> {
        &self.file
    }

    pub(crate) fn add(&mut self, position: Position, problem: impl Into<String>) {
        self.push_unless_duplicate(position, problem.into(), None);
    }

    pub(crate) fn add_with_help(&mut self, position: Position, problem: impl Into<String>, help: impl Into<String>) {
        self.push_unless_duplicate(position, problem.into(), Some(help.into()));
    }

    /// Returns whether further mistakes are only counted, so that their details need not be computed.
    pub(crate) fn is_full(&self) -> bool {
        self.found.len() >= Mistakes::MAX
    }

    /// Counts a mistake without its details, because the list [is full](Self::is_full).
    pub(crate) fn count_unlisted(&mut self) {
        self.left_out += 1;
    }

    pub(crate) fn count(&self) -> usize {
        self.found.len() + self.left_out
    }

    fn push_unless_duplicate(&mut self, position: Position, problem: String, help: Option<String>) {
        // Inherited options are checked again for each override, but a mistake is reported only once.
        let is_same =
            |known: &Mistake| known.position == position && known.problem == problem && known.file == self.file;
        if self.found.iter().any(is_same) {
            return;
        }
        if self.found.len() < Mistakes::MAX {
            self.found.push(Mistake { file: self.file.clone(), position, problem, help, snippet: None });
        } else {
            self.left_out += 1;
        }
    }

    /// Returns all mistakes as an error, sorted by position within each file. Returns `Ok` if there are none.
    pub(crate) fn finish(self) -> Result<(), Mistakes> {
        if self.found.is_empty() {
            return Ok(());
        }
        let left_out = self.left_out;
        Err(Mistakes { found: self.into_all(), left_out })
    }

    pub(crate) fn into_all(mut self) -> Vec<Mistake> {
        let mut files: Vec<Arc<str>> = Vec::new();
        for mistake in &self.found {
            if !files.contains(&mistake.file) {
                files.push(mistake.file.clone());
            }
        }
        let file_of = |mistake: &Mistake| files.iter().position(|file| *file == mistake.file);
        self.found.sort_by_key(|mistake| (file_of(mistake), mistake.position));
        self.found
    }
}
