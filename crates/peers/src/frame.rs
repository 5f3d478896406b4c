//! Framing on a link: a four-byte little-endian length, one byte for the kind, and the body. The length includes the
//! kind and the body.
//!
//! Frames with kind [`FIRST_LINK_KIND`] or higher belong to the link itself. [`crate::wire`] defines the lower kinds.

use std::fmt;

use crate::wire::MAX_FRAME_BYTES;

/// Lowest frame kind that `greeting.rs` defines.
pub const FIRST_LINK_KIND: u8 = 0xF0;

/// Size of the length prefix in bytes.
const LENGTH_BYTES: usize = 4;

/// Error: a frame is empty or longer than [`MAX_FRAME_BYTES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthError {
    length: usize,
}

impl fmt::Display for LengthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame of {} bytes (1 to {MAX_FRAME_BYTES})", self.length)
    }
}

impl std::error::Error for LengthError {}

/// Appends a frame; `encode` writes its body. Appends nothing if the frame is too long.
pub fn push(to: &mut Vec<u8>, kind: u8, encode: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.extend_from_slice(&[0, 0, 0, 0, kind]);
    encode(to);
    let length = to.len() - start - LENGTH_BYTES;
    if length > MAX_FRAME_BYTES {
        return to.truncate(start);
    }
    to[start..start + LENGTH_BYTES].copy_from_slice(&(length as u32).to_le_bytes());
}

/// Returns the kind and body of a complete frame.
pub fn kind_and_body(frame: &[u8]) -> (u8, &[u8]) {
    frame.get(LENGTH_BYTES..).and_then(<[u8]>::split_first).map_or((0, &[]), |(kind, body)| (*kind, body))
}

/// Receive buffer that yields complete frames.
#[derive(Debug, Default)]
pub struct FrameBuffer {
    bytes: Vec<u8>,
    /// Number of bytes at the start of `bytes` that were already yielded.
    taken: usize,
}

impl FrameBuffer {
    /// Returns the buffer for appending received bytes, after dropping the frames already yielded.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        if self.taken == self.bytes.len() {
            self.bytes.clear();
        } else {
            self.bytes.drain(..self.taken);
        }
        self.taken = 0;
        &mut self.bytes
    }

    /// Returns the next frame, including its length prefix. `None` until the whole frame is received.
    ///
    /// # Errors
    /// Fails if the length is 0 or above [`MAX_FRAME_BYTES`]. The check needs only the length prefix.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, LengthError> {
        let rest = &self.bytes[self.taken..];
        let Some(head) = rest.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_le_bytes(*head) as usize;
        if length == 0 || length > MAX_FRAME_BYTES {
            return Err(LengthError { length });
        }
        let Some(frame) = rest.get(..LENGTH_BYTES + length) else { return Ok(None) };
        self.taken += frame.len();
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_survive_any_split_of_the_byte_stream() {
        let mut sent = Vec::new();
        for length in [0, 1, 255, 70_000] {
            push(&mut sent, 0xF7, |to| to.extend(vec![7; length]));
        }
        for step in [1, 3, 4, 5, 1_000, sent.len()] {
            let (mut frames, mut lengths) = (FrameBuffer::default(), Vec::new());
            for part in sent.chunks(step) {
                frames.buffer().extend_from_slice(part);
                while let Some(frame) = frames.next_frame().unwrap() {
                    let (kind, body) = kind_and_body(frame);
                    assert!(kind == 0xF7 && body.iter().all(|byte| *byte == 7));
                    lengths.push(body.len());
                }
            }
            assert_eq!(lengths, [0, 1, 255, 70_000], "in parts of {step}");
        }
    }

    #[test]
    fn empty_and_oversized_frames_are_refused_from_the_length_alone() {
        for length in [0, MAX_FRAME_BYTES as u32 + 1, u32::MAX] {
            let mut frames = FrameBuffer::default();
            frames.buffer().extend_from_slice(&length.to_le_bytes());
            assert_eq!(frames.next_frame(), Err(LengthError { length: length as usize }));
        }
        let mut sent = vec![1];
        push(&mut sent, 0xF7, |to| to.resize(to.len() + MAX_FRAME_BYTES, 0));
        assert_eq!(sent, [1], "an oversized frame leaves no bytes");
    }
}
