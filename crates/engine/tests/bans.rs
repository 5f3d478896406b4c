//! Bans start after too many refusals and last exactly as long as reported.

use crate::support;

use std::sync::Arc;

use proptest::prelude::*;
use support::{FlakyStore, START, TestBench, outcome_text, poll_once, test_bench, unavailable_error};
use tollgate::clock::ManualClock;
use tollgate::core::Nanos;
use tollgate::{Outcome, Retry};
use tollgate_engine::{Attribute, Enforcement, Item, Request};

const HOUR: Nanos = Nanos::from_secs(3_600);

fn check_repeatedly<const N: usize>(bench: &mut TestBench, attributes: &[(&str, &str)]) -> [String; N] {
    std::array::from_fn(|_| bench.check(attributes))
}

#[test]
fn counter_with_too_many_refusals_is_banned() {
    let mut bench = test_bench(
        "- {id: r, per: [ip], limit: 2/s, ban: {after: 3, within: 10s, for: 60s}}\n- {id: all, limit: 100/h}\n",
    );
    let mallory = [("ip", "m")];
    assert_eq!(check_repeatedly(&mut bench, &mallory), ["allow", "allow", "deny 500ms", "deny 500ms", "deny 60s"]);
    assert_eq!(bench.engine.counts().bans, 1);
    bench.decide(&mallory, None, |decision| assert!(decision.is_refused_by_ban(), "the ban decides, not the limit"));
    bench.advance(Nanos::SECOND);
    bench.decide(&mallory, None, |decision| {
        assert!(decision.is_refused_by_ban() && decision.rule() == Some("r"));
        assert_eq!(decision.retry(), Some(Retry::After(Nanos::from_secs(59))));
    });
    // A banned request spends nothing from shared limits and does not prolong the ban.
    assert_eq!(bench.remaining(&[("ip", "x")]), [2, 98]);
    assert_eq!(bench.check(&[("ip", "other")]), "allow");
    bench.advance(Nanos::from_nanos(58_999_999_999));
    assert_eq!(bench.check(&mallory), "deny 1ns");
    bench.advance(Nanos::from_nanos(1));
    assert_eq!(bench.check(&mallory), "allow");
    // After the ban, refusals are counted from 0.
    bench.advance(Nanos::from_micros(1));
    assert_eq!(check_repeatedly(&mut bench, &mallory), ["allow", "deny 499.999ms"]);
    bench.advance(Nanos::SECOND);
    assert_eq!(bench.check(&mallory), "allow");
}

#[test]
fn ban_lasts_exactly_as_long_as_reported() {
    for (written, length) in [
        ("7s", Nanos::from_secs(7)),
        ("1h", HOUR),
        ("1500us", Nanos::from_micros(1_500)),
        ("30d", Nanos::from_secs(30 * 86_400)),
        ("52 weeks", Nanos::from_secs(52 * 7 * 86_400)),
        ("1234567ns", Nanos::from_nanos(1_234_567)),
    ] {
        let mut bench =
            test_bench(&format!("- {{id: r, limit: 1000/us, ban: {{after: 1, within: 1s, for: {written}}}}}\n"));
        // Use up the limit at one instant.
        for _ in 0..1_000 {
            assert_eq!(bench.check(&[]), "allow");
        }
        bench.decide(&[], None, |decision| {
            assert_eq!(
                decision.outcome(),
                Outcome::Deny(Retry::After(length)),
                "the request that starts the ban of {written}"
            );
            assert!(decision.is_refused_by_ban());
        });
        bench.advance(Nanos::from_nanos(length.as_nanos() - 1));
        assert_eq!(bench.check(&[]), "deny 1ns", "a ban of {written}");
        bench.advance(Nanos::from_nanos(1));
        assert_eq!(bench.check(&[]), "allow", "a ban of {written}");
    }
}

