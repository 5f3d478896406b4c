//! Replaces `include` directives with the directives of the included files.

use super::super::super::mistake::{MistakeCollector, Position};
use super::super::super::raw::shorten;
use super::super::super::text::MAX_FILE_BYTES;
use super::super::ReadIncluded;
use super::read::{self, Directive, DirectiveEnd};

/// Maximum number of included files.
const MAX_INCLUDED_FILES: usize = 256;
/// Maximum nesting of includes.
const MAX_INCLUDE_DEPTH: usize = 8;

/// The main file, and the files that it includes.
#[derive(Debug)]
pub(super) struct NginxFiles<'f> {
    pub(super) names: Vec<String>,
    /// Contents of the included files, in the order of `names`. The main file is omitted.
    pub(super) included: Vec<Vec<u8>>,
    total_bytes: usize,
    read: IncludeReader<'f>,
}

#[derive(Clone, Copy)]
pub(super) struct IncludeReader<'f>(pub(super) ReadIncluded<'f>);

impl std::fmt::Debug for IncludeReader<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("IncludeReader")
    }
}

impl<'f> NginxFiles<'f> {
    pub(super) fn new(name: &str, bytes: usize, read: IncludeReader<'f>) -> Self {
        Self { names: vec![name.to_owned()], included: Vec::new(), total_bytes: bytes, read }
    }

    /// Makes later mistakes refer to the file of `directive`.
    pub(super) fn set_file(
        &self,
        directive: &Directive,
        notes: &mut MistakeCollector,
        left_out: &mut MistakeCollector,
    ) {
        self.switch_notes_to(directive.file, notes);
        self.switch_notes_to(directive.file, left_out);
    }

    fn switch_notes_to(&self, file: usize, notes: &mut MistakeCollector) {
        if let Some(name) = self.names.get(file).filter(|name| **name != **notes.file()) {
            notes.set_file(name);
        }
    }

    /// Returns the directives of the main file and of all included files. `text` is the content of the main file.
    pub(super) fn read_directives(
        &mut self,
        text: &str,
        notes: &mut MistakeCollector,
        left_out: &mut MistakeCollector,
    ) -> Vec<Directive> {
        let mut all = Vec::new();
        self.add_directives(text, 0, 0, &mut all, notes, left_out);
        self.switch_notes_to(0, notes);
        self.switch_notes_to(0, left_out);
        all
    }

    fn add_directives(
        &mut self,
        text: &str,
        file: usize,
        depth: usize,
        all: &mut Vec<Directive>,
        notes: &mut MistakeCollector,
        left_out: &mut MistakeCollector,
    ) {
        self.switch_notes_to(file, notes);
        for directive in read::parse_directives(text, file, notes) {
            let pattern = directive.arguments().first().map(|word| (word.position, word.text.clone()));
            match (directive.name(), directive.end, pattern) {
                ("include", DirectiveEnd::Here, Some((position, pattern))) => {
                    self.switch_notes_to(file, notes);
                    self.switch_notes_to(file, left_out);
                    self.read_included(position, &pattern, depth, all, notes, left_out);
                }
                _ => all.push(directive),
            }
        }
    }

    fn read_included(
        &mut self,
        position: Position,
        pattern: &str,
        depth: usize,
        all: &mut Vec<Directive>,
        notes: &mut MistakeCollector,
        left_out: &mut MistakeCollector,
    ) {
        if depth >= MAX_INCLUDE_DEPTH {
            notes.add(position, format!("includes are nested too deep (maximum {MAX_INCLUDE_DEPTH})"));
            return;
        }
        let found = match (self.read.0)(pattern) {
            Ok(found) => found,
            Err(why) => {
                let problem = format!("cannot include `{}`: {why}", shorten(pattern));
                left_out.add_with_help(position, problem, "its limits are missing");
                return;
            }
        };
        for (name, bytes) in found {
            self.total_bytes = self.total_bytes.saturating_add(bytes.len());
            if self.names.len() > MAX_INCLUDED_FILES || self.total_bytes > MAX_FILE_BYTES {
                let most =
                    format!("too many included files (maximum {MAX_INCLUDED_FILES} files and {MAX_FILE_BYTES} bytes)");
                notes.add(position, most);
                return;
            }
            let Ok(text) = String::from_utf8(bytes) else {
                left_out.add(position, format!("cannot include `{}`: not UTF-8", shorten(&name)));
                continue;
            };
            self.names.push(name);
            let file = self.names.len() - 1;
            self.included.push(text.clone().into_bytes());
            self.add_directives(&text, file, depth + 1, all, notes, left_out);
        }
    }
}
