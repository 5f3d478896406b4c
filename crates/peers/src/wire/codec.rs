//! Encoding of numbers, fingerprints and lists. Reading checks every length before it allocates.

use tollgate::fingerprint::Fingerprint;

use super::WireError;

/// Encoded size of a fingerprint in bytes.
pub(super) const FINGERPRINT_BYTES: usize = 12;

/// Maximum encoded size of a varint in bytes.
const MAX_VARINT_BYTES: usize = 10;

/// Reads fields from a byte slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    pub(super) fn take(&mut self, count: usize) -> Result<&'a [u8], WireError> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(taken)
    }

    /// Returns the remaining bytes.
    pub(super) fn take_remaining(&mut self) -> &'a [u8] {
        std::mem::take(&mut self.rest)
    }

    #[inline]
    pub(super) fn byte(&mut self) -> Result<u8, WireError> {
        let (byte, rest) = self.rest.split_first().ok_or(WireError::Truncated)?;
        self.rest = rest;
        Ok(*byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let bytes = self.take(N)?;
        bytes.try_into().map_err(|_| WireError::Truncated)
    }

    pub(super) fn fixed_u64(&mut self) -> Result<u64, WireError> {
        self.array().map(u64::from_le_bytes)
    }

    /// Reads a varint: seven bits per byte, the lowest first.
    #[inline]
    pub(super) fn varint(&mut self) -> Result<u64, WireError> {
        match self.rest {
            [byte @ ..0x80, rest @ ..] => {
                self.rest = rest;
                Ok((*byte).into())
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, WireError> {
        let mut number = 0;
        for (index, byte) in self.rest.iter().take(MAX_VARINT_BYTES).enumerate() {
            let bits = u64::from(byte & 0x7f);
            if index + 1 == MAX_VARINT_BYTES && bits > 1 {
                return Err(WireError::Invalid("a number above 64 bits"));
            }
            number |= bits << (7 * index);
            if *byte < 0x80 {
                self.rest = &self.rest[index + 1..];
                return Ok(number);
            }
        }
        let is_truncated = self.rest.len() < MAX_VARINT_BYTES;
        Err(if is_truncated { WireError::Truncated } else { WireError::Invalid("a number above 64 bits") })
    }

    pub(super) fn varint_u32(&mut self) -> Result<u32, WireError> {
        u32::try_from(self.varint()?).map_err(|_| WireError::Invalid("a number above 32 bits"))
    }

    /// Reads an element count. Each element takes at least `least` bytes.
    #[inline]
    pub(super) fn read_count(&mut self, least: usize, max: usize) -> Result<usize, WireError> {
        let count = self.varint()?;
        let fits = self.rest.len() / least.max(1);
        match usize::try_from(count) {
            Ok(count) if count > max => Err(WireError::Invalid("a list that is too long")),
            Ok(count) if count <= fits => Ok(count),
            _ => Err(WireError::Truncated),
        }
    }

    pub(super) fn fingerprint(&mut self) -> Result<Fingerprint, WireError> {
        let (low, high) = (self.fixed_u64()?, self.array().map(u32::from_le_bytes)?);
        Ok(Fingerprint::from_parts(low, high))
    }

    pub(super) fn expect_end(&self) -> Result<(), WireError> {
        if self.rest.is_empty() { Ok(()) } else { Err(WireError::Invalid("bytes after the end of a frame")) }
    }
}

pub(super) fn put_varint(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(super) fn put_fingerprint(key: Fingerprint, out: &mut Vec<u8>) {
    let (low, high) = key.parts();
    out.extend_from_slice(&low.to_le_bytes());
    out.extend_from_slice(&high.to_le_bytes());
}

/// Encodes a signed number so that numbers near zero have short varints.
pub(super) fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}

pub(super) fn unzigzag(number: u64) -> i64 {
    (number >> 1) as i64 ^ -((number & 1) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_numbers_decode_to_the_same_value() {
        for number in [0, 1, 127, 128, 300, u64::from(u32::MAX), u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            put_varint(number, &mut bytes);
            assert_eq!(Reader::new(&bytes).varint(), Ok(number));
            assert_eq!(unzigzag(zigzag(number as i64)), number as i64);
        }
        assert!(Reader::new(&[0xff; 10]).varint().is_err());
        assert_eq!(Reader::new(&[0x80]).varint(), Err(WireError::Truncated));
    }
}
