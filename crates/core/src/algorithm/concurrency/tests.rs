use super::*;

const ASK_ONE: Ask = Ask::Exactly(Cost::ONE);

fn concurrency_limit(limit: u64, lease: u64) -> Concurrency {
    Concurrency::new(limit, Nanos::from_nanos(lease)).unwrap()
}

fn exactly(cost: u64) -> Ask {
    Ask::Exactly(Cost::new(cost))
}

/// Reference model: a list of leases. Every decision counts the unexpired leases.
struct LeaseModel {
    limit: Concurrency,
    leases: Vec<HeldLease>,
}

#[derive(Clone, Copy, Debug)]
struct HeldLease {
    stamp: Stamp,
    ends: u64,
    weight: u64,
}

impl LeaseModel {
    fn weight_held(&self, at: u64) -> u64 {
        self.leases.iter().filter(|lease| lease.ends > at).map(|lease| lease.weight).sum()
    }

    fn ask(&self, at: u64, ask: Ask) -> (Outcome, u64) {
        let available = self.limit.limit.saturating_sub(self.weight_held(at));
        let (cost, most) = match ask {
            Ask::Exactly(cost) => (cost.get(), self.limit.limit),
            Ask::UpTo(Cost::ZERO) => return (Outcome::Allow, 0),
            Ask::UpTo(cost) => (cost.get().min(available.max(1)), self.limit.limit),
            Ask::Regardless(cost) => (cost.get(), self.limit.slots()),
        };
        if cost > most {
            (Outcome::Deny(Retry::Never), 0)
        } else if self.weight_held(at) + cost > most {
            (Outcome::Deny(Retry::OnRelease), 0)
        } else {
            (Outcome::Allow, cost)
        }
    }

    fn find(&mut self, at: u64, stamp: Stamp) -> Option<&mut HeldLease> {
        self.leases.iter_mut().find(|lease| lease.stamp == stamp && lease.ends > at && lease.weight > 0)
    }
}

fn next_random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

fn assert_sound(limit: &Concurrency, state: &[u64], what: &str) {
    LeaseList::load(state, limit.slots()).assert_sound(state, what);
}

#[test]
fn decisions_match_the_reference_model() {
    let limits = [
        concurrency_limit(1, 1),
        concurrency_limit(1, 10),
        concurrency_limit(4, 10),
        concurrency_limit(5, 30).max_debt(3).unwrap(),
        concurrency_limit(9, 3),
        concurrency_limit(20, 40),
        concurrency_limit(1024, 2000),
    ];
    for (nth, limit) in limits.into_iter().enumerate() {
        let (mut seed, mut at) = (nth as u64, 0);
        let mut list = LeaseModel { limit, leases: Vec::new() };
        let mut state = vec![u64::MAX; limit.words()];
        let state = state.as_mut_slice();
        limit.init(state, &Now::at(0));
        for step in 0..20_000 {
            at += next_random(&mut seed, 5).saturating_sub(1);
            let (now, cost) = (Now::at(at), next_random(&mut seed, limit.slots() + 3));
            let what = format!("step {step} at {at}: cost {cost} on {limit:?}");
            // Picks an earlier stamp at random, usually a recent one.
            let ago = next_random(&mut seed, 30);
            let known = list.leases.iter().rev().nth(ago as usize).map(|lease| lease.stamp);
            match (next_random(&mut seed, 8), known) {
                (0, Some(stamp)) => {
                    let expected = list.find(at, stamp).map_or(0, |lease| core::mem::take(&mut lease.weight));
                    assert_eq!(limit.release(state, &now, stamp).get(), expected, "release, {what}");
                }
                (1, Some(stamp)) => {
                    let accepted = limit.refund(state, &now, Cost::new(cost), Some(stamp));
                    let expected = list.find(at, stamp).map_or(0, |lease| {
                        let given = cost.min(lease.weight);
                        lease.weight -= given;
                        given
                    });
                    assert_eq!(accepted.get(), expected, "refund, {what}");
                }
                (2, Some(stamp)) => {
                    let found = list.find(at, stamp);
                    assert_eq!(limit.renew(state, &now, stamp), found.is_some(), "renew, {what}");
                    if let Some(lease) = found {
                        lease.ends = at + limit.lease.as_nanos();
                    }
                }
                (kind, _) => {
                    let cost = Cost::new(cost);
                    let ask = match kind {
                        0..6 => exactly(cost.get().min(3)),
                        6 => Ask::UpTo(cost),
                        _ => Ask::Regardless(cost),
                    };
                    let before = state.to_vec();
                    let verdict = limit.decide(state, &now, ask);
                    let (outcome, taken) = list.ask(at, ask);
                    assert_eq!((verdict.outcome(), verdict.taken().get()), (outcome, taken), "{ask:?}, {what}");
                    if taken > 0 {
                        let (stamp, ends) = (verdict.stamp(), at + limit.lease.as_nanos());
                        assert!(list.leases.last().is_none_or(|last| last.stamp.to_bits() < stamp.to_bits()), "{what}");
                        list.leases.push(HeldLease { stamp, ends, weight: taken });
                    } else {
                        assert_eq!(state, before, "a refusal changed the state, {what}");
                    }
                }
            }
            assert_sound(&limit, state, &what);
            let (held, report) = (list.weight_held(at), limit.report(state, &now, Cost::new(cost)));
            let last = list.leases.iter().filter(|lease| lease.weight > 0).map(|lease| lease.ends).max();
            assert_eq!(report.remaining, limit.limit.saturating_sub(held), "{what}");
            assert_eq!(report.reset.as_nanos(), last.map_or(0, |last| last.saturating_sub(at)), "{what}");
            assert_eq!(limit.is_unused(state, &now), held == 0, "{what}");
            let passes = limit.weigh(state, &now, exactly(cost)).outcome();
            let retry = if let Outcome::Deny(retry) = passes { retry } else { Retry::NOW };
            assert_eq!(report.retry, retry, "{what}");
        }
    }
}

