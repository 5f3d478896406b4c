//! Compares recorded nginx decisions with the decisions of the imported rules. Each side has its own state.
//!
//! nginx counts thousandths of a request and keeps its rate in whole thousandths per second. For rates per second
//! this is exact at whole milliseconds, so all decisions must be equal. For rates per minute, nginx refills slightly
//! less at every step. So nginx may refuse a request that we admit, or delay it longer, but never the reverse. A case
//! ends when the two sides have diverged.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use tollgate::Outcome;
use tollgate::clock::ManualClock;
use tollgate_engine::rules::{ImportedRules, Rules, Source};
use tollgate_engine::{Attribute, Decisions, Engine, Item, MemoryStore, Request};
use tollgate_testkit::oracle::{Case, Fields, ReadResult, TraceDirectory, TraceStep};

const MILLI: u64 = 1_000_000;

/// Returns the configuration lines with which a case was recorded.
fn nginx_config(case: &Case) -> ReadResult<String> {
    let lines = case.config.read_list("limits")?.iter().enumerate().map(|(place, limit)| {
        let (rate, burst) = (limit.read_text("rate")?, limit.read_count("burst")?);
        let burst = if burst > 0 { format!(" burst={burst}") } else { String::new() };
        let mode = match limit.read_text("mode")? {
            "nodelay" => " nodelay".to_owned(),
            "two_stage" => format!(" delay={}", limit.read_count("delay")?),
            _ => String::new(),
        };
        Ok(format!(
            "limit_req_zone $binary_remote_addr zone=z{place}:1m rate={rate};\nlimit_req zone=z{place}{burst}{mode};\n"
        ))
    });
    lines.collect()
}

/// An outcome. The delay is in milliseconds, rounded down as in nginx.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
enum NginxOutcome {
    Passed { delay_ms: u64 },
    Rejected,
}

fn recorded_outcome(step: &TraceStep) -> ReadResult<NginxOutcome> {
    Ok(match step.result.read_text("outcome")? {
        "rejected" => NginxOutcome::Rejected,
        _ => NginxOutcome::Passed { delay_ms: step.result.read_count("delay_ms")? },
    })
}

fn poll_ready<T>(future: impl Future<Output = T>) -> T {
    match std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the memory store never waits"),
    }
}

#[derive(Debug, Default)]
struct ReplayCounts {
    equal: usize,
    drifted: usize,
    after: usize,
}

fn replay_case(case: &Case, count: &mut ReplayCounts) -> ReadResult<()> {
    let text = nginx_config(case)?;
    let imported = ImportedRules::read(&Source { name: "nginx.conf", text: text.as_bytes() }, None, "edge")
        .expect("lines of nginx");
    let rules = Rules::read(&[Source { name: "rules", text: imported.yaml.as_bytes() }]).expect("rules");
    let clock = Arc::new(ManualClock::at(case.steps[0].at_nanos(MILLI)?));
    let store = || MemoryStore::with_clock(256, clock.clone()).expect("a table");
    let engine = Engine::with_fallback(store(), store()).with_clock(clock.clone());
    engine.put(&rules).expect("limits that the memory store supports");
    let exact = !text.contains("r/m");
    let mut decisions = Decisions::default();
    let mut last = i64::MIN;
    for (number, step) in case.steps.iter().enumerate() {
        if step.at < last || step.failed() {
            count.after += case.steps.len() - number;
            return Ok(());
        }
        last = step.at;
        clock.set(step.at_nanos(MILLI)?);
        let attributes = [Attribute::new("client_ip", step.args.read_text("key")?)];
        let items = [Item::new(&attributes)];
        let decision = poll_ready(engine.check(&Request::new("edge", &items), &mut decisions)).expect("a request");
        let ours = match decision.outcome() {
            Outcome::Allow => NginxOutcome::Passed { delay_ms: 0 },
            Outcome::Delay(wait) => NginxOutcome::Passed { delay_ms: wait.as_nanos() / MILLI },
            Outcome::Deny(_) => NginxOutcome::Rejected,
        };
        let theirs = recorded_outcome(step)?;
        if ours == theirs {
            count.equal += 1;
            continue;
        }
        assert!(!exact && ours < theirs, "{} step {number}: we {ours:?}, nginx {theirs:?}\n{text}", case.name);
        count.drifted += 1;
        count.after += case.steps.len() - number - 1;
        return Ok(());
    }
    Ok(())
}

#[test]
fn imported_rules_decide_as_nginx_did() {
    let cases = TraceDirectory::from_environment().read("nginx_limit_req").expect("the traces of nginx");
    let mut count = ReplayCounts::default();
    for case in cases.iter().filter(|case| !case.steps.is_empty()) {
        replay_case(case, &mut count).expect("a case of the documented format");
    }
    println!("{} cases: {count:?}", cases.len());
    assert!(count.equal > 2 * count.after, "too few steps were compared: {count:?}");
}
