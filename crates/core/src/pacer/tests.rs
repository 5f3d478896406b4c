use super::*;

const MS: u64 = 1_000_000;

fn rate(text: &str) -> Rate {
    text.parse().unwrap()
}

fn time_at(ms: u64) -> Time<Mono> {
    Time::from_nanos(ms * MS)
}

/// Simulates one caller that obeys the returned waits. Returns its waits in milliseconds, one for each entry of
/// `permits`.
fn simulated_waits(pacing: &PacerParams, pace: &mut PacerState, now: &mut u64, permits: &[u64]) -> Vec<f64> {
    permits
        .iter()
        .map(|permits| {
            let wait = pacing.reserve(pace, Time::from_nanos(*now), Cost::new(*permits)).as_nanos();
            *now += wait;
            wait as f64 / MS as f64
        })
        .collect()
}

#[test]
fn next_caller_waits_for_the_cost() {
    let pacing = PacerParams::bursty(rate("1/s"), Nanos::SECOND).unwrap();
    let mut pace = pacing.initial_state(time_at(0));
    let measured = simulated_waits(&pacing, &mut pace, &mut 0, &[1, 1, 2, 4, 8, 1]);
    assert_eq!(measured, [0.0, 1_000.0, 1_000.0, 2_000.0, 4_000.0, 8_000.0]);
}

#[test]
fn unused_permits_are_stored_up_to_the_maximum() {
    let pacing = PacerParams::bursty(rate("5/s"), Nanos::SECOND).unwrap();
    let mut pace = pacing.initial_state(time_at(0));
    assert_eq!(pacing.stored(&pace, time_at(0)), Nanos::ZERO);
    assert_eq!(pacing.stored(&pace, time_at(2_000)), Nanos::SECOND);
    assert_eq!(simulated_waits(&pacing, &mut pace, &mut (2_000 * MS), &[1, 1, 3, 1, 1]), [0.0, 0.0, 0.0, 0.0, 200.0]);
    let strict = PacerParams::bursty(rate("5/s"), Nanos::ZERO).unwrap();
    let mut pace = strict.initial_state(time_at(0));
    assert_eq!(simulated_waits(&strict, &mut pace, &mut (2_000 * MS), &[1, 1, 1]), [0.0, 200.0, 200.0]);
}

#[test]
fn cold_pacer_warms_up_along_the_ramp_and_cools_down_by_idling() {
    let pacing = PacerParams::warm_up(rate("2/s"), Nanos::from_secs(4), 3_000).unwrap();
    let (mut pace, mut now) = (pacing.initial_state(time_at(0)), 0);
    let cold = [0.0, 1_375.0, 1_125.0, 875.0, 625.0, 500.0, 500.0, 500.0];
    assert_eq!(simulated_waits(&pacing, &mut pace, &mut now, &[1; 8]), cold);
    now += 4_500 * MS;
    assert_eq!(simulated_waits(&pacing, &mut pace, &mut now, &[1; 8]), cold);
    now += 2_500 * MS;
    assert_eq!(simulated_waits(&pacing, &mut pace, &mut now, &[1; 4]), [0.0, 500.0, 500.0, 500.0]);
}

#[test]
fn other_cold_factors_are_exact() {
    let pacing = PacerParams::warm_up(rate("5/s"), Nanos::from_secs(4), 10_000).unwrap();
    let (mut pace, mut now) = (pacing.initial_state(time_at(0)), 0);
    let measured = simulated_waits(&pacing, &mut pace, &mut now, &[1; 8]);
    let expected = [0.0, 1_752.5, 1_257.5, 762.5, 300.0, 200.0, 200.0, 200.0];
    for (measured, expected) in measured.iter().zip(expected) {
        assert!((measured - expected).abs() < 1.0, "{measured} for {expected}");
    }
    let flat = PacerParams::warm_up(rate("5/s"), Nanos::from_secs(4), 1_000).unwrap();
    let mut pace = flat.initial_state(time_at(0));
    assert_eq!(simulated_waits(&flat, &mut pace, &mut 0, &[1, 1, 1]), [0.0, 200.0, 200.0]);
}

