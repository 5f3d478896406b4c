//! Encodes charges for the script: those of one caller, and those of several callers in one call.

use std::collections::HashMap;
use std::iter;
use std::sync::Arc;

use tollgate_core::{Ask, Cost, Limits, Stamps};
use tollgate_engine::store::{Charge, StoreVerb};

use crate::params::{EXACT, EncodedLimits};

/// The most charges of one call. It bounds how long the store is busy with a call, and how many charges a failed call affects.
pub(crate) const MAX_CHARGES: usize = 255;

const EXACTLY: u8 = 1;
const UP_TO: u8 = 2;
const REGARDLESS: u8 = 3;
const REFUND: u8 = 4;
const RESET: u8 = 5;
const RENEW: u8 = 6;
const PEEK: u8 = 8;

/// Added to the status of a group in which the state of a charge stays under other parameters than the charge has.
pub(crate) const OTHER_PARAMETERS: u8 = 16;

/// A charge that owns its data, so that it can be sent while its caller waits or is gone.
#[derive(Debug)]
pub(crate) struct QueuedCharge {
    key: Vec<u8>,
    encoded: Arc<EncodedLimits>,
    /// How many charges of the group follow.
    rest: u16,
    verb: u8,
    cost: u64,
    /// Spread, windows and stamps, which only some charges have.
    more: Vec<u8>,
}

impl QueuedCharge {
    /// Encodes a charge of a group; `rest` charges follow. `key` is the key in the store.
    pub(crate) fn new(
        verb: StoreVerb,
        charge: &Charge<'_>,
        rest: usize,
        key: Vec<u8>,
        encoded: Arc<EncodedLimits>,
    ) -> Self {
        let asked = match charge.ask {
            Ask::Exactly(_) => EXACTLY,
            Ask::UpTo(_) => UP_TO,
            Ask::Regardless(_) => REGARDLESS,
        };
        let verb = match verb {
            StoreVerb::Check => asked,
            StoreVerb::Peek => asked + PEEK,
            StoreVerb::Refund => REFUND,
            StoreVerb::Reset => RESET,
            StoreVerb::Renew => RENEW,
        };
        let mut more = Vec::new();
        if encoded.uses_spread() {
            push_number(&mut more, spread(charge.key));
        }
        if encoded.uses_windows() {
            let windows = &charge.windows[..charge.windows.len().min(Limits::MAX)];
            more.push(windows.len() as u8);
            for edge in windows.iter().flat_map(|window| [window.start(), window.end()]) {
                push_number(&mut more, edge.as_nanos().div_ceil(1_000));
            }
        }
        if verb == REFUND || verb == RENEW {
            more.push(charge.stamps.is_some().into());
            if let Some(stamps) = charge.stamps {
                push_stamps(&mut more, stamps);
            }
        }
        Self { key, encoded, rest: rest as u16, verb, cost: clamped(charge.ask.cost()), more }
    }

    /// Returns where the answer to this charge ends, if it begins at `at`; `None` if the reply is too short.
    fn answer_end(&self, reply: &[u8], at: usize, has_foreign: bool) -> Option<usize> {
        let taken = if matches!(self.verb & !PEEK, UP_TO | REFUND | RENEW) { 7 } else { 0 };
        let state = at + 1 + taken;
        if !has_foreign {
            return Some(state + self.encoded.reply_len());
        }
        let length = reply.get(state..state + 2)?;
        let length = usize::from(u16::from_le_bytes([length[0], length[1]]));
        Some(state + 2 + if length == 0 { self.encoded.reply_len() } else { length })
    }
}

/// Clamps a cost: no limit holds more, so a larger cost makes no difference.
pub(crate) fn clamped(cost: Cost) -> u64 {
    cost.get().min(EXACT)
}

/// Returns whether the answer to the charge carries how much was taken.
pub(crate) fn carries_taken(verb: StoreVerb, charge: &Charge<'_>) -> bool {
    match verb {
        StoreVerb::Check | StoreVerb::Peek => matches!(charge.ask, Ask::UpTo(_)),
        StoreVerb::Refund | StoreVerb::Renew => true,
        StoreVerb::Reset => false,
    }
}

