//! Accepts connections and hands them to the workers.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use super::protocol::Protocol;
use super::shutdown::{ConnectionGuard, Connections};
use super::workers::Workers;

/// A connection as it is handed to a worker.
pub type NewConnection = (Protocol, ConnectionGuard);

/// How long to wait after accept failed, mostly for want of file descriptors.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// Accepts connections until the future is dropped. Beyond `max` open ones a connection gets one reply and is closed.
pub async fn accept(
    listener: TcpListener,
    protocol: Protocol,
    connections: Arc<Connections>,
    max: usize,
    workers: &Workers<NewConnection>,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Err(error) = hand_over(stream, protocol, &connections, max, workers).await {
                    tracing::warn!(%error, ?protocol, "cannot serve a connection");
                }
            }
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
    match connections.open(max) {
        Some(guard) => workers.take(stream, (protocol, guard)).await,
        None => {
            // Best effort: a client that is turned away is not waited for.
            let _ = stream.try_write(protocol.too_many_connections());
            Ok(())
        }
    }
}
