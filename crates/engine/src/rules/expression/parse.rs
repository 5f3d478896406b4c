//! Recursive descent parser. The operators have the same precedence as in CEL, from lowest to highest: `?:`, `||`,
//! `&&`, comparisons, sums, products, unary operators, method calls.

use super::token::{Token, tokenize};
use super::{Bool, Choice, Comparison, Expression, Number, Operation, Text};

pub(super) fn parse(text: &str) -> Result<Expression, String> {
    let mut parser = Parser {
        tokens: tokenize(text)?,
        next_index: 0,
        end_position: text.chars().count() + 1,
        depth: 0,
        attributes: Vec::new(),
    };
    let whole = parser.parse_expression()?;
    if let Some((position, token)) = parser.tokens.get(parser.next_index) {
        return Err(format!("character {position}: unexpected `{}`", token.message_text()));
    }
    match whole {
        TypedExpression::Bool(condition) => Ok(Expression { condition, attributes: parser.attributes }),
        TypedExpression::Text(..) | TypedExpression::Number(_) => {
            let (end, what) = (parser.end_position, whole.type_name());
            Err(format!("character {end}: incomplete: {what} is neither true nor false"))
        }
    }
}

/// A typed expression.
enum TypedExpression {
    Bool(Bool),
    Number(Number),
    /// A string and its name in messages.
    Text(Text, String),
}

impl TypedExpression {
    fn type_name(&self) -> &'static str {
        match self {
            Self::Bool(_) => "a boolean",
            Self::Number(_) => "a number",
            Self::Text(..) => "a string",
        }
    }
}

const AVAILABLE_METHODS: &str = "available: `startsWith`, `endsWith`, `contains` and `size`";
const AVAILABLE_FUNCTIONS: &str = "available: `size`, `int` and `has`";

/// CEL functions that are not supported, and the reason for each group.
const UNSUPPORTED_FUNCTIONS: &[(&[&str], &str)] = &[
    (&["matches"], "regular expressions are not supported; use a pattern in `when`"),
    (&["all", "exists", "exists_one", "map", "filter"], "loops are not supported; lists occur only after `in`"),
    (&["double", "uint"], "only whole numbers are supported; `int` parses them"),
    (
        &["string", "bytes", "lowerAscii", "upperAscii", "replace", "split", "substring", "format"],
        "expressions cannot create strings",
    ),
    (&["timestamp", "duration", "now", "getHours", "getDayOfWeek"], "use `schedule` for hours and days"),
];

struct Parser {
    tokens: Vec<(usize, Token)>,
    next_index: usize,
    /// The position after the last character.
    end_position: usize,
    depth: usize,
    attributes: Vec<Box<str>>,
}

impl Parser {
    fn parse_expression(&mut self) -> Result<TypedExpression, String> {
        self.enter_nesting()?;
        let mut any = self.parse_or()?;
        let position = self.next_position();
        if self.take_symbol("?") {
            let holds = expect_boolean(any, position)?;
            let this = self.parse_expression()?;
            self.expect_symbol(":")?;
            let other = self.parse_expression()?;
            any = match (this, other) {
                (TypedExpression::Bool(this), TypedExpression::Bool(other)) => {
                    TypedExpression::Bool(Bool::If(Box::new(Choice { holds, this, other })))
                }
                (TypedExpression::Number(this), TypedExpression::Number(other)) => {
                    TypedExpression::Number(Number::If(Box::new(Choice { holds, this, other })))
                }
                (TypedExpression::Text(this, name), TypedExpression::Text(other, _)) => {
                    TypedExpression::Text(Text::If(Box::new(Choice { holds, this, other })), name)
                }
                (this, other) => {
                    let (this, other) = (this.type_name(), other.type_name());
                    return Err(format!(
                        "character {position}: both branches must have the same type, not {this} and {other}"
                    ));
                }
            };
        }
        self.depth -= 1;
        Ok(any)
    }

    fn enter_nesting(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > Expression::MAX_DEPTH {
            return Err(format!("nesting too deep (maximum {})", Expression::MAX_DEPTH));
        }
        Ok(())
    }

    fn parse_or(&mut self) -> Result<TypedExpression, String> {
        self.parse_boolean_chain("||", Self::parse_and, Bool::Or)
    }

    fn parse_and(&mut self) -> Result<TypedExpression, String> {
        self.parse_boolean_chain("&&", Self::parse_comparison, Bool::And)
    }

