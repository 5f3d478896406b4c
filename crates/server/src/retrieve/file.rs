//! A rule file that is read again whenever it, or a file with values that its rules name, changes.
//!
//! The files are looked at twice a second rather than watched through the kernel: editors replace files, volumes of
//! orchestrators swap links to folders, and network file systems tell nobody. A look costs a microsecond and misses none of it.

use std::cell::RefCell;
use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::Context;
use tollgate_engine::Store;
use tollgate_engine::rules::{MAX_FILE_BYTES, Mistakes, Rules, Source};

use crate::app::App;
use crate::control::origin::Counts;

/// How often the file is looked at. A change is read when it has not changed further for as long.
pub const LOOK_EVERY: Duration = Duration::from_millis(500);

/// After how many looks a file that is gone is told about.
const PATIENCE: u32 = 10;

/// Reads rules from the text of a file. Files with values that they name lie beside it.
///
/// # Errors
/// Everything that is wrong with them, by place.
pub fn parse(name: &str, text: &[u8]) -> Result<Rules, Mistakes> {
    parse_all(&[Source { name, text }])
}

/// [`parse`] of several files together.
///
/// # Errors
/// Everything that is wrong with them, by place.
pub fn parse_all(sources: &[Source<'_>]) -> Result<Rules, Mistakes> {
    parse_and_note(sources).0
}

/// Of files with mistakes, the rules that have none, to be looked at and not to be put in force.
pub fn parse_sound(sources: &[Source<'_>]) -> Rules {
    Rules::sound(sources, &|rules, file| Watched::new(beside(rules, file)).read().map_err(|error| error.to_string()))
}

/// The path of a file with values that the file of the rules names.
fn beside(rules: &str, file: &str) -> PathBuf {
    Path::new(rules).parent().unwrap_or(Path::new("")).join(file)
}

/// [`parse_all`], with the files that the rules name, as they were when they were read.
fn parse_and_note(sources: &[Source<'_>]) -> (Result<Rules, Mistakes>, Vec<Watched>) {
    let lists: RefCell<Vec<Watched>> = RefCell::default();
    let read = |rules: &str, file: &str| {
        let mut list = Watched::new(beside(rules, file));
        let values = list.read().map_err(|error| error.to_string());
        let mut lists = lists.borrow_mut();
        // One that many rules name is looked at once.
        if !lists.iter().any(|known| known.path == list.path) {
            lists.push(list);
        }
        values
    };
    let rules = Rules::read_with(sources, &read);
    (rules, lists.into_inner())
}

/// Reads rules and puts them in force, and logs what about them is probably not meant or could not be carried over; returns the
/// version they became, and how many there are.
fn put<S: Store>(app: &App<S>, file: &mut RuleFile, text: &[u8]) -> Result<(u64, usize), Mistakes> {
    let rules = file.parse(text)?;
    // Before, because they are compared with those in force.
    let warnings = app.engine.warnings(&rules);
    let version = app.engine.put(&rules)?;
    for warning in warnings {
        tracing::warn!("{warning}");
    }
    app.origin.counted(Counts::of(&rules));
    // A file has no revisions of its own, and no checksum that somebody else would know.
    app.origin.loaded(i64::try_from(version).unwrap_or(i64::MAX), "", app.now());
    for left_out in rules.left_out().map(Mistakes::as_slice).unwrap_or_default() {
        tracing::warn!("{left_out}");
    }
    Ok((version, rules.len()))
}

/// Puts the rules of a file in force.
///
/// # Errors
/// When it cannot be read or has mistakes.
pub fn load<S: Store>(app: &App<S>, file: &mut RuleFile) -> anyhow::Result<()> {
    let name = file.name();
    let text = file.rules.read().with_context(|| format!("cannot read the rules {name}"))?;
    let (version, count) = put(app, file, &text).with_context(|| format!("the rules {name} have mistakes"))?;
    tracing::info!(file = name, rules = count, version, "rules loaded");
    Ok(())
}

/// Looks at a file for ever, and puts its rules in force whenever they change. Those that have mistakes are told and
/// left; the running ones stay.
///
/// All of it is done on a thread of its own: compiling takes a while, a network file system may take for ever, and the one
/// that runs this has connections to accept.
pub async fn watch<S: Store + 'static>(app: Arc<App<S>>, mut file: RuleFile) {
    let mut looks = tokio::time::interval(LOOK_EVERY);
    loop {
        looks.tick().await;
        let app = app.clone();
        let looked = tokio::task::spawn_blocking(move || {
            reload(&app, &mut file);
            file
        });
        match looked.await {
            Ok(looked) => file = looked,
            Err(error) => {
                tracing::error!(%error, "the rules are not watched any more, those in force stay");
                return std::future::pending().await;
            }
        }
    }
}

fn reload<S: Store>(app: &App<S>, file: &mut RuleFile) {
    let name = file.name();
    let refused = match file.look() {
        Ok(None) => return,
        Ok(Some(text)) => match put(app, file, &text) {
            Ok((version, rules)) => {
                app.metrics.reloaded();
                return tracing::info!(file = name, rules, version, "rules loaded");
            }
            Err(mistakes) => mistakes.to_string(),
        },
        Err(error) => format!("cannot read {error}"),
    };
    app.metrics.reload_refused();
    app.origin.refused(i64::try_from(app.engine.rules().version()).unwrap_or(i64::MAX).saturating_add(1), &refused);
    for mistake in refused.lines() {
        tracing::error!("{mistake}");
    }
    tracing::error!(file = name, "the rules were not loaded, those before stay in force");
}

/// A rule file and the files with values that its rules name.
#[derive(Debug)]
pub struct RuleFile {
    rules: Watched,
    lists: Vec<Watched>,
}

impl RuleFile {
    /// One that has not been read yet.
    pub fn new(path: PathBuf) -> Self {
        Self { rules: Watched::new(path), lists: Vec::new() }
    }

    fn name(&self) -> String {
        self.rules.path.display().to_string()
    }

    /// Reads rules from its text, and remembers the files that they name.
    fn parse(&mut self, text: &[u8]) -> Result<Rules, Mistakes> {
        let (rules, mut lists) = parse_and_note(&[Source { name: &self.name(), text }]);
        if rules.is_err() {
            // Not all may have been read. Those before are looked at further: one of them may be what has to be put right.
            let known = |lists: &[Watched], list: &Watched| lists.iter().any(|known| known.path == list.path);
            let before = std::mem::take(&mut self.lists);
            lists.extend(before.into_iter().filter(|list| !known(&lists, list)).collect::<Vec<_>>());
        }
        self.lists = lists;
        rules
    }

    /// Looks at all files, and reads the rules if one of them has changed since it was read and not since it was looked at.
    ///
    /// # Errors
    /// When one of them cannot be read; once, if it stays away.
    fn look(&mut self) -> io::Result<Option<Vec<u8>>> {
        let (mut changed, mut gone) = (false, None);
        for file in std::iter::once(&mut self.rules).chain(&mut self.lists) {
            match file.has_changed() {
                Ok(has_changed) => changed |= has_changed,
                Err(error) => gone = gone.or(Some(file.named(&error))),
            }
        }
        match (changed, gone) {
            (_, Some(error)) => Err(error),
            (true, None) => self.rules.read().map(Some).map_err(|error| self.rules.named(&error)),
            (false, None) => Ok(None),
        }
    }
}

/// A file, and how it looked when it was last read.
#[derive(Debug)]
pub struct Watched {
    path: PathBuf,
    read: Option<Look>,
    seen: Option<Look>,
    /// How many looks in a row found nothing.
    missed: u32,
}

/// What tells one version of a file from another without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Look {
    modified: Option<SystemTime>,
    len: u64,
    node: u64,
    /// When its permissions, or anything else, changed last.
    changed: (i64, i64),
}

impl Watched {
    /// A file that has not been read yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, read: None, seen: None, missed: 0 }
    }

    /// Its name.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads it now.
    ///
    /// # Errors
    /// When it cannot be read, or is too large.
    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        let metadata = std::fs::metadata(&self.path)?;
        let look = Look::of(&metadata);
        // One that cannot be read is told once; a change of its permissions changes how it looks.
        (self.read, self.seen) = (Some(look), Some(look));
        let too_large = |bytes: &str| {
            let problem = format!("it has {bytes} bytes, at most {MAX_FILE_BYTES} are read");
            io::Error::new(io::ErrorKind::FileTooLarge, problem)
        };
        if metadata.len() > MAX_FILE_BYTES as u64 {
            return Err(too_large(&metadata.len().to_string()));
        }
        // Devices and pipes say that they are empty.
        let mut bytes = Vec::with_capacity(metadata.len() as usize);
        File::open(&self.path)?.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > MAX_FILE_BYTES { Err(too_large("more")) } else { Ok(bytes) }
    }

    /// An error with its name.
    fn named(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }

    /// Looks at it: whether it has changed since it was read and not since it was looked at. It counts as read then. A file
    /// that is gone for a moment has not changed.
    ///
    /// # Errors
    /// When it is gone; once, if it stays away.
    pub(crate) fn has_changed(&mut self) -> io::Result<bool> {
        let metadata = match std::fs::metadata(&self.path) {
            Ok(metadata) => metadata,
            Err(error) => {
                self.missed = self.missed.saturating_add(1);
                return if self.missed == PATIENCE { Err(error) } else { Ok(false) };
            }
        };
        self.missed = 0;
        let look = Some(Look::of(&metadata));
        let settled = self.seen == look;
        self.seen = look;
        let changed = settled && self.read != look;
        if changed {
            self.read = look;
        }
        Ok(changed)
    }
}

