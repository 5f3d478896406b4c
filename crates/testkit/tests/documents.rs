//! Checks that tests, files and folders named in documents exist, that the golden file lists every message, and that
//! type names are unique within a crate.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn read_file(path: &str) -> String {
    std::fs::read_to_string(repository_root().join(path)).expect("the document")
}

/// Adds the paths of all files below `folder`, relative to the repository root. Skips build output.
fn add_files(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(repository_root().join(folder)).expect("a folder") {
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

fn source_files() -> Vec<PathBuf> {
    let mut files = Vec::new();
    for folder in ["crates", "bench", "docs", "fuzz/fuzz_targets", "scripts"] {
        add_files(Path::new(folder), &mut files);
    }
    files
}

/// Returns the strings between single backticks.
fn backticked_strings(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2)
}

/// Asserts that every name is a function in the sources.
fn assert_tests_exist(page: &str, names: &[&str]) {
    let sources = source_files().into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "rs"));
    let code: Vec<String> =
        sources.map(|path| std::fs::read_to_string(repository_root().join(path)).expect("a source file")).collect();
    for name in names {
        let definition = format!("fn {name}(");
        assert!(code.iter().any(|text| text.contains(&definition)), "{page} names a missing test: {name}");
    }
}

/// Returns the cells in the last column of all tables in a text.
fn last_column(text: &str) -> impl Iterator<Item = &str> {
    let rows = text.lines().filter(|line| line.starts_with("| ")).skip(1);
    rows.filter_map(|row| row.trim_end_matches(" |").rsplit(" | ").next())
}

#[test]
fn every_test_named_by_the_concepts_page_exists() {
    let page = read_file("docs/concepts.md");
    let (_, mistakes) = page.split_once("## Mistakes known from other limiters").expect("the section");
    let named: Vec<&str> = last_column(mistakes).filter_map(|cell| backticked_strings(cell).next()).collect();
    assert!(named.len() >= 10, "{named:?}");
    assert_tests_exist("docs/concepts.md", &named);
}

#[test]
fn every_test_named_by_the_security_page_exists() {
    let page = read_file("docs/security.md");
    let (_, tried) = page.split_once("## What was tried").expect("the section");
    let (files, tests): (Vec<&str>, Vec<&str>) =
        last_column(tried).flat_map(backticked_strings).partition(|name| name.contains('/'));
    assert!(tests.len() >= 30, "{tests:?}");
    assert_tests_exist("docs/security.md", &tests);
    for file in files {
        assert!(repository_root().join(file).exists(), "docs/security.md names a missing file: {file}");
    }
}

#[test]
fn every_file_named_by_the_architecture_page_exists() {
    let files = source_files();
    let mut known: HashSet<String> = HashSet::new();
    for file in &files {
        // A document may omit leading folders of a path, the folder `src/`, and the extension of a module.
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
    let page = read_file("ARCHITECTURE.md");
    let is_path = |text: &&str| {
        let plain = text.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
        plain && !text.starts_with('/') && (text.contains('/') || text.ends_with(".rs"))
    };
    let named: Vec<&str> = page.lines().flat_map(backticked_strings).filter(is_path).collect();
    assert!(named.len() > 100, "{}", named.len());
    for name in named {
        let path = name.trim_start_matches("crates/").trim_end_matches('/');
        assert!(
            known.contains(path) || repository_root().join(path).exists(),
            "ARCHITECTURE.md names a missing file: {name}"
        );
    }
}

/// Returns the string literals of a source file, excluding comments and the tests at its end.
fn string_literals(source: &str) -> Vec<String> {
    let code =
        source.split("\n#[cfg(test").next().and_then(|code| code.split("\n#[cfg(all(test").next()).unwrap_or_default();
    let (mut found, mut rest) = (Vec::new(), code);
    while let Some(at) = rest.find(['"', '\'', '/']) {
        let (before, token) = rest.split_at(at);
        rest = if token.starts_with("//") {
            token.find('\n').map_or("", |end| &token[end..])
        } else if token.starts_with("'\"'") || token.starts_with("'\\\"'") {
            &token[token[1..].find('\'').map_or(1, |end| end + 2)..]
        } else if !token.starts_with('"') {
            &token[1..]
        } else {
            let hashes = before.len() - before.trim_end_matches('#').len();
            let raw = before.trim_end_matches('#').ends_with('r');
            let text = &token[1..];
            let end = if raw { text.find(&format!("\"{}", "#".repeat(hashes))) } else { end_of_string(text) };
            let end = end.unwrap_or(text.len());
            found.push(text[..end].to_owned());
            text.get(end + 1..).unwrap_or_default()
        };
    }
    found
}

/// Returns the position of the quotation mark that ends a string.
fn end_of_string(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.char_indices().find_map(|(at, c)| {
        let ends = c == '"' && !escaped;
        escaped = c == '\\' && !escaped;
        ends.then_some(at)
    })
}

/// Joins a literal that continues over several lines after backslashes.
fn join_lines(literal: &str) -> String {
    let mut lines = literal.split("\\\n");
    let first = lines.next().unwrap_or_default().to_owned();
    lines.fold(first, |text, line| text + line.trim_start())
}

/// Returns whether a literal may be part of a message: it has several words and is not SQL.
fn is_message(literal: &str) -> bool {
    const SQL: [&str; 12] =
        ["SELECT", "INSERT", "UPDATE", "DELETE", "FROM", "WHERE", "ORDER", "AND", "OR ", "SET ", "PRAGMA", "BEGIN"];
    let words = literal.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| word.len() > 1).count();
    let text = literal.trim_start_matches([' ', ')']);
    words > 1 && literal.contains(' ') && !literal.contains('\n') && !SQL.iter().any(|word| text.starts_with(word))
}

