use super::*;
use sfv::{List, ListEntry, Parser};

fn limit_status(name: &str, index: usize, report: Report, window_ms: Option<u64>, refused: bool) -> LimitStatus<'_> {
    LimitStatus { name, index, report, window: window_ms.map(Nanos::from_millis), refused }
}

fn report_in_millis(limit: u64, remaining: u64, retry_ms: u64, reset_ms: u64) -> Report {
    let retry = Retry::After(Nanos::from_millis(retry_ms));
    Report { limit, remaining, retry, reset: Nanos::from_millis(reset_ms) }
}

fn write_list(write: fn(&mut String, &LimitStatus<'_>) -> fmt::Result, status: &[LimitStatus<'_>]) -> String {
    let mut list = String::new();
    status.iter().for_each(|status| push_element(&mut list, |list| write(list, status)));
    list
}

fn sample_limits() -> [LimitStatus<'static>; 3] {
    [
        limit_status("api", 0, report_in_millis(100, 99, 0, 600), Some(60_000), false),
        limit_status("api", 1, report_in_millis(u64::MAX - 1, 0, 1, 86_400_000), Some(1), true),
        limit_status("a\"ü", 0, report_in_millis(3, 2, 0, 0), None, false),
    ]
}

#[test]
fn limits_are_written_as_in_the_draft() {
    let expected = r#""api";q=100;w=60, "api:2";q=999999999999999;w=1, "a\"?";q=3;qu="concurrent-requests""#;
    assert_eq!(write_list(write_policy, &sample_limits()), expected);
    assert_eq!(write_list(write_status, &sample_limits()), r#""api";r=99;t=1, "api:2";r=0;t=1, "a\"?";r=2;t=0"#);
}

#[test]
fn structured_header_parser_accepts_the_lists() {
    for text in [write_list(write_policy, &sample_limits()), write_list(write_status, &sample_limits())] {
        let list: List = Parser::new(&text).parse().unwrap();
        let names = list.iter().map(|entry| match entry {
            ListEntry::Item(item) => item.bare_item.as_string().unwrap().as_str(),
            ListEntry::InnerList(_) => panic!("an inner list in {text}"),
        });
        assert_eq!(names.collect::<Vec<_>>(), ["api", "api:2", "a\"?"]);
    }
}

#[test]
fn long_name_is_truncated_and_missing_name_replaced() {
    let long = "x".repeat(MAX_NAME_CHARS + 1);
    let report = report_in_millis(1, 1, 0, 0);
    assert_eq!(
        write_list(write_status, &[limit_status(&long, 0, report, None, false)]),
        format!("\"{}\";r=1;t=0", "x".repeat(MAX_NAME_CHARS))
    );
    assert_eq!(write_list(write_status, &[limit_status("", 0, report, None, false)]), "\"default\";r=1;t=0");
}

#[test]
fn refusal_never_has_a_wait_of_zero() {
    assert_eq!(retry_after(Retry::NOW), 1);
    assert_eq!(retry_after(Retry::After(Nanos::from_nanos(1))), 1);
    assert_eq!(retry_after(Retry::After(Nanos::from_millis(1_001))), 2);
    assert_eq!(retry_after(Retry::OnRelease), 1);
    assert_eq!(retry_after(Retry::Never), 3_600);
}

#[track_caller]
fn check_headers(styles: Styles, retry: Option<Retry>, status: &[LimitStatus<'_>], expected: &[&str]) {
    let mut headers = HeaderMap::new();
    add(&mut headers, styles, retry, status.iter().copied());
    let mut lines: Vec<String> =
        headers.iter().map(|(name, value)| format!("{name}: {}", value.to_str().unwrap())).collect();
    lines.sort();
    assert_eq!(lines, expected);
}

#[test]
fn styles_can_be_chosen_and_combined() {
    let status = [
        limit_status("a", 0, report_in_millis(10, 4, 0, 9_000), Some(10_000), false),
        limit_status("b", 0, report_in_millis(5, 3, 0, 1_500), Some(1), false),
    ];
    check_headers(Styles::NONE, None, &status, &[]);
    let ietf = [r#"ratelimit-policy: "a";q=10;w=10, "b";q=5;w=1"#, r#"ratelimit: "a";r=4;t=9, "b";r=3;t=2"#];
    check_headers(Styles::IETF, None, &status, &ietf);
    let x = ["x-ratelimit-limit: 5", "x-ratelimit-remaining: 3", "x-ratelimit-reset: 2"];
    check_headers(Styles::X_RATE_LIMIT, None, &status, &x);
    check_headers(Styles::IETF.and(Styles::X_RATE_LIMIT), None, &status, &[&ietf[..], &x[..]].concat());
}

#[test]
fn refusal_lists_only_the_limits_that_refused() {
    let wait = Some(Retry::After(Nanos::from_millis(2_500)));
    let status = [
        limit_status("a", 0, report_in_millis(10, 0, 0, 9_000), Some(10_000), false),
        limit_status("b", 0, report_in_millis(5, 3, 2_500, 4_000), Some(1), true),
    ];
    let policies = r#"ratelimit-policy: "a";q=10;w=10, "b";q=5;w=1"#;
    check_headers(Styles::NONE, wait, &status, &["retry-after: 3"]);
    check_headers(Styles::IETF, wait, &status, &[policies, r#"ratelimit: "b";r=3;t=3"#, "retry-after: 3"]);
    let x = ["retry-after: 3", "x-ratelimit-limit: 5", "x-ratelimit-remaining: 3", "x-ratelimit-reset: 4"];
    check_headers(Styles::X_RATE_LIMIT, wait, &status, &x);
}

#[test]
fn listed_limits_are_bounded_and_unlimited_ones_are_omitted() {
    let unlimited = limit_status("u", 0, report_in_millis(u64::MAX, u64::MAX, 0, 0), None, false);
    check_headers(Styles::IETF.and(Styles::X_RATE_LIMIT), None, &[unlimited], &[]);
    let mut headers = HeaderMap::new();
    add(
        &mut headers,
        Styles::IETF,
        None,
        [limit_status("a", 0, report_in_millis(1, 1, 0, 0), None, false); MAX_LIMITS + 1],
    );
    assert_eq!(headers[RATE_LIMIT].to_str().unwrap().matches("\"a\"").count(), MAX_LIMITS);
}

#[test]
fn headers_of_another_limiter_are_kept() {
    let mut headers = HeaderMap::new();
    for (name, remaining) in [("inner", 1), ("outer", 2)] {
        let status = [limit_status(name, 0, report_in_millis(9, remaining, 0, 0), Some(1), false)];
        add(&mut headers, Styles::IETF.and(Styles::X_RATE_LIMIT), Some(Retry::OnRelease), status);
        add(&mut headers, Styles::IETF.and(Styles::X_RATE_LIMIT), None, status);
    }
    assert_eq!(headers.get_all(RATE_LIMIT).iter().count(), 2);
    assert_eq!(
        (&headers[X_RATE_LIMIT_REMAINING], &headers[RETRY_AFTER]),
        (&HeaderValue::from(1), &HeaderValue::from(1))
    );
}
