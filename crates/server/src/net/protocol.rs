//! The protocols: everything that the rest of the server needs to know about a front end.

use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;
use tollgate_engine::Store;

use super::shutdown::ConnectionGuard;
use super::stream::TlsReadReady;
use super::tls::Tls;
use crate::app::App;
use crate::{http, resp, rls};

/// Makes the kernel close connections whose client is gone: it sends the first probe after a minute
/// without traffic.
fn keep_alive(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)
}

/// The time without traffic after which a client is probed.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// The time between probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// The probes without a reply after which the connection is closed.
pub const KEEPALIVE_PROBES: u32 = 4;

/// The time within which a connection must send a valid token, if tokens are required.
pub const AUTH_TIMEOUT: Duration = Duration::from_secs(10);

/// The protocol of a connection, chosen by the port it came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// The Redis protocol, version 2 or 3.
    Resp,
    /// Forward-auth, on the port of HTTP.
    Forward,
    /// Envoy's rate-limit service: gRPC over HTTP/2.
    Rls,
}

impl Protocol {
    /// All protocols, in the order of their discriminants.
    pub const ALL: [Self; 4] = [Self::Http, Self::Resp, Self::Forward, Self::Rls];

    /// Returns the name, as metrics label it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Resp => "resp",
            Self::Forward => "forward",
            Self::Rls => "rls",
        }
    }

    /// Returns the names offered in the TLS handshake (ALPN).
    pub const fn alpn(self) -> &'static [&'static [u8]] {
        match self {
            Self::Http | Self::Forward => &[b"http/1.1"],
            Self::Resp => &[],
            Self::Rls => &[b"h2"],
        }
    }

    /// Returns the whole reply to a connection beyond the limit.
    pub const fn too_many_connections(self) -> &'static [u8] {
        match self {
            Self::Http | Self::Forward => http::TOO_MANY_CONNECTIONS,
            Self::Resp => resp::TOO_MANY_CONNECTIONS,
            Self::Rls => rls::TOO_MANY_CONNECTIONS,
        }
    }

    /// Serves a connection until it closes.
    pub async fn serve<S: Store + 'static>(
        self,
        stream: TcpStream,
        tls: Option<Arc<Tls>>,
        app: Arc<App<S>>,
        guard: ConnectionGuard,
    ) {
        // Replies are small and clients wait for them, so the kernel must not delay one to combine
        // it with the next.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let peer = stream.peer_addr().ok().map(|peer| peer.ip());
        if let Err(error) = keep_alive(&stream) {
            tracing::debug!(%error, "cannot set SO_KEEPALIVE");
        }
        let Some(tls) = tls else {
            return match self {
                Self::Http | Self::Forward => http::serve(stream, peer, app, guard).await,
                Self::Resp => resp::serve(stream, app, guard).await,
                Self::Rls => rls::serve(stream, app, guard).await,
            };
        };
        let Some(stream) = tls.handshake(stream, self, &guard).await else { return };
        match self {
            Self::Http | Self::Forward => http::serve(stream, peer, app, guard).await,
            Self::Resp => resp::serve(TlsReadReady::new(stream), app, guard).await,
            Self::Rls => rls::serve(TlsReadReady::new(stream), app, guard).await,
        }
    }
}
