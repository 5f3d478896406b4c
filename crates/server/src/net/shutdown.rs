//! Open connections and graceful shutdown: each connection answers the requests in progress, then closes.
//!
//! Idle connections must also close on shutdown. A `select!` on every read would cost more than a decision. Instead,
//! each connection registers its waker once when it starts, and checks a flag whenever it is woken.

use std::collections::HashMap;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio::sync::Notify;

use super::protocol::Protocol;

/// The open connections and whether the server is stopping.
#[derive(Debug, Default)]
pub struct Connections {
    stopping: AtomicBool,
    next_id: AtomicU64,
    /// Locked when a connection opens, registers or closes, at shutdown, and to count the connections, but never during
    /// a decision.
    open_connections: Mutex<OpenConnections>,
    /// Notified when a connection closes.
    connection_closed: Notify,
    /// Notified at shutdown, for tasks that are not connections.
    shutdown_begun: Notify,
}

/// The open connections by id, and their counts.
#[derive(Debug, Default)]
struct OpenConnections {
    wakers: HashMap<u64, Option<Waker>>,
    /// Number of connections per protocol, excluding reserved connections.
    regular_counts: [usize; Protocol::ALL.len()],
    reserved_count: usize,
}

/// The slot that a connection occupies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionSlot {
    /// A slot within the limit of its protocol.
    Regular(Protocol),
    /// A slot for health checks.
    Reserved,
}

/// Number of HTTP connections above the limit that are accepted for health checks.
pub const RESERVED_CONNECTIONS: usize = 16;

/// The registration of one connection. Dropping it unregisters the connection.
#[derive(Debug)]
pub struct ConnectionGuard {
    connections: Arc<Connections>,
    id: u64,
    slot: ConnectionSlot,
}

impl Connections {
    /// Registers a connection. Returns `None` if `max` connections of its protocol are open. For HTTP,
    /// [`RESERVED_CONNECTIONS`] more connections are accepted for health checks.
    pub fn register_connection(self: &Arc<Self>, protocol: Protocol, max: usize) -> Option<ConnectionGuard> {
        let mut open = self.lock_open_connections();
        let slot = if open.regular_counts[protocol as usize] < max {
            open.regular_counts[protocol as usize] += 1;
            ConnectionSlot::Regular(protocol)
        } else if protocol == Protocol::Http && open.reserved_count < RESERVED_CONNECTIONS {
            open.reserved_count += 1;
            ConnectionSlot::Reserved
        } else {
            return None;
        };
        // Relaxed: only uniqueness matters.
        let id = self.next_id.fetch_add(1, Ordering::Relaxed) + 1;
        open.wakers.insert(id, None);
        Some(ConnectionGuard { connections: self.clone(), id, slot })
    }

    /// Returns the number of open connections.
    pub fn count(&self) -> usize {
        self.lock_open_connections().wakers.len()
    }

    /// Returns whether the server is stopping.
    #[inline]
    pub fn is_stopping(&self) -> bool {
        // Acquire: pairs with the release in `stop`. A connection that registers after `stop` has woken all wakers also
        // sees the flag, because `stop` and `register_waker` take the same lock.
        self.stopping.load(Ordering::Acquire)
    }

    /// Asks every connection to close.
    pub fn stop(&self) {
        self.stopping.store(true, Ordering::Release);
        self.lock_open_connections().wakers.values().flatten().for_each(Waker::wake_by_ref);
        self.shutdown_begun.notify_waiters();
    }

    /// Waits until [`stop`](Self::stop) is called.
    pub async fn wait_for_shutdown(&self) {
        loop {
            // Create the future before reading the flag, so that no notification is missed in between.
            let stopped = self.shutdown_begun.notified();
            if self.is_stopping() {
                return;
            }
            stopped.await;
        }
    }

    /// Waits until no connection is open.
    pub async fn wait_until_all_closed(&self) {
        loop {
            let closed = self.connection_closed.notified();
            if self.count() == 0 {
                return;
            }
            closed.await;
        }
    }

    fn lock_open_connections(&self) -> MutexGuard<'_, OpenConnections> {
        self.open_connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ConnectionGuard {
    /// Returns the connection's id, unique within this process.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Returns whether the connection occupies a reserved slot, which serves only health checks.
    pub fn is_reserved(&self) -> bool {
        self.slot == ConnectionSlot::Reserved
    }

    /// Returns whether the connection should close.
    #[inline]
    pub fn is_stopping(&self) -> bool {
        self.connections.is_stopping()
    }

    /// Registers the calling task to be woken at shutdown. The future is ready at the first poll. The waker of a Tokio
    /// task never changes, so one call per task is enough.
    pub fn register_waker(&self) -> impl Future<Output = ()> + '_ {
        struct RegisterWaker<'a>(&'a ConnectionGuard);
        impl Future for RegisterWaker<'_> {
            type Output = ();
            fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
                self.0.connections.lock_open_connections().wakers.insert(self.0.id, Some(cx.waker().clone()));
                Poll::Ready(())
            }
        }
        RegisterWaker(self)
    }
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        let mut open = self.connections.lock_open_connections();
        open.wakers.remove(&self.id);
        match self.slot {
            ConnectionSlot::Regular(protocol) => open.regular_counts[protocol as usize] -= 1,
            ConnectionSlot::Reserved => open.reserved_count -= 1,
        }
        drop(open);
        self.connections.connection_closed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn shutdown_wakes_connections_and_waits_for_the_last_one() {
        let connections = Arc::new(Connections::default());
        let guard = connections.register_connection(Protocol::Resp, 1).expect("there is room for one");
        assert!(connections.register_connection(Protocol::Resp, 1).is_none(), "there is no room for two");
        let task = tokio::spawn(async move {
            guard.register_waker().await;
            std::future::poll_fn(|_| if guard.is_stopping() { Poll::Ready(()) } else { Poll::Pending }).await;
        });
        tokio::task::yield_now().await;
        assert_eq!(connections.count(), 1);
        connections.stop();
        connections.wait_until_all_closed().await;
        task.await.expect("the task ends");
    }

    #[test]
    fn each_protocol_has_its_own_limit_and_health_checks_have_reserved_slots() {
        let connections = Arc::new(Connections::default());
        let resp: Vec<_> = (0..3).map_while(|_| connections.register_connection(Protocol::Resp, 2)).collect();
        let http: Vec<_> = (0..100).map_while(|_| connections.register_connection(Protocol::Http, 2)).collect();
        assert_eq!((resp.len(), http.len()), (2, 2 + RESERVED_CONNECTIONS));
        assert_eq!(http.iter().filter(|guard| guard.is_reserved()).count(), RESERVED_CONNECTIONS);
        drop((resp, http));
        assert!(connections.register_connection(Protocol::Http, 1).is_some_and(|guard| !guard.is_reserved()));
        assert_eq!(connections.count(), 0);
    }

    #[tokio::test]
    async fn wait_for_shutdown_ends_when_the_server_stops() {
        let connections = Arc::new(Connections::default());
        let waiting = tokio::spawn({
            let connections = connections.clone();
            async move { connections.wait_for_shutdown().await }
        });
        tokio::task::yield_now().await;
        assert!(!waiting.is_finished());
        connections.stop();
        waiting.await.expect("the task ends");
        connections.wait_for_shutdown().await;
    }

    #[tokio::test]
    async fn wait_until_all_closed_ends_at_once_without_connections() {
        Connections::default().wait_until_all_closed().await;
    }
}
