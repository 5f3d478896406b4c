//! Log formats. A format finds the positions of the fields in a line.

pub mod csv;
pub mod json;
pub mod pattern;
pub mod span;
pub mod time;

use std::borrow::Cow;

use csv::Csv;
use json::Json;
use pattern::Pattern;
use span::Span;

use super::bounds::{FORMAT_SAMPLE_BYTES, FORMAT_SAMPLE_LINES, MAX_FIELDS};

/// The format of a log.
#[derive(Clone, Debug)]
pub struct Format {
    name: String,
    kind: FormatKind,
}

#[derive(Clone, Debug)]
enum FormatKind {
    Pattern(Pattern),
    Json(Json),
    Csv(Csv),
}

/// The names that `--format` accepts.
pub const NAMES: [&str; 7] = ["combined", "common", "vhost_combined", "envoy", "haproxy", "json", "csv"];

impl Format {
    /// Returns the format with the name or description `text`. `head` contains the first lines of the log, which define
    /// the CSV columns or JSON fields.
    ///
    /// # Errors
    /// Returns an error if `text` is neither the name nor a valid description of a format, or if the log does not have
    /// that format.
    pub fn from_description(text: &str, head: &[u8]) -> Result<Self, String> {
        let lines = sample_lines(head);
        let named = |kind: Option<FormatKind>| {
            let kind = kind.ok_or_else(|| format!("the log does not begin with lines of the format `{text}`"))?;
            Ok(Self { name: text.to_owned(), kind })
        };
        match text {
            "json" | "caddy" => named(Json::from_sample(&lines).map(FormatKind::Json)),
            "csv" => named(lines.first().and_then(|line| Csv::from_header(line)).map(FormatKind::Csv)),
            _ => {
                let known: Vec<Pattern> = pattern::known_formats()
                    .into_iter()
                    .filter(|(name, _)| *name == text)
                    .map(|(_, pattern)| pattern)
                    .collect();
                let best = known.into_iter().max_by_key(|pattern| count_pattern_matches(pattern, &lines));
                if let Some(pattern) = best {
                    return Ok(Self { name: text.to_owned(), kind: FormatKind::Pattern(pattern) });
                }
                if !text.contains(['$', '%']) {
                    return Err(format!(
                        "unknown format `{text}`; use {}, or describe it like nginx's log_format",
                        NAMES.join(", ")
                    ));
                }
                Pattern::new(text).map(|pattern| Self { name: "described".into(), kind: FormatKind::Pattern(pattern) })
            }
        }
    }

