//! Compares the ledger with a simple model: a map from key to state, one call at a time, without evictions.

use std::collections::BTreeMap;

use super::*;
use crate::testing::Rng;
use crate::{LeakyBucket, SlidingWindow, TokenBucket};

pub(super) const STATE_WORDS: usize = 32;

pub(super) struct Model<'n> {
    pub(super) limit_table: &'n [Limits],
    pub(super) states: BTreeMap<usize, ModelState>,
}

/// The words of a state, and the id of the limits of its last charge.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct ModelState {
    id: u32,
    words: [u64; STATE_WORDS],
}

/// The result of a charge: its verdict, and the reports after the decision.
pub(super) type ChargeResult = (Verdict<Stamps>, Vec<Report>);

impl Model<'_> {
    fn limits_of(&self, id: u32) -> &Limits {
        &self.limit_table[id as usize]
    }

    fn init(&self, id: u32, now: &Now<'_>) -> ModelState {
        let mut words = [0; STATE_WORDS];
        self.limits_of(id).init(&mut words, now);
        ModelState { id, words }
    }

    /// Returns the verdict, with the reports under the limits with `id`.
    fn charge_result(&self, kept: &ModelState, id: u32, now: &Now<'_>, verdict: Verdict<Stamps>) -> ChargeResult {
        (verdict, self.limits_of(id).reports_from(self.limits_of(kept.id), &kept.words, now, Cost::ONE).collect())
    }

    /// Returns the state of a key, unless the key counts as new under the limits with `id`. An unused state of other
    /// limits counts as new if new keys do not start full.
    fn known_state(&self, key: usize, id: u32, now: &Now<'_>) -> Option<&ModelState> {
        let counts_as_new = |kept: &&ModelState| {
            let (own, limits) = (self.limits_of(kept.id), self.limits_of(id));
            own != limits && !limits.starts_full() && own.is_unused(&kept.words, now)
        };
        self.states.get(&key).filter(|kept| !counts_as_new(kept))
    }

    fn peek(&mut self, (key, id, ask): (usize, u32, Ask), now: &Now<'_>) -> ChargeResult {
        let kept = self.known_state(key, id, now).cloned().unwrap_or_else(|| self.init(id, now));
        let verdict = self.limits_of(id).weigh_from(self.limits_of(kept.id), &kept.words, now, ask);
        self.charge_result(&kept, id, now, verdict)
    }

    /// Makes all charges or none. Charges to the same key must have the same limits id.
    pub(super) fn decide(&mut self, charges: &[(usize, u32, Ask)], nows: &[Now<'_>]) -> (bool, Vec<ChargeResult>) {
        for ((key, id, _), now) in charges.iter().zip(nows) {
            if self.known_state(*key, *id, now).is_none() {
                self.states.insert(*key, self.init(*id, now));
            }
        }
        let before = self.states.clone();
        let (mut passed, mut verdicts) = (true, Vec::new());
        for ((key, id, ask), now) in charges.iter().zip(nows) {
            let (limits, kept) = (&self.limit_table[*id as usize], &self.states[key]);
            let verdict = limits.weigh_from(self.limits_of(kept.id), &kept.words, now, *ask);
            if passed && !verdict.is_admitted() {
                self.states = before.clone();
            }
            passed &= verdict.is_admitted();
            // Limits that count refusals record every refused charge.
            if passed || !verdict.is_admitted() {
                let kept = self.states.get_mut(key).unwrap();
                if limits.commit_from(&self.limit_table[kept.id as usize], &mut kept.words, now, &verdict) {
                    kept.id = *id;
                }
            }
            verdicts.push(verdict);
        }
        // `UpTo` charges all take the smallest amount among them.
        let up_to = |ask: Ask| matches!(ask, Ask::UpTo(_));
        let taken = || charges.iter().zip(&verdicts).filter(|((_, _, ask), _)| up_to(*ask)).map(|(_, it)| it.taken());
        if let Some(least) = taken().min().filter(|least| passed && taken().any(|taken| taken > *least)) {
            self.states = before;
            let lower =
                |(key, id, ask): &(usize, u32, Ask)| (*key, *id, if up_to(*ask) { Ask::UpTo(least) } else { *ask });
            return self.decide(&charges.iter().map(lower).collect::<Vec<_>>(), nows);
        }
        let answers = charges.iter().zip(nows).zip(verdicts);
        let answers = answers
            .map(|(((key, id, _), now), verdict)| self.charge_result(&self.states[key], *id, now, verdict))
            .collect();
        (passed, answers)
    }
}

