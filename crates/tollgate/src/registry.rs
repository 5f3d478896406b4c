//! Limiters by name, with configurations they share, and somebody who is told what happens.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll};
use std::time::Duration;

use tollgate_core::{Limits, Mono, Nanos, Stamps, Time, Verdict};

use crate::clock::{Clock, PreciseClock};
use crate::limiter::Limiter;
use crate::live::Live;
use crate::wait::{Acquire, AcquireError, block_on};

/// Limiters that are found by name and take their numbers from configurations, which may be shared and can be changed
/// while they are in use.
///
/// For the limiters a program knows of: one for each service it calls, each database. For users, addresses and whatever
/// else there may be any number of, use [`Keyed`](crate::Keyed), which never grows.
///
/// ```
/// use tollgate::{Limit, Registry, TokenBucket};
///
/// let registry = Registry::new().on_event(|event| println!("{} {:?}", event.limiter, event.happened));
/// registry.configure("default", Limit::from(TokenBucket::new("10/s".parse()?, 10)?));
/// let (users, orders) = (registry.limiter("users", "default")?, registry.limiter("orders", "default")?);
/// assert!(users.check(10).is_allowed() && orders.check(10).is_allowed());
/// // For all that share it, at once.
/// registry.configure("default", Limit::from(TokenBucket::new("20/s".parse()?, 20)?));
/// assert!(users.check(10).is_allowed() && orders.check(10).is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Registry<C = PreciseClock> {
    clock: Arc<C>,
    hook: Option<Arc<Hook>>,
    max: usize,
    /// A lock for many readers: names are looked up far more often than they change.
    known: RwLock<Known<C>>,
    /// A mutex, held by whoever changes a configuration until all limiters have it, so that what is written down last is also
    /// what they get last.
    configuring: Mutex<()>,
}

struct Known<C> {
    configurations: BTreeMap<String, Limits>,
    limiters: BTreeMap<String, Arc<Named<C>>>,
}

type Hook = dyn Fn(&Event<'_>) + Send + Sync;

/// Something that happened at a limiter of a registry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event<'a> {
    /// The limiter's name.
    pub limiter: &'a str,
    /// What happened.
    pub happened: Happened,
    /// What was asked for.
    pub cost: u64,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Happened {
    /// It passed at once.
    Allowed,
    /// It was refused, at once or because its deadline came.
    Refused,
    /// It passed after so long.
    Waited(Nanos),
    /// Whoever waited gave up.
    Cancelled,
}

/// Why a registry has no such limiter. Nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RegistryError {
    /// There is no configuration of this name.
    NoConfiguration(String),
    /// There are as many limiters as there may be.
    Full {
        /// How many that are.
        max: usize,
    },
}

impl fmt::Display for RegistryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoConfiguration(name) => write!(f, "there is no configuration `{name}`, configure it first"),
            Self::Full { max } => write!(f, "there are {max} limiters already; for many keys use `Keyed`"),
        }
    }
}

impl std::error::Error for RegistryError {}

impl Registry {
    /// An empty registry, with one clock for all its limiters.
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
    /// How many limiters there may be unless said otherwise.
    pub const MAX_LIMITERS: usize = 10_000;

    /// The same with a clock of choice.
    pub fn with_clock(clock: impl Into<Arc<C>>) -> Self {
        let known = Known { configurations: BTreeMap::new(), limiters: BTreeMap::new() };
        let known = RwLock::new(known);
        Self { clock: clock.into(), hook: None, max: Self::MAX_LIMITERS, known, configuring: Mutex::new(()) }
    }

    /// With another bound on the number of limiters.
    #[must_use]
    pub fn max_limiters(self, max: usize) -> Self {
        Self { max, ..self }
    }

    /// With `hook` called after every decision, on the thread that decided, with no lock held. If it panics, the decision
    /// stands all the same and the panic is only counted; see [`Named::hook_panics`]. Without a hook there is nothing to
    /// call and no clock to read.
    #[must_use]
    pub fn on_event(self, hook: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        Self { hook: Some(Arc::new(hook)), ..self }
    }

