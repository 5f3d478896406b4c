//! Generates the reference page of the rule language from the definitions that the parser uses.

use std::fmt::Write;

use super::keys::{self, Key};
use super::limit::ALGORITHMS;
use super::{MAX_ALIASED, MAX_DEPTH, MAX_FILE_BYTES, MAX_RULES};

/// Returns the page in Markdown. A test compares it with `docs/rules.md`.
pub fn reference_page() -> String {
    let mut page = INTRODUCTION.to_owned();
    let sections: [(&str, &str, &[&[Key]]); 16] = [
        ("A file", FILE_PROSE, &[keys::FILE_KEYS]),
        ("A rule", RULE_PROSE, &[keys::RULE_KEYS]),
        ("A limit", LIMIT_PROSE, &[keys::LIMIT_KEYS, keys::LIMIT_OPTIONS]),
        ("A condition", CONDITION_PROSE, &[keys::CONDITION_KEYS]),
        ("Addresses", ADDRESSES_PROSE, &[]),
        ("An expression", EXPRESSION_PROSE, &[]),
        ("An override", OVERRIDE_PROSE, &[keys::OVERRIDE_KEYS]),
        ("Changed limits", CHANGED_PROSE, &[]),
        ("A cost", COST_PROSE, &[keys::COST_CASE_KEYS]),
        ("A cost from an attribute", COST_FROM_PROSE, &[keys::COST_KEYS]),
        ("A delay", DELAY_PROSE, &[keys::DELAY_KEYS]),
        ("A ban", BAN_PROSE, &[keys::BAN_KEYS]),
        ("A schedule", SCHEDULE_PROSE, &[keys::SCHEDULE_KEYS]),
        ("Consistency", CONSISTENCY_PROSE, &[]),
        ("Details", DETAILS_PROSE, &[]),
        ("Sizes", "", &[]),
    ];
    for (title, prose, tables) in sections {
        let _ = writeln!(page, "\n## {title}\n");
        page += prose;
        if title == "A limit" {
            write_algorithms(&mut page);
        }
        write_key_table(&mut page, tables);
    }
    let _ = writeln!(
        page,
        "A file has at most {} MiB, lists and maps nested at most {MAX_DEPTH} deep, and aliases that expand to at most \
         {MAX_ALIASED} values. All files together have at most {MAX_RULES} rules. A file above one of these limits is \
         reported and not loaded.",
        MAX_FILE_BYTES >> 20
    );
    page
}

fn write_key_table(page: &mut String, tables: &[&[Key]]) {
    if tables.is_empty() {
        return;
    }
    *page += "| key | value | default | meaning |\n|---|---|---|---|\n";
    for key in tables.iter().flat_map(|table| table.iter()) {
        let _ = writeln!(page, "| `{}` | {} | {} | {} |", key.name, key.takes, key.default, key.about);
    }
    let mut examples: Vec<&str> = Vec::new();
    for key in tables.iter().flat_map(|table| table.iter()).filter(|key| !key.example.is_empty()) {
        if !examples.contains(&key.example) {
            examples.push(key.example);
        }
    }
    if examples.is_empty() {
        return;
    }
    *page += "\n```yaml\ndomain: examples\nrules:\n";
    for (number, example) in examples.iter().enumerate() {
        // Each example is a complete rule; in one file the rules need different ids.
        let (_, rest) = example.split_once(',').unwrap_or((example, "}"));
        let _ = writeln!(page, "- {{id: example-{}-{},{rest}", id_prefix(tables), number + 1);
    }
    *page += "```\n";
}

fn id_prefix(tables: &[&[Key]]) -> &'static str {
    tables.first().and_then(|table| table.first()).map_or("", |key| key.name)
}

fn write_algorithms(page: &mut String) {
    *page += "| algorithm | meaning | options |\n|---|---|---|\n";
    for (name, takes, about) in ALGORITHMS {
        let takes: Vec<String> = takes.iter().map(|option| format!("`{option}`")).collect();
        let _ = writeln!(page, "| `{name}` | {about} | {} |", takes.join(", "));
    }
    *page += "\n";
}

const INTRODUCTION: &str = r#"# The rule language

This page is generated from the definitions in the code. One test compares the page with the
definitions, and another test loads every example.

A rule limits the requests that it matches. A request has attributes: names with values, such as
`path`, `method`, `client_ip` or `plan`. A request matches every rule whose `when`, `if`, `only` and
`schedule` hold. A request must fit the limits of all matching rules, and is charged to all of them or to
none. There are two exceptions: shadow rules never refuse, and of the matching rules marked `suffices`,
one with capacity is enough.

