//! Rate-limited streams.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;

use crate::wait::{Acquire, AcquireError, Waitable};

/// A stream that yields the items of another stream at the rate of a limiter. Created by `limit_stream` of
/// [`Limiter`](crate::Limiter), [`Keyed`](crate::Keyed) and [`Pacer`](crate::Pacer).
///
/// Each item is fetched first and then waits for capacity, so that tokens are spent only on existing items. Dropping
/// the stream drops the pending item, and refunds its charge if the charge was already taken. If an item cannot wait,
/// it is dropped; the stream yields the error and continues. The error is [`AcquireError::Full`] if the wait queue is
/// full, [`AcquireError::NeverFits`] if the limit admits nothing, or [`AcquireError::NoTimer`].
#[must_use = "a stream does nothing unless it is polled"]
pub struct LimitedStream<S: Stream, G: Waitable> {
    stream: S,
    limiter: Arc<G>,
    key: G::Key,
    next: Option<(S::Item, Acquire<'static, G>)>,
}

impl<S: Stream, G: Waitable> LimitedStream<S, G> {
    pub(crate) fn new(stream: S, limiter: &Arc<G>, key: G::Key) -> Self {
        Self { stream, limiter: Arc::clone(limiter), key, next: None }
    }
}

impl<S: Stream + Unpin, G: Waitable> Stream for LimitedStream<S, G> {
    type Item = Result<S::Item, AcquireError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.next.is_none() {
            let Some(item) = ready!(Pin::new(&mut this.stream).poll_next(context)) else { return Poll::Ready(None) };
            this.next = Some((item, Acquire::owned(Arc::clone(&this.limiter), this.key, 1)));
        }
        let Some((_, acquire)) = &mut this.next else { return Poll::Pending };
        let result = ready!(Pin::new(acquire).poll(context));
        let item = this.next.take().map(|(item, _)| result.map(|_| item));
        Poll::Ready(item)
    }
}

// Items are never pinned.
impl<S: Stream + Unpin, G: Waitable> Unpin for LimitedStream<S, G> {}

impl<S: Stream + fmt::Debug, G: Waitable> fmt::Debug for LimitedStream<S, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitedStream").field("stream", &self.stream).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{SECOND, bucket, clock};
    use crate::{Keyed, Limiter, Pacer};
    use std::task::Waker;

    /// Yields the numbers below the first field; the second field is the next number.
    #[derive(Debug)]
    struct NumbersBelow(u32, u32);

    impl Stream for NumbersBelow {
        type Item = u32;

        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<u32>> {
            let number = self.1;
            self.1 += 1;
            Poll::Ready((number < self.0).then_some(number))
        }
    }

    fn poll<S: Stream + Unpin>(stream: &mut S) -> Poll<Option<S::Item>> {
        Pin::new(stream).poll_next(&mut Context::from_waker(Waker::noop()))
    }

    #[test]
    fn items_wait_for_their_turn_and_the_end_does_not() {
        let clock = clock();
        let limiter = Arc::new(Limiter::with_clock(bucket(2), Arc::clone(&clock)));
        let mut stream = limiter.limit_stream(NumbersBelow(3, 0));
        assert_eq!([poll(&mut stream), poll(&mut stream)], [0, 1].map(|number| Poll::Ready(Some(Ok(number)))));
        assert_eq!((poll(&mut stream), limiter.waiters()), (Poll::Pending, 1));
        clock.advance_through_alarms(SECOND);
        assert_eq!((poll(&mut stream), poll(&mut stream)), (Poll::Ready(Some(Ok(2))), Poll::Ready(None)));
    }

    #[test]
    fn dropped_stream_gives_its_turn_back() {
        let clock = clock();
        let keyed = Arc::new(Keyed::with_clock(bucket(1), 10, Arc::clone(&clock)).unwrap());
        let mut stream = keyed.limit_stream("a", NumbersBelow(9, 0));
        assert!(poll(&mut stream).is_ready() && poll(&mut stream).is_pending());
        clock.advance_through_alarms(SECOND);
        drop(stream);
        assert_eq!((keyed.report("a", 1).remaining, keyed.waiters()), (1, 0));
    }

    #[test]
    fn item_is_an_error_if_the_queue_is_full() {
        let pacer = Arc::new(Pacer::constant("1/h".parse().unwrap()).max_waiters(0));
        let mut stream = pacer.limit_stream(NumbersBelow(2, 0));
        assert_eq!(poll(&mut stream), Poll::Ready(Some(Ok(0))));
        assert_eq!(poll(&mut stream), Poll::Ready(Some(Err(AcquireError::Full))));
        assert_eq!(poll(&mut stream), Poll::Ready(None));
    }
}
