//! Groups of charges that pass all or none, in one or several ledgers.
//!
//! **The naive method** charges one key after another and refunds these charges if a later charge is refused. In
//! between, other threads see charges of a request that does not pass, and may wrongly refuse their own requests.
//!
//! **The idea** is two-phase locking: lock the entries of all keys, decide all charges, undo them if one is refused, and
//! unlock. Entries are locked in bucket order, so two groups cannot deadlock. A key without an entry is charged to the
//! shared overflow entry of its limits. Overflow entries are locked after all other entries. If the group is refused,
//! evicted entries are restored.
//!
//! **Cost.** A charge costs about the same in a large group as in a small group, except for sorting the bucket indices.
//! Charges are compared with each other only if their keys share a bucket. An engine decision on 256 keys of plain
//! rules takes 226,000 instructions on the fast path, and 508,000 without it. Such a decision took 890,000 instructions
//! when both buckets of every key were locked, and every charge was weighed before any was written.
//!
//! The fast path (`try_decide_fast`) covers groups whose entries exist, are unlocked and have short states. The fast
//! path uses try-lock only, so it needs no lock order. A small group keeps its weighed states on the stack, by
//! recursion; a large group keeps them in a list.

use std::array::from_fn;

use tollgate_core::{Cells, CellsMut, Limits, Now, Outcome, Report, Retry, Spent};

use super::weigh::{INLINE_CHARGES, InlineVec, Member, Members, decide_locked};
use super::{
    Charge, ChargeView, Ledger, LedgerReader, LimitTable, PlainCharge, now_for_key, own_limits_or_init, presence_under,
};
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Key};
use crate::keyed::{WhenFull, max_spent_by};
use crate::sync::Ordering;
use crate::table::{LockedGroup, TryLockedGroup, WideLayout};

/// Maximum number of charges on the fast path: enough for a request that matches the maximum number of rules.
const MAX_LISTED_CHARGES: usize = 256;

impl<C: Clock> Ledger<C> {
    /// The fast path of [`decide`](Self::decide). The fast path applies to up to 256 charges of different keys, each
    /// under a single limit. Every key must have an entry in an unlocked bucket, with a state of one or two words that
    /// belongs to the limits of the charge. In a group of up to sixteen charges, every key must also be in its home
    /// bucket, and no two keys may be in the same bucket. `charge` converts an element of `charged`, or returns `None`
    /// if the element is not a plain charge. Calls `each` for every charge in order, with the charge's outcome and a
    /// report of its limit after the decision.
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
        mut each: impl FnMut(&PlainCharge<'_>, &Outcome, &Report),
    ) -> Option<bool> {
        if charged.len() <= INLINE_CHARGES {
            FastGroup { ledger: self, charge: &charge, now, each: &mut each }.try_decide(charged, true)
        } else if charged.len() <= MAX_LISTED_CHARGES {
            self.try_decide_listed(charged, charge, now, each)
        } else {
            None
        }
    }