    /// Adds a configuration, or changes it for all limiters that share it, those that are waited for included. What was
    /// spent stays spent.
    pub fn configure(&self, configuration: &str, limits: impl Into<Limits>) {
        let limits = limits.into();
        let configuring = self.configuring.lock().unwrap_or_else(PoisonError::into_inner);
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        known.configurations.insert(configuration.to_owned(), limits.clone());
        let sharing = known.limiters.values().filter(|named| *named.configuration == *configuration);
        let sharing: Vec<_> = sharing.cloned().collect();
        drop(known);
        sharing.iter().for_each(|named| named.limiter.put(limits.clone()));
        drop(configuring);
        // Without a lock: those who are woken may ask the registry for something, or change it.
        sharing.iter().for_each(|named| named.limiter.tell_waiting());
    }

    /// The limiter of this name; if there is none yet, a new one under `configuration`.
    ///
    /// # Errors
    /// When there is none yet, and no such configuration or no room.
    pub fn limiter(&self, name: &str, configuration: &str) -> Result<Arc<Named<C>>, RegistryError> {
        if let Some(named) = self.get(name) {
            return Ok(named);
        }
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        let Known { configurations, limiters } = &mut *known;
        if let Some(named) = limiters.get(name) {
            return Ok(Arc::clone(named));
        }
        let no_configuration = || RegistryError::NoConfiguration(configuration.to_owned());
        let limits = configurations.get(configuration).ok_or_else(no_configuration)?;
        if limiters.len() >= self.max {
            return Err(RegistryError::Full { max: self.max });
        }
        let limiter = Limiter::with_clock(Live::new(limits.clone()), Arc::clone(&self.clock));
        let named = Arc::new(Named {
            name: name.to_owned(),
            configuration: configuration.to_owned(),
            limiter: Arc::new(limiter),
            hook: self.hook.clone(),
            hook_panics: AtomicU64::new(0),
        });
        limiters.insert(name.to_owned(), Arc::clone(&named));
        Ok(named)
    }

    /// The limiter of this name, if there is one.
    pub fn get(&self, name: &str) -> Option<Arc<Named<C>>> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).limiters.get(name).cloned()
    }

    /// Forgets the limiter of this name. Who holds it still can use it, but configurations no longer reach it.
    pub fn remove(&self, name: &str) -> Option<Arc<Named<C>>> {
        self.known.write().unwrap_or_else(PoisonError::into_inner).limiters.remove(name)
    }

    /// The names of all limiters, in order.
    pub fn names(&self) -> Vec<String> {
        self.known.read().unwrap_or_else(PoisonError::into_inner).limiters.keys().cloned().collect()
    }
}

impl<C> fmt::Debug for Registry<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        f.debug_struct("Registry").field("limiters", &known.limiters.keys()).finish_non_exhaustive()
    }
}

/// A limiter of a [`Registry`].
pub struct Named<C = PreciseClock> {
    name: String,
    configuration: String,
    limiter: Arc<Limiter<Live<Limits>, Arc<C>>>,
    hook: Option<Arc<Hook>>,
    hook_panics: AtomicU64,
}

