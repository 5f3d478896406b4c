//! The in-memory store.

use std::fmt;
use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use tollgate::clock::{Clock, PreciseClock};
use tollgate::core::{Algorithm, Ask, Cost, Now, Stamps, Time, Wall};
use tollgate::ledger::{Ledger, LimitTable, PlainCharge};
use tollgate::snapshot::{RestoreError, SnapshotReader, SnapshotWriter};
use tollgate::{CapacityError, Limits, Outcome, Report};

use crate::store::{Answers, Batch, Charge, Group, Store, StoreError, StoreVerb};

/// A store in the memory of the process. The store answers immediately and is never unreachable.
///
/// States differ widely in length, from one word for most buckets to thousands of words for leases, so there is one
/// table per size class. Memory is reserved for all tables, but touched only when used.
pub struct MemoryStore<C = PreciseClock> {
    tables: [Ledger<Arc<C>>; SIZE_CLASSES.len()],
    clock: Arc<C>,
    /// Held while a state moves to a table for longer states. A state moves if a changed rule or an override needs
    /// longer states for a key with usage. Such a key is looked up in every table that may contain it.
    move_lock: Mutex<()>,
}

/// For each table: the maximum state length in words, and a divisor. The key capacity of the table is the key capacity
/// of the first table, divided by this divisor.
const SIZE_CLASSES: [(usize, usize); 5] = [(2, 1), (8, 1), (128, 16), (1_200, 128), (24_640, 2_048)];

/// Minimum number of keys for which a table has space.
const MIN_TABLE_KEYS: usize = 64;

/// Maximum number of charges passed to a table in one call. The table prefetches the states of this number of charges
/// together.
const MAX_BATCHED_CHARGES: usize = 16;

/// Maximum number of buckets per table that are read to count keys. The count of a larger table is an estimate,
/// accurate to a few percent.
const MAX_COUNTED_BUCKETS: usize = 1 << 16;

impl MemoryStore {
    /// Creates a store for `keys` keys with states of at most two words. Each table for longer states holds at most
    /// that number of keys. Small tables are enlarged to a minimum size.
    ///
    /// # Errors
    /// If the tables do not fit into the address space.
    pub fn new(keys: usize) -> Result<Self, CapacityError> {
        Self::with_clock(keys, Arc::new(PreciseClock::new()))
    }
}

impl<C: Clock> MemoryStore<C> {
    /// Like [`MemoryStore::new`], but reads the time from `clock`.
    ///
    /// # Errors
    /// If the tables do not fit into the address space.
    pub fn with_clock(keys: usize, clock: Arc<C>) -> Result<Self, CapacityError> {
        let table = |position: usize| {
            let (words, share) = SIZE_CLASSES[position];
            Ledger::with_clock((keys / share).max(MIN_TABLE_KEYS), words, clock.clone())
        };
        let tables = [table(0)?, table(1)?, table(2)?, table(3)?, table(4)?];
        Ok(Self { tables, clock, move_lock: Mutex::new(()) })
    }

    /// Writes all states with their limits, and returns the number of states. See [`Ledger::write_snapshot`].
    ///
    /// # Errors
    /// If the writer fails.
    pub fn write_snapshot<W: Write>(&self, limits: &dyn LimitTable, to: &mut SnapshotWriter<W>) -> io::Result<u64> {
        let mut total = 0;
        // Tables for shorter states come first. States move only to tables for longer states, so no state is missed.
        for table in &self.tables {
            total += table.write_snapshot(limits, to)?;
        }
        Ok(total)
    }

    /// Returns the number of keys with usage, estimated if there are many. See [`Ledger::count_used_keys`].
    pub fn count_used_keys(&self, limits: &dyn LimitTable) -> u64 {
        self.tables.iter().map(|table| table.count_used_keys(limits, MAX_COUNTED_BUCKETS)).sum()
    }

    /// Returns a store with the states of a snapshot. See [`Ledger::restored`].
    ///
    /// # Errors
    /// If the snapshot cannot be read or is damaged.
    pub fn restored<R: Read>(
        keys: usize,
        clock: Arc<C>,
        from: &mut SnapshotReader<R>,
        mut id_of: impl FnMut(u32, &Limits) -> Option<u32>,
    ) -> Result<Self, RestoreError> {
        let mut table = |position: usize| {
            let (words, share) = SIZE_CLASSES[position];
            Ledger::restored((keys / share).max(MIN_TABLE_KEYS), words, clock.clone(), from, &mut id_of)
        };
        let tables = [table(0)?, table(1)?, table(2)?, table(3)?, table(4)?];
        Ok(Self { tables, clock, move_lock: Mutex::new(()) })
    }

