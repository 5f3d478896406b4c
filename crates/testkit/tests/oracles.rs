//! Replays all recorded decisions of the reference limiters. `TOLLGATE_ORACLES` names another
//! directory of traces; `--nocapture` prints the counts.

use serde_json::{Value, json};
use tollgate_testkit::oracle::{Case, REPLAYS, Replay, TraceDirectory, TraceStep};

fn load_cases(replay: &Replay) -> Vec<Case> {
    TraceDirectory::from_environment()
        .read(replay.file)
        .unwrap_or_else(|error| panic!("no traces of {}: {error}", replay.file))
}

#[test]
fn decisions_equal_those_of_the_references() {
    let tallies: Vec<_> = REPLAYS.iter().map(|replay| replay.run(&load_cases(replay))).collect();
    for tally in &tallies {
        print!("{tally}");
    }
    let differing_steps: usize = tallies.iter().map(|tally| tally.differing_steps.len()).sum();
    assert_eq!(differing_steps, 0, "steps differ without a known reason");
    for tally in &tallies {
        let by_rule: usize = tally.by_rule.values().sum();
        let skipped: usize = tally.skipped.values().sum();
        assert_eq!(
            tally.steps,
            tally.equal_steps + by_rule + skipped,
            "a step of {} is not accounted for",
            tally.title
        );
        assert!(tally.equal_steps > tally.steps / 2, "too few steps of {} were compared", tally.title);
    }
}

/// Reverses the recorded verdict of a step. Returns `None` if the step has no verdict.
fn flip_verdict(step: &mut TraceStep) -> Option<()> {
    let result = step.result.as_object_mut()?;
    for name in ["ok", "blocked"] {
        if let Some(Value::Bool(verdict)) = result.get_mut(name) {
            *verdict = !*verdict;
            return Some(());
        }
    }
    if let Some(limited) = result.get_mut("reply").and_then(|reply| reply.get_mut(0)) {
        *limited = json!(1 - limited.as_i64()?);
        return Some(());
    }
    let outcome = result.get_mut("outcome")?;
    *outcome = json!(if outcome == "rejected" { "passed" } else { "rejected" });
    Some(())
}

/// Returns a case without differences, and the index of its first step with a verdict.
fn case_without_differences(replay: &Replay) -> (Case, usize) {
    let is_plain = |case: &Case| {
        let tally = replay.run(std::slice::from_ref(case));
        tally.steps > 0 && tally.equal_steps == tally.steps
    };
    let verdict =
        |case: Case| Some((case.steps.iter().position(|step| flip_verdict(&mut step.clone()).is_some())?, case));
    let (step, case) =
        load_cases(replay).into_iter().filter(is_plain).find_map(verdict).expect("a case in which all steps are equal");
    (case, step)
}

#[test]
fn flipped_verdict_is_reported_as_a_difference() {
    for replay in REPLAYS {
        let (mut case, step) = case_without_differences(replay);
        flip_verdict(&mut case.steps[step]).expect("the step has a verdict");
        let tally = replay.run(std::slice::from_ref(&case));
        assert_eq!(tally.steps, case.steps.len());
        let first = tally.differing_steps.first().unwrap_or_else(|| panic!("{}: not noticed", replay.title));
        assert!(first.contains(&case.name) && first.contains(&format!(" step {step} ")), "{first}");
        assert!(first.contains("expected") && first.contains("got"), "{first}");
    }
}

#[test]
fn missing_traces_are_an_error() {
    assert!(TraceDirectory::from_environment().read("no_such_reference").is_err());
}
