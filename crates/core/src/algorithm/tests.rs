//! Properties of every algorithm.

use super::*;
use crate::{
    Concurrency, FixedWindow, IntervalBucket, LeakyBucket, Limit, Phase, SlidingLog, SlidingSlices, SlidingWindow,
    Steps, TokenBucket,
};

const SECOND: Nanos = Nanos::SECOND;

fn read_first_word<C: Cells>(cells: C) -> u64 {
    cells.get(0)
}

fn write_words<C: CellsMut>(mut cells: C) {
    cells.set(1, 9);
    cells.set(7, 9);
}

#[test]
fn words_are_accessible_through_references_and_zero_past_the_end() {
    let mut words = [3, 4];
    assert_eq!((read_first_word(&words[..]), read_first_word(&mut words[..]), read_first_word(&words[..0])), (3, 3, 0));
    write_words(&mut words[..]);
    assert_eq!(words, [3, 9]);
}

/// Returns limits of 9 for every algorithm. Includes windows and steps that begin with the first request.
fn every_algorithm() -> [Limit; 11] {
    let interval = IntervalBucket::new(9, SECOND).unwrap();
    let fixed = FixedWindow::new(9, SECOND).unwrap();
    [
        TokenBucket::new("1/s".parse().unwrap(), 9).unwrap().into(),
        TokenBucket::new("7777/s".parse().unwrap(), 9).unwrap().into(),
        LeakyBucket::new("1/s".parse().unwrap(), 9).unwrap().free(9).unwrap().into(),
        interval.into(),
        interval.steps(Steps::FirstRequest).into(),
        fixed.into(),
        fixed.phase(Phase::FirstRequest).into(),
        SlidingWindow::new(9, SECOND).unwrap().into(),
        SlidingSlices::new(9, SECOND, Nanos::from_millis(100)).unwrap().into(),
        SlidingLog::new(9, SECOND).unwrap().into(),
        Concurrency::new(9, SECOND).unwrap().into(),
    ]
}

#[test]
fn refund_that_accepts_nothing_writes_nothing() {
    for limit in every_algorithm() {
        let mut state = vec![0; limit.words()];
        limit.init(&mut *state, &Now::at(1));
        let verdict = limit.decide(&mut *state, &Now::at(1), Ask::Exactly(Cost::new(4)));
        let before = state.clone();
        // Tests in the same window, in the next window, and after everything has expired.
        for at in [2, 1_500_000_000, 100_000_000_000].map(Now::at) {
            for stamp in [None, Some(verdict.stamp())] {
                assert_eq!(limit.refund(&mut *state, &at, Cost::ZERO, stamp), Cost::ZERO);
                assert_eq!(state, before, "{limit:?} at {at:?}");
            }
        }
        let late = Now::at(100_000_000_000);
        for stamp in [None, Some(verdict.stamp())] {
            assert_eq!(limit.refund(&mut *state, &late, Cost::ONE, stamp), Cost::ZERO, "{limit:?}");
            assert_eq!(state, before, "{limit:?}");
        }
    }
}

#[test]
fn cost_of_zero_and_refusals_write_nothing() {
    for limit in every_algorithm() {
        let mut state = vec![0; limit.words()];
        limit.init(&mut *state, &Now::at(1));
        let _ = limit.decide(&mut *state, &Now::at(1), Ask::Exactly(Cost::new(9)));
        let before = state.clone();
        for at in [1, 2, 1_500_000_000, 100_000_000_000].map(Now::at) {
            let verbs = [Ask::Exactly, Ask::UpTo, Ask::Regardless];
            for ask in verbs.map(|verb| verb(Cost::ZERO)).into_iter().chain(verbs.map(|verb| verb(Cost::new(100)))) {
                let refused_or_nothing = limit.weigh(&*state, &at, ask).taken() == Cost::ZERO;
                if refused_or_nothing {
                    let _ = limit.decide(&mut *state, &at, ask);
                    assert_eq!(state, before, "{ask:?} by {limit:?} at {at:?}");
                }
            }
        }
    }
}

#[test]
fn up_to_is_refused_when_nothing_is_left_unless_the_amount_is_zero() {
    for limit in every_algorithm() {
        let mut state = vec![0; limit.words()];
        limit.init(&mut *state, &Now::at(0));
        let mut take = |cost| {
            let verdict = limit.decide(&mut *state, &Now::at(0), Ask::UpTo(Cost::new(cost)));
            (verdict.is_admitted(), verdict.taken().get())
        };
        assert_eq!((take(u64::MAX), limit.capacity()), ((true, 9), 9), "{limit:?}");
        assert_eq!([take(3), take(1), take(0)], [(false, 0), (false, 0), (true, 0)], "{limit:?}");
    }
}

#[test]
fn has_words_fast_path_returns_whether_a_fast_path_exists() {
    let wide = SlidingSlices::new(1 << 40, SECOND, SECOND).unwrap().into();
    for limit in every_algorithm().into_iter().chain([wide]).filter(|limit| limit.words() > 1) {
        let mut state = vec![0; limit.words()];
        limit.init(&mut *state, &Now::at(1));
        let _ = limit.decide(&mut *state, &Now::at(1), Ask::Exactly(Cost::ONE));
        let applies = limit.try_take_from_words(&mut *state, &Now::at(2), Cost::ONE).is_some();
        assert_eq!(limit.has_words_fast_path(), applies, "{limit:?}");
    }
    assert!(!FixedWindow::new(9, SECOND).unwrap().has_words_fast_path(), "the default");
}
