//! A waiting room: the lines of those who wait, and what is to be looked at when.
//!
//! Nobody in a line holds anything. When the time comes that the limit named for the first of a line, the room asks the
//! limit again, takes what it grants, gives it to that waiter, and goes on with the next. This is done by whoever notices
//! first: the clock's bell, somebody who gives back, somebody who leaves the head of a line. It is never the task of a
//! waiter, so a future that nobody polls holds up no one.
//!
//! Granting and leaving take a few steps each, joining with a deadline as many more as the logarithm of the number of
//! deadlines. No line is ever walked along; what is left over from deadlines is swept out now and then, in as many steps as
//! there were leavings since.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;

use tollgate_core::{Nanos, Verdict};

use super::book::{Book, Joined};
use super::line::{Answer, Seat, Waiter};
use super::{AcquireError, Gate};
use crate::clock::{Bell, Clock};

/// All waiting rooms of a limiter, and how many may wait in them.
pub struct Rooms<K, S> {
    rooms: Box<[Room<K, S>]>,
    /// Those who have a seat, in all rooms. It is only counted, and orders nothing.
    seated: AtomicUsize,
    pub(crate) max: usize,
    pub(crate) max_in_line: usize,
}

impl<K, S> fmt::Debug for Rooms<K, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rooms").field("seated", &self.seated).field("max", &self.max).finish_non_exhaustive()
    }
}

impl<K: Copy + Ord, S: Copy> Rooms<K, S> {
    /// How many may wait at the same time unless said otherwise.
    pub(crate) const MAX_WAITERS: usize = 1 << 16;

    pub(crate) fn new(rooms: usize) -> Self {
        let rooms = (0..rooms).map(|_| Room::new()).collect();
        Self { rooms, seated: AtomicUsize::new(0), max: Self::MAX_WAITERS, max_in_line: usize::MAX }
    }

    pub(crate) fn max_in_line(mut self, max: usize) -> Self {
        self.max_in_line = max;
        self
    }

    /// The room with this number, counted round.
    #[inline]
    pub(super) fn room(&self, number: usize) -> &Room<K, S> {
        match &*self.rooms {
            [only] => only,
            rooms => &rooms[number % rooms.len()],
        }
    }

    pub(crate) fn waiting(&self) -> usize {
        self.rooms.iter().map(|room| room.waiting.load(Ordering::Relaxed)).sum()
    }

    /// After something was given back to `key`, in the room with this number, or its numbers changed: those who wait for it
    /// may pass sooner.
    #[inline]
    pub(crate) fn look_at(&self, number: usize, key: K) {
        // Pairs with the fence in `join`: either we see that somebody waits, or they see what was given back.
        fence(Ordering::SeqCst);
        let room = self.room(number);
        if !room.is_empty()
            && let Some(bells) = room.bell.get()
        {
            bells.attendant.attend(key);
        }
    }
}

pub(super) struct Room<K, S> {
    /// How many stand in a line. Written under the lock; read without it by those who hope that nobody does.
    waiting: AtomicUsize,
    /// A mutex: it is held for the few steps of one change, and by nobody who need not wait.
    book: Mutex<Book<K, S>>,
    /// Made when somebody first waits.
    bell: OnceLock<Bells<K>>,
}

/// The same thing seen twice.
struct Bells<K> {
    /// Rung by the clock.
    clock: Arc<dyn Bell>,
    /// Told by whoever gives back.
    attendant: Arc<dyn Attendant<K>>,
}

/// Knows the limiter that a room belongs to, if it is still there.
trait Attendant<K>: Send + Sync {
    fn attend(&self, key: K);
}

