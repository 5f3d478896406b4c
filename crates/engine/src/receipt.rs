//! Receipts. A caller uses a receipt to undo a decision exactly.
//!
//! A receipt lists the charged counters, the amount taken from each, and the stamps that locate each charge. A receipt
//! can be sent to another process as a string. Receipts are not signed. A caller with permission to refund could forge
//! a receipt, but a refund never exceeds the key's usage.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::display::Base64Display;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as URL_SAFE_NO_PAD;
use tollgate::core::{BucketParams, Cost, Nanos, Params, Phase, Stamp, Stamps, Steps, WindowParams};
use tollgate::{Limit, Limits, Rate};

/// The charges of a decision, for refunds.
///
/// The string form usually has a few dozen characters and never needs escaping:
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
    pub(crate) entries: Vec<ReceiptEntry>,
}

/// The charge to one counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReceiptEntry {
    pub(crate) key: Box<[u8]>,
    /// The limits, if they are inline or belong to an override. A rule's own limits are looked up by key.
    pub(crate) limits: Option<Limits>,
    /// Whether the fallback was charged, because the store did not answer.
    pub(crate) fallback: bool,
    /// Whether concurrency slots were taken.
    pub(crate) has_slots: bool,
    pub(crate) cost: Cost,
    pub(crate) stamps: Stamps,
}

impl Receipt {
    /// Maximum length of a receipt string in bytes.
    pub const MAX_TEXT_BYTES: usize = 1 << 20;

    /// Returns the domain of each charged counter; empty for inline limits of a request without a domain.
    pub fn domains(&self) -> impl Iterator<Item = &[u8]> {
        self.entries.iter().map(|taken| crate::key::domain_of(&taken.key))
    }

    /// Returns whether nothing was taken.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// The string is not a receipt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadReceipt;

impl fmt::Display for BadReceipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a receipt")
    }
}

impl std::error::Error for BadReceipt {}

/// The current format version. Format 1 omitted trailing zero stamps, so it recorded neither the number of charged
/// limits nor whether slots were taken.
const FORMAT_VERSION: u64 = 2;
const LIMITS_FLAG: u64 = 1;
const FALLBACK_FLAG: u64 = 2;
const SLOTS_FLAG: u64 = 4;

impl fmt::Display for Receipt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut bytes = Vec::new();
        push_varint(&mut bytes, FORMAT_VERSION);
        push_varint(&mut bytes, self.entries.len() as u64);
        for taken in &self.entries {
            let flags =
                [(taken.limits.is_some(), LIMITS_FLAG), (taken.fallback, FALLBACK_FLAG), (taken.has_slots, SLOTS_FLAG)];
            push_varint(&mut bytes, flags.iter().filter(|(set, _)| *set).map(|(_, flag)| flag).sum());
            push_varint(&mut bytes, taken.key.len() as u64);
            bytes.extend_from_slice(&taken.key);
            push_varint(&mut bytes, taken.cost.get());
            let count = taken.stamps.count();
            push_varint(&mut bytes, count as u64);
            (0..count).for_each(|index| push_varint(&mut bytes, taken.stamps.get(index).to_bits()));
            if let Some(limits) = &taken.limits {
                push_varint(&mut bytes, limits.as_slice().len() as u64);
                limits.as_slice().iter().for_each(|limit| push_limit(&mut bytes, limit));
            }
        }
        Base64Display::new(&bytes, &URL_SAFE_NO_PAD).fmt(f)
    }
}

impl FromStr for Receipt {
    type Err = BadReceipt;

    fn from_str(text: &str) -> Result<Self, BadReceipt> {
        let bytes = if text.len() > Self::MAX_TEXT_BYTES { None } else { URL_SAFE_NO_PAD.decode(text).ok() };
        bytes.and_then(|bytes| decode_receipt(&bytes)).ok_or(BadReceipt)
    }
}

