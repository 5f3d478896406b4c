//! Checks limits, the keys `unlimited`, `allow` and `deny`, and overrides.

use tollgate::core::{Nanos, Params, Time, Wall};
use tollgate::{LeakyBucket, Limit, LimitError, Limits};

use super::super::limit::{self, WrittenLimit};
use super::super::mistake::MistakeCollector;
use super::super::raw::{RawEffect, RawLimit, RawOverride, RawText, shorten};
use super::super::rule::{Effect, LimitSet, OnExceed, Override};
use super::super::suggest::suggest_valid;
use super::super::timestamp;
use super::{Checker, check_boolean};
use crate::calendar::Calendar;

/// Maximum number of overrides per rule.
const MAX_OVERRIDES: usize = 100_000;

pub(super) fn check_overrides(
    checker: &mut Checker<'_>,
    raw: &[RawOverride],
    on_exceed: OnExceed,
    notes: &mut MistakeCollector,
) -> Vec<Override> {
    if let Some(first) = raw.get(MAX_OVERRIDES) {
        notes.add(first.position, format!("too many overrides: {} (maximum {MAX_OVERRIDES})", raw.len()));
        return Vec::new();
    }
    let overrides = raw.iter().filter_map(|raw| {
        let when = checker.check_when(&raw.when, notes);
        let until = raw.until.as_ref().map(|until| check_until(until, notes));
        let effect = check_effect(&raw.effect, "the override", on_exceed, notes)?;
        let until = match until {
            Some(until) => Some(until?),
            None => None,
        };
        let by_api = raw.set_by.as_ref().is_some_and(|set_by| check_set_by(set_by, notes));
        Some(Override {
            position: raw.position,
            when,
            effect,
            written_limits: written_limits(&raw.effect),
            until,
            by_api,
        })
    });
    overrides.collect()
}

/// Returns whether an override is marked as set through the API. Reports any value other than `api`.
fn check_set_by(raw: &RawText, notes: &mut MistakeCollector) -> bool {
    let is_api = raw.text == "api";
    if !is_api {
        let problem = format!("`{}` is not a choice of `set_by`", shorten(&raw.text));
        notes.add_with_help(raw.position, problem, suggest_valid(&raw.text, &["api"]));
    }
    is_api
}

fn check_until(raw: &RawText, notes: &mut MistakeCollector) -> Option<Time<Wall>> {
    let at = timestamp::parse_expiry(&raw.text);
    at.map_err(|wrong| notes.add_with_help(raw.position, &wrong.text().problem, &wrong.text().help)).ok()
}

/// Returns the effect, or reports its mistakes and returns `None`.
pub(super) fn check_effect(
    raw: &RawEffect,
    what: &str,
    on_exceed: OnExceed,
    notes: &mut MistakeCollector,
) -> Option<Effect> {
    let mut chosen = None;
    for (name, boolean) in &raw.instead {
        if check_boolean(boolean, notes) != Some(true) {
            continue;
        }
        if let Some(before) = chosen.replace(*name) {
            notes.add(boolean.position, format!("`{name}` and `{before}` are mutually exclusive"));
            return None;
        }
        if !raw.limits.is_empty() {
            let adjective = if *name == "unlimited" { "is unlimited" } else { "decides by itself" };
            notes.add(boolean.position, format!("{} either has limits or {adjective}", what.replacen("the", "a", 1)));
            return None;
        }
    }
    match chosen {
        Some("unlimited") => Some(Effect::Unlimited),
        Some("allow") => Some(Effect::Allow),
        Some(_) => Some(Effect::Deny),
        None if raw.limits.is_empty() && raw.has_mistakes => None,
        None if raw.limits.is_empty() => {
            let help = "add one like `limit: 100/s`, or write `unlimited: true`";
            notes.add_with_help(raw.position, format!("{what} has no `limit`"), help);
            None
        }
        None => check_limits(raw, on_exceed, notes).map(Effect::Limits),
    }
}

fn check_limits(raw: &RawEffect, on_exceed: OnExceed, notes: &mut MistakeCollector) -> Option<LimitSet> {
    let mut calendars = Vec::new();
    let mut limits = Vec::with_capacity(raw.limits.len());
    for raw in &raw.limits {
        let Some((limit, calendar)) = check_limit(raw, calendars.len(), notes) else { continue };
        calendars.extend(calendar);
        limits.extend(match on_exceed {
            OnExceed::Delay { max_wait } => check_delay(raw, &limit, max_wait, notes),
            OnExceed::Deny | OnExceed::Shadow | OnExceed::Drop => Some(limit),
        });
    }
    // The mistakes in the missing limits have already been reported.
    if limits.len() < raw.limits.len() {
        return None;
    }
    match Limits::new(limits) {
        Ok(limits) => Some(LimitSet { limits, calendars }),
        Err(error) => {
            notes.add(raw.position, error.to_string());
            None
        }
    }
}

