//! Rules from a file, which is read again when it, or a file of values that its rules name, changes.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use tollgate_engine::Store;
use tollgate_engine::rules::{Mistakes, Rules, Source};

use super::install::{put, refuse};
use super::watch::{POLL_EVERY, WatchedFile};
use crate::app::App;

/// Parses rules. Files of values that they name are relative to the rule file.
///
/// # Errors
/// All mistakes, with their positions.
pub fn parse(name: &str, text: &[u8]) -> Result<Rules, Mistakes> {
    parse_all(&[Source { name, text }])
}

/// Parses several files together.
///
/// # Errors
/// All mistakes, with their positions.
pub fn parse_all(sources: &[Source<'_>]) -> Result<Rules, Mistakes> {
    parse_with_lists(sources).0
}

/// Parses the rules without mistakes of files with mistakes, to look at them, not to install them.
pub fn parse_sound(sources: &[Source<'_>]) -> Rules {
    Rules::read_valid(sources, &|rules, file| list_beside(rules, file).read().map_err(|error| error.to_string()))
}

/// Returns the file of values that a rule file names.
fn list_beside(rules: &str, file: &str) -> WatchedFile {
    WatchedFile::new(Path::new(rules).parent().unwrap_or(Path::new("")).join(file))
}

/// Parses files, and returns the files of values that their rules name.
fn parse_with_lists(sources: &[Source<'_>]) -> (Result<Rules, Mistakes>, Vec<WatchedFile>) {
    let lists: RefCell<Vec<WatchedFile>> = RefCell::default();
    let read = |rules: &str, file: &str| {
        let mut list = list_beside(rules, file);
        let values = list.read().map_err(|error| error.to_string());
        let mut lists = lists.borrow_mut();
        // A file that many rules name is watched once.
        if !lists.iter().any(|known| known.path() == list.path()) {
            lists.push(list);
        }
        values
    };
    let rules = Rules::read_with(sources, &read);
    (rules, lists.into_inner())
}

/// Installs the rules of a file.
///
/// # Errors
/// When it cannot be read or has mistakes.
pub fn load<S: Store>(app: &App<S>, file: &mut RuleFile) -> anyhow::Result<()> {
    let name = file.name();
    let text = file.rules.read().with_context(|| format!("cannot read the rules {name}"))?;
    install_text(app, file, &text).with_context(|| format!("the rules {name} have mistakes"))
}

fn install_text<S: Store>(app: &App<S>, file: &mut RuleFile, text: &[u8]) -> Result<(), Mistakes> {
    let rules = file.parse(text)?;
    let version = put(app, &rules)?;
    // A file has no revisions of its own, and no checksum that another server would know.
    app.source.loaded(i64::try_from(version).unwrap_or(i64::MAX), "", app.now());
    tracing::info!(file = file.name(), rules = rules.len(), version, "rules loaded");
    Ok(())
}

/// Watches a file forever and installs its rules when they change. Rules with mistakes are reported, and the rules in force stay.
///
/// The work runs on a blocking thread: compiling takes long, and a network file system may hang.
pub async fn watch<S: Store + 'static>(app: Arc<App<S>>, mut file: RuleFile) {
    let mut polls = tokio::time::interval(POLL_EVERY);
    loop {
        polls.tick().await;
        let app = app.clone();
        let polled = tokio::task::spawn_blocking(move || {
            reload(&app, &mut file);
            file
        });
        match polled.await {
            Ok(polled) => file = polled,
            Err(error) => {
                tracing::error!(%error, "rule file no longer watched; the rules in force stay");
                return std::future::pending().await;
            }
        }
    }
}

fn reload<S: Store>(app: &App<S>, file: &mut RuleFile) {
    let why = match file.poll() {
        Ok(None) => return,
        Ok(Some(text)) => match install_text(app, file, &text) {
            Ok(()) => return app.metrics.reloaded(),
            Err(mistakes) => mistakes.to_string(),
        },
        Err(error) => format!("cannot read {error}"),
    };
    let next = i64::try_from(app.engine.rules().version()).unwrap_or(i64::MAX).saturating_add(1);
    refuse(app, next, &why);
    tracing::error!(file = file.name(), "rules not loaded; the rules in force stay");
}

/// A rule file and the files of values that its rules name.
#[derive(Debug)]
pub struct RuleFile {
    rules: WatchedFile,
    lists: Vec<WatchedFile>,
}

impl RuleFile {
    /// A file that was not read yet.
    pub fn new(path: PathBuf) -> Self {
        Self { rules: WatchedFile::new(path), lists: Vec::new() }
    }

    fn name(&self) -> String {
        self.rules.path().display().to_string()
    }

    /// Parses the rules, and watches the files that they name.
    fn parse(&mut self, text: &[u8]) -> Result<Rules, Mistakes> {
        let (rules, mut lists) = parse_with_lists(&[Source { name: &self.name(), text }]);
        if rules.is_err() {
            // Not all files may have been read. The previous ones stay watched: the mistake may be in one of them.
            let known =
                |lists: &[WatchedFile], list: &WatchedFile| lists.iter().any(|known| known.path() == list.path());
            let before = std::mem::take(&mut self.lists);
            lists.extend(before.into_iter().filter(|list| !known(&lists, list)).collect::<Vec<_>>());
        }
        self.lists = lists;
        rules
    }

    /// Polls all files, and reads the rules if one of them has changed.
    ///
    /// # Errors
    /// When a file cannot be read; once, if it stays missing.
    fn poll(&mut self) -> io::Result<Option<Vec<u8>>> {
        let (mut changed, mut missing) = (false, None);
        for file in std::iter::once(&mut self.rules).chain(&mut self.lists) {
            match file.has_changed() {
                Ok(has_changed) => changed |= has_changed,
                Err(error) => missing = missing.or(Some(file.error(&error))),
            }
        }
        match (changed, missing) {
            (_, Some(error)) => Err(error),
            (true, None) => self.rules.read().map(Some).map_err(|error| self.rules.error(&error)),
            (false, None) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::watch::MISSING_POLLS;
    use super::*;

    #[test]
    fn change_is_read_when_it_has_settled() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.yaml");
        std::fs::write(&path, "one").unwrap();
        let mut file = RuleFile::new(path.clone());
        assert_eq!(file.rules.read().unwrap(), b"one");
        assert_eq!(file.poll().unwrap(), None);
        std::fs::write(&path, "three").unwrap();
        assert_eq!(file.poll().unwrap(), None, "it may still be written to");
        assert_eq!(file.poll().unwrap().as_deref(), Some(&b"three"[..]));
        assert_eq!(file.poll().unwrap(), None);
    }

    #[test]
    fn replaced_file_is_a_change_and_missing_file_is_reported_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rules.yaml");
        std::fs::write(&path, "old").unwrap();
        let mut file = RuleFile::new(path.clone());
        file.rules.read().unwrap();
        std::fs::write(folder.path().join("new"), "new").unwrap();
        std::fs::rename(folder.path().join("new"), &path).unwrap();
        assert_eq!(file.poll().unwrap(), None);
        assert_eq!(file.poll().unwrap().as_deref(), Some(&b"new"[..]));
        std::fs::remove_file(&path).unwrap();
        assert_eq!((0..3 * MISSING_POLLS).filter(|_| file.poll().is_err()).count(), 1);
        assert!(file.rules.read().is_err());
    }

    const BLOCKED: &str = "domain: d\nrules:\n- {id: a, when: {ip: {file: blocked.txt}}, deny: true}\n\
        - {id: b, when: {ip: {not: {file: blocked.txt}}}, limit: 1/s}\n";

    #[test]
    fn file_of_values_is_watched_too() {
        let folder = tempfile::tempdir().unwrap();
        let (path, list) = (folder.path().join("rules.yaml"), folder.path().join("blocked.txt"));
        std::fs::write(&path, BLOCKED).unwrap();
        std::fs::write(&list, "10.0.0.1\n").unwrap();
        let mut file = RuleFile::new(path.clone());
        let text = file.rules.read().unwrap();
        assert_eq!(file.parse(&text).unwrap().len(), 2);
        assert_eq!(file.lists.len(), 1, "named twice, watched once");
        assert_eq!(file.poll().unwrap(), None);
        std::fs::write(&list, "10.0.0.1\n10.0.0.2\n").unwrap();
        assert_eq!(file.poll().unwrap(), None, "it may still be written to");
        assert_eq!(file.poll().unwrap().as_deref(), Some(BLOCKED.as_bytes()), "the rules are read again");
        assert_eq!(file.poll().unwrap(), None, "once");
    }

    #[test]
    fn wrong_or_missing_file_of_values_is_watched_until_it_is_right() {
        let folder = tempfile::tempdir().unwrap();
        let (path, list) = (folder.path().join("rules.yaml"), folder.path().join("blocked.txt"));
        std::fs::write(&path, BLOCKED).unwrap();
        let mut file = RuleFile::new(path.clone());
        let text = file.rules.read().unwrap();
        assert!(file.parse(&text).unwrap_err().to_string().contains("cannot read `blocked.txt`"));
        let mut next = || (0..3 * MISSING_POLLS).find_map(|_| file.poll().ok().flatten()).map(|text| file.parse(&text));
        assert!(next().is_none(), "nothing has changed");
        std::fs::write(&list, "# none yet\n").unwrap();
        assert!(next().unwrap().unwrap_err().to_string().contains("`blocked.txt` contains no values"));
        std::fs::write(&list, "10.0.0.1\n").unwrap();
        assert_eq!(next().unwrap().unwrap().len(), 2);
        // Rules that cannot be parsed at all keep the list watched.
        std::fs::write(&path, "domain: [").unwrap();
        assert!(next().unwrap().is_err());
        std::fs::write(&list, "10.0.0.1\n10.0.0.2\n").unwrap();
        assert!(next().unwrap().is_err(), "the rules are still wrong");
    }
}
