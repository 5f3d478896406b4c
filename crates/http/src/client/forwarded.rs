//! Finds the client address in forwarding headers.
//!
//! Each proxy appends the address of its caller at the right end of the list. The elements to the left may be forged,
//! because the client may have sent them. So the list is read from the right, while the proxy that wrote an element is
//! trusted:
//!
//! ```text
//!   X-Forwarded-For: 9.9.9.9, 203.0.113.7, 10.0.0.2      peer: 10.0.0.1
//!                    └ forged  └ client     └ proxy       └ proxy
//!                                 ◀──────────┴─────────────┘ trusted, so their elements are accepted
//! ```
//!
//! Quotes are also matched from the right. Matched from the left, a quote that the client opened but never closed would
//! hide the elements of the proxies.

use std::net::{IpAddr, SocketAddr};
use std::str;

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};

use super::network::TrustedProxies;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Maximum number of elements that are read, including empty ones. In a longer list the client is the last address
/// read; real chains of trusted proxies are shorter.
pub const MAX_HOPS: usize = 32;

/// Maximum length of an element in bytes, including surrounding spaces. Valid elements are shorter than 100 bytes.
pub const MAX_ELEMENT: usize = 256;

/// The header that the trusted proxies write.
///
/// There is no option to accept both: a proxy that writes one header forwards the other as the client sent it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedBy {
    /// `X-Forwarded-For: 203.0.113.7, 10.0.0.2`, which nearly all proxies write.
    #[default]
    XForwardedFor,
    /// `Forwarded: for=203.0.113.7;proto=https, for="[2001:db8::1]:4711"` (RFC 7239).
    Forwarded,
}

/// Returns the client address. This is `peer`, which opened the connection. If the peer is trusted, it is the address
/// that the peer forwards for, and so on.
///
/// | case | the client |
/// |---|---|
/// | the peer is not trusted | the peer; the header is not read |
/// | the header is missing or ends with a trusted proxy | the last trusted proxy: the request came from inside |
/// | an element is not an address: malformed, `unknown`, obfuscated (`_x`), longer than [`MAX_ELEMENT`] | the proxy that wrote the element |
/// | more than [`MAX_HOPS`] elements | the last address read |
///
/// So a client is counted under an address from which it can really send, or under the address of a trusted proxy, but
/// never under an address of its choice. IPv4-mapped IPv6 addresses are returned as IPv4.
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
    // Several header lines are one list; later lines continue it to the right.
    for line in headers.get_all(name).iter().rev() {
        let mut rest = Some(line.as_bytes());
        while let Some(list) = rest {
            hops += 1;
            if hops > MAX_HOPS {
                return client;
            }
            let Some((before, element)) = split_last(list) else { return client };
            rest = before;
            let element = element.trim_ascii();
            if element.is_empty() {
                continue;
            }
            let Some(address) = address_in(element, by) else { return client };
            client = address;
            if !proxies.contains(client) {
                return client;
            }
        }
    }
    client
}

/// Returns the last element of a list and the part before its comma; `None` if the element is too long.
fn split_last(list: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let mut quoted = false;
    for (length, byte) in list.iter().rev().take(MAX_ELEMENT + 1).enumerate() {
        match byte {
            // An escaped quote is treated as the start or end of a quoted string, which may split the element in the
            // wrong position. The part then contains the backslash, and an element with a backslash is not an address.
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

fn address_in(element: &[u8], by: ForwardedBy) -> Option<IpAddr> {
    let element = str::from_utf8(element).ok()?;
    let node = match by {
        ForwardedBy::XForwardedFor => element,
        ForwardedBy::Forwarded => node_of(element)?,
    };
    node_address(node)
}

/// Returns the value of `for` in an element of `Forwarded`; `None` if it is missing, repeated or malformed.
fn node_of(element: &str) -> Option<&str> {
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

/// Parses an address in the forms that proxies write: with or without brackets and port.
fn node_address(node: &str) -> Option<IpAddr> {
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
