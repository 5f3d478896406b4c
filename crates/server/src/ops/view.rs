//! The outputs of operations. Every protocol serialises the same view of a decision.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use tollgate::core::Cost;
use tollgate::{Outcome, Retry};
use tollgate_engine::{Decision, LimitReport, Settled, Standing};

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
    Settled(Settled),
    /// The number of counters that were reset.
    Reset(usize),
    /// An explanation, in the format of the caller's protocol.
    Explained(Arc<str>),
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

/// A field of an output.
#[derive(Clone, Copy, Debug)]
pub enum FieldValue<'v> {
    /// The field is omitted.
    Absent,
    /// A boolean.
    Bool(bool),
    /// A number.
    Number(u64),
    /// Milliseconds to wait; `None` if waiting does not help.
    Wait(Option<u64>),
    /// A string.
    Text(&'v str),
    /// The id of a rule; `None` for an inline limit.
    Rule(Option<&'v str>),
    /// The limits of a decision.
    Limits(&'v DecisionView<'v>),
}

/// A field with its name. Names are the same in every protocol.
pub type Field<'v> = (&'static str, FieldValue<'v>);

/// A decision as callers see it.
#[derive(Clone, Debug)]
pub struct DecisionView<'d> {
    /// Whether the request is admitted, immediately or after a delay.
    pub outcome: Outcome,
    /// The HTTP status that the rule configures for its refusals.
    pub status: Option<u16>,
    rule: Option<Cow<'d, str>>,
    standing: Standing,
    observed: Option<Outcome>,
    taken: Option<Cost>,
    /// Whether no limit counted the request. Only set for verbs that show the amount taken.
    uncounted: bool,
    receipt: Option<String>,
    message: Option<Cow<'d, str>>,
    /// Four flags: a shadow rule would have refused; the rule drops refused requests without a response; a ban refused;
    /// the request was refused only because the store failed (`on_fault: closed`).
    flags: [bool; 4],
    limits: Limits<'d>,
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
enum Limits<'d> {
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
            standing: decision.standing(),
            observed: decision.observed(),
            taken: options.taken.then(|| decision.taken()),
            uncounted: options.taken && !decision.is_counted(),
            receipt: options.receipt.then(|| decision.receipt().to_string()),
            status: refusal.and_then(|refusal| refusal.status),
            message: refusal.and_then(|refusal| refusal.message.as_deref()).map(Cow::Borrowed),
            flags: [
                decision.is_shadow_refused(),
                refusal.is_some_and(|refusal| refusal.silent),
                decision.is_banned(),
                decision.is_closed(),
            ],
            limits: Limits::Live(decision),
        }
    }

    /// Returns whether the request is admitted.
    pub fn is_allowed(&self) -> bool {
        self.outcome.is_admitted()
    }

    /// Returns the id of the deciding rule; `None` if no rule decided.
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

    /// Returns the fields in serialisation order.
    pub fn fields(&self) -> [Field<'_>; 17] {
        let number = |value: Option<u64>| value.map_or(FieldValue::Absent, FieldValue::Number);
        let flag = |holds: bool| if holds { FieldValue::Bool(true) } else { FieldValue::Absent };
        let delay = match self.outcome {
            Outcome::Delay(wait) => Some(wait.as_millis_ceil()),
            Outcome::Allow | Outcome::Deny(_) => None,
        };
        let [shadow_refused, drop, banned, closed] = self.flags;
        [
            ("allowed", FieldValue::Bool(self.is_allowed())),
            ("outcome", FieldValue::Text(outcome_name(self.outcome))),
            ("rule", FieldValue::Rule(self.rule.as_deref())),
            ("standing", FieldValue::Text(self.standing.as_str())),
            ("retry_after_ms", FieldValue::Wait(retry_ms(self.retry().unwrap_or(Retry::NOW)))),
            ("taken", number(self.taken.map(Cost::get))),
            ("counted", if self.uncounted { FieldValue::Bool(false) } else { FieldValue::Absent }),
            ("delay_ms", number(delay)),
            ("observed", self.observed.map_or(FieldValue::Absent, |outcome| FieldValue::Text(outcome_name(outcome)))),
            ("shadow_refused", flag(shadow_refused)),
            ("status", number(self.status.map(u64::from))),
            ("message", self.message.as_deref().map_or(FieldValue::Absent, FieldValue::Text)),
            ("drop", flag(drop)),
            ("banned", flag(banned)),
            ("closed", flag(closed)),
            ("limits", FieldValue::Limits(self)),
            ("receipt", self.receipt.as_deref().map_or(FieldValue::Absent, FieldValue::Text)),
        ]
    }

    /// Returns the limits of all matching rules, in rule order.
    #[inline]
    pub fn limits(&self) -> impl Iterator<Item = LimitReport<'_>> {
        let (live, stored) = match &self.limits {
            Limits::Live(decision) => (Some(decision.reports()), None),
            Limits::Stored(limits) => (None, Some(limits.iter().map(|(rule, report)| LimitReport { rule, ..*report }))),
        };
        live.into_iter().flatten().chain(stored.into_iter().flatten())
    }

    fn into_owned(self) -> DecisionView<'static> {
        let owned = |text: Option<Cow<'d, str>>| text.map(|text| Cow::Owned(text.into_owned()));
        let limits = self.limits().map(|limit| (limit.rule.into(), LimitReport { rule: "", ..limit })).collect();
        DecisionView {
            outcome: self.outcome,
            rule: owned(self.rule),
            standing: self.standing,
            observed: self.observed,
            taken: self.taken,
            uncounted: self.uncounted,
            receipt: self.receipt,
            status: self.status,
            message: owned(self.message),
            flags: self.flags,
            limits: Limits::Stored(limits),
        }
    }
}

