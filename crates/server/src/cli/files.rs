//! Rule files on this machine.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use tollgate_engine::rules::{MAX_FILE_BYTES, Source};

use crate::rules_source::watch::WatchedFile;

/// A file, by its name in messages.
pub(super) struct File {
    pub(super) name: String,
    pub(super) text: Vec<u8>,
}

impl File {
    pub(super) fn source(&self) -> Source<'_> {
        Source { name: &self.name, text: &self.text }
    }
}

/// Reads files, and the rule files of folders by name; `-` is the standard input.
pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            files.push(standard_input()?);
        } else if path.is_dir() {
            for path in rule_files(path)? {
                files.push(read_one(&path)?);
            }
        } else {
            files.push(read_one(path)?);
        }
    }
    Ok(files)
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

/// Returns the rule files of a folder, without hidden ones.
fn rule_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let name = folder.display();
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {name}"))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {name}"))?.path();
        let is_rules = path.extension().is_some_and(|end| ["yaml", "yml", "json"].iter().any(|known| end == *known));
        let is_hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        if is_rules && !is_hidden && path.is_file() {
            paths.push(path);
        }
    }
    ensure!(!paths.is_empty(), "{name} has no *.yaml, *.yml or *.json");
    paths.sort();
    Ok(paths)
}
