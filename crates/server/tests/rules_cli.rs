//! The command line of the rules service, as run by users and scripts, against the real server.
#![allow(clippy::unwrap_used)]

use crate::common;

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use common::cli::{Cli, start_with_database};
use common::eventually;
use common::{Folder, Server};
use serde_json::Value;
use tollgate_testkit::servers::Postgres;

const TWO_RULES: &str =
    "domain: api\nrules:\n- {id: a, per: [user], limit: 5/s}\n- {id: b, when: {path: /x}, limit: 9/m}\n";

#[test]
fn rule_is_managed_by_the_command_line() {
    let folder = Folder::new();
    let (_server, cli) = start_with_database(&folder, &[]);
    let file = folder.write_file("api.yaml", TWO_RULES);
    let out = cli.run(&["rules", "apply", "-m", "the first", &file]).expect_success();
    assert!(
        out.contains("+ create api/a\n") && out.contains("2 to create, 0 to change, 0 to delete, 0 unchanged"),
        "{out}"
    );
    assert!(out.contains("applied, revision "), "{out}");

    let list = cli.run(&["rules", "list"]).expect_success();
    let lines: Vec<&str> = list.lines().collect();
    assert!(
        lines[0].starts_with("DOMAIN  RULE  WHEN      PER   LIMIT  OVERRIDES  STATE     VERSION  CHANGED"),
        "{list}"
    );
    assert!(
        lines[1].starts_with("api     a     all       user  5/s    0          in force  1        20")
            && lines[1].ends_with("UTC  local"),
        "{list}"
    );
    let items = cli.run(&["rules", "list", "api", "--json"]).json();
    assert_eq!(
        (items["items"][1]["id"].as_str(), items["items"][1]["rule"]["limit"].as_str()),
        (Some("b"), Some("9/m"))
    );
    assert_eq!(cli.run(&["rules", "list", "-q", "/x"]).expect_success().lines().count(), 2);
    assert_eq!(cli.run(&["rules", "list", "--disabled"]).expect_success(), "no rules\n");

    // The output is a file that can be edited and applied.
    let shown = cli.run(&["rules", "get", "api", "a"]).expect_success();
    assert!(shown.starts_with("# version 1, in force, by local at "), "{shown}");
    let changed = folder.write_file("a.yaml", shown.replace("5/s", "7/s"));
    let out = cli.run(&["rules", "apply", &changed]).expect_success();
    assert!(
        out.contains("~ update api/a\n") && out.contains("7/s") && out.contains("0 to create, 1 to change"),
        "{out}"
    );
    let diff = cli.run(&["rules", "diff", "api", "a"]).expect_success();
    assert!(diff.lines().any(|line| line.starts_with('-') && line.contains("5/s")), "{diff}");
    assert!(diff.lines().any(|line| line.starts_with('+') && line.contains("7/s")), "{diff}");
    assert!(cli.run(&["rules", "get", "api", "a", "--version", "1"]).expect_success().contains("limit: 5/s"));

    assert_eq!(
        cli.run(&["rules", "rollback", "api", "a"]).expect_success(),
        "api/a: restored version 1 as version 3, in force\n"
    );
    assert!(cli.run(&["rules", "get", "api", "a"]).expect_success().contains("limit: 5/s"));
    assert_eq!(
        cli.run(&["rules", "disable", "api", "a", "-m", "für jetzt, 100%"]).expect_success(),
        "api/a: version 4, disabled\n"
    );
    let history = cli.run(&["rules", "history", "api", "a"]).expect_success();
    let versions: Vec<Vec<&str>> = history.lines().skip(1).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(versions.iter().map(|words| words[1]).collect::<Vec<_>>(), ["disable", "rollback", "update", "create"]);
    assert!(history.contains("local  für jetzt, 100%\n") && history.contains("local  the first\n"), "{history}");
    assert_eq!(cli.run(&["rules", "enable", "api", "a", "--json"]).json()["version"], 5);

    assert!(cli.run(&["rules", "delete", "api", "a"]).expect_success().contains("api/a is deleted"));
    cli.run(&["rules", "get", "api", "a"]).assert_failed(1, "`a`");
    let back = cli.run(&["rules", "rollback", "api", "a"]).expect_success();
    assert_eq!(back, "api/a: restored version 5 as version 7, in force\n", "the rule is restored");

    let audit = cli.run(&["audit", "--subject", "a"]).expect_success();
    assert!(audit.lines().nth(1).unwrap().contains("rollback rule"), "{audit}");
    let changes = cli.run(&["audit", "--changes"]).expect_success();
    assert!(changes.contains("    - ") && changes.contains("5/s"), "{changes}");
}

