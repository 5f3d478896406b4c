//! What would be right where a file is not even YAML. The parser says what it did not expect; what people meant is guessed from the
//! line: they forgot that YAML has a meaning for tabs, and for braces, stars and colons that are not in quotes.

use super::super::glob::Glob;
use super::super::mistake::Place;
use super::super::raw::shorten;

/// So much of a line is looked at behind the place.
const MAX_BEHIND: usize = 1024;

/// Where it is best told that a text cannot be read, and what would be right, if that can be said.
pub(super) fn help(text: &str, place: Place, message: &str) -> (Place, Option<String>) {
    if (message.contains("a tab") || message.starts_with("tabs"))
        && let Some(tab) = tab_from(text, place)
    {
        return (tab, Some("indent with spaces, not with tabs".into()));
    }
    let line: Vec<char> = line(text, place).chars().take(place.column as usize + MAX_BEHIND).collect();
    let at = (place.column as usize).saturating_sub(1).min(line.len());
    let help = in_braces(&line, at).or_else(|| match line.get(at) {
        Some('*') => Some(format!("quote a text that begins with a star: '{}'", word(&line, at, at))),
        Some(letter @ ('@' | '`' | '%')) if message.contains("unexpected character") => {
            Some(format!("quote a text that begins with `{letter}`"))
        }
        _ if message.starts_with("mapping values") => Some(in_place_of_a_value(&line[..at])),
        _ if message.contains("quoted scalar") => Some("is a quote before this left open?".into()),
        _ if message.starts_with("illegal placement of ':'") => {
            Some("is a bracket or a brace before this left open?".into())
        }
        _ => None,
    });
    (place, help)
}

fn line(text: &str, place: Place) -> &str {
    text.lines().nth((place.line as usize).saturating_sub(1)).unwrap_or_default()
}

/// The first line from there on that a tab indents: the parser may still have been at the end of the one before.
fn tab_from(text: &str, place: Place) -> Option<Place> {
    let from = (place.line as usize).saturating_sub(1);
    text.lines().enumerate().skip(from).take(2).find_map(|(number, line)| {
        let indent = line.len() - line.trim_start_matches([' ', '\t']).len();
        let tab = line[..indent].find('\t')?;
        Some(Place { line: number as u32 + 1, column: tab as u32 + 1 })
    })
}

/// A pattern with a name in braces, which are those of a map unless they are in quotes.
fn in_braces(line: &[char], at: usize) -> Option<String> {
    let ends = |letter: &char| letter.is_whitespace() || matches!(letter, ',' | '[' | '"' | '\'');
    let start = line[..at].iter().rposition(ends).map_or(0, |end| end + 1);
    let pattern = word(line, start, at);
    if Glob::is_meant(&pattern) && pattern.contains('{') && Glob::new(&pattern).is_ok() {
        return Some(format!("quote a pattern with braces: '{pattern}'"));
    }
    let left_open = start < at && line[start] != '{' && line.get(at) == Some(&'{');
    left_open.then(|| "quote a text that has a brace".into())
}

/// From `start` to where a value in a map or a list ends, not before `at`. Braces within belong to it.
fn word(line: &[char], start: usize, at: usize) -> String {
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

/// A colon where none may be: in a text, or behind a key that does not stand below the others.
fn in_place_of_a_value(before: &[char]) -> String {
    let is_second = before.windows(2).any(|pair| pair[0] == ':' && pair[1].is_whitespace());
    match is_second {
        true => "quote a text that has a colon and a space",
        false => "indent all keys of a map alike",
    }
    .into()
}

#[cfg(test)]
mod tests {
    use super::super::{Notes, read};

    fn check(text: &str, expected: &str) {
        let mut notes = Notes::new("f");
        assert!(read(text.as_bytes(), &mut notes).is_none(), "{text}");
        let told = notes.into_all().iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        let (place, help) = expected.split_once(' ').unwrap();
        assert!(told.starts_with(&format!("f:{place}: this cannot be read: ")), "{told}");
        assert!(told.ends_with(&format!("; {help}")), "{told}");
    }

    #[test]
    fn tabs_are_pointed_at() {
        let help = "indent with spaces, not with tabs";
        check("rules:\n- id: x\n\tlimit: 1/s\n", &format!("3:1 {help}"));
        check("rules:\n- when:\n  \tpath: /x\n", &format!("3:3 {help}"));
        check("rules:\n\t- id: x\n\t  limit: 1/s\n", &format!("2:1 {help}"));
    }

    #[test]
    fn patterns_with_braces_are_to_be_quoted() {
        let help = "quote a pattern with braces:";
        check("- when: {path: /shops/{shop}/x}\n", &format!("1:23 {help} '/shops/{{shop}}/x'"));
        check("- {id: x, when: {path: /shops/{shop}}, limit: 1/s}\n", &format!("1:31 {help} '/shops/{{shop}}'"));
        check("- {id: x, when: {path: {shop}/x}, limit: 1/s}\n", &format!("1:30 {help} '{{shop}}/x'"));
        check("- when:\n    path: {shop}/x\n", &format!("2:17 {help} '{{shop}}/x'"));
        check("- when: {path: [/a/{b}, /c/{b}/d]}\n", &format!("1:20 {help} '/a/{{b}}'"));
        check("- when: {path: /ä/{é}/x, plan: {x}}\n", "1:19 quote a text that has a brace");
        check("- when: {path: /login/{user, method: POST}\n", "1:23 quote a text that has a brace");
    }

    #[test]
    fn other_letters_that_mean_something_are_to_be_quoted() {
        check("- when: {host: *.example.com}\n", "1:16 quote a text that begins with a star: '*.example.com'");
        check("- when:\n    host: *\n", "2:11 quote a text that begins with a star: '*'");
        check("- message: @foo\n", "1:12 quote a text that begins with `@`");
        check("- id: x\n  message: a: b\n", "2:13 quote a text that has a colon and a space");
        check("- limit: 1/s\n   burst: 5\n", "2:9 indent all keys of a map alike");
    }

    #[test]
    fn what_was_left_open_is_asked_for() {
        check("- message: \"a: b\n  limit: 1/s\nx: y", "2:3 is a quote before this left open?");
        check("- per: [a, b\n  burst: 5\n", "2:8 is a bracket or a brace before this left open?");
    }
}
