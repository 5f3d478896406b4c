use http::HeaderValue;

use super::*;

/// Checks the client address for a request from the proxy 10.0.0.1 with these header lines. The networks `10.0.0.0/8`
/// and `fd00::/8` are trusted.
#[track_caller]
fn check_client_address(by: ForwardedBy, lines: &[&[u8]], expected: &str) {
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
    let check_client_address = |lines: &[&str], expected| {
        let lines: Vec<&[u8]> = lines.iter().map(|line| line.as_bytes()).collect();
        check_client_address(ForwardedBy::XForwardedFor, &lines, expected);
    };
    check_client_address(&[], "10.0.0.1");
    check_client_address(&["203.0.113.7"], "203.0.113.7");
    check_client_address(&["203.0.113.7, 10.0.0.2"], "203.0.113.7");
    check_client_address(&["9.9.9.9, 203.0.113.7, 10.0.0.2"], "203.0.113.7");
    check_client_address(&["9.9.9.9, 203.0.113.7", "10.0.0.3,10.0.0.2"], "203.0.113.7");
    check_client_address(&["10.0.0.9, 10.0.0.2"], "10.0.0.9");
    check_client_address(&["203.0.113.7:4711"], "203.0.113.7");
    check_client_address(&["2001:db8::7, fd00::1"], "2001:db8::7");
    check_client_address(&["[2001:db8::7]:4711, [fd00::1]"], "2001:db8::7");
    check_client_address(&["::ffff:203.0.113.7, ::ffff:10.0.0.2"], "203.0.113.7");
    check_client_address(&["\t 203.0.113.7 \t"], "203.0.113.7");
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
        check_client_address(ForwardedBy::XForwardedFor, &[malformed.as_bytes()], "10.0.0.1");
        check_client_address(
            ForwardedBy::XForwardedFor,
            &[format!("9.9.9.9, {malformed}, 10.0.0.2").as_bytes()],
            "10.0.0.2",
        );
    }
    check_client_address(ForwardedBy::XForwardedFor, &[b"203.0.113.7\xff"], "10.0.0.1");
}

#[test]
fn empty_elements_are_skipped() {
    for list in ["203.0.113.7,", "203.0.113.7, ,", ",,203.0.113.7,, ,10.0.0.2"] {
        check_client_address(ForwardedBy::XForwardedFor, &[list.as_bytes()], "203.0.113.7");
    }
    check_client_address(ForwardedBy::XForwardedFor, &[b"203.0.113.7", b""], "203.0.113.7");
    check_client_address(ForwardedBy::XForwardedFor, &[b",,"], "10.0.0.1");
}

#[test]
fn hops_and_element_length_are_bounded() {
    let through = |proxies: usize| format!("203.0.113.7{}", ", 10.0.0.2".repeat(proxies));
    check_client_address(ForwardedBy::XForwardedFor, &[through(MAX_HOPS - 1).as_bytes()], "203.0.113.7");
    check_client_address(ForwardedBy::XForwardedFor, &[through(MAX_HOPS).as_bytes()], "10.0.0.2");
    let commas = format!("203.0.113.7{}", ",".repeat(MAX_HOPS));
    check_client_address(ForwardedBy::XForwardedFor, &[commas.as_bytes()], "10.0.0.1");
    let wide = |length: usize| format!("{}203.0.113.7", " ".repeat(length - 11));
    for before in ["", "9.9.9.9,"] {
        check_client_address(
            ForwardedBy::XForwardedFor,
            &[format!("{before}{}", wide(MAX_ELEMENT)).as_bytes()],
            "203.0.113.7",
        );
        check_client_address(
            ForwardedBy::XForwardedFor,
            &[format!("{before}{}", wide(MAX_ELEMENT + 1)).as_bytes()],
            "10.0.0.1",
        );
    }
    // The client's part of the list is not read, even if it is very long.
    check_client_address(
        ForwardedBy::XForwardedFor,
        &[format!("{}, 203.0.113.7", "x,".repeat(100_000)).as_bytes()],
        "203.0.113.7",
    );
}

#[test]
fn forwarded_header_is_parsed_as_in_rfc_7239() {
    for (list, expected) in [
        ("for=203.0.113.7", "203.0.113.7"),
        ("For=\"203.0.113.7:4711\"", "203.0.113.7"),
        ("for=\"[2001:db8::7]:4711\"", "2001:db8::7"),
        ("for=\"[2001:db8::7]\";proto=https;by=10.0.0.2", "2001:db8::7"),
        ("proto=https;for=203.0.113.7;host=\"a;for=9.9.9.9,b\"", "203.0.113.7"),
        ("for=9.9.9.9, for=203.0.113.7;proto=https, for=10.0.0.2", "203.0.113.7"),
        ("for=203.0.113.7 ; proto=https", "203.0.113.7"),
        // An unclosed quote in the client's part does not hide the elements added by proxies.
        ("for=\"9.9.9.9, for=203.0.113.7, for=10.0.0.2", "203.0.113.7"),
        ("for=9.9.9.9;host=\"x, for=203.0.113.7", "203.0.113.7"),
    ] {
        check_client_address(ForwardedBy::Forwarded, &[list.as_bytes()], expected);
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
        // A quoted string with escaped quotes and a comma. Reading from the right splits the string at the comma, and
        // the last element is not an address.
        "for=203.0.113.7;host=\"a\\\", for=9.9.9.9;x=\\\"b\"",
    ] {
        check_client_address(ForwardedBy::Forwarded, &[malformed.as_bytes()], "10.0.0.1");
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
    // With `ForwardedBy::Forwarded`, `X-Forwarded-For` is not read.
    assert_eq!(client("10.0.0.1", ForwardedBy::Forwarded), "10.0.0.1");
}
