//! `limit_req` and `limit_conn` of nginx.
//!
//! | there | here |
//! |---|---|
//! | `limit_req … burst=n nodelay`, or without a burst | a token bucket with burst `n + 1`: nginx does not count the request being served |
//! | `limit_req … burst=n`, `delay=m` | a leaky bucket with burst `n + 1`, of which `m` pass without waiting |
//! | `limit_conn zone n` | `n` at a time |
//! | several of them | several rules: a request must fit all |
//! | `location /a`, `location = /a` | `when: {path: …}`, without what longer locations take |
//! | `limit_req_status`, `limit_req_dry_run` | `status`, which is 503 unless given; `on_exceed: shadow` |
//! | an empty key is not counted | `when: {…: {present: true}}` |

mod read;
mod scope;
mod zone;

use std::collections::HashSet;

use super::super::mistake::{Notes, Place};
use super::super::raw::shorten;
use super::super::text::{MAX_FILE_BYTES, Node, Value};
use super::super::words::valid_instead;
use super::build::{id_from, list, map, text};
use read::{Directive, End};
use scope::{Kind, Scopes};
use zone::Zone;

/// So many limits are read.
const MAX_LIMITS: usize = 4096;

/// Whether a file has limits of nginx.
pub(super) fn is_meant(bytes: &[u8]) -> bool {
    let ours = |line: &str| ["limit_req", "limit_conn"].iter().any(|name| line.trim_start().starts_with(name));
    str::from_utf8(bytes).is_ok_and(|text| text.split(['\n', ';', '{']).any(ours))
}

/// The limits in our language.
pub(super) fn convert(bytes: &[u8], domain: &str, notes: &mut Notes, left_out: &mut Notes) -> Option<Node> {
    let start = Place { line: 1, column: 1 };
    if bytes.len() > MAX_FILE_BYTES {
        notes.add(start, format!("the file has {} bytes, at most {MAX_FILE_BYTES} are read", bytes.len()));
        return None;
    }
    let Ok(config) = str::from_utf8(bytes) else {
        notes.add(start, "this is not UTF-8 text");
        return None;
    };
    let directives = read::read(config, notes);
    let zones: Vec<Zone> = directives
        .iter()
        .filter(|directive| matches!(directive.name(), "limit_req_zone" | "limit_conn_zone"))
        .filter_map(|directive| Zone::read(directive, notes, left_out))
        .collect();
    let scopes = Scopes::read(&directives, notes, left_out);
    if let Some((_, directive)) = scopes.limits(&directives).nth(MAX_LIMITS) {
        notes.add(directive.place, format!("there are more than {MAX_LIMITS} limits"));
        return None;
    }
    let mut importer =
        Importer { zones: &zones, scopes: &scopes, notes, left_out, taken: HashSet::new(), used: HashSet::new() };
    let rules: Vec<Node> =
        scopes.limits(&directives).filter_map(|(scope, directive)| importer.rule(scope, directive)).collect();
    for zone in zones.iter().filter(|zone| !importer.used.contains(&*zone.name)) {
        let problem = format!("the zone `{}` is used by no `limit_req` or `limit_conn`", shorten(&zone.name));
        left_out.add_with_help(zone.place, problem, "it limits nothing, and is left out");
    }
    if rules.is_empty() && zones.is_empty() {
        notes.add(start, "there are no limits of nginx in this");
    }
    Some(map(start, vec![("domain", text(start, domain)), ("rules", list(start, rules))]))
}

struct Importer<'n> {
    zones: &'n [Zone],
    scopes: &'n Scopes,
    notes: &'n mut Notes,
    left_out: &'n mut Notes,
    taken: HashSet<String>,
    used: HashSet<String>,
}

