//! Several charges, all or none, in one ledger or in several.

use std::array::from_fn;

use tollgate_core::{Cells, CellsMut, Now, Report, Retry, Spent};

use super::weigh::{Entries, FEW, Few, Member, Members, decide_locked};
use super::{
    Charge, ChargeView, Ledger, LedgerReader, LimitTable, PlainCharge, now_for_key, own_limits, presence_under,
};
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Key};
use crate::keyed::{WhenFull, spent_by_arrival};
use crate::sync::Ordering;
use crate::table::{EntryIndex, Group, State, Wide};

/// The entry of a ledger that a charge is counted in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Entry {
    /// The entry of its key.
    Own(EntryIndex),
    /// The overflow entry of its limits.
    Shared(EntryIndex),
}

impl<'n> Member<'n, Entry> {
    /// Names the ledger of the entry.
    fn in_ledger(self, ledger: usize) -> Member<'n, (usize, Entry)> {
        Member::new(self.limits, (ledger, self.entry), self.now)
    }
}

/// The locked entries of a group in one ledger.
struct Locked<'g, 'o, 's> {
    own: &'g Group<'o, Wide>,
    shared: &'g Group<'s, Wide>,
}

impl Entries for Locked<'_, '_, '_> {
    type Entry = Entry;

    #[inline]
    fn state(&self, entry: Entry) -> State<'_> {
        match entry {
            Entry::Own(place) => self.own.state(place),
            Entry::Shared(place) => self.shared.state(place),
        }
    }

    fn words(&self, entry: Entry) -> usize {
        match entry {
            Entry::Own(_) => self.own.state_words(),
            Entry::Shared(_) => self.shared.state_words(),
        }
    }
}

/// The locked entries of a group in several ledgers.
struct LockedAcross<'g, 'o, 's, const L: usize> {
    own: &'g [Group<'o, Wide>; L],
    shared: &'g [Group<'s, Wide>; L],
}