impl<C: Clock + Send + Sync + 'static> Named<C> {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Takes `cost` or refuses, spending nothing.
    pub fn check(&self, cost: u64) -> Verdict<Stamps> {
        let verdict = self.limiter.check(cost);
        self.tell(|| if verdict.is_allowed() { Happened::Allowed } else { Happened::Refused }, cost);
        verdict
    }

    /// Takes `cost` as soon as there is room for it; see [`Acquire`].
    pub fn acquire(&self, cost: u64) -> Observed<'_, C> {
        Observed { acquire: Some(self.limiter.acquire(cost)), named: self, cost, since: None }
    }

    /// The limiter itself. What is done with it directly is not told to the hook.
    pub fn limiter(&self) -> &Arc<Limiter<Live<Limits>, Arc<C>>> {
        &self.limiter
    }

    /// How often the hook panicked.
    pub fn hook_panics(&self) -> u64 {
        self.hook_panics.load(Ordering::Relaxed)
    }

    #[inline]
    fn tell(&self, happened: impl FnOnce() -> Happened, cost: u64) {
        if let Some(hook) = &self.hook {
            let event = Event { limiter: &self.name, happened: happened(), cost };
            if catch_unwind(AssertUnwindSafe(|| hook(&event))).is_err() {
                self.hook_panics.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    fn mono(&self) -> Time<Mono> {
        self.limiter.clock.mono()
    }
}

impl<C> fmt::Debug for Named<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Named").field("name", &self.name).field("limiter", &self.limiter).finish_non_exhaustive()
    }
}

/// An [`Acquire`] at a limiter of a registry, whose hook is told how it went.
#[must_use = "nothing is taken until it is awaited or waited for"]
#[derive(Debug)]
pub struct Observed<'a, C: Clock + Send + Sync + 'static> {
    /// Taken out when there is an answer.
    acquire: Option<Acquire<'a, Limiter<Live<Limits>, Arc<C>>>>,
    named: &'a Named<C>,
    cost: u64,
    /// Since when it waits, if it does and somebody wants to know.
    since: Option<Time<Mono>>,
}

impl<C: Clock + Send + Sync + 'static> Observed<'_, C> {
    /// With a deadline; see [`Acquire::within`].
    pub fn within(mut self, patience: Duration) -> Self {
        self.acquire = self.acquire.take().map(|acquire| acquire.within(patience));
        self
    }

    /// Without waiting; see [`Acquire::at_once`].
    pub fn at_once(mut self) -> Self {
        self.acquire = self.acquire.take().map(Acquire::at_once);
        self
    }

    /// Blocks the thread until the turn comes.
    ///
    /// # Errors
    /// See [`AcquireError`]; nothing was taken then.
    pub fn wait(self) -> Result<Verdict<Stamps>, AcquireError> {
        block_on(self)
    }
}

impl<C: Clock + Send + Sync + 'static> Future for Observed<'_, C> {
    type Output = Result<Verdict<Stamps>, AcquireError>;

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
        let happened = || match (&result, this.since) {
            (Err(_), _) => Happened::Refused,
            (Ok(_), None) => Happened::Allowed,
            (Ok(_), Some(since)) => Happened::Waited(this.named.mono().since(since)),
        };
        this.named.tell(happened, this.cost);
        answer
    }
}

