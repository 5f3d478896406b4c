//! A shard of the table: the entries behind one mutex.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use smallvec::SmallVec;
use tollgate::fingerprint::Fingerprint;
use tollgate_core::{Algorithm, Ask, Cost, Nanos, Now, Outcome, Report, Stamps, Verdict};

use super::merge::{self, MergeResult, UsedAmount};
use super::{Charge, DrainedCharges, NetCharge, SharedLimits};

/// Minimum interval between an unsuccessful sweep and the next sweep, in nanoseconds.
const MIN_SWEEP_INTERVAL: u64 = 1_000_000_000;

/// Maximum number of overflow entries per shard. Callers can send inline limits, so the number of limit sets is
/// unbounded. Limits with the same [`overflow_slot`] share an entry, which then behaves like a key whose limits change.
const MAX_OVERFLOW: u32 = 64;

fn overflow_slot(limits: &SharedLimits) -> u32 {
    limits.number() % MAX_OVERFLOW
}

/// Minimum time for which a hold can be undone exactly, in nanoseconds. A later undo may only refund the amount.
const EXACT_UNDO_TIME: u64 = 1_000_000_000;

/// State words of a key. A single bucket needs two words.
type Words = SmallVec<[u64; 2]>;

#[derive(Debug)]
pub(super) struct Shard {
    max_keys: usize,
    pub(super) entries: HashMap<Fingerprint, Entry, BuildHasherDefault<FingerprintHasher>>,
    /// Overflow entries for keys without their own entry, by [`overflow_slot`].
    pub(super) overflow: HashMap<u32, Entry>,
    /// Keys with unsent charges.
    dirty: Vec<Fingerprint>,
    resets: Vec<(Fingerprint, u32)>,
    /// For each key that a hold moved to other limits, its states before and after the hold.
    held: HashMap<Fingerprint, HoldRecord>,
    /// Monotonic time of the last charge.
    taken_at: u64,
    swept_at: u64,
}

/// The state of a key before and after a hold.
#[derive(Debug)]
struct HoldRecord {
    limits: Arc<SharedLimits>,
    before: Words,
    after: Words,
    /// Monotonic time of the hold.
    at: u64,
}

/// State of a key.
#[derive(Debug)]
pub(super) struct Entry {
    /// Limits of the last admitted charge.
    pub(super) limits: Arc<SharedLimits>,
    words: Words,
    /// Number of times the key was reset.
    pub(super) generation: u32,
    /// Local charges that are not yet in a delta.
    unsent: i64,
    is_dirty: bool,
    /// Limits id under which this node's engine last charged the key.
    charged_as: Option<u32>,
    /// Whether this node admitted a charge of the key since the last reset.
    pub(super) is_charged_here: bool,
    /// Whether the key was reset and not charged since. The next charge then starts a new state.
    is_reset: bool,
}

/// Result of a commit.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CommitResult {
    pub(super) urgent: bool,
    pub(super) overflowed: bool,
}

/// State of a key after its group was decided.
#[derive(Debug)]
pub struct DecidedCharge<'a> {
    verdict: Verdict<Stamps>,
    limits: &'a SharedLimits,
    /// Limits of the stored state, if they differ from the charge's limits.
    own: Option<&'a SharedLimits>,
    words: &'a [u64],
    now: Now<'a>,
}

impl DecidedCharge<'_> {
    /// Returns the verdict for this charge, regardless of its group. For a refund, the verdict contains the accepted
    /// amount.
    pub fn verdict(&self) -> &Verdict<Stamps> {
        &self.verdict
    }

    /// Returns one report per limit, with `retry` for another request of `cost`.
    pub fn reports(&self, cost: Cost) -> SmallVec<[Report; 2]> {
        let limits = &self.limits.with_debt;
        match self.own {
            None if limits.as_slice().len() == 1 => {
                smallvec::smallvec![limits.report_single(&self.words, &self.now, cost)]
            }
            None => limits.reports(self.words, &self.now, cost).collect(),
            Some(own) => limits.reports_from(&own.with_debt, self.words, &self.now, cost).collect(),
        }
    }
}

