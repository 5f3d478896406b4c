//! Frames between nodes as bytes.
//!
//! A frame is its length as four bytes, the lowest first, then a byte for its kind, then its fields: numbers
//! in groups of seven bits, fingerprints as twelve bytes, lists with their length before them. Decoding accepts any
//! bytes and never panics: every length is checked against what is there before anything is allocated.
//!
//! | frame | sent | says |
//! |---|---|---|
//! | `Hello` | first on each link | version, cluster, node, its state, from where on it wants deltas |
//! | `Resume` | after a snapshot | from where on it wants deltas |
//! | `Head` | in answer to both | the number of the last delta; whether those asked for are still there |
//! | `Params` | before its first use on a link | the limits that have this number |
//! | `Delta` | per tick, or at once | what the sender took |
//! | `Ack` | per tick, and as a sign of life | the last delta that was applied; the sender's state |
//! | `Want`, `Part` | by a node that joins or missed too much | a part of a snapshot |
//! | `Ask`, `Answer` | for `strict` rules | a group of charges for its home |

pub(crate) mod body;
mod codec;
mod frames;
pub mod limits;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use crate::NodeId;
use crate::ask::{Answer, Ask};
use crate::mesh::MemberState;
pub use body::{DeltaBody, PartBody};
use codec::Reader;
use limits::LimitsCode;

/// Maximum number of bytes of a frame after its length.
pub const MAX_FRAME: usize = 1 << 20;

/// The version of the protocol. Nodes of different versions do not exchange anything.
pub const VERSION: u16 = 1;

/// Maximum number of nodes in the vector of a snapshot.
pub const MAX_NODES: usize = 1_024;

/// A message between two nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The first frame of a link.
    Hello(Hello),
    /// Asks for all deltas after `from`.
    Resume {
        /// The last delta that the sender has.
        from: u64,
    },
    /// Says what follows a `Hello` or `Resume`.
    Head {
        /// The last delta of the sender.
        head: u64,
        /// Whether the deltas that were asked for are gone, so that a snapshot is needed.
        gap: bool,
    },
    /// Gives limits a number, on this link.
    Params {
        /// The number.
        number: u32,
        /// The limits.
        code: LimitsCode,
    },
    /// What the sender took.
    Delta(Delta),
    /// Says that all deltas up to this one were applied.
    Ack {
        /// The number of the delta.
        seq: u64,
        /// The state of the sender.
        state: MemberState,
    },
    /// Asks for a part of a snapshot.
    Want {
        /// The number of the part.
        part: u32,
    },
    /// A part of a snapshot.
    Part(Part),
    /// Asks the home of a key.
    Ask(Ask),
    /// Answers an `Ask`.
    Answer(Answer),
}

/// The first frame of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// [`VERSION`] of the sender.
    pub version: u16,
    /// Identifies the cluster.
    pub cluster: u64,
    /// The sender.
    pub node: NodeId,
    /// Its state.
    pub state: MemberState,
    /// The last delta of the receiver that the sender has applied; `None` if it waits for a snapshot first.
    pub resume: Option<u64>,
}

/// What a node took within one tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// Its number; the first delta of a node has number 1.
    pub seq: u64,
    /// How long before sending it the last of it was taken, in nanoseconds.
    pub age: u64,
    /// A [`DeltaBody`].
    pub body: Arc<[u8]>,
}

/// A part of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// Its number, from zero.
    pub part: u32,
    /// The number of parts.
    pub parts: u32,
    /// The last delta of each node that is surely in the snapshot, with the first part only. It is read before any state is.
    pub vector: Vec<(NodeId, u64)>,
    /// A [`PartBody`].
    pub body: Arc<[u8]>,
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The frame is longer than [`MAX_FRAME`].
    TooLong(usize),
    /// A field goes beyond the end of the frame.
    Truncated,
    /// There is no such kind of frame.
    UnknownKind(u8),
    /// A field has a value that it cannot have.
    Invalid(&'static str),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(length) => write!(f, "frame too long: {length} bytes (maximum {MAX_FRAME})"),
            Self::Truncated => f.write_str("a field goes beyond the end of the frame"),
            Self::UnknownKind(kind) => write!(f, "unknown kind of frame: {kind}"),
            Self::Invalid(what) => write!(f, "invalid frame: {what}"),
        }
    }
}

impl std::error::Error for WireError {}

/// Appends a frame with its length.
pub fn encode(frame: &Frame, out: &mut Vec<u8>) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    frames::put(frame, out);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Decodes the first frame of `input`: returns it with the number of bytes that it took; `None` if it is not complete yet.
///
/// # Errors
/// If the bytes are not a frame; the link is of no use from then on.
pub fn decode(input: &[u8]) -> Result<Option<(Frame, usize)>, WireError> {
    let Some((length, rest)) = input.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_FRAME {
        return Err(WireError::TooLong(length));
    }
    let Some(frame) = rest.get(..length) else { return Ok(None) };
    let mut reader = Reader::new(frame);
    let decoded = frames::read(&mut reader)?;
    reader.end()?;
    Ok(Some((decoded, 4 + length)))
}
