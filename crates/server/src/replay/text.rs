//! Renders the report as text for a terminal, with tables and bar charts.

use std::fmt::Write;

use super::report::{ComparisonReport, KeyCount, Report, RuleReport, RunReport, SuggestionReport, TimelineReport};
use super::show::{
    BURST_COLUMNS_NOTE, axis_time_label, candidate_table, format_comparison, format_duration, format_estimate,
    format_number, format_percent, format_time, join_columns, strip_control_characters,
};

/// The width of charts, in characters.
const CHART_WIDTH: usize = 64;
/// Maximum number of keys in each list.
const MAX_LISTED_KEYS: usize = 5;
/// Maximum number of rules whose keys are listed.
const MAX_RULES_WITH_KEYS: usize = 3;

impl Report {
    /// Renders the report for a terminal.
    pub fn to_text(&self) -> String {
        let mut out = String::new();
        self.write_log_summary(&mut out);
        match &self.result {
            Some(run) => self.write_run_result(&mut out, run),
            None if self.suggestion.is_none() => out.push_str("no rules: nothing was decided\n"),
            None => {}
        }
        if let Some(comparison) = &self.against {
            write_comparison(&mut out, comparison, self.result.as_ref().map_or(0, |run| run.requests));
        }
        if let Some(comparison) = &self.against_at_once {
            let _ = writeln!(out, "at once: {}", format_comparison(comparison));
        }
        if let Some(suggestion) = &self.suggestion {
            write_suggestion(&mut out, suggestion);
        }
        out
    }

    fn write_log_summary(&self, out: &mut String) {
        let mut formats: Vec<&str> = self.logs.iter().map(|log| &*log.format).collect();
        formats.sort_unstable();
        formats.dedup();
        let logs = if self.logs.len() == 1 { "log".to_owned() } else { format!("logs ({})", self.logs.len()) };
        let _ = writeln!(out, "{} lines of the {logs}, format {}", format_number(self.lines), formats.join(" and "));
        if let (Some(first), Some(last)) = (self.first_ms, self.last_ms) {
            let _ = writeln!(
                out,
                "from {} to {} UTC, {}",
                format_time(first),
                format_time(last),
                format_duration(last.saturating_sub(first))
            );
        }
        for problem in &self.problems {
            let first =
                problem.first.as_deref().map(|first| format!("; the first is {}", strip_control_characters(first)));
            let lines = if problem.lines == 1 { "line" } else { "lines" };
            let _ = writeln!(
                out,
                "! {} {lines} {}{}",
                format_number(problem.lines),
                problem.description,
                first.unwrap_or_default()
            );
        }
        for error in &self.errors {
            let _ = writeln!(out, "! {}", strip_control_characters(error));
        }
        for log in self.logs.iter().filter(|log| !log.missing_attributes.is_empty()) {
            let _ = writeln!(
                out,
                "! {} does not have {}, which rules read; name the field with --map, or set a value with --set",
                strip_control_characters(&log.name),
                log.missing_attributes.join(", ")
            );
        }
    }

    fn write_run_result(&self, out: &mut String, run: &RunReport) {
        if run.overflowed > 0 {
            let times = format_number(run.overflowed);
            let _ =
                writeln!(out, "! not exact: in {times} cases, a key had no table entry; choose a larger --capacity");
        }
        out.push('\n');
        let mut table = ReportTable::new(&["", "requests", "refused", "", "delayed", "shadow"]);
        let row = |name: &str, run: &RunReport| {
            let share = format_percent(run.refused, run.requests);
            let counts = [run.requests, run.refused, run.delayed, run.shadow_refused].map(format_number);
            let [requests, refused, delayed, shadow] = counts;
            vec![name.to_owned(), requests, refused, share, delayed, shadow]
        };
        match &self.at_once {
            Some(at_once) => {
                table.add_row(row("spread", run));
                table.add_row(row("at once", at_once));
            }
            None => table.add_row(row("all", run)),
        }
        table.write(out);
        if self.at_once.is_some() {
            out.push_str(
                "The log has whole seconds. `spread` assumes that the requests of a second come evenly,\n\
                 `at once` that all come at its beginning; reality is usually in between. Everything below is `spread`.\n",
            );
        }
        out.push('\n');
        write_rules_table(out, &run.rules);
        write_timeline(out, &run.timeline);
        let listed = |rule: &&RuleReport| !rule.top_refused.is_empty();
        let mut rules: Vec<&RuleReport> = run.rules.iter().filter(listed).collect();
        rules.sort_by_key(|rule| std::cmp::Reverse(rule.refused + rule.shadow_refused));
        for rule in rules.into_iter().take(MAX_RULES_WITH_KEYS) {
            write_key_list(out, &format!("most refused by {}", rule.rule), &rule.top_refused);
        }
    }
}

fn write_rules_table(out: &mut String, rules: &[RuleReport]) {
    let heads = ["rule", "matched", "refused", "", "delayed", "shadow", "keys", "keys refused", "", "longest refusal"];
    let mut table = ReportTable::new(&heads);
    for rule in rules {
        let more = if rule.has_more_keys_refused { "≥ " } else { "" };
        table.add_row(vec![
            rule.rule.clone(),
            format_number(rule.matched),
            format_number(rule.refused),
            format_percent(rule.refused, rule.matched),
            format_number(rule.delayed),
            format_number(rule.shadow_refused),
            format_estimate(rule.keys),
            format!("{more}{}", format_number(rule.keys_refused)),
            format_percent(rule.keys_refused, rule.keys),
            format_duration(rule.longest_refusal_ms),
        ]);
    }
    table.write(out);
}

