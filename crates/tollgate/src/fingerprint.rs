//! Keys as 128-bit fingerprints: fixed in size, and impossible to aim at without the secret.
//!
//! The bytes of a key, in chunks of seven, are the coefficients of two polynomials over the numbers modulo the prime 2⁶¹−1,
//! and the fingerprint is their values at two secret points drawn at random. Two different keys are two different
//! polynomials, and these agree at no more points than their degree. So for any two keys of up to `n` bytes, chosen by
//! anybody who does not know the points:
//!
//! > the chance that they share a fingerprint is at most `((n/7 + 2) / 2⁶⁰)²`, which is below 2⁻¹¹⁵ for keys of 20 bytes.
//!
//! A hash made for tables of trusted keys is not enough here: its collisions can be found offline, and a caller who
//! shares an entry with somebody else spends what is theirs.

use std::hash::{Hash, Hasher};

/// What is stored of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fingerprint {
    pub(crate) low: u64,
    pub(crate) high: u64,
}

/// The two points. Whoever knows them can make keys collide.
#[derive(Clone, Copy)]
pub(crate) struct Secret {
    points: [u64; 2],
}

impl Secret {
    /// Draws a secret from the operating system.
    pub(crate) fn random() -> Self {
        // Where the system has no randomness to give (a few embedded targets) the standard library's own seed serves.
        let draw = || getrandom::u64().unwrap_or_else(|_| std::hash::BuildHasher::hash_one(&std::hash::RandomState::new(), 0));
        Self::from_points([draw(), draw()])
    }

    pub(crate) fn from_points(points: [u64; 2]) -> Self {
        Self { points: points.map(|point| point & MAX_POINT) }
    }

    #[inline]
    pub(crate) fn fingerprint<K: Hash + ?Sized>(&self, key: &K) -> Fingerprint {
        let mut hasher = Polynomials { points: self.points, values: [1, 1], held: 0, held_len: 0 };
        key.hash(&mut hasher);
        hasher.fingerprint()
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(…)")
    }
}

const PRIME: u64 = (1 << 61) - 1;
/// Points stay below 2⁶⁰ so that a value that is not fully reduced stays below 2⁶³ from step to step.
const MAX_POINT: u64 = (1 << 60) - 1;
const CHUNK: usize = 7;

struct Polynomials {
    points: [u64; 2],
    values: [u64; 2],
    /// Bytes not yet absorbed, and how many: the last chunk is held back until more comes or the key ends.
    held: u64,
    held_len: usize,
}

impl Polynomials {
    #[inline]
    fn absorb(&mut self, chunk: u64) {
        for (value, point) in self.values.iter_mut().zip(self.points) {
            let product = u128::from(*value + chunk) * u128::from(point);
            // 2⁶¹ is 1 modulo the prime: what is above bit 61 is added to what is below.
            *value = (product as u64 & PRIME) + (product >> 61) as u64;
        }
    }

    #[inline]
    fn fingerprint(mut self) -> Fingerprint {
        // The length of the last chunk tells "a" from "a\0"; no full chunk reaches bit 56.
        self.absorb(self.held | (self.held_len as u64 + 1) << 56);
        let [low, high] = self.values.map(scatter);
        Fingerprint { low, high }
    }
}

impl Hasher for Polynomials {
    #[inline]
    fn write(&mut self, mut bytes: &[u8]) {
        if self.held_len > 0 {
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK - self.held_len));
            self.held |= load(now) << (8 * self.held_len);
            self.held_len += now.len();
            if later.is_empty() {
                return;
            }
            self.absorb(self.held);
            bytes = later;
        }
        while let Some((head, _)) = bytes.split_first_chunk::<8>() {
            self.absorb(u64::from_le_bytes(*head) & ((1 << 56) - 1));
            bytes = &bytes[CHUNK..];
        }
        self.held = load(bytes);
        self.held_len = bytes.len();
    }

    #[inline]
    fn write_u8(&mut self, byte: u8) {
        if self.held_len == CHUNK {
            self.absorb(self.held);
            (self.held, self.held_len) = (0, 0);
        }
        self.held |= u64::from(byte) << (8 * self.held_len);
        self.held_len += 1;
    }

    fn finish(&self) -> u64 {
        Self { ..*self }.fingerprint().low
    }
}

