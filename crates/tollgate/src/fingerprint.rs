//! 96-bit fingerprints of keys, resistant to constructed collisions.
//!
//! The bytes of a key, in chunks of seven, are the coefficients of a polynomial modulo the prime 2⁶¹−1. The fingerprint
//! consists of the polynomial's values at two secret random points. Different keys have different polynomials, and two
//! polynomials agree at no more points than their degree. So for any two keys of up to `n` bytes, chosen without
//! knowledge of the points:
//!
//! > the chance that they share a fingerprint is at most `(n/7 + 2)² / 2⁹²`, which is below 2⁻⁸⁷ for keys of 20 bytes,
//!
//! because the fingerprint contains one value completely and 32 bits of the other value. Among a billion such keys, the
//! chance that any two share a fingerprint is below 2⁻²⁷. With 96 bits, three entries fit in a cache line; with 128
//! bits, they would not fit.
//!
//! A hash without a secret is not enough: an attacker could find collisions offline. Keys that collide share one limit,
//! so the attacker could use up the limit of another client.
//!
//! The powers of the points are precomputed, so that up to fifteen chunks are multiplied independently, and only their
//! sum is reduced.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher, RandomState};

/// A key under which requests are counted: bytes, a string, or [`Hashed`] for any value that implements [`Hash`].
///
/// ```
/// use tollgate::{Keyed, TokenBucket};
/// use tollgate::keyed::Hashed;
///
/// let limits = Keyed::new(TokenBucket::new("1/s".parse()?, 1)?, 1_000)?;
/// assert!(limits.check("alice", 1).is_allowed());
/// assert!(limits.check(&[192, 0, 2, 1], 1).is_allowed());
/// assert!(limits.check(&Hashed(("alice", 17)), 1).is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Key {
    /// Returns the key's fingerprint under the secret of a table.
    #[doc(hidden)]
    fn fingerprint(&self, secret: &Secret) -> Fingerprint;

    /// Returns whether the keys are equal, or `false` if comparing them is not cheaper than computing a fingerprint.
    #[doc(hidden)]
    fn is_cheaply_equal(&self, other: &Self) -> bool {
        let _ = other;
        false
    }
}

impl<T: AsRef<[u8]> + ?Sized> Key for T {
    #[inline]
    fn fingerprint(&self, secret: &Secret) -> Fingerprint {
        secret.fingerprint_bytes(self.as_ref())
    }

    #[inline]
    fn is_cheaply_equal(&self, other: &Self) -> bool {
        let (own, other) = (self.as_ref(), other.as_ref());
        // Different keys usually differ at the end.
        if own.len() != other.len() || own.last_chunk::<8>() != other.last_chunk() {
            return false;
        }
        match (own.first_chunk::<16>(), other.first_chunk()) {
            // Compares keys of the usual length without a function call.
            (Some(own_first), Some(first)) if own.len() <= 24 => own_first == first,
            _ => own == other,
        }
    }
}

/// A key made of any value that implements [`Hash`]: a number, a tuple, a custom type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hashed<T>(pub T);

impl<T: Hash> Key for Hashed<T> {
    fn fingerprint(&self, secret: &Secret) -> Fingerprint {
        let mut hasher = secret.hasher();
        self.0.hash(&mut hasher);
        hasher.fingerprint()
    }
}

/// The fingerprint of a key, as stored in the table. Zero marks an entry that holds no key; a key has the fingerprint
/// zero with the same low probability as any other value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint {
    /// Evenly distributed; selects the buckets.
    pub(crate) low: u64,
    pub(crate) high: u32,
}

impl Fingerprint {
    /// Creates a fingerprint from its [`parts`](Self::parts).
    pub const fn from_parts(low: u64, high: u32) -> Self {
        Self { low, high }
    }

    /// Returns the fingerprint as two numbers, to send it to a process that has the same secret.
    pub const fn parts(self) -> (u64, u32) {
        (self.low, self.high)
    }
}

/// The two secret points, as tables of their first powers. Knowledge of the points allows constructing collisions.
#[derive(Clone)]
pub struct Secret {
    powers: PowerTables,
}

