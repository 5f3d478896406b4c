//! A limit for each key.

mod snapshot;
mod takings;

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tollgate_core::{Algorithm, Ask, Cells, CellsMut, Cost, Now, Report, Retry, Spent, TokenBucket, Verdict};

use crate::clock::{Clock, PreciseClock};
use crate::fingerprint::{Fingerprint, Key, Secret};
use crate::sync::{AtomicU64, Ordering};
use crate::table::{Arrival, BATCH, GENERATIONS, Owner, State, Table};
use crate::wait::Rooms;
pub use snapshot::RestoreError;
use takings::Takings;

/// One limit, or several together, counted separately for each key: a user, an address, an API token.
///
/// Room for a fixed number of keys is reserved at the start and touched only when used. Nothing is allocated afterwards,
/// nothing is cleaned up, and no decision ever waits for either. Of a [`Key`] only a fingerprint is kept, so a long one takes
/// no more room than a short one.
///
/// ```
/// use tollgate::{Keyed, TokenBucket};
///
/// let per_user = Keyed::new(TokenBucket::new("10/s".parse()?, 5)?, 100_000)?;
/// assert!((0..5).all(|_| per_user.check("alice", 1).is_allowed()));
/// assert!(!per_user.check("alice", 1).is_allowed());
/// assert!(per_user.check("bob", 1).is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Keyed<A: Algorithm = TokenBucket, C = PreciseClock> {
    table: Table,
    capacity: usize,
    secret: Secret,
    clock: C,
    limit: A,
    /// Earlier numbers that states in the table may have been written under, oldest first.
    earlier: Vec<A>,
    when_full: WhenFull,
    /// What all keys without an entry of their own share.
    overflow: Mutex<Box<[u64]>>,
    /// What was taken from it; never locked together with it.
    takings: Mutex<Takings>,
    overflowed: AtomicU64,
    /// Held by whoever takes a snapshot.
    walking: Mutex<()>,
    rooms: Rooms<Fingerprint, A::Stamp>,
}

/// How many waiting rooms there are, so that those who wait for different keys seldom meet at a lock.
const ROOMS: usize = 16;

/// How many may wait for one key unless said otherwise: far fewer than in all, lest one key keep the others from waiting.
const MAX_WAITERS_PER_KEY: usize = 1_024;

/// What happens to a new key when every entry it could have is in use and more spent than the newcomer would be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenFull {
    /// It is counted together with all others that found no room.
    ///
    /// What a key took there it can give back there, whatever the algorithm and never more than it took: the last 1,024
    /// takings that were not given back are written down, as many as there can be leases. What is older, or was taken
    /// before a snapshot was restored, stays taken until time gives it back. And once a key has found room after all, what it
    /// gives back goes to its own entry first, and to what is shared only if nothing was missing there.
    #[default]
    Overflow,
    /// It is refused, for as long as that lasts.
    Deny,
}

/// The table asked for does not fit in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLarge {
    /// How many keys were asked for.
    pub capacity: usize,
}

impl fmt::Display for TooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a table of {} keys does not fit in memory, ask for fewer", self.capacity)
    }
}

impl std::error::Error for TooLarge {}

impl<A: Algorithm> Keyed<A> {
    /// Room for `capacity` keys under `limit`, with a precise clock.
    ///
    /// # Errors
    /// When that many do not fit in memory.
    pub fn new(limit: A, capacity: usize) -> Result<Self, TooLarge> {
        Self::with_clock(limit, capacity, PreciseClock::new())
    }
}

impl<A: Algorithm, C: Clock> Keyed<A, C> {
    /// Room for `capacity` keys under `limit`, with time taken from `clock`.
    ///
    /// # Errors
    /// When that many do not fit in memory.
    pub fn with_clock(limit: A, capacity: usize, clock: C) -> Result<Self, TooLarge> {
        let table = Table::new(capacity, limit.words()).ok_or(TooLarge { capacity })?;
        let mut overflow = vec![0; limit.words()];
        limit.fresh(&mut *overflow, &clock.now_for(&limit));
        Ok(Self {
            table,
            capacity,
            secret: Secret::random(),
            clock,
            limit,
            earlier: Vec::new(),
            when_full: WhenFull::default(),
            overflow: Mutex::new(overflow.into()),
            takings: Mutex::default(),
            overflowed: AtomicU64::new(0),
            walking: Mutex::new(()),
            rooms: Rooms::new(ROOMS).max_in_line(MAX_WAITERS_PER_KEY),
        })
    }