    /// Locks and weighs one charge after the other, and keeps the weighed charges in a list. Then writes the charges if
    /// all pass, and calls `each`. For two charges, the list took 12 % more instructions per decision than
    /// recursion. Deep recursion would need too much stack.
    #[inline(never)]
    fn try_decide_listed<'a, T>(
        &self,
        charged: &'a [T],
        charge: impl Fn(&'a T) -> Option<PlainCharge<'a>>,
        now: &Now<'_>,
        mut each: impl FnMut(&PlainCharge<'_>, &Outcome, &Report),
    ) -> Option<bool> {
        let mut group = TryLockedGroup::with_capacity(&self.table, charged.len());
        let mut weighed = Vec::with_capacity(charged.len());
        let mut passes = true;
        for charge in charged.iter().map(charge) {
            let charge = charge?;
            let state = group.try_lock(charge.key.fingerprint(&self.secret))?;
            if state.get(0) != u64::from(charge.limits_id) {
                return None;
            }
            let mut words: [u64; Limits::MAX_FAST_WORDS] = from_fn(|word| state.get(1 + word));
            let outcome = charge.limits.try_decide_single(&mut words, now, charge.cost)?;
            passes &= outcome.is_admitted();
            weighed.push((charge, state, words, outcome));
        }
        for (charge, mut state, mut words, outcome) in weighed {
            if passes {
                words.iter().enumerate().for_each(|(word, value)| state.set(1 + word, *value));
            } else {
                words = from_fn(|word| state.get(1 + word));
            }
            each(&charge, &outcome, &charge.limits.report_single(&words, now, charge.cost));
        }
        Some(passes)
    }

    /// Like [`decide_mapped`](Self::decide_mapped), for a group whose states are in several ledgers: locks all entries,
    /// writes the charges in order, and undoes them if one is refused. `charge` returns the index of the ledger and the
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
        let mut charges: InlineVec<Charge<'_>> = InlineVec::with_capacity(charged.len());
        // For each charge: its ledger, and the index of its key among the keys of that ledger.
        let mut positions: InlineVec<(usize, usize)> = InlineVec::with_capacity(charged.len());
        let mut fingerprints: [InlineVec<Fingerprint>; L] = from_fn(|_| InlineVec::new());
        for (ledger, charge) in charged.iter().map(charge) {
            positions.push((ledger, fingerprints[ledger].len()));
            fingerprints[ledger].push(ledgers[ledger].fingerprint(&charge));
            charges.push(charge);
        }
        let mut own: [LockedGroup<'_, WideLayout>; L] =
            from_fn(|ledger| LockedGroup::lock(&ledgers[ledger].table, &fingerprints[ledger], &reader));
        let mut members: Members<'_> = InlineVec::with_capacity(charges.len());
        let mut without_entry: [InlineVec<usize>; L] = from_fn(|_| InlineVec::new());
        for (index, (charge, (ledger, key))) in charges.iter().zip(&positions).enumerate() {
            let (ledger, fingerprint) = (*ledger, fingerprints[*ledger][*key]);
            let member = ledgers[ledger].find_or_insert_own_entry(&mut own[ledger], *key, &reader, charge, fingerprint);
            if matches!(member, Err(Retry::OnRelease)) {
                without_entry[ledger].push(index);
            }
            members.push(member);
        }

        // Overflow entries are locked last, so a thread that holds an overflow entry never waits for a key's own entry.
        for (ledger, without_entry) in ledgers.iter().zip(&mut without_entry) {
            ledger.count_overflowed(without_entry);
        }
        let shared_fingerprints: [InlineVec<Fingerprint>; L] = from_fn(|ledger| {
            without_entry[ledger].iter().map(|index| ledgers[ledger].overflow_fingerprint(&charges[*index])).collect()
        });
        let mut shared: [LockedGroup<'_, WideLayout>; L] =
            from_fn(|ledger| LockedGroup::lock(&ledgers[ledger].overflow, &shared_fingerprints[ledger], &reader));
        for (ledger, group) in shared.iter_mut().enumerate() {
            for (key, index) in without_entry[ledger].iter().enumerate() {
                let fingerprint = shared_fingerprints[ledger][key];
                let member =
                    ledgers[ledger].find_or_insert_overflow_entry(group, key, &reader, &charges[*index], fingerprint);
                if let Some(member) = member {
                    members[*index] = Ok(member);
                }
            }
        }

        let has_repeats = own.iter().chain(&shared).any(LockedGroup::has_repeats);
        let passed = decide_locked(limit_table, &mut charges, &mut members, has_repeats, each);
        if !passed {
            own.iter_mut().for_each(LockedGroup::restore_evicted);
            shared.iter_mut().for_each(LockedGroup::restore_evicted);
        }
        passed
    }

    /// Finds or inserts the entry of the charge's key.
    #[inline]
    fn find_or_insert_own_entry<'n, N: LimitTable + ?Sized>(
        &self,
        own: &mut LockedGroup<'n, WideLayout>,
        key: usize,
        reader: &LedgerReader<'n, N>,
        charge: &Charge<'n>,
        fingerprint: Fingerprint,
    ) -> Result<Member<'n>, Retry> {
        let limits = self.limits(reader.limit_table, charge).ok_or(Retry::Never)?;
        let now = now_for_key(charge, fingerprint, reader.now);
        let presence = own.find_or_insert(key, reader, || max_spent_by(limits, &now, charge.ask));
        let (mut state, presence) = presence.ok_or(Retry::OnRelease)?;
        let presence = presence_under(reader.limit_table, limits, charge.limits_id, &state, presence, &now);
        own_limits_or_init(reader.limit_table, limits, charge.limits_id, &mut state, presence, &now);
        Ok(Member::new(limits, state, now))
    }

