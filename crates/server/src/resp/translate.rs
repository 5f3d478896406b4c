//! Commands to calls, and decisions to replies.

use tollgate::redis_cell::Throttle;
use tollgate::{Outcome, Retry};
use tollgate_engine::rules::Refusal;
use tollgate_engine::{Decision, LimitReport};

use super::replay::Turn;
use super::wire::{Replies, integer};
use crate::app::Verb;

/// How redis-cell begins every error.
const CELL_ERROR: &str = "Cell error: Store error:";

/// The numbers of `CL.THROTTLE`, after the key: burst, count, period and quantity.
///
/// # Errors
/// In the words of redis-cell.
#[inline]
pub fn throttle_numbers(args: &[&[u8]]) -> Result<[i64; 4], String> {
    let (texts, quantity) = match args {
        [_, _, texts @ .., quantity] if texts.len() == 3 => (texts, Some(quantity)),
        [_, _, texts @ ..] if texts.len() == 3 => (texts, None),
        _ => {
            let usage = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
            return Err(format!("{CELL_ERROR} {usage}"));
        }
    };
    let mut numbers = [0, 0, 0, 1];
    for (number, text) in numbers.iter_mut().zip(texts.iter().chain(quantity)) {
        *number = integer(text).ok_or_else(|| not_an_integer(text))?;
    }
    Ok(numbers)
}

#[cold]
fn not_an_integer(text: &[u8]) -> String {
    format!("{CELL_ERROR} Couldn't parse as integer: {}", String::from_utf8_lossy(text))
}

/// The limit that these numbers are.
///
/// # Errors
/// In the words of redis-cell for a rate of zero, in ours for numbers that are too large.
pub fn throttle([max_burst, count, period, quantity]: [i64; 4]) -> Result<Throttle, String> {
    Throttle::new(max_burst, count, period, quantity).map_err(|error| format!("{CELL_ERROR} {error}"))
}

/// A decision under the names it has in JSON. What is true is 1; what is not told there is not told here.
pub(super) fn write_decision(replies: &mut Replies, decision: &Decision<'_>, verb: Verb, turn: Turn) {
    let refusal = decision.refusal();
    let status = refusal.and_then(|refusal: &Refusal| refusal.status);
    let message = refusal.and_then(|refusal| refusal.message.as_deref());
    let delay = match decision.outcome() {
        Outcome::Delay(wait) => Some(wait),
        Outcome::Allow | Outcome::Deny(_) => None,
    };
    let marks = [
        ("shadow_refused", decision.is_shadow_refused()),
        ("drop", refusal.is_some_and(|refusal| refusal.silent)),
        ("banned", decision.is_banned()),
        ("closed", decision.is_closed()),
        ("replayed", turn == Turn::Again),
    ];
    let uncounted = verb.tells_taken() && !decision.is_counted();
    let told = [
        verb.tells_receipt(),
        verb.tells_taken(),
        uncounted,
        delay.is_some(),
        decision.observed().is_some(),
        status.is_some(),
        message.is_some(),
    ];
    let more = told.into_iter().chain(marks.map(|(_, is_so)| is_so)).filter(|is_told| *is_told).count();
    replies.map(6 + more);
    replies.bulk("allowed");
    replies.integer(decision.is_allowed().into());
    replies.bulk("outcome");
    replies.bulk(word(decision.outcome()));
    replies.bulk("rule");
    name(replies, decision.rule().unwrap_or_default());
    replies.bulk("standing");
    replies.bulk(decision.standing().as_str());
    replies.bulk("retry_after_ms");
    replies.integer(millis(decision.retry().unwrap_or(Retry::NOW)));
    if verb.tells_receipt() {
        replies.bulk("receipt");
        replies.bulk(decision.receipt().to_string());
    }
    if verb.tells_taken() {
        replies.bulk("taken");
        replies.integer(whole(decision.taken().get()));
    }
    if uncounted {
        replies.bulk("counted");
        replies.integer(0);
    }
    if let Some(wait) = delay {
        replies.bulk("delay_ms");
        replies.integer(millis(Retry::After(wait)));
    }
    if let Some(observed) = decision.observed() {
        replies.bulk("observed");
        replies.bulk(word(observed));
    }
    if let Some(status) = status {
        replies.bulk("status");
        replies.integer(status.into());
    }
    if let Some(message) = message {
        replies.bulk("message");
        replies.bulk(message);
    }
    for (mark, _) in marks.into_iter().filter(|(_, is_so)| *is_so) {
        replies.bulk(mark);
        replies.integer(1);
    }
    replies.bulk("limits");
    replies.array(decision.reports().count());
    decision.reports().for_each(|limit| write_limit(replies, &limit));
}

fn write_limit(replies: &mut Replies, limit: &LimitReport<'_>) {
    replies.map(5 + usize::from(limit.shadow));
    replies.bulk("rule");
    name(replies, limit.rule);
    replies.bulk("limit");
    replies.integer(whole(limit.report.limit));
    replies.bulk("remaining");
    replies.integer(whole(limit.report.remaining));
    replies.bulk("retry_after_ms");
    replies.integer(millis(limit.report.retry));
    replies.bulk("reset_after_ms");
    replies.integer(millis(Retry::After(limit.report.reset)));
    if limit.shadow {
        replies.bulk("shadow");
        replies.integer(1);
    }
}

fn word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Allow => "allow",
        Outcome::Delay(_) => "delay",
        Outcome::Deny(_) => "deny",
    }
}

fn name(replies: &mut Replies, rule: &str) {
    match rule {
        "" => replies.null(),
        rule => replies.bulk(rule),
    }
}

/// Milliseconds, rounded up; -1 where no wait helps.
fn millis(retry: Retry) -> i64 {
    match retry {
        Retry::After(wait) => whole(wait.as_millis_ceil()),
        Retry::OnRelease | Retry::Never => -1,
    }
}

/// As far as the protocol counts.
pub(super) fn whole(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(args: &str, expected: Result<[i64; 4], &str>) {
        let args: Vec<&[u8]> = args.split('|').map(str::as_bytes).collect();
        assert_eq!(throttle_numbers(&args), expected.map_err(|error| format!("Cell error: Store error: {error}")));
    }

    #[test]
    fn the_arguments_of_a_throttling_call_are_three_or_four_numbers_after_the_key() {
        let usage = "Usage: cl.throttle <key> <max_burst> <count per period> <period> [<quantity>]";
        check("CL.THROTTLE|k|15|30|60", Ok([15, 30, 60, 1]));
        check("CL.THROTTLE|k|15|30|60|-7", Ok([15, 30, 60, -7]));
        check("CL.THROTTLE|k|+1|30|60", Ok([1, 30, 60, 1]));
        for wrong in ["CL.THROTTLE", "CL.THROTTLE|k", "CL.THROTTLE|k|1|1", "CL.THROTTLE|k|1|1|1|1|1"] {
            check(wrong, Err(usage));
        }
        check("CL.THROTTLE|k|x|1|1", Err("Couldn't parse as integer: x"));
        check("CL.THROTTLE|k|1|1|1|", Err("Couldn't parse as integer: "));
        check("CL.THROTTLE|k|1|9223372036854775808|1", Err("Couldn't parse as integer: 9223372036854775808"));
    }

    #[test]
    fn a_rate_of_zero_is_told_in_the_words_of_redis_cell() {
        assert_eq!(
            throttle([1, 0, 1, 1]).unwrap_err(),
            "Cell error: Store error: Zero rates are not supported".to_owned()
        );
        assert!(throttle([i64::MAX, 1, 1, 1]).unwrap_err().starts_with("Cell error: Store error: an amount of"));
    }
}
