//! Logs refusals, each with its explanation.
//!
//! Rate limiters bound the number of lines, so that a flood of refused requests does not flood the log. The maximum
//! rate is `--log-refusals` for each rule, and `MAX_LINES_PER_SECOND` for all rules together. Each line contains the
//! number of refusals suppressed since the previous line. `--top-keys` determines how values from the request are
//! shown. Except in observe mode, admitted requests never reach this code. The explanation is derived from the decision
//! without another store call.

use std::sync::atomic::{AtomicU64, Ordering};

use tollgate::{Keyed, Limiter, Outcome, Rate, Retry, TokenBucket};
use tollgate_engine::{Decision, Explanation};

use super::top_keys::TopKeys;
use crate::net::protocol::Protocol;

/// Maximum number of lines per second for all rules together.
const MAX_LINES_PER_SECOND: u64 = 100;
/// Maximum number of rules with their own limiter. All other rules share one limiter.
const MAX_LIMITED_RULES: usize = 10_000;
/// Maximum number of non-matching rules in a logged explanation. Rules that nearly match are listed first.
const MAX_UNMATCHED_RULES: usize = 3;
/// Maximum length of a logged explanation, in characters.
const MAX_EXPLANATION_CHARS: usize = 2_000;

/// The refusal log, with its rate limiters.
#[derive(Debug)]
pub struct RefusalLog {
    per_rule: Keyed<TokenBucket>,
    all_rules: Limiter<TokenBucket>,
    /// Number of refusals suppressed since the last line.
    suppressed: AtomicU64,
}

impl RefusalLog {
    /// Creates a log with the maximum rate `rate` for each rule. The burst is the count of the rate in lowest terms. At
    /// 2/h, for example, a rule gets one line every half hour.
    ///
    /// # Errors
    /// Returns an error if the rate is out of range.
    pub fn new(rate: Rate) -> anyhow::Result<Self> {
        let per_rule = TokenBucket::new(rate, rate.count().into())?;
        let all_rules =
            Rate::per_second(MAX_LINES_PER_SECOND).and_then(|rate| TokenBucket::new(rate, MAX_LINES_PER_SECOND))?;
        let per_rule = Keyed::new(per_rule, MAX_LIMITED_RULES)?;
        Ok(Self { per_rule, all_rules: Limiter::new(all_rules), suppressed: AtomicU64::new(0) })
    }

    /// Decides whether to log a refusal. If so, returns the number of refusals suppressed since the last line. Returns
    /// `None` if this refusal is suppressed.
    fn try_acquire_line(&self, domain: &[u8], rule: &str) -> Option<u64> {
        let id = [domain, b"\n", rule.as_bytes()].concat();
        let admitted = self.per_rule.check(&id[..], 1).is_allowed() && self.all_rules.check(1).is_allowed();
        if !admitted {
            // Relaxed: no other memory access depends on the count.
            self.suppressed.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        Some(self.suppressed.swap(0, Ordering::Relaxed))
    }

    /// Logs a refusal, unless a rate limit suppresses it.
    #[cold]
    pub fn log_refusal(
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
        let Some(suppressed) = self.try_acquire_line(domain, rule) else { return };
        let refusing = decision.counters().find(|counter| counter.refused && counter.rule == rule);
        let key = refusing.and_then(|counter| top.display_key(&counter));
        let why = explain().map(|mut explanation| {
            top.conceal_values(&mut explanation);
            summarise_explanation(&explanation)
        });
        let retry_after_ms = match retry {
            Retry::After(wait) => Some(wait.as_millis_ceil()),
            Retry::OnRelease | Retry::Never => None,
        };
        tracing::info!(
            front = protocol.name(),
            domain = &*String::from_utf8_lossy(domain),
            rule,
            key = key.as_deref(),
            retry_after_ms,
            standing = decision.exactness().as_str(),
            observed = decision.observed().is_some(),
            banned = decision.is_refused_by_ban(),
            closed = decision.is_refused_by_fault(),
            suppressed,
            why = why.as_deref(),
            "refused"
        );
    }
}

/// Summarises an explanation in one line: the matching rules, and some rules that nearly match.
fn summarise_explanation(explanation: &Explanation) -> String {
    let matched = explanation.matching_rules().count();
    let unmatched = explanation.rules.len() - matched;
    let rules = explanation.rules.iter().take(matched + unmatched.min(MAX_UNMATCHED_RULES));
    let mut line = rules.map(|rule| rule.to_string().replace("\n    ", ", ")).collect::<Vec<_>>().join("; ");
    match unmatched.saturating_sub(MAX_UNMATCHED_RULES) + explanation.left_out {
        0 => {}
        more => line.push_str(&format!("; and {more} more that do not match")),
    }
    if line.chars().count() > MAX_EXPLANATION_CHARS {
        line = line.chars().take(MAX_EXPLANATION_CHARS - 1).chain(['…']).collect();
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_of_refusals_does_not_flood_the_log() {
        let log = RefusalLog::new("1/h".parse().expect("a rate")).expect("a log");
        let logged = |rule: &str| (0..10).filter(|_| log.try_acquire_line(b"d", rule).is_some()).count();
        assert_eq!((logged("a"), logged("b"), logged("a")), (1, 1, 0), "each rule has its own limiter");
        assert_eq!(log.try_acquire_line(b"other", "a"), Some(19), "the number of refusals that were not logged");
        let many =
            (0..1_000).filter(|rule| log.try_acquire_line(b"d", &format!("rule {rule}")).is_some()).count() as u64;
        assert!((MAX_LINES_PER_SECOND - 3..2 * MAX_LINES_PER_SECOND).contains(&many), "{many} of a thousand rules");
    }
}
