//! Reads recorded traces: one JSON object per line, one line per case.
//!
//! Numbers are read as 64-bit integers. Only values that a reference returns as doubles are read as
//! doubles.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use serde_json::Value;

use super::tally::Skip;

/// A recorded case: the operations of one reference limiter, from a new state.
#[derive(Clone, Debug)]
pub struct Case {
    /// The reference and its version.
    pub oracle: String,
    /// The algorithm of the reference.
    pub algorithm: String,
    /// Name of the case, used only to locate differences.
    pub name: String,
    /// Configuration of the limiter.
    pub config: Value,
    /// The operations, in order.
    pub steps: Vec<TraceStep>,
}

/// One operation and its result.
#[derive(Clone, Debug)]
pub struct TraceStep {
    /// Time in units of the reference's clock. The time may be negative, because the clock may have any origin.
    pub at: i64,
    /// The operation.
    pub op: String,
    /// Arguments of the operation.
    pub args: Value,
    /// Result of the operation, with the state afterwards if recorded.
    pub result: Value,
}

impl TraceStep {
    /// Returns the time in nanoseconds, for a clock with a unit of `unit` nanoseconds.
    ///
    /// # Errors
    /// Returns an error if the time is before 1970 or too far in the future for our clocks.
    pub fn at_nanos(&self, unit: u64) -> ReadResult<u64> {
        to_nanos(self.at, unit)
    }

    /// Returns whether the operation failed, so that nothing was decided.
    pub fn failed(&self) -> bool {
        self.result.get("error").is_some() || self.result.get("server_aborted").is_some()
    }

    /// Returns whether an argument is the smallest or largest 64-bit number.
    pub fn has_extreme_argument(&self) -> bool {
        any_number(&self.args, |n| n == i128::from(i64::MIN) || n == i128::from(i64::MAX) || n == i128::from(u64::MAX))
    }
}

fn any_number(value: &Value, test: fn(i128) -> bool) -> bool {
    match value {
        Value::Array(items) => items.iter().any(|item| any_number(item, test)),
        Value::Object(fields) => fields.values().any(|field| any_number(field, test)),
        // Raw command arguments are recorded as strings.
        Value::String(text) => text.parse().is_ok_and(test),
        Value::Number(number) => as_integer(number).is_some_and(test),
        Value::Null | Value::Bool(_) => false,
    }
}

fn as_integer(number: &serde_json::Number) -> Option<i128> {
    number.as_i64().map(i128::from).or_else(|| number.as_u64().map(i128::from))
}

/// A value, or the reason why a step that needs it is skipped.
pub type ReadResult<T> = Result<T, Skip>;

/// Latest usable time, early enough that adding a wait does not overflow.
const LATEST_NANOS: u64 = u64::MAX / 4;

/// Converts a time in units of `unit` nanoseconds.
pub(super) fn to_nanos(at: i64, unit: u64) -> ReadResult<u64> {
    let at = u64::try_from(at).map_err(|_| Skip::BeforeTime)?;
    at.checked_mul(unit).filter(|nanos| *nanos <= LATEST_NANOS).ok_or(Skip::BeyondTime)
}

/// Access to fields of recorded objects. If a step needs a field that is missing or has another type, the
/// step is skipped and counted under the field's name.
pub trait Fields {
    /// Returns the value of the field, or null if it is missing.
    fn field(&self, name: &str) -> &Value;

    /// Returns the integer in the field, if there is one.
    fn optional_int(&self, name: &str) -> Option<i128>;

    /// Reads an integer.
    fn read_int(&self, name: &'static str) -> ReadResult<i128> {
        self.optional_int(name).ok_or(Skip::Field(name))
    }

    /// Reads a non-negative integer.
    fn read_count(&self, name: &'static str) -> ReadResult<u64> {
        u64::try_from(self.read_int(name)?).map_err(|_| Skip::Field(name))
    }

