//! Charges as the script takes them: what one caller asks, and what several callers ask in one call.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_core::{Ask, Cost, Limits, Stamp, Terms};
use tollgate_engine::store::{Charge, Group, Verb};

use crate::numbers::{EXACT, Packed};

/// The most charges of one call. It bounds how long the store is busy with it, and what may go wrong at once.
pub(crate) const MAX_CHARGES: usize = 255;

const EXACTLY: u8 = 1;
const UP_TO: u8 = 2;
const REGARDLESS: u8 = 3;
const REFUND: u8 = 4;
const RESET: u8 = 5;
const RENEW: u8 = 6;
const PEEK: u8 = 8;

/// One charge, owned, so that it can be sent while its caller waits or has gone.
#[derive(Debug)]
pub(crate) struct Entry {
    key: Vec<u8>,
    packed: Arc<Packed>,
    /// How many charges of the group follow.
    rest: u16,
    verb: u8,
    cost: u64,
    /// What only some charges bring along: spread, windows, stamps.
    more: Vec<u8>,
}

impl Entry {
    /// A charge of a group, of which `rest` follow, under the name it has in the store.
    pub(crate) fn new(verb: Verb, charge: &Charge<'_>, rest: usize, key: Vec<u8>, packed: Arc<Packed>) -> Self {
        let asked = match charge.ask {
            Ask::Exactly(_) => EXACTLY,
            Ask::UpTo(_) => UP_TO,
            Ask::Regardless(_) => REGARDLESS,
        };
        let verb = match verb {
            Verb::Check => asked,
            Verb::Peek => asked + PEEK,
            Verb::Refund => REFUND,
            Verb::Reset => RESET,
            Verb::Renew => RENEW,
        };
        let mut more = Vec::new();
        if packed.uses_spread() {
            push_number(&mut more, spread(charge.key));
        }
        if packed.uses_windows() {
            let windows = &charge.windows[..charge.windows.len().min(Limits::MAX)];
            more.push(windows.len() as u8);
            for edge in windows.iter().flat_map(|window| [window.start(), window.end()]) {
                push_number(&mut more, edge.as_nanos().div_ceil(1_000));
            }
        }
        if verb == REFUND || verb == RENEW {
            more.push(charge.stamps.is_some().into());
            if let Some(stamps) = charge.stamps {
                let limits = packed.limits().as_slice().iter().enumerate();
                limits.for_each(|(place, limit)| push_number(&mut more, told_stamp(limit.terms(), stamps.get(place))));
            }
        }
        Self { key, packed, rest: rest as u16, verb, cost: clamped(charge.ask.cost()), more }
    }

    /// How long the answer to this charge is.
    fn told(&self) -> usize {
        let taken = if matches!(self.verb & !PEEK, UP_TO | REFUND | RENEW) { 7 } else { 0 };
        1 + taken + self.packed.told()
    }
}

/// No limit holds more, so a larger cost changes nothing.
pub(crate) fn clamped(cost: Cost) -> u64 {
    cost.get().min(EXACT)
}

/// Whether the answer to the charge says how much was taken.
pub(crate) fn says_taken(group: &Group<'_>, charge: &Charge<'_>) -> bool {
    match group.verb {
        Verb::Check | Verb::Peek => matches!(charge.ask, Ask::UpTo(_)),
        Verb::Refund | Verb::Renew => true,
        Verb::Reset => false,
    }
}

/// When the windows of a key begin that are spread: a number of microseconds below 2⁵⁰, modulo the length of the window. It is
/// the same on every node.
pub fn spread(key: &[u8]) -> u64 {
    // FNV-1a, with the bits mixed once more, since its upper ones hardly depend on the last bytes. It has to be even, not
    // secret: who can choose keys gains nothing by choosing when their windows begin.
    let hash = key
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let mixed = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed ^ mixed >> 29) & ((1 << 50) - 1)
}

