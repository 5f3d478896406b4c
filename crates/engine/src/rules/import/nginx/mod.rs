//! Imports `limit_req` and `limit_conn` from an nginx configuration.
//!
//! | nginx | rule |
//! |---|---|
//! | `limit_req … burst=n nodelay`, or without a burst | a token bucket with burst `n + 1`: nginx does not count the request being served |
//! | `limit_req … burst=n`, optionally with `delay=m` | a leaky bucket with burst `n + 1`; `m` requests pass without waiting |
//! | `limit_conn zone n` | concurrency `n` |
//! | a zone | a rule, because all limits that name the zone share its counters |
//! | a limit in a server or location | `when`, or an override, which changes the limit but keeps the zone's counters |
//! | several limits in the same block | several rules: a request must pass all of them |
//! | `limit_req_status`, `limit_req_dry_run` | `status`, by default 503; `on_exceed: shadow` |
//! | an empty key is not counted | `when: {…: {present: true}}` |
//! | `include` | the content of the files |

mod include;
mod limit;
mod read;
mod region;
mod scope;
mod zone;

use std::collections::{HashMap, HashSet};

use super::super::Source;
use super::super::mistake::{MistakeCollector, Position};
use super::super::raw::shorten;
use super::super::suggest::suggest_valid;
use super::super::text::{MAX_FILE_BYTES, Node, Value};
use super::ReadIncluded;
use super::build::{list_node, make_unused_id, map_node, text_node};
use include::{IncludeReader, NginxFiles};
use limit::NginxLimit;
use read::Directive;
use region::{Exception, Regions};
use scope::{Block, NginxLimitKind, RefusalStyle, Scopes};
use zone::NginxZone;

/// Maximum number of limits.
const MAX_LIMITS: usize = 4096;
/// Maximum product of the number of rules and the number of scopes.
const MAX_RULES_TIMES_SCOPES: usize = 4_000_000;

/// Returns whether a file contains nginx limits or may include files with limits.
pub(super) fn may_be_nginx_file(bytes: &[u8]) -> bool {
    let ours = |line: &str| {
        let line = line.trim();
        ["limit_req", "limit_conn"].iter().any(|name| line.starts_with(name)) || matches!(line, "http" | "events")
    };
    str::from_utf8(bytes).is_ok_and(|text| text.split(['\n', ';', '{']).any(ours))
}

/// Returns the limits in the rule language, and the included files.
pub(super) fn convert(
    source: &Source<'_>,
    domain: &str,
    include: ReadIncluded<'_>,
    notes: &mut MistakeCollector,
    left_out: &mut MistakeCollector,
) -> (Option<Node>, Vec<(String, Vec<u8>)>) {
    let start = Position { line: 1, column: 1 };
    if source.text.len() > MAX_FILE_BYTES {
        notes.add(start, format!("file too large: {} bytes (maximum {MAX_FILE_BYTES})", source.text.len()));
        return (None, Vec::new());
    }
    let Ok(config) = str::from_utf8(source.text) else {
        notes.add(start, "not UTF-8");
        return (None, Vec::new());
    };
    let mut files = NginxFiles::new(source.name, source.text.len(), IncludeReader(include));
    let directives = files.read_directives(config, notes, left_out);
    let rules = convert_rules(&directives, &files, notes, left_out);
    let tree = rules
        .map(|rules| map_node(start, vec![("domain", text_node(start, domain)), ("rules", list_node(start, rules))]));
    (tree, files.names.into_iter().skip(1).zip(files.included).collect())
}

fn convert_rules(
    directives: &[Directive],
    files: &NginxFiles<'_>,
    notes: &mut MistakeCollector,
    left_out: &mut MistakeCollector,
) -> Option<Vec<Node>> {
    let mut zones: Vec<NginxZone> = Vec::new();
    for directive in directives.iter().filter(|one| matches!(one.name(), "limit_req_zone" | "limit_conn_zone")) {
        files.set_file(directive, notes, left_out);
        zones.extend(NginxZone::read(directive, notes, left_out));
    }
    let scopes = Scopes::read(directives, files, notes, left_out);
    if let Some((number, _)) = scopes.imported_limits().get(MAX_LIMITS) {
        notes.add(directives[*number].position, format!("too many limits (maximum {MAX_LIMITS})"));
        return None;
    }
    let mut importer = Importer {
        zones: &zones,
        scopes: &scopes,
        files,
        notes,
        left_out,
        used_ids: HashSet::new(),
        limits_by_scope_and_zone: HashMap::new(),
    };
    importer.read_limits(directives);
    let rules = importer.build_rules();
    let used: HashSet<usize> = importer.limits_by_scope_and_zone.keys().map(|(_, zone)| *zone).collect();
    for (_, zone) in zones.iter().enumerate().filter(|(number, _)| !used.contains(number)) {
        left_out.set_file(&files.names[zone.file]);
        let problem = format!("no `limit_req` or `limit_conn` uses the zone `{}`", shorten(&zone.name));
        left_out.add_with_help(zone.position, problem, "it limits nothing and is left out");
    }
    if rules.is_empty() && zones.is_empty() {
        notes.add(Position { line: 1, column: 1 }, "the file contains no limits of nginx");
    }
    Some(rules)
}

