//! The replays accept every trace of the documented format: each step is compared, or skipped with a counted reason.

use std::collections::BTreeMap;

use serde_json::{Value, json};
use tollgate_testkit::oracle::{Case, REPLAYS, Replay, Skip, Tally, TraceDirectory};
use tollgate_testkit::rule_model::random::Rng;

fn replay_by_title(title: &str) -> &'static Replay {
    REPLAYS.iter().find(|replay| replay.title == title).expect("a replay of this title")
}

/// Replays one case and checks that every step is counted exactly once.
fn run_case(replay: &Replay, case: &Value) -> Tally {
    let case = Case::parse(&case.to_string()).expect("a case");
    let tally = replay.run(std::slice::from_ref(&case));
    let (by_rule, skipped): (usize, usize) = (tally.by_rule.values().sum(), tally.skipped.values().sum());
    assert_eq!(tally.steps, case.steps.len());
    assert_eq!(tally.steps, tally.equal_steps + by_rule + skipped + tally.differing_steps.len(), "{tally}");
    tally
}

fn skips_of(replay: &Replay, case: &Value) -> Vec<(Skip, usize)> {
    let tally = run_case(replay, case);
    assert!(tally.differing_steps.is_empty(), "{tally}");
    tally.skipped.into_iter().collect()
}

fn case_json(algorithm: &str, config: &Value, steps: &Value) -> Value {
    json!({"oracle": "o", "algorithm": algorithm, "case": "c", "tags": [], "config": config, "steps": steps})
}

fn resilience_case(start: i64, period: i64, limit: i64, steps: &Value) -> Value {
    let create = json!({"ok": true, "state": {"available": limit, "nanos_to_wait_for_one": 0, "cycle": 0}});
    let config = json!({
        "start_ns": start, "refresh_period_ns": period, "limit_for_period": limit, "timeout_ns": 0, "create": create
    });
    case_json("atomic_rate_limiter", &config, steps)
}

/// Returns a granted reservation of one permit that leaves `available` permits. If `available` is 0, the next permit
/// is available after `wait` nanoseconds.
fn reserve_step(at: i64, available: i64, wait: i64) -> Value {
    let state = json!({"available": available, "nanos_to_wait_for_one": wait, "cycle": 0});
    json!({"at_ns": at, "op": "reserve_permission", "args": {"permits": 1},
           "result": {"ok": true, "wait_ns": 0, "state": state}})
}

#[test]
fn clock_may_start_below_zero() {
    let replay = replay_by_title("resilience4j_atomic");
    let steps = json!([reserve_step(-500, 1, 0), reserve_step(-400, 0, 900), reserve_step(500, 1, 0)]);
    assert_eq!(skips_of(replay, &resilience_case(-500, 1_000, 2, &steps)), []);
    assert_eq!(run_case(replay, &resilience_case(-500, 1_000, 2, &steps)).equal_steps, 3);
    let extreme = json!([reserve_step(i64::MAX, 1, 0)]);
    assert_eq!(skips_of(replay, &resilience_case(i64::MIN, 1_000, 2, &extreme)), [(Skip::BeyondTime, 1)]);
}

#[test]
fn step_before_the_start_is_a_clock_step() {
    let steps = json!([reserve_step(99, 1, 0), reserve_step(150, 0, 50)]);
    let tally = skips_of(replay_by_title("resilience4j_atomic"), &resilience_case(100, 1_000, 2, &steps));
    assert_eq!(tally, [(Skip::ClockBack, 2)]);
}

