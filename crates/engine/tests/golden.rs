//! The errors for each `golden/*.yaml`, as printed on a terminal, equal the `.txt` file with the same name.

use std::fs;
use std::path::Path;

use tollgate_engine::rules::{Rules, Source};
use tollgate_testkit::golden;

#[test]
fn rule_errors_equal_the_golden_files() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden"));
    let names: Vec<String> = fs::read_dir(folder)
        .expect("the folder of golden files")
        .filter_map(|file| file.ok()?.file_name().to_str()?.strip_suffix(".yaml").map(str::to_owned))
        .collect();
    assert!(names.len() >= 30, "only {} files", names.len());
    for name in names {
        let text = fs::read(folder.join(format!("{name}.yaml"))).expect("a readable file");
        let mistakes = Rules::read(&[Source { name: "rules.yaml", text: &text }]).expect_err(&name);
        golden!(name, mistakes.as_slice().iter().map(|mistake| mistake.to_detailed_text()).collect::<String>());
    }
}

#[test]
fn number_of_rules_that_always_match_together_is_bounded() {
    let rules = |name: &str, count: usize, rest: &str| -> String {
        (0..count).map(|n| format!("- {{id: {name}{n}, {rest}limit: 1/s}}\n")).collect()
    };
    let read = |groups: &[String]| {
        let text = format!("domain: api\nrules:\n{}", groups.concat());
        Rules::read(&[Source { name: "rules.yaml", text: text.as_bytes() }])
    };
    // Rules with the same conditions form a group, whose rules are counted. A rule without conditions counts in every
    // group, and a rule with an `if` counts in none, because it may not match.
    let always = rules("always", 56, "");
    let perhaps = rules("perhaps", 300, "when: {path: /v1/**}, if: \"int(size) > 9\", ");
    let same = rules("same", 200, "when: {path: /v1/**, method: GET}, ");
    assert!(read(&[always.clone(), perhaps, same.clone()]).is_ok(), "256 match together");
    let one_more = rules("reordered", 1, "when: {method: [GET], path: /v1/**}, ");
    let others = rules("other", 256, "when: {path: /v2/**}, ");
    let mistakes = read(&[same, one_more, always, others]).expect_err("257 match together");
    golden!(
        "too_many_rules_match_together",
        mistakes.as_slice().iter().map(|mistake| mistake.to_detailed_text()).collect::<String>()
    );
    assert!(read(&[rules("always", 257, "")]).is_err(), "every request matches 257");
}
