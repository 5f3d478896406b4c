//! Logs with one JSON object per line, such as Caddy's access log.
//!
//! Only the needed fields are read; the other fields are skipped without allocation. A field is named by its path, such
//! as `request.headers.X-Key`. Names are case-insensitive. If the value is a list, its first element is used.

use super::span::Span;

/// Maximum nesting depth of the JSON in a line.
const MAX_DEPTH: usize = 16;
/// Maximum number of field names collected from the sample.
const MAX_NAMES: usize = 512;

/// The fields to read.
#[derive(Clone, Debug, Default)]
pub struct Json {
    wanted: Vec<WantedField>,
    names: Vec<String>,
    available: Vec<String>,
}

#[derive(Clone, Debug)]
struct WantedField {
    key: Box<[u8]>,
    field: Option<usize>,
    members_wanted: Vec<WantedField>,
}

/// Error: the line is not valid JSON.
#[derive(Debug)]
struct NotJson;

impl Json {
    /// Returns a format with the fields of the sample lines, or `None` if no line is an object with fields.
    pub(super) fn from_sample(lines: &[&[u8]]) -> Option<Self> {
        let mut available: Vec<String> = Vec::new();
        for line in lines {
            if let Ok(value) = serde_json::from_slice::<serde_json::Value>(line) {
                collect_field_names(&value, "", &mut available, 0);
            }
        }
        (!available.is_empty()).then(|| Self { available, ..Self::default() })
    }

    /// Returns the field names that occur in the sample.
    pub fn available_fields(&self) -> &[String] {
        &self.available
    }

    /// Returns the number of fields to read.
    pub(super) fn field_count(&self) -> usize {
        self.names.len()
    }

    /// Adds a field to read, and returns its index.
    pub(super) fn add_field(&mut self, name: &str) -> usize {
        if let Some(known) = self.names.iter().position(|known| known.eq_ignore_ascii_case(name)) {
            return known;
        }
        let field = self.names.len();
        self.names.push(name.to_owned());
        // A name with dots is always a path, even if the log has a key that contains dots.
        let is_plain = self.available.iter().any(|known| known.eq_ignore_ascii_case(name)) && !name.contains('.');
        let parts: Vec<&str> = if is_plain { vec![name] } else { name.split('.').collect() };
        let mut level = &mut self.wanted;
        for (place, part) in parts.iter().enumerate() {
            let known = level.iter().position(|wanted| wanted.key.eq_ignore_ascii_case(part.as_bytes()));
            let at = known.unwrap_or_else(|| {
                level.push(WantedField { key: part.as_bytes().into(), field: None, members_wanted: Vec::new() });
                level.len() - 1
            });
            if place + 1 == parts.len() {
                level[at].field = Some(field);
                break;
            }
            level = &mut level[at].members_wanted;
        }
        field
    }

    /// Parses a line that begins at offset `base`. Returns whether the line is a JSON object.
    pub fn parse(&self, line: &[u8], base: usize, fields: &mut [Span]) -> bool {
        fields.fill(Span::NONE);
        let mut scanner = JsonScanner { line, at: 0, base };
        scanner.skip_whitespace();
        let parsed = scanner.peek_byte() == Some(b'{') && scanner.parse_object(&self.wanted, fields, 0).is_ok();
        scanner.skip_whitespace();
        parsed && scanner.at == line.len()
    }
}

fn collect_field_names(value: &serde_json::Value, prefix: &str, names: &mut Vec<String>, depth: usize) {
    let serde_json::Value::Object(members) = value else { return };
    for (name, value) in members {
        let path = if prefix.is_empty() { name.clone() } else { format!("{prefix}.{name}") };
        if value.is_object() && depth < MAX_DEPTH {
            collect_field_names(value, &path, names, depth + 1);
        } else if names.len() < MAX_NAMES && !names.contains(&path) {
            names.push(path);
        }
    }
}

struct JsonScanner<'l> {
    line: &'l [u8],
    at: usize,
    base: usize,
}