#[test]
fn ramp_takes_the_warm_up_and_the_flat_part_half_of_it() {
    // The threshold is 50 stored permits, and the maximum is 100.
    let pacing = PacerParams::warm_up(rate("10/s"), Nanos::from_secs(10), 3_000).unwrap();
    let mut pace = pacing.initial_state(time_at(0));
    pacing.reserve(&mut pace, time_at(0), Cost::new(50));
    assert_eq!(pacing.next_wait(&pace, time_at(0)), Nanos::from_secs(10));
    pacing.reserve(&mut pace, time_at(0), Cost::new(50));
    assert_eq!(pacing.next_wait(&pace, time_at(0)), Nanos::from_secs(15));
    assert_eq!(pacing.stored(&pace, time_at(0)), Nanos::ZERO);
}

#[test]
fn short_timeout_is_refused_immediately_and_takes_nothing() {
    let pacing = PacerParams::bursty(rate("5/s"), Nanos::SECOND).unwrap();
    let mut pace = pacing.initial_state(time_at(0));
    let mut ask = |now, timeout| pacing.try_reserve(&mut pace, time_at(now), Cost::ONE, Nanos::from_millis(timeout));
    assert_eq!(ask(0, 0), Some(Nanos::ZERO));
    assert_eq!(ask(0, 200), Some(Nanos::from_millis(200)));
    assert_eq!(ask(200, 199), None);
    assert_eq!(ask(300, 99), None);
    assert_eq!(ask(300, 100), Some(Nanos::from_millis(100)));
}

#[test]
fn changed_rate_keeps_the_debt_and_scales_stored_permits() {
    let old = PacerParams::bursty(rate("1/s"), Nanos::SECOND).unwrap();
    let new = old.with_rate(rate("2/s"));
    let (mut pace, mut now) = (old.initial_state(time_at(0)), 0);
    assert_eq!(simulated_waits(&old, &mut pace, &mut now, &[1, 1]), [0.0, 1_000.0]);
    new.convert(&old, &mut pace, Time::from_nanos(now));
    assert_eq!(simulated_waits(&new, &mut pace, &mut now, &[1, 2, 4, 1]), [1_000.0, 500.0, 1_000.0, 2_000.0]);
    let mut half = old.state_with(time_at(0), Nanos::from_millis(500));
    new.convert(&old, &mut half, time_at(0));
    assert_eq!(new.stored(&half, time_at(0)), Nanos::from_millis(500), "half a second at twice the rate");
    let cold = PacerParams::warm_up(rate("7/s"), Nanos::SECOND, 3_000).unwrap();
    let mut pace = cold.initial_state(time_at(0));
    cold.with_rate(rate("7777/s")).convert(&cold, &mut pace, time_at(0));
    assert_eq!(pace, cold.with_rate(rate("7777/s")).initial_state(time_at(0)), "cold stays cold");
}

#[test]
fn no_rate_drifts() {
    for text in ["7777/s", "86399/day", "999983/s", "1000000007/day", "80k/s", "3M/s"] {
        let pacing = PacerParams::bursty(rate(text), Nanos::ZERO).unwrap();
        let (mut pace, count) = (pacing.initial_state(time_at(0)), 1_000_000u64);
        for _ in 0..count {
            pacing.reserve(&mut pace, time_at(0), Cost::ONE);
        }
        let exact = u128::from(count) * u128::from(pacing.rate().per().as_nanos());
        let expected = exact.div_ceil(pacing.rate().count().into());
        assert_eq!(u128::from(pacing.next_wait(&pace, time_at(0)).as_nanos()), expected, "{text}");
    }
}

#[test]
fn zero_permits_take_nothing() {
    let pacing = PacerParams::bursty(rate("1/s"), Nanos::SECOND).unwrap();
    let mut pace = pacing.initial_state(time_at(0));
    pacing.reserve(&mut pace, time_at(0), Cost::ONE);
    let before = pace;
    assert_eq!(pacing.reserve(&mut pace, time_at(5), Cost::ZERO), Nanos::ZERO);
    assert_eq!(pacing.try_reserve(&mut pace, time_at(5), Cost::ZERO, Nanos::ZERO), Some(Nanos::ZERO));
    assert_eq!(pace, before);
}

