//! redis-cell 0.5.0: `CL.THROTTLE` on a Redis with a controlled clock, in nanoseconds.
//!
//! Both replays use [`Throttle`], our own `CL.THROTTLE` translation, and compare all five numbers
//! of the reply. The *stepwise* replay loads the key's recorded arrival time before each step. The
//! *free* replay uses only the clock and the arguments: each key continues from our own state.
//!
//! Redis drops a key when it is accessed after the millisecond of its expiry. The expiry is rounded down twice, so a
//! key can expire while it is still in use. The replays drop such a key too, because later replies depend on it. If
//! dropping the key changes the reply of the free replay, the step counts as a known difference, because our own table
//! never forgets a key early.

use std::collections::HashMap;

use serde_json::Value;
use tollgate::redis_cell::Throttle;
use tollgate_core::{Now, Rate};

use super::{Case, Comparison, Fields, KnownDifference, Player, ReadResult, Skip, StepResult, TraceStep};

const BEYOND_64_BIT_NANOSECONDS: KnownDifference = KnownDifference {
    name: "beyond 64-bit nanoseconds",
    reason: "products in redis-cell overflow or nearly overflow; Tollgate returns an error or refuses",
};
const FORGOTTEN_EARLY: KnownDifference = KnownDifference {
    name: "forgotten early",
    reason: "the key expires up to a millisecond early, so a request passes; Tollgate keeps the key and refuses",
};
const CREDIT_ABOVE_BURST: KnownDifference = KnownDifference {
    name: "credit above the burst",
    reason: "with such a credit, more than the limit remains and the reset is in the past; Tollgate caps the credit",
};
const MORE_THAN_A_MILLION_PER_SECOND: KnownDifference = KnownDifference {
    name: "rate above a million per second",
    reason: "redis-cell divides by an interval of zero microseconds; Tollgate is exact",
};

const MINUS_ONE_REMAINING: KnownDifference = KnownDifference {
    name: "minus one remaining",
    reason: "redis-cell reports a debt of almost one request as -1 remaining; Tollgate reports 0",
};

/// Returns the player that loads each state from the record.
pub(super) fn new_stepwise_player(_: &Case) -> ReadResult<Box<dyn Player>> {
    Ok(Box::new(StepwisePlayer::default()))
}

/// Returns the player that continues from its own states.
pub(super) fn new_free_player(_: &Case) -> ReadResult<Box<dyn Player>> {
    Ok(Box::new(FreePlayer::default()))
}

/// A Redis key: its arrival time and, if it expires, the last millisecond in which it exists.
#[derive(Clone, Copy)]
struct CellKey {
    arrival: u64,
    until_ms: Option<i128>,
}

impl CellKey {
    fn is_found(self, now: u64) -> bool {
        self.until_ms.is_none_or(|until| i128::from(now / 1_000_000) <= until)
    }
}

#[derive(Default)]
struct StepwisePlayer(HashMap<String, CellKey>);

impl Player for StepwisePlayer {
    fn compare(&self, step: &TraceStep) -> ReadResult<StepResult> {
        let Some(call) = ThrottleCall::read(step)? else { return Ok(StepResult::Equal) };
        let now = step.at_nanos(1)?;
        let found = self.0.get(&call.key).filter(|kept| kept.is_found(now)).map_or(0, |kept| kept.arrival);
        call.compare(step, found)
    }

    fn follow(&mut self, step: &TraceStep) -> ReadResult<()> {
        if step.result.get("server_aborted").is_some() {
            self.0.clear();
        } else if let Some(call) = ThrottleCall::read(step)? {
            self.0.remove(&call.key);
            if let Some(arrival) = step.result.optional_int("stored_tat_ns") {
                let until_ms = step.result.optional_int("expire_at_ms").filter(|&until| until >= 0);
                self.0.insert(call.key, CellKey { arrival: arrival as u64, until_ms });
            }
        } else {
            run_plain_command(&mut self.0, &step.args)?;
        }
        Ok(())
    }
}

#[derive(Default)]
struct FreePlayer(HashMap<String, CellKey>);

impl Player for FreePlayer {
    fn compare(&self, step: &TraceStep) -> ReadResult<StepResult> {
        let Some(call) = ThrottleCall::read(step)? else { return Ok(StepResult::Equal) };
        let Some(kept) = self.0.get(&call.key) else { return call.compare(step, 0) };
        let forgotten = !kept.is_found(step.at_nanos(1)?);
        let as_new = call.compare(step, 0)?;
        Ok(call
            .compare(step, kept.arrival)?
            .or_known_difference(&FORGOTTEN_EARLY, || forgotten && as_new.is_explained()))
    }

    fn follow(&mut self, step: &TraceStep) -> ReadResult<()> {
        if step.result.get("server_aborted").is_some() {
            self.0.clear();
        } else if let Some(call) = ThrottleCall::read(step)? {
            let now = step.at_nanos(1)?;
            let found = self.0.get(&call.key).filter(|kept| kept.is_found(now)).map_or(0, |kept| kept.arrival);
            if let Ok(([0, ..], arrival)) = call.decide(found, now) {
                // As in redis-cell: the TTL in whole milliseconds, counted from the current millisecond.
                let to_live = arrival.saturating_sub(now) / 1_000_000;
                let until_ms = Some(i128::from(now / 1_000_000 + to_live));
                self.0.insert(call.key, CellKey { arrival, until_ms });
            }
        } else {
            run_plain_command(&mut self.0, &step.args)?;
        }
        Ok(())
    }
}

