//! CSV logs. Values are separated by commas, semicolons or tabs. The first line contains the column names.
//!
//! A value may be in quotes. Within quotes, `""` stands for a quote. A value cannot contain a line break.

use super::span::Span;
use crate::replay::bounds::MAX_FIELDS;

/// The columns of a log.
#[derive(Clone, Debug)]
pub struct Csv {
    separator: u8,
    header: Box<[u8]>,
    names: Vec<String>,
}

impl Csv {
    /// Returns the format defined by a header line, or `None` if the line does not look like a header.
    pub(super) fn from_header(line: &[u8]) -> Option<Self> {
        let separator = *b",;\t".iter().max_by_key(|byte| memchr::memchr_iter(**byte, line).count())?;
        let mut csv = Self { separator, header: line.into(), names: Vec::new() };
        let mut fields = [Span::NONE; MAX_FIELDS];
        let count = csv.split_values(line, 0, &mut fields)?;
        for span in &fields[..count] {
            let name = str::from_utf8(span.bytes_in(line)?).ok()?.trim();
            let is_name = |letter: char| letter.is_ascii_alphanumeric() || "_-.@$ ".contains(letter);
            if name.is_empty() || !name.chars().all(is_name) || name.starts_with(|first: char| first.is_ascii_digit()) {
                return None;
            }
            csv.names.push(name.trim_start_matches('$').to_ascii_lowercase());
        }
        (count >= 2).then_some(csv)
    }

    /// Returns the names of the columns.
    pub fn column_names(&self) -> &[String] {
        &self.names
    }

    /// Returns whether a line is the header line.
    pub fn is_header(&self, line: &[u8]) -> bool {
        line == &*self.header
    }

    /// Parses a line that begins at offset `base`. Returns whether the line has one value per column.
    pub fn parse(&self, line: &[u8], base: usize, fields: &mut [Span]) -> bool {
        self.split_values(line, base, fields) == Some(self.names.len())
    }

    /// Finds the values of a line and returns their number. Returns `None` if there are too many values, or if the
    /// quotes are malformed.
    fn split_values(&self, line: &[u8], base: usize, fields: &mut [Span]) -> Option<usize> {
        let (mut at, mut count) = (0, 0);
        loop {
            let place = fields.get_mut(count)?;
            let end = match line.get(at) {
                Some(b'"') => {
                    let (close, escaped) = find_closing_quote(line, at + 1)?;
                    *place = Span::new(base + at + 1, close - at - 1).escaped_if(escaped);
                    close + 1
                }
                Some(_) | None => {
                    let rest = &line[at..];
                    let len = memchr::memchr(self.separator, rest).unwrap_or(rest.len());
                    *place = Span::new(base + at, len);
                    at + len
                }
            };
            count += 1;
            match line.get(end) {
                None => return Some(count),
                Some(byte) if *byte == self.separator => at = end + 1,
                Some(_) => return None,
            }
        }
    }
}

/// Returns the position of the closing quote of a value, and whether the value contains escaped quotes.
fn find_closing_quote(line: &[u8], from: usize) -> Option<(usize, bool)> {
    let (mut at, mut escaped) = (from, false);
    loop {
        at += memchr::memchr(b'"', &line[at..])?;
        if line.get(at + 1) != Some(&b'"') {
            return Some((at, escaped));
        }
        (at, escaped) = (at + 2, true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_values(csv: &Csv, line: &str) -> Option<Vec<String>> {
        let mut fields = [Span::NONE; MAX_FIELDS];
        csv.parse(line.as_bytes(), 0, &mut fields).then(|| {
            let value =
                |span: &Span| String::from_utf8_lossy(span.bytes_in(line.as_bytes()).unwrap_or_default()).into_owned();
            fields[..csv.column_names().len()].iter().map(value).collect()
        })
    }

    #[test]
    fn line_is_split_into_one_value_per_column() {
        let csv = Csv::from_header(b"time;client_ip;path").unwrap();
        assert_eq!(csv.column_names(), ["time", "client_ip", "path"]);
        assert_eq!(parse_values(&csv, "1;2;3").unwrap(), ["1", "2", "3"]);
        assert_eq!(parse_values(&csv, "1;\"a;b\";\"x\"\"y\"").unwrap(), ["1", "a;b", "x\"\"y"]);
        assert_eq!(parse_values(&csv, ";;").unwrap(), ["", "", ""]);
        for line in ["1;2", "1;2;3;4", "1;\"2;3", "1;\"2\"x;3", ""] {
            assert_eq!(parse_values(&csv, line), None, "{line}");
        }
    }

    #[test]
    fn header_line_must_consist_of_column_names() {
        assert!(Csv::from_header(b"time,path").is_some());
        for line in ["10.0.0.1,GET", "time", "", "{\"a\":1,\"b\":2}", "a,,b"] {
            assert!(Csv::from_header(line.as_bytes()).is_none(), "{line}");
        }
    }
}
