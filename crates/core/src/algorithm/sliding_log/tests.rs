use super::*;

const ASK_ONE: Ask = Ask::Exactly(Cost::ONE);

fn log(limit: u64, length: u64) -> SlidingLog {
    SlidingLog::new(limit, Nanos::from_nanos(length)).unwrap().max_debt(0).unwrap()
}

fn exactly(cost: u64) -> Ask {
    Ask::Exactly(Cost::new(cost))
}

/// Reference model: counts the entries of a list for every decision, and tries every nanosecond to find a wait.
struct LogModel {
    limit: SlidingLog,
    entries: Vec<u64>,
}

impl LogModel {
    fn units_inside(&self, at: u64) -> u64 {
        self.entries.iter().filter(|&entry| entry + self.limit.length.as_nanos() > at).count() as u64
    }

    fn passes(&self, at: u64, ask: Ask) -> bool {
        let (ceiling, gap) = match ask {
            Ask::Exactly(_) | Ask::UpTo(_) => (self.limit.limit, self.limit.minimum_gap.as_nanos()),
            Ask::Regardless(_) => (self.limit.max_entries(), 0),
        };
        let apart = self.entries.last().is_none_or(|last| at - last >= gap);
        let cost = ask.cost().get();
        self.units_inside(at) + cost <= ceiling && (apart || cost == 0)
    }

    fn wait(&self, at: u64, ask: Ask) -> u64 {
        (0..).find(|wait| self.passes(at + wait, ask)).unwrap()
    }

    fn record(&mut self, at: u64, units: u64) {
        self.entries.extend((0..units).map(|_| at));
        self.entries.drain(..self.entries.len().saturating_sub(self.limit.max_entries() as usize));
    }

    fn ask(&mut self, at: u64, ask: Ask) -> (Outcome, Cost) {
        let (cost, most) = match ask {
            Ask::Exactly(cost) => (cost.get(), self.limit.limit),
            Ask::UpTo(Cost::ZERO) => return (Outcome::Allow, Cost::ZERO),
            Ask::UpTo(cost) => {
                let fits = self.limit.limit.saturating_sub(self.units_inside(at)).max(1);
                (cost.get().min(fits), self.limit.limit)
            }
            Ask::Regardless(cost) => (cost.get(), self.limit.max_entries()),
        };
        if cost > most {
            return (Outcome::Deny(Retry::Never), Cost::ZERO);
        }
        // An `UpTo` request retries with one unit.
        let (ask, again) = match ask {
            Ask::Regardless(_) => (ask, ask),
            Ask::Exactly(_) => (exactly(cost), exactly(cost)),
            Ask::UpTo(_) => (exactly(cost), exactly(1)),
        };
        let passes = self.passes(at, ask);
        if passes || self.limit.refused_attempts_count {
            self.record(at, cost);
        }
        if passes {
            return (Outcome::Allow, Cost::new(cost));
        }
        (Outcome::Deny(Retry::After(Nanos::from_nanos(self.wait(at, again)))), Cost::ZERO)
    }

    fn refund(&mut self, at: u64, cost: u64, taken_at: Option<u64>) -> u64 {
        let (limit, before) = (self.limit, self.entries.len());
        for _ in 0..cost {
            let inside = |entry: u64| entry + limit.length.as_nanos() > at;
            let found = self.entries.iter().position(|&e| inside(e) && taken_at.is_none_or(|taken| taken == e));
            let Some(found) = found else { break };
            self.entries.remove(found);
        }
        (before - self.entries.len()) as u64
    }
}

fn next_random(seed: &mut u64, below: u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    (*seed >> 33) % below
}

