//! Tests the pacers against their exact models.

use proptest::prelude::*;
use tollgate_core::{Cost, Nanos, PacerParams, PacerState, Time};
use tollgate_testkit::model::PacerModel;
use tollgate_testkit::model::script::{any_number_up_to, any_rate, any_start, any_word, config_with_cases};

/// Generates calls: the time since the last call, and the number of permits.
fn any_calls() -> impl Strategy<Value = Vec<(IdleTime, u64)>> {
    let idles = prop_oneof![
        Just(IdleTime::Nanos(0)),
        any_number_up_to(1 << 50).prop_map(IdleTime::Nanos),
        (0..3_i64).prop_map(|more| IdleTime::Advertised(more - 1)),
    ];
    let permits = prop_oneof![Just(0), 1_u64..20, any_number_up_to(1 << 30)];
    prop::collection::vec((idles, permits), 1..40)
}

#[derive(Clone, Copy, Debug)]
enum IdleTime {
    /// Fixed duration in nanoseconds.
    Nanos(u64),
    /// The advertised wait plus an offset.
    Advertised(i64),
}

fn run_in_lockstep(
    pacing: &PacerParams,
    mut model: PacerModel,
    start: u64,
    calls: &[(IdleTime, u64)],
    tolerance: impl Fn(u64) -> u64,
) {
    let (mut pace, mut now) = (pacing.initial_state(Time::from_nanos(start)), start);
    for (nth, &(idle, permits)) in calls.iter().enumerate() {
        let next = match idle {
            IdleTime::Nanos(nanos) => now.saturating_add(nanos),
            IdleTime::Advertised(more) => now.saturating_add(model.next_wait(now).saturating_add_signed(more)),
        };
        if next < 1 << 62 {
            now = next;
        }
        let (ours, exact) = (pacing.next_wait(&pace, Time::from_nanos(now)).as_nanos(), model.next_wait(now));
        prop_assert_within(ours, exact, tolerance(nth as u64));
        if permits > 0 {
            assert_eq!(pacing.reserve(&mut pace, Time::from_nanos(now), Cost::new(permits)).as_nanos(), ours);
        }
        model.reserve(now, permits);
    }
}

/// Asserts that a wait is at least the exact wait, and at most `tolerance` longer.
fn prop_assert_within(ours: u64, exact: u64, tolerance: u64) {
    assert!(ours >= exact, "a wait of {ours} ns, the exact wait is {exact}");
    assert!(ours - exact <= tolerance, "a wait of {ours} ns, the exact wait is {exact}, the tolerance {tolerance} ns");
}

proptest! {
    #![proptest_config(config_with_cases(500))]

    #[test]
    fn bursty_pacer_equals_its_model(
        rate in any_rate(),
        store in any_number_up_to(PacerParams::MAX_STORED_TIME.as_nanos()),
        start in any_start(),
        calls in any_calls(),
    ) {
        let pacing = PacerParams::bursty(rate, Nanos::from_nanos(store)).expect("valid params");
        run_in_lockstep(&pacing, PacerModel::bursty(rate, store, start), start, &calls, |_| 0);
    }

    /// Each reservation is rounded up to a tick, which is at most a nanosecond. A call that is later by this error
    /// finds the pacer slightly less cold, which adds no more than the same error. The total error is therefore at
    /// most a nanosecond per call, plus one nanosecond in the report.
    #[test]
    fn warming_pacer_is_at_most_a_tick_per_call_slower_than_its_model(
        rate in any_rate(),
        warm_up in any_number_up_to(PacerParams::MAX_STORED_TIME.as_nanos()),
        cold in 1_000_u32..=20_000,
        start in any_start(),
        permits in prop::collection::vec(1_u64..1_000, 1..30),
    ) {
        let warm_up = warm_up.max(1);
        let pacing = PacerParams::warm_up(rate, Nanos::from_nanos(warm_up), cold).expect("valid params");
        let calls: Vec<_> = permits.into_iter().map(|permits| (IdleTime::Nanos(0), permits)).collect();
        run_in_lockstep(&pacing, PacerModel::warm_up(rate, warm_up, cold, start), start, &calls, |nth| nth + 1);
    }

    /// With pauses between calls, the tolerance is 4 ns for each of up to 40 calls.
    #[test]
    fn warming_pacer_with_pauses_stays_within_160_ns_of_its_model(
        rate in any_rate(), warm_up in any_number_up_to(1 << 40), start in any_start(), calls in any_calls(),
    ) {
        let warm_up = warm_up.max(1);
        let pacing = PacerParams::warm_up(rate, Nanos::from_nanos(warm_up), 3_000).expect("valid params");
        let mut calls = calls;
        calls.iter_mut().for_each(|(idle, _)| {
            if let IdleTime::Advertised(_) = idle {
                *idle = IdleTime::Nanos(0);
            }
        });
        let (mut pace, mut model, mut now) =
            (pacing.initial_state(Time::from_nanos(start)), PacerModel::warm_up(rate, warm_up, 3_000, start), start);
        for (idle, permits) in calls {
            // Uses only pauses that end all waiting, so that the pacer and its model are idle now.
            if let IdleTime::Nanos(nanos) = idle
                && nanos > 0
            {
                let free = model.next_wait(now).max(pacing.next_wait(&pace, Time::from_nanos(now)).as_nanos());
                now = now.saturating_add(free).saturating_add(nanos);
            }
            if now >= 1 << 62 {
                break;
            }
            pacing.reserve(&mut pace, Time::from_nanos(now), Cost::new(permits));
            model.reserve(now, permits);
            let (ours, exact) = (pacing.next_wait(&pace, Time::from_nanos(now)).as_nanos(), model.next_wait(now));
            // For each earlier call, rounding may cost a nanosecond of idle time, so that fewer permits are
            // stored. Because the cold factor is 3, this changes the wait by at most 3 ns.
            prop_assert!(ours.abs_diff(exact) <= 4 * 40, "a wait of {ours} ns, the exact wait is {exact}");
        }
    }

    #[test]
    fn no_parameters_cause_a_panic(
        rate in any_rate(), (store, cold) in (any_word(), any::<u32>()),
        calls in prop::collection::vec((any_word(), any_word()), 1..20), other in any_rate(),
    ) {
        let made = [PacerParams::bursty(rate, Nanos::from_nanos(store)), PacerParams::warm_up(rate, Nanos::from_nanos(store), cold)];
        for pacing in made.into_iter().flatten() {
            let mut pace = pacing.initial_state(Time::from_nanos(calls[0].0));
            for (now, permits) in &calls {
                let wait = pacing.next_wait(&pace, Time::from_nanos(*now));
                let again = pacing.reserve(&mut pace, Time::from_nanos(*now), Cost::new(*permits));
                prop_assert!(again == wait || *permits == 0);
                check_change(&pacing, pacing.with_rate(other), pace, *now);
            }
        }
    }
}

fn check_change(old: &PacerParams, new: PacerParams, mut pace: PacerState, now: u64) {
    let before = old.next_wait(&pace, Time::from_nanos(now));
    new.convert(old, &mut pace, Time::from_nanos(now));
    let after = new.next_wait(&pace, Time::from_nanos(now));
    assert!(after >= before && after.as_nanos() - before.as_nanos() <= 1, "{before} became {after}");
}
