//! Answers for people: columns, times of the clock on the wall, and colour where a terminal shows it.

use std::io::{self, IsTerminal, Write};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;
use serde_json::Value;
use tollgate::Nanos;
use tollgate_engine::Length;

/// Rows below a head, each column as wide as its widest cell.
pub(in crate::command) struct Table {
    rows: Vec<Vec<String>>,
}

impl Table {
    pub(in crate::command) fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|name| (*name).to_owned()).collect()] }
    }

    pub(in crate::command) fn row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| clean(&cell)).into());
    }

    pub(in crate::command) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// Without spaces at the end of a line.
    pub(in crate::command) fn write(&self, out: &mut impl Write) -> io::Result<()> {
        let columns = self.rows[0].len();
        let width = |column: usize| self.rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (cell, width) in row.iter().zip(&widths) {
                line.push_str(cell);
                line.extend(std::iter::repeat_n(' ', width - cell.chars().count() + 2));
            }
            writeln!(out, "{}", line.trim_end())?;
        }
        Ok(())
    }
}

/// A text of somebody else's, without anything a terminal would obey or read backwards.
pub(in crate::command) fn clean(text: &str) -> String {
    let obeyed = |letter: char| {
        letter.is_control()
            || matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|letter| if obeyed(letter) { '\u{fffd}' } else { letter }).collect()
}

/// A time by the clock of this machine.
pub(in crate::command) fn time(at_ms: i64) -> String {
    time_in(at_ms, TimeZone::system())
}

fn time_in(at_ms: i64, zone: TimeZone) -> String {
    match Timestamp::from_millisecond(at_ms) {
        Ok(at) => at.to_zoned(zone).strftime("%Y-%m-%d %H:%M:%S %Z").to_string(),
        Err(_) => format!("{at_ms} ms"),
    }
}

/// A length of time, in the words of `tollgate explain`.
pub(in crate::command) fn span(ms: u64) -> String {
    Length::new(Nanos::from_millis(ms)).to_string()
}

/// A count of things.
pub(in crate::command) fn count(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A document for scripts.
pub(in crate::command) fn json(document: &impl Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    // As an error of the stream, if it is one.
    serde_json::to_writer_pretty(&mut out, document).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}

/// A value of a rule in one line.
pub(in crate::command) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

/// Colour, or none.
#[derive(Clone, Copy, Debug)]
pub(in crate::command) struct Paint {
    on: bool,
}

impl Paint {
    /// For what goes there: only a terminal gets colour, and only if nobody asked for none (no-color.org).
    pub(in crate::command) fn new(out: &impl IsTerminal) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { on: out.is_terminal() && !set("NO_COLOR") && !dumb }
    }

    /// A line of a comparison: what is new in green, what is gone in red.
    pub(in crate::command) fn diff_line(self, line: &str) -> String {
        let line = clean(line);
        match line.trim_start().as_bytes().first() {
            Some(b'+') if self.on => format!("\x1b[32m{line}\x1b[0m"),
            Some(b'-') if self.on => format!("\x1b[31m{line}\x1b[0m"),
            Some(b'~') if self.on => format!("\x1b[33m{line}\x1b[0m"),
            _ => line,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_aligned_and_nothing_is_obeyed() {
        let mut table = Table::new(&["A", "LONG"]);
        table.row(["ä\x1b[31m".into(), String::new()]);
        table.row(["bbbbbb".into(), "c".into()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "A       LONG\nä\u{fffd}[31m\nbbbbbb  c\n");
    }

    #[test]
    fn times_are_those_on_the_wall() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        assert_eq!(time_in(1_700_000_000_000, berlin), "2023-11-14 23:13:20 CET");
        assert_eq!(time_in(i64::MAX, TimeZone::UTC), "9223372036854775807 ms");
    }

    #[test]
    fn spans_are_those_of_explanations() {
        for (ms, expected) in [(0, "0s"), (999, "999ms"), (1_550, "1.55s"), (90_000, "1m 30s"), (864_000_001, "10d 1h")]
        {
            assert_eq!(span(ms), expected);
        }
    }
}
