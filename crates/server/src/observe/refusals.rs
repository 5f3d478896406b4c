//! Refusals in the log, each with its explanation: a sample, so that a flood of refused requests is no flood of lines.
//!
//! Our own limiters see to that: at most so many lines a second for each rule, as `--log-refusals` says, and `ALL` for all rules
//! together. A line tells how many refusals before it were not told. The values a request brought are shown as the keys
//! that use most are, by `--top-keys`. Whoever passes never comes here, and what was decided is explained as it
//! was decided, so the store is not asked again.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Keyed, Limiter, Outcome, Rate, Retry, TokenBucket};
use tollgate_engine::{Decision, Explanation};

use super::top_keys::TopKeys;
use crate::net::protocol::Protocol;

/// Lines a second, of all rules together.
const ALL: u64 = 100;
/// Rules whose lines are counted by themselves; those beyond share.
const RULES: usize = 10_000;
/// Rules that are told although they are not met, the nearest first.
const MAX_UNMET: usize = 3;
/// Letters of an explanation.
const MAX_WHY: usize = 2_000;

/// What becomes a line.
#[derive(Debug)]
pub struct RefusalLog {
    each: Keyed<TokenBucket>,
    all: Limiter<TokenBucket>,
    untold: AtomicU64,
}

impl RefusalLog {
    /// At most `rate` lines for each rule, evenly spread: of two an hour the second comes half an hour after the first.
    ///
    /// # Errors
    /// When the rate cannot be kept.
    pub fn new(rate: Rate) -> anyhow::Result<Self> {
        let each = TokenBucket::new(rate, rate.count().into())?;
        let all = Rate::per_second(ALL).and_then(|rate| TokenBucket::new(rate, ALL))?;
        let each = Keyed::new(each, RULES)?;
        Ok(Self { each, all: Limiter::new(all), untold: AtomicU64::new(0) })
    }

    /// Whether the refusal by a rule becomes a line, and how many before it did not.
    fn admits(&self, domain: &[u8], rule: &str) -> Option<u64> {
        let id = [domain, b"\n", rule.as_bytes()].concat();
        let admitted = self.each.check(&id[..], 1).is_allowed() && self.all.check(1).is_allowed();
        if !admitted {
            // It only counts.
            self.untold.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.untold.swap(0, Ordering::Relaxed))
    }

    /// Tells of a refusal, or, if there were many, does not.
    #[cold]
    pub fn note(
        &self,
        protocol: Protocol,
        domain: &[u8],
        decision: &Decision<'_>,
        top: &TopKeys,
        explain: impl FnOnce() -> Option<Explanation>,
    ) {
        let outcome = decision.observed().unwrap_or(decision.outcome());
        let Outcome::Deny(retry) = outcome else { return };
        let rule = decision.rule().unwrap_or_default();
        let Some(untold) = self.admits(domain, rule) else { return };
        let refusing = decision.counters().find(|counter| counter.refused && counter.rule == rule);
        let key = refusing.and_then(|counter| top.shown(&counter));
        let why = explain().map(|mut explanation| {
            top.conceal(&mut explanation);
            told(&explanation)
        });
        let retry_after_ms = match retry {
            Retry::After(wait) => Some(wait.as_millis_ceil()),
            Retry::OnRelease | Retry::Never => None,
        };
        tracing::info!(
            front = ?protocol,
            domain = &*String::from_utf8_lossy(domain),
            rule,
            key = key.as_deref(),
            retry_after_ms,
            standing = decision.standing().as_str(),
            observed = decision.observed().is_some(),
            banned = decision.is_banned(),
            closed = decision.is_closed(),
            untold,
            why = why.as_deref(),
            "refused"
        );
    }
}

/// An explanation in one line: what is met, and what nearly is.
fn told(explanation: &Explanation) -> String {
    let (met, unmet) = (explanation.met().count(), explanation.rules.len() - explanation.met().count());
    let rules = explanation.rules.iter().take(met + unmet.min(MAX_UNMET));
    let mut told = rules.map(|rule| rule.to_string().replace("\n    ", ", ")).collect::<Vec<_>>().join("; ");
    match unmet.saturating_sub(MAX_UNMET) + explanation.left_out {
        0 => {}
        more => told.push_str(&format!("; and {more} more that are not met")),
    }
    if told.chars().count() > MAX_WHY {
        told = told.chars().take(MAX_WHY - 1).chain(['…']).collect();
    }
    told
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_of_refusals_is_no_flood_of_lines() {
        let log = RefusalLog::new("1/h".parse().expect("a rate")).expect("a log");
        let told = |rule: &str| (0..10).filter(|_| log.admits(b"d", rule).is_some()).count();
        assert_eq!((told("a"), told("b"), told("a")), (1, 1, 0), "each rule has its own");
        assert_eq!(log.admits(b"other", "a"), Some(19), "and says how many were not told");
        let many = (0..1_000).filter(|rule| log.admits(b"d", &format!("rule {rule}")).is_some()).count() as u64;
        assert!((ALL - 3..2 * ALL).contains(&many), "{many} of a thousand rules");
    }
}
