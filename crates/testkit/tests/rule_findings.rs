//! Past differences between the rule model and the memory store, as named traces.

use tollgate_testkit::rule_model::findings;
use tollgate_testkit::rule_model::memory::InMemory;

#[test]
fn memory_shows_none_of_the_past_differences() {
    let found = findings::run_known_traces(&mut InMemory::new(), &[]);
    assert!(found.is_empty(), "{}", found.join("\n"));
}
