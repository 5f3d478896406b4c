//! Tokens of an expression.

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    Name(String),
    Text(String),
    Number(u64),
    Symbol(&'static str),
}

impl Token {
    pub(super) fn message_text(&self) -> String {
        match self {
            Self::Name(name) => name.clone(),
            Self::Text(text) => format!("'{text}'"),
            Self::Number(number) => number.to_string(),
            Self::Symbol(sign) => (*sign).to_owned(),
        }
    }
}

const OPERATORS_AND_PUNCTUATION: &[&str] = &[
    "||", "&&", "==", "!=", "<=", ">=", "<", ">", "!", "(", ")", "[", "]", ",", "?", ":", "+", "-", "*", "/", "%", ".",
];

/// Splits a string into tokens. Each token has the position of its first character, counted from 1.
pub(super) fn tokenize(text: &str) -> Result<Vec<(usize, Token)>, String> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = chars.get(at) {
        let position = at + 1;
        let run =
            |from: usize, fits: &dyn Fn(char) -> bool| chars[from..].iter().take_while(|char| fits(**char)).count();
        if first.is_whitespace() {
            at += 1;
        } else if first.is_ascii_alphabetic() || *first == '_' {
            let length = run(at, &|char| char.is_ascii_alphanumeric() || "_.".contains(char));
            tokens.push((position, Token::Name(chars[at..at + length].iter().collect())));
            at += length;
        } else if first.is_ascii_digit() {
            let length = run(at, &|char| char.is_ascii_digit());
            let digits: String = chars[at..at + length].iter().collect();
            at += length;
            if chars.get(at) == Some(&'.') {
                return Err(format!("character {position}: fractions are not supported"));
            }
            let number = digits.parse().map_err(|_| format!("character {position}: number too large"))?;
            tokens.push((position, Token::Number(number)));
        } else if *first == '\'' || *first == '"' {
            let (literal, after) = parse_literal(&chars, at)?;
            tokens.push((position, Token::Text(literal)));
            at = after;
        } else {
            let rest: String = chars[at..].iter().take(2).collect();
            let Some(sign) = OPERATORS_AND_PUNCTUATION.iter().find(|sign| rest.starts_with(**sign)) else {
                let help = if *first == '=' { "; write `==`" } else { "" };
                return Err(format!("character {position}: `{first}` is not an operator{help}"));
            };
            tokens.push((position, Token::Symbol(sign)));
            at += sign.len();
        }
    }
    Ok(tokens)
}

/// Parses a quoted string. Returns the string and the index after the closing quote.
fn parse_literal(chars: &[char], start: usize) -> Result<(String, usize), String> {
    let mut text = String::new();
    let mut at = start + 1;
    while let Some(char) = chars.get(at) {
        match char {
            quote if *quote == chars[start] => return Ok((text, at + 1)),
            '\\' => {
                text.extend(chars.get(at + 1));
                at += 2;
            }
            other => {
                text.push(*other);
                at += 1;
            }
        }
    }
    Err(format!("character {}: unterminated string", start + 1))
}
