//! Named limiters with shared configurations and an event hook.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use tollgate_core::{Limits, Mono, Stamps, Time, Verdict};

use crate::adjustable::Adjustable;
use crate::clock::{Clock, PreciseClock};
use crate::limiter::Limiter;
use crate::wait::{Acquire, AcquireError, Grant, block_on};

/// Named limiters whose limits are defined by configurations. Several limiters may share a configuration, and a
/// configuration can change while it is in use.
///
/// Use a registry for a known set of limiters, such as one per upstream service or database. For an unbounded set, such
/// as users or addresses, use [`Keyed`](crate::Keyed), whose memory is bounded.
///
/// ```
/// use tollgate::{Limit, TokenBucket};
/// use tollgate::registry::Registry;
///
/// let registry = Registry::new().on_event(|event| println!("{} {:?}", event.limiter, event.kind));
/// registry.configure("default", Limit::from(TokenBucket::new("10/s".parse()?, 10)?));
/// let (users, orders) = (registry.limiter("users", "default")?, registry.limiter("orders", "default")?);
/// assert!(users.check(10).is_allowed() && orders.check(10).is_allowed());
/// // Changes all limiters that share it.
/// registry.configure("default", Limit::from(TokenBucket::new("20/s".parse()?, 20)?));
/// assert!(users.check(10).is_allowed() && orders.check(10).is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Registry<C = PreciseClock> {
    clock: Arc<C>,
    hook: Option<Arc<EventHook>>,
    max: usize,
    /// A read-write lock, because names are looked up far more often than they change.
    tables: RwLock<RegistryTables<C>>,
    /// Locked while a configuration is applied to all its limiters, so that concurrent changes are applied in order.
    configure_lock: Mutex<()>,
}

struct RegistryTables<C> {
    configurations: BTreeMap<String, Limits>,
    limiters: BTreeMap<String, Arc<RegisteredLimiter<C>>>,
}

type EventHook = dyn Fn(&Event<'_>) + Send + Sync;

/// A decision of a registered limiter, as passed to the hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The name of the limiter.
    pub limiter: &'a str,
    /// The kind of event.
    pub kind: EventKind,
    /// The cost of the request.
    pub cost: u64,
}

/// The kind of an [`Event`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventKind {
    /// The request was admitted without queueing. The verdict of a leaky bucket may still contain a delay.
    Allowed,
    /// The request was refused, immediately or at its deadline.
    Refused,
    /// The request passed after this wait.
    Waited(Duration),
    /// The wait was cancelled.
    Cancelled,
}

/// Reason why a registry cannot return a limiter. The registry is unchanged.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistryError {
    /// No configuration has this name.
    NoConfiguration(String),
    /// The registry is full.
    Full {
        /// The maximum number of limiters.
        max: usize,
    },
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoConfiguration(name) => write!(f, "no such configuration: `{name}`; call `configure` first"),
            Self::Full { max } => write!(f, "too many limiters (maximum {max}); for many keys use `Keyed`"),
        }
    }
}

impl std::error::Error for RegistryError {}

impl Registry {
    /// Creates an empty registry, with one clock for all its limiters.
    pub fn new() -> Self {
        Self::with_clock(PreciseClock::new())
    }
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl<C: Clock + Send + Sync + 'static> Registry<C> {
    /// The default maximum number of limiters.
    pub const DEFAULT_MAX_LIMITERS: usize = 10_000;

    /// Creates an empty registry that reads the time from `clock`.
    pub fn with_clock(clock: impl Into<Arc<C>>) -> Self {
        let tables = RegistryTables { configurations: BTreeMap::new(), limiters: BTreeMap::new() };
        let tables = RwLock::new(tables);
        Self {
            clock: clock.into(),
            hook: None,
            max: Self::DEFAULT_MAX_LIMITERS,
            tables,
            configure_lock: Mutex::new(()),
        }
    }

    /// Sets the maximum number of limiters.
    #[must_use]
    pub fn max_limiters(self, max: usize) -> Self {
        Self { max, ..self }
    }

    /// Calls `hook` after every decision, on the deciding thread, with no lock held. If the hook panics, the decision
    /// remains valid and the panic is counted; see [`RegisteredLimiter::hook_panics`].
    #[must_use]
    pub fn on_event(self, hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        Self { hook: Some(Arc::new(hook)), ..self }
    }

