//! Waiting for a condition in tests, with a common timeout.
#![allow(clippy::disallowed_methods, reason = "waits for other processes and threads, which send no notification")]

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Timeout of waits in tests: far longer than any operation takes on a busy machine.
pub const TEST_TIMEOUT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// Polls until `condition` holds.
///
/// # Panics
/// Panics if the condition does not hold within [`TEST_TIMEOUT`].
#[track_caller]
pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TEST_TIMEOUT, "not within {TEST_TIMEOUT:?}: {what}");
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Polls asynchronously until `condition` holds.
///
/// # Panics
/// Panics if the condition does not hold within [`TEST_TIMEOUT`].
pub async fn eventually_async(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !condition().await {
        assert!(start.elapsed() < TEST_TIMEOUT, "not within {TEST_TIMEOUT:?}: {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Runs `action` and returns its result and duration.
pub fn measure_duration<T>(action: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = action();
    (result, start.elapsed())
}

/// Sleeps. Tests call this function to check that nothing happens in the meantime.
pub fn sleep_for(duration: Duration) {
    std::thread::sleep(duration);
}

/// Returns the wall clock time in whole seconds since 1970.
///
/// # Panics
/// Panics if the clock is before 1970.
pub fn wall_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs()
}
