//! Three simulated years at rates that do not divide: what passed equals the exact bound to the unit, all the way.

use tollgate_core::{
    Algorithm, Ask, Cost, FixedWindow, IntervalBucket, LeakyBucket, Nanos, Now, Outcome, Pacing, Phase, Rate, Retry,
    SlidingLog, SlidingSlices, SlidingWindow, Steps, Time, TokenBucket,
};

const RATES: [&str; 5] = ["7777/s", "86399/day", "999983/s", "1000000007/day", "10/s"];
const SECOND: u64 = 1_000_000_000;
const THREE_YEARS: u64 = 3 * 365 * 86_400 * SECOND;
const DECISIONS: u64 = 100_000;

/// A rate and what exactly it lets flow.
#[derive(Clone, Copy)]
struct Exactly(Rate);

impl Exactly {
    /// Whole units that flow within `nanos`.
    fn units_within(self, nanos: u64) -> u64 {
        let units = u128::from(nanos) * u128::from(self.0.count()) / u128::from(self.0.per().as_nanos());
        u64::try_from(units).expect("a number of units that fits")
    }

    /// The first nanosecond at which `units` have flowed.
    fn nanos_for(self, units: u64) -> u64 {
        let nanos = (u128::from(units) * u128::from(self.0.per().as_nanos())).div_ceil(u128::from(self.0.count()));
        u64::try_from(nanos).expect("a time that fits")
    }
}

/// Numbers that look random and are the same every time.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Callers of all sizes who come back when told, and idle for a while now and then, but never so long that the bucket would
/// be full: nothing is lost, so what passed and what remains make up all that ever flowed.
#[test]
fn a_token_bucket_admits_its_bound_to_the_unit_over_three_years() {
    for text in RATES {
        let exactly = Exactly(text.parse().expect("a rate"));
        let burst = exactly.units_within(7200 * SECOND);
        let limit = TokenBucket::new(exactly.0, burst).expect("a limit");
        let start = 12_345;
        let (mut state, mut now, mut dice) = ([0; 2], start, Dice(42));
        limit.init(&mut state, &Now::at(start));
        let mut total = limit.decide(&mut state, &Now::at(start), Ask::UpTo(Cost::MAX)).taken().get();
        let mut decisions = 1;
        while now < start + THREE_YEARS || decisions < DECISIONS {
            now += dice.below(1200 * SECOND);
            let remaining = limit.report(&state, &Now::at(now), Cost::ONE).remaining;
            let ask = if remaining > burst / 2 {
                Ask::UpTo(Cost::MAX)
            } else {
                Ask::Exactly(dice_cost(&mut dice, burst / 2))
            };
            let mut verdict = limit.decide(&mut state, &Now::at(now), ask);
            decisions += 1;
            if let Outcome::Deny(Retry::After(wait)) = verdict.outcome() {
                now += wait.as_nanos();
                verdict = limit.decide(&mut state, &Now::at(now), ask);
                decisions += 1;
            }
            assert!(verdict.is_admitted(), "{text}: {ask:?} at {now} after {decisions} decisions");
            total += verdict.taken().get();
            let remaining = limit.report(&state, &Now::at(now), Cost::ONE).remaining;
            assert_eq!(
                total + remaining,
                burst + exactly.units_within(now - start),
                "{text} after {decisions} decisions"
            );
        }
        total += limit.decide(&mut state, &Now::at(now), Ask::UpTo(Cost::MAX)).taken().get();
        assert_eq!(total, burst + exactly.units_within(now - start), "{text} in all");
    }
}

fn dice_cost(dice: &mut Dice, most: u64) -> Cost {
    Cost::new(1 + dice.below(most))
}

/// Callers of all sizes who find the bucket never empty: each has its turn at the very nanosecond at which all before it have
/// flowed out, however much that is by then.
#[test]
fn a_leaky_bucket_lets_everybody_out_at_their_nanosecond_for_three_years() {
    for text in RATES {
        let exactly = Exactly(text.parse().expect("a rate"));
        let burst = exactly.units_within(7200 * SECOND);
        let limit = LeakyBucket::new(exactly.0, burst).expect("a limit");
        let start = 54_321;
        let (mut state, mut now, mut dice) = ([0; 2], start, Dice(99));
        limit.init(&mut state, &Now::at(start));
        let mut total = limit.decide(&mut state, &Now::at(start), Ask::UpTo(Cost::MAX)).taken().get();
        assert_eq!(total, burst);
        let mut decisions = 1;
        while now < start + THREE_YEARS || decisions < DECISIONS {
            now += dice.below(1200 * SECOND);
            let ask = Ask::UpTo(dice_cost(&mut dice, burst));
            let mut verdict = limit.decide(&mut state, &Now::at(now), ask);
            if let Outcome::Deny(Retry::After(wait)) = verdict.outcome() {
                now += wait.as_nanos();
                verdict = limit.decide(&mut state, &Now::at(now), ask);
            }
            let Outcome::Delay(wait) = verdict.outcome() else { panic!("{text}: {verdict:?} at {now}") };
            total += verdict.taken().get();
            // A request leaves with its last unit.
            assert_eq!(
                now + wait.as_nanos(),
                start + exactly.nanos_for(total - 1),
                "{text} after {decisions} decisions"
            );
            decisions += 1;
            // Whole units have room exactly when they have flowed out; at half empty it is filled up again.
            let room = limit.report(&state, &Now::at(now), Cost::ONE).remaining;
            assert_eq!(total + room, burst + exactly.units_within(now - start), "{text} after {decisions} decisions");
            if room > burst / 2 {
                total += limit.decide(&mut state, &Now::at(now), Ask::UpTo(Cost::MAX)).taken().get();
            }
        }
    }
}

