//! A timer for deadlines that mostly move before they are reached.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// A timer that is moved only if it would be late or has fired, because moving costs more than a comparison.
#[derive(Debug)]
pub struct LazyTimer(Pin<Box<Sleep>>);

impl LazyTimer {
    /// Returns a timer that first fires after `time`.
    pub fn new(time: Duration) -> Self {
        Self(Box::pin(sleep(time)))
    }

    /// Waits for `deadline`, which may differ from call to call.
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