    /// Parses operands joined by `||` or by `&&`.
    fn parse_boolean_chain(
        &mut self,
        sign: &str,
        part: fn(&mut Self) -> Result<TypedExpression, String>,
        make: fn(Box<Bool>, Box<Bool>) -> Bool,
    ) -> Result<TypedExpression, String> {
        let mut left = part(self)?;
        loop {
            let position = self.next_position();
            if !self.take_symbol(sign) {
                return Ok(left);
            }
            let (one, other) = (expect_boolean(left, position)?, expect_boolean(part(self)?, position)?);
            left = TypedExpression::Bool(make(Box::new(one), Box::new(other)));
        }
    }

    fn parse_comparison(&mut self) -> Result<TypedExpression, String> {
        let mut left = self.parse_sum()?;
        loop {
            let position = self.next_position();
            let comparison = match self.tokens.get(self.next_index) {
                Some((_, Token::Symbol("=="))) => Comparison::Equal,
                Some((_, Token::Symbol("!="))) => Comparison::Unequal,
                Some((_, Token::Symbol("<"))) => Comparison::Less,
                Some((_, Token::Symbol("<="))) => Comparison::AtMost,
                Some((_, Token::Symbol(">"))) => Comparison::More,
                Some((_, Token::Symbol(">="))) => Comparison::AtLeast,
                Some((_, Token::Name(name))) if name == "in" => {
                    self.next_index += 1;
                    left = TypedExpression::Bool(self.parse_in(left, position)?);
                    continue;
                }
                _ => return Ok(left),
            };
            self.next_index += 1;
            let right = self.parse_sum()?;
            left = TypedExpression::Bool(build_comparison(comparison, left, right, position)?);
        }
    }

    fn parse_in(&mut self, left: TypedExpression, position: usize) -> Result<Bool, String> {
        if self.next_is_name("attributes") {
            self.next_index += 1;
            return match left {
                TypedExpression::Text(Text::Literal(name), _) => {
                    Ok(Bool::Has(self.intern_attribute(str::from_utf8(&name).unwrap_or_default())))
                }
                _ => Err(format!("character {position}: expected an attribute name in quotes before `in`")),
            };
        }
        self.expect_symbol("[")?;
        let (mut texts, mut numbers) = (Vec::new(), Vec::new());
        while !self.take_symbol("]") {
            if !texts.is_empty() || !numbers.is_empty() {
                self.expect_symbol(",")?;
            }
            let position = self.next_position();
            match (self.parse_unary()?, &left) {
                (TypedExpression::Text(Text::Literal(text), _), TypedExpression::Text(..)) => texts.push(text),
                (TypedExpression::Number(Number::Literal(number)), TypedExpression::Number(_)) => numbers.push(number),
                (_, TypedExpression::Text(..)) => {
                    return Err(format!("character {position}: the list must contain only strings"));
                }
                (_, TypedExpression::Number(_)) => {
                    return Err(format!("character {position}: the list must contain only numbers"));
                }
                (_, TypedExpression::Bool(_)) => break,
            }
        }
        match left {
            TypedExpression::Text(text, _) => Ok(Bool::Among(text, texts)),
            TypedExpression::Number(number) => Ok(Bool::NumberAmong(number, numbers)),
            TypedExpression::Bool(_) => Err(format!("character {position}: `in` needs a string or a number")),
        }
    }

    fn parse_sum(&mut self) -> Result<TypedExpression, String> {
        self.parse_arithmetic(&[("+", Operation::Add), ("-", Operation::Subtract)], Self::parse_product)
    }

    fn parse_product(&mut self) -> Result<TypedExpression, String> {
        let operations = [("*", Operation::Multiply), ("/", Operation::Divide), ("%", Operation::Remainder)];
        self.parse_arithmetic(&operations, Self::parse_unary)
    }

    fn parse_arithmetic(
        &mut self,
        operations: &[(&str, Operation)],
        part: fn(&mut Self) -> Result<TypedExpression, String>,
    ) -> Result<TypedExpression, String> {
        let mut left = part(self)?;
        loop {
            let position = self.next_position();
            let Some((sign, operation)) = operations.iter().find(|(sign, _)| self.take_symbol(sign)) else {
                return Ok(left);
            };
            left = match (left, part(self)?) {
                (TypedExpression::Number(left), TypedExpression::Number(right)) => {
                    TypedExpression::Number(Number::Computed(*operation, Box::new(left), Box::new(right)))
                }
                (TypedExpression::Text(_, name), right) if *sign == "-" => {
                    let whole = match right {
                        TypedExpression::Text(_, other) => format!("{name}-{other}"),
                        TypedExpression::Number(_) | TypedExpression::Bool(_) => name.clone(),
                    };
                    let help = format!("write `int({name})` for a number, `attributes['{whole}']` for a name");
                    return Err(format!("character {position}: `-` needs numbers; {help}"));
                }
                (TypedExpression::Text(_, name), _) | (_, TypedExpression::Text(_, name)) => {
                    return Err(format!(
                        "character {position}: `{sign}` needs numbers; write `int({name})` for a number"
                    ));
                }
                _ => return Err(format!("character {position}: `{sign}` needs numbers")),
            };
        }
    }

