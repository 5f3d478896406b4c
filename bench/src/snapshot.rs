//! Snapshots of a million keys: the delay of concurrent decisions, and the time to restore.
//!
//! One thread makes decisions on random keys and reads the clock after each decision. The longest gap between two
//! readings is the longest decision. Turns in which another thread saves to disk alternate with turns of the same
//! length without saving. Disturbances are random, so the medians of the longest gaps over [`ROUNDS`] turns of each
//! kind are compared. Saving may make the longest gap at most three times as long: a ratio of at least a third.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tollgate::{Keyed, TokenBucket};

use crate::keys::{Random, numbered_key};
use crate::measure::median;
use crate::report::{Goal, Report, Row};

const CASE_NAME: &str = "snapshot";
const KEY_COUNT: u64 = 1_000_000;
const ROUNDS: usize = 15;
/// Goal for the time per restored key, in nanoseconds: five million keys per second.
const MAX_RESTORE_NANOS_PER_KEY: f64 = 200.0;

/// Runs the case if the report includes it.
pub(crate) fn run(report: &mut Report) -> Result<()> {
    if !report.includes(CASE_NAME) {
        return Ok(());
    }
    let keys: Vec<String> = (0..KEY_COUNT).map(numbered_key).collect();
    let start = Instant::now();
    let limits = table_with_usage(&keys)?;
    let inserting = per_key(start.elapsed());
    let file = TemporaryFile(std::env::temp_dir().join(format!("tollgate-bench-{}", std::process::id())));

    report.print_section("snapshot, a million keys saved during decisions: longest single decision, µs");
    let rounds = (0..ROUNDS).map(|_| Round::run(&limits, &keys, &file)).collect::<Result<Vec<_>>>()?;
    let middle = |of: fn(&Round) -> f64| median(rounds.iter().map(of).collect());
    report.add_row(Row {
        case: "snapshot-pause".to_owned(),
        ours: middle(|round| round.longest_saving),
        peer: "undisturbed".to_owned(),
        theirs: middle(|round| round.longest_alone),
        goal: Some(Goal::RatioAtLeast(0.334)),
    });

    report.print_section("snapshot, a million keys: ns per restored key, compared with inserting the keys one by one");
    let mut row = |case: &str, ours, goal| {
        let (case, peer) = (case.to_owned(), "inserting".to_owned());
        report.add_row(Row { case, ours, peer, theirs: inserting, goal });
    };
    row("snapshot-save", middle(|round| round.save), None);
    let restores = (0..ROUNDS).map(|_| restore(&limits, &file)).collect::<Result<Vec<_>>>()?;
    // Uses the minimum, because other work on the machine can only make a run slower.
    let fastest = |of: fn(&Restore) -> f64| restores.iter().map(of).fold(f64::INFINITY, f64::min);
    row("snapshot-restore", fastest(|restore| restore.wall), Some(Goal::OursAtMost(MAX_RESTORE_NANOS_PER_KEY)));
    row("snapshot-restore-processor", fastest(|restore| restore.processor), None);
    Ok(())
}

/// Returns a table in which every key has used part of its limit.
fn table_with_usage(keys: &[String]) -> Result<Keyed> {
    let limits = Keyed::new(limit()?, keys.len())?;
    for key in keys {
        let _ = limits.charge(key, 1_000_000);
    }
    ensure!(limits.overflowed() == 0, "{} keys got no entry", limits.overflowed());
    Ok(limits)
}

fn limit() -> Result<TokenBucket> {
    Ok(TokenBucket::new("10/s".parse()?, 2_000_000)?)
}

/// A turn with a snapshot, and a turn of the same length without a snapshot.
struct Round {
    longest_saving: f64,
    longest_alone: f64,
    save: f64,
}

impl Round {
    fn run(limits: &Keyed, keys: &[String], file: &TemporaryFile) -> Result<Self> {
        let saved = AtomicBool::new(false);
        // Relaxed: no other data depends on this flag.
        let is_saving = || !saved.load(Ordering::Relaxed);
        let (save, longest_saving, turn) = std::thread::scope(|scope| {
            let saving = scope.spawn(|| {
                let start = Instant::now();
                let result = limits.save(&file.0);
                saved.store(true, Ordering::Relaxed);
                result.map(|count| (count, start.elapsed()))
            });
            let start = Instant::now();
            let longest = longest_decision(limits, keys, is_saving);
            saving.join().ok().map(|save| (save, longest, start.elapsed()))
        })
        .context("the thread that saves did not return")?;
        let (count, save) = save?;
        ensure!(count >= KEY_COUNT, "only {count} keys were saved");
        let start = Instant::now();
        let longest_alone = longest_decision(limits, keys, || start.elapsed() < turn);
        Ok(Self { longest_saving, longest_alone, save: per_key(save) })
    }
}

/// Makes decisions while `goes_on` returns true. Returns the longest decision in microseconds.
fn longest_decision(limits: &Keyed, keys: &[String], goes_on: impl Fn() -> bool) -> f64 {
    let mut random = Random::new(1);
    let mut longest = Duration::ZERO;
    let mut last = Instant::now();
    while goes_on() {
        for _ in 0..64 {
            let key = &keys[random.below(KEY_COUNT) as usize];
            let _ = std::hint::black_box(limits.check(key, 1));
            let now = Instant::now();
            longest = longest.max(now - last);
            last = now;
        }
        // Excludes the time to evaluate the condition.
        last = Instant::now();
    }
    longest.as_nanos() as f64 / 1_000.0
}

/// Nanoseconds per key in wall time and in CPU time. Wall time and CPU time differ on a busy machine.
struct Restore {
    wall: f64,
    processor: f64,
}

/// Restores the file into a new table, as a new process would.
fn restore(saved: &Keyed, file: &TemporaryFile) -> Result<Restore> {
    let mut limits = Keyed::new(limit()?, KEY_COUNT as usize)?;
    let (start, processor) = (Instant::now(), processor_time()?);
    let count = limits.load(&file.0)?;
    let (wall, processor) = (start.elapsed(), processor_time()? - processor);
    ensure!(count >= KEY_COUNT && limits.overflowed() == 0, "only {count} keys were restored");
    let (theirs, ours) = (saved.report(&numbered_key(7), 1).remaining, limits.report(&numbered_key(7), 1).remaining);
    ensure!(theirs.abs_diff(ours) < 1_000, "{ours} remaining, expected {theirs}");
    Ok(Restore { wall: per_key(wall), processor: per_key(processor) })
}

/// Returns the CPU time of this thread.
fn processor_time() -> Result<Duration> {
    let times =
        std::fs::read_to_string("/proc/thread-self/schedstat").context("cannot read the CPU time from /proc")?;
    let nanos = times.split_whitespace().next().context("/proc/thread-self/schedstat is empty")?;
    Ok(Duration::from_nanos(nanos.parse()?))
}

fn per_key(time: Duration) -> f64 {
    time.as_nanos() as f64 / KEY_COUNT as f64
}

/// A temporary file, removed on drop.
struct TemporaryFile(PathBuf);

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
