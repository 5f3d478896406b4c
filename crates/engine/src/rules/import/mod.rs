//! Limits that were written for something else.
//!
//! An importer makes a tree of our own language of them in which everything keeps its place, so that whatever is wrong
//! is told with a line of the file that people know. Files of the reference Envoy service are recognised wherever rules are
//! read; those of nginx hold much more than limits, and are only imported.

mod build;
mod envoy;
mod nginx;

use super::mistake::{Mistakes, Notes, Place};
use super::text::{self, MAX_FILE_BYTES, Node};
use super::write::write;
use super::{Rules, Source};

/// Whose file it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// The reference Envoy rate-limit service.
    Envoy,
    /// nginx, with `limit_req` and `limit_conn`.
    Nginx,
}

/// Reads the files that a configuration includes by a name or a pattern, in order, each with its name, or says why it cannot.
pub type ReadIncluded<'a> = &'a dyn Fn(&str) -> Result<Vec<(String, Vec<u8>)>, String>;

/// Limits of another system in our language.
#[derive(Debug)]
pub struct Imported {
    /// A rule file.
    pub yaml: String,
    /// What it could not say, if there is something.
    pub left_out: Option<Mistakes>,
}

impl Imported {
    /// Translates a file. Without a dialect it is looked at for what only one of them has.
    ///
    /// ```
    /// use tollgate_engine::rules::{Imported, Source};
    ///
    /// let text = "domain: edge\ndescriptors:\n- {key: remote_address, rate_limit: {unit: second, requests_per_unit: 10}}\n";
    /// let imported = Imported::read(&Source { name: "envoy.yaml", text: text.as_bytes() }, None, "")?;
    /// assert_eq!(
    ///     imported.yaml,
    ///     "domain: edge\n\
    ///      rules:\n\
    ///      - id: remote_address\n\
    ///     \x20 when: {remote_address: {present: true}}\n\
    ///     \x20 only: [remote_address]\n\
    ///     \x20 per: [remote_address]\n\
    ///     \x20 limit: 10/s\n\
    ///     \x20 algorithm: fixed_window\n"
    /// );
    /// # Ok::<(), tollgate_engine::rules::Mistakes>(())
    /// ```
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read(source: &Source<'_>, dialect: Option<Dialect>, domain: &str) -> Result<Self, Mistakes> {
        Self::read_with(source, dialect, domain, &|_| Err("other files are not read here".into()))
    }

    /// [`read`](Self::read), with the files that one of nginx includes.
    ///
    /// # Errors
    /// Everything that is wrong with it.
    pub fn read_with(
        source: &Source<'_>,
        dialect: Option<Dialect>,
        domain: &str,
        include: ReadIncluded<'_>,
    ) -> Result<Self, Mistakes> {
        let (mut notes, mut left_out) = (Notes::new(source.name), Notes::new(source.name));
        let dialect = dialect.unwrap_or_else(|| Dialect::of(source.text));
        let (tree, included) = match dialect {
            Dialect::Envoy => {
                let tree = text::read(source.text, &mut notes);
                (tree.and_then(|tree| envoy::convert(&tree, &mut notes, &mut left_out)), Vec::new())
            }
            Dialect::Nginx => nginx::convert(source, domain, include, &mut notes, &mut left_out),
        };
        let yaml = tree.map(|tree| write(&tree)).unwrap_or_default();
        if yaml.len() > MAX_FILE_BYTES {
            let problem = format!("the rules of this have {} bytes, at most {MAX_FILE_BYTES} are read", yaml.len());
            notes.add(Place { line: 1, column: 1 }, problem);
        }
        let included = included.iter().map(|(name, text)| Source { name, text });
        let sources: Vec<Source<'_>> = std::iter::once(*source).chain(included).collect();
        let sources = &*sources;
        notes.finish().map_err(|mistakes| mistakes.with_snippets(sources))?;
        // What it became is read like any rule file: nothing is handed out that would not load.
        Rules::read(&[Source { name: source.name, text: yaml.as_bytes() }])?;
        Ok(Self { yaml, left_out: left_out.finish().err().map(|notes| notes.with_snippets(sources)) })
    }
}

impl Dialect {
    /// What a file looks like.
    fn of(bytes: &[u8]) -> Self {
        if nginx::is_meant(bytes) { Self::Nginx } else { Self::Envoy }
    }
}

/// A tree in our language, from a rule file or from one that is recognised.
pub(super) fn translate(tree: Node, notes: &mut Notes, left_out: &mut Notes) -> Option<Node> {
    if envoy::is_meant(&tree) { envoy::convert(&tree, notes, left_out) } else { Some(tree) }
}
