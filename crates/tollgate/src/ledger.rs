//! Many limits in one table: a limit per call, and several keys charged together.
//!
//! A server has one limit per rule and many rules per request. A [`Keyed`](crate::Keyed) per rule would need a capacity for each
//! rule, and could not charge several rules as one. A ledger is one table for all of them:
//!
//! **Limits by id.** Every entry stores the id of the limits that its state belongs to, in the word before the state. The limits
//! themselves are in a [`LimitTable`] of the caller's. A limit is never changed, only replaced by one with another id, so a
//! state can always be read under the limits it was charged under. A state whose id is unknown counts as forgotten.
//!
//! **All or none.** The buckets of all keys of a group are locked in order of their index, which excludes deadlock.
//! Then every charge is weighed, and only if all pass is anything written (`group.rs`). Entries that were evicted for
//! new keys of the group are put back if the group is refused. The second of two charges on one key must be decided
//! after the first: so the first is written immediately, and undone if a later one is refused.
//!
//! **Fast path.** Nearly every group is small, and all its keys have short states in their home buckets under the
//! limits of the request. [`Ledger::try_decide_fast`] decides these by recursion instead of a list: it locks the last
//! bucket while it decides the charges before it.
//!
//! **Overflow.** Keys without an entry share one entry per id of limits, in a small second table.

mod group;
mod snapshot;
mod view;
mod weigh;

use std::array::from_ref;
use std::fmt;
use std::sync::Mutex;

use tollgate_core::{Algorithm, Ask, Cells, CellsMut, Cost, Limits, Now, Offset, Retry, Spent, Stamps, Window};

use crate::account::Account;
use crate::clock::{Clock, PreciseClock};
use crate::fingerprint::{Fingerprint, Key, Secret};
use crate::keyed::{CapacityError, WhenFull, spent_by_arrival, with_init};
use crate::sync::{AtomicU64, Ordering};
use crate::table::{BATCH, Buckets, LockedEntry, Presence, State, StateReader, Wide};
pub use view::ChargeView;
use view::Words;

/// All limits that states may belong to, by id.
///
/// Limits are never changed, only replaced: an edited rule gets a new id, and the old id has to stay known for as long as states
/// may belong to it. A state whose id is unknown counts as forgotten.
pub trait LimitTable {
    /// Returns the limits with this id.
    fn get(&self, id: u32) -> Option<&Limits>;
}

impl LimitTable for [Limits] {
    fn get(&self, id: u32) -> Option<&Limits> {
        <[Limits]>::get(self, id as usize)
    }
}

/// A request about one key under one set of limits.
#[derive(Clone, Copy, Debug)]
pub struct Charge<'a> {
    /// The id of the limits.
    pub limits_id: u32,
    /// The limits with that id, if the caller has them; otherwise they are looked up.
    pub limits: Option<&'a Limits>,
    /// The key. If two rules count the same name, the key must include the rule.
    pub key: &'a [u8],
    /// The amount asked for.
    pub ask: Ask,
    /// The windows that limits of phase `Given` refer to by position.
    pub windows: &'a [Window],
}

impl<'a> Charge<'a> {
    /// Makes a charge of all of `cost` or nothing, without given windows.
    pub fn new(limits_id: u32, key: &'a [u8], cost: u64) -> Self {
        Self { limits_id, limits: None, key, ask: Ask::Exactly(Cost::new(cost)), windows: &[] }
    }
}

/// The usual charge: all of a cost or nothing, under limits that the caller has and that need no given windows.
#[derive(Clone, Copy, Debug)]
pub struct PlainCharge<'a> {
    /// The id of the limits.
    pub limits_id: u32,
    /// The limits with that id.
    pub limits: &'a Limits,
    /// The key.
    pub key: &'a [u8],
    /// The amount asked for.
    pub cost: Cost,
}

