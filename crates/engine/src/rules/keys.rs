//! Tables of all keys of the rule language. For each key, a table contains the values, the default, the purpose and an
//! example.
//!
//! The parser accepts no other keys, and `reference.rs` generates `docs/rules.md` from the tables.

mod parts;

pub use parts::{
    BAN_KEYS, CONDITION_KEYS, COST_CASE_KEYS, COST_KEYS, DELAY_KEYS, LIMIT_KEYS, LIMIT_OPTIONS, OVERRIDE_KEYS,
    SCHEDULE_KEYS,
};

/// One key and its documentation.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// The name in a rule file.
    pub name: &'static str,
    /// The values that the key accepts.
    pub takes: &'static str,
    /// The value if the key is omitted.
    pub default: &'static str,
    /// The purpose of the key, in one line.
    pub about: &'static str,
    /// A rule that uses the key.
    pub example: &'static str,
}

const fn key(
    name: &'static str,
    takes: &'static str,
    default: &'static str,
    about: &'static str,
    example: &'static str,
) -> Key {
    Key { name, takes, default, about, example }
}

/// Returns the names of all keys in `tables`.
pub(crate) fn key_names(tables: &[&[Key]]) -> Vec<&'static str> {
    tables.iter().flat_map(|table| table.iter()).map(|key| key.name).collect()
}

/// Keys of a file.
pub const FILE_KEYS: &[Key] = &[
    key("domain", "a name", "none", "the domain of these rules; requests name it", ""),
    key("rules", "a list of rules", "none", "the rules, in order", ""),
    key(
        "domains",
        "a list of maps with `domain` and `rules`",
        "none",
        "several domains in one file, instead of `domain` and `rules`",
        "",
    ),
];

/// Keys of one entry of `domains`.
pub(crate) const DOMAIN_KEYS: &[Key] = FILE_KEYS.split_at(2).0;

const CONSISTENCIES: &str = "`strict`, `leased` or `eventual`";