An example with plans, a protected login, an expensive export and a monthly quota:

```yaml
domain: api
rules:
- id: plans
  when: {path: /v1/**}
  per: [api_key or client_ip]
  limit: 5/s                                  # clients without a plan
  burst: 10
  message: slow down, or choose a larger plan
  overrides:
  - {when: {plan: enterprise}, unlimited: true}
  - {when: {plan: pro}, limit: 100/s}
  - {when: {api_key: acme}, limit: 500/s, until: '2030-01-31T18:00[Europe/Paris]'}
- id: quota
  when: {path: /v1/**, api_key: {present: true}}
  per: [api_key]
  limit: 10k/month
  algorithm: fixed_window
  zone: Europe/Paris
  anchor: 15                                  # the billing day
- id: export
  when: {path: '/v1/shops/{shop}/export'}
  per: [shop]
  limits: [10/h, {limit: 2, algorithm: concurrency, lease: 5m}]
- id: login
  when: {path: /login, method: POST}
  per: [client_ip]
  limit: 5/m
  algorithm: sliding_log
  on_fault: closed
  ban: {after: 20, within: 10m, for: 1h}
```

Requests that do not have an attribute named in `per` share one counter. Omitting an API key is
therefore not a way around the limit. Values are compared as strings: `1.10` is not equal to `1.1`.

All mistakes in a file are reported together, each with its line and column and a correction. A file
with a mistake is not loaded, and the running rules do not change. `tollgate check` also warns about
rules that are valid but probably not intended.
"#;

const FILE_PROSE: &str = "YAML or JSON. Rules of one domain may be in several files.\n\n";

const RULE_PROSE: &str = r"A rule has exactly one of `limit`, `limits`, `unlimited`, `allow` and `deny`. The keys of a single limit
are written in the rule itself. The identity of a rule is its `id` and its `per`: everything else may change, and
the amount spent is kept.

If a request matches rules with `allow` or `deny`, the first such rule decides alone. Otherwise all
enforced rules decide, except rules that another matching rule `replaces`. If two rules replace each
other, neither applies. Shadow rules are evaluated after the enforced rules have admitted the
request, and affect only the reports.

";

const LIMIT_PROSE: &str = r"A rate is a count and a period. The count may end in `k`, `M` or `G`. The unit of the period ranges from `ns` to `week`;
`fixed_window` also accepts `month` and `year`. With `zone` or `anchor`, and for `month` and `year`, windows
follow the calendar. The *capacity* of a limit is the burst of a bucket, or the count of a window, a
log or a concurrency limit.

";

const EXPRESSION_PROSE: &str = r"`if` takes an expression in the Common Expression Language, restricted to strings, integers and
booleans:

| | |
|---|---|
| booleans | `&&`, `\|\|`, `!`, `c ? a : b`, `true`, `false` |
| comparisons | `==`, `!=`, `<`, `<=`, `>`, `>=`; `in` with a list, `plan in ['pro', 'own']` |
| integers | `+`, `-`, `*`, `/`, `%`; `int(a)` parses a string, `size(a)` counts characters |
| strings | `a.startsWith('x')`, `a.endsWith('x')`, `a.contains('x')`, `a.size()` |
| attributes | by name, `plan`, or with any characters, `attributes['x-y']`; `has(plan)` or `'plan' in attributes` |

Types are checked when the rules are loaded. An operation that cannot be evaluated (a comparison with
a missing attribute, a division by zero, an integer that exceeds 64 bits) makes the enclosing
expression an error, as in CEL; an expression that ends in an error does not hold. There are no
regular expressions, loops, fractions or string construction, so evaluation allocates nothing, and
its time is bounded by the length of the expression and of the values.

Rules are indexed by `when`, so decisions stay fast with many rules. A rule that has only an `if` is indexed
by a value, a prefix or the presence of an attribute that the expression requires
(`plan == 'pro' && …`). A rule without such a requirement, such as a rule with only `not`, is evaluated
for every request; `tollgate check` warns about more than 256 such rules.

";

const CONDITION_PROSE: &str = r"A string is compared for equality. A string with a star or braces is a path pattern: `*` matches
any characters within a segment, `**` any number of whole segments, and `{name}` one segment, which
`per` can name. A list matches if one of its entries matches. If a request has an attribute several
times, one matching value is enough; `tag#2` is the second value of `tag`, in `when`, in `per` and in
expressions. Other conditions are a map with one of these keys, or with one of them and `not`:

