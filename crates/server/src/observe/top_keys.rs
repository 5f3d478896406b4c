//! Who uses most: for each rule the keys that were charged most and refused most.
//!
//! There is no bound on keys, so not all can be counted. Space-Saving (Metwally, Agrawal, El Abbadi 2005) keeps a fixed number of
//! counts: a key that is not among them takes the place of the least, and its count on top of its own. So no count is too
//! low, each says by how much it may be too high, and every key with more than 1/`KEPT` of all is among them.
//!
//! Each thread notes its first `ALL_OF` decisions, and from then on one in `ONE_IN` by chance, which counts as that many: what
//! is at the top is there anyway, and counting costs the others next to nothing. Counts are halved every `HALF_LIFE`, so
//! that the past fades. Of the names at most `MAX_NAME` letters are kept, or only a hash.

use std::cell::Cell;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use tollgate::clock::Clock;
use tollgate::core::{Mono, Nanos, Time};
use tollgate_engine::{Counter, Decision, Explanation};

/// Keys that are kept for each rule, of those charged and of those refused.
const KEPT: usize = 32;
/// Rules that are kept; those that come later are left out.
const MAX_RULES: usize = 1_000;
/// Letters of a name.
const MAX_NAME: usize = 128;
/// How many decisions of each thread are all noted.
const ALL_OF: u32 = 1_024;
/// Of how many decisions one is noted then.
const ONE_IN: u64 = 16;
/// How often counts are halved.
const HALF_LIFE: Nanos = Nanos::from_secs(600);

/// Whether keys are noted, and how they are shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Names {
    /// As they are.
    #[default]
    Plain,
    /// As a hash that means the same key for as long as the process runs.
    Hashed,
    /// Not at all.
    Off,
}

/// The keys at the top of each rule.
#[derive(Debug)]
pub struct TopKeys {
    names: Names,
    hasher: RandomState,
    table: Mutex<Table>,
}

#[derive(Debug)]
struct Table {
    /// By domain and rule, in one text: domains have no line breaks.
    rules: HashMap<String, Top>,
    halved: Time<Mono>,
}

#[derive(Debug, Default)]
struct Top {
    charged: Heaviest,
    refused: Heaviest,
}

/// The heaviest keys, by Space-Saving.
#[derive(Debug, Default)]
struct Heaviest(Vec<Heavy>);

#[derive(Debug)]
struct Heavy {
    print: u64,
    name: String,
    count: u64,
    /// By how much the count may be too high.
    error: u64,
}

impl Heaviest {
    fn add(&mut self, print: u64, weight: u64, name: impl FnOnce() -> String) {
        if let Some(known) = self.0.iter_mut().find(|heavy| heavy.print == print) {
            known.count = known.count.saturating_add(weight);
        } else if self.0.len() < KEPT {
            self.0.push(Heavy { print, name: name(), count: weight, error: 0 });
        } else if let Some(least) = self.0.iter_mut().min_by_key(|heavy| heavy.count) {
            let error = least.count;
            *least = Heavy { print, name: name(), count: error.saturating_add(weight), error };
        }
    }

    fn halve(&mut self) {
        self.0.iter_mut().for_each(|heavy| (heavy.count, heavy.error) = (heavy.count / 2, heavy.error / 2));
        self.0.retain(|heavy| heavy.count > 0);
    }

    fn to_json(&self) -> Value {
        let mut heaviest: Vec<&Heavy> = self.0.iter().collect();
        heaviest.sort_by(|a, b| b.count.cmp(&a.count).then_with(|| a.name.cmp(&b.name)));
        let told = heaviest.iter().map(|heavy| json!({"key": heavy.name, "count": heavy.count, "error": heavy.error}));
        told.collect()
    }
}

impl TopKeys {
    /// Nothing yet.
    pub fn new(names: Names, now: Time<Mono>) -> Self {
        let table = Mutex::new(Table { rules: HashMap::new(), halved: now });
        Self { names, hasher: RandomState::new(), table }
    }

    /// Notes a decision, or, mostly, does not.
    #[inline]
    pub fn note(&self, decision: &Decision<'_>, clock: &impl Clock) {
        if self.names != Names::Off
            && let Some(weight) = sample()
        {
            self.note_all(decision.counters(), weight, clock.mono());
        }
    }

