//! Checks costs, schedules, and the treatment of requests above the limits.

use tollgate::SlidingLog;
use tollgate::core::{Cost, Nanos};

use super::super::limit::{WEEKDAYS, not_a_count_message, parse_count, parse_length, read_zone};
use super::super::mistake::{MistakeCollector, Position};
use super::super::raw::{RawCost, RawExceed, RawMap, RawRule, RawText, shorten};
use super::super::rule::{Ban, CostCase, DefaultCost, ENFORCE_ALL, Effect, OnExceed, Refusal};
use super::super::suggest::suggest_valid;
use super::Checker;
use super::condition::check_attribute;
use crate::calendar::Zone;
use crate::schedule::Hours;

const MAX_MESSAGE_BYTES: usize = 1024;
/// Maximum number of refusals before a ban. Each refusal is stored as an entry in a sliding log.
const MAX_REFUSALS_BEFORE_BAN: u64 = SlidingLog::MAX_ENTRIES;
/// Minimum length of a ban: two ticks of the coarsest store clock.
const MIN_BAN_LENGTH: Nanos = Nanos::from_micros(2);
/// Maximum number of cases in a rule's `cost`.
const MAX_COST_CASES: usize = 64;
/// Maximum number of entries in a rule's schedule.
const MAX_SCHEDULE_ENTRIES: usize = 32;

impl Checker<'_> {
    pub(super) fn check_cost(&mut self, raw: Option<&RawCost>, notes: &mut MistakeCollector) -> DefaultCost {
        let one = DefaultCost::Fixed(Cost::ONE);
        match raw {
            None => one,
            Some(RawCost::Fixed(raw)) => check_cost_amount(raw, notes).map_or(one, DefaultCost::Fixed),
            Some(RawCost::From(map)) => {
                let from = required_value(map, "cost", "from", "name the attribute, like `from: bytes`", notes);
                let help = "write the largest cost, which also applies to values that are not whole numbers";
                let max = required_value(map, "cost", "max", help, notes).and_then(|max| check_cost_amount(max, notes));
                let missing = map.get("missing").map_or(Some(Cost::ONE), |missing| check_cost_amount(missing, notes));
                match (from.filter(|from| check_attribute(from, notes)), max, missing) {
                    (Some(from), Some(max), Some(missing)) => {
                        DefaultCost::From { attribute: from.text.as_str().into(), max, missing }
                    }
                    _ => one,
                }
            }
            Some(RawCost::Cases(cases)) => {
                if let Some(case) = cases.get(MAX_COST_CASES) {
                    let problem = format!("too many cases of `cost`: {} (maximum {MAX_COST_CASES})", cases.len());
                    notes.add(case.position, problem);
                    return one;
                }
                let cases = cases.iter().filter_map(|case| {
                    let when = self.check_when(&case.when, notes);
                    let cost = case.cost.as_ref().and_then(|raw| check_cost_amount(raw, notes))?;
                    Some(CostCase { when, cost })
                });
                DefaultCost::Cases(cases.collect())
            }
        }
    }
}

fn check_cost_amount(raw: &RawText, notes: &mut MistakeCollector) -> Option<Cost> {
    let count = parse_count(&raw.text).map(Cost::new);
    if count.is_none() {
        notes.add_with_help(
            raw.position,
            not_a_count_message(&raw.text),
            "`cost` is the cost of a request, like 1 or 5",
        );
    }
    count
}

pub(super) fn check_exceed(raw: Option<&RawExceed>, notes: &mut MistakeCollector) -> OnExceed {
    match raw {
        None => OnExceed::Deny,
        Some(RawExceed::Word(word)) if word.text == "delay" => {
            let help = "write `on_exceed: { delay: { max_wait: 2s } }`";
            notes.add_with_help(word.position, "`delay` needs a `max_wait`", help);
            OnExceed::Deny
        }
        Some(RawExceed::Word(word)) => match OnExceed::CHOICES.iter().find(|(known, _)| *known == word.text) {
            Some((_, on_exceed)) => *on_exceed,
            None => {
                let problem = format!("`{}` is not a choice of `on_exceed`", shorten(&word.text));
                let words = ["deny", "shadow", "drop", "delay"];
                notes.add_with_help(word.position, problem, suggest_valid(&word.text, &words));
                OnExceed::Deny
            }
        },
        Some(RawExceed::Delay(map)) => required_length(map, "delay", "max_wait", notes)
            .map_or(OnExceed::Deny, |max_wait| OnExceed::Delay { max_wait }),
    }
}

