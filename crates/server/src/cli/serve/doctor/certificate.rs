//! Expiry times of certificates.

use jiff::Timestamp;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;

/// An element of DER: its tag and its content.
type DerElement<'a> = (u8, &'a [u8]);

const INTEGER_TAG: u8 = 0x02;
const SEQUENCE_TAG: u8 = 0x30;
const VERSION_TAG: u8 = 0xa0;
const UTC_TIME_TAG: u8 = 0x17;
const GENERALIZED_TIME_TAG: u8 = 0x18;

/// Returns the expiry time of an X.509 certificate in DER, or `None` if the certificate is malformed. Needed because
/// TLS libraries check the expiry but do not return it.
pub(super) fn not_after(certificate: &[u8]) -> Option<Timestamp> {
    let mut certificate = expect_element(&mut &*certificate, SEQUENCE_TAG)?;
    let mut fields = expect_element(&mut certificate, SEQUENCE_TAG)?;
    let mut serial = next_element(&mut fields)?;
    if serial.0 == VERSION_TAG {
        serial = next_element(&mut fields)?;
    }
    if serial.0 != INTEGER_TAG {
        return None;
    }
    let (_algorithm, _issuer) =
        (expect_element(&mut fields, SEQUENCE_TAG)?, expect_element(&mut fields, SEQUENCE_TAG)?);
    let mut validity = expect_element(&mut fields, SEQUENCE_TAG)?;
    next_element(&mut validity)?;
    parse_time(next_element(&mut validity)?)
}

fn expect_element<'a>(from: &mut &'a [u8], tag: u8) -> Option<&'a [u8]> {
    next_element(from).filter(|element| element.0 == tag).map(|element| element.1)
}

/// Removes and returns the first element. Returns `None` if the element is malformed or its length field has more than
/// four bytes.
fn next_element<'a>(from: &mut &'a [u8]) -> Option<DerElement<'a>> {
    let (tag, rest) = from.split_first()?;
    let (first, mut rest) = rest.split_first()?;
    let mut length = usize::from(*first);
    if length >= 0x80 {
        let (bytes, after) =
            rest.split_at_checked(length - 0x80).filter(|(bytes, _)| (1..=4).contains(&bytes.len()))?;
        length = bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte));
        rest = after;
    }
    let (content, rest) = rest.split_at_checked(length)?;
    *from = rest;
    Some((*tag, content))
}

/// Parses a time in the form `YYMMDDHHMMSSZ` (years 1950 to 2049) or `YYYYMMDDHHMMSSZ`.
fn parse_time((tag, text): DerElement<'_>) -> Option<Timestamp> {
    let text = str::from_utf8(text).ok()?.strip_suffix('Z')?;
    let (year, rest) = match tag {
        UTC_TIME_TAG => {
            let (year, rest) = text.split_at_checked(2)?;
            let year: i16 = year.parse().ok()?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME_TAG => {
            let (year, rest) = text.split_at_checked(4)?;
            (year.parse().ok()?, rest)
        }
        _ => return None,
    };
    let part = |index: usize| rest.get(2 * index..2 * index + 2)?.parse::<i8>().ok();
    let date = DateTime::new(year, part(0)?, part(1)?, part(2)?, part(3)?, part(4)?, 0).ok()?;
    Some(date.to_zoned(TimeZone::UTC).ok()?.timestamp())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed_time_text(tag: u8, text: &str) -> Option<String> {
        parse_time((tag, text.as_bytes())).map(|time| time.to_string())
    }

    #[test]
    fn both_kinds_of_time_are_parsed() {
        assert_eq!(parsed_time_text(UTC_TIME_TAG, "261117023104Z").as_deref(), Some("2026-11-17T02:31:04Z"));
        assert_eq!(parsed_time_text(UTC_TIME_TAG, "991231235959Z").as_deref(), Some("1999-12-31T23:59:59Z"));
        assert_eq!(parsed_time_text(GENERALIZED_TIME_TAG, "20500101000000Z").as_deref(), Some("2050-01-01T00:00:00Z"));
        for wrong in ["", "Z", "26111702310", "261117023104", "26111702310éZ", "261317023104Z"] {
            assert_eq!(parsed_time_text(UTC_TIME_TAG, wrong), None, "{wrong}");
        }
    }

    #[test]
    fn malformed_certificates_have_no_expiry() {
        for bytes in [&[][..], &[0x30], &[0x30, 0x84, 1], &[0x30, 0x89, 0, 0, 0, 0, 0, 0, 0, 0, 0], &[0x30, 2, 0x30, 0]]
        {
            assert_eq!(not_after(bytes), None, "{bytes:?}");
        }
    }
}
