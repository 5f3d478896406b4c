//! Several limits on one key, charged together or not at all: ten a second, a thousand a day, and three at a time.

use alloc::vec;
use alloc::vec::Vec;

use crate::algorithm::{Algorithm, Cells, CellsMut, Offset};
use crate::change::{now_of, with_copy};
use crate::error::LimitError;
use crate::limit::Limit;
use crate::quantity::{Cost, Mono, Nanos, Now, Time};
use crate::verdict::{Ask, Outcome, Report, Retry, Spent, Stamp, Verdict};

/// A group of limits that decides as one: if one refuses, none is charged.
///
/// ```
/// use tollgate_core::{Algorithm, Ask, Cost, FixedWindow, Limits, Nanos, Now, TokenBucket};
///
/// let limits = Limits::new([
///     TokenBucket::new("10/s".parse()?, 10)?.into(),
///     FixedWindow::new(12, Nanos::from_secs(86_400))?.into(),
/// ])?;
/// let mut state = vec![0; limits.words()];
/// limits.init(&mut *state, &Now::at(0));
/// assert!(limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(10))).is_admitted());
/// // A second later the bucket has room for ten again, but the day only for two.
/// let later = Now::at(1_000_000_000);
/// assert!(!limits.decide(&mut *state, &later, Ask::Exactly(Cost::new(3))).is_admitted());
/// assert!(limits.decide(&mut *state, &later, Ask::Exactly(Cost::new(2))).is_admitted());
/// assert_eq!(limits.reports(&*state, &later, Cost::ONE).map(|report| report.remaining).collect::<Vec<_>>(), [8, 0]);
/// # Ok::<(), tollgate_core::LimitError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Limits {
    limits: Vec<Limit>,
    words: usize,
    starts_full: bool,
}

impl Limits {
    /// The maximum number of limits in a group.
    pub const MAX: usize = 8;

    /// The longest state that [`decide_short`](Self::decide_short) applies to: that of a token bucket of any rate.
    pub const FAST_WORDS: usize = 2;

    /// Makes a group of `limits`, in this order.
    ///
    /// # Errors
    /// When there are none or more than [`Limits::MAX`].
    pub fn new(limits: impl IntoIterator<Item = Limit>) -> Result<Self, LimitError> {
        // One more than allowed is enough to know that there are too many.
        let limits: Vec<Limit> = limits.into_iter().take(Self::MAX + 1).collect();
        LimitError::check_range("the number of limits", limits.len() as u64, 1, Self::MAX as u64)?;
        let words = limits.iter().map(Limit::words).sum();
        let starts_full = limits.iter().all(starts_full);
        Ok(Self { limits, words, starts_full })
    }

    /// The limits, in order.
    pub fn as_slice(&self) -> &[Limit] {
        &self.limits
    }

