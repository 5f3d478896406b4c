//! The result of a replay as serialisable data. The option `--json` prints this data.

use serde::Serialize;
use utoipa::ToSchema;

use super::problems::ProblemCount;
use crate::observe::top_keys::{HeaviestKeys, TopKey};

/// The result of a replay.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
#[schema(as = ReplayReport)]
pub struct Report {
    /// The logs.
    pub logs: Vec<LogReport>,
    /// The number of lines, including lines that were left out.
    pub lines: u64,
    /// The number of lines that were left out.
    pub left_out: u64,
    /// The reasons why lines were left out or changed.
    pub problems: Vec<ProblemCount>,
    /// Logs that were read only in part, and why.
    pub errors: Vec<String>,
    /// The time of the first request, in milliseconds since 1970; null if there are no requests.
    pub first_ms: Option<u64>,
    /// The time of the last request.
    pub last_ms: Option<u64>,
    /// The decisions. If times are in whole seconds, requests are spread evenly over their second.
    pub result: Option<RunReport>,
    /// The decisions if all requests of a second arrive at its beginning. Only present if times are in whole seconds.
    pub at_once: Option<RunReport>,
    /// The comparison with other rules.
    pub against: Option<ComparisonReport>,
    /// The comparison if all requests of a second arrive at its beginning. Only present if times are in whole seconds.
    pub against_at_once: Option<ComparisonReport>,
    /// Suggested limits.
    pub suggestion: Option<SuggestionReport>,
}

impl Report {
    /// Returns the fraction of refused requests in millionths, rounded up. If there are two results, returns the larger
    /// fraction.
    pub fn refused_millionths(&self) -> u64 {
        let share = |run: &RunReport| match run.requests {
            0 => 0,
            requests => (u128::from(run.refused) * 1_000_000).div_ceil(u128::from(requests)) as u64,
        };
        self.result.iter().chain(&self.at_once).map(share).max().unwrap_or(0)
    }
}

/// A log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct LogReport {
    /// The name of the log.
    pub name: String,
    /// The format of the log.
    pub format: String,
    /// Whether the times in the log are whole seconds.
    pub whole_seconds: bool,
    /// Attributes that the rules need and the log lacks.
    pub missing_attributes: Vec<String>,
}

/// The decisions of a rule set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RunReport {
    /// The domain whose rules decided.
    pub domain: String,
    /// The number of requests.
    pub requests: u64,
    /// Requests that were admitted, including delayed requests.
    pub admitted: u64,
    /// Requests that were admitted after a wait.
    pub delayed: u64,
    /// Requests that were refused.
    pub refused: u64,
    /// Admitted requests that a shadow rule would have refused.
    pub shadow_refused: u64,
    /// Requests that could not be decided.
    pub invalid: u64,
    /// The rules.
    pub rules: Vec<RuleReport>,
    /// The number of matches of rules that are not listed because there are too many rules.
    pub unlisted_matches: u64,
    /// The requests over time.
    pub timeline: TimelineReport,
    /// How many times the table had no entry for a key. If this is not 0, the result is not exact; use a larger
    /// `--capacity`.
    pub overflowed: u64,
}

/// The decisions of a rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct RuleReport {
    /// The id of the rule.
    pub rule: String,
    /// Whether the rule is a shadow rule.
    pub is_shadow: bool,
    /// The number of requests that the rule matched.
    pub matched: u64,
    /// Requests that the rule would have admitted only after a wait.
    pub delayed: u64,
    /// Requests that the rule refused.
    pub refused: u64,
    /// Requests that the rule would have refused if it were not a shadow rule.
    pub shadow_refused: u64,
    /// The number of distinct keys, within about 1 %.
    pub keys: u64,
    /// The number of keys that were ever refused.
    pub keys_refused: u64,
    /// Whether some refused keys were not counted, because there were too many keys.
    pub has_more_keys_refused: bool,
    /// The longest time that a key was refused without interruption, until it could pass again.
    pub longest_refusal_ms: u64,
    /// The keys with the most refusals.
    pub top_refused: Vec<KeyCount>,
    /// The keys that were charged most, estimated from a sample.
    pub top_charged: Vec<KeyCount>,
    /// The refusals of the rule, in the columns of the timeline.
    pub timeline: Vec<u64>,
}

/// A key and a count.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct KeyCount {
    /// The key, or a hash of it.
    pub key: String,
    /// The count.
    pub count: u64,
    /// The maximum amount by which the count may be too high.
    pub error: u64,
}

