//! Tables of the keys inside a rule: limits, conditions, overrides, costs, delays, bans and schedules.

use super::{Key, key};

/// Keys of a limit, in a rule or in `limits`.
pub const LIMIT_KEYS: &[Key] = &[
    key(
        "limit",
        "a rate like `100/s`, `5/15m`, `10k/day`, `5 per 15 minutes`; a whole number for concurrency",
        "required",
        "the amount per period; `month` and `year` are for `fixed_window`",
        "{id: a, limit: 5 per 15 minutes}",
    ),
    key(
        "algorithm",
        "a name",
        "`token_bucket`",
        "the algorithm of the limit",
        "{id: a, limit: 5/m, algorithm: sliding_log}",
    ),
];

/// Options of the algorithms. `ALGORITHMS` in `limit.rs` lists the options of each algorithm.
pub const LIMIT_OPTIONS: &[Key] = &[
    key(
        "burst",
        "a whole number",
        "the count of the rate",
        "the largest amount admitted at one instant, for buckets",
        "{id: a, limit: 10/s, burst: 50}",
    ),
    key(
        "free",
        "a whole number",
        "0",
        "the part of the burst of a leaky bucket that passes without waiting",
        "{id: a, limit: 10/s, algorithm: leaky_bucket, free: 5}",
    ),
    key(
        "max_wait",
        "a duration",
        "the time in which a full burst leaks; 0 for `interval_bucket`",
        "the longest wait of a request, for buckets that delay requests",
        "{id: a, limit: 10/s, algorithm: leaky_bucket, max_wait: 500ms}",
    ),
    key(
        "phase",
        "`epoch`, `first_request` or `spread`",
        "`epoch`",
        "where windows begin: at multiples of their length since 1970, at the first request, or at a different offset for each key",
        "{id: a, per: [user], limit: 100/h, algorithm: fixed_window, phase: spread}",
    ),
    key(
        "offset",
        "a duration",
        "0",
        "the time after each multiple of the period at which an interval bucket refills",
        "{id: a, limit: 10/m, algorithm: interval_bucket, offset: 15s}",
    ),
    key(
        "precision",
        "a duration",
        "a tenth of the window",
        "the length of a slice",
        "{id: a, limit: 1000/h, algorithm: sliding_slices, precision: 2m}",
    ),
    key(
        "minimum_gap",
        "a duration",
        "0",
        "the minimum time between two requests, for a sliding log",
        "{id: a, limit: 5/m, algorithm: sliding_log, minimum_gap: 1s}",
    ),
    key(
        "count_refused",
        "`true` or `false`",
        "`false`",
        "whether a sliding log also records refused requests",
        "{id: a, limit: 5/m, algorithm: sliding_log, count_refused: true}",
    ),
    key(
        "lease",
        "a duration",
        "60s",
        "the time after which an unreleased slot becomes free, for concurrency",
        "{id: a, limit: 3, algorithm: concurrency, lease: 10s}",
    ),
    key(
        "initial",
        "a whole number",
        "the capacity",
        "the number of tokens of a new key",
        "{id: a, limit: 100/h, initial: 10}",
    ),
    key(
        "max_debt",
        "a whole number",
        "the capacity",
        "the largest debt that a charge may cause",
        "{id: a, limit: 100/h, max_debt: 0}",
    ),
    key(
        "zone",
        "a time zone like `Europe/Paris`",
        "UTC for `month` and `year`, and with `anchor`",
        "aligns a fixed window with the calendar of the zone: it ends with the minute, hour, day, week, month or year",
        "{id: a, limit: 100/day, algorithm: fixed_window, zone: Europe/Paris}",
    ),
    key(
        "anchor",
        "a day of the month, a weekday, or `MM-DD`",
        "the 1st of the month, Monday, or `01-01`",
        "the first day of the month, week or year, such as a billing day; in shorter months, 31 means the last day",
        "{id: a, limit: 10k/month, algorithm: fixed_window, anchor: 15}",
    ),
];

/// Keys of a condition.
pub const CONDITION_KEYS: &[Key] = &[
    key(
        "present",
        "`true` or `false`",
        "",
        "whether the request has the attribute, with any value",
        "{id: a, when: {api_key: {present: false}}, limit: 1/s}",
    ),
    key(
        "equals",
        "a string or a list",
        "",
        "the value is exactly this; stars and braces are literal",
        "{id: a, when: {grade: {equals: '*'}}, limit: 1/s}",
    ),
    key(
        "any_of",
        "a string or a list",
        "",
        "the value matches one of these strings or patterns",
        "{id: a, when: {path: {any_of: [/a/**, /b]}}, limit: 1/s}",
    ),
    key(
        "prefix",
        "a string or a list",
        "",
        "the value begins with this string",
        "{id: a, when: {agent: {prefix: [curl/, Wget/]}}, limit: 1/s}",
    ),
    key(
        "cidr",
        "an address, a network, or a list",
        "",
        "the value is an address in one of these networks",
        "{id: a, when: {client_ip: {cidr: [10.0.0.0/8, '2001:db8::/32']}}, limit: 1/s}",
    ),
    key(
        "file",
        "a file name, relative to the rule file",
        "",
        "the value matches a line of the file, which is a string, an address or a network; `#` begins a comment",
        "",
    ),
    key(
        "not",
        "a string, a list or a condition",
        "",
        "no value of the attribute matches; holds for a missing attribute; may be combined with one of the other keys",
        "{id: a, when: {method: {not: [GET, HEAD]}, path: {prefix: /v1/, not: /v1/health}}, limit: 1/s}",
    ),
];