impl JsonScanner<'_> {
    #[inline]
    fn peek_byte(&self) -> Option<u8> {
        self.line.get(self.at).copied()
    }

    #[inline]
    fn skip_whitespace(&mut self) {
        while self.peek_byte().is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    fn expect_byte(&mut self, byte: u8) -> Result<(), NotJson> {
        if self.peek_byte() != Some(byte) {
            return Err(NotJson);
        }
        self.at += 1;
        Ok(())
    }

    fn parse_object(&mut self, wanted: &[WantedField], fields: &mut [Span], depth: usize) -> Result<(), NotJson> {
        if depth > MAX_DEPTH {
            return Err(NotJson);
        }
        self.expect_byte(b'{')?;
        self.skip_whitespace();
        if self.peek_byte() == Some(b'}') {
            self.at += 1;
            return Ok(());
        }
        loop {
            self.skip_whitespace();
            let key = self.scan_string()?;
            self.skip_whitespace();
            self.expect_byte(b':')?;
            self.skip_whitespace();
            let key = &self.line[key.start() - self.base..key.start() - self.base + key.len()];
            match wanted.iter().find(|wanted| wanted.key.eq_ignore_ascii_case(key)) {
                Some(found) => self.read_wanted_value(found, fields, depth)?,
                None => self.skip_value(depth)?,
            }
            self.skip_whitespace();
            match self.peek_byte() {
                Some(b',') => self.at += 1,
                Some(b'}') => {
                    self.at += 1;
                    return Ok(());
                }
                Some(_) | None => return Err(NotJson),
            }
        }
    }

    fn read_wanted_value(&mut self, wanted: &WantedField, fields: &mut [Span], depth: usize) -> Result<(), NotJson> {
        match self.peek_byte() {
            Some(b'{') => return self.parse_object(&wanted.members_wanted, fields, depth + 1),
            Some(b'[') => {
                self.at += 1;
                self.skip_whitespace();
                if !matches!(self.peek_byte(), Some(b']' | b'[' | b'{')) {
                    let span = self.scan_scalar()?;
                    set_if_missing(fields, wanted.field, span);
                    self.skip_whitespace();
                }
                self.skip_rest_of_list(depth)?;
            }
            Some(_) => {
                let span = self.scan_scalar()?;
                set_if_missing(fields, wanted.field, span);
            }
            None => return Err(NotJson),
        }
        Ok(())
    }

    /// Reads a string, a number, a boolean or null. Null counts as a missing value.
    fn scan_scalar(&mut self) -> Result<Span, NotJson> {
        if self.peek_byte() == Some(b'"') {
            return self.scan_string();
        }
        let start = self.at;
        let more = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        while self.peek_byte().is_some_and(more) {
            self.at += 1;
        }
        match &self.line[start..self.at] {
            b"" => Err(NotJson),
            b"null" => Ok(Span::NONE),
            value => Ok(Span::new(self.base + start, value.len())),
        }
    }

    /// Reads a string and returns the span between its quotes.
    #[inline]
    fn scan_string(&mut self) -> Result<Span, NotJson> {
        self.expect_byte(b'"')?;
        let start = self.at;
        let mut escaped = false;
        loop {
            let rest = self.line.get(self.at..).ok_or(NotJson)?;
            let found = memchr::memchr2(b'"', b'\\', rest).ok_or(NotJson)?;
            self.at += found;
            if self.line[self.at] == b'"' {
                self.at += 1;
                return Ok(Span::new(self.base + start, self.at - 1 - start).escaped_if(escaped));
            }
            (self.at, escaped) = (self.at + 2, true);
        }
    }

    /// Skips the remaining values of a list, and its closing bracket.
    fn skip_rest_of_list(&mut self, depth: usize) -> Result<(), NotJson> {
        while self.peek_byte() != Some(b']') {
            if self.peek_byte() == Some(b',') {
                self.at += 1;
                self.skip_whitespace();
            }
            self.skip_value(depth + 1)?;
            self.skip_whitespace();
        }
        self.at += 1;
        Ok(())
    }

    /// Skips a value.
    fn skip_value(&mut self, depth: usize) -> Result<(), NotJson> {
        if depth > MAX_DEPTH {
            return Err(NotJson);
        }
        match self.peek_byte() {
            Some(b'{') => self.parse_object(&[], &mut [], depth + 1),
            Some(b'[') => {
                self.at += 1;
                self.skip_whitespace();
                self.skip_rest_of_list(depth)
            }
            Some(_) => self.scan_scalar().map(|_| ()),
            None => Err(NotJson),
        }
    }
}

/// Sets a field unless it already has a value. If a field is repeated, its first value is used.
fn set_if_missing(fields: &mut [Span], field: Option<usize>, span: Span) {
    if let Some(place) = field.and_then(|field| fields.get_mut(field)).filter(|place| place.is_none()) {
        *place = span;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_wanted_fields_are_read() {
        let line = br#" {"a": {"x": [1, {"b": 2}], "y": true}, "list":["v","w"], "n": null, "A.B": "1", "z": 1.5e3} "#;
        let mut json = Json::from_sample(&[line]).unwrap();
        let names = ["a.y", "LIST", "n", "z", "missing", "a.x.b"];
        let places: Vec<usize> = names.iter().map(|name| json.add_field(name)).collect();
        let mut fields = [Span::NONE; 8];
        assert!(json.parse(line, 0, &mut fields));
        let value =
            |place: usize| fields[place].bytes_in(line).map(|value| String::from_utf8_lossy(value).into_owned());
        let values: Vec<Option<String>> = places.into_iter().map(value).collect();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(values, [text("true"), text("v"), None, text("1.5e3"), None, None]);
    }

    #[test]
    fn broken_json_is_refused() {
        let mut json = Json::from_sample(&[b"{\"a\":1}"]).unwrap();
        json.add_field("a");
        let mut fields = [Span::NONE; 8];
        let deep = format!("{{\"b\":{}1{}}}", "[".repeat(99), "]".repeat(99));
        for line in
            ["", "{", "{}}", "[1]", "{\"a\"}", "{\"a\":}", "{\"a\":\"x}", "{\"a\":1 \"b\":2}", "{\"a\":\"\\", &deep]
        {
            assert!(!json.parse(line.as_bytes(), 0, &mut fields), "{line}");
        }
    }
}
