//! A key's state, together with the current limit and the parameters under which the state was last charged.

use tollgate_core::{Algorithm, Ask, Cells, CellsMut, Cost, Nanos, Now, Outcome, Report, Retry, Verdict};

/// One key's state at the instant of a decision. A state belongs to the parameters under which it was last charged. The
/// state is converted when the current limit admits a request ("Changed parameters" in ARCHITECTURE.md).
pub(crate) struct Account<'a, A, S> {
    /// The limit in force.
    pub(crate) limit: &'a A,
    /// The parameters under which the state was last charged; `None` if they are the current limit.
    pub(crate) own: Option<&'a A>,
    pub(crate) state: S,
    pub(crate) now: Now<'a>,
}

/// A read-only account, independent of the state's storage.
pub(crate) type AccountView<'a, A> = Account<'a, A, &'a dyn Cells>;

impl<'a, A: Algorithm, S: Cells> Account<'a, A, S> {
    /// Returns the parameters under which the state was last charged.
    pub(crate) fn own_limit(&self) -> &'a A {
        self.own.unwrap_or(self.limit)
    }

    pub(crate) fn view(&self) -> AccountView<'_, A> {
        Account { limit: self.limit, own: self.own, state: &self.state, now: self.now }
    }

    pub(crate) fn weigh(&self, ask: Ask) -> Verdict<A::Stamp> {
        match self.own {
            None => self.limit.weigh(&self.state, &self.now, ask),
            Some(own) => self.limit.weigh_from(own, &self.state, &self.now, ask),
        }
    }

    pub(crate) fn report(&self, cost: Cost) -> Report {
        match self.own {
            None => self.limit.report(&self.state, &self.now, cost),
            Some(own) => self.limit.report_from(own, &self.state, &self.now, cost),
        }
    }

    pub(crate) fn wait_in_queue(&self, ahead: Cost, cost: Cost) -> Retry {
        match self.own {
            None => self.limit.wait_in_queue(&self.state, &self.now, ahead, cost),
            Some(own) => self.limit.min_wait_from(own, &self.state, &self.now, cost),
        }
    }

    pub(crate) fn recheck_after(&self) -> Option<Nanos> {
        self.own_limit().recheck_after(&self.state, &self.now)
    }
}

impl<A: Algorithm, S: CellsMut> Account<'_, A, S> {
    pub(crate) fn commit(&mut self, verdict: &Verdict<A::Stamp>) {
        match self.own {
            None => self.limit.commit(&mut self.state, &self.now, verdict),
            Some(own) => {
                if self.limit.commit_from(own, &mut self.state, &self.now, verdict) {
                    self.own = None;
                }
            }
        }
    }

    #[inline]
    pub(crate) fn decide(&mut self, ask: Ask) -> Verdict<A::Stamp> {
        if self.own.is_none() {
            return self.limit.decide(&mut self.state, &self.now, ask);
        }
        let verdict = self.weigh(ask);
        self.commit(&verdict);
        verdict
    }

    /// Refunds under the state's own parameters, even if the limit has changed since.
    pub(crate) fn refund(&mut self, cost: Cost, stamp: Option<A::Stamp>) -> Cost {
        self.own_limit().refund(&mut self.state, &self.now, cost, stamp)
    }

    /// Resets the key to the state of a new key under the current limit.
    pub(crate) fn reset(&mut self) {
        self.limit.init(&mut self.state, &self.now);
        self.own = None;
    }

    /// Converts the state to the current limit without a request, if the used amount is within that limit.
    pub(crate) fn convert_if_within_limit(&mut self) {
        if let Some(own) = self.own
            && self.weigh(Ask::Regardless(Cost::ZERO)).is_admitted()
        {
            self.limit.convert(own, &mut self.state, &self.now);
            self.own = None;
        }
    }

    /// Takes `cost` if the request passes without delay, or if its own cost is the only cause of the delay. A refusal
    /// writes to the state only if `repair` is set, to repair the state after a clock step.
    #[inline]
    pub(crate) fn take_undelayed(&mut self, cost: Cost, repair: bool) -> Verdict<A::Stamp> {
        let verdict = self.weigh(Ask::Exactly(cost));
        match verdict.outcome() {
            Outcome::Allow => self.commit(&verdict),
            Outcome::Deny(retry) => {
                // A leaky bucket admits a request with a delay sooner than without a delay, so this method returns the
                // longer of the two waits.
                let undelayed = self.wait_in_queue(Cost::ZERO, cost);
                if repair {
                    self.commit(&verdict);
                }
                return Verdict::new_refused(retry.max(undelayed));
            }
            Outcome::Delay(_) => match self.wait_in_queue(Cost::ZERO, cost) {
                Retry::NOW => {
                    self.commit(&verdict);
                    return Verdict::new_allowed_with_stamp(verdict.taken(), verdict.stamp());
                }
                retry => return Verdict::new_refused(retry),
            },
        }
        verdict
    }
}
