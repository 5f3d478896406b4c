//! Parses any bytes as a multipart form. Parts must be slices of the body, in order, between boundaries.

use tollgate_server::control::api::form::split_parts;

/// Splits an input at the boundary named in its first line.
pub fn check(input: &[u8]) {
    let (boundary, body) = input.split_at(input.iter().position(|byte| *byte == b'\n').unwrap_or(input.len()));
    let body = body.get(1..).unwrap_or_default().to_vec().into();
    let Ok(found) = split_parts(&body, boundary) else { return };
    let delimiter = [b"\r\n--", boundary].concat();
    let mut at = 0;
    // Skips empty parts, because they have no position in the body.
    for content in found.iter().map(|part| &part.content).filter(|content| !content.is_empty()) {
        let start = content.as_ptr() as usize - body.as_ptr() as usize;
        assert!(at < start && start + content.len() <= body.len(), "parts lie in the body, in order");
        at = start + content.len();
        assert!(body[at..].starts_with(&delimiter), "a part ends at a boundary");
        assert!(!content.windows(delimiter.len()).any(|window| window == delimiter), "a boundary within a part");
    }
}
