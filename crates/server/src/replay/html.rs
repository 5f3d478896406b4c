//! Renders the report as a self-contained HTML page without scripts. The page supports light and dark mode.

use std::fmt::Write;

use super::report::{ComparisonReport, KeyCount, Report, RuleReport, RunReport, SuggestionReport};
use super::show::{
    BURST_COLUMNS_NOTE, candidate_table, format_comparison, format_duration, format_estimate, format_number,
    format_percent, format_time,
};
use super::svg::{self, escape};

/// Maximum number of keys listed in each table.
const MAX_LISTED_KEYS: usize = 10;
/// Maximum number of rules whose keys are listed.
const MAX_RULES_WITH_KEYS: usize = 6;

const STYLESHEET: &str = "\
:root{color-scheme:light dark;--bg:#fff;--fg:#1d2430;--soft:#5d6675;--line:#dfe3e9;--card:#f6f8fa;--bad:#c2362e;--note:#8a5d00}
@media(prefers-color-scheme:dark){:root{--bg:#14181f;--fg:#e3e8ef;--soft:#98a2b1;--line:#2c333e;--card:#1c222b;--bad:#ff8078;--note:#e0ad45}}
*{box-sizing:border-box}body{margin:0 auto;padding:24px;max-width:1080px;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif}
h1{font-size:22px;margin:0 0 4px}h2{font-size:17px;margin:36px 0 10px}h3{font-size:14px;margin:0 0 6px}p{margin:6px 0}
.soft{color:var(--soft)}.note{color:var(--note)}.cards{display:flex;flex-wrap:wrap;gap:12px;margin:18px 0}
.card{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:10px 16px;min-width:130px}
.card b{display:block;font-size:22px;font-variant-numeric:tabular-nums}.card .bad{color:var(--bad)}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:6px 10px;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th{color:var(--soft);font-weight:600;font-size:13px}th:first-child,td:first-child{text-align:left}
.keys{display:grid;grid-template-columns:repeat(auto-fit,minmax(290px,1fr));gap:18px}.keys td{white-space:normal}
.keys td:first-child{overflow-wrap:anywhere}.spark{height:20px}svg.rp:not(.spark){width:100%}
pre{background:var(--card);border:1px solid var(--line);border-radius:8px;padding:12px 16px;overflow-x:auto}
.bad{color:var(--bad)}.mark td{background:var(--card);font-weight:600}";

impl Report {
    /// Renders the report as an HTML page.
    pub fn to_html(&self) -> String {
        let mut page = format!(
            "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\
             <meta name=\"viewport\" content=\"width=device-width\"><title>Tollgate replay</title>\
             <style>{STYLESHEET}</style></head><body>\n<h1>Replay</h1>\n"
        );
        self.write_html_head(&mut page);
        if let Some(run) = &self.result {
            self.write_html_run(&mut page, run);
        }
        if let Some(comparison) = &self.against {
            write_comparison(&mut page, comparison);
        }
        if let Some(comparison) = &self.against_at_once {
            let _ =
                writeln!(page, "<p>If all requests of a second come at once: {}.</p>", format_comparison(comparison));
        }
        if let Some(suggestion) = &self.suggestion {
            write_suggestion(&mut page, suggestion);
        }
        page + "</body></html>\n"
    }

    fn write_html_head(&self, page: &mut String) {
        let logs: Vec<String> = self.logs.iter().take(5).map(|log| format!("{} ({})", log.name, log.format)).collect();
        let more = self.logs.len().saturating_sub(logs.len());
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        let span = match (self.first_ms, self.last_ms) {
            (Some(first), Some(last)) => {
                format!(
                    "{} to {} UTC, {}",
                    format_time(first),
                    format_time(last),
                    format_duration(last.saturating_sub(first))
                )
            }
            _ => "no requests".into(),
        };
        let _ = writeln!(
            page,
            "<p class=\"soft\">{}{more}<br>{span}, {} lines</p>",
            escape(&logs.join(", ")),
            format_number(self.lines)
        );
        for problem in &self.problems {
            let first = problem.first.as_deref().map(|first| format!("; the first is {first}")).unwrap_or_default();
            let lines = if problem.lines == 1 { "line" } else { "lines" };
            let text = format!("{} {lines} {}{first}", format_number(problem.lines), problem.description);
            let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(&text));
        }
        for error in &self.errors {
            let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(error));
        }
        for log in self.logs.iter().filter(|log| !log.missing_attributes.is_empty()) {
            let text = format!("{} does not have {}, which rules read", log.name, log.missing_attributes.join(", "));
            let _ = writeln!(page, "<p class=\"note\">{}</p>", escape(&text));
        }
    }

    fn write_html_run(&self, page: &mut String, run: &RunReport) {
        if run.overflowed > 0 {
            let times = format_number(run.overflowed);
            let _ = writeln!(page, "<p class=\"note\">Not exact: in {times} cases, a key had no table entry.</p>");
        }
        let share = format_percent(run.refused, run.requests);
        let refused = match &self.at_once {
            Some(at_once) if at_once.refused != run.refused => {
                format!("{share} – {}", format_percent(at_once.refused, at_once.requests))
            }
            Some(_) | None => share,
        };
        page.push_str("<div class=\"cards\">");
        for (value, name, class) in [
            (format_number(run.requests), "requests", ""),
            (format_number(run.refused), "refused", " class=\"bad\""),
            (refused, "of all requests", " class=\"bad\""),
            (format_number(run.shadow_refused), "refused by shadow rules", ""),
        ] {
            let _ = write!(page, "<div class=\"card\"><b{class}>{value}</b>{name}</div>");
        }
        page.push_str("</div>\n");
        if let Some(at_once) = &self.at_once {
            let _ = writeln!(
                page,
                "<p class=\"soft\">The log has whole seconds. If the requests of a second come evenly, {} are refused; if all come \
                 at its beginning, {}. Reality is usually in between. Everything below is for requests that come evenly.</p>",
                format_number(run.refused),
                format_number(at_once.refused)
            );
        }
        page.push_str("<h2>Over time</h2>\n");
        page.push_str(&svg::draw_timeline(&run.timeline));
        write_rules_table(page, &run.rules);
        write_rule_keys(page, &run.rules);
    }
}