    /// With another fate for keys that find no room.
    #[must_use]
    pub fn when_full(self, when_full: WhenFull) -> Self {
        Self { when_full, ..self }
    }

    /// Takes `cost` or refuses, spending nothing.
    #[inline(always)]
    pub fn check<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Verdict<A::Stamp> {
        let cost = Cost::new(cost);
        let now = self.clock.now_for(&self.limit);
        let print = key.fingerprint(&self.secret);
        let take = |word| self.limit.take_from_word(word, &now, cost);
        if self.table.take_at_home(print, self.earlier.len() as u64, take) {
            return Verdict::granted(cost);
        }
        self.check_at_length(print, now, cost)
    }

    /// [`check`](Self::check), with what may be told about the key's limit afterwards.
    pub fn check_and_report<K: Key + ?Sized>(&self, key: &K, cost: u64) -> (Verdict<A::Stamp>, Report) {
        let cost = Cost::new(cost);
        self.decide(key, Ask::Exactly(cost), |entry, verdict| (verdict, entry.report(cost)))
    }

    /// Takes as much of `cost` as fits; [`Verdict::taken`] says how much.
    pub fn take_up_to<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Verdict<A::Stamp> {
        self.decide(key, Ask::UpTo(Cost::new(cost)), |_, verdict| verdict)
    }

    /// Takes `cost` whether it fits or not, into debt as far as the limit allows.
    pub fn charge<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Verdict<A::Stamp> {
        self.decide(key, Ask::Regardless(Cost::new(cost)), |_, verdict| verdict)
    }

    /// Takes all that is left.
    pub fn drain<K: Key + ?Sized>(&self, key: &K) -> Verdict<A::Stamp> {
        self.decide(key, Ask::UpTo(Cost::MAX), |_, verdict| verdict)
    }

    /// [`check`](Self::check) for many keys, calling `each` with every answer in order.
    ///
    /// The requests are independent of each other. Sixteen at a time are hashed and their memory fetched together, on one
    /// reading of the clock: with many keys this is several times as fast as asking one by one.
    #[inline]
    pub fn check_many<K: Key>(
        &self,
        requests: impl IntoIterator<Item = (K, u64)>,
        mut each: impl FnMut(Verdict<A::Stamp>),
    ) {
        let mut requests = requests.into_iter();
        let (mut prints, mut costs) = ([Fingerprint::default(); BATCH], [Cost::ZERO; BATCH]);
        let mut verdicts = [Verdict::default(); BATCH];
        loop {
            let mut len = 0;
            // The places come first: a request taken from the caller with no place left would be lost.
            for ((print, place), (key, cost)) in prints.iter_mut().zip(&mut costs).zip(requests.by_ref()) {
                (*print, *place) = (key.fingerprint(&self.secret), Cost::new(cost));
                len += 1;
            }
            if len == 0 {
                return;
            }
            let now = self.clock.now_for(&self.limit);
            self.table.at_home_many(&prints[..len], self.earlier.len() as u64, |place, state| {
                let (print, ask) = (prints[place], Ask::Exactly(costs[place]));
                verdicts[place] = match state {
                    Some(state) => self.limit.decide(state, &now.with_spread(print.low), ask),
                    None => self.decide_at(print, now, ask, |_, verdict| verdict),
                };
            });
            // Not before nothing is locked any more: whoever is called may have questions of its own.
            verdicts[..len].iter().for_each(|verdict| each(*verdict));
        }
    }

    /// What [`check`](Self::check) would say. Changes nothing and inserts nothing.
    pub fn peek<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Verdict<A::Stamp> {
        self.read(key, |entry| entry.weigh(Ask::Exactly(Cost::new(cost))))
    }

    /// What may be told about the key's limit, with `retry` for a request of `cost`. Changes nothing, inserts nothing.
    pub fn report<K: Key + ?Sized>(&self, key: &K, cost: u64) -> Report {
        self.read(key, |entry| entry.report(Cost::new(cost)))
    }

