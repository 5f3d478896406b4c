//! Calls a partner's service that is slow after a pause. The caller starts slowly, speeds up, and never exceeds the
//! partner's rate limit.
//!
//! The example uses a manual clock, so that it does not wait; `Pacer::warming_up` uses real time.

use std::sync::Arc;
use std::time::Duration;

use tollgate::Pacer;
use tollgate::clock::{Clock, ManualClock};
use tollgate::core::PacerParams;

/// Makes `calls` calls and returns their times in milliseconds since the first call.
fn make_calls(clock: &Arc<ManualClock>, pacer: &Arc<Pacer<Arc<ManualClock>>>, calls: usize) -> Vec<u64> {
    let start = clock.mono();
    (0..calls)
        .map(|_| {
            clock.advance_through_alarms(pacer.next_wait());
            pacer.acquire(1).at_once().wait().expect("the permit is available after the wait");
            clock.mono().since(start).as_nanos() / 1_000_000
        })
        .collect()
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = Arc::new(ManualClock::default());
    // Two calls per second when warm, three times slower when cold, and four seconds to warm up.
    let pacing = PacerParams::warm_up("2/s".parse()?, Duration::from_secs(4), 3_000)?;
    let pacer = Arc::new(Pacer::with_clock(pacing, Arc::clone(&clock)));

    let cold = make_calls(&clock, &pacer, 8);
    assert_eq!(cold, [0, 1_375, 2_500, 3_375, 4_000, 4_500, 5_000, 5_500]);

    // The partner doubles the rate. The next call still waits at the old rate.
    pacer.set_rate("4/s".parse()?);
    assert_eq!(make_calls(&clock, &pacer, 4), [500, 750, 1_000, 1_250]);

    // After a pause at least as long as the warm-up, the service is cold again.
    clock.advance(Duration::from_secs(5));
    let gaps: Vec<u64> = make_calls(&clock, &pacer, 4).windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.is_sorted_by(|before, after| before > after) && gaps[0] > 650, "{gaps:?}");
    Ok(())
}
