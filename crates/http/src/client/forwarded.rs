//! The walk through forwarded headers.
//!
//! Every proxy on the way adds, at the right end, the address that called it. What it received from there stays to the left
//! of it, and may be anything: the client wrote it. So the list is read from the right, for as long as the one who wrote
//! an element is trusted:
//!
//! ```text
//!   X-Forwarded-For: 9.9.9.9, 203.0.113.7, 10.0.0.2      peer: 10.0.0.1
//!                    └ forged  └ client     └ proxy       └ proxy
//!                                 ◀──────────┴─────────────┘ trusted, so what they say is believed
//! ```
//!
//! Quotes are respected from the right as well. Read from the left, a quote that the client opened and never closed would
//! swallow what the proxies added.

use std::net::{IpAddr, SocketAddr};
use std::str;

use http::HeaderMap;
use http::header::{FORWARDED, HeaderName};

use super::network::TrustedProxies;

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// How many elements are looked at, empty ones included. Longer chains of trusted proxies do not occur; the client is then
/// whoever was reached.
pub const MAX_HOPS: usize = 32;

/// How long an element may be, with spaces around it. The longest that is of use is shorter than a hundred bytes.
pub const MAX_ELEMENT: usize = 256;

/// The header that the trusted proxies write.
///
/// There is no "whichever is there": a proxy that writes the one passes the other on as the client sent it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedBy {
    /// `X-Forwarded-For: 203.0.113.7, 10.0.0.2`, which nearly all proxies write.
    #[default]
    XForwardedFor,
    /// `Forwarded: for=203.0.113.7;proto=https, for="[2001:db8::1]:4711"` (RFC 7239).
    Forwarded,
}

/// The address of the client, by the word of the proxies that are trusted: `peer`, which opened the connection, or whoever it
/// says it speaks for, and so on.
///
/// | what is found | who is the client |
/// |---|---|
/// | the peer is not trusted | the peer; the header is not looked at |
/// | the header is missing or ends among trusted proxies | the last of them: the request came from inside |
/// | an element that is no address: malformed, `unknown`, hidden (`_x`), longer than [`MAX_ELEMENT`] | the proxy that wrote it |
/// | more than [`MAX_HOPS`] elements | whoever was reached |
///
/// So whatever a client sends, it is counted under an address from which it can really send, or under that of a proxy of
/// yours; never under one of its choice. IPv4 addresses in IPv6 clothes come out as IPv4.
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
    // Several lines are one list, the later lines to the right.
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

/// The last element of a list, and what comes before the comma in front of it; none if it is too long.
fn split_last(list: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let mut quoted = false;
    for (length, byte) in list.iter().rev().take(MAX_ELEMENT + 1).enumerate() {
        match byte {
            // An escaped quote is taken for one that ends or begins a text, which may cut the element in the wrong place. The
            // part at hand then has the backslash in it, and an element with a backslash is no address.
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

/// The value of `for` in an element of `Forwarded`; none if it is missing, doubled or not written as it should be.
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
            found = Some(unquoted(value.trim_ascii())?);
        }
    }
    found
}

fn unquoted(value: &str) -> Option<&str> {
    match value.strip_prefix('"') {
        Some(inner) => inner.strip_suffix('"').filter(|inner| !inner.contains('"')),
        None => (!value.contains('"')).then_some(value),
    }
}

/// An address as proxies write it: bare, in brackets, with a port or without.
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