    fn parse_unary(&mut self) -> Result<TypedExpression, String> {
        let position = self.next_position();
        if self.take_symbol("!") {
            self.enter_nesting()?;
            let inner = expect_boolean(self.parse_unary()?, position)?;
            self.depth -= 1;
            return Ok(TypedExpression::Bool(Bool::Not(Box::new(inner))));
        }
        if self.take_symbol("-") {
            if let Some((_, Token::Number(number))) = self.tokens.get(self.next_index) {
                let number = 0_i64.checked_sub_unsigned(*number);
                self.next_index += 1;
                let number = number.ok_or_else(|| format!("character {position}: number too large"))?;
                return Ok(TypedExpression::Number(Number::Literal(number)));
            }
            self.enter_nesting()?;
            let TypedExpression::Number(inner) = self.parse_unary()? else {
                return Err(format!("character {position}: `-` needs numbers"));
            };
            self.depth -= 1;
            return Ok(TypedExpression::Number(Number::Negative(Box::new(inner))));
        }
        let mut left = self.parse_primary()?;
        while self.take_symbol(".") {
            let (position, token) = self.next_token()?;
            let Token::Name(method) = token else {
                return Err(format!("character {position}: expected the name of a method"));
            };
            left = self.parse_method(left, position, &method)?;
        }
        Ok(left)
    }

    fn parse_primary(&mut self) -> Result<TypedExpression, String> {
        if self.take_symbol("(") {
            let any = self.parse_expression()?;
            return self.expect_symbol(")").map(|()| any);
        }
        let (position, token) = self.next_token()?;
        match token {
            Token::Number(number) => {
                let number = i64::try_from(number).map_err(|_| format!("character {position}: number too large"));
                number.map(|number| TypedExpression::Number(Number::Literal(number)))
            }
            Token::Text(text) => Ok(TypedExpression::Text(Text::Literal(text.as_bytes().into()), format!("'{text}'"))),
            Token::Name(name) if name == "true" || name == "false" => {
                Ok(TypedExpression::Bool(Bool::Is(name == "true")))
            }
            Token::Name(name) if self.next_is_symbol("(") => match name.rsplit_once('.') {
                Some((attribute, method)) => {
                    let attribute = self.attribute_expression(attribute);
                    self.parse_method(attribute, position, method)
                }
                None => self.parse_function(position, &name),
            },
            Token::Name(_) => {
                self.next_index -= 1;
                let attribute = self.parse_attribute()?;
                let name = self.attributes[attribute].to_string();
                Ok(TypedExpression::Text(Text::Attribute(attribute), name))
            }
            Token::Symbol("[") => Err(format!("character {position}: lists occur only after `in`")),
            Token::Symbol(sign) => Err(format!("character {position}: expected a value, not `{sign}`")),
        }
    }

    fn parse_function(&mut self, position: usize, name: &str) -> Result<TypedExpression, String> {
        if !matches!(name, "has" | "size" | "int") {
            return Err(unknown_function_message(position, name, AVAILABLE_FUNCTIONS));
        }
        self.expect_symbol("(")?;
        let position = self.next_position();
        let result = match name {
            "has" => TypedExpression::Bool(Bool::Has(self.parse_attribute()?)),
            _ => match (name, self.parse_expression()?) {
                ("size", TypedExpression::Text(text, _)) => TypedExpression::Number(Number::Size(text)),
                ("int", TypedExpression::Text(text, _)) => TypedExpression::Number(Number::Int(text)),
                ("int", TypedExpression::Number(number)) => TypedExpression::Number(number),
                _ => return Err(format!("character {position}: expected a string")),
            },
        };
        self.expect_symbol(")").map(|()| result)
    }

    /// Parses the arguments of a method call like `path.startsWith('/v1')`, after the method's name.
    fn parse_method(&mut self, of: TypedExpression, position: usize, method: &str) -> Result<TypedExpression, String> {
        let make: Option<fn(Text, Text) -> Bool> = match method {
            "startsWith" => Some(Bool::StartsWith),
            "endsWith" => Some(Bool::EndsWith),
            "contains" => Some(Bool::Contains),
            "size" => None,
            other => return Err(unknown_function_message(position, other, AVAILABLE_METHODS)),
        };
        let TypedExpression::Text(text, _) = of else {
            return Err(format!("character {position}: `{method}` needs a string"));
        };
        self.expect_symbol("(")?;
        let Some(make) = make else {
            return self.expect_symbol(")").map(|()| TypedExpression::Number(Number::Size(text)));
        };
        let position = self.next_position();
        let TypedExpression::Text(part, _) = self.parse_expression()? else {
            return Err(format!("character {position}: expected a string"));
        };
        self.expect_symbol(")").map(|()| TypedExpression::Bool(make(text, part)))
    }