/// Returns the share of counters for which a rule is enforced, in hundredths of a percent.
pub(super) fn check_enforce(raw: Option<&RawText>, notes: &mut MistakeCollector) -> u16 {
    let Some(raw) = raw else { return ENFORCE_ALL };
    let digits = |text: &str| !text.is_empty() && text.len() <= 3 && text.bytes().all(|byte| byte.is_ascii_digit());
    let parse = || {
        let number = raw.text.strip_suffix('%')?.trim_end();
        let (whole, part) = number.split_once('.').unwrap_or((number, "0"));
        if !digits(whole) || !digits(part) || part.len() > 2 {
            return None;
        }
        let hundredths = format!("{part:0<2}").parse::<u16>().ok()?;
        (whole.parse::<u16>().ok()? * 100 + hundredths).into()
    };
    parse().filter(|share| *share <= ENFORCE_ALL).unwrap_or_else(|| {
        let problem = format!("`{}` is not a percentage", shorten(&raw.text));
        notes.add_with_help(raw.position, problem, "write it like 25% or 0.5%, up to 100%");
        ENFORCE_ALL
    })
}

pub(super) fn check_ban(raw: Option<&RawMap>, notes: &mut MistakeCollector) -> Option<Ban> {
    let map = raw?;
    let after = required_value(map, "ban", "after", "write the number of refusals", notes).and_then(|raw| {
        let count = parse_count(&raw.text).filter(|count| (1..=MAX_REFUSALS_BEFORE_BAN).contains(count));
        if count.is_none() {
            let problem = format!("`{}` is not a number of refusals", shorten(&raw.text));
            notes.add_with_help(raw.position, problem, format!("write a number from 1 to {MAX_REFUSALS_BEFORE_BAN}"));
        }
        count
    });
    let (within, long) = (required_length(map, "ban", "within", notes), required_length(map, "ban", "for", notes));
    if let Some((raw, long)) = map.get("for").zip(long).filter(|(_, long)| *long < MIN_BAN_LENGTH) {
        let problem = format!("a ban of {long} is too short (minimum {MIN_BAN_LENGTH})");
        notes.add(raw.position, problem);
    }
    Some(Ban { after: after?, within: within?, length: long?.max(MIN_BAN_LENGTH) })
}

pub(super) fn check_schedule(raw: &[RawMap], notes: &mut MistakeCollector) -> Vec<Hours> {
    if let Some(first) = raw.get(MAX_SCHEDULE_ENTRIES) {
        notes.add(
            first.position,
            format!("too many entries in the schedule: {} (maximum {MAX_SCHEDULE_ENTRIES})", raw.len()),
        );
        return Vec::new();
    }
    raw.iter().filter_map(|map| check_hours(map, notes)).collect()
}

fn check_hours(map: &RawMap, notes: &mut MistakeCollector) -> Option<Hours> {
    let mut days = 0;
    for day in map.all("days") {
        match WEEKDAYS.iter().position(|known| *known == day.text) {
            Some(position) => days |= 1 << position,
            None => {
                let problem = format!("`{}` is not a day of the week", shorten(&day.text));
                notes.add_with_help(day.position, problem, suggest_valid(&day.text, WEEKDAYS));
            }
        }
    }
    if map.all("days").is_empty() {
        days = 0x7f;
    }
    let from = map.get("from").map_or(Some(0), |from| parse_time_of_day(from, notes));
    let to = map.get("to").map_or(Some(MINUTES_PER_DAY), |to| parse_time_of_day(to, notes));
    let zone = match map.get("zone") {
        None => Some(Zone::utc()),
        Some(zone) => match read_zone(&zone.text) {
            Ok(zone) => Some(zone),
            Err((problem, help)) => {
                notes.add_with_help(zone.position, problem, help);
                None
            }
        },
    };
    let (from, to) = (from?, to?);
    // If the end is not after the start, the hours end on the next day.
    Some(Hours { days, from, to: if to > from { to } else { to + MINUTES_PER_DAY }, zone: zone? })
}

const MINUTES_PER_DAY: u16 = 24 * 60;