#[test]
fn release_after_expiry_frees_no_other_slot() {
    let limit = concurrency_limit(3, 30);
    let mut state = vec![0; limit.words()];
    let state = state.as_mut_slice();
    let take = |state: &mut [u64], at, cost| limit.decide(state, &Now::at(at), exactly(cost));
    let a = take(state, 0, 2).stamp();
    let b = take(state, 10, 1).stamp();
    assert_eq!(take(state, 15, 1).outcome(), Outcome::Deny(Retry::OnRelease));
    assert!(limit.renew(state, &Now::at(20), a));
    assert!(!take(state, 39, 1).is_admitted());
    let c = take(state, 40, 1);
    assert!(c.is_admitted());
    assert_eq!(limit.release(state, &Now::at(45), b), Cost::ZERO);
    assert!(!limit.renew(state, &Now::at(45), b));
    assert_eq!(limit.release(state, &Now::at(45), c.stamp()), Cost::ONE);
    assert_eq!(limit.release(state, &Now::at(45), c.stamp()), Cost::ZERO, "a second release");
    assert_eq!(limit.release(state, &Now::at(49), a), Cost::new(2));
    assert!(limit.is_unused(state, &Now::at(49)));
}

#[test]
fn stamp_of_an_evicted_key_releases_nothing() {
    for limit in [concurrency_limit(1, 5_000), concurrency_limit(1000, 5_000)] {
        let mut state = vec![0; limit.words()];
        let state = state.as_mut_slice();
        let stale = limit.decide(state, &Now::at(0), ASK_ONE).stamp();
        limit.init(state, &Now::at(5_000));
        assert!(limit.decide(state, &Now::at(5_000), ASK_ONE).is_admitted());
        assert_eq!(limit.release(state, &Now::at(5_001), stale), Cost::ZERO, "{limit:?}");
    }
}