#[test]
fn invalid_parameters_are_errors() {
    let message = |result: Result<PacerParams, LimitError>| result.unwrap_err().to_string();
    let warm_up = |time, cold| message(PacerParams::warm_up(rate("1/s"), time, cold));
    assert_eq!(warm_up(Nanos::ZERO, 3_000), "the warm-up is 0; it must be at least 1");
    let range = "it must be between 1000 and 100000";
    assert_eq!(warm_up(Nanos::SECOND, 999), format!("the cold factor in thousandths is 999; {range}"));
    assert_eq!(warm_up(Nanos::SECOND, 100_001), format!("the cold factor in thousandths is 100001; {range}"));
    let long = "the period of 31536000.000000001s is too long; at most 31536000s is valid";
    let longer = Nanos::from_nanos(PacerParams::MAX_STORED_TIME.as_nanos() + 1);
    assert_eq!(warm_up(longer, 3_000), long);
    assert_eq!(message(PacerParams::bursty(rate("1/s"), longer)), long);
}

#[test]
fn no_time_or_amount_causes_a_panic() {
    let rates = ["1/ns", "1/5200week", "4294967295/2ns", "999983/s"].map(rate);
    let pacers = rates.into_iter().flat_map(|rate| {
        let warm_up = |time, cold| PacerParams::warm_up(rate, time, cold).unwrap();
        let bursty = |store| PacerParams::bursty(rate, store).unwrap();
        [
            bursty(Nanos::ZERO),
            bursty(PacerParams::MAX_STORED_TIME),
            warm_up(Nanos::from_nanos(1), 1_000),
            warm_up(PacerParams::MAX_STORED_TIME, 1_001),
            warm_up(PacerParams::MAX_STORED_TIME, PacerParams::MAX_COLD_PERMILLE),
        ]
    });
    let pacers: Vec<_> = pacers.collect();
    let numbers = [0, 1, 1 << 32, u64::MAX - 1, u64::MAX];
    for pacing in &pacers {
        for (now, stored) in numbers.iter().flat_map(|now| numbers.map(|stored| (Time::from_nanos(*now), stored))) {
            let mut pace = pacing.state_with(now, Nanos::from_nanos(stored));
            for permits in numbers {
                let next_wait = pacing.next_wait(&pace, now);
                assert!(pacing.try_reserve(&mut pace, now, Cost::new(permits), Nanos::MAX).is_some());
                assert!(pacing.next_wait(&pace, now) >= next_wait, "{pacing:?}");
                pacers.iter().for_each(|other| {
                    let mut changed = pace;
                    other.convert(pacing, &mut changed, now);
                    other.reserve(&mut changed, now, Cost::ONE);
                });
            }
        }
    }
}

#[test]
fn scaling_is_exact_where_the_product_does_not_fit() {
    let large = u128::MAX / 3;
    assert_eq!(multiply_divide(large, 6, 4, Rounding::Down), large + large / 2);
    assert_eq!(multiply_divide(large, 1 << 100, 1 << 100, Rounding::Up), large);
    assert_eq!(multiply_divide((1 << 100) + 1, 1 << 90, 1 << 120, Rounding::Up), (1 << 70) + 1);
    assert_eq!(multiply_divide((1 << 100) + 1, 1 << 90, 1 << 120, Rounding::Down), 1 << 70);
    assert_eq!(multiply_divide(u128::MAX, u128::MAX, 1, Rounding::Down), u128::MAX);
    assert_eq!((multiply_divide(7, 3, 2, Rounding::Down), multiply_divide(7, 3, 2, Rounding::Up)), (10, 11));
}

/// With a cold factor of 3, the maximum stored amount accrues in the warm-up time.
#[test]
fn resumed_stored_permits_are_reported_unchanged() {
    let pacing = PacerParams::warm_up(rate("3/s"), Nanos::from_secs(4), 3_000).unwrap();
    assert_eq!(pacing.stored(&pacing.initial_state(time_at(0)), time_at(0)), Nanos::from_secs(4));
    for stored in [0, 1, 3_999].map(Nanos::from_millis) {
        assert_eq!(pacing.stored(&pacing.state_with(time_at(5_000), stored), time_at(5_000)), stored);
    }
}