fn decode_receipt(bytes: &[u8]) -> Option<Receipt> {
    let mut rest = bytes;
    let rest = &mut rest;
    let format = take_varint(rest)?;
    if !(1..=FORMAT_VERSION).contains(&format) {
        return None;
    }
    let count = take_varint(rest)?;
    let mut entries = Vec::new();
    for _ in 0..count {
        let flags = take_varint(rest)?;
        if flags > LIMITS_FLAG + FALLBACK_FLAG + SLOTS_FLAG {
            return None;
        }
        let length = usize::try_from(take_varint(rest)?).ok()?;
        let key: Box<[u8]> = rest.get(..length)?.into();
        *rest = &rest[length..];
        let cost = Cost::new(take_varint(rest)?);
        let places = take_varint(rest)?;
        let stamps: Option<Vec<Stamp>> =
            (0..places.min(Limits::MAX as u64)).map(|_| take_varint(rest).map(Stamp::from_bits)).collect();
        let limits = if flags & LIMITS_FLAG == 0 {
            None
        } else {
            let limits: Option<Vec<Limit>> =
                (0..take_varint(rest)?.min(Limits::MAX as u64)).map(|_| take_limit(rest)).collect();
            Some(Limits::new(limits?).ok()?)
        };
        let stamps = Stamps::from_stamps(stamps?);
        // Charges with slots always have stamps.
        let (stamps, has_slots) =
            if format == 1 { (stamps.with_count(Limits::MAX), places > 0) } else { (stamps, flags & SLOTS_FLAG != 0) };
        entries.push(ReceiptEntry { key, limits, fallback: flags & FALLBACK_FLAG != 0, has_slots, cost, stamps });
    }
    (rest.is_empty() && !has_duplicate_key(&entries)).then_some(Receipt { entries })
}

/// Returns whether a key occurs twice. No decision produces such a receipt, and the keys of a group must be different.
fn has_duplicate_key(taken: &[ReceiptEntry]) -> bool {
    let mut keys: Vec<&[u8]> = taken.iter().map(|taken| &*taken.key).collect();
    keys.sort_unstable();
    keys.windows(2).any(|pair| pair[0] == pair[1])
}

