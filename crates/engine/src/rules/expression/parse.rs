//! From text to an expression, by descent, with the precedence of the language: `?:`, `||`, `&&`, comparisons, sums,
//! products, signs, methods.

use super::token::{Token, tokens};
use super::{Choice, Comparison, Expression, Number, Operation, Text, Truth};

pub(super) fn read(text: &str) -> Result<Expression, String> {
    let mut parser =
        Parser { tokens: tokens(text)?, at: 0, end: text.chars().count() + 1, depth: 0, attributes: Vec::new() };
    let whole = parser.any()?;
    if let Some((place, token)) = parser.tokens.get(parser.at) {
        return Err(format!("at character {place} `{}` is too much", token.shown()));
    }
    match whole {
        Any::Truth(truth) => Ok(Expression { truth, attributes: parser.attributes }),
        Any::Text(..) | Any::Number(_) => {
            let (end, what) = (parser.end, whole.kind());
            Err(format!("at character {end} something is missing: {what} by itself is neither true nor false"))
        }
    }
}

/// Something whose type is known.
enum Any {
    Truth(Truth),
    Number(Number),
    /// And what it is called.
    Text(Text, String),
}

impl Any {
    fn kind(&self) -> &'static str {
        match self {
            Self::Truth(_) => "a truth",
            Self::Number(_) => "a number",
            Self::Text(..) => "a text",
        }
    }
}

const METHODS: &str = "there are `startsWith`, `endsWith`, `contains` and `size`";
const FUNCTIONS: &str = "there are `size`, `int` and `has`";

/// What the language has and this part of it has not, and why.
const ELSEWHERE: &[(&[&str], &str)] = &[
    (&["matches"], "a regular expression may take any time, a pattern in `when` does not"),
    (&["all", "exists", "exists_one", "map", "filter"], "nothing loops here, and the only lists are those after `in`"),
    (&["double", "uint"], "numbers are whole, and `int` reads them"),
    (
        &["string", "bytes", "lowerAscii", "upperAscii", "replace", "split", "substring", "format"],
        "no texts are made here",
    ),
    (&["timestamp", "duration", "now", "getHours", "getDayOfWeek"], "hours and days are for `schedule`"),
];

struct Parser {
    tokens: Vec<(usize, Token)>,
    at: usize,
    /// The place behind the last character.
    end: usize,
    depth: usize,
    attributes: Vec<Box<str>>,
}

impl Parser {
    /// Anything, as between parentheses.
    fn any(&mut self) -> Result<Any, String> {
        self.deeper()?;
        let mut any = self.or()?;
        let place = self.place();
        if self.take("?") {
            let holds = truth(any, place)?;
            let this = self.any()?;
            self.expect(":")?;
            let other = self.any()?;
            any = match (this, other) {
                (Any::Truth(this), Any::Truth(other)) => Any::Truth(Truth::If(Box::new(Choice { holds, this, other }))),
                (Any::Number(this), Any::Number(other)) => {
                    Any::Number(Number::If(Box::new(Choice { holds, this, other })))
                }
                (Any::Text(this, name), Any::Text(other, _)) => {
                    Any::Text(Text::If(Box::new(Choice { holds, this, other })), name)
                }
                (this, other) => {
                    let (this, other) = (this.kind(), other.kind());
                    return Err(format!("at character {place} the choice is between {this} and {other}"));
                }
            };
        }
        self.depth -= 1;
        Ok(any)
    }

    fn deeper(&mut self) -> Result<(), String> {
        self.depth += 1;
        if self.depth > Expression::MAX_DEPTH {
            return Err(format!("there are more than {} parentheses in each other", Expression::MAX_DEPTH));
        }
        Ok(())
    }

    fn or(&mut self) -> Result<Any, String> {
        self.chain("||", Self::and, Truth::Or)
    }

    fn and(&mut self) -> Result<Any, String> {
        self.chain("&&", Self::comparison, Truth::And)
    }

