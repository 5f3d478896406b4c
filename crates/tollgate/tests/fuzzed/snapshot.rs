// Properties that hold for any bytes read as a snapshot. Included by the fuzz target and by the test that replays its
// corpus.

use std::sync::Arc;

use tollgate::clock::ManualClock;
use tollgate::core::{Algorithm, Nanos, Phase, Steps};
use tollgate::{
    Concurrency, FixedWindow, IntervalBucket, Keyed, LeakyBucket, Limit, Limits, SlidingLog, SlidingSlices,
    SlidingWindow, TokenBucket,
};

type TestedLimiter = Keyed<Limits, Arc<ManualClock>>;

const START_TIME: u64 = 1 << 60;
const HOUR: Nanos = Nanos::from_secs(3_600);
/// Words of the snapshot's head before the limit records.
const HEAD_WORDS: usize = 7;
const RECORD_WORDS: usize = 8;

/// Returns two limits of each algorithm, with a capacity of 2 or 3 (or 3 × 2⁴⁰, for longer states), and some
/// combinations.
fn limits() -> Vec<Limits> {
    let rate = |text: &str| text.parse().expect("a rate");
    let window = FixedWindow::new(3, HOUR).expect("a window");
    let each: Vec<Limit> = vec![
        TokenBucket::new(rate("3/h"), 3).expect("a bucket").into(),
        TokenBucket::new(rate("7777/s"), 3).expect("a bucket").into(),
        LeakyBucket::new(rate("3/h"), 3).expect("a bucket").into(),
        LeakyBucket::new(rate("7777/s"), 3).expect("a bucket").free(1).expect("less than the burst").into(),
        window.into(),
        window.phase(Phase::FirstRequest).into(),
        SlidingWindow::new(3, HOUR).expect("a window").into(),
        SlidingWindow::new(3 << 40, HOUR).expect("a window").into(),
        SlidingLog::new(3, HOUR).expect("a log").into(),
        SlidingLog::new(2, HOUR).expect("a log").minimum_gap(Nanos::SECOND).expect("a gap").into(),
        Concurrency::new(3, HOUR).expect("leases").into(),
        Concurrency::new(2, HOUR).expect("leases").into(),
        IntervalBucket::new(3, HOUR).expect("a bucket").into(),
        IntervalBucket::new(3, HOUR).expect("a bucket").steps(Steps::FirstRequest).into(),
        SlidingSlices::new(3, HOUR, Nanos::from_secs(600)).expect("slices").into(),
        SlidingSlices::new(3 << 40, HOUR, Nanos::from_secs(500)).expect("slices").into(),
    ];
    let two = |first: usize, second: usize| Limits::new([each[first], each[second]]).expect("two limits");
    let groups = [two(0, 8), two(1, 9), Limit::Unlimited.into(), Limit::DenyAll.into()];
    each.iter().copied().map(Limits::from).chain(groups).collect()
}

fn keyed(limits: &Limits) -> TestedLimiter {
    Keyed::with_clock(limits.clone(), 20, Arc::new(ManualClock::at(START_TIME))).expect("a small table")
}

/// Returns the seal over `words`, computed as the format defines it.
fn seal(words: &[u64]) -> u64 {
    let mix = |seal: u64, word: &u64| (seal ^ word).rotate_left(29).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    words.iter().fold(0x6C62_272E_07BB_0142, mix)
}

/// Builds a file with valid seals, so that the test reaches the later checks. The head belongs to a snapshot under the
/// limits `stored`, with instants from the input. The entries also come from the input. With `forged`, the parameters
/// of the limits come from the input instead, and there are no entries.
fn build_file(stored: &Limits, forged: bool, input: &mut impl Iterator<Item = u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    keyed(stored).snapshot(&mut bytes).expect("writing to memory succeeds");
    let mut words: Vec<u64> = bytes.chunks_exact(8).map(|word| word.try_into().map_or(0, u64::from_le_bytes)).collect();
    words.truncate(HEAD_WORDS + RECORD_WORDS * stored.as_slice().len());
    for word in &mut words[3..5] {
        *word = input.next().unwrap_or(START_TIME);
    }
    if forged {
        words[HEAD_WORDS..].iter_mut().for_each(|word| *word = input.next().unwrap_or(*word));
    }
    // A seal does not cover earlier seals, so `words` excludes them.
    let mut sealed = words.clone();
    sealed.push(seal(&words));
    let mut add = |frame: Vec<u64>| {
        words.extend(&frame);
        sealed.extend(frame);
        sealed.push(seal(&words));
    };
    let entry = 2 + stored.words();
    let entries: Vec<u64> = if forged { Vec::new() } else { input.collect() };
    let mut total = 0;
    for part in entries.chunks(3 * entry) {
        let count = part.len().div_ceil(entry);
        let mut frame = vec![0; 1 + count * entry];
        frame[0] = count as u64;
        frame[1..][..part.len()].copy_from_slice(part);
        add(frame);
        total += count as u64;
    }
    add(vec![0, total]);
    sealed.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Checks that a snapshot is restored completely or not at all, and that the limiter works afterwards. Returns whether
/// the snapshot was restored.
pub fn check(input: &[u8]) -> bool {
    let &[how, stored, ref rest @ ..] = input else { return false };
    let limits = limits();
    let pick = |number: u8| &limits[usize::from(number) % limits.len()];
    let mut words = rest.chunks(8).map(|word| word.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)));
    let bytes = match how >> 6 {
        0 => rest.to_vec(),
        1 => build_file(pick(stored), true, &mut words),
        _ => build_file(pick(stored), false, &mut words),
    };
    let wanted = pick(how & 0x3F);
    let mut keyed = keyed(wanted);
    let _ = keyed.check("alice", 2);
    let before = keyed.report("alice", 1);
    let Ok(count) = keyed.restore(&*bytes) else {
        assert_eq!(keyed.report("alice", 1), before, "a refused snapshot changed the limiter");
        return false;
    };
    assert!(count <= bytes.len() as u64 / 16, "more entries than the bytes can hold");
    let mut again = Vec::new();
    keyed.snapshot(&mut again).expect("writing to memory succeeds");
    let mut copy = self::keyed(wanted);
    copy.restore(&*again).expect("a snapshot that was just written");
    for key in ["alice", "bob"] {
        assert_eq!(copy.report(key, 1), keyed.report(key, 1), "a restored copy has a different report");
        let _ = keyed.check(key, 1);
        let _ = keyed.charge(key, 2);
        let _ = keyed.take_up_to(key, 5);
        keyed.drain(key);
        keyed.reset(key);
        let _ = keyed.peek(key, 1);
    }
    true
}
