//! Finds comments in YAML without parsing it. A ` #` starts a comment everywhere except inside quotes and block
//! scalars.

use super::super::mistake::Position;

/// A comment, or an empty line.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Comment {
    pub(super) position: Position,
    /// The comment with its `#`; empty for an empty line.
    pub(super) text: String,
    /// Whether the line contains only the comment.
    pub(super) alone: bool,
}

/// Returns all comments and empty lines.
///
/// # Errors
/// Returns the line and the name of the first construct that formatting would lose: an anchor, a tag, or a string in
/// which comments cannot be recognised.
pub(super) fn find_comments(text: &str) -> Result<Vec<Comment>, (u32, &'static str)> {
    let mut found = Vec::new();
    // Lines with more indentation than this belong to the current block scalar (`|` or `>`).
    let mut block: Option<usize> = None;
    for (number, line) in (1..).zip(text.lines()) {
        let indent = line.len() - line.trim_start_matches(' ').len();
        let empty = line.trim().is_empty();
        if block.is_some_and(|block| empty || indent > block) {
            continue;
        }
        block = None;
        let at = |column: usize| Position { line: number, column: column as u32 + 1 };
        if empty {
            found.push(Comment { position: at(0), text: String::new(), alone: true });
            continue;
        }
        match classify_line(line) {
            LineKind::Plain => {}
            LineKind::Comment { before } => {
                let (code, comment) = line.split_at(before);
                let position = at(code.chars().count());
                found.push(Comment { position, text: comment.trim_end().to_owned(), alone: code.trim().is_empty() });
            }
            LineKind::Block { comment: false } => block = Some(block_scalar_indent(line)),
            LineKind::Block { comment: true } => return Err((number, "a comment after `|` or `>`")),
            LineKind::Loses(what) => return Err((number, what)),
        }
    }
    Ok(found)
}

enum LineKind {
    Plain,
    /// A comment that starts at the byte offset `before`.
    Comment {
        before: usize,
    },
    /// The following lines are a block scalar.
    Block {
        comment: bool,
    },
    Loses(&'static str),
}

fn classify_line(line: &str) -> LineKind {
    let mut quote: Option<char> = None;
    // The last non-space character, and whether a space follows it.
    let (mut last, mut spaced) = (None, true);
    let mut letters = line.char_indices().peekable();
    while let Some((at, letter)) = letters.next() {
        if let Some(open) = quote {
            if open == '"' && letter == '\\' {
                letters.next();
            } else if letter == open {
                // Two single quotes are an escaped single quote.
                if open == '\'' && letters.next_if(|(_, next)| *next == '\'').is_some() {
                    continue;
                }
                (quote, last, spaced) = (None, Some(letter), false);
            }
            continue;
        }
        if letter.is_whitespace() {
            spaced = true;
            continue;
        }
        if letter == '#' && spaced {
            return LineKind::Comment { before: at };
        }
        let opened = matches!(last, None | Some('[' | '{' | ','));
        let begins = opened || (matches!(last, Some(':' | '-' | '?')) && spaced) || (last == Some('\u{0}') && !spaced);
        match letter {
            '"' | '\'' if begins => quote = Some(letter),
            '&' | '*' if begins => return LineKind::Loses("the sharing of anchors and aliases"),
            '!' if begins => return LineKind::Loses("a tag"),
            '|' | '>' if begins => {
                let header =
                    line[at + 1..].trim_start_matches(['+', '-']).trim_start_matches(|c: char| c.is_ascii_digit());
                let header = header.trim_start_matches(['+', '-']);
                return LineKind::Block { comment: !header.trim().is_empty() };
            }
            _ => {}
        }
        // After a quoted key, a value may follow the colon without a space. Such a colon is recorded as `\0`.
        let after_quote = letter == ':' && !spaced && matches!(last, Some('"' | '\''));
        (last, spaced) = (Some(if after_quote { '\u{0}' } else { letter }), false);
        if after_quote && letters.peek().is_some_and(|(_, next)| next.is_whitespace()) {
            last = Some(':');
        }
    }
    if quote.is_some() { LineKind::Loses("the form of a quoted string over several lines") } else { LineKind::Plain }
}

/// Returns the indentation that the lines of a block scalar must exceed. List dashes count as indentation.
fn block_scalar_indent(line: &str) -> usize {
    let mut rest = line;
    while let Some(inner) = rest.trim_start_matches(' ').strip_prefix("- ") {
        rest = inner;
    }
    line.len() - rest.trim_start_matches(' ').len()
}