struct Importer<'n, 'f> {
    zones: &'n [NginxZone],
    scopes: &'n Scopes,
    files: &'n NginxFiles<'f>,
    notes: &'n mut MistakeCollector,
    left_out: &'n mut MistakeCollector,
    used_ids: HashSet<String>,
    /// The limit for a zone in a scope, and its position. The key is the index of the scope and the index of the zone.
    limits_by_scope_and_zone: HashMap<(usize, usize), (NginxLimit, Position)>,
}

impl Importer<'_, '_> {
    /// Parses each limit.
    fn read_limits(&mut self, directives: &[Directive]) {
        for (number, scope) in self.scopes.imported_limits() {
            let directive = &directives[*number];
            self.files.set_file(directive, self.notes, self.left_out);
            let of_requests = NginxLimitKind::of_directive(directive.name()) == Some(NginxLimitKind::Requests);
            let name = match of_requests {
                true => directive.option("zone").map(|(_, name)| name),
                false => directive.arguments().first().map(|word| &*word.text),
            };
            let Some(zone) = self.find_zone(directive.position, name.unwrap_or_default(), of_requests) else {
                continue;
            };
            let limit = match self.zones[zone].rate {
                Some(rate) => NginxLimit::from_limit_req(rate, directive, self.notes),
                None => NginxLimit::from_limit_conn(directive, self.notes, self.left_out),
            };
            if let Some(limit) = limit {
                self.limits_by_scope_and_zone.entry((*scope, zone)).or_insert((limit, directive.position));
            }
        }
    }

    fn find_zone(&mut self, position: Position, name: &str, of_requests: bool) -> Option<usize> {
        let fits = |zone: &&NginxZone| zone.rate.is_some() == of_requests;
        let found = self.zones.iter().position(|zone| fits(&zone) && zone.name == name);
        if found.is_none() {
            let names: Vec<&str> = self.zones.iter().filter(fits).map(|zone| &*zone.name).collect();
            let problem = format!("unknown zone `{}`", shorten(name));
            let help = match names.is_empty() {
                true => "add its `limit_req_zone` or `limit_conn_zone` to the file".into(),
                false => suggest_valid(name, &names),
            };
            self.notes.add_with_help(position, problem, help);
        }
        found
    }

    /// Returns a rule for each zone and refusal style.
    fn build_rules(&mut self) -> Vec<Node> {
        let regions = Regions::new(self.scopes);
        let styles = self.zones_with_refusal_styles();
        let mut rules = Vec::new();
        if styles.len().saturating_mul(self.scopes.len()) > MAX_RULES_TIMES_SCOPES {
            let problem = "too many zones and locations";
            self.notes.add(Position { line: 1, column: 1 }, problem);
            return rules;
        }
        for (position, (zone, style)) in styles.iter().enumerate() {
            self.left_out.set_file(&self.files.names[self.zones[*zone].file]);
            if styles[..position].iter().any(|(earlier, _)| earlier == zone) {
                let problem = format!("the zone `{}` has several kinds of refusals", shorten(&self.zones[*zone].name));
                self.left_out.add_with_help(self.zones[*zone].position, problem, "here each kind has its own counter");
            }
            rules.extend(self.convert_rule(*zone, style, &regions));
        }
        rules
    }

    /// Returns each zone in use with each of its refusal styles, sorted by zone.
    fn zones_with_refusal_styles(&self) -> Vec<(usize, RefusalStyle)> {
        let mut found: Vec<(usize, RefusalStyle)> = Vec::new();
        let mut known = HashSet::new();
        for scope in 0..self.scopes.len() {
            for (number, zone) in self.zones.iter().enumerate() {
                let kind = zone.kind();
                let source = self
                    .scopes
                    .inherited_from(scope, kind)
                    .filter(|source| self.limits_by_scope_and_zone.contains_key(&(*source, number)));
                if source.is_none() || self.scopes.get(scope).block == Block::Expression {
                    continue;
                }
                let style = self.scopes.refusal_style(scope, kind);
                if known.insert((number, style.clone())) {
                    found.push((number, style));
                }
            }
        }
        found.sort_by_key(|(zone, _)| *zone);
        found
    }

