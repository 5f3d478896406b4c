//! Handshake and gossip: frames with which nodes introduce themselves and report known members.
//!
//! | kind | frame | body |
//! |---|---|---|
//! | `0xF0` | greeting, the first frame in both directions | magic, version, cluster, record of the sender |
//! | `0xF1` | gossip | records |
//! | `0xF2` | refused, a reply to a greeting; the link then closes | the reason as text |
//! | `0xF3` | accepted, a reply to a greeting | empty |
//!
//! A record consists of node id, heartbeat, state, address, name and figures. Numbers are little-endian; strings have a
//! one-byte length prefix.

use std::fmt;
use std::net::SocketAddr;

use crate::NodeId;
use crate::frame::{self, FIRST_LINK_KIND};
use crate::mesh::MemberState;
use crate::wire::VERSION;

const KIND_GREETING: u8 = FIRST_LINK_KIND;
const KIND_GOSSIP: u8 = FIRST_LINK_KIND + 1;
const KIND_REFUSED: u8 = FIRST_LINK_KIND + 2;
const KIND_ACCEPTED: u8 = FIRST_LINK_KIND + 3;

/// First bytes of a greeting.
const MAGIC: [u8; 8] = *b"tollgate";

/// Maximum length of a name in bytes.
pub const MAX_NAME_BYTES: usize = 64;
/// Maximum length of a reason in bytes.
const MAX_REASON_BYTES: usize = 255;
/// Maximum number of records in a gossip frame.
pub const MAX_RECORDS: usize = 256;

/// A node's description of itself. Other nodes forward the record unchanged, and the record with the highest heartbeat
/// wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRecord {
    /// Id of the node.
    pub node: NodeId,
    /// Increases with every heartbeat.
    pub heartbeat: u64,
    /// State of the node.
    pub state: MemberState,
    /// Address that other nodes dial.
    pub address: SocketAddr,
    /// Human-readable name.
    pub name: String,
    /// Figures for status pages and metrics.
    pub figures: NodeFigures,
}

/// Figures that a node sends with every heartbeat, for status pages and metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeFigures {
    /// Revision of the active rules; 0 if the node has no rules.
    pub rules_revision: u64,
    /// First bytes of the rules' checksum; 0 if the checksum is unknown. Nodes with equal rules have equal checksums.
    pub rules_checksum: u64,
    /// Number of links to other nodes.
    pub links: u16,
    /// Tokens that all nodes together admitted above the limits, as far as this node has detected. Only keys that
    /// this node has charged are included.
    pub overshoot: u64,
}

/// A handshake or gossip frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LinkFrame {
    /// Introduces the sender.
    Greeting {
        /// Protocol version.
        version: u16,
        /// Identifies the cluster.
        cluster: u64,
        /// Record of the sender; a placeholder if the versions differ.
        record: NodeRecord,
    },
    /// Members that the sender considers alive.
    Gossip(Vec<NodeRecord>),
    /// The sender refuses the link.
    Refused(String),
    /// The sender accepts the link.
    Accepted,
}

impl LinkFrame {
    /// Appends the frame with its length prefix.
    pub fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Self::Greeting { cluster, record, .. } => push_greeting(to, *cluster, record),
            Self::Gossip(records) => push_gossip(to, records),
            Self::Refused(reason) => push_refused(to, reason),
            Self::Accepted => push_accepted(to),
        }
    }
}

/// Appends a greeting.
pub fn push_greeting(to: &mut Vec<u8>, cluster: u64, record: &NodeRecord) {
    frame::push(to, KIND_GREETING, |to| {
        to.extend_from_slice(&MAGIC);
        to.extend_from_slice(&VERSION.to_le_bytes());
        to.extend_from_slice(&cluster.to_le_bytes());
        push_record(to, record);
    });
}

/// Appends a gossip frame.
pub fn push_gossip<'a>(to: &mut Vec<u8>, records: impl IntoIterator<Item = &'a NodeRecord>) {
    frame::push(to, KIND_GOSSIP, |to| records.into_iter().take(MAX_RECORDS).for_each(|record| push_record(to, record)));
}

