use super::*;
use crate::algorithm::testing::{StepBounds, random_steps};
use crate::limit::Limit;
use crate::quantity::Nanos;
use crate::ticks::HORIZON;
use crate::verdict::{Outcome, Retry};

const SECOND: u64 = 1_000_000_000;

fn bucket(rate: &str, burst: u64) -> TokenBucket {
    TokenBucket::new(rate.parse().unwrap(), burst).unwrap()
}

/// Reference model: counts fractions of a token, with one fraction per nanosecond of the period, and refills at every
/// step.
struct ReferenceBucket {
    limit: TokenBucket,
    parts: i128,
    last_refill: u64,
}

impl ReferenceBucket {
    fn new(limit: TokenBucket, at: u64, tokens: u64) -> Self {
        let mut bucket = Self { limit, parts: 0, last_refill: at };
        bucket.parts = bucket.parts_per_token() * i128::from(tokens);
        bucket
    }

    fn parts_per_token(&self) -> i128 {
        i128::from(self.limit.rate().per().as_nanos())
    }

    fn burst_parts(&self) -> i128 {
        self.parts_per_token() * i128::from(self.limit.burst())
    }

    fn refill(&mut self, at: u64) {
        let flowed = i128::from(at - self.last_refill) * i128::from(self.limit.rate().count());
        (self.parts, self.last_refill) = ((self.parts + flowed).min(self.burst_parts()), at);
    }

    fn decide(&mut self, at: u64, cost: u64, debt: u64) -> bool {
        self.refill(at);
        let left = self.parts - i128::from(cost) * self.parts_per_token();
        let passes = left >= -i128::from(debt) * self.parts_per_token();
        if passes {
            self.parts = left;
        }
        passes
    }

    fn remaining(&self) -> u64 {
        (self.parts.max(0) / self.parts_per_token()) as u64
    }
}

#[test]
fn decisions_match_a_bucket_that_is_refilled_at_every_step() {
    for (rate, burst) in [("1/s", 1), ("10/s", 10), ("7/s", 3), ("7777/s", 50), ("3G/s", 1_000), ("1000000007/day", 9)]
    {
        let limit = bucket(rate, burst).max_debt(5).unwrap();
        let mut model = ReferenceBucket::new(limit, 17, burst);
        let mut state = vec![0; limit.words()];
        limit.init(&mut *state, &Now::at(17));
        let (mut seed, mut at) = (1u64, 17);
        for step in 0..20_000 {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let interval = limit.rate().per().as_nanos() / u64::from(limit.rate().count()) + 1;
            at += (seed >> 20) % interval * ((seed >> 10) % 3);
            let (now, cost) = (Now::at(at), (seed >> 40) % (burst + 2));
            let what = format!("{rate}, step {step} at {at}: cost {cost}");
            if seed.is_multiple_of(5) {
                let passes = cost <= burst + 5 && model.decide(at, cost, 5);
                let verdict = limit.decide(&mut *state, &now, Ask::Regardless(Cost::new(cost)));
                assert_eq!(verdict.is_admitted(), passes, "charge, {what}");
            } else {
                let passes = model.decide(at, cost, 0);
                let verdict = limit.decide(&mut *state, &now, Ask::Exactly(Cost::new(cost)));
                assert_eq!(verdict.is_admitted(), passes, "{what}");
                assert_eq!(verdict.taken().get(), if passes { cost } else { 0 }, "{what}");
            }
            assert_eq!(limit.report(&*state, &now, Cost::ONE).remaining, model.remaining(), "{what}");
            assert_eq!(limit.is_unused(&*state, &now), model.parts == model.burst_parts(), "{what}");
        }
    }
}