    /// Returns the size in bytes after all memory has been touched.
    pub fn bytes(&self) -> usize {
        self.tables.iter().map(Ledger::bytes).sum()
    }

    /// Decides every group of the batch, in order.
    pub fn answer_batch(&self, batch: Batch<'_>, answers: &mut Answers) {
        let mut groups = batch.groups;
        while let [group, rest @ ..] = groups {
            let batchable_groups = if rest.is_empty() { 1 } else { self.batchable_groups(groups) };
            if batchable_groups > 1 {
                self.check_batch(&groups[..batchable_groups], batch.limit_table, answers);
            } else {
                self.answer_group(group, batch.limit_table, answers);
            }
            groups = &groups[batchable_groups.max(1)..];
        }
    }

    /// Returns the number of leading groups that one table can decide together: single-charge checks in the same table,
    /// without earlier limits or calendar windows.
    fn batchable_groups(&self, groups: &[Group<'_>]) -> usize {
        let table = |group: &Group<'_>| match group {
            Group { verb: StoreVerb::Check, charges: [charge] }
                if charge.earlier.is_empty() && charge.windows.is_empty() =>
            {
                Some(size_class_of(charge.limits))
            }
            Group { .. } => None,
        };
        let Some(first) = groups.first().and_then(table) else { return 0 };
        groups.iter().take(MAX_BATCHED_CHARGES).take_while(|group| table(group) == Some(first)).count()
    }

