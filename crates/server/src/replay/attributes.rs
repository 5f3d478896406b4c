//! Converts the fields of a log line to request attributes. The attributes have the same names as in the forward-auth
//! endpoint.
//!
//! | attribute | fields, of which the first one with a value is used |
//! |---|---|
//! | `client_ip` | `client_ip`, `remote_addr`, `remote_ip`, …, `http_x_forwarded_for`; IPv6 by its /64 |
//! | `method`, `path`, `query.x` | `method`, `path`, …, or the parts of `request` |
//! | `host`, `scheme` | `host`, `http_host`, `authority`, `server_name`; `scheme` |
//! | `header.x`, `cookie.x` | `http_x`, `request.headers.x`; `cookie_x` |
//! | `user`, `bytes` | `user`, `remote_user`, `user_id`; `bytes`, `body_bytes_sent`, `bytes_sent`, `size` |
//! | any other | the field of the same name |
//!
//! The option `--map` reads an attribute from another field, and `--set` sets an attribute to a fixed value for all
//! requests.

use std::net::{IpAddr, SocketAddr};

use tollgate_engine::Item;
use tollgate_http::ClientIp;

use super::bounds::MAX_FIELDS;
use super::format::Format;
use super::format::span::Span;
use super::format::time::{LogTimestamp, TimeParser};
use crate::http::forward::path::normalize;

/// Attributes that the user maps to a field or sets to a fixed value.
#[derive(Clone, Debug, Default)]
pub struct Mapping {
    /// Pairs of an attribute and the log field that contains its value.
    pub map: Vec<(String, String)>,
    /// Pairs of an attribute and its fixed value for all requests.
    pub set: Vec<(String, String)>,
}

impl Mapping {
    /// Parses `attribute=field` or `attribute=value`.
    pub fn parse_pair(text: &str) -> Option<(String, String)> {
        let (name, value) = text.split_once('=').filter(|(name, _)| !name.is_empty())?;
        Some((name.to_owned(), value.to_owned()))
    }
}

/// Extracts attributes from the fields of log lines. All lines have the same format.
#[derive(Clone, Debug)]
pub(super) struct Extractor {
    time: usize,
    attributes: Vec<AttributeSource>,
}

/// The fields that may contain an attribute, in order of preference.
#[derive(Clone, Debug, Default)]
struct AttributeSource {
    fields: Vec<(usize, FieldTransform)>,
}

/// How a field is converted to an attribute value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum FieldTransform {
    /// Unchanged.
    Raw,
    /// An address (with or without a port), or the first address of a list.
    Address,
    /// An address that always has a port, even if it is an IPv6 address without brackets.
    AddressWithPort,
    /// A host name in lower case, without a port.
    Host,
    /// The normalised path of a request target, without the query.
    Path,
    /// A query parameter in a request target.
    TargetQuery(Box<[u8]>),
    /// A parameter in a query string.
    Query(Box<[u8]>),
    /// The method of a request line.
    RequestMethod,
    /// The path in a request line's target.
    RequestPath,
    /// A query parameter in a request line's target.
    RequestQuery(Box<[u8]>),
}

const TIME_FIELDS: [&str; 16] = [
    "msec",
    "ts",
    "time_iso8601",
    "time_local",
    "time",
    "timestamp",
    "@timestamp",
    "start_time",
    "at",
    "datetime",
    "date",
    "request_time_iso",
    "time_unix",
    "epoch",
    "start",
    "time_received",
];
const ADDRESS_FIELDS: [&str; 12] = [
    "client_ip",
    "remote_addr",
    "request.client_ip",
    "request.remote_ip",
    "remote_ip",
    "client_addr",
    "client",
    "clientip",
    "ip",
    "downstream_remote_address",
    "remote_addr_port",
    "http_x_forwarded_for",
];
const METHOD_FIELDS: [&str; 5] = ["method", "request_method", "request.method", "http_method", "verb"];
const TARGET_FIELDS: [&str; 9] = [
    "path",
    "request_uri",
    "request.uri",
    "uri",
    "url",
    "target",
    "request_path",
    "http_path",
    "x_envoy_original_path",
];
const QUERY_FIELDS: [&str; 4] = ["args", "query", "query_string", "request.query"];
const HOST_FIELDS: [&str; 7] =
    ["host", "http_host", "request.host", "authority", "server_name", "vhost", "domain_name"];