impl Entry {
    fn new(limits: &Arc<SharedLimits>, now: &Now<'_>) -> Self {
        let mut words: Words = smallvec::smallvec![0; limits.with_debt.words()];
        limits.with_debt.init(&mut *words, now);
        let (charged_as, is_charged_here, is_reset) = (None, false, false);
        Self {
            limits: limits.clone(),
            words,
            generation: 0,
            unsent: 0,
            is_dirty: false,
            charged_as,
            is_charged_here,
            is_reset,
        }
    }

    fn is_forgettable(&self, now: &Now<'_>) -> bool {
        self.unsent == 0 && !self.is_dirty && self.limits.with_debt.is_surely_unused(&*self.words, now)
    }

    pub(super) fn used(&self, now: &Now<'_>) -> Vec<UsedAmount> {
        merge::used(&self.limits.with_debt, &self.words, now)
    }

    pub(super) fn apply(&mut self, now: &Now<'_>, age: Nanos, cost: i64) -> MergeResult {
        self.is_reset = false;
        merge::apply(&self.limits.with_debt, &mut self.words, now, age, cost)
    }

    pub(super) fn raise_used(&mut self, now: &Now<'_>, used: &[UsedAmount]) {
        self.is_reset = false;
        merge::raise_used(&self.limits.with_debt, &mut self.words, now, used);
    }

    /// Discards the usage.
    pub(super) fn reset(&mut self, generation: u32, now: &Now<'_>) {
        (self.generation, self.unsent, self.is_reset) = (generation, 0, true);
        (self.charged_as, self.is_charged_here) = (None, false);
        self.limits.with_debt.init(&mut *self.words, now);
    }

    /// Decides under the charge's limits without changing the state.
    fn weigh(&self, limits: &Arc<SharedLimits>, now: &Now<'_>, ask: Ask) -> Verdict<Stamps> {
        let same = self.limits.is_same(limits);
        match ask {
            // Uses the rule's maximum debt, not the larger maximum of shared limits.
            Ask::Regardless(_) => limits.plain.weigh_from(&self.limits.with_debt, &*self.words, now, ask),
            Ask::Exactly(_) | Ask::UpTo(_) if same => limits.with_debt.weigh(&*self.words, now, ask),
            Ask::Exactly(_) | Ask::UpTo(_) => {
                limits.with_debt.weigh_from(&self.limits.with_debt, &*self.words, now, ask)
            }
        }
    }

    /// Returns whether the key counts as new under these limits. A key is new if it was reset, or if it is unused under
    /// other limits and these limits do not start full.
    fn is_new_under(&self, limits: &Arc<SharedLimits>, now: &Now<'_>) -> bool {
        let is_unused = || {
            !self.limits.is_same(limits)
                && !limits.with_debt.starts_full()
                && limits.with_debt.is_unused_from(&self.limits.with_debt, &*self.words, now)
        };
        self.is_reset || is_unused()
    }

    fn commit(&mut self, limits: &Arc<SharedLimits>, now: &Now<'_>, verdict: &Verdict<Stamps>) {
        if self.limits.is_same(limits) {
            return limits.with_debt.commit(&mut *self.words, now, verdict);
        }
        let SharedLimits { plain, with_debt, .. } = &**limits;
        self.words.resize(with_debt.words().max(plain.words()).max(self.words.len()), 0);
        // Converts through the plain limits, because a conversion depends on the maximum debt, and other stores use the
        // plain maximum. An admitted charge never exceeds that maximum.
        plain.convert(&self.limits.with_debt, &mut *self.words, now);
        with_debt.convert(plain, &mut *self.words, now);
        with_debt.commit(&mut *self.words, now, verdict);
        self.words.truncate(with_debt.words());
        (self.limits, self.charged_as) = (limits.clone(), None);
    }

    fn decided_charge<'a>(
        &'a self,
        limits: &'a Arc<SharedLimits>,
        verdict: Verdict<Stamps>,
        now: &'a Now<'_>,
    ) -> DecidedCharge<'a> {
        let own = (!self.limits.is_same(limits)).then_some(&*self.limits);
        DecidedCharge { verdict, limits, own, words: &self.words, now: *now }
    }
}