fn write_rules_table(page: &mut String, rules: &[RuleReport]) {
    let has_delays = rules.iter().any(|rule| rule.delayed > 0);
    let has_shadow = rules.iter().any(|rule| rule.is_shadow || rule.shadow_refused > 0);
    let mut heads = vec!["rule", "matched", "refused"];
    heads.extend(has_delays.then_some("delayed"));
    heads.extend(has_shadow.then_some("refused in shadow"));
    heads.extend(["keys", "keys refused", "longest refusal", "refusals over time"]);
    let _ =
        writeln!(page, "<h2>Rules</h2>\n<div class=\"scroll\"><table><tr><th>{}</th></tr>", heads.join("</th><th>"));
    for rule in rules {
        let more = if rule.has_more_keys_refused { "≥ " } else { "" };
        let with_share = |part: u64, whole: u64| match part {
            0 => "0".into(),
            part => format!("{} <span class=\"soft\">({})</span>", format_number(part), format_percent(part, whole)),
        };
        let mut cells = vec![escape(&rule.rule), format_number(rule.matched), with_share(rule.refused, rule.matched)];
        cells.extend(has_delays.then(|| format_number(rule.delayed)));
        cells.extend(has_shadow.then(|| with_share(rule.shadow_refused, rule.matched)));
        cells.push(format_estimate(rule.keys));
        cells.push(format!("{more}{}", with_share(rule.keys_refused, rule.keys)));
        cells.push(format_duration(rule.longest_refusal_ms));
        cells.push(svg::draw_sparkline(&rule.timeline));
        let _ = writeln!(page, "<tr><td>{}</td></tr>", cells.join("</td><td>"));
    }
    page.push_str("</table></div>\n");
}

