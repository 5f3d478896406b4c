//! Chunks of a log: the bytes, and the positions of each line's attributes.
//!
//! Each log has a thread that reads, parses and sorts its chunks. The buffers of processed chunks are reused.

use std::io::{self, Read};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

use jiff::tz::TimeZone;

use super::bounds::{MAX_FIELDS, MAX_LINE_BYTES};
use super::format::Format;
use super::format::span::Span;
use super::format::time::TimeParser;
use super::input::{BYTE_ORDER_MARK, LogSource};
use super::problems::{LineProblem, Problems};

/// Parsed lines, ordered by time.
#[derive(Debug, Default)]
pub(super) struct Chunk {
    buffers: ChunkBuffers,
    pool: ChunkPool,
}

#[derive(Debug, Default)]
struct ChunkBuffers {
    text: Vec<u8>,
    extra: Vec<u8>,
    records: Vec<Record>,
    spans: Vec<Span>,
    attributes: usize,
    problems: Problems,
    lines: u64,
    first_line: u64,
}

/// A line of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct Record {
    /// Nanoseconds since 1970.
    pub(super) at: u64,
    /// The row of the line's attributes, for [`Chunk::value`].
    pub(super) row: u32,
    /// The number of lines before this line in the chunk.
    pub(super) line: u32,
}

impl Chunk {
    /// Returns the lines of the chunk, ordered by time.
    pub(super) fn records(&self) -> &[Record] {
        &self.buffers.records
    }

    pub(super) fn problems(&self) -> &Problems {
        &self.buffers.problems
    }

    /// Returns the number of lines, including skipped lines.
    pub(super) fn line_count(&self) -> u64 {
        self.buffers.lines
    }

    /// Returns the line number of the chunk's first line in the log.
    pub(super) fn first_line_number(&self) -> u64 {
        self.buffers.first_line
    }

    /// Returns the value of an attribute of the line in `row`; `attribute` is the attribute's index.
    #[inline]
    pub(super) fn value(&self, row: u32, attribute: usize) -> Option<&[u8]> {
        let ChunkBuffers { text, extra, spans, attributes, .. } = &self.buffers;
        let span = *spans.get(row as usize * attributes + attribute)?;
        match span.start().checked_sub(text.len()) {
            None => span.bytes_in(text),
            Some(_) if span.is_none() => None,
            Some(start) => extra.get(start..start + span.len()),
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        let buffers = std::mem::take(&mut self.buffers);
        self.pool.0.lock().unwrap_or_else(PoisonError::into_inner).push(buffers);
    }
}

/// The buffers of processed chunks, for reuse.
#[derive(Clone, Debug, Default)]
pub(super) struct ChunkPool(Arc<Mutex<Vec<ChunkBuffers>>>);

impl ChunkPool {
    fn take_chunk(&self) -> Chunk {
        let buffers = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop().unwrap_or_default();
        Chunk { buffers, pool: self.clone() }
    }
}

/// Reads a log and sends its chunks, until the log ends or the receiver is dropped.
pub(super) struct ChunkReader<'s> {
    pub(super) source: &'s LogSource,
    /// The index of the log, for error messages.
    pub(super) number: usize,
    /// The number of attributes per request.
    pub(super) attributes: usize,
    /// The size of a chunk in bytes.
    pub(super) size: usize,
    pub(super) zone: TimeZone,
    /// The latest accepted time, in nanoseconds since 1970. Lines with a later time are skipped.
    pub(super) latest: u64,
    pub(super) pool: ChunkPool,
}

