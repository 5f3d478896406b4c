//! The reference page of the language, made of the definitions that the reader itself goes by.

use std::fmt::Write;

use super::keys::{self, Key};
use super::limit::ALGORITHMS;
use super::{MAX_ALIASED, MAX_DEPTH, MAX_FILE_BYTES, MAX_RULES};

/// The whole page, in Markdown. `docs/rules.md` is this.
pub fn reference() -> String {
    let mut page = INTRODUCTION.to_owned();
    let sections: [(&str, &str, &[&[Key]]); 13] = [
        ("A file", FILE, &[keys::FILE]),
        ("A rule", RULE, &[keys::RULE]),
        ("A limit", LIMIT, &[keys::LIMIT, keys::OPTIONS]),
        ("A condition", CONDITION, &[keys::TEST]),
        ("An expression", EXPRESSION, &[]),
        ("An override", OVERRIDE, &[keys::OVERRIDE]),
        ("Changed limits", CHANGED, &[]),
        ("A cost", COST, &[keys::COST]),
        ("A delay", DELAY, &[keys::DELAY]),
        ("A ban", BAN, &[keys::BAN]),
        ("A schedule", SCHEDULE, &[keys::SCHEDULE]),
        ("Details", DETAILS, &[]),
        ("Sizes", "", &[]),
    ];
    for (title, prose, tables) in sections {
        let _ = writeln!(page, "\n## {title}\n");
        page += prose;
        if title == "A limit" {
            algorithms(&mut page);
        }
        table(&mut page, tables);
    }
    let _ = writeln!(
        page,
        "A file has at most {} MiB, lists and maps {MAX_DEPTH} deep, and aliases that stand for {MAX_ALIASED} values; all files \
         together have at most {MAX_RULES} rules. What is beyond is told, and nothing is loaded.",
        MAX_FILE_BYTES >> 20
    );
    page
}

fn table(page: &mut String, tables: &[&[Key]]) {
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
        // Each is a rule by itself; together they need names of their own.
        let (_, rest) = example.split_once(',').unwrap_or((example, "}"));
        let _ = writeln!(page, "- {{id: example-{}-{},{rest}", page_place(tables), number + 1);
    }
    *page += "```\n";
}

fn page_place(tables: &[&[Key]]) -> &'static str {
    tables.first().and_then(|table| table.first()).map_or("", |key| key.name)
}

fn algorithms(page: &mut String) {
    *page += "| algorithm | what it does | takes |\n|---|---|---|\n";
    for (name, takes, about) in ALGORITHMS {
        let takes: Vec<String> = takes.iter().map(|option| format!("`{option}`")).collect();
        let _ = writeln!(page, "| `{name}` | {about} | {} |", takes.join(", "));
    }
    *page += "\n";
}

const INTRODUCTION: &str = r#"# The rule language

This page is made of the definitions in the code; a test compares them, and another one loads every example.

Rules say who may do how much. A request brings attributes, names and values such as `path`, `method`, `client_ip` or `plan`;
it meets every rule whose `when` holds, and must fit the limits of all of them. It is charged to all or to none.

Plans, a guarded login, an expensive export and a monthly quota are written like this:

```yaml
domain: api
rules:
- id: plans
  when: {path: /v1/**}
  per: [api_key or client_ip]
  limit: 5/s                                  # who has no plan
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
  limits: [10/h, {limit: 2, algorithm: concurrency}]
- id: login
  when: {path: /login, method: POST}
  per: [client_ip]
  limit: 5/m
  algorithm: sliding_log
  on_fault: closed
  ban: {after: 20, within: 10m, for: 1h}
```

An attribute in `per` that a request does not have counts as a value of its own: all requests without an API key share one
counter, so leaving it out is no way around the limit. Values are compared as they are written: `1.10` is not 1.1.

Everything that is wrong with a file is told at once, each with its place, the line, and what would be right; a file with a mistake
is not loaded, and the rules in force stay. `tollgate check` also warns of what is valid and probably not meant; beside mistakes, of
what it can tell of each rule that has none.
"#;

const FILE: &str = "YAML or JSON. Rules of one domain may be in several files.\n\n";

const RULE: &str = "A rule has `limit`, `limits`, `unlimited`, `allow` or `deny`. The keys of a single limit stand in the rule \
    itself. Its identity is its `id` and what it counts by: everything else may change, and what was spent stays spent.\n\n\
    Of the rules that a request meets, the first with `allow` or `deny` decides alone. Otherwise the shadows are \
    asked when all others let it pass, and change nothing but what is told. What a rule `replaces` is left out before anything \
    is counted, and two that replace each other are both left out.\n\n";

