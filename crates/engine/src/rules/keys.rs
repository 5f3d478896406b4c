//! Every key of the language with what it takes, what it is if left out, and an example: the reference page is made of this.

mod parts;

pub use parts::{BAN, COST, DELAY, LIMIT, OPTIONS, OVERRIDE, SCHEDULE, TEST};

/// A key, as the reference tells it.
#[derive(Clone, Copy, Debug)]
pub struct Key {
    /// What is written.
    pub name: &'static str,
    /// What it takes.
    pub takes: &'static str,
    /// What it is if it is left out.
    pub default: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// A rule that uses it.
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

/// The names of tables of keys.
pub(crate) fn names(tables: &[&[Key]]) -> Vec<&'static str> {
    tables.iter().flat_map(|table| table.iter()).map(|key| key.name).collect()
}

/// Of a file.
pub const FILE: &[Key] = &[
    key("domain", "a name", "none", "whose rules these are; requests name it", ""),
    key("rules", "a list of rules", "none", "the rules, in order", ""),
    key(
        "domains",
        "a list of maps with `domain` and `rules`",
        "none",
        "several domains in one file, instead of both",
        "",
    ),
];

/// Of one of several domains in a file.
pub(crate) const DOMAIN: &[Key] = FILE.split_at(2).0;

/// Of a rule. The keys of a limit may stand beside `limit`, too.
pub const RULE: &[Key] = &[
    key(
        "id",
        "a name",
        "must be given",
        "what the rule is known by: its numbers may change, the counters stay",
        "{id: everything, limit: 1000/s}",
    ),
    key(
        "when",
        "attributes and what each must be",
        "always",
        "the requests it applies to; all conditions must hold",
        "{id: api, when: {path: /v1/**, method: [GET, POST]}, limit: 100/s}",
    ),
    key(
        "if",
        "an expression",
        "always",
        "a further condition, for what `when` cannot say",
        "{id: large, if: \"int(bytes) > 4096 && !(plan in ['pro', 'own'])\", limit: 1/s}",
    ),
    key(
        "only",
        "a list of attributes",
        "others do not matter",
        "the request has these attributes, in this order, and no others",
        "{id: pair, only: [service, user], per: [user], limit: 10/s}",
    ),
    key(
        "per",
        "attributes, captures, or `a or b`",
        "one counter for all",
        "counts separately for each value; of `a or b`, the first that the request has",
        "{id: each, when: {path: '/shops/{shop}/**'}, per: [shop, user or client_ip], limit: 10/s}",
    ),
    key(
        "limits",
        "a list of limits",
        "none",
        "several limits at once: a request must fit all of them, and is charged to all or none",
        "{id: both, limits: [10/s, {limit: 1000/day, algorithm: fixed_window}]}",
    ),
    key(
        "unlimited",
        "`true` or `false`",
        "`false`",
        "no limit at all; the rule is met and counted, nothing more",
        "{id: health, when: {path: /health}, unlimited: true}",
    ),
    key(
        "allow",
        "`true` or `false`",
        "`false`",
        "requests that meet it pass, and no other rule is asked; of `allow` and `deny` rules the first one met counts",
        "{id: office, when: {client_ip: {cidr: 192.0.2.0/24}}, allow: true}",
    ),
    key(
        "deny",
        "`true` or `false`",
        "`false`",
        "requests that meet it are refused for good",
        "{id: banished, when: {user: [mallory, trudy]}, deny: true, status: 403}",
    ),
    key(
        "overrides",
        "a list of overrides",
        "none",
        "other numbers for some; the first whose `when` holds counts, the counter stays the same",
        "{id: plans, per: [user], limit: 10/s, overrides: [{when: {plan: pro}, limit: 100/s}]}",
    ),
    key(
        "replaces",
        "a list of ids",
        "none",
        "a request that meets this rule is not charged to those, by whichever of its items they are met",
        "{id: bulk-import, when: {job: import}, per: [user], limit: 500/s, replaces: [example-id-1]}",
    ),
    key(
        "suffices",
        "`true` or `false`",
        "`false`",
        "of the rules with this that a request meets, one that has room is enough; it is charged to those that have",
        "{id: own-quota, per: [user], limit: 100/day, algorithm: fixed_window, suffices: true}",
    ),
    key(
        "cost",
        "a whole number, or a map with `from`",
        "1",
        "what a request weighs to this rule that does not say so itself; [below](#a-cost) is how calls weigh differently",
        "{id: export, when: {path: /export}, limit: 100/m, cost: 20}",
    ),
    key(
        "on_exceed",
        "`deny`, `shadow`, `drop` or `delay: {max_wait: …}`",
        "`deny`",
        "what happens beyond the limits: refused; passed and told; refused without an answer; or let pass after a wait",
        "{id: smooth, limit: 10/s, on_exceed: {delay: {max_wait: 2s}}}",
    ),
    key(
        "on_fault",
        "`local`, `open` or `closed`",
        "`local`",
        "what happens while the store does not answer: this node's share, everybody passes, or nobody does",
        "{id: login, limit: 5/m, on_fault: closed}",
    ),
    key(
        "consistency",
        "`strict`",
        "`strict`",
        "how exactly nodes that share a store agree: `strict` decides every request in the store",
        "{id: exact, limit: 100/s, consistency: strict}",
    ),
    key(
        "on_change",
        "`keep` or `reset`",
        "`keep`",
        "what becomes of what was spent when the rule's own limits change",
        "{id: quota, limit: 1000/day, on_change: reset}",
    ),
    key(
        "enforce",
        "a percentage",
        "100%",
        "for so many of its counters the rule is enforced, for the others it is a shadow; raising it only adds to those",
        "{id: new, per: [user], limit: 10/s, enforce: 25%}",
    ),
    key(
        "ban",
        "a map with `after`, `within` and `for`",
        "none",
        "who is refused that often is refused altogether, for a while",
        "{id: login, per: [client_ip], limit: 5/m, ban: {after: 20, within: 10m, for: 1h}}",
    ),
    key(
        "schedule",
        "a map, or a list of them",
        "always",
        "when the rule applies: days of the week and hours, in a time zone",
        "{id: busy, limit: 10/s, schedule: {days: [mon, tue, wed, thu, fri], from: '09:00', to: '17:00', zone: Europe/Paris}}",
    ),
    key(
        "status",
        "400 to 599",
        "what the front end says, mostly 429",
        "the status of a refusal",
        "{id: blocked, when: {path: /admin/**}, deny: true, status: 403}",
    ),
    key(
        "message",
        "a text",
        "what the front end says",
        "what a refusal tells the caller",
        "{id: free, limit: 100/day, message: the free plan has 100 requests a day}",
    ),
];
