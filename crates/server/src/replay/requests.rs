//! Writes the requests of logs as lines of JSON that `tollgate decide` reads: the same requests, decided one by one and shown.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;

use jiff::Timestamp;

use super::ReplayError;
use super::merge::{Attributes, Batch, Consumer, LoggedRequest};

/// Writes requests to a file.
pub(super) struct RequestWriter<'a> {
    name: String,
    out: BufWriter<File>,
    domain: String,
    attributes: &'a Attributes,
    error: Option<io::Error>,
}

impl<'a> RequestWriter<'a> {
    pub(super) fn create(path: &Path, domain: &str, attributes: &'a Attributes) -> Result<Self, ReplayError> {
        let name = path.display().to_string();
        let file = File::create(path).map_err(|error| ReplayError::Invalid(format!("cannot write {name}: {error}")))?;
        Ok(Self { name, out: BufWriter::new(file), domain: domain.to_owned(), attributes, error: None })
    }

    fn write(&mut self, batch: &Batch, request: &LoggedRequest) -> io::Result<()> {
        let mut entries = smallvec::SmallVec::new();
        batch.push_entries(request, self.attributes, &mut entries);
        self.out.write_all(b"{\"at\":")?;
        match (request.at % 1_000_000, Timestamp::from_nanosecond(i128::from(request.at))) {
            (1.., Ok(at)) => write!(self.out, "\"{at:.9}\"")?,
            _ => write!(self.out, "{}", request.at / 1_000_000)?,
        }
        write!(self.out, ",\"domain\":{},\"attributes\":{{", serde_json::Value::from(&*self.domain))?;
        for (place, entry) in entries.iter().enumerate() {
            let text = |bytes: &[u8]| serde_json::Value::from(String::from_utf8_lossy(bytes));
            let comma = if place > 0 { "," } else { "" };
            write!(self.out, "{comma}{}:{}", text(entry.name), text(entry.value))?;
        }
        self.out.write_all(b"}}\n")
    }

    /// Writes the rest.
    pub(super) fn finish(mut self) -> Result<(), ReplayError> {
        let error = self.error.take().map_or_else(|| self.out.flush(), Err);
        error.map_err(|error| ReplayError::Invalid(format!("cannot write {}: {error}", self.name)))
    }
}

impl Consumer for RequestWriter<'_> {
    fn consume(&mut self, batch: &Batch) {
        for request in &batch.slots {
            if self.error.is_none() {
                self.error = self.write(batch, request).err();
            }
        }
    }
}