#[test]
fn decisions_match_the_reference_model() {
    let gap = |log: SlidingLog, gap| log.minimum_gap(Nanos::from_nanos(gap)).unwrap();
    let limits = [
        log(1, 1),
        log(1, 10),
        log(4, 10),
        log(3, 7).max_debt(4).unwrap(),
        gap(log(5, 12), 3),
        gap(log(2, 5), 11),
        log(4, 10).count_refused(),
        gap(log(4, 9), 2).count_refused().max_debt(3).unwrap(),
        gap(log(2, 3), 7).count_refused(),
    ];
    for (nth, limit) in limits.into_iter().enumerate() {
        let (mut seed, mut at) = (nth as u64, 0);
        let mut list = LogModel { limit, entries: Vec::new() };
        let mut state = vec![0; limit.words()];
        let state = state.as_mut_slice();
        limit.init(state, &Now::at(0));
        for step in 0..20_000 {
            at += next_random(&mut seed, 5).saturating_sub(1);
            let (now, cost) = (Now::at(at), next_random(&mut seed, limit.max_entries() + 3));
            let what = format!("step {step} at {at}: cost {cost} on {limit:?}, entries {:?}", list.entries);
            let ask = match next_random(&mut seed, 6) {
                0..3 => exactly(cost.min(2)),
                3 => Ask::UpTo(Cost::new(cost)),
                4 => Ask::Regardless(Cost::new(cost)),
                _ => {
                    let taken_at = (cost % 2 == 0).then(|| at.saturating_sub(next_random(&mut seed, 5)));
                    let stamp = taken_at.map(|at| stamp_of(Time::from_nanos(at)));
                    let accepted = limit.refund(state, &now, Cost::new(cost), stamp);
                    assert_eq!(accepted.get(), list.refund(at, cost, taken_at), "refund, {what}");
                    continue;
                }
            };
            let verdict = limit.decide(state, &now, ask);
            assert_eq!((verdict.outcome(), verdict.taken()), list.ask(at, ask), "{ask:?}, {what}");
            let report = limit.report(state, &now, Cost::new(cost.min(limit.limit)));
            assert_eq!(report.remaining, limit.limit.saturating_sub(list.units_inside(at)), "{what}");
            let wait = list.wait(at, exactly(cost.min(limit.limit)));
            assert_eq!(report.retry, Retry::After(Nanos::from_nanos(wait)), "{what}");
            let reset = list
                .entries
                .last()
                .map_or(0, |last| (last + limit.length.max(limit.minimum_gap).as_nanos()).saturating_sub(at));
            assert_eq!(report.reset, Nanos::from_nanos(reset), "{what}");
            assert_eq!(limit.is_unused(state, &now), reset == 0, "{what}");
        }
    }
}

/// Calls of rolling-rate-limiter in its own tests: `limit` records the attempt, `wouldLimit` does not.
enum RollingLimiterCall {
    Limit,
    Would,
}
use RollingLimiterCall::{Limit, Would};

fn replay(limit: SlidingLog, steps: &[(u64, RollingLimiterCall, bool)]) {
    let mut state = vec![0; limit.words()];
    for (nth, (at, call, blocked)) in steps.iter().enumerate() {
        let verdict = match call {
            Limit => limit.decide(state.as_mut_slice(), &Now::at(*at), ASK_ONE),
            Would => limit.weigh(state.as_slice(), &Now::at(*at), ASK_ONE),
        };
        assert_eq!(!verdict.is_admitted(), *blocked, "step {nth} at {at} of {limit:?}");
    }
}

#[test]
fn rolling_rate_limiter_vectors_are_reproduced() {
    replay(log(2, 10).count_refused(), &[(0, Limit, false), (1, Limit, false), (9, Would, true), (10, Would, false)]);
    replay(
        log(3, 10).count_refused(),
        &[
            (0, Limit, false),
            (0, Limit, false),
            (0, Limit, false),
            (9, Limit, true),
            (9, Limit, true),
            (10, Limit, false),
            (10, Limit, true),
        ],
    );
    replay(
        log(4, 10).count_refused().minimum_gap(Nanos::from_nanos(2)).unwrap(),
        &[(0, Limit, false), (0, Limit, true), (1, Limit, true), (3, Limit, false), (3, Limit, true)],
    );
}

#[test]
fn rolling_rate_limiter_info_equals_the_report_after_the_attempt() {
    let limit = log(3, 10).count_refused();
    let mut state = [0; 4];
    let info = |state: &mut [u64; 4], at| {
        let verdict = limit.decide(state, &Now::at(at), ASK_ONE);
        let report = limit.report(state, &Now::at(at), Cost::ONE);
        if let Outcome::Deny(retry) = verdict.outcome() {
            assert_eq!(retry, report.retry, "the refusal and the report differ");
        }
        let Retry::After(wait) = report.retry else { panic!("a cost of one passes eventually") };
        (!verdict.is_admitted(), report.remaining, wait.as_nanos())
    };
    for (at, expected) in [(0, (false, 2, 0)), (4, (false, 1, 0)), (5, (false, 0, 5)), (8, (true, 0, 6))] {
        assert_eq!(info(&mut state, at), expected, "at {at}");
    }
    assert_eq!(info(&mut state.clone(), 11), (true, 0, 4));
    assert_eq!(info(&mut state.clone(), 17), (false, 1, 0));
}

