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

/// A connection as it is passed to a worker.
pub type NewConnection = (Protocol, ConnectionGuard);

/// The time between two lines in the log about refused connections.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// How long to wait after accept failed.
const PAUSE: Duration = Duration::from_millis(50);

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

/// Accepts the connections of one listener. Beyond the maximum of the protocol, or when the process may not open more files, a
/// connection gets one reply and is closed.
#[derive(Debug)]
pub struct Acceptor<'w> {
    protocol: Protocol,
    connections: Arc<Connections>,
    max: usize,
    workers: &'w Workers<NewConnection>,
    /// A descriptor to close when the process has too many, so that one more connection can be accepted and answered.
    spare: Option<File>,
    /// How many connections were refused since the last line in the log.
    refused: u64,
    next_line: Instant,
}

impl<'w> Acceptor<'w> {
    /// Returns an acceptor of at most `max` connections.
    pub fn new(
        protocol: Protocol,
        connections: Arc<Connections>,
        max: usize,
        workers: &'w Workers<NewConnection>,
    ) -> Self {
        let (spare, next_line) = (open_spare(), Instant::now());
        Self { protocol, connections, max, workers, spare, refused: 0, next_line }
    }

    /// Accepts connections until the future is dropped.
    pub async fn run(mut self, listener: impl Listener) {
        loop {
            self.spare = self.spare.take().or_else(open_spare);
            let failed = match listener.accept_stream().await {
                Ok(stream) => self.hand_over(stream).await,
                Err(error) if is_out_of_files(&error) => self.refuse_with_spare(&listener).await,
                Err(error) => Err(error),
            };
            if let Err(error) = failed {
                self.log("none", Some(&error));
                sleep(PAUSE).await;
            }
        }
    }

    async fn hand_over(&mut self, stream: TcpStream) -> io::Result<()> {
        match self.connections.open(self.protocol, self.max) {
            Some(guard) => self.workers.take(stream, (self.protocol, guard)).await,
            None => {
                self.refuse(stream, "--connections");
                Ok(())
            }
        }
    }

    /// Accepts a connection in place of the spare descriptor, and refuses it.
    async fn refuse_with_spare(&mut self, listener: &impl Listener) -> io::Result<()> {
        drop(self.spare.take());
        // Without waiting: accepting fails for want of descriptors even if no client waits, and the spare one must not be missing then.
        let accepted = timeout(Duration::ZERO, listener.accept_stream()).await;
        let outcome = match accepted {
            Ok(Ok(stream)) => {
                self.refuse(stream, "open files");
                Ok(())
            }
            Ok(Err(error)) => Err(error),
            Err(_) => Ok(()),
        };
        self.spare = open_spare();
        outcome
    }

    /// Answers a connection beyond a limit. Best effort: the server does not wait for the client.
    fn refuse(&mut self, stream: TcpStream, limit: &'static str) {
        // The socket does not block, and the event loop does not know yet whether it is writable.
        if let Ok(mut stream) = stream.into_std() {
            let _ = stream.write(self.protocol.too_many_connections());
            // Closing a socket with unread input would discard the answer.
            let _ = stream.read(&mut [0; 4096]);
        }
        self.refused += 1;
        self.log(limit, None);
    }

    /// Logs that connections are not served, at most once a minute.
    fn log(&mut self, limit: &'static str, error: Option<&io::Error>) {
        if self.next_line > Instant::now() {
            return;
        }
        let Self { protocol, max, refused, .. } = *self;
        let protocol = protocol.name();
        match error {
            Some(error) => tracing::warn!(%error, protocol, refused, "cannot accept a connection"),
            None => tracing::warn!(protocol, limit, max, refused, "connection limit reached; refusing connections"),
        }
        (self.refused, self.next_line) = (0, Instant::now() + LOG_EVERY);
    }
}

/// Opens a descriptor that is not used otherwise.
fn open_spare() -> Option<File> {
    File::open("/dev/null").ok()
}

/// Returns whether the process or the machine has too many open files.
fn is_out_of_files(error: &io::Error) -> bool {
    let codes = [rustix::io::Errno::MFILE, rustix::io::Errno::NFILE].map(rustix::io::Errno::raw_os_error);
    error.raw_os_error().is_some_and(|code| codes.contains(&code))
}
