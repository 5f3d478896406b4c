//! A line for whoever waits: on a terminal, after a second, and gone when it is over.

use std::io::{self, IsTerminal, Write};
use std::time::Duration;

/// After how long something is said, and how often.
const SAY_EVERY: Duration = Duration::from_secs(1);

/// What is waited for.
pub(in crate::command) struct Waiting<'a> {
    doing: &'a str,
    shown: bool,
}

impl<'a> Waiting<'a> {
    pub(in crate::command) fn new(doing: &'a str) -> Self {
        Self { doing, shown: io::stderr().is_terminal() }
    }

    /// Shows the line for as long as something takes.
    pub(in crate::command) async fn during<T>(self, work: impl Future<Output = T>) -> T {
        if !self.shown {
            return work.await;
        }
        let mut work = std::pin::pin!(work);
        let mut seconds = 0_u64;
        loop {
            tokio::select! {
                done = &mut work => {
                    if seconds > 0 {
                        // Back to the start of the line, and nothing on it.
                        let _ = write!(io::stderr(), "\r\x1b[K");
                    }
                    return done;
                }
                () = tokio::time::sleep(SAY_EVERY) => {
                    seconds += 1;
                    let _ = write!(io::stderr(), "\r\x1b[K{}, {seconds} s", self.doing);
                }
            }
        }
    }
}
