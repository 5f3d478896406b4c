//! Stopping without cutting anybody off: connections finish what they have been asked and then end.
//!
//! A connection that waits for its client must learn that the server is stopping. Waiting for two things at once on every
//! read would cost more than a decision does, so instead each connection leaves its waker here once, when it starts, and
//! looks at one flag whenever it is woken.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

/// Who is connected, and whether they are to leave.
#[derive(Debug, Default)]
pub struct Drain {
    stopping: AtomicBool,
    next_id: AtomicU64,
    /// Taken when a connection starts and ends, and once at the end: never during a decision.
    guests: Mutex<HashMap<u64, Option<Waker>>>,
    left: Notify,
    /// For those who wait for something else and are no connections.
    stopped: Notify,
}

/// One connection's place in the list; dropping it leaves.
#[derive(Debug)]
pub struct Guest {
    drain: Arc<Drain>,
    id: u64,
}

impl Drain {
    /// A place for one more connection, or none if there are `most` already.
    pub fn enter(self: &Arc<Self>, most: usize) -> Option<Guest> {
        let mut guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        if guests.len() >= most {
            return None;
        }
        // A number that orders nothing; the lock makes it unique.
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        guests.insert(id, None);
        Some(Guest { drain: self.clone(), id })
    }

    /// How many connections there are.
    pub fn guests(&self) -> usize {
        self.guests.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Whether the server is stopping.
    #[inline]
    pub fn is_stopping(&self) -> bool {
        // Acquire: pairs with the release in `stop`. A connection that registers afterwards sees the flag by the lock.
        self.stopping.load(Ordering::Acquire)
    }

    /// Asks everybody to leave.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        let guests = self.guests.lock().unwrap_or_else(PoisonError::into_inner);
        guests.values().flatten().for_each(Waker::wake_by_ref);
        self.stopped.notify_waiters();
    }

    /// Waits until everybody is asked to leave.
    pub async fn told(&self) {
        loop {
            // Before the look: a notice between the two is not missed.
            let stopped = self.stopped.notified();
            if self.is_stopping() {
                return;
            }
            stopped.await;
        }
    }

    /// Waits until everybody has left.
    pub async fn empty(&self) {
        loop {
            let left = self.left.notified();
            if self.guests() == 0 {
                return;
            }
            left.await;
        }
    }
}

impl Guest {
    /// A number for the connection that no other has.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Whether to leave.
    #[inline]
    pub fn is_asked_to_leave(&self) -> bool {
        self.drain.is_stopping()
    }

    /// Waits once, to have the calling task woken when the server stops. A task keeps its waker for life, so
    /// this holds until the guest is dropped.
    pub fn register(&self) -> impl Future<Output = ()> + '_ {
        struct Register<'a>(&'a Guest);
        impl Future for Register<'_> {
            type Output = ();
            fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
                let mut guests = self.0.drain.guests.lock().unwrap_or_else(PoisonError::into_inner);
                guests.insert(self.0.id, Some(cx.waker().clone()));
                Poll::Ready(())
            }
        }
        Register(self)
    }
}

impl Drop for Guest {
    fn drop(&mut self) {
        self.drain.guests.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.id);
        self.drain.left.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_guest_is_woken_when_the_server_stops_and_the_last_to_leave_empties_it() {
        let drain = Arc::new(Drain::default());
        let guest = drain.enter(1).expect("there is room for one");
        assert!(drain.enter(1).is_none(), "there is no room for two");
        let task = tokio::spawn(async move {
            guest.register().await;
            std::future::poll_fn(|_| if guest.is_asked_to_leave() { Poll::Ready(()) } else { Poll::Pending }).await;
        });
        tokio::task::yield_now().await;
        assert_eq!(drain.guests(), 1);
        drain.stop();
        drain.empty().await;
        task.await.expect("the task ends");
    }

    #[tokio::test]
    async fn whoever_waits_for_the_end_is_told_when_it_comes_and_afterwards() {
        let drain = Arc::new(Drain::default());
        let waiting = tokio::spawn({
            let drain = drain.clone();
            async move { drain.told().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        drain.stop();
        waiting.await.expect("the task ends");
        drain.told().await;
    }

    #[tokio::test]
    async fn an_empty_house_is_empty_at_once() {
        Drain::default().empty().await;
    }
}
