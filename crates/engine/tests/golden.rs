//! The messages for thirty kinds of mistakes, as they are read on a terminal. After a change on purpose: `BLESS=1`.

use std::fs;
use std::path::Path;

use tollgate_engine::rules::{Rules, Source};

#[test]
fn every_mistake_is_told_as_it_was() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden"));
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .filter_map(|file| file.ok()?.file_name().to_str()?.strip_suffix(".yaml").map(str::to_owned))
        .collect();
    names.sort_unstable();
    assert!(names.len() >= 30, "only {} files", names.len());
    let mut differing = Vec::new();
    for name in names {
        let text = fs::read(folder.join(format!("{name}.yaml"))).expect("a file");
        let mistakes = Rules::read(&[Source { name: "rules.yaml", text: &text }]).expect_err(&name);
        let told: String = mistakes.as_slice().iter().map(|mistake| mistake.detailed()).collect();
        let golden = folder.join(format!("{name}.txt"));
        if std::env::var_os("BLESS").is_some() {
            fs::write(&golden, &told).expect("a place to write");
        }
        if fs::read_to_string(&golden).unwrap_or_default() != told {
            differing.push(format!("{name}:\n{told}"));
        }
    }
    assert!(differing.is_empty(), "not as in the golden files:\n{}", differing.join("\n"));
}
