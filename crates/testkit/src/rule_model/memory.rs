//! The engine on its memory store with a manual clock. This is the fastest program under test.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tollgate::clock::ManualClock;
use tollgate_core::{Cost, Nanos};
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::{Attribute, Decision, Decisions, Engine, Item, MemoryStore, Receipt, Request as Asked, Store};

use super::lockstep::RuleSubject;
use super::settle::Settlement;
use super::{Answer, LimitAnswer, Request, RuleSet, Verb};

/// The engine in this process.
#[expect(missing_debug_implementations, reason = "the engine does not implement Debug")]
pub struct InMemory {
    clock: Arc<ManualClock>,
    at: u64,
    engine: Engine<MemoryStore<ManualClock>, MemoryStore<ManualClock>>,
}

impl InMemory {
    /// Returns an engine without rules.
    pub fn new() -> Self {
        Self::at(0)
    }

    fn at(at: u64) -> Self {
        let clock = Arc::new(ManualClock::at(at));
        let memory = || MemoryStore::with_clock(200, clock.clone()).expect("a small table");
        Self { engine: Engine::with_fallback(memory(), memory()).with_clock(clock.clone()), clock, at }
    }
}

impl Default for InMemory {
    fn default() -> Self {
        Self::new()
    }
}

impl RuleSubject for InMemory {
    fn tick(&self) -> u64 {
        1
    }

    fn begin(&mut self, at: u64) {
        *self = Self::at(at);
    }

    fn advance_to(&mut self, at: u64) {
        self.clock.advance(Nanos::from_nanos(at - self.at));
        self.at = at;
    }

    fn put(&mut self, rules: &RuleSet) {
        put(&self.engine, rules);
    }

    fn ask(&mut self, verb: Verb, request: &Request) -> (Answer, String) {
        poll_ready_future(decide_request(&self.engine, verb, request))
    }

    fn refund(&mut self, receipt: &str) -> u64 {
        poll_ready_future(self.engine.refund(&parse_receipt(receipt))).expect("memory answers").get()
    }

    fn commit(&mut self, receipt: &str, cost: u64) -> Settlement {
        to_settlement(
            poll_ready_future(self.engine.commit(&parse_receipt(receipt), Cost::new(cost))).expect("memory answers"),
        )
    }

    fn renew(&mut self, receipt: &str) -> bool {
        poll_ready_future(self.engine.renew(&parse_receipt(receipt))).expect("memory answers")
    }

    fn reset(&mut self, request: &Request) -> usize {
        poll_ready_future(reset(&self.engine, request))
    }
}

/// Puts rules in force.
///
/// # Panics
/// Panics if the rules are invalid. Invalid rules are a bug in the generator.
pub fn put<S: Store, F: Store>(engine: &Engine<S, F>, rules: &RuleSet) {
    let text = rules.text();
    let rules = Rules::read(&[Source { name: "rules", text: text.as_bytes() }])
        .unwrap_or_else(|mistakes| panic!("{mistakes}\n{text}"));
    engine.put(&rules).unwrap_or_else(|mistakes| panic!("{mistakes}\n{text}"));
}

/// Runs a request.
///
/// # Panics
/// Panics if the request is invalid.
pub async fn decide_request<S: Store, F: Store>(
    engine: &Engine<S, F>,
    verb: Verb,
    request: &Request,
) -> (Answer, String) {
    let attributes = attributes_of(request);
    let items = [Item { cost: request.cost.map(Cost::new), ..Item::new(&attributes) }];
    let asked = Asked::new("d", &items);
    let mut decisions = Decisions::default();
    let decision = match verb {
        Verb::Check => engine.check(&asked, &mut decisions).await,
        Verb::Peek => engine.peek(&asked, &mut decisions).await,
        Verb::TakeUpTo => engine.take_up_to(&asked, &mut decisions).await,
        Verb::Charge => engine.charge(&asked, &mut decisions).await,
    };
    let decision = decision.expect("a request that is understood");
    (to_answer(verb, &decision), decision.receipt().to_string())
}

/// Converts a decision to an answer.
pub fn to_answer(verb: Verb, decision: &Decision<'_>) -> Answer {
    let limits = decision.reports().map(|limit| LimitAnswer {
        rule: limit.rule.to_owned(),
        shadow: limit.shadow,
        report: limit.report,
    });
    Answer {
        outcome: decision.outcome(),
        taken: (verb != Verb::Peek).then(|| decision.taken().get()),
        banned: decision.is_refused_by_ban(),
        shadow_refused: decision.is_shadow_refused(),
        limits: limits.collect(),
    }
}

/// Resets the counters of a request.
///
/// # Panics
/// Panics if the request is invalid.
pub async fn reset<S: Store, F: Store>(engine: &Engine<S, F>, request: &Request) -> usize {
    let attributes = attributes_of(request);
    let items = [Item::new(&attributes)];
    engine.reset(&Asked::new("d", &items), &mut Decisions::default()).await.expect("a request that is understood")
}

fn attributes_of(request: &Request) -> Vec<Attribute<'_>> {
    request.attributes.iter().map(|(name, value)| Attribute::new(*name, value)).collect()
}

/// Parses a receipt.
///
/// # Panics
/// Panics if the string is not a receipt.
pub fn parse_receipt(receipt: &str) -> Receipt {
    receipt.parse().expect("a receipt of the engine")
}

/// Returns the result of a commit.
pub fn to_settlement(settled: tollgate_engine::CommitResult) -> Settlement {
    Settlement { refunded: settled.refunded.get(), charged: settled.charged.get(), unpaid: settled.unpaid.get() }
}

/// Returns the result of a future of the memory store. Such a future is ready at the first poll.
fn poll_ready_future<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("memory is always ready"),
    }
}