/// Returns the fields of a limit.
pub fn limit_fields<'v>(limit: &LimitReport<'v>) -> [Field<'v>; 6] {
    let report = &limit.report;
    [
        ("rule", FieldValue::Rule(Some(limit.rule).filter(|rule| !rule.is_empty()))),
        ("limit", FieldValue::Number(report.limit)),
        ("remaining", FieldValue::Number(report.remaining)),
        ("retry_after_ms", FieldValue::Wait(retry_ms(report.retry))),
        ("reset_after_ms", FieldValue::Number(report.reset.as_millis_ceil())),
        ("shadow", if limit.shadow { FieldValue::Bool(true) } else { FieldValue::Absent }),
    ]
}

/// Returns the fields of a settled reservation.
pub fn settled_fields(settled: &Settled) -> [Field<'static>; 3] {
    [("refunded", settled.refunded), ("charged", settled.charged), ("unpaid", settled.unpaid)]
        .map(|(name, cost)| (name, FieldValue::Number(cost.get())))
}

impl Output<'_> {
    /// Returns whether the operation changed a counter. Refusals changed none and are not stored for replay: a caller
    /// who repeats a refused request wants the current state.
    pub fn took_effect(&self) -> bool {
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
    pub fn bytes(&self) -> usize {
        let mut bytes = size_of::<Output<'static>>();
        if let Self::Decision(decision) = self {
            bytes += decision.receipt.as_ref().map_or(0, String::len);
            bytes += decision.limits().map(|limit| size_of_val(&limit) + 16 + limit.rule.len()).sum::<usize>();
        }
        bytes
    }
}

/// Returns the name of an outcome, the same in every protocol.
pub const fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Allow => "allow",
        Outcome::Delay(_) => "delay",
        Outcome::Deny(_) => "deny",
    }
}

/// Returns the wait before a retry in milliseconds, rounded up; `None` if waiting does not help.
pub fn retry_ms(retry: Retry) -> Option<u64> {
    match retry {
        Retry::After(wait) => Some(wait.as_millis_ceil()),
        Retry::OnRelease | Retry::Never => None,
    }
}
