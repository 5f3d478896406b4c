//! Encoding of the frames between nodes.
//!
//! A frame consists of a four-byte little-endian length, a byte for its kind, and its fields. Numbers are varints of
//! seven bits per byte, fingerprints have twelve bytes, and lists are preceded by their length. Decoding refuses
//! invalid bytes and never panics: every length is checked against the remaining input before anything is allocated.
//!
//! | frame | sent | content |
//! |---|---|---|
//! | `Hello` | first, after the greeting | version, cluster, node and member state of the sender; the receiver's last delta that the sender has applied |
//! | `Resume` | after a snapshot | the receiver's last delta that the sender has applied |
//! | `Head` | as the reply to `Hello` or `Resume` | the sender's last delta; whether the requested deltas are gone |
//! | `Params` | before the first use of the limits on a link | limits and their number |
//! | `Delta` | per tick, or immediately if many tokens are unsent | the sender's charges |
//! | `Ack` | per tick, and as a keepalive | the receiver's last delta that the sender has applied; the sender's member state |
//! | `Want`, `Part` | when a node joins or missed too many deltas | its request for a snapshot part, and the part |
//! | `Ask`, `Answer` | for `strict` rules | a group of charges for its home, and the result |

mod asks;
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
pub(crate) use asks::{decode_answer, decode_single_ask, encode_single_answer, encode_single_ask};
pub use body::{DeltaBody, PartBody};
use codec::Reader;
use limits::EncodedLimits;

/// Maximum length of a frame in bytes, without the length prefix.
pub const MAX_FRAME_BYTES: usize = 1 << 20;

/// Protocol version. Nodes with different versions refuse to link.
pub const VERSION: u16 = 1;

/// Maximum number of nodes in a snapshot's vector.
pub const MAX_NODES: usize = 1_024;

/// A message between two nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Frame {
    /// The first frame of a link after the greeting.
    Hello(Hello),
    /// Requests all deltas after `from`.
    Resume {
        /// The receiver's last delta that the sender has applied.
        from: u64,
    },
    /// Reply to `Hello` or `Resume`.
    Head {
        /// The sender's last delta.
        head: u64,
        /// Whether the requested deltas are gone, so that a snapshot is needed.
        gap: bool,
    },
    /// Defines a number for limits on this link.
    Params {
        /// Number used in deltas and snapshot parts.
        number: u32,
        /// Encoded limits.
        encoded: EncodedLimits,
    },
    /// Charges of the sender.
    Delta(Delta),
    /// Acknowledges all deltas up to `seq`.
    Ack {
        /// Sequence number of the delta.
        seq: u64,
        /// Member state of the sender.
        state: MemberState,
    },
    /// Requests a snapshot part.
    Want {
        /// Index of the part.
        part: u32,
    },
    /// A snapshot part.
    Part(SnapshotPart),
    /// Asks a key's home to decide a group.
    Ask(Ask),
    /// Answers an `Ask`.
    Answer(Answer),
}

/// The first frame of a link after the greeting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The sender's [`VERSION`].
    pub version: u16,
    /// Identifies the cluster.
    pub cluster: u64,
    /// Id of the sender.
    pub node: NodeId,
    /// Member state of the sender.
    pub state: MemberState,
    /// The receiver's last delta that the sender has applied. `None` if the sender needs a snapshot first.
    pub resume: Option<u64>,
}

/// Charges of one node within one tick.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    /// Sequence number. The first delta of a node has number 1.
    pub seq: u64,
    /// Time from the last charge to sending, in nanoseconds.
    pub age: u64,
    /// Encoded [`DeltaBody`].
    pub body: Arc<[u8]>,
}

/// A snapshot part.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPart {
    /// Index of the part, from zero.
    pub part: u32,
    /// Number of parts.
    pub parts: u32,
    /// For each node, the last delta that is certainly in the snapshot. Only the first part contains the vector, which
    /// is read before any state.
    pub vector: Vec<(NodeId, u64)>,
    /// Encoded [`PartBody`].
    pub body: Arc<[u8]>,
}

/// Reason why bytes are not a valid frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireError {
    /// The frame is longer than [`MAX_FRAME_BYTES`].
    TooLong(usize),
    /// A field extends beyond the end of the frame.
    Truncated,
    /// The frame kind does not exist.
    UnknownKind(u8),
    /// A field has an invalid value.
    Invalid(&'static str),
}

impl fmt::Display for WireError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong(length) => write!(f, "frame too long: {length} bytes (maximum {MAX_FRAME_BYTES})"),
            Self::Truncated => f.write_str("a field extends beyond the end of the frame"),
            Self::UnknownKind(kind) => write!(f, "unknown frame kind: {kind}"),
            Self::Invalid(what) => write!(f, "invalid frame: {what}"),
        }
    }
}

impl std::error::Error for WireError {}

/// Appends a frame with its length prefix.
pub fn encode(frame: &Frame, out: &mut Vec<u8>) {
    encode_with(out, |out| frames::put(frame, out));
}

/// Appends a frame with its length prefix. The closure `put` appends the kind and the fields.
fn encode_with(out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0; 4]);
    put(out);
    let length = (out.len() - start - 4) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Decodes the first frame of `input`. Returns the frame and its length in bytes, or `None` if it is incomplete.
///
/// # Errors
/// Fails if the bytes are not a valid frame. The link must then be closed.
pub fn decode(input: &[u8]) -> Result<Option<(Frame, usize)>, WireError> {
    let Some((length, rest)) = input.split_first_chunk::<4>() else { return Ok(None) };
    let length = u32::from_le_bytes(*length) as usize;
    if length > MAX_FRAME_BYTES {
        return Err(WireError::TooLong(length));
    }
    let Some(frame) = rest.get(..length) else { return Ok(None) };
    let mut reader = Reader::new(frame);
    let decoded = frames::read(&mut reader)?;
    reader.expect_end()?;
    Ok(Some((decoded, 4 + length)))
}