    /// Adds a configuration, or changes it for all limiters that share it and for their waiters. Used amounts are kept.
    pub fn configure(&self, configuration: &str, limits: impl Into<Limits>) {
        let limits = limits.into();
        let configure_lock = self.configure_lock.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        tables.configurations.insert(configuration.to_owned(), limits.clone());
        let sharing = tables.limiters.values().filter(|named| *named.configuration == *configuration);
        let sharing: Vec<_> = sharing.cloned().collect();
        drop(tables);
        sharing.iter().for_each(|named| named.limiter.replace(limits.clone()));
        drop(configure_lock);
        // Notified after unlocking, because woken waiters may use the registry.
        sharing.iter().for_each(|named| named.limiter.notify_waiters());
    }

    /// Returns the limiter with this name, or creates one with `configuration`.
    ///
    /// # Errors
    /// Returns an error if there is no such configuration, or the registry is full.
    pub fn limiter(&self, name: &str, configuration: &str) -> Result<Arc<RegisteredLimiter<C>>, RegistryError> {
        if let Some(named) = self.get(name) {
            return Ok(named);
        }
        let mut tables = self.tables.write().unwrap_or_else(PoisonError::into_inner);
        let RegistryTables { configurations, limiters } = &mut *tables;
        if let Some(named) = limiters.get(name) {
            return Ok(Arc::clone(named));
        }
        let no_configuration = || RegistryError::NoConfiguration(configuration.to_owned());
        let limits = configurations.get(configuration).ok_or_else(no_configuration)?;
        if limiters.len() >= self.max {
            return Err(RegistryError::Full { max: self.max });
        }
        let limiter = Limiter::with_clock(Adjustable::new(limits.clone()), Arc::clone(&self.clock));
        let named = Arc::new(RegisteredLimiter {
            name: name.to_owned(),
            configuration: configuration.to_owned(),
            limiter: Arc::new(limiter),
            hook: self.hook.clone(),
            hook_panics: AtomicU64::new(0),
        });
        limiters.insert(name.to_owned(), Arc::clone(&named));
        Ok(named)
    }

    /// Returns the limiter with this name, if there is one.
    pub fn get(&self, name: &str) -> Option<Arc<RegisteredLimiter<C>>> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner).limiters.get(name).cloned()
    }

    /// Removes the limiter with this name. Existing handles still work, but later configuration changes do not apply to
    /// them.
    pub fn remove(&self, name: &str) -> Option<Arc<RegisteredLimiter<C>>> {
        self.tables.write().unwrap_or_else(PoisonError::into_inner).limiters.remove(name)
    }

    /// Returns the names of all limiters, sorted.
    pub fn names(&self) -> Vec<String> {
        self.tables.read().unwrap_or_else(PoisonError::into_inner).limiters.keys().cloned().collect()
    }
}

impl<C> fmt::Debug for Registry<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tables = self.tables.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Registry").field("limiters", &tables.limiters.keys()).finish_non_exhaustive()
    }
}

/// A limiter of a [`Registry`].
pub struct RegisteredLimiter<C = PreciseClock> {
    name: String,
    configuration: String,
    limiter: Arc<Limiter<Adjustable<Limits>, Arc<C>>>,
    hook: Option<Arc<EventHook>>,
    hook_panics: AtomicU64,
}

impl<C: Clock + Send + Sync + 'static> RegisteredLimiter<C> {
    /// Returns the name of the limiter.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes `cost`, or refuses it and takes nothing.
    pub fn check(&self, cost: u64) -> Verdict<Stamps> {
        let verdict = self.limiter.check(cost);
        self.report(|| if verdict.is_admitted() { EventKind::Allowed } else { EventKind::Refused }, cost);
        verdict
    }

    /// Takes `cost` as soon as the limit has capacity for it; see [`Acquire`].
    pub fn acquire(&self, cost: u64) -> RegisteredAcquire<'_, C> {
        RegisteredAcquire { acquire: Some(self.limiter.acquire(cost)), named: self, cost, since: None }
    }

    /// Returns the underlying limiter. Decisions made through the underlying limiter are not reported to the hook.
    pub fn limiter(&self) -> &Arc<Limiter<Adjustable<Limits>, Arc<C>>> {
        &self.limiter
    }

    /// Returns the number of panics of the hook.
    pub fn hook_panics(&self) -> u64 {
        self.hook_panics.load(Ordering::Relaxed)
    }

    #[inline]
    fn report(&self, kind: impl FnOnce() -> EventKind, cost: u64) {
        if let Some(hook) = &self.hook {
            let event = Event { limiter: &self.name, kind: kind(), cost };
            if catch_unwind(AssertUnwindSafe(|| hook(&event))).is_err() {
                self.hook_panics.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn mono(&self) -> Time<Mono> {
        self.limiter.clock.mono()
    }
}

impl<C> fmt::Debug for RegisteredLimiter<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RegisteredLimiter")
            .field("name", &self.name)
            .field("limiter", &self.limiter)
            .finish_non_exhaustive()
    }
}

