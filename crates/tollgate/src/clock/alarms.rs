//! Alarms: the schedule of a clock, and the thread that fires alarms in real time.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A callback that runs at a given time; see [`Clock::wake_at`](super::Clock::wake_at).
pub trait Alarm: Send + Sync {
    /// Called at about the scheduled time, possibly early. The implementation must read the clock.
    fn fire(&self);
}

/// Scheduled alarms. Each alarm has at most one scheduled time. Dropped alarms never fire.
pub(super) struct Schedule<T> {
    by_time: BTreeMap<(T, usize), Weak<dyn Alarm>>,
    times: HashMap<usize, T>,
}

impl<T: Copy + Ord> Schedule<T> {
    fn new() -> Self {
        Self { by_time: BTreeMap::new(), times: HashMap::new() }
    }

    pub(super) fn set(&mut self, at: T, alarm: &Arc<dyn Alarm>) {
        let id = alarm_id(alarm);
        if let Some(before) = self.times.insert(id, at) {
            self.by_time.remove(&(before, id));
        }
        self.by_time.insert((at, id), Arc::downgrade(alarm));
    }

    pub(super) fn remove(&mut self, alarm: &Arc<dyn Alarm>) {
        let id = alarm_id(alarm);
        if let Some(at) = self.times.remove(&id) {
            self.by_time.remove(&(at, id));
        }
    }

    pub(super) fn first(&self) -> Option<T> {
        self.by_time.first_key_value().map(|((at, _), _)| *at)
    }

    /// Removes the alarms whose time is at or before `now`, and returns them, earliest first.
    pub(super) fn take_due(&mut self, now: T) -> Vec<Arc<dyn Alarm>> {
        let mut due = Vec::new();
        while self.first().is_some_and(|at| at <= now) {
            due.extend(self.pop());
        }
        due
    }

    /// Removes all alarms.
    pub(super) fn remove_all(&mut self) -> Vec<Arc<dyn Alarm>> {
        let mut all = Vec::new();
        while !self.by_time.is_empty() {
            all.extend(self.pop());
        }
        all
    }

    fn pop(&mut self) -> Option<Arc<dyn Alarm>> {
        let ((_, id), alarm) = self.by_time.pop_first()?;
        self.times.remove(&id);
        alarm.upgrade()
    }
}

impl<T: Copy + Ord> Default for Schedule<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> fmt::Debug for Schedule<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Schedule").field("len", &self.times.len()).finish()
    }
}

/// Returns the address of an alarm as its id. The schedule's weak reference prevents reuse of the address.
fn alarm_id(alarm: &Arc<dyn Alarm>) -> usize {
    Arc::as_ptr(alarm).cast::<()>() as usize
}

/// Fires alarms in real time, on one thread for all limiters of the process.
///
/// The timer has its own thread instead of using a runtime's timer. So the timer serves both blocked threads and
/// futures, works with or without an executor, and survives the shutdown of an executor. The thread sleeps until the
/// earliest alarm.
#[derive(Default)]
pub(super) struct Timer {
    /// Locked only to change the schedule or to wait for a change, never while an alarm fires.
    schedule: Mutex<Schedule<Instant>>,
    earlier_alarm_set: Condvar,
}

/// Maximum time for which an alarm is set in advance. A later alarm fires early and is set again.
const MAX_DELAY: Duration = Duration::from_secs(365 * 86_400);

impl Timer {
    /// Returns the timer of the process, and starts its thread on first use.
    pub(super) fn shared() -> std::io::Result<&'static Self> {
        static SHARED: OnceLock<Timer> = OnceLock::new();
        static STARTED: Mutex<bool> = Mutex::new(false);
        let timer = SHARED.get_or_init(Self::default);
        // If the start fails, the next caller tries again.
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        if !*started {
            std::thread::Builder::new().name("tollgate-timer".into()).spawn(|| timer.run_thread())?;
            *started = true;
        }
        Ok(timer)
    }

    pub(super) fn set(&self, after: Duration, alarm: &Arc<dyn Alarm>) {
        let now = now();
        let at = now.checked_add(after.min(MAX_DELAY)).unwrap_or(now);
        let mut schedule = self.lock();
        let first = schedule.first();
        schedule.set(at, alarm);
        drop(schedule);
        if first.is_none_or(|first| at < first) {
            self.earlier_alarm_set.notify_one();
        }
    }

    pub(super) fn remove(&self, alarm: &Arc<dyn Alarm>) {
        self.lock().remove(alarm);
    }

    fn run_thread(&self) {
        let mut schedule = self.lock();
        loop {
            let due = schedule.take_due(now());
            if !due.is_empty() {
                drop(schedule);
                due.iter().for_each(fire_alarm);
                drop(due);
                schedule = self.lock();
                continue;
            }
            schedule = match schedule.first() {
                None => self.earlier_alarm_set.wait(schedule).unwrap_or_else(PoisonError::into_inner),
                Some(at) => {
                    let left = at.saturating_duration_since(now());
                    self.earlier_alarm_set.wait_timeout(schedule, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, Schedule<Instant>> {
        self.schedule.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Fires an alarm and catches a panic, so that the remaining alarms still fire.
pub(super) fn fire_alarm(alarm: &Arc<dyn Alarm>) {
    let _: Result<(), _> = catch_unwind(AssertUnwindSafe(|| alarm.fire()));
}

#[allow(clippy::disallowed_methods, reason = "this module is where clocks are read")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Sender, channel};

    struct TestAlarm(u32, Sender<u32>);

    impl Alarm for TestAlarm {
        fn fire(&self) {
            self.1.send(self.0).unwrap();
            assert!(self.0 < 100, "an alarm that panics");
        }
    }

    #[test]
    fn alarm_fires_at_its_last_time_unless_it_was_dropped() {
        let (sender, _receiver) = channel();
        let alarm = |number| -> Arc<dyn Alarm> { Arc::new(TestAlarm(number, sender.clone())) };
        let (first, second, gone) = (alarm(1), alarm(2), alarm(3));
        let mut schedule = Schedule::<u64>::new();
        schedule.set(5, &first);
        schedule.set(7, &second);
        schedule.set(9, &first);
        schedule.set(8, &gone);
        drop(gone);
        assert_eq!((schedule.first(), schedule.take_due(6).len()), (Some(7), 0));
        assert!(Arc::ptr_eq(&schedule.take_due(8)[0], &second));
        schedule.remove(&first);
        assert_eq!((schedule.first(), schedule.remove_all().len()), (None, 0));
    }

    #[test]
    fn timer_fires_in_order_and_survives_a_panic() {
        let (sender, receiver) = channel();
        let schedule = [130, 20, 10].map(|number| -> Arc<dyn Alarm> { Arc::new(TestAlarm(number, sender.clone())) });
        let timer = Timer::shared().unwrap();
        // Set under the timer's lock, so that all alarms are scheduled before the first alarm fires.
        let mut list = timer.lock();
        let start = now();
        schedule.iter().zip([0, 2, 1]).for_each(|(alarm, nanos)| list.set(start + Duration::from_nanos(nanos), alarm));
        drop(list);
        timer.earlier_alarm_set.notify_one();
        assert_eq!([(); 3].map(|()| receiver.recv().unwrap()), [130, 10, 20]);
    }
}
