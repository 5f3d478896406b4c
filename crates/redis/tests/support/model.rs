//! What the script should do, done by the Rust functions: states in words, charged as the ledger in memory charges them.

use std::collections::HashMap;

use tollgate_core::{
    Algorithm, Ask, Cost, Kept, Limit, Limits, Nanos, Now, Outcome, Phase, Report, Retry, Stamps, Terms, Verdict,
};
use tollgate_engine::store::Verb;

use super::{Owned, Said};

/// The states of all keys.
#[derive(Default)]
pub(crate) struct Model {
    states: HashMap<Vec<u8>, State>,
}

#[derive(Clone)]
struct State {
    limits: Limits,
    words: Vec<u64>,
}

impl State {
    fn fresh(limits: &Limits, now: &Now<'_>) -> Self {
        let mut words = vec![0; limits.words()];
        limits.fresh(&mut *words, now);
        Self { limits: limits.clone(), words }
    }

    /// The same under other numbers.
    fn under(mut self, limits: &Limits, now: &Now<'_>) -> Self {
        if self.limits == *limits {
            return self;
        }
        self.words.resize(limits.words().max(self.words.len()), 0);
        limits.convert(&self.limits, &mut *self.words, now);
        self.words.truncate(limits.words());
        let mut state = Self { limits: limits.clone(), words: self.words };
        state.round_to_ticks();
        state
    }

    /// A part of a unit is rounded up when it is converted, here to ticks of a nanosecond's length, there to ticks of a
    /// microsecond's. It never matters to a decision, but it shows when it is converted once more.
    fn round_to_ticks(&mut self) {
        let mut first = 0;
        for limit in self.limits.clone().as_slice() {
            let words = &mut self.words[first..][..limit.words()];
            if let Some(Kept::Bucket { ticks }) = limit.kept(words)
                && let Terms::TokenBucket(bucket) | Terms::LeakyBucket { bucket, .. } = limit.terms()
            {
                let (mut a, mut b) = (u64::from(bucket.rate.count()) * 1_000, bucket.rate.per().as_nanos());
                while b != 0 {
                    (a, b) = (b, a % b);
                }
                limit.keep(words, Kept::Bucket { ticks: ticks.next_multiple_of(a.into()) });
            }
            first += limit.words();
        }
    }

    fn reports(&self, now: &Now<'_>, cost: Cost) -> Vec<Report> {
        self.limits.reports(&*self.words, now, cost).map(to_the_micro).collect()
    }
}

impl Model {
    /// What one group comes to at `micros`; its charges are on different keys.
    pub(crate) fn run(&mut self, verb: Verb, charges: &[Owned], micros: u64) -> Vec<Said> {
        match verb {
            Verb::Check => self.check(charges, micros),
            Verb::Peek => charges.iter().map(|charge| self.peek(charge, micros)).collect(),
            Verb::Refund | Verb::Renew | Verb::Reset => {
                charges.iter().map(|charge| self.give_back(verb, charge, micros)).collect()
            }
        }
    }

    fn state(&self, charge: &Owned, now: &Now<'_>) -> State {
        match self.states.get(&charge.key) {
            Some(state) => state.clone().under(&charge.limits, now),
            None => State::fresh(&charge.limits, now),
        }
    }

    fn check(&mut self, charges: &[Owned], micros: u64) -> Vec<Said> {
        let mut states: Vec<State> = charges.iter().map(|charge| self.state(charge, &now(charge, micros))).collect();
        let verdicts: Vec<Verdict<Stamps>> = charges
            .iter()
            .zip(&states)
            .map(|(charge, state)| charge.limits.weigh(&*state.words, &now(charge, micros), charge.ask))
            .collect();
        let refused = verdicts.iter().position(|verdict| !verdict.is_allowed());
        let mut said = Vec::new();
        for (place, (charge, state)) in charges.iter().zip(&mut states).enumerate() {
            let (now, verdict) = (now(charge, micros), &verdicts[place]);
            if refused.is_none_or(|refused| refused == place) {
                charge.limits.commit(&mut *state.words, &now, verdict);
            }
            said.push(Said {
                outcome: outcome_to_the_micro(verdict.outcome()),
                taken: if refused.is_none() { verdict.taken().get() } else { 0 },
                stamps: verdict.stamp(),
                reports: state.reports(&now, charge.ask.cost()),
            });
        }
        for (charge, state) in charges.iter().zip(states) {
            // A key that nothing was written for is as good as one never seen.
            let untouched = State::fresh(&charge.limits, &now(charge, micros)).words == state.words;
            if state.words.is_empty() {
                self.states.remove(&charge.key);
            } else if self.states.contains_key(&charge.key) || !untouched || starts_with_less(&charge.limits) {
                self.states.insert(charge.key.clone(), state);
            }
        }
        said
    }

