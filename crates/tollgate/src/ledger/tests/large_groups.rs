//! Compares groups of 1 to 300 charges with the model, on every path. The groups have few or many charges, short or
//! long states, repeated keys, changed limits, and keys that are not in their home bucket.

use std::collections::BTreeMap;

use super::model::{ChargeResult, Model, STATE_WORDS};
use super::*;
use crate::testing::Rng;
use crate::{LeakyBucket, SlidingWindow, TokenBucket};

/// More keys than the largest group has charges.
const KEYS: usize = 320;
const MAX_CHARGES: u64 = 300;

/// Number of limits at the start of the table; the fast path accepts all of them.
const PLAIN_LIMIT_COUNT: usize = 2;
/// Number of limits at the start of the table; all of them have short states.
const SHORT_LIMIT_COUNT: usize = 8;
/// Maximum length of a short state, in words.
const SHORT_STATE_WORDS: usize = 6;

fn limit_table() -> Vec<Limits> {
    let seconds = Nanos::from_secs;
    let slow_bucket = TokenBucket::new("3/s".parse().unwrap(), 50).unwrap().initial(20).unwrap();
    let spread_window = |limit, length| FixedWindow::new(limit, length).unwrap().phase(Phase::Spread);
    vec![
        single_limit(bucket(60)),
        single_limit(two_word_bucket(80)),
        single_limit(FixedWindow::new(60, seconds(2)).unwrap()),
        single_limit(two_word_bucket(70).max_debt(3).unwrap()),
        single_limit(LeakyBucket::new("50/s".parse().unwrap(), 40).unwrap().free(20).unwrap()),
        single_limit(spread_window(70, seconds(3))),
        single_limit(SlidingWindow::new(50, seconds(3)).unwrap()),
        Limits::new([slow_bucket.into(), spread_window(50, seconds(5)).into()]).unwrap(),
        single_limit(SlidingLog::new(8, seconds(2)).unwrap().count_refused()),
        single_limit(Concurrency::new(4, seconds(2)).unwrap()),
    ]
}

/// A charge in the model: the number of the key, the limits id and the ask.
type ModelCharge = (usize, u32, Ask);

/// Returns a random group. All charges of a group to the same key have the same limits id.
fn random_group(dice: &mut Rng, ids: usize) -> Vec<ModelCharge> {
    let len = dice.pick(&[4, 20, MAX_CHARGES]);
    let (len, first) = (1 + dice.below(len) as usize, dice.below(KEYS as u64) as usize);
    let (is_plain, has_repeats) = (dice.below(2) == 0, dice.below(4) == 0);
    let max_cost = dice.pick(&[1, 1, 1, 2, 30]);
    // Usually a key is charged under the same limits as before.
    let shift = usize::from(dice.below(50) == 0);
    let mut charge = |n: usize| {
        let key = if has_repeats { dice.below(KEYS as u64) as usize } else { (first + n) % KEYS };
        let cost = Cost::new(dice.below(max_cost + 1));
        let ask = dice.pick(&[Ask::Exactly(cost), Ask::Exactly(cost), Ask::UpTo(cost), Ask::Regardless(cost)]);
        (key, ((key + shift) % ids) as u32, if is_plain { Ask::Exactly(cost) } else { ask })
    };
    let mut group: Vec<ModelCharge> = (0..len).map(&mut charge).collect();
    if is_plain {
        group.retain(|(key, _, _)| key % ids < PLAIN_LIMIT_COUNT);
    }
    group
}

/// Number of groups by outcome, and by the fast path that decided them.
#[derive(Debug, Default)]
struct GroupCounts {
    admitted: u32,
    refused: u32,
    fast_small: u32,
    fast_large: u32,
}

