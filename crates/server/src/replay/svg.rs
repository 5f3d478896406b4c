//! Draws the charts of a report as SVG, for the HTML page and the documentation.
//!
//! Colours have medium brightness, so that they are visible on light and dark pages.

use std::fmt::Write;

use super::report::{SuggestionReport, TimelineReport};
use super::show::{axis_time_label, format_number, format_short};

const CHART_WIDTH: u64 = 760;
const PLOT_LEFT: u64 = 64;
const PLOT_RIGHT: u64 = 744;
/// Vertical distance between two panels.
const PANEL_GAP: u64 = 38;

/// Every style rule begins with the chart's class, so that it does not affect other parts of a page.
const CHART_STYLE: &str = ".rp{max-width:100%;height:auto;display:block}.rp text{font:12px system-ui,sans-serif;fill:#7b8492}\
    .rp .t{font-size:13px;font-weight:600}.rp .e{text-anchor:end}.rp .m{text-anchor:middle}\
    .rp line{stroke:#7b8492;stroke-opacity:.3;stroke-width:1}.rp .l{stroke:#e5534b;stroke-opacity:.8;stroke-dasharray:5 4}\
    .rp .a{fill:#2f86eb}.rp .s{fill:#c98a00}.rp .r{fill:#e5534b}\
    .rp .k{fill:none;stroke-width:2}.rp .k0{stroke:#8a63d2}.rp .k1{stroke:#2f86eb}.rp .k2{stroke:#2da66f}.rp .k3{stroke:#c98a00}\
    .rp .c0{fill:#8a63d2}.rp .c1{fill:#2f86eb}.rp .c2{fill:#2da66f}.rp .c3{fill:#c98a00}";

/// Draws requests over time and, below them, refused requests on a separate scale.
pub(super) fn draw_timeline(timeline: &TimelineReport) -> String {
    let none = vec![0; timeline.admitted.len()];
    let has = |counts: &[u64]| counts.iter().any(|count| *count > 0);
    let mut panels = vec![ChartPanel {
        title: "requests",
        height: 150,
        series: vec![("r", &timeline.refused), ("s", &timeline.shadow_refused), ("a", &timeline.admitted)],
    }];
    if has(&timeline.refused) {
        panels.push(ChartPanel { title: "refused", height: 80, series: vec![("r", &timeline.refused)] });
    }
    if has(&timeline.shadow_refused) {
        panels.push(ChartPanel {
            title: "refused by shadow rules",
            height: 80,
            series: vec![("s", &timeline.shadow_refused)],
        });
    }
    if timeline.admitted.is_empty() {
        panels[0].series = vec![("a", &none)];
    }
    let height = panels.iter().map(|panel| panel.height + PANEL_GAP).sum::<u64>() + 50;
    let mut svg = svg_start_tag(height, "Requests over time");
    draw_legend(&mut svg, &[("a", "admitted"), ("s", "refused by shadow rules only"), ("r", "refused")]);
    let mut top = 46;
    for panel in &panels {
        panel.draw(&mut svg, top, timeline.column_ms);
        top += panel.height + PANEL_GAP;
    }
    draw_time_axis(&mut svg, timeline, top - PANEL_GAP + 16);
    svg + "</svg>\n"
}

/// Stacked columns.
struct ChartPanel<'a> {
    title: &'static str,
    height: u64,
    /// The CSS class and the counts of each series, from bottom to top.
    series: Vec<(&'static str, &'a Vec<u64>)>,
}

impl ChartPanel<'_> {
    fn draw(&self, svg: &mut String, top: u64, column_ms: u64) {
        let columns = self.series[0].1.len().max(1);
        let sum = |column: usize| self.series.iter().filter_map(|(_, counts)| counts.get(column)).sum::<u64>();
        let most = round_up_axis_maximum((0..columns).map(sum).max().unwrap_or(0));
        let bottom = top + self.height;
        let y = |count: u64| bottom - (u128::from(count) * u128::from(self.height) / u128::from(most)) as u64;
        for part in 0..=2 {
            let count = most * part / 2;
            let _ = writeln!(svg, "<line x1=\"{PLOT_LEFT}\" x2=\"{PLOT_RIGHT}\" y1=\"{0}\" y2=\"{0}\"/>", y(count));
            draw_text(svg, "e", PLOT_LEFT - 8, y(count) + 4, &format_short(count));
        }
        let column = super::show::format_duration(column_ms);
        draw_text(svg, "t", PLOT_LEFT, top - 8, &format!("{} in {column}", self.title));
        let mut below = vec![0; columns];
        for (class, counts) in &self.series {
            let mut path = String::new();
            for (index, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
                let (from, to) = (column_left_x(index, columns), column_left_x(index + 1, columns));
                // Columns have a minimum height, so that small counts remain visible beside large ones.
                let high = (y(below[index]) * 10)
                    .saturating_sub((y(below[index]).saturating_sub(y(below[index] + count)) * 10).max(10));
                let (x, width, base) =
                    (format_tenths(from), format_tenths((to - from).max(10).saturating_sub(2)), y(below[index]));
                let _ = write!(path, "M{x} {base}V{}h{width}V{base}z", format_tenths(high));
                below[index] += count;
            }
            if !path.is_empty() {
                let _ = writeln!(svg, "<path class=\"{class}\" d=\"{path}\"/>");
            }
        }
    }
}

