//! The heaviest keys of each rule: the most charged and the most refused.
//!
//! The number of keys is unlimited, so not all keys can be counted. Space-Saving (Metwally, Agrawal, El Abbadi 2005)
//! keeps a fixed number of counts. A new key replaces the key with the lowest count, and starts from that count. No
//! count is therefore too low, each count has an error bound, and every key with more than 1/`KEPT_KEYS` of the total
//! is kept.
//!
//! Each thread counts all of its first `DECISIONS_BEFORE_SAMPLING` decisions. After that, a thread counts a random
//! sample: one decision in `SAMPLING_INTERVAL`, with the weight `SAMPLING_INTERVAL`. Counts are then estimates that may
//! also be too low, but heavy keys still appear in the sample, and uncounted decisions cost almost nothing. Counts are
//! halved every `HALF_LIFE`, so that old traffic fades. The table stores only a hash or the first `MAX_NAME_CHARS`
//! characters of each key.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use serde::{Deserialize, Serialize};
use tollgate::core::{Mono, Nanos, Time};
use tollgate_engine::{CounterOutcome, Decision, Explanation};
use utoipa::ToSchema;

/// Maximum number of charged keys to keep per rule. The same maximum applies to refused keys.
const KEPT_KEYS: usize = 32;
/// Maximum number of rules. Keys of further rules are not counted.
const MAX_RULES: usize = 1_000;
/// Maximum length of a displayed key, in characters.
pub(crate) const MAX_NAME_CHARS: usize = 128;
/// Number of decisions that each thread counts before it begins to sample.
const DECISIONS_BEFORE_SAMPLING: u32 = 1_024;
/// A sampling thread counts one in `SAMPLING_INTERVAL` decisions.
const SAMPLING_INTERVAL: u64 = 16;
/// Maximum number of counters to record per decision, which bounds how long the lock is held. If a decision has more
/// counters, a sample of them is recorded with a larger weight.
const MAX_COUNTERS_PER_DECISION: usize = 16;
/// Interval after which counts are halved.
const HALF_LIFE: Nanos = Nanos::from_secs(600);

/// Whether keys are counted, and how they are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KeyDisplay {
    /// Shown in plain text.
    #[default]
    Plain,
    /// Shown as a hash that stays the same until the process ends.
    Hashed,
    /// Not counted.
    Off,
}

/// The heaviest keys of each rule.
#[derive(Debug)]
pub struct TopKeys {
    names: KeyDisplay,
    hasher: RandomState,
    table: Mutex<RuleTable>,
}

#[derive(Debug)]
struct RuleTable {
    /// The counts of each rule. The map key is the domain, a newline and the rule id; domains contain no newline.
    rules: HashMap<String, RuleCounts>,
    halved_at: Time<Mono>,
}

#[derive(Debug, Default)]
struct RuleCounts {
    charged: HeaviestKeys,
    refused: HeaviestKeys,
}

/// The heaviest keys, by Space-Saving.
#[derive(Debug, Default)]
pub(crate) struct HeaviestKeys(Vec<HeavyKey>);

#[derive(Debug)]
struct HeavyKey {
    fingerprint: u64,
    name: String,
    count: u64,
    /// Maximum overestimate of the count.
    error: u64,
}

impl HeaviestKeys {
    pub(crate) fn add(&mut self, fingerprint: u64, weight: u64, name: impl FnOnce() -> String) {
        if let Some(known) = self.0.iter_mut().find(|heavy| heavy.fingerprint == fingerprint) {
            known.count = known.count.saturating_add(weight);
        } else if self.0.len() < KEPT_KEYS {
            self.0.push(HeavyKey { fingerprint, name: name(), count: weight, error: 0 });
        } else if let Some(least) = self.0.iter_mut().min_by_key(|heavy| heavy.count) {
            let error = least.count;
            *least = HeavyKey { fingerprint, name: name(), count: error.saturating_add(weight), error };
        }
    }

