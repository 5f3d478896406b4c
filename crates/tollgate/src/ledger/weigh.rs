//! Decides the charges of a group whose entries are locked.

use smallvec::SmallVec;
use tollgate_core::{Ask, Cells, CellsMut, Limits, Now, Retry, Stamps, Verdict};

use super::{Charge, ChargeView, LimitTable, LockedAccount, visit};
use crate::table::{Presence, State};

/// Maximum group size without allocation, enough for nearly all groups. Smaller under loom, whose stacks are small.
pub(super) const INLINE_CHARGES: usize = if cfg!(loom) { 5 } else { 16 };

pub(super) type InlineVec<T> = SmallVec<[T; INLINE_CHARGES]>;

/// The locked entries of a group.
pub(super) trait Entries {
    /// Identifies an entry.
    type Entry: Copy + Ord;

    /// Returns the state of an entry, preceded by its limits id.
    fn state(&self, entry: Self::Entry) -> State<'_>;

    /// Returns the length in words of [`state`](Self::state), including the limits id.
    fn words(&self, entry: Self::Entry) -> usize;
}

/// A charge with its entry, during the decision on its group.
pub(super) struct Member<'n, E> {
    pub(super) limits: &'n Limits,
    pub(super) entry: E,
    pub(super) now: Now<'n>,
    verdict: Verdict<Stamps>,
    /// Whether the verdict is already written to the state.
    written: bool,
}

impl<'n, E> Member<'n, E> {
    pub(super) fn new(limits: &'n Limits, entry: E, now: Now<'n>) -> Self {
        Self { limits, entry, now, verdict: Verdict::default(), written: false }
    }
}

/// The members of a group. A charge without an entry has the refusal's retry instead.
pub(super) type Members<'n, E> = InlineVec<Result<Member<'n, E>, Retry>>;

/// Saved entries, to restore them after a refusal.
type SavedEntries<E> = Vec<(E, Vec<u64>)>;

