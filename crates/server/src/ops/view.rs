//! The outputs of operations. Every protocol serialises the same view of a decision.

use std::borrow::Cow;

use bytes::Bytes;
use tollgate::core::Cost;
use tollgate::{Outcome, Retry};
use tollgate_engine::{CommitResult, Decision, Exactness, LimitReport};

use super::fields::{self, FieldOrder, FieldValue, FieldWriter};

/// The output of an operation. `'d` is the lifetime of the engine's buffers.
#[derive(Clone, Debug)]
pub enum Output<'d> {
    /// A decision.
    Decision(DecisionView<'d>),
    /// The refunded amount.
    Refunded(Cost),
    /// Whether all slots were still held and have been renewed.
    Renewed(bool),
    /// The amounts that a commit refunded and charged.
    Settled(CommitResult),
    /// The number of counters that were reset.
    Reset(usize),
    /// An explanation, in the format of the caller's protocol.
    Explained(Bytes),
    /// A page about the server.
    Page(PageView),
}

/// A page about the server.
#[derive(Clone, Debug)]
pub struct PageView {
    /// The media type of the body.
    pub content_type: &'static str,
    /// Whether the server accepts requests. Only the readiness page sets this to false.
    pub ready: bool,
    /// The page.
    pub body: Bytes,
}

/// A decision as callers see it.
#[derive(Clone, Debug)]
pub struct DecisionView<'d> {
    /// Whether the request is admitted, immediately or after a delay.
    pub outcome: Outcome,
    /// The HTTP status that the rule configures for its refusals.
    pub status: Option<u16>,
    rule: Option<Cow<'d, str>>,
    exactness: Exactness,
    observed: Option<Outcome>,
    taken: Option<Cost>,
    /// Whether no limit counted the request. Set only for verbs that show the amount taken.
    uncounted: bool,
    receipt: Option<String>,
    message: Option<Cow<'d, str>>,
    /// Four flags, in this order:
    /// - A shadow rule would have refused the request.
    /// - The rule drops refused requests without a response.
    /// - A ban refused the request.
    /// - The request was refused only because the store failed (`on_fault: closed`).
    flags: [bool; 4],
    limits: ViewLimits<'d>,
}

/// Optional fields of a view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ViewOptions {
    /// Includes the amount taken.
    pub taken: bool,
    /// Includes a receipt.
    pub receipt: bool,
}

