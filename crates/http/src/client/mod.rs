//! The client address.

mod forwarded;
mod network;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use http::Extensions;

pub use forwarded::{ForwardedBy, MAX_ELEMENT, MAX_HOPS, client_address};
use network::mask_address;
pub use network::{Network, NetworkError, TrustedProxies};

use crate::identify::{Identify, Identity};
use crate::request::RequestView;

/// Counts requests by client address: each IPv4 address separately, IPv6 addresses by their /64 network.
///
/// Internet providers usually assign each customer an IPv6 network of at least 2⁶⁴ addresses. If addresses were counted
/// separately, a customer could get a full allowance from each of them.
///
/// The peer address comes from the server; see [`peer`](Self::peer). If the server does not provide the peer address,
/// the layer answers every request with status 500 and a configuration hint, instead of counting all clients as one.
/// `LimitLayer::on_unidentified` changes this.
///
/// ```
/// use http::HeaderMap;
/// use tollgate_http::{ClientIp, ForwardedBy, TrustedProxies};
///
/// let client = ClientIp::behind(TrustedProxies::parse(["10.0.0.0/8"])?, ForwardedBy::XForwardedFor);
/// let mut headers = HeaderMap::new();
/// headers.insert("x-forwarded-for", "9.9.9.9, 203.0.113.7, 10.0.0.2".parse()?);
/// assert_eq!(client.address(&headers, "10.0.0.1".parse()?).to_string(), "203.0.113.7");
/// assert_eq!(client.network("2001:db8:1:2:3::4".parse()?).to_string(), "2001:db8:1:2::");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ClientIp {
    proxies: TrustedProxies,
    by: ForwardedBy,
    ipv6_prefix: u8,
    /// `None`: the address in the request's extensions, read without an indirect call.
    peer: Option<fn(&RequestView<'_>) -> Option<IpAddr>>,
}

impl ClientIp {
    /// Default prefix length for IPv6 addresses.
    pub const IPV6_PREFIX: u8 = 64;

    /// Counts requests by the peer address of the connection, and ignores forwarding headers.
    pub fn direct() -> Self {
        Self::behind(TrustedProxies::none(), ForwardedBy::default())
    }

    /// Counts requests by the client address in the forwarding header that these proxies write. [`client_address`]
    /// describes how the header is read.
    pub fn behind(proxies: TrustedProxies, by: ForwardedBy) -> Self {
        Self { proxies, by, ipv6_prefix: Self::IPV6_PREFIX, peer: None }
    }

    /// Sets the IPv6 prefix length: 56 or 48 if customers get networks of that size, 128 to count each address
    /// separately. Values above 128 mean 128.
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { ipv6_prefix: bits.min(128), ..self }
    }

    /// Sets the function that returns the address of the peer, which opened the connection.
    ///
    /// The default function reads a `SocketAddr` or an `IpAddr` from the request's extensions and, with the feature
    /// `axum`, axum's `ConnectInfo<SocketAddr>`. For tonic: `|request|
    /// Some(request.extensions().get::<TcpConnectInfo>()?.remote_addr()?.ip())`.
    #[must_use]
    pub fn peer(self, peer: fn(&RequestView<'_>) -> Option<IpAddr>) -> Self {
        Self { peer: Some(peer), ..self }
    }

    /// Returns the client address of a request from `peer` with these headers.
    pub fn address(&self, headers: &http::HeaderMap, peer: IpAddr) -> IpAddr {
        client_address(headers, peer, &self.proxies, self.by)
    }

    /// Returns the address under which a client is counted: the IPv4 address itself, or the IPv6 network.
    pub fn network(&self, address: IpAddr) -> IpAddr {
        match address.to_canonical() {
            v4 @ IpAddr::V4(_) => v4,
            v6 @ IpAddr::V6(_) => mask_address(v6, self.ipv6_prefix),
        }
    }

    #[inline]
    fn peer_address(&self, request: &RequestView<'_>) -> Option<IpAddr> {
        self.peer.map_or_else(|| peer_in_extensions(request.extensions()), |peer| peer(request))
    }

    /// Formats the address under which a client is counted, in the notation of rules: `203.0.113.7`,
    /// `2001:db8:1:2::/64`.
    pub fn format_address(&self, address: IpAddr) -> String {
        match self.network(address) {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(network) if self.ipv6_prefix == 128 => network.to_string(),
            IpAddr::V6(network) => format!("{network}/{}", self.ipv6_prefix),
        }
    }

    /// Formats the address under which the client is counted, in the notation of rules. Returns `None` if the peer
    /// address is unknown.
    #[cfg(all(feature = "tower", feature = "engine"))]
    pub(crate) fn format_client_address(&self, request: &RequestView<'_>) -> Option<String> {
        let peer = self.peer_address(request)?;
        Some(self.format_address(self.address(request.headers(), peer)))
    }
}

