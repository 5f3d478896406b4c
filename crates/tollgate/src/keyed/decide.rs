//! From a fingerprint to the state of its key, and what is decided there: the fast path, the slow path, and reading.

use tollgate_core::{
    Algorithm, Ask, Cells, CellsMut, Cost, Mono, Nanos, Now, Report, Retry, Spent, Time, Verdict, Wall,
};

use super::Keyed;
use crate::account::Account;
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Key};
use crate::table::{Presence, State};

impl<A: Algorithm, C: Clock> Keyed<A, C> {
    /// Takes the clock's readings one by one: a `Now` would be put together in memory on the fast path.
    #[inline(never)]
    pub(super) fn check_slow(
        &self,
        fingerprint: Fingerprint,
        mono: Time<Mono>,
        wall: Time<Wall>,
        cost: Cost,
    ) -> Verdict<A::Stamp> {
        self.decide_at(fingerprint, Now::new(mono, wall), Ask::Exactly(cost), |_, verdict| verdict)
    }

    #[inline]
    pub(super) fn decide<K: Key + ?Sized, R>(
        &self,
        key: &K,
        ask: Ask,
        read: impl Fn(&Entry<'_, A>, Verdict<A::Stamp>) -> R + Copy,
    ) -> R {
        let now = self.clock.now_for(self.limit());
        self.decide_at(key.fingerprint(&self.secret), now, ask, read)
    }

    #[inline]
    pub(super) fn decide_at<R>(
        &self,
        fingerprint: Fingerprint,
        now: Now<'_>,
        ask: Ask,
        read: impl Fn(&Entry<'_, A>, Verdict<A::Stamp>) -> R + Copy,
    ) -> R {
        let decided = self.table.try_known(fingerprint, self.flags, |state| {
            let now = now.with_spread(fingerprint.low);
            let verdict = self.limit.decide(state, &now, ask);
            read(&Entry { limit: &self.limit, own: None, state: &*state, now: &now }, verdict)
        });
        match decided {
            Some(result) => result,
            None => self.decide_slow(fingerprint, now, ask, read),
        }
    }

    #[inline(never)]
    pub(super) fn decide_slow<R>(
        &self,
        fingerprint: Fingerprint,
        now: Now<'_>,
        ask: Ask,
        read: impl Fn(&Entry<'_, A>, Verdict<A::Stamp>) -> R + Copy,
    ) -> R {
        let reader = self.reader(now);
        let of_key = reader.now(fingerprint);
        let decided =
            self.table.upsert(fingerprint, &reader, spent_by_arrival(&self.limit, &of_key, ask), |slot, presence| {
                if presence == Presence::New {
                    self.limit.init(&mut slot.state, &of_key);
                }
                reader.visit(fingerprint, slot, |account| {
                    let verdict = account.decide(ask);
                    read(&Entry::of(account), verdict)
                })
            });
        // What is shared by many keys has the windows of none of them.
        decided.unwrap_or_else(|| self.decide_without_room(fingerprint, now, ask, read))
    }

    /// Runs `read` on the key's state, or on that of a new key where there is none.
    pub(super) fn read<K: Key + ?Sized, R>(&self, key: &K, read: impl Fn(&Entry<'_, A>) -> R) -> R {
        self.read_at(key.fingerprint(&self.secret), self.now(), read)
    }

    pub(super) fn read_at<R>(&self, fingerprint: Fingerprint, now: Now<'_>, read: impl Fn(&Entry<'_, A>) -> R) -> R {
        let found = self.find(fingerprint, now, |account| read(&Entry::of(account)));
        found.unwrap_or_else(|| {
            let (limit, now) = (&self.limit, now.with_spread(fingerprint.low));
            with_init(limit, &now, |state| read(&Entry { limit, own: None, state: &state, now: &now }))
        })
    }

    pub(super) fn now(&self) -> Now<'static> {
        self.clock.now_for(&self.limit)
    }

    pub(super) fn find<R>(
        &self,
        fingerprint: Fingerprint,
        now: Now<'_>,
        visit: impl FnOnce(&mut Account<'_, A, State<'_>>) -> R,
    ) -> Option<R> {
        let reader = self.reader(now);
        self.table.find(fingerprint, &reader, |slot| reader.visit(fingerprint, slot, visit))
    }
}

/// How spent `ask` leaves a new entry.
pub(crate) fn spent_by_arrival<A: Algorithm>(limit: &A, now: &Now<'_>, ask: Ask) -> Spent {
    let capacity = limit.capacity();
    let taken = match ask {
        // Without state nothing is remembered, let alone spent.
        _ if limit.words() == 0 => 0,
        Ask::Exactly(cost) if cost.get() > capacity => 0,
        // Into debt, unless even that does not hold it.
        Ask::Regardless(cost) if cost.get() > capacity => {
            with_init(limit, now, |state| limit.weigh(&state, now, ask).taken().get())
        }
        Ask::Exactly(cost) | Ask::UpTo(cost) | Ask::Regardless(cost) => cost.get(),
    };
    if taken == 0 { Spent::NOTHING } else { Spent::of(taken.into(), capacity.into()) }
}

/// Runs `read` on the state of a key never seen before.
pub(crate) fn with_init<A: Algorithm, R>(limit: &A, now: &Now<'_>, read: impl FnOnce(&[u64]) -> R) -> R {
    // Only the states of logs and leases are longer than this.
    let (mut short, mut long) = ([0; 8], Vec::new());
    let words = match short.get_mut(..limit.words()) {
        Some(words) => words,
        None => {
            long.resize(limit.words(), 0);
            &mut *long
        }
    };
    limit.init(words, now);
    read(words)
}

/// A key's limit and state at the instant of a decision, to be read.
pub(super) struct Entry<'a, A> {
    pub(super) limit: &'a A,
    /// The parameters that the state belongs to, where those are not the limit in force.
    pub(super) own: Option<&'a A>,
    pub(super) state: &'a dyn Cells,
    pub(super) now: &'a Now<'a>,
}

impl<'a, A: Algorithm> Entry<'a, A> {
    pub(super) fn of<S: CellsMut>(account: &'a Account<'_, A, S>) -> Self {
        Self { limit: account.limit, own: account.own, state: &account.state, now: &account.now }
    }

    pub(super) fn report(&self, cost: Cost) -> Report {
        match self.own {
            None => self.limit.report(self.state, self.now, cost),
            Some(own) => self.limit.report_from(own, self.state, self.now, cost),
        }
    }

    pub(super) fn weigh(&self, ask: Ask) -> Verdict<A::Stamp> {
        match self.own {
            None => self.limit.weigh(self.state, self.now, ask),
            Some(own) => self.limit.weigh_from(own, self.state, self.now, ask),
        }
    }

    pub(super) fn wait_behind(&self, ahead: Cost, cost: Cost) -> Retry {
        match self.own {
            None => self.limit.wait_behind(self.state, self.now, ahead, cost),
            Some(own) => self.limit.wait_behind_from(own, self.state, self.now, cost),
        }
    }

    pub(super) fn look_again(&self) -> Option<Nanos> {
        self.own.unwrap_or(self.limit).look_again(self.state, self.now)
    }
}