/// A stamp in the script's numbers: instants are nanoseconds with us.
fn told_stamp(terms: Terms, stamp: Stamp) -> u64 {
    match terms {
        Terms::FixedWindow { .. } | Terms::SlidingWindow(_) | Terms::SlidingSlices { .. } => stamp.to_bits() / 1_000,
        Terms::SlidingLog { .. } => stamp.to_bits().saturating_sub(1) / 1_000,
        Terms::Concurrency { .. } => stamp.to_bits(),
        Terms::Unlimited
        | Terms::DenyAll
        | Terms::TokenBucket(_)
        | Terms::LeakyBucket { .. }
        | Terms::IntervalBucket { .. } => 0,
    }
}

/// Seven bytes: every number of ours is below 2⁵⁶, whatever we were handed.
fn push_number(bytes: &mut Vec<u8>, number: u64) {
    bytes.extend(&number.min((1 << 56) - 1).to_le_bytes()[..7]);
}

/// What goes into one call: the charges of several requests, each key and each set of numbers once.
#[derive(Debug, Default)]
pub(crate) struct Call<'a> {
    keys: Places<'a>,
    numbers: Places<'a>,
    charges: Vec<u8>,
}

impl<'a> Call<'a> {
    /// The call for these charges, whole groups in order.
    pub(crate) fn new(entries: impl IntoIterator<Item = &'a Entry>) -> Self {
        let mut call = Self::default();
        entries.into_iter().for_each(|entry| call.push(entry));
        call
    }

    fn push(&mut self, entry: &'a Entry) {
        self.charges.extend(entry.rest.to_le_bytes());
        self.charges.extend(self.keys.place(&entry.key).to_le_bytes());
        self.charges.extend([self.numbers.place(entry.packed.bytes()) as u8, entry.verb]);
        push_number(&mut self.charges, entry.cost);
        self.charges.extend(&entry.more);
    }

    /// The command, with the script as `how` names it: `EVALSHA` and its hash, or `EVAL` and its source.
    pub(crate) fn command(&self, how: [&str; 2]) -> redis::Cmd {
        let mut command = redis::cmd(how[0]);
        command
            .arg(how[1])
            .arg(self.keys.known.len())
            .arg(&self.keys.known)
            .arg(&*self.charges)
            .arg(&self.numbers.known);
        command
    }
}

/// Things that are sent once and referred to by their place, counted from one.
#[derive(Debug, Default)]
struct Places<'a> {
    known: Vec<&'a [u8]>,
    places: HashMap<&'a [u8], u16>,
}

impl<'a> Places<'a> {
    fn place(&mut self, bytes: &'a [u8]) -> u16 {
        // Who asks the same again asks it at once: most calls are about one set of numbers.
        if self.known.last() == Some(&bytes) {
            return self.known.len() as u16;
        }
        let next = self.known.len() as u16 + 1;
        let place = *self.places.entry(bytes).or_insert(next);
        if place == next {
            self.known.push(bytes);
        }
        place
    }
}

/// Where in a reply the answer to the groups of `entries` ends, if it begins at `at`; `None` if the reply is too short.
pub(crate) fn answer_end(reply: &[u8], entries: &[Entry], mut at: usize) -> Option<usize> {
    let mut entries = entries.iter();
    while let Some(first) = entries.next() {
        let status = *reply.get(at)?;
        at += 1;
        let others = entries.by_ref().take(first.rest.into());
        let told = first.told() + others.map(Entry::told).sum::<usize>();
        at += if status <= 1 { told } else { 0 };
    }
    (at <= reply.len()).then_some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_spread_evenly_and_for_ever_the_same() {
        assert_eq!(
            [spread(b""), spread(b"a"), spread(b"b")],
            [248_837_491_663_987, 454_752_641_356_578, 255_435_840_419_717]
        );
        let minute = 60_000_000;
        let early = (0..1_000_u32).filter(|key| spread(&key.to_le_bytes()) % minute < minute / 4).count();
        assert!((200..300).contains(&early), "{early} of 1000 begin in the first quarter");
    }
}
