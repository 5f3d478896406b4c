//! What an operation returns: one view of a decision, which every protocol serialises, and the other outputs.

use std::borrow::Cow;
use std::sync::Arc;

use bytes::Bytes;
use tollgate::core::Cost;
use tollgate::{Outcome, Retry};
use tollgate_engine::{Decision, Explanation, LimitReport, Settled, Standing};

/// What an operation returns. `'d` is the lifetime of the engine's buffers.
#[derive(Clone, Debug)]
pub enum Output<'d> {
    /// A decision.
    Decision(DecisionView<'d>),
    /// How much was returned.
    Refunded(Cost),
    /// Whether all slots were still held, and so are renewed.
    Renewed(bool),
    /// What a commit returned and charged.
    Settled(Settled),
    /// How many counters were reset.
    Reset(usize),
    /// An explanation.
    Explained(Arc<Explanation>),
    /// A page about the server.
    Page(PageView),
}

/// A page about the server.
#[derive(Clone, Debug)]
pub struct PageView {
    /// What the body is.
    pub format: PageFormat,
    /// Whether the server accepts requests; only readiness says no.
    pub ready: bool,
    /// The page.
    pub body: Bytes,
}

/// The format of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageFormat {
    /// Plain text.
    Text,
    /// JSON.
    Json,
    /// The text format of Prometheus.
    Prometheus,
}

/// A decision as callers see it. Fields that a caller is not to see are `None`, false or empty.
#[derive(Clone, Debug)]
pub struct DecisionView<'d> {
    /// Whether the request passes, at once or after a delay.
    pub outcome: Outcome,
    /// The rule that decided; `None` for an inline limit, or if no rule matched.
    pub rule: Option<Cow<'d, str>>,
    /// Whether the decision is exact.
    pub standing: Standing,
    /// The outcome that was only observed.
    pub observed: Option<Outcome>,
    /// How much was taken, for verbs that may take another amount than the cost.
    pub taken: Option<Cost>,
    /// Whether no limit counted the request, where the amount taken is shown.
    pub uncounted: bool,
    /// The receipt, if the verb gives one or the caller asks for one.
    pub receipt: Option<String>,
    /// The status that the rule wants for its refusal.
    pub status: Option<u16>,
    /// The message that the rule wants for its refusal.
    pub message: Option<Cow<'d, str>>,
    flags: [bool; 4],
    limits: Limits<'d>,
}

/// The fields that a view has beyond those of every decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// The amount taken.
    pub taken: bool,
    /// A receipt.
    pub receipt: bool,
}

#[derive(Clone, Debug)]
enum Limits<'d> {
    /// Read from the engine's buffers when they are serialised.
    Live(Decision<'d>),
    /// Copied, to be stored under an idempotency key.
    Stored(Box<[(Box<str>, LimitReport<'static>)]>),
}

impl<'d> DecisionView<'d> {
    /// Returns the view of a decision.
    pub fn new(decision: Decision<'d>, shown: Shown) -> Self {
        let refusal = decision.refusal();
        Self {
            outcome: decision.outcome(),
            rule: decision.rule().filter(|rule| !rule.is_empty()).map(Cow::Borrowed),
            standing: decision.standing(),
            observed: decision.observed(),
            taken: shown.taken.then(|| decision.taken()),
            uncounted: shown.taken && !decision.is_counted(),
            receipt: shown.receipt.then(|| decision.receipt().to_string()),
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

    /// Returns whether the request passes.
    pub fn is_allowed(&self) -> bool {
        self.outcome.is_admitted()
    }

    /// Returns when to ask again, if the request was refused.
    pub fn retry(&self) -> Option<Retry> {
        match self.outcome {
            Outcome::Allow | Outcome::Delay(_) => None,
            Outcome::Deny(retry) => Some(retry),
        }
    }

    /// Returns how long the request has to be delayed in milliseconds, rounded up.
    pub fn delay_ms(&self) -> Option<u64> {
        match self.outcome {
            Outcome::Delay(wait) => Some(wait.as_millis_ceil()),
            Outcome::Allow | Outcome::Deny(_) => None,
        }
    }

    /// Returns the flags with their names in every protocol: a shadow rule would have refused; the rule wants the request dropped
    /// without an answer; a ban refused; it was refused only because the store failed.
    pub fn flags(&self) -> [(&'static str, bool); 4] {
        let [shadow_refused, drop, banned, closed] = self.flags;
        [("shadow_refused", shadow_refused), ("drop", drop), ("banned", banned), ("closed", closed)]
    }

    /// Returns every limit of every rule that matched, in the order of the rules.
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

impl Output<'_> {
    /// Returns whether the operation changed something. A refusal did not: a caller who repeats it wants the current state.
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

    /// Returns the memory it takes once it is owned, approximately.
    pub fn bytes(&self) -> usize {
        let mut bytes = size_of::<Output<'static>>();
        if let Self::Decision(decision) = self {
            bytes += decision.receipt.as_ref().map_or(0, String::len);
            bytes += decision.limits().map(|limit| size_of_val(&limit) + 16 + limit.rule.len()).sum::<usize>();
        }
        bytes
    }
}

/// Returns an outcome in one word, as every protocol writes it.
pub const fn outcome_name(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Allow => "allow",
        Outcome::Delay(_) => "delay",
        Outcome::Deny(_) => "deny",
    }
}

/// Returns when to ask again in milliseconds, rounded up; `None` where no wait helps.
pub fn retry_ms(retry: Retry) -> Option<u64> {
    match retry {
        Retry::After(wait) => Some(wait.as_millis_ceil()),
        Retry::OnRelease | Retry::Never => None,
    }
}
