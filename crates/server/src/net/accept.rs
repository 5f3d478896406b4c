//! Taking connections: the same for every protocol.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};

use crate::net::shutdown::{ConnectionGuard, Connections};
use crate::net::workers::Workers;

/// Which protocol a connection speaks: told by the port it came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// The Redis protocol, version 2 or 3.
    Resp,
}

/// A connection as it is handed to a thread.
pub type NewConnection = (Protocol, ConnectionGuard);

/// How long to wait after the system refused a connection, mostly for want of file descriptors.
const PAUSE: Duration = Duration::from_millis(50);

/// Takes connections for ever and hands them out; whoever calls this stops by dropping it.
pub async fn accept(
    listener: TcpListener,
    protocol: Protocol,
    connections: Arc<Connections>,
    most: usize,
    workers: &Workers<NewConnection>,
) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Err(error) = hand_over(stream, protocol, &connections, most, workers).await {
                    tracing::warn!(%error, ?protocol, "a connection could not be served");
                }
            }
            Err(error) => {
                tracing::warn!(%error, ?protocol, "a connection could not be taken");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

async fn hand_over(
    stream: TcpStream,
    protocol: Protocol,
    connections: &Arc<Connections>,
    most: usize,
    workers: &Workers<NewConnection>,
) -> io::Result<()> {
    match connections.open(most) {
        Some(guard) => workers.take(stream, (protocol, guard)).await,
        None => {
            // Told if the kernel takes it at once; somebody turned away is not waited for.
            let _ = stream.try_write(turned_away(protocol));
            Ok(())
        }
    }
}

fn turned_away(protocol: Protocol) -> &'static [u8] {
    match protocol {
        Protocol::Http => {
            b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nconnection: close\r\n\
              retry-after: 1\r\ncontent-length: 94\r\n\r\n\
              {\"type\":\"about:blank\",\"title\":\"Too many connections\",\"status\":503,\"detail\":\"come back later\"}\n"
        }
        Protocol::Resp => b"-ERR max number of clients reached\r\n",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_turned_away_gets_a_whole_answer() {
        let text = std::str::from_utf8(turned_away(Protocol::Http)).expect("text");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("content-length: {}", body.len())), "the body has {} bytes", body.len());
    }
}
