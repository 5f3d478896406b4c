//! What undoes a decision exactly.
//!
//! A receipt names the counters that were charged, how much each took, and where in the counter it was taken. It can leave
//! the process as text and come back to another one. It is not signed: who may ask for a refund may also make one up, and
//! gets back no more than the limits hold against the key.

use std::fmt;
use std::str::FromStr;

use tollgate::core::{BucketParams, Cost, Nanos, Params, Phase, Stamp, Stamps, Steps, WindowParams};
use tollgate::{
    Concurrency, FixedWindow, IntervalBucket, LeakyBucket, Limit, Limits, Rate, SlidingLog, SlidingSlices,
    SlidingWindow, TokenBucket,
};

/// What a decision took, to give it back.
///
/// As text it is a few dozen characters that need no escaping anywhere:
///
/// ```
/// use tollgate_engine::Receipt;
///
/// let nothing = Receipt::default();
/// assert_eq!(nothing.to_string().parse::<Receipt>()?, nothing);
/// assert!("no receipt".parse::<Receipt>().is_err());
/// # Ok::<(), tollgate_engine::BadReceipt>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Receipt {
    pub(crate) taken: Vec<Taken>,
}

/// What was taken from one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) key: Box<[u8]>,
    /// The limits, if they came along with the request or are those of an override; a rule's own are looked up by the key.
    pub(crate) sent: Option<Limits>,
    /// Whether it was taken while the store did not answer.
    pub(crate) fallback: bool,
    pub(crate) cost: Cost,
    pub(crate) stamps: Stamps,
}

impl Receipt {
    /// The longest text that is read.
    pub const MAX_TEXT: usize = 1 << 20;

    /// Whether nothing was taken.
    pub fn is_empty(&self) -> bool {
        self.taken.is_empty()
    }
}

/// A text that is not a receipt of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadReceipt;

impl fmt::Display for BadReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("this is not a receipt")
    }
}

impl std::error::Error for BadReceipt {}

const FORMAT: u64 = 1;
const SENT: u64 = 1;
const FALLBACK: u64 = 2;

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::new();
        put(&mut bytes, FORMAT);
        put(&mut bytes, self.taken.len() as u64);
        for taken in &self.taken {
            put(&mut bytes, u64::from(taken.sent.is_some()) * SENT + u64::from(taken.fallback) * FALLBACK);
            put(&mut bytes, taken.key.len() as u64);
            bytes.extend_from_slice(&taken.key);
            put(&mut bytes, taken.cost.get());
            let stamps: Vec<u64> = (0..Limits::MAX).map(|place| taken.stamps.get(place).to_bits()).collect();
            let used = stamps.iter().rposition(|stamp| *stamp != 0).map_or(0, |last| last + 1);
            put(&mut bytes, used as u64);
            stamps[..used].iter().for_each(|stamp| put(&mut bytes, *stamp));
            if let Some(limits) = &taken.sent {
                put(&mut bytes, limits.as_slice().len() as u64);
                limits.as_slice().iter().for_each(|limit| put_limit(&mut bytes, limit));
            }
        }
        write_text(f, &bytes)
    }
}

impl FromStr for Receipt {
    type Err = BadReceipt;

    fn from_str(text: &str) -> Result<Self, BadReceipt> {
        let bytes = if text.len() > Self::MAX_TEXT { None } else { read_text(text) };
        bytes.and_then(|bytes| read(&bytes)).ok_or(BadReceipt)
    }
}

fn read(bytes: &[u8]) -> Option<Receipt> {
    let mut rest = bytes;
    let rest = &mut rest;
    if take(rest)? != FORMAT {
        return None;
    }
    let count = take(rest)?;
    let mut taken = Vec::new();
    for _ in 0..count {
        let flags = take(rest)?;
        if flags > SENT + FALLBACK {
            return None;
        }
        let length = usize::try_from(take(rest)?).ok()?;
        let key: Box<[u8]> = rest.get(..length)?.into();
        *rest = &rest[length..];
        let cost = Cost::new(take(rest)?);
        let places = take(rest)?;
        let stamps: Option<Vec<Stamp>> =
            (0..places.min(Limits::MAX as u64)).map(|_| take(rest).map(Stamp::from_bits)).collect();
        let sent = if flags & SENT == 0 {
            None
        } else {
            let limits: Option<Vec<Limit>> =
                (0..take(rest)?.min(Limits::MAX as u64)).map(|_| take_limit(rest)).collect();
            Some(Limits::new(limits?).ok()?)
        };
        let stamps = Stamps::from_stamps(stamps?);
        taken.push(Taken { key, sent, fallback: flags & FALLBACK != 0, cost, stamps });
    }
    (rest.is_empty() && !names_a_counter_twice(&taken)).then_some(Receipt { taken })
}