    /// Returns a report for each limit, in order.
    pub fn reports<'a, S: Cells + ?Sized>(
        &'a self,
        state: &'a S,
        now: &'a Now<'_>,
        cost: Cost,
    ) -> impl Iterator<Item = Report> + 'a {
        self.parts().map(move |(limit, first, _)| limit.report(&Offset { cells: state, first }, now, cost))
    }

    /// The same for a state that belongs to the limits `own`; see [`Algorithm::report_from`].
    pub fn reports_from<'a, S: Cells + ?Sized>(
        &'a self,
        own: &'a Self,
        state: &'a S,
        now: &'a Now<'_>,
        cost: Cost,
    ) -> impl Iterator<Item = Report> + 'a {
        let mut owns = own.parts();
        self.limits.iter().map(move |limit| match owns.next() {
            Some((own, first, _)) => limit.report_from(own, &Offset { cells: state, first }, now, cost),
            None => limit.report_from(&Limit::Unlimited, &[0; 0], now, cost),
        })
    }

    /// Whether a state that belongs to `own` is that of a new key, at an instant with the calendar windows of these limits.
    pub fn is_new_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>) -> bool {
        own.parts().all(|(own, first, place)| {
            let limit = self.limits.get(place).unwrap_or(&Limit::Unlimited);
            let part = Offset { cells: state, first };
            own.is_new(&part, &now_of(limit, own, &part, now))
        })
    }

    /// Returns whether the state is that of a new key for certain, so that it may be forgotten at an instant without calendar
    /// windows: those since the last request may have been longer than on average.
    pub fn is_surely_new<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.parts().all(|(limit, first, _)| {
            let part = Offset { cells: state, first };
            match limit {
                Limit::FixedWindow(window) => window.is_surely_new(&part, now),
                _ => limit.is_new(&part, now),
            }
        })
    }

    /// [`decide_fast`](Algorithm::decide_fast) for a single limit whose state is at most [`FAST_WORDS`](Self::FAST_WORDS) long and
    /// whose takings need no stamp.
    #[inline(always)]
    pub fn decide_short<S: CellsMut>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Outcome> {
        let [limit] = &*self.limits else { return None };
        // The most common limit first, without the jump table of the others.
        let verdict = match limit {
            Limit::TokenBucket(bucket) => bucket.decide_fast(state, now, cost)?,
            limit if self.words <= Self::FAST_WORDS => limit.decide_fast(state, now, cost)?,
            _ => return None,
        };
        Some(verdict.outcome())
    }

    /// Returns the report of a single limit that [`decide_short`](Self::decide_short) decided.
    #[inline(always)]
    pub fn report_short<S: Cells>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        match &*self.limits {
            [Limit::TokenBucket(bucket)] => bucket.report(state, now, cost),
            _ => self.report(state, now, cost),
        }
    }

    /// [`Limit::rebase`] for the state of each.
    pub fn rebase<S: CellsMut + ?Sized>(&self, state: &mut S, from: Time<Mono>, to: Time<Mono>) {
        for (limit, first, _) in self.parts() {
            limit.rebase(&mut Offset { cells: &mut *state, first }, from, to);
        }
    }

    /// Lets the leases that `stamps` name last as long as if they were taken now: whether all of them were still held. Limits
    /// without leases have nothing to renew, and a group of nothing else has not renewed anything.
    pub fn renew<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, stamps: Stamps) -> bool {
        let renewed = self.parts().take(stamps.count()).filter_map(|(limit, first, place)| match limit {
            Limit::Concurrency(limit) => {
                Some(limit.renew(&mut Offset { cells: &mut *state, first }, now, stamps.get(place)))
            }
            _ => None,
        });
        // All of them, not only until the first that was lost.
        renewed.fold(None, |all, one| Some(all.unwrap_or(true) && one)).unwrap_or(false)
    }

    /// Takes `held` leases of the limit at each position that hands out leases, as far as they are free: for a state that is
    /// written from what another place reported. Nobody can release them; they end with their lease.
    pub fn hold<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, held: &[u64]) {
        for (limit, first, place) in self.parts().filter(|(limit, ..)| matches!(limit, Limit::Concurrency(_))) {
            let held = Cost::new(held.get(place).copied().unwrap_or(0));
            let _ = limit.decide(&mut Offset { cells: &mut *state, first }, now, Ask::UpTo(held));
        }
    }

    /// Returns whether a new key has everything: no limit gives it less at first than its capacity.
    pub const fn starts_full(&self) -> bool {
        self.starts_full
    }

    /// Whether any of them hands out leases.
    pub fn has_leases(&self) -> bool {
        self.limits.iter().any(|limit| matches!(limit, Limit::Concurrency(_)))
    }

    /// Each limit with the place of its words and its place in the group.
    fn parts(&self) -> impl Iterator<Item = (&Limit, usize, usize)> {
        let mut first = 0;
        self.limits.iter().enumerate().map(move |(place, limit)| {
            let part = (limit, first, place);
            first += limit.words();
            part
        })
    }

    #[inline]
    fn weigh_each(&self, ask: Ask, mut weigh: impl FnMut(&Limit, usize) -> Verdict) -> Verdict<Stamps> {
        let mut outcome = Outcome::Allow;
        let mut taken = ask.cost();
        let mut stamps = Stamps { count: self.limits.len() as u8, ..Stamps::default() };
        for (limit, first, place) in self.parts() {
            let verdict = weigh(limit, first);
            outcome = outcome.and(verdict.outcome());
            taken = taken.min(verdict.taken());
            stamps.each[place] = verdict.stamp();
            stamps.refused |= u8::from(!verdict.is_admitted()) << place;
        }
        Verdict::pass(outcome, taken, stamps)
    }
}

