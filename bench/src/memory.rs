//! Total memory per key: growth of the resident memory of a new process that creates and fills a limiter, divided by
//! the number of keys.

use anyhow::{Result, bail};

use crate::child::{resident_bytes, run_in_child};
use crate::contender::Contender;
use crate::keys::{KEY_BYTES, write_key};
use crate::ours;
use crate::peers::governor;
use crate::report::{Goal, Report, Row};

/// Case name, our contender, number of keys, key length, and the goal in bytes per key.
const CASES: [(&str, &str, u64, usize, Goal); 4] = [
    ("memory-1m", "ours", 1_000_000, KEY_BYTES, Goal::OursAtMost(48.0)),
    ("memory-1m-key200", "ours", 1_000_000, 200, Goal::OursAtMost(48.0)),
    ("memory-1m-odd-rate", "ours-odd-rate", 1_000_000, KEY_BYTES, Goal::OursAtMost(48.0)),
    ("memory-10m", "ours", 10_000_000, KEY_BYTES, Goal::OursAtMost(40.0)),
];

/// Runs the cases that the report selects.
pub(crate) fn run(report: &mut Report) -> Result<()> {
    for (case, ours, keys, key_bytes, goal) in CASES {
        if !report.includes(case) {
            continue;
        }
        report.print_section(&format!("{case}, bytes per key of {key_bytes} bytes"));
        let per_key = |contender| {
            let (keys, key_bytes) = (keys.to_string(), key_bytes.to_string());
            run_in_child(&["memory", contender, &keys, &key_bytes])
        };
        let [ours, remembered] = per_key(ours)?[..] else { bail!("unexpected output for ours") };
        let [theirs, _] = per_key("governor-dashmap")?[..] else { bail!("unexpected output for governor") };
        let peer = "governor-dashmap".to_owned();
        report.add_row(Row { case: case.to_owned(), ours, peer, theirs, goal: Some(goal) });
        // A table of fixed size may lack an entry for some keys before it is full. This row shows how many keys have
        // an entry.
        report.add_row(Row {
            case: format!("{case}-keys"),
            ours: remembered,
            peer: "keys-inserted".to_owned(),
            theirs: keys as f64,
            goal: None,
        });
    }
    Ok(())
}

/// Runs in the child process: returns the bytes per key, and the number of keys with their own entry.
pub(crate) fn measure(contender: &str, keys: u64, key_bytes: usize) -> Result<Vec<f64>> {
    let before = resident_bytes()?;
    let (after, remembered) = match contender {
        "ours" => fill_ours(ours::Keyed::new(usize::try_from(keys)?)?, keys, key_bytes)?,
        "ours-odd-rate" => fill_ours(ours::Keyed::with_two_word_state(usize::try_from(keys)?)?, keys, key_bytes)?,
        "governor-dashmap" => (fill(&mut governor::Keyed::new(), keys, key_bytes)?, keys),
        _ => bail!("unknown contender {contender}"),
    };
    Ok(vec![(after - before) as f64 / keys as f64, remembered as f64])
}

fn fill_ours(mut ours: ours::Keyed, keys: u64, key_bytes: usize) -> Result<(u64, u64)> {
    let after = fill(&mut ours, keys, key_bytes)?;
    let mut text = String::new();
    let mut remembered = 0;
    for number in 0..keys {
        write_key(&mut text, number, key_bytes);
        remembered += u64::from(ours.has_usage(&text));
    }
    Ok((after, remembered))
}

/// Fills the limiter and returns the resident memory.
fn fill(contender: &mut dyn Contender, keys: u64, key_bytes: usize) -> Result<u64> {
    let mut text = String::new();
    for number in 0..keys {
        write_key(&mut text, number, key_bytes);
        contender.fill(&text);
    }
    resident_bytes()
}
