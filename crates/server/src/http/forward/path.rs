//! Normalises paths, so that `/login` cannot be requested as `/x/../%6Cogin` to evade its rule.

use std::borrow::Cow;

/// Normalises a path: decodes percent-encoded letters, digits and `-._~` (RFC 3986, 6.2.2), resolves the segments `.`
/// and `..`, and merges repeated slashes. `%2F` stays encoded.
pub(crate) fn normalize(path: &str) -> Cow<'_, str> {
    if !path.contains('%') && !path.contains("//") && !path.contains("/.") {
        return Cow::Borrowed(path);
    }
    let path = decode_unreserved(path);
    let mut segments: Vec<&str> = Vec::new();
    let mut is_directory = false;
    for segment in path.split('/') {
        is_directory = matches!(segment, "" | "." | "..");
        match segment {
            "" | "." => {}
            ".." => drop(segments.pop()),
            segment => segments.push(segment),
        }
    }
    let mut normal = String::with_capacity(path.len());
    for segment in &segments {
        normal.push('/');
        normal.push_str(segment);
    }
    if is_directory || segments.is_empty() {
        normal.push('/');
    }
    Cow::Owned(normal)
}

fn decode_unreserved(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some((before, after)) = rest.split_once('%') {
        decoded.push_str(before);
        let byte = after.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte.filter(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(byte)) {
            Some(byte) => {
                decoded.push(char::from(byte));
                rest = &after[2..];
            }
            None => {
                decoded.push('%');
                rest = after;
            }
        }
    }
    decoded.push_str(rest);
    decoded
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_paths_are_normalised_to_the_same_path() {
        for (path, expected) in [
            ("/", "/"),
            ("/login", "/login"),
            ("/login/", "/login/"),
            ("//login", "/login"),
            ("/./login", "/login"),
            ("/a/../login", "/login"),
            ("/../../login", "/login"),
            ("/a/..", "/"),
            ("/a/.", "/a/"),
            ("/%6Cogin", "/login"),
            ("/%2e%2E/login", "/login"),
            ("/a%2Fb", "/a%2Fb"),
            ("/a%2", "/a%2"),
            ("/%%6C", "/%l"),
            ("/%+1x", "/%+1x"),
            ("/.well-known/x", "/.well-known/x"),
            ("/a...b", "/a...b"),
            ("/%é", "/%é"),
        ] {
            assert_eq!(normalize(path), expected, "{path}");
        }
    }
}
