//! Nested blocks: servers and locations, with the limits and settings of each.

use std::collections::HashMap;

use super::super::super::mistake::{MistakeCollector, Position};
use super::include::NginxFiles;
use super::read::{Directive, DirectiveEnd};

/// The kind of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum NginxLimitKind {
    Requests,
    Connections,
}

impl NginxLimitKind {
    pub(super) fn of_directive(name: &str) -> Option<Self> {
        match name {
            "limit_req" => Some(Self::Requests),
            "limit_conn" => Some(Self::Connections),
            _ => None,
        }
    }

    fn setting_name(self, what: &str) -> String {
        match self {
            Self::Requests => format!("limit_req_{what}"),
            Self::Connections => format!("limit_conn_{what}"),
        }
    }
}

/// How refusals are reported.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct RefusalStyle {
    pub(super) dry_run: bool,
    pub(super) status: String,
}

/// The file, its servers and its locations, each with its own settings.
#[derive(Debug)]
pub(super) struct Scopes {
    all: Vec<Scope>,
    /// The imported limits: index of the directive, and index of the scope.
    limits: Vec<(usize, usize)>,
}

#[derive(Debug)]
pub(super) struct Scope {
    pub(super) position: Position,
    pub(super) parent: Option<usize>,
    pub(super) block: Block,
    settings: HashMap<String, String>,
    /// Whether the scope has its own limits, for each limit kind.
    has_own_limits: [bool; 2],
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Block {
    File,
    Server(Vec<String>),
    Prefix(String),
    Exactly(String),
    /// A location with a regular expression, or a named location (`@name`).
    Expression,
}

impl Block {
    pub(super) fn path(&self) -> Option<&str> {
        match self {
            Self::Prefix(path) | Self::Exactly(path) => Some(path),
            Self::File | Self::Server(_) | Self::Expression => None,
        }
    }
}

/// Maximum number of servers and locations.
const MAX_BLOCKS: usize = 4096;
/// Maximum nesting of blocks.
const MAX_BLOCK_DEPTH: usize = 16;

/// Settings that are inherited independently of each other.
const INHERITED_SETTINGS: [&str; 4] =
    ["limit_req_status", "limit_conn_status", "limit_req_dry_run", "limit_conn_dry_run"];

impl Scopes {
    pub(super) fn read(
        directives: &[Directive],
        files: &NginxFiles<'_>,
        notes: &mut MistakeCollector,
        left_out: &mut MistakeCollector,
    ) -> Self {
        let position = Position { line: 1, column: 1 };
        let mut scopes = Self { all: vec![Scope::new(position, None, Block::File)], limits: Vec::new() };
        // Other blocks, such as `http`, are transparent: their content belongs to the enclosing scope.
        let mut open = vec![0];
        for (number, directive) in directives.iter().enumerate() {
            files.set_file(directive, notes, left_out);
            let here = open.last().copied().unwrap_or(0);
            match directive.end {
                DirectiveEnd::Opens if scopes.all.len() >= MAX_BLOCKS || open.len() > MAX_BLOCK_DEPTH => {
                    let most = format!("too many blocks (maximum {MAX_BLOCKS}, nested {MAX_BLOCK_DEPTH} levels)");
                    notes.add(directive.position, most);
                    return scopes;
                }
                DirectiveEnd::Opens => open.push(match block_of(directive) {
                    Some(block) => {
                        scopes.all.push(Scope::new(directive.position, Some(here), block));
                        scopes.all.len() - 1
                    }
                    None => here,
                }),
                DirectiveEnd::Closes => {
                    open.pop();
                }
                DirectiveEnd::Here => scopes.add_directive(here, number, directive, notes, left_out),
            }
        }
        scopes
    }