impl KeyCount {
    /// Returns the heaviest keys whose error is at most half of their count. If many keys have only a few requests
    /// each, the errors are as large as the counts.
    pub(super) fn list(keys: &HeaviestKeys) -> Vec<Self> {
        let known = keys.list().into_iter().filter(|key| key.error <= key.count / 2);
        known.map(|TopKey { key, count, error }| Self { key, count, error }).collect()
    }
}

/// Requests over time.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, ToSchema)]
pub struct TimelineReport {
    /// The start of the first column, in milliseconds since 1970.
    pub start_ms: u64,
    /// The length of a column, in milliseconds.
    pub column_ms: u64,
    /// The requests that were admitted and that no shadow rule would have refused.
    pub admitted: Vec<u64>,
    /// The requests that were refused.
    pub refused: Vec<u64>,
    /// The admitted requests that a shadow rule would have refused.
    pub shadow_refused: Vec<u64>,
}

/// The difference between two rule sets.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct ComparisonReport {
    /// The requests that the old rules refused.
    pub refused_before: u64,
    /// The requests that only the new rules refuse.
    pub newly_refused: u64,
    /// The number of keys with newly refused requests.
    pub newly_refused_keys: u64,
    /// The keys with the most newly refused requests.
    pub newly_refused_top: Vec<KeyCount>,
    /// The requests that only the old rules refused.
    pub relieved: u64,
    /// The number of keys with requests that are no longer refused.
    pub relieved_keys: u64,
    /// The keys with the most requests that are no longer refused.
    pub relieved_top: Vec<KeyCount>,
}

/// Suggested limits.
#[derive(Clone, Debug, PartialEq, Serialize, ToSchema)]
pub struct SuggestionReport {
    /// The attributes that identify a client.
    pub per: Vec<String>,
    /// The number of clients.
    pub clients: u64,
    /// Whether the peaks of some clients are missing, because there were too many clients.
    pub untracked_clients: bool,
    /// The highest request counts of the clients in a second, a minute and an hour.
    pub peaks: Vec<PeakReport>,
    /// Limits that rarely refuse a client, in ascending order of rate.
    pub candidates: Vec<CandidateReport>,
    /// The index of the candidate that admits the fewest requests in a minute.
    pub recommended: usize,
    /// A rule file with the recommended candidate.
    pub rules: String,
}

impl SuggestionReport {
    /// Returns whether the candidates also have a result for requests that all come at the start of their second.
    /// Candidates have such a result if the times in the log are whole seconds.
    pub(super) fn has_at_once_results(&self) -> bool {
        self.candidates.iter().any(|candidate| candidate.at_once.is_some())
    }
}

/// The distribution of the clients' highest request counts in an interval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct PeakReport {
    /// The interval: a second, a minute or an hour.
    pub interval: &'static str,
    /// Half of the clients have at most this many requests in every such interval.
    pub half: u64,
    /// 99 % of the clients have at most this many requests in every such interval.
    pub most: u64,
    /// 99.9 % of the clients have at most this many requests in every such interval.
    pub nearly_all: u64,
    /// The highest number of requests of any client in such an interval.
    pub max: u64,
}

/// A limit that rarely refuses a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct CandidateReport {
    /// The rate.
    pub limit: String,
    /// The smallest burst with which 99.9 % of the clients are never refused. If times are in whole seconds, it is the
    /// larger of two bursts: one for requests spread over their second, and one for requests that all come at the
    /// beginning of their second.
    pub burst: u64,
    /// The burst that is needed if requests are spread over their second.
    pub spread_burst: u64,
    /// The number of requests that the limit would have refused if requests are spread over their second.
    pub refused: u64,
    /// The number of clients that the limit would have refused at least once.
    pub clients_refused: u64,
    /// The result if all requests of a second arrive at its beginning. Only present if times are in whole seconds.
    pub at_once: Option<AtOnceReport>,
    /// The maximum number of requests that the limit admits from a client in a minute.
    pub per_minute: u64,
    /// Pairs of a burst and the number of clients that need a larger burst.
    #[schema(value_type = Vec<Vec<u64>>)]
    pub needs: Vec<(u64, u64)>,
}

/// The burst and the refusals of a suggested limit, if all requests come at the beginning of their second.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub struct AtOnceReport {
    /// The burst that the clients need.
    pub burst: u64,
    /// The number of requests that the limit would have refused.
    pub refused: u64,
    /// The number of clients that the limit would have refused at least once.
    pub clients_refused: u64,
}