";

const ADDRESSES_PROSE: &str = r"A value is compared with `cidr` as an address, in any notation: IPv4 in IPv6 (`::ffff:192.0.2.1`), with a port
(`192.0.2.1:80`, `[2001:db8::1]:443`) or a zone (`fe80::1%eth0`), and in upper or lower case. The attribute
`client_ip` is an address everywhere: `when: {client_ip: '2001:DB8::1'}` matches every notation of that
address. `per: [client_ip]` counts IPv4 clients by address and IPv6 clients by /64 network, because a host can
usually use all addresses of a /64 network.

A value that is not an address is in no network, and is counted unchanged. `tollgate explain` reports a
condition that fails because of such a value, and `tollgate check` warns if a rule compares `client_ip` with a
value that is not an address. A rule that denies networks chooses what to do with such values: `invalid: deny`
refuses them, and with `invalid: ignore` the rule does not match.

";

const OVERRIDE_PROSE: &str = r"An override changes the limit, not the counter: the amount spent under the rule is also spent under the
override, and vice versa. An override may set the same keys as a limit (`limit`, `burst` and so on). With a `limit`, the
override inherits the other keys from the rule, except `burst`, `free`, `initial` and `max_debt`, which belong to the
rule's own count. Without a `limit`, the override changes only the keys that it contains. The lookup time does not
depend on the number of overrides.

";

const CHANGED_PROSE: &str = r"The used amount of a key belongs to the key's *own* limit: the limit under which the key was last
charged. A later request may have another limit: an override, an edited rule, or another node's
version of the rules. Then the following holds, for every algorithm and on every store:

1. The request passes if the used amount plus the cost is at most the capacity of the request's limit.
   A charge may exceed that capacity by `max_debt`.
2. Until a request is admitted under the other limit, the used amount decreases as under the key's
   own limit: at its rate, or at the end of its window. `remaining` is the capacity of the other
   limit minus the used amount. The advertised wait is exact: after that time the request passes,
   unless another request was admitted in between.
3. The first admitted request with a cost above 0 moves the key to the other limit, with the same
   used amount. A fraction is rounded up: by less than a nanosecond of refill for a bucket, by less
   than one unit for a window, a log or a concurrency limit. If the windows have another length, or
   the previous window counted more than the other limit plus its `max_debt`, the amount counts in
   the current window.
4. A peek, a refused request and a cost of 0 change nothing: neither the used amount, nor how it
   decreases, nor the key's own limit.
5. A refund, a renewal and a release apply to the key's state, even if their request has another
   limit.
6. If a rule has several limits, each new limit is compared with the old limit at the same position.
   A limit at a new position starts unused.
7. `on_change: reset`, and resetting a key, discard the used amount.

So moving to another limit and back changes nothing if no request is admitted in between, and two nodes
with two versions of a rule together admit no more than the larger version allows. An example to
check by hand:

```yaml
domain: checked
rules:
- id: reports
  per: [u]
  limit: 2/week
  overrides:
  - when: {p: pro}
    limit: 100/week
```

| request | decision |
|---|---|
| `u: a`, `p: pro`, cost 100 | passes, 0 left |
| `u: a`, cost 1 | refused, 0 left: 100 of 2 are used; it passes when 99 have been refilled, at 100 a week |
| `u: a`, `p: pro`, cost 90 | refused, 0 left: the previous refusal changed nothing |

A second example has a limit of 10/10s with an override of 5/10s, and ten tokens are taken at 0 s. A
request under the override is then refused with a wait of 6 s, until six tokens have been refilled at
one per second. At 10 s, ten tokens are left under the rule, whether or not requests under the override
were refused in between.

The engine remembers the last 65,536 limits that are no longer in any rule. An amount used under an
older limit is discarded.
";

const COST_PROSE: &str = r#"A number in `cost` is the cost of a request under this rule; other rules are not affected. A list
contains different costs for different requests: the first case whose `when` holds applies, and a request
that matches no case costs 1. This way, calls of different weight share one quota:

```yaml
domain: weighed
rules:
- id: rate                                    # every call counts as 1 here
  per: [api_key]
  limit: 10/s
- id: quota                                   # the monthly quota has different costs
  per: [api_key]
  limit: 1000/month
  algorithm: fixed_window
  cost:
  - {when: {path: /v1/export}, cost: 50}
  - {when: {path: /v1/search/**}, cost: 5}
  - {when: {method: [GET, HEAD]}, cost: 1}
  - {cost: 2}                                 # all others
  overrides: [{when: {plan: pro}, limit: 1M/month}]
```

