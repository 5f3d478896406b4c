//! Nanoseconds per decision: the cases, their contenders and their goals.

use anyhow::Result;

use crate::contender::Contender;
use crate::keys::{Pattern, numbered_key};
use crate::measure::{Expect, Plan, race};
use crate::ours;
use crate::peers::{gcra, governor, leaky_bucket, pingora, ratelimit, throttlecrab};
use crate::report::{Goal, Report, Row};

/// Runs the cases that the report selects.
pub(crate) fn run(report: &mut Report, plan: Plan) -> Result<()> {
    compare_direct(report, plan)?;
    for stage in &CASE_GROUPS {
        compare_keyed(report, plan, stage)?;
    }
    compare_algorithms(report, plan)
}

type Contenders = Vec<Box<dyn Contender>>;

fn compare_direct(report: &mut Report, plan: Plan) -> Result<()> {
    // At most 1.1 times governor's time, that is, a ratio of at least 1 / 1.1.
    let within = Goal::RatioAtLeast(0.91);
    direct_case(report, plan, "direct-precise", Expect::Allowed, Some(within), || {
        Ok(vec![
            Box::new(ours::Direct::with_precise_clock()?),
            Box::new(governor::Direct::with_precise_clock()),
            Box::new(ratelimit::Direct::new()?),
            Box::new(leaky_bucket::Direct::new()),
            Box::new(gcra::Direct::new()),
        ])
    })?;
    let cached = Goal::RatioAtLeast(2.5);
    direct_case(report, plan, "direct-cached", Expect::Allowed, Some(cached), || {
        Ok(vec![
            Box::new(ours::Direct::with_cached_clock()?),
            Box::new(governor::Direct::with_precise_clock()),
            Box::new(governor::Direct::with_upkeep_clock()?),
        ])
    })?;
    // Tollgate represents 7777 per second exactly, which takes a second word of state. Governor rounds this rate to
    // whole nanoseconds per cell.
    direct_case(report, plan, "direct-odd-rate", Expect::Allowed, Some(Goal::RatioAtLeast(0.9)), || {
        Ok(vec![Box::new(ours::Direct::with_two_word_state()?), Box::new(governor::Direct::with_rate_of_7777())])
    })?;
    direct_case(report, plan, "direct-denied", Expect::Denied, Some(Goal::RatioAtLeast(1.0)), || {
        Ok(vec![
            Box::new(ours::Direct::refusing_everything()?),
            Box::new(governor::Direct::refusing_everything()?),
            Box::new(ratelimit::Direct::refusing_everything()?),
            Box::new(leaky_bucket::Direct::refusing_everything()),
        ])
    })
}

fn direct_case(
    report: &mut Report,
    plan: Plan,
    case: &str,
    expect: Expect,
    goal: Option<Goal>,
    contenders: impl FnOnce() -> Result<Contenders>,
) -> Result<()> {
    if !report.includes(case) {
        return Ok(());
    }
    report.print_section(&format!("{case}, ns per decision"));
    let sequences = [Pattern::Hot.access_sequence(1)];
    let medians = race(plan, expect, &mut contenders()?, &sequences)?;
    add_rows_for_peers(report, case, "ours", &medians, |peer| goal.filter(|_| peer == "governor-direct"));
    Ok(())
}

/// Cases that share their tables, because filling a million keys takes longer than measuring them.
struct CaseGroup {
    population: Pattern,
    cases: &'static [Case],
}

/// A keyed race. Goals are relative to governor's default keyed limiter.
struct Case {
    name: &'static str,
    pattern: Pattern,
    threads: u64,
    goal: Option<Goal>,
    batch_goal: Option<Goal>,
}

const CASE_GROUPS: [CaseGroup; 3] = [
    CaseGroup {
        population: Pattern::Hot,
        cases: &[
            speed_case("keyed-hot", Pattern::Hot, 1, Some(1.8), Some(4.0)),
            speed_case("keyed-hot-2t", Pattern::Hot, 2, None, None),
        ],
    },
    CaseGroup {
        population: Pattern::Thousand,
        cases: &[
            speed_case("keyed-1k", Pattern::Thousand, 1, Some(1.6), None),
            speed_case("keyed-1k-2t", Pattern::Thousand, 2, None, None),
        ],
    },
    CaseGroup {
        population: Pattern::Million,
        cases: &[
            speed_case("keyed-million", Pattern::Million, 1, Some(1.8), Some(12.0)),
            speed_case("keyed-zipf", Pattern::Zipf, 1, Some(2.5), None),
            speed_case("keyed-million-2t", Pattern::Million, 2, Some(2.5), None),
            speed_case("keyed-zipf-2t", Pattern::Zipf, 2, Some(2.5), None),
        ],
    },
];

