//! Log formats with fields separated by fixed text, such as the access logs of nginx, Apache, Envoy and HAProxy.
//!
//! All these formats are converted to a [`Pattern`]. The fields of a pattern have the names of nginx variables, so
//! that a field has the same name in the logs of all programs.

use super::span::Span;
use crate::replay::bounds::MAX_FIELDS;

/// A parsed format.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The text before the first field.
    start: Box<[u8]>,
    fields: Vec<PatternField>,
    names: Vec<String>,
    /// Whether a line may have more text after the last field.
    allows_suffix: bool,
    /// The text that ends an optional prefix of each line. The prefix is skipped.
    skipped_prefix_end: Option<&'static [u8]>,
}

/// A field of a line.
#[derive(Clone, Debug)]
struct PatternField {
    end: Box<[u8]>,
    /// Whether the field is in quotes, so that `\"` does not end it.
    quoted: bool,
}

/// A part of a format: fixed text, or the name of a field.
#[derive(Debug)]
enum FormatPart {
    Text(String),
    Field(String),
}

impl Pattern {
    /// Parses nginx's `log_format` (`$remote_addr …`), Apache's `LogFormat` (`%h …`) or an Envoy access-log format
    /// (`%START_TIME% …`). Also accepts the whole nginx or Apache directive.
    ///
    /// # Errors
    /// Returns an error if `text` is not a valid format.
    pub fn new(text: &str) -> Result<Self, String> {
        let text = strip_directive(text);
        let parts = if text.contains('$') {
            parse_nginx(&text)?
        } else if is_envoy_format(&text) {
            parse_envoy(&text)?
        } else if text.contains('%') {
            parse_apache(&text)?
        } else {
            return Err(
                "no fields in the format; write them like $remote_addr (nginx), %h (Apache) or %START_TIME% (Envoy)"
                    .into(),
            );
        };
        Self::from_parts(parts)
    }