    fn check_batch(&self, groups: &[Group<'_>], limit_table: &dyn LimitTable, answers: &mut Answers) {
        let at = self.clock.now().wall();
        let mut charges = [EMPTY_CHARGE; MAX_BATCHED_CHARGES];
        let mut table = &self.tables[0];
        for (position, group) in charges.iter_mut().zip(groups) {
            if let [charge] = group.charges {
                *position = to_ledger_charge(charge);
                table = &self.tables[size_class_of(charge.limits)];
            }
        }
        let charges = &charges[..groups.len()];
        table.decide_independently(limit_table, charges, |position, seat| {
            answers.push_verdict(seat.verdict(), seat.reports(charges[position].ask.cost().get()));
            answers.end_group(at);
        });
    }

    fn answer_group(&self, group: &Group<'_>, limit_table: &dyn LimitTable, answers: &mut Answers) {
        let now = self.clock.now();
        let at = now.wall();
        if group.charges.iter().any(|charge| !is_in_windows(charge, at)) {
            return answers.fail_group(StoreError::Stale { store_time: at });
        }
        match group.verb {
            StoreVerb::Check => self.check_group(group.charges, limit_table, now, answers),
            StoreVerb::Peek => group.charges.iter().for_each(|charge| self.answer_peek(charge, limit_table, answers)),
            StoreVerb::Refund => {
                for charge in group.charges {
                    let (table, entry) = (self.table_with_state(charge, limit_table), to_ledger_charge(charge));
                    let given = table.refund(limit_table, &entry, charge.ask.cost().get(), charge.stamps.copied());
                    self.answer_with_report(charge, Cost::new(given), limit_table, answers);
                }
            }
            StoreVerb::Renew => {
                for charge in group.charges {
                    let renew = |stamps: &Stamps| {
                        self.table_with_state(charge, limit_table).renew(
                            limit_table,
                            &to_ledger_charge(charge),
                            *stamps,
                        )
                    };
                    let held = if charge.stamps.is_some_and(renew) { charge.ask.cost() } else { Cost::ZERO };
                    self.answer_with_report(charge, held, limit_table, answers);
                }
            }
            StoreVerb::Reset => {
                for charge in group.charges {
                    self.table_for(charge, limit_table).reset(limit_table, &to_ledger_charge(charge));
                    self.answer_with_report(charge, Cost::ZERO, limit_table, answers);
                }
            }
        }
        answers.end_group(at);
    }

    fn check_group(&self, charges: &[Charge<'_>], limit_table: &dyn LimitTable, now: Now<'_>, answers: &mut Answers) {
        let Some(first) = charges.first().map(|charge| self.table_index(charge, limit_table)) else { return };
        if charges.iter().any(|charge| self.table_index(charge, limit_table) != first) {
            return self.check_across_tables(charges, limit_table, now, answers);
        }
        let table = &self.tables[first];
        if table.try_decide_fast(charges, to_plain_charge, &now, plain_answer_callback(answers)).is_some() {
            return;
        }
        table.decide_mapped(limit_table, charges, to_ledger_charge, now, |position, seat| {
            answers.push_verdict(seat.verdict(), seat.reports(charges[position].ask.cost().get()));
        });
    }

    /// Decides a group whose states are in several tables.
    fn check_across_tables(
        &self,
        charges: &[Charge<'_>],
        limit_table: &dyn LimitTable,
        now: Now<'_>,
        answers: &mut Answers,
    ) {
        let in_table = |charge| (self.table_index(charge, limit_table), to_ledger_charge(charge));
        Ledger::decide_across(&self.tables, limit_table, charges, in_table, now, |index, seat| {
            answers.push_verdict(seat.verdict(), seat.reports(charges[index].ask.cost().get()));
        });
    }

    /// Answers a peek for one charge.
    fn answer_peek(&self, charge: &Charge<'_>, limit_table: &dyn LimitTable, answers: &mut Answers) {
        self.table_for(charge, limit_table).peek(limit_table, &to_ledger_charge(charge), |seat| {
            let reports = seat.reports(charge.ask.cost().get());
            answers.push_answer(seat.verdict().outcome(), Cost::ZERO, Stamps::default(), reports);
        });
    }

    /// Answers with the amount refunded or renewed, and with the resulting state.
    fn answer_with_report(
        &self,
        charge: &Charge<'_>,
        given: Cost,
        limit_table: &dyn LimitTable,
        answers: &mut Answers,
    ) {
        self.table_for(charge, limit_table).peek(limit_table, &to_ledger_charge(charge), |seat| {
            answers.push_answer(Outcome::Allow, given, Stamps::default(), seat.reports(charge.ask.cost().get()));
        });
    }

    /// Returns the index of the table that decides a charge. This is the table for the charge's limits, unless a table
    /// for longer states contains the key's usage under earlier limits. A state in a table for shorter states is moved
    /// unchanged and keeps the limits under which it was charged.
    #[inline]
    fn table_index(&self, charge: &Charge<'_>, limit_table: &dyn LimitTable) -> usize {
        let here = size_class_of(charge.limits);
        if charge.earlier.is_empty() { here } else { self.find_table(charge, here, limit_table) }
    }

    #[inline(never)]
    fn find_table(&self, charge: &Charge<'_>, here: usize, limit_table: &dyn LimitTable) -> usize {
        let mut others = [false; SIZE_CLASSES.len()];
        for limits in charge.earlier.iter().filter_map(|id| limit_table.get(*id)) {
            others[size_class_of(limits)] = true;
        }
        others[here] = false;
        if !others.contains(&true) {
            return here;
        }
        let _moving = self.move_lock.lock().unwrap_or_else(PoisonError::into_inner);
        others[here] = true;
        let entry = to_ledger_charge(charge);
        let is_used = |position: &usize| others[*position] && self.tables[*position].may_have_used(limit_table, &entry);
        let is_remembered =
            |position: &usize| others[*position] && self.tables[*position].contains_key(limit_table, &entry);
        // A key without usage stays in the table that has its entry. If two tables had entries, the older entry would
        // determine whether the key counts as new under limits with an initial amount.
        let is_unused = !(0..SIZE_CLASSES.len()).any(|position| is_used(&position));
        let is_here = |position: &usize| if is_unused { is_remembered(position) } else { is_used(position) };
        let to = (here + 1..SIZE_CLASSES.len()).rev().find(is_here).unwrap_or(here);
        for from in (0..to).filter(is_here) {
            if !is_here(&to) {
                self.tables[from].move_to(&self.tables[to], limit_table, &entry);
            }
        }
        to
    }

    /// Returns the table that contains a key's state, for refunds and renewals. The caller need not know the limits
    /// under which the key was charged.
    fn table_with_state(&self, charge: &Charge<'_>, limit_table: &dyn LimitTable) -> &Ledger<Arc<C>> {
        let (table, entry) = (self.table_for(charge, limit_table), to_ledger_charge(charge));
        if table.may_have_used(limit_table, &entry) {
            return table;
        }
        self.tables.iter().find(|table| table.may_have_used(limit_table, &entry)).unwrap_or(table)
    }

    fn table_for(&self, charge: &Charge<'_>, limit_table: &dyn LimitTable) -> &Ledger<Arc<C>> {
        &self.tables[self.table_index(charge, limit_table)]
    }
}

impl<C: Clock + Send + Sync> Store for MemoryStore<C> {
    #[inline]
    fn run(&self, batch: Batch<'_>, answers: &mut Answers) -> impl Future<Output = ()> + Send {
        self.answer_batch(batch, answers);
        std::future::ready(())
    }

    #[inline]
    fn prefetch(&self, keys: &[(&Limits, &[u8])]) {
        for keys in keys.chunk_by(|(a, _), (b, _)| size_class_of(a) == size_class_of(b)) {
            if let Some((limits, _)) = keys.first() {
                self.tables[size_class_of(limits)].prefetch(keys.iter().map(|(_, key)| *key));
            }
        }
    }

    #[inline]
    fn try_decide_fast<'a, T>(
        &self,
        charged: &'a [T],
        charge: impl Fn(&'a T) -> Option<PlainCharge<'a>>,
        answers: &mut Answers,
    ) -> Option<bool> {
        let ([first, ..], now) = (&self.tables, self.clock.now());
        let admitted = first.try_decide_fast(charged, charge, &now, plain_answer_callback(answers))?;
        answers.end_decided_group(now.wall(), admitted);
        Some(admitted)
    }

    fn check_limits(&self, limits: &Limits) -> Result<(), String> {
        let (longest, _) = SIZE_CLASSES[SIZE_CLASSES.len() - 1];
        if limits.words() <= longest {
            return Ok(());
        }
        Err(format!("the state takes {} words in memory (maximum {longest})", limits.words()))
    }

    fn can_fail(&self) -> bool {
        false
    }

    fn init_state(&self, limit_table: &(dyn LimitTable + Sync), charge: &Charge<'_>, start: &Limits, held: &[u64]) {
        self.table_for(charge, limit_table).replace_state(limit_table, &to_ledger_charge(charge), start, held);
    }

    fn overflowed(&self) -> u64 {
        self.tables.iter().map(Ledger::overflowed).sum()
    }
}

impl<C> fmt::Debug for MemoryStore<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore").field("tables", &self.tables).finish_non_exhaustive()
    }
}

/// Returns whether `at` is in all calendar windows of the charge.
fn is_in_windows(charge: &Charge<'_>, at: Time<Wall>) -> bool {
    charge.windows.iter().all(|window| window.start() <= at && at < window.end())
}

/// Returns the index of the table for states of these limits.
#[inline]
fn size_class_of(limits: &Limits) -> usize {
    let words = limits.words();
    SIZE_CLASSES.iter().position(|(longest, _)| words <= *longest).unwrap_or(SIZE_CLASSES.len() - 1)
}

#[inline]
fn to_ledger_charge<'a>(charge: &Charge<'a>) -> tollgate::ledger::Charge<'a> {
    let Charge { limits_id, limits, key, ask, windows, .. } = *charge;
    tollgate::ledger::Charge { limits_id, limits: Some(limits), key, ask, windows }
}

/// Converts a charge that takes its cost exactly and has no calendar windows; `None` for other charges.
#[inline]
fn to_plain_charge<'a>(charge: &'a Charge<'a>) -> Option<PlainCharge<'a>> {
    let Charge { limits_id, limits, key, ask: Ask::Exactly(cost), windows: [], .. } = *charge else { return None };
    Some(PlainCharge { limits_id, limits, key, cost })
}

/// Returns a callback that adds the answers of the fast path to `answers`.
#[inline]
fn plain_answer_callback(answers: &mut Answers) -> impl FnMut(&PlainCharge<'_>, &Outcome, &Report) {
    |charge, outcome, report| match outcome {
        Outcome::Allow => answers.push_granted(charge.cost, *report),
        Outcome::Delay(_) | Outcome::Deny(_) => answers.push_refused(*outcome, *report),
    }
}

const EMPTY_CHARGE: tollgate::ledger::Charge<'static> =
    tollgate::ledger::Charge { limits_id: 0, limits: None, key: &[], ask: Ask::Exactly(Cost::ZERO), windows: &[] };
