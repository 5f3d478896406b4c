//! Classification of header fields, and the static table of HPACK (RFC 7541, appendix A).

use FieldName::{Authority, Authorization, ContentLength, ContentType, Method, Other, Path, Scheme, UnknownPseudo};
use FieldName::{ConnectionSpecific, Malformed, Te};

/// The class of a header field: a name that matters in a request, or a reason to refuse the field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldName {
    /// `:method`.
    Method,
    /// `:scheme`.
    Scheme,
    /// `:authority`.
    Authority,
    /// `:path`.
    Path,
    /// A pseudo-header field that is not valid in a request.
    UnknownPseudo,
    /// `content-type`.
    ContentType,
    /// `content-length`.
    ContentLength,
    /// `authorization`.
    Authorization,
    /// `te`.
    Te,
    /// A connection-specific field of HTTP/1.1, which HTTP/2 forbids.
    ConnectionSpecific,
    /// The name or the value contains forbidden characters.
    Malformed,
    /// Any other field.
    Other,
}

impl FieldName {
    /// Classifies a field by its name, and checks the characters of its value. A field in the dynamic table is
    /// classified only once, when it is inserted.
    pub fn classify(name: &[u8], value: &[u8]) -> Self {
        if !is_valid_value(value) {
            return Malformed;
        }
        match name {
            b":method" => Method,
            b":scheme" => Scheme,
            b":authority" => Authority,
            b":path" => Path,
            [b':', ..] => UnknownPseudo,
            b"content-type" => ContentType,
            b"content-length" => ContentLength,
            b"authorization" => Authorization,
            b"te" => Te,
            b"connection" | b"keep-alive" | b"proxy-connection" | b"transfer-encoding" | b"upgrade" => {
                ConnectionSpecific
            }
            name if is_valid_name(name) => Other,
            _ => Malformed,
        }
    }

    /// Returns whether the field is a pseudo-header field, such as `:path`.
    pub const fn is_pseudo(self) -> bool {
        matches!(self, Method | Scheme | Authority | Path | UnknownPseudo)
    }
}

/// Returns whether the bytes are a valid name: token characters in lower case.
fn is_valid_name(name: &[u8]) -> bool {
    let is_token = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9') || b"!#$%&'*+-.^_`|~".contains(byte);
    !name.is_empty() && name.iter().all(is_token)
}

/// Returns whether the bytes are a valid value: no NUL or line break, and no leading or trailing white space.
fn is_valid_value(value: &[u8]) -> bool {
    let is_space = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    !is_space(value.first()) && !is_space(value.last()) && !value.iter().any(|byte| matches!(byte, 0 | b'\n' | b'\r'))
}

/// The static table. The first entry has the HPACK index 1.
pub const STATIC_TABLE: [(&str, &str, FieldName); 61] = [
    (":authority", "", Authority),
    (":method", "GET", Method),
    (":method", "POST", Method),
    (":path", "/", Path),
    (":path", "/index.html", Path),
    (":scheme", "http", Scheme),
    (":scheme", "https", Scheme),
    (":status", "200", UnknownPseudo),
    (":status", "204", UnknownPseudo),
    (":status", "206", UnknownPseudo),
    (":status", "304", UnknownPseudo),
    (":status", "400", UnknownPseudo),
    (":status", "404", UnknownPseudo),
    (":status", "500", UnknownPseudo),
    ("accept-charset", "", Other),
    ("accept-encoding", "gzip, deflate", Other),
    ("accept-language", "", Other),
    ("accept-ranges", "", Other),
    ("accept", "", Other),
    ("access-control-allow-origin", "", Other),
    ("age", "", Other),
    ("allow", "", Other),
    ("authorization", "", Authorization),
    ("cache-control", "", Other),
    ("content-disposition", "", Other),
    ("content-encoding", "", Other),
    ("content-language", "", Other),
    ("content-length", "", ContentLength),
    ("content-location", "", Other),
    ("content-range", "", Other),
    ("content-type", "", ContentType),
    ("cookie", "", Other),
    ("date", "", Other),
    ("etag", "", Other),
    ("expect", "", Other),
    ("expires", "", Other),
    ("from", "", Other),
    ("host", "", Other),
    ("if-match", "", Other),
    ("if-modified-since", "", Other),
    ("if-none-match", "", Other),
    ("if-range", "", Other),
    ("if-unmodified-since", "", Other),
    ("last-modified", "", Other),
    ("link", "", Other),
    ("location", "", Other),
    ("max-forwards", "", Other),
    ("proxy-authenticate", "", Other),
    ("proxy-authorization", "", Other),
    ("range", "", Other),
    ("referer", "", Other),
    ("refresh", "", Other),
    ("retry-after", "", Other),
    ("server", "", Other),
    ("set-cookie", "", Other),
    ("strict-transport-security", "", Other),
    ("transfer-encoding", "", ConnectionSpecific),
    ("user-agent", "", Other),
    ("vary", "", Other),
    ("via", "", Other),
    ("www-authenticate", "", Other),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn static_table_is_classified_correctly() {
        for (name, value, expected) in STATIC_TABLE {
            assert_eq!(FieldName::classify(name.as_bytes(), value.as_bytes()), expected, "{name}");
        }
        // Spot checks of indices that RFC 7541 uses in its examples.
        assert_eq!(
            (STATIC_TABLE[7].0, STATIC_TABLE[7].1, STATIC_TABLE[30].0, STATIC_TABLE[57].0),
            (":status", "200", "content-type", "user-agent")
        );
    }

    #[test]
    fn forbidden_characters_make_a_field_malformed() {
        for (name, value) in [
            ("", "x"),
            ("Name", "x"),
            ("na me", "x"),
            ("n\u{e4}me", "x"),
            ("a", "\0"),
            ("a", "x\r\ny"),
            ("a", " x"),
            ("a", "x\t"),
        ] {
            assert_eq!(FieldName::classify(name.as_bytes(), value.as_bytes()), Malformed, "{name:?}: {value:?}");
        }
        assert_eq!(FieldName::classify(b"x-y_z.1", b"\xff a b"), Other);
        assert_eq!(FieldName::classify(b":other", b""), UnknownPseudo);
    }
}
