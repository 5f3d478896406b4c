//! Accepts connections and passes them to the workers.

use std::fs::File;
use std::future::Future;
use std::io::{self, Read, Write};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use super::protocol::Protocol;
use super::shutdown::{ConnectionGuard, Connections};
use super::workers::Workers;

/// The data passed to a worker with each connection.
pub type NewConnection = (Protocol, ConnectionGuard);

/// Minimum interval between log lines of the same kind.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Pause after a failed accept.
const ACCEPT_RETRY_DELAY: Duration = Duration::from_millis(50);

/// A socket that accepts connections.
pub trait Listener {
    /// Accepts a connection.
    fn accept_stream(&self) -> impl Future<Output = io::Result<TcpStream>>;
}

impl Listener for TcpListener {
    async fn accept_stream(&self) -> io::Result<TcpStream> {
        self.accept().await.map(|(stream, _)| stream)
    }
}

/// Accepts the connections of one listener. Above the connection limit, or without free file descriptors, the acceptor
/// sends one reply on a new connection and closes it.
#[derive(Debug)]
pub struct Acceptor<'w> {
    protocol: Protocol,
    connections: Arc<Connections>,
    max: usize,
    workers: &'w Workers<NewConnection>,
    /// A spare file descriptor. If the process runs out of descriptors, the acceptor closes the spare, so that it can
    /// accept one connection and refuse it.
    spare_descriptor: Option<File>,
    limit_log: RefusedConnections,
    descriptor_log: RefusedConnections,
    error_log: LogLimiter,
}

/// Counts the connections refused for one reason, and limits the log lines about them to one a minute.
#[derive(Debug, Default)]
struct RefusedConnections {
    /// Connections refused since the last log line.
    refused_count: u64,
    limiter: LogLimiter,
}

impl RefusedConnections {
    /// Counts a refusal. Returns the number of refusals to log, or `None` if nothing should be logged yet.
    fn record_refusal(&mut self, now: Instant) -> Option<u64> {
        self.refused_count += 1;
        self.limiter.try_acquire(now).then(|| std::mem::take(&mut self.refused_count))
    }
}

/// Limits log lines of one kind to one per [`LOG_INTERVAL`].
#[derive(Debug, Default)]
struct LogLimiter {
    next_line_at: Option<Instant>,
}

impl LogLimiter {
    fn try_acquire(&mut self, now: Instant) -> bool {
        let is_due = self.next_line_at.is_none_or(|next| next <= now);
        if is_due {
            self.next_line_at = Some(now + LOG_INTERVAL);
        }
        is_due
    }
}

impl<'w> Acceptor<'w> {
    /// Creates an acceptor that allows at most `max` open connections of its protocol.
    pub fn new(
        protocol: Protocol,
        connections: Arc<Connections>,
        max: usize,
        workers: &'w Workers<NewConnection>,
    ) -> Self {
        let spare_descriptor = open_spare_descriptor();
        let (limit_log, descriptor_log) = (RefusedConnections::default(), RefusedConnections::default());
        let error_log = LogLimiter::default();
        Self { protocol, connections, max, workers, spare_descriptor, limit_log, descriptor_log, error_log }
    }

    /// Accepts connections until the future is dropped.
    pub async fn accept_connections(mut self, listener: impl Listener) {
        loop {
            self.spare_descriptor = self.spare_descriptor.take().or_else(open_spare_descriptor);
            let failed = match listener.accept_stream().await {
                Ok(stream) => self.pass_to_worker(stream).await,
                Err(error) if is_out_of_files(&error) => self.refuse_with_spare(&listener).await,
                Err(error) => Err(error),
            };
            if let Err(error) = failed {
                self.log_accept_error(&error);
                sleep(ACCEPT_RETRY_DELAY).await;
            }
        }
    }

    async fn pass_to_worker(&mut self, stream: TcpStream) -> io::Result<()> {
        match self.connections.register_connection(self.protocol, self.max) {
            Some(guard) => self.workers.assign(stream, (self.protocol, guard)).await,
            None => {
                self.refuse_connection(stream);
                self.log_connection_limit();
                Ok(())
            }
        }
    }

    /// Closes the spare descriptor so that one connection can be accepted, and refuses that connection.
    async fn refuse_with_spare(&mut self, listener: &impl Listener) -> io::Result<()> {
        drop(self.spare_descriptor.take());
        // Do not wait for a client: there may be none, and the spare descriptor must be reopened soon.
        let accepted = timeout(Duration::ZERO, listener.accept_stream()).await;
        let outcome = match accepted {
            Ok(Ok(stream)) => {
                self.refuse_connection(stream);
                self.log_descriptors_exhausted();
                Ok(())
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Ok(()),
        };
        self.spare_descriptor = open_spare_descriptor();
        outcome
    }

    /// Sends the refusal reply and closes the connection. Best effort: the server does not wait for the client.
    fn refuse_connection(&self, stream: TcpStream) {
        // Write directly to the non-blocking socket, because the event loop does not yet know its readiness.
        if let Ok(mut stream) = stream.into_std() {
            let _ = stream.write(self.protocol.connection_limit_reply());
            // Read pending input first. Closing a socket with unread input resets the connection, and the client would
            // not see the reply.
            let _ = stream.read(&mut [0; 4096]);
        }
    }

    /// Logs that the limit `--connections` is reached, at most once a minute.
    fn log_connection_limit(&mut self) {
        if let Some(refused) = self.limit_log.record_refusal(Instant::now()) {
            let (protocol, max) = (self.protocol.name(), self.max);
            tracing::warn!(protocol, max, refused, "connection limit reached; refusing connections");
        }
    }

    /// Logs that no file descriptors are left, at most once a minute.
    fn log_descriptors_exhausted(&mut self) {
        if let Some(refused) = self.descriptor_log.record_refusal(Instant::now()) {
            tracing::warn!(protocol = self.protocol.name(), refused, "out of file descriptors; refusing connections");
        }
    }

    /// Logs a failed accept, at most once a minute.
    fn log_accept_error(&mut self, error: &io::Error) {
        if self.error_log.try_acquire(Instant::now()) {
            tracing::warn!(%error, protocol = self.protocol.name(), "cannot accept a connection");
        }
    }
}

fn open_spare_descriptor() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Returns whether the process or the machine is out of file descriptors.
fn is_out_of_files(error: &io::Error) -> bool {
    let codes = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].map(rustix::io::Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::testing::captured_log;

    #[tokio::test(start_paused = true)]
    async fn each_kind_of_refusal_and_error_is_logged_once_a_minute() {
        let workers = Workers::start(1, |_, _: NewConnection| async {}).unwrap();
        let mut acceptor = Acceptor::new(Protocol::Http, Arc::default(), 7, &workers);
        let mut log_all = || {
            captured_log(|| {
                for _ in 0..3 {
                    acceptor.log_connection_limit();
                    acceptor.log_descriptors_exhausted();
                    acceptor.log_accept_error(&io::Error::other("broken"));
                }
            })
        };
        for refused in [1, 3] {
            let text = log_all();
            let lines: Vec<&str> =
                text.lines().filter_map(|line| line.split_once(": ")).map(|(_, line)| line).collect();
            let expected = [
                format!("connection limit reached; refusing connections protocol=\"http\" max=7 refused={refused}"),
                format!("out of file descriptors; refusing connections protocol=\"http\" refused={refused}"),
                "cannot accept a connection error=broken protocol=\"http\"".to_owned(),
            ];
            assert_eq!(lines, expected, "{text}");
            tokio::time::advance(LOG_INTERVAL).await;
        }
        workers.stop();
    }
}
