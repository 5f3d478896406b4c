//! Writes requests and decisions as JSON lines, in the input and output formats of `tollgate decide`.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use jiff::Timestamp;
use tollgate_engine::Decision;

use super::ReplayError;
use super::merge::{Consumer, LineAttributes, LineBatch, LoggedRequest};
use crate::http::write_decision_json;

/// A file that is written line by line. `finish` returns the first error.
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

    /// Writes one line. The closure `write` appends the line's text to a buffer.
    fn write_line(&mut self, write: impl FnOnce(&mut Vec<u8>) -> io::Result<()>) {
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

    /// Writes a decision in the output format of `tollgate decide`. Writes `null` for `None`, which means that the
    /// engine rejected the request.
    pub(super) fn write_decision(&mut self, decision: Option<Decision<'_>>) {
        self.write_line(|line| {
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
    fn write_request(&mut self, batch: &LineBatch, request: &LoggedRequest) {
        let mut attributes = smallvec::SmallVec::new();
        batch.push_attributes(request, self.attributes, &mut attributes);
        let domain = serde_json::Value::from(&*self.domain);
        self.file.write_line(|line| {
            line.extend_from_slice(b"{\"at\":");
            match (request.at % 1_000_000, Timestamp::from_nanosecond(i128::from(request.at))) {
                (1.., Ok(at)) => write!(line, "\"{at:.9}\"")?,
                _ => write!(line, "{}", request.at / 1_000_000)?,
            }
            write!(line, ",\"domain\":{domain},\"attributes\":{{")?;
            for (index, attribute) in attributes.iter().enumerate() {
                let text = |bytes: &[u8]| serde_json::Value::from(String::from_utf8_lossy(bytes));
                let comma = if index > 0 { "," } else { "" };
                write!(line, "{comma}{}:{}", text(attribute.name), text(attribute.value))?;
            }
            line.extend_from_slice(b"}}");
            Ok(())
        });
    }
}

impl Consumer for RequestWriter<'_> {
    fn consume(&mut self, batch: &LineBatch) {
        for request in &batch.slots {
            self.write_request(batch, request);
        }
    }
}