const REQUEST_LINE_FIELDS: [&str; 2] = ["request", "request_line"];

impl Extractor {
    /// Selects the time field and the fields of each attribute. Also returns the attributes that the log lacks.
    ///
    /// # Errors
    /// Returns an error if the log has no time field, or if it lacks a field named in `--map`.
    pub(super) fn new(
        format: &mut Format,
        attributes: &[Box<str>],
        mapping: &Mapping,
    ) -> Result<(Self, Vec<Box<str>>), String> {
        let has = |format: &Format, name: &str| {
            format.available_fields().iter().any(|known| known.eq_ignore_ascii_case(name))
        };
        let mapped =
            |name: &str| mapping.map.iter().find(|(attribute, _)| attribute == name).map(|(_, field)| &**field);
        let time = match mapped("time") {
            Some(field) => {
                let found = if has(format, field) { format.field_index(field) } else { None };
                found.ok_or_else(|| {
                    format!(
                        "--map time={field}: the log has no such field; available: {}",
                        join_field_names(format.available_fields())
                    )
                })?
            }
            None => {
                let found = TIME_FIELDS.iter().find(|name| has(format, name)).and_then(|name| format.field_index(name));
                found.ok_or_else(|| {
                    let fields = join_field_names(format.available_fields());
                    format!("the log has no known time field; name one with --map time=FIELD, one of {fields}")
                })?
            }
        };
        let (mut sources, mut missing) = (Vec::new(), Vec::new());
        for name in attributes {
            let mut source = AttributeSource::default();
            for (field, transform) in candidate_fields(name, mapped(name)) {
                // A mapped field is accepted even if the sample lacks it, because it may occur in only some of the JSON
                // lines.
                if (has(format, &field) || mapped(name).is_some())
                    && let Some(field) = format.field_index(&field)
                {
                    source.fields.push((field, transform));
                }
            }
            if source.fields.is_empty() && !mapping.set.iter().any(|(attribute, _)| **attribute == **name) {
                if let Some(field) = mapped(name) {
                    let fields = join_field_names(format.available_fields());
                    return Err(format!("--map {name}={field}: the log has no such field; available: {fields}"));
                }
                missing.push(name.clone());
            }
            sources.push(source);
        }
        Ok((Self { time, attributes: sources }, missing))
    }

    /// Returns the time of a line, or `None` if the time is missing or invalid.
    #[inline]
    pub(super) fn time_of_line(
        &self,
        text: &[u8],
        fields: &[Span; MAX_FIELDS],
        parser: &mut TimeParser,
    ) -> Option<LogTimestamp> {
        fields.get(self.time)?.bytes_in(text).and_then(|text| parser.parse(text))
    }

    /// Appends the span of each attribute of a line. A value that differs from its field is appended to `extra`. The
    /// span of such a value is relative to the concatenation of `text` and `extra`.
    #[inline]
    pub(super) fn push_attributes(
        &self,
        format: &Format,
        text: &[u8],
        fields: &[Span; MAX_FIELDS],
        extra: &mut Vec<u8>,
        spans: &mut Vec<Span>,
    ) {
        for source in &self.attributes {
            let mut found = Span::NONE;
            for (field, transform) in &source.fields {
                found = convert_field(format, text, fields[*field], transform, extra);
                if !found.is_none() {
                    break;
                }
            }
            spans.push(found);
        }
    }
}

fn join_field_names(names: &[String]) -> String {
    let shown: Vec<&str> = names.iter().take(30).map(String::as_str).collect();
    shown.join(", ")
}

