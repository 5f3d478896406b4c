//! Decides the charges of a group whose entries are locked.

use smallvec::SmallVec;
use tollgate_core::{Algorithm, Ask, Cells, CellsMut, Limits, Now, Retry, Stamps, Verdict};

use super::{Charge, ChargeView, LimitTable, LockedAccount, state_after_id, visit};
use crate::table::{Presence, State};

/// Maximum group size without allocation, enough for nearly all groups. Smaller under loom, whose stacks are small.
pub(super) const INLINE_CHARGES: usize = if cfg!(loom) { 5 } else { 16 };

pub(super) type InlineVec<T> = SmallVec<[T; INLINE_CHARGES]>;

/// A charge with its locked entry, during the decision on its group.
pub(super) struct Member<'n> {
    limits: &'n Limits,
    /// The state, preceded by its limits id.
    entry: State<'n>,
    now: Now<'n>,
    verdict: Verdict<Stamps>,
    /// Whether the verdict is already written to the entry. The undo log then contains the entry's previous words.
    written: bool,
}

/// The members of a group. For a charge without an entry, the list contains the retry of its refusal.
pub(super) type Members<'n> = InlineVec<Result<Member<'n>, Retry>>;

/// The words of the entries before they were written, in the order of the writes.
type UndoLog = SmallVec<[u64; UNDO_WORDS]>;

/// Number of words in an undo log that does not allocate: four for each charge.
const UNDO_WORDS: usize = 4 * INLINE_CHARGES;

/// Maximum length of an entry that is copied for each charge. The states of nearly all limits are shorter.
const SHORT_ENTRY_WORDS: usize = 16;

/// Decides the charges of a group, calls `each` for every charge in order, and returns whether all pass. `has_repeats`
/// is set if two charges have the same entry.
pub(super) fn decide_locked<N: LimitTable + ?Sized>(
    limit_table: &N,
    charges: &mut [Charge<'_>],
    members: &mut Members<'_>,
    has_repeats: bool,
    each: impl FnMut(usize, &ChargeView<'_>),
) -> bool {
    let mut undo_log = UndoLog::new();
    let mut passed = decide_in_order(limit_table, charges, members, has_repeats, &mut undo_log);
    if passed && lower_to_smallest_amount(charges, members) {
        undo(members, &mut undo_log);
        passed = decide_in_order(limit_table, charges, members, has_repeats, &mut undo_log);
    }
    if passed {
        write_remaining_charges(limit_table, charges, members);
    }
    report(limit_table, charges, members, each);
    passed
}

/// Decides the charges one after the other, and returns whether all pass.
///
/// Each charge is written immediately, and undone if a later charge is refused. So the second of two charges on one
/// entry sees the first charge. Before each write, the entry is copied to the undo log. For a long entry, this copy
/// takes longer than weighing the charge now and writing it later ([`write_remaining_charges`]). So a long entry is
/// written immediately only if the group has repeated entries. After a refusal the remaining charges are only weighed,
/// because the caller needs their verdicts.
fn decide_in_order<N: LimitTable + ?Sized>(
    limit_table: &N,
    charges: &[Charge<'_>],
    members: &mut Members<'_>,
    has_repeats: bool,
    undo_log: &mut UndoLog,
) -> bool {
    let mut passed = members.iter().all(Result::is_ok);
    for (index, charge) in charges.iter().enumerate() {
        let Ok(member) = &mut members[index] else { continue };
        member.written = passed && (has_repeats || member.entry.len() <= SHORT_ENTRY_WORDS);
        if member.written {
            undo_log.extend((0..member.entry.len()).map(|word| member.entry.get(word)));
            member.decide(limit_table, charge);
        } else {
            member.verdict = member.visit(limit_table, charge, |account| account.weigh(charge.ask));
        }
        if !member.verdict.is_admitted() {
            passed = false;
            undo(&mut members[..=index], undo_log);
            if let Ok(member) = &mut members[index] {
                // Limits that count refused requests record this refusal.
                member.commit(limit_table, charge);
            }
        }
    }
    passed
}

/// Restores the entries of the members that are written, in reverse order.
fn undo(members: &mut [Result<Member<'_>, Retry>], undo_log: &mut UndoLog) {
    for member in members.iter_mut().rev().flatten().filter(|member| member.written) {
        let start = undo_log.len() - member.entry.len();
        undo_log[start..].iter().enumerate().for_each(|(word, value)| member.entry.set(word, *value));
        undo_log.truncate(start);
        member.written = false;
    }
}

/// Lowers all [`Ask::UpTo`] charges of an admitted group to the smallest amount that any of them takes. Returns whether
/// any amount was lowered. If so, the group must be decided again.
fn lower_to_smallest_amount(charges: &mut [Charge<'_>], members: &Members<'_>) -> bool {
    let taken = |(charge, member): (&Charge<'_>, &Result<Member<'_>, Retry>)| match (charge.ask, member) {
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

impl<'n> Member<'n> {
    #[inline]
    pub(super) fn new(limits: &'n Limits, entry: State<'n>, now: Now<'n>) -> Self {
        Self { limits, entry, now, verdict: Verdict::default(), written: false }
    }

    /// Decides the charge, and writes it to the entry.
    #[inline]
    fn decide<N: LimitTable + ?Sized>(&mut self, limit_table: &N, charge: &Charge<'_>) {
        if let Ask::Exactly(cost) = charge.ask
            && self.entry.get(0) == u64::from(charge.limits_id)
            && let Some(verdict) = self.limits.decide_fast(&mut state_after_id(self.entry), &self.now, cost)
        {
            self.verdict = verdict;
        } else {
            self.verdict = self.visit(limit_table, charge, |account| account.decide(charge.ask));
        }
    }

    /// Runs `then` on the state. If the group charges the key twice under different limits, the state may belong to the
    /// limits of the other charge.
    fn visit<N: LimitTable + ?Sized, R>(
        &self,
        limit_table: &N,
        charge: &Charge<'_>,
        then: impl FnOnce(&mut LockedAccount<'_>) -> R,
    ) -> R {
        let mut entry = self.entry;
        visit(limit_table, self.limits, charge.limits_id, &mut entry, Presence::Known, self.now, then)
    }

    fn commit<N: LimitTable + ?Sized>(&self, limit_table: &N, charge: &Charge<'_>) {
        self.visit(limit_table, charge, |account| account.commit(&self.verdict));
    }
}

/// For an admitted group, writes the charges that [`decide_in_order`] has not written.
fn write_remaining_charges<N: LimitTable + ?Sized>(limit_table: &N, charges: &[Charge<'_>], members: &Members<'_>) {
    for (member, charge) in members.iter().zip(charges) {
        if let Ok(member) = member
            && !member.written
        {
            member.commit(limit_table, charge);
        }
    }
}

/// Calls `each` for every charge in order, while its state is locked.
fn report<N: LimitTable + ?Sized>(
    limit_table: &N,
    charges: &[Charge<'_>],
    members: &Members<'_>,
    mut each: impl FnMut(usize, &ChargeView<'_>),
) {
    for (index, (member, charge)) in members.iter().zip(charges).enumerate() {
        match member {
            Ok(member) => {
                member.visit(limit_table, charge, |account| {
                    each(index, &ChargeView::from_account(account, member.verdict));
                });
            }
            Err(retry) => each(index, &ChargeView::refused(*retry)),
        }
    }
}
