//! Several charges of a ledger, all or none.

use smallvec::SmallVec;
use tollgate_core::{Cells, CellsMut, Limits, Now, Report, Retry, Spent, Stamps, Verdict};

use super::{Charge, Held, Judge, Ledger, Numbers, PlainCharge, Seat, now_of, owner_of, visit};
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Key};
use crate::keyed::{WhenFull, newcomer};
use crate::sync::Ordering;
use crate::table::{Arrival, Place, State};

/// As many as nearly all groups have; a larger one allocates. In a model there is no stack for so many.
const FEW: usize = if cfg!(loom) { 5 } else { 16 };

type Few<T> = SmallVec<[T; FEW]>;

/// A charge that has an entry, while a group is decided.
struct Seated<'n> {
    limits: &'n Limits,
    held: At,
    now: Now<'n>,
    verdict: Verdict<Stamps>,
    /// Whether the verdict has been written to the state already.
    written: bool,
}

/// Which entry that is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum At {
    /// The key's own.
    Own(Place),
    /// The one that keys without room share.
    Shared(Place),
}

impl<C: Clock> Ledger<C> {
    /// Takes from all of these if that is all there is to it: every key is known and at home, was written under the limits it
    /// is asked for, and has what is asked for in the one word that its state is. Most charges come to this. `charge` says
    /// what they are, or that one is nothing of the kind; `each` is called with what may be told then, in order.
    ///
    /// `false` says only that [`decide`](Self::decide) has to be asked; nothing has happened then.
    #[inline]
    pub fn take_at_home<'a, T>(
        &self,
        charged: &'a [T],
        charge: impl Fn(&'a T) -> Option<PlainCharge<'a>>,
        now: &Now<'_>,
        mut each: impl FnMut(&PlainCharge<'_>, Report),
    ) -> bool {
        charged.len() <= FEW && self.take_behind(charged, &charge, now, &mut each)
    }

    /// Holds the last one while those before it are taken from: so nothing is written before all are known to have enough, and
    /// nothing has to be kept in a list meanwhile. Nobody is waited for, so the order of the locks does not matter; a key that
    /// is there twice is held by ourselves.
    fn take_behind<'a, T>(
        &self,
        charged: &'a [T],
        charge: &impl Fn(&'a T) -> Option<PlainCharge<'a>>,
        now: &Now<'_>,
        each: &mut impl FnMut(&PlainCharge<'_>, Report),
    ) -> bool {
        let [before @ .., last] = charged else { return true };
        let Some(last) = charge(last) else { return false };
        let taken = self.table.at_home(last.key.fingerprint(&self.secret), 0, |state| {
            if state.get(0) != u64::from(last.numbers) {
                return None;
            }
            let (word, report) = last.limits.take_and_report(state.get(1), now, last.cost)?;
            if !before.is_empty() && !self.take_behind(before, charge, now, each) {
                return None;
            }
            state.set(1, word);
            each(&last, report);
            Some(())
        });
        taken.is_some()
    }

    /// Locks every entry, then decides, then lets go.
    pub(super) fn decide_group<'a, T, N: Numbers + ?Sized>(
        &self,
        numbers: &N,
        charged: &'a [T],
        charge: &impl Fn(&'a T) -> Charge<'a>,
        now: Now<'_>,
        mut each: impl FnMut(usize, &Seat<'_>),
    ) -> bool {
        let owner = Judge { numbers, now };
        let charges: Few<Charge<'_>> = charged.iter().map(charge).collect();
        let prints: Few<Fingerprint> = charges.iter().map(|charge| self.print(charge)).collect();
        let mut own = self.table.lock_all(&prints, &owner);
        let mut seated: Few<Result<Seated<'_>, Retry>> = Few::with_capacity(charges.len());
        let mut without_room: Few<(usize, Fingerprint)> = Few::new();
        for (charge, print) in charges.iter().zip(&prints) {
            let Some(limits) = self.limits(numbers, charge) else {
                seated.push(Err(Retry::Never));
                continue;
            };
            let now = now_of(charge, *print, now);
            let seat = own.seat(*print, &owner, newcomer(limits, &now, charge.ask));
            if seat.is_none() {
                without_room.push((seated.len(), self.shared_print(charge)));
            }
            seated.push(seat.ok_or(Retry::OnRelease).map(|(place, arrival)| {
                owner_of(numbers, limits, charge.numbers, &mut own.state(place), arrival, &now);
                Seated { limits, held: At::Own(place), now, verdict: Verdict::default(), written: false }
            }));
        }

        // The shared entries are locked after all others, and nobody who holds one waits for another table.
        self.overflowed.fetch_add(without_room.len() as u64, Ordering::Relaxed);
        if self.when_full == WhenFull::Deny {
            without_room.clear();
        }
        let shared_prints: Few<Fingerprint> = without_room.iter().map(|(_, print)| *print).collect();
        let mut shared = self.overflow.lock_all(&shared_prints, &owner);
        for (index, print) in without_room {
            let charge = &charges[index];
            let (Some(limits), now) = (self.limits(numbers, charge), now_of(charge, print, now)) else { continue };
            if let Some((place, arrival)) = shared.seat(print, &owner, Spent::ALL) {
                owner_of(numbers, limits, charge.numbers, &mut shared.state(place), arrival, &now);
                let held = At::Shared(place);
                seated[index] = Ok(Seated { limits, held, now, verdict: Verdict::default(), written: false });
            }
        }
        let state_of = |held: At| match held {
            At::Own(place) => own.state(place),
            At::Shared(place) => shared.state(place),
        };

        // One after the other, so that two charges on one key see each other: what the first of them takes is written at once,
        // with what was there before to go back to. All other takings are written when nothing has been refused. After a
        // refusal the rest is only weighed: its answers are wanted, its takings are not.
        let mut passed = seated.iter().all(Result::is_ok);
        let mut before: Vec<(At, Vec<u64>)> = Vec::new();
        for (index, charge) in charges.iter().enumerate() {
            let Ok(Seated { limits, held, now, .. }) = &seated[index] else { continue };
            let (limits, held, now, mut state) = (*limits, *held, *now, state_of(*held));
            let seen_again = seated[index + 1..].iter().flatten().any(|later| later.held == held);
            let as_it_was = |state: &State<'_>| (0..self.table.state_words()).map(|word| state.get(word)).collect();
            let saved = seen_again.then(|| (held, as_it_was(&state)));
            // The key may be in the group twice, under different limits.
            let on = |state: &mut State<'_>, then: &dyn Fn(&mut Held<'_>) -> Verdict<Stamps>| {
                visit(numbers, limits, charge.numbers, state, Arrival::Known, now, then)
            };
            let verdict = on(&mut state, &|account| account.weigh(charge.ask));
            let commit = |account: &mut Held<'_>| {
                account.commit(&verdict);
                verdict
            };
            if passed && !verdict.is_admitted() {
                passed = false;
                for (held, words) in before.iter().rev() {
                    let mut state = state_of(*held);
                    words.iter().enumerate().for_each(|(index, word)| state.set(index, *word));
                }
                // A refusal too: there are limits that count them.
                let _ = on(&mut state, &commit);
            } else if passed && let Some(saved) = saved {
                before.push(saved);
                let _ = on(&mut state, &commit);
            }
            if let Ok(seat) = &mut seated[index] {
                (seat.verdict, seat.written) = (verdict, seen_again);
            }
        }
        for (seat, charge) in seated.iter().zip(&charges) {
            if let Ok(Seated { limits, held, now, verdict, written: false }) = seat
                && passed
            {
                let mut state = state_of(*held);
                visit(numbers, limits, charge.numbers, &mut state, Arrival::Known, *now, |account| {
                    account.commit(verdict);
                });
            }
        }

        for (index, (seat, charge)) in seated.iter().zip(&charges).enumerate() {
            match seat {
                Ok(Seated { limits, held, now, verdict, .. }) => {
                    let mut state = state_of(*held);
                    visit(numbers, limits, charge.numbers, &mut state, Arrival::Known, *now, |account| {
                        each(index, &Seat::of(account, *verdict));
                    });
                }
                Err(retry) => each(index, &Seat::refused(*retry)),
            }
        }
        if !passed {
            own.restore_evicted();
            shared.restore_evicted();
        }
        passed
    }
}
