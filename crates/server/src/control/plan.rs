//! What applying a file comes to: worked out from what is stored and what the file says, without a database.
//!
//! Rules that allow or deny go by their order, so the order of the file is kept. Rules that the file does not have keep their
//! places; those it has take the places of those it has that were there, in the order of the file; new ones go in front of the
//! one that follows them in the file, or to the end.

use std::collections::HashMap;

use tollgate_engine::rules::entry::{self, RuleEntry, TakenApart};
use tollgate_engine::rules::{Mistake, Rules, Source};
use tollgate_engine::{Engine, MemoryStore};

use super::Others;
use super::history::diff_of;
use super::model::{Action, Planned};
use super::rules::{Kept, same};

/// More than so many warnings are not told.
pub(super) const MAX_WARNINGS: usize = 100;

/// The rules of domains as they are stored, in order.
pub(super) type Stored = HashMap<String, Vec<Kept>>;

/// What a file comes to.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) domains: Vec<DomainWork>,
    /// In the order of the file; deletions come last.
    pub(super) changes: Vec<Planned>,
    pub(super) unchanged: usize,
    pub(super) warnings: Vec<String>,
}

/// What is done in one domain.
#[derive(Debug)]
pub(super) struct DomainWork {
    pub(super) name: String,
    /// Whether it had rules, and will have.
    pub(super) had: bool,
    pub(super) has: bool,
    pub(super) writes: Vec<Rewrite>,
    pub(super) deletes: Vec<Kept>,
}

/// A rule to be written.
#[derive(Debug)]
pub(super) struct Rewrite {
    /// As it is stored, if it is.
    pub(super) old: Option<Kept>,
    /// What it will say, if it will say something else.
    pub(super) text: Option<String>,
    pub(super) id: String,
    pub(super) position: i64,
    /// Whether it changes places with others; a new number alone is nothing to tell.
    pub(super) moved: bool,
}

