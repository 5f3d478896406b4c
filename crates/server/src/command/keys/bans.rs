//! Who is banned, by which rule and for how long: a decision tells only that somebody is, and the longest wait of all.

use std::io::{self, Write};

use serde_json::Value;

use super::super::remote::Remote;
use super::super::remote::show::{clean, span};
use super::{Decision, Left, missing};
use crate::config::remote::keys::KeyArgs;

/// The bans of a request, and what it would come to at the same moment.
#[derive(Debug, Default)]
pub(super) struct Bans {
    each: Vec<Banned>,
    rule: Option<String>,
    retry_after_ms: Option<u64>,
}

/// That a rule bans somebody.
#[derive(Debug)]
struct Banned {
    rule: String,
    left_ms: u64,
}

impl Bans {
    /// Those of a request; none if the server does not tell.
    pub(super) fn of(remote: &Remote, args: &KeyArgs) -> Self {
        missing::explain(remote, args).map_or_else(Self::default, |explained| Self::read(&explained))
    }

    fn read(explained: &Value) -> Self {
        let rules = explained["rules"].as_array().map_or(&[][..], Vec::as_slice).iter();
        let each = rules.filter_map(|rule| {
            let left_ms = rule["ban"]["left_ms"].as_u64()?;
            Some(Banned { rule: rule["rule"].as_str()?.to_owned(), left_ms })
        });
        let rule = explained["rule"].as_str().map(str::to_owned);
        Self { each: each.collect(), rule, retry_after_ms: explained["retry_after_ms"].as_u64() }
    }

    /// Whether what a limit says is of no use, since the ban of its rule lasts longer.
    pub(super) fn outlast(&self, limit: &Left) -> bool {
        let outlasts = |ban: &Banned| limit.retry_after_ms.is_some_and(|wait| wait <= ban.left_ms);
        self.each.iter().any(|ban| limit.rule.as_deref() == Some(&ban.rule) && outlasts(ban))
    }

    /// Tells what a decision comes to: each ban, and whatever lasts longer than all of them.
    pub(super) fn tell(&self, decision: &Decision, out: &mut impl Write) -> io::Result<()> {
        if decision.allowed {
            return writeln!(out, "it would pass");
        }
        for Banned { rule, left_ms } in &self.each {
            let (rule, left) = (clean(rule), span(*left_ms));
            writeln!(out, "it is banned by {rule}, for {left} more; `tollgate keys reset` lifts that")?;
        }
        let name = |rule: &Option<String>| clean(rule.as_deref().unwrap_or("no rule"));
        match (self.each.iter().map(|ban| ban.left_ms).max(), decision.retry_after_ms, self.retry_after_ms) {
            (None, Some(wait), _) => {
                writeln!(out, "it would be refused by {}, and pass in {}", name(&decision.rule), span(wait))
            }
            (None, None, _) => writeln!(out, "it would be refused by {}", name(&decision.rule)),
            (Some(banned), _, Some(wait)) if wait <= banned => Ok(()),
            (Some(_), _, Some(wait)) => {
                writeln!(out, "and it would be refused by {}, and pass in {}", name(&self.rule), span(wait))
            }
            (Some(_), _, None) => writeln!(out, "and it would be refused by {}", name(&self.rule)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// For a decision that tells of another moment.
    fn told(explained: &Value) -> String {
        let decision = json!({"allowed": false, "rule": "login", "standing": "exact", "retry_after_ms": 3_600_009,
            "banned": true, "limits": []});
        let decision: Decision = serde_json::from_value(decision).expect("a decision");
        let mut out = Vec::new();
        Bans::read(explained).tell(&decision, &mut out).expect("memory takes everything");
        String::from_utf8(out).expect("text")
    }

    fn explained(rule: &str, retry_after_ms: Option<u64>) -> Value {
        json!({"rule": rule, "retry_after_ms": retry_after_ms, "rules": [
            {"rule": "login", "ban": {"left_ms": 3_000}}, {"rule": "tries", "ban": {"refusals": 2}}, {"rule": "plans"},
        ]})
    }

    #[test]
    fn a_ban_is_told_by_its_own_rule_and_length_and_a_longer_wait_besides() {
        let banned = "it is banned by login, for 3s more; `tollgate keys reset` lifts that\n";
        assert_eq!(told(&explained("login", Some(3_000))), banned);
        for (wait, besides) in [
            (Some(3_600_000), "and it would be refused by plans, and pass in 1h\n"),
            (None, "and it would be refused by plans\n"),
        ] {
            assert_eq!(told(&explained("plans", wait)), format!("{banned}{besides}"));
        }
        let unknown = "it would be refused by login, and pass in 1h 1s\n";
        assert_eq!(told(&Value::Null), unknown, "by a server that does not tell");
    }

    #[test]
    fn limits_that_last_longer_than_the_ban_of_their_rule_are_of_use() {
        let bans = Bans::read(&explained("login", Some(3_000)));
        let outlast = |rule: &str, wait: Option<u64>| {
            let (rule, retry_after_ms) = (Some(rule.into()), wait);
            bans.outlast(&Left { rule, limit: 1, remaining: 0, retry_after_ms, reset_after_ms: 0, shadow: false })
        };
        assert!(outlast("login", Some(0)) && outlast("login", Some(3_000)));
        assert!(!outlast("login", Some(3_001)) && !outlast("login", None) && !outlast("plans", Some(1)));
    }
}