/// Decides random groups under the first `ids` limits in a ledger and in the model. A nearly full ledger evicts unused
/// keys for new keys, but the model does not. So if the ledger is small, all keys are first charged one by one.
fn compare_with_model(seed: u64, ids: usize, state_words: usize, capacity: usize, counts: &mut GroupCounts) {
    let limit_table = limit_table();
    let names: Vec<String> = (0..KEYS).map(|n| format!("key {n}")).collect();
    let (ledger, clock) = ledger(capacity, state_words);
    let mut model = Model { limit_table: &limit_table, states: BTreeMap::new() };
    let mut dice = Rng::new(seed);
    if capacity < 2 * KEYS {
        for (key, name) in names.iter().enumerate() {
            let (id, now) = ((key % ids) as u32, clock.now().with_spread(name.fingerprint(&ledger.secret).low));
            assert!(model.decide(&[(key, id, Ask::Exactly(Cost::ONE))], &[now]).0);
            assert!(ledger.check(&limit_table, id, name, 1).is_admitted());
        }
        assert_eq!(ledger.count_entries(), KEYS);
    }
    for step in 0..250 {
        let group = random_group(&mut dice, ids);
        let now_of = |key: usize| clock.now().with_spread(names[key].fingerprint(&ledger.secret).low);
        let nows: Vec<Now<'_>> = group.iter().map(|(key, _, _)| now_of(*key)).collect();
        let (passed, expected) = model.decide(&group, &nows);
        *(if passed { &mut counts.admitted } else { &mut counts.refused }) += 1;
        let charge = |(key, id, ask): &ModelCharge| Charge { ask: *ask, ..Charge::new(*id, names[*key].as_bytes(), 0) };
        let charges: Vec<Charge<'_>> = group.iter().map(charge).collect();
        let what = format!("seed {seed}, step {step}, {} charges", charges.len());

        let mut reports = Vec::new();
        let each = |_: &PlainCharge<'_>, outcome: &Outcome, report: &Report| reports.push((*outcome, *report));
        let fast = ledger.try_decide_fast(&charges, |charge| to_plain_charge(charge, &limit_table), &clock.now(), each);
        if let Some(fast) = fast {
            assert_eq!((fast, reports.len()), (passed, charges.len()), "{what}");
            for ((outcome, report), (verdict, expected)) in reports.iter().zip(&expected) {
                // The model reports the time until a cost of 1 passes. The fast path reports the time until the
                // charge's cost passes.
                let report = Report { retry: expected[0].retry, ..*report };
                assert_eq!((*outcome, &[report][..]), (verdict.outcome(), &expected[..]), "{what}");
            }
            *(if charges.len() > 16 { &mut counts.fast_large } else { &mut counts.fast_small }) += 1;
        } else {
            assert!(reports.is_empty(), "{what}: the fast path had an effect");
            let mut answers: Vec<ChargeResult> = Vec::new();
            let each = |_, view: &ChargeView<'_>| answers.push((*view.verdict(), view.reports(1).collect()));
            assert_eq!(ledger.decide(&limit_table[..], &charges, each), passed, "{what}");
            assert_eq!(answers.len(), expected.len(), "{what}");
            for (index, (answer, expected)) in answers.iter().zip(&expected).enumerate() {
                assert_eq!(answer, expected, "{what}, charge {index}");
            }
        }
        clock.advance(Nanos::from_millis(dice.below(900)));
    }
    assert_eq!(ledger.overflowed(), 0);
}

#[test]
fn large_groups_decide_like_a_map_of_states() {
    let all_limits = limit_table().len();
    let mut counts = GroupCounts::default();
    for seed in 1..=12 {
        // In the smaller table, many keys are not in their home bucket, and many share a bucket.
        for capacity in [KEYS + 10, 100_000] {
            compare_with_model(seed, SHORT_LIMIT_COUNT, SHORT_STATE_WORDS, capacity, &mut counts);
            compare_with_model(seed, all_limits, STATE_WORDS, capacity, &mut counts);
        }
    }
    let GroupCounts { admitted, refused, fast_small, fast_large } = counts;
    assert!([admitted, refused, fast_small, fast_large].iter().all(|count| *count > 100), "{counts:?}");
}
