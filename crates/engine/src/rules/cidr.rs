//! IP networks.

use std::fmt::{self, Write};
use std::net::{IpAddr, Ipv6Addr};

/// A network like `10.0.0.0/8`. IPv4 addresses are stored as IPv4-mapped IPv6 addresses, so an IPv4 address equals its
/// IPv4-mapped form.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cidr {
    network: u128,
    /// Prefix length of the IPv6 network, from 0 to 128.
    bits: u8,
}

impl Cidr {
    /// Parses a network or a single address.
    ///
    /// # Errors
    /// Returns an error message if the text is not a valid address or network.
    pub fn new(text: &str) -> Result<Self, String> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().map_err(|_| "not an IP address or network".to_owned())?;
        let (longest, before) = match address {
            IpAddr::V4(_) => (32, 96),
            IpAddr::V6(_) => (128, 0),
        };
        let digits = |length: &str| length.len() <= 3 && length.bytes().all(|byte| byte.is_ascii_digit());
        let length: u8 = match length {
            None => longest,
            Some(length) => length
                .parse()
                .ok()
                .filter(|bits| *bits <= longest && digits(length))
                .ok_or_else(|| format!("the prefix length must be a number up to {longest}"))?,
        };
        let (all, bits) = (address_bits(address), before + length);
        let network = all & network_mask(bits);
        if network != all {
            return Err(format!("host bits are set; the network is {}", Self { network, bits }));
        }
        Ok(Self { network, bits })
    }

    /// Returns whether an address is in the network.
    pub fn contains(&self, address: u128) -> bool {
        address & network_mask(self.bits) == self.network
    }

    /// Returns the network address of `address` for the prefix length `bits`, as bytes.
    pub(crate) fn bytes_of(address: u128, bits: u8) -> [u8; 16] {
        (address & network_mask(bits)).to_be_bytes()
    }

    pub(crate) fn bytes(&self) -> [u8; 16] {
        self.network.to_be_bytes()
    }

    pub(crate) fn bits(&self) -> u8 {
        self.bits
    }
}

/// Parses a value as an address; returns `None` if it is not an address. A port and a zone are ignored, as in
/// `192.0.2.1:80`, `[2001:db8::1]:443` and `fe80::1%eth0`.
pub(crate) fn parse_address(value: &[u8]) -> Option<u128> {
    // Rejects most other values quickly: an address is short and starts with a hexadecimal digit, a colon or a bracket.
    let first = value.first()?;
    if value.len() > MAX_ADDRESS_BYTES || !(first.is_ascii_hexdigit() || [b':', b'['].contains(first)) {
        return None;
    }
    let text = str::from_utf8(value).ok()?;
    if text.contains('/') {
        // An IPv6 client may be given as its network, such as `2001:db8::/64`. Such a client is compared by its network
        // address.
        return Cidr::new(text).ok().map(|network| network.network);
    }
    let plain = text.parse().ok().or_else(|| {
        let inside = match text.strip_prefix('[') {
            Some(rest) => {
                let (inside, port) = rest.split_once(']')?;
                let port = port.strip_prefix(':').map_or(port.is_empty(), is_port);
                Some(inside).filter(|_| port)?
            }
            None => match text.split_once(':') {
                Some((inside, port)) if is_port(port) && inside.contains('.') => inside,
                _ => text,
            },
        };
        let (inside, zone) = inside.split_once('%').unwrap_or((inside, ""));
        inside.parse().ok().filter(|address: &IpAddr| zone.is_empty() || address.is_ipv6())
    });
    plain.map(address_bits)
}

/// The attribute whose values are addresses.
const CLIENT_IP_ATTRIBUTE: &str = "client_ip";

/// Returns whether the values of an attribute are addresses. Addresses are compared and counted by value, not by
/// notation.
pub(crate) fn is_address_attribute(attribute: &str) -> bool {
    attribute == CLIENT_IP_ATTRIBUTE
}

/// Prefix length by which IPv6 clients are counted. A host can usually use all addresses of a /64 network.
const IPV6_COUNTED_BITS: u8 = 64;

/// An address in the form that is used in counter keys.
pub(crate) struct CountedAddress {
    text: [u8; 48],
    length: usize,
}

impl CountedAddress {
    /// Returns the form of an address for counter keys: IPv4 without a port, or IPv6 as its /64 network. Returns `None`
    /// if the value is not an address, or is a plain IPv4 address, which needs no conversion.
    pub(crate) fn from_value(value: &[u8]) -> Option<Self> {
        // All notations other than plain IPv4 contain a colon.
        if !value.contains(&b':') {
            return None;
        }
        let address = parse_address(value)?;
        let mut counted = Self { text: [0; 48], length: 0 };
        let written = match Ipv6Addr::from_bits(address).to_ipv4_mapped() {
            Some(address) => write!(counted, "{address}"),
            None => {
                let network = Ipv6Addr::from_bits(address & network_mask(IPV6_COUNTED_BITS));
                write!(counted, "{network}/{IPV6_COUNTED_BITS}")
            }
        };
        written.ok().map(|()| counted)
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.text[..self.length]
    }
}

