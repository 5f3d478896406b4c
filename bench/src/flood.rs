//! Key flood: an attacker constantly sends new keys, to evict keys in use from the table.
//!
//! A thousand keys have used more than half of their limit. Then new keys make one request each. There are ten times as
//! many new keys as the table can hold. The clock stands still, so that no entry expires and every key needs an entry.
//! The thousand keys must keep their state, and the process must not grow beyond the size that the table reports. Each
//! case runs in its own process.

use std::sync::Arc;

use anyhow::{Result, bail, ensure};
use tollgate::clock::ManualClock;
use tollgate::core::{Algorithm, Nanos};
use tollgate::{FixedWindow, Rate, TokenBucket};

use crate::child::{resident_bytes, run_in_child};
use crate::keys::{KEY_BYTES, numbered_key, write_key};
use crate::report::{Goal, Report, Row};

const CAPACITY: u64 = 1_000_000;
const FLOOD_KEYS: u64 = 10 * CAPACITY;
const KEYS_IN_USE: u64 = 1_000;
const LIMIT: u64 = 100;
const SPENT_PER_KEY: u64 = 60;
const DAY: Nanos = Nanos::from_secs(86_400);

/// The limits of the cases.
const LIMITS: [&str; 2] = ["token-bucket", "daily-window"];

/// Runs the cases that the report includes.
pub(crate) fn run(report: &mut Report) -> Result<()> {
    for limit in LIMITS {
        let case = format!("flood-{limit}");
        if !report.includes(&case) {
            continue;
        }
        report.print_section(&format!("{case}: keys that kept their state, and bytes resident"));
        let [unchanged, resident, said] = run_in_child(&["flood", limit])?[..] else {
            bail!("unexpected output of the flood process");
        };
        let exactly = Some(Goal::EqualWithin(0.0));
        let peer = "keys-spent".to_owned();
        report.add_row(Row { case: case.clone(), ours: unchanged, peer, theirs: KEYS_IN_USE as f64, goal: exactly });
        let within = Some(Goal::EqualWithin(0.01));
        let peer = "bytes-configured".to_owned();
        report.add_row(Row { case: format!("{case}-memory"), ours: resident, peer, theirs: said, goal: within });
    }
    Ok(())
}

/// Runs in the child process: returns the number of unchanged keys, the growth of the process, and the size that the
/// table reports.
pub(crate) fn measure(limit: &str) -> Result<Vec<f64>> {
    match limit {
        "token-bucket" => flood_with_keys(TokenBucket::new(Rate::new(LIMIT, DAY)?, LIMIT)?),
        "daily-window" => flood_with_keys(FixedWindow::new(LIMIT, DAY)?),
        _ => bail!("unknown limit {limit}"),
    }
}

fn flood_with_keys<A: Algorithm>(limit: A) -> Result<Vec<f64>> {
    // Noon, far from the edge of any window.
    let clock = Arc::new(ManualClock::at(20_000 * DAY.as_nanos() + DAY.as_nanos() / 2));
    let before = resident_bytes()?;
    let keyed = tollgate::Keyed::with_clock(limit, usize::try_from(CAPACITY)?, clock)?;
    for number in 0..KEYS_IN_USE {
        ensure!(keyed.check(&numbered_key(number), SPENT_PER_KEY).is_allowed(), "a new key was refused");
    }
    let mut text = String::new();
    for number in KEYS_IN_USE..KEYS_IN_USE + FLOOD_KEYS {
        write_key(&mut text, number, KEY_BYTES);
        let _ = keyed.check(&text, 1);
    }
    let grown = resident_bytes()? - before;
    let unchanged = (0..KEYS_IN_USE)
        .filter(|&number| {
            let (key, left) = (numbered_key(number), LIMIT - SPENT_PER_KEY);
            keyed.report(&key, 1).remaining == left
                && keyed.peek(&key, left).is_allowed()
                && !keyed.peek(&key, left + 1).is_allowed()
        })
        .count();
    Ok(vec![unchanged as f64, grown as f64, keyed.bytes() as f64])
}