    /// Reads a boolean.
    fn read_bool(&self, name: &'static str) -> ReadResult<bool> {
        self.field(name).as_bool().ok_or(Skip::Field(name))
    }

    /// Reads a number that the reference returns as a double.
    fn read_double(&self, name: &'static str) -> ReadResult<f64> {
        self.field(name).as_f64().ok_or(Skip::Field(name))
    }

    /// Reads a string.
    fn read_text(&self, name: &'static str) -> ReadResult<&str> {
        self.field(name).as_str().ok_or(Skip::Field(name))
    }

    /// Reads a list.
    fn read_list(&self, name: &'static str) -> ReadResult<&[Value]> {
        self.field(name).as_array().map(Vec::as_slice).ok_or(Skip::Field(name))
    }
}

impl Fields for Value {
    fn field(&self, name: &str) -> &Value {
        self.get(name).unwrap_or(&Value::Null)
    }

    fn optional_int(&self, name: &str) -> Option<i128> {
        self.field(name).as_number().and_then(as_integer)
    }
}

/// Location of the traces: a directory of `<name>.jsonl` or `<name>.jsonl.gz` files.
#[derive(Clone, Debug)]
pub struct TraceDirectory(PathBuf);

impl TraceDirectory {
    /// Returns the repository's traces, or the directory named by `TOLLGATE_ORACLES`.
    pub fn from_environment() -> Self {
        let committed = || Path::new(env!("CARGO_MANIFEST_DIR")).join("traces");
        Self(std::env::var_os("TOLLGATE_ORACLES").map_or_else(committed, PathBuf::from))
    }

    /// Reads all cases of one file.
    ///
    /// # Errors
    /// Returns an error if the file is missing or cannot be read, or if a line is not a case.
    pub fn read(&self, name: &str) -> io::Result<Vec<Case>> {
        let plain = self.0.join(format!("{name}.jsonl"));
        let packed = self.0.join(format!("{name}.jsonl.gz"));
        let input: Box<dyn io::Read> = if plain.exists() {
            Box::new(File::open(plain)?)
        } else {
            let file = File::open(&packed).map_err(|error| {
                io::Error::new(error.kind(), format!("neither {} nor {}", plain.display(), packed.display()))
            })?;
            Box::new(GzDecoder::new(file))
        };
        BufReader::new(input).lines().map(|line| Case::parse(&line?)).collect()
    }
}

impl Case {
    /// Parses a line of a trace file.
    ///
    /// # Errors
    /// Returns an error if the line is not JSON, or if a required field of a case or step is missing.
    pub fn parse(line: &str) -> io::Result<Self> {
        let value: Value = serde_json::from_str(line)?;
        let text = |name| Ok(value.read_text(name)?.to_owned());
        let read = || -> ReadResult<Self> {
            Ok(Self {
                oracle: text("oracle")?,
                algorithm: text("algorithm")?,
                name: text("case")?,
                config: value.field("config").clone(),
                steps: value.read_list("steps")?.iter().map(parse_step).collect::<ReadResult<_>>()?,
            })
        };
        read().map_err(|skip| io::Error::new(io::ErrorKind::InvalidData, format!("not a case: {skip}")))
    }

    /// Returns the start time of the case, in units of the reference's clock.
    pub(super) fn start(&self) -> Option<i64> {
        let start = ["start_ns", "start_us", "start_ms"].into_iter().find_map(|name| self.config.optional_int(name));
        start.and_then(|start| start.try_into().ok())
    }
}

fn parse_step(value: &Value) -> ReadResult<TraceStep> {
    let at = ["at_ns", "at_us", "at_ms"].into_iter().find_map(|unit| value.optional_int(unit));
    Ok(TraceStep {
        at: at.and_then(|at| at.try_into().ok()).ok_or(Skip::Field("at"))?,
        op: value.read_text("op")?.to_owned(),
        args: value.field("args").clone(),
        result: value.field("result").clone(),
    })
}