impl Shard {
    pub(super) fn new(max_keys: usize) -> Self {
        Self {
            max_keys,
            entries: HashMap::default(),
            overflow: HashMap::new(),
            dirty: Vec::new(),
            resets: Vec::new(),
            held: HashMap::new(),
            taken_at: 0,
            swept_at: 0,
        }
    }

    /// Fast path: checks one charge by the engine's limits id, without looking up the limits. See [`Table::try_check`].
    ///
    /// [`Table::try_check`]: super::Table::try_check
    pub(super) fn try_check(
        &mut self,
        key: Fingerprint,
        limits_id: u32,
        now: &Now<'_>,
        cost: Cost,
    ) -> Option<(Outcome, Report, bool)> {
        let entry = self.entries.get_mut(&key).filter(|entry| entry.charged_as == Some(limits_id))?;
        let limits = &entry.limits.with_debt;
        let outcome = limits.try_decide_single(&mut &mut *entry.words, now, cost)?;
        let report = limits.report_single(&&*entry.words, now, cost);
        let mut urgent = false;
        if outcome.is_admitted() && cost > Cost::ZERO {
            self.taken_at = self.taken_at.max(now.mono().as_nanos());
            urgent = entry.record_unsent(cost.get() as i64);
            entry.is_charged_here = true;
            if !std::mem::replace(&mut entry.is_dirty, true) {
                self.dirty.push(key);
            }
        }
        Some((outcome, report, urgent))
    }

