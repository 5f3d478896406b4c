//! The engine: applies rules to requests, keeps states in a store, and handles store failures.
//!
//! **The naive method** evaluates the rules one by one, and charges each matching rule immediately. If the third rule
//! refuses, the first two have been charged for a request that did not pass. On a shared store, each charge is a round
//! trip, and an error in the middle leaves only some of the rules charged.
//!
//! **The idea** is to plan first and charge once. A plan is the list of all charges of a request: rule, key, limits and
//! cost. The store receives them as one group and admits or refuses the whole group in one call. Everything else is a
//! step before or after that call:
//!
//! ```text
//! request ─▶ plan ─▶ charge ─▶ policy ─▶ report ─▶ count
//!            rules,   one group  faults,   outcome,  meters
//!            keys     of the     `suffices` deciding
//!                     store                rule, then shadow rules and bans
//! ```
//!
//! `decide.rs` runs these phases in order. Most requests are not part of a batch and are charged only to a few plain
//! limits in memory. `fast.rs` decides them without building lists, with the same result.
//!
//! **Invariants.** A refused request spends nothing, except in a log that counts refused attempts. A decision uses one
//! rule set from beginning to end. A store failure never makes a decision fail: the rule's `on_fault` decides
//! (`fault_policy.rs`). With `on_fault: local`, the node uses its share of the last known remaining amount
//! (`last_seen.rs`, `shares.rs`). When the store recovers, it is charged for these admissions (`arrears.rs`). Shadow
//! rules are a separate group, charged after the request was admitted, so they cannot refuse the request.
//!
//! **Cost.** In memory a decision allocates nothing: plans, answers and results are in buffers that the caller reuses
//! ([`Decisions`](crate::Decisions)).

mod arrears;
mod bans;
mod decide;
mod explain;
mod fast;
mod fault_policy;
mod last_seen;
pub(crate) mod plan;
mod report;
pub(crate) mod scratch;
mod settle;
mod shares;
mod snapshot;
mod suffice;
mod take_mode;
mod undo;
mod verbs;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use arc_swap::ArcSwap;
use tollgate::clock::{Clock, PreciseClock};
use tollgate::core::{Mono, Params, Phase, Time, Wall};
use tollgate::ledger::LimitTable;
use tollgate::{CapacityError, Limit, Limits};

use crate::inline::{InternedLimits, Interner, LimitsById};
use crate::memory::MemoryStore;
use crate::meters::{Counts, Meters};
use crate::request::RequestError;
use crate::rules::warn::all_warnings;
use crate::rules::{Mistake, MistakeCollector, Mistakes, Rules};
use crate::ruleset::{FIRST_INLINE_ID, RuleSet, limits_of_ban};
use crate::store::{Store, StoreError};
use arrears::ArrearsTable;
pub(crate) use bans::RefusalCount;
pub use explain::ExplanationContext;
use last_seen::LastSeen;
pub use settle::CommitResult;
use shares::Shares;
pub use take_mode::TakeMode;

