//! Which pictures there are. Another algorithm is another line.

use tollgate::{
    Concurrency, FixedWindow, LeakyBucket, Limit, LimitError, Nanos, Rate, SlidingLog, SlidingWindow, TokenBucket,
};

use super::drawing::draw;
use super::traffic::{Shown, run};

/// A file to be.
pub(crate) struct Picture {
    /// Of the file, without its ending.
    pub(crate) name: &'static str,
    pub(crate) svg: String,
}

/// All pictures. Every limit lets about three a second pass, as far as its algorithm can be made to.
pub(crate) fn all() -> Result<Vec<Picture>, LimitError> {
    let rate = Rate::per_second(3)?;
    let length = Nanos::from_secs(4);
    let picture = |name, title: &str, limit: Limit, shown| {
        let svg = draw(title, &run(limit, shown));
        Picture { name, svg }
    };
    let token = TokenBucket::new(rate, 6)?.into();
    let leaky = LeakyBucket::new(rate, 6)?.into();
    let fixed = FixedWindow::new(12, length)?.into();
    let sliding = SlidingWindow::new(12, length)?.into();
    let log = SlidingLog::new(12, length)?.into();
    let leases = Concurrency::new(3, Nanos::from_secs(30))?.into();
    Ok(vec![
        picture("token_bucket", "Token bucket: 3 per second, 6 at once", token, Shown::Left("tokens")),
        picture("leaky_bucket", "Leaky bucket: 3 per second going out, 6 in the bucket", leaky, Shown::Used("level")),
        picture("fixed_window", "Fixed window: 12 per 4 seconds", fixed, Shown::Used("counted")),
        picture("sliding_window", "Sliding window: about 12 in the last 4 seconds", sliding, Shown::Used("estimate")),
        picture("sliding_log", "Sliding log: 12 in any 4 seconds", log, Shown::Used("logged")),
        picture("concurrency", "Concurrency: 3 at a time, 1 second of work each", leases, Shown::Used("held")),
    ])
}
