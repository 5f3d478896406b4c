//! Merges many logs into one sequence of requests, ordered by time.
//!
//! Each log that has begun is read by its own thread, one chunk ahead, so that lines out of order can be sorted within
//! two chunks. A log begins when the sequence reaches the time of its first lines. Of a year of rotated files,
//! therefore, only about two are read at the same time.
//!
//! A time in whole seconds does not determine when a request came within its second. Such requests are spread evenly
//! over their second, in the order of the log, which is the best case for a limit. Their logged time is kept too. With
//! logged times, all requests of a second come at once, which is the worst case.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{Scope, scope};

use jiff::tz::TimeZone;
use tollgate::clock::{Clock, PreciseClock};
use tollgate_engine::Entry;

use super::bounds::{BATCH, CHUNK, CHUNKS_TOTAL, MAX_FUTURE, MAX_LATE, MAX_SPREAD, MIN_CHUNK};
use super::chunk::{Chunk, ChunkPool, ChunkReader};
use super::input::Source;
use super::problems::{LineProblem, Problems};

const SECOND: u64 = 1_000_000_000;

/// Requests in the order of their times.
#[derive(Debug, Default)]
pub(super) struct LineBatch {
    chunks: Vec<Arc<Chunk>>,
    pub(super) slots: Vec<LoggedRequest>,
}

/// A request of a log.
#[derive(Clone, Copy, Debug)]
pub(super) struct LoggedRequest {
    /// The time in nanoseconds since 1970. If the log has whole seconds, it is spread within the second.
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

    /// Appends the attributes of a request, both from its line and the constant ones.
    #[inline]
    pub(super) fn push_entries<'b>(
        &'b self,
        request: &LoggedRequest,
        attributes: &'b LineAttributes,
        entries: &mut smallvec::SmallVec<[Entry<'b>; 16]>,
    ) {
        for (index, name) in attributes.names.iter().enumerate() {
            if let Some(value) = attributes.constants[index].as_deref().or_else(|| self.value(request, index)) {
                entries.push(Entry { name: name.as_bytes(), value });
            }
        }
    }
}

/// The attributes of requests.
#[derive(Clone, Debug, Default)]
pub(super) struct LineAttributes {
    pub(super) names: Vec<Box<str>>,
    /// The constant value of each attribute, or `None` if the value comes from the line.
    pub(super) constants: Vec<Option<Box<[u8]>>>,
}

/// Receives the requests of logs, in order.
pub(super) trait Consumer: Send {
    fn consume(&mut self, batch: &LineBatch);
}

/// The progress of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Number of lines so far.
    pub lines: u64,
    /// Number of bytes read so far, before decompression.
    pub bytes: u64,
    /// Total number of bytes, if known.
    pub total: Option<u64>,
    /// Nanoseconds since the start.
    pub elapsed: u64,
    /// The number of the current pass over the logs, and the number of passes.
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
pub(super) fn run(
    sources: &[Source],
    attributes: usize,
    zone: &TimeZone,
    consumers: Vec<&mut dyn Consumer>,
    show: &mut dyn FnMut(ReplayProgress),
) -> LogSummary {
    let clock = PreciseClock::new();
    let start = clock.mono();
    let latest = clock.wall(start).as_nanos().saturating_add(MAX_FUTURE);
    let size = (CHUNKS_TOTAL / (sources.len() * 8).max(1)).clamp(MIN_CHUNK, CHUNK);
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
        let mut inputs: Vec<MergeInput> = sources.iter().map(|source| MergeInput::at_start(source.first)).collect();
        let mut sequence = Sequence { spreads, outputs, ..Sequence::default() };
        while let Some((next, until)) = earliest_input(&inputs) {
            let (input, source) = (&mut inputs[next], &sources[next]);
            if let Stage::Waiting(_) = input.stage {
                input.begin(scope, reader(next), &mut sequence.summary);
                continue;
            }
            input.take_until(until, next, source.has_whole_seconds, &mut sequence);
            if sequence.is_full() {
                sequence.send();
                let bytes = sources.iter().map(|source| source.read.load(Ordering::Relaxed)).sum();
                let elapsed = clock.mono().since(start).as_nanos();
                show(ReplayProgress { lines: sequence.summary.lines, bytes, total, elapsed, pass: (1, 1) });
            }
        }
        sequence.end_second(true);
        sequence.send();
        // Dropping the outputs ends the consumers. The scope then waits for their threads.
        drop(std::mem::take(&mut sequence.outputs));
        sequence.summary
    })
}

