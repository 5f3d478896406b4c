//! A progress line, which appears after a second, on a terminal only, and is erased at the end.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// Delay before the progress line appears, and interval between its updates.
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);

/// A progress line.
pub(in crate::cli) struct Progress<'a> {
    doing: &'a str,
    shown: bool,
}

impl<'a> Progress<'a> {
    pub(in crate::cli) fn new(doing: &'a str) -> Self {
        Self { doing, shown: io::stderr().is_terminal() }
    }

    /// Runs `work`, and shows the progress line until `work` ends.
    pub(in crate::cli) async fn show_during<T>(self, work: impl Future<Output = T>) -> T {
        if !self.shown {
            return work.await;
        }
        let mut work = std::pin::pin!(work);
        let mut seconds = 0_u64;
        loop {
            tokio::select! {
                done = &mut work => {
                    if seconds > 0 {
                        // Erase the line.
                        let _ = write!(io::stderr(), "\r\x1b[K");
                    }
                    return done;
                }
                () = tokio::time::sleep(UPDATE_INTERVAL) => {
                    seconds += 1;
                    let _ = write!(io::stderr(), "\r\x1b[K{}, {seconds} s", self.doing);
                }
            }
        }
    }
}
