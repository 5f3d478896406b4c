//! One table for many limits. Each call specifies its limits, and can charge several keys together.
//!
//! A server has one limit per rule, and a request may match many rules. With a [`Keyed`](crate::Keyed) per rule, each
//! rule would need its own capacity, and several rules could not be charged atomically. A ledger is one table for all
//! rules:
//!
//! **Limits by id.** Every entry stores the id of its limits in the word before the state. The limits themselves are in
//! the caller's [`LimitTable`]. Limits are immutable: a changed limit gets a new id, so a state can always be read
//! under the limits of its last charge. A state with an unknown id counts as the state of a new key.
//!
//! **All or none.** The home buckets of all keys in a group are locked in index order, which prevents deadlock
//! (`table/group.rs`). Then the charges are decided and written in order, so the second charge of a key sees the first
//! charge. If one charge is refused, the earlier charges are undone (`weigh.rs`), and entries that were evicted for the
//! group's new keys are restored.
//!
//! **Fast path.** In nearly every group, the keys have short states that belong to the request's limits.
//! [`Ledger::try_decide_fast`] decides such groups with try-lock only: a small group by recursion, without a list, and a
//! large group with a list.
//!
//! **Overflow.** Keys without an entry share one overflow entry per limits id, in a small second table.

mod group;
mod snapshot;
mod view;
mod weigh;

use std::array::from_ref;
use std::fmt;
use std::sync::Mutex;

use tollgate_core::{Algorithm, Ask, Cells, CellsMut, Cost, Limits, Now, OffsetCells, Retry, Spent, Stamps, Window};

use crate::account::Account;
use crate::clock::{Clock, PreciseClock};
use crate::fingerprint::{Fingerprint, Key, Secret};
use crate::keyed::{CapacityError, WhenFull, max_spent_by, with_new_state};
use crate::sync::{AtomicU64, Ordering};
use crate::table::{BATCH_SIZE, Buckets, LockedEntry, Presence, State, StateReader, WideLayout};
pub use view::ChargeView;
use view::StateWords;

/// All limits under which states may have been charged, by id.
///
/// Limits are immutable: an edited rule gets a new id. The table must keep the old id while states may belong to it. A
/// state with an unknown id counts as the state of a new key.
pub trait LimitTable {
    /// Returns the limits with this id.
    fn get(&self, id: u32) -> Option<&Limits>;
}

impl LimitTable for [Limits] {
    fn get(&self, id: u32) -> Option<&Limits> {
        <[Limits]>::get(self, id as usize)
    }
}

/// A charge to one key under one set of limits.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The id of the limits.
    pub limits_id: u32,
    /// The limits with that id. If `None`, the id is looked up in the [`LimitTable`].
    pub limits: Option<&'a Limits>,
    /// The key. If two rules count by the same value, the key must include the rule.
    pub key: &'a [u8],
    /// The requested amount.
    pub ask: Ask,
    /// The windows that limits of phase `Given` refer to by index.
    pub windows: &'a [Window],
}

impl<'a> Charge<'a> {
    /// Creates a charge of exactly `cost`, without given windows.
    pub fn new(limits_id: u32, key: &'a [u8], cost: u64) -> Self {
        Self { limits_id, limits: None, key, ask: Ask::Exactly(Cost::new(cost)), windows: &[] }
    }
}

/// The common case of a [`Charge`]: an exact cost under known limits without given windows.
#[derive(Clone, Copy, Debug)]
pub struct PlainCharge<'a> {
    /// The id of the limits.
    pub limits_id: u32,
    /// The limits with that id.
    pub limits: &'a Limits,
    /// The key.
    pub key: &'a [u8],
    /// The requested amount.
    pub cost: Cost,
}

