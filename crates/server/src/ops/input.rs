//! The protocol-independent input of operations, which front ends build.

use std::sync::Arc;
use std::time::Duration;

use tollgate::core::Cost;
use tollgate_engine::{Attribute, Enforcement, InternedLimits, Item, Receipt};

use super::acquire::MAX_WAIT;
use super::error::OpError;
use crate::control::auth::Scope;

/// The input of one call of an operation.
#[derive(Debug)]
pub enum Input<'a> {
    /// A request to decide, explain or reset.
    Request(RequestInput<'a>),
    /// A receipt to settle or renew, and the actual cost for a commit.
    Receipt(Receipt, Option<Cost>),
    /// The new enforcement mode.
    Enforcement(Enforcement),
    /// No input, because the operation is a page.
    None,
}

/// A request to decide, explain or reset.
#[derive(Debug)]
pub struct RequestInput<'a> {
    /// The limits that decide the request.
    pub limits: LimitsInput<'a>,
    /// The cost; if `None`, each rule determines it.
    pub cost: Option<Cost>,
    /// Maximum wait for admission.
    pub wait: Duration,
    /// Whether the caller asks for a receipt.
    pub receipt: bool,
}

/// The limits that decide a request.
#[derive(Debug)]
pub enum LimitsInput<'a> {
    /// The rules of a domain that match the attributes.
    Rules {
        /// The domain.
        domain: &'a [u8],
        /// The attributes of the request.
        attributes: Vec<Attribute<'a>>,
    },
    /// An inline limit.
    Inline {
        /// The key to count by.
        key: &'a [u8],
        /// The limit.
        limits: Arc<InternedLimits>,
    },
}

impl<'a> RequestInput<'a> {
    /// Creates a request that neither waits nor asks for a receipt.
    pub fn new(limits: LimitsInput<'a>, cost: Option<Cost>) -> Self {
        Self { limits, cost, wait: Duration::ZERO, receipt: false }
    }

    /// Returns the domain, which is empty for an inline limit.
    pub fn domain(&self) -> &'a [u8] {
        match &self.limits {
            LimitsInput::Rules { domain, .. } => domain,
            LimitsInput::Inline { .. } => &[],
        }
    }

    /// Converts the request to an engine item with the given cost.
    pub fn to_item(&self, cost: Option<Cost>) -> Item<'_> {
        match &self.limits {
            LimitsInput::Rules { attributes, .. } => Item { cost, ..Item::new(attributes) },
            LimitsInput::Inline { key, limits } => Item { cost, ..Item::inline(*key, limits) },
        }
    }

    /// Describes the request for the audit log: its attributes, or the key of its inline limit.
    pub fn audit_subject(&self) -> String {
        match &self.limits {
            LimitsInput::Rules { attributes, .. } => {
                let text = String::from_utf8_lossy;
                let pair = |attribute: &Attribute<'_>| format!("{}={}", text(attribute.name), text(attribute.value));
                attributes.iter().map(pair).collect::<Vec<_>>().join(" ")
            }
            LimitsInput::Inline { key, .. } => String::from_utf8_lossy(key).into_owned(),
        }
    }
}

impl Input<'_> {
    /// Calls `with` with the scope of the input: one domain, or all domains.
    pub fn with_scope<T>(&self, with: impl FnOnce(Scope<'_>) -> T) -> T {
        match self {
            Self::Request(RequestInput { limits: LimitsInput::Rules { domain, .. }, .. }) => {
                with(Scope::Domain(&String::from_utf8_lossy(domain)))
            }
            Self::Request(_) | Self::Receipt(..) | Self::Enforcement(_) | Self::None => with(Scope::AllDomains),
        }
    }
}

/// Parses a receipt.
///
/// # Errors
/// Returns an error if the text is not a receipt.
pub fn parse_receipt(text: &[u8]) -> Result<Receipt, OpError> {
    let parsed = str::from_utf8(text).ok().and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| OpError::invalid("receipt", "not a receipt; send the `receipt` of a decision unchanged"))
}

/// Checks a maximum wait, given in milliseconds.
///
/// # Errors
/// Returns an error if the wait is missing or longer than [`MAX_WAIT`].
pub fn parse_wait(millis: Option<u64>) -> Result<Duration, OpError> {
    let wait = millis.map(Duration::from_millis).filter(|wait| *wait <= MAX_WAIT);
    wait.ok_or_else(|| {
        let max = MAX_WAIT.as_millis();
        OpError::invalid("wait_ms", format!("`wait_ms` must be a number of milliseconds, at most {max}"))
    })
}
