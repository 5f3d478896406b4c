//! Parses nginx configuration into directives.

use super::super::super::mistake::{MistakeCollector, Position};

/// A directive: words up to a semicolon or a brace.
#[derive(Debug)]
pub(super) struct Directive {
    /// The index of the directive's file.
    pub(super) file: usize,
    pub(super) position: Position,
    pub(super) words: Vec<Word>,
    pub(super) end: DirectiveEnd,
}

#[derive(Debug)]
pub(super) struct Word {
    pub(super) position: Position,
    pub(super) text: String,
}

/// How a directive ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DirectiveEnd {
    /// Ends with a semicolon or the end of the file.
    Here,
    /// Ends with a brace that opens a block.
    Opens,
    /// Ends with a brace that closes a block.
    Closes,
}

impl Directive {
    pub(super) fn name(&self) -> &str {
        self.words.first().map_or("", |word| &word.text)
    }

    /// Returns the words after the name.
    pub(super) fn arguments(&self) -> &[Word] {
        self.words.get(1..).unwrap_or_default()
    }

    /// Returns the position and the value of the option `name=…`.
    pub(super) fn option(&self, name: &str) -> Option<(Position, &str)> {
        self.arguments().iter().find_map(|word| Some((word.position, word.text.strip_prefix(name)?.strip_prefix('=')?)))
    }

    pub(super) fn has_argument(&self, flag: &str) -> bool {
        self.arguments().iter().any(|word| word.text == flag)
    }
}

/// Parses all directives of a file, in order. Unbalanced braces are reported.
pub(super) fn parse_directives(text: &str, file: usize, notes: &mut MistakeCollector) -> Vec<Directive> {
    let mut scanner = Scanner { rest: text.chars().peekable(), position: Position { line: 1, column: 1 } };
    let mut directives = Vec::new();
    let (mut words, mut open): (Vec<Word>, Vec<Position>) = (Vec::new(), Vec::new());
    while let Some(token) = scanner.next_token(notes) {
        let (position, end) = match token {
            NginxToken::Word(word) => {
                words.push(word);
                continue;
            }
            NginxToken::End(position, end) => (position, end),
        };
        match end {
            DirectiveEnd::Opens => open.push(position),
            DirectiveEnd::Closes if open.pop().is_none() => notes.add(position, "unmatched `}`"),
            DirectiveEnd::Here | DirectiveEnd::Closes => {}
        }
        let position = words.first().map_or(position, |word| word.position);
        directives.push(Directive { file, position, words: std::mem::take(&mut words), end });
    }
    // The last directive may lack its semicolon.
    if let Some(first) = words.first() {
        directives.push(Directive { file, position: first.position, words, end: DirectiveEnd::Here });
    }
    if let Some(position) = open.last() {
        notes.add(*position, "unclosed `{`");
    }
    directives
}

enum NginxToken {
    Word(Word),
    End(Position, DirectiveEnd),
}

struct Scanner<'t> {
    rest: std::iter::Peekable<std::str::Chars<'t>>,
    position: Position,
}

impl Scanner<'_> {
    fn next_token(&mut self, notes: &mut MistakeCollector) -> Option<NginxToken> {
        loop {
            let (position, first) = (self.position, *self.rest.peek()?);
            let end = match first {
                ';' => DirectiveEnd::Here,
                '{' => DirectiveEnd::Opens,
                '}' => DirectiveEnd::Closes,
                '#' => {
                    while self.rest.peek().is_some_and(|next| *next != '\n') {
                        self.next_char();
                    }
                    continue;
                }
                space if space.is_whitespace() => {
                    self.next_char();
                    continue;
                }
                '"' | '\'' => {
                    return Some(NginxToken::Word(Word { position, text: self.read_quoted(position, notes) }));
                }
                _ => return Some(NginxToken::Word(Word { position, text: self.read_unquoted() })),
            };
            self.next_char();
            return Some(NginxToken::End(position, end));
        }
    }

    fn next_char(&mut self) -> Option<char> {
        let next = self.rest.next()?;
        self.position = match next {
            '\n' => Position { line: self.position.line.saturating_add(1), column: 1 },
            _ => Position { column: self.position.column.saturating_add(1), ..self.position },
        };
        Some(next)
    }

    fn read_unquoted(&mut self) -> String {
        let mut text = String::new();
        while let Some(next) = self.rest.peek().copied() {
            // A variable inside a word may be written in braces.
            let variable = next == '{' && text.ends_with('$');
            if next.is_whitespace() || next == ';' || (matches!(next, '{' | '}') && !variable) {
                break;
            }
            text.extend(self.next_char());
            if variable {
                while let Some(inner) = self.next_char() {
                    text.push(inner);
                    if inner == '}' {
                        break;
                    }
                }
            } else if next == '\\' {
                text.extend(self.next_char());
            }
        }
        text
    }

    fn read_quoted(&mut self, start: Position, notes: &mut MistakeCollector) -> String {
        let mut text = String::new();
        let quote = self.next_char();
        loop {
            match self.next_char() {
                None => {
                    notes.add(start, "unclosed quote");
                    return text;
                }
                end if end == quote => return text,
                Some('\\') => text.extend(self.next_char()),
                Some(other) => text.push(other),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn assert_directives(text: &str, expected: &str) {
        let mut notes = MistakeCollector::new("f");
        let shown: Vec<String> = parse_directives(text, 0, &mut notes)
            .iter()
            .map(|directive| {
                let words: Vec<&str> = directive.words.iter().map(|word| &*word.text).collect();
                let end = match directive.end {
                    DirectiveEnd::Here => "",
                    DirectiveEnd::Opens => " {",
                    DirectiveEnd::Closes => "}",
                };
                format!("{}:{}{end}", directive.position.line, words.join("|"))
            })
            .collect();
        let mistakes = notes.finish().err().map(|mistakes| mistakes.to_string());
        assert_eq!(shown.into_iter().chain(mistakes).collect::<Vec<_>>().join(" "), expected);
    }

    #[test]
    fn words_blocks_and_comments_are_parsed() {
        assert_directives("a b=1; # c;\nd 'e f' \"g\\\"h\" {\n i ${j}k;}", "1:a|b=1 2:d|e f|g\"h { 3:i|${j}k 3:}");
        assert_directives("limit_req zone=a", "1:limit_req|zone=a");
        assert_directives("a { b;", "1:a { 1:b f:1:3: unclosed `{`");
        assert_directives("}", "1:} f:1:1: unmatched `}`");
        assert_directives("a 'b", "1:a|b f:1:3: unclosed quote");
    }
}
