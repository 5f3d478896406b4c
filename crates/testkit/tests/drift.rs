//! Simulates three years, mostly at rates that do not divide a second. At every step, admitted amounts and waits are
//! exact.

use tollgate_core::{
    Algorithm, Ask, Cost, FixedWindow, IntervalBucket, LeakyBucket, Nanos, Now, Outcome, PacerParams, Phase, Rate,
    Retry, SlidingLog, SlidingSlices, SlidingWindow, Steps, Time, TokenBucket,
};

const RATES: [&str; 5] = ["7777/s", "86399/day", "999983/s", "1000000007/day", "10/s"];
const SECOND: u64 = 1_000_000_000;
const THREE_YEARS: u64 = 3 * 365 * 86_400 * SECOND;
const DECISIONS_PER_RATE: u64 = 100_000;

/// The exact refill of a rate.
#[derive(Clone, Copy)]
struct ExactRate(Rate);

impl ExactRate {
    /// Returns the whole units refilled within `nanos`.
    fn units_within(self, nanos: u64) -> u64 {
        let units = u128::from(nanos) * u128::from(self.0.count()) / u128::from(self.0.per().as_nanos());
        u64::try_from(units).expect("a number of units in range")
    }

    /// Returns the first nanosecond at which `units` are refilled.
    fn nanos_for(self, units: u64) -> u64 {
        let nanos = (u128::from(units) * u128::from(self.0.per().as_nanos())).div_ceil(u128::from(self.0.count()));
        u64::try_from(nanos).expect("a time in range")
    }
}

/// A pseudorandom generator (xorshift) with a fixed seed.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Sends requests of random costs, repeats refused requests after the advertised wait, and pauses at random, but never
/// until the bucket is full. No refill is lost, so the admitted plus the remaining amount equals the burst plus the
/// exact refill.
#[test]
fn token_bucket_admits_its_exact_bound_over_three_years() {
    for text in RATES {
        let exact = ExactRate(text.parse().expect("a rate"));
        let burst = exact.units_within(7200 * SECOND);
        let limit = TokenBucket::new(exact.0, burst).expect("a limit");
        let start = 12_345;
        let (mut state, mut now, mut rng) = ([0; 2], start, Rng(42));
        limit.init(&mut state, &Now::at(start));
        let mut total = limit.decide(&mut state, &Now::at(start), Ask::UpTo(Cost::MAX)).taken().get();
        let mut decisions = 1;
        while now < start + THREE_YEARS || decisions < DECISIONS_PER_RATE {
            now += rng.below(1200 * SECOND);
            let remaining = limit.report(&state, &Now::at(now), Cost::ONE).remaining;
            let ask = if remaining > burst / 2 {
                Ask::UpTo(Cost::MAX)
            } else {
                Ask::Exactly(random_cost(&mut rng, burst / 2))
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
                burst + exact.units_within(now - start),
                "{text} after {decisions} decisions"
            );
        }
        total += limit.decide(&mut state, &Now::at(now), Ask::UpTo(Cost::MAX)).taken().get();
        assert_eq!(total, burst + exact.units_within(now - start), "{text} in total");
    }
}

fn random_cost(rng: &mut Rng, most: u64) -> Cost {
    Cost::new(1 + rng.below(most))
}

/// Sends requests of random costs so often that the bucket never empties. Each request leaves at the first nanosecond
/// after all earlier units have left.
#[test]
fn leaky_bucket_delays_are_exact_to_the_nanosecond_over_three_years() {
    for text in RATES {
        let exact = ExactRate(text.parse().expect("a rate"));
        let burst = exact.units_within(7200 * SECOND);
        let limit = LeakyBucket::new(exact.0, burst).expect("a limit");
        let start = 54_321;
        let (mut state, mut now, mut rng) = ([0; 2], start, Rng(99));
        limit.init(&mut state, &Now::at(start));
        let mut total = limit.decide(&mut state, &Now::at(start), Ask::UpTo(Cost::MAX)).taken().get();
        assert_eq!(total, burst);
        let mut decisions = 1;
        while now < start + THREE_YEARS || decisions < DECISIONS_PER_RATE {
            now += rng.below(1200 * SECOND);
            let ask = Ask::UpTo(random_cost(&mut rng, burst));
            let mut verdict = limit.decide(&mut state, &Now::at(now), ask);
            if let Outcome::Deny(Retry::After(wait)) = verdict.outcome() {
                now += wait.as_nanos();
                verdict = limit.decide(&mut state, &Now::at(now), ask);
            }
            let Outcome::Delay(wait) = verdict.outcome() else { panic!("{text}: {verdict:?} at {now}") };
            total += verdict.taken().get();
            // A request leaves with its last unit.
            assert_eq!(now + wait.as_nanos(), start + exact.nanos_for(total - 1), "{text} after {decisions} decisions");
            decisions += 1;
            // A unit becomes available exactly when another unit has left. When the bucket is half empty, it is filled
            // again.
            let remaining = limit.report(&state, &Now::at(now), Cost::ONE).remaining;
            assert_eq!(
                total + remaining,
                burst + exact.units_within(now - start),
                "{text} after {decisions} decisions"
            );
            if remaining > burst / 2 {
                total += limit.decide(&mut state, &Now::at(now), Ask::UpTo(Cost::MAX)).taken().get();
            }
        }
    }
}

