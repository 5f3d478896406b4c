//! The reference model for the scripts. Like the in-memory ledger, the model applies the core functions to in-memory
//! states.

use std::collections::HashMap;

use tollgate_core::{
    Algorithm, Ask, Cost, DecodedState, Limits, Nanos, Now, Outcome, Params, Report, Retry, Stamps, Verdict,
};
use tollgate_engine::store::StoreVerb;

use super::{ChargeOutcome, OwnedCharge};

/// The states of all keys.
#[derive(Default)]
pub(crate) struct Model {
    states: HashMap<Vec<u8>, State>,
}

/// The state of a key, and the limits of its last charge.
#[derive(Clone)]
struct State {
    own: Limits,
    words: Vec<u64>,
}

impl State {
    fn new(limits: &Limits, now: &Now<'_>) -> Self {
        let mut words = vec![0; limits.words()];
        limits.init(&mut *words, now);
        Self { own: limits.clone(), words }
    }

    fn weigh(&self, charge: &OwnedCharge, now: &Now<'_>) -> Verdict<Stamps> {
        if self.own == charge.limits {
            return charge.limits.weigh(&*self.words, now, charge.ask);
        }
        charge.limits.weigh_from(&self.own, &*self.words, now, charge.ask)
    }

    fn commit(&mut self, limits: &Limits, now: &Now<'_>, verdict: &Verdict<Stamps>) {
        if self.own == *limits {
            return limits.commit(&mut *self.words, now, verdict);
        }
        let words = self.own.words();
        self.words.resize(words.max(limits.words()), 0);
        if limits.commit_from(&self.own, &mut *self.words, now, verdict) {
            self.words.truncate(limits.words());
            self.own = limits.clone();
            self.round_to_ticks();
        } else {
            self.words.truncate(words);
        }
    }

    /// Rounds a converted state in the same way as the script. A conversion rounds a fraction of a unit up to a tick,
    /// which is based on nanoseconds in Rust and on microseconds in the script. The difference never changes a
    /// decision, but it would change a later conversion.
    fn round_to_ticks(&mut self) {
        let mut first = 0;
        for limit in self.own.clone().as_slice() {
            let words = &mut self.words[first..][..limit.words()];
            if let Some(DecodedState::Bucket { ticks }) = limit.decode(words)
                && let Params::TokenBucket(bucket) | Params::LeakyBucket { bucket, .. } = limit.params()
            {
                let (mut a, mut b) = (u64::from(bucket.rate.count()) * 1_000, bucket.rate.per().as_nanos());
                while b != 0 {
                    (a, b) = (b, a % b);
                }
                limit.encode(words, DecodedState::Bucket { ticks: ticks.next_multiple_of(a.into()) });
            }
            first += limit.words();
        }
    }

    fn reports_of(&self, charge: &OwnedCharge, now: &Now<'_>) -> Vec<Report> {
        let cost = charge.ask.cost();
        if self.own == charge.limits {
            return self.own.reports(&*self.words, now, cost).map(ceil_report_to_micro).collect();
        }
        charge.limits.reports_from(&self.own, &*self.words, now, cost).map(ceil_report_to_micro).collect()
    }
}

impl Model {
    /// Decides one group at `micros`; its charges are on different keys.
    pub(crate) fn run(&mut self, verb: StoreVerb, charges: &[OwnedCharge], micros: u64) -> Vec<ChargeOutcome> {
        match verb {
            StoreVerb::Check => self.check(charges, micros),
            StoreVerb::Peek => charges.iter().map(|charge| self.peek(charge, micros)).collect(),
            StoreVerb::Refund | StoreVerb::Renew | StoreVerb::Reset => {
                charges.iter().map(|charge| self.refund_renew_or_reset(verb, charge, micros)).collect()
            }
        }
    }

    /// Returns the limits of a key's stored state.
    pub(crate) fn limits_of_state(&self, key: &[u8]) -> Option<&Limits> {
        self.states.get(key).map(|state| &state.own)
    }

    /// Returns the state for a request. Under limits with an initial amount, an unused key with other limits counts as
    /// new.
    fn state_for(&self, charge: &OwnedCharge, now: &Now<'_>) -> State {
        let counts_as_new = |state: &&State| {
            let now = now.with_windows(&[]);
            state.own != charge.limits && !charge.limits.starts_full() && state.own.is_unused(&*state.words, &now)
        };
        let known = self.states.get(&charge.key).filter(|state| !counts_as_new(state));
        known.cloned().unwrap_or_else(|| State::new(&charge.limits, now))
    }

