//! Reading recorded traces: one JSON object to the line, one line to the case.
//!
//! Numbers are taken as the 64-bit integers they are. Only what a reference gives as a double is read as one.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use serde_json::Value;

/// What one reference did from a fresh state on.
#[derive(Clone, Debug)]
pub struct Case {
    /// The reference and its version.
    pub oracle: String,
    /// Which of its algorithms.
    pub algorithm: String,
    /// The name, for telling where a difference is and for nothing else.
    pub name: String,
    /// The limits it was made with.
    pub config: Value,
    /// What was asked of it, in order.
    pub steps: Vec<Step>,
}

/// One operation and its result.
#[derive(Clone, Debug)]
pub struct Step {
    /// When, in the unit of the reference's clock; only a clock that went back says less than zero.
    pub at: i64,
    /// Which operation.
    pub op: String,
    /// What was passed to it.
    pub args: Value,
    /// What it returned, with the state afterwards where that is recorded.
    pub result: Value,
}

impl Step {
    /// When, in nanoseconds, if a unit of the reference's clock has `unit` of them.
    pub fn at_nanos(&self, unit: u64) -> u64 {
        u64::try_from(self.at).unwrap_or(0) * unit
    }

    /// Whether the operation failed: nothing was decided.
    pub fn failed(&self) -> bool {
        self.result.get("error").is_some() || self.result.get("server_aborted").is_some()
    }

    /// Whether an argument is the first or the last number of 64 bits.
    pub fn has_extreme_argument(&self) -> bool {
        any_number(&self.args, |n| n == i128::from(i64::MIN) || n == i128::from(i64::MAX) || n == i128::from(u64::MAX))
    }
}

fn any_number(value: &Value, test: fn(i128) -> bool) -> bool {
    match value {
        Value::Array(items) => items.iter().any(|item| any_number(item, test)),
        Value::Object(fields) => fields.values().any(|field| any_number(field, test)),
        // Raw arguments of a command are recorded as text.
        Value::String(text) => text.parse().is_ok_and(test),
        Value::Number(number) => whole(number).is_some_and(test),
        Value::Null | Value::Bool(_) => false,
    }
}

fn whole(number: &serde_json::Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

/// The fields of recorded objects. A field that is missing or of another kind means that the trace is not one of
/// ours; the message says which.
pub trait Fields {
    /// The field itself.
    fn field(&self, name: &str) -> &Value;

    /// A whole number, if the field is there and not null.
    fn maybe_int(&self, name: &str) -> Option<i128>;

    /// A whole number.
    fn int(&self, name: &str) -> i128 {
        self.maybe_int(name).unwrap_or_else(|| panic!("`{name}` is no whole number"))
    }

    /// A whole number that cannot be negative.
    fn count(&self, name: &str) -> u64 {
        u64::try_from(self.int(name)).unwrap_or_else(|_| panic!("`{name}` is negative"))
    }

    /// Yes or no.
    fn flag(&self, name: &str) -> bool {
        self.field(name).as_bool().unwrap_or_else(|| panic!("`{name}` is neither true nor false"))
    }

    /// A number that the reference keeps as a double.
    fn double(&self, name: &str) -> f64 {
        self.field(name).as_f64().unwrap_or_else(|| panic!("`{name}` is no number"))
    }

    /// A text.
    fn text(&self, name: &str) -> &str {
        self.field(name).as_str().unwrap_or_else(|| panic!("`{name}` is no text"))
    }

    /// A list.
    fn list(&self, name: &str) -> &[Value] {
        self.field(name).as_array().unwrap_or_else(|| panic!("`{name}` is no list"))
    }
}

impl Fields for Value {
    fn field(&self, name: &str) -> &Value {
        self.get(name).unwrap_or(&Value::Null)
    }

    fn maybe_int(&self, name: &str) -> Option<i128> {
        self.field(name).as_number().and_then(whole)
    }
}

/// Where traces are read from: a directory of `<name>.jsonl` or `<name>.jsonl.gz`.
#[derive(Clone, Debug)]
pub struct Directory(PathBuf);

impl Directory {
    /// The traces in the repository, or those in the directory that the environment variable `TOLLGATE_ORACLES` names.
    pub fn chosen() -> Self {
        let committed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
        Self(std::env::var_os("TOLLGATE_ORACLES").map_or_else(committed, PathBuf::from))
    }

    /// All cases of one file.
    ///
    /// # Errors
    /// When there is no such file, it cannot be read, or a line is not a case.
    pub fn read(&self, name: &str) -> io::Result<Vec<Case>> {
        let plain = self.0.join(format!("{name}.jsonl"));
        let packed = self.0.join(format!("{name}.jsonl.gz"));
        let input: Box<dyn Read> = if plain.exists() {
            Box::new(File::open(plain)?)
        } else {
            let file = File::open(&packed).map_err(|error| {
                io::Error::new(error.kind(), format!("neither {} nor {}", plain.display(), packed.display()))
            })?;
            Box::new(GzDecoder::new(file))
        };
        BufReader::new(input).lines().map(|line| parse(&line?)).collect()
    }
}

fn parse(line: &str) -> io::Result<Case> {
    let value: Value = serde_json::from_str(line)?;
    let text = |name| value.text(name).to_owned();
    Ok(Case {
        oracle: text("oracle"),
        algorithm: text("algorithm"),
        name: text("case"),
        config: value.field("config").clone(),
        steps: value.list("steps").iter().map(parse_step).collect(),
    })
}

fn parse_step(value: &Value) -> Step {
    let unit = ["at_ns", "at_us", "at_ms"].into_iter().find(|unit| value.get(unit).is_some());
    Step {
        at: value.int(unit.expect("a step has a time")).try_into().expect("a time fits 64 bits"),
        op: value.text("op").to_owned(),
        args: value.field("args").clone(),
        result: value.field("result").clone(),
    }
}