/// No receipt of a decision does, and no group of a store may.
fn names_a_counter_twice(taken: &[Taken]) -> bool {
    let mut keys: Vec<&[u8]> = taken.iter().map(|taken| &*taken.key).collect();
    keys.sort_unstable();
    keys.windows(2).any(|pair| pair[0] == pair[1])
}

/// Seven bits to a byte, the lowest first; the top bit says that more follow.
fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        // The tenth byte has room for one bit.
        number |= u64::from(byte & 0x7f).checked_shl(shift).filter(|part| part >> shift == u64::from(byte & 0x7f))?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Limits in bytes that are the same only for the same limits, also in other processes.
pub(crate) fn limits_to_bytes(limits: &Limits) -> Vec<u8> {
    let mut bytes = Vec::new();
    limits.as_slice().iter().for_each(|limit| put_limit(&mut bytes, limit));
    bytes
}

fn put_limit(bytes: &mut Vec<u8>, limit: &Limit) {
    let mut all = |numbers: &[u64]| numbers.iter().for_each(|number| put(bytes, *number));
    let bucket = |bucket: &BucketParams| {
        [bucket.rate.count().into(), bucket.rate.per().as_nanos(), bucket.burst, bucket.max_debt, bucket.initial]
    };
    let window = |window: &WindowParams| [window.limit, window.length.as_nanos(), window.max_debt, window.initial];
    match limit.params() {
        Params::Unlimited => all(&[0]),
        Params::DenyAll => all(&[1]),
        Params::TokenBucket(terms) => {
            all(&[2]);
            all(&bucket(&terms));
        }
        Params::LeakyBucket { bucket: terms, free, max_wait } => {
            all(&[3]);
            all(&bucket(&terms));
            all(&[free, max_wait.as_nanos()]);
        }
        Params::FixedWindow { window: terms, phase } => {
            all(&[4]);
            all(&window(&terms));
            match phase {
                Phase::Epoch => all(&[0]),
                Phase::FirstRequest => all(&[1]),
                Phase::Spread => all(&[2]),
                Phase::Given(position) => all(&[3 + position as u64]),
            }
        }
        Params::SlidingWindow(terms) => {
            all(&[5]);
            all(&window(&terms));
        }
        Params::SlidingLog { window: terms, minimum_gap, count_refused } => {
            all(&[6]);
            all(&window(&terms));
            all(&[minimum_gap.as_nanos(), count_refused.into()]);
        }
        Params::Concurrency { limit, lease, max_debt } => all(&[7, limit, lease.as_nanos(), max_debt]),
        Params::IntervalBucket { refill, period, burst, steps, max_wait, max_debt, initial } => {
            all(&[8, refill, period.as_nanos(), burst, max_wait.as_nanos(), max_debt, initial]);
            match steps {
                Steps::FirstRequest => all(&[0]),
                // Below a period, so there is room for one more.
                Steps::Aligned(offset) => all(&[1 + offset.as_nanos()]),
            }
        }
        Params::SlidingSlices { window: terms, precision } => {
            all(&[9]);
            all(&window(&terms));
            all(&[precision.as_nanos()]);
        }
    }
}