#[test]
fn reported_wait_while_banned_is_exact() {
    let mut bench = test_bench("- {id: r, limit: 2/m, ban: {after: 2, within: 1h, for: 1h}}\n");
    assert_eq!(check_repeatedly(&mut bench, &[]), ["allow", "allow", "deny 30s", "deny 3600s"]);
    for passed in [1, 999, 1_000_000_000, 59 * 60 * 1_000_000_000] {
        bench.advance(Nanos::from_nanos(passed));
        let retry = bench.decide(&[], None, |decision| decision.retry());
        let clock = bench.clock.clone();
        let Some(Retry::After(wait)) = retry else { panic!("the counter is banned: {retry:?}") };
        assert_eq!(clock.elapsed(), HOUR.saturating_sub(wait), "after {passed}");
    }
}

/// Adds a method that returns the time by which the clock has advanced.
trait ElapsedTime {
    fn elapsed(&self) -> Nanos;
}

impl ElapsedTime for ManualClock {
    fn elapsed(&self) -> Nanos {
        use tollgate::clock::Clock as _;
        self.now().wall().since(tollgate::core::Time::from_nanos(START))
    }
}

#[test]
fn requests_after_the_one_that_starts_a_ban_report_the_ban() {
    let mut bench = test_bench(
        "- {id: r, per: [ip], limit: 1/s, ban: {after: 2, within: 1h, for: 1h}, status: 403}\n- {id: s, limit: 1000/s}\n",
    );
    let (mallory, other) = ([Attribute::new("ip", "m")], [Attribute::new("ip", "o")]);
    let items =
        [&mallory, &mallory, &mallory, &other, &mallory, &other, &mallory].map(|attributes| Item::new(attributes));
    let requests = items.each_ref().map(|item| Request::new("d", std::slice::from_ref(item)));
    poll_once(bench.engine.check_batch(&requests, &mut bench.decisions));
    let decided = |at: usize| {
        let decision = bench.decisions.get(at).unwrap();
        assert_eq!(decision.refusal().and_then(|refusal| refusal.status), (!decision.is_admitted()).then_some(403));
        format!("{}{}", outcome_text(decision.outcome()), if decision.is_refused_by_ban() { ", banned" } else { "" })
    };
    let banned = "deny 3600s, banned";
    assert_eq!([0, 1, 2, 3, 4, 5, 6].map(decided), ["allow", "deny 1s", banned, "allow", banned, "deny 1s", banned]);
    assert_eq!(bench.engine.counts().bans, 1);
    let counted = bench.engine.rules().rules().iter().map(|rule| rule.meter().counts().refused).collect::<Vec<_>>();
    assert_eq!(counted, [5, 0], "each refusal counts once");
    // Requests during the ban do not count towards the next ban.
    bench.advance(HOUR);
    assert_eq!(bench.check(&[("ip", "m")]), "allow");
    assert_eq!(bench.check(&[("ip", "m")]), "deny 1s");
}

#[test]
fn banned_counter_is_reported_as_refusing() {
    let mut bench = test_bench("- {id: r, per: [ip], limit: 1/s, ban: {after: 1, within: 1s, for: 1h}}\n");
    let ask = [("ip", "m")];
    assert_eq!(check_repeatedly(&mut bench, &ask), ["allow", "deny 3600s"]);
    bench.advance(Nanos::from_secs(60));
    bench.decide(&ask, None, |decision| {
        let counters: Vec<_> = decision.counters().map(|counter| (counter.name(20), counter.refused)).collect();
        assert_eq!(counters, [("ip=m".to_owned(), true)]);
    });
}

#[test]
fn longer_of_a_ban_and_another_wait_is_reported() {
    let mut bench =
        test_bench("- {id: r, limit: 1/m, ban: {after: 1, within: 1m, for: 5m}}\n- {id: day, limit: 1/day}\n");
    assert_eq!(bench.check(&[]), "allow");
    bench.decide(&[], None, |decision| {
        assert_eq!(decision.outcome(), Outcome::Deny(Retry::After(Nanos::from_secs(86_400))));
        assert!(decision.is_refused_by_ban() && decision.rule() == Some("day"));
    });
}

