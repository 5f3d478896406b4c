//! From a fingerprint to the state of its key, and what is decided there: the short way, the long way, and looking without touching.

use tollgate_core::{Algorithm, Ask, Cells, Cost, Now, Report, Spent, Verdict};

use super::Keyed;
use crate::clock::Clock;
use crate::fingerprint::{Fingerprint, Key};
use crate::table::{Arrival, State};

impl<A: Algorithm, C: Clock> Keyed<A, C> {
    #[inline(never)]
    pub(super) fn check_at_length(&self, print: Fingerprint, now: Now<'_>, cost: Cost) -> Verdict<A::Stamp> {
        self.decide_at(print, now, Ask::Exactly(cost), |_, verdict| verdict)
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
    pub(super) fn decide_at_length<R>(
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

    /// Runs `read` on the key's state, or on that of a new key where there is none.
    pub(super) fn read<K: Key + ?Sized, R>(&self, key: &K, read: impl Fn(&Entry<'_, A>) -> R) -> R {
        self.read_at(key.fingerprint(&self.secret), self.now(), read)
    }

    pub(super) fn read_at<R>(&self, print: Fingerprint, now: Now<'_>, read: impl Fn(&Entry<'_, A>) -> R) -> R {
        let found = self.find(print, now, |limit, state, now| read(&Entry { limit, state: &*state, now }));
        found.unwrap_or_else(|| {
            let now = now.with_spread(print.low);
            with_fresh(&self.limit, &now, |state| read(&Entry { limit: &self.limit, state: &state, now: &now }))
        })
    }

    pub(super) fn now(&self) -> Now<'static> {
        self.clock.now_for(&self.limit)
    }

    pub(super) fn find<R>(
        &self,
        print: Fingerprint,
        now: Now<'_>,
        visit: impl FnOnce(&A, &mut State<'_>, &Now<'_>) -> R,
    ) -> Option<R> {
        let visit = |state: &mut State<'_>| visit(&self.limit, state, &now.with_spread(print.low));
        self.table.find(print, &self.judge(now), visit)
    }
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
pub(super) struct Entry<'a, A> {
    pub(super) limit: &'a A,
    pub(super) state: &'a dyn Cells,
    pub(super) now: &'a Now<'a>,
}

impl<A: Algorithm> Entry<'_, A> {
    pub(super) fn report(&self, cost: Cost) -> Report {
        self.limit.report(self.state, self.now, cost)
    }

    pub(super) fn weigh(&self, ask: Ask) -> Verdict<A::Stamp> {
        self.limit.weigh(self.state, self.now, ask)
    }
}
