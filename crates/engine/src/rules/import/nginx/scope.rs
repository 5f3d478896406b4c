//! Which requests a line of nginx is for: the servers and locations around it.

use std::collections::BTreeMap;

use super::super::super::mistake::{Notes, Place};
use super::super::super::text::Node;
use super::super::build::{map, one_or_list, text};
use super::read::{Directive, End};

/// Which of the two limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Requests,
    Connections,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Self::Requests => "limit_req",
            Self::Connections => "limit_conn",
        }
    }
}

/// All blocks of a file; the first is the file itself.
#[derive(Debug)]
pub(super) struct Scopes {
    all: Vec<Scope>,
    /// For each directive the block it is in.
    of: Vec<usize>,
}

#[derive(Debug)]
struct Scope {
    place: Place,
    parent: Option<usize>,
    block: Block,
    /// What it says itself about limits.
    settings: Vec<(String, String)>,
}

#[derive(Debug)]
enum Block {
    Server(Vec<String>),
    Prefix(String),
    Exactly(String),
    Expression,
    Other,
}

/// So many blocks are compared with each other.
const MAX_BLOCKS: usize = 4096;
/// How deep they may lie in each other.
const MAX_DEPTH: usize = 16;

/// What matters of a block beside its limits.
const SETTINGS: [&str; 6] =
    ["limit_req", "limit_conn", "limit_req_status", "limit_conn_status", "limit_req_dry_run", "limit_conn_dry_run"];

impl Scopes {
    pub(super) fn read(directives: &[Directive], notes: &mut Notes, left_out: &mut Notes) -> Self {
        let file =
            Scope { place: Place { line: 1, column: 1 }, parent: None, block: Block::Other, settings: Vec::new() };
        let mut scopes = Self { all: vec![file], of: Vec::with_capacity(directives.len()) };
        let mut here = 0;
        for directive in directives {
            scopes.of.push(here);
            match directive.end {
                End::Opens if scopes.all.len() >= MAX_BLOCKS || scopes.around(here).nth(MAX_DEPTH).is_some() => {
                    let most = format!("at most {MAX_BLOCKS} blocks are read, and {MAX_DEPTH} in each other");
                    notes.add(directive.place, most);
                    return scopes;
                }
                End::Opens => {
                    let block = Block::of(directive);
                    let place = directive.place;
                    scopes.all.push(Scope { place, parent: Some(here), block, settings: Vec::new() });
                    here = scopes.all.len() - 1;
                }
                End::Closes => here = scopes.all[here].parent.unwrap_or(0),
                End::Here => scopes.setting(here, directive, notes, left_out),
            }
        }
        scopes
    }

    fn setting(&mut self, here: usize, directive: &Directive, notes: &mut Notes, left_out: &mut Notes) {
        let name = directive.name();
        let value = directive.arguments().first().map_or("", |word| &word.text);
        if name == "server_name" {
            let expressions = directive.arguments().iter().any(|word| word.text.starts_with('~'));
            if expressions {
                let problem = "names of servers that are regular expressions are not carried over";
                left_out.add_with_help(directive.place, problem, "the limits hold for every host");
            }
            if let (Block::Server(names), false) = (&mut self.all[here].block, expressions) {
                let hosts = directive.arguments().iter().filter(|word| !matches!(&*word.text, "" | "_"));
                names.extend(hosts.map(|word| word.text.clone()));
            }
        } else if SETTINGS.contains(&name) {
            let status = value.parse::<u16>().is_ok_and(|status| (400..600).contains(&status));
            if name.ends_with("_status") && !status {
                notes.add(directive.place, format!("`{name}` is a status from 400 to 599"));
                return;
            }
            self.all[here].settings.push((name.to_owned(), value.to_owned()));
            let expression = self.around(here).any(|scope| matches!(self.all[scope].block, Block::Expression));
            if expression && matches!(name, "limit_req" | "limit_conn") {
                let problem = "limits in a location with a regular expression are not carried over";
                left_out.add_with_help(directive.place, problem, "write a rule with a pattern like `/a/*/b`");
            }
        } else if name.starts_with("limit_req_log") || name.starts_with("limit_conn_log") {
            left_out.add(directive.place, format!("`{name}` is not carried over: refusals are counted, not logged"));
        }
    }