A request may also state its own cost (`cost` beside `attributes`; over the Redis protocol, a number
instead of `-`). That cost applies to every rule that the request matches. In this example, a cost of 50
would never fit the limit of 10/s. `tollgate check` warns about rules and overrides whose capacity is
below a cost.

"#;

const COST_FROM_PROSE: &str = r#"If the gateway knows the cost of a request, it sends the cost as an attribute, and the rule names that attribute:

```yaml
domain: weighed-by-gateway
rules:
- id: quota
  per: [api_key]
  limit: 1000/month
  algorithm: fixed_window
  cost: {from: weight, max: 100}
```

A value above `max`, or one that is not a whole number, counts as `max`, so a client gains nothing from
an invalid value. A value of 0 is accepted, because there is no minimum. A client that can set the
attribute can make its requests free, so only the gateway should set it.

"#;

const DELAY_PROSE: &str = r"For buckets. Requests that fit the burst pass immediately. A request above the burst is admitted with a
wait of at most `max_wait`, and refused if the wait would be longer. `remaining` includes the amount that
can still be admitted with a wait.

";

const BAN_PROSE: &str = r"Each value of `per` is banned separately. A ban starts with the last of `after` refusals within
`within`; this refusal reports the length of the ban. The window slides: a ban starts if the first and
the last of `after` consecutive refusals are less than `within` apart. With `after: 3` and
`within: 10s`, refusals at 7, 16.9 and 17.0 s do not start a ban, because the first and the last are
10 s apart. A further refusal at 17.1 s starts a ban, together with the refusals at 16.9 and 17.0 s. When a ban
starts, the count of refusals restarts at zero.

A ban lasts exactly `for` by the store's clock: to the nanosecond in memory, to the microsecond on
Redis. A request at the instant at which a ban ends is decided by the limits, and its refusal counts
towards the next ban. Requests during a ban spend nothing and do not prolong the ban; `reset` lifts
a ban. While the store does not answer, bans are neither enforced nor started.

A rule counts refusals by its own limits, including refusals of requests that the ban of another rule
also refuses. Refusals by other rules, by `deny`, by the rule's own ban and by `on_fault: closed` do not
count. Refusals by a shadow rule and the refused excess of a `commit` do not count either. While the
kill switch is set to `observe`, refusals count and bans start, but no request is refused.

";

const SCHEDULE_PROSE: &str = r"A rule with a schedule applies only at the scheduled times, which are local times of `zone`. If a local
time occurs twice because the clock is set back, it means the first of the two instants. If a local time is
skipped because the clock is set forward, it means the instant at which an unchanged clock would show it:
02:30 becomes 03:30.

";

const CONSISTENCY_PROSE: &str = r"`consistency` chooses how nodes with a shared store agree on the counters of a rule. `B` is the burst or the
limit of a window, `r` the rate, and `N` the node count. In the memory of a single process, all three choices
behave the same, and decide exactly.

| `consistency` | a decision takes place | maximum admitted in a time T | algorithms |
|---|---|---|---|
| `strict` | in the store, with a round trip | B + r·T | all |
| `leased` | in memory, from tokens granted in advance | B + r·T | `token_bucket`, `fixed_window`, without calendar windows and `phase: first_request`; no `ban` |
| `eventual` | in memory, from a local view of the key | B + r·T + (N − 1)·(B + r·δ) | `token_bucket`, `fixed_window`, `sliding_window`, `sliding_slices`, without calendar windows |

With `leased`, the store grants tokens to a node in advance, about as many as the node is likely to need in
the next second. The node spends these tokens without asking the store. The node asks for more when less
than a quarter is left, reports every second, and returns unneeded tokens when it is idle, when another
node needs them, and when it stops.

- Leases pay off for keys in steady use, from about 50 requests per second and a burst of 8 per node.
  `tollgate check` warns about smaller limits.
- Tokens held by a killed node are unavailable until their lease expires, after at most 6 seconds. Expired
  tokens count as spent.
- While the store does not answer, leases are spent first. Then `on_fault` decides.
- `remaining` is the number of tokens that the node holds, plus the tokens left in the store at its last answer.
  `standing` is `leased`.
