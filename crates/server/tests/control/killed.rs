//! Kills a process while it writes. Acknowledged changes must be present, and no change may be partial.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;

use tollgate_server::control::model::{AuditSearch, ExpectedVersion, OtherRulesPolicy, PageRequest, RuleSearch};

use crate::test_database::{TestDatabase, change_by, run_case, sqlite};

on_both_databases!(nothing_acknowledged_is_lost_when_the_writer_is_killed);

/// Number of rules that each write changes.
const RULES_PER_WRITE: usize = 20;
const URL_VARIABLE: &str = "TOLLGATE_TEST_KILLED_URL";

async fn nothing_acknowledged_is_lost_when_the_writer_is_killed(database: Arc<TestDatabase>) {
    let mut last = 0;
    // Each process is killed after this many acknowledgements; the next process continues.
    for acknowledged in [1, 2, 3, 5, 8, 13, 21, 34] {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "killed::writer_that_the_kill_test_starts", "--ignored", "--nocapture"])
            .env(URL_VARIABLE, &database.url)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
        let mut versions =
            lines.filter_map(|line| line.rsplit_once("written ").and_then(|(_, number)| number.parse::<i64>().ok()));
        let mut seen: i64 = 0;
        for number in versions.by_ref().take(acknowledged) {
            seen = number;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        // Also counts acknowledgements that were printed before the kill but had not been read yet.
        seen = versions.last().unwrap_or(seen);
        assert!(seen > last, "the writer continued from {last} and reached {seen}");
        let control = database.open().await;
        let page = control.rules().list("api", &RuleSearch::default(), &PageRequest::default()).await.unwrap();
        let limits: Vec<i64> = page.items.iter().map(|rule| limit_count(&rule.rule)).collect();
        assert_eq!(limits, [limits[0]; RULES_PER_WRITE], "all rules come from one write");
        // The write that was in progress at the kill may be complete.
        assert!((seen..=seen + 1).contains(&limits[0]), "write {seen} was acknowledged, write {} is stored", limits[0]);
        let log =
            control.audit().list(&AuditSearch::default(), &PageRequest { limit: Some(1), after: None }).await.unwrap();
        assert_eq!(log.items[0].seq, RULES_PER_WRITE as i64 * limits[0]);
        assert_eq!((log.items[0].revision, *control.watch_revision().borrow()), (limits[0], limits[0]));
        last = limits[0];
    }
}

fn limit_count(rule: &serde_json::Value) -> i64 {
    rule["limit"].as_str().unwrap().trim_end_matches("/s").parse().unwrap()
}

/// Not a separate test: the process that the test above starts and kills.
#[test]
#[ignore = "started by another test"]
fn writer_that_the_kill_test_starts() {
    let Ok(url) = std::env::var(URL_VARIABLE) else { return };
    run_case(sqlite(), async |_| {
        let control = tollgate_server::control::Control::open(&url).await.unwrap();
        loop {
            let next = *control.watch_revision().borrow() + 1;
            let rules: Vec<String> =
                (0..RULES_PER_WRITE).map(|rule| format!("{{id: r{rule}, limit: {next}/s}}")).collect();
            let file = format!("{{domain: api, rules: [{}]}}", rules.join(", "));
            let plan = control
                .rule_files()
                .apply(
                    &change_by("w").with_expected(ExpectedVersion::Version(next - 1)),
                    file.as_bytes(),
                    OtherRulesPolicy::Keep,
                    &|_| true,
                )
                .await;
            println!("written {}", plan.unwrap().revision);
        }
    });
}
