//! Python `limits` 5.8.0 with memory storage, in microseconds. Its clock is a double of seconds, which tells these apart.
//!
//! | theirs | ours |
//! |---|---|
//! | fixed window | [`FixedWindow`](tollgate_core::FixedWindow) from the first request on |
//! | moving window | [`SlidingLog`](tollgate_core::SlidingLog) |
//! | sliding window counter | [`SlidingWindow`](tollgate_core::SlidingWindow) |
//! | `hit`, `test` | check, peek; a negative cost is a refund |
//! | `get_window_stats` | a report; the reset is told as a point in time |
//! | `clear` | reset |
//!
//! Of the state only the counts of the sliding counter are recorded; otherwise the state before a step is what the recorded
//! hits left behind.

mod counter;
mod fixed;
mod moving;

use std::collections::HashMap;

use super::{Case, Comparison, Fields, Player, Rule, Seen, Step};

const NOTHING_COUNTED: Rule = Rule {
    name: "reset told though nothing is counted",
    reason: "a reset is told for a window in which nothing is used; ours is as good as new",
};

/// Nanoseconds in a unit of the reference's clock.
const MICRO: u64 = 1_000;

/// The player of a case.
pub(super) fn cast(case: &Case) -> Option<Box<dyn Player>> {
    match case.algorithm.as_str() {
        "fixed_window" => Some(Box::new(Python { window: fixed::Fixed::new(case), keys: HashMap::new() })),
        "moving_window" => Some(Box::new(Python { window: moving::Moving::new(case), keys: HashMap::new() })),
        "sliding_window_counter" => {
            Some(Box::new(Python { window: counter::Counter::new(case), keys: HashMap::new() }))
        }
        _ => None,
    }
}

/// One of the windows.
trait Windowed {
    /// What it knows of a key that was hit.
    type Kept;

    /// Runs `hit`, `test` or `get_window_stats` on ours, from what is kept of the key, and compares.
    fn compare(&self, kept: Option<&Self::Kept>, step: &Step) -> Seen;

    /// What is kept after a recorded hit.
    fn hit(&self, kept: Option<Self::Kept>, step: &Step) -> Self::Kept;
}

struct Python<W: Windowed> {
    window: W,
    keys: HashMap<String, W::Kept>,
}

impl<W: Windowed> Player for Python<W> {
    fn compare(&self, step: &Step) -> Seen {
        match step.op.as_str() {
            "clear" => Comparison::new().same("ok", step.result.flag("ok"), true).seen(),
            _ => self.window.compare(self.keys.get(step.args.text("key")), step),
        }
    }

    fn follow(&mut self, step: &Step) {
        let key = step.args.text("key");
        match step.op.as_str() {
            "clear" => drop(self.keys.remove(key)),
            "hit" => {
                let kept = self.window.hit(self.keys.remove(key), step);
                self.keys.insert(key.to_owned(), kept);
            }
            _ => {}
        }
    }
}

/// Compares what is told of a window: what remains, and how long until the reset, none if nothing is used of it.
fn compare_stats(step: &Step, remaining: u64, reset: Option<u64>) -> Seen {
    let stats = |reset: Option<u64>| {
        Comparison::new()
            .same("remaining", step.result.count("remaining"), remaining)
            .same("reset_us", reset_us(step), i128::from(step.at) + i128::from(reset.unwrap_or(0) / MICRO))
            .seen()
    };
    stats(reset).unless(&NOTHING_COUNTED, || reset.is_none() && step.result.count("remaining") == remaining)
}

/// When the reset was told to be, to the nearest microsecond: the double is that exact.
fn reset_us(step: &Step) -> i128 {
    (step.result.double("reset_time_s") * 1e6).round() as i128
}