/// Runs a plain command that sets a key. If the value is not a number, the next call fails.
fn run_plain_command(keys: &mut HashMap<String, CellKey>, args: &Value) -> ReadResult<()> {
    let argv: Vec<_> = args.read_list("argv")?.iter().filter_map(Value::as_str).collect();
    if let ["SET", key, value] = argv[..]
        && let Ok(arrival) = value.parse()
    {
        keys.insert(key.to_owned(), CellKey { arrival, until_ms: None });
    }
    Ok(())
}

/// A recorded `CL.THROTTLE` call.
struct ThrottleCall {
    key: String,
    /// Burst, count, period, quantity. `None` if an argument is missing or not a number.
    numbers: Option<[i64; 4]>,
}

impl ThrottleCall {
    /// Reads the call of a step. Returns `None` for a command that only prepares a key.
    fn read(step: &TraceStep) -> ReadResult<Option<Self>> {
        if step.op != "cl_throttle" {
            return Ok(None);
        }
        if step.args.get("argv").is_none() {
            let number = |name| step.args.optional_int(name).and_then(|number| i64::try_from(number).ok());
            let quantity = if step.args.get("quantity").is_some() { number("quantity") } else { Some(1) };
            let numbers = [number("max_burst"), number("count"), number("period_s"), quantity];
            return Ok(Some(Self { key: step.args.read_text("key")?.to_owned(), numbers: all_present(numbers) }));
        }
        let argv: Vec<_> = step.args.read_list("argv")?.iter().filter_map(Value::as_str).collect();
        let number = |index: usize| argv.get(index).and_then(|text| text.parse().ok());
        let numbers = match argv.len() {
            4 => [number(1), number(2), number(3), Some(1)],
            5 => [number(1), number(2), number(3), number(4)],
            _ => [None; 4],
        };
        // A call without arguments names no key and fails in any case.
        Ok(Some(Self { key: argv.first().copied().unwrap_or_default().to_owned(), numbers: all_present(numbers) }))
    }

    /// Returns our reply for a key with this arrival time (0 if there is no key), and the arrival time after the
    /// call.
    fn decide(&self, arrival: u64, now: u64) -> Result<([i64; 5], u64), String> {
        let [max_burst, count, period, quantity] = self.numbers.ok_or("an argument is not a number")?;
        let call = Throttle::new(max_burst, count, period, quantity).map_err(|error| error.to_string())?;
        let mut state = [arrival];
        let reply = call.decide(&mut state, &Now::at(now));
        Ok((reply, state[0]))
    }

    /// Compares the replies for a key with this arrival time.
    fn compare(&self, step: &TraceStep, arrival: u64) -> ReadResult<StepResult> {
        let now = step.at_nanos(1)?;
        if arrival.saturating_sub(now) > Rate::MAX_FILL_TIME.as_nanos() {
            return Err(Skip::ImpossibleState);
        }
        let recorded: Vec<i64> = step.result.read_list("reply")?.iter().filter_map(Value::as_i64).collect();
        if recorded.len() != 5 {
            return Err(Skip::Field("reply"));
        }
        let ours = self.decide(arrival, now).map(|(reply, _)| reply);
        let is_ours = |reply: &[i64]| ours.as_ref().is_ok_and(|ours| ours == reply);
        Ok(Comparison::new()
            .expect_equal("reply", Ok(recorded.clone()), ours.clone().map(Vec::from))
            .result()
            .or_known_difference(&BEYOND_64_BIT_NANOSECONDS, || self.is_beyond_time())
            .or_known_difference(&MORE_THAN_A_MILLION_PER_SECOND, || {
                self.interval_per_request() < 1_000
                    && ours.as_ref().is_ok_and(|ours| is_ours(&with_replaced_number(&recorded, 2, ours[2])))
            })
            .or_known_difference(&MINUS_ONE_REMAINING, || {
                recorded[2] == -1 && is_ours(&with_replaced_number(&recorded, 2, 0))
            })
            .or_known_difference(&CREDIT_ABOVE_BURST, || {
                let full = with_replaced_number(&with_replaced_number(&recorded, 2, recorded[1]), 4, 0);
                step.result.optional_int("stored_tat_ns").is_some_and(|stored| stored < i128::from(now))
                    && is_ours(&full)
            }))
    }

    /// Returns the interval per request in nanoseconds.
    fn interval_per_request(&self) -> i128 {
        let [_, count, period, _] = self.numbers.unwrap_or([0, 1, 0, 0]).map(i128::from);
        period * 1_000_000_000 / if count == 0 { 1 } else { count }
    }

    /// Returns whether an intermediate product exceeds the time range of redis-cell or of our types.
    fn is_beyond_time(&self) -> bool {
        let [max_burst, _, _, quantity] = self.numbers.unwrap_or_default().map(i128::from);
        let interval = self.interval_per_request().abs();
        interval > i128::from(Rate::MAX_PERIOD.as_nanos())
            || interval * (max_burst + 1) > i128::from(Rate::MAX_FILL_TIME.as_nanos())
            || interval * quantity.abs() > i128::from(i64::MAX)
    }
}

fn all_present(numbers: [Option<i64>; 4]) -> Option<[i64; 4]> {
    let [Some(a), Some(b), Some(c), Some(d)] = numbers else { return None };
    Some([a, b, c, d])
}

/// Returns the recorded reply with one number replaced.
fn with_replaced_number(recorded: &[i64], index: usize, number: i64) -> Vec<i64> {
    let mut reply = recorded.to_vec();
    reply[index] = number;
    reply
}