/// A table for many limits at once: every call names its limits, and several charges pass together or not at all.
///
/// Its memory is bounded as that of [`Keyed`](crate::Keyed) is. A state belongs to the limits it was last charged
/// under. Under other limits, the amount used counts against their capacity but refills by its own limits, until a
/// request is admitted. Peeks, refusals and refunds do not change that.
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
    table: Buckets<Wide>,
    /// One entry per id of limits, shared by the keys without an entry.
    overflow: Buckets<Wide>,
    secret: Secret,
    clock: C,
    when_full: WhenFull,
    overflowed: AtomicU64,
    /// Held by the thread that writes a snapshot.
    walking: Mutex<()>,
}

/// The number of overflow entries. Loom has to explore every atomic, so one is enough there.
const OVERFLOW_ENTRIES: usize = if cfg!(loom) { 1 } else { 1024 };

impl Ledger {
    /// Makes a ledger of `capacity` keys with states of up to `state_words`, with a precise clock.
    ///
    /// # Errors
    /// If it does not fit in memory.
    pub fn new(capacity: usize, state_words: usize) -> Result<Self, CapacityError> {
        Self::with_clock(capacity, state_words, PreciseClock::new())
    }
}

impl<C: Clock> Ledger<C> {
    /// Makes a ledger of `capacity` keys with states of up to `state_words` that takes its time from `clock`.
    ///
    /// # Errors
    /// If it does not fit in memory.
    pub fn with_clock(capacity: usize, state_words: usize, clock: C) -> Result<Self, CapacityError> {
        // One more word, for the id.
        let buckets = |capacity| {
            let shape = state_words.checked_add(1).and_then(Wide::new);
            shape.and_then(|shape| Buckets::new(capacity, shape)).ok_or(CapacityError { capacity })
        };
        Ok(Self {
            table: buckets(capacity)?,
            overflow: buckets(OVERFLOW_ENTRIES)?,
            secret: Secret::random(),
            clock,
            when_full: WhenFull::default(),
            overflowed: AtomicU64::new(0),
            walking: Mutex::new(()),
        })
    }

