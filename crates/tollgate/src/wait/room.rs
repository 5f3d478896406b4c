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

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::Waker;

use tollgate_core::{Cost, Mono, Nanos, Now, Outcome, Retry, Time, Verdict};

use super::line::{Answer, Line, Seat, Seats, Waiter};
use super::{AcquireError, Gate};
use crate::clock::{Bell, Clock};

/// How long something may go unnoticed that no bell can be set for: a step of the wall clock, a table that has room again.
const LOOK_AGAIN: Nanos = Nanos::SECOND;

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

#[derive(Debug)]
struct Book<K, S> {
    seats: Seats<K, S>,
    lines: BTreeMap<K, Line>,
    /// When the first of a line is to be looked at.
    agenda: BTreeSet<(u64, K)>,
    /// When somebody in a line has waited long enough, the soonest on top. Who got an answer or left before is left in it,
    /// so that neither has to look for it here.
    deadlines: BinaryHeap<Reverse<Deadline>>,
    /// How many of those are about nobody who still waits.
    stale: usize,
    /// A number for everybody who ever sat down, by which a deadline is known to be about somebody else by now.
    seatings: u64,
    waiting: usize,
    /// What the bell is set to.
    armed: Option<u64>,
    /// The latest readings of both clocks, to notice when one went back.
    latest: (u64, u64),
}

/// The instant, the seat, and the number of the seating.
type Deadline = (u64, Seat, u64);

/// Stale deadlines are swept out when they outnumber the others, and are at least so many.
const SWEEP: usize = 1_024;

/// How joining went.
pub(super) enum Joined<S> {
    AtOnce(Result<Verdict<S>, AcquireError>),
    Seated(Seat),
}

