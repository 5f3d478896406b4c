//! Command output: tables with local times and colours for people, and JSON for scripts.

use std::io::{self, IsTerminal, Write};

use clap::Args;
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::Serialize;
use serde_json::Value;
use tollgate::core::Nanos;
use tollgate_engine::HumanDuration;

/// The output format.
#[derive(Clone, Copy, Debug, Args)]
pub(in crate::cli) struct OutputArgs {
    /// Print one JSON document, as the server sent it, for scripts
    #[arg(long)]
    pub(in crate::cli) json: bool,
}

/// A table with aligned columns.
pub(in crate::cli) struct TextTable {
    rows: Vec<Vec<String>>,
}

impl TextTable {
    pub(in crate::cli) fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|name| (*name).to_owned()).collect()] }
    }

    pub(in crate::cli) fn add_row<const N: usize>(&mut self, cells: [String; N]) {
        self.rows.push(cells.map(|cell| replace_control_characters(&cell)).into());
    }

    pub(in crate::cli) fn is_empty(&self) -> bool {
        self.rows.len() == 1
    }

    /// Prints the table, or `empty` if it has no rows.
    pub(in crate::cli) fn print(&self, empty: &str) -> anyhow::Result<()> {
        let mut out = io::stdout().lock();
        Ok(if self.is_empty() { writeln!(out, "{empty}") } else { self.write(&mut out) }?)
    }

    /// Writes the table without trailing spaces.
    pub(in crate::cli) fn write(&self, out: &mut impl Write) -> io::Result<()> {
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

/// Replaces control characters and bidirectional overrides in untrusted text.
pub(in crate::cli) fn replace_control_characters(text: &str) -> String {
    let unsafe_char = |char: char| {
        char.is_control() || matches!(char, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    text.chars().map(|char| if unsafe_char(char) { '\u{fffd}' } else { char }).collect()
}

/// Formats a time in the time zone of this machine.
pub(in crate::cli) fn format_time(at_ms: i64) -> String {
    format_time_in(at_ms, TimeZone::system())
}

fn format_time_in(at_ms: i64, zone: TimeZone) -> String {
    match Timestamp::from_millisecond(at_ms) {
        Ok(at) => at.to_zoned(zone).strftime("%Y-%m-%d %H:%M:%S %Z").to_string(),
        Err(_) => format!("{at_ms} ms"),
    }
}

/// Formats a duration in the style of `tollgate explain`.
pub(in crate::cli) fn format_span(ms: u64) -> String {
    HumanDuration::new(Nanos::from_millis(ms)).to_string()
}

/// Prints a JSON document.
pub(in crate::cli) fn print_json(document: &impl Serialize) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    // Converts a JSON error back to an I/O error, so that a closed pipe is recognised.
    serde_json::to_writer_pretty(&mut out, document).map_err(io::Error::from)?;
    Ok(writeln!(out)?)
}

/// Formats a JSON value from a rule in one line.
pub(in crate::cli) fn format_value(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    }
}

/// Colours output, if enabled.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct DiffColours {
    on: bool,
}

impl DiffColours {
    /// Enables colour on a terminal, unless NO_COLOR is set (no-color.org) or TERM is `dumb`.
    pub(in crate::cli) fn new(out: &impl IsTerminal) -> Self {
        let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        Self { on: out.is_terminal() && !set("NO_COLOR") && !dumb }
    }

    /// Colours a line of a diff: additions green, deletions red, changes (`~`) yellow.
    pub(in crate::cli) fn colour_diff_line(self, line: &str) -> String {
        let line = replace_control_characters(line);
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
    fn columns_are_aligned_and_control_characters_replaced() {
        let mut table = TextTable::new(&["A", "LONG"]);
        table.add_row(["ä\x1b[31m".into(), String::new()]);
        table.add_row(["bbbbbb".into(), "c".into()]);
        let mut out = Vec::new();
        table.write(&mut out).unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), "A       LONG\nä\u{fffd}[31m\nbbbbbb  c\n");
    }

    #[test]
    fn times_are_local() {
        let berlin = TimeZone::get("Europe/Berlin").unwrap();
        assert_eq!(format_time_in(1_700_000_000_000, berlin), "2023-11-14 23:13:20 CET");
        assert_eq!(format_time_in(i64::MAX, TimeZone::UTC), "9223372036854775807 ms");
    }

    #[test]
    fn durations_are_formatted_as_in_explanations() {
        for (ms, expected) in [(0, "0s"), (999, "999ms"), (1_550, "1.55s"), (90_000, "1m 30s"), (864_000_001, "10d 1h")]
        {
            assert_eq!(format_span(ms), expected);
        }
    }
}