impl Secret {
    /// Draws a secret from the operating system.
    pub(crate) fn random() -> Self {
        // Loom runs a model many times, and all runs need the same secret.
        if cfg!(loom) {
            return Self::from_points([0x0123_4567_89AB_CDEF, 0x0FED_CBA9_8765_4321]);
        }
        // Falls back to the standard library's random seed on targets without a source of randomness.
        let draw = || getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(0));
        Self::from_points([draw(), draw()])
    }

    /// Creates a secret from two points. Processes that exchange fingerprints need the same points, which must be
    /// random and kept secret.
    pub fn from_points(points: [u64; 2]) -> Self {
        let points = points.map(|point| point % PRIME);
        Self {
            powers: points.map(|point| {
                let mut power = 1;
                [(); CHUNKS_PER_BLOCK + 1].map(|()| {
                    power = (product(power, point) % u128::from(PRIME)) as u64;
                    power
                })
            }),
        }
    }

    /// Returns the points, for [`from_points`](Self::from_points).
    pub(crate) fn points(&self) -> [u64; 2] {
        self.powers.map(|powers| powers[0])
    }

    // Not inlined: the call is cheap, because the result and all intermediate values fit in registers.
    #[inline(never)]
    fn fingerprint_bytes(&self, bytes: &[u8]) -> Fingerprint {
        // Unrolled for common key lengths; the result is the same as with the hasher below.
        if (15..22).contains(&bytes.len()) {
            return self.fingerprint_chunks([
                chunk_at(bytes, 0),
                chunk_at(bytes, 1),
                last_chunk_after(bytes, 2 * CHUNK_BYTES),
            ]);
        }
        match bytes.len() {
            0..8 => self.fingerprint_chunks([last_chunk(load_little_endian(bytes), bytes.len())]),
            8..15 => self.fingerprint_chunks([chunk_at(bytes, 0), last_chunk_after(bytes, CHUNK_BYTES)]),
            _ => self.fingerprint_long_key(bytes),
        }
    }

    /// Returns the fingerprint of a key with at least eight bytes and at most one block.
    #[inline]
    fn fingerprint_block(&self, bytes: &[u8]) -> Fingerprint {
        let [first, second] = &self.powers;
        let (mut sums, mut left) = ([0, 0], bytes);
        for (first, second) in first.iter().zip(second) {
            let last = left.len() <= CHUNK_BYTES;
            let chunk = if last { last_chunk_after(bytes, bytes.len() - left.len()) } else { chunk_at(left, 0) };
            sums = [sums[0] + product(chunk, *first), sums[1] + product(chunk, *second)];
            if last {
                break;
            }
            left = &left[CHUNK_BYTES..];
        }
        finish(sums)
    }

    #[inline]
    fn fingerprint_chunks<const N: usize>(&self, chunks: [u64; N]) -> Fingerprint {
        let sum = |powers: &[u64]| chunks.iter().zip(powers).map(|(chunk, power)| product(*chunk, *power)).sum();
        finish(self.powers.each_ref().map(|powers| sum(powers)))
    }

    #[inline(never)]
    fn fingerprint_long_key(&self, bytes: &[u8]) -> Fingerprint {
        if bytes.len() <= BLOCK_BYTES {
            return self.fingerprint_block(bytes);
        }
        let mut hasher = self.hasher();
        hasher.write(bytes);
        hasher.fingerprint()
    }

    #[inline]
    fn hasher(&self) -> PolynomialHasher<'_> {
        PolynomialHasher { powers: &self.powers, chunk_index: 0, sums: [0, 0], pending_bytes: 0, pending_len: 0 }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

const PRIME: u64 = (1 << 61) - 1;
/// Bytes in a chunk.
const CHUNK_BYTES: usize = 7;
/// Chunks per block. The sum of a block is reduced only once. Powers are below 2⁶¹, and chunks are below 2⁵⁶, except
/// the last chunk, which is below 2⁶⁰. A block may begin with a reduced sum times a power. The total is below 2¹²⁴.
const CHUNKS_PER_BLOCK: usize = 15;

/// Bytes in a block.
const BLOCK_BYTES: usize = CHUNKS_PER_BLOCK * CHUNK_BYTES;

/// The first powers of both points: one per chunk of a block, and one more to separate the blocks.
type PowerTables = [[u64; CHUNKS_PER_BLOCK + 1]; 2];

struct PolynomialHasher<'s> {
    powers: &'s PowerTables,
    /// The index of the next chunk in its block.
    chunk_index: usize,
    sums: [u128; 2],
    /// Bytes not absorbed yet. The last chunk is held back until more bytes follow or the key ends.
    pending_bytes: u64,
    pending_len: usize,
}

