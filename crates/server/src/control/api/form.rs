//! Parses forms with files (`multipart/form-data`, RFC 7578), which browsers and `curl -F` send.
//!
//! The body is in memory and its size is limited. The contents of parts are slices of the body and are not copied.

use bytes::Bytes;
use hyper::header::CONTENT_TYPE;
use hyper::{HeaderMap, StatusCode};
use memchr::memmem;

use crate::http::problem::Problem;

/// The maximum number of parts of a form.
const MAX_PARTS: usize = 16;

/// The maximum size of a part's headers, in bytes.
const MAX_PART_HEADER_BYTES: usize = 4 * 1024;

/// The maximum number of characters of a boundary (RFC 2046).
const MAX_BOUNDARY_CHARS: usize = 70;

/// A part of a form: a field or a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormPart {
    /// The name of the field.
    pub name: String,
    /// The file name, if the part is a file.
    pub file: Option<String>,
    /// The content.
    pub content: Bytes,
}

/// Returns the parts of the form in a body.
///
/// # Errors
/// Returns an error if the content type is not `multipart/form-data`, or if the body is not a valid form.
pub(super) fn parse(headers: &HeaderMap, body: &Bytes) -> Result<Vec<FormPart>, Problem> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let Some(boundary) = form_boundary(kind) else {
        let given = if kind.is_empty() { "none" } else { kind };
        let detail = format!("unsupported content type: {given}; send multipart/form-data with a boundary");
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Unsupported media type", detail));
    };
    split_parts(body, boundary.as_bytes()).map_err(|why| Problem::bad_request(format!("the body is not a form: {why}")))
}

/// Returns the boundary in a `multipart/form-data` content type.
fn form_boundary(kind: &str) -> Option<String> {
    let (kind, parameters) = kind.split_once(';')?;
    let boundary =
        header_parameter(parameters, "boundary").filter(|boundary| (1..=MAX_BOUNDARY_CHARS).contains(&boundary.len()));
    boundary.filter(|_| kind.trim().eq_ignore_ascii_case("multipart/form-data"))
}

/// Splits a body into the parts between its boundaries.
///
/// # Errors
/// Returns an error if a boundary or a part's header is missing or malformed, or if there are too many parts.
pub fn split_parts(body: &Bytes, boundary: &[u8]) -> Result<Vec<FormPart>, String> {
    let delimiter = [b"\r\n--", boundary].concat();
    let finder = memmem::Finder::new(&delimiter);
    // No line break precedes the first boundary.
    if !body.starts_with(&delimiter[2..]) {
        return Err("it does not begin with its boundary".into());
    }
    let mut at = delimiter.len() - 2;
    let mut parts = Vec::new();
    loop {
        let rest = &body[at..];
        if rest.starts_with(b"--") {
            return Ok(parts);
        }
        if parts.len() == MAX_PARTS {
            return Err(format!("too many parts (maximum {MAX_PARTS})"));
        }
        let head = &rest[..rest.len().min(MAX_PART_HEADER_BYTES)];
        let end = memmem::find(head, b"\r\n\r\n").filter(|_| head.starts_with(b"\r\n"));
        let end =
            end.ok_or_else(|| format!("a part has no headers, or more than {MAX_PART_HEADER_BYTES} bytes of them"))?;
        let (name, file) = parse_disposition(&head[2..end.max(2)])?;
        let start = at + end + 4;
        let length = finder.find(&body[start..]).ok_or("its last boundary is missing")?;
        parts.push(FormPart { name, file, content: body.slice(start..start + length) });
        at = start + length + delimiter.len();
    }
}

/// Returns the field name and the file name in the headers of a part.
fn parse_disposition(head: &[u8]) -> Result<(String, Option<String>), String> {
    let head = str::from_utf8(head).map_err(|_| "the headers of a part are not UTF-8")?;
    let value = head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then(|| value.trim())
    });
    let value = value.ok_or("a part has no header Content-Disposition")?;
    let parameters = value.split_once(';').filter(|(kind, _)| kind.trim().eq_ignore_ascii_case("form-data"));
    let parameters = parameters.map(|(_, parameters)| parameters);
    let name = parameters.and_then(|parameters| header_parameter(parameters, "name"));
    let name = name.ok_or_else(|| format!("a part has no name: {value}"))?;
    Ok((name, parameters.and_then(|parameters| header_parameter(parameters, "filename"))))
}

