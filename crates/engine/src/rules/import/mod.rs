//! Imports limits from other systems.
//!
//! An importer builds a tree of the rule language. The nodes of the tree have positions in the original file, so that
//! mistakes are reported there. Files of the reference Envoy service are recognised wherever rules are loaded. nginx
//! configurations contain much more than limits, so they must be imported explicitly.

mod build;
mod envoy;
mod nginx;

use super::mistake::{MistakeCollector, Mistakes, Position};
use super::text::{self, MAX_FILE_BYTES, Node};
use super::write::write_file;
use super::{Rules, Source};

/// The system that a file was written for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// The reference Envoy rate-limit service.
    Envoy,
    /// nginx, with `limit_req` and `limit_conn`.
    Nginx,
}

/// Reads included files, given a name or a pattern. Returns their names and contents in order, or the reason why they
/// cannot be read.
pub type ReadIncluded<'a> = &'a dyn Fn(&str) -> Result<Vec<(String, Vec<u8>)>, String>;

/// Limits of another system, converted to the rule language.
#[derive(Debug)]
pub struct ImportedRules {
    /// A rule file.
    pub yaml: String,
    /// The parts that could not be imported, if any.
    pub left_out: Option<Mistakes>,
}

impl ImportedRules {
    /// Translates a file. If `dialect` is `None`, the dialect is detected. `domain` is the domain of limits from nginx;
    /// an Envoy file names its own domain.
    ///
    /// ```
    /// use tollgate_engine::rules::{ImportedRules, Source};
    ///
    /// let text = "domain: edge\ndescriptors:\n- {key: remote_address, rate_limit: {unit: second, requests_per_unit: 10}}\n";
    /// let imported = ImportedRules::read(&Source { name: "envoy.yaml", text: text.as_bytes() }, None, "")?;
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
    /// Returns every mistake in the file.
    pub fn read(source: &Source<'_>, dialect: Option<Dialect>, domain: &str) -> Result<Self, Mistakes> {
        Self::read_with(source, dialect, domain, &|_| Err("reading other files is not supported here".into()))
    }

    /// Like [`read`](Self::read), but also reads the files that an nginx configuration includes.
    ///
    /// # Errors
    /// Returns every mistake in the file.
    pub fn read_with(
        source: &Source<'_>,
        dialect: Option<Dialect>,
        domain: &str,
        include: ReadIncluded<'_>,
    ) -> Result<Self, Mistakes> {
        let (mut notes, mut left_out) = (MistakeCollector::new(source.name), MistakeCollector::new(source.name));
        let dialect = dialect.unwrap_or_else(|| Dialect::of_file(source.text));
        let (tree, included) = match dialect {
            Dialect::Envoy => {
                let tree = text::parse_tree(source.text, &mut notes);
                (tree.and_then(|tree| envoy::convert(&tree, &mut notes, &mut left_out)), Vec::new())
            }
            Dialect::Nginx => nginx::convert(source, domain, include, &mut notes, &mut left_out),
        };
        let yaml = tree.map(|tree| write_file(&tree)).unwrap_or_default();
        if yaml.len() > MAX_FILE_BYTES {
            let problem = format!("the imported rules are too large: {} bytes (maximum {MAX_FILE_BYTES})", yaml.len());
            notes.add(Position { line: 1, column: 1 }, problem);
        }
        let included = included.iter().map(|(name, text)| Source { name, text });
        let sources: Vec<Source<'_>> = std::iter::once(*source).chain(included).collect();
        let sources = &*sources;
        notes.finish().map_err(|mistakes| mistakes.with_snippets(sources))?;
        // Parse the result like any other rule file, so that only valid rules are returned.
        Rules::read(&[Source { name: source.name, text: yaml.as_bytes() }])?;
        Ok(Self { yaml, left_out: left_out.finish().err().map(|notes| notes.with_snippets(sources)) })
    }
}

impl Dialect {
    /// Detects the dialect of a file.
    fn of_file(bytes: &[u8]) -> Self {
        if nginx::may_be_nginx_file(bytes) { Self::Nginx } else { Self::Envoy }
    }
}

/// Translates the tree of an Envoy file to the rule language. Other trees are returned unchanged.
pub(super) fn translate_if_envoy(
    tree: Node,
    notes: &mut MistakeCollector,
    left_out: &mut MistakeCollector,
) -> Option<Node> {
    if envoy::is_envoy_file(&tree) { envoy::convert(&tree, notes, left_out) } else { Some(tree) }
}
