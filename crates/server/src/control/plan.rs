//! Compares a rule file with the stored rules, and computes the changes that applying the file would make. Does not
//! access the database.
//!
//! The order of `allow` and `deny` rules matters, so the order of the file is preserved. Stored rules that are not in
//! the file keep their positions. Stored rules that are in the file exchange positions so that they match the order of
//! the file. A new rule is inserted before the rule that follows it in the file, or at the end.

use std::collections::HashMap;

use tollgate_engine::rules::entry::{self, RuleEntry, SplitFiles};
use tollgate_engine::rules::{Mistake, Rules, Source};
use tollgate_engine::{Engine, MemoryStore};

use super::history::diff_of_rules;
use super::model::{Action, OtherRulesPolicy, PlanEntry};
use super::rules::{RuleRow, same_rule};

/// The maximum number of warnings in a plan.
pub(super) const MAX_WARNINGS: usize = 100;

/// The stored rules by domain, in order.
pub(super) type StoredRules = HashMap<String, Vec<RuleRow>>;

/// All changes that a file makes.
#[derive(Debug, Default)]
pub(super) struct FileChanges {
    pub(super) domains: Vec<DomainChanges>,
    /// The changes as they are reported: in file order, with deletions last.
    pub(super) planned: Vec<PlanEntry>,
    pub(super) unchanged: usize,
    pub(super) warnings: Vec<String>,
}

/// The changes in one domain.
#[derive(Debug)]
pub(super) struct DomainChanges {
    pub(super) name: String,
    pub(super) had_rules: bool,
    pub(super) has_rules: bool,
    pub(super) writes: Vec<RuleChange>,
    pub(super) deletes: Vec<RuleRow>,
}

/// A rule to write.
#[derive(Debug)]
pub(super) struct RuleChange {
    /// The stored row, or `None` for a new rule.
    pub(super) old: Option<RuleRow>,
    /// The new text, if it differs from the stored text.
    pub(super) text: Option<String>,
    pub(super) id: String,
    pub(super) position: i64,
    /// Whether the rule moves relative to other rules. A move is reported, but a new position number alone is not.
    pub(super) moved: bool,
}

/// Compares a file with the stored rules.
pub(super) fn compare_file(taken: SplitFiles, mut stored: StoredRules, others: OtherRulesPolicy) -> FileChanges {
    let warnings = plan_warnings(&taken, &stored).iter().map(ToString::to_string).collect();
    let mut changes = FileChanges { warnings, ..FileChanges::default() };
    let mut entries: HashMap<String, Vec<RuleEntry>> = HashMap::new();
    for entry in taken.entries {
        entries.entry(entry.domain.clone()).or_default().push(entry);
    }
    let mut deleted = Vec::new();
    for domain in taken.domains {
        let (stored, entries) =
            (stored.remove(&domain).unwrap_or_default(), entries.remove(&domain).unwrap_or_default());
        let domain = compare_domain(domain, stored, entries, others, &mut changes);
        let delete =
            |row: &RuleRow| plan_entry(&domain.name, &row.id, Action::Delete, diff_of_rules(Some(&row.text), None));
        deleted.extend(domain.deletes.iter().map(delete));
        changes.domains.push(domain);
    }
    changes.planned.extend(deleted);
    changes
}

fn plan_entry(domain: &str, id: &str, action: Action, diff: String) -> PlanEntry {
    PlanEntry { domain: domain.into(), id: id.into(), action, diff }
}

/// A position in the new order. The position refers to a stored rule, a rule of the file, or both, by index.
#[derive(Clone, Copy)]
struct RulePosition {
    stored: Option<usize>,
    entry: Option<usize>,
}

fn compare_domain(
    name: String,
    stored: Vec<RuleRow>,
    entries: Vec<RuleEntry>,
    others: OtherRulesPolicy,
    changes: &mut FileChanges,
) -> DomainChanges {
    let (slots, deleted) = arrange_rules(&stored, &entries, others);
    let positions = assign_positions(&slots, &stored);
    let ranks: Vec<usize> = slots.iter().filter_map(|slot| slot.stored).collect();
    let moved = mark_moved_rules(&ranks, stored.len());
    let had_rules = !stored.is_empty();
    let mut stored: Vec<Option<RuleRow>> = stored.into_iter().map(Some).collect();
    let deletes: Vec<RuleRow> = deleted.into_iter().filter_map(|index| stored[index].take()).collect();
    let mut texts: Vec<Option<RuleEntry>> = entries.into_iter().map(Some).collect();
    let mut writes = Vec::new();
    let has_rules = !slots.is_empty();
    for (slot, position) in slots.into_iter().zip(positions) {
        let moved = slot.stored.is_some_and(|index| moved[index]);
        let old = slot.stored.and_then(|index| stored[index].take());
        let entry = slot.entry.and_then(|index| texts[index].take());
        let Some(id) = old.as_ref().map(|old| &old.id).or(entry.as_ref().map(|entry| &entry.id)).cloned() else {
            continue;
        };
        let in_file = entry.is_some();
        let differs = |text: &String| old.as_ref().is_none_or(|old| !same_rule(&old.text, text));
        let text = entry.map(|entry| entry.json).filter(differs);
        let action = if old.is_some() { Action::Update } else { Action::Create };
        if text.is_some() || moved {
            let before = old.as_ref().map(|old| &*old.text);
            let diff = text.as_ref().map(|text| diff_of_rules(before, Some(text))).unwrap_or_default();
            changes.planned.push(plan_entry(&name, &id, action, diff));
        } else {
            changes.unchanged += usize::from(in_file);
        }
        if text.is_some() || old.as_ref().is_some_and(|old| old.position != position) {
            writes.push(RuleChange { old, text, id, position, moved });
        }
    }
    DomainChanges { name, had_rules, has_rules, writes, deletes }
}

