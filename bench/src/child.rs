//! Measurements in a separate process: this program runs itself with a task as its arguments. The task prints its
//! results as numbers on one line.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::{flood, instructions, memory};

/// The first argument of a child.
pub(crate) const CHILD_ARGUMENT: &str = "child";

/// Runs a task in a new process and returns the numbers that it prints.
pub(crate) fn run_in_child(task: &[&str]) -> Result<Vec<f64>> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let output = Command::new(program)
        .arg(CHILD_ARGUMENT)
        .args(task)
        .stderr(Stdio::inherit())
        .output()
        .with_context(|| format!("cannot start {task:?}"))?;
    ensure!(output.status.success(), "{task:?} failed: {}", output.status);
    let text = String::from_utf8(output.stdout)?;
    text.split_whitespace().map(|number| number.parse().with_context(|| format!("{task:?} printed {text:?}"))).collect()
}

/// Runs the task of a child process.
pub(crate) fn run_child_task(task: &[String]) -> Result<()> {
    let words: Vec<&str> = task.iter().map(String::as_str).collect();
    let numbers = match words.as_slice() {
        ["memory", contender, keys, key_bytes] => memory::measure(contender, keys.parse()?, key_bytes.parse()?)?,
        ["flood", limit] => flood::measure(limit)?,
        ["instructions", contender] => {
            instructions::run_counted_decisions(contender)?;
            Vec::new()
        }
        _ => bail!("unknown task {words:?}"),
    };
    let texts: Vec<String> = numbers.iter().map(f64::to_string).collect();
    println!("{}", texts.join(" "));
    Ok(())
}

/// Returns the anonymous resident memory of this process in bytes, exact to the page. Anonymous memory excludes the
/// program file, whose pages become resident on first use and may be evicted at any time.
pub(crate) fn resident_bytes() -> Result<u64> {
    // The counters of `/proc/self/status` may lag by a few hundred pages, so they are not used.
    let rollup = std::fs::read_to_string("/proc/self/smaps_rollup")
        .context("cannot read the resident memory from /proc/self/smaps_rollup")?;
    let kibibytes: u64 = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"))
        .and_then(|rest| rest.trim().strip_suffix("kB"))
        .context("no `Anonymous` in /proc/self/smaps_rollup")?
        .trim()
        .parse()?;
    Ok(kibibytes * 1024)
}
