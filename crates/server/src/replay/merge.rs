//! Merges many logs into one sequence of requests, ordered by time.
//!
//! Each open log has its own thread, which reads one chunk ahead so that out-of-order lines can be sorted within two
//! chunks. A log is opened when the sequence reaches the time of its first lines. So a replay of a year of rotated
//! files has only about two files open at the same time.
//!
//! A log with whole seconds does not say when a request arrived within its second. Such requests are spread evenly over
//! their second, in log order, which usually causes the fewest refusals. The logged time is also kept: with logged
//! times, all requests of a second arrive at its beginning, which usually causes the most refusals.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, scope};

use jiff::tz::TimeZone;
use tollgate::clock::{Clock, PreciseClock};
use tollgate_engine::Attribute;

use super::bounds::{
    BATCH_LINES, CHUNK_BYTES, CHUNKS_PER_LOG, MAX_FUTURE_NANOS, MAX_LATE_NANOS, MAX_SPREAD_GROUP,
    MAX_TOTAL_CHUNK_BYTES, MIN_CHUNK_BYTES,
};
use super::chunk::{Chunk, ChunkPool, ChunkReader};
use super::input::LogSource;
use super::problems::{LineProblem, Problems};

const NANOS_PER_SECOND: u64 = 1_000_000_000;

/// Requests ordered by time, and the chunks that contain their attributes.
#[derive(Debug, Default)]
pub(super) struct LineBatch {
    chunks: Vec<Arc<Chunk>>,
    pub(super) slots: Vec<LoggedRequest>,
}

/// A request of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoggedRequest {
    /// The time in nanoseconds since 1970. If the log has whole seconds, requests are spread over their second.
    pub(super) at: u64,
    /// The time as logged.
    pub(super) logged_at: u64,
    chunk: u32,
    row: u32,
}

impl LineBatch {
    /// Returns the value of an attribute.
    #[inline]
    pub(super) fn value(&self, request: &LoggedRequest, attribute: usize) -> Option<&[u8]> {
        self.chunks[request.chunk as usize].value(request.row, attribute)
    }

    /// Appends the attributes of a request to `to`. The values are read from the request's line or are constant.
    #[inline]
    pub(super) fn push_attributes<'b>(
        &'b self,
        request: &LoggedRequest,
        attributes: &'b LineAttributes,
        to: &mut smallvec::SmallVec<[Attribute<'b>; 16]>,
    ) {
        for (index, name) in attributes.names.iter().enumerate() {
            if let Some(value) = attributes.constants[index].as_deref().or_else(|| self.value(request, index)) {
                to.push(Attribute { name: name.as_bytes(), value });
            }
        }
    }
}

/// The attribute names of requests, and the constant values.
#[derive(Clone, Debug, Default)]
pub(super) struct LineAttributes {
    pub(super) names: Vec<Box<str>>,
    /// The constant value of each attribute, or `None` if the value comes from the line.
    pub(super) constants: Vec<Option<Box<[u8]>>>,
}

/// Receives the requests of all logs, ordered by time.
pub(super) trait Consumer: Send {
    fn consume(&mut self, batch: &LineBatch);
}

/// The progress of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Number of lines read so far.
    pub lines: u64,
    /// Number of bytes read so far, before decompression.
    pub bytes: u64,
    /// Total number of bytes before decompression, if known.
    pub total: Option<u64>,
    /// Nanoseconds since the start.
    pub elapsed: u64,
    /// The number of the current pass over the logs, and the total number of passes.
    pub pass: (u32, u32),
}

/// A summary of the logs that were read.
#[derive(Clone, Debug, Default)]
pub(super) struct LogSummary {
    pub(super) lines: u64,
    pub(super) problems: Problems,
    /// Error messages for logs that were read only in part.
    pub(super) errors: Vec<String>,
    /// The times of the first and the last request.
    pub(super) first: Option<u64>,
    pub(super) last: u64,
}

