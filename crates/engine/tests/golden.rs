//! The errors about each `golden/*.yaml`, as printed on a terminal, are those of the `.txt` file of the same name.

use std::fs;
use std::path::Path;

use tollgate_engine::rules::{Rules, Source};
use tollgate_testkit::golden;

#[test]
fn errors_about_rules_are_those_of_the_golden_files() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden"));
    let names: Vec<String> = fs::read_dir(folder)
        .expect("the folder of golden files")
        .filter_map(|file| file.ok()?.file_name().to_str()?.strip_suffix(".yaml").map(str::to_owned))
        .collect();
    assert!(names.len() >= 30, "only {} files", names.len());
    for name in names {
        let text = fs::read(folder.join(format!("{name}.yaml"))).expect("a readable file");
        let mistakes = Rules::read(&[Source { name: "rules.yaml", text: &text }]).expect_err(&name);
        golden!(name, mistakes.as_slice().iter().map(|mistake| mistake.detailed()).collect::<String>());
    }
}