    fn add_directive(
        &mut self,
        here: usize,
        number: usize,
        directive: &Directive,
        notes: &mut MistakeCollector,
        left_out: &mut MistakeCollector,
    ) {
        let name = directive.name();
        let value = directive.arguments().first().map_or("", |word| &word.text);
        if let Some(kind) = NginxLimitKind::of_directive(name) {
            self.all[here].has_own_limits[kind as usize] = true;
            if self.scopes_around(here).any(|scope| self.all[scope].block == Block::Expression) {
                let problem = "limits in a location with a regular expression are not imported";
                left_out.add_with_help(directive.position, problem, "write a rule with a pattern like `/a/*/b`");
            } else {
                self.limits.push((number, here));
            }
        } else if INHERITED_SETTINGS.contains(&name) {
            let status = value.parse::<u16>().is_ok_and(|status| (400..600).contains(&status));
            if name.ends_with("_status") && !status {
                notes.add(directive.position, format!("`{name}` must be a status code from 400 to 599"));
                return;
            }
            self.all[here].settings.insert(name.to_owned(), value.to_owned());
        } else if name == "server_name" {
            self.add_server_names(here, directive, left_out);
        } else if name.starts_with("limit_req_log") || name.starts_with("limit_conn_log") {
            left_out.add(directive.position, format!("`{name}` is not imported: refusals are counted, not logged"));
        }
    }

    fn add_server_names(&mut self, here: usize, directive: &Directive, left_out: &mut MistakeCollector) {
        let Block::Server(names) = &mut self.all[here].block else { return };
        for word in directive.arguments() {
            match &*word.text {
                "" | "_" => {}
                name if name.starts_with('~') => {
                    let problem = "server names that are regular expressions are not imported";
                    left_out.add_with_help(
                        word.position,
                        problem,
                        "the limits apply to its other names, or to every host",
                    );
                }
                // A leading dot stands for the name itself and all of its subdomains.
                name if name.starts_with('.') => names.extend([name[1..].to_owned(), format!("*{name}")]),
                name => names.push(name.to_owned()),
            }
        }
    }

    pub(super) fn get(&self, scope: usize) -> &Scope {
        &self.all[scope]
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    /// Returns the imported limits: index of the directive, and index of the scope.
    pub(super) fn imported_limits(&self) -> &[(usize, usize)] {
        &self.limits
    }

    /// Returns the scope whose limits apply in `scope`: `scope` itself, or the nearest enclosing scope with limits.
    pub(super) fn inherited_from(&self, scope: usize, kind: NginxLimitKind) -> Option<usize> {
        self.scopes_around(scope).find(|scope| self.all[*scope].has_own_limits[kind as usize])
    }

    /// Returns how refusals in a scope are reported.
    pub(super) fn refusal_style(&self, scope: usize, kind: NginxLimitKind) -> RefusalStyle {
        let inherited = |what: &str| {
            let name = kind.setting_name(what);
            self.scopes_around(scope).find_map(|scope| self.all[scope].settings.get(&name).cloned())
        };
        RefusalStyle {
            dry_run: inherited("dry_run").is_some_and(|on| on == "on"),
            status: inherited("status").unwrap_or_else(|| "503".into()),
        }
    }

    /// Returns the server that contains a scope.
    pub(super) fn server_around(&self, scope: usize) -> Option<usize> {
        self.scopes_around(scope).find(|scope| matches!(self.all[*scope].block, Block::Server(_)))
    }

    /// Returns whether a scope is inside a location with a regular expression.
    pub(super) fn is_in_regex_location(&self, scope: usize) -> bool {
        self.scopes_around(scope).skip(1).any(|scope| self.all[scope].block == Block::Expression)
    }

    /// Returns a scope and all enclosing scopes, from the inside out.
    fn scopes_around(&self, scope: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(scope), |scope| self.all[*scope].parent)
    }
}

impl Scope {
    fn new(position: Position, parent: Option<usize>, block: Block) -> Self {
        Self { position, parent, block, settings: HashMap::new(), has_own_limits: [false; 2] }
    }
}

fn block_of(directive: &Directive) -> Option<Block> {
    let words: Vec<&str> = directive.arguments().iter().map(|word| &*word.text).collect();
    match (directive.name(), &*words) {
        ("server", []) => Some(Block::Server(Vec::new())),
        ("location", ["=", path]) => Some(Block::Exactly((*path).to_owned())),
        ("location", ["^~", path]) => Some(Block::Prefix((*path).to_owned())),
        ("location", [path]) if !path.starts_with(['@', '~']) => Some(Block::Prefix((*path).to_owned())),
        ("location", _) => Some(Block::Expression),
        _ => None,
    }
}
