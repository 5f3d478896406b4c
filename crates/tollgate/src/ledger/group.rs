//! Several charges of a ledger, all or none.

use smallvec::SmallVec;
use tollgate_core::{Cells, CellsMut, Limits, Now, Report, Retry, Spent, Stamps, Verdict};

use super::{Charge, ChargeView, Held, Ledger, LedgerReader, LimitTable, PlainCharge, now_of, owner_of, visit};
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Key};
use crate::keyed::{WhenFull, spent_by_arrival};
use crate::sync::Ordering;
use crate::table::{EntryIndex, Group, Presence, State, Wide};

/// The number of charges up to which a group does not allocate. Loom has a smaller stack.
const FEW: usize = if cfg!(loom) { 5 } else { 16 };

type Few<T> = SmallVec<[T; FEW]>;

/// The entry of a charge, while its group is decided.
struct Member<'n> {
    limits: &'n Limits,
    entry: Entry,
    now: Now<'n>,
    verdict: Verdict<Stamps>,
    /// Whether the verdict is already written to the state.
    written: bool,
}

impl<'n> Member<'n> {
    fn new(limits: &'n Limits, entry: Entry, now: Now<'n>) -> Self {
        Self { limits, entry, now, verdict: Verdict::default(), written: false }
    }
}

/// The entry that a charge is counted in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// The entry of its key.
    Own(EntryIndex),
    /// The overflow entry of its limits.
    Shared(EntryIndex),
}

/// The locked entries of a group.
struct Entries<'g, 'o, 's> {
    own: &'g Group<'o, Wide>,
    shared: &'g Group<'s, Wide>,
}

impl<'g> Entries<'g, '_, '_> {
    fn state(&self, entry: Entry) -> State<'g> {
        match entry {
            Entry::Own(place) => self.own.state(place),
            Entry::Shared(place) => self.shared.state(place),
        }
    }
}

