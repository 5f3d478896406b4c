//! Networks, and lists of trusted proxies.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A range of addresses: `10.0.0.0/8`, `2001:db8::/32`, or a single address.
///
/// An IPv4-mapped IPv6 network (`::ffff:10.0.0.0/104`) is stored as the IPv4 network (`10.0.0.0/8`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Network {
    address: IpAddr,
    prefix: u8,
}

impl Network {
    /// Returns the network of all addresses that share the first `prefix` bits of `address`.
    ///
    /// # Errors
    /// Returns an error if `prefix` exceeds the address length, or if bits after the prefix are set.
    pub fn new(address: IpAddr, prefix: u8) -> Result<Self, NetworkError> {
        let bits = address_bits(address);
        if prefix > bits {
            return Err(NetworkError::PrefixTooLong { prefix, bits });
        }
        if mask_address(address, prefix) != address {
            let network = mask_address(address, prefix);
            return Err(NetworkError::HostBits { network, prefix });
        }
        // The prefix of an IPv4-mapped network is at least 96 here. A shorter prefix was refused above, because bits of
        // `::ffff:` are set after it.
        match address.to_canonical() {
            v4 @ IpAddr::V4(_) if bits == 128 && prefix >= 96 => Ok(Self { address: v4, prefix: prefix - 96 }),
            _ => Ok(Self { address, prefix }),
        }
    }

    /// Returns whether the network contains `address`. An IPv4-mapped address counts as IPv4.
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.address, address.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (own.to_bits() ^ other.to_bits()) & mask_v4(self.prefix) == 0,
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits() ^ other.to_bits()) & mask_v6(self.prefix) == 0,
            (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => false,
        }
    }
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Self, NetworkError> {
        let unreadable = || NetworkError::Unreadable { text: text.chars().take(64).collect() };
        let (address, prefix) = match text.split_once('/') {
            Some((address, prefix)) => (address, Some(prefix)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| unreadable())?;
        let prefix = match prefix {
            // Requires digits only, because `str::parse` would also accept a plus sign.
            Some(digits) if digits.bytes().all(|digit| digit.is_ascii_digit()) => {
                digits.parse().map_err(|_| unreadable())?
            }
            Some(_) => return Err(unreadable()),
            None => address_bits(address),
        };
        Self::new(address, prefix)
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.prefix)
    }
}

/// Error in the string or the parameters of a network.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NetworkError {
    /// The syntax is wrong.
    Unreadable {
        /// The string, truncated to a readable length.
        text: String,
    },
    /// The prefix exceeds the address length.
    PrefixTooLong {
        /// The given prefix.
        prefix: u8,
        /// Number of bits in the address.
        bits: u8,
    },
    /// Bits after the prefix are set, so it is unclear whether a single address or the whole network is meant.
    HostBits {
        /// The address with all bits after the prefix cleared.
        network: IpAddr,
        /// The prefix.
        prefix: u8,
    },
    /// There are more than [`TrustedProxies::MAX`] networks.
    TooMany,
}

impl fmt::Display for NetworkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { text } => write!(f, "`{text}` is not a network; write it as `10.0.0.0/8`"),
            Self::PrefixTooLong { prefix, bits } => {
                write!(f, "the prefix of {prefix} bits is too long: the address has {bits} bits")
            }
            Self::HostBits { network, prefix } => {
                write!(f, "the address has bits set after the prefix; write `{network}/{prefix}`")
            }
            Self::TooMany => write!(f, "too many networks (maximum {})", TrustedProxies::MAX),
        }
    }
}

impl std::error::Error for NetworkError {}

/// The proxies whose forwarding headers are trusted.
///
/// A trusted proxy can claim any client address, so the list must contain only proxies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedProxies {
    networks: Vec<Network>,
}

impl TrustedProxies {
    /// Maximum number of networks; they are searched linearly.
    pub const MAX: usize = 256;

    /// Trusts no proxy: the peer is the client.
    pub const fn none() -> Self {
        Self { networks: Vec::new() }
    }