/// Up to seven bytes as a number.
#[inline]
fn load(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // The two overlap where there are fewer than eight; the same bytes land in the same place.
        return u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << (8 * (len - 4));
    }
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Spreads structure that keys have (counting up, say) over all bits. One to one, so nothing is lost.
#[inline]
fn scatter(value: u64) -> u64 {
    let value = (value ^ value >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    value ^ value >> 29
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const SECRET: Secret = Secret { points: [0x0123_4567_89AB_CDEF, 0x0FED_CBA9_8765_4321] };

    fn of_bytes(bytes: &[u8]) -> (u64, u64) {
        let mut hasher = Polynomials { points: SECRET.points, values: [1, 1], held: 0, held_len: 0 };
        hasher.write(bytes);
        let print = hasher.fingerprint();
        (print.low, print.high)
    }

    #[test]
    fn neighbours_lengths_and_zeros_all_differ() {
        let mut seen = HashSet::new();
        for len in 0..40 {
            assert!(seen.insert(of_bytes(&vec![0; len])), "{len} zeros");
            for place in 0..len {
                for byte in [1, 2, 0x80, 0xFF] {
                    let mut bytes = vec![0; len];
                    bytes[place] = byte;
                    assert!(seen.insert(of_bytes(&bytes)), "{byte} at {place} of {len}");
                }
            }
        }
    }

    #[test]
    fn how_a_key_is_cut_into_writes_does_not_matter() {
        let bytes: Vec<u8> = (1..=30).collect();
        for first in 0..=30 {
            for second in first..=30 {
                let mut hasher = Polynomials { points: SECRET.points, values: [1, 1], held: 0, held_len: 0 };
                hasher.write(&bytes[..first]);
                bytes[first..second].iter().for_each(|byte| hasher.write_u8(*byte));
                hasher.write(&bytes[second..]);
                let print = hasher.fingerprint();
                assert_eq!((print.low, print.high), of_bytes(&bytes), "cut at {first} and {second}");
            }
        }
    }

    #[test]
    fn the_value_is_the_polynomial_modulo_the_prime() {
        // Slowly, with full reduction, over the chunks of a 20-byte key.
        let bytes: Vec<u8> = (200..220).collect();
        let chunk = |part: &[u8]| part.iter().rev().fold(0u128, |n, b| n << 8 | u128::from(*b));
        let chunks = [chunk(&bytes[..7]), chunk(&bytes[7..14]), chunk(&bytes[14..]) | 7 << 56];
        let slow = SECRET.points.map(|point| {
            let value = chunks.iter().fold(1u128, |value, chunk| (value + chunk) * u128::from(point) % u128::from(PRIME));
            value as u64
        });
        let mut hasher = Polynomials { points: SECRET.points, values: [1, 1], held: 0, held_len: 0 };
        hasher.write(&bytes);
        hasher.absorb(hasher.held | 7 << 56);
        assert_eq!(hasher.values.map(|value| value % PRIME), slow);
    }

    #[test]
    fn keys_that_count_up_spread_evenly() {
        let mut buckets = [0u32; 256];
        for n in 0..65_536 {
            let print = SECRET.fingerprint(&format!("user:{n:08}"));
            buckets[(print.low >> 56) as usize] += 1;
        }
        // 256 expected in each, with a standard deviation of 16.
        assert!(buckets.iter().all(|count| (156..356).contains(count)), "{buckets:?}");
    }

    #[test]
    fn two_secrets_agree_on_nothing() {
        let other = Secret::random();
        assert_ne!(SECRET.fingerprint("key"), other.fingerprint("key"));
        assert_eq!(other.fingerprint("key"), other.fingerprint("key"));
    }
}