#[test]
fn step_before_the_end_of_a_parked_wait_is_a_clock_step() {
    let state = json!({"available": 0, "nanos_to_wait_for_one": 1_000, "cycle": 1});
    let parked = json!({"at_ns": 500, "op": "acquire_permission", "args": {"permits": 1},
        "result": {"ok": true, "parked_ns": 500, "now_ns": 1_000, "state": state}});
    let mut parking =
        resilience_case(0, 1_000, 1, &json!([reserve_step(0, 0, 1_000), parked, reserve_step(999, 0, 1)]));
    parking["config"]["timeout_ns"] = json!(500);
    assert_eq!(skips_of(replay_by_title("resilience4j_atomic"), &parking), [(Skip::ClockBack, 1)]);
    let sleeping = json!({"create": {"ok": true, "state": {"stored": 0.0, "next_free_us": 1_000_000}}, "start_us": 0,
        "permits_per_second": 1.0, "max_burst_seconds": 1.0, "sleep_advances_clock": true});
    let acquire = |at: i64, slept: i64, next: i64| {
        json!({"at_us": at, "op": "acquire", "args": {"permits": 1},
            "result": {"slept_us": slept, "wait_s": slept as f64 / 1e6, "state": {"stored": 0.0, "next_free_us": next}}})
    };
    let steps = json!([acquire(0, 1_000_000, 2_000_000), acquire(999_999, 1_000_001, 3_000_000)]);
    assert_eq!(
        skips_of(replay_by_title("guava_rate_limiter"), &case_json("smooth_bursty", &sleeping, &steps)),
        [(Skip::ClockBack, 1)]
    );
    let steps = json!([acquire(0, 1_000_000, 2_000_000), acquire(1_000_000, 1_000_000, 3_000_000)]);
    assert_eq!(skips_of(replay_by_title("guava_rate_limiter"), &case_json("smooth_bursty", &sleeping, &steps)), []);
}

#[test]
fn negative_and_zero_periods_are_skipped() {
    let steps = json!([reserve_step(0, 1, 0), reserve_step(1, 0, 1)]);
    let period = |period| skips_of(replay_by_title("resilience4j_atomic"), &resilience_case(0, period, 2, &steps));
    assert_eq!(period(-1_000), [(Skip::Field("refresh_period_ns"), 2)]);
    assert_eq!(period(0), [(Skip::RefusedLimit, 2)]);
}

#[test]
fn limits_that_our_types_refuse_are_skipped() {
    let create = json!({"ok": true, "state": [[5, 0]]});
    let step =
        json!([{"at_ns": 0, "op": "try_consume", "args": {"tokens": 1}, "result": {"ok": true, "state": [[4, 0]]}}]);
    let bucket = |refill: Value, start: i64| {
        case_json("greedy", &json!({"start_ns": start, "bandwidths": [refill], "create": create}), &step)
    };
    let bandwidth = |tokens: u64, period: i64| json!({"refill": "greedy", "capacity": 5, "refill_tokens": tokens, "period_ns": period});
    let replay_bucket = |case: &Value| skips_of(replay_by_title("bucket4j"), case);
    assert_eq!(replay_bucket(&bucket(bandwidth(1 << 40, 1), 0)), [(Skip::RefusedLimit, 1)]);
    assert_eq!(replay_bucket(&bucket(bandwidth(1, 0), 0)), [(Skip::RefusedLimit, 1)]);
    assert_eq!(replay_bucket(&bucket(bandwidth(1, -5), 0)), [(Skip::Field("period_ns"), 1)]);
    assert_eq!(replay_bucket(&bucket(bandwidth(1, 1_000), -7)), [(Skip::BeforeTime, 1)]);
    let windows = json!({"amount": 0, "window_s": 1, "start_us": 0});
    let hit = json!([{"at_us": 0, "op": "hit", "args": {"key": "k", "cost": 1}, "result": {"ok": false}}]);
    for algorithm in ["fixed_window", "moving_window"] {
        assert_eq!(
            skips_of(replay_by_title("python_limits"), &case_json(algorithm, &windows, &hit)),
            [(Skip::RefusedLimit, 1)]
        );
    }
    let nginx = json!({"start_ms": 0, "limits": [{"rate_milli_per_s": 0, "burst": 1, "mode": "delay"}]});
    let request = json!([{"at_ms": 0, "op": "request", "args": {"key": "k"}, "result": {"outcome": "passed", "delay_ms": 0, "status": 200}}]);
    assert_eq!(
        skips_of(replay_by_title("nginx_limit_req"), &case_json("limit_req", &nginx, &request)),
        [(Skip::RefusedLimit, 1)]
    );
}

