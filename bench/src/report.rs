//! The output lines, and the table of goals at the end.

use std::fmt;

/// The goal of a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Goal {
    /// The peer's number divided by our number is at least this value.
    RatioAtLeast(f64),
    /// Our number is at most this value, regardless of the peer's number.
    OursAtMost(f64),
    /// The peer's number divided by our number differs from 1 by at most this fraction.
    EqualWithin(f64),
}

impl Goal {
    fn is_met_by(self, row: &Row) -> bool {
        match self {
            Goal::RatioAtLeast(goal) => row.ratio() >= goal,
            Goal::OursAtMost(goal) => row.ours <= goal,
            Goal::EqualWithin(fraction) => (row.ratio() - 1.0).abs() <= fraction,
        }
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::RatioAtLeast(goal) => write!(out, "{goal}"),
            Goal::OursAtMost(goal) => write!(out, "<={goal}"),
            Goal::EqualWithin(fraction) => write!(out, "±{}%", fraction * 100.0),
        }
    }
}

/// One comparison. Unless the goal is equality, smaller numbers and larger ratios are better.
#[derive(Debug)]
pub(crate) struct Row {
    /// Name of the case. The filter applies to this name.
    pub(crate) case: String,
    /// Our number.
    pub(crate) ours: f64,
    /// The name of the peer.
    pub(crate) peer: String,
    /// The peer's number, in the same unit as ours.
    pub(crate) theirs: f64,
    /// The goal, if there is one.
    pub(crate) goal: Option<Goal>,
}

impl Row {
    fn ratio(&self) -> f64 {
        self.theirs / self.ours
    }

    fn verdict(&self) -> Option<Verdict<'_>> {
        let goal = self.goal?;
        Some(Verdict { row: self, goal, pass: goal.is_met_by(self) })
    }
}

impl fmt::Display for Row {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "case={} ours={} peer={} theirs={} ratio={:.2}",
            self.case,
            Number(self.ours),
            self.peer,
            Number(self.theirs),
            self.ratio()
        )?;
        match self.verdict() {
            Some(verdict) => write!(out, " goal={} {}", verdict.goal, verdict.word()),
            None => Ok(()),
        }
    }
}

/// A row with a goal, and whether the goal is met.
struct Verdict<'a> {
    row: &'a Row,
    goal: Goal,
    pass: bool,
}

impl Verdict<'_> {
    fn word(&self) -> &'static str {
        if self.pass { "pass" } else { "FAIL" }
    }
}

/// Formats a measurement with a suitable number of decimals.
struct Number(f64);

impl fmt::Display for Number {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0.abs() {
            small if small < 10.0 => write!(out, "{:.2}", self.0),
            middle if middle < 1_000.0 => write!(out, "{:.1}", self.0),
            _ => write!(out, "{:.0}", self.0),
        }
    }
}

/// The selected cases and their results.
#[derive(Debug)]
pub(crate) struct Report {
    filter: String,
    rows: Vec<Row>,
}

impl Report {
    /// Creates a report on the cases whose name contains `filter`.
    pub(crate) fn new(filter: &str) -> Self {
        Report { filter: filter.to_owned(), rows: Vec::new() }
    }

    /// Returns whether the filter selects this case.
    pub(crate) fn includes(&self, case: &str) -> bool {
        case.contains(&self.filter)
    }

    /// Prints the heading of the next rows, with their unit.
    pub(crate) fn print_section(&self, text: &str) {
        println!("\n# {text}");
    }

    /// Prints a row and stores it for the table.
    pub(crate) fn add_row(&mut self, row: Row) {
        println!("{row}");
        self.rows.push(row);
    }

    /// Returns whether nothing was measured: the filter matches no case, or only cases that need valgrind, which is not
    /// installed.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Prints the table of goals; returns `true` if all are met.
    pub(crate) fn finish(&self) -> bool {
        let verdicts: Vec<Verdict<'_>> = self.rows.iter().filter_map(Row::verdict).collect();
        if verdicts.is_empty() {
            return true;
        }
        println!("\n# goals");
        println!("{:<28} {:>10} {:>10} {:<24} {:>7} {:>7}", "case", "ours", "theirs", "peer", "ratio", "goal");
        for verdict in &verdicts {
            let row = verdict.row;
            println!(
                "{:<28} {:>10} {:>10} {:<24} {:>7.2} {:>7} {}",
                row.case,
                Number(row.ours).to_string(),
                Number(row.theirs).to_string(),
                row.peer,
                row.ratio(),
                verdict.goal.to_string(),
                verdict.word()
            );
        }
        let passed = verdicts.iter().filter(|verdict| verdict.pass).count();
        println!("{passed} of {} goals met", verdicts.len());
        passed == verdicts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row_with_goal(goal: Option<Goal>) -> Row {
        Row { case: "keyed-million".to_owned(), ours: 250.0, peer: "governor-dashmap".to_owned(), theirs: 600.0, goal }
    }

    #[test]
    fn lines_have_the_documented_format() {
        let line = "case=keyed-million ours=250.0 peer=governor-dashmap theirs=600.0 ratio=2.40";
        assert_eq!(row_with_goal(None).to_string(), line);
        let check = |goal, expected: &str| {
            assert_eq!(row_with_goal(Some(goal)).to_string(), format!("{line} {expected}"));
        };
        check(Goal::RatioAtLeast(1.8), "goal=1.8 pass");
        check(Goal::RatioAtLeast(2.5), "goal=2.5 FAIL");
        check(Goal::OursAtMost(250.0), "goal=<=250 pass");
        check(Goal::OursAtMost(160.0), "goal=<=160 FAIL");
        check(Goal::EqualWithin(0.01), "goal=±1% FAIL");
    }
}
