//! Fields of asks and answers.
//!
//! Most asks have one charge. [`encode_single_ask`], [`decode_single_ask`] and [`encode_single_answer`] are fast paths
//! for such asks. The fast paths allocate nothing and use the same encoding.

use smallvec::SmallVec;
use tollgate::fingerprint::Fingerprint;
use tollgate_core::{Ask as Amount, Cost, Limits, Nanos, Outcome, Report, Retry, Stamp, Stamps};

use super::codec::{FINGERPRINT_BYTES, Reader, put_fingerprint, put_varint};
use super::frames::{KIND_ANSWER, KIND_ASK, read_flag};
use super::limits::MAX_LIMITS_BYTES;
use super::{WireError, encode_with};
use crate::ask::{Answer, Ask, AskCharge, ChargeAnswer, ChargeAnswers, SingleAsk, UndecidedReason};
use crate::homes::Hop;
use crate::table::Verb;

/// Encoded in place of the refusing limit if no limit refused.
const NO_REFUSING_LIMIT: u8 = 0xff;

pub(super) fn put_ask(ask: &Ask, out: &mut Vec<u8>) {
    put_ask_head(ask.id, ask.hop, ask.verb, ask.charges.len(), out);
    for charge in &ask.charges {
        put_charge(charge.key, &charge.limits, charge.amount, charge.stamps.as_ref(), out);
    }
}

/// Appends the frame of an [`Ask`] with one charge, without building the ask.
pub(crate) fn encode_single_ask(ask: &SingleAsk<'_>, out: &mut Vec<u8>) {
    encode_with(out, |out| {
        put_ask_head(ask.id, ask.hop, ask.verb, 1, out);
        put_charge(ask.key, ask.limits, ask.amount, ask.stamps.as_ref(), out);
    });
}

fn put_ask_head(id: u64, hop: Hop, verb: Verb, count: usize, out: &mut Vec<u8>) {
    out.push(KIND_ASK);
    put_varint(id, out);
    out.push(match hop {
        Hop::Origin | Hop::FromOrigin => 0,
        Hop::Last => 1,
    });
    out.push(match verb {
        Verb::Check => 0,
        Verb::Peek => 1,
        Verb::Refund => 2,
        Verb::Reset => 3,
        Verb::Hold => 4,
        Verb::Undo => 5,
    });
    put_varint(count as u64, out);
}

fn put_charge(key: Fingerprint, limits: &[u8], amount: Amount, stamps: Option<&Stamps>, out: &mut Vec<u8>) {
    put_fingerprint(key, out);
    put_varint(limits.len() as u64, out);
    out.extend_from_slice(limits);
    let (kind, cost) = match amount {
        Amount::Exactly(cost) => (0, cost),
        Amount::UpTo(cost) => (1, cost),
        Amount::Regardless(cost) => (2, cost),
    };
    out.push(kind);
    put_varint(cost.get(), out);
    match stamps {
        None => out.push(0),
        Some(stamps) => put_stamps(stamps, out),
    }
}

pub(super) fn read_ask(reader: &mut Reader<'_>) -> Result<Ask, WireError> {
    let (id, hop, verb) = read_ask_head(reader)?;
    let count = reader.read_count(FINGERPRINT_BYTES + 4, Ask::MAX_CHARGES)?;
    let charges = (0..count).map(|_| {
        let (key, limits, amount, stamps) = read_charge(reader)?;
        Ok(AskCharge { key, limits: limits.into(), amount, stamps })
    });
    Ok(Ask { id, hop, verb, charges: charges.collect::<Result<_, _>>()? })
}

/// Decodes a whole frame if it is a valid ask with one charge. `None`: call [`decode`](super::decode).
pub(crate) fn decode_single_ask(frame: &[u8]) -> Option<SingleAsk<'_>> {
    let (kind, body) = crate::frame::kind_and_body(frame);
    if kind != KIND_ASK {
        return None;
    }
    let mut reader = Reader::new(body);
    let (id, hop, verb) = read_ask_head(&mut reader).ok()?;
    if reader.varint() != Ok(1) {
        return None;
    }
    let (key, limits, amount, stamps) = read_charge(&mut reader).ok()?;
    reader.expect_end().ok()?;
    Some(SingleAsk { id, hop, verb, key, limits, amount, stamps })
}

fn read_ask_head(reader: &mut Reader<'_>) -> Result<(u64, Hop, Verb), WireError> {
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
    Ok((id, hop, verb))
}

type ReadCharge<'a> = (Fingerprint, &'a [u8], Amount, Option<Stamps>);

fn read_charge<'a>(reader: &mut Reader<'a>) -> Result<ReadCharge<'a>, WireError> {
    let key = reader.fingerprint()?;
    let length = reader.read_count(1, MAX_LIMITS_BYTES)?;
    let limits = reader.take(length)?;
    let (kind, cost) = (reader.byte()?, Cost::new(reader.varint()?));
    let amount = match kind {
        0 => Amount::Exactly(cost),
        1 => Amount::UpTo(cost),
        2 => Amount::Regardless(cost),
        _ => return Err(WireError::Invalid("an amount")),
    };
    Ok((key, limits, amount, read_stamps(reader)?))
}

