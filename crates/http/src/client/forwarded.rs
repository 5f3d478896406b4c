//! Finds the client address in forwarding headers.
//!
//! Each proxy appends the address of its caller at the right end of the list. The elements further left may have been
//! forged by the client. So the list is read from the right, and only elements that a trusted proxy wrote are read:
//!
//! ```text
//!   X-Forwarded-For: 9.9.9.9, 203.0.113.7, 10.0.0.2      peer: 10.0.0.1
//!                    └ forged  └ client     └ proxy       └ proxy
//!                                 ◀──────────┴─────────────┘ trusted, so their elements are accepted
//! ```
//!
//! Quotes are also matched from the right. If quotes were matched from the left, an unclosed quote in the client's part
//! would hide the elements added by the proxies.

use std::net::{IpAddr, SocketAddr};
use std::str;

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};

use super::network::TrustedProxies;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Maximum number of list elements read, including empty ones. If the list is longer, the last address read counts as
/// the client. Real chains of trusted proxies are shorter.
pub const MAX_HOPS: usize = 32;

/// Maximum length of an element in bytes, including surrounding spaces. Valid elements are shorter than 100 bytes.
pub const MAX_ELEMENT: usize = 256;

/// The header that the trusted proxies write.
///
/// There is no option to accept both headers: a proxy that writes one header forwards the other header as the client
/// sent it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedBy {
    /// `X-Forwarded-For: 203.0.113.7, 10.0.0.2`, which nearly all proxies write.
    #[default]
    XForwardedFor,
    /// `Forwarded: for=203.0.113.7;proto=https, for="[2001:db8::1]:4711"` (RFC 7239).
    Forwarded,
}

/// Returns the client address: the first address of the proxy chain that is not a trusted proxy. The chain begins with
/// `peer`, which opened the connection, and continues with the header elements from right to left.
///
/// | case | the client |
/// |---|---|
/// | the peer is not trusted | the peer; the header is not read |
/// | the header is missing, or all its elements are trusted proxies | the last address read: the request came from the trusted network |
/// | an element is not an address: malformed, `unknown`, obfuscated (`_x`), longer than [`MAX_ELEMENT`] | the proxy that wrote the element |
/// | more than [`MAX_HOPS`] elements | the last address read |
///
/// So a client is counted under its real address or under the address of a trusted proxy, never under an address that
/// it made up. IPv4-mapped IPv6 addresses are returned as IPv4.
pub fn client_address(headers: &HeaderMap, peer: IpAddr, proxies: &TrustedProxies, by: ForwardedBy) -> IpAddr {
    let mut client = peer.to_canonical();
    if !proxies.contains(client) {
        return client;
    }
    let name = match by {
        ForwardedBy::XForwardedFor => X_FORWARDED_FOR,
        ForwardedBy::Forwarded => FORWARDED,
    };
    let mut hops = 0;
    // Repeated header lines form one list; each line continues the list to the right.
    for line in headers.get_all(name).iter().rev() {
        let mut rest = Some(line.as_bytes());
        while let Some(list) = rest {
            hops += 1;
            if hops > MAX_HOPS {
                return client;
            }
            let Some((before, element)) = split_last_element(list) else { return client };
            rest = before;
            let element = element.trim_ascii();
            if element.is_empty() {
                continue;
            }
            let Some(address) = parse_element(element, by) else { return client };
            client = address;
            if !proxies.contains(client) {
                return client;
            }
        }
    }
    client
}

/// Splits a list into its last element and the list before it. Returns `None` if the element is too long.
fn split_last_element(list: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let mut quoted = false;
    for (length, byte) in list.iter().rev().take(MAX_ELEMENT + 1).enumerate() {
        match byte {
            // An escaped quote is treated as the start or end of a quoted string, so the element may be split at the
            // wrong comma. The resulting element contains the backslash, so it is not a valid address.
            b'"' => quoted = !quoted,
            b',' if !quoted => {
                let comma = list.len() - 1 - length;
                return Some((Some(&list[..comma]), &list[comma + 1..]));
            }
            _ => {}
        }
    }
    (list.len() <= MAX_ELEMENT).then_some((None, list))
}

fn parse_element(element: &[u8], by: ForwardedBy) -> Option<IpAddr> {
    let element = str::from_utf8(element).ok()?;
    let node = match by {
        ForwardedBy::XForwardedFor => element,
        ForwardedBy::Forwarded => for_parameter(element)?,
    };
    parse_node_address(node)
}

/// Returns the value of the `for` parameter in a `Forwarded` element; `None` if the parameter is missing, repeated or
/// malformed.
fn for_parameter(element: &str) -> Option<&str> {
    if element.contains('\\') {
        return None;
    }
    let mut found = None;
    let mut rest = Some(element);
    while let Some(pairs) = rest {
        let mut quoted = false;
        let end = pairs.find(|letter| {
            quoted ^= letter == '"';
            letter == ';' && !quoted
        });
        let (pair, after) = match end {
            Some(end) => (&pairs[..end], Some(&pairs[end + 1..])),
            None => (pairs, None),
        };
        rest = after;
        if let Some((name, value)) = pair.split_once('=')
            && name.trim_ascii().eq_ignore_ascii_case("for")
        {
            if found.is_some() {
                return None;
            }
            found = Some(unquote(value.trim_ascii())?);
        }
    }
    found
}

fn unquote(value: &str) -> Option<&str> {
    match value.strip_prefix('"') {
        Some(inner) => inner.strip_suffix('"').filter(|inner| !inner.contains('"')),
        None => (!value.contains('"')).then_some(value),
    }
}

/// Parses an address with or without brackets and with or without a port, because proxies write all of these forms.
fn parse_node_address(node: &str) -> Option<IpAddr> {
    let address = match node.strip_prefix('[') {
        Some(inner) => match inner.strip_suffix(']') {
            Some(bare) => IpAddr::V6(bare.parse().ok()?),
            None => node.parse::<SocketAddr>().ok()?.ip(),
        },
        None => match node.parse::<IpAddr>() {
            Ok(address) => address,
            Err(_) => node.parse::<SocketAddr>().ok()?.ip(),
        },
    };
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests;
