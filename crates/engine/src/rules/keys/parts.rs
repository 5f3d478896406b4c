//! The keys of what rules are made of: limits, conditions, overrides, and the maps of single keys.

use super::{Key, key};

/// Of a limit, alone or in `limits`.
pub const LIMIT: &[Key] = &[
    key(
        "limit",
        "a rate like `100/s`, `5/15m`, `10k/day`, `5 per 15 minutes`; a whole number for concurrency",
        "must be given",
        "how much in what time; `month` and `year` are for `fixed_window`",
        "{id: a, limit: 5 per 15 minutes}",
    ),
    key("algorithm", "a name", "`token_bucket`", "how it is counted", "{id: a, limit: 5/m, algorithm: sliding_log}"),
];

/// What algorithms may be told; which of them takes which is checked with the values.
pub const OPTIONS: &[Key] = &[
    key(
        "burst",
        "a whole number",
        "the count of the rate",
        "the most at one instant, for buckets",
        "{id: a, limit: 10/s, burst: 50}",
    ),
    key(
        "free",
        "a whole number",
        "0",
        "what passes a leaky bucket before anybody waits",
        "{id: a, limit: 10/s, algorithm: leaky_bucket, free: 5}",
    ),
    key(
        "max_wait",
        "a length of time",
        "as long as the burst takes; 0 for `interval_bucket`",
        "the longest wait, for buckets that make requests wait",
        "{id: a, limit: 10/s, algorithm: leaky_bucket, max_wait: 500ms}",
    ),
    key(
        "phase",
        "`epoch`, `first_request` or `spread`",
        "`epoch`",
        "where windows lie: at multiples of their length, from the first request on, or at another place for each key",
        "{id: a, per: [user], limit: 100/h, algorithm: fixed_window, phase: spread}",
    ),
    key(
        "offset",
        "a length of time",
        "0",
        "moves the steps of an interval bucket",
        "{id: a, limit: 10/m, algorithm: interval_bucket, offset: 15s}",
    ),
    key(
        "precision",
        "a length of time",
        "a tenth of the window",
        "how long a slice is",
        "{id: a, limit: 1000/h, algorithm: sliding_slices, precision: 2m}",
    ),
    key(
        "minimum_gap",
        "a length of time",
        "0",
        "the least time between two requests, for a sliding log",
        "{id: a, limit: 5/m, algorithm: sliding_log, minimum_gap: 1s}",
    ),
    key(
        "count_refused",
        "`true` or `false`",
        "`false`",
        "whether a sliding log writes refused attempts down, too",
        "{id: a, limit: 5/m, algorithm: sliding_log, count_refused: true}",
    ),
    key(
        "lease",
        "a length of time",
        "60s",
        "when a slot comes back whose holder does not, for concurrency",
        "{id: a, limit: 3, algorithm: concurrency, lease: 10s}",
    ),
    key("initial", "a whole number", "all of it", "what a new key has", "{id: a, limit: 100/h, initial: 10}"),
    key(
        "max_debt",
        "a whole number",
        "as much again",
        "how far a charge may go into debt",
        "{id: a, limit: 100/h, max_debt: 0}",
    ),
    key(
        "zone",
        "a time zone like `Europe/Paris`",
        "UTC for `month`, `year` and with `anchor`",
        "makes a fixed window follow the calendar: it ends with the minute, hour, day, week, month or year there",
        "{id: a, limit: 100/day, algorithm: fixed_window, zone: Europe/Paris}",
    ),
    key(
        "anchor",
        "a day of the month, a weekday, or `MM-DD`",
        "the first, Monday, `01-01`",
        "where months, weeks and years begin, like a billing day; the 31st is the last of shorter months",
        "{id: a, limit: 10k/month, algorithm: fixed_window, anchor: 15}",
    ),
];

/// Of a condition.
pub const TEST: &[Key] = &[
    key(
        "present",
        "`true` or `false`",
        "",
        "there is such an attribute, whatever it is; or there is none",
        "{id: a, when: {api_key: {present: false}}, limit: 1/s}",
    ),
    key(
        "equals",
        "a text or a list",
        "",
        "exactly this, stars and braces included",
        "{id: a, when: {grade: {equals: '*'}}, limit: 1/s}",
    ),
    key(
        "any_of",
        "a text or a list",
        "",
        "one of these texts or patterns",
        "{id: a, when: {path: {any_of: [/a/**, /b]}}, limit: 1/s}",
    ),
    key(
        "prefix",
        "a text or a list",
        "",
        "it begins with this",
        "{id: a, when: {agent: {prefix: [curl/, Wget/]}}, limit: 1/s}",
    ),
    key(
        "cidr",
        "an address, a network, or a list",
        "",
        "an address in one of these networks",
        "{id: a, when: {client_ip: {cidr: [10.0.0.0/8, '2001:db8::/32']}}, limit: 1/s}",
    ),
    key(
        "file",
        "the name of a file, beside the rules",
        "",
        "one of its lines: texts, addresses and networks; `#` begins a comment",
        "",
    ),
    key(
        "not",
        "a text, a list or a condition",
        "",
        "none of its values is such; an attribute that is missing is not, either; may stand beside one of the others",
        "{id: a, when: {method: {not: [GET, HEAD]}, path: {prefix: /v1/, not: /v1/health}}, limit: 1/s}",
    ),
];