#[test]
fn refusal_spends_nothing_and_a_cost_of_zero_takes_no_lease() {
    let limit = concurrency_limit(3, 30).max_debt(1).unwrap();
    let mut state = vec![0; limit.words()];
    let state = state.as_mut_slice();
    let _ = limit.decide(state, &Now::at(0), exactly(2));
    let cases = [
        (exactly(2), Outcome::Deny(Retry::OnRelease)),
        (exactly(4), Outcome::Deny(Retry::Never)),
        (Ask::Exactly(Cost::MAX), Outcome::Deny(Retry::Never)),
        (Ask::Regardless(Cost::new(3)), Outcome::Deny(Retry::OnRelease)),
        (Ask::Regardless(Cost::new(5)), Outcome::Deny(Retry::Never)),
        (exactly(0), Outcome::Allow),
        (Ask::UpTo(Cost::ZERO), Outcome::Allow),
    ];
    for (ask, outcome) in cases {
        let before = state.to_vec();
        assert_eq!(limit.decide(state, &Now::at(1), ask).outcome(), outcome, "{ask:?}");
        assert_eq!(state, before, "{ask:?}");
    }
    assert_eq!(
        limit.refund(state, &Now::at(1), Cost::MAX, None),
        Cost::ZERO,
        "a refund without a stamp identifies no lease"
    );
    assert_eq!(limit.refund(state, &Now::at(1), Cost::MAX, Some(Stamp::NONE)), Cost::ZERO);
}

#[test]
fn default_debt_is_the_limit_or_the_remaining_slots() {
    let debt = |limit| match Concurrency::new(limit, Nanos::SECOND).unwrap().params() {
        Params::Concurrency { max_debt, .. } => max_debt,
        terms => panic!("{terms:?}"),
    };
    assert_eq!([1, 10, 512, 1_000, 1_024].map(debt), [1, 10, 512, 24, 0]);
}

#[test]
fn new_parameters_keep_leases_and_their_stamps() {
    let old = concurrency_limit(40, 100);
    for new in [
        concurrency_limit(50, 100),
        concurrency_limit(40, 100),
        concurrency_limit(39, 100),
        concurrency_limit(12, 100),
        concurrency_limit(10, 100),
        concurrency_limit(12, 7),
    ] {
        let mut state = vec![0; old.words().max(new.words())];
        let state = state.as_mut_slice();
        // Of forty leases, every fourth remains. The slots of the remaining leases are scattered, and a renewed lease
        // is out of order.
        let stamps: Vec<Stamp> = (0..40).map(|at| old.decide(state, &Now::at(at), ASK_ONE).stamp()).collect();
        for (nth, stamp) in stamps.iter().enumerate() {
            if nth % 4 != 0 {
                old.release(state, &Now::at(40), *stamp);
            }
        }
        assert!(old.renew(state, &Now::at(45), stamps[4]));
        new.convert(&old, state, &Now::at(50));
        assert_sound(&new, state, "converted");
        assert!(Cells::get(state, 0) != 0);
        let kept = 10;
        let report = new.report(state, &Now::at(50), Cost::ONE);
        assert_eq!(report.remaining, new.limit - kept, "{new:?}");
        assert_eq!(report.reset, Nanos::from_nanos(95).min(new.lease), "{new:?}");
        let given: u64 = stamps.iter().map(|stamp| new.release(state, &Now::at(51), *stamp).get()).sum();
        assert_eq!(given, kept, "{new:?}");
        assert!(new.is_unused(state, &Now::at(51)));
        assert!(new.decide(state, &Now::at(51), exactly(new.limit)).is_admitted());
        assert_sound(&new, state, "used again");
    }
}

#[test]
fn clock_step_back_grants_nothing_and_leases_expire_after_their_duration() {
    let (limit, second) = (concurrency_limit(2, 10), Nanos::SECOND.as_nanos());
    let mut state = vec![0; limit.words()];
    let state = state.as_mut_slice();
    let _ = limit.decide(state, &Now::at(5 * second), exactly(2));
    let mut behind = state.to_vec();
    assert!(!limit.decide(behind.as_mut_slice(), &Now::at(4 * second), ASK_ONE).is_admitted());
    assert_eq!(behind, state, "a clock reading that is a second old is accepted");
    assert!(!limit.decide(state, &Now::at(100), ASK_ONE).is_admitted());
    assert_eq!(limit.report(state, &Now::at(100), Cost::ONE).reset, Nanos::from_nanos(10));
    assert!(!limit.decide(state, &Now::at(109), ASK_ONE).is_admitted());
    assert!(limit.decide(state, &Now::at(110), ASK_ONE).is_admitted());
}