impl From<Limit> for Limits {
    fn from(limit: Limit) -> Self {
        Self { words: limit.words(), starts_full: starts_full(&limit), limits: vec![limit] }
    }
}

/// The stamps of a taking from each limit of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Stamps {
    each: [Stamp; Limits::MAX],
    /// A bit for each limit that refused.
    refused: u8,
    /// How many limits the group has, at least 1.
    count: u8,
}

impl Default for Stamps {
    /// Returns those of a single limit that has no stamps.
    fn default() -> Self {
        Self { each: [Stamp::NONE; Limits::MAX], refused: 0, count: 1 }
    }
}

impl Stamps {
    /// The stamp of the limit at `place`.
    pub fn get(&self, place: usize) -> Stamp {
        self.each.get(place).copied().unwrap_or_default()
    }

    /// From the stamps of limits in order, after travelling outside the process; what is beyond [`Limits::MAX`] is dropped.
    pub fn from_stamps(stamps: impl IntoIterator<Item = Stamp>) -> Self {
        let (mut each, mut count) = ([Stamp::NONE; Limits::MAX], 0);
        for (place, stamp) in each.iter_mut().zip(stamps) {
            *place = stamp;
            count += 1;
        }
        Self { each, refused: 0, count: 1 }.of(count)
    }

    /// The same stamps for a taking from the first `count` limits of a group.
    #[must_use]
    pub fn of(self, count: usize) -> Self {
        Self { count: count.clamp(1, Limits::MAX) as u8, ..self }
    }

    /// Returns how many limits the taking is from. A refund to a key that has more limits by now concerns only these.
    pub fn count(&self) -> usize {
        self.count.into()
    }

    /// Whether no limit gave a stamp or refused.
    pub fn is_plain(&self) -> bool {
        self.each == [Stamp::NONE; Limits::MAX] && self.refused == 0
    }

    /// Returns the stamps of a refusal by the limit at `place`.
    pub fn refused_by(place: usize) -> Self {
        Self { refused: if place < Limits::MAX { 1 << place } else { 0 }, ..Self::default() }
    }

    /// Whether the limit at `place` is one of those that refused.
    pub const fn has_refused(&self, place: usize) -> bool {
        place < Limits::MAX && self.refused >> place & 1 == 1
    }
}

impl Algorithm for Limits {
    type Stamp = Stamps;

    fn words(&self) -> usize {
        self.words
    }

    /// The least that any of them lets pass at once.
    fn capacity(&self) -> u64 {
        self.limits.iter().map(Limit::capacity).min().unwrap_or(0)
    }

    fn uses_wall_clock(&self) -> bool {
        self.limits.iter().any(Limit::uses_wall_clock)
    }