/// Returns a parameter of a header such as `name="log"; filename="access.log"`.
fn header_parameter(mut parameters: &str, wanted: &str) -> Option<String> {
    loop {
        let (name, rest) = parameters.split_once('=')?;
        let name = name.trim_matches([' ', '\t', ';']);
        let (value, rest) = match rest.strip_prefix('"') {
            Some(quoted) => unquote(quoted)?,
            None => {
                let (value, rest) = rest.split_once(';').unwrap_or((rest, ""));
                (value.trim().to_owned(), rest)
            }
        };
        if name.eq_ignore_ascii_case(wanted) {
            return Some(value);
        }
        parameters = rest;
    }
}

/// Returns a quoted string without its quotes, and the text after the closing quote.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, char)) = chars.next() {
        match char {
            '"' => return Some((value, &text[at + 1..])),
            // `curl` escapes backslashes and quotes. Browsers do not escape backslashes, so a backslash before any
            // other character is kept.
            '\\' if text[at + 1..].starts_with(['\\', '"']) => value.extend(chars.next().map(|(_, char)| char)),
            _ => value.push(char),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_form(body: &str) -> Result<Vec<(String, Option<String>, String)>, String> {
        let parts = split_parts(&Bytes::copy_from_slice(body.as_bytes()), b"xyz")?;
        let show = |part: FormPart| (part.name, part.file, String::from_utf8_lossy(&part.content).into_owned());
        Ok(parts.into_iter().map(show).collect())
    }

    #[test]
    fn parts_have_names_files_and_contents() {
        let body = "--xyz\r\nContent-Disposition: form-data; name=\"rules\"\r\n\r\ndomain: a\r\n--xy\r\n\r\n--xyz\r\n\
                    content-type: text/plain\r\ncontent-disposition: form-data; filename=\"a \\\"b\\\".log\"; name=log\r\n\r\n\
                    \r\n--xyz--\r\n";
        let rules = ("rules".to_owned(), None, "domain: a\r\n--xy\r\n".to_owned());
        let log = ("log".to_owned(), Some("a \"b\".log".to_owned()), String::new());
        assert_eq!(parse_form(body), Ok(vec![rules, log]));
        assert_eq!(parse_form("--xyz--"), Ok(Vec::new()));
    }

    #[test]
    fn error_says_why_a_body_is_not_a_form() {
        let part = "--xyz\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n1\r\n";
        for (body, why) in [
            (String::new(), "does not begin with its boundary"),
            ("domain: a".into(), "does not begin with its boundary"),
            ("--xyz".into(), "has no headers"),
            ("--xyzz\r\n\r\n".into(), "has no headers"),
            ("--xyz\r\n\r\n\r\n--xyz--".into(), "no header Content-Disposition"),
            ("--xyz\r\nContent-Disposition: form-data\r\n\r\n1\r\n--xyz--".into(), "has no name: form-data"),
            ("--xyz\r\nContent-Disposition: form-data; name=\"a\r\n\r\n1\r\n--xyz--".into(), "has no name"),
            (part.into(), "its last boundary is missing"),
            (part.repeat(MAX_PARTS + 1) + "--xyz--", "too many parts (maximum 16)"),
            (format!("--xyz\r\nX: {}\r\n\r\n1\r\n--xyz--", "y".repeat(MAX_PART_HEADER_BYTES)), "more than 4096 bytes"),
        ] {
            let error = parse_form(&body).expect_err(&body);
            assert!(error.contains(why), "{body}: {error}");
        }
    }

    #[test]
    fn content_type_names_the_boundary() {
        for (kind, expected) in [
            ("multipart/form-data; boundary=xyz", Some("xyz")),
            ("Multipart/Form-Data;charset=utf-8; Boundary=\"x y\"", Some("x y")),
            ("multipart/form-data", None),
            ("multipart/form-data; boundary=", None),
            ("multipart/mixed; boundary=xyz", None),
            ("application/json", None),
            ("", None),
        ] {
            assert_eq!(form_boundary(kind).as_deref(), expected, "{kind}");
        }
        assert_eq!(form_boundary(&format!("multipart/form-data; boundary={}", "x".repeat(71))), None);
    }
}
