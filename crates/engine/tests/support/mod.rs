//! Test helpers: an engine on a manual clock.
#![allow(dead_code, reason = "each test file uses only some of these helpers")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};

use tollgate::clock::ManualClock;
use tollgate::core::{Nanos, Time};
use tollgate::{Limits, Outcome, Retry};
use tollgate_engine::rules::{LimitText, Rules, Source};
use tollgate_engine::store::{Answers, Batch, StoreError};
use tollgate_engine::{Attribute, Decision, Decisions, Engine, Item, MemoryStore, Request, RequestError, Store};
use tollgate_testkit::golden;
use tollgate_testkit::golden::Page;

pub(crate) type Memory = MemoryStore<ManualClock>;

pub(crate) struct TestBench<S: Store = Memory> {
    pub(crate) engine: Engine<S, Memory>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) decisions: Decisions,
}

/// The start time of the clock: long after the epoch, and not at a window boundary.
pub(crate) const START: u64 = 1_700_000_000_000_000_000;

pub(crate) fn memory_store(clock: &Arc<ManualClock>) -> Memory {
    MemoryStore::with_clock(20_000, clock.clone()).expect("a table")
}

pub(crate) fn test_bench(rules: &str) -> TestBench {
    let clock = Arc::new(ManualClock::at(START));
    TestBench::on_store(memory_store(&clock), clock, rules)
}

impl<S: Store> TestBench<S> {
    pub(crate) fn on_store(store: S, clock: Arc<ManualClock>, rules: &str) -> Self {
        let engine = Engine::with_fallback(store, memory_store(&clock)).with_clock(clock.clone());
        let bench = Self { engine, clock, decisions: Decisions::default() };
        bench.put(rules);
        bench
    }

    /// Loads rules into the domain `d`.
    pub(crate) fn put(&self, rules: &str) -> u64 {
        self.engine.put(&parse_rules(rules)).expect("limits that the memory store supports")
    }

    /// Checks one item with these attributes and returns the outcome as text.
    pub(crate) fn check(&mut self, attributes: &[(&str, &str)]) -> String {
        self.check_cost(attributes, 1)
    }

    pub(crate) fn check_cost(&mut self, attributes: &[(&str, &str)], cost: u64) -> String {
        self.decide(attributes, Some(cost), |decision| outcome_text(decision.outcome()))
    }

    /// Checks one item and passes the decision to `read`.
    pub(crate) fn decide<R>(
        &mut self,
        attributes: &[(&str, &str)],
        cost: Option<u64>,
        read: impl FnOnce(Decision<'_>) -> R,
    ) -> R {
        let attributes: Vec<Attribute<'_>> =
            attributes.iter().map(|(name, value)| Attribute::new(*name, *value)).collect();
        let mut item = Item::new(&attributes);
        item.cost = cost.map(tollgate::core::Cost::new);
        let items = [item];
        let request = Request::new("d", &items);
        read(poll_once(self.engine.check(&request, &mut self.decisions)).expect("a valid request"))
    }

    /// Returns the remaining amount of every matching limit.
    pub(crate) fn remaining(&mut self, attributes: &[(&str, &str)]) -> Vec<u64> {
        let attributes: Vec<Attribute<'_>> =
            attributes.iter().map(|(name, value)| Attribute::new(*name, *value)).collect();
        let items = [Item::new(&attributes)];
        let request = Request::new("d", &items);
        let decision = poll_once(self.engine.peek(&request, &mut self.decisions)).expect("a valid request");
        decision.reports().map(|report| report.report.remaining).collect()
    }

    /// Checks one request with these items and returns the outcome as text.
    pub(crate) fn check_items(&mut self, items: &[Item<'_>]) -> Result<String, RequestError> {
        let decision = poll_once(self.engine.check(&Request::new("d", items), &mut self.decisions))?;
        Ok(outcome_text(decision.outcome()))
    }

    pub(crate) fn advance(&self, length: Nanos) {
        self.clock.advance(length);
    }
}

pub(crate) fn parse_rules(rules: &str) -> Rules {
    let text = format!("domain: d\nrules:\n{rules}");
    Rules::read(&[Source { name: "rules", text: text.as_bytes() }]).unwrap_or_else(|mistakes| panic!("{mistakes}"))
}

pub(crate) fn parse_limits(limit: &str, burst: Option<u64>) -> Limits {
    LimitText { limit, burst, algorithm: None }.read().expect("a limit")
}

pub(crate) fn outcome_text(outcome: Outcome) -> String {
    match outcome {
        Outcome::Allow => "allow".into(),
        Outcome::Delay(wait) => format!("delay {wait}"),
        Outcome::Deny(Retry::After(wait)) => format!("deny {wait}"),
        Outcome::Deny(Retry::OnRelease) => "deny until release".into(),
        Outcome::Deny(Retry::Never) => "deny for ever".into(),
    }
}

/// Runs a future that is ready immediately, like every future of a memory store.
pub(crate) fn poll_once<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future is not ready"),
    }
}