    /// Fast path: checks one charge of a key whose last charge had the same limits. See [`Table::try_check_same_limits`].
    ///
    /// [`Table::try_check_same_limits`]: super::Table::try_check_same_limits
    pub(super) fn try_check_same_limits(
        &mut self,
        charge: &Charge<'_>,
        now: &Now<'_>,
        each: impl FnOnce(&DecidedCharge<'_>),
    ) -> Option<bool> {
        let Ask::Exactly(cost) = charge.ask else { return None };
        let entry = self.entries.get_mut(&charge.key)?;
        // A request of cost 0 must not change the state.
        if cost == Cost::ZERO || entry.is_reset || !entry.limits.is_same(charge.limits) {
            return None;
        }
        let verdict = charge.limits.with_debt.decide_fast(&mut *entry.words, now, cost)?;
        let mut urgent = false;
        if verdict.is_admitted() {
            self.taken_at = self.taken_at.max(now.mono().as_nanos());
            urgent = entry.record_unsent(cost.get() as i64);
            entry.is_charged_here = true;
            if !std::mem::replace(&mut entry.is_dirty, true) {
                self.dirty.push(charge.key);
            }
        }
        each(&DecidedCharge { verdict, limits: charge.limits, own: None, words: &entry.words, now: *now });
        Some(urgent)
    }

    /// Records the id under which the engine charges a key with these limits.
    pub(super) fn record_limits_id(&mut self, key: Fingerprint, limits: &Arc<SharedLimits>, limits_id: u32) {
        if let Some(entry) = self.entries.get_mut(&key).filter(|entry| entry.limits.is_same(limits)) {
            entry.charged_as = Some(limits_id);
        }
    }

    /// Returns the verdict for a charge without changing the state.
    pub(super) fn weigh(&self, charge: &Charge<'_>, ask: Ask, now: &Now<'_>) -> Verdict<Stamps> {
        match self.find_entry(charge, now) {
            Some(entry) => entry.weigh(charge.limits, now, ask),
            None => Entry::new(charge.limits, now).weigh(charge.limits, now, ask),
        }
    }

    /// Applies the verdict of a charge and records the charge as unsent, if its group was admitted. A refused group at
    /// most creates the key.
    pub(super) fn commit(
        &mut self,
        charge: &Charge<'_>,
        verdict: &Verdict<Stamps>,
        admitted: bool,
        hold: bool,
        now: &Now<'_>,
    ) -> CommitResult {
        let (key, limits) = (charge.key, charge.limits);
        let taken = verdict.taken().get();
        if !admitted || taken == 0 {
            // Under limits that do not start full, even a refused request creates the key.
            if !limits.with_debt.starts_full() {
                self.entry_to_charge(key, limits, now);
            }
            return CommitResult::default();
        }
        self.taken_at = self.taken_at.max(now.mono().as_nanos());
        let Some(entry) = self.entry_to_charge(key, limits, now) else {
            let entry = self.overflow.entry(overflow_slot(limits)).or_insert_with(|| Entry::new(limits, now));
            entry.commit(limits, now, verdict);
            return CommitResult { urgent: false, overflowed: true };
        };
        let before = (hold && !entry.limits.is_same(limits)).then(|| (entry.limits.clone(), entry.words.clone()));
        entry.commit(limits, now, verdict);
        entry.is_charged_here = true;
        let urgent = entry.record_unsent(taken as i64);
        if let Some((limits, before)) = before {
            let held = HoldRecord { limits, before, after: entry.words.clone(), at: now.mono().as_nanos() };
            self.held.insert(key, held);
        }
        self.mark_dirty(key);
        CommitResult { urgent, overflowed: false }
    }

    pub(super) fn report_charge(
        &self,
        charge: &Charge<'_>,
        verdict: Verdict<Stamps>,
        now: &Now<'_>,
        each: impl FnOnce(&DecidedCharge<'_>),
    ) {
        match self.find_entry(charge, now) {
            Some(entry) => each(&entry.decided_charge(charge.limits, verdict, now)),
            None => each(&Entry::new(charge.limits, now).decided_charge(charge.limits, verdict, now)),
        }
    }

    pub(super) fn peek(&self, charge: &Charge<'_>, now: &Now<'_>, each: impl FnOnce(&DecidedCharge<'_>)) {
        self.report_charge(charge, self.weigh(charge, charge.ask, now), now, each);
    }

    /// Refunds a charge. Returns whether the refund should be sent immediately.
    pub(super) fn refund(&mut self, charge: &Charge<'_>, now: &Now<'_>, each: impl FnOnce(&DecidedCharge<'_>)) -> bool {
        let (mut accepted, mut urgent) = (Cost::ZERO, false);
        if let Some(entry) = self.entries.get_mut(&charge.key).filter(|entry| !entry.is_reset) {
            accepted = entry.limits.with_debt.refund(&mut *entry.words, now, charge.ask.cost(), charge.stamps);
            urgent = entry.record_unsent(-(accepted.get() as i64));
            self.taken_at = self.taken_at.max(now.mono().as_nanos());
            self.mark_dirty(charge.key);
        }
        self.report_charge(charge, Verdict::new_allowed(accepted), now, each);
        urgent
    }

    /// Undoes a hold. Restores the previous state if the hold moved the key to other limits and nothing was
    /// charged since. Otherwise refunds the hold. Returns whether the change should be sent immediately.
    pub(super) fn undo(&mut self, charge: &Charge<'_>, now: &Now<'_>, each: impl FnOnce(&DecidedCharge<'_>)) -> bool {
        let held = self.held.remove(&charge.key);
        let entry = self.entries.get_mut(&charge.key).filter(|entry| !entry.is_reset);
        let (Some(entry), Some(held)) = (entry, held) else { return self.refund(charge, now, each) };
        if !entry.limits.is_same(charge.limits) || entry.words != held.after {
            return self.refund(charge, now, each);
        }
        (entry.limits, entry.words, entry.charged_as) = (held.limits, held.before, None);
        let urgent = entry.record_unsent(-(charge.ask.cost().get() as i64));
        self.taken_at = self.taken_at.max(now.mono().as_nanos());
        self.mark_dirty(charge.key);
        self.report_charge(charge, Verdict::new_allowed(charge.ask.cost()), now, each);
        urgent
    }

    pub(super) fn reset(&mut self, charge: &Charge<'_>, now: &Now<'_>, each: impl FnOnce(&DecidedCharge<'_>)) {
        if let Some(entry) = self.entries.get_mut(&charge.key) {
            entry.reset(entry.generation.saturating_add(1), now);
            self.resets.push((charge.key, entry.generation));
        }
        self.report_charge(charge, Verdict::default(), now, each);
    }

    /// Returns the entry of a key, creating it unless the shard is full.
    pub(super) fn entry_for(
        &mut self,
        key: Fingerprint,
        limits: &Arc<SharedLimits>,
        now: &Now<'_>,
    ) -> Option<&mut Entry> {
        if self.is_full() && !self.entries.contains_key(&key) {
            return None;
        }
        Some(self.entries.entry(key).or_insert_with(|| Entry::new(limits, now)))
    }

    /// Returns the key's entry for a charge under these limits. Starts a new state if the key counts as new.
    fn entry_to_charge(&mut self, key: Fingerprint, limits: &Arc<SharedLimits>, now: &Now<'_>) -> Option<&mut Entry> {
        let entry = self.entry_for(key, limits, now)?;
        if entry.is_new_under(limits, now) {
            let Entry { limits, words, .. } = Entry::new(limits, now);
            (entry.limits, entry.words, entry.is_reset) = (limits, words, false);
            entry.charged_as = None;
        }
        Some(entry)
    }

    /// Evicts unused keys if the shard is full and the key is new.
    pub(super) fn evict_unused(&mut self, key: Fingerprint, now: &Now<'_>) {
        let at = now.mono().as_nanos();
        if self.is_full() && at >= self.swept_at && !self.entries.contains_key(&key) {
            self.sweep(now);
            if self.is_full() {
                self.swept_at = at.saturating_add(MIN_SWEEP_INTERVAL);
            }
        }
    }

    pub(super) fn sweep(&mut self, now: &Now<'_>) {
        self.entries.retain(|key, entry| !entry.is_forgettable(&now.with_spread(key.parts().0)));
    }

    /// Returns the number of keys with unsent charges.
    pub(super) fn unsent_key_count(&self) -> usize {
        self.dirty.len()
    }

    pub(super) fn drain(&mut self, into: &mut DrainedCharges) {
        if self.dirty.is_empty() && self.resets.is_empty() {
            return;
        }
        let oldest = self.taken_at.saturating_sub(EXACT_UNDO_TIME);
        self.held.retain(|_, held| held.at >= oldest);
        into.taken_at = into.taken_at.max(self.taken_at);
        into.resets.append(&mut self.resets);
        for key in self.dirty.drain(..) {
            if let Some(entry) = self.entries.get_mut(&key) {
                entry.is_dirty = false;
                let cost = std::mem::take(&mut entry.unsent);
                if cost != 0 {
                    into.items.push((entry.limits.clone(), NetCharge { key, cost }));
                }
            }
        }
    }

    /// Returns the entry that decides the charge. `None` if the key is new.
    fn find_entry(&self, charge: &Charge<'_>, now: &Now<'_>) -> Option<&Entry> {
        match self.entries.get(&charge.key) {
            Some(entry) => Some(entry).filter(|entry| !entry.is_new_under(charge.limits, now)),
            None => self.overflow.get(&overflow_slot(charge.limits)).filter(|_| self.is_full()),
        }
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= self.max_keys
    }

    fn mark_dirty(&mut self, key: Fingerprint) {
        if let Some(entry) = self.entries.get_mut(&key)
            && !std::mem::replace(&mut entry.is_dirty, true)
        {
            self.dirty.push(key);
        }
    }
}

impl Entry {
    /// Records an unsent charge or refund. Returns whether a delta should be sent immediately.
    fn record_unsent(&mut self, amount: i64) -> bool {
        self.unsent = self.unsent.saturating_add(amount);
        self.unsent.unsigned_abs() >= self.limits.min_urgent_amount()
    }
}

/// Hasher that uses one part of the fingerprint, which is already uniform and secret.
#[derive(Debug, Default)]
pub(super) struct FingerprintHasher(u64);

impl Hasher for FingerprintHasher {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, low: u64) {
        // The hash table uses the highest bits of a hash, which are zero in a fingerprint.
        self.0 = low.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }

    fn write_u32(&mut self, _: u32) {}

    fn finish(&self) -> u64 {
        self.0
    }
}
