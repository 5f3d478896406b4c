//! Files that are included by others, in the place of the lines that name them.

use super::super::super::mistake::{Notes, Place};
use super::super::super::raw::shorten;
use super::super::super::text::MAX_FILE_BYTES;
use super::super::ReadIncluded;
use super::read::{self, Directive, End};

/// How many files may be included.
const MAX_FILES: usize = 256;
/// How deep they may include each other.
const MAX_DEPTH: usize = 8;

/// All files that were read: the first is the one that was given.
#[derive(Debug)]
pub(super) struct Files<'f> {
    pub(super) names: Vec<String>,
    /// What was included, by number less one.
    pub(super) included: Vec<Vec<u8>>,
    bytes: usize,
    read: ReadFiles<'f>,
}

/// Reads the files that a pattern names.
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

    /// What is noted from now on is about the file of a directive.
    pub(super) fn turn_to(&self, directive: &Directive, notes: &mut Notes, left_out: &mut Notes) {
        self.turn(directive.file, notes);
        self.turn(directive.file, left_out);
    }

    fn turn(&self, file: usize, notes: &mut Notes) {
        if let Some(name) = self.names.get(file).filter(|name| **name != **notes.file()) {
            notes.turn_to(name);
        }
    }

    /// The directives of a text and of all that it includes.
    pub(super) fn directives(&mut self, text: &str, notes: &mut Notes, left_out: &mut Notes) -> Vec<Directive> {
        let mut all = Vec::new();
        self.add(text, 0, 0, &mut all, notes, left_out);
        self.turn(0, notes);
        self.turn(0, left_out);
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
        self.turn(file, notes);
        for directive in read::read(text, file, notes) {
            let pattern = directive.arguments().first().map(|word| (word.place, word.text.clone()));
            match (directive.name(), directive.end, pattern) {
                ("include", End::Here, Some((place, pattern))) => {
                    self.turn(file, notes);
                    self.turn(file, left_out);
                    self.include(place, &pattern, depth, all, notes, left_out);
                }
                _ => all.push(directive),
            }
        }
    }

    fn include(
        &mut self,
        place: Place,
        pattern: &str,
        depth: usize,
        all: &mut Vec<Directive>,
        notes: &mut Notes,
        left_out: &mut Notes,
    ) {
        if depth >= MAX_DEPTH {
            notes.add(place, format!("files include each other more than {MAX_DEPTH} deep"));
            return;
        }
        let found = match (self.read.0)(pattern) {
            Ok(found) => found,
            Err(why) => {
                let problem = format!("`{}` is not included: {why}", shorten(pattern));
                left_out.add_with_help(place, problem, "limits in it are missing");
                return;
            }
        };
        for (name, bytes) in found {
            self.bytes = self.bytes.saturating_add(bytes.len());
            if self.names.len() > MAX_FILES || self.bytes > MAX_FILE_BYTES {
                let most = format!("at most {MAX_FILES} files are included, with {MAX_FILE_BYTES} bytes together");
                notes.add(place, most);
                return;
            }
            let Ok(text) = String::from_utf8(bytes) else {
                left_out.add(place, format!("`{}` is not included: it is not UTF-8 text", shorten(&name)));
                continue;
            };
            self.names.push(name);
            let file = self.names.len() - 1;
            self.included.push(text.clone().into_bytes());
            self.add(&text, file, depth + 1, all, notes, left_out);
        }
    }
}