/// Returns the fields that may contain an attribute, in order of preference.
fn candidate_fields(name: &str, mapped: Option<&str>) -> Vec<(String, FieldTransform)> {
    let plain = |names: &[&str], transform: FieldTransform| -> Vec<(String, FieldTransform)> {
        names.iter().map(|field| ((*field).to_owned(), transform.clone())).collect()
    };
    if let Some(field) = mapped {
        let transform = match name {
            "client_ip" => FieldTransform::Address,
            "host" => FieldTransform::Host,
            "path" if REQUEST_LINE_FIELDS.contains(&field) => FieldTransform::RequestPath,
            "path" => FieldTransform::Path,
            "method" if REQUEST_LINE_FIELDS.contains(&field) => FieldTransform::RequestMethod,
            _ => FieldTransform::Raw,
        };
        return vec![(field.to_owned(), transform)];
    }
    match name {
        "client_ip" => {
            let mut fields = plain(&ADDRESS_FIELDS, FieldTransform::Address);
            for (_, transform) in fields.iter_mut().filter(|(field, _)| field == "remote_addr_port") {
                *transform = FieldTransform::AddressWithPort;
            }
            fields
        }
        "method" => {
            [plain(&METHOD_FIELDS, FieldTransform::Raw), plain(&REQUEST_LINE_FIELDS, FieldTransform::RequestMethod)]
                .concat()
        }
        "path" => {
            [plain(&TARGET_FIELDS, FieldTransform::Path), plain(&REQUEST_LINE_FIELDS, FieldTransform::RequestPath)]
                .concat()
        }
        "host" => plain(&HOST_FIELDS, FieldTransform::Host),
        "user" => plain(&["user", "remote_user", "user_id"], FieldTransform::Raw),
        "bytes" => plain(&["bytes", "body_bytes_sent", "bytes_sent", "size"], FieldTransform::Raw),
        _ => match name.split_once('.') {
            Some(("header", header)) => {
                let variable = format!("http_{}", header.to_ascii_lowercase().replace('-', "_"));
                let known = match header {
                    "user-agent" => &["user_agent", "agent"][..],
                    "referer" => &["referer", "referrer"],
                    _ => &[],
                };
                let inside = [format!("request.headers.{header}"), format!("headers.{header}"), name.to_owned()];
                let mut fields = plain(&[&variable], FieldTransform::Raw);
                fields.extend(inside.into_iter().map(|field| (field, FieldTransform::Raw)));
                fields.extend(plain(known, FieldTransform::Raw));
                fields
            }
            Some(("cookie", cookie)) => plain(&[&format!("cookie_{cookie}"), name], FieldTransform::Raw),
            Some(("query", parameter)) => {
                let parameter: Box<[u8]> = parameter.as_bytes().into();
                [
                    plain(&[&format!("arg_{}", String::from_utf8_lossy(&parameter)), name], FieldTransform::Raw),
                    plain(&QUERY_FIELDS, FieldTransform::Query(parameter.clone())),
                    plain(&TARGET_FIELDS[1..], FieldTransform::TargetQuery(parameter.clone())),
                    plain(&TARGET_FIELDS[..1], FieldTransform::TargetQuery(parameter.clone())),
                    plain(&REQUEST_LINE_FIELDS, FieldTransform::RequestQuery(parameter)),
                ]
                .concat()
            }
            Some(_) | None => plain(&[name], FieldTransform::Raw),
        },
    }
}

/// Converts a field and returns the span of the result. Appends the result to `extra` if it differs from the field.
#[inline]
fn convert_field(format: &Format, text: &[u8], span: Span, transform: &FieldTransform, extra: &mut Vec<u8>) -> Span {
    let Some(raw) = span.bytes_in(text) else { return Span::NONE };
    if raw.is_empty() || raw == b"-" && format.dash_means_missing() {
        return Span::NONE;
    }
    if !span.is_escaped() && raw.len() <= Item::MAX_BYTES {
        match transform {
            FieldTransform::Raw => return span,
            FieldTransform::Address if looks_like_ipv4(raw) => return span,
            FieldTransform::RequestMethod => {
                let len = memchr::memchr(b' ', raw).unwrap_or(0);
                return if len == 0 { Span::NONE } else { Span::new(span.start(), len) };
            }
            FieldTransform::Path if is_normalised_path(raw) => return span,
            FieldTransform::RequestPath => {
                let (start, len) = find_request_target(raw);
                let target = &raw[start..start + len];
                let path = &target[..memchr::memchr2(b'?', b'#', target).unwrap_or(len)];
                if is_normalised_path(path) {
                    return Span::new(span.start() + start, path.len());
                }
            }
            FieldTransform::Address
            | FieldTransform::AddressWithPort
            | FieldTransform::Host
            | FieldTransform::Path
            | FieldTransform::TargetQuery(_)
            | FieldTransform::Query(_)
            | FieldTransform::RequestQuery(_) => {}
        }
    }
    convert_field_slow(format, text, span, transform, extra)
}