    fn convert_rule(&mut self, number: usize, style: &RefusalStyle, regions: &Regions) -> Option<Node> {
        let zone = &self.zones[number];
        let kind = zone.kind();
        let limit_in = |scope: usize| {
            let source = self.scopes.inherited_from(scope, kind)?;
            let (limit, _) = self.limits_by_scope_and_zone.get(&(source, number))?;
            (self.scopes.refusal_style(scope, kind) == *style).then_some(limit)
        };
        let base = limit_in(0);
        let mut exceptions = regions.exceptions(self.scopes, limit_in);
        // Trailing exceptions without a limit are redundant if requests outside all exceptions have no limit.
        while base.is_none() && exceptions.last().is_some_and(|last| last.limit.is_none()) {
            exceptions.pop();
        }
        // If only one region is limited, that region becomes the condition of the rule.
        let alone = base.is_none() && exceptions.iter().filter(|exception| exception.limit.is_some()).count() == 1;
        let only = if alone { exceptions.pop() } else { None };
        let position = zone.position;
        let mut when = only.as_ref().map(|only| only.conditions(position)).unwrap_or_default();
        if let Some(attribute) = zone.per.first().filter(|_| zone.skips_missing) {
            when.push((attribute, map_node(position, vec![("present", text_node(position, "true"))])));
        }
        let path = only.as_ref().and_then(Exception::single_path).unwrap_or_default();
        let mut pairs =
            vec![("id", text_node(position, make_unused_id(&format!("{}{path}", zone.name), &mut self.used_ids)))];
        if !when.is_empty() {
            let when =
                when.into_iter().map(|(attribute, condition)| (text_node(position, attribute), condition)).collect();
            pairs.push(("when", Node { position, value: Value::Map(when) }));
        }
        if !zone.per.is_empty() {
            pairs.push((
                "per",
                list_node(position, zone.per.iter().map(|attribute| text_node(position, &**attribute)).collect()),
            ));
        }
        let unlimited = || vec![("unlimited", text_node(position, "true"))];
        let keys =
            |limit: Option<&NginxLimit>| limit.map_or_else(unlimited, |limit| limit.to_key_value_pairs(position));
        pairs.extend(keys(only.as_ref().map_or(base, |only| only.limit)));
        let overrides = exceptions.iter().map(|exception| {
            let when = map_node(position, exception.conditions(position));
            map_node(position, std::iter::once(("when", when)).chain(keys(exception.limit)).collect())
        });
        let overrides: Vec<Node> = overrides.collect();
        if !overrides.is_empty() {
            pairs.push(("overrides", list_node(position, overrides)));
        }
        match style.dry_run {
            true => pairs.push(("on_exceed", text_node(position, "shadow"))),
            false => pairs.push(("status", text_node(position, &*style.status))),
        }
        let rule = map_node(position, pairs);
        self.report_differences(number, style, regions);
        Some(rule)
    }

    /// Reports locations and servers in which the imported rule behaves differently from nginx.
    fn report_differences(&mut self, number: usize, style: &RefusalStyle, regions: &Regions) {
        let kind = self.zones[number].kind();
        let source = |scope: usize| {
            let source = self
                .scopes
                .inherited_from(scope, kind)
                .filter(|source| self.limits_by_scope_and_zone.contains_key(&(*source, number)))?;
            (self.scopes.refusal_style(scope, kind) == *style).then_some(source)
        };
        let position = self.zones[number].position;
        for scope in 0..self.scopes.len() {
            let Some(outside) = self.scopes.get(scope).parent else { continue };
            let expression = self.scopes.get(scope).block == Block::Expression;
            if expression && !self.scopes.is_in_regex_location(scope) && source(scope) != source(outside) {
                let line = self.scopes.get(scope).position.line;
                let problem = format!("this also applies in the location of line {line}");
                let why = "locations with regular expressions are not imported";
                self.left_out.add_with_help(position, problem, why);
            }
        }
        let nameless: Vec<usize> = regions.nameless_servers().collect();
        let differing = nameless.iter().find(|server| source(**server) != source(nameless[0]));
        if let Some(server) = differing {
            let line = self.scopes.get(*server).position.line;
            let problem = format!("the server of line {line} and another one have no name");
            self.left_out.add_with_help(position, problem, "rules cannot distinguish them: the first one applies");
        }
    }
}
