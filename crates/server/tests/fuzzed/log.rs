//! Parses any bytes as an access log and replays them. Fields must lie within their lines. The report must not count
//! more lines than there are, and must contain neither control sequences nor scripts.

use tollgate_server::replay::bounds::MAX_FIELDS;
use tollgate_server::replay::format::Format;
use tollgate_server::replay::format::span::Span;
use tollgate_server::replay::{Log, ReplayOptions, replay};

/// Parses an input in the format described in its first line and in the detected format, and replays it.
pub fn check(input: &[u8]) {
    let (first, rest) = input.split_at(input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len()));
    let described = str::from_utf8(first).ok().and_then(|text| Format::from_description(text, rest).ok());
    for format in described.into_iter().chain(Format::detect(input)) {
        parse_lines(format, input);
    }
    let log = Log::Bytes { name: "log".into(), bytes: input.to_vec().into() };
    let options = ReplayOptions { suggest: vec!["client_ip".into()], ..ReplayOptions::default() };
    if let Ok(report) = replay(&[log], &options, &mut |_| {}) {
        let clients = report.suggestion.as_ref().map_or(0, |suggestion| suggestion.clients);
        assert!(report.left_out + clients <= report.lines, "{report:?}");
        assert!(!report.to_text().contains('\x1b') && !report.to_html().contains("<script"));
    }
}

fn parse_lines(mut format: Format, input: &[u8]) {
    let names = format.available_fields().to_vec();
    for name in names.iter().take(MAX_FIELDS / 2) {
        let _ = format.field_index(name);
    }
    for line in input.split(|byte| *byte == b'\n') {
        let mut fields = [Span::NONE; MAX_FIELDS];
        if format.parse(line, 0, &mut fields) {
            for span in fields.iter().filter(|span| !span.is_none()) {
                let value = span.bytes_in(line).expect("a field is within its line");
                let _ = format.unescape(value);
            }
        }
    }
}
