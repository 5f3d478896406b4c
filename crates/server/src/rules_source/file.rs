//! Rules from a file or a folder. The rules are read again when a rule file or a value file changes. A value file
//! contains a list of values and is named in a rule.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use tollgate_engine::Store;
use tollgate_engine::rules::{Mistakes, Rules, Source};

use super::folder::rule_files;
use super::install::{put_in_force, record_refusal};
use super::watch::{MAX_MISSING_POLLS, POLL_INTERVAL, WatchedFile};
use crate::app::App;
use crate::control::sha256_hex;

/// Parses rule files together. Paths of value files are relative to the folder of the rule file.
///
/// # Errors
/// Returns all mistakes in the files, with their positions.
pub fn parse_all(sources: &[Source<'_>]) -> Result<Rules, Mistakes> {
    parse_with_value_files(sources).0
}

/// Parses only the valid rules of files with mistakes. The result is for inspection and must not be installed.
pub fn parse_valid(sources: &[Source<'_>]) -> Rules {
    Rules::read_valid(sources, &|rules, file| value_file(rules, file).read().map_err(|error| error.to_string()))
}

/// Returns the value file `file`. The path is relative to the folder of the rule file `rules`.
fn value_file(rules: &str, file: &str) -> WatchedFile {
    WatchedFile::new(Path::new(rules).parent().unwrap_or(Path::new("")).join(file))
}

/// Parses rule files. Also returns the value files that the rules name.
fn parse_with_value_files(sources: &[Source<'_>]) -> (Result<Rules, Mistakes>, Vec<WatchedFile>) {
    let lists: RefCell<Vec<WatchedFile>> = RefCell::default();
    let read = |rules: &str, file: &str| {
        let mut list = value_file(rules, file);
        let values = list.read().map_err(|error| error.to_string());
        let mut lists = lists.borrow_mut();
        // A value file is watched only once, even if several rules name it.
        if !lists.iter().any(|known| known.path() == list.path()) {
            lists.push(list);
        }
        values
    };
    let rules = Rules::read_with(sources, &read);
    (rules, lists.into_inner())
}

/// Installs the rules of a file or a folder.
///
/// # Errors
/// Returns an error if a rule file cannot be read, or if the rules have mistakes.
pub fn load_files<S: Store>(app: &App<S>, files: &mut WatchedFiles) -> anyhow::Result<()> {
    let name = files.name();
    let texts = files.read().with_context(|| format!("cannot read the rules {name}"))?;
    install_texts(app, files, &texts).with_context(|| format!("the rules {name} have mistakes"))
}

fn install_texts<S: Store>(app: &App<S>, files: &mut WatchedFiles, texts: &[FileText]) -> Result<(), Mistakes> {
    let rules = files.parse(texts)?;
    let version = put_in_force(app, &rules)?;
    // Files have no revisions of their own. Servers with the same rule files have the same checksum, even if their
    // value files differ.
    let checksum = sha256_hex(&texts.iter().flat_map(|(_, text)| text).copied().collect::<Vec<u8>>());
    app.source.set_loaded(i64::try_from(version).unwrap_or(i64::MAX), &checksum, app.now());
    tracing::info!(file = files.name(), rules = rules.len(), version, "rules loaded");
    Ok(())
}

/// Watches files and installs their rules when they change. Never returns. If changed rules have mistakes, logs the
/// mistakes and keeps the rules in force.
///
/// The work runs on a blocking thread, because compiling may take long and a network file system may hang.
pub async fn watch_files<S: Store + 'static>(app: Arc<App<S>>, mut files: WatchedFiles) {
    let mut polls = tokio::time::interval(POLL_INTERVAL);
    loop {
        polls.tick().await;
        let app = app.clone();
        let polled = tokio::task::spawn_blocking(move || {
            reload_if_changed(&app, &mut files);
            files
        });
        match polled.await {
            Ok(polled) => files = polled,
            Err(error) => {
                tracing::error!(%error, "rule files no longer watched; the rules in force stay");
                return std::future::pending().await;
            }
        }
    }
}

fn reload_if_changed<S: Store>(app: &App<S>, files: &mut WatchedFiles) {
    let why = match files.poll() {
        Ok(None) => return,
        Ok(Some(texts)) => match install_texts(app, files, &texts) {
            Ok(()) => return app.metrics.count_reload(),
            Err(mistakes) => mistakes.to_string(),
        },
        Err(error) => format!("cannot read the rules: {error:#}"),
    };
    let next = i64::try_from(app.engine.rules().version()).unwrap_or(i64::MAX).saturating_add(1);
    record_refusal(app, next, &why);
    tracing::error!(file = files.name(), "rules not loaded; the rules in force stay");
}

/// The name and the content of a file.
type FileText = (String, Vec<u8>);

/// A rule file or a folder of rule files, and the value files that the rules name.
#[derive(Debug)]
pub struct WatchedFiles {
    path: PathBuf,
    rules: Vec<WatchedFile>,
    lists: Vec<WatchedFile>,
    /// The rule files that the last poll found.
    seen: Vec<PathBuf>,
    /// Number of consecutive polls that found no rule file.
    missed: u32,
}

impl WatchedFiles {
    /// Creates a watch on a file or a folder. Reads nothing yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, rules: Vec::new(), lists: Vec::new(), seen: Vec::new(), missed: 0 }
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    /// Returns the rule files.
    fn find_rule_files(&self) -> anyhow::Result<Vec<PathBuf>> {
        if self.path.is_dir() { rule_files(&self.path) } else { Ok(vec![self.path.clone()]) }
    }

    /// Reads all rule files.
    fn read(&mut self) -> anyhow::Result<Vec<FileText>> {
        self.seen = self.find_rule_files()?;
        self.rules = self.seen.iter().cloned().map(WatchedFile::new).collect();
        let read = |file: &mut WatchedFile| {
            let name = file.path().display().to_string();
            let text = match *file.path() == self.path {
                true => file.read()?,
                false => file.read().with_context(|| format!("cannot read {name}"))?,
            };
            Ok((name, text))
        };
        self.rules.iter_mut().map(read).collect()
    }

    /// Parses the rules, and watches the value files that they name.
    fn parse(&mut self, texts: &[FileText]) -> Result<Rules, Mistakes> {
        let sources: Vec<Source<'_>> = texts.iter().map(|(name, text)| Source { name, text }).collect();
        let (rules, mut lists) = parse_with_value_files(&sources);
        if rules.is_err() {
            // Parsing may have stopped before all value files were read. Value files that were already watched stay
            // watched, because the mistake may be in one of them.
            let known =
                |lists: &[WatchedFile], list: &WatchedFile| lists.iter().any(|known| known.path() == list.path());
            let before = std::mem::take(&mut self.lists);
            lists.extend(before.into_iter().filter(|list| !known(&lists, list)).collect::<Vec<_>>());
        }
        self.lists = lists;
        rules
    }

    /// Polls all files. Returns the texts of the rule files if a file has changed, or if files were added to or removed
    /// from the folder. Returns `None` otherwise.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read. A file that stays missing causes only one error.
    fn poll(&mut self) -> anyhow::Result<Option<Vec<FileText>>> {
        let found = match self.find_rule_files() {
            Ok(found) => found,
            Err(error) => {
                self.missed = self.missed.saturating_add(1);
                return if self.missed == MAX_MISSING_POLLS { Err(error) } else { Ok(None) };
            }
        };
        self.missed = 0;
        let settled = self.seen == found;
        let mut changed = settled && !self.rules.iter().map(WatchedFile::path).eq(found.iter());
        self.seen = found;
        let mut missing = None;
        for file in self.rules.iter_mut().chain(&mut self.lists) {
            match file.check_for_change() {
                Ok(has_changed) => changed |= has_changed,
                Err(error) => missing = missing.or(Some(file.with_path(&error))),
            }
        }
        match (changed, missing) {
            (true, _) => self.read().map(Some),
            (false, Some(error)) => Err(error.into()),
            (false, None) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Polls the files and returns the joined texts, or `None` if nothing changed.
    fn poll_joined(files: &mut WatchedFiles) -> Option<String> {
        files.poll().unwrap().map(|texts| join_texts(&texts))
    }

    fn join_texts(texts: &[FileText]) -> String {
        texts.iter().map(|(_, text)| str::from_utf8(text).unwrap()).collect::<Vec<_>>().join("|")
    }

    #[test]
    fn change_is_read_when_it_has_settled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.yaml");
        std::fs::write(&path, "one").unwrap();
        let mut file = WatchedFiles::new(path.clone());
        assert_eq!(join_texts(&file.read().unwrap()), "one");
        assert_eq!(poll_joined(&mut file), None);
        std::fs::write(&path, "three").unwrap();
        assert_eq!(poll_joined(&mut file), None, "it may still be written to");
        assert_eq!(poll_joined(&mut file).as_deref(), Some("three"));
        assert_eq!(poll_joined(&mut file), None);
    }

    #[test]
    fn folder_is_read_in_order_of_name_and_again_when_its_files_change() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        let mut files = WatchedFiles::new(folder.path().to_owned());
        assert!(format!("{:#}", files.read().unwrap_err()).contains("has no *.yaml, *.yml or *.json"));
        for (name, text) in [("b.yaml", "b"), ("a.json", "a"), (".hidden.yaml", "h"), ("notes.txt", "n")] {
            write(name, text);
        }
        assert_eq!(join_texts(&files.read().unwrap()), "a|b");
        assert_eq!(poll_joined(&mut files), None);
        write("c.yml", "c");
        assert_eq!(poll_joined(&mut files), None, "others may follow");
        assert_eq!(poll_joined(&mut files).as_deref(), Some("a|b|c"));
        write("b.yaml", "bb");
        assert_eq!((poll_joined(&mut files), poll_joined(&mut files).as_deref()), (None, Some("a|bb|c")));
        std::fs::remove_file(folder.path().join("a.json")).unwrap();
        assert_eq!((poll_joined(&mut files), poll_joined(&mut files).as_deref()), (None, Some("bb|c")));
        assert_eq!(poll_joined(&mut files), None);
        for name in ["b.yaml", "c.yml"] {
            std::fs::remove_file(folder.path().join(name)).unwrap();
        }
        assert_eq!((0..3 * MAX_MISSING_POLLS).filter(|_| files.poll().is_err()).count(), 1, "reported once");
    }

    #[test]
    fn replaced_file_is_a_change_and_missing_file_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.yaml");
        std::fs::write(&path, "old").unwrap();
        let mut file = WatchedFiles::new(path.clone());
        file.read().unwrap();
        std::fs::write(folder.path().join("new"), "new").unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        assert_eq!(poll_joined(&mut file), None);
        assert_eq!(poll_joined(&mut file).as_deref(), Some("new"));
        std::fs::remove_file(&path).unwrap();
        assert_eq!((0..3 * MAX_MISSING_POLLS).filter(|_| file.poll().is_err()).count(), 1);
        assert!(file.read().is_err());
    }

    const RULES_WITH_VALUE_FILE: &str = "domain: d\nrules:\n- {id: a, when: {ip: {file: blocked.txt}}, deny: true}\n\
        - {id: b, when: {ip: {not: {file: blocked.txt}}}, limit: 1/s}\n";

    #[test]
    fn value_file_is_watched_too() {
        let folder = tempfile::tempdir().unwrap();
        let (path, list) = (folder.path().join("rules.yaml"), folder.path().join("blocked.txt"));
        std::fs::write(&path, RULES_WITH_VALUE_FILE).unwrap();
        std::fs::write(&list, "10.0.0.1\n").unwrap();
        let mut file = WatchedFiles::new(path.clone());
        let texts = file.read().unwrap();
        assert_eq!(file.parse(&texts).unwrap().len(), 2);
        assert_eq!(file.lists.len(), 1, "named twice, watched once");
        assert_eq!(poll_joined(&mut file), None);
        std::fs::write(&list, "10.0.0.1\n10.0.0.2\n").unwrap();
        assert_eq!(poll_joined(&mut file), None, "it may still be written to");
        assert_eq!(poll_joined(&mut file).as_deref(), Some(RULES_WITH_VALUE_FILE), "the rules are read again");
        assert_eq!(poll_joined(&mut file), None, "once");
    }

    #[test]
    fn invalid_or_missing_value_file_is_watched_until_it_is_valid() {
        let folder = tempfile::tempdir().unwrap();
        let (path, list) = (folder.path().join("rules.yaml"), folder.path().join("blocked.txt"));
        std::fs::write(&path, RULES_WITH_VALUE_FILE).unwrap();
        let mut file = WatchedFiles::new(path.clone());
        let texts = file.read().unwrap();
        assert!(file.parse(&texts).unwrap_err().to_string().contains("cannot read `blocked.txt`"));
        let mut next =
            || (0..3 * MAX_MISSING_POLLS).find_map(|_| file.poll().ok().flatten()).map(|texts| file.parse(&texts));
        assert!(next().is_none(), "nothing has changed");
        std::fs::write(&list, "# none yet\n").unwrap();
        assert!(next().unwrap().unwrap_err().to_string().contains("`blocked.txt` contains no values"));
        std::fs::write(&list, "10.0.0.1\n").unwrap();
        assert_eq!(next().unwrap().unwrap().len(), 2);
        // The value file stays watched even if the rule file is not valid YAML.
        std::fs::write(&path, "domain: [").unwrap();
        assert!(next().unwrap().is_err());
        std::fs::write(&list, "10.0.0.1\n10.0.0.2\n").unwrap();
        assert!(next().unwrap().is_err(), "the rules are still wrong");
    }
}
