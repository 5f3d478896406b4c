//! Logs whose lines consist of fields with fixed text between them, such as the access logs of nginx, Apache, Envoy and
//! HAProxy.
//!
//! The formats of all these programs are converted to the same kind of pattern. Fields have the names of nginx's
//! variables, so that one list of names suffices to find attributes.

use super::span::Span;
use crate::replay::bounds::MAX_FIELDS;

/// A parsed format.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The text before the first field.
    start: Box<[u8]>,
    fields: Vec<PatternField>,
    names: Vec<String>,
    /// Whether lines may continue after the last field.
    open: bool,
    /// The text that ends an optional prefix of a line. The prefix is skipped.
    skip: Option<&'static [u8]>,
}

/// A field of a line.
#[derive(Clone, Debug)]
struct PatternField {
    end: Box<[u8]>,
    /// Whether the field is in quotes, so that `\"` does not end it.
    quoted: bool,
}

/// A part of a format: text, or the name of a field.
#[derive(Debug)]
enum Part {
    Text(String),
    Field(String),
}

impl Pattern {
    /// Parses a `log_format` of nginx (`$remote_addr …`), a `LogFormat` of Apache (`%h …`) or an access log format of
    /// Envoy (`%START_TIME% …`). Also accepts the whole directive.
    ///
    /// # Errors
    /// Returns an error if `text` is not a valid format.
    pub fn new(text: &str) -> Result<Self, String> {
        let text = strip_directive(text);
        let parts = if text.contains('$') {
            parse_nginx(&text)?
        } else if is_envoy(&text) {
            parse_envoy(&text)?
        } else if text.contains('%') {
            parse_apache(&text)?
        } else {
            return Err(
                "a format has fields, such as $remote_addr of nginx, %h of Apache or %START_TIME% of Envoy".into()
            );
        };
        Self::from_parts(parts)
    }

    fn from_parts(parts: Vec<Part>) -> Result<Self, String> {
        let mut pattern =
            Self { start: Box::default(), fields: Vec::new(), names: Vec::new(), open: false, skip: None };
        let mut text = String::new();
        for part in parts {
            match part {
                Part::Text(more) => text.push_str(&more),
                Part::Field(name) => {
                    pattern.end_field(&text);
                    let quoted = text.ends_with('"');
                    text.clear();
                    pattern.fields.push(PatternField { end: Box::default(), quoted });
                    pattern.names.push(name);
                }
            }
        }
        if pattern.fields.is_empty() {
            return Err("the format has no fields".into());
        }
        if pattern.fields.len() > MAX_FIELDS {
            return Err(format!("too many fields: {} (maximum {MAX_FIELDS})", pattern.fields.len()));
        }
        pattern.end_field(&text);
        pattern.checked()
    }

    /// Sets the text after the last field added so far, or before the first field if there is none yet.
    fn end_field(&mut self, text: &str) {
        match self.fields.last_mut() {
            None => self.start = text.as_bytes().into(),
            Some(field) => {
                field.end = text.as_bytes().into();
                field.quoted &= text.starts_with('"');
            }
        }
    }

    /// Checks that every field except the last is followed by text.
    fn checked(self) -> Result<Self, String> {
        let last = self.fields.len() - 1;
        match self.fields.iter().position(|field| field.end.is_empty()).filter(|index| *index != last) {
            None => Ok(self),
            Some(index) => {
                let (name, next) = (&self.names[index], &self.names[index + 1]);
                Err(format!("nothing separates the fields `{name}` and `{next}`, so the end of the first is unknown"))
            }
        }
    }

    /// Allows more text after the last field, because many formats extend a standard format.
    #[must_use]
    fn open(self) -> Self {
        Self { open: true, ..self }
    }

    /// Returns the names of the fields.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Parses a line that begins at offset `base`. Returns whether the line has this format.
    pub fn parse(&self, line: &[u8], base: usize, fields: &mut [Span]) -> bool {
        let mut at = match self.skip {
            None => 0,
            Some(skip) => memchr::memmem::find(line, skip).map_or(0, |found| found + skip.len()),
        };
        if !line[at..].starts_with(&self.start) {
            return false;
        }
        at += self.start.len();
        for (field, span) in self.fields.iter().zip(fields) {
            let rest = &line[at..];
            let Some((len, escaped)) = field.field_length(rest, self.open) else { return false };
            *span = Span::new(base + at, len).escaped_if(escaped);
            at += len + field.end.len().min(rest.len() - len);
        }
        self.open || at == line.len()
    }
}

