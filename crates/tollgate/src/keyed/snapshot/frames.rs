//! Encoding of frames: words as bytes, followed by a seal.
//!
//! The seal is a running checksum over all words. For a given word, mixing is a bijection of the checksum; for a given
//! checksum, it is a bijection of the word. So a single wrong word is always detected, and several wrong words are
//! undetected with probability 2⁻⁶⁴.

use std::io::{self, ErrorKind, Read, Write};

use super::{ENTRY_HEAD_WORDS, MAX_ENTRIES_PER_BUCKET, RestoreError, entries_per_frame};
use crate::fingerprint::Fingerprint;

const WORD_BYTES: usize = size_of::<u64>();
/// Initial checksum. Not zero, so that a run of zeros does not have the checksum zero.
const INITIAL_CHECKSUM: u64 = 0x6C62_272E_07BB_0142;

fn mix_into_checksum(seal: u64, word: u64) -> u64 {
    (seal ^ word).rotate_left(29).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

fn read_words(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks_exact(WORD_BYTES).map(|word| word.try_into().map_or(0, u64::from_le_bytes))
}

/// Writes the words of a snapshot, one sealed frame at a time.
pub(crate) struct FrameWriter<W> {
    writer: W,
    frame: Vec<u8>,
    seal: u64,
}

impl<W: Write> FrameWriter<W> {
    /// Creates a writer with a buffer for `capacity` words.
    pub(crate) fn new(writer: W, capacity: usize) -> Self {
        Self { writer, frame: Vec::with_capacity(capacity * WORD_BYTES), seal: INITIAL_CHECKSUM }
    }

    pub(crate) fn push(&mut self, word: u64) {
        self.frame.extend_from_slice(&word.to_le_bytes());
    }

    /// Overwrites the first word with `first`, seals the frame and writes it.
    pub(crate) fn finish(&mut self, first: u64) -> io::Result<()> {
        if let Some(place) = self.frame.first_chunk_mut() {
            *place = first.to_le_bytes();
        }
        self.seal = read_words(&self.frame).fold(self.seal, mix_into_checksum);
        self.push(self.seal);
        self.writer.write_all(&self.frame)?;
        self.frame.clear();
        Ok(())
    }
}

/// Reads the words of a snapshot and checks its seals.
pub(crate) struct FrameReader<R> {
    reader: R,
    frame: Vec<u8>,
    words: Vec<u64>,
    seal: u64,
}

impl<R: Read> FrameReader<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader, frame: Vec::new(), words: Vec::new(), seal: INITIAL_CHECKSUM }
    }

    /// Reads `len` words and checks the seal after them.
    pub(crate) fn read_sealed(&mut self, len: usize) -> Result<&[u64], RestoreError> {
        self.take(len)?;
        self.check_seal()?;
        self.words.clear();
        self.words.extend(read_words(&self.frame));
        Ok(&self.words)
    }

    /// Reads `len` words without checking a seal.
    pub(crate) fn take(&mut self, len: usize) -> Result<&[u8], RestoreError> {
        self.frame.resize(len * WORD_BYTES, 0);
        self.reader.read_exact(&mut self.frame).map_err(unreadable_error)?;
        self.seal = read_words(&self.frame).fold(self.seal, mix_into_checksum);
        Ok(&self.frame)
    }

    pub(crate) fn word(&mut self) -> Result<u64, RestoreError> {
        Ok(read_words(self.take(1)?).next().unwrap_or(0))
    }

    /// Reads a seal and compares it with the checksum of all words read so far.
    pub(crate) fn check_seal(&mut self) -> Result<(), RestoreError> {
        let mut seal = [0; WORD_BYTES];
        self.reader.read_exact(&mut seal).map_err(unreadable_error)?;
        if u64::from_le_bytes(seal) == self.seal { Ok(()) } else { Err(RestoreError::Damaged) }
    }

    /// Calls `each` for every entry, with the fingerprint, the limit index and the state. The state is in the first
    /// `state_words` words of `state`. Checks that the number of entries matches the stored number and that no data
    /// follows. Returns the number of entries.
    pub(super) fn for_each_entry(
        &mut self,
        state_words: usize,
        state: &mut [u64],
        mut each: impl FnMut(Fingerprint, u64, &mut [u64]) -> Result<(), RestoreError>,
    ) -> Result<u64, RestoreError> {
        let entry_words = ENTRY_HEAD_WORDS + state_words;
        let mut total = 0;
        loop {
            let count = self.word()?;
            if count == 0 {
                break;
            }
            // Bounds the allocation: the writer never puts more entries into a frame.
            if count > (entries_per_frame(state_words) + MAX_ENTRIES_PER_BUCKET) as u64 {
                return Err(RestoreError::Damaged);
            }
            self.take(count as usize * entry_words)?;
            self.check_seal()?;
            for entry in self.frame.chunks_exact(entry_words * WORD_BYTES) {
                let mut words = read_words(entry);
                let (low, high) = (words.next().unwrap_or(0), words.next().unwrap_or(0));
                state.iter_mut().zip(words).for_each(|(place, word)| *place = word);
                each(Fingerprint { low, high: high as u32 }, high >> 32, state)?;
            }
            total += count;
        }
        let stored = self.word()?;
        self.check_seal()?;
        self.check_end()?;
        if stored == total { Ok(total) } else { Err(RestoreError::Damaged) }
    }

    /// Checks that no data follows.
    pub(crate) fn check_end(&mut self) -> Result<(), RestoreError> {
        match self.reader.read_exact(&mut [0]) {
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(()),
            Err(error) => Err(RestoreError::Unreadable(error)),
            Ok(()) => Err(RestoreError::Damaged),
        }
    }
}

fn unreadable_error(error: io::Error) -> RestoreError {
    if error.kind() == ErrorKind::UnexpectedEof { RestoreError::CutShort } else { RestoreError::Unreadable(error) }
}

/// Recomputes the seals of a snapshot with `limits` limits. Stops at the first frame that cannot be located.
#[cfg(test)]
pub(super) fn recompute_seals(bytes: &mut [u8], limits: usize) {
    use super::records::LimitRecord;

    let word = |bytes: &[u8], at: usize| bytes.get(at..at + WORD_BYTES).map(|word| read_words(word).sum::<u64>());
    let entry = word(bytes, 16).map(|_| {
        let records = &bytes[7 * WORD_BYTES..][..limits * 8 * WORD_BYTES];
        let read = |record: &[u8]| LimitRecord(std::array::from_fn(|at| word(record, at * WORD_BYTES).unwrap_or(0)));
        let words = records.chunks(8 * WORD_BYTES).filter_map(|record| read(record).limit());
        ENTRY_HEAD_WORDS + words.map(|limit| tollgate_core::Algorithm::words(&limit)).sum::<usize>()
    });
    let (mut at, mut len, mut seal) = (0, 7 + 8 * limits, INITIAL_CHECKSUM);
    while let Some(frame) = len.checked_mul(WORD_BYTES).and_then(|len| bytes.get_mut(at..)?.get_mut(..len + WORD_BYTES))
    {
        let (frame, place) = frame.split_at_mut(len * WORD_BYTES);
        seal = read_words(frame).fold(seal, mix_into_checksum);
        place.copy_from_slice(&seal.to_le_bytes());
        at += (len + 1) * WORD_BYTES;
        let Some(count) = word(bytes, at) else { break };
        len = if count == 0 { 2 } else { (count as usize).saturating_mul(entry.unwrap_or(0)).saturating_add(1) };
    }
}