/// Keys of a rule. A rule with a single `limit` also accepts the keys of a limit.
pub const RULE_KEYS: &[Key] = &[
    key(
        "id",
        "a name",
        "required",
        "the identity of the rule: its limits may change, and its counters are kept",
        "{id: everything, limit: 1000/s}",
    ),
    key(
        "when",
        "a map from attributes to conditions",
        "all requests",
        "the requests that the rule matches; all conditions must hold",
        "{id: api, when: {path: /v1/**, method: [GET, POST]}, limit: 100/s}",
    ),
    key(
        "if",
        "an expression",
        "all requests",
        "a further condition, for tests that `when` cannot express",
        "{id: large, if: \"int(bytes) > 4096 && !(plan in ['pro', 'own'])\", limit: 1/s}",
    ),
    key(
        "only",
        "a list of attributes",
        "other attributes are ignored",
        "matches requests that have exactly these attributes, in this order",
        "{id: pair, only: [service, user], per: [user], limit: 10/s}",
    ),
    key(
        "per",
        "attributes, captures, or `a or b`",
        "one counter for all",
        "keeps a separate counter for each value; `a or b` uses the first attribute that the request has",
        "{id: each, when: {path: '/shops/{shop}/**'}, per: [shop, user or client_ip], limit: 10/s}",
    ),
    key(
        "limits",
        "a list of limits",
        "none",
        "several limits: a request must fit all of them and is charged to all or none",
        "{id: both, limits: [10/s, {limit: 1000/day, algorithm: fixed_window}]}",
    ),
    key(
        "unlimited",
        "`true` or `false`",
        "`false`",
        "no limit: the rule matches and its requests are counted in metrics",
        "{id: health, when: {path: /health}, unlimited: true}",
    ),
    key(
        "allow",
        "`true` or `false`",
        "`false`",
        "admits matching requests without evaluating other rules; the first matching `allow` or `deny` rule decides",
        "{id: office, when: {client_ip: {cidr: 192.0.2.0/24}}, allow: true}",
    ),
    key(
        "deny",
        "`true` or `false`",
        "`false`",
        "refuses all matching requests",
        "{id: banished, when: {user: [mallory, trudy]}, deny: true, status: 403}",
    ),
    key(
        "invalid",
        "`deny` or `ignore`",
        "`ignore`",
        "for a rule with `deny` and `cidr`: whether it also refuses a value that is not an address",
        "{id: blocked, when: {client_ip: {cidr: 203.0.113.0/24}}, deny: true, invalid: deny}",
    ),
    key(
        "overrides",
        "a list of overrides",
        "none",
        "other limits for some requests, on the same counter; the first override whose `when` holds applies",
        "{id: plans, per: [user], limit: 10/s, overrides: [{when: {plan: pro}, limit: 100/s}]}",
    ),
    key(
        "replaces",
        "a list of ids",
        "none",
        "a request that matches this rule is not charged to the listed rules, even if another item of the request matches them",
        "{id: bulk-import, when: {job: import}, per: [user], limit: 500/s, replaces: [example-id-1]}",
    ),
    key(
        "suffices",
        "`true` or `false`",
        "`false`",
        "a request that matches several rules marked `suffices` is admitted if any one of them has capacity; only the rules with capacity are charged",
        "{id: own-quota, per: [user], limit: 100/day, algorithm: fixed_window, suffices: true}",
    ),
    key(
        "postpaid",
        "`true` or `false`",
        "`false`",
        "a cost above 0 is charged even if less is left, up to a debt of `max_debt`; a request of cost 0 is refused while there is debt",
        "{id: tokens, per: [user], limit: 100000/day, algorithm: fixed_window, postpaid: true}",
    ),
    key(
        "cost",
        "a whole number, a list of cases, or a map with `from`",
        "1",
        "the cost of a request that does not state one; see [A cost](#a-cost) for costs that differ by request",
        "{id: export, when: {path: /export}, limit: 100/m, cost: 20}",
    ),
    key(
        "on_exceed",
        "`deny`, `shadow`, `drop` or `delay: {max_wait: …}`",
        "`deny`",
        "whether a request above the limits is refused, admitted and reported, refused without a reply, or admitted after a wait",
        "{id: smooth, limit: 10/s, on_exceed: {delay: {max_wait: 2s}}}",
    ),
    key(
        "on_fault",
        "`local`, `open` or `closed`",
        "`local`",
        "which requests are admitted while the store does not answer: this node's share of the limit, all, or none",
        "{id: login, limit: 5/m, on_fault: closed}",
    ),
    key(
        "consistency",
        CONSISTENCIES,
        "`strict`",
        "how nodes with a shared store agree on counters; see [Consistency](#consistency)",
        "{id: steady, per: [user], limit: 1000/s, consistency: leased}",
    ),
    key(
        "sync_every",
        "a duration from 10ms to 10s",
        "100ms",
        "for `consistency: eventual`: the interval at which nodes exchange their charges",
        "{id: feed, per: [user], limit: 100/s, consistency: eventual, sync_every: 500ms}",
    ),
    key(
        "on_change",
        "`keep` or `reset`",
        "`keep`",
        "whether the amount spent is kept or forgotten when the limits of the rule change",
        "{id: quota, limit: 1000/day, on_change: reset}",
    ),
    key(
        "enforce",
        "a percentage",
        "100%",
        "the percentage of keys for which the rule is enforced; for all other keys, it is a shadow rule. Raising the percentage only adds keys",
        "{id: new, per: [user], limit: 10/s, enforce: 25%}",
    ),
    key(
        "ban",
        "a map with `after`, `within` and `for`",
        "none",
        "refuses all requests of a key for some time, after too many refusals",
        "{id: login, per: [client_ip], limit: 5/m, ban: {after: 20, within: 10m, for: 1h}}",
    ),
    key(
        "schedule",
        "a map, or a list of maps",
        "always",
        "when the rule applies: days of the week and times of day, in a time zone",
        "{id: busy, limit: 10/s, schedule: {days: [mon, tue, wed, thu, fri], from: '09:00', to: '17:00', zone: Europe/Paris}}",
    ),
    key(
        "status",
        "400 to 599",
        "set by the front end, usually 429",
        "the HTTP status of a refusal",
        "{id: blocked, when: {path: /admin/**}, deny: true, status: 403}",
    ),
    key(
        "message",
        "a string",
        "set by the front end",
        "the message of a refusal",
        "{id: free, limit: 100/day, message: the free plan has 100 requests a day}",
    ),
    key(
        "metadata",
        "a map of values, lists and maps",
        "none",
        "passed to Envoy as dynamic metadata with requests that the rule admits; a value that reads as a number or a boolean is sent as one",
        "{id: gold, when: {plan: gold}, limit: 1000/s, metadata: {tier: gold, weight: 3}}",
    ),
];
