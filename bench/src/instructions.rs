//! Counts the instructions per decision with callgrind. The counts are exactly repeatable, even on a busy machine.
//!
//! A child process under valgrind makes [`DECISIONS`] decisions on a hot key inside [`callgrind_region`], the only
//! function that is counted. The bare loop, counted the same way, is subtracted. Clock readings through the kernel's
//! vDSO become system calls under valgrind and are not counted. Tollgate and governor read the processor's counter,
//! which is counted.

use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::child::CHILD_ARGUMENT;
use crate::contender::{Contender, EmptyLoop};
use crate::keys::numbered_key;
use crate::layer;
use crate::ours;
use crate::peers::governor;
use crate::report::{Goal, Report, Row};

const DECISIONS: usize = 20_000;

/// Case name, our contender, its peers, and the goal. The goal applies to the first peer.
const CASES: [(&str, &str, &[&str], Option<Goal>); 8] = [
    ("instructions-direct", "ours-direct", &["governor-direct"], Some(Goal::RatioAtLeast(1.0))),
    ("instructions-direct-denied", REFUSING_CONTENDER, &["governor-direct-denied"], None),
    ("instructions-direct-odd-rate", "ours-direct-odd-rate", &["governor-direct"], None),
    ("instructions-acquire", "ours-acquire", &["governor-until-ready", "ours-direct"], None),
    ("instructions-keyed", "ours", &["governor-dashmap", "governor-dashmap-ahash"], Some(Goal::OursAtMost(160.0))),
    ("instructions-keyed-odd-rate", "ours-odd-rate", &["governor-dashmap"], Some(Goal::OursAtMost(200.0))),
    ("instructions-keyed-sliding-slices", "ours-sliding-slices", &["ours"], None),
    ("instructions-keyed-batch16", ours::BATCHED, &["governor-dashmap", "governor-dashmap-ahash"], None),
];

/// Name of our contender that refuses everything.
const REFUSING_CONTENDER: &str = "ours-direct-denied";

/// Runs the cases that the report selects. Without valgrind, prints a note and runs none.
pub(crate) fn run(report: &mut Report) -> Result<()> {
    let wants_layer = layer::CASES.iter().any(|(case, _)| report.includes(&format!("instructions-{case}")));
    if !wants_layer && !CASES.iter().any(|(case, ..)| report.includes(case)) {
        return Ok(());
    }
    report.print_section("instructions per decision, hot key (callgrind)");
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("not measured: valgrind is not installed");
        return Ok(());
    }
    let bare_loop = count_instructions("empty-loop")?;
    for (case, ours, peers, goal) in CASES {
        if !report.includes(case) {
            continue;
        }
        let own = count_instructions(ours)? - bare_loop;
        for (index, peer) in peers.iter().enumerate() {
            report.add_row(Row {
                case: case.to_owned(),
                ours: own,
                peer: (*peer).to_owned(),
                theirs: count_instructions(peer)? - bare_loop,
                goal: goal.filter(|_| index == 0),
            });
        }
    }
    if wants_layer {
        layer::add_instruction_rows(report, count_instructions("ours")? - bare_loop, count_instructions)?;
    }
    Ok(())
}

/// Returns the instructions per loop iteration of this contender.
fn count_instructions(contender: &str) -> Result<f64> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let profile = std::env::temp_dir().join(format!("tollgate-callgrind-{}-{contender}", std::process::id()));
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg("--toggle-collect=*callgrind_region*")
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(program)
        .args([CHILD_ARGUMENT, "instructions", contender])
        .output()
        .context("cannot start valgrind")?;
    ensure!(output.status.success(), "callgrind failed on {contender}: {}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&profile).with_context(|| format!("callgrind left no {}", profile.display()))?;
    std::fs::remove_file(&profile)?;
    let total: f64 = text
        .lines()
        .find_map(|line| line.strip_prefix("totals: "))
        .context("no totals in callgrind's output")?
        .trim()
        .parse()?;
    ensure!(total > 0.0, "callgrind did not find the region");
    // Rounds to one decimal, because the fixed cost of the region affects the second decimal.
    Ok((total / DECISIONS as f64 * 10.0).round() / 10.0)
}

/// Runs in the child process: makes uncounted decisions for warm-up, then the same number of counted decisions.
pub(crate) fn run_counted_decisions(contender: &str) -> Result<()> {
    let expected = if contender.ends_with("-denied") { 0 } else { DECISIONS };
    let mut contender: Box<dyn Contender> = match contender {
        "empty-loop" => Box::new(EmptyLoop),
        "ours-direct" => Box::new(ours::Direct::with_precise_clock()?),
        REFUSING_CONTENDER => Box::new(ours::Direct::refusing_everything()?),
        "ours-direct-odd-rate" => Box::new(ours::Direct::with_two_word_state()?),
        "ours-acquire" => Box::new(ours::Acquiring::with_precise_clock()?),
        "ours-sliding-slices" => Box::new(ours::AnyAlgorithm::sliding_slices(1_000, u32::MAX.into())?),
        "ours" => Box::new(ours::Keyed::new(1_000)?),
        "ours-odd-rate" => Box::new(ours::Keyed::with_two_word_state(1_000)?),
        ours::BATCHED => Box::new(ours::Batched::new(1_000)?),
        "governor-direct" => Box::new(governor::Direct::with_precise_clock()),
        "governor-direct-denied" => Box::new(governor::Direct::refusing_everything()?),
        "governor-until-ready" => Box::new(governor::UntilReady::new()),
        "governor-dashmap" => Box::new(governor::Keyed::new()),
        "governor-dashmap-ahash" => Box::new(governor::Keyed::with_ahash()),
        _ => layer::contender_by_name(contender)?,
    };
    let keys: Vec<String> = (0..DECISIONS).map(|_| numbered_key(0)).collect();
    contender.fill(&keys[0]);
    contender.run(&keys);
    let allowed = callgrind_region(contender.as_mut(), &keys);
    ensure!(allowed == expected, "{allowed} decisions were allowed, expected {expected}");
    Ok(())
}

/// Runs the counted decisions. callgrind finds this function by its name and counts only while it runs.
#[inline(never)]
fn callgrind_region(contender: &mut dyn Contender, keys: &[String]) -> usize {
    contender.run(keys)
}
