//! Who is asking, by address.

mod forwarded;
mod network;

use std::fmt;
use std::net::{IpAddr, SocketAddr};

pub use forwarded::{ForwardedBy, MAX_ELEMENT, MAX_HOPS, client_address};
use network::masked;
pub use network::{Network, NetworkError, TrustedProxies};

use crate::asked::Asked;
use crate::identify::{Identify, Identity};

/// Counts by the address of the client: an IPv4 address by itself, IPv6 addresses by their network of 64 bits.
///
/// A customer is given a whole IPv6 network, at least 64 bits of addresses; counted one by one, each of its 2⁶⁴ addresses would be
/// a new client with a full allowance.
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
    peer: fn(&Asked<'_>) -> Option<IpAddr>,
}

impl ClientIp {
    /// How many bits of an IPv6 address are counted by unless said otherwise.
    pub const IPV6_PREFIX: u8 = 64;

    /// Whoever connects is the client; what headers say is not believed.
    pub fn direct() -> Self {
        Self::behind(TrustedProxies::none(), ForwardedBy::default())
    }

    /// Clients come through these proxies, which write that header; see [`client_address`] for who is believed.
    pub fn behind(proxies: TrustedProxies, by: ForwardedBy) -> Self {
        Self { proxies, by, ipv6_prefix: Self::IPV6_PREFIX, peer: peer_in_extensions }
    }

    /// With IPv6 addresses counted by another number of bits: 56 or 48 where customers are given that much, 128 for each
    /// address by itself. Above 128 is 128.
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { ipv6_prefix: bits.min(128), ..self }
    }

    /// With another way to find who opened the connection. Without, it is a [`SocketAddr`] or an [`IpAddr`] among the request's
    /// extensions.
    ///
    /// - axum: `|asked| Some(asked.extensions().get::<ConnectInfo<SocketAddr>>()?.0.ip())`, where the app is served with
    ///   `into_make_service_with_connect_info::<SocketAddr>()`.
    /// - tonic: `|asked| Some(asked.extensions().get::<TcpConnectInfo>()?.remote_addr()?.ip())`.
    #[must_use]
    pub fn peer(self, peer: fn(&Asked<'_>) -> Option<IpAddr>) -> Self {
        Self { peer, ..self }
    }

    /// The address of the client of a request with these headers, from this peer.
    pub fn address(&self, headers: &http::HeaderMap, peer: IpAddr) -> IpAddr {
        client_address(headers, peer, &self.proxies, self.by)
    }

    /// What an address is counted by: itself, or the network it is in.
    pub fn network(&self, address: IpAddr) -> IpAddr {
        match address.to_canonical() {
            v4 @ IpAddr::V4(_) => v4,
            v6 @ IpAddr::V6(_) => masked(v6, self.ipv6_prefix),
        }
    }

    /// The network of the client of a request, if it is known who opened the connection.
    pub(crate) fn network_of(&self, asked: &Asked<'_>) -> Option<IpAddr> {
        let peer = (self.peer)(asked)?;
        Some(self.network(self.address(asked.headers(), peer)))
    }

    /// As it is written in rules: `203.0.113.7`, `2001:db8:1:2::/64`.
    #[cfg(all(feature = "tower", feature = "engine"))]
    pub(crate) fn text_of(&self, asked: &Asked<'_>) -> Option<String> {
        Some(match self.network_of(asked)? {
            IpAddr::V4(address) => address.to_string(),
            IpAddr::V6(network) if self.ipv6_prefix == 128 => network.to_string(),
            IpAddr::V6(network) => format!("{network}/{}", self.ipv6_prefix),
        })
    }
}

impl Identify for ClientIp {
    #[inline]
    fn identify<'r>(&self, asked: &Asked<'r>) -> Option<Identity<'r>> {
        self.network_of(asked).map(Identity::from)
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

fn peer_in_extensions(asked: &Asked<'_>) -> Option<IpAddr> {
    let socket = asked.extensions().get::<SocketAddr>().map(SocketAddr::ip);
    socket.or_else(|| asked.extensions().get::<IpAddr>().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::Request;

    fn identity(client: &ClientIp, peer: &str) -> Vec<u8> {
        let mut request = Request::new(());
        request.extensions_mut().insert(peer.parse::<IpAddr>().unwrap());
        client.identify(&Asked::of(&request)).unwrap().as_ref().to_vec()
    }

    #[test]
    fn ipv6_counts_by_network_and_ipv4_by_address_however_it_is_written() {
        let client = ClientIp::direct();
        assert_eq!(identity(&client, "2001:db8:1:2:3::4"), identity(&client, "2001:db8:1:2:ffff::"));
        assert_ne!(identity(&client, "2001:db8:1:2::"), identity(&client, "2001:db8:1:3::"));
        assert_ne!(identity(&client, "203.0.113.7"), identity(&client, "203.0.113.8"));
        assert_eq!(identity(&client, "203.0.113.7"), identity(&client, "::ffff:203.0.113.7"));
        // Not mapped, only alike: an IPv6 address whose network is all zeroes.
        assert_ne!(identity(&client, "0.0.0.0"), identity(&client, "::"));
    }

    #[test]
    fn the_number_of_bits_can_be_chosen() {
        let wide = ClientIp::direct().ipv6_prefix(48);
        assert_eq!(identity(&wide, "2001:db8:1:2::"), identity(&wide, "2001:db8:1:3::"));
        let each = ClientIp::direct().ipv6_prefix(200);
        assert_ne!(identity(&each, "2001:db8::1"), identity(&each, "2001:db8::2"));
        let all = ClientIp::direct().ipv6_prefix(0);
        assert_eq!(identity(&all, "2001:db8::1"), identity(&all, "fd00::2"));
    }

    #[test]
    fn the_peer_is_found_where_one_is_told_to_look() {
        let mut request = Request::new(());
        assert!(ClientIp::direct().identify(&Asked::of(&request)).is_none());
        request.extensions_mut().insert(SocketAddr::from(([203, 0, 113, 7], 4711)));
        let found = ClientIp::direct().network_of(&Asked::of(&request)).unwrap();
        assert_eq!(found.to_string(), "203.0.113.7");
        let elsewhere = ClientIp::direct().peer(|_| Some(IpAddr::from([192, 0, 2, 1])));
        assert_eq!(elsewhere.network_of(&Asked::of(&request)).unwrap().to_string(), "192.0.2.1");
    }
}