impl PolynomialHasher<'_> {
    fn absorb(&mut self, chunk: u64) {
        for (sum, powers) in self.sums.iter_mut().zip(self.powers) {
            if self.chunk_index == CHUNKS_PER_BLOCK {
                // Multiplies the sum of the previous blocks by the next power. Adding one first ensures that a block of
                // zeros changes the result.
                *sum = product((*sum % u128::from(PRIME)) as u64 + 1, powers[CHUNKS_PER_BLOCK]);
            }
            *sum += product(chunk, powers[self.chunk_index % CHUNKS_PER_BLOCK]);
        }
        self.chunk_index = self.chunk_index % CHUNKS_PER_BLOCK + 1;
    }

    fn fingerprint(mut self) -> Fingerprint {
        self.absorb(last_chunk(self.pending_bytes, self.pending_len));
        finish(self.sums)
    }
}

impl Hasher for PolynomialHasher<'_> {
    fn write(&mut self, bytes: &[u8]) {
        let mut bytes = bytes;
        if self.pending_len > 0 {
            let (now, later) = bytes.split_at(bytes.len().min(CHUNK_BYTES - self.pending_len));
            self.pending_bytes |= load_little_endian(now) << (8 * self.pending_len);
            self.pending_len += now.len();
            if later.is_empty() {
                return;
            }
            self.absorb(self.pending_bytes);
            bytes = later;
        }
        while bytes.len() > CHUNK_BYTES {
            self.absorb(chunk_at(bytes, 0));
            bytes = &bytes[CHUNK_BYTES..];
        }
        (self.pending_bytes, self.pending_len) = (load_little_endian(bytes), bytes.len());
    }

    fn finish(&self) -> u64 {
        Self { ..*self }.fingerprint().low
    }
}

#[inline]
fn product(a: u64, b: u64) -> u128 {
    u128::from(a) * u128::from(b)
}

/// Returns the chunk at `chunk_index`. At least one byte must follow the chunk, so that one instruction can read eight
/// bytes.
#[inline]
fn chunk_at(bytes: &[u8], chunk_index: usize) -> u64 {
    let eight = bytes.get(chunk_index * CHUNK_BYTES..).and_then(|bytes| bytes.first_chunk());
    eight.map_or(0, |eight| u64::from_le_bytes(*eight) & ((1 << 56) - 1))
}

/// Returns the last chunk, with its length from bit 56 on. So "a" and "a\0" differ, and no other chunk reaches bit 56.
#[inline]
fn last_chunk(pending_bytes: u64, pending_len: usize) -> u64 {
    pending_bytes | (pending_len as u64 + 1) << 56
}

/// Returns the last chunk: the one to seven bytes after the first `taken` bytes. The key must have at least eight
/// bytes.
#[inline]
fn last_chunk_after(bytes: &[u8], taken: usize) -> u64 {
    let len = bytes.len() - taken;
    let last = bytes.last_chunk().map_or(0, |last| u64::from_le_bytes(*last));
    last_chunk(last >> (64 - 8 * len), len)
}

/// Converts both sums to a fingerprint.
#[inline]
fn finish(sums: [u128; 2]) -> Fingerprint {
    // 2⁶¹ is 1 modulo the prime, so the bits from bit 61 on are added to the lower bits. Full reduction is not
    // necessary, because equal keys have equal sums.
    let [low, high] = sums.map(|sum| (sum as u64 & PRIME) + (sum >> 61) as u64);
    Fingerprint { low: scatter_bits(low), high: high as u32 }
}