    /// Truths with the same operator between them.
    fn chain(
        &mut self,
        sign: &str,
        part: fn(&mut Self) -> Result<Any, String>,
        make: fn(Box<Truth>, Box<Truth>) -> Truth,
    ) -> Result<Any, String> {
        let mut left = part(self)?;
        loop {
            let place = self.place();
            if !self.take(sign) {
                return Ok(left);
            }
            let (one, other) = (truth(left, place)?, truth(part(self)?, place)?);
            left = Any::Truth(make(Box::new(one), Box::new(other)));
        }
    }

    fn comparison(&mut self) -> Result<Any, String> {
        let mut left = self.sum()?;
        loop {
            let place = self.place();
            let comparison = match self.tokens.get(self.at) {
                Some((_, Token::Sign("=="))) => Comparison::Equal,
                Some((_, Token::Sign("!="))) => Comparison::Unequal,
                Some((_, Token::Sign("<"))) => Comparison::Less,
                Some((_, Token::Sign("<="))) => Comparison::AtMost,
                Some((_, Token::Sign(">"))) => Comparison::More,
                Some((_, Token::Sign(">="))) => Comparison::AtLeast,
                Some((_, Token::Name(name))) if name == "in" => {
                    self.at += 1;
                    left = Any::Truth(self.among(left, place)?);
                    continue;
                }
                _ => return Ok(left),
            };
            self.at += 1;
            let right = self.sum()?;
            left = Any::Truth(compare(comparison, left, right, place)?);
        }
    }

    fn among(&mut self, left: Any, place: usize) -> Result<Truth, String> {
        if self.is_name("attributes") {
            self.at += 1;
            return match left {
                Any::Text(Text::Literal(name), _) => {
                    Ok(Truth::Has(self.attribute(str::from_utf8(&name).unwrap_or_default())))
                }
                _ => Err(format!("at character {place} the name of an attribute in quotes is expected before `in`")),
            };
        }
        self.expect("[")?;
        let (mut texts, mut numbers) = (Vec::new(), Vec::new());
        while !self.take("]") {
            if !texts.is_empty() || !numbers.is_empty() {
                self.expect(",")?;
            }
            let place = self.place();
            match (self.sign()?, &left) {
                (Any::Text(Text::Literal(text), _), Any::Text(..)) => texts.push(text),
                (Any::Number(Number::Literal(number)), Any::Number(_)) => numbers.push(number),
                (_, Any::Text(..)) => return Err(format!("at character {place} the list is of texts")),
                (_, Any::Number(_)) => return Err(format!("at character {place} the list is of numbers")),
                (_, Any::Truth(_)) => break,
            }
        }
        match left {
            Any::Text(text, _) => Ok(Truth::Among(text, texts)),
            Any::Number(number) => Ok(Truth::NumberAmong(number, numbers)),
            Any::Truth(_) => Err(format!("at character {place} a truth is not looked for in lists")),
        }
    }

    fn sum(&mut self) -> Result<Any, String> {
        self.computed(&[("+", Operation::Add), ("-", Operation::Subtract)], Self::product)
    }

    fn product(&mut self) -> Result<Any, String> {
        let operations = [("*", Operation::Multiply), ("/", Operation::Divide), ("%", Operation::Remainder)];
        self.computed(&operations, Self::sign)
    }

    fn computed(
        &mut self,
        operations: &[(&str, Operation)],
        part: fn(&mut Self) -> Result<Any, String>,
    ) -> Result<Any, String> {
        let mut left = part(self)?;
        loop {
            let place = self.place();
            let Some((sign, operation)) = operations.iter().find(|(sign, _)| self.take(sign)) else { return Ok(left) };
            left = match (left, part(self)?) {
                (Any::Number(left), Any::Number(right)) => {
                    Any::Number(Number::Computed(*operation, Box::new(left), Box::new(right)))
                }
                (Any::Text(_, name), right) if *sign == "-" => {
                    let whole = match right {
                        Any::Text(_, other) => format!("{name}-{other}"),
                        Any::Number(_) | Any::Truth(_) => name.clone(),
                    };
                    let help = format!("a number is `int({name})`, a name with other letters `attributes['{whole}']`");
                    return Err(format!("at character {place} `-` is for numbers; {help}"));
                }
                (Any::Text(_, name), _) | (_, Any::Text(_, name)) => {
                    return Err(format!("at character {place} `{sign}` is for numbers; a number is `int({name})`"));
                }
                _ => return Err(format!("at character {place} `{sign}` is for numbers")),
            };
        }
    }

