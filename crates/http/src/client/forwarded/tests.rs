use http::HeaderValue;

use super::*;

/// Who the client is when a proxy at 10.0.0.1 sends these lines, with `10.0.0.0/8` and `fd00::/8` trusted.
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
fn what_is_no_address_counts_with_the_proxy_that_wrote_it() {
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
fn empty_elements_are_passed_over() {
    for list in ["203.0.113.7,", "203.0.113.7, ,", ",,203.0.113.7,, ,10.0.0.2"] {
        check(ForwardedBy::XForwardedFor, &[list.as_bytes()], "203.0.113.7");
    }
    check(ForwardedBy::XForwardedFor, &[b"203.0.113.7", b""], "203.0.113.7");
    check(ForwardedBy::XForwardedFor, &[b",,"], "10.0.0.1");
}

#[test]
fn the_number_of_hops_and_the_length_of_an_element_are_bounded() {
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
    // However long what the client wrote is, it is not looked at.
    check(ForwardedBy::XForwardedFor, &[format!("{}, 203.0.113.7", "x,".repeat(100_000)).as_bytes()], "203.0.113.7");
}

#[test]
fn forwarded_is_read_as_the_standard_has_it() {
    for (list, expected) in [
        ("for=203.0.113.7", "203.0.113.7"),
        ("For=\"203.0.113.7:4711\"", "203.0.113.7"),
        ("for=\"[2001:db8::7]:4711\"", "2001:db8::7"),
        ("for=\"[2001:db8::7]\";proto=https;by=10.0.0.2", "2001:db8::7"),
        ("proto=https;for=203.0.113.7;host=\"a;for=9.9.9.9,b\"", "203.0.113.7"),
        ("for=9.9.9.9, for=203.0.113.7;proto=https, for=10.0.0.2", "203.0.113.7"),
        ("for=203.0.113.7 ; proto=https", "203.0.113.7"),
        // What the client left open does not swallow what the proxies wrote.
        ("for=\"9.9.9.9, for=203.0.113.7, for=10.0.0.2", "203.0.113.7"),
        ("for=9.9.9.9;host=\"x, for=203.0.113.7", "203.0.113.7"),
    ] {
        check(ForwardedBy::Forwarded, &[list.as_bytes()], expected);
    }
}

#[test]
fn what_is_not_written_as_the_standard_has_it_counts_with_the_proxy_that_wrote_it() {
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
        // One quoted text with escaped quotes in it: seen from the right it falls apart, and the part is no address.
        "for=203.0.113.7;host=\"a\\\", for=9.9.9.9;x=\\\"b\"",
    ] {
        check(ForwardedBy::Forwarded, &[malformed.as_bytes()], "10.0.0.1");
    }
}

#[test]
fn the_header_of_whoever_is_not_trusted_is_not_looked_at() {
    let mut headers = HeaderMap::new();
    headers.insert(X_FORWARDED_FOR, HeaderValue::from_static("9.9.9.9"));
    let proxies = TrustedProxies::parse(["10.0.0.0/8"]).unwrap();
    let client = |peer: &str, by| client_address(&headers, peer.parse().unwrap(), &proxies, by).to_string();
    assert_eq!(client("203.0.113.7", ForwardedBy::XForwardedFor), "203.0.113.7");
    assert_eq!(client("::ffff:203.0.113.7", ForwardedBy::XForwardedFor), "203.0.113.7");
    assert_eq!(client("::ffff:10.0.0.1", ForwardedBy::XForwardedFor), "9.9.9.9");
    // Nor is the other header.
    assert_eq!(client("10.0.0.1", ForwardedBy::Forwarded), "10.0.0.1");
}
