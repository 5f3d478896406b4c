//! Per-rule counters.

use crate::support;

use support::test_bench;

#[test]
fn rule_counts_its_charges_but_not_refusals_by_other_rules() {
    let mut bench = test_bench("- {id: wide, limit: 100/h}\n- {id: narrow, limit: 62/h}\n");
    let allowed = (0..100).filter(|_| bench.check(&[]) == "allow").count();
    let rules = bench.engine.rules();
    let counted: Vec<_> =
        rules.rules().iter().map(|rule| (rule.meter().counts().allowed, rule.meter().counts().refused)).collect();
    assert_eq!((allowed, &*counted), (62, &[(62, 0), (62, 38)][..]));
    assert_eq!(bench.remaining(&[]), [38, 0]);
}
