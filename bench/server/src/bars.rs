//! What was promised, and whether it is so.

use std::process::ExitCode;

/// Lines, one for each promise.
#[derive(Debug, Default)]
pub struct Bars(Vec<String>);

impl Bars {
    /// A figure that is not to be lower.
    pub fn at_least(&mut self, what: &str, value: f64, bar: f64) {
        self.line(what, value, bar, value >= bar, "at least");
    }

    /// A figure that is not to be higher.
    pub fn at_most(&mut self, what: &str, value: f64, bar: f64) {
        self.line(what, value, bar, value <= bar, "at most");
    }

    fn line(&mut self, what: &str, value: f64, bar: f64, met: bool, words: &str) {
        self.0.push(format!("{} {what}: {value:.2}, {words} {bar:.2}", if met { "met   " } else { "MISSED" }));
    }

    /// Prints them, and fails if one was missed.
    pub fn tell(&self) -> ExitCode {
        println!();
        self.0.iter().for_each(|line| println!("{line}"));
        if self.0.iter().any(|line| line.starts_with("MISSED")) { ExitCode::FAILURE } else { ExitCode::SUCCESS }
    }
}