/// Applies rules to requests. States are in a store `S`, or in the fallback `F` while the store does not answer.
///
/// ```
/// use tollgate_engine::rules::{Rules, Source};
/// use tollgate_engine::{Attribute, Decisions, Engine, Item, MemoryStore, Request};
///
/// # fn run<T>(future: impl Future<Output = T>) -> T {
/// #     let mut context = std::task::Context::from_waker(std::task::Waker::noop());
/// #     match std::pin::pin!(future).poll(&mut context) {
/// #         std::task::Poll::Ready(output) => output,
/// #         std::task::Poll::Pending => unreachable!("memory is always ready"),
/// #     }
/// # }
/// # run(async {
/// let engine = Engine::new(MemoryStore::new(10_000)?)?;
/// let text = "{domain: api, rules: [{id: per-client, per: [client], limit: 1/m}]}";
/// engine.put(&Rules::read(&[Source { name: "rules.yaml", text: text.as_bytes() }])?)?;
///
/// let attributes = [Attribute::new("client", "alice")];
/// let items = [Item::new(&attributes)];
/// let request = Request::new("api", &items);
/// let mut decisions = Decisions::default();
/// assert!(engine.check(&request, &mut decisions).await?.is_admitted());
/// let refused = engine.check(&request, &mut decisions).await?;
/// assert_eq!((refused.is_admitted(), refused.rule()), (false, Some("per-client")));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Engine<S, F = MemoryStore> {
    store: S,
    fallback: F,
    /// Replaced as a whole, so that a decision uses one rule set from beginning to end. Reading takes no lock and
    /// writes no shared counter. With an `RwLock<Arc<_>>`, every decision would write twice to the same cache line.
    running: ArcSwap<RulesInForce>,
    interner: Interner,
    shares: Shares,
    last_seen: LastSeen,
    arrears: ArrearsTable,
    /// Held while checking and charging shares that may go into debt.
    debt_lock: Mutex<()>,
    /// Held while rules are compiled, so that each rule set is derived from the previous one.
    compiling: Mutex<()>,
    /// Held while `running` is replaced. Keeps the previous value alive, because otherwise the last decision that uses
    /// that value would have to free thousands of rules.
    previous: Mutex<Option<Arc<RulesInForce>>>,
    observing: AtomicBool,
    nodes: AtomicU32,
    /// Whether the fallback has any state.
    fell_back: AtomicBool,
    meters: Meters,
    /// Reads the wall clock, for time-dependent rules: calendars, schedules, and overrides that expire.
    wall: ClockFn<Wall>,
    /// Reads the monotonic clock, for the age of the store's answers.
    mono: ClockFn<Mono>,
}

/// The rules and inline limits in force.
#[derive(Debug)]
pub(crate) struct RulesInForce {
    pub(crate) rules: Arc<RuleSet>,
    /// The rules as written, for explanations.
    written: Arc<Rules>,
    limits_by_id: Arc<LimitsById>,
    /// The successor. A decision that still uses this value may read a state whose limits are only in the successor.
    next: OnceLock<Arc<RulesInForce>>,
}

impl RulesInForce {
    fn new(rules: Arc<RuleSet>, written: Arc<Rules>, limits_by_id: Arc<LimitsById>) -> Self {
        Self { rules, written, limits_by_id, next: OnceLock::new() }
    }
}

impl LimitTable for RulesInForce {
    #[inline]
    fn get(&self, id: u32) -> Option<&Limits> {
        let known = if id < FIRST_INLINE_ID { self.rules.limit_registry().get(id) } else { self.limits_by_id.get(id) };
        known.or_else(|| self.next.get().and_then(|next| next.get(id)))
    }
}

/// Whether refusals are enforced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Enforcement {
    /// Refusals are enforced.
    Enforce,
    /// Refusals are counted and reported, but every request passes. Useful for trying out rules, or for disabling all
    /// rules at once.
    Observe,
}

impl Enforcement {
    /// Returns the name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
        }
    }
}

