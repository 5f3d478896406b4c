//! Recursive descent parser, with the precedence of CEL: `?:`, `||`, `&&`, comparisons, sums,
//! products, signs, methods.

use super::token::{Token, tokenize};
use super::{Bool, Choice, Comparison, Expression, Number, Operation, Text};

pub(super) fn read(text: &str) -> Result<Expression, String> {
    let mut parser =
        Parser { tokens: tokenize(text)?, at: 0, end: text.chars().count() + 1, depth: 0, attributes: Vec::new() };
    let whole = parser.any()?;
    if let Some((position, token)) = parser.tokens.get(parser.at) {
        return Err(format!("character {position}: unexpected `{}`", token.shown()));
    }
    match whole {
        Any::Bool(condition) => Ok(Expression { condition, attributes: parser.attributes }),
        Any::Text(..) | Any::Number(_) => {
            let (end, what) = (parser.end, whole.kind());
            Err(format!("character {end}: incomplete: {what} is neither true nor false"))
        }
    }
}

/// A typed expression.
enum Any {
    Bool(Bool),
    Number(Number),
    /// A string and its name in messages.
    Text(Text, String),
}

impl Any {
    fn kind(&self) -> &'static str {
        match self {
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(..) => "a string",
        }
    }
}

const METHODS: &str = "available: `startsWith`, `endsWith`, `contains` and `size`";
const FUNCTIONS: &str = "available: `size`, `int` and `has`";

/// Functions of CEL that are not supported, with the reasons.
const UNSUPPORTED: &[(&[&str], &str)] = &[
    (&["matches"], "regular expressions are not supported; use a pattern in `when`"),
    (&["all", "exists", "exists_one", "map", "filter"], "loops are not supported; lists occur only after `in`"),
    (&["double", "uint"], "numbers are whole; `int` parses them"),
    (
        &["string", "bytes", "lowerAscii", "upperAscii", "replace", "split", "substring", "format"],
        "expressions cannot create strings",
    ),
    (&["timestamp", "duration", "now", "getHours", "getDayOfWeek"], "use `schedule` for hours and days"),
];

struct Parser {
    tokens: Vec<(usize, Token)>,
    at: usize,
    /// The position after the last character.
    end: usize,
    depth: usize,
    attributes: Vec<Box<str>>,
}

impl Parser {
    fn any(&mut self) -> Result<Any, String> {
        self.deeper()?;
        let mut any = self.or()?;
        let position = self.position();
        if self.take("?") {
            let holds = expect_boolean(any, position)?;
            let this = self.any()?;
            self.expect(":")?;
            let other = self.any()?;
            any = match (this, other) {
                (Any::Bool(this), Any::Bool(other)) => Any::Bool(Bool::If(Box::new(Choice { holds, this, other }))),
                (Any::Number(this), Any::Number(other)) => {
                    Any::Number(Number::If(Box::new(Choice { holds, this, other })))
                }
                (Any::Text(this, name), Any::Text(other, _)) => {
                    Any::Text(Text::If(Box::new(Choice { holds, this, other })), name)
                }
                (this, other) => {
                    let (this, other) = (this.kind(), other.kind());
                    return Err(format!(
                        "character {position}: both branches must have the same type, not {this} and {other}"
                    ));
                }
            };
        }
        self.depth -= 1;
        Ok(any)
    }

    fn deeper(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > Expression::MAX_DEPTH {
            return Err(format!("nesting too deep (maximum {})", Expression::MAX_DEPTH));
        }
        Ok(())
    }

    fn or(&mut self) -> Result<Any, String> {
        self.parse_chain("||", Self::and, Bool::Or)
    }

    fn and(&mut self) -> Result<Any, String> {
        self.parse_chain("&&", Self::comparison, Bool::And)
    }