    /// The limits that are carried over, and where they are.
    pub(super) fn limits<'d>(&self, directives: &'d [Directive]) -> impl Iterator<Item = (usize, &'d Directive)> {
        let carried = |(scope, directive): &(usize, &Directive)| {
            let expression = self.around(*scope).any(|scope| matches!(self.all[scope].block, Block::Expression));
            !expression && directive.end == End::Here && matches!(directive.name(), "limit_req" | "limit_conn")
        };
        self.of.iter().copied().zip(directives).filter(carried)
    }

    /// The path of the location around a scope.
    pub(super) fn path(&self, scope: usize) -> Option<&str> {
        self.around(scope).find_map(|scope| self.all[scope].block.path())
    }

    /// What requests must be to be in a scope.
    pub(super) fn conditions(&self, scope: usize, place: Place) -> Vec<(String, Node)> {
        let path = self.around(scope).find_map(|scope| match &self.all[scope].block {
            Block::Prefix(path) if path == "/" => None,
            Block::Prefix(path) => Some(map(place, vec![("prefix", text(place, &**path))])),
            Block::Exactly(path) => Some(map(place, vec![("equals", text(place, &**path))])),
            Block::Server(_) | Block::Expression | Block::Other => None,
        });
        let named = [("host", self.host(scope, place)), ("path", path)];
        named.into_iter().filter_map(|(name, condition)| Some((name.to_owned(), condition?))).collect()
    }

    /// Conditions for what longer locations take from a scope: it meets one of them.
    pub(super) fn excluded(&self, scope: usize, kind: Kind, place: Place, left_out: &mut Notes) -> Vec<Node> {
        // By the server, if the scope is around it, and by the test that paths need.
        let mut taken: BTreeMap<(Option<usize>, &str), Vec<Node>> = BTreeMap::new();
        for other in 0..self.all.len() {
            let below = self.around(other).skip(1).any(|outer| outer == scope);
            let beside = !below && other != scope && self.server(other) == self.server(scope);
            let shadows = self.takes_from(scope, other);
            let has_own = self.has(other, kind);
            if matches!(self.all[other].block, Block::Server(_)) && below && has_own {
                let problem = format!("this also holds in the server of line {}", self.all[other].place.line);
                left_out.add_with_help(place, problem, "for nginx, limits of its own replace those around it");
            }
            // What is below inherits the limit, unless it has its own.
            if !shadows || !((below && has_own) || (beside && self.all[scope].block.path().is_some())) {
                continue;
            }
            let server = self.server(other).filter(|server| self.server(scope) != Some(*server));
            match &self.all[other].block {
                Block::Prefix(path) => taken.entry((server, "prefix")).or_default().push(text(place, &**path)),
                Block::Exactly(path) => taken.entry((server, "equals")).or_default().push(text(place, &**path)),
                Block::Expression => {
                    let problem = format!("this also holds in the location of line {}", self.all[other].place.line);
                    left_out.add_with_help(place, problem, "locations with regular expressions are not carried over");
                }
                Block::Server(_) | Block::Other => {}
            }
        }
        let conditions = taken.into_iter().map(|((server, test), paths)| {
            let path = map(place, vec![(test, one_or_list(place, paths))]);
            let host = server.and_then(|server| self.host(server, place)).map(|host| ("host", host));
            map(place, host.into_iter().chain([("path", path)]).collect())
        });
        conditions.collect()
    }

    /// The names of the server around a scope, if it has some.
    fn host(&self, scope: usize, place: Place) -> Option<Node> {
        self.around(scope).find_map(|scope| match &self.all[scope].block {
            Block::Server(names) if !names.is_empty() => {
                Some(one_or_list(place, names.iter().map(|name| text(place, &**name)).collect()))
            }
            Block::Server(_) | Block::Prefix(_) | Block::Exactly(_) | Block::Expression | Block::Other => None,
        })
    }

    /// Whether refusals are only told, and the status of a refusal.
    pub(super) fn manner(&self, scope: usize, kind: Kind) -> (bool, String) {
        let inherited = |what: &str| {
            let name = format!("{}_{what}", kind.name());
            self.around(scope).find_map(|scope| {
                let settings = &self.all[scope].settings;
                settings.iter().rfind(|(known, _)| *known == name).map(|(_, value)| value.clone())
            })
        };
        (inherited("dry_run").is_some_and(|on| on == "on"), inherited("status").unwrap_or_else(|| "503".into()))
    }

    /// Whether a location is for requests that would otherwise be in a scope.
    fn takes_from(&self, scope: usize, other: usize) -> bool {
        match (self.path(scope), &self.all[other].block) {
            (_, Block::Server(_) | Block::Other) => false,
            (None, _) | (_, Block::Expression) => true,
            (Some(_), _) if self.is_exact(scope) => false,
            (Some(path), Block::Prefix(longer)) => longer.len() > path.len() && longer.starts_with(path),
            (Some(path), Block::Exactly(longer)) => longer.starts_with(path),
        }
    }

    fn is_exact(&self, scope: usize) -> bool {
        self.around(scope).any(|scope| matches!(self.all[scope].block, Block::Exactly(_)))
    }

    fn has(&self, scope: usize, kind: Kind) -> bool {
        self.all[scope].settings.iter().any(|(name, _)| name == kind.name())
    }

    fn server(&self, scope: usize) -> Option<usize> {
        self.around(scope).find(|scope| matches!(self.all[*scope].block, Block::Server(_)))
    }

    /// A scope and all that it is in, from the inside out.
    fn around(&self, scope: usize) -> impl Iterator<Item = usize> {
        std::iter::successors(Some(scope), |scope| self.all[*scope].parent)
    }
}

impl Block {
    fn of(directive: &Directive) -> Self {
        let words: Vec<&str> = directive.arguments().iter().map(|word| &*word.text).collect();
        match (directive.name(), &*words) {
            ("server", []) => Self::Server(Vec::new()),
            ("location", ["=", path]) => Self::Exactly((*path).to_owned()),
            ("location", ["^~", path]) => Self::Prefix((*path).to_owned()),
            ("location", [path]) if !path.starts_with(['@', '~']) => Self::Prefix((*path).to_owned()),
            ("location", _) => Self::Expression,
            _ => Self::Other,
        }
    }

    fn path(&self) -> Option<&str> {
        match self {
            Self::Prefix(path) | Self::Exactly(path) => Some(path),
            Self::Server(_) | Self::Expression | Self::Other => None,
        }
    }
}
