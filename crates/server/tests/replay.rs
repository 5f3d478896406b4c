//! `tollgate replay` from end to end. Replays logs of several formats against rules, and compares the decisions with
//! `tollgate decide` and with nginx itself.

use crate::common;

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::{Command, Stdio};

use common::eventually::eventually;
use common::{CommandResult, Folder, tollgate};
use proptest::prelude::*;
use serde_json::Value;
use tollgate_server::replay::{Log, ReplayOptions, Report, replay};

const RULES: &str = "
domain: api
rules:
- {id: per-client, per: [client_ip], limit: 2/s, burst: 3}
- {id: login, when: {path: /login, method: POST}, per: [client_ip], limit: 3/m, algorithm: sliding_log}
- {id: all, limit: 20/s, algorithm: fixed_window}
- {id: later, when: {path: /v1/**}, per: [client_ip], limit: 5/m, on_exceed: shadow}
";

/// 2026-11-16T09:00:00Z.
const START_MS: u64 = 1_794_819_600_000;

/// A request in a generated log.
#[derive(Clone, Copy, Debug)]
struct SentRequest {
    at_ms: u64,
    client: u8,
    path: &'static str,
    method: &'static str,
}

/// Log formats in which a request can be written.
const FORMATS: [&str; 5] = ["msec", "envoy", "haproxy", "caddy", "csv"];

impl SentRequest {
    fn log_line(&self, format: &str) -> String {
        let Self { at_ms, client, path, method } = *self;
        let (seconds, millis) = (at_ms / 1_000, at_ms % 1_000);
        let time = jiff::Timestamp::from_millisecond(at_ms as i64).expect("a time");
        let common = time.strftime("%d/%b/%Y:%H:%M:%S");
        let address = format!("10.0.0.{client}");
        match format {
            "msec" => format!(
                "{address} - - [{common} +0000] \"{method} {path}?x=1 HTTP/1.1\" 200 5 \"-\" \"a \\\"b\" {seconds}.{millis:03}"
            ),
            "envoy" => format!(
                "[{time:.3}] \"{method} {path} HTTP/2\" 200 - 0 5 3 2 \"{address}\" \"curl/8\" \"id\" \"a.org\" \"10.0.0.9:80\""
            ),
            "haproxy" => format!(
                "Nov 16 09:00:00 h haproxy[1]: {address}:4711 [{common}.{millis:03}] web app/s1 0/0/1/2/3 200 5 - - ---- 1/1/0/0/0 \
                 0/0 \"{method} {path} HTTP/1.1\""
            ),
            "caddy" => format!(
                "{{\"level\":\"info\",\"ts\":{seconds}.{millis:03},\"request\":{{\"remote_ip\":\"{address}\",\"method\":\"{method}\",\
                 \"host\":\"a.org\",\"uri\":\"{path}?q=\\\"\"}},\"status\":200}}"
            ),
            _ => format!("{time:.3},{address},{method},\"{path}\""),
        }
    }

    /// Returns the same request as an input line of `tollgate decide`.
    fn request(&self) -> String {
        let Self { at_ms, client, path, method } = *self;
        format!(
            "{{\"at\":{at_ms},\"domain\":\"api\",\"attributes\":{{\"client_ip\":\"10.0.0.{client}\",\"path\":\"{path}\",\
             \"method\":\"{method}\"}}}}\n"
        )
    }
}

fn log_of(requests: &[SentRequest], format: &str) -> String {
    let head = if format == "csv" { "time,client_ip,method,path\n" } else { "" };
    requests.iter().fold(head.to_owned(), |log, request| log + &request.log_line(format) + "\n")
}

fn replay_options(rules: &str, more: impl FnOnce(&mut ReplayOptions)) -> ReplayOptions {
    let source = tollgate_engine::rules::Source { name: "rules.yaml", text: rules.as_bytes() };
    let rules = tollgate_engine::rules::Rules::read(&[source]).expect("rules");
    let mut options = ReplayOptions { rules: Some(rules), ..ReplayOptions::default() };
    more(&mut options);
    options
}

fn log_from_bytes(log: impl AsRef<[u8]>) -> Log {
    Log::Bytes { name: "log".into(), bytes: bytes::Bytes::copy_from_slice(log.as_ref()) }
}

fn replay_all(logs: &[Log], options: &ReplayOptions) -> Report {
    replay(logs, options, &mut |_| {}).expect("a report")
}

fn any_requests() -> impl Strategy<Value = Vec<SentRequest>> {
    let request = (0..400_u64, 1..6_u8, 0..3_usize);
    prop::collection::vec(request, 1..300).prop_map(|steps| {
        let mut at_ms = START_MS;
        let sent = |(step, client, kind): (u64, u8, usize)| {
            // Generates mostly bursts, and sometimes pauses.
            at_ms += if step > 390 { step * 50 } else { step / 8 };
            let (path, method) = [("/login", "POST"), ("/v1/items", "GET"), ("/", "GET")][kind];
            SentRequest { at_ms, client, path, method }
        };
        steps.into_iter().map(sent).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// The same requests are written as a log and as input for `tollgate decide`.
    #[test]
    fn refusals_equal_those_of_decide(sent in any_requests(), format in prop::sample::select(&FORMATS[..])) {
        assert_decided_alike(&sent, format);
    }
}

/// Replays requests, decides them with `tollgate decide`, and compares the outcome, the rule, the wait, and the
/// remaining amount of each limit. Returns the number of refusals.
fn assert_decided_alike(sent: &[SentRequest], format: &str) -> u64 {
    let folder = Folder::new();
    let decisions = folder.join("decisions.jsonl");
    let format_options = |options: &mut ReplayOptions| {
        options.decisions = Some(decisions.clone().into());
        let msec = "$remote_addr - - [$time_local] \"$request\" $status $bytes \"-\" \"$agent\" $msec";
        options.format = (format == "msec").then(|| msec.to_owned());
    };
    let report = replay_all(&[log_from_bytes(log_of(sent, format))], &replay_options(RULES, format_options));
    assert_eq!((report.left_out, report.lines as usize), (0, sent.len() + usize::from(format == "csv")));
    let run = report.result.expect("rules");
    let input: String = sent.iter().map(SentRequest::request).collect();
    let decided =
        tollgate(&["decide", "--rules", &folder.write_file("rules.yaml", RULES)], input.as_bytes()).expect_success();
    assert_eq!(decided.lines().count(), sent.len());
    let replayed = std::fs::read_to_string(&decisions).expect("decisions");
    for ((request, replayed), decided) in sent.iter().zip(replayed.lines()).zip(decided.lines()) {
        assert_eq!(replayed, decided, "{request:?}");
    }
    assert_eq!(replayed.len(), decided.len());
    let mut refused = vec![0; run.timeline.refused.len()];
    let mut shadow = 0;
    for (request, line) in sent.iter().zip(decided.lines()) {
        let answer: Value = serde_json::from_str(line).expect("JSON");
        let column = (request.at_ms - run.timeline.start_ms) / run.timeline.column_ms;
        refused[column as usize] += u64::from(answer["allowed"] == false);
        shadow += u64::from(answer["shadow_refused"] == true);
    }
    assert_eq!(refused, run.timeline.refused);
    assert_eq!((run.refused, run.shadow_refused), (refused.iter().sum(), shadow));
    assert!(report.at_once.is_none());
    run.refused
}

/// Replays one long log. `TOLLGATE_REPLAY_LINES=1000000` makes the log longer.
#[test]
fn refusals_of_a_long_log_equal_those_of_decide() {
    let lines = std::env::var("TOLLGATE_REPLAY_LINES").map_or(10_000, |lines| lines.parse().expect("a number"));
    let (mut at_ms, mut state) = (START_MS - 86_400_000, 1_u64);
    let sent: Vec<SentRequest> = (0..lines)
        .map(|_| {
            // A linear congruential generator yields the same requests in every run.
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let random = state >> 33;
            at_ms += random % 64;
            let (path, method) = [("/login", "POST"), ("/v1/items", "GET"), ("/", "GET")][(random >> 8) as usize % 3];
            SentRequest { at_ms, client: (random >> 16) as u8 % 40, path, method }
        })
        .collect();
    let refused = assert_decided_alike(&sent, "msec");
    assert!((lines / 20..lines).contains(&refused), "{refused} of {lines} are refused");
}

/// Returns a log in the combined format. Each element of `lines` gives the seconds after the start, the client and
/// the path.
fn combined_log(lines: &[(u64, u8, &str)]) -> String {
    let line = |(second, client, path): &(u64, u8, &str)| {
        let time = jiff::Timestamp::from_second((START_MS / 1_000 + second) as i64).expect("a time");
        let time = time.strftime("%d/%b/%Y:%H:%M:%S +0000");
        format!("10.0.0.{client} - - [{time}] \"GET {path} HTTP/1.1\" 200 5 \"-\" \"curl/8\"\n")
    };
    lines.iter().map(line).collect()
}

const ONE_RULE: &str = "{domain: api, rules: [{id: one, per: [client_ip], limit: 5/s, burst: 1}]}";

#[test]
fn log_with_whole_seconds_is_replayed_with_requests_spread_and_at_once() {
    let log = combined_log(&[(0, 1, "/"); 10]);
    let report = replay_all(&[log_from_bytes(log)], &replay_options(ONE_RULE, |_| {}));
    assert!(report.logs[0].whole_seconds);
    // If the requests are spread, there is one every 100 ms, and every second request passes. If all requests are
    // placed at the start of the second, only the burst passes.
    assert_eq!(report.result.as_ref().map(|run| (run.requests, run.refused)), Some((10, 5)));
    assert_eq!(report.at_once.as_ref().map(|run| (run.requests, run.refused)), Some((10, 9)));
    assert_eq!(report.refused_millionths(), 900_000, "the larger number of refusals counts");
    let text = report.to_text();
    assert!(text.contains("spread") && text.contains("at once"), "{text}");
    let rule = &report.result.expect("rules").rules[0];
    assert_eq!((rule.keys, rule.keys_refused, rule.matched, rule.refused), (1, 1, 10, 5));
    assert_eq!(rule.longest_refusal_ms, 100, "the next request, 100 ms later, passes");
}

#[test]
fn many_logs_are_merged_by_time() {
    let lines: Vec<(u64, u8, &str)> = (0..3_000).map(|n| (n / 40, (n % 5) as u8, "/")).collect();
    let whole = replay_all(&[log_from_bytes(combined_log(&lines))], &replay_options(ONE_RULE, |_| {}));
    assert!(whole.result.as_ref().is_some_and(|run| run.refused > 100));
    // Rotated logs are consecutive parts. The parts may be named in any order, and may be compressed.
    let (a, rest) = lines.split_at(1_400);
    let (b, c) = rest.split_at(680);
    let parts = [
        log_from_bytes(combined_log(c)),
        log_from_bytes(gzip(&combined_log(a))),
        log_from_bytes(combined_log(b)),
        log_from_bytes(""),
    ];
    let rotated = replay_all(&parts, &replay_options(ONE_RULE, |_| {}));
    assert_eq!((rotated.result, rotated.at_once), (whole.result, whole.at_once.clone()));
    // The lines of several servers' logs are interleaved. The order within a second is unknown, which matters only if
    // requests are spread.
    let of = |odd: bool| lines.iter().copied().filter(|line| (line.1 % 2 == 1) == odd).collect::<Vec<_>>();
    let servers = replay_all(
        &[log_from_bytes(combined_log(&of(true))), log_from_bytes(combined_log(&of(false)))],
        &replay_options(ONE_RULE, |_| {}),
    );
    assert_eq!(servers.at_once.map(|run| run.refused), whole.at_once.map(|run| run.refused));
    assert_eq!(servers.problems, []);
}

fn gzip(text: &str) -> Vec<u8> {
    let folder = Folder::new();
    let file = folder.write_file("log", text);
    Command::new("gzip").args(["-c", &file]).output().expect("gzip").stdout
}

#[test]
fn broken_lines_are_counted_by_reason() {
    let good = combined_log(&[(100, 1, "/")]);
    let early = combined_log(&[(0, 1, "/")]);
    let late = combined_log(&[(70, 1, "/")]);
    let mut log = good.repeat(20).into_bytes();
    // A line that is more than two chunks late can no longer be sorted.
    log.extend(good.repeat(30_000).bytes());
    for line in [
        "broken\n".into(),
        "{\"ts\":1794819600.1,\"request\":{}}\n".into(),
        "\0\x01\x02 binary\n".into(),
        format!("{}\n", "x".repeat(1_000_000)),
        good.replace("2026", "9876").replace("Nov", "Foo"),
        good.replace("2026", "2199"),
        early,
        late,
        "\n".into(),
    ] {
        log.extend(line.bytes());
    }
    log.extend(good.repeat(30_000).bytes());
    let report = replay_all(&[log_from_bytes(log)], &replay_options(ONE_RULE, |_| {}));
    let found: Vec<(&str, u64)> = report.problems.iter().map(|problem| (problem.problem, problem.lines)).collect();
    assert_eq!(
        found,
        [
            ("unreadable", 1),
            ("other_format", 1),
            ("binary", 1),
            ("too_long", 1),
            ("no_time", 1),
            ("future", 1),
            ("backwards", 1),
            ("late", 1)
        ]
    );
    assert_eq!(report.problems[0].first.as_deref(), Some("log:30021"));
    assert_eq!((report.lines, report.left_out), (60_029, 7));
    assert_eq!(report.result.map(|run| run.requests), Some(60_021));
}

#[test]
fn truncated_log_is_replayed_up_to_its_end() {
    let lines: Vec<(u64, u8, &str)> = (0..5_000).map(|n| (n / 10, (n % 7) as u8, "/")).collect();
    let whole = gzip(&combined_log(&lines));
    let report = replay_all(&[log_from_bytes(&whole[..whole.len() / 2])], &replay_options(ONE_RULE, |_| {}));
    let requests = report.result.map_or(0, |run| run.requests);
    assert!((1_000..4_000).contains(&requests), "{requests}");
    assert_eq!((report.left_out, report.errors.len()), (0, 1), "the truncated line is not counted");
    assert!(report.errors[0].starts_with("log: read only in part"), "{}", report.errors[0]);
}

#[test]
fn gzip_bomb_ends_at_the_bound() {
    let bomb = gzip(&(combined_log(&[(0, 1, "/"); 3]) + &"\0".repeat(16 << 20)));
    assert!(bomb.len() < 32 << 10, "the compressed log has {} bytes", bomb.len());
    let with = |max_bytes: u64| {
        let report = replay_all(
            &[log_from_bytes(&bomb)],
            &replay_options(ONE_RULE, |options| options.bounds.max_bytes = max_bytes),
        );
        (report.result.map(|run| run.requests), report.errors.concat())
    };
    assert_eq!(with(4 << 20), (Some(3), "log: read only in part: the log has more than 4 MiB".into()));
    assert_eq!(with(u64::MAX), (Some(3), String::new()));
}

#[test]
fn lines_out_of_order_are_sorted() {
    // Apache logs a request when it ends, with its start time.
    let sorted: Vec<(u64, u8, &str)> = (0..2_000).map(|n| (n / 10, (n % 4) as u8, "/")).collect();
    let mut ended = sorted.clone();
    ended.sort_by_key(|(second, client, _)| second + u64::from(*client) * 9);
    let report = |lines: &[(u64, u8, &str)]| {
        replay_all(&[log_from_bytes(combined_log(lines))], &replay_options(ONE_RULE, |_| {}))
    };
    let (sorted, ended) = (report(&sorted), report(&ended));
    assert_eq!(ended.problems, []);
    assert_eq!(sorted.at_once.map(|run| run.refused), ended.at_once.map(|run| run.refused));
}

#[test]
fn lines_years_apart_form_one_timeline() {
    let year = 31_557_600;
    let lines: Vec<(u64, u8, &str)> = (0..5).map(|n| (n * year / 8, 1, "/")).collect();
    let old = combined_log(&lines).replace("2026", "1999").replace("2027", "2020");
    let report = replay_all(&[log_from_bytes(old)], &replay_options(ONE_RULE, |_| {}));
    let timeline = report.result.expect("rules").timeline;
    assert_eq!(timeline.admitted.iter().sum::<u64>(), 5);
    assert!(timeline.admitted.len() <= 240);
}

#[test]
fn comparison_lists_newly_refused_and_relieved_keys() {
    let old = "{domain: api, rules: [{id: old, when: {path: /a}, per: [client_ip], limit: 1/h}]}";
    let new = "{domain: api, rules: [{id: new, when: {path: /b}, per: [client_ip], limit: 1/h}]}";
    let lines = [(0, 1, "/a"), (1, 1, "/a"), (2, 1, "/a"), (3, 2, "/b"), (4, 2, "/b"), (5, 3, "/c")];
    let folder = Folder::new();
    let (log, new, old) =
        (folder.write_file("log", combined_log(&lines)), folder.write_file("new", new), folder.write_file("old", old));
    let report = tollgate(&["replay", "--rules", &new, "--against", &old, "--json", &log], b"").json();
    let against = &report["against"];
    assert_eq!((&against["newly_refused"], &against["relieved"]), (&1.into(), &2.into()), "{report}");
    assert_eq!(against["newly_refused_top"][0]["key"], "client_ip=10.0.0.2 (new)");
    assert_eq!(against["relieved_top"][0]["key"], "client_ip=10.0.0.1 (old)");
    let text = tollgate(&["replay", "--rules", &new, "--against", &old, "--hash-keys", &log], b"").expect_success();
    assert!(text.contains("newly refused: 1 requests of 1 keys") && !text.contains("10.0.0.2"), "{text}");
}

#[test]
fn suggested_rules_are_usable_and_refuse_as_predicted() {
    let folder = Folder::new();
    // Generates 2,000 clients with one to five simultaneous requests, and one client with two hundred.
    let mut lines: Vec<(u64, u8, &str)> = Vec::new();
    lines.resize(200, (50, 200, "/"));
    let mut log = combined_log(&lines);
    for client in 0..2_000_u32 {
        let address = format!("10.1.{}.{}", client / 250, client % 250);
        let one = combined_log(&[(u64::from(client) / 20, 1, "/")]).replace("10.0.0.1", &address);
        log.push_str(&one.repeat(1 + client as usize % 5));
    }
    let (log, rules) = (folder.write_file("log", log), folder.join("rules.yaml"));
    let suggested = tollgate(&["replay", "--suggest", "per=client_ip", "--write-rules", &rules, "--json", &log], b"");
    let suggestion = suggested.json()["suggestion"].clone();
    assert_eq!(suggestion["clients"], 2_001);
    let recommended = &suggestion["candidates"][suggestion["recommended"].as_u64().expect("a place") as usize];
    assert_eq!((&recommended["burst"], &recommended["clients_refused"]), (&5.into(), &1.into()), "{suggestion}");
    assert_eq!(tollgate(&["check", &rules], b"").code, Some(0));
    let result = tollgate(&["replay", "--rules", &rules, "--json", &log], b"").json();
    assert_eq!(result["result"]["refused"], recommended["refused"], "{result}");
    assert_eq!(result["result"]["rules"][0]["keys_refused"], 1);
}

#[test]
fn suggested_rules_rarely_refuse_a_client_spread_or_at_once() {
    let folder = Folder::new();
    // The clients send many requests in one second. If the requests are spread, a small burst suffices at 10/s and
    // 100/s. If all requests are placed at the start of the second, a large burst is needed.
    let mut log = String::new();
    for client in 0..3_000_u64 {
        let address = format!("10.1.{}.{}", client / 250, client % 250);
        let burst = combined_log(&vec![(client / 10, 1, "/"); 2 + client as usize % 7]);
        log.push_str(&burst.replace("10.0.0.1", &address));
    }
    let (log, rules) = (folder.write_file("log", log), folder.join("rules.yaml"));
    let suggested = tollgate(&["replay", "--write-rules", &rules, "--json", &log], b"").json();
    for candidate in suggested["suggestion"]["candidates"].as_array().expect("a list") {
        let at_once = &candidate["at_once"];
        assert_eq!((&candidate["burst"], &at_once["burst"]), (&8.into(), &8.into()), "{candidate}");
        assert_eq!((&candidate["clients_refused"], &at_once["clients_refused"]), (&0.into(), &0.into()), "{candidate}");
    }
    assert!(suggested["suggestion"]["candidates"][3]["spread_burst"].as_u64() < Some(8), "{suggested}");
    let result = tollgate(&["replay", "--rules", &rules, "--json", &log], b"").json();
    for times in ["result", "at_once"] {
        let rule = &result[times]["rules"][0];
        let (keys, refused) = (rule["keys"].as_u64().expect("keys"), rule["keys_refused"].as_u64().expect("keys"));
        assert!(keys > 2_900 && refused * 1_000 <= keys, "{times}: {refused} of {keys}");
    }
    let text = tollgate(&["replay", &log], b"").expect_success();
    assert!(text.contains("at once") && text.contains("the larger of the bursts that clients need"), "{text}");
}

#[test]
fn comparison_of_whole_seconds_is_reported_spread_and_at_once() {
    let new = "{domain: api, rules: [{id: new, per: [client_ip], limit: 5/s, burst: 5}]}";
    let old = "{domain: api, rules: [{id: old, per: [client_ip], limit: 5/s, burst: 10}]}";
    // Ten requests in one second. If the requests are spread, nearly all pass under both rule sets. If all are placed
    // at the start of the second, only the burst passes.
    let folder = Folder::new();
    let log = folder.write_file("log", combined_log(&[(0, 1, "/"); 10]));
    let (new, old) = (folder.write_file("new", new), folder.write_file("old", old));
    let report = tollgate(&["replay", "--rules", &new, "--against", &old, "--json", &log], b"").json();
    assert_eq!(report["against_at_once"]["newly_refused"], 5, "{report}");
    assert!(report["against"]["newly_refused"].as_u64() < Some(5), "{report}");
    let text = tollgate(&["replay", "--rules", &new, "--against", &old, &log], b"").expect_success();
    assert!(text.contains("at once: newly refused: 5 requests of 1 keys"), "{text}");
}

#[test]
fn exit_status_shows_whether_too_much_is_refused() {
    let folder = Folder::new();
    let (rules, log) = (folder.write_file("rules.yaml", ONE_RULE), combined_log(&[(0, 1, "/"); 10]));
    let args = |most: &'static str| ["replay", "--rules", &rules, "--fail-above", most].map(str::to_owned);
    let run = |most| {
        let args = args(most);
        tollgate(&args.each_ref().map(|arg| &**arg), log.as_bytes())
    };
    assert_eq!(run("90%").code, Some(0));
    run("89.9%").assert_failed(1, "90.0000 % of the requests are refused (--fail-above 89.9%)");
    run("x").assert_failed(1, "write a percentage like 0.1%");
}

#[test]
fn mistakes_are_reported_with_a_correction() {
    let folder = Folder::new();
    let rules = folder.write_file("rules.yaml", ONE_RULE);
    let log = folder.write_file("log", combined_log(&[(0, 1, "/")]));
    let fails =
        |args: &[&str], input: &str, expected: &str| tollgate(args, input.as_bytes()).assert_failed(1, expected);
    fails(&["replay", "--rules", &folder.write_file("bad.yaml", "rules: 5"), &log], "", "bad.yaml:1:");
    fails(&["replay", "--rules", &rules, "/missing.log"], "", "/missing.log: cannot be read");
    fails(&["replay", "--rules", &rules], "what is this\n", "unknown format; describe it with --format");
    fails(&["replay", "--rules", &rules, "--format", "nginx", &log], "", "unknown format `nginx`; use combined");
    fails(&["replay", "--rules", &rules, "--map", "client_ip=nothing", &log], "", "the log has no such field");
    fails(
        &["replay", "--rules", &rules, "--set", "plna=free", &log],
        "",
        "`plna` is not used; used attributes: client_ip",
    );
    fails(&["replay", "--rules", &rules, "--domain", "web", &log], "", "unknown domain `web`; the rules have: api");
    fails(&["replay"], "x", "suggestions read the log twice");
    fails(&["replay", "--suggest", "client_ip", &log], "", "write it like per=client_ip");
    let by_key = folder.write_file("key.yaml", "{domain: api, rules: [{id: k, per: [api_key], limit: 1/s}]}");
    let text = tollgate(&["replay", "--rules", &by_key, &log], b"").expect_success();
    assert!(text.contains("does not have api_key, which rules read; name the field with --map"), "{text}");
    let text = tollgate(&["replay", "--rules", &by_key, "--set", "api_key=x", &log], b"").expect_success();
    assert!(!text.contains("does not have"), "{text}");
}

#[test]
fn page_has_no_script_and_shows_markup_as_text() {
    let folder = Folder::new();
    let rules = "{domain: api, rules: [{id: paths, per: [path], limit: 1/h}]}";
    let lines = [(0, 1, "/<script>alert(1)</script>"); 3];
    let (log, rules, page) =
        (folder.write_file("log", combined_log(&lines)), folder.write_file("rules", rules), folder.join("page.html"));
    tollgate(&["replay", "--rules", &rules, "--html", &page, &log], b"").expect_success();
    let page = std::fs::read_to_string(page).expect("the page");
    assert!(!page.contains("<script") && page.contains("/&lt;script&gt;alert(1)&lt;/script&gt;"), "{page}");
    assert!(
        page.contains("<svg") && page.contains("prefers-color-scheme:dark") && !page.contains("http-equiv=\"refresh")
    );
    assert!(!page.replace("http://www.w3.org/2000/svg", "").contains("http://"), "no external resources");
}

/// Returns a log of one hour: a slow curve, one client that polls too fast, and a burst of logins.
fn morning_log() -> String {
    let mut log = String::new();
    for second in 0..3_600_u64 {
        let visitors = 2 + second.min(3_600 - second) / 240;
        for visitor in 0..visitors {
            let client = (second * 7 + visitor * 131) % 250;
            let _ = write!(log, "{}", combined_log(&[(second, client as u8, "/v1/items")]));
        }
        if (1_200..1_800).contains(&second) {
            log.push_str(&combined_log(&[(second, 251, "/v1/search"); 6]));
        }
        if (2_400..2_460).contains(&second) {
            log.push_str(&combined_log(&[(second, 252, "/login"); 12]));
        }
    }
    log
}

#[test]
fn replay_pictures_in_the_documentation_are_up_to_date() {
    let rules = "
domain: api
rules:
- {id: per-client, per: [client_ip], limit: 2/s, burst: 10}
- {id: login, when: {path: /login}, per: [client_ip], limit: 5/m, on_exceed: shadow}
";
    let options = replay_options(rules, |options| options.suggest = vec!["client_ip".into()]);
    let page = replay_all(&[log_from_bytes(morning_log())], &options).to_html();
    for (name, title) in [("timeline", "Requests over time"), ("bursts", "Clients ever refused, by burst")] {
        let picture = page.split("<svg").find(|part| part.contains(&format!("<title>{title}"))).expect("a picture");
        let picture = picture.split("</svg>").next().expect("its end");
        let path = format!("{}/../../docs/replay/{name}.svg", env!("CARGO_MANIFEST_DIR"));
        tollgate_testkit::golden::check(path, &format!("<svg{picture}</svg>\n"));
    }
}

/// Configuration of an nginx that limits requests by a header and logs the result. At one path nginx refuses excess
/// requests immediately, and at another path nginx delays them. The logged time is read before the limits are checked,
/// because a delayed request is logged only when it ends.
const NGINX_CONFIG: &str = "
daemon off; master_process off; pid nginx.pid; error_log error.log; worker_processes 1;
events {}
http {
  log_format limits '$start $http_x_key $status \"$request\"';
  access_log access.log limits;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi; scgi_temp_path scgi;
  limit_req_zone $http_x_key zone=quick:10m rate=50r/s;
  limit_req_zone $http_x_key zone=slow:10m rate=50r/s;
  limit_req_status 429;
  keepalive_requests 1000000;
  server {
    listen 127.0.0.1:PORT;
    root site;
    set $start $msec;
    location /quick { limit_req zone=quick burst=20 nodelay; }
    location /slow { limit_req zone=slow burst=5 delay=2; }
  }
}
";

/// Sends requests over one connection, each after the previous answer.
fn send_requests(port: u16, path: &str, key: &str, requests: usize) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let request = format!("GET {path} HTTP/1.1\r\nhost: a\r\nx-key: {key}\r\n\r\n");
    let mut answer = [0; 1_024];
    for _ in 0..requests {
        stream.write_all(request.as_bytes()).expect("sent");
        assert!(stream.read(&mut answer).expect("an answer") > 0);
    }
}

#[test]
fn replay_refuses_nearly_the_same_requests_as_nginx() {
    let folder = Folder::new();
    folder.write_file("site/quick/page", "ok");
    folder.write_file("site/slow/page", "ok");
    let port = tollgate_testkit::servers::free_port();
    let config = folder.write_file("nginx.conf", NGINX_CONFIG.replace("PORT", &port.to_string()));
    let mut command = Command::new("nginx");
    command.args(["-p", &folder.join(""), "-c", &config, "-e", "error.log"]).env("PATH", "/usr/sbin:/usr/bin:/bin");
    let command = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut nginx = command.spawn().expect("nginx; scripts/test installs it");
    eventually("nginx listens", || TcpStream::connect(("127.0.0.1", port)).is_ok());
    std::thread::scope(|scope| {
        for connection in 0..6 {
            scope.spawn(move || send_requests(port, "/quick/page", ["a", "b", "c"][connection % 3], 3_300));
        }
        for _ in 0..10 {
            scope.spawn(move || send_requests(port, "/slow/page", "d", 100));
        }
    });
    common::signal(nginx.id(), "QUIT");
    nginx.wait().expect("nginx ends");

    let log = std::fs::read_to_string(folder.join("access.log")).expect("the log");
    let mut lines: Vec<Vec<&str>> = log.lines().map(|line| line.split(' ').collect()).collect();
    assert!(lines.len() >= 20_000, "{} lines", lines.len());
    // The times have the same number of digits, so string order is time order.
    lines.sort_by_key(|fields| fields[0]);
    let rules = folder.write_file("rules.yaml", tollgate(&["import", &config], b"").expect_success());
    let format = "$msec $http_x_key $status \"$request\"";
    let (decisions, access) = (folder.join("decisions.jsonl"), folder.join("access.log"));
    let args = ["replay", "--rules", &rules, "--format", format, "--decisions", &decisions, "--json", &access];
    let CommandResult { out, err, .. } = tollgate(&args, b"");
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{err}"));
    let decided = std::fs::read_to_string(decisions).expect("decisions");
    assert_eq!(decided.lines().count(), lines.len());

    // Compares line by line. The clock in nginx's log differs from the clock by which nginx limits requests. Of two
    // requests in the same millisecond, nginx logs the refused one first. A request may therefore pass one
    // millisecond earlier or later in the replay. At any line, the numbers of admitted requests of a key differ by
    // only a few, and the differences do not accumulate.
    let mut passed: std::collections::HashMap<&str, i64> = std::collections::HashMap::new();
    let mut same = 0;
    for (fields, answer) in lines.iter().zip(decided.lines()) {
        let (by_nginx, by_replay) = (fields[2] != "429", answer.starts_with("{\"allowed\":true"));
        same += usize::from(by_nginx == by_replay);
        let difference = passed.entry(fields[1]).or_default();
        *difference += i64::from(by_nginx) - i64::from(by_replay);
        assert!(difference.abs() <= 6, "{}: {difference} more passed nginx", fields.join(" "));
    }
    assert!(same * 100 >= lines.len() * 97, "{same} of {} decisions are the same", lines.len());
    assert!(passed.values().all(|difference| difference.abs() <= 2), "in total: {passed:?}");
    let refused = lines.iter().filter(|fields| fields[2] == "429").count() as i64;
    assert!(
        (1..lines.len() as i64).contains(&refused),
        "some requests must be refused, but not all: {refused} refused"
    );
    let replayed = report["result"]["refused"].as_i64().expect("a count");
    assert!((replayed - refused).abs() <= 8, "nginx refused {refused}, replay {replayed}");
    assert!(report["result"]["delayed"].as_u64() > Some(0), "{}", report["result"]["delayed"]);
}

#[test]
fn closed_pipe_prints_no_error() {
    let folder = Folder::new();
    let request = SentRequest { at_ms: START_MS, client: 1, path: "/", method: "GET" };
    let rules = folder.write_file("rules.yaml", RULES);
    let log = folder.write_file("log", request.log_line("caddy"));
    for format in [None, Some("--json")] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(["replay", "--rules", &rules, &log]).args(format);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("the program starts");
        drop(child.stdout.take());
        let output = child.wait_with_output().expect("the program ends");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "");
    }
}