impl Identify for ClientIp {
    #[inline]
    fn identify<'r>(&self, request: &RequestView<'r>) -> Option<Identity<'r>> {
        let peer = self.peer_address(request)?;
        // The fast path keeps an IPv4 address in a register. The general path copies addresses through memory, which
        // takes about seven nanoseconds more.
        if peer.is_ipv4() && self.proxies.is_empty() {
            return Some(peer.into());
        }
        Some(self.network(self.address(request.headers(), peer)).into())
    }

    fn setup_hint(&self) -> Option<&'static str> {
        Some(UNKNOWN_PEER_HINT)
    }
}

impl fmt::Debug for ClientIp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientIp")
            .field("proxies", &self.proxies)
            .field("by", &self.by)
            .field("ipv6_prefix", &self.ipv6_prefix)
            .finish_non_exhaustive()
    }
}

const UNKNOWN_PEER_HINT: &str = if cfg!(feature = "axum") {
    "the server does not provide the peer address: serve the axum app with \
     `into_make_service_with_connect_info::<SocketAddr>()`, or set `ClientIp::peer`"
} else {
    "the server does not provide the peer address: enable the feature `axum` of tollgate-http for axum, put a `SocketAddr` \
     into the request's extensions, or set `ClientIp::peer`"
};

#[inline]
fn peer_in_extensions(extensions: &Extensions) -> Option<IpAddr> {
    if let Some(socket) = extensions.get::<SocketAddr>() {
        return Some(socket.ip());
    }
    #[cfg(feature = "axum")]
    if let Some(info) = extensions.get::<axum::extract::ConnectInfo<SocketAddr>>() {
        return Some(info.0.ip());
    }
    extensions.get::<IpAddr>().copied()
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn identity_of_peer(client: &ClientIp, peer: &str) -> Vec<u8> {
        let mut request = Request::new(());
        request.extensions_mut().insert(peer.parse::<IpAddr>().unwrap());
        client.identify(&RequestView::new(&request)).unwrap().as_ref().to_vec()
    }

    #[test]
    fn ipv6_counts_by_network_and_ipv4_by_address() {
        let client = ClientIp::direct();
        assert_eq!(identity_of_peer(&client, "2001:db8:1:2:3::4"), identity_of_peer(&client, "2001:db8:1:2:ffff::"));
        assert_ne!(identity_of_peer(&client, "2001:db8:1:2::"), identity_of_peer(&client, "2001:db8:1:3::"));
        assert_ne!(identity_of_peer(&client, "203.0.113.7"), identity_of_peer(&client, "203.0.113.8"));
        assert_eq!(identity_of_peer(&client, "203.0.113.7"), identity_of_peer(&client, "::ffff:203.0.113.7"));
        // `::` is an all-zero IPv6 network, not a mapped IPv4 address.
        assert_ne!(identity_of_peer(&client, "0.0.0.0"), identity_of_peer(&client, "::"));
    }

    #[test]
    fn fast_path_without_proxies_returns_the_same_identity() {
        let direct = ClientIp::direct();
        // None of the peers below is this proxy, so the general path also returns the peer.
        let general = ClientIp::behind(TrustedProxies::parse(["192.0.2.1/32"]).unwrap(), ForwardedBy::XForwardedFor);
        for peer in ["203.0.113.7", "0.0.0.0", "255.255.255.255", "::ffff:203.0.113.7", "2001:db8:1:2:3::4", "::"] {
            assert_eq!(identity_of_peer(&direct, peer), identity_of_peer(&general, peer), "{peer}");
        }
    }

    #[test]
    fn ipv6_prefix_length_can_be_set() {
        let wide = ClientIp::direct().ipv6_prefix(48);
        assert_eq!(identity_of_peer(&wide, "2001:db8:1:2::"), identity_of_peer(&wide, "2001:db8:1:3::"));
        let each = ClientIp::direct().ipv6_prefix(200);
        assert_ne!(identity_of_peer(&each, "2001:db8::1"), identity_of_peer(&each, "2001:db8::2"));
        let all = ClientIp::direct().ipv6_prefix(0);
        assert_eq!(identity_of_peer(&all, "2001:db8::1"), identity_of_peer(&all, "fd00::2"));
    }

    #[test]
    fn peer_comes_from_the_extensions_or_a_custom_function() {
        let mut request = Request::new(());
        assert!(ClientIp::direct().identify(&RequestView::new(&request)).is_none());
        request.extensions_mut().insert(SocketAddr::from(([203, 0, 113, 7], 4711)));
        let found = ClientIp::direct().identify(&RequestView::new(&request)).unwrap();
        assert_eq!(found.as_ref(), [203, 0, 113, 7]);
        let elsewhere = ClientIp::direct().peer(|_| Some(IpAddr::from([192, 0, 2, 1])));
        assert_eq!(elsewhere.identify(&RequestView::new(&request)).unwrap().as_ref(), [192, 0, 2, 1]);
    }
}
