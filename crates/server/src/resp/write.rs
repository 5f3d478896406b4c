//! Outputs and errors to replies.

use tollgate::Retry;
use tollgate_engine::{LimitReport, Settled};

use super::wire::Replies;
use crate::ops::error::{ErrorKind, OpError};
use crate::ops::view::{DecisionView, Output, outcome_name, retry_ms};

/// Writes an output. Booleans are 0 and 1.
pub(super) fn write(replies: &mut Replies, output: &Output<'_>, replayed: bool) {
    match output {
        Output::Decision(decision) => write_decision(replies, decision, replayed),
        Output::Settled(Settled { refunded, charged, unpaid }) => {
            let amounts = [("refunded", refunded), ("charged", charged), ("unpaid", unpaid)];
            replies.map(amounts.len() + usize::from(replayed));
            amounts.into_iter().for_each(|(name, amount)| field(replies, name, amount.get()));
            flag(replies, "replayed", replayed);
        }
        Output::Refunded(cost) => replies.integer(whole(cost.get())),
        Output::Renewed(renewed) => replies.integer((*renewed).into()),
        Output::Reset(counters) => replies.integer(whole(*counters as u64)),
        Output::Explained(explanation) => replies.bulk(explanation.to_string()),
        Output::Page(page) => replies.bulk(&page.body),
    }
}

/// Writes an error. The one place where errors of operations become error codes.
pub(super) fn write_error(replies: &mut Replies, error: &OpError) {
    let code = match error.kind {
        ErrorKind::Invalid | ErrorKind::KeyReused | ErrorKind::StoreFailed => "ERR",
        ErrorKind::Forbidden => "NOPERM",
        ErrorKind::KeyInUse => "TRYAGAIN",
    };
    replies.error(&format!("{code} {}", error.detail));
}

/// Writes a decision under the names it has in JSON.
fn write_decision(replies: &mut Replies, decision: &DecisionView<'_>, replayed: bool) {
    let numbers = [
        ("taken", decision.taken.map(|taken| taken.get())),
        ("counted", decision.uncounted.then_some(0)),
        ("delay_ms", decision.delay_ms()),
    ];
    let [shadow_refused, drop, banned, closed] = decision.flags();
    let flags = [shadow_refused, drop, banned, closed, ("replayed", replayed)];
    let optional = [
        decision.receipt.is_some(),
        decision.observed.is_some(),
        decision.status.is_some(),
        decision.message.is_some(),
    ];
    let more =
        optional.into_iter().chain(numbers.map(|(_, value)| value.is_some())).chain(flags.map(|(_, holds)| holds));
    replies.map(6 + more.filter(|is_shown| *is_shown).count());
    field(replies, "allowed", u64::from(decision.is_allowed()));
    text(replies, "outcome", outcome_name(decision.outcome));
    name(replies, decision.rule.as_deref().unwrap_or_default());
    text(replies, "standing", decision.standing.as_str());
    replies.bulk("retry_after_ms");
    replies.integer(wait_ms(decision.retry().unwrap_or(Retry::NOW)));
    if let Some(receipt) = &decision.receipt {
        text(replies, "receipt", receipt);
    }
    for (name, value) in numbers {
        if let Some(value) = value {
            field(replies, name, value);
        }
    }
    if let Some(observed) = decision.observed {
        text(replies, "observed", outcome_name(observed));
    }
    if let Some(status) = decision.status {
        field(replies, "status", status.into());
    }
    if let Some(message) = &decision.message {
        text(replies, "message", message);
    }
    flags.into_iter().for_each(|(name, holds)| flag(replies, name, holds));
    replies.bulk("limits");
    replies.array(decision.limits().count());
    decision.limits().for_each(|limit| write_limit(replies, &limit));
}

fn write_limit(replies: &mut Replies, limit: &LimitReport<'_>) {
    replies.map(5 + usize::from(limit.shadow));
    name(replies, limit.rule);
    field(replies, "limit", limit.report.limit);
    field(replies, "remaining", limit.report.remaining);
    replies.bulk("retry_after_ms");
    replies.integer(wait_ms(limit.report.retry));
    field(replies, "reset_after_ms", limit.report.reset.as_millis_ceil());
    flag(replies, "shadow", limit.shadow);
}

fn field(replies: &mut Replies, name: &str, value: u64) {
    replies.bulk(name);
    replies.integer(whole(value));
}

fn text(replies: &mut Replies, name: &str, value: &str) {
    replies.bulk(name);
    replies.bulk(value);
}

fn flag(replies: &mut Replies, name: &str, holds: bool) {
    if holds {
        field(replies, name, 1);
    }
}

/// Writes the name of a rule; that of an inline limit is null.
fn name(replies: &mut Replies, rule: &str) {
    replies.bulk("rule");
    match rule {
        "" => replies.null(),
        rule => replies.bulk(rule),
    }
}

/// Returns milliseconds, rounded up; -1 where no wait helps.
fn wait_ms(retry: Retry) -> i64 {
    retry_ms(retry).map_or(-1, whole)
}

/// Saturates at the largest integer of the protocol.
fn whole(number: u64) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}