/// Appends a refusal with its reason.
pub fn push_refused(to: &mut Vec<u8>, reason: &str) {
    frame::push(to, KIND_REFUSED, |to| push_text(to, reason, MAX_REASON_BYTES));
}

/// Appends an acceptance.
pub fn push_accepted(to: &mut Vec<u8>) {
    frame::push(to, KIND_ACCEPTED, |_| ());
}

fn push_record(to: &mut Vec<u8>, record: &NodeRecord) {
    to.extend_from_slice(&record.node.0.to_le_bytes());
    to.extend_from_slice(&record.heartbeat.to_le_bytes());
    to.push(match record.state {
        MemberState::Joining => 0,
        MemberState::Ready => 1,
        MemberState::Leaving => 2,
    });
    push_text(to, &record.address.to_string(), MAX_NAME_BYTES);
    push_text(to, &record.name, MAX_NAME_BYTES);
    let NodeFigures { rules_revision, rules_checksum, links, overshoot } = record.figures;
    for figure in [rules_revision, rules_checksum, links.into(), overshoot] {
        to.extend_from_slice(&figure.to_le_bytes());
    }
}

fn push_text(to: &mut Vec<u8>, text: &str, max: usize) {
    let bytes = &text.as_bytes()[..text.len().min(max)];
    to.push(bytes.len() as u8);
    to.extend_from_slice(bytes);
}

/// Returns whether the frame is a [`LinkFrame`].
pub fn is_link_frame(frame: &[u8]) -> bool {
    frame::kind_and_body(frame).0 >= FIRST_LINK_KIND
}

/// Decodes a handshake or gossip frame.
///
/// # Errors
/// Fails if the frame is malformed.
pub fn decode(frame: &[u8]) -> Result<LinkFrame, FrameError> {
    let (kind, body) = frame::kind_and_body(frame);
    let mut body = GreetingReader(body);
    let decoded = match kind {
        KIND_GREETING => {
            if body.read_array()? != MAGIC {
                return Err(FrameError("not a Tollgate greeting"));
            }
            let version = u16::from_le_bytes(body.read_array()?);
            let cluster = u64::from_le_bytes(body.read_array()?);
            if version != VERSION {
                // Another version may have a different layout for the remaining fields.
                let address = SocketAddr::from(([0; 4], 0));
                let (node, state, figures) = (NodeId(0), MemberState::Joining, NodeFigures::default());
                let record = NodeRecord { node, heartbeat: 0, state, address, name: String::new(), figures };
                return Ok(LinkFrame::Greeting { version, cluster, record });
            }
            LinkFrame::Greeting { version, cluster, record: body.read_record()? }
        }
        KIND_GOSSIP => {
            let mut records = Vec::new();
            while !body.0.is_empty() {
                if records.len() == MAX_RECORDS {
                    return Err(FrameError("too many members"));
                }
                records.push(body.read_record()?);
            }
            LinkFrame::Gossip(records)
        }
        KIND_REFUSED => LinkFrame::Refused(body.read_text(MAX_REASON_BYTES)?.to_owned()),
        KIND_ACCEPTED => LinkFrame::Accepted,
        _ => return Err(FrameError("unknown frame kind")),
    };
    if body.0.is_empty() { Ok(decoded) } else { Err(FrameError("bytes after the end")) }
}

/// Describes why a frame is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameError(&'static str);

impl fmt::Display for FrameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

/// The unread bytes of a frame body.
struct GreetingReader<'a>(&'a [u8]);

