//! Checks that a test program made of several files has all of them.

use std::fs;

/// Asserts that `main`, the text of `tests/main.rs` in `package`, lists every other file of its folder as a module,
/// except those `apart`, which are separate programs.
///
/// # Panics
/// If a file is missing: its tests would not be run.
pub fn assert_all_listed(package: &str, main: &str, apart: &[&str]) {
    for file in fs::read_dir(format!("{package}/tests")).expect("the tests of the package") {
        let name = file.expect("an entry of the folder").file_name().into_string().expect("a name in UTF-8");
        let Some(module) = name.strip_suffix(".rs").filter(|module| *module != "main" && !apart.contains(module))
        else {
            continue;
        };
        assert!(
            main.lines().any(|line| line == format!("mod {module};")),
            "tests/{name} is not listed in tests/main.rs"
        );
    }
}