#[test]
fn lease_beyond_the_clock_range_never_expires() {
    let limit = concurrency_limit(1, 10);
    let mut state = [0; 5];
    let stamp = limit.decide(&mut state, &Now::at(u64::MAX - 5), ASK_ONE).stamp();
    assert!(!limit.decide(&mut state, &Now::at(u64::MAX), ASK_ONE).is_admitted());
    assert_eq!(limit.release(&mut state, &Now::at(u64::MAX), stamp), Cost::ONE);
}

#[test]
fn invalid_parameters_are_errors_with_the_valid_range() {
    let check = |made: Result<Concurrency, LimitError>, expected: &str| {
        assert_eq!(made.unwrap_err().to_string(), expected);
    };
    let what = "the concurrency limit";
    check(Concurrency::new(0, Nanos::SECOND), &format!("{what} is 0; it must be between 1 and 1024"));
    check(Concurrency::new(1025, Nanos::SECOND), &format!("{what} is 1025; it must be between 1 and 1024"));
    check(Concurrency::new(1, Nanos::ZERO), "the length of a lease is 0; it must be at least 1");
    let long = "the period of 18446744073.709551615s is too long; at most 3153600000s is valid";
    check(Concurrency::new(1, Nanos::MAX), long);
    let debt = "the maximum debt of a concurrency limit is 1001; it must be between 0 and 1000";
    check(concurrency_limit(24, 1).max_debt(1001), debt);
    assert_eq!(concurrency_limit(1024, 1).words(), 2 + 3 * 1024);
    assert_eq!(concurrency_limit(24, 1).max_debt(1000).unwrap().words(), 2 + 3 * 1024);
}

#[test]
fn no_words_time_or_cost_cause_a_panic() {
    let long = Concurrency::new(3, crate::Rate::MAX_PERIOD).unwrap();
    let limits = [concurrency_limit(1, 1), concurrency_limit(3, 10).max_debt(4).unwrap(), long];
    let extremes = [0, 1, 2, 1 << 12 | 1, 2 << 24 | 1 << 12 | 2, u64::MAX / 2, u64::MAX - 1, u64::MAX];
    let mut seed = 1;
    for _ in 0..20_000 {
        let mut any = || {
            let extreme = extremes[next_random(&mut seed, 8) as usize];
            if next_random(&mut seed, 3) == 0 {
                next_random(&mut seed, u64::MAX) << next_random(&mut seed, 34)
            } else {
                extreme
            }
        };
        let mut state: [u64; 23] = core::array::from_fn(|_| any());
        let (now, later, cost) = (Now::at(any()), Now::at(any()), Cost::new(any()));
        let (limit, old) = (limits[any() as usize % 3], limits[any() as usize % 3]);
        for ask in [Ask::Exactly(cost), Ask::UpTo(cost), Ask::Regardless(cost)] {
            let verdict = limit.decide(&mut state, &now, ask);
            assert!(verdict.taken() <= cost && verdict.outcome() != Outcome::Deny(Retry::NOW));
            assert!(limit.report(&state, &later, cost).remaining <= limit.limit());
        }
        limit.renew(&mut state, &later, Stamp::from_bits(any()));
        assert!(limit.refund(&mut state, &later, cost, Some(Stamp::from_bits(any()))) <= cost);
        assert!(limit.refund(&mut state, &later, cost, None) <= cost);
        limit.convert(&old, &mut state, &now);
        limit.spent(&state, &later);
        limit.release(&mut state, &now, Stamp::from_bits(any()));
    }
}

#[test]
fn lease_that_never_expires_stays_unexpired_on_another_clock() {
    let limit = concurrency_limit(3, 10);
    let mut state = vec![0; limit.words()];
    let last = u64::MAX - 5;
    assert!(limit.decide(state.as_mut_slice(), &Now::at(last), exactly(2)).is_admitted());
    limit.rebase(state.as_mut_slice(), Time::from_nanos(last), Time::from_nanos(1_000));
    assert_eq!(limit.used(state.as_slice(), &Now::at(2_000)), Tokens::whole(2));
}

/// State words that count their reads.
struct ReadCountingState {
    words: Vec<u64>,
    reads: core::cell::Cell<usize>,
}

