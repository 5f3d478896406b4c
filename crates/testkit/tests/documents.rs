//! The documents name tests, files and folders that exist.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).expect("the document")
}

/// Adds the paths of all files below `folder`, relative to the repository, without build output.
fn add_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(root().join(folder)).expect("a folder") {
        let entry = entry.expect("an entry");
        let path = folder.join(entry.file_name());
        if entry.file_type().expect("a type").is_dir() {
            if entry.file_name() != "target" {
                add_files(&path, files);
            }
        } else {
            files.push(path);
        }
    }
}

fn files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["crates", "bench", "docs", "fuzz/fuzz_targets", "scripts"] {
        add_files(Path::new(folder), &mut files);
    }
    files
}

/// Returns the strings between single backticks.
fn quoted(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

#[test]
fn every_test_named_by_the_concepts_page_exists() {
    let page = read("docs/concepts.md");
    let (_, mistakes) = page.split_once("## Mistakes known from other limiters").expect("the section");
    let rows = mistakes.lines().filter(|line| line.starts_with("| ")).skip(1);
    let named: Vec<&str> =
        rows.filter_map(|row| quoted(row.trim_end_matches(" |").rsplit(" | ").next()?).next()).collect();
    assert!(named.len() >= 10, "{named:?}");
    let sources = files().into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let code: Vec<String> =
        sources.map(|path| std::fs::read_to_string(root().join(path)).expect("a source file")).collect();
    for name in named {
        let definition = format!("fn {name}(");
        assert!(code.iter().any(|text| text.contains(&definition)), "docs/concepts.md names a missing test: {name}");
    }
}

#[test]
fn every_file_named_by_the_architecture_page_exists() {
    let files = files();
    let mut known: HashSet<String> = HashSet::new();
    for file in &files {
        // A path is named from any folder on, with or without `src/`, and a module without its extension.
        let text = file.to_str().expect("a path in UTF-8").trim_start_matches("crates/");
        for text in [text.to_owned(), text.replacen("/src/", "/", 1)] {
            let parts: Vec<&str> = text.split('/').collect();
            for from in 0..parts.len() {
                for to in from + 1..=parts.len() {
                    known.insert(parts[from..to].join("/"));
                }
                known.insert(parts[from..].join("/").trim_end_matches(".rs").to_owned());
            }
        }
    }
    let page = read("ARCHITECTURE.md");
    let is_path = |text: &&str| {
        let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
        plain && !text.starts_with('/') && (text.contains('/') || text.ends_with(".rs"))
    };
    let named: Vec<&str> = page.lines().flat_map(quoted).filter(is_path).collect();
    assert!(named.len() > 100, "{}", named.len());
    for name in named {
        let path = name.trim_start_matches("crates/").trim_end_matches('/');
        assert!(known.contains(path) || root().join(path).exists(), "ARCHITECTURE.md names a missing file: {name}");
    }
}