/// Of an override, beside the keys of a limit.
pub const OVERRIDE: &[Key] = &[
    key(
        "when",
        "as in a rule",
        "always",
        "for whom",
        "{id: a, per: [user], limit: 1/s, overrides: [{when: {user: acme}, limit: 9/s}]}",
    ),
    key(
        "limits",
        "as in a rule",
        "none",
        "instead of all limits of the rule",
        "{id: a, limit: 1/s, overrides: [{when: {plan: pro}, limits: [9/s, 900/h]}]}",
    ),
    key(
        "unlimited",
        "`true` or `false`",
        "`false`",
        "no limit",
        "{id: a, limit: 1/s, overrides: [{when: {plan: own}, unlimited: true}]}",
    ),
    key(
        "deny",
        "`true` or `false`",
        "`false`",
        "refused for good",
        "{id: a, limit: 1/s, overrides: [{when: {plan: ended}, deny: true}]}",
    ),
    key(
        "until",
        "a time",
        "for ever",
        "it ends by itself at this instant",
        "{id: a, limit: 1/s, overrides: [{when: {user: acme}, limit: 9/s, until: '2030-01-31T18:00:00Z'}]}",
    ),
    key(
        "set_by",
        "`api`",
        "it is part of the rule",
        "written by the rules service for an override that was set by itself; explanations name it by its value",
        "{id: a, limit: 1/s, overrides: [{when: {user: acme}, limit: 9/s, set_by: api}]}",
    ),
];

/// Of a cost that is not fixed.
pub const COST: &[Key] = &[
    key(
        "from",
        "an attribute",
        "must be given",
        "a request weighs what this says",
        "{id: a, limit: 1M/m, burst: 1M, cost: {from: bytes, max: 100k}}",
    ),
    key(
        "max",
        "a whole number",
        "must be given",
        "what more, or something that is no whole number, counts as",
        "{id: a, limit: 1M/m, burst: 1M, cost: {from: bytes, max: 100k}}",
    ),
    key(
        "missing",
        "a whole number",
        "1",
        "what a request without the attribute weighs",
        "{id: a, limit: 1M/m, cost: {from: bytes, max: 100k, missing: 500}}",
    ),
];

/// Of a delay.
pub const DELAY: &[Key] = &[key(
    "max_wait",
    "a length of time",
    "must be given",
    "the longest that a request is made to wait",
    "{id: a, limit: 10/s, on_exceed: {delay: {max_wait: 2s}}}",
)];

/// Of a ban.
pub const BAN: &[Key] = &[
    key(
        "after",
        "a whole number up to 1024",
        "must be given",
        "how many refusals start a ban",
        "{id: a, per: [client_ip], limit: 5/m, ban: {after: 20, within: 10m, for: 1h}}",
    ),
    key(
        "within",
        "a length of time",
        "must be given",
        "less than this lies between the first and the last of them",
        "{id: a, per: [client_ip], limit: 5/m, ban: {after: 20, within: 10m, for: 1h}}",
    ),
    key(
        "for",
        "a length of time",
        "must be given",
        "how long the ban lasts, at least 2us",
        "{id: a, per: [client_ip], limit: 5/m, ban: {after: 20, within: 10m, for: 1h}}",
    ),
];

/// Of a schedule.
pub const SCHEDULE: &[Key] = &[
    key(
        "days",
        "a list of `mon` … `sun`",
        "all",
        "on which days it begins",
        "{id: a, limit: 1/s, schedule: {days: [sat, sun]}}",
    ),
    key(
        "from",
        "a time like `09:00`",
        "`00:00`",
        "when it begins on these days",
        "{id: a, limit: 1/s, schedule: {from: '22:00', to: '06:00'}}",
    ),
    key(
        "to",
        "a time like `17:30`",
        "`24:00`",
        "when it ends; on the next day, if that is not later",
        "{id: a, limit: 1/s, schedule: {from: '22:00', to: '06:00'}}",
    ),
    key(
        "zone",
        "a time zone",
        "UTC",
        "where",
        "{id: a, limit: 1/s, schedule: {days: [sat, sun], zone: America/New_York}}",
    ),
];
