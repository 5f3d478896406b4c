//! Counts the instructions per decision with callgrind, in a child process. The counts are repeatable even on a busy
//! machine.

use std::hint::black_box;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use tollgate_engine::Decisions;

use crate::rules::{NEVER_REACHED_LIMIT, ONE_PER_DAY};
use crate::subjects::{BareChecks, EngineWithRules};

const DECISIONS: usize = 20_000;

/// Returns the instruction counts of four subjects: a decision with 10 rules, a decision with 10,000 rules, a refusal
/// with 10 rules, and two bare checks. Returns `None` if valgrind is not installed.
pub(crate) fn count_all() -> Result<Option<[f64; 4]>> {
    if Command::new("valgrind").arg("--version").output().is_err() {
        return Ok(None);
    }
    Ok(Some([
        count_instructions("engine-10")?,
        count_instructions("engine-10000")?,
        count_instructions("refusal-10")?,
        count_instructions("bare")?,
    ]))
}

fn count_instructions(subject: &str) -> Result<f64> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let profile = std::env::temp_dir().join(format!("tollgate-callgrind-{}-{subject}", std::process::id()));
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg("--toggle-collect=*callgrind_region*")
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(program)
        .args(["child", subject])
        .output()
        .context("cannot start valgrind")?;
    ensure!(output.status.success(), "callgrind failed on {subject}: {}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&profile).with_context(|| format!("callgrind left no {}", profile.display()))?;
    std::fs::remove_file(&profile)?;
    let totals =
        text.lines().find_map(|line| line.strip_prefix("totals: ")).context("no totals in callgrind's output")?;
    let total: f64 = totals.trim().parse()?;
    ensure!(total > 0.0, "callgrind did not find the region");
    Ok(total / DECISIONS as f64)
}

/// Runs in the child process: makes uncounted decisions for warm-up, then the same number of counted decisions.
pub(crate) fn run_counted_decisions(subject: &str) -> Result<()> {
    let refuses = subject.starts_with("refusal-");
    let allowed = match subject {
        "bare" => {
            let bare = BareChecks::new()?;
            let decide = || bare.decide(black_box(b"client 0"));
            (0..DECISIONS).for_each(|_| assert!(decide()));
            callgrind_region(decide)
        }
        engine => {
            let Some((_, size)) = engine.split_once('-') else { bail!("unknown subject {engine}") };
            let subject =
                EngineWithRules::with_limit(size.parse()?, if refuses { ONE_PER_DAY } else { NEVER_REACHED_LIMIT })?;
            let attributes = subject.request_attributes(1);
            let mut decisions = Decisions::default();
            assert!(subject.decide(&attributes[0], &mut decisions));
            (0..DECISIONS).for_each(|_| assert!(subject.decide(&attributes[0], &mut decisions) != refuses));
            callgrind_region(|| subject.decide(black_box(&attributes[0]), &mut decisions))
        }
    };
    let expected = if refuses { 0 } else { DECISIONS };
    ensure!(allowed == expected, "{allowed} decisions were allowed, expected {expected}");
    Ok(())
}

/// Runs the counted decisions. callgrind finds this function by its name and counts only while it runs.
#[inline(never)]
fn callgrind_region(mut decide: impl FnMut() -> bool) -> usize {
    (0..DECISIONS).filter(|_| decide()).count()
}
