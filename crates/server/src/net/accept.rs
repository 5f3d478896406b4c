//! Accepts connections and passes them to the workers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;

use super::protocol::Protocol;
use super::shutdown::{ConnectionGuard, Connections};
use super::workers::Workers;

/// A connection as it is passed to a worker.
pub type NewConnection = (Protocol, ConnectionGuard);

/// The time between two lines in the log about refused connections.
const LOG_EVERY: Duration = Duration::from_secs(60);

/// How long to wait after accept failed, usually because file descriptors ran out.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until the future is dropped. Beyond `max` open connections of the protocol, a connection gets
/// one reply and is closed.
pub async fn accept(
    listener: TcpListener,
    protocol: Protocol,
    connections: Arc<Connections>,
    max: usize,
    workers: &Workers<NewConnection>,
) {
    let (mut refused, mut next_line) = (0_u64, Instant::now());
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match connections.open(protocol, max) {
                Some(guard) => {
                    if let Err(error) = workers.take(stream, (protocol, guard)).await {
                        tracing::warn!(%error, ?protocol, "cannot serve a connection");
                    }
                }
                None => {
                    // Best effort: the server does not wait for a refused client.
                    let _ = stream.try_write(protocol.too_many_connections());
                    refused += 1;
                    if next_line <= Instant::now() {
                        let protocol = protocol.name();
                        tracing::warn!(protocol, max, refused, "connection limit reached; refusing connections");
                        (refused, next_line) = (0, Instant::now() + LOG_EVERY);
                    }
                }
            },
            Err(error) => {
                tracing::warn!(%error, ?protocol, "cannot accept a connection");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

pub(super) async fn hand_over(
    stream: TcpStream,
    protocol: Protocol,
    connections: &Arc<Connections>,
    max: usize,
    workers: &Workers<NewConnection>,
) -> io::Result<()> {
    match connections.open(protocol, max) {
        Some(guard) => workers.take(stream, (protocol, guard)).await,
        None => {
            // Best effort: the server does not wait for a refused client.
            let _ = stream.try_write(protocol.too_many_connections());
            Ok(())
        }
    }
}