fn write_timeline(out: &mut String, timeline: &TimelineReport) {
    let columns = timeline.admitted.len();
    if columns < 2 {
        return;
    }
    let sums = timeline.admitted.iter().zip(&timeline.refused).zip(&timeline.shadow_refused);
    let all: Vec<u64> = sums.map(|((admitted, refused), shadow)| admitted + refused + shadow).collect();
    let size = columns.div_ceil(CHART_WIDTH).max(1) as u64;
    let column = format_duration(timeline.column_ms * size);
    out.push('\n');
    for (name, counts) in [("requests", &all), ("refused", &timeline.refused), ("shadow", &timeline.shadow_refused)] {
        let counts = join_columns(counts, CHART_WIDTH);
        let most = counts.iter().copied().max().unwrap_or(0);
        if most > 0 {
            let _ = writeln!(
                out,
                "{name:>8} {}  at most {} in {column}",
                bar_characters(&counts, most),
                format_number(most)
            );
        }
    }
    let shown = columns.div_ceil(size as usize);
    let (start, end) = (timeline.start_ms, timeline.start_ms + timeline.column_ms * columns as u64);
    let step = timeline.column_ms * columns as u64 / 2;
    let (start, end) = (axis_time_label(start, step), axis_time_label(end, step));
    let _ = writeln!(out, "         {start}{end:>width$}", width = shown.saturating_sub(start.chars().count()));
}

/// Returns a bar character for each count, scaled to the largest count.
fn bar_characters(counts: &[u64], most: u64) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let bar = |count: &u64| match count {
        0 => ' ',
        count => BARS[((u128::from(*count) * 8).div_ceil(u128::from(most)) as usize - 1).min(7)],
    };
    counts.iter().map(bar).collect()
}

fn write_key_list(out: &mut String, title: &str, keys: &[KeyCount]) {
    let _ = writeln!(out, "\n{title}");
    for key in keys.iter().take(MAX_LISTED_KEYS) {
        let about = if key.error > 0 { "≈ " } else { "" };
        let name = if key.key.is_empty() { "all requests" } else { &key.key };
        let _ = writeln!(
            out,
            "  {:>12}  {}",
            format!("{about}{}", format_number(key.count)),
            strip_control_characters(name)
        );
    }
}

fn write_comparison(out: &mut String, comparison: &ComparisonReport, requests: u64) {
    let _ = writeln!(
        out,
        "\ncompared with the old rules, which refused {} ({})",
        format_number(comparison.refused_before),
        format_percent(comparison.refused_before, requests)
    );
    for (what, requests, keys, top) in [
        ("newly refused", comparison.newly_refused, comparison.newly_refused_keys, &comparison.newly_refused_top),
        ("no longer refused", comparison.relieved, comparison.relieved_keys, &comparison.relieved_top),
    ] {
        let _ = writeln!(out, "{what}: {} requests of {} keys", format_number(requests), format_number(keys));
        for key in top.iter().take(MAX_LISTED_KEYS) {
            let about = if key.error > 0 { "≈ " } else { "" };
            let _ = writeln!(
                out,
                "  {:>12}  {}",
                format!("{about}{}", format_number(key.count)),
                strip_control_characters(&key.key)
            );
        }
    }
}

fn write_suggestion(out: &mut String, suggestion: &SuggestionReport) {
    let per = suggestion.per.join(", ");
    let more = if suggestion.untracked_clients { "more than " } else { "" };
    let _ = writeln!(
        out,
        "\n{more}{} clients by {per}; the most requests of a client in",
        format_number(suggestion.clients)
    );
    let mut table = ReportTable::new(&["", "half of them", "99 %", "99.9 %", "the busiest"]);
    for peak in &suggestion.peaks {
        let name = if peak.interval == "hour" { "an hour" } else { &format!("a {}", peak.interval) };
        let mut row = vec![name.to_owned()];
        row.extend([peak.half, peak.most, peak.nearly_all, peak.max].map(format_number));
        table.add_row(row);
    }
    table.write(out);
    out.push_str("\nlimits that never refuse 99.9 % of the clients, and the requests that they would have refused\n");
    let (head, rows) = candidate_table(suggestion);
    let mut table = ReportTable::new(&head);
    for (index, mut row) in rows.into_iter().enumerate() {
        row[0].push_str(if index == suggestion.recommended { " *" } else { "" });
        table.add_row(row);
    }
    table.write(out);
    if suggestion.has_at_once_results() {
        let _ = writeln!(out, "{BURST_COLUMNS_NOTE}");
    }
    let _ = write!(out, "\n* lowest maximum per minute; as a rule file:\n\n{}", suggestion.rules);
}

/// A text table. The first column is left-aligned and all others are right-aligned.
struct ReportTable {
    rows: Vec<Vec<String>>,
}

impl ReportTable {
    fn new(head: &[&str]) -> Self {
        Self { rows: vec![head.iter().map(|cell| (*cell).to_owned()).collect()] }
    }

    fn add_row(&mut self, cells: Vec<String>) {
        self.rows.push(cells);
    }

    fn write(&self, out: &mut String) {
        let width = |column: usize| {
            self.rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<usize> = (0..self.rows[0].len()).map(width).collect();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                match column {
                    0 => line.push_str(&format!("{cell:<width$}")),
                    _ => line.push_str(&format!("  {cell:>width$}")),
                }
            }
            let _ = writeln!(out, "{}", line.trim_end());
        }
    }
}
