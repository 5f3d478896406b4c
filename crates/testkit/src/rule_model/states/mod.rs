//! State of one limit for one key, with the parameters of its last charge.
//!
//! A state refills and expires by its stored parameters, even if a request has other parameters. Only an admitted
//! charge changes the stored parameters (`State::convert`).

mod bucket;
mod leases;
mod log;
mod slices;
mod sliding;
mod steps;
mod window;

use super::limit::{Algorithm, Limit, StepAlignment};
use super::{Tokens, ceil, whole_tokens};

use bucket::Bucket;
use leases::Leases;
use log::Log;
use slices::Slices;
use sliding::SlidingWindows;
use steps::Steps;
use window::Window;

/// The time or event at which a condition becomes true.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum When {
    /// From this time on.
    At(u64),
    /// When a slot is released.
    OnRelease,
}

/// Identifies the part of a state that was charged, for a refund.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stamp {
    /// No particular part, for buckets.
    Anywhere,
    /// The window or slice that ends at this time, or the units of a log with this time.
    Time(u64),
    /// The lease with this number, taken at this time.
    Lease(u64, u64),
}

/// A state and the parameters it belongs to.
#[derive(Clone, Debug)]
pub struct State {
    /// Parameters of the last charge.
    pub limit: Limit,
    counted: StateKind,
}

#[derive(Clone, Debug)]
enum StateKind {
    Bucket(Bucket),
    Steps(Steps),
    Window(Window),
    Sliding(SlidingWindows),
    Slices(Slices),
    Log(Log),
    Leases(Leases),
}

/// Calls the same method on any kind of state.
macro_rules! match_state {
    ($counted:expr, $state:ident => $call:expr) => {
        match $counted {
            StateKind::Bucket($state) => $call,
            StateKind::Steps($state) => $call,
            StateKind::Window($state) => $call,
            StateKind::Sliding($state) => $call,
            StateKind::Slices($state) => $call,
            StateKind::Log($state) => $call,
            StateKind::Leases($state) => $call,
        }
    };
}

impl State {
    /// Returns the state of a new key at `at`.
    pub fn new(limit: &Limit, at: u64) -> Self {
        Self::with_spent(limit, at, whole_tokens(limit.spent_at_first()))
    }

    /// Returns the unused state of a limit for a known key.
    pub fn unused_state(limit: &Limit, at: u64) -> Self {
        Self::with_spent(limit, at, whole_tokens(0))
    }