/// Returns the index of the input with the earliest request, and the time of the earliest request in the other inputs.
/// Returns `None` if all inputs have ended.
fn earliest_input(inputs: &[MergeInput]) -> Option<(usize, u64)> {
    let (mut best, mut until) = (None, u64::MAX);
    for (index, input) in inputs.iter().enumerate() {
        let Some(head) = input.head() else { continue };
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
    stage: Stage,
    /// The current chunk and the next chunk. The first lines of the next chunk may be earlier than the last lines of
    /// the current one.
    cursors: [Option<MergeCursor>; 2],
}

enum Stage {
    /// The log is not read yet. Its first lines have this time.
    Waiting(u64),
    Reading(Receiver<Result<Chunk, String>>),
    Ended,
}

/// A chunk and its next line.
struct MergeCursor {
    chunk: Arc<Chunk>,
    next: usize,
}

impl MergeCursor {
    fn head(&self) -> Option<u64> {
        self.chunk.records().get(self.next).map(|record| record.at)
    }
}

impl MergeInput {
    fn at_start(first: u64) -> Self {
        Self { stage: Stage::Waiting(first), cursors: [None, None] }
    }

    /// Returns the time of the next request, or `None` if the log has ended.
    fn head(&self) -> Option<u64> {
        match self.stage {
            Stage::Waiting(first) => Some(first),
            Stage::Reading(_) | Stage::Ended => self.cursors.iter().flatten().filter_map(MergeCursor::head).min(),
        }
    }

    /// Begins to read.
    fn begin<'scope, 'env: 'scope>(
        &mut self,
        scope: &'scope Scope<'scope, 'env>,
        reader: ChunkReader<'env>,
        summary: &mut LogSummary,
    ) {
        let (to, from) = sync_channel(1);
        scope.spawn(move || reader.send_all(&to));
        self.stage = Stage::Reading(from);
        self.fill(summary);
    }

    /// Receives chunks until both cursors have lines, or the log has ended.
    fn fill(&mut self, summary: &mut LogSummary) {
        for index in 0..self.cursors.len() {
            let is_done = |cursor: &Option<MergeCursor>| cursor.as_ref().is_none_or(|cursor| cursor.head().is_none());
            while is_done(&self.cursors[index]) {
                self.cursors[index] = None;
                let Stage::Reading(from) = &self.stage else { break };
                match from.recv() {
                    Ok(Ok(chunk)) => {
                        summary.lines += chunk.lines();
                        summary.problems.join(chunk.problems());
                        self.cursors[index] = Some(MergeCursor { chunk: Arc::new(chunk), next: 0 });
                    }
                    Ok(Err(error)) => summary.errors.push(error),
                    Err(_) => self.stage = Stage::Ended,
                }
            }
        }
    }

    /// Adds all requests up to the time `until` to the sequence.
    fn take_until(&mut self, until: u64, log: usize, has_whole_seconds: bool, sequence: &mut Sequence) {
        let heads =
            self.cursors.each_ref().map(|cursor| cursor.as_ref().and_then(MergeCursor::head).unwrap_or(u64::MAX));
        let index = usize::from(heads[1] < heads[0]);
        let until = until.min(heads[1 - index]);
        let Some(cursor) = &mut self.cursors[index] else { return };
        let records = &cursor.chunk.records()[cursor.next..];
        let room = BATCH - sequence.batch.slots.len() % BATCH;
        let chunk = sequence.batch.number_of(&cursor.chunk);
        let mut taken = 0;
        for record in records.iter().take(room).take_while(|record| record.at <= until) {
            let request = LoggedRequest { at: record.at, logged_at: record.at, chunk, row: record.row };
            if !sequence.add(request, has_whole_seconds) {
                let line = cursor.chunk.first_line() + u64::from(record.line);
                sequence.summary.problems.add(sequence.problem, log, line);
            }
            taken += 1;
        }
        cursor.next += taken;
        if cursor.head().is_none() {
            self.fill(&mut sequence.summary);
        }
    }
}

impl LineBatch {
    fn number_of(&mut self, chunk: &Arc<Chunk>) -> u32 {
        // Searches from the end, because recent chunks are last.
        let known = self.chunks.iter().rposition(|known| Arc::ptr_eq(known, chunk));
        known.unwrap_or_else(|| {
            self.chunks.push(chunk.clone());
            self.chunks.len() - 1
        }) as u32
    }
}