    fn sign(&mut self) -> Result<Any, String> {
        let place = self.place();
        if self.take("!") {
            self.deeper()?;
            let inner = truth(self.sign()?, place)?;
            self.depth -= 1;
            return Ok(Any::Truth(Truth::Not(Box::new(inner))));
        }
        if self.take("-") {
            if let Some((_, Token::Number(number))) = self.tokens.get(self.at) {
                let number = 0_i64.checked_sub_unsigned(*number);
                self.at += 1;
                let number = number.ok_or_else(|| format!("at character {place} the number is too large"))?;
                return Ok(Any::Number(Number::Literal(number)));
            }
            self.deeper()?;
            let Any::Number(inner) = self.sign()? else {
                return Err(format!("at character {place} `-` is for numbers"));
            };
            self.depth -= 1;
            return Ok(Any::Number(Number::Negative(Box::new(inner))));
        }
        let mut left = self.one()?;
        while self.take(".") {
            let (place, token) = self.next()?;
            let Token::Name(method) = token else {
                return Err(format!("at character {place} the name of a method is expected"));
            };
            left = self.method(left, place, &method)?;
        }
        Ok(left)
    }

    fn one(&mut self) -> Result<Any, String> {
        if self.take("(") {
            let any = self.any()?;
            return self.expect(")").map(|()| any);
        }
        let (place, token) = self.next()?;
        match token {
            Token::Number(number) => {
                let number = i64::try_from(number).map_err(|_| format!("at character {place} the number is too large"));
                number.map(|number| Any::Number(Number::Literal(number)))
            }
            Token::Text(text) => Ok(Any::Text(Text::Literal(text.as_bytes().into()), format!("'{text}'"))),
            Token::Name(name) if name == "true" || name == "false" => Ok(Any::Truth(Truth::Is(name == "true"))),
            Token::Name(name) if self.peek("(") => match name.rsplit_once('.') {
                Some((attribute, method)) => {
                    let attribute = self.named(attribute);
                    self.method(attribute, place, method)
                }
                None => self.function(place, &name),
            },
            Token::Name(_) => {
                self.at -= 1;
                let attribute = self.attribute_name()?;
                let name = self.attributes[attribute].to_string();
                Ok(Any::Text(Text::Attribute(attribute), name))
            }
            Token::Sign("[") => Err(format!("at character {place} there is a list; lists stand only after `in`")),
            Token::Sign(sign) => Err(format!("at character {place} `{sign}` is no text or number")),
        }
    }

    fn function(&mut self, place: usize, name: &str) -> Result<Any, String> {
        if !matches!(name, "has" | "size" | "int") {
            return Err(unknown(place, name, FUNCTIONS));
        }
        self.expect("(")?;
        let place = self.place();
        let result = match name {
            "has" => Any::Truth(Truth::Has(self.attribute_name()?)),
            _ => match (name, self.any()?) {
                ("size", Any::Text(text, _)) => Any::Number(Number::Size(text)),
                ("int", Any::Text(text, _)) => Any::Number(Number::Int(text)),
                ("int", Any::Number(number)) => Any::Number(number),
                _ => return Err(format!("at character {place} a text is expected")),
            },
        };
        self.expect(")").map(|()| result)
    }

