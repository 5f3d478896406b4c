//! Texts in headers: what a change is for, and what nodes say about themselves.

use hyper::HeaderMap;

use super::fault::Fault;
use crate::control::auth::Access;
use crate::control::model::Change;
use crate::percent;

/// What a change is for.
pub(super) const COMMENT: &str = "tollgate-comment";

/// Who changes something, and why.
///
/// # Errors
/// When the comment is no text.
pub(super) fn change(access: &Access, headers: &HeaderMap) -> Result<Change, Fault> {
    let comment = text(headers, COMMENT)?.filter(|comment| !comment.is_empty());
    Ok(Change { author: access.author().to_owned(), comment })
}

/// The text of a header: UTF-8, percent-encoded where that is needed. A percent sign that encodes nothing stands for itself.
///
/// # Errors
/// When it is no text.
pub(super) fn text(headers: &HeaderMap, name: &str) -> Result<Option<String>, Fault> {
    let Some(value) = headers.get(name) else { return Ok(None) };
    let text = String::from_utf8(percent::decode(value.as_bytes()));
    // What would break a line of a log is a space.
    let text = text.map(|text| text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect());
    text.map(Some).map_err(|_| Fault::bad_request(format!("{name} is a text in UTF-8, percent-encoded where needed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_comment_is_decoded_where_it_is_encoded() {
        for (sent, expected) in [
            (&b"for%20the%20sale"[..], Some("for the sale")),
            ("für den Ausverkauf".as_bytes(), Some("für den Ausverkauf")),
            (b"f%C3%BCr", Some("für")),
            (b"raise by 100%", Some("raise by 100%")),
            (b"50% more, 5%zz", Some("50% more, 5%zz")),
            (b"two%0Alines", Some("two lines")),
            (b"%FF", None),
            (b"\xff", None),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(COMMENT, hyper::header::HeaderValue::from_bytes(sent).unwrap());
            let told = text(&headers, COMMENT).ok().flatten();
            assert_eq!(told.as_deref(), expected, "{}", sent.escape_ascii());
        }
    }
}