impl<'a> GreetingReader<'a> {
    fn read_array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(FrameError("too short"))?;
        self.0 = rest;
        Ok(*array)
    }

    fn read_text(&mut self, max: usize) -> Result<&'a str, FrameError> {
        let [length] = self.read_array()?;
        let (text, rest) = self.0.split_at_checked(length.into()).ok_or(FrameError("too short"))?;
        self.0 = rest;
        let is_plain = text.len() <= max && text.iter().all(|byte| byte.is_ascii_graphic() || *byte == b' ');
        std::str::from_utf8(text).ok().filter(|_| is_plain).ok_or(FrameError("string too long or not printable"))
    }

    fn read_record(&mut self) -> Result<NodeRecord, FrameError> {
        Ok(NodeRecord {
            node: NodeId(u64::from_le_bytes(self.read_array()?)),
            heartbeat: u64::from_le_bytes(self.read_array()?),
            state: match self.read_array()? {
                [0] => MemberState::Joining,
                [1] => MemberState::Ready,
                [2] => MemberState::Leaving,
                _ => return Err(FrameError("unknown member state")),
            },
            address: self.read_text(MAX_NAME_BYTES)?.parse().map_err(|_| FrameError("not an address"))?,
            name: self.read_text(MAX_NAME_BYTES)?.to_owned(),
            figures: NodeFigures {
                rules_revision: self.read_figure()?,
                rules_checksum: self.read_figure()?,
                links: u16::try_from(self.read_figure()?).map_err(|_| FrameError("too many links"))?,
                overshoot: self.read_figure()?,
            },
        })
    }

    fn read_figure(&mut self) -> Result<u64, FrameError> {
        self.read_array().map(u64::from_le_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(node: u64) -> NodeRecord {
        NodeRecord {
            node: NodeId(node),
            heartbeat: 7,
            state: MemberState::Ready,
            address: "[2001:db8::1]:7400".parse().unwrap(),
            name: "a".repeat(MAX_NAME_BYTES),
            figures: NodeFigures { rules_revision: 1, rules_checksum: 2, links: 3, overshoot: 4 },
        }
    }

    fn frames() -> [Vec<u8>; 4] {
        let mut frames = [(); 4].map(|()| Vec::new());
        push_greeting(&mut frames[0], 5, &record(1));
        push_gossip(&mut frames[1], &[record(1), record(2)]);
        push_refused(&mut frames[2], "another cluster");
        push_accepted(&mut frames[3]);
        frames
    }

    #[test]
    fn encoded_frames_decode_to_the_same_value() {
        let [greeting, gossip, refused, accepted] = frames();
        assert_eq!(decode(&greeting), Ok(LinkFrame::Greeting { version: VERSION, cluster: 5, record: record(1) }));
        assert_eq!(decode(&gossip), Ok(LinkFrame::Gossip(vec![record(1), record(2)])));
        assert_eq!(decode(&refused), Ok(LinkFrame::Refused("another cluster".to_owned())));
        assert_eq!(decode(&accepted), Ok(LinkFrame::Accepted));
        assert!([greeting, gossip, refused, accepted].iter().all(|frame| is_link_frame(frame)));
    }

    #[test]
    fn greeting_of_another_version_yields_version_and_cluster() {
        let [mut greeting, ..] = frames();
        greeting[13] ^= 0xFF;
        greeting.truncate(30);
        assert!(matches!(decode(&greeting), Ok(LinkFrame::Greeting { version, cluster: 5, .. }) if version != VERSION));
    }

    #[test]
    fn truncated_and_corrupt_frames_never_panic() {
        for frame in frames() {
            for end in 0..frame.len() {
                // A gossip frame that is cut between two records decodes to a frame with fewer records.
                let cut = decode(&frame[..end]);
                assert!(cut.is_err() || matches!(cut, Ok(LinkFrame::Gossip(_))), "{end}: {cut:?}");
            }
            for place in 4..frame.len() {
                for bit in 0..8 {
                    let mut changed = frame.clone();
                    changed[place] ^= 1 << bit;
                    let _ = decode(&changed);
                }
            }
        }
        let too_many: Vec<NodeRecord> = (0..=MAX_RECORDS as u64).map(record).collect();
        let mut frame = Vec::new();
        frame::push(&mut frame, KIND_GOSSIP, |to| too_many.iter().for_each(|record| push_record(to, record)));
        assert_eq!(decode(&frame), Err(FrameError("too many members")));
    }
}
