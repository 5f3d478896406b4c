//! Rule files on this machine.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use tollgate_engine::rules::{MAX_FILE_BYTES, Source};

use crate::rules_source::folder::rule_files;
use crate::rules_source::watch::WatchedFile;

/// The text of a file, with the file name for messages.
pub(super) struct RuleFile {
    pub(super) name: String,
    pub(super) text: Vec<u8>,
}

impl RuleFile {
    pub(super) fn as_source(&self) -> Source<'_> {
        Source { name: &self.name, text: &self.text }
    }
}

/// Reads all `paths`. For a folder, reads its rule files, sorted by name. The path `-` is the standard input.
pub(super) fn read_paths(paths: &[PathBuf]) -> anyhow::Result<Vec<RuleFile>> {
    let mut files = Vec::new();
    for path in paths {
        match path.as_os_str() == "-" {
            true => files.push(read_standard_input()?),
            false => files.extend(read_path(path)?),
        }
    }
    Ok(files)
}

/// Reads one file or, if `path` is a folder, its rule files, sorted by name.
pub(super) fn read_path(path: &Path) -> anyhow::Result<Vec<RuleFile>> {
    match path.is_dir() {
        true => rule_files(path)?.iter().map(|path| read_file(path)).collect(),
        false => Ok(vec![read_file(path)?]),
    }
}

/// Reads one file.
pub(super) fn read_file(path: &Path) -> anyhow::Result<RuleFile> {
    let name = path.display().to_string();
    let text = WatchedFile::new(path.to_owned()).read().with_context(|| format!("cannot read {name}"))?;
    Ok(RuleFile { name, text })
}

fn read_standard_input() -> anyhow::Result<RuleFile> {
    let mut text = Vec::new();
    let mut input = std::io::stdin().take(MAX_FILE_BYTES as u64 + 1);
    input.read_to_end(&mut text).context("cannot read the standard input")?;
    Ok(RuleFile { name: "standard input".to_owned(), text })
}
