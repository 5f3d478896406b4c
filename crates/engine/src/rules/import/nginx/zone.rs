//! Parses zones: their names, keys and rates.

use super::super::super::mistake::{MistakeCollector, Position};
use super::super::super::raw::shorten;
use super::read::Directive;
use super::scope::NginxLimitKind;

/// A `limit_req_zone` or `limit_conn_zone`.
#[derive(Debug)]
pub(super) struct NginxZone {
    /// The index of the zone's file.
    pub(super) file: usize,
    pub(super) position: Position,
    pub(super) name: String,
    /// The attributes to count by.
    pub(super) per: Vec<String>,
    /// Whether requests without the attribute are exempt, because nginx does not count empty keys.
    pub(super) skips_missing: bool,
    /// The rate per second or minute; `None` for connections.
    pub(super) rate: Option<(u64, char)>,
}

impl NginxZone {
    /// Returns the kind of the zone's limits.
    pub(super) fn kind(&self) -> NginxLimitKind {
        if self.rate.is_some() { NginxLimitKind::Requests } else { NginxLimitKind::Connections }
    }

    pub(super) fn read(
        directive: &Directive,
        notes: &mut MistakeCollector,
        left_out: &mut MistakeCollector,
    ) -> Option<Self> {
        let of_requests = directive.name() == "limit_req_zone";
        let zone =
            directive.option("zone").and_then(|(_, zone)| zone.split(':').next()).filter(|name| !name.is_empty());
        let Some(name) = zone else {
            notes.add_with_help(directive.position, "missing name of the zone", "write `zone=NAME:SIZE`");
            return None;
        };
        let rate = if of_requests { Some(read_rate(directive, notes, left_out)?) } else { None };
        let key = directive.arguments().first().filter(|word| !word.text.starts_with("zone="));
        let Some(key) = key else {
            notes.add(directive.position, "missing key of the zone");
            return None;
        };
        let mut per: Vec<String> = Vec::new();
        let mut skips_missing = false;
        let variables = variable_names(&key.text);
        for variable in &variables {
            let (attribute, always) = attribute_for_variable(variable, key.position, left_out);
            skips_missing = !always;
            if !per.contains(&attribute) {
                per.push(attribute);
            }
        }
        // A key with other text is never empty. A key of several variables is empty only if all variables are empty, and
        // a rule cannot express this condition.
        let is_variable = |name: &String| key.text == format!("${name}") || key.text == format!("${{{name}}}");
        skips_missing &= matches!(&variables[..], [name] if is_variable(name));
        Some(Self {
            file: directive.file,
            position: directive.position,
            name: name.to_owned(),
            per,
            skips_missing,
            rate,
        })
    }
}

/// Parses `10r/s` or `30r/m`.
fn read_rate(
    directive: &Directive,
    notes: &mut MistakeCollector,
    left_out: &mut MistakeCollector,
) -> Option<(u64, char)> {
    let Some((position, rate)) = directive.option("rate") else {
        notes.add_with_help(directive.position, "missing rate of the zone", "add one like `rate=10r/s`");
        return None;
    };
    let parse = |rate: &str, unit: &str| rate.strip_suffix(unit)?.parse::<u64>().ok().filter(|count| *count > 0);
    match (parse(rate, "r/s"), parse(rate, "r/m")) {
        (Some(count), _) => Some((count, 's')),
        (_, Some(count)) => {
            if count.saturating_mul(1000) % 60 != 0 {
                let problem = format!("nginx rounds `{rate}` down to thousandths of a request per second");
                left_out.add_with_help(position, problem, "here it is exact");
            }
            Some((count, 'm'))
        }
        (None, None) => {
            let problem = format!("`{}` is not an nginx rate", shorten(rate));
            notes.add_with_help(position, problem, "write it like `10r/s` or `30r/m`");
            None
        }
    }
}

/// Returns the names of the variables in a key.
fn variable_names(key: &str) -> Vec<String> {
    let mut names = Vec::new();
    for part in key.split('$').skip(1) {
        let name = match part.strip_prefix('{') {
            Some(braced) => braced.split('}').next().unwrap_or_default(),
            None => {
                let end = part.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
                &part[..end.unwrap_or(part.len())]
            }
        };
        if !name.is_empty() {
            names.push(name.to_owned());
        }
    }
    names
}

/// Returns the attribute for a variable, and whether every request has that attribute.
fn attribute_for_variable(variable: &str, position: Position, left_out: &mut MistakeCollector) -> (String, bool) {
    let known = match variable {
        "binary_remote_addr" | "remote_addr" => Some("client_ip"),
        "host" | "http_host" | "server_name" => Some("host"),
        "uri" | "document_uri" => Some("path"),
        "request_method" => Some("method"),
        _ => None,
    };
    if let Some(known) = known {
        return (known.to_owned(), true);
    }
    for (prefix, ours) in [("http_", "header."), ("cookie_", "cookie."), ("arg_", "query.")] {
        if let Some(name) = variable.strip_prefix(prefix).filter(|name| !name.is_empty()) {
            let name = if prefix == "http_" { name.replace('_', "-") } else { name.to_owned() };
            return (format!("{ours}{name}"), false);
        }
    }
    let problem = format!("the variable `${variable}` is known only to nginx");
    left_out.add_with_help(position, problem, format!("send it as the attribute `{variable}`"));
    (variable.to_owned(), false)
}
