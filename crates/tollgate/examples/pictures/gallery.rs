//! The list of pictures, one per algorithm.

use tollgate::core::{Nanos, PacerParams};
use tollgate::{
    Concurrency, FixedWindow, IntervalBucket, LeakyBucket, Limit, LimitError, Rate, SlidingLog, SlidingSlices,
    SlidingWindow, TokenBucket,
};

use super::drawing::draw;
use super::traffic::{ChartedAmount, run_limited, run_paced};

/// A picture file.
pub(crate) struct Picture {
    /// The name of the file, without its extension.
    pub(crate) name: &'static str,
    pub(crate) svg: String,
}

/// Returns all pictures. Every limit admits about three requests per second.
pub(crate) fn all_pictures() -> Result<Vec<Picture>, LimitError> {
    let rate = Rate::per_second(3)?;
    let length = Nanos::from_secs(4);
    let picture = |name, title: &str, limit: Limit, shown| {
        let svg = draw(title, &run_limited(limit, shown));
        Picture { name, svg }
    };
    let paced = |name, title: &str, pacing, most| Picture { name, svg: draw(title, &run_paced(pacing, most)) };
    let token = TokenBucket::new(rate, 6)?.into();
    let leaky = LeakyBucket::new(rate, 6)?.into();
    let interval = IntervalBucket::new(6, Nanos::from_secs(2))?.burst(12)?.into();
    let fixed = FixedWindow::new(12, length)?.into();
    let sliding = SlidingWindow::new(12, length)?.into();
    let slices = SlidingSlices::new(12, length, Nanos::SECOND)?.into();
    let log = SlidingLog::new(12, length)?.into();
    let leases = Concurrency::new(3, Nanos::from_secs(30))?.into();
    let bursty = PacerParams::bursty(rate, Nanos::SECOND)?;
    let warming = PacerParams::warm_up(rate, Nanos::from_secs(2), 3_000)?;
    Ok(vec![
        picture("token_bucket", "Token bucket: 3 per second, 6 at once", token, ChartedAmount::Left("tokens")),
        picture(
            "leaky_bucket",
            "Leaky bucket: 3 per second going out, 6 in the bucket",
            leaky,
            ChartedAmount::Used("level"),
        ),
        picture(
            "interval_bucket",
            "Interval bucket: 6 every 2 seconds, 12 at once",
            interval,
            ChartedAmount::Left("tokens"),
        ),
        picture("fixed_window", "Fixed window: 12 per 4 seconds", fixed, ChartedAmount::Used("counted")),
        picture(
            "sliding_window",
            "Sliding window: about 12 in the last 4 seconds",
            sliding,
            ChartedAmount::Used("estimate"),
        ),
        picture(
            "sliding_slices",
            "Sliding slices: 12 in 4 seconds, by the second",
            slices,
            ChartedAmount::Used("counted"),
        ),
        picture("sliding_log", "Sliding log: 12 in any 4 seconds", log, ChartedAmount::Used("logged")),
        picture("concurrency", "Concurrency: 3 at a time, 1 second of work each", leases, ChartedAmount::Used("held")),
        paced("pacer_bursty", "Bursty pacer: 3 per second, 3 stored, callers wait up to 2 s", bursty, 3),
        paced("pacer_warm_up", "Pacer with warm-up: 3 per second, 3 times slower when cold", warming, 6),
    ])
}