/// A store that fails on demand.
pub(crate) struct FlakyStore {
    pub(crate) memory: Memory,
    /// Whether failing batches are executed anyway.
    pub(crate) executes_failed_batches: AtomicBool,
    failure_plan: Mutex<FailurePlan>,
}

/// The planned failures: an error, and how many times it is still returned.
#[derive(Default)]
struct FailurePlan {
    error: Option<StoreError>,
    remaining_failures: usize,
    /// Number of batches that are still answered before failures start.
    answers_before_failure: usize,
}

impl FlakyStore {
    pub(crate) fn new(clock: &Arc<ManualClock>) -> Self {
        Self {
            memory: memory_store(clock),
            executes_failed_batches: AtomicBool::new(false),
            failure_plan: Mutex::default(),
        }
    }

    pub(crate) fn fail_times(&self, error: StoreError, times: usize) {
        *self.failure_plan() = FailurePlan { error: Some(error), remaining_failures: times, answers_before_failure: 0 };
    }

    /// Answers `answers_before_failure` more batches, then fails.
    pub(crate) fn fail_after(&self, answers_before_failure: usize, error: StoreError) {
        *self.failure_plan() =
            FailurePlan { error: Some(error), remaining_failures: usize::MAX, answers_before_failure };
    }

    pub(crate) fn recover(&self) {
        *self.failure_plan() = FailurePlan::default();
    }

    fn failure_plan(&self) -> MutexGuard<'_, FailurePlan> {
        self.failure_plan.lock().expect("no test panics while it holds the lock")
    }

    fn next_failure(&self) -> Option<StoreError> {
        let mut failure_plan = self.failure_plan();
        if let Some(answered) = failure_plan.answers_before_failure.checked_sub(1) {
            failure_plan.answers_before_failure = answered;
            return None;
        }
        failure_plan.remaining_failures = failure_plan.remaining_failures.checked_sub(1)?;
        failure_plan.error.clone()
    }
}

impl Store for FlakyStore {
    async fn run(&self, batch: Batch<'_>, answers: &mut Answers) {
        match self.next_failure() {
            Some(error) => {
                if self.executes_failed_batches.load(Ordering::Relaxed) {
                    self.memory.answer_batch(batch, &mut Answers::default());
                }
                batch.groups.iter().for_each(|_| answers.fail_group(error.clone()));
            }
            None => self.memory.answer_batch(batch, answers),
        }
    }

    fn check_limits(&self, limits: &Limits) -> Result<(), String> {
        let burst = limits.as_slice().iter().map(|limit| format!("{limit:?}")).find(|text| text.contains("666"));
        burst.map_or(Ok(()), |_| Err("a limit of 666 is not supported".into()))
    }
}

pub(crate) fn unavailable_error() -> StoreError {
    StoreError::Unavailable { why: "pulled the plug".into() }
}

pub(crate) fn unknown_error() -> StoreError {
    StoreError::Unknown { why: "no answer".into() }
}

pub(crate) fn stale_error() -> StoreError {
    StoreError::Stale { store_time: Time::ZERO }
}

/// Returns the explanation without the rules that do not match.
pub(crate) fn explain_matching<S: Store>(
    bench: &mut TestBench<S>,
    attributes: &[(&str, &str)],
    cost: Option<u64>,
) -> String {
    let attributes: Vec<Attribute<'_>> = attributes.iter().map(|(name, value)| Attribute::new(*name, *value)).collect();
    let item = Item { cost: cost.map(tollgate::core::Cost::new), ..Item::new(&attributes) };
    let explanation = poll_once(bench.engine.explain(b"d", &item, &mut bench.decisions)).expect("a valid request");
    let text = explanation.to_string();
    let unmet = text.find("\n- ").map_or(text.len(), |at| at + 1);
    text[..unmet].trim_end().to_owned()
}

/// Compares the explanation, without the rules that do not match, with `golden/explain/NAME.txt`.
#[track_caller]
pub(crate) fn assert_explained<S: Store>(name: &str, bench: &mut TestBench<S>, attributes: &[(&str, &str)]) {
    let mut page = Page::default();
    let request: Vec<String> = attributes.iter().map(|(name, value)| format!("{name}={value}")).collect();
    page.add_case(&request.join(" "), &explain_matching(bench, attributes, None));
    golden!(format!("explain/{name}"), page);
}