/// A table for many limits. Every call specifies its limits, and several charges pass together or not at all.
///
/// A ledger has bounded memory, like a [`Keyed`](crate::Keyed) table. A state belongs to the limits under which it was
/// last charged. Under other limits, the used amount counts against the new capacity but refills at the old rate, until
/// a request is admitted. Peeks, refusals and refunds do not convert a state.
///
/// ```
/// use tollgate::{Limit, Limits, TokenBucket};
/// use tollgate::ledger::{Charge, Ledger};
///
/// let bucket = |rate: &str, burst| Ok::<_, tollgate::LimitError>(Limit::from(TokenBucket::new(rate.parse()?, burst)?));
/// let limits = [Limits::from(bucket("10/s", 2)?), Limits::from(bucket("100/s", 3)?)];
/// let ledger = Ledger::new(10_000, 2)?;
/// let request = [Charge::new(0, b"user alice", 1), Charge::new(1, b"address 192.0.2.1", 1)];
/// assert!(ledger.decide(&limits[..], &request, |_, _| ()));
/// assert!(ledger.decide(&limits[..], &request, |_, view| assert!(view.verdict().is_allowed())));
/// assert!(!ledger.decide(&limits[..], &request, |_, _| ()), "the limit of alice is used up");
/// assert!(ledger.decide(&limits[..], &request[1..], |_, _| ()), "and the address was not charged");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Ledger<C = PreciseClock> {
    table: Buckets<WideLayout>,
    /// One entry per limits id, shared by the keys without an entry.
    overflow: Buckets<WideLayout>,
    secret: Secret,
    clock: C,
    when_full: WhenFull,
    overflowed: AtomicU64,
    /// Locked by the thread that writes a snapshot.
    snapshot_lock: Mutex<()>,
}

/// Number of overflow entries. Only one under loom, to reduce the number of explored interleavings.
const OVERFLOW_ENTRIES: usize = if cfg!(loom) { 1 } else { 1024 };

impl Ledger {
    /// Creates a ledger of `capacity` keys with states of up to `state_words` words, with a precise clock.
    ///
    /// # Errors
    /// Returns an error if the table does not fit in memory.
    pub fn new(capacity: usize, state_words: usize) -> Result<Self, CapacityError> {
        Self::with_clock(capacity, state_words, PreciseClock::new())
    }
}

impl<C: Clock> Ledger<C> {
    /// Creates a ledger of `capacity` keys with states of up to `state_words` words. The ledger reads the time from
    /// `clock`.
    ///
    /// # Errors
    /// Returns an error if the table does not fit in memory.
    pub fn with_clock(capacity: usize, state_words: usize, clock: C) -> Result<Self, CapacityError> {
        // Each entry has one more word, for the limits id.
        let buckets = |capacity| {
            let layout = state_words.checked_add(1).and_then(WideLayout::new);
            layout.and_then(|layout| Buckets::new(capacity, layout)).ok_or(CapacityError { capacity })
        };
        Ok(Self {
            table: buckets(capacity)?,
            overflow: buckets(OVERFLOW_ENTRIES)?,
            secret: Secret::random(),
            clock,
            when_full: WhenFull::default(),
            overflowed: AtomicU64::new(0),
            snapshot_lock: Mutex::new(()),
        })
    }