    /// Parses booleans joined by one operator.
    fn parse_chain(
        &mut self,
        sign: &str,
        part: fn(&mut Self) -> Result<Any, String>,
        make: fn(Box<Bool>, Box<Bool>) -> Bool,
    ) -> Result<Any, String> {
        let mut left = part(self)?;
        loop {
            let position = self.position();
            if !self.take(sign) {
                return Ok(left);
            }
            let (one, other) = (expect_boolean(left, position)?, expect_boolean(part(self)?, position)?);
            left = Any::Bool(make(Box::new(one), Box::new(other)));
        }
    }

    fn comparison(&mut self) -> Result<Any, String> {
        let mut left = self.sum()?;
        loop {
            let position = self.position();
            let comparison = match self.tokens.get(self.at) {
                Some((_, Token::Sign("=="))) => Comparison::Equal,
                Some((_, Token::Sign("!="))) => Comparison::Unequal,
                Some((_, Token::Sign("<"))) => Comparison::Less,
                Some((_, Token::Sign("<="))) => Comparison::AtMost,
                Some((_, Token::Sign(">"))) => Comparison::More,
                Some((_, Token::Sign(">="))) => Comparison::AtLeast,
                Some((_, Token::Name(name))) if name == "in" => {
                    self.at += 1;
                    left = Any::Bool(self.parse_in(left, position)?);
                    continue;
                }
                _ => return Ok(left),
            };
            self.at += 1;
            let right = self.sum()?;
            left = Any::Bool(compare(comparison, left, right, position)?);
        }
    }

    fn parse_in(&mut self, left: Any, position: usize) -> Result<Bool, String> {
        if self.is_name("attributes") {
            self.at += 1;
            return match left {
                Any::Text(Text::Literal(name), _) => {
                    Ok(Bool::Has(self.attribute_index(str::from_utf8(&name).unwrap_or_default())))
                }
                _ => Err(format!("character {position}: expected an attribute name in quotes before `in`")),
            };
        }
        self.expect("[")?;
        let (mut texts, mut numbers) = (Vec::new(), Vec::new());
        while !self.take("]") {
            if !texts.is_empty() || !numbers.is_empty() {
                self.expect(",")?;
            }
            let position = self.position();
            match (self.sign()?, &left) {
                (Any::Text(Text::Literal(text), _), Any::Text(..)) => texts.push(text),
                (Any::Number(Number::Literal(number)), Any::Number(_)) => numbers.push(number),
                (_, Any::Text(..)) => return Err(format!("character {position}: the list must contain only strings")),
                (_, Any::Number(_)) => return Err(format!("character {position}: the list must contain only numbers")),
                (_, Any::Bool(_)) => break,
            }
        }
        match left {
            Any::Text(text, _) => Ok(Bool::Among(text, texts)),
            Any::Number(number) => Ok(Bool::NumberAmong(number, numbers)),
            Any::Bool(_) => Err(format!("character {position}: `in` needs a string or a number")),
        }
    }

    fn sum(&mut self) -> Result<Any, String> {
        self.parse_computed(&[("+", Operation::Add), ("-", Operation::Subtract)], Self::product)
    }

    fn product(&mut self) -> Result<Any, String> {
        let operations = [("*", Operation::Multiply), ("/", Operation::Divide), ("%", Operation::Remainder)];
        self.parse_computed(&operations, Self::sign)
    }

    fn parse_computed(
        &mut self,
        operations: &[(&str, Operation)],
        part: fn(&mut Self) -> Result<Any, String>,
    ) -> Result<Any, String> {
        let mut left = part(self)?;
        loop {
            let position = self.position();
            let Some((sign, operation)) = operations.iter().find(|(sign, _)| self.take(sign)) else { return Ok(left) };
            left = match (left, part(self)?) {
                (Any::Number(left), Any::Number(right)) => {
                    Any::Number(Number::Computed(*operation, Box::new(left), Box::new(right)))
                }
                (Any::Text(_, name), right) if *sign == "-" => {
                    let whole = match right {
                        Any::Text(_, other) => format!("{name}-{other}"),
                        Any::Number(_) | Any::Bool(_) => name.clone(),
                    };
                    let help = format!("write `int({name})` for a number, `attributes['{whole}']` for a name");
                    return Err(format!("character {position}: `-` needs numbers; {help}"));
                }
                (Any::Text(_, name), _) | (_, Any::Text(_, name)) => {
                    return Err(format!(
                        "character {position}: `{sign}` needs numbers; write `int({name})` for a number"
                    ));
                }
                _ => return Err(format!("character {position}: `{sign}` needs numbers")),
            };
        }
    }

