//! Bytes as text of a few plain characters, each of the others written as `%` and two digits.

/// Writes bytes, those that `is_plain` as they are. It must not be so of `%`, or it is not read back.
pub(crate) fn encode(bytes: &[u8], is_plain: impl Fn(u8) -> bool) -> String {
    let mut text = String::with_capacity(bytes.len());
    for byte in bytes {
        if is_plain(*byte) && byte.is_ascii() {
            text.push(char::from(*byte));
        } else {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// Reads them back. A percent sign that encodes nothing stands for itself.
pub(crate) fn decode(bytes: &[u8]) -> Vec<u8> {
    let digit = |at: usize| bytes.get(at).and_then(|byte| char::from(*byte).to_digit(16));
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match (byte, digit(at + 1), digit(at + 2)) {
            (b'%', Some(high), Some(low)) => {
                out.push((high * 16 + low) as u8);
                at += 3;
            }
            _ => {
                out.push(*byte);
                at += 1;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_back() {
        let all: Vec<u8> = (0..=255).collect();
        let plain = |byte: u8| byte.is_ascii_graphic() && byte != b'%';
        assert_eq!(decode(encode(&all, plain).as_bytes()), all);
        assert_eq!(encode("a b%ü".as_bytes(), plain), "a%20b%25%C3%BC");
        assert_eq!(encode(b"\xff", |_| true), "%FF", "text is text, whatever is said to be plain");
    }

    #[test]
    fn a_percent_sign_that_encodes_nothing_stands_for_itself() {
        for (text, bytes) in [("100%", "100%"), ("5%zz", "5%zz"), ("%4", "%4"), ("%41%", "A%"), ("%%41", "%A")] {
            assert_eq!(decode(text.as_bytes()), bytes.as_bytes(), "{text}");
        }
    }
}
