//! One test per bug that the properties found, with what was believed before.

use tollgate_core::{Algorithm, Ask, Cost, FixedWindow, Limits, Nanos, Now, Outcome, Retry, SlidingLog, TokenBucket};

const SECOND: u64 = 1_000_000_000;
const ONE: Ask = Ask::Exactly(Cost::ONE);

/// A state of one word ends after some decades; an instant beyond was kept as the last word, and believed to refuse. But the
/// ticks of the present had passed that word as well, so nothing seemed spent, and everything passed.
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

/// What is spent was cut to burst and debt when read, and believed to last no longer after the clock stepped back. But a
/// refusal wrote nothing, so the next one read the same, until the clock was where it had been.
#[test]
fn refusal_records_a_clock_step_back() {
    let limit = TokenBucket::new("10/s".parse().unwrap(), 10).unwrap().max_debt(0).unwrap();
    let mut state = [0; 2];
    limit.init(&mut state, &Now::at(3600 * SECOND));
    assert!(limit.decide(&mut state, &Now::at(3600 * SECOND), Ask::Exactly(Cost::new(10))).is_admitted());
    let told = limit.decide(&mut state, &Now::at(0), ONE).outcome();
    assert_eq!(told, Outcome::Deny(Retry::After(Nanos::from_millis(100))));
    assert!(limit.decide(&mut state, &Now::at(SECOND / 10), ONE).is_admitted(), "after the advertised wait");
}

/// Somebody who takes what fits, refused by the gap, was told to wait until all that fitted then would fit again, behind the
/// attempt itself. But it takes less when less fits.
#[test]
fn take_up_to_waits_for_one_unit() {
    let limit = SlidingLog::new(3, Nanos::from_nanos(29)).unwrap().minimum_gap(Nanos::from_nanos(2)).unwrap();
    let limit = limit.count_refused();
    let mut state = [0; 4];
    limit.init(&mut state, &Now::at(0));
    assert!(limit.decide(&mut state, &Now::at(0), ONE).is_admitted());
    let told = limit.decide(&mut state, &Now::at(1), Ask::UpTo(Cost::MAX));
    // The unit of 0 ns leaves at 29 ns; the attempt wrote down 2 more, at 1 ns.
    assert_eq!(told.outcome(), Outcome::Deny(Retry::After(Nanos::from_nanos(28))));
    assert_eq!(limit.weigh(&state, &Now::at(29), Ask::UpTo(Cost::MAX)).taken(), Cost::ONE);
}

/// A group asked its limits for exactly what the tightest could give. But exactly nothing is refused by a limit in debt,
/// while nothing at all of what fits is not.
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