/// Encodes the number of stamps, each stamp, and the first limit that refused.
fn put_stamps(stamps: &Stamps, out: &mut Vec<u8>) {
    let count = stamps.count();
    out.push(count as u8);
    (0..count).for_each(|index| put_varint(stamps.get(index).to_bits(), out));
    let refused = (0..Limits::MAX).find(|index| stamps.has_refused(*index));
    out.push(refused.map_or(NO_REFUSING_LIMIT, |index| index as u8));
}

/// Decodes stamps. Returns `None` if there are no stamps.
#[inline]
fn read_stamps(reader: &mut Reader<'_>) -> Result<Option<Stamps>, WireError> {
    let count = usize::from(reader.byte()?);
    if count == 0 {
        return Ok(None);
    }
    if count > Limits::MAX {
        return Err(WireError::Invalid("more than 8 stamps"));
    }
    let mut each = [Stamp::NONE; Limits::MAX];
    for stamp in &mut each[..count] {
        *stamp = Stamp::from_bits(reader.varint()?);
    }
    let refused = reader.byte()?;
    if refused == NO_REFUSING_LIMIT {
        return Ok(Some(Stamps::from_stamps(each).with_count(count)));
    }
    // A refusal charged nothing, so its stamps contain only the refusing limit.
    Ok(Some(Stamps::of_refusal_by(refused.into()).with_count(count)))
}

pub(super) fn put_answer(answer: &Answer, out: &mut Vec<u8>) {
    put_answer_head(answer.id, answer.result.as_ref().err().copied(), out);
    if let Ok(charges) = &answer.result {
        put_varint(charges.len() as u64, out);
        charges.iter().for_each(|charge| put_charge_answer(charge, out));
    }
}

/// Appends the frame of an [`Answer`] to one charge, without building the answer.
pub(crate) fn encode_single_answer(id: u64, charge: &ChargeAnswer, out: &mut Vec<u8>) {
    encode_with(out, |out| {
        put_answer_head(id, None, out);
        put_varint(1, out);
        put_charge_answer(charge, out);
    });
}

fn put_answer_head(id: u64, refusal: Option<UndecidedReason>, out: &mut Vec<u8>) {
    out.push(KIND_ANSWER);
    put_varint(id, out);
    out.push(match refusal {
        None => 0,
        Some(UndecidedReason::Minority) => 1,
        Some(UndecidedReason::NoHome) => 2,
        Some(UndecidedReason::BadLimits) => 3,
    });
}

fn put_charge_answer(charge: &ChargeAnswer, out: &mut Vec<u8>) {
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

#[inline]
pub(super) fn read_answer(reader: &mut Reader<'_>) -> Result<Answer, WireError> {
    let id = reader.varint()?;
    let refusal = match reader.byte()? {
        0 => None,
        1 => Some(UndecidedReason::Minority),
        2 => Some(UndecidedReason::NoHome),
        3 => Some(UndecidedReason::BadLimits),
        _ => return Err(WireError::Invalid("a refusal")),
    };
    if let Some(refusal) = refusal {
        return Ok(Answer { id, result: Err(refusal) });
    }
    let count = reader.read_count(6, Ask::MAX_CHARGES)?;
    let mut charges = ChargeAnswers::new();
    for _ in 0..count {
        charges.push(read_charge_answer(reader)?);
    }
    Ok(Answer { id, result: Ok(charges) })
}

#[inline]
fn read_charge_answer(reader: &mut Reader<'_>) -> Result<ChargeAnswer, WireError> {
    let outcome = match reader.byte()? {
        0 => Outcome::Allow,
        1 => Outcome::Delay(Nanos::from_nanos(reader.varint()?)),
        2 => Outcome::Deny(read_retry(reader)?),
        _ => return Err(WireError::Invalid("an outcome")),
    };
    let taken = Cost::new(reader.varint()?);
    let stamps = read_stamps(reader)?.ok_or(WireError::Invalid("no stamps"))?;
    let mut reports = SmallVec::new();
    for _ in 0..reader.read_count(4, Limits::MAX)? {
        let (limit, remaining) = (reader.varint()?, reader.varint()?);
        reports.push(Report {
            limit,
            remaining,
            retry: read_retry(reader)?,
            reset: Nanos::from_nanos(reader.varint()?),
        });
    }
    Ok(ChargeAnswer { outcome, taken, stamps, reports })
}

/// Decodes a whole frame if it is a valid answer. `None`: call [`decode`](super::decode).
pub(crate) fn decode_answer(frame: &[u8]) -> Option<Answer> {
    let (kind, body) = crate::frame::kind_and_body(frame);
    if kind != KIND_ANSWER {
        return None;
    }
    let mut reader = Reader::new(body);
    let answer = read_answer(&mut reader).ok()?;
    reader.expect_end().ok()?;
    Some(answer)
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

#[inline]
fn read_retry(reader: &mut Reader<'_>) -> Result<Retry, WireError> {
    match reader.byte()? {
        0 => Ok(Retry::After(Nanos::from_nanos(reader.varint()?))),
        1 => Ok(Retry::OnRelease),
        2 => Ok(Retry::Never),
        _ => Err(WireError::Invalid("a wait")),
    }
}
