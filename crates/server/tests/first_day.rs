//! Common tasks of a user's first day, done as the documents describe: plans, a protected login, an expensive export
//! and a monthly quota.
#![allow(clippy::unwrap_used)]

use crate::common;

use common::cli::{Cli, start_with_database};
use common::eventually;
use common::{Folder, Server};
use serde_json::json;

const FIRST_DAY_RULES: &str = "\
domain: api
rules:
- id: plans
  when: {path: /v1/**}
  per: [api_key or client_ip]
  limit: 5/s
  overrides: [{when: {plan: pro}, limit: 100/s}]
- id: quota
  when: {path: /v1/**, api_key: {present: true}}
  per: [api_key]
  limit: 10k/month
  algorithm: fixed_window
  zone: Europe/Paris
- id: login
  when: {path: /login}
  per: [client_ip]
  limit: 5/m
";

/// Starts a server with these rules in force.
fn start_with_rules() -> (Folder, Server, Cli) {
    let folder = Folder::new();
    let (server, cli) = start_with_database(&folder, &[]);
    cli.run(&["rules", "apply", &folder.write_file("api.yaml", FIRST_DAY_RULES)]).expect_success();
    eventually("the rules are in force", || {
        cli.run(&["keys", "peek", "api", "path=/login", "client_ip=x"]).code == Some(0)
    });
    (folder, server, cli)
}

#[test]
fn override_of_a_rule_with_alternative_attributes_names_one_attribute() {
    let (_folder, _server, cli) = start_with_rules();
    let overrides = |args: &[&str]| cli.run(&[&["rules", "overrides"], args].concat());
    overrides(&["set", "api", "plans", "acme", "--limit", "50/s"]).assert_failed(
        1,
        "tollgate: the rule counts by `api_key or client_ip`, so it is ambiguous whose value `acme` is; name the attribute like \
         `attribute: api_key`, on the command line `--attribute api_key`\n",
    );
    let out = overrides(&["set", "api", "plans", "acme", "--limit", "50/s", "--attribute", "api_key"]).expect_success();
    assert!(out.starts_with("api/plans: 50/s for api_key `acme`, version "), "{out}");
    // Setting an override does not replace an override for the same value of another attribute.
    overrides(&["set", "api", "plans", "acme", "--deny", "--attribute", "client_ip"]).assert_failed(
        1,
        "tollgate: there already is an override for `acme` of the rule `plans` of the domain `api` for the attribute `api_key`: \
         {\"limit\":\"50/s\"}; an override for `client_ip` would replace it, so delete the existing one first with DELETE or \
         `tollgate rules overrides delete`\n",
    );
    assert!(overrides(&["list", "api"]).expect_success().contains("50/s"));
    overrides(&["delete", "api", "plans", "acme"]).expect_success();
    overrides(&["set", "api", "plans", "acme", "--deny", "--attribute", "client_ip"]).expect_success();
}

#[test]
fn unusable_or_expired_override_is_warned_about() {
    let folder = Folder::new();
    let (_server, cli) = start_with_database(&folder, &[]);
    let text = "domain: api\nrules:\n- {id: export, per: [user], limit: 100/h, cost: 50}\n";
    cli.run(&["rules", "apply", &folder.write_file("api.yaml", text)]).expect_success();
    let set = |args: &[&str]| cli.run(&[&["rules", "overrides", "set", "api", "export", "acme"], args].concat());
    let ran = set(&["--limit", "10/h"]);
    assert_eq!(
        ran.err,
        "warning: a request never passes this override: its cost is 50, the capacity 10; write a `burst` of at least 50, \
         or a smaller `cost`\n"
    );
    assert!(ran.expect_success().starts_with("api/export: 10/h for user `acme`"));
    assert_eq!(
        set(&["--limit", "10/h", "--until", "2020-01-01T00:00:00Z", "--burst", "50"]).err,
        "warning: this override has expired\n"
    );
    assert_eq!(set(&["--limit", "10/h", "--burst", "50"]).err, "");
}

#[test]
fn override_that_matches_nothing_is_warned_about() {
    let folder = Folder::new();
    let (_server, cli) = start_with_database(&folder, &[]);
    let text = "domain: api\nrules:\n- {id: plans, per: [api_key or client_ip], limit: 5/s, when: {path: {present: true}}}\n\
                - {id: bytes, per: [user], limit: 1000/h, cost: {from: size, max: 500}, overrides: [{when: {plan: pro}, limit: 1M/h}]}\n";
    cli.run(&["rules", "apply", &folder.write_file("api.yaml", text)]).expect_success();
    let warning = |args: &[&str]| {
        let ran = cli.run(&[&["rules", "overrides", "set", "api"], args].concat());
        (ran.code, ran.err)
    };
    let unknown = "warning: nothing in the rule `plans`, which counts by `api_key or client_ip`, names the attribute `user`; the \
                   override applies to requests that have this attribute\n";
    assert_eq!(warning(&["plans", "a", "--limit", "9/s", "--attribute", "user"]), (Some(0), unknown.into()));
    for known in ["api_key", "path"] {
        assert_eq!(warning(&["plans", known, "--limit", "9/s", "--attribute", known]), (Some(0), String::new()));
    }
    assert_eq!(warning(&["bytes", "free", "--limit", "900/h", "--attribute", "plan"]).1, "");
    for (value, what, written) in [
        ("192.0.2.4/24", "a network", "{cidr: …}"),
        ("192.0.2.0/24", "a network", "{cidr: …}"),
        ("192.0.*", "a pattern", "'…*'"),
    ] {
        let text = format!(
            "warning: `client_ip` is compared with `{value}` literally; {what} goes into the rule itself: `overrides: \
             [{{when: {{client_ip: {written}}}, limit: …}}]`\n"
        );
        assert_eq!(warning(&["plans", value, "--deny", "--attribute", "client_ip"]), (Some(0), text));
    }
    assert_eq!(warning(&["plans", "a/7", "--deny", "--attribute", "api_key"]).1, "");
    let small = "warning: a request whose `size` is invalid or too large never passes this override: its cost is 500, \
                 the capacity 100; write a `burst` of at least 500, or a smaller `max`\n";
    assert_eq!(warning(&["bytes", "acme", "--limit", "100/h"]), (Some(0), small.into()));
    assert_eq!(warning(&["bytes", "acme", "--limit", "500/h"]).1, "");
}

#[test]
fn invalid_calendar_window_is_reported_once_with_a_correction() {
    let (_folder, _server, cli) = start_with_rules();
    let set = |args: &[&str]| cli.run(&[&["rules", "overrides", "set", "api", "quota", "acme"], args].concat());
    let ran = set(&["--limit", "5/s"]);
    assert_eq!(
        ran.err,
        "tollgate: `5/s` is not a calendar window: such windows are minutes, hours, days, weeks, months and years, not \
         seconds; the rule follows the calendar; write it like 100/day, or add another `algorithm`, like `algorithm: token_bucket`\n"
    );
    set(&["--limit", "5/s", "--algorithm", "token_bucket"]).expect_success();
    set(&["--limit", "50k/month"]).expect_success();
}

#[test]
fn overrides_are_mentioned_wherever_their_rule_is_shown() {
    let (_folder, _server, cli) = start_with_rules();
    for (rule, value) in [("quota", "zeta"), ("quota", "acme"), ("login", "192.0.2.1"), ("login", "a b/ü")] {
        cli.run(&["rules", "overrides", "set", "api", rule, value, "--unlimited"]).expect_success();
    }
    let list = cli.run(&["rules", "list", "api"]).expect_success();
    let column = list.find("OVERRIDES").expect("the column");
    let in_column = |line: &'_ str| line[column..].split_whitespace().next().map(str::to_owned);
    let overrides: Vec<String> = list.lines().skip(1).filter_map(in_column).collect();
    assert_eq!(overrides, ["1", "2", "2"], "in the rule and stored separately: {list}");
    let overrides_line = "2 overrides stored separately: `tollgate rules overrides list api quota`";
    let shown = cli.run(&["rules", "get", "api", "quota"]).expect_success();
    assert_eq!(shown.lines().nth(1), Some(&*format!("# {overrides_line}")));
    let history = cli.run(&["rules", "history", "api", "quota"]).expect_success();
    assert!(history.ends_with(&format!("{overrides_line}; `tollgate audit` lists their changes\n")), "{history}");
    assert!(!cli.run(&["rules", "history", "api", "plans"]).expect_success().contains("stored separately"));

    let list = |args: &[&str]| cli.run(&[&["rules", "overrides", "list", "api"], args].concat());
    let all = list(&[]).expect_success();
    let rows: Vec<Vec<&str>> = all.lines().skip(1).map(|line| line.split_whitespace().take(3).collect()).collect();
    assert_eq!(rows[0], ["login", "client_ip", "192.0.2.1"]);
    assert_eq!((rows.len(), rows[3][2]), (4, "zeta"));
    assert_eq!(list(&["quota"]).expect_success().lines().count(), 3);
    assert_eq!(list(&["--limit", "2", "--json"]).json()["items"][1]["value"], "a b/ü");
    let domains = cli.run(&["rules", "status"]).expect_success();
    let words: Vec<&str> = domains.split_whitespace().collect();
    for pair in [["domains", "1"], ["rules", "3"], ["source", "database"]] {
        assert!(words.windows(2).any(|words| words == pair), "{domains}");
    }
    assert!(domains.ends_with("api     3      4                 5\n"), "{domains}");
    eventually("all overrides are in force", || {
        let status = cli.run(&["rules", "status", "--json"]).json();
        [&status["domains"], &status["rules"], &status["overrides"]] == [&json!(1), &json!(3), &json!(5)]
    });
}

#[test]
fn repeated_rollback_goes_back_one_more_version_each_time() {
    let (folder, _server, cli) = start_with_rules();
    for limit in ["6/m", "7/m"] {
        let text = FIRST_DAY_RULES.replace("limit: 5/m", &format!("limit: {limit}"));
        cli.run(&["rules", "apply", &folder.write_file("api.yaml", text)]).expect_success();
    }
    let back = |args: &[&str]| cli.run(&[&["rules", "rollback", "api", "login"], args].concat());
    assert_eq!(back(&[]).expect_success(), "api/login: restored version 2 as version 4, in force\n");
    assert_eq!(back(&[]).expect_success(), "api/login: restored version 1 as version 5, in force\n");
    back(&[]).assert_failed(1, "no earlier version to roll back to");
    assert_eq!(back(&["3"]).expect_success(), "api/login: restored version 3 as version 6, in force\n");
    assert_eq!(back(&["3"]).expect_success(), "api/login: version 6 equals version 3; nothing was changed\n");
    back(&["9"]).assert_failed(1, "there is no version 9");
    // A rollback skips versions that were rolled back.
    let quota = |limit: &str| {
        let text = FIRST_DAY_RULES.replace("limit: 10k/month", &format!("limit: {limit}/month"));
        assert_ne!(text, FIRST_DAY_RULES);
        cli.run(&["rules", "apply", &folder.write_file("api.yaml", text)]).expect_success();
    };
    let back = || cli.run(&["rules", "rollback", "api", "quota"]);
    quota("2k");
    assert_eq!(back().expect_success(), "api/quota: restored version 1 as version 3, in force\n");
    quota("3k");
    assert_eq!(back().expect_success(), "api/quota: restored version 3 as version 5, in force\n");
    back().assert_failed(1, "no earlier version to roll back to");
}

#[test]
fn overrides_outlive_their_rule() {
    let (folder, _server, cli) = start_with_rules();
    cli.run(&["rules", "overrides", "set", "api", "login", "192.0.2.1", "--limit", "50/m"]).expect_success();
    let left = || {
        let output = cli.run(&["keys", "peek", "api", "path=/login", "client_ip=192.0.2.1"]);
        output.out.contains("login  50 ")
    };
    eventually("the override is in force", left);
    let without = folder.write_file("less.yaml", FIRST_DAY_RULES.split("- id: login").next().unwrap());
    let planned = cli.run(&["rules", "apply", "--plan", "--prune", &without]);
    assert_eq!(planned.err, "warning: api/login has 1 override, kept in case the rule is created again\n");
    let output = cli.run(&["rules", "delete", "api", "login"]).expect_success();
    assert_eq!(output, "api/login is deleted; `rules rollback` restores it, with its 1 override\n");
    assert!(
        cli.run(&["rules", "overrides", "list", "api"])
            .expect_success()
            .contains("\nlogin (deleted)  client_ip  192.0.2.1")
    );
    cli.run(&["rules", "rollback", "api", "login"]).expect_success();
    assert!(cli.run(&["rules", "overrides", "list", "api"]).expect_success().contains("\nlogin  client_ip  192.0.2.1"));
    eventually("the override is in force again", left);
}

#[test]
fn rollback_needs_a_version_after_too_many_changes() {
    let (_folder, server, cli) = start_with_rules();
    let mut connection = server.connect_http();
    for _ in 0..500 {
        for to in ["disable", "enable"] {
            let (status, text) = connection.post(&format!("/v1/domains/api/rules/login/{to}"), "");
            assert_eq!(status, 200, "{text}");
        }
    }
    let back = |args: &[&str]| cli.run(&[&["rules", "rollback", "api", "login"], args].concat());
    back(&[]).assert_failed(1, "tollgate: the rule has more than 1000 versions; name one that `rules history` lists\n");
    assert_eq!(back(&["1"]).expect_success(), "api/login: version 1001 equals version 1; nothing was changed\n");
}

#[test]
fn missing_attributes_of_a_key_are_reported() {
    let (_folder, _server, cli) = start_with_rules();
    let ran = cli.run(&["keys", "reset", "api"]);
    assert_eq!(ran.out, "0 counters reset\n");
    for hint in [
        "rule login matches only path \"/login\" and counts by client_ip: add path=… client_ip=…\n",
        "rule quota matches only path like \"/v1/**\" and counts by api_key: add path=… api_key=…\n",
    ] {
        assert!(ran.err.contains(hint), "{}", ran.err);
    }
    let ran = cli.run(&["keys", "reset", "api", "path=/login"]);
    let hint =
        "rule login counts by client_ip, and this is the counter of requests without client_ip: add client_ip=…\n";
    assert_eq!((&*ran.out, &*ran.err), ("1 counter reset\n", hint));
    assert_eq!(cli.run(&["keys", "peek", "api", "path=/login"]).err, hint);
    let ran = cli.run(&["keys", "peek", "api", "path=/login", "client_ip=x"]);
    assert_eq!((&*ran.err, ran.out.starts_with("the request would pass\nRULE")), ("", true));
    // Durations are formatted as in `explain`.
    assert!(ran.out.lines().any(|line| line.ends_with("now      0s")), "{}", ran.out);
    assert_eq!(cli.run(&["keys", "reset", "api", "--json"]).err, "", "scripts use the number");

    // With rules from a file there is no list of rules, but missing attributes are still reported.
    let rules = common::Rules::new(FIRST_DAY_RULES);
    let server = Server::start(&["--rules", rules.path()]);
    let ran = Cli::for_server(&server).run(&["keys", "peek", "api"]);
    assert!(ran.err.contains("rule login matches only path \"/login\": add path=…\n"), "{}", ran.err);
    let status = Cli::for_server(&server).run(&["rules", "status"]).expect_success();
    assert!(status.contains("rules     3\noverrides 1\n") && !status.contains("DOMAIN"), "{status}");
}

#[test]
fn files_and_folders_are_checked_together() {
    let folder = Folder::new();
    let cli = Cli { server: "http://127.0.0.1:1".into(), token: None };
    let one = folder.write_file("rules/one.yaml", FIRST_DAY_RULES);
    folder.write_file("rules/blocked.txt", "mallory\n");
    let two = folder
        .write_file("rules/two.yaml", "domain: b\nrules: [{id: x, when: {user: {file: blocked.txt}}, deny: true}]\n");
    assert_eq!(cli.run(&["check", &one]).expect_success(), format!("{one}: 3 rules in 1 domain, no mistakes\n"));
    assert_eq!(
        cli.run(&["check", &folder.join("rules")]).expect_success(),
        "2 files: 4 rules in 2 domains, no mistakes\n"
    );
    let heavy = folder.write_file("heavy.yaml", "domain: b\nrules:\n- {id: y, limit: 10/s, cost: 50}\n");
    let ran = cli.run(&["check", &one, &two, &heavy]);
    assert_eq!(ran.out, "3 files: 5 rules in 2 domains, no mistakes\n");
    assert_eq!(
        ran.err,
        format!(
            "warning: {heavy}:3:3: a request never passes `y`: its cost is 50, the capacity 10\n  \
             | - {{id: y, limit: 10/s, cost: 50}}\n  |   ^\n  \
             = write a `burst` of at least 50, or a smaller `cost`\n"
        )
    );
    let twice = folder.write_file("twice.yaml", "domain: b\nrules: [{id: x, limit: 1/s}]\n");
    cli.run(&["check", &folder.join("rules"), &twice]).assert_failed(1, &format!("{twice}:2:14: duplicate rule `x`"));
    cli.run(&["check", &folder.join("nothing")]).assert_failed(1, "cannot read");
    cli.run(&["check"]).assert_failed(2, "PATH");
}