    /// Returns the format that matches the most lines of `head`, or `None` if no known format matches at least half of
    /// the lines.
    pub fn detect(head: &[u8]) -> Option<Self> {
        let lines = sample_lines(head);
        let mut formats: Vec<Self> = Vec::new();
        formats
            .extend(Json::from_sample(&lines).map(|json| Self { name: "json".into(), kind: FormatKind::Json(json) }));
        for (name, pattern) in pattern::known_formats() {
            formats.push(Self { name: name.into(), kind: FormatKind::Pattern(pattern) });
        }
        let csv = lines.first().and_then(|line| Csv::from_header(line));
        formats.extend(csv.map(|csv| Self { name: "csv".into(), kind: FormatKind::Csv(csv) }));
        // If two formats match the same number of lines, the earlier format is used. More specific formats are listed
        // first.
        let mut best: Option<(usize, Self)> = None;
        for format in formats {
            let score = format.count_matching_lines(&lines);
            if score > 0 && best.as_ref().is_none_or(|(most, _)| score > *most) {
                best = Some((score, format));
            }
        }
        best.filter(|(score, _)| score * 2 >= lines.len()).map(|(_, format)| format)
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the names of the available fields.
    pub fn available_fields(&self) -> &[String] {
        match &self.kind {
            FormatKind::Pattern(pattern) => pattern.field_names(),
            FormatKind::Json(json) => json.available_fields(),
            FormatKind::Csv(csv) => csv.column_names(),
        }
    }

    /// Returns the number of fields in a parsed line.
    #[inline]
    pub(super) fn field_count(&self) -> usize {
        match &self.kind {
            FormatKind::Pattern(pattern) => pattern.field_names().len(),
            FormatKind::Json(json) => json.field_count(),
            FormatKind::Csv(csv) => csv.column_names().len(),
        }
    }

    /// Returns the index of a field, or `None` if the format lacks the field.
    pub fn field_index(&mut self, name: &str) -> Option<usize> {
        let place = |names: &[String]| names.iter().position(|known| known.eq_ignore_ascii_case(name));
        match &mut self.kind {
            FormatKind::Pattern(pattern) => place(pattern.field_names()),
            FormatKind::Json(json) if json.field_count() < MAX_FIELDS => Some(json.add_field(name)),
            FormatKind::Json(_) => None,
            FormatKind::Csv(csv) => place(csv.column_names()),
        }
    }

    /// Parses a line that begins at offset `base` of its chunk. Returns whether the line has this format.
    #[inline]
    pub fn parse(&self, line: &[u8], base: usize, fields: &mut [Span; MAX_FIELDS]) -> bool {
        match &self.kind {
            FormatKind::Pattern(pattern) => pattern.parse(line, base, fields),
            FormatKind::Json(json) => json.parse(line, base, fields),
            FormatKind::Csv(csv) => csv.parse(line, base, fields),
        }
    }

    /// Returns whether a line is the header of a CSV file.
    pub fn is_header(&self, line: &[u8]) -> bool {
        matches!(&self.kind, FormatKind::Csv(csv) if csv.is_header(line))
    }

    /// Decodes the escape sequences of a value: `\x22` and similar ones in nginx and Apache logs, JSON escapes, and
    /// `""` in CSV.
    pub fn unescape<'v>(&self, value: &'v [u8]) -> Cow<'v, [u8]> {
        match &self.kind {
            FormatKind::Pattern(_) => unescape_backslashes(value).into(),
            FormatKind::Json(_) => {
                let quoted = [b"\"", value, b"\""].concat();
                serde_json::from_slice::<String>(&quoted).map_or(Cow::Borrowed(value), |text| text.into_bytes().into())
            }
            FormatKind::Csv(_) => {
                let mut plain = Vec::with_capacity(value.len());
                let mut rest = value;
                while let [first, more @ ..] = rest {
                    plain.push(*first);
                    rest = if rest.starts_with(b"\"\"") { &more[1..] } else { more };
                }
                plain.into()
            }
        }
    }

    /// Returns whether `-` stands for a missing value.
    pub fn dash_means_missing(&self) -> bool {
        matches!(self.kind, FormatKind::Pattern(_))
    }

    fn count_matching_lines(&self, lines: &[&[u8]]) -> usize {
        let mut fields = [Span::NONE; MAX_FIELDS];
        match &self.kind {
            FormatKind::Pattern(pattern) => count_pattern_matches(pattern, lines),
            FormatKind::Json(_) => lines.iter().filter(|line| self.parse(line, 0, &mut fields)).count(),
            // Skips the header line, which contains no values.
            FormatKind::Csv(csv) => lines.iter().skip(1).filter(|line| csv.parse(line, 0, &mut fields)).count(),
        }
    }
}

/// Returns the lines from which a format is detected.
pub(super) fn sample_lines(head: &[u8]) -> Vec<&[u8]> {
    // If the log is longer than `head`, the last line of `head` is not used, because it may be incomplete.
    let end = if head.len() < FORMAT_SAMPLE_BYTES { None } else { memchr::memrchr(b'\n', head) };
    let whole = end.map_or(head, |end| &head[..end]);
    let lines = whole.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii);
    lines.filter(|line| !line.is_empty()).take(FORMAT_SAMPLE_LINES).collect()
}

