//! A keyed hash for caller-chosen keys. This hash needs a third of the instructions of the standard library's default
//! hash.
//!
//! The seven-byte chunks of a key are the coefficients of a polynomial modulo the prime 2⁶¹−1. The hash is the value of
//! this polynomial at a secret point. Two different keys of up to `n` bytes collide at no more than `n/7 + 2` points.
//! So a caller who does not know the point cannot choose colliding keys. The point affects only a key's position in a
//! table, never a decision.

use std::hash::{BuildHasher, Hasher, RandomState};

const PRIME: u64 = (1 << 61) - 1;
/// Bytes per chunk. Seven bytes, so that every chunk is less than the prime.
const CHUNK_BYTES: usize = 7;

/// Builds hashers with the secret point of one table.
#[derive(Clone, Copy, Debug)]
pub struct BuildKeyHasher {
    point: u64,
}

impl Default for BuildKeyHasher {
    fn default() -> Self {
        Self { point: RandomState::new().hash_one(0) % PRIME }
    }
}

impl BuildHasher for BuildKeyHasher {
    type Hasher = KeyHasher;

    #[inline]
    fn build_hasher(&self) -> KeyHasher {
        KeyHasher { point: self.point, sum: 0 }
    }
}

/// The running hash of one key.
#[derive(Clone, Copy, Debug)]
pub struct KeyHasher {
    point: u64,
    /// The value of the polynomial so far, less than 2⁶¹ + 8.
    sum: u64,
}

impl KeyHasher {
    #[inline]
    fn add(&mut self, chunk: u64) {
        let product = u128::from(self.sum + chunk) * u128::from(self.point);
        let once = (product as u64 & PRIME) + (product >> 61) as u64;
        self.sum = (once & PRIME) + (once >> 61);
    }
}

impl Hasher for KeyHasher {
    #[inline]
    fn write(&mut self, bytes: &[u8]) {
        let mut rest = bytes;
        while let Some(eight) = rest.first_chunk::<8>() {
            self.add(u64::from_le_bytes(*eight) & ((1 << 56) - 1));
            rest = &rest[CHUNK_BYTES..];
        }
        // The remaining bytes form the last chunk. The hasher has already hashed the key length, so the length of this
        // chunk need not be hashed.
        self.add(rest.iter().rev().fold(0, |chunk, byte| chunk << 8 | u64::from(*byte)));
    }

    #[inline]
    fn write_usize(&mut self, length: usize) {
        self.add(length as u64 & ((1 << 56) - 1));
    }

    #[inline]
    fn finish(&self) -> u64 {
        // Hash tables use the highest bits, which are zero in the sum, so the multiplication spreads the low bits
        // upwards.
        self.sum.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_that_differ_in_a_byte_or_in_length_have_different_hashes() {
        let state = BuildKeyHasher { point: 0x0123_4567_89AB_CDEF };
        let mut keys: Vec<Vec<u8>> = (0..40).map(|length| vec![0; length]).collect();
        for index in 0..40 {
            for bit in 0..8 {
                let mut key = vec![0; 40];
                key[index] = 1 << bit;
                keys.push(key);
            }
        }
        let mut hashes: Vec<u64> = keys.iter().map(|key| state.hash_one(&**key)).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), keys.len());
        assert_ne!(
            BuildKeyHasher::default().hash_one("k"),
            BuildKeyHasher::default().hash_one("k"),
            "each table has its own point"
        );
    }
}