#[test]
fn every_kind_of_take_is_banned_and_a_peek_starts_no_ban() {
    let mut bench = test_bench("- {id: r, limit: 3/m, max_debt: 0, ban: {after: 1, within: 1m, for: 1h}}\n");
    assert_eq!(bench.check_cost(&[], 3), "allow");
    for _ in 0..5 {
        assert_eq!(bench.remaining(&[]), [0]);
    }
    assert_eq!(bench.engine.counts().bans, 0);
    let items = [Item::default().cost(1)];
    let request = Request::new("d", &items);
    let taken = poll_once(bench.engine.take_up_to(&request, &mut bench.decisions)).unwrap();
    assert_eq!((outcome_text(taken.outcome()), taken.is_refused_by_ban()), ("deny 3600s".into(), true));
    bench.advance(Nanos::from_secs(3_599));
    for charges in [false, true] {
        let decision = match charges {
            true => poll_once(bench.engine.charge(&request, &mut bench.decisions)).unwrap(),
            false => poll_once(bench.engine.take_up_to(&request, &mut bench.decisions)).unwrap(),
        };
        assert_eq!((outcome_text(decision.outcome()), decision.is_refused_by_ban()), ("deny 1s".into(), true));
    }
    bench.advance(Nanos::SECOND);
    assert!(poll_once(bench.engine.charge(&request, &mut bench.decisions)).unwrap().is_admitted());
}

#[test]
fn inactive_ban_does_not_make_its_rule_the_deciding_rule() {
    let mut bench =
        test_bench("- {id: guarded, limit: 9/s, ban: {after: 1, within: 1s, for: 1s}}\n- {id: tight, limit: 8/s}\n");
    bench.decide(&[], None, |decision| assert_eq!(decision.rule(), Some("tight")));
}

#[test]
fn shadow_rule_starts_no_ban_but_an_observed_refusal_does() {
    let mut bench = test_bench("- {id: r, limit: 1/m, enforce: 0%, ban: {after: 1, within: 1m, for: 1h}}\n");
    assert_eq!(check_repeatedly(&mut bench, &[]), ["allow"; 4]);
    assert_eq!(bench.engine.counts().bans, 0);
    bench.put("- {id: r, limit: 1/m, ban: {after: 2, within: 1m, for: 1h}}\n");
    bench.engine.set_enforcement(Enforcement::Observe);
    for expected in ["deny 60s", "deny 3600s"] {
        bench.decide(&[], None, |decision| {
            assert!(decision.is_admitted());
            assert_eq!(decision.observed().map(outcome_text).as_deref(), Some(expected));
        });
    }
    assert_eq!(bench.engine.counts().bans, 1);
}

#[test]
fn refusals_far_apart_start_no_ban_and_a_reset_lifts_a_ban() {
    let mut bench = test_bench("- {id: r, limit: 1/s, ban: {after: 2, within: 10s, for: 60s}}\n");
    for _ in 0..5 {
        assert_eq!(check_repeatedly(&mut bench, &[]), ["allow", "deny 1s"]);
        bench.advance(Nanos::from_secs(11));
    }
    assert_eq!(check_repeatedly(&mut bench, &[]), ["allow", "deny 1s", "deny 60s"]);
    bench.advance(Nanos::from_secs(30));
    assert_eq!(bench.check(&[]), "deny 30s");
    let items = [Item::default()];
    poll_once(bench.engine.reset(&Request::new("d", &items), &mut bench.decisions)).unwrap();
    assert_eq!(bench.check(&[]), "allow");
}

#[test]
fn reset_discards_refusals_that_count_towards_a_ban() {
    let mut bench = test_bench("- {id: r, limit: 1/h, ban: {after: 3, within: 1h, for: 2h}}\n");
    for _ in 0..2 {
        assert_eq!((bench.check(&[]), bench.check(&[]), bench.check(&[])), {
            ("allow".into(), "deny 3600s".into(), "deny 3600s".into())
        });
        let items = [Item::default()];
        let reset = poll_once(bench.engine.reset(&Request::new("d", &items), &mut bench.decisions));
        assert_eq!(reset.unwrap(), 1, "side counters are not counted");
    }
}

