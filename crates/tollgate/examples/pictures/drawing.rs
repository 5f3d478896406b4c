//! Draws a timeline of passed, delayed and refused requests above a chart of the limit's state.
//!
//! The colours have medium brightness, so that they are visible on white and on black pages.

use std::fmt::Write;

use super::traffic::{PICTURE_DURATION, TrafficRecord};

const PICTURE_WIDTH: u64 = 760;
const AXIS_LEFT: u64 = 112;
const AXIS_RIGHT: u64 = 744;
const FIRST_LANE_TOP: u64 = 46;
const STROKE_HEIGHT: u64 = 16;
const LANE_SPACING: u64 = 8;
const WAIT_LINE_HEIGHT: u64 = 26;
const CHART_HEIGHT: u64 = 96;
const CHART_MARGIN: u64 = 18;

/// The CSS rules of a picture. Every rule begins with the class of the picture, because the picture may be embedded in
/// a page with its own style.
const PICTURE_STYLE: &str = ".tg{max-width:100%;height:auto}.tg text{font:12px system-ui,sans-serif;fill:#7b8492}\
    .tg .t{font-size:15px;font-weight:600}.tg .e{text-anchor:end}.tg .m{text-anchor:middle}\
    .tg path,.tg line{fill:none;stroke-width:1.6}.tg .g{stroke:#7b8492;stroke-opacity:.35;stroke-width:1}\
    .tg .c{stroke:#7b8492;stroke-dasharray:5 4;stroke-width:1.2}.tg .p{stroke:#2f86eb}.tg .d{stroke:#c98a00}\
    .tg .w{stroke-width:1;stroke-opacity:.6}.tg .r{stroke:#e5534b}.tg .s{stroke:#2da66f}\
    .tg .a{fill:#2da66f;fill-opacity:.15}";

/// Returns the picture as SVG.
pub(crate) fn draw(title: &str, story: &TrafficRecord) -> String {
    let (mut lanes, mut y) = (String::new(), FIRST_LANE_TOP);
    draw_ticks(&mut lanes, "passed", "p", &story.passed, &mut y);
    if !story.delayed.is_empty() {
        draw_waits(&mut lanes, &story.delayed, &mut y);
    }
    draw_ticks(&mut lanes, "refused", "r", &story.refused, &mut y);
    let top = y + CHART_MARGIN;
    let bottom = top + CHART_HEIGHT;
    let height = bottom + 40;
    let mut svg = format!(
        "<svg class=\"tg\" xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {PICTURE_WIDTH} {height}\" width=\"{PICTURE_WIDTH}\" height=\"{height}\" \
         role=\"img\"><title>{title}</title><style>{PICTURE_STYLE}</style>\n<text class=\"t\" x=\"16\" y=\"24\">{title}</text>\n"
    );
    draw_grid(&mut svg, bottom);
    svg.push_str(&lanes);
    draw_chart(&mut svg, story, top, bottom);
    svg + "</svg>\n"
}

/// Draws a lane with a stroke for each instant.
fn draw_ticks(svg: &mut String, name: &str, class: &str, moments: &[u64], y: &mut u64) {
    draw_label(svg, &format!("{name} {}", moments.len()), *y + 13);
    draw_path(svg, class, moments.iter().map(|at| format!("M{} {y}v{STROKE_HEIGHT}", x_of(*at))));
    *y += STROKE_HEIGHT + LANE_SPACING;
}

/// Draws a lane with a line for each delayed request, from its arrival at the top to a stroke at its departure.
fn draw_waits(svg: &mut String, delayed: &[(u64, u64)], y: &mut u64) {
    let end = *y + WAIT_LINE_HEIGHT;
    draw_label(svg, &format!("delayed {}", delayed.len()), *y + 10);
    draw_label(svg, "until", end + 13);
    let shown = || delayed.iter().filter(|(_, until)| *until <= PICTURE_DURATION);
    draw_path(svg, "d w", shown().map(|(from, until)| format!("M{} {y}L{} {end}", x_of(*from), x_of(*until))));
    draw_path(svg, "d", shown().map(|(_, until)| format!("M{} {end}v{STROKE_HEIGHT}", x_of(*until))));
    *y = end + STROKE_HEIGHT + LANE_SPACING;
}

