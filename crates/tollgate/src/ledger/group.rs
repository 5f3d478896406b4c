//! Groups of charges that pass all or none, in one or several ledgers.
//!
//! **The naive method** charges one key after another and refunds these charges if a later charge is refused. In
//! between, other threads see charges of a request that does not pass, and may wrongly refuse their own requests.
//!
//! **The idea** is two-phase locking: lock the entries of all keys, weigh all charges, write all or none, and unlock.
//! Entries are locked in bucket order, so two groups cannot deadlock. A key without an entry is charged to the shared
//! overflow entry of its limits. Overflow entries are locked after all other entries. If the group is refused, evicted
//! entries are restored.
//!
//! The fast path (`try_decide_fast`) covers groups of a few charges whose entries exist and are unlocked. It uses
//! try-lock only, so it needs no lock order, and it keeps the weighed states on the stack.

use std::array::from_fn;

use tollgate_core::{Cells, CellsMut, Limits, Now, Outcome, Report, Retry, Spent};

use super::weigh::{Entries, INLINE_CHARGES, InlineVec, Member, Members, decide_locked};
use super::{
    Charge, ChargeView, Ledger, LedgerReader, LimitTable, PlainCharge, now_for_key, own_limits_or_init, presence_under,
};
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Key};
use crate::keyed::{WhenFull, max_spent_by};
use crate::sync::Ordering;
use crate::table::{EntryIndex, Group, State, Wide};

/// The ledger entry in which a charge is counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Entry {
    /// The key's own entry.
    Own(EntryIndex),
    /// The overflow entry of the charge's limits.
    Shared(EntryIndex),
}

/// The locked entries of a group, per ledger.
struct LockedEntries<'g, 'o, 's, const L: usize> {
    own: &'g [Group<'o, Wide>; L],
    shared: &'g [Group<'s, Wide>; L],
}

impl<const L: usize> Entries for LockedEntries<'_, '_, '_, L> {
    /// The index of the ledger, and an entry of that ledger.
    type Entry = (usize, Entry);

    #[inline]
    fn state(&self, (ledger, entry): Self::Entry) -> State<'_> {
        match entry {
            Entry::Own(place) => self.own[ledger].state(place),
            Entry::Shared(place) => self.shared[ledger].state(place),
        }
    }

    fn words(&self, (ledger, entry): Self::Entry) -> usize {
        match entry {
            Entry::Own(_) => self.own[ledger].state_words(),
            Entry::Shared(_) => self.shared[ledger].state_words(),
        }
    }
}

