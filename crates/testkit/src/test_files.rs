//! Checks that a multi-file test program includes all of its files.

use std::fs;

/// Asserts that `main`, the text of `tests/main.rs` in `package`, declares every other file in its folder as a module.
/// Files in `apart` are separate programs and are skipped.
///
/// # Panics
/// Panics if a file is not declared, because its tests would not run.
pub fn assert_all_files_are_modules(package: &str, main: &str, apart: &[&str]) {
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
