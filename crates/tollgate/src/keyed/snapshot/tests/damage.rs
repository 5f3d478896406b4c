//! Checks that damaged snapshots are refused and leave the limiter unchanged.

use super::*;

/// Returns a limiter with entries that a failed load must not change.
fn limiter_with_entries<A: Algorithm>(limit: A, clock: &ManualClock) -> TestKeyed<A> {
    let keyed = limiter_in_other_process(limit, 100, clock, 0);
    let _ = keyed.check("carol", 3);
    keyed
}

fn remaining<A: Algorithm>(keyed: &TestKeyed<A>) -> [u64; 3] {
    ["alice", "bob", "carol"].map(|key| keyed.report(key, 1).remaining)
}

#[test]
fn every_damaged_byte_and_missing_end_is_detected() {
    for limit in every_limit(HOUR) {
        let (here, clock) = keyed(limit.clone(), 100);
        let _ = here.check("alice", 9);
        let _ = here.check("bob", 5);
        let bytes = snapshot_bytes(&here);
        let mut there = limiter_with_entries(limit.clone(), &clock);
        for len in 0..bytes.len() {
            let result = there.restore(&bytes[..len]);
            assert!(matches!(result, Err(RestoreError::CutShort)), "{result:?} for {len} of {} bytes", bytes.len());
        }
        for (at, change) in (0..bytes.len()).flat_map(|at| [1, 0x10, 0x80, 0xFF].map(|change| (at, change))) {
            let mut bytes = bytes.clone();
            bytes[at] ^= change;
            let result = there.restore(&*bytes);
            assert!(result.is_err(), "{limit:?} restored with {change:#x} at {at}");
            match (at, result.unwrap_err()) {
                (0..8, error) => assert!(matches!(error, RestoreError::NotASnapshot), "{error}"),
                (8..16, error) => assert!(matches!(error, RestoreError::OtherVersion { .. }), "{error}"),
                (_, error) => assert!(matches!(error, RestoreError::Damaged | RestoreError::CutShort), "{error}"),
            }
        }
        assert!(matches!(there.restore(&*[&*bytes, b"x"].concat()), Err(RestoreError::Damaged)));
        assert_eq!(remaining(&there), [10, 10, 7], "a refused snapshot changed a limiter of {limit:?}");
        there.restore(&*bytes).unwrap();
        assert_eq!(remaining(&there), [1, 5, 10]);
    }
}

#[test]
fn missing_doubled_and_swapped_frames_are_detected() {
    let (here, clock) = keyed(bucket(10), 10_000);
    for key in 0..10_000 {
        let _ = here.check(&format!("key {key}"), 10);
    }
    let bytes = snapshot_bytes(&here);
    let head = (2 + 5 + 8 + 1) * 8;
    let frame = |at: usize| 8 * (2 + 3 * u64::from_le_bytes(bytes[at..][..8].try_into().unwrap()) as usize);
    let (first, second) = (head, head + frame(head));
    let third = second + frame(second);
    let (head, [a, b], rest) = (&bytes[..head], [&bytes[first..second], &bytes[second..third]], &bytes[third..]);
    let mut there = limiter_with_entries(bucket(10), &clock);
    for parts in [vec![head, b, rest], vec![head, a, a, b, rest], vec![head, b, a, rest], vec![head, rest]] {
        assert!(matches!(there.restore(&*parts.concat()), Err(RestoreError::Damaged)));
    }
    assert_eq!(there.restore(&*[head, a, b, rest].concat()).unwrap(), 10_000);
}

#[test]
fn files_of_another_format_or_limit_are_errors() {
    let (here, clock) = keyed(bucket(10), 100);
    let bytes = snapshot_bytes(&here);
    let message = |result: Result<u64, RestoreError>| result.unwrap_err().to_string();
    let mut there = limiter_with_entries(daily_window(10), &clock);
    assert_eq!(message(there.restore(&*bytes)), "the snapshot is for a token bucket, not for a fixed window");
    let group = Limits::new([daily_window(10).into(), bucket(3).into()]).unwrap();
    let mut both = limiter_with_entries(group, &clock);
    let expected = "the snapshot is for a token bucket, not for a fixed window with a token bucket";
    assert_eq!(message(both.restore(&*bytes)), expected);
    assert_eq!(message(there.restore(&b"\x89PNG\r\n\x1a\n and so on"[..])), "this is not a snapshot");
    let mut later = bytes.clone();
    later[8] = 3;
    let expected = "unsupported snapshot version: 3";
    assert_eq!(message(there.restore(&*later)), expected);
    assert_eq!(message(there.restore(&b""[..])), "the end of the snapshot is missing");
    let error = there.load("no such folder/no such file").unwrap_err();
    assert!(matches!(&error, RestoreError::Unreadable(error) if error.kind() == io::ErrorKind::NotFound), "{error}");
}

/// Restores snapshots of arbitrary words with valid seals.
#[test]
fn arbitrary_parameters_and_states_are_refused_or_harmless() {
    let mut dice = Rng::new(5);
    for limit in every_limit(HOUR) {
        let (here, clock) = keyed(limit.clone(), 100);
        let _ = here.check("alice", 9);
        let bytes = snapshot_bytes(&here);
        for _ in 0..300 {
            let mut bytes = bytes.clone();
            for _ in 0..=dice.below(3) {
                let at = 16 + 8 * dice.below(bytes.len() as u64 / 8 - 2) as usize;
                let word = dice.pick(&[0, 1, 2, 7, 1 << 32, 1 << 62, u64::MAX - 1, u64::MAX]);
                bytes[at..][..8].copy_from_slice(&word.to_le_bytes());
            }
            let count = limit.as_slice().len();
            frames::recompute_seals(&mut bytes, count);
            let mut there = limiter_with_entries(limit.clone(), &clock);
            match there.restore(&*bytes) {
                Err(_) => assert_eq!(there.report("carol", 1).remaining, 7),
                Ok(_) => {
                    let _ = there.check("alice", 1);
                    let _ = there.charge("bob", 5);
                    there.clock.advance(HOUR);
                    let _ = there.check("alice", 1);
                }
            }
        }
    }
}