/// An [`Acquire`] of a registered limiter. It reports its outcome to the hook.
#[must_use = "nothing is taken until it is awaited or waited for"]
#[derive(Debug)]
pub struct RegisteredAcquire<'a, C: Clock + Send + Sync + 'static> {
    /// `None` once the future has completed.
    acquire: Option<Acquire<'a, Limiter<Adjustable<Limits>, Arc<C>>>>,
    named: &'a RegisteredLimiter<C>,
    cost: u64,
    /// The start of the wait, if there is a hook.
    since: Option<Time<Mono>>,
}

impl<C: Clock + Send + Sync + 'static> RegisteredAcquire<'_, C> {
    /// Sets a deadline; see [`Acquire::within`].
    pub fn within(mut self, patience: Duration) -> Self {
        self.acquire = self.acquire.take().map(|acquire| acquire.within(patience));
        self
    }

    /// Refuses instead of waiting; see [`Acquire::at_once`].
    pub fn at_once(mut self) -> Self {
        self.acquire = self.acquire.take().map(Acquire::at_once);
        self
    }

    /// Blocks the thread until the cost is taken.
    ///
    /// # Errors
    /// Returns an [`AcquireError`] if the cost was not taken.
    pub fn wait(self) -> Result<Grant<Stamps>, AcquireError> {
        block_on(self)
    }
}

impl<C: Clock + Send + Sync + 'static> Future for RegisteredAcquire<'_, C> {
    type Output = Result<Grant<Stamps>, AcquireError>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let Some(acquire) = &mut this.acquire else { return Poll::Pending };
        let answer = Pin::new(acquire).poll(context);
        let Poll::Ready(result) = answer else {
            if this.named.hook.is_some() && this.since.is_none() {
                this.since = Some(this.named.mono());
            }
            return answer;
        };
        this.acquire = None;
        let kind = || match (&result, this.since) {
            (Err(_), _) => EventKind::Refused,
            (Ok(_), None) => EventKind::Allowed,
            (Ok(_), Some(since)) => EventKind::Waited(this.named.mono().since(since).into()),
        };
        this.named.report(kind, this.cost);
        answer
    }
}