impl ChunkReader<'_> {
    /// Sends all chunks and, if reading fails, the error.
    pub(super) fn send_all(self, to: &SyncSender<Result<Chunk, String>>) {
        if let Err(error) = self.read_all(to) {
            // Sending fails only if the receiver was dropped. The error is then not needed.
            let _ = to.send(Err(format!("{}: read only in part: {error}", self.source.name)));
        }
    }

    fn read_all(&self, to: &SyncSender<Result<Chunk, String>>) -> io::Result<()> {
        let mut stream = self.source.open()?;
        let mut parser = TimeParser::new(self.zone.clone());
        let (mut carried, mut line_number, mut skipping) = (Vec::new(), 1_u64, false);
        let (mut is_first, mut fields) = (true, [Span::NONE; MAX_FIELDS]);
        loop {
            let mut chunk = self.pool.take_chunk();
            let buffers = &mut chunk.buffers;
            buffers.reset(self, line_number);
            let (filled, broken) = buffers.fill_text(&mut stream, &carried);
            let is_last = filled < buffers.text.len() || broken.is_some();
            let mut start = 0;
            if std::mem::take(&mut is_first) && buffers.text[..filled].starts_with(BYTE_ORDER_MARK) {
                start = BYTE_ORDER_MARK.len();
            }
            let text = std::mem::take(&mut buffers.text);
            let ends = memchr::memchr_iter(b'\n', &text[..filled]);
            // The last line of the log may lack a line break. If reading failed, that line is incomplete and is
            // dropped.
            let is_open = is_last && broken.is_none() && filled > start && !text[..filled].ends_with(b"\n");
            for end in ends.chain(is_open.then_some(filled)) {
                if std::mem::take(&mut skipping) {
                    // This is the end of an overlong line, which was counted when its beginning was read.
                } else {
                    self.add_line(buffers, &text, (start, end), &mut parser, &mut fields);
                }
                buffers.lines += 1;
                start = end + 1;
            }
            carried.clear();
            if !is_last && start < filled {
                let rest = &text[start..filled];
                if rest.len() > MAX_LINE_BYTES && !skipping {
                    buffers.add_problem(self, LineProblem::TooLong);
                    skipping = true;
                }
                if !skipping {
                    carried.extend_from_slice(rest);
                }
            }
            buffers.text = text;
            line_number += buffers.lines;
            buffers.sort_records();
            if to.send(Ok(chunk)).is_err() || is_last {
                return broken.map_or(Ok(()), Err);
            }
        }
    }

    #[inline]
    fn add_line(
        &self,
        buffers: &mut ChunkBuffers,
        text: &[u8],
        (start, end): (usize, usize),
        parser: &mut TimeParser,
        fields: &mut [Span; MAX_FIELDS],
    ) {
        let line = text[start..end].strip_suffix(b"\r").unwrap_or(&text[start..end]);
        if line.len() > MAX_LINE_BYTES {
            return buffers.add_problem(self, LineProblem::TooLong);
        }
        let LogSource { format, extractor, .. } = self.source;
        fields[..format.field_count().min(MAX_FIELDS)].fill(Span::NONE);
        if !format.parse(line, start, fields) {
            return self.add_unreadable(buffers, line);
        }
        let Some(stamp) = extractor.time_of_line(text, fields, parser) else {
            if !format.is_header(line) {
                buffers.add_problem(self, LineProblem::NoTime);
            }
            return;
        };
        if stamp.nanos > self.latest {
            return buffers.add_problem(self, LineProblem::Future);
        }
        let row = buffers.records.len() as u32;
        buffers.records.push(Record { at: stamp.nanos, row, line: buffers.lines as u32 });
        extractor.push_attributes(format, text, fields, &mut buffers.extra, &mut buffers.spans);
    }

    #[cold]
    fn add_unreadable(&self, buffers: &mut ChunkBuffers, line: &[u8]) {
        let is_control_byte = |byte: &u8| *byte < 9 || (14..32).contains(byte) && *byte != 27;
        if line.trim_ascii().is_empty() {
            // Empty lines are not requests.
        } else if line.iter().any(is_control_byte) {
            buffers.add_problem(self, LineProblem::Binary);
        } else if Format::detect(line).is_some() {
            buffers.add_problem(self, LineProblem::OtherFormat);
        } else {
            buffers.add_problem(self, LineProblem::Unreadable);
        }
    }
}

impl ChunkBuffers {
    fn reset(&mut self, reader: &ChunkReader<'_>, first_line: u64) {
        self.extra.clear();
        self.records.clear();
        self.spans.clear();
        self.problems.clear();
        self.lines = 0;
        self.first_line = first_line;
        self.attributes = reader.attributes;
        self.text.resize(reader.size, 0);
    }

    /// Fills the buffer with `carried` (the incomplete last line of the previous chunk) and with new bytes. Returns the
    /// number of filled bytes and, if reading failed, the error. The buffer is full except at the end of the log.
    fn fill_text(&mut self, stream: &mut impl Read, carried: &[u8]) -> (usize, Option<io::Error>) {
        self.text[..carried.len()].copy_from_slice(carried);
        let mut filled = carried.len();
        while filled < self.text.len() {
            match stream.read(&mut self.text[filled..]) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return (filled, Some(error)),
            }
        }
        (filled, None)
    }

    #[cold]
    fn add_problem(&mut self, reader: &ChunkReader<'_>, problem: LineProblem) {
        self.problems.add(problem, reader.number, self.first_line + self.lines);
    }

    /// Sorts the lines by time; lines with the same time keep their order.
    fn sort_records(&mut self) {
        if !self.records.is_sorted_by_key(|record| record.at) {
            self.records.sort_by_key(|record| record.at);
        }
    }
}