    fn init<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>) {
        for (limit, first, _) in self.parts() {
            limit.init(&mut Offset { cells: &mut *state, first }, now);
        }
    }

    /// All must pass. The longest wait and the latest retry count.
    fn weigh<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict<Stamps> {
        let weigh = |ask| self.weigh_each(ask, |limit, first| limit.weigh(&Offset { cells: state, first }, now, ask));
        with_delay_of_taken(ask, weigh(ask), weigh)
    }

    /// Only the limits that refused record a refusal.
    fn commit<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, verdict: &Verdict<Stamps>) {
        for (limit, first, place) in self.parts() {
            if verdict.is_admitted() || verdict.stamp().has_refused(place) {
                let part = Verdict::pass(verdict.outcome(), verdict.taken(), verdict.stamp().get(place));
                limit.commit(&mut Offset { cells: &mut *state, first }, now, &part);
            }
        }
    }

    /// Returns the least that any of them accepted.
    /// Gives back to the limits that the stamps are from, or to all without stamps.
    fn refund<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost, stamps: Option<Stamps>) -> Cost {
        let count = stamps.map_or(Self::MAX, |stamps| stamps.count());
        let refunds = self.parts().take(count).map(|(limit, first, place)| {
            limit.refund(&mut Offset { cells: &mut *state, first }, now, cost, stamps.map(|stamps| stamps.get(place)))
        });
        // All of them, not only until the first that accepts nothing.
        refunds.fold(cost, Cost::min)
    }

    /// Returns limit and remaining of the limit with the least remaining, and the longest times.
    fn report<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        tightest(self.reports(state, now, cost))
    }

    fn spent<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Spent {
        let spent = self.parts().map(|(limit, first, _)| limit.spent(&Offset { cells: state, first }, now));
        spent.max().unwrap_or_default()
    }

    fn is_new<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> bool {
        self.parts().all(|(limit, first, _)| limit.is_new(&Offset { cells: state, first }, now))
    }

    /// Returns the longest wait.
    fn wait_behind<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>, ahead: Cost, cost: Cost) -> Retry {
        let waits =
            self.parts().map(|(limit, first, _)| limit.wait_behind(&Offset { cells: state, first }, now, ahead, cost));
        waits.max().unwrap_or(Retry::NOW)
    }

    fn look_again<S: Cells + ?Sized>(&self, state: &S, now: &Now<'_>) -> Option<Nanos> {
        self.parts().filter_map(|(limit, first, _)| limit.look_again(&Offset { cells: state, first }, now)).min()
    }

    #[inline]
    fn take_from_word(&self, word: u64, now: &Now<'_>, cost: Cost) -> Option<u64> {
        match &*self.limits {
            [limit] => limit.take_from_word(word, now, cost),
            _ => None,
        }
    }

    #[inline]
    fn decide_fast<S: CellsMut + ?Sized>(&self, state: &mut S, now: &Now<'_>, cost: Cost) -> Option<Verdict<Stamps>> {
        let [limit] = &*self.limits else { return None };
        let verdict = limit.decide_fast(state, now, cost)?;
        let stamps = if verdict.is_admitted() { Stamps::from_stamps([verdict.stamp()]) } else { Stamps::refused_by(0) };
        Some(Verdict::pass(verdict.outcome(), verdict.taken(), stamps))
    }

    /// Converts position by position; a position that `own` does not have starts unused: `initial` is for new keys.
    fn convert<S: CellsMut + ?Sized>(&self, own: &Self, state: &mut S, now: &Now<'_>) {
        if self == own {
            return;
        }
        // The words may move, so the old ones are copied first.
        let before: Vec<u64> = (0..own.words).map(|word| state.get(word)).collect();
        let mut owns = own.parts();
        for (limit, first, _) in self.parts() {
            let mut words = vec![0; limit.words()];
            match owns.next() {
                Some((own, own_first, _)) => {
                    words.resize(limit.words().max(own.words()), 0);
                    words[..own.words()].copy_from_slice(&before[own_first..][..own.words()]);
                    limit.convert(own, &mut *words, now);
                }
                None => limit.convert(&Limit::Unlimited, &mut *words, now),
            }
            words[..limit.words()].iter().enumerate().for_each(|(word, value)| state.set(first + word, *value));
        }
    }

    /// Weighs position by position; a position that `own` does not have decides as with nothing used.
    fn weigh_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>, ask: Ask) -> Verdict<Stamps> {
        let weigh = |ask| {
            let mut owns = own.parts();
            self.weigh_each(ask, |limit, _| match owns.next() {
                Some((own, first, _)) => limit.weigh_from(own, &Offset { cells: state, first }, now, ask),
                None => limit.weigh_from(&Limit::Unlimited, &[0; 0], now, ask),
            })
        };
        with_delay_of_taken(ask, weigh(ask), weigh)
    }

    /// Writes the whole list or nothing.
    fn commit_from<S: CellsMut + ?Sized>(
        &self,
        own: &Self,
        state: &mut S,
        now: &Now<'_>,
        verdict: &Verdict<Stamps>,
    ) -> bool {
        if verdict.taken() > Cost::ZERO && self.words > 0 {
            self.convert(own, state, now);
            self.commit(state, now, verdict);
            return true;
        }
        for ((limit, _, place), (own, first, _)) in self.parts().zip(own.parts()) {
            if verdict.is_admitted() || verdict.stamp().has_refused(place) {
                let part = Verdict::pass(verdict.outcome(), Cost::ZERO, verdict.stamp().get(place));
                limit.commit_from(own, &mut Offset { cells: &mut *state, first }, now, &part);
            }
        }
        false
    }

    fn report_from<S: Cells + ?Sized>(&self, own: &Self, state: &S, now: &Now<'_>, cost: Cost) -> Report {
        tightest(self.reports_from(own, state, now, cost))
    }
}

