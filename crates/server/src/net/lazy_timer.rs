//! A timer for deadlines that are usually postponed before they expire.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// A timer that is reset only if it has fired or would fire too late. A reset costs more than a comparison.
#[derive(Debug)]
pub struct LazyTimer(Pin<Box<Sleep>>);

impl LazyTimer {
    /// Returns a timer that first fires after `time`.
    pub fn new(time: Duration) -> Self {
        Self(Box::pin(sleep(time)))
    }

    /// Returns `Ready` once `deadline` has passed. Each call may pass a different deadline.
    pub fn poll(&mut self, cx: &mut Context<'_>, deadline: Instant) -> Poll<()> {
        if deadline < self.0.deadline() {
            self.0.as_mut().reset(deadline);
        }
        while self.0.as_mut().poll(cx).is_ready() {
            if deadline <= Instant::now() {
                return Poll::Ready(());
            }
            self.0.as_mut().reset(deadline);
        }
        Poll::Pending
    }
}