#[test]
fn concurrent_change_is_reported() {
    let folder = Folder::new();
    let (_server, cli) = start_with_database(&folder, &[]);
    let file = folder.write_file("api.yaml", TWO_RULES);
    cli.run(&["rules", "apply", &file]).expect_success();
    cli.run(&["rules", "disable", "api", "a", "--if-version", "1"]).expect_success();
    let ran = cli.run(&["rules", "delete", "api", "a", "--if-version", "1"]);
    assert!(ran.err.contains("changed by local at ") && ran.err.contains("now version 2"), "{}", ran.err);
    ran.assert_failed(1, "tollgate: ");
}

#[test]
fn folder_is_applied_atomically_and_mistakes_match_check() {
    let folder = Folder::new();
    let (_server, cli) = start_with_database(&folder, &[]);
    folder.write_file("rules/20.yml", "domain: api\nrules:\n- {id: b, limit: 2/s}\n");
    folder.write_file("rules/10.yaml", "domain: api\nrules:\n- {id: a, deny: true, when: {path: /x}}\n");
    folder.write_file("rules/30.json", r#"{"domain": "other", "rules": [{"id": "c", "limit": "3/s"}]}"#);
    folder.write_file("rules/.40.yaml", "nothing of this");
    folder.write_file("rules/notes.txt", "nothing of this");
    let rules = folder.join("rules");
    let ran = cli.run(&["rules", "apply", "--plan", &rules]);
    assert!(ran.out.ends_with("3 to create, 0 to change, 0 to delete, 0 unchanged\n"), "{}{}", ran.out, ran.err);
    assert_eq!(ran.code, Some(1), "the exit status reports planned changes");
    let plan = cli.run(&["rules", "apply", "--json", &rules]).json();
    assert_eq!(
        (plan["applied"].as_bool(), plan["changes"][0]["id"].as_str()),
        (Some(true), Some("a")),
        "in name order"
    );
    let out = cli.run(&["rules", "apply", "--plan", "--prune", &rules]).expect_success();
    assert_eq!(out, "nothing to change: 3 rules unchanged\n");

    // Rules that are not in the files are deleted only with `--prune`.
    folder.write_file("rules/20.yml", "domain: api\nrules: []\n");
    assert_eq!(cli.run(&["rules", "apply", &rules]).expect_success(), "nothing to change: 2 rules unchanged\n");
    assert!(cli.run(&["rules", "apply", "--prune", &rules]).expect_success().contains("- delete api/b\n"));

    let bad = folder.write_file("rules/50.yaml", "domain: api\nrules:\n- {id: d, limt: 1/s, unlimited: true}\n");
    let ran = cli.run(&["rules", "apply", &rules]);
    let output = format!("{bad}:3:11: `limt` is not a key of a rule\n  | - {{id: d, limt: 1/s, unlimited: true}}\n");
    ran.assert_failed(1, &output);
    cli.run(&["rules", "apply", "--plan", &rules]).assert_failed(2, &output);
    cli.run(&["rules", "validate", &rules]).assert_failed(1, &output);
    let twice = folder.write_file("twice.yaml", "domain: api\nrules:\n- {id: a, limit: 1/s}\n");
    std::fs::remove_file(&bad).unwrap();
    cli.run(&["rules", "apply", &rules, &twice]).assert_failed(1, "twice.yaml:3:");
    cli.run(&["rules", "validate", &rules, &twice]).assert_failed(1, "twice.yaml:3:");
    assert!(cli.run(&["rules", "validate", &twice]).expect_success().contains("twice.yaml: 1 rule, no mistakes"));
    std::fs::create_dir(folder.join("empty")).unwrap();
    cli.run(&["rules", "apply", &folder.join("empty")]).assert_failed(1, "has no *.yaml");
    cli.run(&["rules", "apply", &folder.join("missing")]).assert_failed(1, "cannot read");
    cli.run(&["rules", "apply"]).assert_failed(2, "PATH");
}

/// A `tollgate rules apply` process at a terminal, waiting at its confirmation prompt.
struct ApplyAtTerminal {
    child: Child,
    shown: String,
}

impl ApplyAtTerminal {
    fn start(cli: &Cli, file: &str) -> Self {
        let command = format!("{} rules apply {file}", env!("CARGO_BIN_EXE_tollgate"));
        let mut script = Command::new("script");
        script.args(["-qec", &command, "/dev/null"]).env("TOLLGATE_SERVER", &cli.server);
        let mut child = script.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script runs");
        let (mut shown, mut byte) = (Vec::new(), [0]);
        let out = child.stdout.as_mut().unwrap();
        while !shown.ends_with(b"[y/N] ") {
            out.read_exact(&mut byte).unwrap_or_else(|_| panic!("no question: {}", String::from_utf8_lossy(&shown)));
            shown.push(byte[0]);
        }
        Self { child, shown: String::from_utf8_lossy(&shown).into_owned() }
    }

    /// Answers the prompt. Returns the rest of the output and the status.
    fn answer_prompt(mut self, answer: &str) -> (String, Option<i32>) {
        writeln!(self.child.stdin.take().unwrap(), "{answer}").unwrap();
        let output = self.child.wait_with_output().unwrap();
        (String::from_utf8_lossy(&output.stdout).into_owned(), output.status.code())
    }
}

#[test]
fn apply_at_a_terminal_asks_and_applies_the_printed_plan() {
    let folder = Folder::new();
    let (_server, cli) = start_with_database(&folder, &[]);
    let file = folder.write_file("api.yaml", TWO_RULES);
    let asked = ApplyAtTerminal::start(&cli, &file);
    assert!(asked.shown.contains("\x1b[32m+ create api/a\x1b[0m"), "in colour: {}", asked.shown);
    let (output, code) = asked.answer_prompt("n");
    assert!(code == Some(1) && output.contains("nothing was changed"), "{output}");
    assert_eq!(cli.run(&["rules", "list"]).expect_success(), "no rules\n");
    let (output, code) = ApplyAtTerminal::start(&cli, &file).answer_prompt("y");
    assert!(code == Some(0) && output.contains("applied, revision 1"), "{output}");

    // A concurrent change that does not affect the plan is ignored.
    folder.write_file("api.yaml", TWO_RULES.replace("5/s", "6/s"));
    let asked = ApplyAtTerminal::start(&cli, &file);
    cli.run(&["rules", "overrides", "set", "api", "a", "acme", "--limit", "9/s"]).expect_success();
    let (output, code) = asked.answer_prompt("y");
    assert!(code == Some(0) && output.contains("applied, revision 3"), "{output}");

    // After a concurrent change to a rule in the plan, the plan is not applied.
    folder.write_file("api.yaml", TWO_RULES.replace("5/s", "7/s"));
    let asked = ApplyAtTerminal::start(&cli, &file);
    cli.run(&["rules", "rollback", "api", "a"]).expect_success();
    let (output, code) = asked.answer_prompt("y");
    assert!(code == Some(1) && output.contains("nothing was applied") && output.contains("-limit: 5/s"), "{output}");
    assert!(output.contains("changed by local at "), "{output}");
    assert!(cli.run(&["rules", "get", "api", "a"]).expect_success().contains("limit: 5/s"));
}

#[test]
fn overrides_are_set_listed_and_deleted() {
    let folder = Folder::new();
    let (_server, cli) = start_with_database(&folder, &[]);
    cli.run(&["rules", "apply", &folder.write_file("api.yaml", TWO_RULES)]).expect_success();
    let overrides = |args: &[&str]| cli.run(&[&["rules", "overrides"], args].concat());
    let odd = "a/b c?ü%#";
    let out =
        overrides(&["set", "api", "a", odd, "--limit", "50/s", "--burst", "70", "--until", "2040-01-01T00:00:00Z"])
            .expect_success();
    assert!(
        out.starts_with("api/a: ") && out.contains(&format!("for user `{odd}` until 2040-01-01T00:00:00Z")),
        "{out}"
    );
    overrides(&["set", "api", "a", "free", "--unlimited"]).expect_success();
    overrides(&["set", "api", "a", "two", "--effect", r#"{"limits":["1/s","2/m"]}"#]).expect_success();
    let list = overrides(&["list", "api", "a"]).expect_success();
    assert_eq!(list.lines().count(), 4, "{list}");
    assert!(list.contains("user       free") && list.contains("unlimited"), "{list}");
    assert_eq!(overrides(&["list", "api", "a", "--json"]).json()["items"][0]["value"], odd);
    let asked = format!("user={odd}");
    eventually("the override is in force", || {
        cli.run(&["keys", "peek", "api", &asked, "--json"]).out.contains("\"limit\": 70")
    });
    overrides(&["delete", "api", "a", odd]).expect_success();
    overrides(&["delete", "api", "a", odd]).assert_failed(1, "there is no");
    overrides(&["set", "api", "a", "x"]).assert_failed(2, "--limit");
    overrides(&["set", "api", "a", "x", "--limit", "soon"]).assert_failed(1, "soon");
    overrides(&["set", "api", "a", "x", "--unlimited", "--deny"]).assert_failed(2, "cannot be used");
}

#[test]
fn keys_are_peeked_reset_and_refunded() {
    let folder = Folder::new();
    let (server, cli) = start_with_database(&folder, &[]);
    cli.run(&[
        "rules",
        "apply",
        &folder.write_file("api.yaml", "domain: api\nrules:\n- {id: a, per: [user], limit: 2/h}\n"),
    ])
    .expect_success();
    let mut client = server.connect_http();
    let body = r#"{"domain":"api","attributes":{"user":"ann"},"receipt":true}"#;
    eventually("the rule is in force", || client.post("/v1/peek", r#"{"domain":"api","attributes":{}}"#).0 == 200);
    let (_, first) = client.post("/v1/check", body);
    client.post("/v1/check", body);
    let peek = |args: &[&str]| cli.run(&[&["keys", "peek", "api", "user=ann"], args].concat());
    let ran = peek(&[]);
    assert!(
        ran.code == Some(1) && ran.out.starts_with("the request would be refused by a; it would pass in "),
        "{}{}",
        ran.out,
        ran.err
    );
    let receipt = serde_json::from_str::<Value>(&first).unwrap()["receipt"].as_str().unwrap().to_owned();
    assert_eq!(cli.run(&["keys", "refund", &receipt]).expect_success(), "1 refunded\n");
    assert!(peek(&[]).expect_success().starts_with("the request would pass\nRULE  LIMIT  LEFT  NEXT IN"));
    peek(&["--cost", "2"]).assert_failed(1, "");
    assert_eq!(cli.run(&["keys", "reset", "api", "user=ann"]).expect_success(), "1 counter reset\n");
    assert_eq!(peek(&["--json"]).json()["limits"][0]["remaining"], 2);
    let top = cli.run(&["keys", "top", "api"]).expect_success();
    assert!(top.contains("charged") && top.contains("ann"), "{top}");
    cli.run(&["keys", "peek", "nobody"]).assert_failed(1, "nobody");
    cli.run(&["keys", "peek", "api", "ann"]).assert_failed(1, "write it like client_ip=192.0.2.1");
    assert!(cli.run(&["explain", "--server", &cli.server, "api", "user=ann"]).expect_success().contains("+ a"));
}

#[test]
fn tokens_are_created_before_the_server_starts_and_have_roles() {
    let folder = Folder::new();
    let without_token = Cli { server: "http://127.0.0.1:1".into(), token: None };
    let data = folder.join("data");
    let ran = without_token.run(&["tokens", "create", "--role", "admin", "--name", "ann", "--data", &data]);
    assert!(ran.err.contains("of ann, admin; it is shown only once:"), "{}", ran.err);
    let admin = ran.expect_success();
    assert_eq!(without_token.run(&["tokens", "list", "--data", &data, "--json"]).json()["items"][0]["name"], "ann");

    let (server, cli) = start_with_database(&folder, &["--tokens", "required"]);
    let admin = cli.with_token(&admin);
    let token = |args: &[&str]| admin.run(&[&["tokens", "create", "--json"], args].concat()).json();
    let editor = token(&["--role", "editor", "--name", "ci", "--domain", "api", "--expires", "1d"]);
    let reader = token(&["--role", "reader"]);
    let (editor, reader_id) =
        (cli.with_token(editor["token"].as_str().unwrap()), reader["id"].as_str().unwrap().to_owned());
    let reader = cli.with_token(reader["token"].as_str().unwrap());

    let api = folder.write_file("api.yaml", TWO_RULES);
    let other = folder.write_file("other.yaml", "domain: other\nrules: [{id: c, limit: 1/s}]\n");
    cli.run(&["rules", "list"]).assert_failed(1, "requires a token");
    cli.with_token("tg_no_such").run(&["rules", "list"]).assert_failed(1, "refused the token `no`");
    reader.run(&["rules", "apply", &api]).assert_failed(1, "this call needs the role editor");
    reader.run(&["keys", "reset", "api", "user=x"]).assert_failed(1, "operator");
    editor.run(&["rules", "apply", &api]).expect_success();
    editor.run(&["rules", "apply", &other]).assert_failed(1, "editor");
    editor.run(&["tokens", "list"]).assert_failed(1, "admin");
    assert!(
        editor.run(&["rules", "history", "api", "a"]).expect_success().contains("  ci"),
        "the author is the token's name"
    );
    assert!(
        !reader.run(&["rules", "history", "api", "a"]).expect_success().contains("  ci"),
        "readers see no names of tokens"
    );
    assert!(reader.run(&["explain", "--server", &server.url(""), "api"]).expect_success().contains("+ a"));

    assert_eq!(
        admin.run(&["tokens", "revoke", &reader_id]).expect_success(),
        format!("token {reader_id} of reader is revoked\n")
    );
    eventually("the revoked token is refused", || reader.run(&["rules", "list"]).code == Some(1));
    reader.run(&["rules", "list"]).assert_failed(1, "refused the token");
    let list = admin.run(&["tokens", "list"]).expect_success();
    assert!(list.contains("revoked 20") && list.contains("valid until 20") && !list.contains("tg_"), "{list}");
    admin.run(&["tokens", "create", "--role", "king"]).assert_failed(2, "reader");
    admin.run(&["tokens", "create", "--role", "reader", "--expires", "soon"]).assert_failed(1, "write a duration");
}

#[test]
fn unreachable_server_is_reported_with_its_address() {
    let without_token = Cli { server: "http://127.0.0.1:1".into(), token: None };
    without_token.run(&["rules", "list"]).assert_failed(1, "cannot reach http://127.0.0.1:1: Connection refused");
    let with_token = without_token.with_token("tg_a_b");
    with_token
        .run(&["rules", "list", "--server", "http://0.0.0.0:1"])
        .assert_failed(1, "without encryption; use https");
    without_token
        .run(&["rules", "list", "--server", "ftp://x"])
        .assert_failed(1, "`ftp://x` is not the address of a server");
    without_token.run(&["rules", "list", "--ca", "/nowhere"]).assert_failed(1, "cannot read /nowhere");
    without_token.run(&["rules", "get", "api", ".."]).assert_failed(1, "cannot be part of a URL");
    without_token.run(&["rules"]).assert_failed(2, "Usage");
    without_token.run(&["rules", "get", "api"]).assert_failed(2, "RULE");
    // A server whose rules are in a file has no database.
    let rules = common::Rules::new(TWO_RULES);
    let server = Server::start(&["--rules", rules.path()]);
    Cli::for_server(&server).run(&["rules", "list"]).assert_failed(1, "file");
    assert!(Cli::for_server(&server).run(&["rules", "status"]).expect_success().contains(rules.path()));
}

#[test]
fn many_rules_are_listed_and_a_closed_pipe_is_not_an_error() {
    let folder = Folder::new();
    let (_server, cli) = start_with_database(&folder, &[]);
    let rules: String = (0..2_500).map(|n| format!("- {{id: r{n}, when: {{k: v{n}}}, limit: 1/s}}\n")).collect();
    let out = cli
        .run(&["rules", "apply", &folder.write_file("api.yaml", format!("domain: api\nrules:\n{rules}"))])
        .expect_success();
    assert!(out.contains("2500 to create") && !out.contains("limit: 1/s"), "the plan shows only the ids of the rules");
    assert_eq!(cli.run(&["rules", "list", "api"]).expect_success().lines().count(), 2_501);
    assert_eq!(
        cli.run(&["rules", "list", "api", "--limit", "1500", "--json"]).json()["items"].as_array().unwrap().len(),
        1_500
    );
    let shell = |line: &str| {
        let line = line.replace("tollgate", env!("CARGO_BIN_EXE_tollgate"));
        let output = Command::new("sh").args(["-c", &line]).env("TOLLGATE_SERVER", &cli.server).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    assert_eq!(shell("tollgate rules list 2>&1 | head -n 1").lines().count(), 1);
    assert_eq!(shell("tollgate rules list --json 2>&1 | head -n 1"), "{\n");
    assert_eq!(
        shell("tollgate rules export | tollgate rules apply --plan -"),
        "nothing to change: 2500 rules unchanged\n"
    );
}

#[test]
fn lost_database_is_reported_and_work_continues_after_recovery() {
    let folder = Folder::new();
    let mut postgres = Postgres::start();
    let url = postgres.create_database("rules");
    let without_token = Cli { server: "http://127.0.0.1:1".into(), token: None };
    let admin = without_token.run(&["tokens", "create", "--role", "admin", "--database", &url]).expect_success();
    let server = Server::start(&["--database", &url, "--tokens", "required"]);
    let admin = Cli::for_server(&server).with_token(&admin);
    let file = folder.write_file("api.yaml", TWO_RULES);
    admin.run(&["rules", "apply", &file]).expect_success();
    eventually("the rules are in force", || admin.run(&["keys", "peek", "api", "user=a"]).code == Some(0));
    let exported = admin.run(&["rules", "export"]).expect_success();

    postgres.kill();
    admin.run(&["rules", "list"]).assert_failed(1, "is unavailable: the database is unavailable");
    admin.run(&["rules", "delete", "api", "a"]).assert_failed(1, "is unavailable: the database is unavailable");
    admin.run(&["keys", "peek", "api", "user=a"]).expect_success();
    without_token
        .run(&["tokens", "list", "--database", &url])
        .assert_failed(1, "postgres://127.0.0.1/rules: the database cannot be used");

    postgres.restart();
    eventually("the service answers again", || admin.run(&["rules", "list"]).code == Some(0));
    assert_eq!(admin.run(&["rules", "export"]).expect_success(), exported, "nothing was changed during the outage");
    admin.run(&["rules", "delete", "api", "a"]).expect_success();
}
