//! The book of a waiting room: who stands in which line, and what is to be looked at when. All of it is under the room's lock.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::sync::Arc;
use std::task::Waker;

use tollgate_core::{Cost, Mono, Nanos, Now, Outcome, Retry, Time, Verdict};

use super::line::{Answer, Line, Seat, Seats, Waiter};
use super::{AcquireError, Gate};
use crate::clock::{Bell, Clock};

/// How long something may go unnoticed that no bell can be set for: a step of the wall clock, a table that has room again.
const LOOK_AGAIN: Nanos = Nanos::SECOND;

#[derive(Debug)]
pub(super) struct Book<K, S> {
    pub(super) seats: Seats<K, S>,
    lines: BTreeMap<K, Line>,
    /// When the first of a line is to be looked at.
    agenda: BTreeSet<(u64, K)>,
    /// When somebody in a line has waited long enough, the soonest on top. Who got an answer or left before is left in it,
    /// so that neither has to look for it here.
    pub(super) deadlines: BinaryHeap<Reverse<Deadline>>,
    /// How many of those are about nobody who still waits.
    stale: usize,
    /// A number for everybody who ever sat down, by which a deadline is known to be about somebody else by now.
    seatings: u64,
    pub(super) waiting: usize,
    /// What the bell is set to.
    pub(super) armed: Option<u64>,
    /// The latest readings of both clocks, to notice when one went back.
    latest: (u64, u64),
}

/// The instant, the seat, and the number of the seating.
pub(super) type Deadline = (u64, Seat, u64);

/// Stale deadlines are swept out when they outnumber the others, and are at least so many.
pub(super) const SWEEP: usize = 1_024;

/// How joining went.
pub(super) enum Joined<S> {
    AtOnce(Result<Verdict<S>, AcquireError>),
    Seated(Seat),
}

impl<K: Copy + Ord, S: Copy> Book<K, S> {
    pub(super) fn new() -> Self {
        Self {
            seats: Seats::new(),
            lines: BTreeMap::new(),
            agenda: BTreeSet::new(),
            deadlines: BinaryHeap::new(),
            stale: 0,
            seatings: 0,
            waiting: 0,
            armed: None,
            latest: (0, 0),
        }
    }

    /// Who takes no seat comes back with the answer, to be dropped after the lock: its waker is somebody else's code.
    pub(super) fn join<G>(
        &mut self,
        gate: &G,
        mut waiter: Waiter<K, S>,
        patience: Nanos,
        has_room: bool,
    ) -> (Joined<S>, Option<Waiter<K, S>>)
    where
        G: Gate<Key = K, Stamp = S>,
    {
        let refuse = |waiter, error| (Joined::AtOnce(Err(error)), Some(waiter));
        let (now, key, cost) = (gate.now(), waiter.key, Cost::new(waiter.cost));
        let (in_line, ahead) = self.lines.get(&key).map_or((0, 0), |line| (line.len(), line.cost()));
        let retry = if in_line > 0 {
            gate.wait_behind(key, Cost::new(ahead), cost, &now)
        } else {
            let verdict = gate.take(key, cost, &now, self.went_back(&now));
            self.seen(&now);
            match verdict.outcome() {
                Outcome::Allow => return (Joined::AtOnce(Ok(verdict)), Some(waiter)),
                Outcome::Delay(wait) => Retry::After(wait),
                Outcome::Deny(retry) => retry,
            }
        };
        waiter.deadline = now.mono().saturating_add(patience).as_nanos();
        let in_time = match retry {
            Retry::Never => return refuse(waiter, AcquireError::NeverFits),
            Retry::After(wait) => now.mono().saturating_add(wait).as_nanos() <= waiter.deadline,
            Retry::OnRelease => true,
        };
        // Whoever has no time at all does not queue, even if those ahead may be gone in the same instant.
        if !in_time || patience == Nanos::ZERO {
            return refuse(waiter, AcquireError::TooLate { retry });
        }
        if !has_room || in_line >= gate.rooms().max_in_line {
            return refuse(waiter, AcquireError::Full);
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
        (Joined::Seated(seat), None)
    }

    /// Takes the waiter out of its seat, and out of its line if it still stands there; tells whether it stood first.
    pub(super) fn leave(&mut self, seat: Seat) -> Option<(Waiter<K, S>, bool)> {
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

    pub(super) fn attend<G: Gate<Key = K, Stamp = S>>(&mut self, gate: &G, key: Option<K>, woken: &mut Vec<Waker>) {
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
    pub(super) fn advance<G: Gate<Key = K, Stamp = S>>(
        &mut self,
        gate: &G,
        key: K,
        now: &Now<'_>,
        woken: &mut Vec<Waker>,
    ) {
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
    pub(super) fn arm<G: Gate<Key = K, Stamp = S>>(&mut self, gate: &G, bell: &Arc<dyn Bell>) -> std::io::Result<()> {
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

/// Whether it is still this waiter that sits there, and it has no answer yet.
fn waits<K, S>(seats: &mut Seats<K, S>, seat: Seat, seating: u64) -> bool {
    let waits = |waiter: &mut Waiter<K, S>| waiter.seating == seating && matches!(waiter.answer, Answer::Waiting(_));
    seats.get_mut(seat).is_some_and(waits)
}