impl<const L: usize> Entries for LockedAcross<'_, '_, '_, L> {
    /// The index of the ledger, and the entry there.
    type Entry = (usize, Entry);

    fn state(&self, (ledger, entry): Self::Entry) -> State<'_> {
        match entry {
            Entry::Own(place) => self.own[ledger].state(place),
            Entry::Shared(place) => self.shared[ledger].state(place),
        }
    }

    fn words(&self, (ledger, entry): Self::Entry) -> usize {
        Locked { own: &self.own[ledger], shared: &self.shared[ledger] }.words(entry)
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
        let mut charges: Few<Charge<'_>> = charged.iter().map(charge).collect();
        let fingerprints: Few<Fingerprint> = charges.iter().map(|charge| self.fingerprint(charge)).collect();
        let mut own = self.table.lock_all(&fingerprints, &reader);
        let mut members: Members<'_, Entry> = Few::with_capacity(charges.len());
        for (charge, fingerprint) in charges.iter().zip(&fingerprints) {
            members.push(self.own_entry(&mut own, &reader, charge, *fingerprint));
        }

        // Locked after all own entries; a thread that holds a shared entry never waits for the other table.
        let without_slot = self.without_slot(&members, 0..charges.len());
        let shared_fingerprints: Few<Fingerprint> =
            without_slot.iter().map(|index| self.shared_fingerprint(&charges[*index])).collect();
        let mut shared = self.overflow.lock_all(&shared_fingerprints, &reader);
        for (index, fingerprint) in without_slot.iter().zip(&shared_fingerprints) {
            if let Some(member) = self.shared_entry(&mut shared, &reader, &charges[*index], *fingerprint) {
                members[*index] = Ok(member);
            }
        }

        let entries = Locked { own: &own, shared: &shared };
        let passed = decide_locked(limit_table, &entries, &mut charges, &mut members, each);
        if !passed {
            own.restore_evicted();
            shared.restore_evicted();
        }
        passed
    }

    /// Decides several charges with states in several ledgers, all or none, as [`decide_each`](Self::decide_each) does in one.
    /// `charge` returns a charge with the index of its ledger.
    ///
    /// Entries are locked ledger by ledger in the order of `ledgers`, so all callers have to use the same order.
    pub fn decide_across<'a, T, N: LimitTable + ?Sized, const L: usize>(
        ledgers: &[Self; L],
        limit_table: &N,
        charged: &'a [T],
        charge: impl Fn(&'a T) -> (usize, Charge<'a>),
        now: Now<'_>,
        each: impl FnMut(usize, &ChargeView<'_>),
    ) -> bool {
        let reader = LedgerReader { limit_table, now };
        let (places, mut charges): (Few<usize>, Few<Charge<'_>>) = charged.iter().map(charge).unzip();
        let fingerprints: Few<Fingerprint> =
            places.iter().zip(&charges).map(|(ledger, charge)| ledgers[*ledger].fingerprint(charge)).collect();
        let places = &*places;
        let here = |ledger: usize| (0..places.len()).filter(move |index| places[*index] == ledger);
        let own_fingerprints: [Few<Fingerprint>; L] =
            from_fn(|ledger| here(ledger).map(|index| fingerprints[index]).collect());
        let mut own: [Group<'_, Wide>; L] =
            from_fn(|ledger| ledgers[ledger].table.lock_all(&own_fingerprints[ledger], &reader));
        let mut members: Members<'_, (usize, Entry)> = Few::with_capacity(charges.len());
        for (index, charge) in charges.iter().enumerate() {
            let ledger = places[index];
            let member = ledgers[ledger].own_entry(&mut own[ledger], &reader, charge, fingerprints[index]);
            members.push(member.map(|member| member.in_ledger(ledger)));
        }

        let without_slot: [Few<usize>; L] = from_fn(|ledger| ledgers[ledger].without_slot(&members, here(ledger)));
        let shared_fingerprints: [Few<Fingerprint>; L] = from_fn(|ledger| {
            without_slot[ledger].iter().map(|index| ledgers[ledger].shared_fingerprint(&charges[*index])).collect()
        });
        let mut shared: [Group<'_, Wide>; L] =
            from_fn(|ledger| ledgers[ledger].overflow.lock_all(&shared_fingerprints[ledger], &reader));
        for (ledger, group) in shared.iter_mut().enumerate() {
            for (index, fingerprint) in without_slot[ledger].iter().zip(&shared_fingerprints[ledger]) {
                if let Some(member) = ledgers[ledger].shared_entry(group, &reader, &charges[*index], *fingerprint) {
                    members[*index] = Ok(member.in_ledger(ledger));
                }
            }
        }

        let entries = LockedAcross { own: &own, shared: &shared };
        let passed = decide_locked(limit_table, &entries, &mut charges, &mut members, each);
        if !passed {
            own.iter_mut().for_each(Group::restore_evicted);
            shared.iter_mut().for_each(Group::restore_evicted);
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
    ) -> Result<Member<'n, Entry>, Retry> {
        let limits = self.limits(reader.limit_table, charge).ok_or(Retry::Never)?;
        let now = now_for_key(charge, fingerprint, reader.now);
        let presence = own.find_or_insert(fingerprint, reader, spent_by_arrival(limits, &now, charge.ask));
        let (place, presence) = presence.ok_or(Retry::OnRelease)?;
        let mut state = own.state(place);
        let presence = presence_under(reader.limit_table, limits, charge.limits_id, &state, presence, &now);
        own_limits(reader.limit_table, limits, charge.limits_id, &mut state, presence, &now);
        Ok(Member::new(limits, Entry::Own(place), now))
    }

    /// Counts the charges whose keys found no slot, of those at the positions `here`, and returns those that may use the shared
    /// entry of their limits.
    fn without_slot<E>(&self, members: &Members<'_, E>, here: impl Iterator<Item = usize>) -> Few<usize> {
        let without_slot: Few<usize> = here.filter(|index| matches!(members[*index], Err(Retry::OnRelease))).collect();
        if !without_slot.is_empty() {
            self.overflowed.fetch_add(without_slot.len() as u64, Ordering::Relaxed);
        }
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
    ) -> Option<Member<'n, Entry>> {
        let limits = self.limits(reader.limit_table, charge)?;
        let now = now_for_key(charge, fingerprint, reader.now);
        let (place, presence) = shared.find_or_insert(fingerprint, reader, Spent::ALL)?;
        own_limits(reader.limit_table, limits, charge.limits_id, &mut shared.state(place), presence, &now);
        Some(Member::new(limits, Entry::Shared(place), now))
    }
}
