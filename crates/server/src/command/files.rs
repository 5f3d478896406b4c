//! Rule files on this machine.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use tollgate_engine::rules::{MAX_FILE_BYTES, Source};

use crate::retrieve::file::Watched;

/// A file, by the name it is called in messages.
pub(super) struct File {
    pub(super) name: String,
    pub(super) text: Vec<u8>,
}

impl File {
    pub(super) fn source(&self) -> Source<'_> {
        Source { name: &self.name, text: &self.text }
    }
}

/// Reads files, and those of folders in the order of their names.
pub(super) fn read(paths: &[PathBuf]) -> anyhow::Result<Vec<File>> {
    let mut files = Vec::new();
    for path in paths {
        if path.as_os_str() == "-" {
            files.push(standard_input()?);
        } else if path.is_dir() {
            for path in within(path)? {
                files.push(one(&path)?);
            }
        } else {
            files.push(one(path)?);
        }
    }
    Ok(files)
}

fn one(path: &Path) -> anyhow::Result<File> {
    let name = path.display().to_string();
    let text = Watched::new(path.to_owned()).read().with_context(|| format!("cannot read {name}"))?;
    Ok(File { name, text })
}

fn standard_input() -> anyhow::Result<File> {
    let mut text = Vec::new();
    std::io::stdin()
        .take(MAX_FILE_BYTES as u64 + 1)
        .read_to_end(&mut text)
        .context("cannot read the standard input")?;
    Ok(File { name: "standard input".to_owned(), text })
}

/// The rule files of a folder. Hidden ones are those of editors.
fn within(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let name = folder.display();
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {name}"))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.with_context(|| format!("cannot read {name}"))?.path();
        let of_rules = path.extension().is_some_and(|end| ["yaml", "yml", "json"].iter().any(|known| end == *known));
        let hidden = path.file_name().is_none_or(|name| name.as_encoded_bytes().starts_with(b"."));
        if of_rules && !hidden && path.is_file() {
            paths.push(path);
        }
    }
    ensure!(!paths.is_empty(), "{name} has no *.yaml, *.yml or *.json");
    paths.sort();
    Ok(paths)
}
