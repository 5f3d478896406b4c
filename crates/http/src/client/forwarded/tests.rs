use http::HeaderValue;

use super::*;

/// Checks the client address if a proxy at 10.0.0.1 sends these lines, with `10.0.0.0/8` and `fd00::/8`
/// trusted.
#[track_caller]
fn check(by: ForwardedBy, lines: &[&[u8]], expected: &str) {
    let mut headers = HeaderMap::new();
    let name = match by {
        ForwardedBy::XForwardedFor => X_FORWARDED_FOR,
        ForwardedBy::Forwarded => FORWARDED,
    };
    for line in lines {
        headers.append(name.clone(), HeaderValue::from_bytes(line).unwrap());
    }
    let proxies = TrustedProxies::parse(["10.0.0.0/8", "fd00::/8"]).unwrap();
    let client = client_address(&headers, "10.0.0.1".parse().unwrap(), &proxies, by);
    assert_eq!(client, expected.parse::<IpAddr>().unwrap(), "{lines:?}");
}

#[test]
fn x_forwarded_for_is_walked_from_the_right_through_trusted_proxies() {
    let check = |lines: &[&str], expected| {
        let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        check(ForwardedBy::XForwardedFor, &lines, expected);
    };
    check(&[], "10.0.0.1");
    check(&["203.0.113.7"], "203.0.113.7");
    check(&["203.0.113.7, 10.0.0.2"], "203.0.113.7");
    check(&["9.9.9.9, 203.0.113.7, 10.0.0.2"], "203.0.113.7");
    check(&["9.9.9.9, 203.0.113.7", "10.0.0.3,10.0.0.2"], "203.0.113.7");
    check(&["10.0.0.9, 10.0.0.2"], "10.0.0.9");
    check(&["203.0.113.7:4711"], "203.0.113.7");
    check(&["2001:db8::7, fd00::1"], "2001:db8::7");
    check(&["[2001:db8::7]:4711, [fd00::1]"], "2001:db8::7");
    check(&["::ffff:203.0.113.7, ::ffff:10.0.0.2"], "203.0.113.7");
    check(&["\t 203.0.113.7 \t"], "203.0.113.7");
}

#[test]
fn element_that_is_not_an_address_counts_as_the_proxy_that_wrote_it() {
    for malformed in [
        "unknown",
        "203.0.113.7x",
        "203.0.113.256",
        "203.0.113.7:port",
        "203.0.113.7:4711:1",
        "fe80::1%eth0",
        "[2001:db8::7",
        "2001:db8::7]",
        "[203.0.113.7]",
        "\"203.0.113.7\"",
        "1 2",
        "for=203.0.113.7",
    ] {
        check(ForwardedBy::XForwardedFor, &[malformed.as_bytes()], "10.0.0.1");
        check(ForwardedBy::XForwardedFor, &[format!("9.9.9.9, {malformed}, 10.0.0.2").as_bytes()], "10.0.0.2");
    }
    check(ForwardedBy::XForwardedFor, &[b"203.0.113.7\xff"], "10.0.0.1");
}

#[test]
fn empty_elements_are_skipped() {
    for list in ["203.0.113.7,", "203.0.113.7, ,", ",,203.0.113.7,, ,10.0.0.2"] {
        check(ForwardedBy::XForwardedFor, &[list.as_bytes()], "203.0.113.7");
    }
    check(ForwardedBy::XForwardedFor, &[b"203.0.113.7", b""], "203.0.113.7");
    check(ForwardedBy::XForwardedFor, &[b",,"], "10.0.0.1");
}

