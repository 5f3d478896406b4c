//! Writes requests as the JSON lines that `tollgate decide` reads, and decisions as the JSON lines that it prints.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use jiff::Timestamp;
use tollgate_engine::Decision;

use super::ReplayError;
use super::merge::{Consumer, LineAttributes, LineBatch, LoggedRequest};
use crate::http::write_decision_json;

/// A file that is written line by line. `finish` reports the first error.
#[derive(Debug)]
pub(super) struct LineFile {
    name: String,
    out: BufWriter<File>,
    error: Option<io::Error>,
    /// The line that is being written.
    line: Vec<u8>,
}

impl LineFile {
    pub(super) fn create(path: &Path) -> Result<Self, ReplayError> {
        let name = path.display().to_string();
        let file = File::create(path).map_err(|error| ReplayError::Invalid(format!("cannot write {name}: {error}")))?;
        Ok(Self { name, out: BufWriter::new(file), error: None, line: Vec::new() })
    }

    /// Writes one line. The closure `write` appends its text to a buffer.
    fn write(&mut self, write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) {
        self.line.clear();
        let line = &mut self.line;
        if self.error.is_none() {
            let written = write(line).and_then(|()| {
                line.push(b'\n');
                self.out.write_all(line)
            });
            self.error = written.err();
        }
    }

    /// Writes a decision as `tollgate decide` prints it. Writes `null` for `None`, a request that the engine did not
    /// accept.
    pub(super) fn write_decision(&mut self, decision: Option<Decision<'_>>) {
        self.write(|line| {
            match decision {
                Some(decision) => write_decision_json(line, decision),
                None => line.extend_from_slice(b"null"),
            }
            Ok(())
        });
    }

    /// Flushes the file, and returns the first error.
    pub(super) fn finish(mut self) -> Result<(), ReplayError> {
        let error = self.error.take().map_or_else(|| self.out.flush(), Err);
        error.map_err(|error| ReplayError::Invalid(format!("cannot write {}: {error}", self.name)))
    }
}

/// Writes requests to a file.
pub(super) struct RequestWriter<'a> {
    pub(super) file: LineFile,
    pub(super) domain: String,
    pub(super) attributes: &'a LineAttributes,
}

impl RequestWriter<'_> {
    fn write(&mut self, batch: &LineBatch, request: &LoggedRequest) {
        let mut entries = smallvec::SmallVec::new();
        batch.push_entries(request, self.attributes, &mut entries);
        let domain = serde_json::Value::from(&*self.domain);
        self.file.write(|line| {
            line.extend_from_slice(b"{\"at\":");
            match (request.at % 1_000_000, Timestamp::from_nanosecond(i128::from(request.at))) {
                (1.., Ok(at)) => write!(line, "\"{at:.9}\"")?,
                _ => write!(line, "{}", request.at / 1_000_000)?,
            }
            write!(line, ",\"domain\":{domain},\"attributes\":{{")?;
            for (index, entry) in entries.iter().enumerate() {
                let text = |bytes: &[u8]| serde_json::Value::from(String::from_utf8_lossy(bytes));
                let comma = if index > 0 { "," } else { "" };
                write!(line, "{comma}{}:{}", text(entry.name), text(entry.value))?;
            }
            line.extend_from_slice(b"}}");
            Ok(())
        });
    }
}

impl Consumer for RequestWriter<'_> {
    fn consume(&mut self, batch: &LineBatch) {
        for request in &batch.slots {
            self.write(batch, request);
        }
    }
}
