//! Who waits: seats, and the lines they form.
//!
//! Every waiter has a seat from joining until it has collected its answer or left. The seats of those who still wait for the
//! same thing are linked to a line in the order in which they came, so that the first is found, and any is taken
//! out, in a few steps, however many there are. Seats are reused; only their number at the same time costs memory.

use std::task::Waker;

use tollgate_core::Verdict;

use super::AcquireError;

/// The number of a seat.
pub(super) type Seat = u32;
const NOBODY: Seat = Seat::MAX;

/// What a waiter has been told so far.
#[derive(Debug)]
pub(super) enum Answer<S> {
    /// Nothing; the waker is to be woken when there is something.
    Waiting(Waker),
    /// What it asked for has been taken for it.
    Granted(Verdict<S>),
    /// Nothing was taken, and nothing will be.
    Refused(AcquireError),
}

/// Somebody who waits.
#[derive(Debug)]
pub(super) struct Waiter<K, S> {
    pub(super) key: K,
    pub(super) cost: u64,
    /// The last instant at which it wants its answer; the end of time if it has all of it.
    pub(super) deadline: u64,
    pub(super) answer: Answer<S>,
    /// The number by which the room knows that it is this one, and not another in the same seat.
    pub(super) seating: u64,
    before: Seat,
    after: Seat,
}

impl<K, S> Waiter<K, S> {
    pub(super) fn new(key: K, cost: u64, deadline: u64, waker: Waker) -> Self {
        Self { key, cost, deadline, answer: Answer::Waiting(waker), seating: 0, before: NOBODY, after: NOBODY }
    }
}

/// The seats of a room.
#[derive(Debug)]
pub(super) struct Seats<K, S> {
    seats: Vec<Option<Waiter<K, S>>>,
    free: Vec<Seat>,
}

impl<K, S> Seats<K, S> {
    pub(super) const fn new() -> Self {
        Self { seats: Vec::new(), free: Vec::new() }
    }

    pub(super) fn get_mut(&mut self, seat: Seat) -> Option<&mut Waiter<K, S>> {
        self.seats.get_mut(seat as usize)?.as_mut()
    }

    pub(super) fn sit(&mut self, waiter: Waiter<K, S>) -> Seat {
        match self.free.pop() {
            Some(seat) => {
                self.seats[seat as usize] = Some(waiter);
                seat
            }
            None => {
                self.seats.push(Some(waiter));
                (self.seats.len() - 1) as Seat
            }
        }
    }

    pub(super) fn rise(&mut self, seat: Seat) -> Option<Waiter<K, S>> {
        let waiter = self.seats.get_mut(seat as usize)?.take()?;
        self.free.push(seat);
        Some(waiter)
    }
}

/// Those who wait for the same thing, first come first.
#[derive(Debug)]
pub(super) struct Line {
    first: Seat,
    last: Seat,
    len: usize,
    /// What all of them ask for together.
    cost: u64,
    /// When the first is to be looked at again, if time alone can help it.
    pub(super) due: Option<u64>,
}

impl Line {
    pub(super) const fn new() -> Self {
        Self { first: NOBODY, last: NOBODY, len: 0, cost: 0, due: None }
    }

    pub(super) fn first(&self) -> Option<Seat> {
        (self.first != NOBODY).then_some(self.first)
    }

    pub(super) const fn len(&self) -> usize {
        self.len
    }

    pub(super) const fn cost(&self) -> u64 {
        self.cost
    }

    /// Puts a waiter that has just sat down at the end.
    pub(super) fn join<K, S>(&mut self, seats: &mut Seats<K, S>, seat: Seat) {
        let last = self.last;
        let Some(waiter) = seats.get_mut(seat) else { return };
        waiter.before = last;
        self.cost = self.cost.saturating_add(waiter.cost);
        self.len += 1;
        self.last = seat;
        match seats.get_mut(last) {
            Some(before) => before.after = seat,
            None => self.first = seat,
        }
    }

    /// Takes a waiter out, wherever it stands; those behind it move up.
    pub(super) fn leave<K, S>(&mut self, seats: &mut Seats<K, S>, seat: Seat) {
        let Some(waiter) = seats.get_mut(seat) else { return };
        let (before, after) = (waiter.before, waiter.after);
        self.cost = self.cost.saturating_sub(waiter.cost);
        self.len -= 1;
        match seats.get_mut(before) {
            Some(waiter) => waiter.after = after,
            None => self.first = after,
        }
        match seats.get_mut(after) {
            Some(waiter) => waiter.before = before,
            None => self.last = before,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(line: &Line, seats: &mut Seats<(), ()>) -> Vec<u64> {
        let (mut costs, mut seat) = (Vec::new(), line.first);
        while let Some(waiter) = seats.get_mut(seat) {
            costs.push(waiter.cost);
            seat = waiter.after;
        }
        costs
    }

    #[test]
    fn whoever_leaves_the_others_keep_their_order() {
        for gone in 0..4 {
            let (mut seats, mut line) = (Seats::new(), Line::new());
            let taken: Vec<Seat> = (1..=4)
                .map(|cost| {
                    let seat = seats.sit(Waiter::new((), cost, u64::MAX, Waker::noop().clone()));
                    line.join(&mut seats, seat);
                    seat
                })
                .collect();
            line.leave(&mut seats, taken[gone]);
            assert_eq!(seats.rise(taken[gone]).unwrap().cost, gone as u64 + 1);
            let left: Vec<u64> = (1..=4).filter(|cost| *cost != gone as u64 + 1).collect();
            assert_eq!(order(&line, &mut seats), left);
            assert_eq!((line.len(), line.cost()), (3, left.iter().sum()));
            // Its seat goes to the next who comes, at the end of the line.
            let seat = seats.sit(Waiter::new((), 9, u64::MAX, Waker::noop().clone()));
            line.join(&mut seats, seat);
            assert_eq!((seat, order(&line, &mut seats).last()), (taken[gone], Some(&9)));
        }
    }
}