impl<C: Clock + Send + Sync + 'static> Drop for Observed<'_, C> {
    fn drop(&mut self) {
        // First the line, then the hook.
        if self.acquire.take().is_some() && self.since.is_some() {
            self.named.tell(|| Happened::Cancelled, self.cost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::ManualClock;
    use crate::{Limit, TokenBucket};
    use std::task::{Wake, Waker};

    fn limits(burst: u64) -> Limit {
        TokenBucket::new("10/s".parse().unwrap(), burst).unwrap().into()
    }

    fn registry() -> (Arc<ManualClock>, Registry<ManualClock>) {
        let clock = Arc::new(ManualClock::at(1_000_000_000));
        let registry = Registry::with_clock(Arc::clone(&clock));
        registry.configure("small", limits(2));
        registry.configure("large", limits(5));
        (clock, registry)
    }

    #[test]
    fn the_same_name_is_the_same_limiter_and_others_are_apart() {
        let (_clock, registry) = registry();
        let first = registry.limiter("a", "small").unwrap();
        assert!(first.check(2).is_allowed() && !registry.limiter("a", "large").unwrap().check(1).is_allowed());
        assert!(registry.limiter("b", "small").unwrap().check(2).is_allowed());
        assert_eq!((registry.names(), first.name()), (vec!["a".to_owned(), "b".to_owned()], "a"));
        assert!(registry.get("c").is_none() && registry.remove("b").is_some() && registry.get("b").is_none());
    }

    #[test]
    fn what_is_missing_is_named() {
        let (_clock, registry) = registry();
        let registry = registry.max_limiters(1);
        let error = registry.limiter("a", "tiny").unwrap_err();
        assert_eq!(error.to_string(), "there is no configuration `tiny`, configure it first");
        assert!(registry.limiter("a", "small").is_ok());
        assert_eq!(registry.limiter("b", "small").unwrap_err(), RegistryError::Full { max: 1 });
    }

    #[test]
    fn a_change_reaches_all_that_share_it_and_those_who_wait() {
        let (_clock, registry) = registry();
        let [a, b, c] = [("a", "small"), ("b", "small"), ("c", "large")]
            .map(|(name, config)| registry.limiter(name, config).unwrap());
        assert!(a.check(2).is_allowed() && b.check(2).is_allowed() && c.check(5).is_allowed());
        let mut waiting = a.acquire(1);
        assert!(Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        registry.configure("small", limits(4));
        assert!(Pin::new(&mut waiting).poll(&mut Context::from_waker(Waker::noop())).is_ready());
        assert_eq!([&a, &b, &c].map(|named| named.limiter().report(1).remaining), [1, 2, 0]);
    }

    #[test]
    fn of_two_changes_at_the_same_time_one_is_the_last_for_everybody() {
        struct Changes(Arc<Registry<ManualClock>>);
        impl Wake for Changes {
            fn wake(self: Arc<Self>) {
                self.0.configure("small", limits(9));
            }
        }
        let registry = Arc::new(registry().1);
        let [a, b] = ["a", "b"].map(|name| registry.limiter(name, "small").unwrap());
        assert!(a.check(2).is_allowed());
        let mut waiting = a.acquire(1);
        let waker = Waker::from(Arc::new(Changes(Arc::clone(&registry))));
        assert!(Pin::new(&mut waiting).poll(&mut Context::from_waker(&waker)).is_pending());
        // The second change comes while the first is on its way from one limiter to the next.
        registry.configure("small", limits(4));
        let c = registry.limiter("c", "small").unwrap();
        assert_eq!([&a, &b, &c].map(|named| named.limiter().numbers()), [(); 3].map(|()| limits(9).into()));
    }

    #[test]
    fn the_hook_is_told_what_happens() {
        let (clock, registry) = registry();
        let told = Arc::new(Mutex::new(Vec::new()));
        let ear = Arc::clone(&told);
        let registry = registry.on_event(move |event| ear.lock().unwrap().push((event.happened, event.cost)));
        let a = registry.limiter("a", "small").unwrap();
        assert!(a.check(2).is_allowed() && !a.check(1).is_allowed());
        assert!(a.acquire(1).at_once().wait().is_err() && a.acquire(3).wait().is_err());
        let (mut first, mut second) = (a.acquire(1), a.acquire(2).within(Duration::from_secs(9)));
        for future in [&mut first, &mut second] {
            assert!(Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        clock.run(Nanos::from_millis(100));
        assert!(Pin::new(&mut first).poll(&mut Context::from_waker(Waker::noop())).is_ready());
        drop(second);
        drop(a.acquire(1));
        let waited = Happened::Waited(Nanos::from_millis(100));
        use Happened::{Allowed, Cancelled, Refused};
        assert_eq!(
            *told.lock().unwrap(),
            [(Allowed, 2), (Refused, 1), (Refused, 1), (Refused, 3), (waited, 1), (Cancelled, 2)]
        );
    }

    #[test]
    fn a_hook_that_panics_changes_no_decision() {
        let (_clock, registry) = registry();
        let registry = registry.on_event(|_| panic!("a hook that panics"));
        let a = registry.limiter("a", "small").unwrap();
        assert!(a.check(1).is_allowed() && a.acquire(1).wait().is_ok() && !a.check(1).is_allowed());
        assert_eq!((a.hook_panics(), a.limiter().report(1).remaining), (3, 0));
    }
}