#[test]
fn admitted_amount_stays_within_burst_plus_rate() {
    for (rate, burst, pause) in
        [("10/s", 10, SECOND), ("7777/s", 40, 1_000_000), ("3G/s", 5, 3), ("86399/day", 7, 3 * SECOND)]
    {
        let limit = bucket(rate, burst);
        let bounds = StepBounds { pause, cost: burst + 1, all_verbs: false };
        let passed = random_steps(&limit, Now::at, 5, 3_000, &bounds);
        let (count, per) = (u128::from(limit.rate().count()), u128::from(limit.rate().per().as_nanos()));
        for (nth, first) in passed.iter().enumerate() {
            let mut sum = 0;
            for last in &passed[nth..] {
                sum += u128::from(last.cost);
                let most = u128::from(burst) * per + count * u128::from(last.asked - first.asked);
                assert!(sum * per <= most, "{rate}: {sum} from {} to {}", first.asked, last.asked);
            }
        }
        random_steps(&limit, Now::at, 5, 3_000, &StepBounds { all_verbs: true, ..bounds });
    }
}

#[test]
fn fast_path_matches_the_slow_path() {
    for rate in ["10/s", "7/s", "7777/s"] {
        let limit = bucket(rate, 4);
        assert_eq!(limit.fits_a_word(), rate != "7777/s");
        assert_eq!(limit.words(), if limit.fits_a_word() { 1 } else { 2 });
        for at in [0, 1, SECOND, HORIZON - 1, HORIZON, u64::MAX / 8] {
            for owed in [0, 1, SECOND / 10, SECOND / 10 * 3 + 1, SECOND / 10 * 4, SECOND, u64::MAX / 2] {
                for cost in [0, 1, 3, 4, 5, u64::MAX].map(Cost::new) {
                    let now = Now::at(at);
                    let word = (at * u64::from(limit.rate().count().min(7))).saturating_add(owed);
                    let (mut fast, mut slow) = ([word, 0], [word, 0]);
                    let fast_verdict = limit.decide_fast(&mut fast, &now, cost);
                    let verdict = limit.decide_slow(&mut slow, &now, Ask::Exactly(cost));
                    let context = format!("{rate} at {at}, owed {owed}, {cost:?}");
                    match fast_verdict {
                        Some(fast_verdict) => assert_eq!((fast_verdict, fast), (verdict, slow), "{context}"),
                        None => assert_eq!(fast, [word, 0], "{context}"),
                    }
                    let in_time = !limit.fits_a_word() || at < HORIZON;
                    let usual = in_time && cost.get() <= limit.burst() && owed <= SECOND;
                    assert!(fast_verdict.is_some() || !usual, "the fast path applies: {context}");
                    if limit.fits_a_word() {
                        let debt = limit.owed_now(&[word], &now);
                        let report = limit.report_owed(debt, limit.available(debt), limit.max_owed_for(cost));
                        let fast_report = limit.report_word(word, &now, cost);
                        assert!(fast_report.is_none_or(|fast_report| fast_report == report), "{context}");
                        assert!(fast_report.is_some() || !usual, "the fast path of the report applies: {context}");
                    }
                }
            }
        }
    }
}

#[test]
fn new_key_has_the_initial_amount() {
    let limit = bucket("1/s", 5).initial(2).unwrap();
    let mut state = [0];
    limit.init(&mut state, &Now::at(SECOND));
    assert_eq!(limit.report(&state, &Now::at(SECOND), Cost::ONE).remaining, 2);
    assert_eq!(limit.report(&state, &Now::at(4 * SECOND), Cost::ONE).remaining, 5);
    assert!(bucket("1/s", 5).initial(5).is_ok());
    assert_eq!(
        bucket("1/s", 5).initial(6).unwrap_err().to_string(),
        "the initial amount is 6; it must be between 0 and 5"
    );
}

#[test]
fn debt_is_taken_up_to_the_maximum_and_paid_back() {
    let limit = bucket("1/s", 5).max_debt(3).unwrap();
    let mut state = [0];
    limit.init(&mut state, &Now::at(0));
    let mut charge = |cost| limit.decide(&mut state, &Now::at(0), Ask::Regardless(Cost::new(cost))).outcome();
    assert_eq!(charge(9), Outcome::Deny(Retry::Never));
    assert_eq!(charge(8), Outcome::Allow);
    assert_eq!(charge(2), Outcome::Deny(Retry::After(Nanos::from_secs(2))));
    let report = limit.report(&state, &Now::at(0), Cost::ONE);
    assert_eq!((report.remaining, report.retry), (0, Retry::After(Nanos::from_secs(4))));
    assert_eq!(report.reset, Nanos::from_secs(8));
}

