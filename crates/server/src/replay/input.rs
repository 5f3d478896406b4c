//! Opens logs as byte streams. A log is a file, the standard input or bytes in memory, and may be compressed.

use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use jiff::tz::TimeZone;

use super::attributes::{Extractor, Mapping};
use super::bounds::{FORMAT_SAMPLE_BYTES, MAX_BOMB_BYTES, MAX_EXPANSION_RATIO, MAX_FIELDS};
use super::format::span::Span;
use super::format::time::TimeParser;
use super::format::{Format, sample_lines};

/// A log to replay.
#[derive(Clone, Debug)]
pub enum Log {
    /// A file.
    File(PathBuf),
    /// The standard input, which can be read only once.
    StandardInput,
    /// Bytes in memory.
    Bytes {
        /// The name of the log in reports.
        name: String,
        /// The lines of the log, optionally compressed with gzip.
        bytes: Bytes,
    },
}

impl Log {
    /// Returns the name for reports.
    pub fn name(&self) -> String {
        match self {
            Self::File(path) => path.display().to_string(),
            Self::StandardInput => "standard input".into(),
            Self::Bytes { name, .. } => name.clone(),
        }
    }

    /// Opens the log as a decompressed stream that fails when it exceeds `bounds`. Adds the number of bytes read,
    /// before decompression, to `read`.
    fn open(&self, read: &Arc<AtomicU64>, bounds: &ReadBounds) -> io::Result<Box<dyn Read + Send>> {
        let inner: Box<dyn Read + Send> = match self {
            Self::File(path) => Box::new(File::open(path)?),
            Self::StandardInput => Box::new(io::stdin()),
            Self::Bytes { bytes, .. } => Box::new(io::Cursor::new(bytes.clone())),
        };
        let inner = decompress_if_gzip(CountedReader { inner, read: read.clone() })?;
        Ok(Box::new(BoundedReader { inner, read: 0, bounds: bounds.clone() }))
    }

    /// Returns the size in bytes before decompression, if it is known.
    fn size(&self) -> Option<u64> {
        match self {
            Self::File(path) => path.metadata().ok().filter(std::fs::Metadata::is_file).map(|file| file.len()),
            Self::StandardInput => None,
            Self::Bytes { bytes, .. } => Some(bytes.len() as u64),
        }
    }
}

/// Bounds on reading a log. If a bound is reached, the report says that the log was read only in part.
#[derive(Clone, Debug)]
pub struct ReadBounds {
    /// Maximum number of bytes of each log, after decompression.
    pub max_bytes: u64,
    /// Stops reading all logs when set.
    pub stop: Arc<AtomicBool>,
}

impl Default for ReadBounds {
    fn default() -> Self {
        Self { max_bytes: u64::MAX, stop: Arc::default() }
    }
}

/// Options for reading logs.
#[derive(Clone, Debug)]
pub(super) struct ReadOptions<'o> {
    /// The format, or `None` to detect it.
    pub(super) format: Option<&'o str>,
    /// The time zone of timestamps without a zone.
    pub(super) zone: TimeZone,
    pub(super) mapping: &'o Mapping,
    /// The attributes of requests. The attribute spans of a line have the same order.
    pub(super) attributes: &'o [Box<str>],
    pub(super) bounds: &'o ReadBounds,
}

/// A log whose format is known.
pub(super) struct LogSource {
    pub(super) name: String,
    log: Log,
    pub(super) format: Format,
    pub(super) extractor: Extractor,
    /// Attributes that the log lacks.
    pub(super) missing: Vec<Box<str>>,
    /// The earliest time in the sample lines, in nanoseconds since 1970.
    pub(super) first: u64,
    /// Whether all timestamps in the sample lines are whole seconds.
    pub(super) has_whole_seconds: bool,
    pub(super) size: Option<u64>,
    pub(super) read: Arc<AtomicU64>,
    bounds: ReadBounds,
    /// The already opened stream of a log that cannot be opened twice, such as the standard input.
    opened: Mutex<Option<OpenedLog>>,
}