/// Appends a varint: seven bits per byte, lowest first; the top bit is set if more bytes follow.
fn push_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_varint(rest: &mut &[u8]) -> Option<u64> {
    let mut number = 0;
    for shift in (0..64).step_by(7) {
        let (byte, after) = rest.split_first()?;
        *rest = after;
        // The tenth byte can hold only one bit.
        number |= u64::from(byte & 0x7f).checked_shl(shift).filter(|part| part >> shift == u64::from(byte & 0x7f))?;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

/// Encodes limits. In every process, equal bytes mean equal limits.
pub(crate) fn limits_to_bytes(limits: &Limits) -> Vec<u8> {
    let mut bytes = Vec::new();
    limits.as_slice().iter().for_each(|limit| push_limit(&mut bytes, limit));
    bytes
}

fn push_limit(bytes: &mut Vec<u8>, limit: &Limit) {
    let mut all = |numbers: &[u64]| numbers.iter().for_each(|number| push_varint(bytes, *number));
    let bucket = |bucket: &BucketParams| {
        [bucket.rate.count().into(), bucket.rate.per().as_nanos(), bucket.burst, bucket.max_debt, bucket.initial]
    };
    let window = |window: &WindowParams| [window.limit, window.length.as_nanos(), window.max_debt, window.initial];
    match limit.params() {
        Params::Unlimited => all(&[0]),
        Params::DenyAll => all(&[1]),
        Params::TokenBucket(params) => {
            all(&[2]);
            all(&bucket(&params));
        }
        Params::LeakyBucket { bucket: params, free, max_wait } => {
            all(&[3]);
            all(&bucket(&params));
            all(&[free, max_wait.as_nanos()]);
        }
        Params::FixedWindow { window: params, phase } => {
            all(&[4]);
            all(&window(&params));
            match phase {
                Phase::Epoch => all(&[0]),
                Phase::FirstRequest => all(&[1]),
                Phase::Spread => all(&[2]),
                Phase::Given(position) => all(&[3 + position as u64]),
            }
        }
        Params::SlidingWindow(params) => {
            all(&[5]);
            all(&window(&params));
        }
        Params::SlidingLog { window: params, minimum_gap, count_refused } => {
            all(&[6]);
            all(&window(&params));
            all(&[minimum_gap.as_nanos(), count_refused.into()]);
        }
        Params::Concurrency { limit, lease, max_debt } => all(&[7, limit, lease.as_nanos(), max_debt]),
        Params::IntervalBucket { refill, period, burst, steps, max_wait, max_debt, initial } => {
            all(&[8, refill, period.as_nanos(), burst, max_wait.as_nanos(), max_debt, initial]);
            match steps {
                Steps::FirstRequest => all(&[0]),
                // The offset is less than the period, so adding 1 cannot overflow.
                Steps::Aligned(offset) => all(&[1 + offset.as_nanos()]),
            }
        }
        Params::SlidingSlices { window: params, precision } => {
            all(&[9]);
            all(&window(&params));
            all(&[precision.as_nanos()]);
        }
    }
}

/// Decodes one limit. The parameters are untrusted, so they are checked like a rule's parameters.
fn take_limit(rest: &mut &[u8]) -> Option<Limit> {
    let params = match take_varint(rest)? {
        0 => Params::Unlimited,
        1 => Params::DenyAll,
        2 => Params::TokenBucket(take_bucket(rest)?),
        3 => Params::LeakyBucket { bucket: take_bucket(rest)?, free: take_varint(rest)?, max_wait: take_nanos(rest)? },
        4 => {
            let window = take_window(rest)?;
            let phase = match take_varint(rest)? {
                0 => Phase::Epoch,
                1 => Phase::FirstRequest,
                2 => Phase::Spread,
                given => Phase::Given(usize::try_from(given - 3).ok()?),
            };
            Params::FixedWindow { window, phase }
        }
        5 => Params::SlidingWindow(take_window(rest)?),
        6 => {
            let window = take_window(rest)?;
            Params::SlidingLog { window, minimum_gap: take_nanos(rest)?, count_refused: take_varint(rest)? == 1 }
        }
        7 => Params::Concurrency { limit: take_varint(rest)?, lease: take_nanos(rest)?, max_debt: take_varint(rest)? },
        8 => {
            let (refill, period, burst, max_wait) =
                (take_varint(rest)?, take_nanos(rest)?, take_varint(rest)?, take_nanos(rest)?);
            let (max_debt, initial) = (take_varint(rest)?, take_varint(rest)?);
            let steps = match take_varint(rest)? {
                0 => Steps::FirstRequest,
                offset => Steps::Aligned(Nanos::from_nanos(offset - 1)),
            };
            Params::IntervalBucket { refill, period, burst, steps, max_wait, max_debt, initial }
        }
        9 => Params::SlidingSlices { window: take_window(rest)?, precision: take_nanos(rest)? },
        _ => return None,
    };
    Limit::from_params(params).ok()
}

fn take_bucket(rest: &mut &[u8]) -> Option<BucketParams> {
    let rate = Rate::new(take_varint(rest)?, take_nanos(rest)?).ok()?;
    Some(BucketParams { rate, burst: take_varint(rest)?, max_debt: take_varint(rest)?, initial: take_varint(rest)? })
}

fn take_window(rest: &mut &[u8]) -> Option<WindowParams> {
    let (limit, length) = (take_varint(rest)?, take_nanos(rest)?);
    Some(WindowParams { limit, length, max_debt: take_varint(rest)?, initial: take_varint(rest)? })
}

fn take_nanos(rest: &mut &[u8]) -> Option<Nanos> {
    take_varint(rest).map(Nanos::from_nanos)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tollgate::{
        Concurrency, FixedWindow, IntervalBucket, LeakyBucket, SlidingLog, SlidingSlices, SlidingWindow, TokenBucket,
    };

    fn limits_of_eight_kinds() -> Limits {
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
    fn receipt_is_parsed_as_written() {
        let stamps = Stamps::from_stamps([Stamp::NONE, Stamp::from_bits(u64::MAX), Stamp::from_bits(7)]);
        let rule = ReceiptEntry {
            key: b"\x01r\x03api"[..].into(),
            limits: None,
            fallback: true,
            has_slots: true,
            cost: Cost::MAX,
            stamps,
        };
        let sent = ReceiptEntry {
            key: b"\x01r\x03other"[..].into(),
            limits: Some(limits_of_eight_kinds()),
            fallback: false,
            has_slots: false,
            cost: Cost::ZERO,
            stamps: Stamps::default(),
        };
        for receipt in
            [Receipt::default(), Receipt { entries: vec![rule.clone()] }, Receipt { entries: vec![rule, sent] }]
        {
            assert_eq!(receipt.to_string().parse(), Ok(receipt));
        }
    }

    /// A receipt in format 1 does not state how many limits were charged, so it applies to all limits of the key.
    #[test]
    fn receipt_in_format_1_is_parsed() {
        let receipt = decode_receipt(b"\x01\x01\x00\x03key\x05\x00").unwrap();
        let stamps = Stamps::default().with_count(Limits::MAX);
        let taken = ReceiptEntry {
            key: (*b"key").into(),
            limits: None,
            fallback: false,
            has_slots: false,
            cost: Cost::new(5),
            stamps,
        };
        assert_eq!(receipt.entries, [taken]);
        assert_eq!(decode_receipt(b"\x03\x00"), None, "a later format");
    }

    #[test]
    fn interval_buckets_and_sliding_slices_are_parsed_as_written() {
        let bucket = IntervalBucket::new(5, Nanos::SECOND).unwrap().burst(9).unwrap().max_debt(4).unwrap();
        let bucket = bucket.initial(2).unwrap().max_wait(Nanos::from_secs(3)).unwrap();
        let slices = SlidingSlices::new(9, Nanos::SECOND, Nanos::from_millis(100)).unwrap();
        let limits = Limits::new([
            bucket.steps(Steps::FirstRequest).into(),
            bucket.steps(Steps::Aligned(Nanos::from_nanos(7))).into(),
            slices.max_debt(4).unwrap().initial(2).unwrap().into(),
        ]);
        let stamps = Stamps::default();
        let limits = Some(limits.unwrap());
        let receipt = Receipt {
            entries: vec![ReceiptEntry {
                key: (*b"key").into(),
                limits,
                fallback: false,
                has_slots: false,
                cost: Cost::ONE,
                stamps,
            }],
        };
        assert_eq!(receipt.to_string().parse(), Ok(receipt));
    }

    #[test]
    fn truncated_receipt_is_refused() {
        let stamps = Stamps::from_stamps([Stamp::from_bits(1 << 40)]);
        let taken = ReceiptEntry {
            key: (*b"key").into(),
            limits: Some(limits_of_eight_kinds()),
            fallback: false,
            has_slots: false,
            cost: Cost::ONE,
            stamps,
        };
        let text = Receipt { entries: vec![taken] }.to_string();
        for length in 0..text.len() {
            assert_eq!(text[..length].parse::<Receipt>(), Err(BadReceipt), "{length} of {} characters", text.len());
        }
        assert_eq!((text + "A").parse::<Receipt>(), Err(BadReceipt));
    }

    #[test]
    fn receipt_that_names_a_counter_twice_is_refused() {
        let stamps = Stamps::default();
        let one = ReceiptEntry {
            key: (*b"key").into(),
            limits: None,
            fallback: false,
            has_slots: false,
            cost: Cost::ONE,
            stamps,
        };
        let other = ReceiptEntry { cost: Cost::new(2), ..one.clone() };
        let text = Receipt { entries: vec![one, other] }.to_string();
        assert_eq!(text.parse::<Receipt>(), Err(BadReceipt));
    }

    proptest! {
        #[test]
        fn arbitrary_text_is_parsed_without_panic(text in "[A-Za-z0-9_-]{0,60}") {
            if let Ok(receipt) = text.parse::<Receipt>() {
                prop_assert_eq!(receipt.to_string().parse(), Ok(receipt));
            }
        }
    }
}
