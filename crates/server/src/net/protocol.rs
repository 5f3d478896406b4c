//! The supported protocols, and how to serve a connection of each protocol.

use std::sync::Arc;
use std::time::Duration;

use rustix::net::sockopt;
use tokio::net::TcpStream;
use tollgate_engine::Store;

use super::shutdown::ConnectionGuard;
use super::stream::TlsReadReady;
use super::tls::Tls;
use crate::app::App;
use crate::http::FastPath;
use crate::{http, resp, rls};

/// Enables TCP keepalive, so that the kernel closes connections whose client has disappeared.
fn enable_keepalive(stream: &TcpStream) -> rustix::io::Result<()> {
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)
}

/// Idle time before the first keepalive probe.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);

/// Interval between keepalive probes.
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(15);

/// Number of unanswered keepalive probes after which the connection is closed.
pub const KEEPALIVE_PROBES: u32 = 4;

/// Timeout for sending a valid token, if tokens are required.
pub const AUTH_TIMEOUT: Duration = Duration::from_secs(10);

/// The protocol of a request. The port determines the protocol of a connection; on the HTTP port, the path
/// distinguishes forward-auth from other requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// HTTP/1.1.
    Http,
    /// The Redis protocol, version 2 or 3.
    Resp,
    /// Forward-auth, on the HTTP port.
    Forward,
    /// Envoy's rate-limit service: gRPC over HTTP/2.
    Rls,
}

impl Protocol {
    /// All protocols, in the order of their discriminants.
    pub const ALL: [Self; 4] = [Self::Http, Self::Resp, Self::Forward, Self::Rls];

    /// Returns the name used in metrics labels and in the log.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Resp => "resp",
            Self::Forward => "forward",
            Self::Rls => "rls",
        }
    }

    /// Returns the ALPN names for the TLS handshake.
    pub const fn alpn(self) -> &'static [&'static [u8]] {
        match self {
            Self::Http | Self::Forward => &[b"http/1.1"],
            Self::Resp => &[],
            Self::Rls => &[b"h2"],
        }
    }

    /// Returns the complete reply sent on a connection above the connection limit.
    pub const fn connection_limit_reply(self) -> &'static [u8] {
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
        // Clients wait for each reply, so the kernel must not delay small replies in order to merge them.
        if let Err(error) = stream.set_nodelay(true) {
            tracing::debug!(%error, "cannot set TCP_NODELAY");
        }
        let peer = stream.peer_addr().ok().map(|peer| peer.ip());
        if let Err(error) = enable_keepalive(&stream) {
            tracing::debug!(%error, "cannot set SO_KEEPALIVE");
        }
        let Some(tls) = tls else {
            return match self {
                Self::Http | Self::Forward => http::serve(stream, peer, app, guard, FastPath::Enabled).await,
                Self::Resp => resp::serve(stream, app, guard).await,
                Self::Rls => rls::serve(stream, app, guard).await,
            };
        };
        let Some(stream) = tls.handshake(stream, self, &guard).await else { return };
        match self {
            Self::Http | Self::Forward => http::serve(stream, peer, app, guard, FastPath::Enabled).await,
            Self::Resp => resp::serve(TlsReadReady::new(stream), app, guard).await,
            Self::Rls => rls::serve(TlsReadReady::new(stream), app, guard).await,
        }
    }
}