    /// Sets the policy for new keys when the table is full.
    #[must_use]
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }

    /// Returns the maximum length of a state, in words. Charges under limits with longer states are refused.
    pub fn state_words(&self) -> usize {
        self.table.state_words() - 1
    }

    /// Makes all charges or none, and returns whether all passed. Charges with [`Ask::UpTo`] all take the same amount:
    /// the smallest amount that any of them can take. Calls `each` for every charge in order, with the verdict of that
    /// charge, while its state is locked. So reports show the state right after this decision. `each` must not use the
    /// ledger.
    pub fn decide<N: LimitTable + ?Sized>(
        &self,
        limit_table: &N,
        charges: &[Charge<'_>],
        each: impl FnMut(usize, &ChargeView<'_>),
    ) -> bool {
        self.decide_mapped(limit_table, charges, |charge| *charge, self.clock.now(), each)
    }

    /// Like [`decide`](Self::decide), but converts each element of `charged` with `charge`, and uses the given reading
    /// of the [`clock`](Self::clock).
    #[doc(hidden)]
    pub fn decide_mapped<'a, T, N: LimitTable + ?Sized>(
        &self,
        limit_table: &N,
        charged: &'a [T],
        charge: impl Fn(&'a T) -> Charge<'a>,
        now: Now<'_>,
        mut each: impl FnMut(usize, &ChargeView<'_>),
    ) -> bool {
        match charged {
            [one] => {
                let one = charge(one);
                self.decide_one(limit_table, &one, self.fingerprint(&one), now, |view| each(0, view))
            }
            _ => Self::decide_across(from_ref(self), limit_table, charged, |charged| (0, charge(charged)), now, each),
        }
    }

    /// Decides every charge independently, and calls `each` in order, like [`decide`](Self::decide). The clock is read
    /// once. Charges are processed in batches of sixteen, whose memory is fetched concurrently.
    pub fn decide_independently<N: LimitTable + ?Sized>(
        &self,
        limit_table: &N,
        charges: &[Charge<'_>],
        mut each: impl FnMut(usize, &ChargeView<'_>),
    ) {
        let now = self.clock.now();
        for (batch, charges) in charges.chunks(BATCH_SIZE).enumerate() {
            let mut fingerprints = [Fingerprint::default(); BATCH_SIZE];
            fingerprints
                .iter_mut()
                .zip(charges)
                .for_each(|(fingerprint, charge)| *fingerprint = self.fingerprint(charge));
            self.table.prefetch_all(&fingerprints[..charges.len()]);
            for (place, (charge, fingerprint)) in charges.iter().zip(fingerprints).enumerate() {
                self.decide_one(limit_table, charge, fingerprint, now, |view| each(batch * BATCH_SIZE + place, view));
            }
        }
    }

    /// Prefetches the memory of `keys` concurrently, so that later decisions do not wait for the memory of each key in
    /// turn. Changes nothing.
    pub fn prefetch<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) {
        let mut keys = keys.into_iter().map(|key| key.fingerprint(&self.secret));
        loop {
            let (mut fingerprints, mut count) = ([Fingerprint::default(); BATCH_SIZE], 0);
            fingerprints
                .iter_mut()
                .zip(&mut keys)
                .for_each(|(place, fingerprint)| (*place, count) = (fingerprint, count + 1));
            self.table.prefetch_all(&fingerprints[..count]);
            if count < BATCH_SIZE {
                return;
            }
        }
    }

    /// Runs `read` on the state of the charge's key, with the verdict that a decision would return. Changes nothing.
    pub fn peek<N: LimitTable + ?Sized, R>(
        &self,
        limit_table: &N,
        charge: &Charge<'_>,
        mut read: impl FnMut(&ChargeView<'_>) -> R,
    ) -> R {
        let Some(limits) = self.limits(limit_table, charge) else { return read(&ChargeView::refused(Retry::Never)) };
        let (fingerprint, now) = (self.fingerprint(charge), self.clock.now());
        let key_now = now_for_key(charge, fingerprint, now);
        let found = self.table.find(fingerprint, &LedgerReader { limit_table, now }, |entry| {
            let presence =
                presence_under(limit_table, limits, charge.limits_id, &entry.state, Presence::Known, &key_now);
            let look =
                |account: &mut LockedAccount<'_>| read(&ChargeView::from_account(account, account.weigh(charge.ask)));
            (presence == Presence::Known)
                .then(|| visit(limit_table, limits, charge.limits_id, &mut entry.state, presence, key_now, look))
        });
        found.flatten().unwrap_or_else(|| {
            with_new_state(limits, &key_now, |state| {
                let verdict = limits.weigh(&state, &key_now, charge.ask);
                read(&ChargeView {
                    limits: Some(limits),
                    own: None,
                    state: StateWords::New(state),
                    now: key_now,
                    verdict,
                })
            })
        })
    }

    /// Gives back up to `cost` to the charge's key, and returns the amount given back. A charge to an overflow entry
    /// cannot be refunded.
    pub fn refund<N: LimitTable + ?Sized>(
        &self,
        limit_table: &N,
        charge: &Charge<'_>,
        cost: u64,
        stamps: Option<Stamps>,
    ) -> u64 {
        let (fingerprint, now) = (self.fingerprint(charge), self.clock.now());
        let refund = |account: &mut LockedAccount<'_>| account.refund(Cost::new(cost), stamps);
        self.find(limit_table, charge, fingerprint, now, refund).map_or(0, Cost::get)
    }

    /// Renews the leases with these stamps for a full duration. Returns whether all of them were still held.
    pub fn renew<N: LimitTable + ?Sized>(&self, limit_table: &N, charge: &Charge<'_>, stamps: Stamps) -> bool {
        let (fingerprint, now) = (self.fingerprint(charge), self.clock.now());
        let renew =
            |account: &mut LockedAccount<'_>| account.own_limit().renew(&mut account.state, &account.now, stamps);
        self.find(limit_table, charge, fingerprint, now, renew).unwrap_or(false)
    }

    /// Resets the charge's key to the state of a new key.
    pub fn reset<N: LimitTable + ?Sized>(&self, limit_table: &N, charge: &Charge<'_>) {
        let reader = LedgerReader { limit_table, now: self.clock.now() };
        self.table.find(self.fingerprint(charge), &reader, |entry| entry.state.set(0, UNUSED_ENTRY_ID));
    }

    /// Returns whether the charge's key may have used anything in this ledger, under the limits of its last charge.
    #[doc(hidden)]
    pub fn may_have_used<N: LimitTable + ?Sized>(&self, limit_table: &N, charge: &Charge<'_>) -> bool {
        let (fingerprint, reader) = (self.fingerprint(charge), LedgerReader { limit_table, now: self.clock.now() });
        self.table.find(fingerprint, &reader, |entry| !reader.is_unused(fingerprint, entry)).unwrap_or(false)
    }

    /// Returns whether the charge's key has an entry in this ledger, even an unused entry.
    #[doc(hidden)]
    pub fn contains_key<N: LimitTable + ?Sized>(&self, limit_table: &N, charge: &Charge<'_>) -> bool {
        let reader = LedgerReader { limit_table, now: self.clock.now() };
        let is_kept = |entry: &mut LockedEntry<'_>| limits_by_id(limit_table, entry.state.get(0)).is_some();
        self.table.find(self.fingerprint(charge), &reader, is_kept).unwrap_or(false)
    }

    /// Moves the state of the charge's key to the ledger `to`, with its limits id. The states of `to` must be at least
    /// as long as those of this ledger. Does nothing if the key has no entry in this ledger.
    #[doc(hidden)]
    pub fn move_to<N: LimitTable + ?Sized>(&self, to: &Self, limit_table: &N, charge: &Charge<'_>) {
        let reader = LedgerReader { limit_table, now: self.clock.now() };
        let taken = self.table.find(self.fingerprint(charge), &reader, |entry| {
            let words: Vec<u64> = (0..self.table.state_words()).map(|word| entry.state.get(word)).collect();
            entry.state.set(0, UNUSED_ENTRY_ID);
            words
        });
        let Some(words) = taken else { return };
        to.table.upsert(to.fingerprint(charge), &reader, Spent::ALL, |entry, _| {
            words.iter().enumerate().for_each(|(index, word)| entry.state.set(index, *word));
        });
    }

    /// Replaces the state of the charge's key by the state of a new key under `start`, with `held[i]` slots taken from
    /// the concurrency limit at index `i`. `start` may differ from the charge's limits in the initial amount and in the
    /// length of the first window or lease. Inserts the key if necessary; does nothing if no entry is available.
    #[doc(hidden)]
    pub fn replace_state<N: LimitTable + ?Sized>(
        &self,
        limit_table: &N,
        charge: &Charge<'_>,
        start: &Limits,
        held: &[u64],
    ) {
        if start.words() > self.state_words() {
            return;
        }
        let (fingerprint, now) = (self.fingerprint(charge), self.clock.now());
        let key_now = now_for_key(charge, fingerprint, now);
        // Passes `Spent::ALL`, because the used fraction is known only after the state is written.
        self.table.upsert(fingerprint, &LedgerReader { limit_table, now }, Spent::ALL, |entry, _| {
            entry.state.set(0, charge.limits_id.into());
            let mut words = state_after_id(&mut entry.state);
            start.init(&mut words, &key_now);
            start.take_slots(&mut words, &key_now, held);
        });
    }

    /// Returns the size of the tables in bytes, including pages that were never touched.
    pub fn bytes(&self) -> usize {
        self.table.bytes() + self.overflow.bytes()
    }

    /// Returns the number of decisions on keys without an entry.
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    /// Returns the clock.
    pub fn clock(&self) -> &C {
        &self.clock
    }

    fn decide_one<N: LimitTable + ?Sized>(
        &self,
        limit_table: &N,
        charge: &Charge<'_>,
        fingerprint: Fingerprint,
        now: Now<'_>,
        each: impl FnOnce(&ChargeView<'_>),
    ) -> bool {
        let Some(limits) = self.limits(limit_table, charge) else {
            each(&ChargeView::refused(Retry::Never));
            return false;
        };
        let reader = LedgerReader { limit_table, now };
        let key_now = now_for_key(charge, fingerprint, now);
        let mut each = Some(each);
        let mut decide = |entry: &mut LockedEntry<'_>, presence, now: Now<'_>| {
            let presence = presence_under(limit_table, limits, charge.limits_id, &entry.state, presence, &now);
            visit(limit_table, limits, charge.limits_id, &mut entry.state, presence, now, |account| {
                let verdict = account.decide(charge.ask);
                if let Some(each) = each.take() {
                    each(&ChargeView::from_account(account, verdict));
                }
                verdict.is_admitted()
            })
        };
        let arrival = max_spent_by(limits, &key_now, charge.ask);
        let decided =
            self.table.upsert(fingerprint, &reader, arrival, |entry, presence| decide(entry, presence, key_now));
        if let Some(passed) = decided {
            return passed;
        }
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        let shared = self.overflow_fingerprint(charge);
        let of_shared = now_for_key(charge, shared, now);
        let overflowed = match self.when_full {
            WhenFull::Overflow => {
                self.overflow.upsert(shared, &reader, Spent::ALL, |entry, presence| decide(entry, presence, of_shared))
            }
            WhenFull::Deny => None,
        };
        overflowed.unwrap_or_else(|| {
            if let Some(each) = each.take() {
                each(&ChargeView::refused(Retry::OnRelease));
            }
            false
        })
    }

    fn find<N: LimitTable + ?Sized, R>(
        &self,
        limit_table: &N,
        charge: &Charge<'_>,
        fingerprint: Fingerprint,
        now: Now<'_>,
        visit: impl FnOnce(&mut LockedAccount<'_>) -> R,
    ) -> Option<R> {
        let found = self.table.find(fingerprint, &LedgerReader { limit_table, now }, |entry| {
            let limit = limits_by_id(limit_table, entry.state.get(0))?;
            let now = now_for_key(charge, fingerprint, now);
            Some(visit(&mut Account { limit, own: None, state: state_after_id(entry.state), now }))
        });
        found.flatten()
    }

    /// Returns the limits of a charge. `None` if their id is unknown or their state is too long for an entry.
    #[inline]
    fn limits<'n, N: LimitTable + ?Sized>(&self, limit_table: &'n N, charge: &Charge<'n>) -> Option<&'n Limits> {
        let limits = charge.limits.or_else(|| limit_table.get(charge.limits_id));
        limits.filter(|limits| limits.words() <= self.state_words())
    }

    fn fingerprint(&self, charge: &Charge<'_>) -> Fingerprint {
        charge.key.fingerprint(&self.secret)
    }

    /// Returns the fingerprint of the overflow entry for the charge's limits.
    fn overflow_fingerprint(&self, charge: &Charge<'_>) -> Fingerprint {
        charge.limits_id.to_le_bytes().fingerprint(&self.secret)
    }
}

impl<C> fmt::Debug for Ledger<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("table", &self.table).finish_non_exhaustive()
    }
}

/// An id without limits, which marks an entry as unused.
const UNUSED_ENTRY_ID: u64 = u64::MAX;

/// Returns the limits with `id`, the first word of an entry.
fn limits_by_id<N: LimitTable + ?Sized>(limit_table: &N, id: u64) -> Option<&Limits> {
    u32::try_from(id).ok().and_then(|id| limit_table.get(id))
}

/// Returns whether a key is known under the limits with `id`. A state of unknown limits counts as new. An unused state
/// of other limits counts as new if new keys under `limits` do not start full.
#[inline]
fn presence_under<N: LimitTable + ?Sized>(
    limit_table: &N,
    limits: &Limits,
    id: u32,
    state: &State<'_>,
    presence: Presence,
    now: &Now<'_>,
) -> Presence {
    let written_under = state.get(0);
    if presence == Presence::New || written_under == u64::from(id) {
        return presence;
    }
    let own = limits_by_id(limit_table, written_under);
    let is_unused = |own: &Limits| limits.is_unused_from(own, &state_after_id(*state), now);
    if own.is_none_or(|own| is_unused(own) && !limits.starts_full() && own != limits) {
        Presence::New
    } else {
        Presence::Known
    }
}

/// Account of a locked entry under the limits of a charge.
type LockedAccount<'a> = Account<'a, Limits, OffsetCells<State<'a>>>;

/// Returns the limits of a state's last charge; `None` if they are `limits`, which has the id `id`. Initialises a new
/// state, or a state with an unknown id, under `limits`.
fn own_limits_or_init<'n, N: LimitTable + ?Sized>(
    limit_table: &'n N,
    limits: &Limits,
    id: u32,
    state: &mut State<'_>,
    presence: Presence,
    now: &Now<'_>,
) -> Option<&'n Limits> {
    let written_under = state.get(0);
    if presence == Presence::Known && written_under == u64::from(id) {
        return None;
    }
    if presence == Presence::Known
        && let Some(own) = limits_by_id(limit_table, written_under)
    {
        return Some(own);
    }
    state.set(0, id.into());
    limits.init(&mut state_after_id(state), now);
    None
}

/// Runs `visit` on a state under the limits with `id`. If `visit` charges the state under these limits, the state
/// belongs to these limits afterwards.
fn visit<N: LimitTable + ?Sized, R>(
    limit_table: &N,
    limits: &Limits,
    id: u32,
    state: &mut State<'_>,
    presence: Presence,
    now: Now<'_>,
    visit: impl FnOnce(&mut LockedAccount<'_>) -> R,
) -> R {
    let own = own_limits_or_init(limit_table, limits, id, state, presence, &now);
    let mut account = Account { limit: limits, own, state: state_after_id(*state), now };
    let result = visit(&mut account);
    if own.is_some() && account.own.is_none() {
        state.set(0, id.into());
    }
    result
}

fn now_for_key<'a>(charge: &Charge<'a>, fingerprint: Fingerprint, now: Now<'a>) -> Now<'a> {
    now.with_spread(fingerprint.low).with_windows(charge.windows)
}

/// Skips the limits id at the beginning of an entry, and returns its state.
fn state_after_id<S>(entry: S) -> OffsetCells<S> {
    OffsetCells { cells: entry, first: 1 }
}

/// Reads each entry under the limits of its last charge.
struct LedgerReader<'a, N: ?Sized> {
    limit_table: &'a N,
    now: Now<'a>,
}

impl<N: LimitTable + ?Sized> StateReader for LedgerReader<'_, N> {
    fn generation(&self) -> u64 {
        0
    }

    fn is_unused(&self, fingerprint: Fingerprint, entry: &LockedEntry<'_>) -> bool {
        self.read_under_own_limits(fingerprint, &entry.state, |limits, state, now| limits.is_surely_unused(state, now))
            .unwrap_or(true)
    }

    fn spent(&self, fingerprint: Fingerprint, entry: &LockedEntry<'_>) -> Spent {
        self.read_under_own_limits(fingerprint, &entry.state, |limits, state, now| limits.max_spent(state, now))
            .unwrap_or_default()
    }
}

impl<N: LimitTable + ?Sized> LedgerReader<'_, N> {
    fn read_under_own_limits<R>(
        &self,
        fingerprint: Fingerprint,
        state: &State<'_>,
        read: impl FnOnce(&Limits, &OffsetCells<&State<'_>>, &Now<'_>) -> R,
    ) -> Option<R> {
        let limits = limits_by_id(self.limit_table, state.get(0))?;
        Some(read(limits, &state_after_id(state), &self.now.with_spread(fingerprint.low)))
    }
}

#[cfg(test)]
mod tests;