impl<C: Clock + Send + Sync + 'static> Drop for RegisteredAcquire<'_, C> {
    fn drop(&mut self) {
        // Leaves the queue before calling the hook.
        if self.acquire.take().is_some() && self.since.is_some() {
            self.named.report(|| EventKind::Cancelled, self.cost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::{Limit, TokenBucket};
    use std::task::{Wake, Waker};
    use tollgate_core::Nanos;

    fn limit_with_burst(burst: u64) -> Limit {
        TokenBucket::new("10/s".parse().unwrap(), burst).unwrap().into()
    }

    fn registry_on_manual_clock() -> (Arc<ManualClock>, Registry<ManualClock>) {
        let clock = Arc::new(ManualClock::at(1_000_000_000));
        let registry = Registry::with_clock(Arc::clone(&clock));
        registry.configure("small", limit_with_burst(2));
        registry.configure("large", limit_with_burst(5));
        (clock, registry)
    }

    #[test]
    fn equal_names_share_a_limiter_and_different_names_do_not() {
        let (_clock, registry) = registry_on_manual_clock();
        let first = registry.limiter("a", "small").unwrap();
        assert!(first.check(2).is_allowed() && !registry.limiter("a", "large").unwrap().check(1).is_allowed());
        assert!(registry.limiter("b", "small").unwrap().check(2).is_allowed());
        assert_eq!((registry.names(), first.name()), (vec!["a".to_owned(), "b".to_owned()], "a"));
        assert!(registry.get("c").is_none() && registry.remove("b").is_some() && registry.get("b").is_none());
    }

    #[test]
    fn missing_configuration_and_full_registry_are_errors() {
        let (_clock, registry) = registry_on_manual_clock();
        let registry = registry.max_limiters(1);
        let error = registry.limiter("a", "tiny").unwrap_err();
        assert_eq!(error.to_string(), "no such configuration: `tiny`; call `configure` first");
        assert!(registry.limiter("a", "small").is_ok());
        assert_eq!(registry.limiter("b", "small").unwrap_err(), RegistryError::Full { max: 1 });
    }

    #[test]
    fn change_applies_to_all_handles_and_waiters() {
        let (_clock, registry) = registry_on_manual_clock();
        let [a, b, c] = [("a", "small"), ("b", "small"), ("c", "large")]
            .map(|(name, config)| registry.limiter(name, config).unwrap());
        assert!(a.check(2).is_allowed() && b.check(2).is_allowed() && c.check(5).is_allowed());
        let mut waiting = a.acquire(1);
        assert!(Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        registry.configure("small", limit_with_burst(4));
        assert!(Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert_eq!([&a, &b, &c].map(|named| named.limiter().report(1).remaining), [1, 2, 0]);
    }

    #[test]
    fn all_limiters_see_concurrent_changes_in_one_order() {
        struct ChangingWaker(Arc<Registry<ManualClock>>);
        impl Wake for ChangingWaker {
            fn wake(self: Arc<Self>) {
                self.0.configure("small", limit_with_burst(9));
            }
        }
        let registry = Arc::new(registry_on_manual_clock().1);
        let [a, b] = ["a", "b"].map(|name| registry.limiter(name, "small").unwrap());
        assert!(a.check(2).is_allowed());
        let mut waiting = a.acquire(1);
        let waker = Waker::from(Arc::new(ChangingWaker(Arc::clone(&registry))));
        assert!(Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker)).is_pending());
        // The first change wakes the waiter, whose waker makes a second change.
        registry.configure("small", limit_with_burst(4));
        let c = registry.limiter("c", "small").unwrap();
        assert_eq!([&a, &b, &c].map(|named| named.limiter().current()), [(); 3].map(|()| limit_with_burst(9).into()));
    }

    #[test]
    fn hook_receives_events() {
        let (clock, registry) = registry_on_manual_clock();
        let events = Arc::new(Mutex::new(Vec::new()));
        let ear = Arc::clone(&events);
        let registry = registry.on_event(move |event| ear.lock().unwrap().push((event.kind, event.cost)));
        let a = registry.limiter("a", "small").unwrap();
        assert!(a.check(2).is_allowed() && !a.check(1).is_allowed());
        assert!(a.acquire(1).at_once().wait().is_err() && a.acquire(3).wait().is_err());
        let (mut first, mut second) = (a.acquire(1), a.acquire(2).within(Duration::from_secs(9)));
        for future in [&mut first, &mut second] {
            assert!(Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        clock.advance_through_alarms(Nanos::from_millis(100));
        assert!(Pin::new(&mut first).poll(&mut Context::from_waker(Waker::noop())).is_ready());
        drop(second);
        drop(a.acquire(1));
        let waited = EventKind::Waited(Duration::from_millis(100));
        use EventKind::{Allowed, Cancelled, Refused};
        assert_eq!(
            *events.lock().unwrap(),
            [(Allowed, 2), (Refused, 1), (Refused, 1), (Refused, 3), (waited, 1), (Cancelled, 2)]
        );
    }

    #[test]
    fn panicking_hook_changes_no_decision() {
        let (_clock, registry) = registry_on_manual_clock();
        let registry = registry.on_event(|_| panic!("a hook that panics"));
        let a = registry.limiter("a", "small").unwrap();
        assert!(a.check(1).is_allowed() && a.acquire(1).wait().is_ok() && !a.check(1).is_allowed());
        assert_eq!((a.hook_panics(), a.limiter().report(1).remaining), (3, 0));
    }
}