#[test]
fn hops_and_element_length_are_bounded() {
    let through = |proxies: usize| format!("203.0.113.7{}", ", 10.0.0.2".repeat(proxies));
    check(ForwardedBy::XForwardedFor, &[through(MAX_HOPS - 1).as_bytes()], "203.0.113.7");
    check(ForwardedBy::XForwardedFor, &[through(MAX_HOPS).as_bytes()], "10.0.0.2");
    let commas = format!("203.0.113.7{}", ",".repeat(MAX_HOPS));
    check(ForwardedBy::XForwardedFor, &[commas.as_bytes()], "10.0.0.1");
    let wide = |length: usize| format!("{}203.0.113.7", " ".repeat(length - 11));
    for before in ["", "9.9.9.9,"] {
        check(ForwardedBy::XForwardedFor, &[format!("{before}{}", wide(MAX_ELEMENT)).as_bytes()], "203.0.113.7");
        check(ForwardedBy::XForwardedFor, &[format!("{before}{}", wide(MAX_ELEMENT + 1)).as_bytes()], "10.0.0.1");
    }
    // The client's part of the list is not read, even if it is very long.
    check(ForwardedBy::XForwardedFor, &[format!("{}, 203.0.113.7", "x,".repeat(100_000)).as_bytes()], "203.0.113.7");
}

#[test]
fn forwarded_header_is_parsed_as_in_the_standard() {
    for (list, expected) in [
        ("for=203.0.113.7", "203.0.113.7"),
        ("For=\"203.0.113.7:4711\"", "203.0.113.7"),
        ("for=\"[2001:db8::7]:4711\"", "2001:db8::7"),
        ("for=\"[2001:db8::7]\";proto=https;by=10.0.0.2", "2001:db8::7"),
        ("proto=https;for=203.0.113.7;host=\"a;for=9.9.9.9,b\"", "203.0.113.7"),
        ("for=9.9.9.9, for=203.0.113.7;proto=https, for=10.0.0.2", "203.0.113.7"),
        ("for=203.0.113.7 ; proto=https", "203.0.113.7"),
        // A quote that the client left open does not hide the proxies' elements.
        ("for=\"9.9.9.9, for=203.0.113.7, for=10.0.0.2", "203.0.113.7"),
        ("for=9.9.9.9;host=\"x, for=203.0.113.7", "203.0.113.7"),
    ] {
        check(ForwardedBy::Forwarded, &[list.as_bytes()], expected);
    }
}

#[test]
fn malformed_forwarded_element_counts_as_the_proxy_that_wrote_it() {
    for malformed in [
        "for=unknown",
        "for=_hidden",
        "for=\"_hidden\"",
        "for=",
        "for",
        "203.0.113.7",
        "by=203.0.113.7",
        "for=203.0.113.7;for=203.0.113.8",
        "for=\"203.0.113.7",
        "for=203.0.113.7\"",
        "for=\"203.0.113.7\"\"\"",
        "for=\"203.0.\\113.7\"",
        // One quoted string with escaped quotes. Read from the right it is split, and the part is
        // not an address.
        "for=203.0.113.7;host=\"a\\\", for=9.9.9.9;x=\\\"b\"",
    ] {
        check(ForwardedBy::Forwarded, &[malformed.as_bytes()], "10.0.0.1");
    }
}

#[test]
fn header_of_an_untrusted_peer_is_not_read() {
    let mut headers = HeaderMap::new();
    headers.insert(X_FORWARDED_FOR, HeaderValue::from_static("9.9.9.9"));
    let proxies = TrustedProxies::parse(["10.0.0.0/8"]).unwrap();
    let client = |peer: &str, by| client_address(&headers, peer.parse().unwrap(), &proxies, by).to_string();
    assert_eq!(client("203.0.113.7", ForwardedBy::XForwardedFor), "203.0.113.7");
    assert_eq!(client("::ffff:203.0.113.7", ForwardedBy::XForwardedFor), "203.0.113.7");
    assert_eq!(client("::ffff:10.0.0.1", ForwardedBy::XForwardedFor), "9.9.9.9");
    // The other header is not read either.
    assert_eq!(client("10.0.0.1", ForwardedBy::Forwarded), "10.0.0.1");
}