/// Parses a time of day and returns it in minutes after midnight.
fn parse_time_of_day(raw: &RawText, notes: &mut MistakeCollector) -> Option<u16> {
    let digits = |text: &str| text.len() == 2 && text.bytes().all(|byte| byte.is_ascii_digit());
    let parse = || {
        let (hours, minutes) = raw.text.split_once(':').filter(|(hours, minutes)| digits(hours) && digits(minutes))?;
        let (hours, minutes) = (hours.parse::<u16>().ok()?, minutes.parse::<u16>().ok()?);
        (minutes < 60 && hours * 60 + minutes <= MINUTES_PER_DAY).then_some(hours * 60 + minutes)
    };
    let time = parse();
    if time.is_none() {
        let problem = format!("`{}` is not a time of day", shorten(&raw.text));
        notes.add_with_help(raw.position, problem, "write it like \"09:00\", in quotes");
    }
    time
}

pub(super) fn check_refusal(raw: &RawRule, on_exceed: OnExceed, notes: &mut MistakeCollector) -> Refusal {
    let status = raw.status.as_ref().and_then(|raw| {
        let status = raw.text.parse::<u16>().ok().filter(|status| (400..600).contains(status));
        if status.is_none() {
            let problem = format!("`{}` is not a status code for refusals", shorten(&raw.text));
            notes.add_with_help(raw.position, problem, "write one from 400 to 599, like 429 or 503");
        }
        status
    });
    if let Some(message) = raw.message.as_ref().filter(|message| message.text.len() > MAX_MESSAGE_BYTES) {
        let problem = format!("message too long: {} bytes (maximum {MAX_MESSAGE_BYTES})", message.text.len());
        notes.add(message.position, problem);
    }
    let message = raw.message.as_ref().map(|message| message.text.as_str().into());
    Refusal { status, message, silent: on_exceed == OnExceed::Drop }
}

/// Reports keys that have no effect in combination with other keys of the rule.
pub(super) fn check_conflicting_keys(
    raw: &RawRule,
    effect: &Effect,
    on_exceed: OnExceed,
    notes: &mut MistakeCollector,
) {
    let ban = raw.ban.as_ref().map(|ban| ("ban", ban.position));
    let enforce = raw.enforce.as_ref().map(|enforce| ("enforce", enforce.position));
    let on_change = raw.on_change.as_ref().map(|on_change| ("on_change", on_change.position));
    let suffices = raw.suffices.as_ref().map(|suffices| ("suffices", suffices.position));
    let postpaid = raw.postpaid.as_ref().map(|postpaid| ("postpaid", postpaid.position));
    let overrides = raw.overrides.first().map(|first| ("overrides", first.position));
    let texts = [("status", &raw.status), ("message", &raw.message)];
    let texts = texts.map(|(name, text)| text.as_ref().map(|text| (name, text.position)));
    let mut report = |words: &[Option<(&str, Position)>], why: &str| {
        for (name, position) in words.iter().flatten() {
            notes.add_with_help(*position, format!("`{name}` has no effect in {why}"), "remove one of them");
        }
    };
    match effect {
        Effect::Limits(_) => {}
        Effect::Unlimited if overrides.is_some() => {}
        Effect::Unlimited => {
            report(&[ban, enforce, on_change, suffices, postpaid, texts[0], texts[1]], "a rule without limits");
        }
        Effect::Allow => {
            report(
                &[ban, enforce, on_change, suffices, postpaid, overrides, texts[0], texts[1]],
                "a rule with `allow`",
            );
        }
        Effect::Deny => report(&[ban, enforce, on_change, suffices, postpaid, overrides], "a rule with `deny`"),
    }
    if on_exceed == OnExceed::Shadow {
        report(&[ban, enforce, suffices, texts[0], texts[1]], "a shadow rule, which refuses nothing");
    }
}

/// Returns the value of a required key. Reports a mistake if the map does not have the key.
fn required_value<'m>(
    map: &'m RawMap,
    what: &str,
    name: &str,
    help: &str,
    notes: &mut MistakeCollector,
) -> Option<&'m RawText> {
    let value = map.get(name);
    if value.is_none() {
        notes.add_with_help(map.position, format!("`{what}` needs `{name}`"), help);
    }
    value
}

fn required_length(map: &RawMap, what: &str, name: &str, notes: &mut MistakeCollector) -> Option<Nanos> {
    let sample = if name == "max_wait" { "2s" } else { "10m" };
    let raw = required_value(map, what, name, &format!("write a duration like `{name}: {sample}`"), notes)?;
    let problem = match parse_length(&raw.text) {
        Some(Nanos::ZERO) => format!("`{name}` must be greater than 0"),
        Some(length) => return Some(length),
        None => format!("`{}` is not a duration", shorten(&raw.text)),
    };
    notes.add_with_help(raw.position, problem, "write it like 500ms, 30s or 5m");
    None
}