#[test]
fn ban_ends_as_reported_although_the_rule_changes() {
    let rule = |length: &str| format!("- {{id: r, limit: 1/s, ban: {{after: 1, within: 1s, for: {length}}}}}\n");
    let mut bench = test_bench(&rule("60s"));
    assert_eq!(check_repeatedly(&mut bench, &[]), ["allow", "deny 60s"]);
    bench.advance(Nanos::from_secs(10));
    for length in ["2h", "20s", "60s"] {
        bench.put(&rule(length));
        assert_eq!(bench.check(&[]), "deny 50s", "now {length}");
    }
}

#[test]
fn bans_are_neither_enforced_nor_started_while_the_store_does_not_answer() {
    let clock = Arc::new(ManualClock::at(START));
    let mut bench = TestBench::on_store(
        FlakyStore::new(&clock),
        clock,
        "- {id: r, limit: 1/s, ban: {after: 1, within: 1s, for: 60s}}\n",
    );
    assert_eq!((bench.check(&[]), bench.check(&[])), ("allow".into(), "deny 60s".into()));
    bench.advance(Nanos::SECOND);
    assert_eq!(bench.check(&[]), "deny 59s");
    bench.engine.store().fail_times(unavailable_error(), usize::MAX);
    assert_eq!(bench.check(&[]), "allow");
    assert_eq!(bench.check(&[]), "deny 1s");
    bench.engine.store().recover();
    assert_eq!(bench.check(&[]), "deny 59s");
}

#[test]
fn refusal_that_the_store_does_not_count_is_still_a_refusal() {
    let clock = Arc::new(ManualClock::at(START));
    let mut bench = TestBench::on_store(
        FlakyStore::new(&clock),
        clock,
        "- {id: r, limit: 1/s, ban: {after: 1, within: 1s, for: 60s}}\n",
    );
    assert_eq!(bench.check(&[]), "allow");
    bench.engine.store().fail_after(1, unavailable_error());
    assert_eq!(bench.check(&[]), "deny 1s");
    assert_eq!(bench.engine.counts().bans, 0);
    bench.engine.store().recover();
    assert_eq!(bench.check(&[]), "deny 60s");
}

/// Sends a request above the limit at each of `instants`. Returns the instants at which the counter was banned.
fn instants_while_banned(rule: &str, instants: &[u64]) -> Vec<u64> {
    let mut bench = test_bench(rule);
    assert_eq!(bench.check(&[]), "allow", "the one request that the limit admits");
    let mut now = 0;
    let mut banned = Vec::new();
    for instant in instants {
        bench.advance(Nanos::from_nanos(instant - now));
        now = *instant;
        if bench.decide(&[], None, |decision| decision.is_refused_by_ban()) {
            banned.push(now);
        }
    }
    banned
}

#[test]
fn ban_counts_refusals_in_a_sliding_window() {
    let rule = "- {id: r, limit: 1/day, ban: {after: 3, within: 10s, for: 60s}}\n";
    let tenths = |tenths: u64| tenths * 100_000_000;
    // The refusals at 16.9, 17.0 and 17.1 s are within 10 s. The refusals at 7.0 and 17.0 s are exactly 10 s apart,
    // so they do not count towards the same ban.
    let instants = [70, 169, 170, 171].map(tenths);
    assert_eq!(instants_while_banned(rule, &instants), [tenths(171)]);
    // Refusals one nanosecond closer together start a ban.
    assert_eq!(instants_while_banned(rule, &[tenths(70), tenths(169), tenths(170) - 1]), [tenths(170) - 1]);
    // With refusals 5 s apart, there are never three within 10 s.
    assert!(instants_while_banned(rule, &[50, 100, 150, 200, 250, 300, 350].map(tenths)).is_empty());
}

