//! Golden files: output that is compared word for word with a file under `tests/golden/` of the crate under test.
//!
//! `golden!("warnings/costs", output)` compares `output` with `tests/golden/warnings/costs.txt` and panics with the
//! lines that differ. With `BLESS=1` in the environment the file is written instead; `git diff` shows the changes.
//! [`Page`] collects several inputs and their outputs in one file. Only one test may use a file, because tests run in
//! parallel.

use std::fmt::Write;
use std::path::Path;

/// Compares a string with `tests/golden/NAME.txt` of the crate under test, or writes that file if `BLESS` is set.
#[macro_export]
macro_rules! golden {
    ($name:expr, $actual:expr) => {
        $crate::golden::check(
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/golden/{}.txt", $name)),
            $actual.as_ref(),
        )
    };
}

/// Compares a string with a golden file, or writes the file if `BLESS` is set.
///
/// # Panics
///
/// Panics if the file is missing or differs from `actual`, or if `BLESS` is set and the file cannot be written.
#[track_caller]
pub fn check(path: impl AsRef<Path>, actual: &str) {
    let path = path.as_ref();
    if std::env::var_os("BLESS").is_some() {
        std::fs::create_dir_all(path.parent().expect("a file in a directory")).expect("a writable directory");
        std::fs::write(path, actual).expect("a writable golden file");
        return;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        expected == actual,
        "{} differs (- expected, + actual); run this test with BLESS=1 if the change is intended\n{}",
        path.display(),
        differing_lines(&expected, actual)
    );
}

/// Returns the lines between the common prefix and the common suffix of two strings.
fn differing_lines(expected: &str, actual: &str) -> String {
    let (expected, actual): (Vec<&str>, Vec<&str>) =
        (expected.split_inclusive('\n').collect(), actual.split_inclusive('\n').collect());
    let start = expected.iter().zip(&actual).take_while(|(left, right)| left == right).count();
    let (expected, actual) = (&expected[start..], &actual[start..]);
    let end = expected.iter().rev().zip(actual.iter().rev()).take_while(|(left, right)| left == right).count();
    let mut lines = format!("from line {}:\n", start + 1);
    for (sign, side) in [('-', &expected[..expected.len() - end]), ('+', &actual[..actual.len() - end])] {
        for line in side {
            let newline = if line.ends_with('\n') { "" } else { "\\ no newline at end\n" };
            let _ = write!(lines, "{sign} {line}{newline}");
        }
    }
    lines
}

/// Contents of a golden file with several inputs and their outputs.
#[derive(Debug, Default)]
pub struct Page(String);

impl Page {
    /// Adds an input and its output.
    pub fn add_case(&mut self, input: &str, output: &str) {
        if !self.0.is_empty() {
            self.0.push('\n');
        }
        for line in input.lines() {
            let _ = writeln!(self.0, "> {line}");
        }
        self.0.push_str(output);
        if !output.is_empty() && !output.ends_with('\n') {
            self.0.push('\n');
        }
    }
}

impl AsRef<str> for Page {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn difference_shows_only_the_lines_that_differ() {
        assert_eq!(differing_lines("a\nb\nc\n", "a\nx\ny\nc\n"), "from line 2:\n- b\n+ x\n+ y\n");
        assert_eq!(differing_lines("", "a"), "from line 1:\n+ a\\ no newline at end\n");
        assert_eq!(differing_lines("a\na\n", "a\n"), "from line 2:\n- a\n");
    }

    #[test]
    fn page_separates_inputs_from_outputs() {
        let mut page = Page::default();
        page.add_case("- {id: a}\n", "rules:1:1: no limit");
        page.add_case("one\ntwo", "");
        assert_eq!(page.as_ref(), "> - {id: a}\nrules:1:1: no limit\n\n> one\n> two\n");
    }

    #[test]
    #[should_panic(expected = "differs (- expected, + actual); run this test with BLESS=1")]
    fn missing_file_fails_the_test() {
        check("no/such/file.txt", "output\n");
    }
}