/// Returns the verdict with the delay of what is taken: a limit that has more than the tightest one delays what it would take alone.
#[inline]
fn with_delay_of_taken(ask: Ask, verdict: Verdict<Stamps>, weigh: impl Fn(Ask) -> Verdict<Stamps>) -> Verdict<Stamps> {
    match (ask, verdict.outcome()) {
        (Ask::UpTo(cost), Outcome::Delay(_)) if verdict.taken() < cost => {
            Verdict::pass(weigh(Ask::Exactly(verdict.taken())).outcome(), verdict.taken(), verdict.stamp())
        }
        _ => verdict,
    }
}

fn starts_full(limit: &Limit) -> bool {
    let now = Now::at(0);
    with_copy(&[0; 0], limit.words(), |state| {
        limit.init(state, &now);
        limit.is_new(state, &now)
    })
}

/// Returns limit and remaining of the report with the least remaining, and the longest times.
fn tightest(reports: impl Iterator<Item = Report>) -> Report {
    let nothing = Report { limit: u64::MAX, remaining: u64::MAX, retry: Retry::NOW, reset: Nanos::ZERO };
    reports.fold(nothing, |all, one| {
        let tightest = if one.remaining < all.remaining { one } else { all };
        Report { retry: all.retry.max(one.retry), reset: all.reset.max(one.reset), ..tightest }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Concurrency, FixedWindow, LeakyBucket, SlidingLog, SlidingWindow, TokenBucket};

    const SECOND: Nanos = Nanos::SECOND;

    fn bucket(burst: u64) -> Limit {
        TokenBucket::new("1/s".parse().unwrap(), burst).unwrap().into()
    }

    fn state_of(limits: &Limits) -> Vec<u64> {
        let mut state = vec![0; limits.words()];
        limits.init(&mut *state, &Now::at(0));
        state
    }

    fn one_of_each() -> Limits {
        Limits::new([
            bucket(10),
            LeakyBucket::new("1/s".parse().unwrap(), 9).unwrap().into(),
            FixedWindow::new(8, SECOND).unwrap().into(),
            SlidingWindow::new(7, SECOND).unwrap().into(),
            SlidingLog::new(6, SECOND).unwrap().into(),
            Concurrency::new(5, SECOND).unwrap().into(),
            Limit::Unlimited,
        ])
        .unwrap()
    }

    #[test]
    fn refusal_by_one_limit_spends_nothing_from_the_others() {
        let limits = one_of_each();
        let mut state = state_of(&limits);
        let before = state.clone();
        let verdict = limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(6)));
        assert_eq!(verdict.outcome(), Outcome::Deny(Retry::Never));
        assert_eq!(state, before);
        assert!(limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(5))).is_admitted());
        let remaining: Vec<u64> =
            limits.reports(&*state, &Now::at(0), Cost::ONE).map(|report| report.remaining).collect();
        assert_eq!(remaining, [5, 4, 3, 2, 1, 0, u64::MAX]);
    }

    #[test]
    fn deny_all_closes_the_whole_group() {
        let limits = Limits::new([bucket(10), Limit::DenyAll]).unwrap();
        let mut state = state_of(&limits);
        assert!(!limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::ZERO)).is_admitted());
        assert!(limits.is_new(&*state, &Now::at(0)));
    }

    #[test]
    fn take_up_to_takes_the_least_available_from_all() {
        let limits = Limits::new([bucket(10), bucket(4)]).unwrap();
        let mut state = state_of(&limits);
        assert_eq!(limits.decide(&mut *state, &Now::at(0), Ask::UpTo(Cost::new(7))).taken(), Cost::new(4));
        assert_eq!(limits.report(&*state, &Now::at(0), Cost::ONE).remaining, 0);
        assert_eq!(limits.reports(&*state, &Now::at(0), Cost::ONE).next().unwrap().remaining, 6);
    }

    #[test]
    fn delay_is_that_of_what_is_taken() {
        let leaky = LeakyBucket::new("1/s".parse().unwrap(), 9).unwrap().into();
        let limits = Limits::new([leaky, bucket(2)]).unwrap();
        let state = state_of(&limits);
        let verdict = limits.weigh(&*state, &Now::at(0), Ask::UpTo(Cost::new(5)));
        assert_eq!((verdict.taken(), verdict.outcome()), (Cost::new(2), Outcome::Delay(SECOND)));
    }

    #[test]
    fn refund_reaches_every_limit() {
        let limits = one_of_each();
        let mut state = state_of(&limits);
        let verdict = limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(5)));
        assert_eq!(limits.refund(&mut *state, &Now::at(0), verdict.taken(), Some(verdict.stamp())), Cost::new(5));
        assert!(limits.is_new(&*state, &Now::at(0)));
    }

    #[test]
    fn longest_wait_and_latest_retry_are_reported() {
        let leaky = |rate: &str, burst| LeakyBucket::new(rate.parse().unwrap(), burst).unwrap().into();
        let limits = Limits::new([leaky("1/s", 3), leaky("1/5s", 2)]).unwrap();
        let mut state = state_of(&limits);
        let mut check = || limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::ONE)).outcome();
        assert_eq!(check(), Outcome::Allow);
        assert_eq!(check(), Outcome::Delay(Nanos::from_secs(5)));
        assert_eq!(check(), Outcome::Deny(Retry::After(Nanos::from_secs(5))));
    }

    #[test]
    fn only_the_log_that_refused_counts_the_refusal() {
        let log = |limit| SlidingLog::new(limit, SECOND).unwrap().count_refused().into();
        let limits = Limits::new([log(5), log(1)]).unwrap();
        let mut state = state_of(&limits);
        for _ in 0..3 {
            let _ = limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::ONE));
        }
        let remaining: Vec<u64> =
            limits.reports(&*state, &Now::at(0), Cost::ONE).map(|report| report.remaining).collect();
        assert_eq!(remaining, [4, 0]);
        // Quiet for a whole second after the last attempt, and it is let in.
        assert!(limits.decide(&mut *state, &Now::at(1_000_000_000), Ask::Exactly(Cost::ONE)).is_admitted());
    }

    #[test]
    fn changing_the_group_keeps_what_was_spent_in_each_place() {
        let old = Limits::new([bucket(10), SlidingLog::new(5, SECOND).unwrap().into()]).unwrap();
        let new = Limits::new([
            TokenBucket::new("7777/s".parse().unwrap(), 20).unwrap().into(),
            SlidingLog::new(8, SECOND).unwrap().into(),
            bucket(3),
        ])
        .unwrap();
        let mut state = state_of(&old);
        state.resize(new.words().max(old.words()), 0);
        let _ = old.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(4)));
        new.convert(&old, &mut *state, &Now::at(0));
        let remaining: Vec<u64> = new.reports(&*state, &Now::at(0), Cost::ONE).map(|report| report.remaining).collect();
        assert_eq!(remaining, [16, 4, 3]);
    }

    #[test]
    fn changing_the_algorithm_keeps_what_was_used_up() {
        let old = Limits::from(bucket(10));
        let new = Limits::from(Limit::from(FixedWindow::new(6, SECOND).unwrap()));
        let mut state = vec![0; 2];
        old.init(&mut *state, &Now::at(0));
        let _ = old.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(4)));
        new.convert(&old, &mut *state, &Now::at(0));
        assert_eq!(new.report(&*state, &Now::at(0), Cost::ONE).remaining, 2);
    }

    #[test]
    fn groups_of_none_and_of_more_than_eight_are_errors() {
        assert_eq!(Limits::new([]).unwrap_err().to_string(), "the number of limits is 0, it must be between 1 and 8");
        assert_eq!(
            Limits::new([Limit::Unlimited; 20]).unwrap_err().to_string(),
            "the number of limits is 9, it must be between 1 and 8"
        );
    }

    #[test]
    fn wait_behind_is_the_longest_of_all_limits() {
        let leaky = LeakyBucket::new("1/s".parse().unwrap(), 4).unwrap().free(1).unwrap();
        let window = FixedWindow::new(2, Nanos::from_secs(10)).unwrap();
        let wait = |limit: Limit, spent: u64, ahead, cost| {
            let limits = Limits::from(limit);
            let mut state = state_of(&limits);
            let _ = limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::new(spent)));
            limits.wait_behind(&*state, &Now::at(0), Cost::new(ahead), Cost::new(cost))
        };
        let after = |secs| Retry::After(Nanos::from_secs(secs));
        assert_eq!([0, 1, 4, 100].map(|ahead| wait(bucket(3), 2, ahead, 2)), [1, 2, 5, 101].map(after));
        assert_eq!(wait(bucket(3), 2, 1, 4), Retry::Never);
        assert_eq!([0, 1, 4].map(|ahead| wait(leaky.into(), 2, ahead, 1)), [1, 2, 5].map(after));
        assert_eq!([0, 1, 2, 3].map(|ahead| wait(window.into(), 1, ahead, 1)), [0, 10, 10, 20].map(after));
        assert_eq!(
            wait(SlidingLog::new(2, SECOND).unwrap().into(), 2, 100, 1),
            after(1),
            "those ahead are not counted"
        );
        let both = Limits::new([bucket(3), window.into()]).unwrap();
        let state = state_of(&both);
        assert_eq!(both.wait_behind(&*state, &Now::at(0), Cost::new(3), Cost::new(2)), after(20));
        assert_eq!(Limit::Unlimited.wait_behind(&[0; 0], &Now::at(0), Cost::MAX, Cost::MAX), Retry::NOW);
        assert_eq!(Limit::DenyAll.wait_behind(&[0; 0], &Now::at(0), Cost::ZERO, Cost::ONE), Retry::Never);
    }

    #[test]
    fn look_again_returns_the_next_end_of_a_lease() {
        let limits = Limits::new([bucket(9), Concurrency::new(3, SECOND).unwrap().into()]).unwrap();
        let mut state = state_of(&limits);
        let look = |state: &[u64], at| limits.look_again(state, &Now::at(at));
        assert_eq!(look(&state, 0), None);
        let first = limits.decide(&mut *state, &Now::at(0), Ask::Exactly(Cost::ONE));
        let _ = limits.decide(&mut *state, &Now::at(400), Ask::Exactly(Cost::ONE));
        assert_eq!(
            (look(&state, 500), look(&state, 1_000_000_000)),
            (Some(Nanos::from_nanos(999_999_500)), Some(Nanos::from_nanos(400)))
        );
        limits.refund(&mut *state, &Now::at(500), Cost::ONE, Some(first.stamp()));
        assert_eq!((look(&state, 500), look(&state, 2_000_000_000)), (Some(Nanos::from_nanos(999_999_900)), None));
    }
}
