//! Bells and the time they are to ring: the list that a clock keeps, and the thread that rings them by the real one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Somebody to be told that a moment has come; see [`Clock::ring_at`](super::Clock::ring_at).
pub trait Bell: Send + Sync {
    /// The moment has come, or is near: whoever is rung looks at the clock again.
    fn ring(&self);
}

/// Which bell is to ring when. A bell has one time at most, and one that nobody holds any more is forgotten.
pub(super) struct Bells<T> {
    by_time: BTreeMap<(T, usize), Weak<dyn Bell>>,
    times: HashMap<usize, T>,
}

impl<T: Copy + Ord> Bells<T> {
    fn new() -> Self {
        Self { by_time: BTreeMap::new(), times: HashMap::new() }
    }

    pub(super) fn set(&mut self, at: T, bell: &Arc<dyn Bell>) {
        let id = id(bell);
        if let Some(before) = self.times.insert(id, at) {
            self.by_time.remove(&(before, id));
        }
        self.by_time.insert((at, id), Arc::downgrade(bell));
    }

    pub(super) fn remove(&mut self, bell: &Arc<dyn Bell>) {
        let id = id(bell);
        if let Some(at) = self.times.remove(&id) {
            self.by_time.remove(&(at, id));
        }
    }

    pub(super) fn first(&self) -> Option<T> {
        self.by_time.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes out those that are due at `now`, the earliest first.
    pub(super) fn take_due(&mut self, now: T) -> Vec<Arc<dyn Bell>> {
        let mut due = Vec::new();
        while self.first().is_some_and(|at| at <= now) {
            due.extend(self.pop());
        }
        due
    }

    /// Takes out all.
    pub(super) fn take_all(&mut self) -> Vec<Arc<dyn Bell>> {
        let mut all = Vec::new();
        while !self.by_time.is_empty() {
            all.extend(self.pop());
        }
        all
    }

    fn pop(&mut self) -> Option<Arc<dyn Bell>> {
        let ((_, id), bell) = self.by_time.pop_first()?;
        self.times.remove(&id);
        bell.upgrade()
    }
}

impl<T: Copy + Ord> Default for Bells<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for Bells<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bells").field("len", &self.times.len()).finish()
    }
}

/// The address tells bells apart: the list holds on to it, so no other bell can have it meanwhile.
fn id(bell: &Arc<dyn Bell>) -> usize {
    Arc::as_ptr(bell).cast::<()>() as usize
}

/// Rings by the real clock, from a thread of its own that all limiters of the process share.
///
/// A thread of ours and not a runtime's timer: it serves blocked threads and futures alike, under any executor or none, and
/// goes on when an executor has been shut down. It sleeps until the earliest time on the list.
#[derive(Default)]
pub(super) struct Timer {
    /// A mutex for a condition to wait on; held only to change the list.
    bells: Mutex<Bells<Instant>>,
    sooner: Condvar,
}

/// As good as never.
const FAR: Duration = Duration::from_secs(365 * 86_400);

impl Timer {
    /// The one of this process, started when first asked for.
    pub(super) fn shared() -> std::io::Result<&'static Self> {
        static SHARED: OnceLock<Timer> = OnceLock::new();
        static STARTED: Mutex<bool> = Mutex::new(false);
        let timer = SHARED.get_or_init(Self::default);
        // Not kept from trying again: what was missing for a thread may be there the next time.
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        if !*started {
            std::thread::Builder::new().name("tollgate-timer".into()).spawn(|| timer.run())?;
            *started = true;
        }
        Ok(timer)
    }

    pub(super) fn set(&self, after: Duration, bell: &Arc<dyn Bell>) {
        let now = now();
        let at = now.checked_add(after.min(FAR)).unwrap_or(now);
        let mut bells = self.lock();
        let first = bells.first();
        bells.set(at, bell);
        drop(bells);
        if first.is_none_or(|first| at < first) {
            self.sooner.notify_one();
        }
    }

    pub(super) fn remove(&self, bell: &Arc<dyn Bell>) {
        self.lock().remove(bell);
    }

    fn run(&self) {
        let mut bells = self.lock();
        loop {
            let due = bells.take_due(now());
            if !due.is_empty() {
                drop(bells);
                due.iter().for_each(ring);
                drop(due);
                bells = self.lock();
                continue;
            }
            bells = match bells.first() {
                None => self.sooner.wait(bells).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_duration_since(now());
                    self.sooner.wait_timeout(bells, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Bells<Instant>> {
        self.bells.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Rings, and survives a bell that panics: the others have to be rung, too.
pub(super) fn ring(bell: &Arc<dyn Bell>) {
    let _: Result<(), _> = catch_unwind(AssertUnwindSafe(|| bell.ring()));
}

#[allow(clippy::disallowed_methods, reason = "this module is where clocks are read")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    struct Named(u32, Sender<u32>);

    impl Bell for Named {
        fn ring(&self) {
            self.1.send(self.0).unwrap();
            assert!(self.0 < 100, "a bell that panics");
        }
    }

    #[test]
    fn a_bell_rings_at_its_last_time_only_and_not_once_it_is_gone() {
        let (sender, _receiver) = channel();
        let bell = |number| -> Arc<dyn Bell> { Arc::new(Named(number, sender.clone())) };
        let (first, second, gone) = (bell(1), bell(2), bell(3));
        let mut bells = Bells::<u64>::new();
        bells.set(5, &first);
        bells.set(7, &second);
        bells.set(9, &first);
        bells.set(8, &gone);
        drop(gone);
        assert_eq!((bells.first(), bells.take_due(6).len()), (Some(7), 0));
        assert!(Arc::ptr_eq(&bells.take_due(8)[0], &second));
        bells.remove(&first);
        assert_eq!((bells.first(), bells.take_all().len()), (None, 0));
    }

    #[test]
    fn the_timer_rings_in_order_of_time_and_survives_a_bell_that_panics() {
        let (sender, receiver) = channel();
        let bells = [130, 20, 10].map(|number| -> Arc<dyn Bell> { Arc::new(Named(number, sender.clone())) });
        let timer = Timer::shared().unwrap();
        // Set while the timer's thread cannot look, so that all are in the list before the first rings.
        let mut list = timer.lock();
        let start = now();
        bells.iter().zip([0, 2, 1]).for_each(|(bell, nanos)| list.set(start + Duration::from_nanos(nanos), bell));
        drop(list);
        timer.sooner.notify_one();
        assert_eq!([(); 3].map(|()| receiver.recv().unwrap()), [130, 10, 20]);
    }
}