    /// Gives back what `verdict` took, as far as the limit still holds it against the key; returns how much that was.
    pub fn refund<K: Key + ?Sized>(&self, key: &K, verdict: &Verdict<A::Stamp>) -> u64 {
        self.refund_part(key.fingerprint(&self.secret), verdict, verdict.taken())
    }

    /// Forgets what the key has spent.
    pub fn reset<K: Key + ?Sized>(&self, key: &K) {
        let print = key.fingerprint(&self.secret);
        self.find(print, self.now(), |limit, state, now| limit.fresh(state, now));
        self.rooms.look_at(room_of(print), print);
    }

    /// With other bounds on how many may wait at the same time: in all, instead of 65,536, and for one key, instead of 1,024.
    #[must_use]
    pub fn max_waiters(mut self, in_all: usize, per_key: usize) -> Self {
        (self.rooms.max, self.rooms.max_in_line) = (in_all, per_key);
        self
    }

    /// How many wait, for all keys together.
    pub fn waiters(&self) -> usize {
        self.rooms.waiting()
    }

    /// Puts other numbers in force. What was spent stays spent: an entry is converted when it is next looked at.
    ///
    /// Only where the new limit needs larger entries than the table has is everything moved to a new table at once; should
    /// there be more entries than the table was made for, the least spent of them may find no room in it. And every thousand
    /// changes, all entries that were not looked at in between are converted at once.
    ///
    /// # Errors
    /// When that table does not fit in memory; the old numbers then stay in force.
    pub fn set_limit(&mut self, limit: A) -> Result<(), TooLarge> {
        let words = limit.words().max(self.table.state_words());
        if words > self.table.state_words() {
            self.rebuild(words)?;
        } else if self.earlier.len() as u64 == GENERATIONS - 1 {
            self.table.begin_anew(&self.judge(self.clock.now()));
            self.earlier.clear();
        }
        let now = self.clock.now();
        let mut overflow = self.overflow.get_mut().unwrap_or_else(PoisonError::into_inner).to_vec();
        overflow.resize(words, 0);
        limit.convert(&self.limit, &mut *overflow, &now);
        self.overflow = Mutex::new(overflow.into());
        self.earlier.push(std::mem::replace(&mut self.limit, limit));
        Ok(())
    }

    /// The numbers in force.
    pub fn limit(&self) -> &A {
        &self.limit
    }

    /// The memory the table takes once all of it has been used.
    pub fn bytes(&self) -> usize {
        self.table.bytes()
    }

    /// How many decisions were about keys that found no room of their own.
    pub fn overflowed(&self) -> u64 {
        self.overflowed.load(Ordering::Relaxed)
    }

    #[inline(never)]
    fn check_at_length(&self, print: Fingerprint, now: Now<'_>, cost: Cost) -> Verdict<A::Stamp> {
        self.decide_at(print, now, Ask::Exactly(cost), |_, verdict| verdict)
    }