#[test]
fn retry_succeeds_after_the_wait_and_not_a_nanosecond_earlier() {
    let year = 31_536_000_000_000_000;
    for (limit, at) in [(log(3, 10), 8), (log(3, year), year - 1), (log(3, 10).count_refused(), u64::MAX - 50)] {
        let mut state = [0; 4];
        let _ = limit.decide(&mut state, &Now::at(at - 3), exactly(3));
        for cost in 1..=3 {
            let mut state = state;
            let Outcome::Deny(Retry::After(wait)) = limit.decide(&mut state, &Now::at(at), exactly(cost)).outcome()
            else {
                panic!("the window is full")
            };
            let later = at + wait.as_nanos();
            assert!(limit.weigh(&state, &Now::at(later), exactly(cost)).is_admitted(), "{limit:?} cost {cost}");
            assert!(!limit.weigh(&state, &Now::at(later - 1), exactly(cost)).is_admitted(), "{limit:?} cost {cost}");
        }
    }
}

#[test]
fn refusal_spends_nothing() {
    let limit = log(3, 10).max_debt(1).unwrap();
    let mut state = [0; 5];
    let _ = limit.decide(&mut state, &Now::at(5), exactly(2));
    for ask in [exactly(2), exactly(4), exactly(u64::MAX), Ask::Regardless(Cost::new(3)), Ask::Regardless(Cost::MAX)] {
        let before = state;
        assert!(!limit.decide(&mut state, &Now::at(6), ask).is_admitted());
        assert_eq!(state, before, "{ask:?}");
    }
}

#[test]
fn counted_refusals_block_a_retrying_caller_but_not_a_waiting_caller() {
    let limit = log(2, 10).count_refused();
    let mut state = [0; 3];
    let _ = limit.decide(&mut state, &Now::at(0), exactly(2));
    for at in (4..1_000).step_by(4) {
        assert!(!limit.decide(&mut state, &Now::at(at), ASK_ONE).is_admitted(), "at {at}");
    }
    // The last two attempts were at 992 and 996.
    let retry = limit.report(&state, &Now::at(996), Cost::ONE).retry;
    assert_eq!(retry, Retry::After(Nanos::from_nanos(6)));
    assert!(limit.weigh(&state, &Now::at(1_002), ASK_ONE).is_admitted());
    // A cost that can never pass is not recorded.
    let before = state;
    let verdict = limit.decide(&mut state, &Now::at(1_002), exactly(3));
    assert_eq!((verdict.outcome(), state), (Outcome::Deny(Retry::Never), before));
}

#[test]
fn refund_by_stamp_removes_exactly_its_charge() {
    let limit = log(6, 10);
    let mut state = [0; 7];
    let stamps = [0, 3, 5].map(|at| limit.decide(&mut state, &Now::at(at), exactly(2)).stamp());
    assert_eq!(limit.refund(&mut state, &Now::at(6), Cost::MAX, Some(stamps[1])), Cost::new(2));
    assert_eq!(limit.refund(&mut state, &Now::at(6), Cost::MAX, Some(stamps[1])), Cost::ZERO);
    // The entries from 0 and 5 remain; the entries from 0 leave first.
    let report = limit.report(&state, &Now::at(6), Cost::new(3));
    assert_eq!((report.remaining, report.retry), (2, Retry::After(Nanos::from_nanos(4))));
    assert_eq!(limit.refund(&mut state, &Now::at(10), Cost::ONE, Some(stamps[0])), Cost::ZERO, "it has left");
    assert_eq!(limit.refund(&mut state, &Now::at(10), Cost::MAX, Some(Stamp::NONE)), Cost::ZERO);
    assert_eq!(limit.refund(&mut state, &Now::at(10), Cost::MAX, None), Cost::new(2));
    assert!(limit.is_unused(&state, &Now::at(10)));
}