#[derive(Clone, Debug)]
enum ViewLimits<'d> {
    /// Read from the engine's buffers during serialisation.
    Live(Decision<'d>),
    /// A copy, stored under an idempotency key.
    Stored(Box<[(Box<str>, LimitReport<'static>)]>),
}

impl<'d> DecisionView<'d> {
    /// Creates the view of a decision.
    pub fn new(decision: Decision<'d>, options: ViewOptions) -> Self {
        let refusal = decision.refusal();
        Self {
            outcome: decision.outcome(),
            rule: decision.rule().filter(|rule| !rule.is_empty()).map(Cow::Borrowed),
            exactness: decision.exactness(),
            observed: decision.observed(),
            taken: options.taken.then(|| decision.taken()),
            uncounted: options.taken && !decision.has_evaluated_limits(),
            receipt: options.receipt.then(|| decision.receipt().to_string()),
            status: refusal.and_then(|refusal| refusal.status),
            message: refusal.and_then(|refusal| refusal.message.as_deref()).map(Cow::Borrowed),
            flags: [
                decision.is_shadow_refused(),
                refusal.is_some_and(|refusal| refusal.silent),
                decision.is_refused_by_ban(),
                decision.is_refused_by_fault(),
            ],
            limits: ViewLimits::Live(decision),
        }
    }

    /// Returns whether the request is admitted.
    pub fn is_allowed(&self) -> bool {
        self.outcome.is_admitted()
    }

    /// Returns the id of the deciding rule, or `None` if no rule decided.
    pub fn rule(&self) -> Option<&str> {
        self.rule.as_deref()
    }

    /// Returns the message that the refusing rule configures.
    pub fn message(&self) -> Option<&str> {
        self.message.as_deref()
    }

    /// Returns when to retry, if the request was refused.
    pub fn retry(&self) -> Option<Retry> {
        match self.outcome {
            Outcome::Allow | Outcome::Delay(_) => None,
            Outcome::Deny(retry) => Some(retry),
        }
    }

    /// Passes the fields to a writer, in the writer's order.
    #[inline]
    pub fn write_fields<W: FieldWriter>(&self, to: &mut W, replayed: bool) {
        let is_resp = W::ORDER == FieldOrder::Resp;
        let [shadow_refused, drop, banned, closed] = self.flags;
        let receipt = self.receipt.as_deref().map(FieldValue::Text);
        to.write(fields::ALLOWED, FieldValue::Bool(self.is_allowed()));
        to.write(fields::OUTCOME, FieldValue::Text(outcome_name(self.outcome)));
        to.write(fields::RULE, FieldValue::Rule(self.rule.as_deref()));
        to.write(fields::STANDING, FieldValue::Text(self.exactness.as_str()));
        to.write(fields::RETRY_AFTER_MS, FieldValue::Wait(retry_ms(self.retry().unwrap_or(Retry::NOW))));
        to.write_some(fields::RECEIPT, receipt.filter(|_| is_resp));
        to.write_some(fields::TAKEN, self.taken.map(|taken| FieldValue::Number(taken.get())));
        if self.uncounted {
            to.write(fields::COUNTED, FieldValue::Bool(false));
        }
        if let Outcome::Delay(wait) = self.outcome {
            to.write(fields::DELAY_MS, FieldValue::Number(wait.as_millis_ceil()));
        }
        to.write_some(fields::OBSERVED, self.observed.map(|outcome| FieldValue::Text(outcome_name(outcome))));
        to.write_flag(fields::SHADOW_REFUSED, shadow_refused && !is_resp);
        to.write_some(fields::STATUS, self.status.map(|status| FieldValue::Number(status.into())));
        to.write_some(fields::MESSAGE, self.message.as_deref().map(FieldValue::Text));
        to.write_flag(fields::SHADOW_REFUSED, shadow_refused && is_resp);
        to.write_flag(fields::DROP, drop);
        to.write_flag(fields::BANNED, banned);
        to.write_flag(fields::CLOSED, closed);
        to.write_flag(fields::REPLAYED, replayed);
        to.write(fields::LIMITS, FieldValue::Limits(self));
        to.write_some(fields::RECEIPT, receipt.filter(|_| !is_resp));
    }

    /// Returns the limits of all matching rules, in rule order.
    #[inline]
    pub fn limits(&self) -> impl Iterator<Item = LimitReport<'_>> {
        let (live, stored) = match &self.limits {
            ViewLimits::Live(decision) => (Some(decision.reports()), None),
            ViewLimits::Stored(limits) => {
                (None, Some(limits.iter().map(|(rule, report)| LimitReport { rule, ..*report })))
            }
        };
        live.into_iter().flatten().chain(stored.into_iter().flatten())
    }

    /// Returns the number of limits.
    pub fn limit_count(&self) -> usize {
        match &self.limits {
            ViewLimits::Live(decision) => decision.report_count(),
            ViewLimits::Stored(limits) => limits.len(),
        }
    }

    fn into_owned(self) -> DecisionView<'static> {
        let owned = |text: Option<Cow<'d, str>>| text.map(|text| Cow::Owned(text.into_owned()));
        let limits = self.limits().map(|limit| (limit.rule.into(), LimitReport { rule: "", ..limit })).collect();
        DecisionView {
            outcome: self.outcome,
            rule: owned(self.rule),
            exactness: self.exactness,
            observed: self.observed,
            taken: self.taken,
            uncounted: self.uncounted,
            receipt: self.receipt,
            status: self.status,
            message: owned(self.message),
            flags: self.flags,
            limits: ViewLimits::Stored(limits),
        }
    }
}

/// Passes the fields of a limit to a writer.
#[inline]
pub fn write_limit_fields(limit: &LimitReport<'_>, to: &mut impl FieldWriter) {
    let report = &limit.report;
    to.write(fields::RULE, FieldValue::Rule(Some(limit.rule).filter(|rule| !rule.is_empty())));
    to.write(fields::LIMIT, FieldValue::Number(report.limit));
    to.write(fields::REMAINING, FieldValue::Number(report.remaining));
    to.write(fields::RETRY_AFTER_MS, FieldValue::Wait(retry_ms(report.retry)));
    to.write(fields::RESET_AFTER_MS, FieldValue::Number(report.reset.as_millis_ceil()));
    to.write_flag(fields::SHADOW, limit.shadow);
}

/// Passes the fields of a settled reservation to a writer.
pub fn write_settled_fields(settled: &CommitResult, to: &mut impl FieldWriter, replayed: bool) {
    to.write(fields::REFUNDED, FieldValue::Number(settled.refunded.get()));
    to.write(fields::CHARGED, FieldValue::Number(settled.charged.get()));
    to.write(fields::UNPAID, FieldValue::Number(settled.unpaid.get()));
    to.write_flag(fields::REPLAYED, replayed);
}

impl Output<'_> {
    /// Returns whether the output of a single call is stored under its idempotency key. A refusal takes nothing and is
    /// not stored, because a caller who repeats a refused request wants the current state.
    pub fn is_stored_for_replay(&self) -> bool {
        match self {
            Self::Decision(decision) => decision.is_allowed(),
            Self::Refunded(_) | Self::Renewed(_) | Self::Settled(_) | Self::Reset(_) => true,
            Self::Explained(_) | Self::Page(_) => false,
        }
    }

    /// Returns a copy that does not borrow the engine's buffers.
    pub fn into_owned(self) -> Output<'static> {
        match self {
            Self::Decision(decision) => Output::Decision(decision.into_owned()),
            Self::Refunded(cost) => Output::Refunded(cost),
            Self::Renewed(renewed) => Output::Renewed(renewed),
            Self::Settled(settled) => Output::Settled(settled),
            Self::Reset(counters) => Output::Reset(counters),
            Self::Explained(explanation) => Output::Explained(explanation),
            Self::Page(page) => Output::Page(page),
        }
    }

    /// Returns the approximate memory size of the owned copy.
    pub fn approximate_bytes(&self) -> usize {
        let mut bytes = size_of::<Output<'static>>();
        if let Self::Decision(decision) = self {
            bytes += decision.receipt.as_ref().map_or(0, String::len);
            bytes += decision.limits().map(|limit| size_of_val(&limit) + 16 + limit.rule.len()).sum::<usize>();
        }
        bytes
    }
}