/// Reads all logs and passes their requests to the consumers. Each consumer runs on its own thread.
pub(super) fn merge_logs(
    sources: &[LogSource],
    attributes: usize,
    zone: &TimeZone,
    consumers: Vec<&mut dyn Consumer>,
    show: &mut dyn FnMut(ReplayProgress),
) -> LogSummary {
    let clock = PreciseClock::new();
    let start = clock.mono();
    let latest = clock.wall(start).as_nanos().saturating_add(MAX_FUTURE_NANOS);
    let size = (MAX_TOTAL_CHUNK_BYTES / (sources.len() * CHUNKS_PER_LOG).max(1)).clamp(MIN_CHUNK_BYTES, CHUNK_BYTES);
    scope(|scope| {
        let mut outputs = Vec::new();
        for consumer in consumers {
            let (to, from) = sync_channel::<Arc<LineBatch>>(2);
            scope.spawn(move || from.iter().for_each(|batch| consumer.consume(&batch)));
            outputs.push(to);
        }
        let total = sources.iter().map(|source| source.size).sum();
        let spreads = sources.iter().any(|source| source.has_whole_seconds);
        let pool = ChunkPool::default();
        let reader = |number: usize| ChunkReader {
            source: &sources[number],
            number,
            attributes,
            size,
            zone: zone.clone(),
            latest,
            pool: pool.clone(),
        };
        let mut inputs: Vec<MergeInput> = sources.iter().map(|source| MergeInput::unopened(source.first)).collect();
        let mut sequence = MergedSequence { spreads, outputs, ..MergedSequence::default() };
        while let Some((next, until)) = earliest_input(&inputs) {
            let (input, source) = (&mut inputs[next], &sources[next]);
            if let InputStage::Waiting(_) = input.stage {
                input.start_reading(scope, reader(next), &mut sequence.summary);
                continue;
            }
            input.take_until(until, next, source.has_whole_seconds, &mut sequence);
            if sequence.is_full() {
                sequence.send_batch();
                let bytes = sources.iter().map(|source| source.read.load(Ordering::Relaxed)).sum();
                let elapsed = clock.mono().since(start).as_nanos();
                show(ReplayProgress { lines: sequence.summary.lines, bytes, total, elapsed, pass: (1, 1) });
            }
        }
        sequence.spread_pending(true);
        sequence.send_batch();
        // The consumer threads end when the outputs are dropped. The scope then joins these threads.
        drop(std::mem::take(&mut sequence.outputs));
        sequence.summary
    })
}

/// Returns the index of the input with the earliest request, and the earliest time in the other inputs. Returns `None`
/// if all inputs have ended.
fn earliest_input(inputs: &[MergeInput]) -> Option<(usize, u64)> {
    let (mut best, mut until) = (None, u64::MAX);
    for (index, input) in inputs.iter().enumerate() {
        let Some(head) = input.next_time() else { continue };
        match best {
            Some((_, first)) if head >= first => until = until.min(head),
            Some((_, first)) => (best, until) = (Some((index, head)), first),
            None => best = Some((index, head)),
        }
    }
    best.map(|(index, _)| (index, until))
}

/// A log that is merged into the sequence.
struct MergeInput {
    stage: InputStage,
    /// The current chunk and the next chunk. Some lines of the next chunk may be earlier than the last lines of the
    /// current chunk.
    cursors: [Option<MergeCursor>; 2],
}

enum InputStage {
    /// The log has not been opened. The value is the time of its first lines.
    Waiting(u64),
    Reading(Receiver<Result<Chunk, String>>),
    Ended,
}

/// A chunk and the index of its next line.
struct MergeCursor {
    chunk: Arc<Chunk>,
    next: usize,
}

impl MergeCursor {
    fn next_time(&self) -> Option<u64> {
        self.chunk.records().get(self.next).map(|record| record.at)
    }
}

impl MergeInput {
    fn unopened(first: u64) -> Self {
        Self { stage: InputStage::Waiting(first), cursors: [None, None] }
    }

    /// Returns the time of the next request, or `None` if the log has ended.
    fn next_time(&self) -> Option<u64> {
        match self.stage {
            InputStage::Waiting(first) => Some(first),
            InputStage::Reading(_) | InputStage::Ended => {
                self.cursors.iter().flatten().filter_map(MergeCursor::next_time).min()
            }
        }
    }