    /// Returns a state in which `spent` is used at `at`. The amount belongs to no request.
    fn with_spent(limit: &Limit, at: u64, spent: Tokens) -> Self {
        let whole = ceil(spent);
        let counted = match limit.algorithm {
            Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } => {
                StateKind::Bucket(Bucket::new(limit.rate(), spent, at))
            }
            Algorithm::IntervalBucket { grid, .. } => StateKind::Steps(Steps::new(limit, grid, whole, at)),
            Algorithm::FixedWindow(windows) => StateKind::Window(Window::new(limit, windows, whole, at)),
            Algorithm::SlidingWindow => StateKind::Sliding(SlidingWindows::new(limit.period, whole, at)),
            Algorithm::SlidingSlices { .. } => StateKind::Slices(Slices::new(limit, whole, at)),
            Algorithm::SlidingLog { gap, .. } => StateKind::Log(Log::new(limit, gap, whole, at)),
            Algorithm::Concurrency { lease } => StateKind::Leases(Leases::new(lease, whole, at)),
        };
        Self { limit: limit.clone(), counted }
    }

    /// Returns the state as seen by a request under `limit`. A store knows only the calendar windows of the request. If
    /// the state has other windows, the windows after its current window are assumed to have their mean length.
    pub fn as_seen_under(&self, limit: &Limit) -> Self {
        let mut seen = self.clone();
        if let StateKind::Window(window) = &mut seen.counted {
            window.is_estimated = limit.algorithm != Algorithm::FixedWindow(window.windows);
        }
        seen
    }

    /// Returns the amount used at `at`.
    pub fn spent(&self, at: u64) -> Tokens {
        match_state!(&self.counted, state => state.spent(at))
    }

    /// Returns the first time from `at` on at which at most `amount` is spent.
    pub fn when_spent_at_most(&self, at: u64, amount: Tokens) -> When {
        if self.spent(at) <= amount {
            return When::At(at);
        }
        match_state!(&self.counted, state => state.when_spent_at_most(at, amount))
    }

    /// Returns the first time from `at` on at which the state equals the state of an unused key.
    pub fn unused_from(&self, at: u64) -> u64 {
        match (&self.counted, self.when_spent_at_most(at, whole_tokens(0))) {
            (StateKind::Leases(leases), _) => leases.last_end(at),
            (StateKind::Log(log), When::At(instant)) => instant.max(log.gap_ends()),
            (_, When::At(instant)) => instant,
            (_, When::OnRelease) => at,
        }
    }

    /// Returns the time of the newest request in a log.
    pub fn last_request_time(&self) -> Option<u64> {
        match &self.counted {
            StateKind::Log(log) => log.last(),
            _ => None,
        }
    }

    /// Returns the time of one step of an interval bucket under `limit`, for a charge at `at`.
    pub fn step_origin_under(&self, limit: &Limit, at: u64) -> u64 {
        match (&limit.algorithm, &self.counted) {
            (Algorithm::IntervalBucket { grid: StepAlignment::Aligned(offset), .. }, _) => *offset,
            (Algorithm::IntervalBucket { grid: StepAlignment::FirstRequest, .. }, StateKind::Steps(steps))
                if steps.grid == StepAlignment::FirstRequest && self.limit.period == limit.period =>
            {
                steps.step_time_for(at)
            }
            _ => at,
        }
    }

    /// Takes `amount` at `at` under `limit`. The caller has checked that the limit admits the amount. If the parameters
    /// change, the spent amount is rounded up to the resolution of the new bucket on a clock with a resolution of
    /// `tick` nanoseconds.
    pub fn charge(&mut self, limit: &Limit, at: u64, amount: u64, tick: u64, lease: u64) -> Stamp {
        self.convert(limit, at, tick);
        match &mut self.counted {
            StateKind::Bucket(state) => state.charge(at, amount),
            StateKind::Steps(state) => state.charge(at, amount),
            StateKind::Window(state) => state.charge(at, amount),
            StateKind::Sliding(state) => state.charge(at, amount),
            StateKind::Slices(state) => state.charge(at, amount),
            StateKind::Log(state) => state.charge(at, amount),
            StateKind::Leases(state) => state.charge(at, amount, lease),
        }
    }

    /// Converts the spent amount to `limit`. States of the same kind keep the times of charges. Otherwise the amount
    /// counts as spent now.
    fn convert(&mut self, limit: &Limit, at: u64, tick: u64) {
        if self.limit == *limit {
            return;
        }
        let same_period = self.limit.period == limit.period;
        match (&mut self.counted, &limit.algorithm) {
            (StateKind::Steps(steps), Algorithm::IntervalBucket { grid, .. }) if same_period && steps.grid == *grid => {
                steps.adopt(limit, at);
            }
            (StateKind::Window(window), Algorithm::FixedWindow(windows))
                if same_period && window.windows == *windows =>
            {
                window.adopt(limit, at);
            }
            (StateKind::Sliding(sliding), Algorithm::SlidingWindow)
                if same_period && whole_tokens(sliding.previous_count(at)) <= limit.max_spent_with_debt() => {}
            (StateKind::Slices(slices), Algorithm::SlidingSlices { .. }) if slices.fits_slices_of(limit) => {
                slices.adopt(limit, at);
            }
            (StateKind::Log(log), Algorithm::SlidingLog { .. }) => log.adopt(limit, at, tick),
            (StateKind::Leases(leases), Algorithm::Concurrency { .. }) => leases.adopt(limit, at),
            _ => {
                let mut spent = self.spent(at);
                if let Algorithm::TokenBucket { .. } | Algorithm::LeakyBucket { .. } = limit.algorithm {
                    let part = Tokens::from_integer(*(limit.rate() * whole_tokens(tick)).denom());
                    spent = (spent * part).ceil() / part;
                }
                *self = Self::with_spent(limit, at, spent);
            }
        }
        self.limit = limit.clone();
    }

    /// Refunds up to `amount` of the charge at `stamp`. Returns the accepted amount.
    pub fn refund(&mut self, at: u64, amount: u64, stamp: Option<Stamp>) -> u64 {
        match_state!(&mut self.counted, state => state.refund(at, amount, stamp))
    }

    /// Extends a lease to a full duration from now, and returns whether it was still held. Returns `None` if the state
    /// has no leases.
    pub fn renew(&mut self, at: u64, stamp: Stamp) -> Option<bool> {
        match &mut self.counted {
            StateKind::Leases(leases) => Some(leases.renew(at, stamp)),
            _ => None,
        }
    }

    /// Returns whether the stamp's lease is no longer held and another lease was taken at about the same time.
    pub fn is_ambiguous(&self, at: u64, stamp: Stamp) -> bool {
        match &self.counted {
            StateKind::Leases(leases) => leases.is_ambiguous(at, stamp),
            _ => false,
        }
    }

    /// Records a refused request, if this is a log.
    pub fn record_refusal(&mut self, at: u64, amount: u64) {
        if let StateKind::Log(log) = &mut self.counted {
            log.charge(at, amount);
        }
    }
}