impl Work {
    pub(super) fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// Works out what a file comes to.
pub(super) fn work_out(taken: TakenApart, mut stored: Stored, others: Others) -> Work {
    let mut work = Work { warnings: warnings(&taken, &stored), ..Work::default() };
    let mut entries: HashMap<String, Vec<RuleEntry>> = HashMap::new();
    for entry in taken.entries {
        entries.entry(entry.domain.clone()).or_default().push(entry);
    }
    let mut deleted = Vec::new();
    for domain in taken.domains {
        let (stored, entries) =
            (stored.remove(&domain).unwrap_or_default(), entries.remove(&domain).unwrap_or_default());
        let domain = work_out_domain(domain, stored, entries, others, &mut work);
        let gone = |kept: &Kept| planned(&domain.name, &kept.id, Action::Delete, diff_of(Some(&kept.text), None));
        deleted.extend(domain.deletes.iter().map(gone));
        work.domains.push(domain);
    }
    work.changes.extend(deleted);
    work
}

fn planned(domain: &str, id: &str, action: Action, diff: String) -> Planned {
    Planned { domain: domain.into(), id: id.into(), action, diff }
}

/// A place in the order to be: a rule that is stored, or of the file, or both.
#[derive(Clone, Copy)]
struct Slot {
    stored: Option<usize>,
    entry: Option<usize>,
}

fn work_out_domain(
    name: String,
    stored: Vec<Kept>,
    entries: Vec<RuleEntry>,
    others: Others,
    work: &mut Work,
) -> DomainWork {
    let (slots, deleted) = arrange(&stored, &entries, others);
    let positions = number(&slots, &stored);
    let ranks: Vec<usize> = slots.iter().filter_map(|slot| slot.stored).collect();
    let moved = out_of_order(&ranks, stored.len());
    let had = !stored.is_empty();
    let mut stored: Vec<Option<Kept>> = stored.into_iter().map(Some).collect();
    let deletes: Vec<Kept> = deleted.into_iter().filter_map(|place| stored[place].take()).collect();
    let mut texts: Vec<Option<RuleEntry>> = entries.into_iter().map(Some).collect();
    let mut writes = Vec::new();
    let has = !slots.is_empty();
    for (slot, position) in slots.into_iter().zip(positions) {
        let moved = slot.stored.is_some_and(|place| moved[place]);
        let old = slot.stored.and_then(|place| stored[place].take());
        let entry = slot.entry.and_then(|place| texts[place].take());
        let Some(id) = old.as_ref().map(|old| &old.id).or(entry.as_ref().map(|entry| &entry.id)).cloned() else {
            continue;
        };
        let in_file = entry.is_some();
        let text = entry.map(|entry| entry.json).filter(|text| old.as_ref().is_none_or(|old| !same(&old.text, text)));
        let action = if old.is_some() { Action::Update } else { Action::Create };
        if text.is_some() || moved {
            let before = old.as_ref().map(|old| &*old.text);
            let diff = text.as_ref().map(|text| diff_of(before, Some(text))).unwrap_or_default();
            work.changes.push(planned(&name, &id, action, diff));
        } else {
            work.unchanged += usize::from(in_file);
        }
        if text.is_some() || old.as_ref().is_some_and(|old| old.position != position) {
            writes.push(Rewrite { old, text, id, position, moved });
        }
    }
    DomainWork { name, had, has, writes, deletes }
}

/// The order to be, and what is not in it.
fn arrange(stored: &[Kept], entries: &[RuleEntry], others: Others) -> (Vec<Slot>, Vec<usize>) {
    let known: HashMap<&str, usize> = stored.iter().enumerate().map(|(place, kept)| (&*kept.id, place)).collect();
    let file = entries.iter().enumerate();
    let mut file = file.map(|(place, entry)| Slot { stored: known.get(&*entry.id).copied(), entry: Some(place) });
    let mut named = vec![false; stored.len()];
    for place in entries.iter().filter_map(|entry| known.get(&*entry.id)) {
        named[*place] = true;
    }
    let mut slots = Vec::with_capacity(stored.len() + entries.len());
    let mut deleted = Vec::new();
    for (place, named) in named.into_iter().enumerate() {
        if named {
            for slot in file.by_ref() {
                slots.push(slot);
                if slot.stored.is_some() {
                    break;
                }
            }
        } else if others == Others::Keep {
            slots.push(Slot { stored: Some(place), entry: None });
        } else {
            deleted.push(place);
        }
    }
    slots.extend(file);
    (slots, deleted)
}

/// Positions for an order: those that there are, with new ones behind them, if that will do; otherwise all are numbered anew.
fn number(slots: &[Slot], stored: &[Kept]) -> Vec<i64> {
    let mut positions = Vec::with_capacity(slots.len());
    let mut last = stored.iter().map(|kept| kept.position).max().unwrap_or(0);
    let mut appending = false;
    for slot in slots {
        let position = match slot.stored {
            Some(_) if appending => break,
            Some(place) => stored[place].position,
            None => {
                appending = true;
                last += 1;
                last
            }
        };
        if positions.last().is_some_and(|last| *last >= position) {
            break;
        }
        positions.push(position);
    }
    if positions.len() == slots.len() { positions } else { (1..=slots.len() as i64).collect() }
}

/// Which of `ranks` have to be moved to get from the ascending order to this one: all but a longest ascending part.
fn out_of_order(ranks: &[usize], count: usize) -> Vec<bool> {
    // For each length the place of the smallest rank that an ascending part of it can end with, and what comes before each.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(ranks.len());
    for (place, rank) in ranks.iter().enumerate() {
        let length = ends.partition_point(|end| ranks[*end] < *rank);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        if length == ends.len() {
            ends.push(place);
        } else {
            ends[length] = place;
        }
    }
    let mut moved = vec![false; count];
    for rank in ranks {
        moved[*rank] = true;
    }
    let mut at = ends.last().copied();
    while let Some(place) = at {
        moved[ranks[place]] = false;
        at = before[place];
    }
    moved
}

/// What is valid and yet probably not meant, seen from what is stored.
pub(super) fn findings(taken: &TakenApart, stored: &Stored) -> Vec<Mistake> {
    let (Ok(store), Ok(fallback)) = (MemoryStore::new(1), MemoryStore::new(1)) else { return Vec::new() };
    let engine = Engine::with_fallback(store, fallback);
    // Numbers can only jump in rules that change.
    let texts: HashMap<(&str, &str), &str> =
        taken.entries.iter().map(|entry| ((&*entry.domain, &*entry.id), &*entry.json)).collect();
    let changes = |domain: &str, kept: &Kept| texts.get(&(domain, &*kept.id)).is_some_and(|text| *text != kept.text);
    let changing = stored.iter().map(|(domain, rules)| {
        let texts: Vec<&str> = rules.iter().filter(|kept| changes(domain, kept)).map(|kept| &*kept.text).collect();
        (&**domain, texts)
    });
    let changing = entry::to_json(changing.filter(|(_, texts)| !texts.is_empty()));
    // What is stored was checked; should a later version of the language see it otherwise, there is nothing to compare with.
    if let Ok(running) = Rules::read(&[Source { name: "stored", text: changing.as_bytes() }]) {
        let _ = engine.put(&running);
    }
    let left_out = taken.rules.left_out().map(|left_out| left_out.as_slice().to_vec()).unwrap_or_default();
    left_out.into_iter().chain(engine.warnings(&taken.rules)).take(MAX_WARNINGS).collect()
}

fn warnings(taken: &TakenApart, stored: &Stored) -> Vec<String> {
    findings(taken, stored).iter().map(ToString::to_string).collect()
}

#[cfg(test)]
mod tests;