const LIMIT: &str = "Rates are a count, which may end in `k`, `M` or `G`, and a period with a unit from `ns` to `week`; for \
    `fixed_window` also `month` and `year`. With `zone` or `anchor`, and for `month` and `year`, the window is one of the \
    calendar.\n\n";

const EXPRESSION: &str = "What `when` cannot say, `if` can, in the Common Expression Language as far as it is about texts, whole \
    numbers and truths:\n\n\
    | | |\n|---|---|\n\
    | truths | `&&`, `\\|\\|`, `!`, `c ? a : b`, `true`, `false` |\n\
    | comparisons | `==`, `!=`, `<`, `<=`, `>`, `>=`; `in` with a list, `plan in ['pro', 'own']` |\n\
    | numbers | `+`, `-`, `*`, `/`, `%`; `int(a)` reads one, `size(a)` counts characters |\n\
    | texts | `a.startsWith('x')`, `a.endsWith('x')`, `a.contains('x')`, `a.size()` |\n\
    | attributes | by name, `plan`, or with any letters, `attributes['x-y']`; `has(plan)` or `'plan' in attributes` |\n\n\
    Types are checked when the rules are read. Numbers are whole. What cannot be computed, such as a comparison with an \
    attribute that the request does not have, a division by zero or a number beyond 64 bits, spoils what it is part of; an \
    expression that comes to nothing does not hold. There are no regular expressions, loops, fractions or new texts: an \
    expression allocates nothing, and takes no longer than its parts and their values are long.\n\n\
    Rules are found by `when`, however many there are. Those that have only an `if` are found by a value, a beginning or the \
    presence of an attribute that it cannot hold without (`plan == 'pro' && …`). What names nothing that must be there, such as \
    `not` alone, is tried for every request; `tollgate check` warns of more than a few hundred of them.\n\n";

const CONDITION: &str = "A text is compared as it is. With a star or braces it is a pattern for paths: `*` is anything \
    within a segment, `**` any number of whole segments, `{name}` one segment that `per` can count by. Of a list, one has \
    to match. Of an attribute that a request has several times, one value has to match; `tag#2` is the second value of \
    `tag`, here, in `per` and in expressions. Anything else is a map with one of these keys, or with one of them and `not`:\n\n";

const OVERRIDE: &str = "An override changes the numbers, not the counter: what was spent under the rule is spent under the \
    override, and back. It has the keys of a limit, too. With a `limit` it takes over everything else from the rule \
    but `burst`, `free`, `initial` and `max_debt`, which go with the number they were written for; without, it changes only \
    what it says. Looking for it costs the same for ten as for ten thousand.\n\n";

const CHANGED: &str = r"What a key has used up belongs to the limit it was last *charged* under, its own limit. A request may come under another: an
override, an edited rule, another node's version of the rules. Then this holds, for every algorithm and on every store:

1. The request passes if what is used up and its cost together fit the limit it comes under. A charge may go `max_debt` beyond.
2. Until a request is admitted under the other limit, what is used up comes back as under the key's own limit: by its rate, at the
   end of its window. `remaining` is what the other limit leaves beside it, and the advertised wait is true: after that time the
   request passes, if no other was admitted meanwhile.
3. With the first request that is admitted and takes something, the key comes under the other limit, with as much used up as
   before. A bucket rounds that up by less than a nanosecond of its refill, a window, a log or a limit of concurrency by less than one
   unit, and only if it was not whole. In windows of another length it counts in the present one.
4. A peek, a refused request and a cost of 0 change nothing: not what is used up, not how it comes back, and not whose it is.
5. A refund, a renewal and a release apply to what the key has, whatever limit the request for it comes under.
6. Of several limits in one rule each is compared with the one at the same position; one that was not there before starts as new.
7. `on_change: reset`, and resetting a key, forget what was used up.

So going to another limit and back without being admitted there changes nothing, and two nodes with two versions of a rule do not
admit more than the larger of them allows. To check by hand:

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

| request | answer |
|---|---|
| `u: a`, `p: pro`, cost 100 | passes, 0 left |
| `u: a`, cost 1 | refused, 0 left: 100 are used up of 2; it passes when 99 have come back at 100 a week |
| `u: a`, `p: pro`, cost 90 | refused, 0 left: the refusal before forgave nothing |

