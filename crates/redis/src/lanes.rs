//! Divides keys into lanes. Each lane is one hash slot of a Redis Cluster.
//!
//! A call can contain only the keys of one lane. The lane of a key depends only on the first value that its rule counts
//! by. So keys of different rules with the same first value are in the same lane. Fewer lanes mean more charges per
//! call, and each call has a fixed cost of about two charges. More lanes can be divided among more primaries.
//!
//! A hash divides the keys into 64 shards. Each shard has a possible lane, and the possible lanes are evenly spaced
//! over the hash slots. A store with `n` lanes divides the shards into `n` ranges of nearly equal length. Each range
//! uses the lane of its first shard. If the primaries have equal ranges of hash slots and `n` is a multiple of their
//! number, then all shards of a range have the same primary. So the numbers of shards that two primaries hold differ by
//! at most one.

use std::hash::Hasher;

use rustc_hash::FxHasher;
use tollgate_engine::store::Charge;

/// Number of shards, and so the maximum number of lanes.
pub(crate) const SHARDS: usize = 64;
/// Distance between the hash slots of two lanes: lane `n` is hash slot `n * LANE_SLOT_STRIDE`.
pub(crate) const LANE_SLOT_STRIDE: u16 = 16_384 / SHARDS as u16;

/// Number of lanes of a store. The store records the number, because nodes with different numbers would keep the same
/// key in different lanes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LaneCount(u8);

impl LaneCount {
    /// Returns `None` unless the count is from 1 to 64.
    pub(crate) fn new(count: u8) -> Option<Self> {
        (1..=SHARDS).contains(&usize::from(count)).then_some(Self(count))
    }

    /// Returns the count for a new store. With two lanes per primary, the number of primaries can double.
    pub(crate) fn for_primaries(primaries: usize) -> Self {
        Self((2 * primaries).clamp(1, SHARDS) as u8)
    }

    pub(crate) fn get(self) -> u8 {
        self.0
    }

    /// Returns the lane of a shard: the number of the first shard in its range.
    pub(crate) fn lane_of_shard(self, shard: u8) -> u8 {
        let (count, shard) = (usize::from(self.0), usize::from(shard));
        let range = shard * count / SHARDS;
        (range * SHARDS).div_ceil(count) as u8
    }

    /// Returns whether the store uses this lane.
    pub(crate) fn uses_lane(self, lane: u8) -> bool {
        self.lane_of_shard(lane) == lane
    }
}

/// Hash tags of the lanes. The cluster computes the hash slot of a key only from its tag, the part between braces.
pub(crate) const HASH_TAGS: [&str; SHARDS] = [
    "1bz", "nbd", "04s", "o4m", "dlj", "3el", "003", "23e", "5nw", "bgq", "pt6", "c1x", "5j7", "7ia", "4x6", "c58",
    "17p", "n7n", "0ay", "06", "130", "30f", "0e9", "4v", "h85", "bvs", "4mt", "cdr", "qsu", "7xc", "4i4", "6jb",
    "fjl", "1cj", "265", "05c", "ng4", "9n2", "22u", "m2k", "7l1", "5og", "c0h", "49n", "7hq", "hho", "6zp", "asv",
    "356", "1rh", "gio", "8iq", "31v", "d8p", "5f", "8m1", "b3k", "092l", "6o2", "4ld", "7ys", "hym", "6kr", "abt",
];

/// Returns the shard of a partition key. The result is the same on every node.
pub(crate) fn shard_of(value: &[u8]) -> u8 {
    (crate::request::spread_number(value) % SHARDS as u64) as u8
}

/// Returns the index of the in-memory shard that holds a charge, for `count` shards. In a cluster, all keys of a shard
/// are in one lane. With a single server, shards only reduce lock contention, so any fast hash will do.
pub(crate) fn local_shard_of(charge: &Charge<'_>, count: usize) -> u8 {
    if count == SHARDS {
        return shard_of(charge.partition_key());
    }
    let mut hasher = FxHasher::default();
    hasher.write(charge.key);
    (hasher.finish() % count as u64) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CRC-16/XMODEM, from which a cluster computes hash slots.
    fn hash_slot(tag: &str) -> u16 {
        let mut crc = 0_u16;
        for byte in tag.bytes() {
            crc ^= u16::from(byte) << 8;
            for _ in 0..8 {
                crc = if crc & 0x8000 != 0 { crc << 1 ^ 0x1021 } else { crc << 1 };
            }
        }
        crc % 16_384
    }

    #[test]
    fn slots_of_the_lanes_are_evenly_spaced() {
        assert_eq!(hash_slot("123456789"), 0x31C3, "the standard check value of CRC-16/XMODEM");
        for (lane, tag) in HASH_TAGS.iter().enumerate() {
            assert_eq!(hash_slot(tag), lane as u16 * LANE_SLOT_STRIDE, "{tag}");
        }
    }

    #[test]
    fn keys_are_spread_evenly_over_the_shards() {
        let mut counts = [0; SHARDS];
        (0..64_000_u32).for_each(|number| counts[usize::from(shard_of(format!("user{number}").as_bytes()))] += 1);
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }

    #[test]
    fn ranges_of_shards_use_the_lane_of_their_first_shard() {
        let lanes = |count| {
            let count = LaneCount::new(count).unwrap();
            (0..SHARDS as u8).map(|shard| count.lane_of_shard(shard)).collect::<Vec<u8>>()
        };
        assert_eq!(lanes(64), (0..64).collect::<Vec<u8>>());
        assert_eq!(lanes(1), [0; 64]);
        for count in 1..=64 {
            let count = LaneCount::new(count).unwrap();
            let used: Vec<u8> = (0..64).filter(|lane| count.uses_lane(*lane)).collect();
            assert_eq!(used.len(), usize::from(count.get()));
            assert!((0..64).all(|shard| used.contains(&count.lane_of_shard(shard))), "{count:?}");
        }
        assert_eq!([LaneCount::new(0), LaneCount::new(65)], [None; 2]);
        assert_eq!([0, 1, 3, 40].map(|primaries| LaneCount::for_primaries(primaries).get()), [1, 2, 6, 64]);
    }

    /// `redis-cli --cluster create` divides the slots into equal ranges.
    #[test]
    fn primaries_with_equal_ranges_of_slots_have_equally_many_shards() {
        for primaries in 1..=32_u32 {
            let count = LaneCount::for_primaries(primaries as usize);
            let mut shards = vec![0; primaries as usize];
            for shard in 0..SHARDS as u8 {
                let slot = u32::from(count.lane_of_shard(shard)) * u32::from(LANE_SLOT_STRIDE);
                shards[(slot * primaries / 16_384) as usize] += 1;
            }
            let (least, most) = (shards.iter().min().unwrap(), shards.iter().max().unwrap());
            assert!(most - least <= 1, "{primaries} primaries: {shards:?}");
        }
    }
}
