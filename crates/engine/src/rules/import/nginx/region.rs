//! Which limit holds where, as a rule says it: exceptions in order, of which the first that fits counts.
//!
//! nginx goes by the longest location that a path begins with, and a location has the limits of what is around it unless it
//! has some of its own. Both are said by listing locations from the longest to the shortest, server by server, each with
//! what holds in it; those that change nothing are left out.

use super::super::super::mistake::Place;
use super::super::super::text::Node;
use super::super::build::{map, one_or_list, text};
use super::scope::{Block, Scopes};

/// The locations of a file in the order in which they are to be asked, made once for all limits.
#[derive(Debug)]
pub(super) struct Regions {
    /// Servers with their locations; those without a name are last.
    servers: Vec<Server>,
}

#[derive(Debug)]
struct Server {
    /// None if the locations are in none.
    scope: Option<usize>,
    hosts: Vec<String>,
    /// Longest first, each with the one that would be next, if there is one in the same server.
    locations: Vec<(usize, Option<usize>)>,
}

/// Requests for which something else holds than for those around.
#[derive(Debug)]
pub(super) struct Exception<'s, T> {
    hosts: &'s [String],
    /// Where it begins, or what it is; none for a whole server.
    paths: Vec<&'s Block>,
    pub(super) holds: Option<T>,
}

impl Regions {
    pub(super) fn new(scopes: &Scopes) -> Self {
        let mut servers: Vec<Server> = Vec::new();
        for scope in 0..scopes.len() {
            let server = scopes.server(scope);
            if scope == 0 || scopes.is_in_expression(scope) {
                continue;
            }
            let known = servers.iter().position(|known| known.scope == server).unwrap_or_else(|| {
                let hosts = match server.map(|server| &scopes.get(server).block) {
                    Some(Block::Server(names)) => names.clone(),
                    _ => Vec::new(),
                };
                servers.push(Server { scope: server, hosts, locations: Vec::new() });
                servers.len() - 1
            });
            if scopes.get(scope).block.path().is_some() {
                servers[known].locations.push((scope, None));
            }
        }
        for server in &mut servers {
            // One path alone goes before all that begin so.
            let order = |scope: usize| match &scopes.get(scope).block {
                Block::Exactly(_) => (0, 0),
                other => (1, usize::MAX - other.path().map_or(0, str::len)),
            };
            server.locations.sort_by_key(|(scope, _)| order(*scope));
            let sorted: Vec<usize> = server.locations.iter().map(|(scope, _)| *scope).collect();
            for (place, (scope, next)) in server.locations.iter_mut().enumerate() {
                let path = scopes.get(*scope).block.path().unwrap_or_default();
                *next = sorted[place + 1..].iter().copied().find(|other| match &scopes.get(*other).block {
                    Block::Prefix(shorter) => path.starts_with(shorter),
                    Block::File | Block::Server(_) | Block::Exactly(_) | Block::Expression => false,
                });
            }
        }
        // Names with stars fit more than those without, and no name fits everything.
        servers.sort_by_key(|server| (server.hosts.is_empty(), server.hosts.iter().any(|host| host.contains('*'))));
        Self { servers }
    }

    /// The servers that cannot be told apart, because they have no name.
    pub(super) fn nameless(&self) -> impl Iterator<Item = usize> {
        self.servers.iter().filter(|server| server.hosts.is_empty()).filter_map(|server| server.scope)
    }

    /// Where something else holds than in the file as a whole.
    pub(super) fn exceptions<'s, T: Copy + PartialEq>(
        &'s self,
        scopes: &'s Scopes,
        holds: impl Fn(usize) -> Option<T>,
    ) -> Vec<Exception<'s, T>> {
        let mut exceptions: Vec<Exception<'s, T>> = Vec::new();
        let mut add = |hosts: &'s [String], path: Option<&'s Block>, holds: Option<T>| {
            let same_test =
                |one: &Block, other: &Block| matches!(one, Block::Exactly(_)) == matches!(other, Block::Exactly(_));
            match (exceptions.last_mut(), path) {
                // What has the same effect and is asked for in the same way is said together.
                (Some(last), Some(path))
                    if last.holds == holds
                        && last.hosts == hosts
                        && last.paths.first().is_some_and(|first| same_test(first, path)) =>
                {
                    last.paths.push(path);
                }
                _ => exceptions.push(Exception { hosts, paths: path.into_iter().collect(), holds }),
            }
        };
        let base = holds(0);
        let differs = |server: &Server| {
            let whole = server.scope.map_or(base, &holds);
            whole != base || server.locations.iter().any(|(scope, _)| holds(*scope) != whole)
        };
        let nameless_differ = self.servers.iter().any(|server| server.hosts.is_empty() && differs(server));
        for server in &self.servers {
            let whole = server.scope.map_or(base, &holds);
            for (scope, next) in &server.locations {
                if holds(*scope) != next.map_or(whole, &holds) {
                    add(&server.hosts, Some(&scopes.get(*scope).block), holds(*scope));
                }
            }
            // Those without a name come later and are for everybody, so the others have to be taken out of them.
            if whole != base || (nameless_differ && !server.hosts.is_empty()) {
                add(&server.hosts, None, whole);
            }
        }
        exceptions
    }
}

impl<T> Exception<'_, T> {
    /// What requests must be.
    pub(super) fn conditions(&self, place: Place) -> Vec<(&'static str, Node)> {
        let texts = |names: Vec<&str>| one_or_list(place, names.into_iter().map(|name| text(place, name)).collect());
        let host = (!self.hosts.is_empty()).then(|| texts(self.hosts.iter().map(|host| &**host).collect()));
        let path = self.paths.first().map(|first| {
            let test = if matches!(first, Block::Exactly(_)) { "equals" } else { "prefix" };
            map(place, vec![(test, texts(self.paths.iter().filter_map(|path| path.path()).collect()))])
        });
        [("host", host), ("path", path)].into_iter().filter_map(|(name, test)| Some((name, test?))).collect()
    }

    /// Its path, if it is one.
    pub(super) fn path(&self) -> Option<&str> {
        match &*self.paths {
            [path] => path.path(),
            _ => None,
        }
    }
}