/// Returns when the spread windows of a key begin: a number of microseconds below 2⁵⁰, to be taken modulo the length of the window.
/// It is the same on every node.
pub fn spread(key: &[u8]) -> u64 {
    // FNV-1a with a final mix, because its upper bits hardly depend on the last bytes. It must be
    // uniform, not secret: a caller that chooses keys gains nothing by choosing when their windows
    // begin.
    let hash = key
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mixed = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29) & ((1 << 50) - 1)
}

/// Encodes stamps for whatever parameters the state has by now: leases have numbers, all others
/// instants in nanoseconds, of which the script knows the microseconds. So each is sent as its
/// thousands and the rest.
fn push_stamps(bytes: &mut Vec<u8>, stamps: &Stamps) {
    bytes.push(Limits::MAX as u8);
    for bits in (0..Limits::MAX).map(|index| stamps.get(index).to_bits()) {
        push_number(bytes, bits / 1_000);
        bytes.extend(((bits % 1_000) as u16).to_le_bytes());
    }
}

/// Writes seven bytes; every valid number is below 2⁵⁶.
fn push_number(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend(&number.min((1 << 56) - 1).to_le_bytes()[..7]);
}

/// One call: the charges of several requests, with each key and each set of parameters once.
#[derive(Debug, Default)]
pub(crate) struct Call<'a> {
    keys: StringTable<'a>,
    parameters: StringTable<'a>,
    charges: Vec<u8>,
}

impl<'a> Call<'a> {
    /// Returns the call for these charges, whole groups in order.
    pub(crate) fn new(entries: impl IntoIterator<Item = &'a QueuedCharge>) -> Self {
        let mut call = Self::default();
        entries.into_iter().for_each(|entry| call.push(entry));
        call
    }

    fn push(&mut self, entry: &'a QueuedCharge) {
        self.charges.extend(entry.rest.to_le_bytes());
        self.charges.extend(self.keys.index_of(&entry.key).to_le_bytes());
        self.charges.extend([self.parameters.index_of(entry.encoded.bytes()) as u8, entry.verb]);
        push_number(&mut self.charges, entry.cost);
        self.charges.extend(&entry.more);
    }

    /// Returns the command; `how` is `EVALSHA` and the hash of the script, or `EVAL` and its
    /// source.
    pub(crate) fn command(&self, how: [&str; 2]) -> redis::Cmd {
        let mut command = redis::cmd(how[0]);
        command
            .arg(how[1])
            .arg(self.keys.known.len())
            .arg(&self.keys.known)
            .arg(&*self.charges)
            .arg(&self.parameters.known);
        command
    }
}

/// Byte strings that are sent once and referred to by their index, counted from one.
#[derive(Debug, Default)]
struct StringTable<'a> {
    known: Vec<&'a [u8]>,
    indexes: HashMap<&'a [u8], u16>,
}

impl<'a> StringTable<'a> {
    fn index_of(&mut self, bytes: &'a [u8]) -> u16 {
        // Most calls repeat one set of parameters.
        if self.known.last() == Some(&bytes) {
            return self.known.len() as u16;
        }
        let next = self.known.len() as u16 + 1;
        let index = *self.indexes.entry(bytes).or_insert(next);
        if index == next {
            self.known.push(bytes);
        }
        index
    }
}

/// Returns where in a reply the answer to the groups of `entries` ends, if it begins at `at`; `None` if the reply is too short.
pub(crate) fn answer_end(reply: &[u8], entries: &[QueuedCharge], mut at: usize) -> Option<usize> {
    let mut entries = entries.iter();
    while let Some(first) = entries.next() {
        let status = *reply.get(at)?;
        at += 1;
        let others = entries.by_ref().take(first.rest.into());
        if status & !OTHER_PARAMETERS > 1 {
            others.for_each(drop);
            continue;
        }
        for entry in iter::once(first).chain(others) {
            at = entry.answer_end(reply, at, status & OTHER_PARAMETERS != 0)?;
        }
    }
    (at <= reply.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_spread_evenly_and_reproducibly() {
        assert_eq!(
            [spread(b""), spread(b"a"), spread(b"b")],
            [248_837_491_663_987, 454_752_641_356_578, 255_435_840_419_717]
        );
        let minute = 60_000_000;
        let early = (0..1_000_u32).filter(|key| spread(&key.to_le_bytes()) % minute < minute / 4).count();
        assert!((200..300).contains(&early), "{early} of 1000 begin in the first quarter");
    }
}