    /// Sets what happens to a new key when the table is full.
    #[must_use]
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }

    /// Returns the longest state that an entry can hold, in words. Limits that need more are refused.
    pub fn state_words(&self) -> usize {
        self.table.state_words() - 1
    }

    /// Charges all or none, and returns whether all passed. Charges that take up to an amount all take
    /// the least that any of them can. Calls `each` for every charge in order, with its own verdict and while
    /// its state is locked, so that reports are those of the decision. `each` must not use the ledger.
    pub fn decide<N: LimitTable + ?Sized>(
        &self,
        limit_table: &N,
        charges: &[Charge<'_>],
        each: impl FnMut(usize, &ChargeView<'_>),
    ) -> bool {
        self.decide_each(limit_table, charges, |charge| *charge, self.clock.now(), each)
    }

    /// Decides the charges that `charge` makes of `items`, as [`decide`](Self::decide) does but without a list, at a
    /// given reading of the [`clock`](Self::clock).
    #[doc(hidden)]
    pub fn decide_each<'a, T, N: LimitTable + ?Sized>(
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

    /// Decides every charge independently, and calls `each` for each one in order, as [`decide`](Self::decide) does.
    /// Sixteen at a time are hashed and fetched together, with one reading of the clock.
    pub fn decide_many<N: LimitTable + ?Sized>(
        &self,
        limit_table: &N,
        charges: &[Charge<'_>],
        mut each: impl FnMut(usize, &ChargeView<'_>),
    ) {
        let now = self.clock.now();
        for (batch, charges) in charges.chunks(BATCH).enumerate() {
            let mut fingerprints = [Fingerprint::default(); BATCH];
            fingerprints
                .iter_mut()
                .zip(charges)
                .for_each(|(fingerprint, charge)| *fingerprint = self.fingerprint(charge));
            self.table.touch_all(&fingerprints[..charges.len()]);
            for (place, (charge, fingerprint)) in charges.iter().zip(fingerprints).enumerate() {
                self.decide_one(limit_table, charge, fingerprint, now, |view| each(batch * BATCH + place, view));
            }
        }
    }

    /// Begins to fetch the memory of keys, all at the same time, so that decisions about them soon afterwards do not wait for
    /// it one after the other. Changes nothing.
    pub fn fetch<'k>(&self, keys: impl IntoIterator<Item = &'k [u8]>) {
        let mut keys = keys.into_iter().map(|key| key.fingerprint(&self.secret));
        loop {
            let (mut fingerprints, mut count) = ([Fingerprint::default(); BATCH], 0);
            fingerprints
                .iter_mut()
                .zip(&mut keys)
                .for_each(|(place, fingerprint)| (*place, count) = (fingerprint, count + 1));
            self.table.touch_all(&fingerprints[..count]);
            if count < BATCH {
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
        let found = self.table.find(fingerprint, &LedgerReader { limit_table, now }, |slot| {
            let presence =
                presence_under(limit_table, limits, charge.limits_id, &slot.state, Presence::Known, &key_now);
            let look = |account: &mut Held<'_>| read(&ChargeView::from_account(account, account.weigh(charge.ask)));
            (presence == Presence::Known)
                .then(|| visit(limit_table, limits, charge.limits_id, &mut slot.state, presence, key_now, look))
        });
        found.flatten().unwrap_or_else(|| {
            with_init(limits, &key_now, |state| {
                let verdict = limits.weigh(&state, &key_now, charge.ask);
                read(&ChargeView { limits: Some(limits), own: None, state: Words::New(state), now: key_now, verdict })
            })
        })
    }

    /// Gives back up to `cost` to the charge's key and returns how much its limits accepted.
    pub fn refund<N: LimitTable + ?Sized>(
        &self,
        limit_table: &N,
        charge: &Charge<'_>,
        cost: u64,
        stamps: Option<Stamps>,
    ) -> u64 {
        let (fingerprint, now) = (self.fingerprint(charge), self.clock.now());
        let refund = |account: &mut Held<'_>| account.refund(Cost::new(cost), stamps);
        self.find(limit_table, charge, fingerprint, now, refund).map_or(0, Cost::get)
    }

    /// Restarts the leases of these stamps now. Returns whether all of them were still held.
    pub fn renew<N: LimitTable + ?Sized>(&self, limit_table: &N, charge: &Charge<'_>, stamps: Stamps) -> bool {
        let (fingerprint, now) = (self.fingerprint(charge), self.clock.now());
        let renew = |account: &mut Held<'_>| account.owner().renew(&mut account.state, &account.now, stamps);
        self.find(limit_table, charge, fingerprint, now, renew).unwrap_or(false)
    }

    /// Forgets the charge's key, which is new from then on.
    pub fn reset<N: LimitTable + ?Sized>(&self, limit_table: &N, charge: &Charge<'_>) {
        let reader = LedgerReader { limit_table, now: self.clock.now() };
        self.table.find(self.fingerprint(charge), &reader, |slot| slot.state.set(0, FORGOTTEN));
    }

    /// Returns whether the charge's key has anything used up here, under the limits that its state belongs to.
    #[doc(hidden)]
    pub fn is_known<N: LimitTable + ?Sized>(&self, limit_table: &N, charge: &Charge<'_>) -> bool {
        let (fingerprint, reader) = (self.fingerprint(charge), LedgerReader { limit_table, now: self.clock.now() });
        self.table.find(fingerprint, &reader, |slot| !reader.is_new(fingerprint, slot)).unwrap_or(false)
    }

    /// Returns whether the charge's key has an entry here, even if it has nothing used up.
    #[doc(hidden)]
    pub fn has_used<N: LimitTable + ?Sized>(&self, limit_table: &N, charge: &Charge<'_>) -> bool {
        let reader = LedgerReader { limit_table, now: self.clock.now() };
        let is_kept = |slot: &mut LockedEntry<'_>| limits_with(limit_table, slot.state.get(0)).is_some();
        self.table.find(self.fingerprint(charge), &reader, is_kept).unwrap_or(false)
    }

    /// Moves the state of the charge's key to another ledger, with the id of the limits it belongs to. The entries there must be
    /// long enough. Does nothing if the key has no entry here.
    #[doc(hidden)]
    pub fn move_to<N: LimitTable + ?Sized>(&self, to: &Self, limit_table: &N, charge: &Charge<'_>) {
        let reader = LedgerReader { limit_table, now: self.clock.now() };
        let taken = self.table.find(self.fingerprint(charge), &reader, |slot| {
            let words: Vec<u64> = (0..self.table.state_words()).map(|word| slot.state.get(word)).collect();
            slot.state.set(0, FORGOTTEN);
            words
        });
        let Some(words) = taken else { return };
        to.table.upsert(to.fingerprint(charge), &reader, Spent::ALL, |slot, _| {
            words.iter().enumerate().for_each(|(index, word)| slot.state.set(index, *word));
        });
    }

    /// Replaces the state of the charge's key by that of a new key under `start`, with `held` leases taken of each concurrency
    /// limit. `start` may differ from the limits of the charge in what a new key has, and in the length of its first window or
    /// lease. Does nothing for a key without an entry.
    #[doc(hidden)]
    pub fn begin<N: LimitTable + ?Sized>(&self, limit_table: &N, charge: &Charge<'_>, start: &Limits, held: &[u64]) {
        if start.words() > self.state_words() {
            return;
        }
        let (fingerprint, now) = (self.fingerprint(charge), self.clock.now());
        let key_now = now_for_key(charge, fingerprint, now);
        // The used fraction is known only after the state is written.
        self.table.upsert(fingerprint, &LedgerReader { limit_table, now }, Spent::ALL, |slot, _| {
            slot.state.set(0, charge.limits_id.into());
            let mut words = after_id(&mut slot.state);
            start.init(&mut words, &key_now);
            start.take_leases(&mut words, &key_now, held);
        });
    }

    /// Returns the memory that the table takes once all of it has been used.
    pub fn bytes(&self) -> usize {
        self.table.bytes() + self.overflow.bytes()
    }

    /// Returns how many decisions were about keys without an entry.
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
        let mut decide = |slot: &mut LockedEntry<'_>, presence, now: Now<'_>| {
            let presence = presence_under(limit_table, limits, charge.limits_id, &slot.state, presence, &now);
            visit(limit_table, limits, charge.limits_id, &mut slot.state, presence, now, |account| {
                let verdict = account.decide(charge.ask);
                if let Some(each) = each.take() {
                    each(&ChargeView::from_account(account, verdict));
                }
                verdict.is_admitted()
            })
        };
        let arrival = spent_by_arrival(limits, &key_now, charge.ask);
        let decided =
            self.table.upsert(fingerprint, &reader, arrival, |slot, presence| decide(slot, presence, key_now));
        if let Some(passed) = decided {
            return passed;
        }
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        let shared = self.shared_fingerprint(charge);
        let of_shared = now_for_key(charge, shared, now);
        let overflowed = match self.when_full {
            WhenFull::Overflow => {
                self.overflow.upsert(shared, &reader, Spent::ALL, |slot, presence| decide(slot, presence, of_shared))
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
        visit: impl FnOnce(&mut Held<'_>) -> R,
    ) -> Option<R> {
        let found = self.table.find(fingerprint, &LedgerReader { limit_table, now }, |slot| {
            let limit = limits_with(limit_table, slot.state.get(0))?;
            let now = now_for_key(charge, fingerprint, now);
            Some(visit(&mut Account { limit, own: None, state: after_id(slot.state), now }))
        });
        found.flatten()
    }

    /// Returns the limits of a charge, unless their state does not fit an entry.
    #[inline]
    fn limits<'n, N: LimitTable + ?Sized>(&self, limit_table: &'n N, charge: &Charge<'n>) -> Option<&'n Limits> {
        let limits = charge.limits.or_else(|| limit_table.get(charge.limits_id));
        limits.filter(|limits| limits.words() <= self.state_words())
    }

    fn fingerprint(&self, charge: &Charge<'_>) -> Fingerprint {
        charge.key.fingerprint(&self.secret)
    }

    /// Returns the fingerprint of the overflow entry of the charge's limits.
    fn shared_fingerprint(&self, charge: &Charge<'_>) -> Fingerprint {
        charge.limits_id.to_le_bytes().fingerprint(&self.secret)
    }
}

impl<C> fmt::Debug for Ledger<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").field("table", &self.table).finish_non_exhaustive()
    }
}

/// An id that no limits have, so that the entry counts as forgotten.
const FORGOTTEN: u64 = u64::MAX;

/// Returns the limits whose id an entry begins with.
fn limits_with<N: LimitTable + ?Sized>(limit_table: &N, id: u64) -> Option<&Limits> {
    u32::try_from(id).ok().and_then(|id| limit_table.get(id))
}

/// Returns whether a key is known under the limits with `id`. A key with nothing used under other limits counts as new
/// under limits whose new keys start with less than everything.
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
    let own = limits_with(limit_table, written_under);
    let is_unused = |own: &Limits| limits.is_new_from(own, &after_id(*state), now);
    if own.is_none_or(|own| is_unused(own) && !limits.starts_full() && own != limits) {
        Presence::New
    } else {
        Presence::Known
    }
}

/// The state of an entry, under the limits of a charge.
type Held<'a> = Account<'a, Limits, Offset<State<'a>>>;

/// Returns the limits that a state belongs to, if they are not those with `id`. A new state, and one whose limits are unknown, is
/// initialised under `limits`, which have that id.
fn own_limits<'n, N: LimitTable + ?Sized>(
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
        && let Some(own) = limits_with(limit_table, written_under)
    {
        return Some(own);
    }
    state.set(0, id.into());
    limits.init(&mut after_id(state), now);
    None
}

/// Runs `visit` on a state under the limits with `id`, which it belongs to afterwards if it was charged under them.
fn visit<N: LimitTable + ?Sized, R>(
    limit_table: &N,
    limits: &Limits,
    id: u32,
    state: &mut State<'_>,
    presence: Presence,
    now: Now<'_>,
    visit: impl FnOnce(&mut Held<'_>) -> R,
) -> R {
    let own = own_limits(limit_table, limits, id, state, presence, &now);
    let mut account = Account { limit: limits, own, state: after_id(*state), now };
    let result = visit(&mut account);
    if own.is_some() && account.own.is_none() {
        state.set(0, id.into());
    }
    result
}

fn now_for_key<'a>(charge: &Charge<'a>, fingerprint: Fingerprint, now: Now<'a>) -> Now<'a> {
    now.with_spread(fingerprint.low).with_windows(charge.windows)
}

/// Returns the state of an entry, which comes after the id of the limits it belongs to.
fn after_id<S>(entry: S) -> Offset<S> {
    Offset { cells: entry, first: 1 }
}

/// Reads the entries of the table, each under the limits that it belongs to.
struct LedgerReader<'a, N: ?Sized> {
    limit_table: &'a N,
    now: Now<'a>,
}

impl<N: LimitTable + ?Sized> StateReader for LedgerReader<'_, N> {
    fn generation(&self) -> u64 {
        0
    }

    fn is_new(&self, fingerprint: Fingerprint, slot: &LockedEntry<'_>) -> bool {
        self.spent_under(fingerprint, &slot.state, |limits, state, now| limits.is_surely_new(state, now))
            .unwrap_or(true)
    }

    fn spent(&self, fingerprint: Fingerprint, slot: &LockedEntry<'_>) -> Spent {
        self.spent_under(fingerprint, &slot.state, |limits, state, now| limits.most_spent(state, now))
            .unwrap_or_default()
    }
}

impl<N: LimitTable + ?Sized> LedgerReader<'_, N> {
    fn spent_under<R>(
        &self,
        fingerprint: Fingerprint,
        state: &State<'_>,
        read: impl FnOnce(&Limits, &Offset<&State<'_>>, &Now<'_>) -> R,
    ) -> Option<R> {
        let limits = limits_with(self.limit_table, state.get(0))?;
        Some(read(limits, &after_id(state), &self.now.with_spread(fingerprint.low)))
    }
}

#[cfg(test)]
mod tests;
