//! From text to an expression, by descent: `||` of `&&` of comparisons.

use super::{Comparison, Expression, Number, Text, Truth};

pub(super) fn read(text: &str) -> Result<Expression, String> {
    let mut parser =
        Parser { tokens: tokens(text)?, at: 0, end: text.chars().count() + 1, depth: 0, attributes: Vec::new() };
    let truth = parser.or()?;
    match parser.tokens.get(parser.at) {
        None => Ok(Expression { truth, attributes: parser.attributes }),
        Some((place, token)) => Err(format!("at character {place} `{}` is too much", token.shown())),
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    Name(String),
    Text(String),
    Number(i64),
    Sign(&'static str),
}

impl Token {
    fn shown(&self) -> String {
        match self {
            Self::Name(name) => name.clone(),
            Self::Text(text) => format!("'{text}'"),
            Self::Number(number) => number.to_string(),
            Self::Sign(sign) => (*sign).to_owned(),
        }
    }
}

const SIGNS: &[&str] = &["||", "&&", "==", "!=", "<=", ">=", "<", ">", "!", "(", ")", "[", "]", ","];

/// The words of a text, each with the place of its first character.
fn tokens(text: &str) -> Result<Vec<(usize, Token)>, String> {
    let chars: Vec<char> = text.chars().collect();
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(first) = chars.get(at) {
        let place = at + 1;
        let run =
            |from: usize, fits: &dyn Fn(char) -> bool| chars[from..].iter().take_while(|char| fits(**char)).count();
        if first.is_whitespace() {
            at += 1;
        } else if first.is_ascii_alphabetic() || *first == '_' {
            let length = run(at, &|char| char.is_ascii_alphanumeric() || "_.".contains(char));
            tokens.push((place, Token::Name(chars[at..at + length].iter().collect())));
            at += length;
        } else if first.is_ascii_digit() || *first == '-' {
            let length = 1 + run(at + 1, &|char| char.is_ascii_digit());
            let digits: String = chars[at..at + length].iter().collect();
            let number = digits.parse().map_err(|_| match &*digits {
                "-" => format!("at character {place} `-` is no operator"),
                _ => format!("at character {place} the number is too large"),
            })?;
            tokens.push((place, Token::Number(number)));
            at += length;
        } else if *first == '\'' || *first == '"' {
            let (literal, behind) = literal(&chars, at)?;
            tokens.push((place, Token::Text(literal)));
            at = behind;
        } else {
            let rest: String = chars[at..].iter().take(2).collect();
            let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) else {
                let help = if *first == '=' { ", write `==`" } else { "" };
                return Err(format!("at character {place} `{first}` is no operator{help}"));
            };
            tokens.push((place, Token::Sign(sign)));
            at += sign.len();
        }
    }
    Ok(tokens)
}

/// A text in quotes, and the place behind it.
fn literal(chars: &[char], start: usize) -> Result<(String, usize), String> {
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
    Err(format!("the text at character {} does not end", start + 1))
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    at: usize,
    /// The place behind the last character.
    end: usize,
    depth: usize,
    attributes: Vec<Box<str>>,
}

/// One side of a comparison.
enum Side {
    Text(Text, String),
    Number(Number),
}

impl Parser {
    fn or(&mut self) -> Result<Truth, String> {
        self.depth += 1;
        if self.depth > Expression::MAX_DEPTH {
            return Err(format!("there are more than {} parentheses in each other", Expression::MAX_DEPTH));
        }
        let mut truth = self.and()?;
        while self.take("||") {
            truth = Truth::Or(Box::new(truth), Box::new(self.and()?));
        }
        self.depth -= 1;
        Ok(truth)
    }

    fn and(&mut self) -> Result<Truth, String> {
        let mut truth = self.one()?;
        while self.take("&&") {
            truth = Truth::And(Box::new(truth), Box::new(self.one()?));
        }
        Ok(truth)
    }

    fn one(&mut self) -> Result<Truth, String> {
        if self.take("!") {
            self.depth += 1;
            if self.depth > Expression::MAX_DEPTH {
                return Err(format!("there are more than {} parentheses in each other", Expression::MAX_DEPTH));
            }
            let truth = Truth::Not(Box::new(self.one()?));
            self.depth -= 1;
            return Ok(truth);
        }
        if self.take("(") {
            let truth = self.or()?;
            return self.expect(")").map(|()| truth);
        }
        let (place, token) = self.next()?;
        match token {
            Token::Name(name) if name == "true" || name == "false" => Ok(Truth::Is(name == "true")),
            Token::Name(name) if name == "has" => {
                self.expect("(")?;
                let attribute = self.attribute_name()?;
                self.expect(")").map(|()| Truth::Has(attribute))
            }
            Token::Name(name) if self.peek("(") && name.contains('.') => self.method(place, &name),
            token => {
                let side = self.side(place, token)?;
                self.comparison(side)
            }
        }
    }

    /// `path.startsWith('/v1')`.
    fn method(&mut self, place: usize, name: &str) -> Result<Truth, String> {
        let (attribute, method) = name.rsplit_once('.').unwrap_or((name, ""));
        let text = Text::Attribute(self.attribute(attribute));
        let make: fn(Text, Text) -> Truth = match method {
            "startsWith" => Truth::StartsWith,
            "endsWith" => Truth::EndsWith,
            "contains" => Truth::Contains,
            other => {
                let there = "there are `startsWith`, `endsWith` and `contains`";
                return Err(format!("at character {place} there is no `{other}`; {there}"));
            }
        };
        self.expect("(")?;
        let part = self.text()?;
        self.expect(")").map(|()| make(text, part))
    }

    fn comparison(&mut self, left: Side) -> Result<Truth, String> {
        let by_itself = |what: &str| format!("something is missing: {what} by itself is neither true nor false");
        let Some((place, token)) = self.tokens.get(self.at).cloned() else {
            let what = if matches!(left, Side::Text(..)) { "a text" } else { "a number" };
            return Err(format!("at character {} {}", self.end, by_itself(what)));
        };
        self.at += 1;
        let comparison = match &token {
            Token::Sign("==") => Comparison::Equal,
            Token::Sign("!=") => Comparison::Unequal,
            Token::Sign("<") => Comparison::Less,
            Token::Sign("<=") => Comparison::AtMost,
            Token::Sign(">") => Comparison::More,
            Token::Sign(">=") => Comparison::AtLeast,
            Token::Name(name) if name == "in" => return self.among(left),
            other => return Err(format!("at character {place} `{}` is no comparison", other.shown())),
        };
        let (right_place, token) = self.next()?;
        let right = self.side(right_place, token)?;
        match (left, right) {
            (Side::Text(left, _), Side::Text(right, _)) => Ok(Truth::Texts(comparison, left, right)),
            (Side::Number(left), Side::Number(right)) => Ok(Truth::Numbers(comparison, left, right)),
            (Side::Text(_, name), Side::Number(_)) | (Side::Number(_), Side::Text(_, name)) => {
                Err(format!("at character {place} a text is compared with a number; a number is `int({name})`"))
            }
        }
    }

    fn among(&mut self, left: Side) -> Result<Truth, String> {
        self.expect("[")?;
        let (mut texts, mut numbers) = (Vec::new(), Vec::new());
        while !self.take("]") {
            if !texts.is_empty() || !numbers.is_empty() {
                self.expect(",")?;
            }
            let (place, token) = self.next()?;
            match (token, &left) {
                (Token::Text(text), Side::Text(..)) => texts.push(text.into_bytes().into_boxed_slice()),
                (Token::Number(number), Side::Number(_)) => numbers.push(number),
                (_, Side::Text(..)) => return Err(format!("at character {place} the list is of texts")),
                (_, Side::Number(_)) => return Err(format!("at character {place} the list is of numbers")),
            }
        }
        Ok(match left {
            Side::Text(text, _) => Truth::Among(text, texts),
            Side::Number(number) => Truth::NumberAmong(number, numbers),
        })
    }

    /// A text or a number.
    fn side(&mut self, place: usize, token: Token) -> Result<Side, String> {
        match token {
            Token::Number(number) => Ok(Side::Number(Number::Literal(number))),
            Token::Text(text) => Ok(Side::Text(Text::Literal(text.as_bytes().into()), format!("'{text}'"))),
            Token::Name(name) if self.peek("(") => {
                let make: fn(Text) -> Number = match &*name {
                    "size" => Number::Size,
                    "int" => Number::Int,
                    other => {
                        let there = "there are `size`, `int` and `has`";
                        return Err(format!("at character {place} there is no `{other}`; {there}"));
                    }
                };
                self.expect("(")?;
                let text = self.text()?;
                self.expect(")").map(|()| Side::Number(make(text)))
            }
            Token::Name(_) => {
                self.at -= 1;
                let attribute = self.attribute_name()?;
                let name = self.attributes[attribute].to_string();
                Ok(Side::Text(Text::Attribute(attribute), name))
            }
            Token::Sign(sign) => Err(format!("at character {place} `{sign}` is no text or number")),
        }
    }

    fn text(&mut self) -> Result<Text, String> {
        let (place, token) = self.next()?;
        match self.side(place, token)? {
            Side::Text(text, _) => Ok(text),
            Side::Number(_) => Err(format!("at character {place} a text is expected")),
        }
    }

    /// A name, or any name as `attributes['name']`.
    fn attribute_name(&mut self) -> Result<usize, String> {
        let (place, token) = self.next()?;
        let Token::Name(name) = token else {
            return Err(format!("at character {place} the name of an attribute is expected"));
        };
        if name != "attributes" || !self.take("[") {
            return Ok(self.attribute(&name));
        }
        let (place, token) = self.next()?;
        let Token::Text(name) = token else { return Err(format!("at character {place} a name in quotes is expected")) };
        let attribute = self.attribute(&name);
        self.expect("]").map(|()| attribute)
    }

    fn attribute(&mut self, name: &str) -> usize {
        self.attributes.iter().position(|known| **known == *name).unwrap_or_else(|| {
            self.attributes.push(name.into());
            self.attributes.len() - 1
        })
    }

    fn next(&mut self) -> Result<(usize, Token), String> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token.ok_or_else(|| format!("at character {} something is missing", self.end))
    }

    fn peek(&self, sign: &str) -> bool {
        matches!(self.tokens.get(self.at), Some((_, Token::Sign(next))) if *next == sign)
    }

    fn take(&mut self, sign: &str) -> bool {
        let taken = self.peek(sign);
        self.at += usize::from(taken);
        taken
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.take(sign) {
            return Ok(());
        }
        let place = self.tokens.get(self.at).map_or(self.end, |(place, _)| *place);
        Err(format!("at character {place} a `{sign}` is missing"))
    }
}
