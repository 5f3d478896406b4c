//! Suggestions for invalid YAML. The parser only reports an unexpected token. This module guesses the likely cause from
//! the line: a tab, or a brace, star or colon outside of quotes.

use super::super::glob::Glob;
use super::super::mistake::Position;
use super::super::raw::shorten;

/// Number of characters that are examined after the position.
const MAX_CHARS_AFTER: usize = 1024;

/// Returns the best position for a syntax error, and a suggestion if there is one.
pub(super) fn suggest_fix(text: &str, position: Position, message: &str) -> (Position, Option<String>) {
    if (message.contains("a tab") || message.starts_with("tabs"))
        && let Some(tab) = find_indentation_tab(text, position)
    {
        return (tab, Some("indent with spaces, not with tabs".into()));
    }
    let line: Vec<char> = line_at(text, position).chars().take(position.column as usize + MAX_CHARS_AFTER).collect();
    let at = (position.column as usize).saturating_sub(1).min(line.len());
    let help = suggest_quoting_braces(&line, at).or_else(|| match line.get(at) {
        Some('*') => Some(format!("quote a string that begins with a star: '{}'", value_around(&line, at, at))),
        Some(letter @ ('@' | '`' | '%')) if message.contains("unexpected character") => {
            Some(format!("quote a string that begins with `{letter}`"))
        }
        _ if message.starts_with("mapping values") => Some(suggest_fix_for_colon(&line[..at])),
        _ if message.contains("quoted scalar") => Some("is an earlier quote unclosed?".into()),
        _ if message.starts_with("illegal placement of ':'") => Some("is an earlier bracket or brace unclosed?".into()),
        _ => None,
    });
    (position, help)
}

fn line_at(text: &str, position: Position) -> &str {
    text.lines().nth((position.line as usize).saturating_sub(1)).unwrap_or_default()
}

/// Returns the first tab in the indentation of this line or the next line. The next line is searched because the parser
/// may stop at the end of the line before the tab.
fn find_indentation_tab(text: &str, position: Position) -> Option<Position> {
    let from = (position.line as usize).saturating_sub(1);
    text.lines().enumerate().skip(from).take(2).find_map(|(number, line)| {
        let indent = line.len() - line.trim_start_matches([' ', '\t']).len();
        let tab = line[..indent].find('\t')?;
        Some(Position { line: number as u32 + 1, column: tab as u32 + 1 })
    })
}

/// Suggests quotes for a pattern with `{name}`, which YAML parses as a map.
fn suggest_quoting_braces(line: &[char], at: usize) -> Option<String> {
    let ends = |letter: &char| letter.is_whitespace() || matches!(letter, ',' | '[' | '"' | '\'');
    let start = line[..at].iter().rposition(ends).map_or(0, |end| end + 1);
    let pattern = value_around(line, start, at);
    if Glob::is_pattern(&pattern) && pattern.contains('{') && Glob::new(&pattern).is_ok() {
        return Some(format!("quote a pattern with braces: '{pattern}'"));
    }
    let unquoted = start < at && line[start] != '{' && line.get(at) == Some(&'{');
    unquoted.then(|| "quote a string that contains a brace".into())
}

/// Returns the value that starts at `start`, including braces. The value ends where its element of a map or list ends.
/// A closing brace ends the value only at or after `at`.
fn value_around(line: &[char], start: usize, at: usize) -> String {
    let mut depth = 0_usize;
    let mut end = start;
    while let Some(letter) = line.get(end) {
        match letter {
            '{' => depth += 1,
            '}' if depth == 0 && end >= at => break,
            '}' => depth = depth.saturating_sub(1),
            ',' | ']' => break,
            letter if letter.is_whitespace() => break,
            _ => {}
        }
        end += 1;
    }
    shorten(&line[start..end].iter().collect::<String>())
}

/// Suggests a fix for a misplaced colon: inside a string, or after a misaligned key.
fn suggest_fix_for_colon(before: &[char]) -> String {
    let is_second = before.windows(2).any(|pair| pair[0] == ':' && pair[1].is_whitespace());
    match is_second {
        true => "quote a string that contains a colon and a space",
        false => "indent all keys of a map alike",
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::super::{MistakeCollector, parse_tree};

    fn assert_suggestion(text: &str, expected: &str) {
        let mut notes = MistakeCollector::new("f");
        assert!(parse_tree(text.as_bytes(), &mut notes).is_none(), "{text}");
        let found = notes.into_all().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        let (position, help) = expected.split_once(' ').unwrap();
        assert!(found.starts_with(&format!("f:{position}: invalid YAML: ")), "{found}");
        assert!(found.ends_with(&format!("; {help}")), "{found}");
    }

    #[test]
    fn tabs_are_reported_at_their_position() {
        let help = "indent with spaces, not with tabs";
        assert_suggestion("rules:\n- id: x\n\tlimit: 1/s\n", &format!("3:1 {help}"));
        assert_suggestion("rules:\n- when:\n  \tpath: /x\n", &format!("3:3 {help}"));
        assert_suggestion("rules:\n\t- id: x\n\t  limit: 1/s\n", &format!("2:1 {help}"));
    }

    #[test]
    fn unquoted_braces_suggest_quotes() {
        let help = "quote a pattern with braces:";
        assert_suggestion("- when: {path: /shops/{shop}/x}\n", &format!("1:23 {help} '/shops/{{shop}}/x'"));
        assert_suggestion(
            "- {id: x, when: {path: /shops/{shop}}, limit: 1/s}\n",
            &format!("1:31 {help} '/shops/{{shop}}'"),
        );
        assert_suggestion("- {id: x, when: {path: {shop}/x}, limit: 1/s}\n", &format!("1:30 {help} '{{shop}}/x'"));
        assert_suggestion("- when:\n    path: {shop}/x\n", &format!("2:17 {help} '{{shop}}/x'"));
        assert_suggestion("- when: {path: [/a/{b}, /c/{b}/d]}\n", &format!("1:20 {help} '/a/{{b}}'"));
        assert_suggestion("- when: {path: /ä/{é}/x, plan: {x}}\n", "1:19 quote a string that contains a brace");
        assert_suggestion("- when: {path: /login/{user, method: POST}\n", "1:23 quote a string that contains a brace");
    }

    #[test]
    fn unquoted_special_characters_suggest_quotes() {
        assert_suggestion(
            "- when: {host: *.example.com}\n",
            "1:16 quote a string that begins with a star: '*.example.com'",
        );
        assert_suggestion("- when:\n    host: *\n", "2:11 quote a string that begins with a star: '*'");
        assert_suggestion("- message: @foo\n", "1:12 quote a string that begins with `@`");
        assert_suggestion("- id: x\n  message: a: b\n", "2:13 quote a string that contains a colon and a space");
        assert_suggestion("- limit: 1/s\n   burst: 5\n", "2:9 indent all keys of a map alike");
    }

    #[test]
    fn unclosed_quotes_and_brackets_are_suspected() {
        assert_suggestion("- message: \"a: b\n  limit: 1/s\nx: y", "2:3 is an earlier quote unclosed?");
        assert_suggestion("- per: [a, b\n  burst: 5\n", "2:8 is an earlier bracket or brace unclosed?");
    }
}