impl Cells for ReadCountingState {
    fn get(&self, index: usize) -> u64 {
        self.reads.set(self.reads.get() + 1);
        self.words[index]
    }
}

impl CellsMut for ReadCountingState {
    fn set(&mut self, index: usize, word: u64) {
        self.words[index] = word;
    }
}

#[test]
fn decisions_renewals_and_releases_read_a_constant_number_of_words() {
    let reads = |count: u64| {
        let limit = concurrency_limit(count, 100_000);
        let mut state = ReadCountingState { words: vec![0; limit.words()], reads: 0.into() };
        let stamps: Vec<_> =
            (0..count).map(|nth| limit.decide(&mut state, &Now::at(7 * nth), ASK_ONE).stamp()).collect();
        let now = Now::at(7 * count);
        state.reads.set(0);
        let renewals = stamps.iter().map(|stamp| {
            assert!(limit.renew(&mut state, &now, *stamp));
            state.reads.replace(0)
        });
        let renewal = renewals.max();
        assert_eq!(limit.release(&mut state, &now, stamps[2]), Cost::ONE);
        let release = state.reads.replace(0);
        // Leases keep their slots if only the duration changes.
        let changed = concurrency_limit(count, 200_000);
        changed.convert(&limit, &mut state, &now);
        state.reads.set(0);
        assert_eq!(changed.release(&mut state, &now, stamps[1]), Cost::ONE);
        let changed = state.reads.replace(0);
        // Only the expired leases whose weight the request needs are read.
        assert!(limit.weigh(&state, &Now::at(300_000), exactly(3)).is_admitted());
        (renewal, release, changed, state.reads.get())
    };
    assert_eq!([5, 64, 300].map(reads), [reads(10); 3]);
}

#[test]
fn lease_of_a_thread_with_an_earlier_clock_reading_expires_first() {
    let limit = concurrency_limit(2, 10);
    let mut state = vec![0; limit.words()];
    for at in [100, 95] {
        assert!(limit.decide(state.as_mut_slice(), &Now::at(at), ASK_ONE).is_admitted());
    }
    assert_sound(&limit, &state, "the second lease expires first");
    let used = |at| limit.used(state.as_slice(), &Now::at(at)).ceil();
    assert_eq!([104, 105, 109, 110].map(used), [2, 1, 1, 0]);
}

/// A forgotten key that is used again 1024 ns later must get new lease numbers.
#[test]
fn lease_number_is_less_than_1024_ahead_of_the_clock() {
    let limit = concurrency_limit(512, 10);
    for at in (0..3_000).chain([1 << 40]) {
        let stamp = limit.weigh(vec![0; limit.words()].as_slice(), &Now::at(at), ASK_ONE).stamp();
        let number = stamp.to_bits() ^ leases::LEASE_NUMBER_BIT;
        assert!((at..at + 1_024).contains(&number), "number {number} at {at}");
    }
}

#[test]
fn leases_keep_their_slots_if_limit_and_debt_have_the_same_sum() {
    let old = concurrency_limit(2, 30).max_debt(2).unwrap();
    let new = concurrency_limit(3, 30).max_debt(1).unwrap();
    let mut state = vec![0; old.words()];
    let state = state.as_mut_slice();
    let [first, _] = [0, 1].map(|at| old.decide(state, &Now::at(at), ASK_ONE).stamp());
    assert_eq!(old.release(state, &Now::at(2), first), Cost::ONE, "the first slot is free");
    let before = state.to_vec();
    new.convert(&old, state, &Now::at(2));
    assert_eq!(state, before);
}

/// Lease numbers must differ from the stamps of other algorithms, which are times before the year 2262.
#[test]
fn highest_bit_of_a_lease_number_is_set_even_after_2262() {
    let limit = concurrency_limit(2, 10);
    for at in [0, 1 << 40, leases::LEASE_NUMBER_BIT, leases::LEASE_NUMBER_BIT + 5] {
        let stamp = limit.weigh(vec![0; limit.words()].as_slice(), &Now::at(at), ASK_ONE).stamp();
        assert!(stamp.to_bits() >= leases::LEASE_NUMBER_BIT, "{stamp:?} at {at}");
    }
}
