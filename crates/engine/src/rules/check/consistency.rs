//! Checks `consistency` and `sync_every`.

use tollgate::Limit;
use tollgate::core::{Nanos, Params, Phase};

use super::super::limit::parse_length;
use super::super::mistake::MistakeCollector;
use super::super::raw::{RawRule, RawText, shorten};
use super::super::rule::{Consistency, Effect, Override, SyncEvery};
use super::super::suggest::suggest_valid;

/// Returns the consistency of a rule, and reports limits that do not support it.
pub(super) fn check_consistency(
    raw: &RawRule,
    effect: &Effect,
    overrides: &[Override],
    notes: &mut MistakeCollector,
) -> Consistency {
    let chosen = raw.consistency.as_ref().map_or("strict", |raw| &*raw.text);
    let sync_every = raw.sync_every.as_ref().map(|raw| (raw, check_sync_every(raw, notes)));
    if let (Some((raw, _)), "strict" | "leased") = (&sync_every, chosen) {
        let problem = format!("`sync_every` has no effect with `consistency: {chosen}`");
        notes.add_with_help(raw.position, problem, "remove it, or write `consistency: eventual`");
    }
    let (Some(raw_choice), true) = (&raw.consistency, chosen != "strict") else { return Consistency::Strict };
    let consistency = match chosen {
        "leased" => Consistency::Leased,
        "eventual" => {
            let every = sync_every.map_or(Some(SyncEvery::default()), |(_, every)| every);
            Consistency::Eventual(every.unwrap_or_default())
        }
        other => {
            let problem = format!("`{}` is not a choice of `consistency`", shorten(other));
            notes.add_with_help(raw_choice.position, problem, suggest_valid(other, Consistency::CHOICES));
            return Consistency::Strict;
        }
    };
    let effects = std::iter::once(effect).chain(overrides.iter().map(|other| &other.effect));
    let mut limits = effects.filter_map(Effect::limits).flat_map(|set| set.limits.as_slice());
    let refused = limits.find_map(|limit| unsupported_feature(consistency, limit));
    if let Some(why) = refused {
        let problem = format!("`consistency: {chosen}` does not support {why}");
        notes.add_with_help(raw_choice.position, problem, supported_limits_help(consistency));
    }
    if let (Consistency::Leased, Some(ban)) = (consistency, &raw.ban) {
        let problem = "`consistency: leased` does not support `ban`, which the store decides with every request";
        notes.add_with_help(ban.position, problem, "remove `ban`, or write `consistency: strict`");
    }
    consistency
}

fn check_sync_every(raw: &RawText, notes: &mut MistakeCollector) -> Option<SyncEvery> {
    let length = parse_length(&raw.text);
    let every = length.and_then(SyncEvery::new);
    if every.is_none() {
        let problem = match length {
            Some(length) if length < SyncEvery::MIN => {
                format!("`sync_every` of {} is too short", format_length(length))
            }
            Some(length) => format!("`sync_every` of {} is too long", format_length(length)),
            None => format!("`{}` is not a duration", shorten(&raw.text)),
        };
        notes.add_with_help(raw.position, problem, "write a duration from 10ms to 10s, like 100ms");
    }
    every
}

fn format_length(length: Nanos) -> String {
    if length == Nanos::ZERO { "0".to_owned() } else { length.to_string() }
}

fn supported_limits_help(consistency: Consistency) -> &'static str {
    match consistency {
        Consistency::Strict => "",
        Consistency::Leased => "use `token_bucket` or `fixed_window`, or write `consistency: strict`",
        Consistency::Eventual(_) => {
            "use `token_bucket`, `fixed_window`, `sliding_window` or `sliding_slices`, or write `consistency: strict`"
        }
    }
}

/// Returns the feature of a limit that this consistency does not support, if any.
fn unsupported_feature(consistency: Consistency, limit: &Limit) -> Option<&'static str> {
    let is_leased = match consistency {
        Consistency::Strict => return None,
        Consistency::Leased => true,
        Consistency::Eventual(_) => false,
    };
    match limit.params() {
        Params::FixedWindow { phase: Phase::Given(_), .. } => Some("calendar windows"),
        Params::FixedWindow { phase: Phase::FirstRequest, .. } if is_leased => Some("`phase: first_request`"),
        Params::SlidingWindow(_) if is_leased => Some("`sliding_window`"),
        Params::SlidingSlices { .. } if is_leased => Some("`sliding_slices`"),
        Params::LeakyBucket { .. } => Some("`leaky_bucket` and `on_exceed: delay`"),
        Params::IntervalBucket { .. } => Some("`interval_bucket`"),
        Params::SlidingLog { .. } => Some("`sliding_log`"),
        Params::Concurrency { .. } => Some("`concurrency`"),
        Params::TokenBucket(_)
        | Params::FixedWindow { .. }
        | Params::SlidingWindow(_)
        | Params::SlidingSlices { .. }
        | Params::Unlimited
        | Params::DenyAll => None,
    }
}