impl<'n> Importer<'n> {
    /// The rule of a `limit_req` or `limit_conn` in a scope.
    fn rule(&mut self, scope: usize, directive: &Directive) -> Option<Node> {
        debug_assert!(directive.end == End::Here, "only these are handed out");
        let place = directive.place;
        let of_requests = directive.name() == "limit_req";
        let name = match of_requests {
            true => directive.option("zone").map(|(_, name)| name.to_owned()),
            false => directive.arguments().first().map(|word| word.text.clone()),
        };
        let zone = self.zone(place, &name.unwrap_or_default(), of_requests)?;
        let kind = if of_requests { Kind::Requests } else { Kind::Connections };
        let mut when = self.scopes.conditions(scope, place);
        if let Some(attribute) = zone.per.first().filter(|_| zone.skips_missing) {
            when.push((attribute.clone(), map(place, vec![("present", text(place, "true"))])));
        }
        let numbers = if of_requests { self.requests(zone, directive)? } else { self.connections(directive)? };
        let wanted = match self.scopes.path(scope) {
            Some(path) => format!("{}{path}", zone.name),
            None => zone.name.clone(),
        };
        let mut pairs = vec![("id", text(place, id_from(&wanted, &mut self.taken)))];
        if !when.is_empty() {
            let when = when.into_iter().map(|(attribute, condition)| (text(place, attribute), condition)).collect();
            pairs.push(("when", Node { place, value: Value::Map(when) }));
        }
        if !zone.per.is_empty() {
            pairs.push(("per", list(place, zone.per.iter().map(|attribute| text(place, &**attribute)).collect())));
        }
        pairs.extend(numbers);
        let excluded = self.scopes.excluded(scope, kind, place, self.left_out);
        if !excluded.is_empty() {
            let exclude = |when| map(place, vec![("when", when), ("unlimited", text(place, "true"))]);
            pairs.push(("overrides", list(place, excluded.into_iter().map(exclude).collect())));
        }
        let (dry_run, status) = self.scopes.manner(scope, kind);
        match dry_run {
            true => pairs.push(("on_exceed", text(place, "shadow"))),
            false => pairs.push(("status", text(place, status))),
        }
        Some(map(place, pairs))
    }

    fn zone(&mut self, place: Place, name: &str, of_requests: bool) -> Option<&'n Zone> {
        let fits = |zone: &&Zone| zone.rate.is_some() == of_requests;
        let Some(zone) = self.zones.iter().filter(fits).find(|zone| zone.name == name) else {
            let names: Vec<&str> = self.zones.iter().filter(fits).map(|zone| &*zone.name).collect();
            let problem = format!("there is no zone `{}` in this file", shorten(name));
            let help = match names.is_empty() {
                true => "put the line that makes it (`limit_req_zone` or `limit_conn_zone`) into the file, too".into(),
                false => valid_instead(name, &names),
            };
            self.notes.add_with_help(place, problem, help);
            return None;
        };
        self.used.insert(name.to_owned());
        Some(zone)
    }

    fn requests(&mut self, zone: &Zone, directive: &Directive) -> Option<Vec<(&'static str, Node)>> {
        let place = directive.place;
        let (count, unit) = zone.rate?;
        let mut number = |name: &str| match directive.option(name) {
            None => Some(0),
            Some((place, text)) => {
                let number = text.parse::<u32>().ok();
                if number.is_none() {
                    self.notes.add(place, format!("`{name}` is a whole number, this is `{}`", shorten(text)));
                }
                number.map(u64::from)
            }
        };
        let (burst, delay) = (number("burst")?, number("delay")?);
        let mut pairs = vec![("limit", text(place, format!("{count}/{unit}")))];
        let waits = burst > 0 && !directive.has("nodelay") && delay < burst;
        if waits {
            pairs.push(("algorithm", text(place, "leaky_bucket")));
        }
        // nginx does not count the request that is being served.
        pairs.push(("burst", text(place, (burst + 1).to_string())));
        if waits && delay > 0 {
            pairs.push(("free", text(place, delay.to_string())));
        }
        Some(pairs)
    }

    fn connections(&mut self, directive: &Directive) -> Option<Vec<(&'static str, Node)>> {
        let place = directive.place;
        let number = directive.arguments().get(1);
        let Some(count) = number.and_then(|word| word.text.parse::<u32>().ok()).filter(|count| *count > 0) else {
            self.notes.add_with_help(
                place,
                "this has no number of connections",
                "nginx wants `limit_conn ZONE NUMBER`",
            );
            return None;
        };
        let problem = "nginx sees connections end; here who takes a slot gives it back";
        let why = "a slot that is neither released nor renewed comes back after its `lease`, 60 seconds unless given";
        self.left_out.add_with_help(place, problem, why);
        Some(vec![("limit", text(place, count.to_string())), ("algorithm", text(place, "concurrency"))])
    }
}