    #[cold]
    fn note_all<'d>(&self, counters: impl Iterator<Item = Counter<'d>>, weight: u64, now: Time<Mono>) {
        // Who would have to wait for another thread does without: it is a sample.
        let Ok(mut table) = self.table.try_lock() else { return };
        if now.since(table.halved) >= HALF_LIFE {
            table.halve(now);
        }
        for counter in counters {
            let id = format!("{}\n{}", counter.domain(), counter.rule);
            if table.rules.len() >= MAX_RULES && !table.rules.contains_key(&id) {
                continue;
            }
            let top = table.rules.entry(id).or_default();
            let print = self.hasher.hash_one(counter.key);
            let name = || self.shown(&counter).unwrap_or_default();
            if counter.refused {
                top.refused.add(print, weight, name);
            } else if counter.taken.get() > 0 {
                top.charged.add(print, weight.saturating_mul(counter.taken.get()), name);
            }
        }
    }

    /// What a counter counts by, as far as it may be read.
    pub fn shown(&self, counter: &Counter<'_>) -> Option<String> {
        match self.names {
            Names::Plain => Some(counter.name(MAX_NAME)),
            Names::Hashed => Some(format!("#{:016x}", self.hasher.hash_one(counter.key))),
            Names::Off => None,
        }
    }

    /// Takes from an explanation what may not be read.
    pub fn conceal(&self, explanation: &mut Explanation) {
        match self.names {
            Names::Plain => {}
            Names::Hashed => explanation.conceal(|value| format!("#{:016x}", self.hasher.hash_one(value))),
            Names::Off => explanation.conceal(|_| "…".into()),
        }
    }

    /// All of it, as JSON.
    pub fn to_json(&self) -> Value {
        let table = self.table.lock().unwrap_or_else(PoisonError::into_inner);
        let mut rules: Vec<(&String, &Top)> = table.rules.iter().collect();
        rules.sort_by_key(|(id, _)| *id);
        let rules = rules.iter().map(|(id, top)| {
            let (domain, rule) = id.split_once('\n').unwrap_or((id, ""));
            let rule = Some(rule).filter(|rule| !rule.is_empty());
            json!({"domain": domain, "rule": rule, "charged": top.charged.to_json(), "refused": top.refused.to_json()})
        });
        json!({"rules": rules.collect::<Vec<_>>(), "half_life_s": HALF_LIFE.as_nanos() / 1_000_000_000})
    }
}

impl Table {
    fn halve(&mut self, now: Time<Mono>) {
        self.halved = now;
        for top in self.rules.values_mut() {
            top.charged.halve();
            top.refused.halve();
        }
        self.rules.retain(|_, top| !top.charged.0.is_empty() || !top.refused.0.is_empty());
    }
}

/// What a decision counts as, if it is noted.
#[inline]
fn sample() -> Option<u64> {
    thread_local! {
        static SEEN: Cell<u32> = const { Cell::new(0) };
        static CHANCE: Cell<u64> = const { Cell::new(0x9e37_79b9_7f4a_7c15) };
    }
    let seen = SEEN.get();
    if seen < ALL_OF {
        SEEN.set(seen + 1);
        return Some(1);
    }
    // The upper bits of a linear congruence are as good a chance as this needs.
    let chance = CHANCE.get().wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    CHANCE.set(chance);
    (chance >> 60 == 0).then_some(ONE_IN)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(heaviest: &Heaviest) -> Vec<(String, u64)> {
        let told = heaviest.to_json();
        let told = told.as_array().expect("a list").iter();
        told.map(|heavy| (heavy["key"].as_str().expect("a name").into(), heavy["count"].as_u64().expect("a count")))
            .collect()
    }

    #[test]
    fn the_heaviest_are_kept_among_any_number_and_no_count_is_too_low() {
        let mut heaviest = Heaviest::default();
        // Every eleventh is of one key, the rest are all different.
        for n in 0..100_000_u64 {
            let key = if n % 11 == 0 { 0 } else { n };
            heaviest.add(key, 1, || key.to_string());
        }
        let told = names(&heaviest);
        assert_eq!((told.len(), &*told[0].0), (KEPT, "0"));
        let heavy = heaviest.0.iter().find(|heavy| heavy.print == 0).expect("the heavy one");
        assert!(heavy.count >= 9_091 && heavy.count - heavy.error <= 9_091, "{heavy:?}");
    }

    #[test]
    fn the_past_fades() {
        let mut heaviest = Heaviest::default();
        heaviest.add(1, 100, || "old".into());
        heaviest.add(2, 1, || "once".into());
        heaviest.halve();
        heaviest.add(3, 60, || "new".into());
        assert_eq!(names(&heaviest), [("new".into(), 60), ("old".into(), 50)]);
    }

    #[test]
    fn of_many_decisions_as_many_are_counted() {
        let noted: u64 = std::thread::spawn(|| (0..1_000_000).filter_map(|_| sample()).sum()).join().expect("a sum");
        assert!((950_000..1_050_000).contains(&noted), "{noted} of a million");
    }
}