/// Returns the x coordinate of a column's left edge, in tenths of an SVG unit.
fn column_left_x(column: usize, columns: usize) -> u64 {
    PLOT_LEFT * 10 + (PLOT_RIGHT - PLOT_LEFT) * 10 * column as u64 / columns as u64
}

fn format_tenths(value: u64) -> String {
    match value % 10 {
        0 => (value / 10).to_string(),
        tenth => format!("{}.{tenth}", value / 10),
    }
}

/// Draws the time axis below the panels, with labels at round times.
fn draw_time_axis(svg: &mut String, timeline: &TimelineReport, y: u64) {
    const AXIS_STEPS_SECONDS: [u64; 18] =
        [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1_800, 3_600, 7_200, 21_600, 43_200, 86_400, 604_800, 7_862_400];
    let length = timeline.column_ms * timeline.admitted.len() as u64;
    if length == 0 {
        return;
    }
    let step =
        AXIS_STEPS_SECONDS.into_iter().map(|step| step * 1_000).find(|step| length / step <= 8).unwrap_or(length / 8);
    let mut at = timeline.start_ms.next_multiple_of(step);
    while at <= timeline.start_ms + length {
        let x = PLOT_LEFT + (PLOT_RIGHT - PLOT_LEFT) * (at - timeline.start_ms) / length;
        let class = if x > PLOT_RIGHT - 40 { "e" } else { "m" };
        draw_text(svg, class, x, y, &axis_time_label(at, step));
        at += step;
    }
}

/// Draws one line per rate, which shows the fraction of clients refused at least once as a function of the burst. Both
/// axes are logarithmic.
pub(super) fn draw_bursts(suggestion: &SuggestionReport) -> String {
    const CHART_HEIGHT: u64 = 300;
    const PLOT_TOP: u64 = 50;
    const PLOT_BOTTOM: u64 = 250;
    let mut svg = svg_start_tag(CHART_HEIGHT, "Clients ever refused, by burst");
    let names: Vec<String> = suggestion.candidates.iter().map(|candidate| candidate.limit.clone()).collect();
    const SERIES_CLASSES: [&str; 4] = ["c0", "c1", "c2", "c3"];
    let items: Vec<(&str, &str)> = SERIES_CLASSES.into_iter().zip(names.iter().map(String::as_str)).collect();
    draw_legend(&mut svg, &items);
    let most = suggestion.candidates.iter().filter_map(|candidate| candidate.needs.last()).map(|need| need.0).max();
    let most = most.unwrap_or(10).max(10) as f64;
    let x =
        |burst: u64| PLOT_LEFT as f64 + (PLOT_RIGHT - PLOT_LEFT) as f64 * (burst.max(1) as f64).log10() / most.log10();
    // The axis extends from all clients (top) to one client in ten thousand (bottom).
    let y = |share: f64| PLOT_TOP as f64 + (PLOT_BOTTOM - PLOT_TOP) as f64 * (-share.max(0.0001).log10() / 4.0);
    for (index, label) in ["100 %", "10 %", "1 %", "0.1 %", "0.01 %"].iter().enumerate() {
        let at = PLOT_TOP + (PLOT_BOTTOM - PLOT_TOP) * index as u64 / 4;
        let class = if *label == "0.1 %" { " class=\"l\"" } else { "" };
        let _ = writeln!(svg, "<line{class} x1=\"{PLOT_LEFT}\" x2=\"{PLOT_RIGHT}\" y1=\"{at}\" y2=\"{at}\"/>");
        draw_text(&mut svg, "e", PLOT_LEFT - 8, at + 4, label);
    }
    let ticks = (0..12).flat_map(|power| [1, 2, 5].map(|digit| digit * 10_u64.pow(power)));
    for tick in ticks.take_while(|tick| *tick as f64 <= most) {
        draw_text(&mut svg, "m", x(tick) as u64, PLOT_BOTTOM + 18, &format_short(tick));
    }
    draw_text(&mut svg, "t", PLOT_LEFT, PLOT_TOP - 12, "share of the clients that are ever refused, by burst");
    for (index, candidate) in suggestion.candidates.iter().enumerate() {
        let mut path = String::new();
        for (burst, needing_more) in &candidate.needs {
            let share = *needing_more as f64 / suggestion.clients.max(1) as f64;
            let command = if path.is_empty() { 'M' } else { 'L' };
            let _ = write!(path, "{command}{:.1} {:.1}", x(*burst), y(share));
        }
        let _ = writeln!(svg, "<path class=\"k k{index}\" d=\"{path}\"/>");
        let (cx, cy) = (x(candidate.burst), y(0.001));
        let _ = writeln!(svg, "<circle class=\"c{index}\" cx=\"{cx:.1}\" cy=\"{cy:.1}\" r=\"4\"/>");
    }
    let bursts: Vec<String> = suggestion
        .candidates
        .iter()
        .map(|candidate| format!("{} burst {}", candidate.limit, format_number(candidate.burst)))
        .collect();
    draw_text(
        &mut svg,
        "m",
        (PLOT_LEFT + PLOT_RIGHT) / 2,
        PLOT_BOTTOM + 40,
        &format!("one client in a thousand: {}", bursts.join(", ")),
    );
    svg + "</svg>\n"
}

