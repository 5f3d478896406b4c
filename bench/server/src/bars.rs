//! Goals, and whether the measurements meet them.

use std::process::ExitCode;

/// The report lines, one per goal.
#[derive(Debug, Default)]
pub struct Bars(Vec<String>);

impl Bars {
    /// Adds a value that must be at least `bar`.
    pub fn at_least(&mut self, what: &str, value: f64, bar: f64) {
        self.print_goal(what, value, bar, value >= bar, "at least");
    }

    /// Adds a value that must be at most `bar`.
    pub fn at_most(&mut self, what: &str, value: f64, bar: f64) {
        self.print_goal(what, value, bar, value <= bar, "at most");
    }

    fn print_goal(&mut self, what: &str, value: f64, bar: f64, met: bool, words: &str) {
        self.0.push(format!("{} {what}: {value:.2}, {words} {bar:.2}", if met { "met   " } else { "MISSED" }));
    }

    /// Prints the lines, and returns status 1 if a goal was missed.
    pub fn report(&self) -> ExitCode {
        println!();
        self.0.iter().for_each(|line| println!("{line}"));
        if self.0.iter().any(|line| line.starts_with("MISSED")) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}