#[test]
fn new_parameters_keep_the_spent_amount() {
    let convert = |old: SlidingLog, new: SlidingLog, at| {
        let mut state = vec![0; old.words().max(new.words())];
        for taken_at in [0, 4, 5, 8] {
            let _ = old.decide(state.as_mut_slice(), &Now::at(taken_at), ASK_ONE);
        }
        new.convert(&old, state.as_mut_slice(), &Now::at(at));
        let report = new.report(state.as_slice(), &Now::at(at), Cost::ONE);
        (report.remaining, report.retry, report.reset.as_nanos())
    };
    let after = |wait| Retry::After(Nanos::from_nanos(wait));
    assert_eq!(convert(log(4, 10), log(4, 10), 9), (0, after(1), 9));
    assert_eq!(convert(log(4, 10), log(9, 10), 9), (5, Retry::NOW, 9));
    assert_eq!(convert(log(4, 10), log(4, 100), 12), (1, Retry::NOW, 96), "the entry from 0 had left");
    assert_eq!(convert(log(4, 10), log(4, 5), 9), (0, after(1), 4), "all were inside, so all count a little longer");
    let gap = log(4, 2).minimum_gap(Nanos::from_nanos(9)).unwrap();
    assert_eq!(convert(gap, gap, 8), (4, after(1), 1), "only the entry from 0 remains, kept for the gap");
}

#[test]
fn first_request_of_a_new_key_passes_despite_a_gap() {
    let limit = log(3, 10).initial(1).unwrap().minimum_gap(Nanos::from_nanos(4)).unwrap();
    let mut state = [u64::MAX; 4];
    limit.init(&mut state, &Now::at(100));
    assert!(limit.weigh(&state, &Now::at(100), ASK_ONE).is_admitted());
    assert_eq!(limit.report(&state, &Now::at(100), Cost::ONE).reset, Nanos::from_nanos(10));
    let first = limit.decide(&mut state, &Now::at(101), ASK_ONE);
    assert!(first.is_admitted() && !limit.weigh(&state, &Now::at(102), ASK_ONE).is_admitted());
    assert_eq!(limit.refund(&mut state, &Now::at(102), Cost::ONE, Some(first.stamp())), Cost::ONE);
    assert!(limit.decide(&mut state, &Now::at(102), ASK_ONE).is_admitted(), "no gap after a refunded request");
    assert!(!limit.weigh(&state, &Now::at(105), ASK_ONE).is_admitted(), "a gap of 4 from 102");
    assert_eq!(limit.report(&state, &Now::at(109), Cost::ONE).remaining, 0);
    assert_eq!(limit.report(&state, &Now::at(110), Cost::ONE).remaining, 2, "the withheld amount is available again");
}

#[test]
fn default_debt_is_the_limit_or_the_remaining_entries() {
    let debt = |limit| match SlidingLog::new(limit, Nanos::SECOND).unwrap().params() {
        Params::SlidingLog { window, .. } => window.max_debt,
        terms => panic!("{terms:?}"),
    };
    assert_eq!([1, 10, 512, 1_000, 1_024].map(debt), [1, 10, 512, 24, 0]);
}

#[test]
fn initially_withheld_amount_is_available_after_one_window() {
    let limit = log(3, 10).initial(1).unwrap();
    let mut state = [u64::MAX; 4];
    limit.init(&mut state, &Now::at(100));
    assert_eq!(limit.report(&state, &Now::at(109), Cost::ONE).remaining, 1);
    assert_eq!(limit.report(&state, &Now::at(110), Cost::ONE).remaining, 3);
}

#[test]
fn clock_step_back_grants_nothing_and_locks_out_for_one_window() {
    let (limit, second) = (log(2, 10), Nanos::SECOND.as_nanos());
    let retry = |state: &[u64; 3], at| limit.report(state, &Now::at(at), Cost::ONE).retry;
    let mut state = [0; 3];
    let _ = limit.decide(&mut state, &Now::at(5 * second), exactly(2));
    // A clock reading that is a second old is not a clock step, and the wait is counted from that reading.
    assert_eq!(retry(&state, 4 * second), Retry::After(Nanos::from_nanos(second + 10)));
    let before = state;
    assert!(!limit.decide(&mut state, &Now::at(4 * second), ASK_ONE).is_admitted());
    assert_eq!(state, before);
    // A reading that is one nanosecond older is a clock step. After the first refusal the entry expires as usual.
    let stepped = 4 * second - 1;
    assert_eq!(retry(&state, stepped), Retry::After(Nanos::from_nanos(10)));
    assert!(!limit.decide(&mut state, &Now::at(stepped), ASK_ONE).is_admitted());
    assert!(!limit.weigh(&state, &Now::at(stepped + 9), ASK_ONE).is_admitted());
    assert!(limit.decide(&mut state, &Now::at(stepped + 10), ASK_ONE).is_admitted());
}