    #[inline]
    fn decide<K: Key + ?Sized, R>(
        &self,
        key: &K,
        ask: Ask,
        read: impl Fn(&Entry<'_, A>, Verdict<A::Stamp>) -> R + Copy,
    ) -> R {
        let now = self.clock.now_for(self.limit());
        self.decide_at(key.fingerprint(&self.secret), now, ask, read)
    }

    #[inline]
    fn decide_at<R>(
        &self,
        print: Fingerprint,
        now: Now<'_>,
        ask: Ask,
        read: impl Fn(&Entry<'_, A>, Verdict<A::Stamp>) -> R + Copy,
    ) -> R {
        let decided = self.table.known(print, self.earlier.len() as u64, |state| {
            let now = now.with_spread(print.low);
            let verdict = self.limit.decide(state, &now, ask);
            read(&Entry { limit: &self.limit, state: &*state, now: &now }, verdict)
        });
        match decided {
            Some(result) => result,
            None => self.decide_at_length(print, now, ask, read),
        }
    }

    #[inline(never)]
    fn decide_at_length<R>(
        &self,
        print: Fingerprint,
        now: Now<'_>,
        ask: Ask,
        read: impl Fn(&Entry<'_, A>, Verdict<A::Stamp>) -> R + Copy,
    ) -> R {
        let limit = &self.limit;
        let owner = self.judge(now);
        let of_key = now.with_spread(print.low);
        let decided = self.table.enter(print, &owner, newcomer(limit, &of_key, ask), |state, arrival| {
            if arrival == Arrival::New {
                limit.fresh(state, &of_key);
            }
            let verdict = limit.decide(state, &of_key, ask);
            read(&Entry { limit, state: &*state, now: &of_key }, verdict)
        });
        // What is shared by many keys has the windows of none of them.
        decided.unwrap_or_else(|| self.decide_without_room(print, now, ask, read))
    }

    #[cold]
    #[inline(never)]
    fn decide_without_room<R>(
        &self,
        print: Fingerprint,
        now: Now<'_>,
        ask: Ask,
        read: impl Fn(&Entry<'_, A>, Verdict<A::Stamp>) -> R,
    ) -> R {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        let limit = self.limit();
        let mut state = self.overflow.lock().unwrap_or_else(PoisonError::into_inner);
        let verdict = match self.when_full {
            WhenFull::Overflow => limit.decide(&mut **state, &now, ask),
            WhenFull::Deny => Verdict::refused(Retry::OnRelease),
        };
        let result = read(&Entry { limit, state: &&**state, now: &now }, verdict);
        drop(state);
        if verdict.taken() > Cost::ZERO {
            self.takings().add(print, verdict.taken().get());
        }
        result
    }

    /// Runs `read` on the key's state, or on that of a new key where there is none.
    fn read<K: Key + ?Sized, R>(&self, key: &K, read: impl Fn(&Entry<'_, A>) -> R) -> R {
        self.read_at(key.fingerprint(&self.secret), self.now(), read)
    }

    fn read_at<R>(&self, print: Fingerprint, now: Now<'_>, read: impl Fn(&Entry<'_, A>) -> R) -> R {
        let found = self.find(print, now, |limit, state, now| read(&Entry { limit, state: &*state, now }));
        found.unwrap_or_else(|| {
            let now = now.with_spread(print.low);
            with_fresh(&self.limit, &now, |state| read(&Entry { limit: &self.limit, state: &state, now: &now }))
        })
    }

    fn refund_part(&self, print: Fingerprint, verdict: &Verdict<A::Stamp>, cost: Cost) -> u64 {
        let refunded = self.undo(print, verdict, cost);
        if refunded > 0 {
            self.rooms.look_at(room_of(print), print);
        }
        refunded
    }

    /// Gives back without telling those who wait.
    fn undo(&self, print: Fingerprint, verdict: &Verdict<A::Stamp>, cost: Cost) -> u64 {
        let (now, stamp) = (self.now(), Some(verdict.stamp()));
        let refund = |limit: &A, state: &mut State<'_>, now: &Now<'_>| limit.refund(state, now, cost, stamp);
        match self.find(print, now, refund) {
            Some(refunded) if refunded > Cost::ZERO => refunded.get(),
            _ => {
                let part = Cost::new(self.takings().strike_out(print, cost.get()));
                if part == Cost::ZERO {
                    return 0;
                }
                self.on_overflow(|state| self.limit.refund(state, &now, part, stamp)).get()
            }
        }
    }

    fn on_overflow<R>(&self, visit: impl FnOnce(&mut [u64]) -> R) -> R {
        visit(&mut self.overflow.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn takings(&self) -> MutexGuard<'_, Takings> {
        self.takings.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Now<'static> {
        self.clock.now_for(&self.limit)
    }

    fn find<R>(
        &self,
        print: Fingerprint,
        now: Now<'_>,
        visit: impl FnOnce(&A, &mut State<'_>, &Now<'_>) -> R,
    ) -> Option<R> {
        let visit = |state: &mut State<'_>| visit(&self.limit, state, &now.with_spread(print.low));
        self.table.find(print, &self.judge(now), visit)
    }

    /// States of earlier numbers may have to be read by the wall clock, though those in force do without.
    fn judge<'a>(&'a self, now: Now<'a>) -> Judge<'a, A> {
        let now = if self.earlier.is_empty() { now } else { Now::new(now.mono(), self.clock.wall(now.mono())) };
        Judge { limit: &self.limit, earlier: &self.earlier, now }
    }

    /// Moves every entry to a table with room for states of `words`, under the numbers in force alone.
    fn rebuild(&mut self, words: usize) -> Result<(), TooLarge> {
        let capacity = self.capacity;
        let table = Table::new(capacity, words).ok_or(TooLarge { capacity })?;
        let now = self.clock.now();
        let new_owner = Judge { limit: &self.limit, earlier: &[], now };
        self.table.for_each(&self.judge(now), |print, from| {
            let copy = |to: &mut State<'_>, _| (0..words).for_each(|word| to.set(word, from.get(word)));
            if !new_owner.is_new(print, from) {
                table.enter(print, &new_owner, new_owner.spent(print, from), copy);
            }
        });
        self.table = table;
        self.earlier.clear();
        Ok(())
    }
}

/// The waiting room for a key, counted round.
const fn room_of(print: Fingerprint) -> usize {
    // Not the bits that tell the place in the table, though any would do.
    print.high as usize
}

/// How spent `ask` leaves a new entry.
pub(crate) fn newcomer<A: Algorithm>(limit: &A, now: &Now<'_>, ask: Ask) -> Spent {
    let capacity = limit.capacity();
    let taken = match ask {
        // Without state nothing is remembered, let alone spent.
        _ if limit.words() == 0 => 0,
        Ask::Exactly(cost) if cost.get() > capacity => 0,
        // Into debt, unless even that does not hold it.
        Ask::Regardless(cost) if cost.get() > capacity => {
            with_fresh(limit, now, |state| limit.weigh(&state, now, ask).taken().get())
        }
        Ask::Exactly(cost) | Ask::UpTo(cost) | Ask::Regardless(cost) => cost.get(),
    };
    if taken == 0 { Spent::NOTHING } else { Spent::of(taken.into(), capacity.into()) }
}

/// Runs `read` on the state of a key never seen before.
pub(crate) fn with_fresh<A: Algorithm, R>(limit: &A, now: &Now<'_>, read: impl FnOnce(&[u64]) -> R) -> R {
    // Only the states of logs and leases are longer than this.
    let (mut short, mut long) = ([0; 8], Vec::new());
    let words = match short.get_mut(..limit.words()) {
        Some(words) => words,
        None => {
            long.resize(limit.words(), 0);
            &mut *long
        }
    };
    limit.fresh(words, now);
    read(words)
}

/// A key's limit and state at the instant of a decision.
struct Entry<'a, A> {
    limit: &'a A,
    state: &'a dyn Cells,
    now: &'a Now<'a>,
}

impl<A: Algorithm> Entry<'_, A> {
    fn report(&self, cost: Cost) -> Report {
        self.limit.report(self.state, self.now, cost)
    }

    fn weigh(&self, ask: Ask) -> Verdict<A::Stamp> {
        self.limit.weigh(self.state, self.now, ask)
    }
}

/// Tells the table what its entries are worth.
struct Judge<'a, A> {
    limit: &'a A,
    earlier: &'a [A],
    now: Now<'a>,
}

impl<A> Judge<'_, A> {
    fn now(&self, print: Fingerprint) -> Now<'_> {
        self.now.with_spread(print.low)
    }
}

impl<A: Algorithm> Owner for Judge<'_, A> {
    #[inline]
    fn generation(&self) -> u64 {
        self.earlier.len() as u64
    }

    fn convert(&self, print: Fingerprint, state: &mut State<'_>, written_under: u64) {
        if let Some(old) = self.earlier.get(written_under as usize) {
            self.limit.convert(old, state, &self.now(print));
        }
    }

    fn is_new(&self, print: Fingerprint, state: &State<'_>) -> bool {
        self.limit.is_new(state, &self.now(print))
    }

    fn spent(&self, print: Fingerprint, state: &State<'_>) -> Spent {
        self.limit.spent(state, &self.now(print))
    }
}

impl<A: Algorithm + fmt::Debug, C> fmt::Debug for Keyed<A, C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyed").field("limit", &self.limit).field("table", &self.table).finish_non_exhaustive()
    }
}

mod acquire;
#[cfg(test)]
mod tests;
