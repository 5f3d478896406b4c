//! The parameters of an nginx limit.

use super::super::super::mistake::{MistakeCollector, Position};
use super::super::super::raw::shorten;
use super::super::super::text::Node;
use super::super::build::text_node;
use super::read::Directive;

/// The parameters of a limit, in the syntax of the rule language.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NginxLimit {
    limit: String,
    algorithm: Option<&'static str>,
    burst: Option<u64>,
    free: Option<u64>,
}

impl NginxLimit {
    /// Parses a `limit_req` directive. The first argument is the rate of its zone.
    pub(super) fn from_limit_req(
        (count, unit): (u64, char),
        directive: &Directive,
        notes: &mut MistakeCollector,
    ) -> Option<Self> {
        let mut number = |name: &str| match directive.option(name) {
            None => Some(0),
            Some((position, text)) => {
                let number = text.parse::<u32>().ok();
                if number.is_none() {
                    notes.add(position, format!("`{name}` must be a whole number, not `{}`", shorten(text)));
                }
                number.map(u64::from)
            }
        };
        let (burst, delay) = (number("burst")?, number("delay")?);
        let waits = burst > 0 && !directive.has_argument("nodelay") && delay < burst;
        Some(Self {
            limit: format!("{count}/{unit}"),
            algorithm: waits.then_some("leaky_bucket"),
            // nginx does not include the current request in its burst.
            burst: Some(burst + 1),
            free: (waits && delay > 0).then_some(delay),
        })
    }

    /// Parses `limit_conn`.
    pub(super) fn from_limit_conn(
        directive: &Directive,
        notes: &mut MistakeCollector,
        left_out: &mut MistakeCollector,
    ) -> Option<Self> {
        let position = directive.position;
        let number = directive.arguments().get(1);
        let Some(count) = number.and_then(|word| word.text.parse::<u32>().ok()).filter(|count| *count > 0) else {
            notes.add_with_help(position, "missing number of connections", "write `limit_conn ZONE NUMBER`");
            return None;
        };
        let problem = "nginx sees connections end; here the caller must release its slot";
        let why = "a slot that is neither released nor renewed is freed after `lease`, by default 60 seconds";
        left_out.add_with_help(position, problem, why);
        Some(Self { limit: count.to_string(), algorithm: Some("concurrency"), burst: None, free: None })
    }

    /// Returns the limit as keys and values of a rule or an override.
    pub(super) fn to_key_value_pairs(&self, position: Position) -> Vec<(&'static str, Node)> {
        let mut pairs = vec![("limit", text_node(position, &*self.limit))];
        pairs.extend(self.algorithm.map(|algorithm| ("algorithm", text_node(position, algorithm))));
        pairs.extend(self.burst.map(|burst| ("burst", text_node(position, burst.to_string()))));
        pairs.extend(self.free.map(|free| ("free", text_node(position, free.to_string()))));
        pairs
    }
}
