//! Converts the scopes in which a limit applies to an ordered list of exceptions. The first matching exception applies.
//!
//! nginx uses the longest location that is a prefix of the path. A location inherits the limits of the enclosing block
//! unless it has its own limits. So for each server, the list contains the locations and their limits, from the longest
//! to the shortest location. Locations that change nothing are left out.

use super::super::super::mistake::Position;
use super::super::super::text::Node;
use super::super::build::{map_node, one_or_list, text_node};
use super::scope::{Block, Scopes};

/// The locations of a file in the order in which they are tried, computed once for all limits.
#[derive(Debug)]
pub(super) struct Regions {
    /// Servers with their locations. Servers without a name are last.
    servers: Vec<ServerLocations>,
}

#[derive(Debug)]
struct ServerLocations {
    /// `None` for locations outside of a server.
    scope: Option<usize>,
    hosts: Vec<String>,
    /// The locations, longest path first. Each location is paired with the next shorter location that contains it, if
    /// any.
    locations: Vec<(usize, Option<usize>)>,
}

/// Requests whose limit differs from the enclosing scope's limit.
#[derive(Debug)]
pub(super) struct Exception<'s, T> {
    hosts: &'s [String],
    /// The paths; empty for a whole server.
    paths: Vec<&'s Block>,
    pub(super) limit: Option<T>,
}

impl Regions {
    pub(super) fn new(scopes: &Scopes) -> Self {
        let mut servers: Vec<ServerLocations> = Vec::new();
        for scope in 0..scopes.len() {
            let server = scopes.server_around(scope);
            if scope == 0 || scopes.is_in_regex_location(scope) {
                continue;
            }
            let known = servers.iter().position(|known| known.scope == server).unwrap_or_else(|| {
                let hosts = match server.map(|server| &scopes.get(server).block) {
                    Some(Block::Server(names)) => names.clone(),
                    _ => Vec::new(),
                };
                servers.push(ServerLocations { scope: server, hosts, locations: Vec::new() });
                servers.len() - 1
            });
            if scopes.get(scope).block.path().is_some() {
                servers[known].locations.push((scope, None));
            }
        }
        for server in &mut servers {
            // Exact paths come before prefixes.
            let order = |scope: usize| match &scopes.get(scope).block {
                Block::Exactly(_) => (0, 0),
                other => (1, usize::MAX - other.path().map_or(0, str::len)),
            };
            server.locations.sort_by_key(|(scope, _)| order(*scope));
            let sorted: Vec<usize> = server.locations.iter().map(|(scope, _)| *scope).collect();
            for (position, (scope, next)) in server.locations.iter_mut().enumerate() {
                let path = scopes.get(*scope).block.path().unwrap_or_default();
                *next = sorted[position + 1..].iter().copied().find(|other| match &scopes.get(*other).block {
                    Block::Prefix(shorter) => path.starts_with(shorter),
                    Block::File | Block::Server(_) | Block::Exactly(_) | Block::Expression => false,
                });
            }
        }
        // The most specific servers come first. A name with a star matches several hosts, and a server without a name
        // matches all hosts.
        servers.sort_by_key(|server| (server.hosts.is_empty(), server.hosts.iter().any(|host| host.contains('*'))));
        Self { servers }
    }

    /// Returns the servers without a name, which rules cannot distinguish.
    pub(super) fn nameless_servers(&self) -> impl Iterator<Item = usize> {
        self.servers.iter().filter(|server| server.hosts.is_empty()).filter_map(|server| server.scope)
    }

    /// Returns the regions whose limits differ from the limits at the top level of the file.
    pub(super) fn exceptions<'s, T: Copy + PartialEq>(
        &'s self,
        scopes: &'s Scopes,
        limit_in: impl Fn(usize) -> Option<T>,
    ) -> Vec<Exception<'s, T>> {
        let mut exceptions: Vec<Exception<'s, T>> = Vec::new();
        let mut add = |hosts: &'s [String], path: Option<&'s Block>, limit: Option<T>| {
            let same_test =
                |one: &Block, other: &Block| matches!(one, Block::Exactly(_)) == matches!(other, Block::Exactly(_));
            match (exceptions.last_mut(), path) {
                // Adjacent exceptions with the same limit and the same kind of test are merged.
                (Some(last), Some(path))
                    if last.limit == limit
                        && last.hosts == hosts
                        && last.paths.first().is_some_and(|first| same_test(first, path)) =>
                {
                    last.paths.push(path);
                }
                _ => exceptions.push(Exception { hosts, paths: path.into_iter().collect(), limit }),
            }
        };
        let base = limit_in(0);
        let differs = |server: &ServerLocations| {
            let whole = server.scope.map_or(base, &limit_in);
            whole != base || server.locations.iter().any(|(scope, _)| limit_in(*scope) != whole)
        };
        let nameless_differ = self.servers.iter().any(|server| server.hosts.is_empty() && differs(server));
        for server in &self.servers {
            let whole = server.scope.map_or(base, &limit_in);
            for (scope, next) in &server.locations {
                if limit_in(*scope) != next.map_or(whole, &limit_in) {
                    add(&server.hosts, Some(&scopes.get(*scope).block), limit_in(*scope));
                }
            }
            // An exception for a server without a name matches every host, so each named server needs an earlier
            // exception.
            if whole != base || (nameless_differ && !server.hosts.is_empty()) {
                add(&server.hosts, None, whole);
            }
        }
        exceptions
    }
}

impl<T> Exception<'_, T> {
    /// Returns the conditions on host and path that select these requests.
    pub(super) fn conditions(&self, position: Position) -> Vec<(&'static str, Node)> {
        let texts =
            |names: Vec<&str>| one_or_list(position, names.into_iter().map(|name| text_node(position, name)).collect());
        let host = (!self.hosts.is_empty()).then(|| texts(self.hosts.iter().map(|host| &**host).collect()));
        let path = self.paths.first().map(|first| {
            let test = if matches!(first, Block::Exactly(_)) { "equals" } else { "prefix" };
            map_node(position, vec![(test, texts(self.paths.iter().filter_map(|path| path.path()).collect()))])
        });
        [("host", host), ("path", path)].into_iter().filter_map(|(name, test)| Some((name, test?))).collect()
    }

    /// Returns the path, if there is exactly one.
    pub(super) fn single_path(&self) -> Option<&str> {
        match &*self.paths {
            [path] => path.path(),
            _ => None,
        }
    }
}