/// Returns the number of lines that match a pattern and have a valid time in its time field.
fn count_pattern_matches(pattern: &Pattern, lines: &[&[u8]]) -> usize {
    let mut fields = [Span::NONE; MAX_FIELDS];
    let time = pattern.field_names().iter().position(|name| name == "time_local");
    let mut parser = time::TimeParser::new(jiff::tz::TimeZone::UTC);
    let fits = |line: &&&[u8]| {
        let parsed = pattern.parse(line, 0, &mut fields);
        parsed && time.is_none_or(|time| fields[time].bytes_in(line).is_some_and(|text| parser.parse(text).is_some()))
    };
    lines.iter().filter(fits).count()
}

/// Decodes `\xHH`, `\"`, `\\`, `\n`, `\t` and similar escape sequences.
fn unescape_backslashes(value: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(value.len());
    let mut rest = value;
    while let Some((first, more)) = rest.split_first() {
        let hex = |digits: &[u8]| u8::from_str_radix(str::from_utf8(digits).ok()?, 16).ok();
        rest = match (first, more) {
            (b'\\', [b'x', a, b, after @ ..]) if hex(&[*a, *b]).is_some() => {
                plain.extend(hex(&[*a, *b]));
                after
            }
            (b'\\', [letter, after @ ..]) => {
                plain.push(match letter {
                    b'n' => b'\n',
                    b't' => b'\t',
                    b'r' => b'\r',
                    other => *other,
                });
                after
            }
            (byte, after) => {
                plain.push(*byte);
                after
            }
        };
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_detected_from_the_first_lines() {
        for (line, expected) in [
            (r#"10.0.0.1 - - [16/Nov/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "curl/8""#, "combined"),
            (
                r#"10.0.0.1 - - [16/Nov/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "curl/8" "1.2.3.4" 0.1"#,
                "combined",
            ),
            (
                r#"a.org:443 10.0.0.1 - bob [16/Nov/2026:09:00:00 +0000] "GET / HTTP/1.1" 200 5 "-" "x""#,
                "vhost_combined",
            ),
            (r#"10.0.0.1 - - [16/Nov/2026:09:00:00 +0000] "GET / HTTP/1.0" 200 5"#, "common"),
            (
                r#"[2026-11-16T09:00:00.123Z] "GET /a HTTP/1.1" 200 - 0 5 3 2 "10.0.0.1" "curl/8" "id" "a.org" "10.0.0.9:80""#,
                "envoy",
            ),
            (
                r#"<134>Nov 16 09:00:00 host haproxy[12]: 10.0.0.1:4711 [16/Nov/2026:09:00:00.123] web app/s1 0/0/1/2/3 200 5 - - ---- 1/1/0/0/0 0/0 {a.org} "GET /a HTTP/1.1""#,
                "haproxy",
            ),
            (r#"{"ts":1794819600.1,"request":{"remote_ip":"10.0.0.1","uri":"/"}}"#, "json"),
            ("time,client_ip,path\n2026-11-16T09:00:00Z,10.0.0.1,/", "csv"),
        ] {
            let found = Format::detect(format!("{line}\n").as_bytes());
            assert_eq!(found.as_ref().map(Format::name), Some(expected), "{line}");
        }
        for odd in ["", "\n\n", "hello", "\0\x01\x02", "a,b", "{\"a\":1"] {
            assert!(Format::detect(odd.as_bytes()).is_none(), "{odd:?}");
        }
    }

    #[test]
    fn values_are_unescaped_by_their_format() {
        let format = |text: &str| Format::from_description(text, b"a,b\n{\"a\":1}\n").unwrap();
        assert_eq!(&*format("combined").unescape(br"a\x22b\\c\q\x2"), b"a\"b\\cqx2");
        assert_eq!(&*format("json").unescape(br#"a\u00e9\"b"#), "aé\"b".as_bytes());
        assert_eq!(&*format("json").unescape(br"\ud800"), br"\ud800");
        assert_eq!(&*format("csv").unescape(b"a\"\"b"), b"a\"b");
    }

    #[test]
    fn unknown_names_are_reported_with_the_known_ones() {
        assert!(Format::from_description("nginxx", b"").unwrap_err().contains("use combined, common"));
        assert!(Format::from_description("csv", b"1,2\n").unwrap_err().contains("does not begin with"));
    }
}
