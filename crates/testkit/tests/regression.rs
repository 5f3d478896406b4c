//! One test per bug that the properties found.

use tollgate_core::{Algorithm, Ask, Cost, FixedWindow, Limits, Nanos, Now, Outcome, Retry, SlidingLog, TokenBucket};

const SECOND: u64 = 1_000_000_000;
const ONE: Ask = Ask::Exactly(Cost::ONE);

/// A one-word state can represent the times of only a few decades. A later instant is stored as the largest word, and
/// such a state must refuse. If the word were compared with a current time beyond that word, the bucket would appear
/// full.
#[test]
fn bucket_refuses_beyond_the_range_of_a_word() {
    let limit = TokenBucket::new("7/s".parse().unwrap(), 3).unwrap();
    assert!(limit.fits_a_word());
    let century = Now::at(100 * 365 * 86_400 * SECOND);
    let mut state = [0];
    limit.init(&mut state, &Now::at(0));
    let passed = (0..100).filter(|_| limit.decide(&mut state, &century, ONE).is_admitted()).count();
    assert!(passed <= 3, "{passed} passed at one instant");
}

/// After a clock step, the spent amount that is read is capped at burst plus debt. A refusal must write the capped
/// amount. Otherwise each further refusal would read the original state again, until the clock has caught up.
#[test]
fn refusal_after_a_clock_step_back_writes_the_capped_amount() {
    let limit = TokenBucket::new("10/s".parse().unwrap(), 10).unwrap().max_debt(0).unwrap();
    let mut state = [0; 2];
    limit.init(&mut state, &Now::at(3600 * SECOND));
    assert!(limit.decide(&mut state, &Now::at(3600 * SECOND), Ask::Exactly(Cost::new(10))).is_admitted());
    let refused = limit.decide(&mut state, &Now::at(0), ONE).outcome();
    assert_eq!(refused, Outcome::Deny(Retry::After(Nanos::from_millis(100))));
    assert!(
        limit.decide(&mut state, &Now::at(SECOND / 10), ONE).is_admitted(),
        "the request passes after the advertised wait"
    );
}

/// If the minimum gap refuses a `take_up_to`, the wait lasts until one unit can be taken, not until the whole
/// amount that was available before can be taken.
#[test]
fn take_up_to_waits_for_one_unit() {
    let limit = SlidingLog::new(3, Nanos::from_nanos(29)).unwrap().minimum_gap(Nanos::from_nanos(2)).unwrap();
    let limit = limit.count_refused();
    let mut state = [0; 4];
    limit.init(&mut state, &Now::at(0));
    assert!(limit.decide(&mut state, &Now::at(0), ONE).is_admitted());
    let refused = limit.decide(&mut state, &Now::at(1), Ask::UpTo(Cost::MAX));
    // The unit from 0 ns expires at 29 ns. The refused request recorded two more units at 1 ns.
    assert_eq!(refused.outcome(), Outcome::Deny(Retry::After(Nanos::from_nanos(28))));
    assert_eq!(limit.weigh(&state, &Now::at(29), Ask::UpTo(Cost::MAX)).taken(), Cost::ONE);
}

/// A group asks each limit for exactly the amount that the tightest limit admits. A limit in debt refuses
/// a cost of exactly 0, but not "up to" 0.
#[test]
fn take_up_to_zero_passes_in_debt() {
    let window = FixedWindow::new(8, Nanos::SECOND).unwrap().max_debt(4).unwrap();
    let limits = Limits::new([window.into()]).unwrap();
    let nothing = Ask::UpTo(Cost::ZERO);
    let mut state = [0; 2];
    limits.init(&mut state, &Now::at(0));
    assert!(limits.decide(&mut state, &Now::at(0), Ask::Regardless(Cost::new(9))).is_admitted());
    assert_eq!(window.weigh(&state, &Now::at(0), nothing).outcome(), Outcome::Allow);
    assert_eq!(limits.weigh(&state, &Now::at(0), nothing).outcome(), Outcome::Allow);
}