    fn halve_counts(&mut self) {
        self.0.iter_mut().for_each(|heavy| (heavy.count, heavy.error) = (heavy.count / 2, heavy.error / 2));
        self.0.retain(|heavy| heavy.count > 0);
    }

    /// Returns the keys, starting with the heaviest.
    pub(crate) fn list(&self) -> Vec<TopKey> {
        let key = |heavy: &HeavyKey| TopKey { key: heavy.name.clone(), count: heavy.count, error: heavy.error };
        let mut keys: Vec<TopKey> = self.0.iter().map(key).collect();
        keys.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.key.cmp(&b.key)));
        keys
    }
}

impl TopKeys {
    /// Creates an empty table.
    pub fn new(names: KeyDisplay, now: Time<Mono>) -> Self {
        let table = Mutex::new(RuleTable { rules: HashMap::new(), halved_at: now });
        Self { names, hasher: RandomState::new(), table }
    }

    /// Counts a decision if it is part of the sample.
    #[inline]
    pub fn count(&self, decision: &Decision<'_>, now: Time<Mono>) {
        if self.names != KeyDisplay::Off
            && let Some(weight) = sample_weight()
        {
            self.count_sampled(decision, weight, now);
        }
    }

    #[cold]
    fn count_sampled(&self, decision: &Decision<'_>, weight: u64, now: Time<Mono>) {
        let every = decision.counters().count().div_ceil(MAX_COUNTERS_PER_DECISION).max(1);
        // The time is random enough to choose the first counter of the sample.
        let first = now.as_nanos() as usize % every;
        let counters = decision.counters().skip(first).step_by(every);
        self.record_counters(counters, weight.saturating_mul(every as u64), now);
    }

    fn record_counters<'d>(&self, counters: impl Iterator<Item = CounterOutcome<'d>>, weight: u64, now: Time<Mono>) {
        // If another thread holds the lock, skip this decision, because the counts are only a sample anyway.
        let Ok(mut table) = self.table.try_lock() else { return };
        if now.since(table.halved_at) >= HALF_LIFE {
            table.halve_counts(now);
        }
        for counter in counters {
            let id = [&*counter.domain(), counter.rule].join("\n");
            if table.rules.len() >= MAX_RULES && !table.rules.contains_key(&id) {
                continue;
            }
            let counts = table.rules.entry(id).or_default();
            let fingerprint = self.hasher.hash_one(counter.key);
            let name = || self.display_key(&counter).unwrap_or_default();
            if counter.refused {
                counts.refused.add(fingerprint, weight, name);
            } else if counter.taken.get() > 0 {
                counts.charged.add(fingerprint, weight.saturating_mul(counter.taken.get()), name);
            }
        }
    }

    /// Returns the display form of a counter's key, or `None` if keys are not shown.
    pub fn display_key(&self, counter: &CounterOutcome<'_>) -> Option<String> {
        match self.names {
            KeyDisplay::Plain => Some(counter.name(MAX_NAME_CHARS)),
            KeyDisplay::Hashed => Some(format!("#{:016x}", self.hasher.hash_one(counter.key))),
            KeyDisplay::Off => None,
        }
    }

    /// Replaces the values in an explanation by hashes or `…`, if keys must not be shown in plain text.
    pub fn conceal_values(&self, explanation: &mut Explanation) {
        match self.names {
            KeyDisplay::Plain => {}
            KeyDisplay::Hashed => explanation.conceal(|value| format!("#{:016x}", self.hasher.hash_one(value))),
            KeyDisplay::Off => explanation.conceal(|_| "…".into()),
        }
    }

    /// Returns all counts.
    pub fn page(&self) -> TopKeysPage {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rules: Vec<(&String, &RuleCounts)> = table.rules.iter().collect();
        rules.sort_by_key(|(id, _)| *id);
        let rules = rules.into_iter().map(|(id, counts)| {
            let (domain, rule) = id.split_once('\n').unwrap_or((id, ""));
            let rule = Some(rule).filter(|rule| !rule.is_empty()).map(str::to_owned);
            TopRule { domain: domain.to_owned(), rule, charged: counts.charged.list(), refused: counts.refused.list() }
        });
        TopKeysPage { rules: rules.collect(), half_life_s: HALF_LIFE.as_nanos() / 1_000_000_000 }
    }
}