#[inline(never)]
fn convert_field_slow(
    format: &Format,
    text: &[u8],
    span: Span,
    transform: &FieldTransform,
    extra: &mut Vec<u8>,
) -> Span {
    let Some(raw) = span.bytes_in(text) else { return Span::NONE };
    let plain = if span.is_escaped() { format.unescape(raw) } else { raw.into() };
    let start = extra.len();
    match transform {
        FieldTransform::Raw => extra.extend_from_slice(&plain),
        FieldTransform::Address => push_address(&plain, false, extra),
        FieldTransform::AddressWithPort => push_address(&plain, true, extra),
        FieldTransform::Host => push_host(&plain, extra),
        FieldTransform::Path => push_path(&plain, extra),
        FieldTransform::RequestPath => push_path(request_line_target(&plain), extra),
        FieldTransform::RequestMethod => {
            extra.extend_from_slice(&plain[..memchr::memchr(b' ', &plain).unwrap_or(0)]);
        }
        FieldTransform::Query(parameter) => {
            extra.extend_from_slice(query_parameter(&plain, parameter).unwrap_or_default());
        }
        FieldTransform::TargetQuery(parameter) => push_query_parameter(&plain, parameter, extra),
        FieldTransform::RequestQuery(parameter) => push_query_parameter(request_line_target(&plain), parameter, extra),
    }
    extra.truncate(extra.len().min(start + Item::MAX_BYTES));
    if extra.len() == start { Span::NONE } else { Span::new(text.len() + start, extra.len() - start) }
}

/// Returns whether a value looks like an IPv4 address without a port: at most 15 bytes, all of them digits or dots.
#[inline]
fn looks_like_ipv4(value: &[u8]) -> bool {
    value.len() <= 15 && value.iter().all(|byte| byte.is_ascii_digit() || *byte == b'.')
}

/// Returns whether a target is a normalised path without a query.
#[inline]
fn is_normalised_path(target: &[u8]) -> bool {
    let mut before = b' ';
    let plain = target.iter().all(|byte| {
        let odd = matches!(byte, b'%' | b'?' | b'#' | 0x80..) || before == b'/' && matches!(byte, b'/' | b'.');
        before = *byte;
        !odd
    });
    plain && target.first() == Some(&b'/')
}

/// Returns the start and the length of the target in a request line such as `GET /a HTTP/1.1`.
#[inline]
fn find_request_target(line: &[u8]) -> (usize, usize) {
    let Some(first) = memchr::memchr(b' ', line) else { return (line.len(), 0) };
    let end = memchr::memrchr(b' ', line).filter(|last| *last > first).unwrap_or(line.len());
    (first + 1, end - first - 1)
}

fn request_line_target(line: &[u8]) -> &[u8] {
    let (start, len) = find_request_target(line);
    &line[start..start + len]
}

/// Splits a request target into path and query. The target may be an absolute URL.
fn split_target(target: &[u8]) -> (&[u8], &[u8]) {
    let scheme = memchr::memmem::find(target, b"://").filter(|end| !target[..*end].contains(&b'/'));
    let target = match scheme {
        Some(end) => {
            let rest = &target[end + 3..];
            memchr::memchr(b'/', rest).map_or(&b"/"[..], |slash| &rest[slash..])
        }
        None => target,
    };
    let target = memchr::memchr(b'#', target).map_or(target, |end| &target[..end]);
    memchr::memchr(b'?', target).map_or((target, &[][..]), |end| (&target[..end], &target[end + 1..]))
}