/// Draws a small column chart for a table cell.
pub(super) fn draw_sparkline(counts: &[u64]) -> String {
    let most = counts.iter().copied().max().unwrap_or(0);
    if most == 0 {
        return String::new();
    }
    let mut path = String::new();
    for (index, count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        let height = (u128::from(*count) * 20).div_ceil(u128::from(most));
        let _ = write!(path, "M{index} 20v-{height}h1v{height}z");
    }
    let width = counts.len();
    format!(
        "<svg class=\"rp spark\" viewBox=\"0 0 {width} 20\" preserveAspectRatio=\"none\" width=\"120\" height=\"20\" \
         aria-hidden=\"true\"><path class=\"r\" d=\"{path}\"/></svg>"
    )
}

fn svg_start_tag(height: u64, title: &str) -> String {
    format!(
        "<svg class=\"rp\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {CHART_WIDTH} {height}\" width=\"{CHART_WIDTH}\" \
         height=\"{height}\" role=\"img\"><title>{title}</title><style>{CHART_STYLE}</style>\n"
    )
}

/// Draws the legend at the top right.
fn draw_legend(svg: &mut String, items: &[(&str, &str)]) {
    let mut x = PLOT_RIGHT;
    for (class, name) in items.iter().rev() {
        x -= 8 + 7 * name.chars().count() as u64;
        draw_text(svg, "", x, 16, name);
        x -= 16;
        let _ = writeln!(svg, "<rect class=\"{class}\" x=\"{x}\" y=\"7\" width=\"10\" height=\"10\" rx=\"2\"/>");
        x -= 10;
    }
}

fn draw_text(svg: &mut String, class: &str, x: u64, y: u64, text: &str) {
    let _ = writeln!(svg, "<text class=\"{class}\" x=\"{x}\" y=\"{y}\">{}</text>", escape(text));
}

/// Escapes text for HTML.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            letter if letter.is_control() && letter != '\n' => escaped.push('�'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// Rounds up to an even round number: 2, 4, 6, 8, 10, 12, 16, 20, 24, … times a power of ten.
fn round_up_axis_maximum(value: u64) -> u64 {
    let mut scale = 1;
    while value / scale >= 100 {
        scale *= 10;
    }
    let steps = [2, 4, 6, 8, 10, 12, 16, 20, 24, 30, 40, 50, 60, 80, 100];
    let fitting = steps.into_iter().map(|step| step * scale).find(|step| *step >= value);
    fitting.unwrap_or(100 * scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markup_in_names_is_escaped() {
        assert_eq!(escape("<b a=\"1\">'&\x07\n"), "&lt;b a=&quot;1&quot;&gt;&#39;&amp;�\n");
    }

    #[test]
    fn scales_end_on_round_numbers() {
        assert_eq!([0, 1, 7, 99, 101, 1_234, 98_765].map(round_up_axis_maximum), [2, 2, 8, 100, 120, 1_600, 100_000]);
    }
}