#[test]
fn refusals_at_the_instant_a_ban_ends_count_towards_the_next_ban() {
    for (after, written, length) in [(1, "1s", 1_000_000_000), (2, "1s", 1_000_000_000), (1, "1234567ns", 1_234_567)] {
        for late in [0, 1, 499, 999, 1_000] {
            let rule = format!("- {{id: r, limit: 1/day, ban: {{after: {after}, within: 1h, for: {written}}}}}\n");
            let mut bench = test_bench(&rule);
            assert_eq!(bench.check(&[]), "allow");
            for ban in 1..4 {
                for _ in 1..after {
                    assert!(
                        !bench.decide(&[], None, |decision| decision.is_refused_by_ban()),
                        "ban {ban}, {late} ns late"
                    );
                }
                bench.decide(&[], None, |decision| assert!(decision.is_refused_by_ban(), "ban {ban}, {late} ns late"));
                assert_eq!(bench.engine.counts().bans, ban);
                bench.advance(Nanos::from_nanos(length - 1));
                bench.decide(&[], None, |decision| assert!(decision.is_refused_by_ban(), "ban {ban} ends too early"));
                bench.advance(Nanos::from_nanos(1 + late));
            }
        }
    }
}

#[test]
fn refusals_before_a_ban_do_not_count_after_it() {
    let mut bench = test_bench("- {id: r, limit: 1/day, ban: {after: 3, within: 1h, for: 1s}}\n");
    let is_banned = |bench: &mut TestBench| bench.decide(&[], None, |decision| decision.is_refused_by_ban());
    assert_eq!(bench.check(&[]), "allow");
    assert_eq!([(); 4].map(|()| is_banned(&mut bench)), [false, false, true, true]);
    bench.advance(Nanos::SECOND);
    assert_eq!([(); 3].map(|()| is_banned(&mut bench)), [false, false, true]);
}

/// A slow reference model of a rule with a ban and a limit of `burst` per second.
#[derive(Default)]
struct BanOracle {
    now: u64,
    full_at: u64,
    /// The times of the refusals that count towards the next ban.
    refusals: Vec<u64>,
    banned_until: u64,
}

impl BanOracle {
    fn check(&mut self, burst: u64, after: u64, within: u64, length: u64) -> (String, bool) {
        let token = 1_000_000_000 / burst;
        let owed = self.full_at.saturating_sub(self.now) + token;
        let short = owed.saturating_sub(burst * token);
        if self.now >= self.banned_until && short == 0 {
            self.full_at = self.now + owed;
            return ("allow".into(), false);
        }
        if self.now >= self.banned_until {
            self.refusals.retain(|refusal| self.now - refusal < within);
            self.refusals.push(self.now);
            if self.refusals.len() as u64 == after {
                self.refusals.clear();
                self.banned_until = self.now + length;
            }
        }
        let left = self.banned_until.saturating_sub(self.now);
        (format!("deny {}", Nanos::from_nanos(left.max(short))), left > 0)
    }
}

proptest! {
    #[test]
    fn bans_agree_with_a_slow_model(
        (burst, after) in (prop_oneof![Just(1), Just(2), Just(4)], 1..4_u64),
        (within, length) in (1..3_000_000_000_u64, 2_000..5_000_000_000_u64),
        // Some steps end exactly at the end of a ban, or one nanosecond before or after it.
        steps in prop::collection::vec(
            prop_oneof![
                Just((false, 0)),
                (1..1_000_u64).prop_map(|step| (false, step)),
                (1..3_000_000_000_u64).prop_map(|step| (false, step)),
                (0..3_u64).prop_map(|late| (true, late)),
            ],
            1..60,
        ),
    ) {
        let ban = format!("{{after: {after}, within: {within}ns, for: {length}ns}}");
        let mut bench = test_bench(&format!("- {{id: r, limit: {burst}/s, ban: {ban}}}\n"));
        let mut oracle = BanOracle::default();
        for (to_the_end, step) in steps {
            let left = oracle.banned_until.saturating_sub(oracle.now).saturating_sub(1);
            let step = if to_the_end { left + step } else { step };
            bench.advance(Nanos::from_nanos(step));
            oracle.now += step;
            let said =
                bench.decide(&[], None, |decision| (outcome_text(decision.outcome()), decision.is_refused_by_ban()));
            prop_assert_eq!(said, oracle.check(burst, after, within, length), "at {}", oracle.now);
        }
    }
}
