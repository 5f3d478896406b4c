//! Rule files on this machine.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tollgate_engine::rules::{MAX_FILE_BYTES, Source};

use crate::rules_source::folder::rule_files;
use crate::rules_source::watch::WatchedFile;

/// A file, with its name for messages.
pub(super) struct File {
    pub(super) name: String,
    pub(super) text: Vec<u8>,
}

impl File {
    pub(super) fn source(&self) -> Source<'_> {
        Source { name: &self.name, text: &self.text }
    }
}

/// Reads all `paths`. A folder contributes its rule files in order of name; `-` is the standard input.
pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    for path in paths {
        match path.as_os_str() == "-" {
            true => files.push(standard_input()?),
            false => files.extend(read_path(path)?),
        }
    }
    Ok(files)
}

/// Reads one file or, if `path` is a folder, its rule files in order of name.
pub(super) fn read_path(path: &Path) -> anyhow::Result<Vec<File>> {
    match path.is_dir() {
        true => rule_files(path)?.iter().map(|path| read_one(path)).collect(),
        false => Ok(vec![read_one(path)?]),
    }
}

/// Reads one file.
pub(super) fn read_one(path: &Path) -> anyhow::Result<File> {
    let name = path.display().to_string();
    let text = WatchedFile::new(path.to_owned()).read().with_context(|| format!("cannot read {name}"))?;
    Ok(File { name, text })
}

fn standard_input() -> anyhow::Result<File> {
    let mut text = Vec::new();
    let mut input = std::io::stdin().take(MAX_FILE_BYTES as u64 + 1);
    input.read_to_end(&mut text).context("cannot read the standard input")?;
    Ok(File { name: "standard input".to_owned(), text })
}