impl PatternField {
    /// Returns the length of the field at the beginning of `rest`, and whether the field contains escape sequences.
    /// Returns `None` if the text after the field is missing.
    #[inline]
    fn field_length(&self, rest: &[u8], open: bool) -> Option<(usize, bool)> {
        let Some((first, more)) = self.end.split_first() else {
            // In an open format, the last field ends at the next space.
            let len = if open { memchr::memchr(b' ', rest).unwrap_or(rest.len()) } else { rest.len() };
            return Some((len, memchr::memchr(b'\\', &rest[..len]).is_some()));
        };
        let (mut from, mut escaped) = (0, false);
        loop {
            let next = match self.quoted {
                true => memchr::memchr2(b'"', b'\\', &rest[from..])?,
                false => memchr::memchr(*first, &rest[from..])?,
            } + from;
            if self.quoted && rest[next] == b'\\' {
                (from, escaped) = ((next + 2).min(rest.len()), true);
                continue;
            }
            if rest[next + 1..].starts_with(more) {
                return Some((next, escaped));
            }
            if self.quoted {
                return None;
            }
            from = next + 1;
        }
    }
}

/// Returns the quoted strings of a directive (`log_format NAME '…' '…';` or `LogFormat "…" NAME`), or the text
/// unchanged.
fn strip_directive(text: &str) -> String {
    let text = text.trim();
    let Some(rest) = text.strip_prefix("log_format").or_else(|| text.strip_prefix("LogFormat")) else {
        return text.to_owned();
    };
    let (mut format, mut rest) = (String::new(), rest);
    while let Some(start) = rest.find(['\'', '"']) {
        let quote = rest[start..].chars().next().unwrap_or('"');
        let mut escaped = false;
        rest = &rest[start + 1..];
        let mut end = rest.len();
        for (index, letter) in rest.char_indices() {
            if escaped {
                escaped = false;
            } else if letter == '\\' {
                escaped = true;
                continue;
            } else if letter == quote {
                end = index;
                break;
            }
            format.push(letter);
        }
        rest = rest.get(end + 1..).unwrap_or("");
    }
    format
}

/// Returns whether a format is Envoy's, that is, contains `%NAME%` or `%NAME(…)%` in capital letters.
fn is_envoy(text: &str) -> bool {
    text.split('%').any(|part| {
        let name = part.split('(').next().unwrap_or("");
        name.len() >= 3 && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    })
}

