//! Compares the fast path of single requests with the slow path.
#![allow(clippy::unwrap_used)]

use crate::support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use support::{Memory, START, TestBench, memory_store, parse_limits, poll_once, unavailable_error};
use tollgate::Limits;
use tollgate::clock::ManualClock;
use tollgate::core::Nanos;
use tollgate::ledger::{LimitTable, PlainCharge};
use tollgate_engine::store::{Answers, Batch, Charge, Consistency, Group, StoreVerb};
use tollgate_engine::{Attribute, Decision, Decisions, Enforcement, Exactness, Item, Request, Store};

const RULES: &str = "\
- {id: per-user, per: [user], limit: 10/s, burst: 5}
- {id: per-shop, when: {shop: '*'}, per: [shop], limit: 7777/s, burst: 4}
- {id: posts, when: {path: '/posts/**'}, per: [user, path], limit: 3/m, cost: 2, burst: 4}
- {id: daily, when: {shop: s1}, limit: 20/day, algorithm: fixed_window}
- {id: trial, when: {user: u2}, limit: 2/m, on_exceed: shadow}
- {id: tiers, when: {path: /tiers}, per: [user], limit: 2/m, overrides: [{when: {user: u1}, limit: 5/m}]}
- {id: ban, when: {path: /login}, per: [user], limit: 2/m, ban: {after: 2, within: 1m, for: 1h}}
";

/// A memory store that counts the decisions made on the fast path.
struct FastPathCountingStore {
    memory: Memory,
    admitted: AtomicU32,
    refused: AtomicU32,
}

impl Store for FastPathCountingStore {
    async fn run(&self, batch: Batch<'_>, answers: &mut Answers) {
        self.memory.answer_batch(batch, answers);
    }

    fn try_decide_fast<'a, T>(
        &self,
        charged: &'a [T],
        charge: impl Fn(&'a T) -> Option<PlainCharge<'a>>,
        answers: &mut Answers,
    ) -> Option<bool> {
        let admitted = self.memory.try_decide_fast(charged, charge, answers);
        match admitted {
            Some(true) => self.admitted.fetch_add(1, Ordering::Relaxed),
            Some(false) => self.refused.fetch_add(1, Ordering::Relaxed),
            None => 0,
        };
        admitted
    }

    fn check_limits(&self, limits: &Limits) -> Result<(), String> {
        self.memory.check_limits(limits)
    }
}

fn test_bench() -> TestBench<FastPathCountingStore> {
    let clock = Arc::new(ManualClock::at(START));
    let store =
        FastPathCountingStore { memory: memory_store(&clock), admitted: AtomicU32::new(0), refused: AtomicU32::new(0) };
    TestBench::on_store(store, clock, RULES)
}

/// Returns the number of requests that the fast path admitted, and the number that it refused.
fn fast_path_counts(bench: &TestBench<FastPathCountingStore>) -> (u32, u32) {
    let FastPathCountingStore { admitted, refused, .. } = bench.engine.store();
    (admitted.load(Ordering::Relaxed), refused.load(Ordering::Relaxed))
}

/// Formats everything that a decision reports.
fn describe_decision(decision: Decision<'_>) -> String {
    assert_eq!(decision.report_count(), decision.reports().count());
    let counters: Vec<_> = decision.counters().map(|c| (c.rule, c.name(99), c.taken, c.refused)).collect();
    format!(
        "{:?} {:?} {:?} {:?} {} {:?} {:?} {counters:?} {:?}",
        decision.outcome(),
        decision.observed(),
        decision.rule(),
        decision.exactness(),
        decision.is_shadow_refused(),
        decision.taken(),
        decision.receipt(),
        decision.reports().collect::<Vec<_>>(),
    )
}

fn rule_counts<S: Store>(bench: &TestBench<S>) -> String {
    let rules = bench.engine.rules();
    let rules: Vec<_> = rules.rules().iter().map(|rule| (rule.id(), rule.meter().counts())).collect();
    format!("{rules:?}")
}

