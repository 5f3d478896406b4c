//! Folders of rule files.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};

/// Returns the rule files in a folder, sorted by name. Skips hidden files.
///
/// # Errors
/// Returns an error if the folder cannot be read or has no rule files.
pub fn rule_files(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
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
