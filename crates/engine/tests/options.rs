//! Tests of limit options in rules, on a manual clock.

use crate::support;

use support::test_bench;
use tollgate::core::Nanos;

/// Sends 40 requests after each wait, and asserts how many are allowed.
fn assert_passing(rules: &str, waits_and_expected: &[(u64, usize)]) {
    let mut bench = test_bench(rules);
    for (seconds, expected) in waits_and_expected {
        bench.advance(Nanos::from_secs(*seconds));
        let passed = (0..40).filter(|_| bench.check(&[("user", "ann")]) == "allow").count();
        assert_eq!(passed, *expected, "after another {seconds} s with {rules}");
    }
}

#[test]
fn rates_may_be_written_in_words() {
    for rate in ["20/h", "5 per 15 minutes", "5/15m", "480/day", "0k/s"] {
        let text = format!("domain: d\nrules:\n- {{id: a, limit: {rate}, burst: 3}}\n");
        let source = tollgate_engine::rules::Source { name: "f", text: text.as_bytes() };
        if rate == "0k/s" {
            assert!(tollgate_engine::rules::Rules::read(&[source]).is_err());
            continue;
        }
        assert_passing(&format!("- {{id: a, limit: {rate}, burst: 3}}\n"), &[(0, 3), (179, 0), (1, 1), (360, 2)]);
    }
    assert_passing("- {id: a, limit: 1k/day, burst: 20}\n", &[(0, 20), (86, 0), (1, 1)]);
}

#[test]
fn buckets_start_with_initial_and_refill() {
    assert_passing("- {id: a, limit: 10/m, burst: 5, initial: 2}\n", &[(0, 2), (6, 1), (600, 5)]);
    assert_passing("- {id: a, limit: 10/m, algorithm: interval_bucket}\n", &[(0, 10), (19, 0), (60, 10)]);
    // The test starts 20 s into a minute. The first refill is 15 s into the next minute.
    assert_passing("- {id: a, limit: 10/m, algorithm: interval_bucket, offset: 15s}\n", &[(0, 10), (54, 0), (1, 10)]);
}

#[test]
fn windows_end_according_to_their_phase() {
    // The test starts 20 s into a minute.
    assert_passing("- {id: a, limit: 10/m, algorithm: fixed_window}\n", &[(0, 10), (39, 0), (1, 10)]);
    assert_passing(
        "- {id: a, limit: 10/m, algorithm: fixed_window, phase: first_request}\n",
        &[(0, 10), (59, 0), (1, 10)],
    );
    assert_passing("- {id: a, limit: 10/m, algorithm: sliding_window}\n", &[(0, 10), (40, 0), (30, 5)]);
    assert_passing(
        "- {id: a, limit: 10/m, algorithm: sliding_slices, precision: 20s}\n",
        &[(0, 10), (40, 0), (40, 10)],
    );
}

#[test]
fn sliding_log_is_exact_and_applies_gap_and_counted_refusals() {
    assert_passing("- {id: a, limit: 10/m, algorithm: sliding_log}\n", &[(0, 10), (59, 0), (1, 10)]);
    assert_passing("- {id: a, limit: 10/m, algorithm: sliding_log, minimum_gap: 2s}\n", &[(0, 1), (1, 0), (1, 1)]);
    let counting = "- {id: a, limit: 10/m, algorithm: sliding_log, count_refused: true}\n";
    assert_passing(counting, &[(0, 10), (59, 0), (1, 0), (59, 0), (60, 10)]);
}

#[test]
fn unreleased_slots_are_freed_after_their_lease() {
    assert_passing("- {id: a, limit: 3, algorithm: concurrency, lease: 10s}\n", &[(0, 3), (9, 0), (1, 3)]);
}

#[test]
fn strict_consistency_is_accepted() {
    assert_passing("- {id: a, limit: 2/h, consistency: strict}\n", &[(0, 2), (1800, 1)]);
}

#[test]
fn only_requires_exactly_these_attributes_in_order() {
    let mut bench = test_bench("- {id: a, only: [service, user], per: [user], limit: 1/h}\n");
    assert_eq!(bench.remaining(&[("service", "x"), ("user", "ann")]), [1]);
    assert!(bench.remaining(&[("user", "ann"), ("service", "x")]).is_empty());
    assert!(bench.remaining(&[("service", "x"), ("user", "ann"), ("more", "y")]).is_empty());
    assert!(bench.remaining(&[("service", "x")]).is_empty());
}
