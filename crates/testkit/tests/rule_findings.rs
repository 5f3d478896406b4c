//! Differences that the rule model found, as named traces, on the memory store.

use tollgate_testkit::rule_model::findings;
use tollgate_testkit::rule_model::memory::InMemory;

#[test]
fn memory_shows_none_of_the_known_differences() {
    let found = findings::differences(&mut InMemory::new());
    assert!(found.is_empty(), "{}", found.join("\n"));
}