/// The beginning of a log, which was already read, and the stream of the remaining bytes.
struct OpenedLog {
    head: Vec<u8>,
    rest: Box<dyn Read + Send>,
}

impl LogSource {
    /// Opens a log and detects its format. Returns `None` if the log is empty.
    ///
    /// # Errors
    /// Returns an error if the log cannot be read, if its format is unknown, or if its first lines have no valid time.
    pub(super) fn prepare(log: &Log, options: &ReadOptions<'_>) -> Result<Option<Self>, String> {
        let (name, read) = (log.name(), Arc::new(AtomicU64::new(0)));
        let failed = |error: String| format!("{name}: {error}");
        let unreadable = |error: io::Error| failed(format!("cannot be read: {error}"));
        let mut stream = log.open(&read, options.bounds).map_err(unreadable)?;
        let mut head = Vec::new();
        // If reading fails here, the lines before the failure are still used.
        let broken = stream.by_ref().take(FORMAT_SAMPLE_BYTES as u64).read_to_end(&mut head).err();
        if head.iter().all(u8::is_ascii_whitespace) {
            return broken.map_or(Ok(None), |error| Err(unreadable(error)));
        }
        let text = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&head);
        let mut format = match options.format {
            Some(described) => {
                Format::from_description(described, text).map_err(|error| format!("--format: {error}"))?
            }
            None => Format::detect(text).ok_or_else(|| {
                let line = sample_lines(text)
                    .first()
                    .map(|line| String::from_utf8_lossy(&line[..line.len().min(120)]).into_owned());
                let line = line.unwrap_or_default().replace(|letter: char| letter.is_control(), "�");
                failed(format!(
                    "unknown format; describe it with --format, like nginx's log_format; the log begins with: {line}"
                ))
            })?,
        };
        let (extractor, missing) = Extractor::new(&mut format, options.attributes, options.mapping).map_err(failed)?;
        let (mut first, mut has_whole_seconds) = (u64::MAX, true);
        let (mut fields, mut parser) = ([Span::NONE; MAX_FIELDS], TimeParser::new(options.zone.clone()));
        for line in sample_lines(text) {
            if format.parse(line, 0, &mut fields)
                && let Some(stamp) = extractor.time_of_line(line, &fields, &mut parser)
            {
                first = first.min(stamp.nanos);
                // Checks all sample lines, because some programs omit the fraction if it is zero.
                has_whole_seconds &= stamp.is_whole_second;
            }
        }
        if first == u64::MAX {
            let detail = "none of its first lines matches the format and has a valid time";
            return Err(failed(format!("{detail} (format: {})", format.name())));
        }
        let opened = matches!(log, Log::StandardInput).then_some(OpenedLog { head, rest: stream });
        Ok(Some(Self {
            name,
            log: log.clone(),
            format,
            extractor,
            missing,
            first,
            has_whole_seconds,
            size: log.size(),
            read,
            bounds: options.bounds.clone(),
            opened: Mutex::new(opened),
        }))
    }

    /// Opens the stream of all lines.
    pub(super) fn open(&self) -> io::Result<Box<dyn Read + Send>> {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(OpenedLog { head, rest }) = opened {
            return Ok(Box::new(io::Cursor::new(head).chain(rest)));
        }
        if let Log::StandardInput = self.log {
            return Err(io::Error::other("the standard input can be read only once"));
        }
        self.read.store(0, Ordering::Relaxed);
        self.log.open(&self.read, &self.bounds)
    }
}

/// The UTF-8 byte order mark, which some editors write at the start of a file. The mark is not part of the first line.
pub(super) const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Counts the bytes that are read.
struct CountedReader {
    inner: Box<dyn Read + Send>,
    read: Arc<AtomicU64>,
}

impl Read for CountedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.read.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

