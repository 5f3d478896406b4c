// Properties that hold for all headers. This file is included by the fuzz target and by the test that replays the
// fuzzing corpus.

use std::net::IpAddr;

use http::{HeaderMap, HeaderValue};
use tollgate_http::{ByCookie, ForwardedBy, Identify, MAX_IDENTITY, RequestView, TrustedProxies, client_address};

/// Checks the properties for one input. Each line of the input becomes a header line; lines that are invalid in a
/// header are skipped.
pub fn check(input: &[u8]) {
    let proxies = TrustedProxies::parse(["10.0.0.0/8", "fd00::/8"]).expect("two networks");
    let (proxy, stranger) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([203, 0, 113, 7]));
    let lines: Vec<HeaderValue> =
        input.split(|byte| *byte == b'\n').filter_map(|line| HeaderValue::from_bytes(line).ok()).collect();
    for (by, name) in [(ForwardedBy::XForwardedFor, "x-forwarded-for"), (ForwardedBy::Forwarded, "forwarded")] {
        let mut headers = HeaderMap::new();
        lines.iter().for_each(|line| _ = headers.append(name, line.clone()));
        // The headers of untrusted peers are ignored, and a header that is not selected by `by` is never read.
        assert_eq!(client_address(&headers, stranger, &proxies, by), stranger);
        let other = if by == ForwardedBy::Forwarded { ForwardedBy::XForwardedFor } else { ForwardedBy::Forwarded };
        assert_eq!(client_address(&headers, proxy, &proxies, other), proxy);
        let client = client_address(&headers, proxy, &proxies, by);
        assert_eq!(client, client.to_canonical(), "an IPv4 address has one form");

        // The client's elements have no effect if a proxy appends an element, either to the same line or on a new line.
        let added = match by {
            ForwardedBy::XForwardedFor => "203.0.113.7, 10.0.0.2",
            ForwardedBy::Forwarded => "for=203.0.113.7;proto=https, for=\"10.0.0.2:80\"",
        };
        let mut on_another = headers.clone();
        on_another.append(name, HeaderValue::from_static(added));
        assert_eq!(client_address(&on_another, proxy, &proxies, by), stranger);
        if let Some(last) = lines.last()
            && let Ok(line) = HeaderValue::from_bytes(&[last.as_bytes(), b", ", added.as_bytes()].concat())
        {
            let mut on_the_same = headers.clone();
            on_the_same.append(name, line);
            assert_eq!(client_address(&on_the_same, proxy, &proxies, by), stranger);
        }
    }
    let mut request = http::Request::new(());
    lines.iter().for_each(|line| _ = request.headers_mut().append("cookie", line.clone()));
    if let Some(identity) = ByCookie::new("id").identify(&RequestView::new(&request)) {
        assert!(!identity.as_ref().is_empty() && identity.as_ref().len() <= MAX_IDENTITY);
    }
}
