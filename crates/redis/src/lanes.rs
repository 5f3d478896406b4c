//! Divides keys into lanes. Each lane is one hash slot of a Redis Cluster.
//!
//! All charges in a lane can be decided in one call, even for different rules: the lane is computed from the first
//! value that a rule counts by. The 64 lanes are evenly spaced over the slots, so equal slot ranges contain equally
//! many lanes.

use tollgate_engine::store::Charge;

/// Number of lanes. The number is recorded in the store, because nodes with different numbers would keep the same key
/// in different lanes.
pub(crate) const LANES: usize = 64;
/// Distance between the hash slots of two lanes: lane `n` is hash slot `n * SLOTS_PER_LANE`.
pub(crate) const SLOTS_PER_LANE: u16 = 16_384 / LANES as u16;

/// Hash tags of the lanes. The cluster computes the hash slot of a key only from its tag, the part between braces.
pub(crate) const TAGS: [&str; LANES] = [
    "1bz", "nbd", "04s", "o4m", "dlj", "3el", "003", "23e", "5nw", "bgq", "pt6", "c1x", "5j7", "7ia", "4x6", "c58",
    "17p", "n7n", "0ay", "06", "130", "30f", "0e9", "4v", "h85", "bvs", "4mt", "cdr", "qsu", "7xc", "4i4", "6jb",
    "fjl", "1cj", "265", "05c", "ng4", "9n2", "22u", "m2k", "7l1", "5og", "c0h", "49n", "7hq", "hho", "6zp", "asv",
    "356", "1rh", "gio", "8iq", "31v", "d8p", "5f", "8m1", "b3k", "092l", "6o2", "4ld", "7ys", "hym", "6kr", "abt",
];

/// Returns the lane of a value. The result is the same on every node.
pub(crate) fn lane_of(value: &[u8]) -> usize {
    (crate::request::spread(value) % LANES as u64) as usize
}

/// Returns which of this node's `count` in-memory shards holds a charge, given the [`spread`](crate::request::spread)
/// of its key. In a cluster, this is the lane. With a single server, shards only reduce lock contention.
pub(crate) fn part_of(charge: &Charge<'_>, spread: u64, count: usize) -> u8 {
    let part = if count == LANES { lane_of(charge.partition_key()) } else { (spread % count as u64) as usize };
    part as u8
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
        assert_eq!(hash_slot("123456789"), 0x31C3, "the check value of this CRC");
        for (lane, tag) in TAGS.iter().enumerate() {
            assert_eq!(hash_slot(tag), lane as u16 * SLOTS_PER_LANE, "{tag}");
        }
    }

    #[test]
    fn keys_are_spread_evenly_over_the_lanes() {
        let mut counts = [0; LANES];
        (0..64_000_u32).for_each(|number| counts[lane_of(format!("user{number}").as_bytes())] += 1);
        assert!(counts.iter().all(|count| (800..1_200).contains(count)), "{counts:?}");
    }
}