#[test]
fn largest_debt_gives_the_longest_wait() {
    let rate: Rate = "1/day".parse().unwrap();
    let longest = Rate::MAX_FILL_TIME.as_nanos() / rate.per().as_nanos();
    assert!(TokenBucket::new(rate, longest).is_ok());
    assert_eq!(TokenBucket::new(rate, longest + 1), Err(LimitError::FillTooLong { amount: longest + 1, max: longest }));
    let limit = TokenBucket::new(rate, 10).unwrap();
    assert!(limit.max_debt(longest - 10).is_ok());
    assert_eq!(limit.max_debt(longest - 9), Err(LimitError::FillTooLong { amount: longest - 9, max: longest - 10 }));
}

#[test]
fn refund_is_accepted_up_to_the_debt() {
    for rate in ["1/s", "7777/s"] {
        let limit = bucket(rate, 5);
        let mut state = [0; 2];
        limit.init(&mut state, &Now::at(0));
        let _ = limit.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::new(3)));
        assert_eq!(limit.refund(&mut state, &Now::at(0), Cost::ONE, None), Cost::ONE);
        assert_eq!(limit.report(&state, &Now::at(0), Cost::ONE).remaining, 3);
        assert_eq!(limit.refund(&mut state, &Now::at(1), Cost::MAX, None), Cost::new(2), "a partly owed token counts");
        assert!(limit.is_unused(&state, &Now::at(1)));
        assert_eq!(limit.refund(&mut state, &Now::at(1), Cost::ONE, None), Cost::ZERO);
    }
}

#[test]
fn other_parameters_keep_the_spent_tokens() {
    let (old, new) = (bucket("10/s", 10), bucket("7777/s", 20));
    let mut state = [0; 2];
    old.init(&mut state, &Now::at(SECOND));
    let _ = old.decide(&mut state, &Now::at(SECOND), Ask::Exactly(Cost::new(4)));
    new.convert(&old, &mut state, &Now::at(SECOND));
    assert_eq!(new.report(&state, &Now::at(SECOND), Cost::ONE).remaining, 16);
    let small = bucket("1/s", 1).max_debt(0).unwrap();
    small.convert(&new, &mut state, &Now::at(SECOND));
    assert_eq!(
        small.report(&state, &Now::at(SECOND), Cost::ONE).reset,
        Nanos::from_secs(1),
        "the debt is capped at the maximum"
    );
}

#[test]
fn clock_step_back_without_debt_locks_out_for_at_most_one_burst() {
    let limit = bucket("1/s", 5).max_debt(0).unwrap();
    let mut state = [0];
    limit.init(&mut state, &Now::at(1_000 * SECOND));
    let _ = limit.decide(&mut state, &Now::at(1_000 * SECOND), Ask::Exactly(Cost::ONE));
    let earlier = Now::at(10 * SECOND);
    let verdict = limit.decide(&mut state, &earlier, Ask::Exactly(Cost::ONE));
    assert_eq!(verdict.outcome(), Outcome::Deny(Retry::After(Nanos::SECOND)));
    assert!(limit.decide(&mut state, &Now::at(11 * SECOND), Ask::Exactly(Cost::ONE)).is_admitted());
    // A clock reading slightly older than the previous reading comes from another thread and is not a clock step.
    let mut state = [0];
    limit.init(&mut state, &Now::at(SECOND));
    let _ = limit.decide(&mut state, &Now::at(SECOND), Ask::Exactly(Cost::new(4)));
    assert!(limit.weigh(&state, &Now::at(SECOND - 1), Ask::Exactly(Cost::ONE)).taken() == Cost::ZERO);
    assert!(limit.weigh(&state, &Now::at(SECOND), Ask::Exactly(Cost::ONE)).is_admitted());
}

#[test]
fn spent_is_a_fraction_of_the_burst() {
    let limit = bucket("1/s", 4);
    let mut state = [0];
    limit.init(&mut state, &Now::at(0));
    assert_eq!(limit.spent(&state, &Now::at(0)), Spent::NOTHING);
    let _ = limit.decide(&mut state, &Now::at(0), Ask::Exactly(Cost::ONE));
    assert_eq!(limit.spent(&state, &Now::at(0)), Spent::of(1, 4));
    let _ = limit.decide(&mut state, &Now::at(0), Ask::UpTo(Cost::MAX));
    assert_eq!(limit.spent(&state, &Now::at(0)), Spent::ALL);
}