    fn peek(&self, charge: &Owned, micros: u64) -> Said {
        let now = now(charge, micros);
        let state = self.state(charge, &now);
        let verdict = charge.limits.weigh(&*state.words, &now, charge.ask);
        Said {
            outcome: outcome_to_the_micro(verdict.outcome()),
            taken: 0,
            stamps: Stamps::default(),
            reports: state.reports(&now, charge.ask.cost()),
        }
    }

    fn give_back(&mut self, verb: Verb, charge: &Owned, micros: u64) -> Said {
        let now = now(charge, micros);
        let known = self.states.contains_key(&charge.key);
        // Limits that keep nothing have nothing to be known by.
        let has_taken = known || charge.limits.words() == 0;
        let mut state = self.state(charge, &now);
        let taken = match verb {
            Verb::Refund if has_taken => {
                charge.limits.refund(&mut *state.words, &now, charge.ask.cost(), charge.model_stamps).get()
            }
            Verb::Renew if known => {
                let stamps = charge.model_stamps;
                let held = stamps.is_some_and(|stamps| charge.limits.renew(&mut *state.words, &now, stamps));
                if held { charge.ask.cost().get() } else { 0 }
            }
            Verb::Reset => {
                state = State::fresh(&charge.limits, &now);
                0
            }
            Verb::Refund | Verb::Renew | Verb::Check | Verb::Peek => 0,
        };
        let said = Said {
            outcome: Outcome::Allow,
            taken,
            stamps: Stamps::default(),
            reports: state.reports(&now, charge.ask.cost()),
        };
        if state.words.is_empty() || verb == Verb::Reset && !starts_with_less(&charge.limits) {
            self.states.remove(&charge.key);
        } else if known {
            self.states.insert(charge.key.clone(), state);
        }
        said
    }
}

/// Whether a new key does not have all there is: then it matters when it was first seen.
fn starts_with_less(limits: &Limits) -> bool {
    limits.as_slice().iter().any(|limit| match limit.terms() {
        Terms::TokenBucket(bucket) | Terms::LeakyBucket { bucket, .. } => bucket.initial < bucket.burst,
        Terms::IntervalBucket { burst, initial, .. } => initial < burst,
        Terms::FixedWindow { window, .. }
        | Terms::SlidingWindow(window)
        | Terms::SlidingSlices { window, .. }
        | Terms::SlidingLog { window, .. } => window.initial < window.limit,
        Terms::Unlimited | Terms::DenyAll | Terms::Concurrency { .. } => false,
    })
}

/// The present of a charge, as the script sees it.
fn now(charge: &Owned, micros: u64) -> Now<'_> {
    let spreads = |limit: &Limit| matches!(limit.terms(), Terms::FixedWindow { phase: Phase::Spread, .. });
    let spreads = charge.limits.as_slice().iter().any(spreads);
    let spread = if spreads { tollgate_redis::spread(&charge.key) * 1_000 } else { 0 };
    Now::at(micros * 1_000).with_spread(spread).with_windows(&charge.windows)
}

fn to_the_micro(report: Report) -> Report {
    Report { retry: retry_to_the_micro(report.retry), reset: ceil(report.reset), ..report }
}

fn outcome_to_the_micro(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Allow => Outcome::Allow,
        Outcome::Delay(wait) => Outcome::Delay(ceil(wait)),
        Outcome::Deny(retry) => Outcome::Deny(retry_to_the_micro(retry)),
    }
}

fn retry_to_the_micro(retry: Retry) -> Retry {
    match retry {
        Retry::After(wait) => Retry::After(ceil(wait)),
        Retry::OnRelease | Retry::Never => retry,
    }
}

fn ceil(wait: Nanos) -> Nanos {
    Nanos::from_micros(wait.as_nanos().div_ceil(1_000))
}

/// What was asked, without its cost.
pub(crate) fn ask(kind: u64, cost: u64) -> Ask {
    [Ask::Exactly, Ask::UpTo, Ask::Regardless][kind as usize](Cost::new(cost))
}
