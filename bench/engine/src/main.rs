//! Measures the cost of rules. A request that matches 2 of 10,000 rules is compared with a request that matches 2 of 10
//! rules. The instruction counts are also compared with two bare checks. Requests that match 2 of 2 rules and 2 of
//! 1,000 rules are compared with limitador. Timed contenders alternate within one run, so that disturbances affect all
//! of them equally.

mod instructions;
mod rules;
mod subjects;

use anyhow::Result;
use rules::REQUEST_COUNT;
use subjects::{EngineWithRules, Limitador};

const RULE_COUNTS: [usize; 4] = [10, 100, 1_000, 10_000];
const ROUNDS: usize = 401;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    if let [first, subject] = &*words
        && first == "child"
    {
        return instructions::run_counted_decisions(subject);
    }
    let mut goals = Goals::default();
    compare_rule_counts(&mut goals)?;
    compare_with_limitador(&mut goals)?;
    match instructions::count_all()? {
        Some([ten, many, refusal, bare]) => {
            println!(
                "\ninstructions per decision: {bare:.0} in two bare checks, {ten:.0} by 2 of 10 rules, {many:.0} by 2 of 10,000, \
                 {refusal:.0} in a refusal by 2 of 10"
            );
            goals.at_most("instructions of a refusal relative to an admission, 10 rules", refusal / ten, 1.2);
            for (rules, engine) in [("10", ten), ("10,000", many)] {
                let added = (engine - bare) / bare;
                goals.at_most(
                    &format!("instructions added by the engine, relative to the bare checks, {rules} rules"),
                    added,
                    3.0,
                );
            }
        }
        None => println!("\ninstructions are not counted: valgrind is not installed"),
    }
    std::process::exit(goals.missed.into())
}

/// Compares different numbers of rules.
fn compare_rule_counts(goals: &mut Goals) -> Result<()> {
    let mut subjects = Vec::new();
    for size in RULE_COUNTS {
        subjects.push(EngineWithRules::new(size)?);
    }
    let mut figures: Vec<[Vec<f64>; 4]> = RULE_COUNTS.iter().map(|_| Default::default()).collect();
    for _ in 0..ROUNDS {
        for (subject, figures) in subjects.iter().zip(&mut figures) {
            figures[0].push(subject.nanos_to_find_rules(1));
            figures[1].push(subject.nanos_to_find_rules(REQUEST_COUNT));
            figures[2].push(subject.nanos_per_decision(1));
            figures[3].push(subject.nanos_per_decision(REQUEST_COUNT));
        }
    }
    println!(
        "{:>32} {:>9} {:>9} {:>9} {:>9} rules",
        "ns, median", RULE_COUNTS[0], RULE_COUNTS[1], RULE_COUNTS[2], RULE_COUNTS[3]
    );
    let rows = ["finding, one request", "finding, 1,000 requests", "check, one request", "check, 1,000 requests"];
    for (row, name) in rows.iter().enumerate() {
        let shown: Vec<String> = figures.iter().map(|figures| format!("{:9.1}", median(&figures[row]))).collect();
        println!("{name:>32} {}", shown.join(" "));
    }
    for (row, name) in rows.iter().enumerate().skip(2) {
        let ratios: Vec<f64> = figures[3][row].iter().zip(&figures[0][row]).map(|(many, few)| many / few).collect();
        goals.at_most(&format!("{name}: 2 of 10,000 rules relative to 2 of 10"), median(&ratios), 1.5);
    }
    goals.at_most("reading 10,000 rules and putting them in force, ms", subjects[3].loaded_ms, 1_000.0);
    Ok(())
}

/// Compares the engine with limitador: the same two limits, alone and among 1,000 rules.
fn compare_with_limitador(goals: &mut Goals) -> Result<()> {
    println!();
    for (size, times, goal) in [(2, 50, 5.0), (1_000, 2, 50.0)] {
        let (ours, theirs) = (EngineWithRules::new(size)?, Limitador::new(size)?);
        theirs.nanos_per_decision(times)?;
        let mut ratios = Vec::new();
        let mut both = (Vec::new(), Vec::new());
        for _ in 0..101 {
            let (ours, theirs) = (ours.nanos_per_decision(REQUEST_COUNT), theirs.nanos_per_decision(times)?);
            ratios.push(theirs / ours);
            both.0.push(ours);
            both.1.push(theirs);
        }
        println!("2 of {size} rules: {:.0} ns, limitador {:.0} ns", median(&both.0), median(&both.1));
        goals.at_least(&format!("limitador's time relative to ours, 2 of {size} rules"), median(&ratios), goal);
    }
    Ok(())
}

#[derive(Default)]
struct Goals {
    missed: bool,
}

impl Goals {
    fn at_most(&mut self, what: &str, value: f64, goal: f64) {
        self.print_goal(what, value, value <= goal, &format!("at most {goal:.2}"));
    }

    fn at_least(&mut self, what: &str, value: f64, goal: f64) {
        self.print_goal(what, value, value >= goal, &format!("at least {goal:.2}"));
    }

    fn print_goal(&mut self, what: &str, value: f64, holds: bool, goal: &str) {
        println!("{} {what}: {value:.2} ({goal})", if holds { "ok    " } else { "MISSED" });
        self.missed |= !holds;
    }
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