/// Reason why an operation other than a decision failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EngineError {
    /// The request is invalid.
    Request(RequestError),
    /// The store failed. [`StoreError`] states whether the operation may have been carried out.
    Store(StoreError),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(error) => error.fmt(f),
            Self::Store(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for EngineError {}

impl From<RequestError> for EngineError {
    fn from(error: RequestError) -> Self {
        Self::Request(error)
    }
}

impl From<StoreError> for EngineError {
    fn from(error: StoreError) -> Self {
        Self::Store(error)
    }
}

/// Maximum number of keys with their own entries in the default fallback.
const FALLBACK_KEYS: usize = 100_000;

impl<S: Store> Engine<S> {
    /// Creates an engine without rules.
    ///
    /// # Errors
    /// If the fallback's tables do not fit into the address space.
    pub fn new(store: S) -> Result<Self, CapacityError> {
        Ok(Self::with_fallback(store, MemoryStore::new(FALLBACK_KEYS)?))
    }
}

impl<S: Store, F: Store> Engine<S, F> {
    /// Creates an engine without rules, with `fallback` for decisions while `store` does not answer. The fallback must
    /// answer immediately, like an in-memory store.
    pub fn with_fallback(store: S, fallback: F) -> Self {
        let running = RulesInForce::new(Arc::new(RuleSet::empty()), Arc::default(), Arc::new(LimitsById::new()));
        let (wall, mono) = clock_functions(PreciseClock::new());
        Self {
            store,
            fallback,
            running: ArcSwap::from_pointee(running),
            interner: Interner::default(),
            shares: Shares::new(),
            last_seen: LastSeen::new(),
            arrears: ArrearsTable::new(),
            debt_lock: Mutex::new(()),
            compiling: Mutex::new(()),
            previous: Mutex::new(None),
            observing: AtomicBool::new(false),
            nodes: AtomicU32::new(1),
            fell_back: AtomicBool::new(false),
            meters: Meters::default(),
            wall,
            mono,
        }
    }

    /// Sets the clock for time-dependent rules. Refills use the store's clock.
    #[must_use]
    pub fn with_clock(mut self, clock: impl Clock + Send + Sync + 'static) -> Self {
        (self.wall, self.mono) = clock_functions(clock);
        self
    }

    /// Returns the current time if any rule depends on it, and zero otherwise.
    fn time_if_needed(&self, running: &RulesInForce) -> Time<Wall> {
        if running.rules.uses_time() { (self.wall)() } else { Time::ZERO }
    }

    /// Replaces the rules in force, and returns the version of the new rule set. A rule that keeps its id and its `per`
    /// keeps its usage, even if its limits change, unless it has `on_change: reset`.
    ///
    /// # Errors
    /// If the store does not support some of the rules. The current rules stay in force.
    pub fn put(&self, rules: &Rules) -> Result<u64, Mistakes> {
        self.check_limits(rules)?;
        let _compiling = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
        let written = Arc::new(rules.clone());
        let rules = Arc::new(RuleSet::compile_successor(&self.rules(), rules));
        let version = rules.version();
        let mut previous = self.previous.lock().unwrap_or_else(PoisonError::into_inner);
        let limits_by_id = self.running.load().limits_by_id.clone();
        *previous = Some(self.replace_running(RulesInForce::new(rules, written, limits_by_id)));
        Ok(version)
    }

    /// Returns warnings about valid rules that are probably mistakes. Examples are rules and overrides that never
    /// apply, expired overrides, names that look like typos, and limits that changed by more than a factor of ten.
    pub fn warnings(&self, rules: &Rules) -> Vec<Mistake> {
        all_warnings(rules, &self.rules(), (self.wall)())
    }

    /// Links the rules in force to their successor and replaces them. The caller must hold the `previous` lock.
    fn replace_running(&self, running: RulesInForce) -> Arc<RulesInForce> {
        let running = Arc::new(running);
        // Each value is replaced only once, so the successor is not set yet.
        let _ = self.running.load().next.set(running.clone());
        self.running.swap(running)
    }

    fn check_limits(&self, rules: &Rules) -> Result<(), Mistakes> {
        let mut notes = MistakeCollector::new("");
        for rule in rules.domains().iter().flat_map(|domain| domain.rules()) {
            for set in rule.all_limits() {
                if let Err(why) = self.store.check_limits(&set.limits) {
                    let problem = format!("the store does not support the limits of `{}`: {why}", rule.id());
                    notes.set_file(&rule.position().file);
                    notes.add(rule.position().position, problem);
                    break;
                }
            }
            if let Err(why) = self.store.check_consistency(rule.consistency()) {
                notes.set_file(&rule.position().file);
                notes.add(
                    rule.position().position,
                    format!("the store does not support the consistency of `{}`: {why}", rule.id()),
                );
            }
            let banned = rule.ban().map(|ban| limits_of_ban(ban).map_err(|error| error.to_string()));
            let kept = banned.map(|limits| {
                let (ban, refusals) = limits?;
                self.store.check_limits(&ban.into())?;
                refusals.map_or(Ok(()), |refusals| self.store.check_limits(&refusals.into()))
            });
            if let Some(Err(why)) = kept {
                notes.set_file(&rule.position().file);
                notes.add(
                    rule.position().position,
                    format!("the store does not support the ban of `{}`: {why}", rule.id()),
                );
            }
        }
        notes.finish()
    }

    /// Returns the rules in force.
    pub fn rules(&self) -> Arc<RuleSet> {
        self.running.load().rules.clone()
    }

    /// Returns the rules in force in two forms: compiled, and as written. Both forms have the same order.
    pub fn compiled_and_written_rules(&self) -> (Arc<RuleSet>, Arc<Rules>) {
        let running = self.running.load();
        (running.rules.clone(), running.written.clone())
    }

    /// Returns limits for inline use in requests. Equal limits share one id. Keep the result to avoid further lookups.
    ///
    /// # Errors
    /// If the store does not support the limits, or if they contain a calendar window.
    pub fn intern_limits(&self, limits: &Limits) -> Result<InternedLimits, RequestError> {
        if let Some(known) = self.interner.find(limits) {
            return Ok(known);
        }
        let given = |limit: &Limit| matches!(limit.params(), Params::FixedWindow { phase: Phase::Given(_), .. });
        if limits.as_slice().iter().any(given) {
            let why = "calendar windows are supported only in rules".into();
            return Err(RequestError::BadLimit { why });
        }
        self.store.check_limits(limits).map_err(|why| RequestError::BadLimit { why })?;
        let mut previous = self.previous.lock().unwrap_or_else(PoisonError::into_inner);
        let running = self.running.load();
        let (sent, limits_by_id) = self.interner.add(limits, &running.limits_by_id);
        if let Some(limits_by_id) = limits_by_id {
            let (rules, written) = (running.rules.clone(), running.written.clone());
            *previous = Some(self.replace_running(RulesInForce::new(rules, written, Arc::new(limits_by_id))));
        }
        Ok(sent)
    }

    /// Returns whether refusals are enforced.
    pub fn enforcement(&self) -> Enforcement {
        if self.observing.load(Ordering::Relaxed) { Enforcement::Observe } else { Enforcement::Enforce }
    }

    /// Switches between enforcing and observing. Takes effect with the next decision.
    pub fn set_enforcement(&self, enforcement: Enforcement) {
        // No ordering needed: a concurrent decision may use either setting.
        self.observing.store(enforcement == Enforcement::Observe, Ordering::Relaxed);
    }

    /// Sets the number of nodes that share the store's limits, including this one. While the store does not answer,
    /// rules with `on_fault: local` grant only this node's share of each limit.
    pub fn set_node_count(&self, nodes: u32) {
        self.nodes.store(nodes.max(1), Ordering::Relaxed);
    }

    /// Returns the counts of all decisions.
    pub fn counts(&self) -> Counts {
        self.meters.counts()
    }

    /// Returns the store.
    pub fn store(&self) -> &S {
        &self.store
    }

    /// Returns the fallback store.
    pub fn fallback(&self) -> &F {
        &self.fallback
    }
}

type ClockFn<C> = Box<dyn Fn() -> Time<C> + Send + Sync>;

/// Returns functions that read the wall clock and the monotonic clock.
fn clock_functions(clock: impl Clock + Send + Sync + 'static) -> (ClockFn<Wall>, ClockFn<Mono>) {
    let clock = Arc::new(clock);
    let mono = clock.clone();
    (Box::new(move || clock.wall(clock.mono())), Box::new(move || mono.mono()))
}

impl<S, F> fmt::Debug for Engine<S, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine").field("running", &self.running).finish_non_exhaustive()
    }
}