/// Numbers from outside: everything is checked as if somebody had written it in a rule.
fn take_limit(rest: &mut &[u8]) -> Option<Limit> {
    let kind = take(rest)?;
    Some(match kind {
        0 => Limit::Unlimited,
        1 => Limit::DenyAll,
        2 => {
            let terms = take_bucket(rest)?;
            let bucket = TokenBucket::new(terms.rate, terms.burst).ok()?.max_debt(terms.max_debt).ok()?;
            bucket.initial(terms.initial).ok()?.into()
        }
        3 => {
            let terms = take_bucket(rest)?;
            let bucket = LeakyBucket::new(terms.rate, terms.burst).ok()?.max_debt(terms.max_debt).ok()?;
            let bucket = bucket.initial(terms.initial).ok()?.free(take(rest)?).ok()?;
            bucket.max_wait(Nanos::from_nanos(take(rest)?)).into()
        }
        4 => {
            let terms = take_window(rest)?;
            let window = FixedWindow::new(terms.limit, terms.length).ok()?.max_debt(terms.max_debt).ok()?;
            let phase = match take(rest)? {
                0 => Phase::Epoch,
                1 => Phase::FirstRequest,
                2 => Phase::Spread,
                given => Phase::Given(usize::try_from(given - 3).ok()?),
            };
            window.initial(terms.initial).ok()?.phase(phase).into()
        }
        5 => {
            let terms = take_window(rest)?;
            let window = SlidingWindow::new(terms.limit, terms.length).ok()?.max_debt(terms.max_debt).ok()?;
            window.initial(terms.initial).ok()?.into()
        }
        6 => {
            let terms = take_window(rest)?;
            let log = SlidingLog::new(terms.limit, terms.length).ok()?.max_debt(terms.max_debt).ok()?;
            let log = log.initial(terms.initial).ok()?.minimum_gap(Nanos::from_nanos(take(rest)?)).ok()?;
            if take(rest)? == 1 { log.count_refused().into() } else { log.into() }
        }
        7 => {
            let leases = Concurrency::new(take(rest)?, Nanos::from_nanos(take(rest)?)).ok()?;
            leases.max_debt(take(rest)?).ok()?.into()
        }
        8 => {
            let bucket = IntervalBucket::new(take(rest)?, Nanos::from_nanos(take(rest)?)).ok()?;
            let bucket = bucket.burst(take(rest)?).ok()?.max_wait(Nanos::from_nanos(take(rest)?)).ok()?;
            let bucket = bucket.max_debt(take(rest)?).ok()?.initial(take(rest)?).ok()?;
            let steps = match take(rest)? {
                0 => Steps::FirstRequest,
                offset => Steps::Aligned(Nanos::from_nanos(offset - 1)),
            };
            bucket.steps(steps).into()
        }
        9 => {
            let terms = take_window(rest)?;
            let slices = SlidingSlices::new(terms.limit, terms.length, Nanos::from_nanos(take(rest)?)).ok()?;
            slices.max_debt(terms.max_debt).ok()?.initial(terms.initial).ok()?.into()
        }
        _ => return None,
    })
}

fn take_bucket(rest: &mut &[u8]) -> Option<BucketParams> {
    let rate = Rate::new(take(rest)?, Nanos::from_nanos(take(rest)?)).ok()?;
    Some(BucketParams { rate, burst: take(rest)?, max_debt: take(rest)?, initial: take(rest)? })
}

fn take_window(rest: &mut &[u8]) -> Option<WindowParams> {
    let (limit, length) = (take(rest)?, Nanos::from_nanos(take(rest)?));
    Some(WindowParams { limit, length, max_debt: take(rest)?, initial: take(rest)? })
}

/// The 64 characters that mean nothing to JSON, URLs and headers.
const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

/// Three bytes to four letters; the last letters of a short group are left out.
fn write_text(f: &mut fmt::Formatter<'_>, bytes: &[u8]) -> fmt::Result {
    use fmt::Write as _;
    for group in bytes.chunks(3) {
        let bits = group.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - group.len()));
        for place in 0..=group.len() {
            f.write_char(char::from(LETTERS[(bits >> (18 - 6 * place) & 63) as usize]))?;
        }
    }
    Ok(())
}

