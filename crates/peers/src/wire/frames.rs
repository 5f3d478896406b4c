//! Fields of each frame kind.

use smallvec::SmallVec;
use tollgate_core::{Ask as Amount, Cost, Limits, Nanos, Outcome, Report, Retry, Stamp, Stamps};

use super::codec::{FINGERPRINT_BYTES, Reader, put_fingerprint, put_varint};
use super::limits::MAX_CODE;
use super::{Delta, Frame, Hello, MAX_NODES, Part, WireError};
use crate::NodeId;
use crate::ask::{Answer, Ask, AskCharge, ChargeAnswer, Refusal};
use crate::homes::Hop;
use crate::mesh::MemberState;
use crate::table::Verb;

const KIND_HELLO: u8 = 1;
const KIND_RESUME: u8 = 2;
const KIND_HEAD: u8 = 3;
const KIND_PARAMS: u8 = 4;
const KIND_DELTA: u8 = 5;
const KIND_ACK: u8 = 6;
const KIND_WANT: u8 = 7;
const KIND_PART: u8 = 8;
const KIND_ASK: u8 = 9;
const KIND_ANSWER: u8 = 10;

/// Marks stamps without a refusing limit.
const NO_REFUSING_LIMIT: u8 = 0xff;

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
        Frame::Params { number, code } => {
            out.push(KIND_PARAMS);
            put_varint((*number).into(), out);
            out.extend_from_slice(code);
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
            let code = reader.rest();
            if code.len() > MAX_CODE {
                return Err(WireError::Invalid("limits that are too long"));
            }
            Frame::Params { number, code: code.into() }
        }
        KIND_DELTA => {
            let (seq, age) = (reader.varint()?, reader.varint()?);
            Frame::Delta(Delta { seq, age, body: reader.rest().into() })
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

fn read_flag(reader: &mut Reader<'_>) -> Result<bool, WireError> {
    match reader.byte()? {
        0 => Ok(false),
        1 => Ok(true),
        _ => Err(WireError::Invalid("a flag")),
    }
}

fn put_part(part: &Part, out: &mut Vec<u8>) {
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
    let count = reader.count(9, MAX_NODES)?;
    let vector = (0..count).map(|_| Ok((NodeId(reader.fixed_u64()?), reader.varint()?)));
    let vector = vector.collect::<Result<_, _>>()?;
    Ok(Frame::Part(Part { part, parts, vector, body: reader.rest().into() }))
}

fn put_ask(ask: &Ask, out: &mut Vec<u8>) {
    out.push(KIND_ASK);
    put_varint(ask.id, out);
    out.push(match ask.hop {
        Hop::Origin | Hop::FromOrigin => 0,
        Hop::Last => 1,
    });
    out.push(match ask.verb {
        Verb::Check => 0,
        Verb::Peek => 1,
        Verb::Refund => 2,
        Verb::Reset => 3,
        Verb::Hold => 4,
        Verb::Undo => 5,
    });
    put_varint(ask.charges.len() as u64, out);
    for charge in &ask.charges {
        put_fingerprint(charge.key, out);
        put_varint(charge.limits.len() as u64, out);
        out.extend_from_slice(&charge.limits);
        let (kind, cost) = match charge.amount {
            Amount::Exactly(cost) => (0, cost),
            Amount::UpTo(cost) => (1, cost),
            Amount::Regardless(cost) => (2, cost),
        };
        out.push(kind);
        put_varint(cost.get(), out);
        match &charge.stamps {
            None => out.push(0),
            Some(stamps) => put_stamps(stamps, out),
        }
    }
}

fn read_ask(reader: &mut Reader<'_>) -> Result<Ask, WireError> {
    let id = reader.varint()?;
    let hop = if read_flag(reader)? { Hop::Last } else { Hop::FromOrigin };
    let verb = match reader.byte()? {
        0 => Verb::Check,
        1 => Verb::Peek,
        2 => Verb::Refund,
        3 => Verb::Reset,
        4 => Verb::Hold,
        5 => Verb::Undo,
        _ => return Err(WireError::Invalid("a verb")),
    };
    let count = reader.count(FINGERPRINT_BYTES + 4, Ask::MAX_CHARGES)?;
    let charges = (0..count).map(|_| {
        let key = reader.fingerprint()?;
        let length = reader.count(1, MAX_CODE)?;
        let limits = reader.take(length)?.into();
        let (kind, cost) = (reader.byte()?, Cost::new(reader.varint()?));
        let amount = match kind {
            0 => Amount::Exactly(cost),
            1 => Amount::UpTo(cost),
            2 => Amount::Regardless(cost),
            _ => return Err(WireError::Invalid("an amount")),
        };
        Ok(AskCharge { key, limits, amount, stamps: read_stamps(reader)? })
    });
    Ok(Ask { id, hop, verb, charges: charges.collect::<Result<_, _>>()? })
}

/// Encodes the number of stamps, each stamp, and the first limit that refused.
fn put_stamps(stamps: &Stamps, out: &mut Vec<u8>) {
    let count = stamps.count();
    out.push(count as u8);
    (0..count).for_each(|index| put_varint(stamps.get(index).to_bits(), out));
    let refused = (0..Limits::MAX).find(|index| stamps.has_refused(*index));
    out.push(refused.map_or(NO_REFUSING_LIMIT, |index| index as u8));
}

/// Decodes stamps; `None` if there are none.
fn read_stamps(reader: &mut Reader<'_>) -> Result<Option<Stamps>, WireError> {
    let count = usize::from(reader.byte()?);
    if count == 0 {
        return Ok(None);
    }
    if count > Limits::MAX {
        return Err(WireError::Invalid("more than 8 stamps"));
    }
    let each = (0..count).map(|_| reader.varint().map(Stamp::from_bits));
    let each: SmallVec<[Stamp; 8]> = each.collect::<Result<_, _>>()?;
    let refused = reader.byte()?;
    if refused == NO_REFUSING_LIMIT {
        return Ok(Some(Stamps::from_stamps(each)));
    }
    // A refusal charged nothing, so its stamps contain only the refusing limit.
    Ok(Some(Stamps::refused_by(refused.into()).with_count(count)))
}

fn put_answer(answer: &Answer, out: &mut Vec<u8>) {
    out.push(KIND_ANSWER);
    put_varint(answer.id, out);
    let charges = match &answer.result {
        Ok(charges) => charges,
        Err(refusal) => {
            return out.push(match refusal {
                Refusal::Minority => 1,
                Refusal::NoHome => 2,
                Refusal::BadLimits => 3,
            });
        }
    };
    out.push(0);
    put_varint(charges.len() as u64, out);
    for charge in charges {
        match charge.outcome {
            Outcome::Allow => out.push(0),
            Outcome::Delay(wait) => {
                out.push(1);
                put_varint(wait.as_nanos(), out);
            }
            Outcome::Deny(retry) => {
                out.push(2);
                put_retry(retry, out);
            }
        }
        put_varint(charge.taken.get(), out);
        put_stamps(&charge.stamps, out);
        put_varint(charge.reports.len() as u64, out);
        for report in &charge.reports {
            put_varint(report.limit, out);
            put_varint(report.remaining, out);
            put_retry(report.retry, out);
            put_varint(report.reset.as_nanos(), out);
        }
    }
}

fn read_answer(reader: &mut Reader<'_>) -> Result<Answer, WireError> {
    let id = reader.varint()?;
    let refusal = match reader.byte()? {
        0 => None,
        1 => Some(Refusal::Minority),
        2 => Some(Refusal::NoHome),
        3 => Some(Refusal::BadLimits),
        _ => return Err(WireError::Invalid("a refusal")),
    };
    if let Some(refusal) = refusal {
        return Ok(Answer { id, result: Err(refusal) });
    }
    let count = reader.count(6, Ask::MAX_CHARGES)?;
    let charges = (0..count).map(|_| {
        let outcome = match reader.byte()? {
            0 => Outcome::Allow,
            1 => Outcome::Delay(Nanos::from_nanos(reader.varint()?)),
            2 => Outcome::Deny(read_retry(reader)?),
            _ => return Err(WireError::Invalid("an outcome")),
        };
        let taken = Cost::new(reader.varint()?);
        let stamps = read_stamps(reader)?.ok_or(WireError::Invalid("no stamps"))?;
        let reports = (0..reader.count(4, Limits::MAX)?).map(|_| {
            let (limit, remaining) = (reader.varint()?, reader.varint()?);
            Ok(Report { limit, remaining, retry: read_retry(reader)?, reset: Nanos::from_nanos(reader.varint()?) })
        });
        Ok(ChargeAnswer { outcome, taken, stamps, reports: reports.collect::<Result<_, _>>()? })
    });
    Ok(Answer { id, result: Ok(charges.collect::<Result<_, _>>()?) })
}

fn put_retry(retry: Retry, out: &mut Vec<u8>) {
    match retry {
        Retry::After(wait) => {
            out.push(0);
            put_varint(wait.as_nanos(), out);
        }
        Retry::OnRelease => out.push(1),
        Retry::Never => out.push(2),
    }
}

fn read_retry(reader: &mut Reader<'_>) -> Result<Retry, WireError> {
    match reader.byte()? {
        0 => Ok(Retry::After(Nanos::from_nanos(reader.varint()?))),
        1 => Ok(Retry::OnRelease),
        2 => Ok(Retry::Never),
        _ => Err(WireError::Invalid("a wait")),
    }
}
