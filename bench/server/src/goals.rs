//! Goals, and whether the measurements meet them.

use std::process::ExitCode;

/// The report lines, one per goal.
#[derive(Debug, Default)]
pub struct Goals(Vec<String>);

impl Goals {
    /// Adds a value that must be at least `goal`.
    pub fn at_least(&mut self, what: &str, value: f64, goal: f64) {
        self.print_goal(what, value, goal, value >= goal, "at least");
    }

    /// Adds a value that must be at most `goal`.
    pub fn at_most(&mut self, what: &str, value: f64, goal: f64) {
        self.print_goal(what, value, goal, value <= goal, "at most");
    }

    fn print_goal(&mut self, what: &str, value: f64, goal: f64, met: bool, words: &str) {
        self.0.push(format!("{} {what}: {value:.2}, {words} {goal:.2}", if met { "met   " } else { "MISSED" }));
    }

    /// Prints the lines, and returns status 1 if a goal was missed.
    pub fn report(&self) -> ExitCode {
        println!();
        self.0.iter().for_each(|line| println!("{line}"));
        if self.0.iter().any(|line| line.starts_with("MISSED")) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}