/// Returns the new order, and the indices of the stored rules to delete.
fn arrange_rules(
    stored: &[RuleRow],
    entries: &[RuleEntry],
    others: OtherRulesPolicy,
) -> (Vec<RulePosition>, Vec<usize>) {
    let known: HashMap<&str, usize> = stored.iter().enumerate().map(|(index, row)| (&*row.id, index)).collect();
    let file = entries.iter().enumerate();
    let mut file =
        file.map(|(index, entry)| RulePosition { stored: known.get(&*entry.id).copied(), entry: Some(index) });
    let mut named = vec![false; stored.len()];
    for index in entries.iter().filter_map(|entry| known.get(&*entry.id)) {
        named[*index] = true;
    }
    let mut slots = Vec::with_capacity(stored.len() + entries.len());
    let mut deleted = Vec::new();
    for (index, named) in named.into_iter().enumerate() {
        if named {
            for slot in file.by_ref() {
                slots.push(slot);
                if slot.stored.is_some() {
                    break;
                }
            }
        } else if others == OtherRulesPolicy::Keep {
            slots.push(RulePosition { stored: Some(index), entry: None });
        } else {
            deleted.push(index);
        }
    }
    slots.extend(file);
    (slots, deleted)
}

/// Returns the position numbers for the new order. If possible, stored rules keep their numbers and new rules get
/// higher numbers. If these numbers would not yield the new order, all rules are numbered from 1.
fn assign_positions(slots: &[RulePosition], stored: &[RuleRow]) -> Vec<i64> {
    let mut positions = Vec::with_capacity(slots.len());
    let mut last = stored.iter().map(|row| row.position).max().unwrap_or(0);
    let mut appending = false;
    for slot in slots {
        let position = match slot.stored {
            Some(_) if appending => break,
            Some(index) => stored[index].position,
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

/// Marks the `ranks` outside a longest increasing subsequence. No smaller set of rules
/// could be moved to get the new order.
fn mark_moved_rules(ranks: &[usize], count: usize) -> Vec<bool> {
    // `ends[n]` is the index of the smallest rank that ends an increasing subsequence of length `n + 1`; `before`
    // contains the predecessor of each index.
    let mut ends: Vec<usize> = Vec::new();
    let mut before: Vec<Option<usize>> = Vec::with_capacity(ranks.len());
    for (index, rank) in ranks.iter().enumerate() {
        let length = ends.partition_point(|end| ranks[*end] < *rank);
        before.push(length.checked_sub(1).map(|shorter| ends[shorter]));
        if length == ends.len() {
            ends.push(index);
        } else {
            ends[length] = index;
        }
    }
    let mut moved = vec![false; count];
    for rank in ranks {
        moved[*rank] = true;
    }
    let mut at = ends.last().copied();
    while let Some(index) = at {
        moved[ranks[index]] = false;
        at = before[index];
    }
    moved
}

/// Returns warnings about rules in the file that are valid but probably mistaken. Also compares the limits of the file
/// with the limits of the stored rules.
pub(super) fn plan_warnings(taken: &SplitFiles, stored: &StoredRules) -> Vec<Mistake> {
    let (Ok(store), Ok(fallback)) = (MemoryStore::new(1), MemoryStore::new(1)) else { return Vec::new() };
    let engine = Engine::with_fallback(store, fallback);
    // Only changed rules are compared, because only their limits can change.
    let texts: HashMap<(&str, &str), &str> =
        taken.entries.iter().map(|entry| ((&*entry.domain, &*entry.id), &*entry.json)).collect();
    let changes = |domain: &str, row: &RuleRow| texts.get(&(domain, &*row.id)).is_some_and(|text| *text != row.text);
    let changing = stored.iter().map(|(domain, rules)| {
        let texts: Vec<&str> = rules.iter().filter(|row| changes(domain, row)).map(|row| &*row.text).collect();
        (&**domain, texts)
    });
    let changing = entry::to_json(changing.filter(|(_, texts)| !texts.is_empty()));
    // Stored rules were validated when they were written, but this program version may refuse them. If this version
    // refuses a stored rule, limits are not compared.
    if let Ok(running) = Rules::read(&[Source { name: "stored", text: changing.as_bytes() }]) {
        let _ = engine.put(&running);
    }
    let left_out = taken.rules.left_out().map(|left_out| left_out.as_slice().to_vec()).unwrap_or_default();
    left_out.into_iter().chain(engine.warnings(&taken.rules)).take(MAX_WARNINGS).collect()
}

#[cfg(test)]
mod tests;