impl<C: Clock> Ledger<C> {
    /// The fast path of [`decide`](Self::decide): takes from all charges if every key is at home in an unlocked bucket, its state
    /// is one word that belongs to the limits of the charge, and the cost fits. `charge` converts an element, or returns `None`
    /// if it is not a plain charge. After all have passed, `each` is called for every charge in order.
    ///
    /// `false`: the fast path does not apply and nothing has happened; call [`decide`](Self::decide).
    #[inline]
    pub fn try_take_fast<'a, T>(
        &self,
        charged: &'a [T],
        charge: impl Fn(&'a T) -> Option<PlainCharge<'a>>,
        now: &Now<'_>,
        mut each: impl FnMut(&PlainCharge<'_>, Report),
    ) -> bool {
        charged.len() <= FEW && self.take_behind(charged, &charge, now, &mut each)
    }

    /// Locks the last charge's bucket, checks that it passes, takes from the charges before it by recursion, and writes only if
    /// those passed. So nothing is written before all are known to pass, and the recursion needs no list. It only tries locks,
    /// so their order does not matter; a second charge on one bucket finds it locked, and the fast path does not apply.
    fn take_behind<'a, T>(
        &self,
        charged: &'a [T],
        charge: &impl Fn(&'a T) -> Option<PlainCharge<'a>>,
        now: &Now<'_>,
        each: &mut impl FnMut(&PlainCharge<'_>, Report),
    ) -> bool {
        let [before @ .., last] = charged else { return true };
        let Some(last) = charge(last) else { return false };
        let taken = self.table.try_home(last.key.fingerprint(&self.secret), 0, |state| {
            if state.get(0) != u64::from(last.limits_id) {
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

    /// Decides several charges, all or none: locks all entries, weighs the charges in order, and writes them if all pass.
    pub(super) fn decide_group<'a, T, N: LimitTable + ?Sized>(
        &self,
        limit_table: &N,
        charged: &'a [T],
        charge: &impl Fn(&'a T) -> Charge<'a>,
        now: Now<'_>,
        each: impl FnMut(usize, &ChargeView<'_>),
    ) -> bool {
        let reader = LedgerReader { limit_table, now };
        let charges: Few<Charge<'_>> = charged.iter().map(charge).collect();
        let fingerprints: Few<Fingerprint> = charges.iter().map(|charge| self.fingerprint(charge)).collect();
        let mut own = self.table.lock_all(&fingerprints, &reader);
        let mut members: Members<'_> = Few::with_capacity(charges.len());
        for (charge, fingerprint) in charges.iter().zip(&fingerprints) {
            members.push(self.own_entry(&mut own, &reader, charge, *fingerprint));
        }

        // Locked after all own entries; a thread that holds a shared entry never waits for the other table.
        let without_slot = self.without_slot(&members);
        let shared_fingerprints: Few<Fingerprint> =
            without_slot.iter().map(|index| self.shared_fingerprint(&charges[*index])).collect();
        let mut shared = self.overflow.lock_all(&shared_fingerprints, &reader);
        for (index, fingerprint) in without_slot.iter().zip(&shared_fingerprints) {
            if let Some(member) = self.shared_entry(&mut shared, &reader, &charges[*index], *fingerprint) {
                members[*index] = Ok(member);
            }
        }

        let entries = Entries { own: &own, shared: &shared };
        let passed = self.weigh_in_order(limit_table, &entries, &charges, &mut members);
        if passed {
            write_rest(limit_table, &entries, &charges, &members);
        }
        report(limit_table, &entries, &charges, &members, each);
        if !passed {
            own.restore_evicted();
            shared.restore_evicted();
        }
        passed
    }

    /// Finds or makes the entry of the charge's own key.
    fn own_entry<'n, N: LimitTable + ?Sized>(
        &self,
        own: &mut Group<'_, Wide>,
        reader: &LedgerReader<'n, N>,
        charge: &Charge<'n>,
        fingerprint: Fingerprint,
    ) -> Result<Member<'n>, Retry> {
        let limits = self.limits(reader.limit_table, charge).ok_or(Retry::Never)?;
        let now = now_of(charge, fingerprint, reader.now);
        let presence = own.find_or_insert(fingerprint, reader, spent_by_arrival(limits, &now, charge.ask));
        let (place, presence) = presence.ok_or(Retry::OnRelease)?;
        owner_of(reader.limit_table, limits, charge.limits_id, &mut own.state(place), presence, &now);
        Ok(Member::new(limits, Entry::Own(place), now))
    }

    /// Counts the charges whose keys found no slot, and returns those that may use the shared entry of their limits.
    fn without_slot(&self, members: &Members<'_>) -> Few<usize> {
        let no_slot = |(_, member): &(usize, &Result<Member<'_>, Retry>)| matches!(member, Err(Retry::OnRelease));
        let without_slot: Few<usize> = members.iter().enumerate().filter(no_slot).map(|(index, _)| index).collect();
        self.overflowed.fetch_add(without_slot.len() as u64, Ordering::Relaxed);
        match self.when_full {
            WhenFull::Overflow => without_slot,
            WhenFull::Deny => Few::new(),
        }
    }

    /// Finds or makes the entry that all keys without a slot share under the charge's limits.
    fn shared_entry<'n, N: LimitTable + ?Sized>(
        &self,
        shared: &mut Group<'_, Wide>,
        reader: &LedgerReader<'n, N>,
        charge: &Charge<'n>,
        fingerprint: Fingerprint,
    ) -> Option<Member<'n>> {
        let limits = self.limits(reader.limit_table, charge)?;
        let now = now_of(charge, fingerprint, reader.now);
        let (place, presence) = shared.find_or_insert(fingerprint, reader, Spent::ALL)?;
        owner_of(reader.limit_table, limits, charge.limits_id, &mut shared.state(place), presence, &now);
        Some(Member::new(limits, Entry::Shared(place), now))
    }

    /// Weighs the charges one after the other, and returns whether all pass.
    ///
    /// Two charges on one entry have to see each other, so what the first of them takes is written at once, and undone if a later
    /// charge is refused. All other takings are written afterwards, by [`write_rest`]. After a refusal the remaining charges
    /// are only weighed: their answers are wanted, their takings are not.
    fn weigh_in_order<N: LimitTable + ?Sized>(
        &self,
        limit_table: &N,
        entries: &Entries<'_, '_, '_>,
        charges: &[Charge<'_>],
        members: &mut Members<'_>,
    ) -> bool {
        let mut passed = members.iter().all(Result::is_ok);
        let mut before: Vec<(Entry, Vec<u64>)> = Vec::new();
        for (index, charge) in charges.iter().enumerate() {
            let seen_again = {
                let (Ok(member), later) = (&members[index], &members[index + 1..]) else { continue };
                later.iter().flatten().any(|later| later.entry == member.entry)
            };
            let Ok(member) = &mut members[index] else { continue };
            let saved = (passed && seen_again).then(|| (member.entry, self.words_of(entries.state(member.entry))));
            member.verdict = member.visit(limit_table, entries, charge, |account| account.weigh(charge.ask));
            member.written = seen_again;
            if !member.verdict.is_admitted() {
                passed = false;
                for (entry, words) in before.drain(..).rev() {
                    let mut state = entries.state(entry);
                    words.iter().enumerate().for_each(|(index, word)| state.set(index, *word));
                }
                // Some limits count refusals, each for itself.
                member.commit(limit_table, entries, charge);
            } else if passed && let Some(saved) = saved {
                before.push(saved);
                member.commit(limit_table, entries, charge);
            }
        }
        passed
    }

    fn words_of(&self, state: State<'_>) -> Vec<u64> {
        (0..self.table.state_words()).map(|word| state.get(word)).collect()
    }
}

/// The charges that have an entry, and for the others why they have none.
type Members<'n> = Few<Result<Member<'n>, Retry>>;

impl Member<'_> {
    /// Runs `then` on the state. The key may be in the group twice, under different limits, so the state may belong to others.
    fn visit<N: LimitTable + ?Sized, R>(
        &self,
        limit_table: &N,
        entries: &Entries<'_, '_, '_>,
        charge: &Charge<'_>,
        then: impl FnOnce(&mut Held<'_>) -> R,
    ) -> R {
        let mut state = entries.state(self.entry);
        visit(limit_table, self.limits, charge.limits_id, &mut state, Presence::Known, self.now, then)
    }

    fn commit<N: LimitTable + ?Sized>(&self, limit_table: &N, entries: &Entries<'_, '_, '_>, charge: &Charge<'_>) {
        self.visit(limit_table, entries, charge, |account| account.commit(&self.verdict));
    }
}

/// Writes the takings that [`Ledger::weigh_in_order`] did not write: all charges pass.
fn write_rest<N: LimitTable + ?Sized>(
    limit_table: &N,
    entries: &Entries<'_, '_, '_>,
    charges: &[Charge<'_>],
    members: &Members<'_>,
) {
    for (member, charge) in members.iter().zip(charges) {
        if let Ok(member) = member
            && !member.written
        {
            member.commit(limit_table, entries, charge);
        }
    }
}

/// Calls `each` for every charge in order, while its state is held.
fn report<N: LimitTable + ?Sized>(
    limit_table: &N,
    entries: &Entries<'_, '_, '_>,
    charges: &[Charge<'_>],
    members: &Members<'_>,
    mut each: impl FnMut(usize, &ChargeView<'_>),
) {
    for (index, (member, charge)) in members.iter().zip(charges).enumerate() {
        match member {
            Ok(member) => {
                member.visit(limit_table, entries, charge, |account| {
                    each(index, &ChargeView::of(account, member.verdict));
                });
            }
            Err(retry) => each(index, &ChargeView::refused(*retry)),
        }
    }
}
