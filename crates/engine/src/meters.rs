//! What has been decided, counted as cheaply as counting goes.
//!
//! A counter that all cores add to would be passed between them with every decision. So each has several lines of memory, a
//! thread always adds to the same one of them, and whoever reads adds them up. The counts order nothing and publish
//! nothing, so all of this is relaxed.

use std::array;
use std::cell::Cell;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// How many lines of memory the counts are spread over.
const LINES: usize = 4;

/// Counts that are each spread over several lines of memory.
#[derive(Debug, Default)]
struct Spread<const N: usize> {
    lines: [Apart<N>; LINES],
}

/// As much memory as cores pass between them at a time, or pairs of it.
#[derive(Debug)]
#[repr(align(64))]
struct Apart<const N: usize> {
    counts: [AtomicU64; N],
}

impl<const N: usize> Default for Apart<N> {
    fn default() -> Self {
        Self { counts: array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl<const N: usize> Spread<N> {
    #[inline]
    fn add(&self, line: Line, count: usize) {
        self.lines[line.0 % LINES].counts[count].fetch_add(1, Ordering::Relaxed);
    }

    fn sum(&self, count: usize) -> u64 {
        self.lines.iter().fold(0, |sum, line| sum.wrapping_add(line.counts[count].load(Ordering::Relaxed)))
    }
}

/// Which line of memory a thread counts in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line(usize);

impl Line {
    /// That of the calling thread: they are dealt out in turn.
    #[inline]
    pub(crate) fn of_thread() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static LINE: Cell<usize> = const { Cell::new(usize::MAX) };
        }
        LINE.with(|line| {
            if line.get() == usize::MAX {
                line.set(NEXT.fetch_add(1, Ordering::Relaxed) % LINES);
            }
            Self(line.get())
        })
    }
}

/// What has been decided by one rule, since its id was first seen.
#[derive(Debug, Default)]
pub struct RuleMeter {
    counts: Spread<4>,
}

/// What came of a rule in a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RuleEvent {
    Allowed,
    Refused,
    ShadowRefused,
    Fallback,
}

impl RuleMeter {
    /// Has the memory fetched that the calling thread is going to count in. Of thousands of rules it is not at hand, and
    /// counting would have to wait for it; so it comes while other things are done.
    #[inline]
    pub(crate) fn touch(&self) {
        let line = &self.counts.lines[Line::of_thread().0 % LINES];
        std::hint::black_box(line.counts[0].load(Ordering::Relaxed));
    }

    #[inline]
    pub(crate) fn count_in(&self, line: Line, event: RuleEvent) {
        self.counts.add(line, event as usize);
    }

    /// The counts as they are now.
    pub fn read(&self) -> RuleCounts {
        let sum = |event| self.counts.sum(event as usize);
        RuleCounts {
            allowed: sum(RuleEvent::Allowed),
            refused: sum(RuleEvent::Refused),
            shadow_refused: sum(RuleEvent::ShadowRefused),
            fallback: sum(RuleEvent::Fallback),
        }
    }
}

/// The counts of a rule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RuleCounts {
    /// Requests that met the rule and were within its limits.
    pub allowed: u64,
    /// Requests that met the rule and were beyond its limits.
    pub refused: u64,
    /// Requests that were beyond the limits of the rule and passed because it is a shadow.
    pub shadow_refused: u64,
    /// Requests that were decided without the store. They are counted as allowed or refused, too.
    pub fallback: u64,
}

/// What an engine has decided.
#[derive(Debug, Default)]
pub(crate) struct Meters {
    decisions: Spread<7>,
    faults: Spread<4>,
}

/// What came of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Allowed,
    Delayed,
    Refused,
    Observed,
    ShadowRefused,
    Fallback,
    Banned,
}

/// How a store failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    Unavailable,
    Unknown,
    Stale,
    Rejected,
}

impl Meters {
    #[inline]
    pub(crate) fn count_in(&self, line: Line, event: Event) {
        self.decisions.add(line, event as usize);
    }

    pub(crate) fn count(&self, event: Event) {
        self.count_in(Line::of_thread(), event);
    }

    pub(crate) fn fault(&self, fault: Fault) {
        self.faults.add(Line::of_thread(), fault as usize);
    }

    pub(crate) fn read(&self) -> Counts {
        let sum = |event| self.decisions.sum(event as usize);
        let faults = |fault| self.faults.sum(fault as usize);
        Counts {
            allowed: sum(Event::Allowed),
            delayed: sum(Event::Delayed),
            refused: sum(Event::Refused),
            observed: sum(Event::Observed),
            shadow_refused: sum(Event::ShadowRefused),
            fallback: sum(Event::Fallback),
            bans: sum(Event::Banned),
            unavailable: faults(Fault::Unavailable),
            unknown: faults(Fault::Unknown),
            stale: faults(Fault::Stale),
            rejected: faults(Fault::Rejected),
        }
    }
}

/// What an engine has decided since it was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that passed at once, those that met no rule and those observed among them.
    pub allowed: u64,
    /// Requests that passed after a wait.
    pub delayed: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Requests that passed only because refusals are being observed.
    pub observed: u64,
    /// Requests that a shadow rule would have refused.
    pub shadow_refused: u64,
    /// Requests that were decided without the store.
    pub fallback: u64,
    /// Counters that were banned.
    pub bans: u64,
    /// Groups that were not sent, because the store was not to be reached.
    pub unavailable: u64,
    /// Groups that were sent and not answered.
    pub unknown: u64,
    /// Groups whose calendar windows did not fit the store's time.
    pub stale: u64,
    /// Groups that the store rejected.
    pub rejected: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_all_threads_are_added_up() {
        let meters = Meters::default();
        std::thread::scope(|scope| {
            for _ in 0..2 * LINES {
                scope.spawn(|| (0..1_000).for_each(|_| meters.count(Event::Allowed)));
            }
        });
        meters.count(Event::Refused);
        meters.fault(Fault::Stale);
        let allowed = 2_000 * LINES as u64;
        assert_eq!(meters.read(), Counts { allowed, refused: 1, stale: 1, ..Counts::default() });
    }
}