/// Reads up to seven bytes as a little-endian number.
#[inline]
fn load_little_endian(bytes: &[u8]) -> u64 {
    let len = bytes.len();
    if let (Some(first), Some(last)) = (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        // The two reads overlap. The overlapping bytes have the same position in both numbers.
        return u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << (8 * (len - 4));
    }
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Spreads regular patterns of keys, such as consecutive numbers, over the higher bits. The mapping is bijective, so no
/// information is lost.
#[inline]
fn scatter_bits(value: u64) -> u64 {
    (value ^ value >> 32).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const POINTS: [u64; 2] = [0x0123_4567_89AB_CDEF, 0x0FED_CBA9_8765_4321];

    fn secret() -> Secret {
        Secret::from_points(POINTS)
    }

    fn fingerprint_bytes(bytes: &[u8]) -> (u64, u32) {
        let fingerprint = secret().fingerprint_bytes(bytes);
        (fingerprint.low, fingerprint.high)
    }

    #[test]
    fn similar_keys_and_keys_of_zeros_have_different_fingerprints() {
        let mut seen = HashSet::new();
        for len in 0..300 {
            assert!(seen.insert(fingerprint_bytes(&vec![0; len])), "{len} zeros");
            for position in (0..len).step_by(1 + len / 20) {
                for byte in [1, 2, 0x80, 0xFF] {
                    let mut bytes = vec![0; len];
                    bytes[position] = byte;
                    assert!(seen.insert(fingerprint_bytes(&bytes)), "{byte} at {position} of {len}");
                }
            }
        }
    }

    #[test]
    fn fingerprint_does_not_depend_on_the_split_into_writes() {
        let bytes: Vec<u8> = (1..=150).collect();
        let secret = secret();
        for first in 0..=150 {
            for second in first..=150 {
                let mut hasher = secret.hasher();
                hasher.write(&bytes[..first]);
                bytes[first..second].iter().for_each(|byte| hasher.write_u8(*byte));
                hasher.write(&bytes[second..]);
                let fingerprint = hasher.fingerprint();
                assert_eq!(
                    (fingerprint.low, fingerprint.high),
                    fingerprint_bytes(&bytes),
                    "cut at {first} and {second}"
                );
            }
        }
    }

    #[test]
    fn fast_path_returns_the_same_fingerprint_for_keys_of_any_length() {
        let bytes: Vec<u8> = (1..=250).collect();
        let secret = secret();
        for len in 0..=bytes.len() {
            let mut hasher = secret.hasher();
            hasher.write(&bytes[..len]);
            let fingerprint = hasher.fingerprint();
            assert_eq!((fingerprint.low, fingerprint.high), fingerprint_bytes(&bytes[..len]), "{len} bytes");
        }
    }

    #[test]
    fn keys_are_equal_only_if_all_bytes_are_equal() {
        for len in 0..40 {
            let key: Vec<u8> = (0..len).collect();
            assert!(
                key.is_cheaply_equal(&key.clone()) && !key.is_cheaply_equal(&[&*key, &[0]].concat()),
                "{len} bytes"
            );
            for position in 0..key.len() {
                let mut other = key.clone();
                other[position] ^= 1;
                assert!(!key.is_cheaply_equal(&other), "{len} bytes, differing at {position}");
            }
        }
    }

    #[test]
    fn fingerprint_is_the_polynomial_modulo_the_prime() {
        // Slow computation with full reduction, for a key of more than two blocks.
        let prime = u128::from(PRIME);
        let bytes: Vec<u8> = (0..240).collect();
        let mut chunks: Vec<u128> =
            bytes.chunks(CHUNK_BYTES).map(|part| part.iter().rev().fold(0, |n, b| n << 8 | u128::from(*b))).collect();
        *chunks.last_mut().unwrap() |= ((bytes.len() % CHUNK_BYTES + 1) << 56) as u128;
        let slow = POINTS.map(|point| {
            let (mut value, mut power) = (0, 1);
            for (position, chunk) in chunks.iter().enumerate() {
                if position > 0 && position % CHUNKS_PER_BLOCK == 0 {
                    (value, power) = ((value + 1) * (power * u128::from(point) % prime) % prime, 1);
                }
                power = power * u128::from(point) % prime;
                value = (value + chunk * power) % prime;
            }
            scatter_reduced(value as u64)
        });
        let secret = secret();
        let mut hasher = secret.hasher();
        hasher.write(&bytes);
        hasher.absorb(last_chunk(hasher.pending_bytes, hasher.pending_len));
        assert_eq!(hasher.sums.map(|sum| scatter_reduced((sum % prime) as u64)), slow);
    }

    fn scatter_reduced(value: u64) -> u64 {
        scatter_bits(value % PRIME)
    }

    #[test]
    fn consecutive_keys_are_distributed_evenly() {
        let mut buckets = [0u32; 256];
        let secret = secret();
        for n in 0..65_536 {
            let fingerprint = format!("user:{n:08}").fingerprint(&secret);
            buckets[(fingerprint.low >> 56) as usize] += 1;
        }
        // Each bucket is expected to have 256 keys, with a standard deviation of 16.
        assert!(buckets.iter().all(|count| (156..356).contains(count)), "{buckets:?}");
    }

    #[test]
    fn different_secrets_give_different_fingerprints() {
        let other = Secret::random();
        assert_ne!("key".fingerprint(&secret()), "key".fingerprint(&other));
        assert_eq!("key".fingerprint(&other), "key".fingerprint(&other));
    }
}
