//! Frames of a link: a length of four bytes, little-endian, a byte for the kind, and a body. The length is that of kind and body.
//!
//! Kinds from [`FIRST_OWN`] on belong to the links themselves; those below it are defined in [`crate::wire`].

use std::fmt;

use crate::wire::MAX_FRAME;

/// The first kind of the frames that are defined here and in `greeting.rs`.
pub const FIRST_OWN: u8 = 0xF0;

/// The bytes of a length.
const HEAD: usize = 4;

/// A frame that is longer than [`MAX_FRAME`], or empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LengthError {
    length: usize,
}

impl fmt::Display for LengthError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "frame of {} bytes (1 to {MAX_FRAME})", self.length)
    }
}

impl std::error::Error for LengthError {}

/// Appends a frame of a kind, whose body `encode` appends. A frame that is too long is left out.
pub fn push(to: &mut Vec<u8>, kind: u8, encode: impl FnOnce(&mut Vec<u8>)) {
    let start = to.len();
    to.extend_from_slice(&[0, 0, 0, 0, kind]);
    encode(to);
    let length = to.len() - start - HEAD;
    if length > MAX_FRAME {
        return to.truncate(start);
    }
    to[start..start + HEAD].copy_from_slice(&(length as u32).to_le_bytes());
}

/// Returns the kind and the body of a whole frame.
pub fn parts(frame: &[u8]) -> (u8, &[u8]) {
    frame.get(HEAD..).and_then(<[u8]>::split_first).map_or((0, &[]), |(kind, body)| (*kind, body))
}

/// Received bytes that are taken out frame by frame.
#[derive(Debug, Default)]
pub struct Frames {
    bytes: Vec<u8>,
    /// What was taken out.
    taken: usize,
}

impl Frames {
    /// Returns the buffer to append received bytes to. What was taken out is dropped first.
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        if self.taken == self.bytes.len() {
            self.bytes.clear();
        } else {
            self.bytes.drain(..self.taken);
        }
        self.taken = 0;
        &mut self.bytes
    }

    /// Takes the next frame out, with its length in front; `None` until all of it has been received.
    ///
    /// # Errors
    /// If it is longer than [`MAX_FRAME`] or empty, before anything of it is kept.
    pub fn next_frame(&mut self) -> Result<Option<&[u8]>, LengthError> {
        let rest = &self.bytes[self.taken..];
        let Some(head) = rest.first_chunk::<HEAD>() else { return Ok(None) };
        let length = u32::from_le_bytes(*head) as usize;
        if length == 0 || length > MAX_FRAME {
            return Err(LengthError { length });
        }
        let Some(frame) = rest.get(..HEAD + length) else { return Ok(None) };
        self.taken += frame.len();
        Ok(Some(frame))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_as_they_went_in_wherever_they_are_cut() {
        let mut sent = Vec::new();
        for length in [0, 1, 255, 70_000] {
            push(&mut sent, 0xF7, |to| to.extend(vec![7; length]));
        }
        for step in [1, 3, 4, 5, 1_000, sent.len()] {
            let (mut frames, mut lengths) = (Frames::default(), Vec::new());
            for part in sent.chunks(step) {
                frames.buffer().extend_from_slice(part);
                while let Some(frame) = frames.next_frame().unwrap() {
                    let (kind, body) = parts(frame);
                    assert!(kind == 0xF7 && body.iter().all(|byte| *byte == 7));
                    lengths.push(body.len());
                }
            }
            assert_eq!(lengths, [0, 1, 255, 70_000], "in parts of {step}");
        }
    }

    #[test]
    fn empty_and_enormous_frames_are_refused_by_their_head() {
        for length in [0, MAX_FRAME as u32 + 1, u32::MAX] {
            let mut frames = Frames::default();
            frames.buffer().extend_from_slice(&length.to_le_bytes());
            assert_eq!(frames.next_frame(), Err(LengthError { length: length as usize }));
        }
        let mut sent = vec![1];
        push(&mut sent, 0xF7, |to| to.resize(to.len() + MAX_FRAME, 0));
        assert_eq!(sent, [1], "nothing of it stays");
    }
}