    fn from_parts(parts: Vec<FormatPart>) -> Result<Self, String> {
        let mut pattern = Self {
            start: Box::default(),
            fields: Vec::new(),
            names: Vec::new(),
            allows_suffix: false,
            skipped_prefix_end: None,
        };
        let mut text = String::new();
        for part in parts {
            match part {
                FormatPart::Text(more) => text.push_str(&more),
                FormatPart::Field(name) => {
                    pattern.set_adjacent_text(&text);
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
        pattern.set_adjacent_text(&text);
        pattern.check_separators()
    }

    /// Sets the text that follows the most recently added field or, if there is no field yet, precedes the first field.
    fn set_adjacent_text(&mut self, text: &str) {
        match self.fields.last_mut() {
            None => self.start = text.as_bytes().into(),
            Some(field) => {
                field.end = text.as_bytes().into();
                field.quoted &= text.starts_with('"');
            }
        }
    }

    /// Checks that text separates each field from the next one.
    fn check_separators(self) -> Result<Self, String> {
        let last = self.fields.len() - 1;
        match self.fields.iter().position(|field| field.end.is_empty()).filter(|index| *index != last) {
            None => Ok(self),
            Some(index) => {
                let (name, next) = (&self.names[index], &self.names[index + 1]);
                Err(format!("nothing separates the fields `{name}` and `{next}`, so the end of `{name}` is unknown"))
            }
        }
    }

    /// Allows more text after the last field, because many custom formats extend a standard format.
    #[must_use]
    fn allow_suffix(self) -> Self {
        Self { allows_suffix: true, ..self }
    }

    /// Returns the names of the fields.
    pub fn field_names(&self) -> &[String] {
        &self.names
    }

    /// Parses a line that begins at offset `base`. Returns whether the line has this format.
    pub fn parse(&self, line: &[u8], base: usize, fields: &mut [Span]) -> bool {
        let mut at = match self.skipped_prefix_end {
            None => 0,
            Some(skipped_prefix_end) => {
                memchr::memmem::find(line, skipped_prefix_end).map_or(0, |found| found + skipped_prefix_end.len())
            }
        };
        if !line[at..].starts_with(&self.start) {
            return false;
        }
        at += self.start.len();
        for (field, span) in self.fields.iter().zip(fields) {
            let rest = &line[at..];
            let Some((len, escaped)) = field.field_length(rest, self.allows_suffix) else { return false };
            *span = Span::new(base + at, len).escaped_if(escaped);
            at += len + field.end.len().min(rest.len() - len);
        }
        self.allows_suffix || at == line.len()
    }
}

impl PatternField {
    /// Returns the length of the field at the start of `rest`, and whether the field contains escape sequences. Returns
    /// `None` if the text that ends the field is missing.
    #[inline]
    fn field_length(&self, rest: &[u8], allows_suffix: bool) -> Option<(usize, bool)> {
        let Some((first, more)) = self.end.split_first() else {
            // If more text may follow, the last field ends at the next space.
            let len = if allows_suffix { memchr::memchr(b' ', rest).unwrap_or(rest.len()) } else { rest.len() };
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

/// Returns the concatenated quoted strings of a directive (`log_format NAME '…' '…';` or `LogFormat "…" NAME`). Returns
/// other text unchanged.
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

/// Returns whether this is an Envoy format: it contains `%NAME%` or `%NAME(…)%` in capital letters.
fn is_envoy_format(text: &str) -> bool {
    text.split('%').any(|part| {
        let name = part.split('(').next().unwrap_or("");
        name.len() >= 3 && name.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_')
    })
}

fn parse_nginx(text: &str) -> Result<Vec<FormatPart>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        parts.push(FormatPart::Text(before.to_owned()));
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
        parts.push(FormatPart::Field(name.to_owned()));
        rest = next;
    }
    parts.push(FormatPart::Text(rest.to_owned()));
    Ok(parts)
}

fn parse_apache(text: &str) -> Result<Vec<FormatPart>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        parts.push(FormatPart::Text(before.replace("\\\"", "\"")));
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
                parts.push(FormatPart::Text("%".into()));
                continue;
            }
            ('t', None) => {
                parts.push(FormatPart::Text("[".into()));
                parts.push(FormatPart::Field("time_local".into()));
                parts.push(FormatPart::Text("]".into()));
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
        parts.push(FormatPart::Field(name));
    }
    parts.push(FormatPart::Text(rest.replace("\\\"", "\"")));
    Ok(parts)
}

fn parse_envoy(text: &str) -> Result<Vec<FormatPart>, String> {
    let mut parts = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('%') {
        parts.push(FormatPart::Text(before.to_owned()));
        // An argument in parentheses, such as a time format, may contain `%`.
        let closing = match after.find('(') {
            Some(open) if !after[..open].contains('%') => {
                let close = after[open..].find(')').ok_or("a `(` without `)`")? + open;
                close + after[close..].find('%').ok_or("a `%` without a closing `%`")?
            }
            Some(_) | None => after.find('%').ok_or("a `%` without a closing `%`")?,
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
        parts.push(FormatPart::Field(field));
    }
    parts.push(FormatPart::Text(rest.to_owned()));
    Ok(parts)
}

/// Returns the predefined formats and their names.
pub(super) fn known_formats() -> Vec<(&'static str, Pattern)> {
    const COMMON_FORMAT: &str = "$remote_addr $ident $remote_user [$time_local] \"$request\" $status $body_bytes_sent";
    const COMBINED_SUFFIX: &str = " \"$http_referer\" \"$http_user_agent\"";
    const ENVOY_FORMAT: &str = "[$time_local] \"$request_method $request_uri $protocol\" $status $flags $bytes_received $body_bytes_sent \
        $duration $upstream_time \"$http_x_forwarded_for\" \"$http_user_agent\" \"$http_x_request_id\" \"$host\" \"$upstream\"";
    const ISTIO_FORMAT: &str = "[$time_local] \"$request_method $request_uri $protocol\" $status $flags $details $termination \
        \"$failure\" $bytes_received $body_bytes_sent $duration $upstream_time \"$http_x_forwarded_for\" \
        \"$http_user_agent\" \"$http_x_request_id\" \"$host\" \"$upstream\"";
    const HAPROXY_FORMAT: &str = "$remote_addr_port [$time_local] $frontend $backend/$server $timers $status $body_bytes_sent \
        $request_cookie $response_cookie $termination $connections $queues\"$request\"";
    let pattern = |text: &str| parse_nginx(text).and_then(Pattern::from_parts);
    let known = [
        (
            "vhost_combined",
            pattern(&format!("$server_name:$server_port {COMMON_FORMAT}{COMBINED_SUFFIX}")).map(Pattern::allow_suffix),
        ),
        ("combined", pattern(&format!("{COMMON_FORMAT}{COMBINED_SUFFIX}")).map(Pattern::allow_suffix)),
        ("envoy", pattern(ENVOY_FORMAT).map(Pattern::allow_suffix)),
        ("envoy", pattern(ISTIO_FORMAT).map(Pattern::allow_suffix)),
        (
            "haproxy",
            pattern(HAPROXY_FORMAT)
                .map(|pattern| Pattern { skipped_prefix_end: Some(b"]: "), ..pattern }.allow_suffix()),
        ),
        ("common", pattern(COMMON_FORMAT).map(Pattern::allow_suffix)),
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
                |span: &Span| String::from_utf8_lossy(span.bytes_in(line.as_bytes()).unwrap_or_default()).into_owned();
            pattern.field_names().iter().cloned().zip(spans.iter().map(value)).collect()
        })
    }

    fn check_fields(format: &str, line: &str, expected: &[(&str, &str)]) {
        let pattern = Pattern::new(format).unwrap_or_else(|error| panic!("{format}: {error}"));
        let found = parse_fields(&pattern, line).unwrap_or_else(|| panic!("{format}\n{line}"));
        for (name, value) in expected {
            assert!(found.contains(&((*name).to_owned(), (*value).to_owned())), "{name}: {found:?}");
        }
    }

    #[test]
    fn nginx_apache_and_envoy_formats_give_the_same_fields() {
        let line = "10.0.0.1 - - [16/Nov/2026:09:00:00 +0000] \"GET /a HTTP/1.1\" 200 5 \"-\" \"a \\\"b\\\"\" k-1";
        let expected =
            [("remote_addr", "10.0.0.1"), ("request", "GET /a HTTP/1.1"), ("http_x_key", "k-1"), ("status", "200")];
        check_fields(
            "$remote_addr - $remote_user [$time_local] \"$request\" $status $body_bytes_sent \"$http_referer\" \
             \"$http_user_agent\" ${http_x_key}",
            line,
            &expected,
        );
        check_fields("%h %l %u %t \"%r\" %>s %b \"%{Referer}i\" \"%{User-Agent}i\" %{X-Key}i", line, &expected);
        check_fields(
            "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" %RESPONSE_CODE% %REQ(X-KEY)%",
            "[2026-11-16T09:00:00.123Z] \"GET /a HTTP/2\" 200 k-1",
            &[("request_method", "GET"), ("request_uri", "/a"), ("http_x_key", "k-1"), ("status", "200")],
        );
    }

    #[test]
    fn whole_directives_are_accepted() {
        let line = "10.0.0.1 \"GET / HTTP/1.1\" 1700000000.123";
        let expected = [("remote_addr", "10.0.0.1"), ("msec", "1700000000.123")];
        check_fields("log_format main '$remote_addr \"$request\" '\n    '$msec';", line, &expected);
        check_fields(r#"LogFormat "%h \"%r\" %{msec}t" main"#, line, &expected[..1]);
    }

    #[test]
    fn field_ends_only_at_the_complete_separator() {
        check_fields("$a [$b] - $c", "x [y] z [q] - w", &[("a", "x"), ("b", "y] z [q"), ("c", "w")]);
    }

    #[test]
    fn lines_in_another_format_are_rejected() {
        let pattern = Pattern::new("$a - $b").unwrap();
        for line in ["", "x", "x-y", "x -"] {
            assert_eq!(parse_fields(&pattern, line), None, "{line}");
        }
        assert_eq!(parse_fields(&Pattern::new("<$a>").unwrap(), "<x> "), None);
    }

    #[test]
    fn wrong_formats_are_reported() {
        for (format, error) in [
            ("plain", "no fields in the format"),
            ("$a$b", "nothing separates"),
            ("$ x", "without the name"),
            ("${a", "without `}`"),
            ("%START_TIME", "a `%` without a closing `%`"),
            ("%h %", "a `%` without a directive"),
        ] {
            assert!(Pattern::new(format).unwrap_err().contains(error), "{format}");
        }
    }
}