#[test]
fn fast_path_agrees_with_the_slow_path() {
    let (alone, together) = (test_bench(), test_bench());
    let sent = [&alone, &together].map(|bench| bench.engine.intern_limits(&parse_limits("5/s", Some(3))).unwrap());
    let (mut first, mut second) = (Decisions::default(), Decisions::default());
    let mut refused = 0;
    for step in 0..2_000_u64 {
        let pick = |of: u64, salt: u64| (step * 0x9E37_79B9 + salt * 0x85EB_CA6B).wrapping_mul(step | 1) >> 7 & of;
        let texts = [format!("u{}", pick(3, 1)), format!("s{}", pick(1, 2))];
        let path = ["/posts/1", "/posts/2", "/tiers", "/login"][pick(3, 3) as usize];
        let mut attributes = vec![Attribute::new("user", &texts[0]), Attribute::new("path", path)];
        if pick(1, 4) == 0 {
            attributes.push(Attribute::new("shop", &texts[1]));
        }
        let item = if pick(3, 5) == 0 { Item::new(&attributes).cost(pick(3, 6)) } else { Item::new(&attributes) };
        let sent_items = [0, 1].map(|place| [Item::inline(&texts[0], &sent[place])]);
        let ruled = [item];
        let is_inline = pick(7, 7) == 0;
        let request = |place: usize| match is_inline {
            true => Request::without_rules(&sent_items[place]),
            false => Request::new("d", &ruled),
        };
        if step == 1_000 {
            [&alone, &together].iter().for_each(|bench| bench.engine.set_enforcement(Enforcement::Observe));
        }
        let unknown = Request::new("unknown", &ruled);
        poll_once(alone.engine.check_batch(&[request(0)], &mut first));
        poll_once(together.engine.check_batch(&[request(1), unknown], &mut second));
        assert_eq!(describe_decision(first.get(0).unwrap()), describe_decision(second.get(0).unwrap()), "step {step}");
        refused += u32::from(!first.get(0).unwrap().is_admitted());
        [&alone, &together].iter().for_each(|bench| bench.advance(Nanos::from_millis(pick(15, 8) * 10)));
    }
    assert!((100..900).contains(&refused), "{refused} of the first thousand were refused");
    let (admitted, denied) = fast_path_counts(&alone);
    assert!(admitted > 200 && denied > 50, "the fast path admitted {admitted} and refused {denied}");
    assert_eq!(fast_path_counts(&together), (0, 0), "two requests at a time take the slow path");
    assert_eq!(rule_counts(&alone), rule_counts(&together));
    assert_eq!(alone.engine.counts(), together.engine.counts());
}

#[test]
fn planned_checks_agree_with_checks_one_by_one() {
    let (alone, together) = (test_bench(), test_bench());
    let (mut single, mut planned): (Decisions, [Decisions; 16]) = Default::default();
    let mut refused = 0;
    for round in 0..100 {
        let texts: Vec<String> = (0..16).map(|place| format!("u{}", (round * 16 + place) * 7 % 5)).collect();
        let paths = ["/posts/1", "/posts/2", "/tiers", "/login", "/"];
        let attributes = |place: usize| {
            [Attribute::new("user", &texts[place]), Attribute::new("path", paths[(round as usize + place * 3) % 5])]
        };
        for (place, decisions) in planned.iter_mut().enumerate() {
            let attributes = attributes(place);
            together.engine.plan_check(&Request::new("d", &[Item::new(&attributes)]), decisions);
        }
        together.engine.prefetch_planned(&planned);
        for (place, decisions) in planned.iter_mut().enumerate() {
            let attributes = attributes(place);
            let one_by_one =
                poll_once(alone.engine.check(&Request::new("d", &[Item::new(&attributes)]), &mut single)).unwrap();
            refused += u32::from(!one_by_one.is_admitted());
            let decided = poll_once(together.engine.check_planned(decisions)).unwrap();
            assert_eq!(describe_decision(one_by_one), describe_decision(decided), "round {round}, request {place}");
            [&alone, &together].iter().for_each(|bench| bench.advance(Nanos::from_millis(20)));
        }
    }
    assert!((200..1_500).contains(&refused), "{refused} of 1600 were refused");
    assert_eq!(alone.engine.counts(), together.engine.counts());
}

#[test]
fn planned_check_uses_the_rules_of_its_plan() {
    let bench = test_bench();
    let mut decisions = Decisions::default();
    let attributes = [Attribute::new("user", "u0")];
    bench.engine.plan_check(&Request::new("d", &[Item::new(&attributes)]), &mut decisions);
    bench.engine.put(&tollgate_engine::rules::Rules::default()).unwrap();
    assert_eq!(poll_once(bench.engine.check_planned(&mut decisions)).unwrap().rule(), Some("per-user"));
}

/// A memory store that marks decisions for `leased` and `eventual` rules as made by this node.
struct NodeDecidingStore {
    memory: Memory,
    /// Whether single charges are decided without a batch.
    is_fast: bool,
    is_down: AtomicBool,
    decided_fast: AtomicU32,
}

impl NodeDecidingStore {
    fn answer(&self, batch: Batch<'_>, answers: &mut Answers) {
        let mut exact = Answers::default();
        self.memory.answer_batch(batch, &mut exact);
        for (place, group) in batch.groups.iter().enumerate() {
            let said = exact.group(place).unwrap();
            for (charge, answer) in group.charges.iter().zip(said.charges()) {
                let exactness = match charge.consistency {
                    Consistency::Strict => Exactness::Exact,
                    Consistency::Leased => Exactness::Leased,
                    Consistency::Eventual(_) => Exactness::Eventual,
                };
                let reports = said.reports(answer).iter().copied();
                answers.push_answer_of_exactness(exactness, answer.outcome, answer.taken, said.stamps(answer), reports);
            }
            answers.end_group(said.decided_at());
        }
    }
}