With 10/10s and an override of 5/10s, after ten taken at 0 s: a request under the override is refused for 6 s, until six have come
back at one a second, and at 10 s ten are left under the rule, refused requests under the override or not.

The limits that keys may still belong to are remembered: the last 65,536 that no rule has any more. What belongs to an older one is
forgotten.
";

const COST: &str = r#"A number in `cost` is what a request weighs to this rule, and to no other. For an export that takes 50 of the same quota
as all other calls take 1 of, the weight comes with the request, as an attribute that only the quota looks at; whoever knows the
route, such as the gateway, sends `weight: 50` along with exports and nothing with the rest:

```yaml
domain: weighed
rules:
- id: rate                                    # an export is one call of ten a second, like any other,
  per: [api_key]
  limit: 10/s
- id: quota                                   # 50 of what the plan has in a month,
  per: [api_key]
  limit: 1000/month
  algorithm: fixed_window
  cost: {from: weight, max: 100}
  overrides: [{when: {plan: pro}, limit: 1M/month}]
- id: export                                  # and one of three an hour
  when: {path: /v1/export}
  per: [api_key]
  limit: 3/h
```

A value above `max`, or one that is no whole number, counts as `max`: garbling it gains nothing. But a 0 counts as 0,
and `cost` has no `min`: whoever writes the attribute can make a request free, so let the gateway do it and not the caller.
A request that says itself what it weighs (`cost` beside `attributes`; over the Redis protocol a number, where `-` leaves it to the
rules) is believed, and weighs that to every rule that it meets: 50 would never fit ten a second.
`tollgate check` warns of rules and overrides that have less room than their `cost`, `missing` or `max`.

"#;

const DELAY: &str = "For buckets. What the bucket lets pass at once passes at once; what comes on top is told how long to \
    wait, up to the longest wait, and is refused beyond. What is reported as remaining includes what may wait.\n\n";

const BAN: &str = "Each value in `per` is banned by itself. The refusal that is the `after`th within `within` starts a ban, and \
    already reports how long the ban lasts. The window slides: `after` refusals start a ban if the last of them comes less \
    than `within` after the first, wherever they lie. With `after: 3` and `within: 10s`, refusals at 7, 16.9 and 17.0 s start no \
    ban, since the first and the last are 10 s apart; one more at 17.1 s does, together with those at 16.9 and 17.0 s. When a ban \
    starts, counting begins again at zero.\n\n\
    A ban lasts exactly `for`, by the clock of the store: to the nanosecond in memory, to the microsecond on Redis. A request at the \
    instant at which it ends is decided by the limits, and its refusal counts towards the next ban. Requests while banned spend \
    nothing and do not prolong the ban; `reset` lifts it. While the store does not answer, bans are neither enforced nor \
    started.\n\n\
    A rule counts the refusals by its own limits, also those of requests that the ban of another rule refuses as well. \
    Refusals by other rules, by `deny`, by its own ban, and by `on_fault: closed` do not count, nor does what a shadow would \
    refuse. Where refusals are only observed, they count, and bans are only observed, too.\n\n";

const SCHEDULE: &str = "A rule with a schedule applies only then. Times are those on the clock there.\n\n";

const DETAILS: &str = "- **A cost of 0** takes nothing and records nothing. It is refused only by a rule that denies, by a ban and \
    by a limit in debt; `minimum_gap` does not apply to it.\n\
    - **`phase: first_request`**: a window begins with the first request that is counted in it, and after its end the next one \
    begins with the next request that is counted. A refused request, a peek and a cost of 0 begin no window. While there is debt, \
    windows follow one another without a gap until it is paid. The steps of an interval bucket begin with the request \
    that takes from a full bucket, and follow one another, a period apart, until the bucket is full again.\n\
    - **`count_refused`** records, at its cost, a request that this log itself refuses, also where other limits or a ban \
    refuse it as well. It does not record a request that the log has room for and another limit refuses, a cost above the \
    limit, or a peek.\n\
    - **An interval bucket without `max_wait`** makes no request wait: what is not there is refused, with the time until the \
    step that brings it.\n\
    - **The shadow rules** that a request matches form one group of their own. They are asked after all enforced rules have \
    admitted the request, and charged all or none: if one of them would refuse, the others are not charged.\n";