fn parse_nginx(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        parts.push(Part::Text(before.to_owned()));
        let (name, next) = match after.strip_prefix('{') {
            Some(braced) => braced.split_once('}').ok_or("a `${` without `}`")?,
            None => {
                let end = after.find(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_');
                after.split_at(end.unwrap_or(after.len()))
            }
        };
        if name.is_empty() {
            return Err("a `$` without the name of a variable".into());
        }
        parts.push(Part::Field(name.to_owned()));
        rest = next;
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

fn parse_apache(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        parts.push(Part::Text(before.replace("\\\"", "\"")));
        let after = after.trim_start_matches(|letter: char| "<>!,".contains(letter) || letter.is_ascii_digit());
        let (argument, after) = match after.strip_prefix('{') {
            Some(braced) => {
                let (argument, after) = braced.split_once('}').ok_or("a `%{` without `}`")?;
                (Some(argument), after)
            }
            None => (None, after),
        };
        let after = after.trim_start_matches(['<', '>', '^']);
        let Some(letter) = after.chars().next() else { return Err("a `%` without a directive".into()) };
        rest = &after[letter.len_utf8()..];
        let header = |kind: &str| {
            let name = argument.unwrap_or("").to_ascii_lowercase().replace('-', "_");
            format!("{kind}_{name}")
        };
        let name = match (letter, argument) {
            ('%', None) => {
                parts.push(Part::Text("%".into()));
                continue;
            }
            ('t', None) => {
                parts.push(Part::Text("[".into()));
                parts.push(Part::Field("time_local".into()));
                parts.push(Part::Text("]".into()));
                continue;
            }
            ('t', Some(_)) => "time_local".into(),
            ('h' | 'a', _) => "remote_addr".into(),
            ('l', _) => "ident".into(),
            ('u', _) => "remote_user".into(),
            ('r', _) => "request".into(),
            ('s', _) => "status".into(),
            ('b' | 'B' | 'O', _) => "body_bytes_sent".into(),
            ('m', _) => "request_method".into(),
            ('U', _) => "uri".into(),
            ('q', _) => "args".into(),
            ('v' | 'V', _) => "server_name".into(),
            ('i', Some(_)) => header("http"),
            ('C', Some(_)) => header("cookie"),
            ('o', Some(_)) => header("sent_http"),
            ('e' | 'n' | 'x', Some(name)) => name.to_owned(),
            (letter, _) => format!("apache_{letter}"),
        };
        parts.push(Part::Field(name));
    }
    parts.push(Part::Text(rest.replace("\\\"", "\"")));
    Ok(parts)
}

fn parse_envoy(text: &str) -> Result<Vec<Part>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        parts.push(Part::Text(before.to_owned()));
        // The argument in parentheses, such as a time format, may contain `%`.
        let closing = match after.find('(') {
            Some(open) if !after[..open].contains('%') => {
                let close = after[open..].find(')').ok_or("a `(` without `)`")? + open;
                close + after[close..].find('%').ok_or("a `%` without a second one")?
            }
            Some(_) | None => after.find('%').ok_or("a `%` without a second one")?,
        };
        let (command, next) = (&after[..closing], &after[closing + 1..]);
        rest = next;
        let (name, argument) = command.split_once('(').unwrap_or((command, ""));
        let argument = argument.split([')', '?']).next().unwrap_or("");
        let field = match (name, argument) {
            ("START_TIME", _) => "time_local".into(),
            ("REQ", ":METHOD") => "request_method".into(),
            ("REQ", ":PATH" | "X-ENVOY-ORIGINAL-PATH") => "request_uri".into(),
            ("REQ", ":AUTHORITY") => "host".into(),
            ("REQ", header) => format!("http_{}", header.to_ascii_lowercase().replace('-', "_")),
            (
                "DOWNSTREAM_REMOTE_ADDRESS"
                | "DOWNSTREAM_REMOTE_ADDRESS_WITHOUT_PORT"
                | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS"
                | "DOWNSTREAM_DIRECT_REMOTE_ADDRESS_WITHOUT_PORT",
                _,
            ) => "remote_addr".into(),
            ("RESPONSE_CODE", _) => "status".into(),
            ("BYTES_SENT", _) => "body_bytes_sent".into(),
            (name, _) => name.to_ascii_lowercase(),
        };
        parts.push(Part::Field(field));
    }
    parts.push(Part::Text(rest.to_owned()));
    Ok(parts)
}