    /// Counts the charges in `without_entry`. Empties this list if the charges must not use an overflow entry.
    fn count_overflowed(&self, without_entry: &mut InlineVec<usize>) {
        if without_entry.is_empty() {
            return;
        }
        self.overflowed.fetch_add(without_entry.len() as u64, Ordering::Relaxed);
        match self.when_full {
            WhenFull::Overflow => {}
            WhenFull::Deny => without_entry.clear(),
        }
    }

    /// Finds or inserts the overflow entry of the charge's limits.
    fn find_or_insert_overflow_entry<'n, N: LimitTable + ?Sized>(
        &self,
        shared: &mut LockedGroup<'n, WideLayout>,
        key: usize,
        reader: &LedgerReader<'n, N>,
        charge: &Charge<'n>,
        fingerprint: Fingerprint,
    ) -> Option<Member<'n>> {
        let limits = self.limits(reader.limit_table, charge)?;
        let now = now_for_key(charge, fingerprint, reader.now);
        let (mut state, presence) = shared.find_or_insert(key, reader, || Spent::ALL)?;
        own_limits_or_init(reader.limit_table, limits, charge.limits_id, &mut state, presence, &now);
        Some(Member::new(limits, state, now))
    }
}

/// A small group on the fast path: the arguments that are the same for all of its charges.
struct FastGroup<'g, C, F, E> {
    ledger: &'g Ledger<C>,
    charge: &'g F,
    now: &'g Now<'g>,
    each: &'g mut E,
}

impl<C: Clock, F, E: FnMut(&PlainCharge<'_>, &Outcome, &Report)> FastGroup<'_, C, F, E> {
    /// Decides the charges of the group, the last one first. Groups of one and two charges, which are the most common,
    /// need no recursion, which saves 108 of 2,683 instructions of an engine decision by two rules.
    fn try_decide<'a, T>(&mut self, charged: &'a [T], passes: bool) -> Option<bool>
    where
        F: Fn(&'a T) -> Option<PlainCharge<'a>>,
    {
        match charged {
            [] => Some(passes),
            [only] => self.visit(only, passes, |_, passes| Some(passes)),
            [first, second] => {
                self.visit(second, passes, |group, passes| group.visit(first, passes, |_, passes| Some(passes)))
            }
            [before @ .., last] => self.visit(last, passes, |group, passes| group.try_decide(before, passes)),
        }
    }

    /// Locks the bucket of a charge, weighs the charge on a copy of the state, and calls `decide_others`, which does the
    /// same for the other charges. The innermost call has weighed all charges. As the calls return, each one writes its
    /// copy if all charges pass, and calls `each`. So nothing is written before all charges are weighed, and no list is
    /// needed. The lock order does not matter, because only try-lock is used. If two charges share a bucket, the second
    /// try-lock fails, and the fast path does not apply.
    #[inline(always)]
    fn visit<'a, T>(
        &mut self,
        charged: &'a T,
        passes: bool,
        decide_others: impl FnOnce(&mut Self, bool) -> Option<bool>,
    ) -> Option<bool>
    where
        F: Fn(&'a T) -> Option<PlainCharge<'a>>,
    {
        let charge = (self.charge)(charged)?;
        let Ledger { table, secret, .. } = self.ledger;
        table.try_visit_home(charge.key.fingerprint(secret), 0, |state| {
            if state.get(0) != u64::from(charge.limits_id) {
                return None;
            }
            let unchanged: [u64; Limits::MAX_FAST_WORDS] = from_fn(|word| state.get(1 + word));
            let mut words = unchanged;
            let outcome = charge.limits.try_decide_single(&mut words, self.now, charge.cost)?;
            let passes = decide_others(self, passes && outcome.is_admitted())?;
            if passes {
                words.iter().enumerate().for_each(|(word, value)| state.set(1 + word, *value));
            } else {
                words = unchanged;
            }
            (self.each)(&charge, &outcome, &charge.limits.report_single(&words, self.now, charge.cost));
            Some(passes)
        })
    }
}