#[test]
fn entry_with_an_earlier_clock_reading_gets_the_time_of_the_newest() {
    let limit = log(2, 10);
    let mut state = [0; 3];
    let stamps = [100, 95].map(|at| limit.decide(&mut state, &Now::at(at), ASK_ONE).stamp());
    assert_eq!(stamps[0], stamps[1]);
    assert_eq!(limit.report(&state, &Now::at(109), Cost::ONE).remaining, 0);
    assert_eq!(limit.report(&state, &Now::at(110), Cost::ONE).remaining, 2);
}

#[test]
fn invalid_parameters_are_errors_with_the_valid_range() {
    let second = Nanos::SECOND;
    let check = |made: Result<SlidingLog, LimitError>, expected: &str| {
        assert_eq!(made.unwrap_err().to_string(), expected);
    };
    let what = "the limit of a sliding log (for more, use slices or a window)";
    check(SlidingLog::new(0, second), &format!("{what} is 0; it must be between 1 and 1024"));
    check(SlidingLog::new(1025, second), &format!("{what} is 1025; it must be between 1 and 1024"));
    check(SlidingLog::new(1, Nanos::ZERO), "the length of the window is 0; it must be at least 1");
    let long = "the period of 18446744073.709551615s is too long; at most 3153600000s is valid";
    check(SlidingLog::new(1, Nanos::MAX), long);
    check(log(1, 1).minimum_gap(Nanos::MAX), long);
    check(log(24, 1).max_debt(1001), "the maximum debt of a sliding log is 1001; it must be between 0 and 1000");
    check(log(24, 1).initial(25), "the initial amount is 25; it must be between 0 and 24");
    assert!(log(24, 1).initial(24).is_ok() && log(1, 1).minimum_gap(Rate::MAX_PERIOD).is_ok());
    assert_eq!(log(1024, 1).words(), 1025);
    assert_eq!(log(24, 1).max_debt(1000).unwrap().words(), 1025);
}

#[test]
fn no_words_time_or_cost_cause_a_panic() {
    let gap = log(3, 10).minimum_gap(Rate::MAX_PERIOD).unwrap();
    let limits = [log(1, 1), log(3, Rate::MAX_PERIOD.as_nanos()).max_debt(4).unwrap(), gap.count_refused()];
    let extremes = [0, 1, 2, 5 << 32 | 3, u64::MAX / 2, u64::MAX - 1, u64::MAX];
    let mut seed = 1;
    for _ in 0..20_000 {
        let mut any = || {
            let extreme = extremes[next_random(&mut seed, 7) as usize];
            if next_random(&mut seed, 3) == 0 { next_random(&mut seed, u64::MAX) } else { extreme }
        };
        let mut state: [u64; 8] = core::array::from_fn(|_| any());
        let (now, later, cost) = (Now::at(any()), Now::at(any()), Cost::new(any()));
        let (limit, old) = (limits[any() as usize % 3], limits[any() as usize % 3]);
        for ask in [Ask::Exactly(cost), Ask::UpTo(cost), Ask::Regardless(cost)] {
            let verdict = limit.decide(&mut state, &now, ask);
            assert!(verdict.taken() <= cost && verdict.outcome() != Outcome::Deny(Retry::NOW));
            assert!(limit.report(&state, &later, cost).remaining <= limit.limit());
        }
        assert!(limit.refund(&mut state, &later, cost, Some(Stamp::from_bits(any()))) <= cost);
        assert!(limit.refund(&mut state, &later, cost, None) <= cost);
        limit.convert(&old, &mut state, &now);
        limit.spent(&state, &later);
    }
}

#[test]
fn charges_at_the_first_two_instants_of_the_clock_are_refunded_separately() {
    let limit = log(2, 10);
    let mut state = [0; 3];
    let [first, second] = [0, 1].map(|at| limit.decide(&mut state, &Now::at(at), ASK_ONE).stamp());
    let mut refund = |stamp| limit.refund(&mut state, &Now::at(1), Cost::new(2), Some(stamp)).get();
    assert_eq!(refund(Stamp::NONE), 0, "nothing was taken");
    assert_eq!([refund(first), refund(first), refund(second)], [1, 0, 1]);
}