fn draw_path(svg: &mut String, class: &str, strokes: impl Iterator<Item = String>) {
    let _ = writeln!(svg, "<path class=\"{class}\" d=\"{}\"/>", strokes.collect::<String>());
}

fn draw_label(svg: &mut String, text: &str, y: u64) {
    let _ = writeln!(svg, "<text class=\"e\" x=\"{}\" y=\"{y}\">{text}</text>", AXIS_LEFT - 12);
}

/// Draws a line every four seconds and a label every two seconds.
fn draw_grid(svg: &mut String, bottom: u64) {
    for second in (0..=PICTURE_DURATION / 1_000).step_by(2) {
        let x = x_of(second * 1_000);
        if second % 4 == 0 {
            let top = FIRST_LANE_TOP - 4;
            let _ = writeln!(svg, "<line class=\"g\" x1=\"{x}\" x2=\"{x}\" y1=\"{top}\" y2=\"{bottom}\"/>");
        }
        let _ = writeln!(svg, "<text class=\"m\" x=\"{x}\" y=\"{}\">{second} s</text>", bottom + 18);
    }
    let _ = writeln!(svg, "<line class=\"g\" x1=\"{AXIS_LEFT}\" x2=\"{AXIS_RIGHT}\" y1=\"{bottom}\" y2=\"{bottom}\"/>");
}

/// Draws the state as a line, and its maximum as a dashed line.
fn draw_chart(svg: &mut String, story: &TrafficRecord, top: u64, bottom: u64) {
    let most = story.line.iter().map(|(_, level)| *level).chain([story.limit * 100]).max().unwrap_or(1);
    let y = |level: u64| format_tenths(bottom * 10 - level * CHART_HEIGHT * 10 / most);
    let mut path = String::new();
    for place in 0..story.line.len() {
        let (at, level) = story.line[place];
        // Points on a straight line are omitted.
        let before = place.checked_sub(1).map(|place| story.line[place]);
        let after = story.line.get(place + 1);
        if let (Some(before), Some(after)) = (before, after)
            && (after.0 - at, level.abs_diff(after.1)) == (at - before.0, before.1.abs_diff(level))
            && (before.1 <= level) == (level <= after.1)
        {
            continue;
        }
        let _ = write!(path, "{}{} {}", if place == 0 { "M" } else { "L" }, x_of(at), y(level));
    }
    let limit = y(story.limit * 100);
    let _ = writeln!(svg, "<line class=\"c\" x1=\"{AXIS_LEFT}\" x2=\"{AXIS_RIGHT}\" y1=\"{limit}\" y2=\"{limit}\"/>");
    let _ = writeln!(svg, "<path class=\"a\" d=\"{path}L{AXIS_RIGHT} {bottom}L{AXIS_LEFT} {bottom}Z\"/>");
    let _ = writeln!(svg, "<path class=\"s\" d=\"{path}\"/>");
    draw_label(svg, &story.limit.to_string(), top + 4);
    draw_label(svg, story.shown, (top + bottom) / 2 + 4);
    draw_label(svg, "0", bottom + 4);
}

/// Returns the horizontal position of an instant.
fn x_of(at: u64) -> String {
    format_tenths(AXIS_LEFT * 10 + at.min(PICTURE_DURATION) * (AXIS_RIGHT - AXIS_LEFT) * 10 / PICTURE_DURATION)
}

fn format_tenths(number: u64) -> String {
    match (number / 10, number % 10) {
        (whole, 0) => whole.to_string(),
        (whole, part) => format!("{whole}.{part}"),
    }
}