fn limit_table() -> Vec<Limits> {
    let seconds = Nanos::from_secs;
    vec![
        single_limit(bucket(10)),
        single_limit(two_word_bucket(20).max_debt(3).unwrap()),
        single_limit(FixedWindow::new(6, seconds(2)).unwrap()),
        Limits::new([
            TokenBucket::new("3/s".parse().unwrap(), 5).unwrap().initial(2).unwrap().into(),
            FixedWindow::new(12, seconds(5)).unwrap().phase(Phase::Spread).into(),
        ])
        .unwrap(),
        single_limit(SlidingLog::new(8, seconds(2)).unwrap().count_refused()),
        single_limit(Concurrency::new(4, seconds(2)).unwrap()),
        single_limit(SlidingWindow::new(9, seconds(3)).unwrap()),
        single_limit(LeakyBucket::new("5/s".parse().unwrap(), 8).unwrap().free(2).unwrap()),
        single_limit(Limit::Unlimited),
        single_limit(Limit::DenyAll),
        Limits::new([two_word_bucket(7).into(), SlidingLog::new(7, seconds(1)).unwrap().into()]).unwrap(),
    ]
}

#[test]
fn ledger_decides_like_a_map_of_states() {
    const KEYS: usize = 12;
    let limit_table = limit_table();
    let names: Vec<String> = (0..KEYS).map(|n| format!("key {n}")).collect();
    for seed in 0..20 {
        let (ledger, clock) = ledger(1_000, STATE_WORDS);
        let mut model = Model { limit_table: &limit_table, states: BTreeMap::new() };
        let mut dice = Rng::new(seed);
        let mut receipts: Vec<(usize, u32, Verdict<Stamps>)> = Vec::new();
        for step in 0..3_000 {
            let what = format!("seed {seed}, step {step}");
            let mut pick = |ids: u64| {
                let cost = Cost::new(dice.below(8));
                let ask = dice.pick(&[Ask::Exactly(cost), Ask::Exactly(cost), Ask::UpTo(cost), Ask::Regardless(cost)]);
                (dice.below(KEYS as u64) as usize, dice.below(ids) as u32, ask)
            };
            let mut asked = vec![pick(limit_table.len() as u64)];
            let now_of = |key: usize| clock.now().with_spread(names[key].fingerprint(&ledger.secret).low);
            let charge_of = |(key, id, ask): (usize, u32, Ask)| Charge {
                limits_id: id,
                limits: None,
                key: names[key].as_bytes(),
                ask,
                windows: &[],
            };
            let answer_of = |view: &ChargeView<'_>| (*view.verdict(), view.reports(1).collect::<Vec<_>>());
            let now = now_of(asked[0].0);
            match step % 16 {
                0 => {
                    let expected = model.peek(asked[0], &now);
                    assert_eq!(ledger.peek(&limit_table[..], &charge_of(asked[0]), answer_of), expected, "{what}");
                }
                1 => {
                    ledger.reset(&limit_table[..], &charge_of(asked[0]));
                    model.states.remove(&asked[0].0);
                }
                2..5 => {
                    // Refunds an earlier charge with its stamps, or an amount without stamps.
                    let receipt = (!receipts.is_empty()).then(|| receipts.swap_remove(step % receipts.len()));
                    let (key, id, cost, stamps) = match receipt {
                        Some((key, id, verdict)) => (key, id, verdict.taken(), Some(verdict.stamp())),
                        None => (asked[0].0, asked[0].1, Cost::new(2), None),
                    };
                    let now = now_of(key);
                    let expected = model.states.get_mut(&key).map_or(Cost::ZERO, |kept| {
                        limit_table[kept.id as usize].refund(&mut kept.words, &now, cost, stamps)
                    });
                    let charge = charge_of((key, id, Ask::Exactly(cost)));
                    assert_eq!(ledger.refund(&limit_table[..], &charge, cost.get(), stamps), expected.get(), "{what}");
                }
                5 => clock.advance(Nanos::from_millis(step as u64 % 700)),
                n => {
                    // Decides one charge or a group of charges. All charges of a group to the same key have the same
                    // limits id.
                    for _ in 0..n.saturating_sub(10) {
                        let (key, id, ask) = pick(limit_table.len() as u64);
                        let id = asked.iter().find(|(other, _, _)| *other == key).map_or(id, |(_, id, _)| *id);
                        asked.push((key, id, ask));
                    }
                    let nows: Vec<Now<'_>> = asked.iter().map(|(key, _, _)| now_of(*key)).collect();
                    let (passed, expected) = model.decide(&asked, &nows);
                    let charges: Vec<Charge<'_>> = asked.iter().map(|asked| charge_of(*asked)).collect();
                    let mut answers = Vec::new();
                    let did = ledger.decide(&limit_table[..], &charges, |_, view| answers.push(answer_of(view)));
                    assert_eq!((did, &answers), (passed, &expected), "{what}, {asked:?}");
                    if passed {
                        receipts
                            .extend(asked.iter().zip(answers).map(|((key, id, _), (verdict, _))| (*key, *id, verdict)));
                    }
                }
            }
        }
        assert_eq!(ledger.overflowed(), 0);
    }
}