#[test]
fn limit_holds_after_a_corrupt_word() {
    let limit = log(3, 10);
    for next in 0..20 {
        let mut state = [next << 32, 0, 0, 0];
        let passed = (0..9).filter(|_| limit.decide(&mut state, &Now::at(1_000), ASK_ONE).is_admitted());
        assert_eq!(passed.count(), 3, "the next entry goes to slot {next}");
    }
}

/// With a limit of 3, 2 units are withheld at 100 ns. A refund without a stamp removes the oldest entries first, which
/// are the withheld entries.
#[test]
fn refund_without_a_stamp_keeps_the_gap_after_the_last_request() {
    let limit = log(3, 10).initial(1).unwrap().minimum_gap(Nanos::from_nanos(4)).unwrap();
    for refunded in 0..=3 {
        let mut state = [0; 4];
        limit.init(&mut state, &Now::at(100));
        assert!(limit.decide(&mut state, &Now::at(101), ASK_ONE).is_admitted());
        assert_eq!(limit.refund(&mut state, &Now::at(102), Cost::new(refunded), None), Cost::new(refunded));
        let report = limit.report(&state, &Now::at(102), Cost::ZERO);
        assert_eq!(report.remaining, refunded);
        let has_gap =
            limit.weigh(&state, &Now::at(104), ASK_ONE).outcome() == Outcome::Deny(Retry::After(Nanos::from_nanos(1)));
        assert_eq!(has_gap, refunded == 1 || refunded == 2, "{refunded} of the entries are refunded");
    }
}

#[test]
fn withheld_amount_belongs_to_no_request_even_under_new_parameters() {
    let gapped = |limit| log(limit, 10).minimum_gap(Nanos::from_nanos(4)).unwrap();
    let (old, new) = (gapped(3).initial(1).unwrap(), gapped(4));
    let mut state = [0; 5];
    old.init(&mut state, &Now::at(100));
    new.convert(&old, &mut state, &Now::at(101));
    assert_eq!(new.report(&state, &Now::at(101), Cost::ONE).remaining, 2);
    assert!(new.decide(&mut state, &Now::at(101), ASK_ONE).is_admitted(), "no gap after a withheld amount");
    assert!(!new.weigh(&state, &Now::at(104), ASK_ONE).is_admitted());
}

#[test]
fn restored_entries_count_like_requests() {
    let limit = log(4, 10).minimum_gap(Nanos::from_nanos(3)).unwrap();
    let mut state = [0; 5];
    limit.restore(&mut state, 1, [90, 95, 97].into_iter());
    let used = |at| limit.used(&state, &Now::at(at)).ceil();
    assert_eq!([99, 100, 104, 105, 107].map(used), [3, 2, 2, 1, 0]);
    assert!(!limit.weigh(&state, &Now::at(99), ASK_ONE).is_admitted(), "a gap of 3 from 97");
    for ownerless in [1, 9, u64::MAX] {
        let mut state = [0; 5];
        limit.restore(&mut state, ownerless, [97].into_iter());
        assert_eq!(limit.used(&state, &Now::at(99)), Tokens::whole(1));
        assert!(limit.weigh(&state, &Now::at(99), ASK_ONE).is_admitted(), "no entry belongs to a request");
    }
}

/// The state has one entry. At first this entry is the withheld amount, which the first request overwrites.
#[test]
fn gap_applies_after_a_request_that_overwrites_the_withheld_amount() {
    let limit = log(1, 10).initial(0).unwrap().minimum_gap(Nanos::from_nanos(25)).unwrap();
    let mut state = [0; 2];
    limit.init(&mut state, &Now::at(100));
    assert!(limit.decide(&mut state, &Now::at(110), ASK_ONE).is_admitted(), "no gap after a withheld amount");
    let refused = Outcome::Deny(Retry::After(Nanos::from_nanos(15)));
    assert_eq!(limit.weigh(&state, &Now::at(120), ASK_ONE).outcome(), refused);
}

#[test]
fn without_a_gap_a_later_clock_reading_of_another_thread_is_ignored() {
    let mut state = [0; 5];
    assert!(log(3, 10).decide(&mut state, &Now::at(100), ASK_ONE).is_admitted());
    assert!(log(4, 10).weigh_from(&log(3, 10), &state, &Now::at(95), ASK_ONE).is_admitted());
}