#[test]
fn every_message_is_in_the_golden_file() {
    // The messages of these files are not in the golden file, because they are part of generated pages: docs/rules.md,
    // docs/openapi.json, docs/security.md and docs/metrics.md.
    let elsewhere = ["rules/keys", "rules/reference.rs", "api/describe", "server/src/bounds.rs", "observe/metrics.rs"];
    let tests = ["/tests.rs", "/tests/", "testing.rs", "stalled_client.rs"];
    let mut page = String::new();
    for package in ["core", "engine", "http", "peers", "redis", "server", "share", "tollgate"] {
        let mut files = Vec::new();
        add_files(&Path::new("crates").join(package).join("src"), &mut files);
        let mut messages = std::collections::BTreeSet::new();
        for file in files {
            let name = file.to_str().expect("a path in UTF-8");
            if name.ends_with(".rs") && !elsewhere.iter().chain(&tests).any(|part| name.contains(part)) {
                let found =
                    string_literals(&std::fs::read_to_string(repository_root().join(&file)).expect("a source file"));
                messages.extend(found.iter().map(|literal| join_lines(literal)).filter(|literal| is_message(literal)));
            }
        }
        page.extend(std::iter::once(format!("# crates/{package}\n")));
        page.extend(messages.into_iter().map(|message| message + "\n"));
    }
    tollgate_testkit::golden!("messages", page);
}

/// Returns the production sources of a package, without test files and without the tests at the end of a file.
fn production_sources(package: &str) -> Vec<(PathBuf, String)> {
    let mut files = Vec::new();
    add_files(&Path::new("crates").join(package).join("src"), &mut files);
    let tests = ["/tests.rs", "/tests/"];
    files.retain(|file| {
        let name = file.to_str().expect("a path in UTF-8");
        name.ends_with(".rs") && !tests.iter().any(|part| name.contains(part))
    });
    let read = |file: PathBuf| {
        let text = std::fs::read_to_string(repository_root().join(&file)).expect("a source file");
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
        (file, code)
    };
    files.into_iter().map(read).collect()
}

fn packages() -> Vec<String> {
    let folder = std::fs::read_dir(repository_root().join("crates")).expect("the crates");
    folder.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name in UTF-8")).collect()
}

/// Returns the identifier at the start of `text`.
fn leading_name(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// Returns the names of types that a source file defines at the top level.
fn type_names(source: &str) -> impl Iterator<Item = &str> {
    source.lines().filter_map(|line| {
        let public = line.strip_prefix("pub").map(|rest| match rest.strip_prefix('(') {
            Some(scope) => scope.split_once(") ").map_or("", |(_, rest)| rest),
            None => rest.trim_start(),
        });
        let item = public.unwrap_or(line);
        ["struct ", "enum ", "trait ", "union "].iter().find_map(|kind| item.strip_prefix(kind)).map(leading_name)
    })
}

/// Returns the types with inherent implementations in a source file.
fn implemented_types(source: &str) -> impl Iterator<Item = &str> {
    let headers = source.match_indices("\nimpl").filter_map(|(at, _)| source[at + 5..].split('{').next());
    headers.filter_map(|header| {
        let named = if header.starts_with('<') { skip_generics(header)? } else { header.strip_prefix(' ')? };
        let named = named.split("where").next().unwrap_or_default().trim_start();
        (!named.contains(" for ")).then(|| leading_name(named))
    })
}

/// Returns the rest of `text` after its leading generic parameters.
fn skip_generics(text: &str) -> Option<&str> {
    let mut depth = 0;
    let end = text.char_indices().find_map(|(at, c)| {
        let arrow = c == '>' && text[..at].ends_with('-');
        depth += i32::from(c == '<') - i32::from(c == '>' && !arrow);
        (depth == 0).then_some(at)
    })?;
    Some(&text[end + 1..])
}

#[test]
fn no_type_name_occurs_twice_within_a_crate() {
    for package in packages() {
        let sources = production_sources(&package);
        let mut seen = std::collections::BTreeMap::<&str, &Path>::new();
        for (file, source) in &sources {
            for name in type_names(source) {
                if let Some(first) = seen.insert(name, file) {
                    panic!("{name} is defined in {} and in {}", first.display(), file.display());
                }
            }
        }
    }
}

#[test]
fn no_type_is_implemented_in_more_than_three_files() {
    for package in packages() {
        let sources = production_sources(&package);
        let mut files = std::collections::BTreeMap::<&str, std::collections::BTreeSet<&Path>>::new();
        for (file, source) in &sources {
            for name in implemented_types(source) {
                files.entry(name).or_default().insert(file);
            }
        }
        for (name, files) in files {
            assert!(files.len() <= 3, "{name} is implemented in {files:?}");
        }
    }
}

#[test]
fn types_and_their_implementations_are_found() {
    let source = "pub struct A<T>(T);\npub(crate) enum B {}\ntrait C {}\nfn f() {\n    struct D;\n}\n\nimpl<T: Fn() -> X<T>> A<T> {}\n\nimpl B\nwhere\n    X: Y,\n{}\n\nimpl C for B {}\n";
    assert_eq!(type_names(source).collect::<Vec<_>>(), ["A", "B", "C"]);
    assert_eq!(implemented_types(source).collect::<Vec<_>>(), ["A", "B"]);
}