impl<K: Copy + Ord, S: Copy> Room<K, S> {
    fn new() -> Self {
        let book = Book {
            seats: Seats::new(),
            lines: BTreeMap::new(),
            agenda: BTreeSet::new(),
            deadlines: BinaryHeap::new(),
            stale: 0,
            seatings: 0,
            waiting: 0,
            armed: None,
            latest: (0, 0),
        };
        Self { waiting: AtomicUsize::new(0), book: Mutex::new(book), bell: OnceLock::new() }
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
        // Announced before the limit is asked: see `given_back`.
        self.waiting.store(book.waiting + 1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let joined = book.join(&**gate, ask, patience, seated < rooms.max);
        self.waiting.store(book.waiting, Ordering::Relaxed);
        let mut gone = None;
        let joined = match (book.arm(&**gate, &bells.clock), joined) {
            (Err(_), Joined::Seated(seat)) => {
                // Nobody would ever be woken.
                gone = book.leave(seat);
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

impl<K: Copy + Ord, S: Copy> Book<K, S> {
    fn join<G>(&mut self, gate: &G, mut waiter: Waiter<K, S>, patience: Nanos, has_room: bool) -> Joined<S>
    where
        G: Gate<Key = K, Stamp = S>,
    {
        let refuse = |error| Joined::AtOnce(Err(error));
        let (now, key, cost) = (gate.now(), waiter.key, Cost::new(waiter.cost));
        let (in_line, ahead) = self.lines.get(&key).map_or((0, 0), |line| (line.len(), line.cost()));
        let retry = if in_line > 0 {
            gate.wait_behind(key, Cost::new(ahead), cost, &now)
        } else {
            let verdict = gate.take(key, cost, &now, self.went_back(&now));
            self.seen(&now);
            match verdict.outcome() {
                Outcome::Allow => return Joined::AtOnce(Ok(verdict)),
                Outcome::Delay(wait) => Retry::After(wait),
                Outcome::Deny(retry) => retry,
            }
        };
        waiter.deadline = now.mono().saturating_add(patience).as_nanos();
        let in_time = match retry {
            Retry::Never => return refuse(AcquireError::NeverFits),
            Retry::After(wait) => now.mono().saturating_add(wait).as_nanos() <= waiter.deadline,
            Retry::OnRelease => true,
        };
        // Whoever has no time at all does not queue, even if those ahead may be gone in the same instant.
        if !in_time || patience == Nanos::ZERO {
            return refuse(AcquireError::TooLate { retry });
        }
        if !has_room || in_line >= gate.rooms().max_in_line {
            return refuse(AcquireError::Full);
        }
        let deadline = waiter.deadline;
        self.seatings += 1;
        waiter.seating = self.seatings;
        let seat = self.seats.sit(waiter);
        let line = self.lines.entry(key).or_insert_with(Line::new);
        line.join(&mut self.seats, seat);
        self.waiting += 1;
        if deadline != u64::MAX {
            self.deadlines.push(Reverse((deadline, seat, self.seatings)));
        }
        if in_line == 0 {
            self.look_at(gate, key, retry, &now);
        }
        Joined::Seated(seat)
    }

    /// Takes the waiter out of its seat, and out of its line if it still stands there; tells whether it stood first.
    fn leave(&mut self, seat: Seat) -> Option<(Waiter<K, S>, bool)> {
        let waiter = self.seats.get_mut(seat)?;
        let (key, waits) = (waiter.key, matches!(waiter.answer, Answer::Waiting(_)));
        let was_first = waits && self.lines.get(&key).is_some_and(|line| line.first() == Some(seat));
        if waits {
            self.leave_line(key, seat);
        }
        Some((self.seats.rise(seat)?, was_first))
    }

    fn leave_line(&mut self, key: K, seat: Seat) {
        let Some(line) = self.lines.get_mut(&key) else { return };
        line.leave(&mut self.seats, seat);
        self.waiting -= 1;
        if line.first().is_none() {
            if let Some(due) = line.due {
                self.agenda.remove(&(due, key));
            }
            self.lines.remove(&key);
        }
        if self.seats.get_mut(seat).is_some_and(|waiter| waiter.deadline != u64::MAX) {
            self.stale += 1;
        }
        if self.waiting == 0 {
            self.deadlines.clear();
            self.stale = 0;
        } else if self.stale >= SWEEP && self.stale > self.deadlines.len() / 2 {
            // Each sweep follows at least as many leavings as it looks at entries that stay: a step or two for each.
            let Self { deadlines, seats, .. } = self;
            // The one that leaves now still sits, and stays in for another sweep: that is one entry.
            deadlines.retain(|Reverse((_, seat, seating))| waits(seats, *seat, *seating));
            self.stale = 0;
        }
    }

    fn attend<G: Gate<Key = K, Stamp = S>>(&mut self, gate: &G, key: Option<K>, woken: &mut Vec<Waker>) {
        let now = gate.now();
        let at = now.mono().as_nanos();
        // What the agenda says was computed on a clock that has been set back since: look at everything.
        if self.went_back(&now) {
            let keys: Vec<K> = self.lines.keys().copied().collect();
            keys.into_iter().for_each(|key| self.advance(gate, key, &now, woken));
            self.latest = (at, now.wall().as_nanos());
        } else if let Some(key) = key {
            self.advance(gate, key, &now, woken);
        }
        while let Some((_, key)) = self.agenda.first().copied().filter(|(due, _)| *due <= at) {
            self.advance(gate, key, &now, woken);
        }
        // After the granting: whose turn came in time is not refused because the bell was late.
        while let Some(Reverse((deadline, seat, seating))) = self.deadlines.peek().copied() {
            if deadline > at {
                break;
            }
            self.deadlines.pop();
            if waits(&mut self.seats, seat, seating) {
                self.time_out(gate, seat, &now, woken);
            }
            // It was stale, or has become so just now.
            self.stale = self.stale.saturating_sub(1);
        }
        // A bell that rang is no longer set, even if it rang early.
        if key.is_none() {
            self.armed = None;
        }
    }

    fn time_out<G: Gate<Key = K, Stamp = S>>(&mut self, gate: &G, seat: Seat, now: &Now<'_>, woken: &mut Vec<Waker>) {
        let Some(key) = self.seats.get_mut(seat).map(|waiter| waiter.key) else { return };
        let was_first = self.lines.get(&key).is_some_and(|line| line.first() == Some(seat));
        self.settle(key, seat, Answer::Refused(AcquireError::TimedOut), woken);
        if was_first {
            self.advance(gate, key, now, woken);
        }
    }

    /// Grants to the first of the line as long as the limit does.
    fn advance<G: Gate<Key = K, Stamp = S>>(&mut self, gate: &G, key: K, now: &Now<'_>, woken: &mut Vec<Waker>) {
        let went_back = self.went_back(now);
        self.seen(now);
        let due = self.lines.get(&key).and_then(|line| line.due);
        while let Some(seat) = self.lines.get(&key).and_then(Line::first) {
            let Some(waiter) = self.seats.get_mut(seat) else { return };
            let now = &gate.as_of(due, now);
            let verdict = gate.take(key, Cost::new(waiter.cost), now, went_back);
            let retry = match verdict.outcome() {
                Outcome::Allow => {
                    self.settle(key, seat, Answer::Granted(verdict), woken);
                    continue;
                }
                // The numbers changed, and now it does not fit.
                Outcome::Deny(Retry::Never) => {
                    self.settle(key, seat, Answer::Refused(AcquireError::NeverFits), woken);
                    continue;
                }
                Outcome::Delay(wait) => Retry::After(wait),
                Outcome::Deny(retry) => retry,
            };
            self.look_at(gate, key, retry, now);
            return;
        }
    }

    /// Notes when the first of the line is to be looked at again.
    fn look_at<G: Gate<Key = K, Stamp = S>>(&mut self, gate: &G, key: K, retry: Retry, now: &Now<'_>) {
        let wait = match retry {
            Retry::After(wait) if gate.uses_wall_clock() => wait.min(LOOK_AGAIN),
            Retry::After(wait) => wait,
            Retry::OnRelease | Retry::Never => gate.look_again(key, now).unwrap_or(LOOK_AGAIN),
        };
        // A bell for this very instant would have rung already.
        let due = now.mono().saturating_add(wait.max(Nanos::from_nanos(1))).as_nanos();
        let Some(line) = self.lines.get_mut(&key) else { return };
        if let Some(before) = line.due.replace(due) {
            self.agenda.remove(&(before, key));
        }
        self.agenda.insert((due, key));
    }

    /// Gives a waiter its answer and takes it out of its line; it keeps its seat until it collects.
    fn settle(&mut self, key: K, seat: Seat, answer: Answer<S>, woken: &mut Vec<Waker>) {
        self.leave_line(key, seat);
        let Some(waiter) = self.seats.get_mut(seat) else { return };
        if let Answer::Waiting(waker) = std::mem::replace(&mut waiter.answer, answer) {
            woken.push(waker);
        }
    }

    /// Whether one of the clocks was set back. Threads read them in another order than they come here, so a little does not
    /// count, as little as for the limits themselves.
    fn went_back(&self, now: &Now<'_>) -> bool {
        let back = |now: u64, latest: u64| now.saturating_add(Nanos::SECOND.as_nanos()) < latest;
        back(now.mono().as_nanos(), self.latest.0) || back(now.wall().as_nanos(), self.latest.1)
    }

    fn seen(&mut self, now: &Now<'_>) {
        self.latest.0 = self.latest.0.max(now.mono().as_nanos());
        self.latest.1 = self.latest.1.max(now.wall().as_nanos());
    }

    /// Sets the bell to the next moment that anybody waits for.
    fn arm<G: Gate<Key = K, Stamp = S>>(&mut self, gate: &G, bell: &Arc<dyn Bell>) -> std::io::Result<()> {
        let due = self.agenda.first().map(|(due, _)| *due);
        let deadline = self.deadlines.peek().map(|Reverse((deadline, ..))| *deadline);
        let next = [due, deadline].into_iter().flatten().min();
        match (next, self.armed) {
            // A bell that is set too early does no harm, and is not worth setting again.
            (Some(next), Some(armed)) if armed <= next => {}
            (Some(next), _) => {
                gate.clock().ring_at(Time::<Mono>::from_nanos(next), bell)?;
                self.armed = Some(next);
            }
            (None, Some(_)) => {
                gate.clock().silence(bell);
                self.armed = None;
            }
            (None, None) => {}
        }
        Ok(())
    }
}

/// Whether the clock has passed what the bell was just set to: another thread may have moved it, or the rate is so high that
/// the next turn came meanwhile.
fn has_passed<G: Gate>(gate: &G, armed: Option<u64>) -> bool {
    armed.is_some_and(|at| at <= gate.clock().mono().as_nanos())
}

/// Whether it is still this waiter that sits there, and it has no answer yet.
fn waits<K, S>(seats: &mut Seats<K, S>, seat: Seat, seating: u64) -> bool {
    let waits = |waiter: &mut Waiter<K, S>| waiter.seating == seating && matches!(waiter.answer, Answer::Waiting(_));
    seats.get_mut(seat).is_some_and(waits)
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
}
