//! Generates the reference page of the rule language from the definitions that the parser uses.

use std::fmt::Write;

use super::keys::{self, Key};
use super::limit::ALGORITHMS;
use super::{MAX_ALIASED, MAX_DEPTH, MAX_FILE_BYTES, MAX_RULES};

/// Returns the page in Markdown. `docs/rules.md` is a copy, compared by a test.
pub fn reference_page() -> String {
    let mut page = INTRODUCTION.to_owned();
    let sections: [(&str, &str, &[&[Key]]); 16] = [
        ("A file", FILE, &[keys::FILE]),
        ("A rule", RULE, &[keys::RULE]),
        ("A limit", LIMIT, &[keys::LIMIT, keys::OPTIONS]),
        ("A condition", CONDITION, &[keys::TEST]),
        ("Addresses", ADDRESSES, &[]),
        ("An expression", EXPRESSION, &[]),
        ("An override", OVERRIDE, &[keys::OVERRIDE]),
        ("Changed limits", CHANGED, &[]),
        ("A cost", COST, &[keys::COST_CASE]),
        ("A cost from an attribute", COST_FROM, &[keys::COST]),
        ("A delay", DELAY, &[keys::DELAY]),
        ("A ban", BAN, &[keys::BAN]),
        ("A schedule", SCHEDULE, &[keys::SCHEDULE]),
        ("Consistency", CONSISTENCY, &[]),
        ("Details", DETAILS, &[]),
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
    *page += "| key | takes | if left out | what it does |\n|---|---|---|---|\n";
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
    *page += "| algorithm | what it does | takes |\n|---|---|---|\n";
    for (name, takes, about) in ALGORITHMS {
        let takes: Vec<String> = takes.iter().map(|option| format!("`{option}`")).collect();
        let _ = writeln!(page, "| `{name}` | {about} | {} |", takes.join(", "));
    }
    *page += "\n";
}

const INTRODUCTION: &str = r#"# The rule language

This page is generated from the definitions in the code. A test compares the two, and another test
loads every example.

A rule limits the requests that it matches. A request has attributes, names with values such as
`path`, `method`, `client_ip` or `plan`. It matches every rule whose `when` holds, must fit the
limits of all of them, and is charged to all of them or to none.

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
with a mistake is not loaded, and the rules in force stay. `tollgate check` also warns about rules
that are valid and probably not intended.
"#;

const FILE: &str = "YAML or JSON. Rules of one domain may be in several files.\n\n";

const RULE: &str = r"A rule has `limit`, `limits`, `unlimited`, `allow` or `deny`. The keys of a single limit are written
in the rule itself. The identity of a rule is its `id` and its `per`: everything else may change, and
the amount spent is kept.

If a request matches rules with `allow` or `deny`, the first of them decides alone. Otherwise all
enforced rules decide, without those that another matching rule `replaces`; two rules that replace
each other are both left out. Shadow rules are evaluated after the enforced rules have admitted the
request, and change only what is reported.

";

const LIMIT: &str = r"A rate is a count, which may end in `k`, `M` or `G`, and a period with a unit from `ns` to `week`; for
`fixed_window` also `month` and `year`. With `zone` or `anchor`, and for `month` and `year`, windows
follow the calendar. The *capacity* of a limit is the burst of a bucket, or the count of a window, a
log or a concurrency limit.

";

const EXPRESSION: &str = r"`if` takes an expression in the Common Expression Language, restricted to strings, integers and
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
regular expressions, loops, fractions or string construction: evaluation allocates nothing, and its
time is bounded by the length of the expression and of the values.

Rules are indexed by `when`, so their number does not matter. A rule that has only an `if` is indexed
by a value, a prefix or the presence of an attribute that the expression requires
(`plan == 'pro' && …`). A rule that requires nothing, such as one with only `not`, is evaluated for
every request; `tollgate check` warns about more than a few hundred of these.

";

const CONDITION: &str = r"A string is compared for equality. A string with a star or braces is a path pattern: `*` matches
any characters within a segment, `**` any number of whole segments, and `{name}` one segment, which
`per` can name. A list matches if one of its entries does. If a request has an attribute several
times, one matching value is enough; `tag#2` is the second value of `tag`, in `when`, in `per` and in
expressions. Other conditions are a map with one of these keys, or with one of them and `not`:

";

const ADDRESSES: &str = r"A value is compared with `cidr` as an address, in any notation: IPv4 in IPv6 (`::ffff:192.0.2.1`), with a port
(`192.0.2.1:80`, `[2001:db8::1]:443`) or a zone (`fe80::1%eth0`), and in either case. The attribute
`client_ip` is an address everywhere: `when: {client_ip: '2001:DB8::1'}` matches every notation of that
address, and `per: [client_ip]` counts IPv4 clients by their address and IPv6 clients by their network of 64
bits, since a host usually has all addresses of such a network.

A value that is not an address is in no network. Requests with such a value are counted by the value as
it is. `tollgate explain` reports a condition that fails because of it, and `tollgate check` a `client_ip`
in a rule that is not an address. A rule that denies networks says what it does with them: with
`invalid: deny` it refuses them, with `invalid: ignore` it does not match.

";

const OVERRIDE: &str = r"An override changes the limit, not the counter: the amount spent under the rule is spent under the
override as well, and conversely. It takes the keys of a limit. With a `limit`, it inherits the other
keys from the rule except `burst`, `free`, `initial` and `max_debt`, which belong to the count they
were written for. Without a `limit`, it changes only the keys that it has. The cost of finding an
override does not depend on how many there are.

";

const CHANGED: &str = r"The amount that a key has used belongs to the limit under which the key was last *charged*, its own
limit. A request may come under another limit: an override, an edited rule, or another node's version
of the rules. Then the following holds, for every algorithm and on every store:

1. The request passes if the amount used plus its cost fits the limit that it comes under. A charge
   may exceed it by `max_debt`.
2. Until a request is admitted under the other limit, the amount used decreases as under the key's
   own limit: at its rate, or at the end of its window. `remaining` is the capacity of the other
   limit less the amount used. The advertised wait is true: after that time the request passes, if
   no other request was admitted meanwhile.
3. The first request that is admitted and takes something moves the key to the other limit with the
   same amount used. The amount is rounded up only if it is not whole: by less than a nanosecond of
   refill for a bucket, by less than one unit for a window, a log or a concurrency limit. If the
   windows have another length, it counts in the current one.
4. A peek, a refused request and a cost of 0 change nothing: neither the amount used, nor how it
   decreases, nor the limit that it belongs to.
5. A refund, a renewal and a release apply to the key's state, whatever limit their request comes
   under.
6. If a rule has several limits, each is compared with the one at the same position. A limit at a
   new position starts unused.
7. `on_change: reset`, and resetting a key, forget the amount used.

So moving to another limit and back without being admitted there changes nothing, and two nodes with
two versions of a rule together admit no more than the larger version allows. An example to check by
hand:

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
| `u: a`, cost 1 | refused, 0 left: 100 of 2 are used; it passes when 99 have been refilled at 100 a week |
| `u: a`, `p: pro`, cost 90 | refused, 0 left: the refusal before it changed nothing |

With 10/10s and an override of 5/10s, after ten taken at 0 s: a request under the override is refused
with a wait of 6 s, until six have been refilled at one a second. At 10 s ten are left under the rule,
whether or not requests under the override were refused meanwhile.

The engine keeps the last 65,536 limits that no rule has any longer. An amount used under an older
one is forgotten.
";

const COST: &str = r#"A number in `cost` is the cost of a request for this rule and for no other. A list gives some kinds of
requests other costs: the first case whose `when` holds applies, and a request that matches none costs 1.
So one quota is shared by calls of different weight:

```yaml
domain: weighed
rules:
- id: rate                                    # every call counts as one of ten a second,
  per: [api_key]
  limit: 10/s
- id: quota                                   # and in the quota of the month by its kind
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

A request may also carry its cost itself (`cost` beside `attributes`; over the Redis protocol a number
in place of `-`). That cost applies to every rule it matches: here 50 would never fit ten a second.
`tollgate check` warns about rules and overrides whose capacity is below a cost.

"#;

const COST_FROM: &str = r#"Where the gateway knows what a request costs, it sends the cost as an attribute, and the rule names it:

```yaml
domain: weighed-by-gateway
rules:
- id: quota
  per: [api_key]
  limit: 1000/month
  algorithm: fixed_window
  cost: {from: weight, max: 100}
```

A value above `max`, or one that is not a whole number, counts as `max`, so an invalid value gains
nothing. A 0 counts as 0, and there is no minimum: a client that writes the attribute itself can make
its requests free, so let the gateway write it.

"#;

const DELAY: &str = r"For buckets. Requests that fit the burst pass immediately. A request above it is admitted with a wait
of at most `max_wait`, and refused if the wait would be longer. `remaining` includes what may wait.

";

const BAN: &str = r"Each value of `per` is banned separately. The refusal number `after` within `within` starts the ban
and reports the length of the ban. The window slides: a ban starts if `after` consecutive refusals
lie less than `within` apart, first to last. With `after: 3` and `within: 10s`, refusals at 7, 16.9
and 17.0 s do not start a ban, because the first and the last are 10 s apart. One more at 17.1 s does,
together with those at 16.9 and 17.0 s. When a ban starts, the count of refusals restarts at zero.

A ban lasts exactly `for` by the clock of the store: to the nanosecond in memory, to the microsecond
on Redis. A request at the instant of its end is decided by the limits, and a refusal of it counts
towards the next ban. Requests during a ban spend nothing and do not prolong it; `reset` lifts it.
While the store does not answer, bans are neither enforced nor started.

A rule counts refusals by its own limits, including those of requests that the ban of another rule
refuses as well. Refusals by other rules, by `deny`, by the rule's own ban and by `on_fault: closed` do
not count, nor do refusals that a shadow rule would make, nor the refused extra of a `commit`. While the
kill switch says `observe`, refusals count and start bans, but neither refuses a request.

";

const SCHEDULE: &str = r"A rule with a schedule applies only at the scheduled times, which are local times of `zone`. Where
the clock is set back, a time that occurs twice means the first of the two. Where it is set forward, a
skipped time means the instant at which the clock would have shown it unchanged: 02:30 becomes 03:30.

";

const CONSISTENCY: &str = r"How the nodes that share a store agree on the counters of a rule. `B` is the burst or the limit of a window, `r`
the rate, `N` the number of nodes. In the memory of one process all of them decide alike, and exactly.

| `consistency` | a decision | admitted in a time T, at most | algorithms |
|---|---|---|---|
| `strict` | a round trip to the store | B + r·T | all |
| `leased` | in memory, from tokens granted in advance | B + r·T | `token_bucket`, `fixed_window`, without windows of the calendar and `phase: first_request`; no `ban` |
| `eventual` | in memory, by what the node knows | B + r·T + (N − 1)·(B + r·δ) | `token_bucket`, `fixed_window`, `sliding_window`, `sliding_slices`, without windows of the calendar |

With `leased` the store grants a node tokens before it needs them, about as many as it is likely to need
in the next second, and the node spends them without asking. It asks for more when less than a quarter is
left, reports every second, and returns what it does not need when it is idle, when another node needs it,
and when it stops. Leases pay for keys in steady use, from about 50 requests a second and a burst of 8 for
each node; `tollgate check` warns below that. What a node holds when it is killed counts as spent, and is
restored by the rate after at most 6 seconds. While the store does not answer, leases are spent first, then
`on_fault` decides. `remaining` is what the node holds and what the store had left when it last answered,
and `standing` is `leased`. A refusal is repeated for at most 100 ms without asking the store. Requests that
do not take an exact amount (`charge`, `take-up-to`, a cost of 0, rules with `postpaid`), refunds and resets
return the leases of their key first, and the store decides them. A key may be charged under other limits,
such as those of an override; then the store decides too, until the leases under the old ones have ended.

With `eventual` a node decides by the state of the key in the store as it last saw it, and what it took
itself since. It sends what it took every `sync_every`, and at once when that is a sixteenth of B;
δ is `sync_every` and a round trip. Each take counts exactly once, whatever happens to the connection.
What nodes admitted too much together is owed: three nodes that share `4/s` and admit twelve requests at
once leave a balance of −8, and every request is refused for the next two seconds. The metric
`tollgate_overshoot_tokens_total` counts it. `remaining` and waits are estimates, and `standing` is `eventual`.
The first request for a key on a node, and the first one after a second or two intervals without any,
reads the store. While the store does not answer, nodes go on deciding by what they know, and send what they took
afterwards; `on_fault` decides about keys that a node knows nothing of. A request that matches strict rules as
well takes one round trip, and is charged to all or none.

";

const DETAILS: &str = r"- **A cost of 0** takes nothing and records nothing. It is refused only by a rule with `deny`, by a ban
  and by a limit in debt; `minimum_gap` does not apply to it.
- **`phase: first_request`**: a window begins with the first request counted in it. After it ends, the
  next window begins with the next request that is counted. A refused request, a peek and a cost of 0
  begin no window. While there is debt, windows follow each other without a gap until it is paid. The
  steps of an interval bucket begin with the request that takes from a full bucket, and follow each
  other one period apart until the bucket is full again.
- **`count_refused`** records, at its cost, a request that this log refuses, also if other limits or a
  ban refuse it as well. A `commit` above its reservation charges the extra as `charge` does, so a log
  that refuses the extra records it. The log does not record a request that fits it and is refused by
  another limit, a cost above the limit, or a peek.
- **`initial`** is what a new key has. A key begins with the first request for it that is not a peek,
  admitted or refused, and refills from then on; all keys of a request begin, whichever of them refuses
  it. A key that has everything left is new under any other limit, and the store may forget it at any
  time; so a wait under a limit with `initial` is an estimate while the key is charged under another
  limit. After `reset` a key is new.
- **`minimum_gap` of a changed limit** counts from the last request for as long as the limit that the key
  was charged under remembers it: for its period, or for its own gap.
- **An interval bucket without `max_wait`** delays no request: it refuses what is not available, with
  the time until the step that refills it.
- **`take-up-to`** takes the same amount from all enforced rules that a request matches, the least that
  any of them has, in one step. The shadow rules are then asked for that amount, and take the least of
  theirs.
- **The debt of a calendar window** counts in the windows that follow, the count of the limit in each,
  whatever their length. A wait that goes beyond the end of the current window is an estimate: it takes
  every later month as 30.436875 days and every year as 365.2425 days. The same holds for the amount that
  a key owes while it is asked under a limit with other windows.
- **A refund after a change of algorithm** returns what the key's present limit still counts of the
  taking. A bucket accepts any refund, up to the amount used. A window, a slice and a log accept the
  refund of a taking in the same window or at the same instant, and a concurrency limit that of a slot
  still held. The amount refunded is the least that any limit of the receipt accepted. Limits that the
  key has by now and that the request was not charged to are left as they are.
- **Calendar windows of another time zone or anchor** are other windows: what was spent in the key's own
  window counts until that one ends, and moves to the other with the next request that is admitted there.
- **`renew`** extends the slots that a request took, and returns whether it took any and all of them are still
  held. A slot is lost when its lease ends, by a reset, when the rule is removed, and when a request is
  admitted under a limit of another algorithm. Slots are numbered by the clock: the receipt of a lost slot
  can release or renew one that was taken within about a microsecond of it.
- **Shadow rules** that a request matches form one group. They are decided after all enforced rules have
  admitted the request, and charged all or none: if one of them would refuse, none of them is charged.
  One that denies (`deny`, or an override with `deny`) refuses for the group: the others are not
  evaluated, and only the refusal is reported.
";
