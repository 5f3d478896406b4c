//! The bans of a request, one per rule. A decision contains only the longest wait and whether there is a ban.

use std::io::{self, Write};

use serde_json::Value;

use super::{Decision, LimitLine, hints};
use crate::cli::remote::output::{format_span, replace_control_characters};
use crate::cli::remote::{Remote, RequestArgs};

/// The bans of a request, and the decision from the same explanation.
#[derive(Debug, Default)]
pub(super) struct Bans {
    bans: Vec<Ban>,
    rule: Option<String>,
    retry_after_ms: Option<u64>,
}

/// A ban by one rule.
#[derive(Debug)]
struct Ban {
    rule: String,
    left_ms: u64,
}

impl Bans {
    /// Returns the bans of a request. The result is empty if the server cannot be reached or refuses to explain.
    pub(super) fn fetch(remote: &Remote, request: &RequestArgs) -> Self {
        hints::fetch_explanation(remote, request)
            .map_or_else(Self::default, |explained| Self::from_explanation(&explained))
    }

    fn from_explanation(explained: &Value) -> Self {
        let rules = explained["rules"].as_array().map_or(&[][..], Vec::as_slice).iter();
        let bans = rules.filter_map(|rule| {
            let left_ms = rule["ban"]["left_ms"].as_u64()?;
            Some(Ban { rule: rule["rule"].as_str()?.to_owned(), left_ms })
        });
        let rule = explained["rule"].as_str().map(str::to_owned);
        Self { bans: bans.collect(), rule, retry_after_ms: explained["retry_after_ms"].as_u64() }
    }

    /// Returns whether the rule of `limit` has a ban that lasts at least as long as the wait for the limit.
    pub(super) fn outlast(&self, limit: &LimitLine) -> bool {
        let outlasts = |ban: &Ban| limit.retry_after_ms.is_some_and(|wait| wait <= ban.left_ms);
        self.bans.iter().any(|ban| limit.rule.as_deref() == Some(&ban.rule) && outlasts(ban))
    }

    /// Prints the decision, each ban, and the decision's wait if it is longer than all bans.
    pub(super) fn print(&self, decision: &Decision, out: &mut impl Write) -> io::Result<()> {
        if decision.allowed {
            return writeln!(out, "the request would pass");
        }
        for Ban { rule, left_ms } in &self.bans {
            let (rule, left) = (replace_control_characters(rule), format_span(*left_ms));
            writeln!(out, "the request is banned by {rule} for another {left}; `tollgate keys reset` lifts the ban")?;
        }
        let name = |rule: &Option<String>| replace_control_characters(rule.as_deref().unwrap_or("no rule"));
        match (self.bans.iter().map(|ban| ban.left_ms).max(), decision.retry_after_ms, self.retry_after_ms) {
            (None, Some(wait), _) => {
                writeln!(
                    out,
                    "the request would be refused by {}; it would pass in {}",
                    name(&decision.rule),
                    format_span(wait)
                )
            }
            (None, None, _) => writeln!(out, "the request would be refused by {}", name(&decision.rule)),
            (Some(banned), _, Some(wait)) if wait <= banned => Ok(()),
            (Some(_), _, Some(wait)) => {
                writeln!(
                    out,
                    "the request would also be refused by {}; it would pass in {}",
                    name(&self.rule),
                    format_span(wait)
                )
            }
            (Some(_), _, None) => writeln!(out, "the request would also be refused by {}", name(&self.rule)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Returns the text that is printed for a fixed decision. The decision differs slightly from the explanation, as if
    /// it had been made at another time.
    fn ban_text(explained: &Value) -> String {
        let decision = json!({"allowed": false, "rule": "login", "standing": "exact", "retry_after_ms": 3_600_009,
            "banned": true, "limits": []});
        let decision: Decision = serde_json::from_value(decision).expect("a decision");
        let mut out = Vec::new();
        Bans::from_explanation(explained).print(&decision, &mut out).expect("written to memory");
        String::from_utf8(out).expect("text")
    }

    fn explanation(rule: &str, retry_after_ms: Option<u64>) -> Value {
        json!({"rule": rule, "retry_after_ms": retry_after_ms, "rules": [
            {"rule": "login", "ban": {"left_ms": 3_000}}, {"rule": "tries", "ban": {"refusals": 2}}, {"rule": "plans"},
        ]})
    }

    #[test]
    fn ban_is_printed_with_its_rule_and_length_and_any_longer_wait() {
        let banned = "the request is banned by login for another 3s; `tollgate keys reset` lifts the ban\n";
        assert_eq!(ban_text(&explanation("login", Some(3_000))), banned);
        for (wait, besides) in [
            (Some(3_600_000), "the request would also be refused by plans; it would pass in 1h\n"),
            (None, "the request would also be refused by plans\n"),
        ] {
            assert_eq!(ban_text(&explanation("plans", wait)), format!("{banned}{besides}"));
        }
        let unknown = "the request would be refused by login; it would pass in 1h 1s\n";
        assert_eq!(ban_text(&Value::Null), unknown, "a server that does not report bans");
    }

    #[test]
    fn ban_hides_limits_that_end_sooner() {
        let bans = Bans::from_explanation(&explanation("login", Some(3_000)));
        let outlast = |rule: &str, wait: Option<u64>| {
            let (rule, retry_after_ms) = (Some(rule.into()), wait);
            bans.outlast(&LimitLine { rule, limit: 1, remaining: 0, retry_after_ms, reset_after_ms: 0, shadow: false })
        };
        assert!(outlast("login", Some(0)) && outlast("login", Some(3_000)));
        assert!(!outlast("login", Some(3_001)) && !outlast("login", None) && !outlast("plans", Some(1)));
    }
}
