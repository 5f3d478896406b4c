//! Builds the status of each descriptor from a decision.

use tollgate::core::Nanos;
use tollgate::{Report, Retry};
use tollgate_engine::{Decision, LimitReport, MatchEffect, RuleMatch};
use tollgate_http::headers::retry_after;

use super::wire::{CurrentLimit, DescriptorStatus, ResponseCode};

/// The unit numbers of the protocol, with their lengths in seconds. Inline limits may use only units 1 to 6.
pub(super) const UNITS: [(u32, u64); 7] =
    [(1, 1), (2, 60), (3, 3_600), (4, 86_400), (5, 30 * 86_400), (6, 365 * 86_400), (7, 7 * 86_400)];

/// Calls `each` with the index and the status of each item that has a matching rule or limit. If `each` is called
/// several times for an item, the last call overrides the earlier ones.
pub(super) fn for_each_status(decision: &Decision<'_>, mut each: impl FnMut(usize, DescriptorStatus)) {
    let mut reports: Vec<LimitReport<'_>> = decision.reports().collect();
    // Sorts by item, and within an item by relevance: enforced limits before shadow limits, then refusing limits before
    // others, then by ascending remaining capacity.
    reports.sort_by_key(|report| (report.item, report.shadow, !is_refusing(report), report.report.remaining));
    let mut item = None;
    for matched in decision.rule_matches() {
        if matched.is_exhausted {
            let limit = Some(CurrentLimit { name: matched.rule.to_owned(), ..CurrentLimit::default() });
            each(
                matched.item,
                DescriptorStatus { code: ResponseCode::OverLimit, limit, ..DescriptorStatus::default() },
            );
        } else if let Some(status) = status_without_report(decision, &matched).filter(|_| !matched.is_omitted) {
            each(matched.item, status);
        }
    }
    for report in &reports {
        if item.replace(report.item) != Some(report.item) {
            each(report.item, status_of_report(decision, report));
        }
    }
}

fn is_refusing(report: &LimitReport<'_>) -> bool {
    report.refused && report.report.retry != Retry::NOW
}

/// Returns the status for a matching rule without a limit report, or `None` if the rule does not determine the status.
fn status_without_report(decision: &Decision<'_>, matched: &RuleMatch<'_>) -> Option<DescriptorStatus> {
    let is_over = !decision.is_admitted() && !matched.is_shadow;
    match matched.effect {
        MatchEffect::Unlimited => Some(DescriptorStatus { remaining: u32::MAX, ..DescriptorStatus::default() }),
        MatchEffect::Denied => {
            let limit = Some(CurrentLimit { name: matched.rule.to_owned(), ..CurrentLimit::default() });
            let code = if is_over { ResponseCode::OverLimit } else { ResponseCode::Ok };
            Some(DescriptorStatus { code, limit, ..DescriptorStatus::default() })
        }
        // There is no limit report, because the store did not answer or was not called.
        MatchEffect::Limited if is_over && decision.rule() == Some(matched.rule) => {
            let reset_seconds = decision.retry().map(retry_after);
            Some(DescriptorStatus { code: ResponseCode::OverLimit, reset_seconds, ..DescriptorStatus::default() })
        }
        MatchEffect::Limited => None,
    }
}

fn status_of_report(decision: &Decision<'_>, limit: &LimitReport<'_>) -> DescriptorStatus {
    let Report { limit: capacity, remaining, retry, reset } = limit.report;
    // A banned client is refused even if the limit has capacity left.
    let is_banned = decision.is_refused_by_ban() && decision.rule() == Some(limit.rule);
    let is_over = !decision.is_admitted() && !limit.shadow && (limit.refused || is_banned);
    let reset_seconds = match (is_over, decision.retry()) {
        (true, Some(retry)) if is_banned => retry_after(retry),
        (true, _) => retry_after(retry),
        (false, _) => reset.as_secs_ceil(),
    };
    DescriptorStatus {
        code: if is_over { ResponseCode::OverLimit } else { ResponseCode::Ok },
        limit: Some(CurrentLimit {
            requests_per_unit: saturate_to_u32(capacity),
            unit: limit.window.map_or(0, unit_number),
            name: limit_name(limit),
        }),
        remaining: saturate_to_u32(remaining),
        reset_seconds: Some(reset_seconds),
    }
}

/// Returns the unit number for a window, or 0 if the protocol has no such unit.
fn unit_number(window: Nanos) -> u32 {
    let found = UNITS.iter().find(|(_, seconds)| Nanos::from_secs(*seconds) == window);
    found.map_or(0, |(unit, _)| *unit)
}

/// Returns the rule id. If the protocol has no unit for the window, appends the window in seconds.
fn limit_name(limit: &LimitReport<'_>) -> String {
    match limit.window {
        Some(window) if unit_number(window) == 0 && !limit.rule.is_empty() => {
            format!("{};w={}", limit.rule, window.as_secs_ceil())
        }
        Some(_) | None => limit.rule.to_owned(),
    }
}

fn saturate_to_u32(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