/// Fails with an error when a stream exceeds the bounds of the replay.
struct BoundedReader {
    inner: Box<dyn Read + Send>,
    read: u64,
    bounds: ReadBounds,
}

impl Read for BoundedReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Relaxed ordering suffices: the flag protects no other data, and a short delay does not matter.
        if self.bounds.stop.load(Ordering::Relaxed) {
            return Err(io::Error::other("the replay was stopped before the end of the log"));
        }
        let max = self.bounds.max_bytes;
        let left = max - self.read;
        if left == 0 && !buffer.is_empty() {
            // Reads one more byte, because a log of exactly the maximum length is not an error.
            return match self.inner.read(&mut buffer[..1])? {
                0 => Ok(0),
                _ => Err(io::Error::other(format!("the log has more than {} MiB", max >> 20))),
            };
        }
        let length = buffer.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let count = self.inner.read(&mut buffer[..length])?;
        self.read += count as u64;
        Ok(count)
    }
}

/// Decompresses the stream if it begins with a gzip header, and otherwise returns it unchanged.
fn decompress_if_gzip(mut stream: CountedReader) -> io::Result<Box<dyn Read + Send>> {
    let mut magic = Vec::new();
    stream.by_ref().take(2).read_to_end(&mut magic)?;
    let is_gzip = magic == [0x1f, 0x8b];
    let read = stream.read.clone();
    let whole = io::Cursor::new(magic).chain(stream);
    if !is_gzip {
        return Ok(Box::new(whole));
    }
    let buffered = BufReader::with_capacity(64 * 1024, whole);
    Ok(Box::new(ExpansionGuard { inner: MultiGzDecoder::new(buffered), expanded: 0, read }))
}

/// Fails with an error if a compressed stream expands far more than any real log, like a decompression bomb.
struct ExpansionGuard<R> {
    inner: R,
    expanded: u64,
    read: Arc<AtomicU64>,
}

impl<R: Read> Read for ExpansionGuard<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.expanded += count as u64;
        let read = self.read.load(Ordering::Relaxed).max(1);
        if self.expanded > MAX_BOMB_BYTES && self.expanded / read > MAX_EXPANSION_RATIO {
            let expanded = self.expanded / read;
            return Err(io::Error::other(format!(
                "expands {expanded}-fold, which no log does (maximum {MAX_EXPANSION_RATIO}-fold after {} GiB)",
                MAX_BOMB_BYTES >> 30
            )));
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decompression_bomb_is_detected() {
        let read = |bytes: u64| {
            let read = Arc::new(AtomicU64::new(bytes));
            let mut guard = ExpansionGuard { inner: io::repeat(0), expanded: 0, read };
            let mut buffer = vec![0; 1 << 20];
            (0..1_100).find_map(|_| guard.read(&mut buffer).err()).map(|error| error.to_string())
        };
        assert!(read(1 << 20).is_some_and(|error| error.contains("which no log does")));
        assert_eq!(read(1 << 24), None, "an ordinary log");
    }

    #[test]
    fn stream_ends_at_its_bounds() {
        let read = |length: u64, max_bytes: u64, is_stopped: bool| {
            let bounds = ReadBounds { max_bytes, stop: Arc::new(AtomicBool::new(is_stopped)) };
            let mut reader = BoundedReader { inner: Box::new(io::repeat(b'a').take(length)), read: 0, bounds };
            let mut all = Vec::new();
            let error = reader.read_to_end(&mut all).err().map(|error| error.to_string());
            (all.len() as u64, error.unwrap_or_default())
        };
        let max = 2 << 20;
        assert_eq!(read(max - 1, max, false), (max - 1, String::new()));
        assert_eq!(read(max, max, false), (max, String::new()));
        assert_eq!(read(max + 1, max, false), (max, "the log has more than 2 MiB".into()));
        let (length, error) = read(10, max, true);
        assert!(length == 0 && error.contains("stopped"), "{error}");
    }
}
