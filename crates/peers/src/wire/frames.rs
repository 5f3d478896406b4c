//! Fields of each frame kind.

use super::asks::{put_answer, put_ask, read_answer, read_ask};
use super::codec::{Reader, put_varint};
use super::limits::MAX_LIMITS_BYTES;
use super::{Delta, Frame, Hello, MAX_NODES, SnapshotPart, WireError};
use crate::NodeId;
use crate::mesh::MemberState;

const KIND_HELLO: u8 = 1;
const KIND_RESUME: u8 = 2;
const KIND_HEAD: u8 = 3;
const KIND_PARAMS: u8 = 4;
const KIND_DELTA: u8 = 5;
const KIND_ACK: u8 = 6;
const KIND_WANT: u8 = 7;
const KIND_PART: u8 = 8;
pub(super) const KIND_ASK: u8 = 9;
pub(super) const KIND_ANSWER: u8 = 10;

pub(super) fn put(frame: &Frame, out: &mut Vec<u8>) {
    match frame {
        Frame::Hello(hello) => {
            out.push(KIND_HELLO);
            out.extend_from_slice(&hello.version.to_le_bytes());
            out.extend_from_slice(&hello.cluster.to_le_bytes());
            out.extend_from_slice(&hello.node.0.to_le_bytes());
            out.push(state_byte(hello.state));
            put_varint(hello.resume.map_or(0, |from| from.saturating_add(1)), out);
        }
        Frame::Resume { from } => {
            out.push(KIND_RESUME);
            put_varint(*from, out);
        }
        Frame::Head { head, gap } => {
            out.push(KIND_HEAD);
            put_varint(*head, out);
            out.push((*gap).into());
        }
        Frame::Params { number, encoded } => {
            out.push(KIND_PARAMS);
            put_varint((*number).into(), out);
            out.extend_from_slice(encoded);
        }
        Frame::Delta(delta) => {
            out.push(KIND_DELTA);
            put_varint(delta.seq, out);
            put_varint(delta.age, out);
            out.extend_from_slice(&delta.body);
        }
        Frame::Ack { seq, state } => {
            out.push(KIND_ACK);
            put_varint(*seq, out);
            out.push(state_byte(*state));
        }
        Frame::Want { part } => {
            out.push(KIND_WANT);
            put_varint((*part).into(), out);
        }
        Frame::Part(part) => put_part(part, out),
        Frame::Ask(ask) => put_ask(ask, out),
        Frame::Answer(answer) => put_answer(answer, out),
    }
}

pub(super) fn read(reader: &mut Reader<'_>) -> Result<Frame, WireError> {
    Ok(match reader.byte()? {
        KIND_HELLO => {
            let version = u16::from_le_bytes([reader.byte()?, reader.byte()?]);
            let (cluster, node) = (reader.fixed_u64()?, NodeId(reader.fixed_u64()?));
            let (state, resume) = (read_state(reader)?, reader.varint()?.checked_sub(1));
            Frame::Hello(Hello { version, cluster, node, state, resume })
        }
        KIND_RESUME => Frame::Resume { from: reader.varint()? },
        KIND_HEAD => Frame::Head { head: reader.varint()?, gap: read_flag(reader)? },
        KIND_PARAMS => {
            let number = reader.varint_u32()?;
            let encoded = reader.take_remaining();
            if encoded.len() > MAX_LIMITS_BYTES {
                return Err(WireError::Invalid("limits that are too long"));
            }
            Frame::Params { number, encoded: encoded.into() }
        }
        KIND_DELTA => {
            let (seq, age) = (reader.varint()?, reader.varint()?);
            Frame::Delta(Delta { seq, age, body: reader.take_remaining().into() })
        }
        KIND_ACK => Frame::Ack { seq: reader.varint()?, state: read_state(reader)? },
        KIND_WANT => Frame::Want { part: reader.varint_u32()? },
        KIND_PART => read_part(reader)?,
        KIND_ASK => Frame::Ask(read_ask(reader)?),
        KIND_ANSWER => Frame::Answer(read_answer(reader)?),
        kind => return Err(WireError::UnknownKind(kind)),
    })
}

fn state_byte(state: MemberState) -> u8 {
    match state {
        MemberState::Joining => 0,
        MemberState::Ready => 1,
        MemberState::Leaving => 2,
    }
}

fn read_state(reader: &mut Reader<'_>) -> Result<MemberState, WireError> {
    match reader.byte()? {
        0 => Ok(MemberState::Joining),
        1 => Ok(MemberState::Ready),
        2 => Ok(MemberState::Leaving),
        _ => Err(WireError::Invalid("the state of a node")),
    }
}

pub(super) fn read_flag(reader: &mut Reader<'_>) -> Result<bool, WireError> {
    match reader.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Invalid("a flag")),
    }
}

fn put_part(part: &SnapshotPart, out: &mut Vec<u8>) {
    out.push(KIND_PART);
    put_varint(part.part.into(), out);
    put_varint(part.parts.into(), out);
    put_varint(part.vector.len() as u64, out);
    for (node, seq) in &part.vector {
        out.extend_from_slice(&node.0.to_le_bytes());
        put_varint(*seq, out);
    }
    out.extend_from_slice(&part.body);
}

fn read_part(reader: &mut Reader<'_>) -> Result<Frame, WireError> {
    let (part, parts) = (reader.varint_u32()?, reader.varint_u32()?);
    let count = reader.read_count(9, MAX_NODES)?;
    let vector = (0..count).map(|_| Ok((NodeId(reader.fixed_u64()?), reader.varint()?)));
    let vector = vector.collect::<Result<_, _>>()?;
    Ok(Frame::Part(SnapshotPart { part, parts, vector, body: reader.take_remaining().into() }))
}