impl<C: Clock> Ledger<C> {
    /// The fast path of [`decide`](Self::decide). It applies to up to sixteen charges, each under a single limit, if
    /// every key is in its home bucket, the bucket is unlocked, and the state has one or two words and belongs to the
    /// limits of the charge. `charge` converts an element of `charged`, or returns `None` if the element is not a plain
    /// charge. Calls `each` for every charge in order, with the charge's outcome and a report of its limit after the
    /// decision.
    ///
    /// Returns whether the group was admitted. `None`: the fast path does not apply and had no effect; call
    /// [`decide`](Self::decide).
    #[doc(hidden)]
    #[inline]
    pub fn try_decide_fast<'a, T>(
        &self,
        charged: &'a [T],
        charge: impl Fn(&'a T) -> Option<PlainCharge<'a>>,
        now: &Now<'_>,
        mut each: impl FnMut(&PlainCharge<'_>, Outcome, Report),
    ) -> Option<bool> {
        if charged.len() <= INLINE_CHARGES {
            self.try_decide_recursively(charged, true, &charge, now, &mut each)
        } else {
            None
        }
    }

    /// Locks the bucket of the last charge, weighs the charge on a copy of the state, and decides the charges before it
    /// by recursion. The innermost call has weighed all charges. As the recursion unwinds, each call writes its copy if
    /// all charges pass, and calls `each`. So nothing is written before all charges are weighed, and no list is needed.
    /// The lock order does not matter, because only try-lock is used. If two charges share a bucket, the second
    /// try-lock fails, and the fast path does not apply.
    fn try_decide_recursively<'a, T>(
        &self,
        charged: &'a [T],
        passes: bool,
        charge: &impl Fn(&'a T) -> Option<PlainCharge<'a>>,
        now: &Now<'_>,
        each: &mut impl FnMut(&PlainCharge<'_>, Outcome, Report),
    ) -> Option<bool> {
        let [before @ .., last] = charged else { return Some(passes) };
        let last = charge(last)?;
        self.table.try_visit_home(last.key.fingerprint(&self.secret), 0, |state| {
            if state.get(0) != u64::from(last.limits_id) {
                return None;
            }
            let unchanged: [u64; Limits::FAST_WORDS] = from_fn(|word| state.get(1 + word));
            let mut words = unchanged;
            let outcome = last.limits.try_decide_single(&mut words, now, last.cost)?;
            let passes = self.try_decide_recursively(before, passes && outcome.is_admitted(), charge, now, each)?;
            if passes {
                words.iter().enumerate().for_each(|(word, value)| state.set(1 + word, *value));
            } else {
                words = unchanged;
            }
            each(&last, outcome, last.limits.report_single(&words, now, last.cost));
            Some(passes)
        })
    }

    /// Like [`decide_mapped`](Self::decide_mapped), for a group whose states are in several ledgers: locks all entries,
    /// weighs the charges in order, and writes them if all pass. `charge` returns the index of the ledger and the
    /// charge.
    ///
    /// Entries are locked in the order of `ledgers`, so all callers must pass the ledgers in the same order.
    #[doc(hidden)]
    pub fn decide_across<'a, T, N: LimitTable + ?Sized, const L: usize>(
        ledgers: &[Self; L],
        limit_table: &N,
        charged: &'a [T],
        charge: impl Fn(&'a T) -> (usize, Charge<'a>),
        now: Now<'_>,
        each: impl FnMut(usize, &ChargeView<'_>),
    ) -> bool {
        let reader = LedgerReader { limit_table, now };
        let (places, mut charges): (InlineVec<usize>, InlineVec<Charge<'_>>) = charged.iter().map(charge).unzip();
        let fingerprints: InlineVec<Fingerprint> =
            places.iter().zip(&charges).map(|(ledger, charge)| ledgers[*ledger].fingerprint(charge)).collect();
        let places = &*places;
        let here = |ledger: usize| (0..places.len()).filter(move |index| places[*index] == ledger);
        let own_fingerprints: [InlineVec<Fingerprint>; L] =
            from_fn(|ledger| here(ledger).map(|index| fingerprints[index]).collect());
        let mut own: [Group<'_, Wide>; L] =
            from_fn(|ledger| Group::lock(&ledgers[ledger].table, &own_fingerprints[ledger], &reader));
        let mut members: Members<'_, (usize, Entry)> = InlineVec::with_capacity(charges.len());
        for (index, charge) in charges.iter().enumerate() {
            let ledger = places[index];
            let entry = ledgers[ledger].own_entry(&mut own[ledger], &reader, charge, fingerprints[index]);
            members.push(entry.map(|(limits, entry, now)| Member::new(limits, (ledger, Entry::Own(entry)), now)));
        }

        // Overflow entries are locked last, so a thread that holds an overflow entry never waits for a key's own entry.
        let without_entry: [InlineVec<usize>; L] =
            from_fn(|ledger| ledgers[ledger].without_entry(&members, here(ledger)));
        let shared_fingerprints: [InlineVec<Fingerprint>; L] = from_fn(|ledger| {
            without_entry[ledger].iter().map(|index| ledgers[ledger].shared_fingerprint(&charges[*index])).collect()
        });
        let mut shared: [Group<'_, Wide>; L] =
            from_fn(|ledger| Group::lock(&ledgers[ledger].overflow, &shared_fingerprints[ledger], &reader));
        for (ledger, group) in shared.iter_mut().enumerate() {
            for (index, fingerprint) in without_entry[ledger].iter().zip(&shared_fingerprints[ledger]) {
                let entry = ledgers[ledger].shared_entry(group, &reader, &charges[*index], *fingerprint);
                if let Some((limits, entry, now)) = entry {
                    members[*index] = Ok(Member::new(limits, (ledger, Entry::Shared(entry)), now));
                }
            }
        }

        let entries = LockedEntries { own: &own, shared: &shared };
        let passed = decide_locked(limit_table, &entries, &mut charges, &mut members, each);
        if !passed {
            own.iter_mut().for_each(Group::restore_evicted);
            shared.iter_mut().for_each(Group::restore_evicted);
        }
        passed
    }

    /// Finds or inserts the entry of the charge's key.
    fn own_entry<'n, N: LimitTable + ?Sized>(
        &self,
        own: &mut Group<'_, Wide>,
        reader: &LedgerReader<'n, N>,
        charge: &Charge<'n>,
        fingerprint: Fingerprint,
    ) -> Result<(&'n Limits, EntryIndex, Now<'n>), Retry> {
        let limits = self.limits(reader.limit_table, charge).ok_or(Retry::Never)?;
        let now = now_for_key(charge, fingerprint, reader.now);
        let presence = own.find_or_insert(fingerprint, reader, max_spent_by(limits, &now, charge.ask));
        let (place, presence) = presence.ok_or(Retry::OnRelease)?;
        let mut state = own.state(place);
        let presence = presence_under(reader.limit_table, limits, charge.limits_id, &state, presence, &now);
        own_limits_or_init(reader.limit_table, limits, charge.limits_id, &mut state, presence, &now);
        Ok((limits, place, now))
    }

    /// Counts the charges at the indices `here` whose keys have no entry. Returns the indices of those charges that may
    /// use an overflow entry: none under `WhenFull::Deny`, otherwise all.
    fn without_entry<E>(&self, members: &Members<'_, E>, here: impl Iterator<Item = usize>) -> InlineVec<usize> {
        let without_entry: InlineVec<usize> =
            here.filter(|index| matches!(members[*index], Err(Retry::OnRelease))).collect();
        if !without_entry.is_empty() {
            self.overflowed.fetch_add(without_entry.len() as u64, Ordering::Relaxed);
        }
        match self.when_full {
            WhenFull::Overflow => without_entry,
            WhenFull::Deny => InlineVec::new(),
        }
    }

    /// Finds or inserts the overflow entry of the charge's limits.
    fn shared_entry<'n, N: LimitTable + ?Sized>(
        &self,
        shared: &mut Group<'_, Wide>,
        reader: &LedgerReader<'n, N>,
        charge: &Charge<'n>,
        fingerprint: Fingerprint,
    ) -> Option<(&'n Limits, EntryIndex, Now<'n>)> {
        let limits = self.limits(reader.limit_table, charge)?;
        let now = now_for_key(charge, fingerprint, reader.now);
        let (place, presence) = shared.find_or_insert(fingerprint, reader, Spent::ALL)?;
        own_limits_or_init(reader.limit_table, limits, charge.limits_id, &mut shared.state(place), presence, &now);
        Some((limits, place, now))
    }
}