/// A caller drains the limit, returns after the advertised wait for the capacity, and gets the whole capacity again.
/// The wait is one window, but two windows for sliding windows, and a window plus one slice for sliding slices.
#[test]
fn windows_and_logs_admit_their_capacity_after_each_wait_over_three_years() {
    fn assert_total<A: Algorithm>(limit: &A, length: u64) {
        let mut state = vec![0; limit.words()];
        let state = state.as_mut_slice();
        limit.init(state, &Now::at(0));
        let (mut now, mut total, mut windows) = (0, 0, 0);
        while now < THREE_YEARS {
            total += limit.decide(state, &Now::at(now), Ask::UpTo(Cost::MAX)).taken().get();
            windows += 1;
            assert_eq!(total, windows * limit.capacity(), "at {now}");
            let Retry::After(wait) = limit.report(state, &Now::at(now), Cost::new(limit.capacity())).retry else {
                panic!("the capacity passes again later");
            };
            now += wait.as_nanos();
            assert_eq!(now, windows * length);
        }
    }
    let length = Nanos::from_nanos(946_079_999_993);
    for count in [7777, 1_000_000_007] {
        assert_total(&FixedWindow::new(count, length).expect("a limit"), length.as_nanos());
        assert_total(&FixedWindow::new(count, length).expect("a limit").phase(Phase::FirstRequest), length.as_nanos());
        assert_total(&SlidingWindow::new(count, length).expect("a limit"), 2 * length.as_nanos());
        let interval = IntervalBucket::new(count, length).expect("a limit");
        assert_total(&interval, length.as_nanos());
        assert_total(&interval.steps(Steps::FirstRequest), length.as_nanos());
        // An amount taken at the start of a slice expires one slice late.
        let precision = Nanos::from_nanos(length.as_nanos().div_ceil(7));
        assert_total(&SlidingSlices::new(count, length, precision).expect("a limit"), 8 * precision.as_nanos());
    }
    assert_total(&SlidingLog::new(77, length).expect("a limit"), length.as_nanos());
}

/// Sends requests of cost 1 under a small burst, with long pauses, and repeats refused requests after the advertised
/// wait. After a pause, unit n passes at the first nanosecond at which it is refilled. A burst of 1 is excluded: such a
/// bucket is full when its unit is refilled, so it loses the refill of the rest of that nanosecond.
#[test]
fn token_bucket_admits_each_unit_at_its_nanosecond_over_three_years() {
    const REQUESTS_PER_PAUSE: u64 = 50;
    for text in RATES {
        let exact = ExactRate(text.parse().expect("a rate"));
        for burst in [2, 3] {
            let limit = TokenBucket::new(exact.0, burst).expect("a limit");
            let (mut state, mut now, mut rng) = ([0; 2], 777, Rng(4711));
            limit.init(&mut state, &Now::at(now));
            while now < THREE_YEARS {
                let start = now;
                for nth in 1..=REQUESTS_PER_PAUSE {
                    let verdict = limit.decide(&mut state, &Now::at(now), Ask::Exactly(Cost::ONE));
                    assert!(verdict.is_admitted(), "{text}: number {nth} since {start} at {now}");
                    assert_eq!(now, start + exact.nanos_for(nth.saturating_sub(burst)), "{text}: number {nth}");
                    let Outcome::Deny(Retry::After(wait)) =
                        limit.weigh(&state, &Now::at(now), Ask::Exactly(Cost::ONE)).outcome()
                    else {
                        continue;
                    };
                    now += wait.as_nanos();
                }
                now += 100 * SECOND + rng.below(THREE_YEARS / (DECISIONS_PER_RATE / REQUESTS_PER_PAUSE));
            }
        }
    }
}

/// Sends requests of random costs so often that the pacer is never idle. Each request passes at the first nanosecond
/// at which all earlier costs are paid.
#[test]
fn pacer_waits_are_exact_to_the_nanosecond_over_three_years() {
    for text in RATES {
        let exact = ExactRate(text.parse().expect("a rate"));
        let pacing = PacerParams::bursty(exact.0, Nanos::SECOND).expect("a pacer");
        let start = 777;
        let (mut pace, mut rng, mut total) = (pacing.initial_state(Time::from_nanos(start)), Rng(4711), 0);
        let mut now = start;
        while now < start + THREE_YEARS {
            let cost = random_cost(&mut rng, exact.units_within(2 * THREE_YEARS / DECISIONS_PER_RATE));
            now += pacing.reserve(&mut pace, Time::from_nanos(now), cost).as_nanos();
            assert_eq!(now, start + exact.nanos_for(total), "{text}");
            total += cost.get();
        }
    }
}
