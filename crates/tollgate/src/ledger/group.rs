//! Several charges of a ledger, all or none.

use smallvec::SmallVec;
use tollgate_core::{Algorithm, Ask, Cells, CellsMut, Limits, Now, Report, Retry, Spent, Stamps, Verdict};

use super::seat::{Said, Words};
use super::{Charge, Judge, Ledger, MANY, PlainCharge, Numbered, Numbers, Seat, now_of, take_over};
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Key};
use crate::keyed::{WhenFull, newcomer};
use crate::sync::Ordering;
use crate::table::{Arrival, Place, State};

/// As many as nearly all groups have; a larger one allocates.
const FEW: usize = MANY;

type Few<T> = SmallVec<[T; FEW]>;

/// A charge that has an entry, while a group is decided.
struct Seated<'n> {
    limits: &'n Limits,
    held: Held,
    now: Now<'n>,
    verdict: Verdict<Stamps>,
    /// Whether the verdict has been written to the state already.
    written: bool,
}

/// Which entry that is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    /// The key's own.
    Own(Place),
    /// The one that keys without room share.
    Shared(Place),
}

impl<C: Clock> Ledger<C> {
    /// Takes from up to four charges if that is all there is to it: every key is known and at home, was written under the
    /// limits it is asked for, and has what is asked for in the one word that its state is. Calls `each` with what may be
    /// told then, in order. `false` says only that [`decide`](Self::decide) has to be asked; nothing has happened then.
    #[inline]
    pub fn take_at_home(
        &self,
        charges: &[PlainCharge<'_>],
        now: &Now<'_>,
        each: impl FnMut(&PlainCharge<'_>, Report),
    ) -> bool {
        match charges.len() {
            1 | 2 => self.take_few_at_home::<2>(charges, now, each),
            3 | 4 => self.take_few_at_home::<4>(charges, now, each),
            _ => false,
        }
    }

    #[inline(always)]
    fn take_few_at_home<const L: usize>(
        &self,
        charges: &[PlainCharge<'_>],
        now: &Now<'_>,
        mut each: impl FnMut(&PlainCharge<'_>, Report),
    ) -> bool {
        let mut prints = [Fingerprint::default(); L];
        prints.iter_mut().zip(charges).for_each(|(print, charge)| *print = charge.key.fingerprint(&self.secret));
        let Some(prints) = prints.get(..charges.len()) else { return false };
        let taken = self.table.at_home_together::<L, _>(prints, 0, |states| {
            let mut taken = [None; L];
            for ((charge, state), taken) in charges.iter().zip(&*states).zip(&mut taken) {
                if state.get(0) != u64::from(charge.numbers) {
                    return None;
                }
                *taken = Some(charge.limits.take_and_report(state.get(1), now, charge.cost)?);
            }
            for ((charge, state), (word, report)) in charges.iter().zip(states).zip(taken.into_iter().flatten()) {
                state.set(1, word);
                each(charge, report);
            }
            Some(())
        });
        taken.is_some()
    }

    /// The short way of up to `L` charges, which is all that most need: every key is known and at home, was written under the
    /// limits it is asked for, and has what is asked for in the one word that its state is. `false` says only that the long
    /// way has to be gone; nothing has happened then.
    #[inline(always)]
    pub(super) fn decide_at_home<'a, const L: usize, T, N: Numbers + ?Sized>(
        &self,
        numbers: &N,
        charged: &'a [T],
        charge: &impl Fn(&'a T) -> Charge<'a>,
        now: Now<'_>,
        each: &mut impl FnMut(usize, &Seat<'_>),
    ) -> bool {
        let mut prints = [Fingerprint::default(); L];
        prints.iter_mut().zip(charged).for_each(|(print, charged)| *print = self.print(&charge(charged)));
        let Some(prints) = prints.get(..charged.len()) else { return false };
        let taken = self.table.at_home_together::<L, _>(prints, 0, |states| {
            let mut words = [0; L];
            for ((charged, state), word) in charged.iter().zip(&*states).zip(&mut words) {
                let charge = charge(charged);
                let Ask::Exactly(cost) = charge.ask else { return None };
                if state.get(0) != u64::from(charge.numbers) {
                    return None;
                }
                *word = self.limits(numbers, &charge)?.take_from_word(state.get(1), &now, cost)?;
            }
            // All of them pass, so nothing has to be taken back any more.
            for (index, (charged, state)) in charged.iter().zip(states).enumerate() {
                let charge = charge(charged);
                state.set(1, words[index]);
                let (limits, now) = (self.limits(numbers, &charge), now_of(&charge, prints[index], now));
                let said = Said::Granted(charge.ask.cost());
                each(index, &Seat { limits, state: Words::Kept(*state), now, said });
            }
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
                take_over(numbers, limits, charge.numbers, &mut own.state(place), arrival, &now);
                Seated { limits, held: Held::Own(place), now, verdict: Verdict::default(), written: false }
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
                take_over(numbers, limits, charge.numbers, &mut shared.state(place), arrival, &now);
                let held = Held::Shared(place);
                seated[index] = Ok(Seated { limits, held, now, verdict: Verdict::default(), written: false });
            }
        }
        let state_of = |held: Held| match held {
            Held::Own(place) => own.state(place),
            Held::Shared(place) => shared.state(place),
        };

        // One after the other, so that two charges on one key see each other: what the first of them takes is written at once,
        // with what was there before to go back to. All other takings are written when nothing has been refused. After a
        // refusal the rest is only weighed: its answers are wanted, its takings are not.
        let mut passed = seated.iter().all(Result::is_ok);
        let mut before: Vec<(Held, Vec<u64>)> = Vec::new();
        for (index, charge) in charges.iter().enumerate() {
            let Ok(Seated { limits, held, now, .. }) = &seated[index] else { continue };
            let (limits, held, now, mut state) = (*limits, *held, *now, state_of(*held));
            let seen_again = seated[index + 1..].iter().flatten().any(|later| later.held == held);
            let as_it_was = |state: &State<'_>| (0..self.table.state_words()).map(|word| state.get(word)).collect();
            let saved = seen_again.then(|| (held, as_it_was(&state)));
            // Again, for the key may be in the group twice, under different limits.
            take_over(numbers, limits, charge.numbers, &mut state, Arrival::Known, &now);
            let verdict = limits.weigh(&Numbered { state: &state }, &now, charge.ask);
            if passed && !verdict.is_allowed() {
                passed = false;
                for (held, words) in before.iter().rev() {
                    let mut state = state_of(*held);
                    words.iter().enumerate().for_each(|(index, word)| state.set(index, *word));
                }
                take_over(numbers, limits, charge.numbers, &mut state, Arrival::Known, &now);
                // A refusal too: there are limits that count them.
                limits.commit(&mut Numbered { state: &mut state }, &now, &verdict);
            } else if passed && let Some(saved) = saved {
                before.push(saved);
                limits.commit(&mut Numbered { state: &mut state }, &now, &verdict);
            }
            if let Ok(seat) = &mut seated[index] {
                (seat.verdict, seat.written) = (verdict, seen_again);
            }
        }
        for seat in seated.iter().flatten().filter(|seat| passed && !seat.written) {
            seat.limits.commit(&mut Numbered { state: &mut state_of(seat.held) }, &seat.now, &seat.verdict);
        }

        for (index, (seat, charge)) in seated.iter().zip(&charges).enumerate() {
            match seat {
                Ok(Seated { limits, held, now, verdict, .. }) => {
                    let mut state = state_of(*held);
                    take_over(numbers, limits, charge.numbers, &mut state, Arrival::Known, now);
                    each(
                        index,
                        &Seat { limits: Some(limits), state: Words::Kept(state), now: *now, said: Said::Verdict(verdict) },
                    );
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