    /// Parses an attribute, written `name`, `attributes['name']` or `attributes.name`. Returns its index.
    fn parse_attribute(&mut self) -> Result<usize, String> {
        let (position, token) = self.next_token()?;
        let Token::Name(name) = token else {
            return Err(format!("character {position}: expected an attribute name"));
        };
        if name != "attributes" || !self.take_symbol("[") {
            return Ok(self.intern_attribute(name.strip_prefix("attributes.").unwrap_or(&name)));
        }
        let (position, token) = self.next_token()?;
        let Token::Text(name) = token else { return Err(format!("character {position}: expected a name in quotes")) };
        let attribute = self.intern_attribute(&name);
        self.expect_symbol("]").map(|()| attribute)
    }

    fn attribute_expression(&mut self, name: &str) -> TypedExpression {
        let name = name.strip_prefix("attributes.").unwrap_or(name);
        TypedExpression::Text(Text::Attribute(self.intern_attribute(name)), name.to_owned())
    }

    fn intern_attribute(&mut self, name: &str) -> usize {
        self.attributes.iter().position(|known| **known == *name).unwrap_or_else(|| {
            self.attributes.push(name.into());
            self.attributes.len() - 1
        })
    }

    /// Returns the position of the next token.
    fn next_position(&self) -> usize {
        self.tokens.get(self.next_index).map_or(self.end_position, |(position, _)| *position)
    }

    fn next_token(&mut self) -> Result<(usize, Token), String> {
        let token = self.tokens.get(self.next_index).cloned();
        self.next_index += 1;
        token.ok_or_else(|| format!("character {}: unexpected end", self.end_position))
    }

    fn next_is_name(&self, name: &str) -> bool {
        matches!(self.tokens.get(self.next_index), Some((_, Token::Name(next))) if next == name)
    }

    fn next_is_symbol(&self, sign: &str) -> bool {
        matches!(self.tokens.get(self.next_index), Some((_, Token::Symbol(next))) if *next == sign)
    }

    fn take_symbol(&mut self, sign: &str) -> bool {
        let taken = self.next_is_symbol(sign);
        self.next_index += usize::from(taken);
        taken
    }

    fn expect_symbol(&mut self, sign: &str) -> Result<(), String> {
        if self.take_symbol(sign) {
            return Ok(());
        }
        Err(format!("character {}: missing `{sign}`", self.next_position()))
    }
}

fn expect_boolean(any: TypedExpression, position: usize) -> Result<Bool, String> {
    match any {
        TypedExpression::Bool(boolean) => Ok(boolean),
        TypedExpression::Text(..) | TypedExpression::Number(_) => {
            Err(format!("character {position}: {} is neither true nor false", any.type_name()))
        }
    }
}

fn build_comparison(
    comparison: Comparison,
    left: TypedExpression,
    right: TypedExpression,
    position: usize,
) -> Result<Bool, String> {
    match (left, right) {
        (TypedExpression::Text(left, _), TypedExpression::Text(right, _)) => Ok(Bool::Texts(comparison, left, right)),
        (TypedExpression::Number(left), TypedExpression::Number(right)) => Ok(Bool::Numbers(comparison, left, right)),
        (TypedExpression::Bool(left), TypedExpression::Bool(right))
            if matches!(comparison, Comparison::Equal | Comparison::Unequal) =>
        {
            Ok(Bool::Bools(comparison, Box::new(left), Box::new(right)))
        }
        (TypedExpression::Bool(_), TypedExpression::Bool(_)) => {
            Err(format!("character {position}: booleans have no order"))
        }
        (TypedExpression::Text(_, name), TypedExpression::Number(_))
        | (TypedExpression::Number(_), TypedExpression::Text(_, name)) => Err(format!(
            "character {position}: cannot compare a string with a number; write `int({name})` for a number"
        )),
        (left, right) => {
            Err(format!("character {position}: cannot compare {} with {}", left.type_name(), right.type_name()))
        }
    }
}

fn unknown_function_message(position: usize, name: &str, available: &str) -> String {
    let known = UNSUPPORTED_FUNCTIONS.iter().find(|(names, _)| names.contains(&name));
    let why = known.map_or_else(String::new, |(_, why)| format!(" ({why})"));
    format!("character {position}: unknown function `{name}`{why}; {available}")
}
