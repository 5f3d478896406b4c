use super::*;

/// Parses a limit with options and compares the result with `expected`.
fn assert_limit(limit: &str, words: &[(&str, &str)], expected: Result<Limit, &str>) {
    let option = |name: &str| words.iter().find(|(word, _)| *word == name).map(|(_, value)| *value);
    let read = parse_limit(&WrittenLimit {
        limit: Some(limit),
        algorithm: option("algorithm"),
        option: &option,
        position: 0,
        inherits: false,
    });
    let shown = read
        .map(|(limit, _)| limit)
        .map_err(|mistakes| mistakes.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"));
    assert_eq!(shown, expected.map_err(String::from), "for {limit:?} {words:?}");
}

const SECOND: Nanos = Nanos::SECOND;

#[test]
fn every_algorithm_is_parsed_with_its_options() {
    let rate = |text: &str| text.parse::<Rate>().unwrap();
    assert_limit("100/s", &[], Ok(TokenBucket::new(rate("100/s"), 100).unwrap().into()));
    assert_limit("5/15m", &[("burst", "1k")], Ok(TokenBucket::new(rate("5/15m"), 1000).unwrap().into()));
    assert_limit(
        "10/s",
        &[("algorithm", "token_bucket"), ("burst", "20"), ("initial", "5"), ("max_debt", "0")],
        Ok(TokenBucket::new(rate("10/s"), 20).unwrap().initial(5).unwrap().max_debt(0).unwrap().into()),
    );
    assert_limit(
        "10/s",
        &[("algorithm", "leaky_bucket"), ("burst", "20"), ("free", "5"), ("max_wait", "1500ms")],
        Ok(LeakyBucket::new(rate("10/s"), 20).unwrap().free(5).unwrap().max_wait(Nanos::from_millis(1500)).into()),
    );
    assert_limit(
        "100/day",
        &[("algorithm", "fixed_window"), ("phase", "spread")],
        Ok(FixedWindow::new(100, Nanos::from_secs(86_400)).unwrap().phase(Phase::Spread).into()),
    );
    assert_limit(
        "5/m",
        &[("algorithm", "sliding_log"), ("minimum_gap", "1s"), ("count_refused", "true")],
        Ok(SlidingLog::new(5, Nanos::from_secs(60)).unwrap().minimum_gap(SECOND).unwrap().count_refused().into()),
    );
    let interval = |count, secs| IntervalBucket::new(count, Nanos::from_secs(secs)).unwrap();
    assert_limit("5/15m", &[("algorithm", "interval_bucket")], Ok(interval(5, 900).into()));
    assert_limit(
        "5/m",
        &[("algorithm", "interval_bucket"), ("burst", "9"), ("offset", "20s"), ("max_wait", "2m"), ("initial", "1")],
        Ok(interval(5, 60)
            .burst(9)
            .unwrap()
            .steps(Steps::Aligned(Nanos::from_secs(20)))
            .max_wait(Nanos::from_secs(120))
            .unwrap()
            .initial(1)
            .unwrap()
            .into()),
    );
    assert_limit(
        "5/m",
        &[("algorithm", "interval_bucket"), ("phase", "first_request"), ("max_debt", "3")],
        Ok(interval(5, 60).steps(Steps::FirstRequest).max_debt(3).unwrap().into()),
    );
    let slices = |secs| SlidingSlices::new(5, Nanos::from_secs(60), Nanos::from_secs(secs)).unwrap();
    assert_limit("5/m", &[("algorithm", "sliding_slices")], Ok(slices(6).into()));
    assert_limit(
        "5/m",
        &[("algorithm", "sliding_slices"), ("precision", "1s"), ("initial", "2"), ("max_debt", "3")],
        Ok(slices(1).initial(2).unwrap().max_debt(3).unwrap().into()),
    );
    assert_limit("3", &[("algorithm", "concurrency")], Ok(Concurrency::new(3, DEFAULT_LEASE).unwrap().into()));
    assert_limit(
        "3",
        &[("algorithm", "concurrency"), ("lease", "5s")],
        Ok(Concurrency::new(3, Nanos::from_secs(5)).unwrap().into()),
    );
}

#[test]
fn window_length_is_the_written_period() {
    assert_limit(
        "5/15m",
        &[("algorithm", "sliding_window")],
        Ok(SlidingWindow::new(5, Nanos::from_secs(900)).unwrap().into()),
    );
    // This count is too large for a rate, but not for a window.
    assert_limit(
        "99999999977/day",
        &[("algorithm", "fixed_window")],
        Ok(FixedWindow::new(99_999_999_977, Nanos::from_secs(86_400)).unwrap().into()),
    );
}

#[test]
fn all_mistakes_are_reported_together() {
    assert_limit(
        "100/s",
        &[("algorithm", "fixed_window"), ("burst", "5"), ("phase", "epoc"), ("max_debt", "x")],
        Err(
            "burst: fixed_window has no option `burst`; it belongs to `token_bucket`, `leaky_bucket` and `interval_bucket`; fixed_window takes `phase`, `zone`, `anchor`, `initial` and `max_debt`\n\
             phase: `epoc` is not a phase; did you mean `epoch`?\n\
             max_debt: `x` is not a whole number; write it like 200 or 10k",
        ),
    );
    assert_limit(
        "100",
        &[("burst", "-1")],
        Err("limit: `100` is not a rate: there is no `/` between the count and the period; \
             write it like 100/s, 5/15m or 10k/day\n\
             burst: `-1` is not a whole number; write it like 200 or 10k"),
    );
    assert_limit(
        "0/s",
        &[],
        Err(
            "limit: the count of the rate is 0; it must be at least 1; to refuse everything write `deny: true` instead of `limit`",
        ),
    );
    assert_limit(
        "5/m",
        &[("algorithm", "sliding_slices"), ("precision", "0s")],
        Err("precision: the precision is 0; it must be at least 1"),
    );
    assert_limit("1/0s", &[], Err("limit: the period of the rate is 0; it must be at least 1"));
    assert_limit("10/s", &[("burst", "0")], Err("burst: the burst is 0; it must be at least 1"));
    assert_limit(
        "10/s",
        &[("algorithm", "concurrency"), ("lease", "soon")],
        Err("limit: `10/s` is not a number of slots; \
             concurrency counts requests in progress; write it like `limit: 10`\n\
             lease: `soon` is not a duration; write it like 500ms, 30s or 5m"),
    );
    assert_limit(
        "1/s",
        &[("algorithm", "leaky_bucket"), ("max_wait", "2")],
        Err("max_wait: `2` is not a duration; write it like 500ms, 30s or 5m"),
    );
    assert_limit(
        "2000/s",
        &[("algorithm", "sliding_log")],
        Err(
            "limit: the limit of a sliding log (for more, use slices or a window) is 2000; it must be between 1 and 1024",
        ),
    );
}

#[test]
fn invalid_options_of_interval_buckets_and_slices_are_refused() {
    assert_limit(
        "5/m",
        &[("algorithm", "interval_bucket"), ("phase", "first_request"), ("offset", "1s")],
        Err("offset: `offset` has no effect with `phase: first_request`; \
             remove it, or write `phase: epoch`"),
    );
    assert_limit(
        "5/m",
        &[("algorithm", "interval_bucket"), ("phase", "spread")],
        Err("phase: an interval bucket has no `phase: spread`; \
             valid: `epoch`, optionally with an `offset`, and `first_request`"),
    );
    assert_limit(
        "5/m",
        &[("algorithm", "sliding_slices"), ("precision", "100ms")],
        Err("precision: the number of slices (the length divided by the precision) is 600; \
             it must be between 1 and 64"),
    );
    assert_limit(
        "5/m",
        &[("algorithm", "sliding_slices"), ("burst", "5")],
        Err(
            "burst: sliding_slices has no option `burst`; it belongs to `token_bucket`, `leaky_bucket` and `interval_bucket`; sliding_slices takes `precision`, `initial` and `max_debt`",
        ),
    );
}

#[test]
fn counts_are_digits_with_an_optional_suffix() {
    for (text, count) in [("7", Some(7)), ("10k", Some(10_000)), ("2M", Some(2_000_000)), ("3G", Some(3_000_000_000))] {
        assert_eq!(parse_count(text), count);
    }
    for text in ["", "k", "+1", "1.5", " 1", "10kk", "18446744073709551616", "18446744073709551615k"] {
        assert_eq!(parse_count(text), None, "for {text:?}");
    }
}

#[test]
fn rates_in_other_words_get_a_suggestion() {
    for (text, expected) in [
        ("5 a minute", Some("`5 per minute` or `5/m`")),
        ("5 requests every 15 minutes", Some("`5 per 15 minutes`")),
        ("10k calls per day", Some("`10k per day` or `10k/day`")),
        ("100RPM", Some("`100/m`")),
        ("3x per hour", Some("`3 per hour` or `3/h`")),
        ("100 a year", Some("`100 per year` or `100/year`")),
        ("1.5/s", Some("`3 per 2 s`, in whole numbers")),
        ("0.25 per hour", Some("`1 per 4 hour`, in whole numbers")),
        ("2.0/s", Some("`2/s`, in whole numbers")),
        ("10,000/month", Some("`10000/month`")),
        ("1_000/s", Some("`1000/s`")),
        ("0 a minute", None),
        ("5 apples", None),
        ("five a minute", None),
        ("0.0000000000000000001/s", None),
        (".5/s", Some("`1 per 2 s`, in whole numbers")),
        ("1./s", None),
        ("/s", None),
        ("", None),
    ] {
        let written = suggest_rate(text);
        assert_eq!(written.as_deref(), expected, "for {text:?}");
        for example in written.iter().flat_map(|written| written.split('`').skip(1).step_by(2)) {
            let of_calendar = example.ends_with("month") || example.ends_with("year");
            assert!(of_calendar || parse_quota(example).is_ok(), "{example} is not a rate");
        }
    }
    let sent = LimitText { limit: "0/s", burst: None, algorithm: None }.read().unwrap_err();
    assert_eq!(sent.help, None, "requests have no `deny`");
}