/// The requests of all logs.
struct Sequence {
    /// Whether any log has whole seconds.
    spreads: bool,
    outputs: Vec<SyncSender<Arc<LineBatch>>>,
    batch: LineBatch,
    /// The index of the first request of the current second in the batch.
    second_start: usize,
    second: u64,
    /// Whether the current second has requests to spread.
    spreads_second: bool,
    /// The part of the current second over which requests were already spread, in nanoseconds.
    used: u64,
    last_logged: u64,
    last: u64,
    problem: LineProblem,
    summary: LogSummary,
}

impl Default for Sequence {
    fn default() -> Self {
        Self {
            spreads: false,
            outputs: Vec::new(),
            batch: LineBatch::default(),
            second_start: 0,
            second: 0,
            spreads_second: false,
            used: 0,
            last_logged: 0,
            last: 0,
            problem: LineProblem::Late,
            summary: LogSummary::default(),
        }
    }
}

impl Sequence {
    /// Adds the next request, unless it is far too early. Returns whether the request is in order. If not, `problem`
    /// contains the reason.
    #[inline]
    fn add(&mut self, mut request: LoggedRequest, has_whole_seconds: bool) -> bool {
        let late = self.last_logged.saturating_sub(request.logged_at);
        if late > MAX_LATE {
            self.problem = LineProblem::Backwards;
            return false;
        }
        self.summary.first.get_or_insert(request.logged_at);
        request.logged_at = request.logged_at.max(self.last_logged);
        request.at = request.logged_at;
        self.last_logged = request.logged_at;
        self.problem = LineProblem::Late;
        if self.spreads {
            let second = request.logged_at / SECOND;
            if second != self.second {
                self.end_second(true);
                (self.second, self.used) = (second, 0);
            } else if self.batch.slots.len() - self.second_start >= MAX_SPREAD {
                self.end_second(false);
            }
            self.spreads_second |= has_whole_seconds;
            // `u64::MAX` marks a request that `end_second` has to spread.
            request.at = if has_whole_seconds { u64::MAX } else { request.at };
        }
        self.batch.slots.push(request);
        late == 0
    }

    /// Spreads the requests of the current second that are not spread yet. If the second `is_over`, uses the rest of
    /// the second, otherwise only half of the rest, because more requests may follow.
    fn end_second(&mut self, is_over: bool) {
        let start = std::mem::replace(&mut self.second_start, self.batch.slots.len());
        let slots = &mut self.batch.slots[start..];
        if std::mem::take(&mut self.spreads_second) {
            let left = SECOND - self.used;
            let length = if is_over { left } else { left / 2 };
            let count = slots.iter().filter(|slot| slot.at == u64::MAX).count() as u64;
            let spread = slots.iter_mut().filter(|slot| slot.at == u64::MAX);
            for (index, slot) in (0..).zip(spread) {
                let part = u128::from(length) * index / u128::from(count);
                slot.at = self.second * SECOND + self.used + part as u64;
            }
            self.used += length;
            if !slots.is_sorted_by_key(|slot| slot.at) {
                slots.sort_by_key(|slot| slot.at);
            }
        }
        for slot in slots {
            // Times must not decrease. An exact time may be earlier than requests of the same second that were already
            // spread.
            slot.at = slot.at.max(self.last);
            self.last = slot.at;
        }
    }

    fn is_full(&self) -> bool {
        let is_complete = !self.spreads || self.second_start > 0;
        is_complete && self.batch.slots.len() >= BATCH
    }

    /// Sends the batch to the consumers, and keeps the requests of the incomplete second for the next batch.
    fn send(&mut self) {
        let rest = if self.spreads { self.batch.slots.split_off(self.second_start) } else { Vec::new() };
        if !self.spreads {
            self.last = self.batch.slots.last().map_or(self.last, |slot| slot.at);
        }
        let chunks = if rest.is_empty() { Vec::new() } else { self.batch.chunks.clone() };
        let mut batch = std::mem::replace(&mut self.batch, LineBatch { chunks, slots: rest });
        self.second_start = 0;
        self.compact();
        self.summary.last = self.last;
        if batch.slots.is_empty() {
            return;
        }
        batch.slots.shrink_to_fit();
        let batch = Arc::new(batch);
        for output in &self.outputs {
            // Sending cannot fail, because consumers end only when the replay ends.
            let _ = output.send(batch.clone());
        }
    }

    /// Releases the chunks that the kept requests do not use, so that their memory is reused.
    fn compact(&mut self) {
        let first = self.batch.slots.iter().map(|slot| slot.chunk).min();
        let unused = first.map_or(self.batch.chunks.len(), |first| first as usize);
        self.batch.chunks.drain(..unused);
        self.batch.slots.iter_mut().for_each(|slot| slot.chunk -= unused as u32);
    }
}