const fn speed_case(
    name: &'static str,
    pattern: Pattern,
    threads: u64,
    goal: Option<f64>,
    batch_goal: Option<f64>,
) -> Case {
    const fn ratio(goal: Option<f64>) -> Option<Goal> {
        match goal {
            Some(goal) => Some(Goal::RatioAtLeast(goal)),
            None => None,
        }
    }
    Case { name, pattern, threads, goal: ratio(goal), batch_goal: ratio(batch_goal) }
}

fn compare_keyed(report: &mut Report, plan: Plan, stage: &CaseGroup) -> Result<()> {
    let wanted = |name: &str| report.includes(name) || report.includes(&batched_name(name));
    let cases: Vec<&Case> = stage.cases.iter().filter(|case| wanted(case.name)).collect();
    if cases.is_empty() {
        return Ok(());
    }
    let mut contenders = keyed_contenders(stage.population.population())?;
    for case in cases {
        report.print_section(&format!("{}, ns per decision", case.name));
        let sequences: Vec<_> = (1..=case.threads).map(|seed| case.pattern.access_sequence(seed)).collect();
        let medians = race(plan, Expect::Allowed, &mut contenders, &sequences)?;
        let goal_of = |goal: Option<Goal>| move |peer: &str| goal.filter(|_| peer == "governor-dashmap");
        add_rows_for_peers(report, case.name, "ours", &medians, goal_of(case.goal));
        add_rows_for_peers(report, &batched_name(case.name), ours::BATCHED, &medians, goal_of(case.batch_goal));
    }
    Ok(())
}

fn batched_name(case: &str) -> String {
    format!("{case}-batch16")
}

/// Compares other algorithms with the token bucket. The other algorithms may take at most a third longer.
fn compare_algorithms(report: &mut Report, plan: Plan) -> Result<()> {
    type Make = fn(usize, u64) -> Result<Box<dyn Contender>>;
    const ALGORITHMS: [(&str, Make); 2] = [
        ("interval-bucket", |capacity, _| Ok(Box::new(ours::AnyAlgorithm::interval_bucket(capacity)?))),
        ("sliding-slices", |capacity, limit| Ok(Box::new(ours::AnyAlgorithm::sliding_slices(capacity, limit)?))),
    ];
    // The limits are high enough that a run cannot exhaust them.
    let patterns =
        [("hot", Pattern::Hot, u32::MAX.into()), ("1k", Pattern::Thousand, 65_535), ("million", Pattern::Million, 255)];
    for (algorithm, make) in ALGORITHMS {
        for (keys, pattern, limit) in patterns {
            let case = format!("keyed-{keys}-{algorithm}");
            if !report.includes(&case) {
                continue;
            }
            let population = pattern.population();
            let capacity = usize::try_from(population)?.max(1_000);
            let mut contenders: Contenders =
                vec![make(capacity, limit)?, Box::new(ours::AnyAlgorithm::token_bucket(capacity)?)];
            for contender in &mut contenders {
                (0..population).for_each(|number| contender.fill(&numbered_key(number)));
            }
            report.print_section(&format!("{case}, ns per decision"));
            let medians = race(plan, Expect::Allowed, &mut contenders, &[pattern.access_sequence(1)])?;
            add_rows_for_peers(report, &case, "ours", &medians, |_| Some(Goal::RatioAtLeast(0.75)));
        }
    }
    Ok(())
}

/// Returns all keyed contenders, each filled with the keys `0..population`.
fn keyed_contenders(population: u64) -> Result<Contenders> {
    let capacity = usize::try_from(population)?.max(1_000);
    // The batched contender has its own table. In a shared table, the batched contender would find the other
    // contender's entries in the cache.
    let mut contenders: Contenders = vec![
        Box::new(ours::Keyed::new(capacity)?),
        Box::new(governor::Keyed::new()),
        Box::new(governor::Keyed::with_ahash()),
        Box::new(throttlecrab::Owned::new(capacity)),
        Box::new(throttlecrab::Locked::new(capacity)),
        Box::new(gcra::Keyed::new(capacity)),
        Box::new(pingora::Keyed::new()),
        Box::new(ours::Batched::new(capacity)?),
    ];
    for contender in &mut contenders {
        for number in 0..population {
            contender.fill(&numbered_key(number));
        }
    }
    Ok(contenders)
}

/// Adds a row for every peer, compared with the contender called `ours`.
fn add_rows_for_peers(
    report: &mut Report,
    case: &str,
    ours: &str,
    medians: &[(&'static str, f64)],
    goal: impl Fn(&str) -> Option<Goal>,
) {
    if !report.includes(case) {
        return;
    }
    let own = medians.iter().find(|(name, _)| *name == ours);
    let Some(&(_, ours)) = own else { return };
    for &(peer, theirs) in medians.iter().filter(|(name, _)| !name.starts_with("ours")) {
        report.add_row(Row { case: case.to_owned(), ours, peer: peer.to_owned(), theirs, goal: goal(peer) });
    }
}