/// Returns the name of an outcome, which is the same in every protocol.
pub const fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Allow => "allow",
        Outcome::Delay(_) => "delay",
        Outcome::Deny(_) => "deny",
    }
}

/// Returns the wait before a retry in milliseconds, rounded up. Returns `None` if no time is known after which a retry
/// can succeed.
pub fn retry_ms(retry: Retry) -> Option<u64> {
    match retry {
        Retry::After(wait) => Some(wait.as_millis_ceil()),
        Retry::OnRelease | Retry::Never => None,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use tollgate::Report;
    use tollgate::core::Nanos;

    /// Returns sample outputs. Together, the outputs cover every field, both present and absent, and every kind of
    /// value.
    pub(crate) fn sample_outputs() -> Vec<Output<'static>> {
        let limit = |rule: &str, limit, remaining, retry, reset, shadow| {
            let report = Report { limit, remaining, retry, reset: Nanos::from_nanos(reset) };
            (rule.into(), LimitReport { item: 0, rule: "", limit: 0, report, window: None, shadow, refused: false })
        };
        let plain = DecisionView {
            outcome: Outcome::Allow,
            status: None,
            rule: Some("per-client".into()),
            exactness: Exactness::Exact,
            observed: None,
            taken: None,
            uncounted: false,
            receipt: None,
            message: None,
            flags: [false; 4],
            limits: ViewLimits::Stored(Box::new([
                limit("per-client", 1_000_000, 999_999, Retry::NOW, 1_000, false),
                limit("all", 5, 0, Retry::After(Nanos::from_secs(86_400)), 99_000_000, false),
            ])),
        };
        let unlimited = DecisionView { rule: None, limits: ViewLimits::Stored(Box::new([])), ..plain.clone() };
        let refused = DecisionView {
            outcome: Outcome::Deny(Retry::After(Nanos::from_nanos(1_500_001))),
            status: Some(429),
            rule: Some("a \"rule\"".into()),
            exactness: Exactness::Fallback,
            observed: Some(Outcome::Deny(Retry::Never)),
            taken: Some(Cost::ZERO),
            uncounted: true,
            receipt: Some("r1.".repeat(40)),
            message: Some("zu viele\nAnfragen: ü".into()),
            flags: [true; 4],
            limits: ViewLimits::Stored(Box::new([
                limit("", 10, 9, Retry::OnRelease, 0, true),
                limit(&"long".repeat(30), u64::MAX, 100, Retry::Never, u64::MAX, false),
            ])),
        };
        let delayed = DecisionView {
            outcome: Outcome::Delay(Nanos::from_millis(250)),
            exactness: Exactness::Leased,
            observed: Some(Outcome::Delay(Nanos::SECOND)),
            taken: Some(Cost::new(12)),
            ..plain.clone()
        };
        let never =
            DecisionView { outcome: Outcome::Deny(Retry::Never), exactness: Exactness::Eventual, ..plain.clone() };
        let flagged = |index: usize| DecisionView { flags: std::array::from_fn(|flag| flag == index), ..never.clone() };
        let settled = CommitResult { refunded: Cost::new(7), charged: Cost::ZERO, unpaid: Cost::MAX };
        let decisions = [plain, unlimited, refused, delayed, never.clone()].into_iter().chain((0..4).map(flagged));
        let others =
            [Output::Refunded(Cost::new(12)), Output::Renewed(true), Output::Settled(settled), Output::Reset(2)];
        decisions.map(Output::Decision).chain(others).collect()
    }
}