/// Returns the formats that are recognised by name.
pub(super) fn known_formats() -> Vec<(&'static str, Pattern)> {
    const COMMON: &str = "$remote_addr $ident $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
    const REST: &str = " \"$http_referer\" \"$http_user_agent\"";
    const ENVOY: &str = "[$time_local] \"$request_method $request_uri $protocol\" $status $flags $bytes_received $body_bytes_sent \
        $duration $upstream_time \"$http_x_forwarded_for\" \"$http_user_agent\" \"$http_x_request_id\" \"$host\" \"$upstream\"";
    const ISTIO: &str = "[$time_local] \"$request_method $request_uri $protocol\" $status $flags $details $termination \
        \"$failure\" $bytes_received $body_bytes_sent $duration $upstream_time \"$http_x_forwarded_for\" \
        \"$http_user_agent\" \"$http_x_request_id\" \"$host\" \"$upstream\"";
    const HAPROXY: &str = "$remote_addr_port [$time_local] $frontend $backend/$server $timers $status $body_bytes_sent \
        $request_cookie $response_cookie $termination $connections $queues\"$request\"";
    let pattern = |text: &str| parse_nginx(text).and_then(Pattern::from_parts);
    let known = [
        ("vhost_combined", pattern(&format!("$server_name:$server_port {COMMON}{REST}")).map(Pattern::open)),
        ("combined", pattern(&format!("{COMMON}{REST}")).map(Pattern::open)),
        ("envoy", pattern(ENVOY).map(Pattern::open)),
        ("envoy", pattern(ISTIO).map(Pattern::open)),
        ("haproxy", pattern(HAPROXY).map(|pattern| Pattern { skip: Some(b"]: "), ..pattern }.open())),
        ("common", pattern(COMMON).map(Pattern::open)),
    ];
    known.into_iter().filter_map(|(name, pattern)| Some((name, pattern.ok()?))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_fields(pattern: &Pattern, line: &str) -> Option<Vec<(String, String)>> {
        let mut spans = [Span::NONE; MAX_FIELDS];
        pattern.parse(line.as_bytes(), 0, &mut spans).then(|| {
            let value =
                |span: &Span| String::from_utf8_lossy(span.of(line.as_bytes()).unwrap_or_default()).into_owned();
            pattern.names().iter().cloned().zip(spans.iter().map(value)).collect()
        })
    }

    fn check(format: &str, line: &str, expected: &[(&str, &str)]) {
        let pattern = Pattern::new(format).unwrap_or_else(|error| panic!("{format}: {error}"));
        let found = parse_fields(&pattern, line).unwrap_or_else(|| panic!("{format}\n{line}"));
        for (name, value) in expected {
            assert!(found.contains(&((*name).to_owned(), (*value).to_owned())), "{name}: {found:?}");
        }
    }

    #[test]
    fn formats_of_three_programs_become_the_same_fields() {
        let line = "10.0.0.1 - - [16/Nov/2026:09:00:00 +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"a \\\"b\\\"\" k-1";
        let expected =
            [("remote_addr", "10.0.0.1"), ("request", "GET /a HTTP/1.1"), ("http_x_key", "k-1"), ("status", "200")];
        check(
            "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \
             \"$http_user_agent\" ${http_x_key}",
            line,
            &expected,
        );
        check("%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\" %{X-Key}i", line, &expected);
        check(
            "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% %REQ(X-KEY)%",
            "[2026-11-16T09:00:00.123Z] \"GET /a HTTP/2\" 200 k-1",
            &[("request_method", "GET"), ("request_uri", "/a"), ("http_x_key", "k-1"), ("status", "200")],
        );
    }

    #[test]
    fn whole_directives_are_accepted() {
        let line = "10.0.0.1 \"GET / HTTP/1.1\" 1700000000.123";
        let expected = [("remote_addr", "10.0.0.1"), ("msec", "1700000000.123")];
        check("log_format main '$remote_addr \"$request\" '\n    '$msec';", line, &expected);
        check(r#"LogFormat "%h \"%r\" %{msec}t" main"#, line, &expected[..1]);
    }

    #[test]
    fn a_field_ends_with_the_whole_text_that_follows_it() {
        check("$a [$b] - $c", "x [y] z [q] - w", &[("a", "x"), ("b", "y] z [q"), ("c", "w")]);
    }

    #[test]
    fn lines_of_another_format_are_refused() {
        let pattern = Pattern::new("$a - $b").unwrap();
        for line in ["", "x", "x-y", "x -"] {
            assert_eq!(parse_fields(&pattern, line), None, "{line}");
        }
        assert_eq!(parse_fields(&Pattern::new("<$a>").unwrap(), "<x> "), None);
    }

    #[test]
    fn wrong_formats_are_reported() {
        for (format, error) in [
            ("plain", "a format has fields"),
            ("$a$b", "nothing separates"),
            ("$ x", "without the name"),
            ("${a", "without `}`"),
            ("%START_TIME", "a `%` without a second one"),
            ("%h %", "a `%` without a directive"),
        ] {
            assert!(Pattern::new(format).unwrap_err().contains(error), "{format}");
        }
    }
}