fn push_path(target: &[u8], extra: &mut Vec<u8>) {
    let (path, _) = split_target(target);
    match str::from_utf8(path) {
        Ok(path) => extra.extend_from_slice(normalize(path).as_bytes()),
        Err(_) => extra.extend_from_slice(path),
    }
}

fn push_query_parameter(target: &[u8], parameter: &[u8], extra: &mut Vec<u8>) {
    extra.extend_from_slice(query_parameter(split_target(target).1, parameter).unwrap_or_default());
}

/// Returns the first value of a query parameter, without decoding it.
fn query_parameter<'q>(query: &'q [u8], parameter: &[u8]) -> Option<&'q [u8]> {
    let query = query.strip_prefix(b"?").unwrap_or(query);
    query.split(|byte| *byte == b'&').find_map(|pair| pair.strip_prefix(parameter)?.strip_prefix(b"="))
}

fn push_host(host: &[u8], extra: &mut Vec<u8>) {
    let is_port = |port: &[u8]| !port.is_empty() && port.iter().all(u8::is_ascii_digit);
    let colon = memchr::memrchr(b':', host).filter(|colon| is_port(&host[colon + 1..]));
    // The last group of an IPv6 address without brackets is not a port.
    let colon = colon.filter(|colon| host.starts_with(b"[") || !host[..*colon].contains(&b':'));
    extra.extend(colon.map_or(host, |colon| &host[..colon]).iter().map(u8::to_ascii_lowercase));
}