#[test]
fn commands_without_arguments_are_skipped() {
    let throttle = |args: Value| {
        let failed = json!({"error": "ERR", "message": "wrong number of arguments", "stored_tat_ns": null});
        let step = json!({"at_ns": 0, "op": "cl_throttle", "args": args, "result": failed});
        let other = json!({"at_ns": 1, "op": "redis_command", "args": args, "result": {"reply": "OK"}});
        case_json("gcra", &json!({"start_ns": 0}), &json!([step, other]))
    };
    for title in ["redis_cell, step by step", "redis_cell, without loading states"] {
        assert_eq!(skips_of(replay_by_title(title), &throttle(json!({"argv": []}))), [(Skip::Error, 1)]);
        run_case(replay_by_title(title), &throttle(json!({})));
        run_case(replay_by_title(title), &throttle(Value::Null));
    }
}

/// Replaces, removes or empties a value at a random position.
fn mutate_value(rng: &mut Rng, value: &mut Value) {
    let odd = || {
        [json!(0), json!(-1), json!(1), json!(i64::MIN), json!(i64::MAX), json!(u64::MAX), json!(1e300), json!(-0.5)]
            .into_iter()
            .chain([json!("nan"), json!(""), json!([]), json!({}), json!(true), Value::Null])
            .collect::<Vec<_>>()
    };
    let inside = match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if inside == 0 || rng.one_in(12) {
        *value = rng.pick(&odd());
        return;
    }
    let place = rng.below(inside as u64) as usize;
    match value {
        Value::Array(items) if rng.one_in(12) => drop(items.remove(place)),
        Value::Array(items) => mutate_value(rng, &mut items[place]),
        Value::Object(fields) => {
            let name = fields.keys().nth(place).expect("it is inside").clone();
            match fields.get_mut(&name) {
                Some(field) if !rng.one_in(12) => mutate_value(rng, field),
                _ => drop(fields.remove(&name)),
            }
        }
        _ => {}
    }
}

#[test]
fn mutated_traces_are_replayed_without_a_panic() {
    let mut skips: BTreeMap<Skip, usize> = BTreeMap::new();
    for replay in REPLAYS {
        let cases = TraceDirectory::from_environment().read(replay.file).expect("the traces in the repository");
        let rng = &mut Rng::new(7);
        for _ in 0..600 {
            let mut case = cases[rng.below(cases.len() as u64) as usize].clone();
            case.steps.truncate(12);
            for _ in 0..rng.between(1, 3) {
                let (kind, place) = (rng.below(4), rng.below(case.steps.len().max(1) as u64) as usize);
                match (kind, case.steps.get_mut(place)) {
                    (0, _) | (_, None) => mutate_value(rng, &mut case.config),
                    (1, Some(step)) => {
                        step.at =
                            rng.pick(&[i64::MIN, -1, 0, step.at.wrapping_add(1), step.at.wrapping_neg(), i64::MAX]);
                    }
                    (2, Some(step)) => mutate_value(rng, &mut step.args),
                    (_, Some(step)) => mutate_value(rng, &mut step.result),
                }
            }
            let tally = replay.run(std::slice::from_ref(&case));
            let counted: usize = tally.by_rule.values().chain(tally.skipped.values()).sum();
            assert_eq!(tally.steps, tally.equal_steps + counted + tally.differing_steps.len(), "{tally}");
            for (skip, count) in tally.skipped {
                *skips.entry(skip).or_default() += count;
            }
        }
    }
    for skip in [Skip::ClockBack, Skip::BeforeTime, Skip::BeyondTime, Skip::RefusedLimit, Skip::ImpossibleState] {
        assert!(skips.contains_key(&skip), "no step was skipped because of: {skip}");
    }
}