impl Look {
    fn of(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self {
            modified: metadata.modified().ok(),
            len: metadata.len(),
            node: metadata.ino(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("tollgate-file-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        folder
    }

    #[test]
    fn a_change_is_read_once_it_has_settled() {
        let folder = folder("settles");
        let path = folder.join("rules.yaml");
        std::fs::write(&path, "one").unwrap();
        let mut file = RuleFile::new(path.clone());
        assert_eq!(file.rules.read().unwrap(), b"one");
        assert_eq!(file.look().unwrap(), None);
        std::fs::write(&path, "three").unwrap();
        assert_eq!(file.look().unwrap(), None, "it may still be written to");
        assert_eq!(file.look().unwrap().as_deref(), Some(&b"three"[..]));
        assert_eq!(file.look().unwrap(), None);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_put_in_its_place_is_a_change_and_a_missing_one_is_none() {
        let folder = folder("replaced");
        let path = folder.join("rules.yaml");
        std::fs::write(&path, "old").unwrap();
        let mut file = RuleFile::new(path.clone());
        file.rules.read().unwrap();
        std::fs::write(folder.join("new"), "new").unwrap();
        std::fs::rename(folder.join("new"), &path).unwrap();
        assert_eq!(file.look().unwrap(), None);
        assert_eq!(file.look().unwrap().as_deref(), Some(&b"new"[..]));
        std::fs::remove_file(&path).unwrap();
        let told = (0..3 * PATIENCE).filter(|_| file.look().is_err()).count();
        assert_eq!(told, 1, "one that stays away is told about once");
        assert!(file.rules.read().is_err());
        std::fs::remove_dir_all(folder).unwrap();
    }

    const BLOCKED: &str = "domain: d\nrules:\n- {id: a, when: {ip: {file: blocked.txt}}, deny: true}\n\
        - {id: b, when: {ip: {not: {file: blocked.txt}}}, limit: 1/s}\n";

    #[test]
    fn a_file_with_values_that_rules_name_is_looked_at_too() {
        let folder = folder("lists");
        let (path, list) = (folder.join("rules.yaml"), folder.join("blocked.txt"));
        std::fs::write(&path, BLOCKED).unwrap();
        std::fs::write(&list, "10.0.0.1\n").unwrap();
        let mut file = RuleFile::new(path.clone());
        let text = file.rules.read().unwrap();
        assert_eq!(file.parse(&text).unwrap().len(), 2);
        assert_eq!(file.lists.len(), 1, "named twice, looked at once");
        assert_eq!(file.look().unwrap(), None);
        std::fs::write(&list, "10.0.0.1\n10.0.0.2\n").unwrap();
        assert_eq!(file.look().unwrap(), None, "it may still be written to");
        assert_eq!(file.look().unwrap().as_deref(), Some(BLOCKED.as_bytes()), "the rules are read again");
        assert_eq!(file.look().unwrap(), None, "once");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn a_file_with_values_that_is_wrong_or_missing_is_looked_at_until_it_is_right() {
        let folder = folder("missing-list");
        let (path, list) = (folder.join("rules.yaml"), folder.join("blocked.txt"));
        std::fs::write(&path, BLOCKED).unwrap();
        let mut file = RuleFile::new(path.clone());
        let text = file.rules.read().unwrap();
        assert!(file.parse(&text).unwrap_err().to_string().contains("`blocked.txt` cannot be read"));
        let mut next = || (0..3 * PATIENCE).find_map(|_| file.look().ok().flatten()).map(|text| file.parse(&text));
        assert!(next().is_none(), "there is nothing new");
        std::fs::write(&list, "# none yet\n").unwrap();
        assert!(next().unwrap().unwrap_err().to_string().contains("has no values"));
        std::fs::write(&list, "10.0.0.1\n").unwrap();
        assert_eq!(next().unwrap().unwrap().len(), 2);
        // Rules that cannot be read at all do not make it forget the list.
        std::fs::write(&path, "domain: [").unwrap();
        assert!(next().unwrap().is_err());
        std::fs::write(&list, "10.0.0.1\n10.0.0.2\n").unwrap();
        assert!(next().unwrap().is_err(), "looked at, though the rules are still wrong");
        std::fs::remove_dir_all(folder).unwrap();
    }
}