fn write_rule_keys(page: &mut String, rules: &[RuleReport]) {
    let mut listed: Vec<&RuleReport> =
        rules.iter().filter(|rule| !rule.top_charged.is_empty() || !rule.top_refused.is_empty()).collect();
    listed.sort_by_key(|rule| std::cmp::Reverse((rule.refused + rule.shadow_refused, rule.matched)));
    if listed.is_empty() {
        return;
    }
    page.push_str("<h2>Heaviest keys</h2>\n<div class=\"keys\">");
    for rule in listed.into_iter().take(MAX_RULES_WITH_KEYS) {
        write_keys_table(page, &format!("{}: most refused", rule.rule), "refusals", &rule.top_refused);
        write_keys_table(page, &format!("{}: most charged", rule.rule), "charged, about", &rule.top_charged);
    }
    page.push_str("</div>\n");
}

fn write_keys_table(page: &mut String, title: &str, what: &str, keys: &[KeyCount]) {
    if keys.is_empty() {
        return;
    }
    let _ = write!(page, "<div><h3>{}</h3><table><tr><th>key</th><th>{what}</th></tr>", escape(title));
    for key in keys.iter().take(MAX_LISTED_KEYS) {
        let about = if key.error > 0 { "≈ " } else { "" };
        let name = if key.key.is_empty() { "all requests" } else { &key.key };
        let _ = write!(page, "<tr><td>{}</td><td>{about}{}</td></tr>", escape(name), format_number(key.count));
    }
    page.push_str("</table></div>\n");
}

fn write_comparison(page: &mut String, comparison: &ComparisonReport) {
    let _ = writeln!(
        page,
        "<h2>Compared with the old rules</h2>\n<p>The old rules refused {} requests. {} requests of {} keys are newly refused, {} \
         requests of {} keys are no longer refused.</p>\n<div class=\"keys\">",
        format_number(comparison.refused_before),
        format_number(comparison.newly_refused),
        format_number(comparison.newly_refused_keys),
        format_number(comparison.relieved),
        format_number(comparison.relieved_keys)
    );
    write_keys_table(page, "Newly refused", "requests", &comparison.newly_refused_top);
    write_keys_table(page, "No longer refused", "requests", &comparison.relieved_top);
    page.push_str("</div>\n");
}

fn write_suggestion(page: &mut String, suggestion: &SuggestionReport) {
    let per = escape(&suggestion.per.join(", "));
    let _ = writeln!(
        page,
        "<h2>Suggested limits per {per}</h2>\n<p class=\"soft\">{} clients. The most requests of a client:</p>\n\
         <div class=\"scroll\"><table><tr><th>in</th><th>half of the clients</th><th>99 %</th><th>99.9 %</th><th>the busiest</th></tr>",
        format_number(suggestion.clients)
    );
    for peak in &suggestion.peaks {
        let counts = [peak.half, peak.most, peak.nearly_all, peak.max].map(format_number);
        let _ = writeln!(page, "<tr><td>{}</td><td>{}</td></tr>", peak.interval, counts.join("</td><td>"));
    }
    page.push_str("</table></div>\n<p class=\"soft\">Limits that never refuse 99.9 % of the clients:</p>\n");
    page.push_str(&svg::draw_bursts(suggestion));
    let (head, rows) = candidate_table(suggestion);
    let _ = writeln!(page, "<div class=\"scroll\"><table><tr><th>{}</th></tr>", head.join("</th><th>"));
    for (index, row) in rows.iter().enumerate() {
        let class = if index == suggestion.recommended { " class=\"mark\"" } else { "" };
        let cells: Vec<String> = row.iter().map(|cell| escape(cell)).collect();
        let _ = writeln!(page, "<tr{class}><td>{}</td></tr>", cells.join("</td><td>"));
    }
    let both = if suggestion.has_at_once_results() { escape(BURST_COLUMNS_NOTE) } else { String::new() };
    let _ = writeln!(
        page,
        "</table></div>\n<p class=\"soft\">{both}</p>\n<p class=\"soft\">The marked limit has the lowest maximum per minute. As a rule file:</p>\n<pre>{}</pre>",
        escape(&suggestion.rules)
    );
}