/// The heaviest keys, as `GET /v1/top` returns them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopKeysPage {
    /// The rules with recently counted decisions, ordered by domain and id.
    #[schema(inline)]
    pub rules: Vec<TopRule>,
    /// Interval after which counts are halved, in seconds.
    pub half_life_s: u64,
}

/// The heaviest keys of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopRule {
    /// The domain of the rule; empty for inline limits.
    pub domain: String,
    /// The id of the rule; null for inline limits.
    pub rule: Option<String>,
    /// The keys that were charged most.
    #[schema(inline)]
    pub charged: Vec<TopKey>,
    /// The keys that were refused most.
    #[schema(inline)]
    pub refused: Vec<TopKey>,
}

/// A key and its count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopKey {
    /// The key as `--top-keys` shows it.
    pub key: String,
    /// Number of charged tokens, or of refused requests.
    pub count: u64,
    /// The maximum amount by which the count may be too high, apart from sampling errors.
    pub error: u64,
}

impl RuleTable {
    fn halve_counts(&mut self, now: Time<Mono>) {
        self.halved_at = now;
        for counts in self.rules.values_mut() {
            counts.charged.halve_counts();
            counts.refused.halve_counts();
        }
        self.rules.retain(|_, counts| !counts.charged.0.is_empty() || !counts.refused.0.is_empty());
    }
}

/// Returns the weight of this decision in the sample, or `None` if it is not counted.
#[inline]
pub(crate) fn sample_weight() -> Option<u64> {
    thread_local! {
        static SEEN_DECISIONS: Cell<u32> = const { Cell::new(0) };
        static GENERATOR_STATE: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
    }
    let seen = SEEN_DECISIONS.get();
    if seen < DECISIONS_BEFORE_SAMPLING {
        SEEN_DECISIONS.set(seen + 1);
        return Some(1);
    }
    // The upper bits of a linear congruential generator are random enough for sampling.
    let chance = GENERATOR_STATE.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    GENERATOR_STATE.set(chance);
    (chance >> 60 == 0).then_some(SAMPLING_INTERVAL)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_and_counts(heaviest: &HeaviestKeys) -> Vec<(String, u64)> {
        heaviest.list().into_iter().map(|top| (top.key, top.count)).collect()
    }

    #[test]
    fn heaviest_key_is_kept_and_no_count_is_too_low() {
        let mut heaviest = HeaviestKeys::default();
        // Every eleventh decision has key 0. Every other key occurs only once.
        for n in 0..100_000_u64 {
            let key = if n % 11 == 0 { 0 } else { n };
            heaviest.add(key, 1, || key.to_string());
        }
        let kept = names_and_counts(&heaviest);
        assert_eq!((kept.len(), &*kept[0].0), (KEPT_KEYS, "0"));
        let heavy = heaviest.0.iter().find(|heavy| heavy.fingerprint == 0).expect("the heavy one");
        assert!(heavy.count >= 9_091 && heavy.count - heavy.error <= 9_091, "{heavy:?}");
    }

    #[test]
    fn old_counts_fade() {
        let mut heaviest = HeaviestKeys::default();
        heaviest.add(1, 100, || "old".into());
        heaviest.add(2, 1, || "once".into());
        heaviest.halve_counts();
        heaviest.add(3, 60, || "new".into());
        assert_eq!(names_and_counts(&heaviest), [("new".into(), 60), ("old".into(), 50)]);
    }

    #[test]
    fn sampling_preserves_the_number_of_decisions() {
        let counted: u64 =
            std::thread::spawn(|| (0..1_000_000).filter_map(|_| sample_weight()).sum()).join().expect("a sum");
        assert!((950_000..1_050_000).contains(&counted), "{counted} of a million");
    }
}