    /// `path.startsWith('/v1')`, once its name is read.
    fn method(&mut self, of: Any, place: usize, method: &str) -> Result<Any, String> {
        let make: Option<fn(Text, Text) -> Truth> = match method {
            "startsWith" => Some(Truth::StartsWith),
            "endsWith" => Some(Truth::EndsWith),
            "contains" => Some(Truth::Contains),
            "size" => None,
            other => return Err(unknown(place, other, METHODS)),
        };
        let Any::Text(text, _) = of else {
            return Err(format!("at character {place} `{method}` is for texts"));
        };
        self.expect("(")?;
        let Some(make) = make else {
            return self.expect(")").map(|()| Any::Number(Number::Size(text)));
        };
        let place = self.place();
        let Any::Text(part, _) = self.any()? else { return Err(format!("at character {place} a text is expected")) };
        self.expect(")").map(|()| Any::Truth(make(text, part)))
    }

    /// A name, or any name as `attributes['name']` or `attributes.name`.
    fn attribute_name(&mut self) -> Result<usize, String> {
        let (place, token) = self.next()?;
        let Token::Name(name) = token else {
            return Err(format!("at character {place} the name of an attribute is expected"));
        };
        if name != "attributes" || !self.take("[") {
            return Ok(self.attribute(name.strip_prefix("attributes.").unwrap_or(&name)));
        }
        let (place, token) = self.next()?;
        let Token::Text(name) = token else { return Err(format!("at character {place} a name in quotes is expected")) };
        let attribute = self.attribute(&name);
        self.expect("]").map(|()| attribute)
    }

    fn named(&mut self, name: &str) -> Any {
        let name = name.strip_prefix("attributes.").unwrap_or(name);
        Any::Text(Text::Attribute(self.attribute(name)), name.to_owned())
    }

    fn attribute(&mut self, name: &str) -> usize {
        self.attributes.iter().position(|known| **known == *name).unwrap_or_else(|| {
            self.attributes.push(name.into());
            self.attributes.len() - 1
        })
    }

    /// Where the next word begins.
    fn place(&self) -> usize {
        self.tokens.get(self.at).map_or(self.end, |(place, _)| *place)
    }

    fn next(&mut self) -> Result<(usize, Token), String> {
        let token = self.tokens.get(self.at).cloned();
        self.at += 1;
        token.ok_or_else(|| format!("at character {} something is missing", self.end))
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
        Err(format!("at character {} a `{sign}` is missing", self.place()))
    }
}

fn truth(any: Any, place: usize) -> Result<Truth, String> {
    match any {
        Any::Truth(truth) => Ok(truth),
        Any::Text(..) | Any::Number(_) => {
            Err(format!("at character {place} {} by itself is neither true nor false", any.kind()))
        }
    }
}

fn compare(comparison: Comparison, left: Any, right: Any, place: usize) -> Result<Truth, String> {
    match (left, right) {
        (Any::Text(left, _), Any::Text(right, _)) => Ok(Truth::Texts(comparison, left, right)),
        (Any::Number(left), Any::Number(right)) => Ok(Truth::Numbers(comparison, left, right)),
        (Any::Truth(left), Any::Truth(right)) if matches!(comparison, Comparison::Equal | Comparison::Unequal) => {
            Ok(Truth::Truths(comparison, Box::new(left), Box::new(right)))
        }
        (Any::Truth(_), Any::Truth(_)) => Err(format!("at character {place} truths have no order")),
        (Any::Text(_, name), Any::Number(_)) | (Any::Number(_), Any::Text(_, name)) => {
            Err(format!("at character {place} a text is compared with a number; a number is `int({name})`"))
        }
        (left, right) => Err(format!("at character {place} {} is compared with {}", left.kind(), right.kind())),
    }
}

/// That there is no such function, why, if the language has it, and what there is.
fn unknown(place: usize, name: &str, there: &str) -> String {
    let known = ELSEWHERE.iter().find(|(names, _)| names.contains(&name));
    let why = known.map_or_else(String::new, |(_, why)| format!(" ({why})"));
    format!("at character {place} there is no `{name}`{why}; {there}")
}
