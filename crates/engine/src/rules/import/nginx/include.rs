//! Replaces `include` directives with the directives of the included files.

use super::super::super::mistake::{Notes, Position};
use super::super::super::raw::shorten;
use super::super::super::text::MAX_FILE_BYTES;
use super::super::ReadIncluded;
use super::read::{self, Directive, End};

/// Maximum number of included files.
const MAX_FILES: usize = 256;
/// Maximum nesting of includes.
const MAX_DEPTH: usize = 8;

/// All files. The first file is the main file.
#[derive(Debug)]
pub(super) struct Files<'f> {
    pub(super) names: Vec<String>,
    /// Contents of the included files, which are numbered from 1.
    pub(super) included: Vec<Vec<u8>>,
    bytes: usize,
    read: ReadFiles<'f>,
}

#[derive(Clone, Copy)]
pub(super) struct ReadFiles<'f>(pub(super) ReadIncluded<'f>);

impl std::fmt::Debug for ReadFiles<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReadFiles")
    }
}

impl<'f> Files<'f> {
    pub(super) fn new(name: &str, bytes: usize, read: ReadFiles<'f>) -> Self {
        Self { names: vec![name.to_owned()], included: Vec::new(), bytes, read }
    }

    /// Assigns the following mistakes to the file of a directive.
    pub(super) fn set_file(&self, directive: &Directive, notes: &mut Notes, left_out: &mut Notes) {
        self.switch_to(directive.file, notes);
        self.switch_to(directive.file, left_out);
    }

    fn switch_to(&self, file: usize, notes: &mut Notes) {
        if let Some(name) = self.names.get(file).filter(|name| **name != **notes.file()) {
            notes.set_file(name);
        }
    }

    /// Returns the directives of a text and of all files that it includes.
    pub(super) fn read_directives(&mut self, text: &str, notes: &mut Notes, left_out: &mut Notes) -> Vec<Directive> {
        let mut all = Vec::new();
        self.add(text, 0, 0, &mut all, notes, left_out);
        self.switch_to(0, notes);
        self.switch_to(0, left_out);
        all
    }

    fn add(
        &mut self,
        text: &str,
        file: usize,
        depth: usize,
        all: &mut Vec<Directive>,
        notes: &mut Notes,
        left_out: &mut Notes,
    ) {
        self.switch_to(file, notes);
        for directive in read::read(text, file, notes) {
            let pattern = directive.arguments().first().map(|word| (word.position, word.text.clone()));
            match (directive.name(), directive.end, pattern) {
                ("include", End::Here, Some((position, pattern))) => {
                    self.switch_to(file, notes);
                    self.switch_to(file, left_out);
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
        notes: &mut Notes,
        left_out: &mut Notes,
    ) {
        if depth >= MAX_DEPTH {
            notes.add(position, format!("includes are nested too deep (maximum {MAX_DEPTH})"));
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
            self.bytes = self.bytes.saturating_add(bytes.len());
            if self.names.len() > MAX_FILES || self.bytes > MAX_FILE_BYTES {
                let most = format!("too many included files (maximum {MAX_FILES} files and {MAX_FILE_BYTES} bytes)");
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
            self.add(&text, file, depth + 1, all, notes, left_out);
        }
    }
}