/// Keys of an override, in addition to the keys of a limit.
pub const OVERRIDE_KEYS: &[Key] = &[
    key(
        "when",
        "as in a rule",
        "all requests",
        "the requests that the override applies to",
        "{id: a, per: [user], limit: 1/s, overrides: [{when: {user: acme}, limit: 9/s}]}",
    ),
    key(
        "limits",
        "as in a rule",
        "none",
        "replaces all limits of the rule",
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
        "refuses all these requests",
        "{id: a, limit: 1/s, overrides: [{when: {plan: ended}, deny: true}]}",
    ),
    key(
        "until",
        "a time",
        "no end",
        "the instant at which the override expires",
        "{id: a, limit: 1/s, overrides: [{when: {user: acme}, limit: 9/s, until: '2030-01-31T18:00:00Z'}]}",
    ),
    key(
        "set_by",
        "`api`",
        "the override is part of the rule",
        "marks an override set through the API of the rules service; explanations name the override by the value that it applies to",
        "{id: a, limit: 1/s, overrides: [{when: {user: acme}, limit: 9/s, set_by: api}]}",
    ),
];

/// Keys of a cost that is read from an attribute of the request.
pub const COST_KEYS: &[Key] = &[
    key(
        "from",
        "an attribute",
        "required",
        "the attribute that holds the cost",
        "{id: a, limit: 1M/m, burst: 1M, cost: {from: bytes, max: 100k}}",
    ),
    key(
        "max",
        "a whole number",
        "required",
        "the largest cost; larger values and values that are not whole numbers count as `max`",
        "{id: a, limit: 1M/m, burst: 1M, cost: {from: bytes, max: 100k}}",
    ),
    key(
        "missing",
        "a whole number",
        "1",
        "the cost of a request without the attribute",
        "{id: a, limit: 1M/m, cost: {from: bytes, max: 100k, missing: 500}}",
    ),
];

/// Keys of one case of a cost.
pub const COST_CASE_KEYS: &[Key] = &[
    key(
        "when",
        "as in a rule",
        "all requests",
        "the requests that have this cost; the first case that matches applies",
        "{id: a, limit: 1M/month, algorithm: fixed_window, cost: [{when: {path: /export}, cost: 50}, {cost: 2}]}",
    ),
    key(
        "cost",
        "a whole number",
        "required",
        "the cost of these requests",
        "{id: a, limit: 1M/month, algorithm: fixed_window, cost: [{when: {path: /export}, cost: 50}, {cost: 2}]}",
    ),
];

/// Keys of a delay.
pub const DELAY_KEYS: &[Key] = &[key(
    "max_wait",
    "a duration",
    "required",
    "the longest wait of a request",
    "{id: a, limit: 10/s, on_exceed: {delay: {max_wait: 2s}}}",
)];

/// Keys of a ban.
pub const BAN_KEYS: &[Key] = &[
    key(
        "after",
        "a whole number up to 1024",
        "required",
        "the number of refusals that starts a ban",
        "{id: a, per: [client_ip], limit: 5/m, ban: {after: 20, within: 10m, for: 1h}}",
    ),
    key(
        "within",
        "a duration",
        "required",
        "the time window: the first and the last of these refusals are less than this time apart",
        "{id: a, per: [client_ip], limit: 5/m, ban: {after: 20, within: 10m, for: 1h}}",
    ),
    key(
        "for",
        "a duration",
        "required",
        "the length of the ban, at least 2us",
        "{id: a, per: [client_ip], limit: 5/m, ban: {after: 20, within: 10m, for: 1h}}",
    ),
];

/// Keys of a schedule.
pub const SCHEDULE_KEYS: &[Key] = &[
    key(
        "days",
        "a list of `mon` … `sun`",
        "all",
        "the days on which the rule starts to apply",
        "{id: a, limit: 1/s, schedule: {days: [sat, sun]}}",
    ),
    key(
        "from",
        "a time like `09:00`",
        "`00:00`",
        "the time at which the rule starts to apply on these days",
        "{id: a, limit: 1/s, schedule: {from: '22:00', to: '06:00'}}",
    ),
    key(
        "to",
        "a time like `17:30`",
        "`24:00`",
        "the time at which the rule stops applying; on the next day if `to` is not later than `from`",
        "{id: a, limit: 1/s, schedule: {from: '22:00', to: '06:00'}}",
    ),
    key(
        "zone",
        "a time zone",
        "UTC",
        "the zone of these times",
        "{id: a, limit: 1/s, schedule: {days: [sat, sun], zone: America/New_York}}",
    ),
];