    fn sign(&mut self) -> Result<Any, String> {
        let position = self.position();
        if self.take("!") {
            self.deeper()?;
            let inner = expect_boolean(self.sign()?, position)?;
            self.depth -= 1;
            return Ok(Any::Bool(Bool::Not(Box::new(inner))));
        }
        if self.take("-") {
            if let Some((_, Token::Number(number))) = self.tokens.get(self.at) {
                let number = 0_i64.checked_sub_unsigned(*number);
                self.at += 1;
                let number = number.ok_or_else(|| format!("character {position}: number too large"))?;
                return Ok(Any::Number(Number::Literal(number)));
            }
            self.deeper()?;
            let Any::Number(inner) = self.sign()? else {
                return Err(format!("character {position}: `-` needs numbers"));
            };
            self.depth -= 1;
            return Ok(Any::Number(Number::Negative(Box::new(inner))));
        }
        let mut left = self.one()?;
        while self.take(".") {
            let (position, token) = self.next()?;
            let Token::Name(method) = token else {
                return Err(format!("character {position}: expected the name of a method"));
            };
            left = self.parse_method(left, position, &method)?;
        }
        Ok(left)
    }

    fn one(&mut self) -> Result<Any, String> {
        if self.take("(") {
            let any = self.any()?;
            return self.expect(")").map(|()| any);
        }
        let (position, token) = self.next()?;
        match token {
            Token::Number(number) => {
                let number = i64::try_from(number).map_err(|_| format!("character {position}: number too large"));
                number.map(|number| Any::Number(Number::Literal(number)))
            }
            Token::Text(text) => Ok(Any::Text(Text::Literal(text.as_bytes().into()), format!("'{text}'"))),
            Token::Name(name) if name == "true" || name == "false" => Ok(Any::Bool(Bool::Is(name == "true"))),
            Token::Name(name) if self.peek("(") => match name.rsplit_once('.') {
                Some((attribute, method)) => {
                    let attribute = self.attribute_value(attribute);
                    self.parse_method(attribute, position, method)
                }
                None => self.parse_function(position, &name),
            },
            Token::Name(_) => {
                self.at -= 1;
                let attribute = self.attribute_name()?;
                let name = self.attributes[attribute].to_string();
                Ok(Any::Text(Text::Attribute(attribute), name))
            }
            Token::Sign("[") => Err(format!("character {position}: lists occur only after `in`")),
            Token::Sign(sign) => Err(format!("character {position}: expected a value, not `{sign}`")),
        }
    }

    fn parse_function(&mut self, position: usize, name: &str) -> Result<Any, String> {
        if !matches!(name, "has" | "size" | "int") {
            return Err(unknown_name(position, name, FUNCTIONS));
        }
        self.expect("(")?;
        let position = self.position();
        let result = match name {
            "has" => Any::Bool(Bool::Has(self.attribute_name()?)),
            _ => match (name, self.any()?) {
                ("size", Any::Text(text, _)) => Any::Number(Number::Size(text)),
                ("int", Any::Text(text, _)) => Any::Number(Number::Int(text)),
                ("int", Any::Number(number)) => Any::Number(number),
                _ => return Err(format!("character {position}: expected a string")),
            },
        };
        self.expect(")").map(|()| result)
    }

