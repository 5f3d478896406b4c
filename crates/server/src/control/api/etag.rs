//! ETags and the headers that name them (RFC 9110, 13.1): what a writer takes for granted, and what a reader has already.

use hyper::HeaderMap;
use hyper::header::{HeaderName, IF_MATCH, IF_NONE_MATCH};

use super::fault::Fault;
use crate::control::model::Expected;

/// The tag of a version or revision.
pub(super) fn of(version: i64) -> String {
    format!("\"{version}\"")
}

/// What a write takes for granted.
///
/// # Errors
/// When the headers say nothing that could be looked after.
pub(super) fn expected(headers: &HeaderMap) -> Result<Expected, Fault> {
    match (tags(headers, &IF_MATCH)?, tags(headers, &IF_NONE_MATCH)?) {
        (None, None) => Ok(Expected::Anything),
        (Some(Tags::Any), None) => Ok(Expected::Something),
        (Some(Tags::Some(tags)), None) => match tags.as_slice() {
            // A tag that was never given out is one that nothing has.
            [tag] => Ok(Expected::Version(tag.parse().unwrap_or(-1))),
            _ => Err(Fault::bad_request("give one ETag in If-Match, the one that came with what you have changed")),
        },
        (None, Some(Tags::Any)) => Ok(Expected::Nothing),
        (None, Some(Tags::Some(_))) => Err(Fault::bad_request(
            "with a write, If-None-Match is `*`: only if there is nothing yet; for others there is If-Match",
        )),
        (Some(_), Some(_)) => Err(Fault::bad_request("give If-Match or If-None-Match, not both")),
    }
}

/// Whether a reader already has what has this tag.
///
/// # Errors
/// When the header is no list of tags.
pub(super) fn is_known(headers: &HeaderMap, tag: &str) -> Result<bool, Fault> {
    Ok(match tags(headers, &IF_NONE_MATCH)? {
        None => false,
        Some(Tags::Any) => true,
        Some(Tags::Some(tags)) => tags.iter().any(|known| Some(known.as_str()) == opaque(tag)),
    })
}

enum Tags {
    Any,
    Some(Vec<String>),
}

fn tags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Tags>, Fault> {
    let wrong = || Fault::bad_request(format!("{name} is `*` or an ETag in quotation marks, such as \"3\""));
    let mut tags = Vec::new();
    for value in headers.get_all(name) {
        let text = value.to_str().map_err(|_| wrong())?.trim();
        if text == "*" {
            return Ok(Some(Tags::Any));
        }
        for tag in text.split(',') {
            tags.push(opaque(tag.trim()).ok_or_else(wrong)?.to_owned());
        }
    }
    Ok((!tags.is_empty()).then_some(Tags::Some(tags)))
}

/// What is between the quotation marks. Weak tags are as good as strong ones: proxies that compress weaken them, and ours name
/// versions, not bytes.
fn opaque(tag: &str) -> Option<&str> {
    tag.strip_prefix("W/").unwrap_or(tag).strip_prefix('"')?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), value.parse().unwrap());
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn a_write_takes_for_granted_what_its_headers_say() {
        for (pairs, expected_) in [
            (&[][..], Some(Expected::Anything)),
            (&[("if-match", "\"3\"")], Some(Expected::Version(3))),
            (&[("if-match", "W/\"3\"")], Some(Expected::Version(3))),
            (&[("if-match", "*")], Some(Expected::Something)),
            (&[("if-none-match", "*")], Some(Expected::Nothing)),
            (&[("if-match", "\"abc\"")], Some(Expected::Version(-1))),
            (&[("if-match", "\"99999999999999999999\"")], Some(Expected::Version(-1))),
            (&[("if-match", "3")], None),
            (&[("if-match", "")], None),
            (&[("if-match", "\"3\", \"4\"")], None),
            (&[("if-none-match", "\"3\"")], None),
            (&[("if-match", "*"), ("if-none-match", "*")], None),
        ] {
            assert_eq!(expected(&headers(pairs)).ok(), expected_, "{pairs:?}");
        }
    }

    #[test]
    fn a_reader_has_what_it_names() {
        for (value, known) in
            [("\"3\"", true), ("W/\"3\"", true), ("\"2\", \"3\"", true), ("*", true), ("\"4\"", false)]
        {
            assert_eq!(is_known(&headers(&[("if-none-match", value)]), "\"3\"").ok(), Some(known), "{value}");
        }
        assert_eq!(is_known(&headers(&[]), "\"3\"").ok(), Some(false));
        assert!(is_known(&headers(&[("if-none-match", "3")]), "\"3\"").is_err());
    }
}