impl Write for CountedAddress {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.length + text.len();
        self.text.get_mut(self.length..end).ok_or(fmt::Error)?.copy_from_slice(text.as_bytes());
        self.length = end;
        Ok(())
    }
}

/// Maximum length of an address in bytes: IPv6 in brackets, with a zone of 15 characters and a port.
const MAX_ADDRESS_BYTES: usize = 45 + 1 + 15 + 2 + 6;

fn is_port(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_digit()) && text.parse::<u16>().is_ok()
}

fn address_bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

fn network_mask(bits: u8) -> u128 {
    u128::MAX.checked_shl(128 - u32::from(bits)).unwrap_or(0)
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Ipv6Addr::from_bits(self.network).to_ipv4_mapped() {
            Some(address) if self.bits >= 96 => write!(f, "{}/{}", address, self.bits - 96),
            Some(_) | None => write!(f, "{}/{}", Ipv6Addr::from_bits(self.network), self.bits),
        }
    }
}

impl fmt::Debug for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cidr({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_contains_only(network: &str, inside: &[&str], outside: &[&str]) {
        let network = Cidr::new(network).unwrap();
        assert_eq!(Cidr::new(&network.to_string()), Ok(network));
        let holds = |value: &&str| parse_address(value.as_bytes()).is_some_and(|address| network.contains(address));
        assert!(inside.iter().all(holds), "{network}");
        assert!(!outside.iter().any(holds), "{network}");
    }

    #[test]
    fn networks_contain_their_addresses_in_either_notation() {
        assert_contains_only(
            "10.0.0.0/8",
            &["10.0.0.0", "10.255.1.2", "::ffff:10.1.2.3"],
            &["11.0.0.0", "::10.0.0.1", "10.0.0", "x", ""],
        );
        assert_contains_only("192.0.2.7", &["192.0.2.7"], &["192.0.2.8"]);
        assert_contains_only("2001:db8::/32", &["2001:db8::1", "2001:DB8:1::"], &["2001:db9::", "10.0.0.1"]);
        assert_contains_only("::/0", &["::1", "1.2.3.4"], &["", "1.2.3.4/8"]);
        assert_contains_only(
            "2001:db8::/32",
            &["2001:db8:1:2::/64"],
            &["2001:db9::/64", "2001:db8::1/64", "2001:db8::/x"],
        );
    }

    #[test]
    fn ports_and_zones_are_ignored() {
        assert_contains_only(
            "10.0.0.0/8",
            &["10.1.2.3:80", "[::ffff:10.1.2.3]:80"],
            &["10.1.2.3:", "10.1.2.3:99999", "10.1.2.3:x", "10.1.2.3%1"],
        );
        assert_contains_only(
            "2001:db8::/32",
            &["[2001:db8::1]", "[2001:db8::1]:443", "2001:db8::1%eth0"],
            &["[2001:db8::1", "[2001:db8::1]x", "[]"],
        );
        assert_contains_only("fe80::/10", &["fe80::1%eth0", "[fe80::1%2]:80"], &["%eth0", "[%]"]);
    }

    #[test]
    fn all_notations_of_an_address_share_a_counter() {
        let counted = |value: &str| {
            CountedAddress::from_value(value.as_bytes())
                .map(|counted| String::from_utf8(counted.as_bytes().to_vec()).unwrap())
        };
        for value in ["192.0.2.1:80", "::ffff:192.0.2.1", "[::FFFF:192.0.2.1]:80", "::ffff:c000:201"] {
            assert_eq!(counted(value).as_deref(), Some("192.0.2.1"), "{value}");
        }
        for value in ["2001:db8::1", "2001:DB8:0::2", "[2001:db8::3]:443", "2001:db8::4%eth0", "2001:db8::/64"] {
            assert_eq!(counted(value).as_deref(), Some("2001:db8::/64"), "{value}");
        }
        let longest = "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff";
        assert_eq!(counted(longest).as_deref(), Some("ffff:ffff:ffff:ffff::/64"));
        for value in ["192.0.2.1", "alice", "", "a:b", "[::1", "2001:db8::1/64"] {
            assert_eq!(counted(value), None, "{value}");
        }
    }

    #[test]
    fn invalid_networks_are_refused() {
        let problem = |text: &str| Cidr::new(text).unwrap_err();
        assert_eq!(problem("10.0.0.0/33"), "the prefix length must be a number up to 32");
        assert_eq!(problem("10.0.0.0/+8"), "the prefix length must be a number up to 32");
        assert_eq!(problem("10.0.0.1/8"), "host bits are set; the network is 10.0.0.0/8");
        assert_eq!(problem("localhost"), "not an IP address or network");
    }
}
