//! ETags and conditional headers (RFC 9110, section 13.1). Writers send preconditions; readers send the version that
//! they have cached.

use hyper::HeaderMap;
use hyper::header::{HeaderName, IF_MATCH, IF_NONE_MATCH};

use crate::control::model::ExpectedVersion;
use crate::http::problem::Problem;

/// Returns the ETag of a version or revision.
pub(super) fn etag_of_version(version: i64) -> String {
    format!("\"{version}\"")
}

/// Returns the precondition of a write, from its conditional headers.
///
/// # Errors
/// Returns an error if If-Match or If-None-Match is invalid, or if the two contradict each other.
pub(super) fn expected_version(headers: &HeaderMap) -> Result<ExpectedVersion, Problem> {
    match (parse_tags(headers, &IF_MATCH)?, parse_tags(headers, &IF_NONE_MATCH)?) {
        (None, None) => Ok(ExpectedVersion::Anything),
        (Some(EtagCondition::Any), None) => Ok(ExpectedVersion::Present),
        (Some(EtagCondition::Some(tags)), None) => match tags.as_slice() {
            // The ETags of versions are numbers, so any other ETag matches no version.
            [tag] => Ok(ExpectedVersion::Version(tag.parse().unwrap_or(-1))),
            _ => Err(Problem::bad_request(
                "more than one ETag in If-Match; send only the ETag of the version that you changed",
            )),
        },
        (None, Some(EtagCondition::Any)) => Ok(ExpectedVersion::Absent),
        (None, Some(EtagCondition::Some(_))) => Err(Problem::bad_request(
            "a write accepts only `If-None-Match: *` (nothing exists yet); to name a version, use If-Match",
        )),
        (Some(_), Some(_)) => Err(Problem::bad_request("send If-Match or If-None-Match, not both")),
    }
}

/// Returns whether a reader already has the version with this ETag.
///
/// # Errors
/// Returns an error if If-None-Match is not a list of ETags.
pub(super) fn reader_has_version(headers: &HeaderMap, tag: &str) -> Result<bool, Problem> {
    Ok(match parse_tags(headers, &IF_NONE_MATCH)? {
        None => false,
        Some(EtagCondition::Any) => true,
        Some(EtagCondition::Some(tags)) => tags.iter().any(|known| Some(known.as_str()) == unquoted_tag(tag)),
    })
}

enum EtagCondition {
    Any,
    Some(Vec<String>),
}

fn parse_tags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<EtagCondition>, Problem> {
    let invalid =
        || Problem::bad_request(format!("invalid {name}: write `*` or an ETag in quotation marks, such as \"3\""));
    let mut tags = Vec::new();
    for value in headers.get_all(name) {
        let text = value.to_str().map_err(|_| invalid())?.trim();
        if text == "*" {
            return Ok(Some(EtagCondition::Any));
        }
        for tag in text.split(',') {
            tags.push(unquoted_tag(tag.trim()).ok_or_else(invalid)?.to_owned());
        }
    }
    Ok((!tags.is_empty()).then_some(EtagCondition::Some(tags)))
}

/// Returns the text between the quotation marks, or `None` if a mark is missing. Weak ETags count as strong, because
/// compressing proxies weaken them and our ETags identify versions, not bytes.
fn unquoted_tag(tag: &str) -> Option<&str> {
    tag.strip_prefix("W/").unwrap_or(tag).strip_prefix('"')?.strip_suffix('"')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header_map(pairs: &[(&'static str, &str)]) -> HeaderMap {
        let pair = |(name, value): &(&'static str, &str)| (HeaderName::from_static(name), value.parse().unwrap());
        pairs.iter().map(pair).collect()
    }

    #[test]
    fn preconditions_are_parsed() {
        for (pairs, expected_) in [
            (&[][..], Some(ExpectedVersion::Anything)),
            (&[("if-match", "\"3\"")], Some(ExpectedVersion::Version(3))),
            (&[("if-match", "W/\"3\"")], Some(ExpectedVersion::Version(3))),
            (&[("if-match", "*")], Some(ExpectedVersion::Present)),
            (&[("if-none-match", "*")], Some(ExpectedVersion::Absent)),
            (&[("if-match", "\"abc\"")], Some(ExpectedVersion::Version(-1))),
            (&[("if-match", "\"99999999999999999999\"")], Some(ExpectedVersion::Version(-1))),
            (&[("if-match", "3")], None),
            (&[("if-match", "")], None),
            (&[("if-match", "\"3\", \"4\"")], None),
            (&[("if-none-match", "\"3\"")], None),
            (&[("if-match", "*"), ("if-none-match", "*")], None),
        ] {
            assert_eq!(expected_version(&header_map(pairs)).ok(), expected_, "{pairs:?}");
        }
    }

    #[test]
    fn version_in_if_none_match_is_known_to_the_reader() {
        for (value, known) in
            [("\"3\"", true), ("W/\"3\"", true), ("\"2\", \"3\"", true), ("*", true), ("\"4\"", false)]
        {
            assert_eq!(
                reader_has_version(&header_map(&[("if-none-match", value)]), "\"3\"").ok(),
                Some(known),
                "{value}"
            );
        }
        assert_eq!(reader_has_version(&header_map(&[]), "\"3\"").ok(), Some(false));
        assert!(reader_has_version(&header_map(&[("if-none-match", "3")]), "\"3\"").is_err());
    }
}