/// With a million ticks per nanosecond, an instant after 11 days needs more than 64 bits.
#[test]
fn instants_beyond_64_bits_are_exact() {
    let limit = TokenBucket::new("1000003/s".parse().unwrap(), 5).unwrap();
    assert_eq!(limit.words(), 2);
    let (mut state, at) = ([0; 2], 1_000_000_000_000_000);
    limit.init(&mut state, &Now::at(at));
    assert!(limit.decide(&mut state, &Now::at(at), Ask::Exactly(Cost::new(5))).is_admitted());
    let refused = Outcome::Deny(Retry::After(Nanos::from_nanos(1_000)));
    assert_eq!(limit.decide(&mut state, &Now::at(at), Ask::Exactly(Cost::ONE)).outcome(), refused);
    assert!(!limit.weigh(&state, &Now::at(at + 999), Ask::Exactly(Cost::ONE)).is_admitted());
    assert_eq!(limit.report(&state, &Now::at(at + 1_000), Cost::ONE).remaining, 1);
}

#[test]
fn default_debt_is_the_burst_or_the_most_that_refills_in_time() {
    let debt = |burst| TokenBucket::new("10/365day".parse().unwrap(), burst).unwrap().bucket_params().max_debt;
    assert_eq!([10, 700, 1_000, 1_462].map(debt), [10, 700, 462, 0]);
}

#[test]
fn clock_reading_that_is_a_second_old_is_not_a_clock_step() {
    let limit = TokenBucket::new("1/s".parse().unwrap(), 5).unwrap();
    let (mut state, second) = ([0], 1_000_000_000);
    assert!(limit.decide(&mut state, &Now::at(100 * second), Ask::Regardless(Cost::new(10))).is_admitted());
    let before = state;
    assert!(!limit.decide(&mut state, &Now::at(99 * second), Ask::UpTo(Cost::ONE)).is_admitted());
    assert_eq!(state, before);
    assert_eq!(limit.report(&state, &Now::at(99 * second), Cost::ONE).reset, Nanos::from_secs(11));
    let stepped = Now::at(99 * second - 1);
    assert_eq!(limit.report(&state, &stepped, Cost::ONE).reset, Nanos::from_secs(10));
    assert!(!limit.decide(&mut state, &stepped, Ask::UpTo(Cost::ONE)).is_admitted());
    assert_eq!(limit.report(&state, &stepped, Cost::ONE).reset, Nanos::from_secs(10));
    assert_ne!(state, before, "the debt is paid off from this instant on");
}

#[test]
fn refusal_from_a_word_has_the_wait_and_a_request_that_passes_is_not_refused() {
    let limit = bucket("10/s", 4);
    let (mut state, now) = ([0], Now::at(SECOND));
    assert!(limit.decide(&mut state, &now, Ask::Exactly(Cost::new(3))).is_admitted());
    let after = |millis| Some(Retry::After(Nanos::from_millis(millis)));
    let expected = [None, None, after(100), after(300), None];
    let costs = [0, 1, 2, 4, 5].map(Cost::new);
    assert_eq!(costs.map(|cost| limit.try_refuse_from_word(state[0], &now, cost)), expected);
    assert_eq!(costs.map(|cost| Limit::from(limit).try_refuse_from_word(state[0], &now, cost)), expected);
}

/// At this rate and debt, the last instant of a one-word state plus the largest debt is the largest word, which means
/// an instant that is never reached.
#[test]
fn report_of_an_instant_beyond_one_word_has_the_largest_debt() {
    let rate = Rate::new(7, Nanos::from_nanos(1)).unwrap();
    let limit = TokenBucket::new(rate, 1 << 60).unwrap().max_debt((1 << 60) - 1).unwrap();
    assert!(limit.fits_a_word());
    let report = limit.report(&[u64::MAX], &Now::at(HORIZON - 1), Cost::ONE);
    assert_eq!(report.reset, Nanos::from_nanos(((1u64 << 61) - 1).div_ceil(7)));
}