/// Returns each limit as written, on one line. Omits the zone, because explanations add it.
pub(super) fn written_limits(raw: &RawEffect) -> Box<[Box<str>]> {
    let of_limit = |raw: &RawLimit| {
        let mut words = raw.limit.as_ref().map(|limit| limit.text.clone()).unwrap_or_default();
        if let Some(algorithm) = &raw.algorithm {
            words.push_str(&format!(", {}", algorithm.text));
        }
        for (name, value) in raw.options.iter().filter(|(name, _)| *name != "zone") {
            words.push_str(&format!(", {name} {}", value.text));
        }
        words.into()
    };
    raw.limits.iter().map(of_limit).collect()
}

fn check_limit(raw: &RawLimit, position: usize, notes: &mut MistakeCollector) -> Option<(Limit, Option<Calendar>)> {
    let option = |name: &str| raw.options.iter().find(|(option, _)| *option == name).map(|(_, value)| &*value.text);
    let words = WrittenLimit {
        limit: raw.limit.as_ref().map(|limit| &*limit.text),
        algorithm: raw.algorithm.as_ref().map(|algorithm| &*algorithm.text),
        option: &option,
        position,
        inherits: raw.inherits,
    };
    let mistakes = match limit::parse_limit(&words) {
        Ok(limit) => return Some(limit),
        Err(mistakes) => mistakes,
    };
    for mistake in mistakes {
        let position = match mistake.word {
            "limit" => raw.limit.as_ref().map(|limit| limit.position),
            "algorithm" => raw.algorithm.as_ref().map(|algorithm| algorithm.position),
            option => raw.options.iter().find(|(name, _)| *name == option).map(|(_, value)| value.position),
        };
        let position = position.unwrap_or(raw.position);
        match mistake.help {
            Some(help) => notes.add_with_help(position, mistake.problem, help),
            None => notes.add(position, mistake.problem),
        }
    }
    None
}

fn check_delay(raw: &RawLimit, limit: &Limit, max_wait: Nanos, notes: &mut MistakeCollector) -> Option<Limit> {
    match delaying_limit(limit, max_wait) {
        Some(Ok(limit)) => Some(limit),
        Some(Err(error)) => {
            notes.add(raw.position, error.to_string());
            None
        }
        None => {
            let problem = "this algorithm does not support `delay`";
            notes.add_with_help(raw.position, problem, "use `token_bucket`, `leaky_bucket` or `interval_bucket`");
            None
        }
    }
}

/// Returns a limit that admits the same requests as `limit` immediately, and further requests after a wait of at most
/// `max_wait`.
///
/// A token bucket becomes a leaky bucket whose free part is the burst. In addition to the burst, the leaky bucket has
/// capacity for the amount that leaks within `max_wait`, rounded up. The rounding does not lengthen waits, because
/// `max_wait` bounds every wait.
fn delaying_limit(limit: &Limit, max_wait: Nanos) -> Option<Result<Limit, LimitError>> {
    let leaky = |bucket: tollgate::core::BucketParams| {
        let flows = u128::from(bucket.rate.count()) * u128::from(max_wait.as_nanos());
        let extra = u64::try_from(flows.div_ceil(bucket.rate.per().as_nanos().into())).unwrap_or(u64::MAX);
        let leaky = LeakyBucket::new(bucket.rate, bucket.burst.saturating_add(extra))?;
        // The last unit that is admitted immediately follows `burst - 1` other units.
        let leaky = leaky.free(bucket.burst - 1)?.max_wait(max_wait).max_debt(bucket.max_debt)?;
        Ok(leaky.initial(bucket.initial.saturating_add(extra))?.into())
    };
    match (limit.params(), limit) {
        (Params::TokenBucket(bucket), _) => Some(leaky(bucket)),
        (_, Limit::LeakyBucket(bucket)) => Some(Ok(bucket.max_wait(max_wait).into())),
        (_, Limit::IntervalBucket(bucket)) => Some(bucket.max_wait(max_wait).map(Limit::from)),
        _ => None,
    }
}
