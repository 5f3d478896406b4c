//! Key populations and access sequences.
//!
//! A sequence contains its keys in access order, in heap blocks allocated in that order. So the processor prefetches
//! the keys, and the benchmark measures the limiter, not the test data.

use std::fmt::Write;

use crate::contender::CHUNK;

/// Length of a key in most cases.
pub(crate) const KEY_BYTES: usize = 20;

/// Distribution of the keys in a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    /// One key, repeated.
    Hot,
    /// A thousand keys, uniform.
    Thousand,
    /// A million keys, uniform.
    Million,
    /// A million keys, the k-th most frequent with probability proportional to 1/k.
    Zipf,
}

impl Pattern {
    /// Returns the number of distinct keys. The keys are numbered `0..population()`.
    pub(crate) fn population(self) -> u64 {
        match self {
            Pattern::Hot => 1,
            Pattern::Thousand => 1_000,
            Pattern::Million | Pattern::Zipf => 1_000_000,
        }
    }

    /// Returns a sequence of keys in access order, which depends on `seed`. The length of the sequence is a multiple of
    /// [`CHUNK`].
    pub(crate) fn access_sequence(self, seed: u64) -> Vec<String> {
        let mut random = Random::new(seed);
        let population = self.population();
        match self {
            Pattern::Hot => (0..CHUNK).map(|_| numbered_key(0)).collect(),
            Pattern::Thousand => (0..8 * CHUNK).map(|_| numbered_key(random.below(population))).collect(),
            Pattern::Million => (0..2048 * CHUNK).map(|_| numbered_key(random.below(population))).collect(),
            Pattern::Zipf => {
                let zipf = Zipf::new(population);
                (0..2048 * CHUNK).map(|_| numbered_key(scatter(zipf.draw_rank(&mut random), population))).collect()
            }
        }
    }
}

/// Returns the key with this number, [`KEY_BYTES`] long.
pub(crate) fn numbered_key(number: u64) -> String {
    let mut text = String::with_capacity(KEY_BYTES);
    write_key(&mut text, number, KEY_BYTES);
    text
}

/// Writes the key with this number over `text`: `user:` and the number, padded to `length` bytes.
pub(crate) fn write_key(text: &mut String, number: u64, length: usize) {
    text.clear();
    let digits = length - "user:".len();
    write!(text, "user:{number:0digits$}").expect("writing to a String cannot fail");
}

/// Maps a rank to a key number, bijectively, so that frequent keys are not inserted one after another.
fn scatter(rank: u64, population: u64) -> u64 {
    // Coprime to any population whose only prime factors are 2 and 5.
    const STRIDE: u64 = 618_033_989;
    rank * STRIDE % population
}

/// SplitMix64: short, uniform, and the same on every machine.
#[derive(Debug)]
pub(crate) struct Random {
    state: u64,
}

impl Random {
    /// Starts at a position of the generator's sequence that depends on the seed. The seed is mixed, because
    /// otherwise consecutive seeds would start one position apart, and two threads would visit the same keys.
    pub(crate) fn new(seed: u64) -> Self {
        let mut seeds = Random { state: seed };
        Random { state: seeds.bits() }
    }

    /// Returns the next 64 bits.
    pub(crate) fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`, uniform up to one part in 2⁶⁴ / `bound`.
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number in `[0, 1)`.
    fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// Zipf distribution with exponent 1.0, sampled by inverting its cumulative table.
struct Zipf {
    cumulative: Vec<f64>,
}

impl Zipf {
    fn new(population: u64) -> Self {
        let mut sum = 0.0;
        let cumulative = (1..=population)
            .map(|rank| {
                sum += 1.0 / rank as f64;
                sum
            })
            .collect();
        Zipf { cumulative }
    }

    /// Returns a rank; 0 is the most frequent.
    fn draw_rank(&self, random: &mut Random) -> u64 {
        let total = self.cumulative.last().copied().unwrap_or(0.0);
        let target = random.unit() * total;
        self.cumulative.partition_point(|&sum| sum <= target) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_have_the_requested_length() {
        assert_eq!(numbered_key(7), "user:000000000000007");
        assert_eq!(numbered_key(7).len(), KEY_BYTES);
        let mut text = String::new();
        write_key(&mut text, 123, 200);
        assert_eq!(text.len(), 200);
    }

    #[test]
    fn scattering_is_one_to_one() {
        let seen: HashSet<u64> = (0..1_000_000).map(|rank| scatter(rank, 1_000_000)).collect();
        assert_eq!(seen.len(), 1_000_000);
    }

    #[test]
    fn consecutive_seeds_share_no_numbers() {
        let numbers = |seed| {
            let mut random = Random::new(seed);
            (0..1_000).map(|_| random.bits()).collect::<HashSet<_>>()
        };
        assert!(numbers(1).is_disjoint(&numbers(2)));
    }

    #[test]
    fn zipf_gives_the_first_rank_its_share() {
        let zipf = Zipf::new(1_000_000);
        let mut random = Random::new(1);
        let first = (0..100_000).filter(|_| zipf.draw_rank(&mut random) == 0).count();
        // 1 / H(1,000,000) = 1 / 14.39 = 6.95 %.
        assert!((6_500..7_400).contains(&first), "{first}");
    }
}
