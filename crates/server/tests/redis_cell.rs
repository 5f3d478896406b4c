//! Sends recorded calls of redis-cell to a real socket and compares the replies.

use crate::common;

use common::Server;
use serde_json::Value;
use tollgate_testkit::oracle::{Fields, TraceDirectory, TraceStep};

/// Returns the words of a recorded call.
fn words_of_call(step: &TraceStep) -> Vec<String> {
    let mut words = vec!["CL.THROTTLE".to_owned()];
    if let Ok(argv) = step.args.read_list("argv") {
        words.extend(argv.iter().filter_map(Value::as_str).map(str::to_owned));
    } else {
        words.push(step.args.read_text("key").expect("a key").to_owned());
        for name in ["max_burst", "count", "period_s", "quantity"] {
            words.extend(step.args.optional_int(name).map(|number| number.to_string()));
        }
    }
    words
}

/// Returns whether only redis-cell reports this error: it cannot set the expiry of a key with credit.
fn is_error_of_redis_cell_only(error: &str) -> bool {
    error.ends_with("Error while setting key expire")
}

#[test]
fn errors_equal_those_of_redis_cell() {
    let server = Server::start(&[]);
    let mut client = server.connect_resp();
    let cases = TraceDirectory::from_environment().read("redis_cell").expect("the traces are readable");
    let mut compared = 0;
    for step in cases.iter().flat_map(|case| &case.steps) {
        let Some(error) = step.result.get("error").and_then(Value::as_str) else { continue };
        if is_error_of_redis_cell_only(error) {
            continue;
        }
        let words = words_of_call(step);
        client.send_command(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(client.line(), format!("-{error}"), "{words:?}");
        compared += 1;
    }
    assert!(compared >= 15, "only {compared} errors were compared");
}

#[test]
fn first_call_on_a_key_is_answered_as_recorded() {
    let server = Server::start(&[]);
    let mut client = server.connect_resp();
    let cases = TraceDirectory::from_environment().read("redis_cell").expect("the traces are readable");
    let mut compared = 0;
    for (number, case) in cases.iter().enumerate() {
        // Compares only the first step of each case. Nothing is spent before it, so the real clock does not matter.
        // Skips negative quantities. Also skips large numbers, because the arithmetic of the reference may wrap around.
        let Some(step) = case.steps.first().filter(|step| step.op == "cl_throttle" && !step.failed()) else { continue };
        let mut words = words_of_call(step);
        let numbers: Vec<i128> = words[2..].iter().filter_map(|word| word.parse().ok()).collect();
        let [burst, count, period, ..] = numbers[..] else { continue };
        if numbers.iter().any(|number| number.abs() > 1_000_000_000) || count < 1 || period * 1_000_000 < count {
            continue;
        }
        if (burst + 1) * period / count > 100 * 365 * 86_400 || numbers.get(3).is_some_and(|quantity| *quantity < 0) {
            continue;
        }
        words[1] = format!("case {number}");
        client.send_command(&words.iter().map(String::as_str).collect::<Vec<_>>());
        assert_eq!(client.line(), "*5", "{words:?}");
        let reply: Vec<i64> = (0..5).map(|_| client.line()[1..].parse().expect("a number")).collect();
        let recorded: Vec<i64> =
            step.result.read_list("reply").expect("a reply").iter().filter_map(Value::as_i64).collect();
        assert_eq!(reply, recorded, "{words:?}");
        compared += 1;
    }
    assert!(compared > 100, "only {compared} calls were compared");
}