    /// Starts the thread that reads the log, and waits for the first chunks.
    fn start_reading<'scope, 'env: 'scope>(
        &mut self,
        scope: &'scope Scope<'scope, 'env>,
        reader: ChunkReader<'env>,
        summary: &mut LogSummary,
    ) {
        let (to, from) = sync_channel(1);
        scope.spawn(move || reader.send_all(&to));
        self.stage = InputStage::Reading(from);
        self.receive_chunks(summary);
    }

    /// Receives chunks until both cursors have lines or the log has ended.
    fn receive_chunks(&mut self, summary: &mut LogSummary) {
        for index in 0..self.cursors.len() {
            let is_done =
                |cursor: &Option<MergeCursor>| cursor.as_ref().is_none_or(|cursor| cursor.next_time().is_none());
            while is_done(&self.cursors[index]) {
                self.cursors[index] = None;
                let InputStage::Reading(from) = &self.stage else { break };
                match from.recv() {
                    Ok(Ok(chunk)) => {
                        summary.lines += chunk.line_count();
                        summary.problems.add_counts(chunk.problems());
                        self.cursors[index] = Some(MergeCursor { chunk: Arc::new(chunk), next: 0 });
                    }
                    Ok(Err(error)) => summary.errors.push(error),
                    Err(_) => self.stage = InputStage::Ended,
                }
            }
        }
    }

    /// Adds requests to the sequence, up to the time `until` or the end of a chunk or batch.
    fn take_until(&mut self, until: u64, log: usize, has_whole_seconds: bool, sequence: &mut MergedSequence) {
        let heads =
            self.cursors.each_ref().map(|cursor| cursor.as_ref().and_then(MergeCursor::next_time).unwrap_or(u64::MAX));
        let index = usize::from(heads[1] < heads[0]);
        let until = until.min(heads[1 - index]);
        let Some(cursor) = &mut self.cursors[index] else { return };
        let records = &cursor.chunk.records()[cursor.next..];
        let room = BATCH_LINES - sequence.batch.slots.len() % BATCH_LINES;
        let chunk = sequence.batch.chunk_index(&cursor.chunk);
        let mut taken = 0;
        for record in records.iter().take(room).take_while(|record| record.at <= until) {
            let request = LoggedRequest { at: record.at, logged_at: record.at, chunk, row: record.row };
            if !sequence.add_request(request, has_whole_seconds) {
                let line = cursor.chunk.first_line_number() + u64::from(record.line);
                sequence.summary.problems.add(sequence.problem, log, line);
            }
            taken += 1;
        }
        cursor.next += taken;
        if cursor.next_time().is_none() {
            self.receive_chunks(&mut sequence.summary);
        }
    }
}

impl LineBatch {
    fn chunk_index(&mut self, chunk: &Arc<Chunk>) -> u32 {
        // Searches from the end, because recent chunks are last.
        let known = self.chunks.iter().rposition(|known| Arc::ptr_eq(known, chunk));
        known.unwrap_or_else(|| {
            self.chunks.push(chunk.clone());
            self.chunks.len() - 1
        }) as u32
    }
}

/// The merged requests of all logs.
struct MergedSequence {
    /// Whether any log has whole seconds.
    spreads: bool,
    outputs: Vec<SyncSender<Arc<LineBatch>>>,
    batch: LineBatch,
    /// The index in the batch at which the requests of the current second start.
    second_start: usize,
    second: u64,
    /// Whether the current second has requests to spread.
    spreads_second: bool,
    /// Requests are already spread over this many nanoseconds of the current second.
    used_nanos: u64,
    last_logged: u64,
    last_time: u64,
    problem: LineProblem,
    summary: LogSummary,
}

impl Default for MergedSequence {
    fn default() -> Self {
        Self {
            spreads: false,
            outputs: Vec::new(),
            batch: LineBatch::default(),
            second_start: 0,
            second: 0,
            spreads_second: false,
            used_nanos: 0,
            last_logged: 0,
            last_time: 0,
            problem: LineProblem::Late,
            summary: LogSummary::default(),
        }
    }
}