/// A caller who drains whatever there is and comes back when told: so many windows, so many times the limit.
#[test]
fn windows_and_logs_admit_the_limit_once_per_window_for_three_years() {
    fn total<A: Algorithm>(limit: &A, length: u64) {
        let mut state = vec![0; limit.words()];
        let state = state.as_mut_slice();
        limit.init(state, &Now::at(0));
        let (mut now, mut total, mut windows) = (0, 0, 0);
        while now < THREE_YEARS {
            total += limit.decide(state, &Now::at(now), Ask::UpTo(Cost::MAX)).taken().get();
            windows += 1;
            assert_eq!(total, windows * limit.capacity(), "at {now}");
            let Retry::After(wait) = limit.report(state, &Now::at(now), Cost::new(limit.capacity())).retry else {
                panic!("all of it passes again some time");
            };
            now += wait.as_nanos();
            assert_eq!(now, windows * length);
        }
    }
    let length = Nanos::from_nanos(946_079_999_993);
    for count in [7777, 1_000_000_007] {
        total(&FixedWindow::new(count, length).expect("a limit"), length.as_nanos());
        total(&FixedWindow::new(count, length).expect("a limit").phase(Phase::FirstRequest), length.as_nanos());
        total(&SlidingWindow::new(count, length).expect("a limit"), 2 * length.as_nanos());
        let interval = IntervalBucket::new(count, length).expect("a limit");
        total(&interval, length.as_nanos());
        total(&interval.steps(Steps::FirstRequest), length.as_nanos());
        // What is taken at the beginning of a slice leaves one slice late.
        let precision = Nanos::from_nanos(length.as_nanos().div_ceil(7));
        total(&SlidingSlices::new(count, length, precision).expect("a limit"), 8 * precision.as_nanos());
    }
    total(&SlidingLog::new(77, length).expect("a limit"), length.as_nanos());
}

/// A caller of cost 1 who comes back whenever told, a small burst and long idling: the nth unit after idling passes at
/// the very nanosecond at which it has flowed. (A burst of 1 is full, and loses the rest of the nanosecond, by definition.)
#[test]
fn a_token_bucket_admits_each_unit_at_its_nanosecond_for_three_years() {
    const IN_A_ROW: u64 = 50;
    for text in RATES {
        let exactly = Exactly(text.parse().expect("a rate"));
        for burst in [2, 3] {
            let limit = TokenBucket::new(exactly.0, burst).expect("a limit");
            let (mut state, mut now, mut dice) = ([0; 2], 777, Dice(4711));
            limit.init(&mut state, &Now::at(now));
            while now < THREE_YEARS {
                let start = now;
                for nth in 1..=IN_A_ROW {
                    let verdict = limit.decide(&mut state, &Now::at(now), Ask::Exactly(Cost::ONE));
                    assert!(verdict.is_admitted(), "{text}: number {nth} since {start} at {now}");
                    assert_eq!(now, start + exactly.nanos_for(nth.saturating_sub(burst)), "{text}: number {nth}");
                    let Outcome::Deny(Retry::After(wait)) =
                        limit.weigh(&state, &Now::at(now), Ask::Exactly(Cost::ONE)).outcome()
                    else {
                        continue;
                    };
                    now += wait.as_nanos();
                }
                now += 100 * SECOND + dice.below(THREE_YEARS / (DECISIONS / IN_A_ROW));
            }
        }
    }
}

/// Callers of all sizes who never let a pacer idle: each passes at the very nanosecond at which all before it are paid for.
#[test]
fn a_pacer_grants_at_the_nanosecond_for_three_years() {
    for text in RATES {
        let exactly = Exactly(text.parse().expect("a rate"));
        let pacing = Pacing::bursty(exactly.0, Nanos::SECOND).expect("a pacer");
        let start = 777;
        let (mut pace, mut dice, mut total) = (pacing.start(Time::from_nanos(start)), Dice(4711), 0);
        let mut now = start;
        while now < start + THREE_YEARS {
            let cost = dice_cost(&mut dice, exactly.units_within(2 * THREE_YEARS / DECISIONS));
            now += pacing.reserve(&mut pace, Time::from_nanos(now), cost).as_nanos();
            assert_eq!(now, start + exactly.nanos_for(total), "{text}");
            total += cost.get();
        }
    }
}