    /// Returns whether no proxy is trusted.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.networks.is_empty()
    }

    /// Trusts the proxies in these networks.
    ///
    /// # Errors
    /// Returns an error if there are more than [`TrustedProxies::MAX`] networks.
    pub fn new(networks: impl IntoIterator<Item = Network>) -> Result<Self, NetworkError> {
        let networks: Vec<Network> = networks.into_iter().take(Self::MAX + 1).collect();
        if networks.len() > Self::MAX { Err(NetworkError::TooMany) } else { Ok(Self { networks }) }
    }

    /// Parses a list of networks.
    ///
    /// ```
    /// use tollgate_http::TrustedProxies;
    ///
    /// let proxies = TrustedProxies::parse(["10.0.0.0/8", "fd00::/8"])?;
    /// assert!(proxies.contains("10.1.2.3".parse()?));
    /// let mistake = TrustedProxies::parse(["10.1.0.0/8"]).unwrap_err().to_string();
    /// assert_eq!(mistake, "the address has bits set after the prefix; write `10.0.0.0/8`");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// Returns an error if an entry is not a network, or if there are more than [`TrustedProxies::MAX`] entries.
    pub fn parse<'a>(networks: impl IntoIterator<Item = &'a str>) -> Result<Self, NetworkError> {
        let read: Result<Vec<Network>, NetworkError> =
            networks.into_iter().take(Self::MAX + 1).map(str::parse).collect();
        Self::new(read?)
    }

    /// Trusts the loopback, private, link-local and unique local networks, which are unreachable from the internet. Use
    /// this list for services that only their own proxies can reach.
    pub fn private() -> Self {
        let v4 = |a, b, prefix| Network { address: Ipv4Addr::new(a, b, 0, 0).into(), prefix };
        let v6 = |first, last, prefix| Network { address: Ipv6Addr::new(first, 0, 0, 0, 0, 0, 0, last).into(), prefix };
        let networks = vec![
            v4(127, 0, 8),
            v4(10, 0, 8),
            v4(172, 16, 12),
            v4(192, 168, 16),
            v4(169, 254, 16),
            v6(0, 1, 128),
            v6(0xfc00, 0, 7),
            v6(0xfe80, 0, 10),
        ];
        Self { networks }
    }

    /// Returns whether `address` is a trusted proxy.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.networks.iter().any(|network| network.contains(address))
    }
}

/// Returns the address with all bits after the prefix cleared.
pub(crate) fn mask_address(address: IpAddr, prefix: u8) -> IpAddr {
    match address {
        IpAddr::V4(address) => Ipv4Addr::from_bits(address.to_bits() & mask_v4(prefix)).into(),
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() & mask_v6(prefix)).into(),
    }
}

const fn address_bits(address: IpAddr) -> u8 {
    match address {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    }
}

fn mask_v4(prefix: u8) -> u32 {
    u32::MAX.checked_shl(32_u32.saturating_sub(prefix.into())).unwrap_or(0)
}

fn mask_v6(prefix: u8) -> u128 {
    u128::MAX.checked_shl(128_u32.saturating_sub(prefix.into())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn network_contains_its_addresses() {
        for (network, inside, outside) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.0"),
            ("10.0.0.0/8", "::ffff:10.1.2.3", "::10.1.2.3"),
            ("0.0.0.0/0", "255.255.255.255", "::"),
            ("192.0.2.1", "192.0.2.1", "192.0.2.2"),
            ("2001:db8::/33", "2001:db8:7fff::1", "2001:db8:8000::"),
            ("::/0", "2001:db8::1", "1.2.3.4"),
            ("::1", "::1", "::2"),
            ("::ffff:10.0.0.0/104", "10.9.9.9", "11.0.0.0"),
        ] {
            let parsed: Network = network.parse().unwrap();
            assert!(parsed.contains(inside.parse().unwrap()), "{inside} in {network}");
            assert!(!parsed.contains(outside.parse().unwrap()), "{outside} not in {network}");
        }
    }

    #[test]
    fn errors_name_the_correction() {
        for (text, expected) in [
            ("", "`` is not a network; write it as `10.0.0.0/8`"),
            ("10.0.0.0/", "`10.0.0.0/` is not a network"),
            ("10.0.0.0/+8", "`10.0.0.0/+8` is not a network"),
            ("10.0.0.0/33", "the prefix of 33 bits is too long: the address has 32 bits"),
            ("10.0.0.0/256", "`10.0.0.0/256` is not a network"),
            ("2001:db8::1/64", "the address has bits set after the prefix; write `2001:db8::/64`"),
            ("localhost", "`localhost` is not a network"),
        ] {
            let error = text.parse::<Network>().unwrap_err().to_string();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        let many = vec!["10.0.0.0/8"; TrustedProxies::MAX + 1];
        assert_eq!(TrustedProxies::parse(many).unwrap_err(), NetworkError::TooMany);
        assert!(TrustedProxies::parse(vec!["10.0.0.0/8"; TrustedProxies::MAX]).is_ok());
    }

    #[test]
    fn private_networks_are_not_reachable_from_outside() {
        let private = TrustedProxies::private();
        for inside in
            ["127.0.0.1", "10.0.0.1", "172.31.255.255", "192.168.1.1", "169.254.0.1", "::1", "fd00::1", "fe80::1"]
        {
            assert!(private.contains(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["172.32.0.0", "192.169.0.0", "8.8.8.8", "::2", "2001:db8::1"] {
            assert!(!private.contains(outside.parse().unwrap()), "{outside}");
        }
        assert!(!TrustedProxies::none().contains("127.0.0.1".parse().unwrap()));
    }
}