impl MergedSequence {
    /// Adds the next request, unless it is more than [`MAX_LATE_NANOS`] earlier than the previous one. Returns whether
    /// the request is in order. If the request is not in order, `problem` contains the reason.
    #[inline]
    fn add_request(&mut self, mut request: LoggedRequest, has_whole_seconds: bool) -> bool {
        let late = self.last_logged.saturating_sub(request.logged_at);
        if late > MAX_LATE_NANOS {
            self.problem = LineProblem::Backwards;
            return false;
        }
        self.summary.first.get_or_insert(request.logged_at);
        request.logged_at = request.logged_at.max(self.last_logged);
        request.at = request.logged_at;
        self.last_logged = request.logged_at;
        self.problem = LineProblem::Late;
        if self.spreads {
            let second = request.logged_at / NANOS_PER_SECOND;
            if second != self.second {
                self.spread_pending(true);
                (self.second, self.used_nanos) = (second, 0);
            } else if self.batch.slots.len() - self.second_start >= MAX_SPREAD_GROUP {
                self.spread_pending(false);
            }
            self.spreads_second |= has_whole_seconds;
            // `u64::MAX` marks a request that `spread_pending` will spread.
            request.at = if has_whole_seconds { u64::MAX } else { request.at };
        }
        self.batch.slots.push(request);
        late == 0
    }

    /// Spreads the pending requests of the current second. If the second `is_over`, the requests fill its remaining
    /// time. Otherwise they fill only half of that time, because more requests may follow.
    fn spread_pending(&mut self, is_over: bool) {
        let start = std::mem::replace(&mut self.second_start, self.batch.slots.len());
        let slots = &mut self.batch.slots[start..];
        if std::mem::take(&mut self.spreads_second) {
            let left = NANOS_PER_SECOND - self.used_nanos;
            let length = if is_over { left } else { left / 2 };
            let count = slots.iter().filter(|slot| slot.at == u64::MAX).count() as u64;
            let spread = slots.iter_mut().filter(|slot| slot.at == u64::MAX);
            for (index, slot) in (0..).zip(spread) {
                let part = u128::from(length) * index / u128::from(count);
                slot.at = self.second * NANOS_PER_SECOND + self.used_nanos + part as u64;
            }
            self.used_nanos += length;
            if !slots.is_sorted_by_key(|slot| slot.at) {
                slots.sort_by_key(|slot| slot.at);
            }
        }
        for slot in slots {
            // Times must not decrease, but the exact time of a request may be earlier than the spread requests of the
            // same second.
            slot.at = slot.at.max(self.last_time);
            self.last_time = slot.at;
        }
    }

    fn is_full(&self) -> bool {
        let is_complete = !self.spreads || self.second_start > 0;
        is_complete && self.batch.slots.len() >= BATCH_LINES
    }

    /// Sends the batch to the consumers. Requests of the incomplete second move to the next batch.
    fn send_batch(&mut self) {
        let rest = if self.spreads { self.batch.slots.split_off(self.second_start) } else { Vec::new() };
        if !self.spreads {
            self.last_time = self.batch.slots.last().map_or(self.last_time, |slot| slot.at);
        }
        let chunks = if rest.is_empty() { Vec::new() } else { self.batch.chunks.clone() };
        let mut batch = std::mem::replace(&mut self.batch, LineBatch { chunks, slots: rest });
        self.second_start = 0;
        self.drop_unused_chunks();
        self.summary.last = self.last_time;
        if batch.slots.is_empty() {
            return;
        }
        batch.slots.shrink_to_fit();
        let batch = Arc::new(batch);
        for output in &self.outputs {
            // Sending cannot fail, because consumers run until the replay ends.
            let _ = output.send(batch.clone());
        }
    }

    /// Drops the chunks before the first one that a pending request uses, so that their buffers are reused.
    fn drop_unused_chunks(&mut self) {
        let first = self.batch.slots.iter().map(|slot| slot.chunk).min();
        let unused = first.map_or(self.batch.chunks.len(), |first| first as usize);
        self.batch.chunks.drain(..unused);
        self.batch.slots.iter_mut().for_each(|slot| slot.chunk -= unused as u32);
    }
}