struct NoEarlierLimits;

impl LimitTable for NoEarlierLimits {
    fn get(&self, _: u32) -> Option<&Limits> {
        None
    }
}

impl Store for NodeDecidingStore {
    async fn run(&self, batch: Batch<'_>, answers: &mut Answers) {
        if self.is_down.load(Ordering::Relaxed) {
            return batch.groups.iter().for_each(|_| answers.fail_group(unavailable_error()));
        }
        self.answer(batch, answers);
    }

    fn try_decide_shared(&self, charge: &Charge<'_>, answers: &mut Answers) -> Option<bool> {
        if !self.is_fast || self.is_down.load(Ordering::Relaxed) {
            return None;
        }
        self.decided_fast.fetch_add(1, Ordering::Relaxed);
        let group = Group { verb: StoreVerb::Check, charges: std::slice::from_ref(charge) };
        self.answer(Batch { limit_table: &NoEarlierLimits, groups: &[group] }, answers);
        answers.group(0).ok().map(|said| said.outcome().is_admitted())
    }

    fn check_limits(&self, limits: &Limits) -> Result<(), String> {
        self.memory.check_limits(limits)
    }
}

const SHARED_RULES: &str = "\
- {id: leased, when: {path: /leased}, per: [user], limit: 5/s, consistency: leased}
- {id: eventual, when: {path: /eventual}, per: [user], limit: 5/s, consistency: eventual}
- {id: strict, when: {path: /strict}, per: [user], limit: 5/s}
- {id: both, when: {path: /leased, user: u1}, limit: 9/s, consistency: eventual}
- {id: daily, when: {path: /daily}, limit: 5/day, algorithm: fixed_window, consistency: eventual}
";

fn shared_bench(is_fast: bool, rules: &str) -> TestBench<NodeDecidingStore> {
    let clock = Arc::new(ManualClock::at(START));
    let memory = memory_store(&clock);
    let store = NodeDecidingStore { memory, is_fast, is_down: AtomicBool::new(false), decided_fast: AtomicU32::new(0) };
    TestBench::on_store(store, clock, rules)
}

#[test]
fn fallback_starts_with_a_share_of_the_amount_remaining_after_leases() {
    for is_fast in [true, false] {
        let mut bench = shared_bench(is_fast, "- {id: r, limit: 1000/day, consistency: leased}\n");
        bench.engine.set_node_count(2);
        (0..900).for_each(|_| assert_eq!(bench.check(&[]), "allow"));
        assert_eq!(bench.engine.store().decided_fast.load(Ordering::Relaxed), if is_fast { 900 } else { 0 });
        bench.engine.store().is_down.store(true, Ordering::Relaxed);
        let admitted = (0..1_000).take_while(|_| bench.check(&[]) == "allow").count();
        // The node records the remaining amount only once per 1/32 of the limit. So the last recorded amount is 100 to
        // 131, and the node admits half of it.
        assert!((50..=66).contains(&admitted), "{admitted}");
    }
}

#[test]
fn fast_path_of_shared_rules_agrees_with_the_slow_path() {
    let (fast, slow) = (shared_bench(true, SHARED_RULES), shared_bench(false, SHARED_RULES));
    let (mut first, mut second) = (Decisions::default(), Decisions::default());
    for step in 0..1_000_u64 {
        let random = (step + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 20;
        let user = format!("u{}", random % 3);
        let path = ["/leased", "/eventual", "/strict", "/daily"][(random / 3 % 4) as usize];
        let attributes = [Attribute::new("user", &user), Attribute::new("path", path)];
        let items = [Item::new(&attributes).cost(random / 12 % 3)];
        let request = [Request::new("d", &items)];
        if step == 500 {
            [&fast, &slow].iter().for_each(|bench| bench.engine.set_enforcement(Enforcement::Observe));
        }
        poll_once(fast.engine.check_batch(&request, &mut first));
        poll_once(slow.engine.check_batch(&request, &mut second));
        assert_eq!(describe_decision(first.get(0).unwrap()), describe_decision(second.get(0).unwrap()), "step {step}");
        [&fast, &slow].iter().for_each(|bench| bench.advance(Nanos::from_millis(random / 36 % 16 * 10)));
    }
    let decided_fast = fast.engine.store().decided_fast.load(Ordering::Relaxed);
    assert!(
        (300..700).contains(&decided_fast),
        "{decided_fast} fast decisions: only single charges of rules that are not strict take the fast path"
    );
    assert_eq!(rule_counts(&fast), rule_counts(&slow));
    assert_eq!(fast.engine.counts(), slow.engine.counts());
}
