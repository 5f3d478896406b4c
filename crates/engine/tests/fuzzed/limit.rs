// Properties that hold for any text parsed as a limit. Included by the fuzz target and by the test that replays its
// corpus.

use tollgate_engine::rules::LimitText;

const ALGORITHMS: &[&str] = &[
    "token_bucket",
    "leaky_bucket",
    "interval_bucket",
    "fixed_window",
    "sliding_window",
    "sliding_slices",
    "sliding_log",
    "concurrency",
];

/// Checks a limit (the first line) with an optional burst (the second line). Parsing must return limits or a message.
/// Spaces and the long form with `per` must change nothing. A rate that is printed and parsed again must be unchanged.
pub fn check(input: &[u8]) {
    let Ok(text) = str::from_utf8(input) else { return };
    let mut lines = text.split('\n');
    let limit = lines.next().unwrap_or_default();
    let burst = lines.next().and_then(|line| line.parse().ok());
    for algorithm in ALGORITHMS.iter().copied().map(Some).chain([None, Some(limit)]) {
        let read = (LimitText { limit, burst, algorithm }).read();
        if let Err(mistake) = &read {
            assert!(mistake.to_string().len() < 2_000, "message too long: {mistake}");
            continue;
        }
        // The variants below are four bytes longer than `limit`, and must still be within the maximum length.
        if let Some((count, period)) = limit.split_once('/').filter(|_| limit.len() <= 60) {
            for same in [format!(" {count} / {period} "), format!("{count} per {period}")] {
                let again = (LimitText { limit: &same, burst, algorithm }).read();
                assert_eq!(read, again, "`{limit}` and `{same}`");
            }
        }
    }
    if let Ok(rate) = limit.parse::<tollgate::Rate>() {
        assert_eq!(rate.to_string().parse(), Ok(rate), "`{limit}` is `{rate}`");
    }
}