/// Decides the charges of a group, calls `each` for every charge in order, and returns whether all pass.
pub(super) fn decide_locked<N: LimitTable + ?Sized, L: Entries>(
    limit_table: &N,
    entries: &L,
    charges: &mut [Charge<'_>],
    members: &mut Members<'_, L::Entry>,
    each: impl FnMut(usize, &ChargeView<'_>),
) -> bool {
    let mut before = SavedEntries::new();
    let mut passed = weigh_in_order(limit_table, entries, charges, members, &mut before);
    if passed && lower_to_smallest_amount(charges, members) {
        restore(entries, &mut before);
        passed = weigh_in_order(limit_table, entries, charges, members, &mut before);
    }
    if passed {
        write_remaining_charges(limit_table, entries, charges, members);
    }
    report(limit_table, entries, charges, members, each);
    passed
}

/// Weighs the charges one after the other, and returns whether all pass.
///
/// The second of two charges on one entry must see the first charge. So the first charge is written immediately, and
/// undone if a later charge is refused. All other charges are written afterwards, by [`write_remaining_charges`]. After
/// a refusal the remaining charges are only weighed, because the caller needs their verdicts.
fn weigh_in_order<N: LimitTable + ?Sized, L: Entries>(
    limit_table: &N,
    entries: &L,
    charges: &[Charge<'_>],
    members: &mut Members<'_, L::Entry>,
    before: &mut SavedEntries<L::Entry>,
) -> bool {
    let mut passed = members.iter().all(Result::is_ok);
    let has_repeats = has_repeated_entries(members);
    for (index, charge) in charges.iter().enumerate() {
        let seen_again = {
            let (Ok(member), later) = (&members[index], &members[index + 1..]) else { continue };
            has_repeats && later.iter().flatten().any(|later| later.entry == member.entry)
        };
        let Ok(member) = &mut members[index] else { continue };
        let saved = (passed && seen_again).then(|| {
            let state = entries.state(member.entry);
            (member.entry, (0..entries.words(member.entry)).map(|word| state.get(word)).collect())
        });
        member.verdict = member.visit(limit_table, entries, charge, |account| account.weigh(charge.ask));
        member.written = seen_again;
        if !member.verdict.is_admitted() {
            passed = false;
            restore(entries, before);
            // Limits that count refused requests record this refusal.
            member.commit(limit_table, entries, charge);
        } else if passed && let Some(saved) = saved {
            before.push(saved);
            member.commit(limit_table, entries, charge);
        }
    }
    passed
}

/// Returns whether two charges may have the same entry. Always true for a small group, whose entries are compared
/// pairwise in any case. For 256 charges, pairwise comparison took 427,000 of the 1,715,000 instructions of a check.
fn has_repeated_entries<E: Copy + Ord>(members: &Members<'_, E>) -> bool {
    if members.len() <= INLINE_CHARGES {
        return true;
    }
    let mut entries: Vec<E> = members.iter().flatten().map(|member| member.entry).collect();
    entries.sort_unstable();
    entries.windows(2).any(|pair| pair[0] == pair[1])
}

/// Restores saved entries, in reverse order.
fn restore<L: Entries>(entries: &L, before: &mut SavedEntries<L::Entry>) {
    for (entry, words) in before.drain(..).rev() {
        let mut state = entries.state(entry);
        words.iter().enumerate().for_each(|(index, word)| state.set(index, *word));
    }
}

/// Lowers all [`Ask::UpTo`] charges of an admitted group to the smallest amount that any of them takes. Returns whether
/// any amount was lowered. If so, the group must be weighed again.
fn lower_to_smallest_amount<E>(charges: &mut [Charge<'_>], members: &Members<'_, E>) -> bool {
    let taken = |(charge, member): (&Charge<'_>, &Result<Member<'_, E>, Retry>)| match (charge.ask, member) {
        (Ask::UpTo(_), Ok(member)) => Some(member.verdict.taken()),
        _ => None,
    };
    let taken = || charges.iter().zip(members).filter_map(taken);
    let Some(least) = taken().min().filter(|least| taken().any(|taken| taken > *least)) else { return false };
    charges
        .iter_mut()
        .filter(|charge| matches!(charge.ask, Ask::UpTo(_)))
        .for_each(|charge| charge.ask = Ask::UpTo(least));
    true
}

impl<E: Copy> Member<'_, E> {
    /// Runs `then` on the state. If the group charges the key twice under different limits, the state may belong to the
    /// limits of the other charge.
    fn visit<N: LimitTable + ?Sized, L: Entries<Entry = E>, R>(
        &self,
        limit_table: &N,
        entries: &L,
        charge: &Charge<'_>,
        then: impl FnOnce(&mut LockedAccount<'_>) -> R,
    ) -> R {
        let mut state = entries.state(self.entry);
        visit(limit_table, self.limits, charge.limits_id, &mut state, Presence::Known, self.now, then)
    }

    fn commit<N: LimitTable + ?Sized, L: Entries<Entry = E>>(&self, limit_table: &N, entries: &L, charge: &Charge<'_>) {
        self.visit(limit_table, entries, charge, |account| account.commit(&self.verdict));
    }
}

/// Writes the charges of an admitted group that [`weigh_in_order`] has not written.
fn write_remaining_charges<N: LimitTable + ?Sized, L: Entries>(
    limit_table: &N,
    entries: &L,
    charges: &[Charge<'_>],
    members: &Members<'_, L::Entry>,
) {
    for (member, charge) in members.iter().zip(charges) {
        if let Ok(member) = member
            && !member.written
        {
            member.commit(limit_table, entries, charge);
        }
    }
}

/// Calls `each` for every charge in order, while its state is locked.
fn report<N: LimitTable + ?Sized, L: Entries>(
    limit_table: &N,
    entries: &L,
    charges: &[Charge<'_>],
    members: &Members<'_, L::Entry>,
    mut each: impl FnMut(usize, &ChargeView<'_>),
) {
    for (index, (member, charge)) in members.iter().zip(charges).enumerate() {
        match member {
            Ok(member) => {
                member.visit(limit_table, entries, charge, |account| {
                    each(index, &ChargeView::from_account(account, member.verdict));
                });
            }
            Err(retry) => each(index, &ChargeView::refused(*retry)),
        }
    }
}