fn read_text(text: &str) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(text.len() / 4 * 3 + 2);
    for group in text.as_bytes().chunks(4) {
        let mut bits = 0;
        for letter in group {
            let value = LETTERS.iter().position(|known| known == letter)? as u32;
            bits = bits << 6 | value;
        }
        bits <<= 6 * (4 - group.len());
        let whole = group.len() * 6 / 8;
        // A single letter is less than a byte, and bits that belong to no byte must not say anything.
        if group.len() == 1 || bits & ((1 << (24 - 8 * whole)) - 1) != 0 {
            return None;
        }
        bytes.extend_from_slice(&bits.to_be_bytes()[1..1 + whole]);
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one_of_each() -> Limits {
        let rate: Rate = "7777/s".parse().unwrap();
        let leaky = LeakyBucket::new(rate, 9).unwrap().max_debt(1).unwrap().initial(3).unwrap();
        Limits::new([
            Limit::Unlimited,
            Limit::DenyAll,
            TokenBucket::new(rate, 9).unwrap().max_debt(0).unwrap().initial(3).unwrap().into(),
            leaky.free(2).unwrap().max_wait(Nanos::SECOND).into(),
            FixedWindow::new(9, Nanos::SECOND).unwrap().phase(Phase::Spread).into(),
            SlidingWindow::new(9, Nanos::SECOND).unwrap().into(),
            SlidingLog::new(9, Nanos::SECOND)
                .unwrap()
                .minimum_gap(Nanos::from_nanos(5))
                .unwrap()
                .count_refused()
                .into(),
            Concurrency::new(9, Nanos::SECOND).unwrap().max_debt(4).unwrap().into(),
        ])
        .unwrap()
    }

    #[test]
    fn a_receipt_comes_back_as_it_left() {
        let stamps = Stamps::from_stamps([Stamp::NONE, Stamp::from_bits(u64::MAX), Stamp::from_bits(7)]);
        let rule = Taken { key: b"\x01r\x03api"[..].into(), sent: None, fallback: true, cost: Cost::MAX, stamps };
        let sent = Taken {
            key: b"\x01r\x03other"[..].into(),
            sent: Some(one_of_each()),
            fallback: false,
            cost: Cost::ZERO,
            stamps: Stamps::default(),
        };
        for receipt in [Receipt::default(), Receipt { taken: vec![rule.clone()] }, Receipt { taken: vec![rule, sent] }]
        {
            assert_eq!(receipt.to_string().parse(), Ok(receipt));
        }
    }

    #[test]
    fn so_do_the_limits_that_are_no_buckets_or_windows_of_the_usual_kind() {
        let bucket = IntervalBucket::new(5, Nanos::SECOND).unwrap().burst(9).unwrap().max_debt(4).unwrap();
        let bucket = bucket.initial(2).unwrap().max_wait(Nanos::from_secs(3)).unwrap();
        let slices = SlidingSlices::new(9, Nanos::SECOND, Nanos::from_millis(100)).unwrap();
        let limits = Limits::new([
            bucket.steps(Steps::FirstRequest).into(),
            bucket.steps(Steps::Aligned(Nanos::from_nanos(7))).into(),
            slices.max_debt(4).unwrap().initial(2).unwrap().into(),
        ]);
        let stamps = Stamps::default();
        let sent = Some(limits.unwrap());
        let receipt =
            Receipt { taken: vec![Taken { key: (*b"key").into(), sent, fallback: false, cost: Cost::ONE, stamps }] };
        assert_eq!(receipt.to_string().parse(), Ok(receipt));
    }

    #[test]
    fn half_a_receipt_is_none() {
        let stamps = Stamps::from_stamps([Stamp::from_bits(1 << 40)]);
        let taken =
            Taken { key: (*b"key").into(), sent: Some(one_of_each()), fallback: false, cost: Cost::ONE, stamps };
        let text = Receipt { taken: vec![taken] }.to_string();
        for length in 0..text.len() {
            assert_eq!(text[..length].parse::<Receipt>(), Err(BadReceipt), "{length} of {} letters", text.len());
        }
        assert_eq!((text + "A").parse::<Receipt>(), Err(BadReceipt));
    }

    #[test]
    fn receipt_that_names_a_counter_twice_is_refused() {
        let stamps = Stamps::default();
        let one = Taken { key: (*b"key").into(), sent: None, fallback: false, cost: Cost::ONE, stamps };
        let other = Taken { cost: Cost::new(2), ..one.clone() };
        let text = Receipt { taken: vec![one, other] }.to_string();
        assert_eq!(text.parse::<Receipt>(), Err(BadReceipt));
    }

    proptest! {
        #[test]
        fn whatever_the_text_reading_it_ends(text in "[A-Za-z0-9_-]{0,60}") {
            if let Ok(receipt) = text.parse::<Receipt>() {
                prop_assert_eq!(receipt.to_string().parse(), Ok(receipt));
            }
        }

        #[test]
        fn bytes_survive_as_letters(bytes: Vec<u8>) {
            struct Shown<'a>(&'a [u8]);
            impl fmt::Display for Shown<'_> {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    write_text(f, self.0)
                }
            }
            prop_assert_eq!(read_text(&Shown(&bytes).to_string()), Some(bytes));
        }
    }
}