- A refusal is repeated for at most 100 ms without asking the store.
- The store decides refunds, resets, and requests that do not take an exact amount (`charge`, `take-up-to`,
  a cost of 0, rules with `postpaid`). The leases of the key are returned first.
- If a key is charged under other limits, such as the limits of an override, the store decides until the leases
  under the old limits have ended.

With `eventual`, a node decides from a local view of the key: the last known state in the store, plus
the node's own charges since then. The node sends its charges every `sync_every`, and immediately when
they reach a sixteenth of B; δ is `sync_every` plus a round trip. Every charge is counted exactly once,
even if the connection fails.

- An overshoot becomes debt: three nodes that share `4/s` and admit twelve requests at once leave a balance
  of −8, and every request is refused for the next two seconds. The metric
  `tollgate_overshoot_tokens_total` counts overshoot.
- `remaining` and waits are estimates. `standing` is `eventual`.
- A node reads the key from the store for its first request, and for the first request after a pause of one
  second or two sync intervals, whichever is longer.
- While the store does not answer, nodes continue to decide from their views, and send their charges
  afterwards. For keys without a view, `on_fault` decides.
- A request that also matches strict rules takes one round trip, and is charged all or none.

";

const DETAILS_PROSE: &str = r"- **A cost of 0** takes nothing and records nothing. Such a request is refused only by a rule with
  `deny`, by a ban and by a limit in debt; `minimum_gap` does not apply to it.
- **`phase: first_request`**: a window starts with the first request counted in it. After a window ends,
  the next window starts with the next counted request. A refused request, a peek and a cost of 0 start
  no window. While there is debt, windows follow each other without a gap. The steps of an interval
  bucket start with the request that takes from a full bucket, and repeat every period until the bucket
  is full again.
- **`count_refused`**: the log records every request that it refuses, with its cost, even if other limits
  or a ban also refuse the request. A `commit` above its reservation charges the excess like `charge`,
  so a log that refuses the excess records it. The log does not record a request that it would admit but
  another limit refuses, a cost above the limit, or a peek.
- **`initial`** is the amount that a new key has. A key starts with its first request that is not a peek,
  whether admitted or refused, and refills from then on. All keys of a request start, even if only one of them
  refuses it. A key that is full under the limit of its last charge counts as new under every other
  limit, and the store may evict it at any time. So a wait under a limit with `initial` is an estimate
  while the key is charged under another limit. After `reset`, a key is new.
- **`minimum_gap` of a changed limit** counts from the last request, as long as the key's own limit
  remembers that request: for its period or its gap, whichever is longer.
- **An interval bucket without `max_wait`** delays no request. If too little is available, the bucket
  refuses the request and reports the time until the step that refills enough.
- **`take-up-to`** takes the same amount from all matching enforced rules, in one step: the smallest
  amount that any of them has left. The matching shadow rules are then asked for that amount, and take
  the smallest amount that any of them has left.
- **The debt of a calendar window** is paid off in the following windows: each window pays off the
  count of the limit, regardless of its length. A wait beyond the end of the current window is an estimate: it assumes
  30.436875 days for every later month and 365.2425 days for every later year. If a key in debt is checked under a
  limit with other windows, its wait is an estimate too.
- **A refund after a change of algorithm** returns the part of the charge that the key's current limit
  still counts. A bucket accepts any refund, up to the used amount. A window or a slice accepts the refund
  of a charge in the same window or slice, and a log accepts the refund of a charge at the same
  instant. Only a bucket or a concurrency limit accepts the refund of a slot, and a concurrency limit only
  if the slot is still held. The refunded amount is the smallest amount that any limit of the receipt
  accepted. Limits that were added since the charge are not changed.
- **Calendar windows with another time zone or anchor** are different windows. The amount spent in the
  key's own window counts until that window ends, and moves to the other window with the next request
  that is admitted there.
- **`renew`** extends the slots that a request took. The call returns true if the request took slots and
  still holds all of them. A slot is lost when its lease ends, when the key is reset, when the rule is
  removed, and when a request is admitted under a limit with another algorithm. Slots are numbered by the
  clock: the receipt of a lost slot can release or renew a slot that was taken within about a microsecond
  of the lost one.
- **Shadow rules** that a request matches form one group. Shadow rules are decided after all enforced
  rules have admitted the request, and charged all or none: if one of them would refuse, none is
  charged. If one of these rules denies (`deny`, or an override with `deny`), the other rules of the
  group are not evaluated, and only this refusal is reported.
";