    /// Parses the arguments of a method call like `path.startsWith('/v1')`, after the method's name.
    fn parse_method(&mut self, of: Any, position: usize, method: &str) -> Result<Any, String> {
        let make: Option<fn(Text, Text) -> Bool> = match method {
            "startsWith" => Some(Bool::StartsWith),
            "endsWith" => Some(Bool::EndsWith),
            "contains" => Some(Bool::Contains),
            "size" => None,
            other => return Err(unknown_name(position, other, METHODS)),
        };
        let Any::Text(text, _) = of else {
            return Err(format!("character {position}: `{method}` needs a string"));
        };
        self.expect("(")?;
        let Some(make) = make else {
            return self.expect(")").map(|()| Any::Number(Number::Size(text)));
        };
        let position = self.position();
        let Any::Text(part, _) = self.any()? else { return Err(format!("character {position}: expected a string")) };
        self.expect(")").map(|()| Any::Bool(make(text, part)))
    }

    /// Parses the name of an attribute: `name`, `attributes['name']` or `attributes.name`.
    fn attribute_name(&mut self) -> Result<usize, String> {
        let (position, token) = self.next()?;
        let Token::Name(name) = token else {
            return Err(format!("character {position}: expected an attribute name"));
        };
        if name != "attributes" || !self.take("[") {
            return Ok(self.attribute_index(name.strip_prefix("attributes.").unwrap_or(&name)));
        }
        let (position, token) = self.next()?;
        let Token::Text(name) = token else { return Err(format!("character {position}: expected a name in quotes")) };
        let attribute = self.attribute_index(&name);
        self.expect("]").map(|()| attribute)
    }

    fn attribute_value(&mut self, name: &str) -> Any {
        let name = name.strip_prefix("attributes.").unwrap_or(name);
        Any::Text(Text::Attribute(self.attribute_index(name)), name.to_owned())
    }

    fn attribute_index(&mut self, name: &str) -> usize {
        self.attributes.iter().position(|known| **known == *name).unwrap_or_else(|| {
            self.attributes.push(name.into());
            self.attributes.len() - 1
        })
    }

    /// Returns the position of the next token.
    fn position(&self) -> usize {
        self.tokens.get(self.at).map_or(self.end, |(position, _)| *position)
    }

    fn next(&mut self) -> Result<(usize, Token), String> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token.ok_or_else(|| format!("character {}: unexpected end", self.end))
    }

    fn is_name(&self, name: &str) -> bool {
        matches!(self.tokens.get(self.at), Some((_, Token::Name(next))) if next == name)
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
        Err(format!("character {}: missing `{sign}`", self.position()))
    }
}

fn expect_boolean(any: Any, position: usize) -> Result<Bool, String> {
    match any {
        Any::Bool(boolean) => Ok(boolean),
        Any::Text(..) | Any::Number(_) => {
            Err(format!("character {position}: {} is neither true nor false", any.kind()))
        }
    }
}

fn compare(comparison: Comparison, left: Any, right: Any, position: usize) -> Result<Bool, String> {
    match (left, right) {
        (Any::Text(left, _), Any::Text(right, _)) => Ok(Bool::Texts(comparison, left, right)),
        (Any::Number(left), Any::Number(right)) => Ok(Bool::Numbers(comparison, left, right)),
        (Any::Bool(left), Any::Bool(right)) if matches!(comparison, Comparison::Equal | Comparison::Unequal) => {
            Ok(Bool::Bools(comparison, Box::new(left), Box::new(right)))
        }
        (Any::Bool(_), Any::Bool(_)) => Err(format!("character {position}: booleans have no order")),
        (Any::Text(_, name), Any::Number(_)) | (Any::Number(_), Any::Text(_, name)) => Err(format!(
            "character {position}: cannot compare a string with a number; write `int({name})` for a number"
        )),
        (left, right) => Err(format!("character {position}: cannot compare {} with {}", left.kind(), right.kind())),
    }
}

fn unknown_name(position: usize, name: &str, available: &str) -> String {
    let known = UNSUPPORTED.iter().find(|(names, _)| names.contains(&name));
    let why = known.map_or_else(String::new, |(_, why)| format!(" ({why})"));
    format!("character {position}: unknown function `{name}`{why}; {available}")
}