/// Appends the client address in the notation of rules. A value that is not an address is appended unchanged.
fn push_address(value: &[u8], has_port: bool, extra: &mut Vec<u8>) {
    let first = value.split(|byte| *byte == b',').next().unwrap_or(value).trim_ascii();
    let port = has_port.then(|| memchr::memrchr(b':', first)).flatten();
    let first = port.map_or(first, |colon| &first[..colon]);
    let parsed = str::from_utf8(first).ok().and_then(|text| {
        let bare = text.strip_prefix('[').and_then(|text| text.strip_suffix(']')).unwrap_or(text);
        bare.parse::<IpAddr>().ok().or_else(|| Some(text.parse::<SocketAddr>().ok()?.ip()))
    });
    match parsed {
        Some(address) => extra.extend_from_slice(ClientIp::direct().format_address(address).as_bytes()),
        None => extra.extend_from_slice(first),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check_attributes(head: &str, format: Option<&str>, names: &[&str], expected: &[Option<&str>]) {
        let mut format = match format {
            Some(text) => Format::from_description(text, head.as_bytes()).expect("a format"),
            None => Format::detect(head.as_bytes()).expect("a known format"),
        };
        let names: Vec<Box<str>> = names.iter().map(|name| (*name).into()).collect();
        let mapping = Mapping { map: vec![("tenant".into(), "request.headers.X-Tenant".into())], set: Vec::new() };
        let (extractor, _) = Extractor::new(&mut format, &names, &mapping).expect("a time");
        let line = head.lines().last().expect("a line").as_bytes();
        let (mut fields, mut extra, mut spans) = ([Span::NONE; MAX_FIELDS], Vec::new(), Vec::new());
        assert!(format.parse(line, 0, &mut fields), "{head}");
        extractor.push_attributes(&format, line, &fields, &mut extra, &mut spans);
        let all = [line, &extra].concat();
        let found: Vec<Option<String>> = spans
            .iter()
            .map(|span| span.bytes_in(&all).map(|value| String::from_utf8_lossy(value).into_owned()))
            .collect();
        assert_eq!(found.iter().map(Option::as_deref).collect::<Vec<_>>(), expected, "{head}");
    }

    const ATTRIBUTE_NAMES: [&str; 7] = ["client_ip", "method", "path", "host", "query.q", "header.user-agent", "user"];

    #[test]
    fn attributes_are_extracted_from_each_log_format() {
        check_attributes(
            r#"2001:db8:1:2:3::4 - bob [16/Nov/2026:09:00:00 +0000] "GET /a/../b?q=1&q=2 HTTP/1.1" 200 5 "-" "curl \x22""#,
            None,
            &ATTRIBUTE_NAMES,
            &[Some("2001:db8:1:2::/64"), Some("GET"), Some("/b"), None, Some("1"), Some("curl \""), Some("bob")],
        );
        check_attributes(
            r#"[2026-11-16T09:00:00.123Z] "POST /a?q=x HTTP/2" 200 - 0 5 3 2 "10.0.0.1, 10.9.9.9" "curl/8" "id" "A.org:443" "-""#,
            None,
            &ATTRIBUTE_NAMES,
            &[Some("10.0.0.1"), Some("POST"), Some("/a"), Some("a.org"), Some("x"), Some("curl/8"), None],
        );
        check_attributes(
            r#"haproxy[12]: ::1:4711 [16/Nov/2026:09:00:00.123] web app/s1 0/0/1/2/3 200 5 - - ---- 1/1/0/0/0 0/0 "GET /a?q=1 HTTP/1.1""#,
            None,
            &ATTRIBUTE_NAMES,
            &[Some("::/64"), Some("GET"), Some("/a"), None, Some("1"), None, None],
        );
        check_attributes(
            r#"{"ts":1.5,"request":{"remote_ip":"10.0.0.1","client_ip":"10.0.0.2","method":"GET","host":"a.org","uri":"/x?q=%20","headers":{"User-Agent":["c\"8"],"X-Tenant":["t"]}}}"#,
            None,
            &["client_ip", "method", "path", "host", "query.q", "header.user-agent", "user", "tenant"],
            &[Some("10.0.0.2"), Some("GET"), Some("/x"), Some("a.org"), Some("%20"), Some("c\"8"), None, Some("t")],
        );
        check_attributes(
            "time,client_ip,path,plan\n2026-11-16T09:00:00Z,10.0.0.1:99,/%6Cogin?x=1,pro",
            None,
            &["client_ip", "path", "plan", "query.x"],
            &[Some("10.0.0.1"), Some("/login"), Some("pro"), Some("1")],
        );
    }

    #[test]
    fn malformed_request_lines_have_no_invalid_attributes() {
        let combined = |request: &str, method: Option<&str>, path: Option<&str>| {
            let line = format!(r#"10.0.0.1 - - [16/Nov/2026:09:00:00 +0000] "{request}" 400 0 "-" "-""#);
            check_attributes(&line, Some("combined"), &["method", "path"], &[method, path]);
        };
        combined("-", None, None);
        combined("", None, None);
        combined(r"\x16\x03\x01", None, None);
        combined("GET /", Some("GET"), Some("/"));
        combined("GET http://a.org/x?y HTTP/1.1", Some("GET"), Some("/x"));
        combined("OPTIONS * HTTP/1.1", Some("OPTIONS"), Some("*"));
        combined("GET /a b HTTP/1.1", Some("GET"), Some("/a b"));
        combined("GET //a//b HTTP/1.1", Some("GET"), Some("/a/b"));
    }

    #[test]
    fn missing_fields_are_reported() {
        let mut format = Format::from_description("$remote_addr", b"").expect("a format");
        let error = Extractor::new(&mut format, &[], &Mapping::default()).unwrap_err();
        assert!(error.contains("--map time=FIELD, one of remote_addr"), "{error}");
        let mut format = Format::from_description("$msec $a", b"").expect("a format");
        let mapping = Mapping { map: vec![("k".into(), "b".into())], set: Vec::new() };
        let error = Extractor::new(&mut format, &["k".into()], &mapping).unwrap_err();
        assert!(error.contains("--map k=b: the log has no such field; available: msec, a"), "{error}");
        let (_, missing) = Extractor::new(&mut format, &["k".into(), "a".into()], &Mapping::default()).unwrap();
        assert_eq!(missing.iter().map(|name| &**name).collect::<Vec<_>>(), ["k"]);
    }
}