    fn check(&mut self, charges: &[OwnedCharge], micros: u64) -> Vec<ChargeOutcome> {
        let mut states: Vec<State> =
            charges.iter().map(|charge| self.state_for(charge, &now_for(charge, micros))).collect();
        let mut verdicts = weigh_all(charges, &states, micros);
        let admitted = verdicts.iter().all(Verdict::is_admitted);
        let up_to = |charge: &OwnedCharge| matches!(charge.ask, Ask::UpTo(_));
        let least =
            charges.iter().zip(&verdicts).filter(|(charge, _)| up_to(charge)).map(|(_, verdict)| verdict.taken()).min();
        if let Some(least) = least.filter(|_| admitted) {
            // All `UpTo` charges take the smallest amount that any of them can take.
            let lowered = |charge: &OwnedCharge| {
                if up_to(charge) { OwnedCharge { ask: Ask::UpTo(least), ..charge.clone() } } else { charge.clone() }
            };
            verdicts = weigh_all(&charges.iter().map(lowered).collect::<Vec<_>>(), &states, micros);
        }
        let mut said = Vec::new();
        for (index, (charge, state)) in charges.iter().zip(&mut states).enumerate() {
            let (now, verdict) = (now_for(charge, micros), &verdicts[index]);
            // Every refused charge is recorded if its limits count refusals.
            if admitted || !verdict.is_admitted() {
                state.commit(&charge.limits, &now, verdict);
            }
            said.push(ChargeOutcome {
                outcome: ceil_outcome_to_micro(verdict.outcome()),
                taken: if admitted { verdict.taken().get() } else { 0 },
                stamps: verdict.stamp(),
                reports: state.reports_of(charge, &now),
            });
        }
        for (charge, state) in charges.iter().zip(states) {
            // A key exists only if something was written.
            let untouched = State::new(&charge.limits, &now_for(charge, micros)).words == state.words;
            let exists = self.states.contains_key(&charge.key);
            if !state.words.is_empty() && (exists || !untouched || !charge.limits.starts_full()) {
                self.states.insert(charge.key.clone(), state);
            }
        }
        said
    }

    fn peek(&self, charge: &OwnedCharge, micros: u64) -> ChargeOutcome {
        let now = now_for(charge, micros);
        let state = self.state_for(charge, &now);
        ChargeOutcome {
            outcome: ceil_outcome_to_micro(state.weigh(charge, &now).outcome()),
            taken: 0,
            stamps: Stamps::default(),
            reports: state.reports_of(charge, &now),
        }
    }

    /// Refunds, renews or resets. A refund or renewal applies under the state's own limits, which may differ from the
    /// charge's limits.
    fn refund_renew_or_reset(&mut self, verb: StoreVerb, charge: &OwnedCharge, micros: u64) -> ChargeOutcome {
        let now = now_for(charge, micros);
        let exists = self.states.contains_key(&charge.key);
        let known = self.states.get(&charge.key).cloned();
        let mut state = known.unwrap_or_else(|| State::new(&charge.limits, &now));
        let own = state.own.clone();
        // Limits without a state do not record whether something was taken.
        let has_taken = exists || own.words() == 0;
        let taken = match verb {
            StoreVerb::Refund if has_taken => {
                own.refund(&mut *state.words, &now, charge.ask.cost(), charge.model_stamps).get()
            }
            StoreVerb::Renew if exists => {
                let stamps = charge.model_stamps;
                let held = stamps.is_some_and(|stamps| own.renew(&mut *state.words, &now, stamps));
                if held { charge.ask.cost().get() } else { 0 }
            }
            StoreVerb::Reset => {
                state = State::new(&charge.limits, &now);
                0
            }
            StoreVerb::Refund | StoreVerb::Renew | StoreVerb::Check | StoreVerb::Peek => 0,
        };
        let said = ChargeOutcome {
            outcome: Outcome::Allow,
            taken,
            stamps: Stamps::default(),
            reports: state.reports_of(charge, &now),
        };
        if verb == StoreVerb::Reset {
            self.states.remove(&charge.key);
        } else if exists {
            self.states.insert(charge.key.clone(), state);
        }
        said
    }
}

fn weigh_all(charges: &[OwnedCharge], states: &[State], micros: u64) -> Vec<Verdict<Stamps>> {
    charges.iter().zip(states).map(|(charge, state)| state.weigh(charge, &now_for(charge, micros))).collect()
}

/// Returns the current time for a charge, as in the script.
fn now_for(charge: &OwnedCharge, micros: u64) -> Now<'_> {
    let spread = tollgate_redis::spread_number(&charge.key) * 1_000;
    Now::at(micros * 1_000).with_spread(spread).with_windows(&charge.windows)
}

fn ceil_report_to_micro(report: Report) -> Report {
    Report { retry: ceil_retry_to_micro(report.retry), reset: ceil_to_micro(report.reset), ..report }
}

fn ceil_outcome_to_micro(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Allow => Outcome::Allow,
        Outcome::Delay(wait) => Outcome::Delay(ceil_to_micro(wait)),
        Outcome::Deny(retry) => Outcome::Deny(ceil_retry_to_micro(retry)),
    }
}

fn ceil_retry_to_micro(retry: Retry) -> Retry {
    match retry {
        Retry::After(wait) => Retry::After(ceil_to_micro(wait)),
        Retry::OnRelease | Retry::Never => retry,
    }
}

fn ceil_to_micro(wait: Nanos) -> Nanos {
    Nanos::from_micros(wait.as_nanos().div_ceil(1_000))
}

/// Returns one of the three kinds of ask.
pub(crate) fn ask(kind: u64, cost: u64) -> Ask {
    [Ask::Exactly, Ask::UpTo, Ask::Regardless][kind as usize](Cost::new(cost))
}