impl<K: Copy + Ord, S: Copy> Room<K, S> {
    fn new() -> Self {
        Self { waiting: AtomicUsize::new(0), book: Mutex::new(Book::new()), bell: OnceLock::new() }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) == 0
    }

    /// Takes `cost` at once, or refuses at once, or takes a seat at the end of the key's line.
    pub(super) fn join<G>(&self, gate: &Arc<G>, ask: Waiter<K, S>, patience: Nanos) -> Joined<S>
    where
        G: Gate<Key = K, Stamp = S>,
    {
        let bells = self.bell.get_or_init(|| {
            let bell = Arc::new(RoomBell { gate: Arc::downgrade(gate), key: ask.key });
            Bells { clock: Arc::clone(&bell) as _, attendant: bell }
        });
        let rooms = gate.rooms();
        let seated = rooms.seated.fetch_add(1, Ordering::Relaxed);
        let mut book = self.lock();
        // Announced before the limit is asked: see `Rooms::look_at`.
        self.waiting.store(book.waiting + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let (joined, mut gone) = book.join(&**gate, ask, patience, seated < rooms.max);
        self.waiting.store(book.waiting, Ordering::Relaxed);
        let joined = match (book.arm(&**gate, &bells.clock), joined) {
            (Err(_), Joined::Seated(seat)) => {
                // Nobody would ever be woken.
                gone = book.leave(seat).map(|(waiter, _)| waiter);
                self.waiting.store(book.waiting, Ordering::Relaxed);
                Joined::AtOnce(Err(AcquireError::NoTimer))
            }
            (_, joined) => joined,
        };
        self.unlock(&**gate, book);
        drop(gone);
        if let Joined::AtOnce(_) = joined {
            rooms.seated.fetch_sub(1, Ordering::Relaxed);
        }
        joined
    }

    /// The answer, once there is one; until then `waker` is kept.
    pub(super) fn collect<G>(&self, gate: &G, seat: Seat, waker: &Waker) -> Option<Result<Verdict<S>, AcquireError>>
    where
        G: Gate<Key = K, Stamp = S>,
    {
        // A waker is somebody else's code, and dropping one may drop a task with a future of ours: never under the lock.
        let fresh = waker.clone();
        let mut book = self.lock();
        let answer = &mut book.seats.get_mut(seat)?.answer;
        if let Answer::Waiting(kept) = answer {
            let _old = if kept.will_wake(&fresh) { fresh } else { std::mem::replace(kept, fresh) };
            drop(book);
            return None;
        }
        let waiter = book.seats.rise(seat)?;
        drop(book);
        gate.rooms().seated.fetch_sub(1, Ordering::Relaxed);
        match waiter.answer {
            Answer::Granted(verdict) => Some(Ok(verdict)),
            Answer::Refused(error) => Some(Err(error)),
            Answer::Waiting(_) => None,
        }
    }

    /// Gives the seat up. Those behind it move up, and what was taken for it is given back.
    pub(super) fn leave<G: Gate<Key = K, Stamp = S>>(&self, gate: &G, seat: Seat) {
        let mut book = self.lock();
        let Some((waiter, was_first)) = book.leave(seat) else { return };
        let mut woken = Vec::new();
        if was_first {
            let now = gate.now();
            book.advance(gate, waiter.key, &now, &mut woken);
        }
        self.waiting.store(book.waiting, Ordering::Relaxed);
        self.rearm(gate, &mut book);
        self.unlock(gate, book);
        gate.rooms().seated.fetch_sub(1, Ordering::Relaxed);
        wake(woken);
        if let Answer::Granted(verdict) = waiter.answer {
            gate.give_back(waiter.key, &verdict, verdict.taken());
        }
    }

    /// Grants what can be granted now, to the key's line in any case and to the others whose time has come; then refuses
    /// those whose deadline has passed. Without a key it is the bell that asks.
    pub(super) fn attend<G: Gate<Key = K, Stamp = S>>(&self, gate: &G, key: Option<K>) {
        let mut key = key;
        loop {
            let mut woken = Vec::new();
            let mut book = self.lock();
            book.attend(gate, key, &mut woken);
            self.waiting.store(book.waiting, Ordering::Relaxed);
            self.rearm(gate, &mut book);
            let armed = book.armed;
            drop(book);
            wake(woken);
            if !has_passed(gate, armed) {
                return;
            }
            key = None;
        }
    }

    fn rearm<G: Gate<Key = K, Stamp = S>>(&self, gate: &G, book: &mut Book<K, S>) {
        if let Some(bells) = self.bell.get() {
            // It rang before, so the thread that rings is there.
            let _: std::io::Result<()> = book.arm(gate, &bells.clock);
        }
    }

    /// Lets go of the book.
    fn unlock<G: Gate<Key = K, Stamp = S>>(&self, gate: &G, book: MutexGuard<'_, Book<K, S>>) {
        let armed = book.armed;
        drop(book);
        if has_passed(gate, armed) {
            self.attend(gate, None);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Book<K, S>> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether the clock has passed what the bell was just set to: another thread may have moved it, or the rate is so high that
/// the next turn came meanwhile.
fn has_passed<G: Gate>(gate: &G, armed: Option<u64>) -> bool {
    armed.is_some_and(|at| at <= gate.clock().mono().as_nanos())
}

/// Wakes all of them, even if waking one panics.
fn wake(woken: Vec<Waker>) {
    for waker in woken {
        let _: Result<(), _> = catch_unwind(AssertUnwindSafe(|| waker.wake()));
    }
}

/// Rings for one room of a limiter that may be gone.
struct RoomBell<G: Gate> {
    gate: Weak<G>,
    /// Some key of that room.
    key: G::Key,
}

impl<G: Gate> Attendant<G::Key> for RoomBell<G> {
    fn attend(&self, key: G::Key) {
        if let Some(gate) = self.gate.upgrade() {
            gate.rooms().room(G::room_of(key)).attend(&*gate, Some(key));
        }
    }
}

impl<G: Gate> Bell for RoomBell<G> {
    fn ring(&self) {
        if let Some(gate) = self.gate.upgrade() {
            gate.rooms().room(G::room_of(self.key)).attend(&*gate, None);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::book::SWEEP;
    use super::*;
    use crate::Limiter;
    use crate::testing::{bucket, clock};
    use std::future::Future;
    use std::pin::Pin;
    use std::task::Context;
    use std::time::Duration;

    #[test]
    fn deadlines_of_those_who_left_do_not_pile_up() {
        let clock = clock();
        let limiter = Arc::new(Limiter::with_clock(bucket(1), Arc::clone(&clock)));
        limiter.drain();
        let joined = |millis| {
            let mut future = limiter.acquire(1).within(Duration::from_millis(millis));
            assert!(Pin::new(&mut future).poll(&mut Context::from_waker(Waker::noop())).is_pending());
            future
        };
        let mut first = joined(100);
        for turn in 0..5 * SWEEP as u64 {
            drop(joined(200 + turn));
            assert!(limiter.rooms.room(0).lock().deadlines.len() <= SWEEP + 1);
        }
        let mut second = joined(3_000);
        limiter.charge(1);
        clock.run(Nanos::from_millis(100));
        let poll = |future: &mut crate::Acquire<'_, _>| {
            Pin::new(future).poll(&mut Context::from_waker(Waker::noop())).map(|answer| answer.err())
        };
        assert_eq!(poll(&mut first), std::task::Poll::Ready(Some(AcquireError::TimedOut)));
        clock.run(Nanos::from_millis(100));
        assert_eq!(poll(&mut second), std::task::Poll::Ready(None));
        assert_eq!(limiter.rooms.room(0).lock().deadlines.len(), 0);
    }
    #[test]
    fn a_waker_is_not_dropped_under_the_lock() {
        type Bucket = Arc<Limiter<crate::TokenBucket, Arc<crate::clock::ManualClock>>>;
        struct Looks(Bucket, std::sync::mpsc::Sender<bool>);
        impl std::task::Wake for Looks {
            fn wake(self: Arc<Self>) {}
        }
        impl Drop for Looks {
            fn drop(&mut self) {
                self.1.send(self.0.rooms.room(0).book.try_lock().is_ok()).unwrap();
            }
        }
        let limiter: Bucket = Arc::new(Limiter::with_clock(bucket(1), clock()).max_waiters(0));
        let (sender, dropped) = std::sync::mpsc::channel();
        // The room has the only waker there is.
        let join = |cost, patience| {
            let waker = Waker::from(Arc::new(Looks(Arc::clone(&limiter), sender.clone())));
            let joined = limiter.rooms.room(0).join(&limiter, Waiter::new((), cost, 0, waker), patience);
            assert!(dropped.try_recv().unwrap(), "the room was locked");
            match joined {
                Joined::AtOnce(result) => result.map(|_| ()),
                Joined::Seated(_) => panic!("there are no seats"),
            }
        };
        assert_eq!(join(1, Nanos::MAX), Ok(()));
        assert_eq!(join(2, Nanos::MAX), Err(AcquireError::NeverFits));
        assert!(matches!(join(1, Nanos::ZERO), Err(AcquireError::TooLate { .. })));
        assert_eq!(join(1, Nanos::MAX), Err(AcquireError::Full));
    }
}
