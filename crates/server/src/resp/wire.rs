//! The Redis protocol, bytes to commands and replies to bytes. Nothing here reads a socket or knows a command.
//!
//! A request is an array of bulk strings, or one line of words for people at a terminal. It is parsed where it lies: the
//! arguments are slices of what was read. A reply is written for version 2 or 3 of the protocol, which differ in maps
//! and in nothing else we use.

use super::limits::{MAX_ARGS, MAX_BULK, MAX_COMMAND, MAX_LENGTH_DIGITS};

/// What stands at the beginning of the bytes received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A command of so many bytes, whose arguments are in the list. An empty list is a command to be ignored.
    Command(usize),
    /// The beginning of one; there is no point in looking again before this many bytes are there.
    Incomplete(usize),
}

/// The bytes are no request. Nothing after them can be understood, so the connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The number of arguments is no number, or too large.
    ArrayLength,
    /// The length of an argument is no number, or too large.
    BulkLength,
    /// An argument does not begin with a `$`, but with this.
    ExpectedBulk(u8),
    /// An argument is not followed by a line end.
    MissingLineEnd,
    /// The command is longer than [`MAX_COMMAND`].
    CommandTooLong,
    /// A line with quotes in it.
    Quotes,
}

impl std::fmt::Display for ProtocolError {
    /// In the words of Redis where it has any.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ArrayLength => write!(f, "invalid multibulk length, at most {MAX_ARGS} arguments are accepted"),
            Self::BulkLength => write!(f, "invalid bulk length, at most {MAX_BULK} bytes are accepted"),
            Self::ExpectedBulk(byte) => write!(f, "expected '$', got '{}'", byte.escape_ascii()),
            Self::MissingLineEnd => f.write_str("expected a line end after the argument"),
            Self::CommandTooLong => write!(f, "too big a request, at most {MAX_COMMAND} bytes are accepted"),
            Self::Quotes => f.write_str("quotes are not understood in a line, send an array of bulk strings"),
        }
    }
}

/// Looks for one command at the beginning of `input` and puts its arguments into `args`.
///
/// # Errors
/// When no continuation of `input` could be a command within the limits.
#[inline]
pub fn parse<'a>(input: &'a [u8], args: &mut Vec<&'a [u8]>) -> Result<Parsed, ProtocolError> {
    args.clear();
    match input.first() {
        None => Ok(Parsed::Incomplete(1)),
        Some(b'*') => parse_array(input, args),
        Some(_) => parse_line(input, args),
    }
}

#[inline]
fn parse_array<'a>(input: &'a [u8], args: &mut Vec<&'a [u8]>) -> Result<Parsed, ProtocolError> {
    let Some((count, mut at)) = length(input, 1).map_err(|()| ProtocolError::ArrayLength)? else {
        return Ok(Parsed::Incomplete(input.len() + 1));
    };
    if count > MAX_ARGS as i64 {
        return Err(ProtocolError::ArrayLength);
    }
    for _ in 0..count {
        match input.get(at) {
            None => return Ok(Parsed::Incomplete(at + 1)),
            Some(b'$') => {}
            Some(other) => return Err(ProtocolError::ExpectedBulk(*other)),
        }
        let Some((len, start)) = length(input, at + 1).map_err(|()| ProtocolError::BulkLength)? else {
            return Ok(Parsed::Incomplete(input.len() + 1));
        };
        let len = usize::try_from(len).ok().filter(|len| *len <= MAX_BULK).ok_or(ProtocolError::BulkLength)?;
        let end = start + len;
        if end + 2 > MAX_COMMAND {
            return Err(ProtocolError::CommandTooLong);
        }
        let Some(bytes) = input.get(start..end + 2) else {
            return Ok(Parsed::Incomplete(end + 2));
        };
        if !bytes.ends_with(b"\r\n") {
            return Err(ProtocolError::MissingLineEnd);
        }
        args.push(&bytes[..len]);
        at = end + 2;
    }
    Ok(Parsed::Command(at))
}

/// Reads a length and its line end from `at` on: the number and the place after it, or none if more bytes are needed.
#[inline]
fn length(input: &[u8], at: usize) -> Result<Option<(i64, usize)>, ()> {
    // One or two digits, as nearly all lengths are.
    match input.get(at..at + 4) {
        Some([digit @ b'0'..=b'9', b'\r', b'\n', _]) => Ok(Some((i64::from(digit - b'0'), at + 3))),
        Some([tens @ b'0'..=b'9', digit @ b'0'..=b'9', b'\r', b'\n']) => {
            Ok(Some((i64::from(tens - b'0') * 10 + i64::from(digit - b'0'), at + 4)))
        }
        _ => number(input, at),
    }
}

#[cold]
#[inline(never)]
fn number(input: &[u8], at: usize) -> Result<Option<(i64, usize)>, ()> {
    let mut value: i64 = 0;
    let (negative, first) = match input.get(at) {
        Some(b'-') => (true, at + 1),
        _ => (false, at),
    };
    let mut place = first;
    loop {
        match input.get(place) {
            None => return Ok(None),
            // Told at the first digit too many, whether the rest has arrived or not.
            Some(b'0'..=b'9') if place - first == MAX_LENGTH_DIGITS => return Err(()),
            Some(digit @ b'0'..=b'9') => {
                value = value.checked_mul(10).and_then(|tens| tens.checked_add(i64::from(digit - b'0'))).ok_or(())?;
            }
            Some(b'\r') if place > first => break,
            Some(_) => return Err(()),
        }
        place += 1;
    }
    match input.get(place + 1) {
        None => Ok(None),
        Some(b'\n') => Ok(Some((if negative { -value } else { value }, place + 2))),
        Some(_) => Err(()),
    }
}

fn parse_line<'a>(input: &'a [u8], args: &mut Vec<&'a [u8]>) -> Result<Parsed, ProtocolError> {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
        return if input.len() > MAX_COMMAND {
            Err(ProtocolError::CommandTooLong)
        } else {
            Ok(Parsed::Incomplete(input.len() + 1))
        };
    };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    if line.len() > MAX_COMMAND {
        return Err(ProtocolError::CommandTooLong);
    }
    if line.iter().any(|byte| matches!(byte, b'"' | b'\'')) {
        return Err(ProtocolError::Quotes);
    }
    for word in line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
        if args.len() == MAX_ARGS {
            return Err(ProtocolError::ArrayLength);
        }
        args.push(word);
    }
    Ok(Parsed::Command(end + 1))
}

/// A decimal integer as Redis clients write it: a sign, `+` too, and digits, nothing else.
#[inline]
pub fn integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    // Eighteen digits fit whatever they are.
    if digits.len() <= 18 {
        let mut value: i64 = 0;
        for digit in digits {
            if !digit.is_ascii_digit() {
                return None;
            }
            value = value * 10 + i64::from(digit - b'0');
        }
        return Some(if negative { -value } else { value });
    }
    // Counted downwards: the most negative number has no positive counterpart.
    let mut value: i64 = 0;
    for digit in digits {
        if !digit.is_ascii_digit() {
            return None;
        }
        value = value.checked_mul(10)?.checked_sub(i64::from(digit - b'0'))?;
    }
    if negative { Some(value) } else { value.checked_neg() }
}

/// Which version of the protocol replies are written in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Version {
    /// What a connection begins with.
    #[default]
    Two,
    /// After `HELLO 3`.
    Three,
}

/// Replies, one after the other, as bytes.
#[derive(Debug, Default)]
pub struct Replies {
    /// What is to be sent.
    pub bytes: Vec<u8>,
    /// The version in use from here on.
    pub version: Version,
}

impl Replies {
    /// A short text of ours: `+OK`.
    pub fn simple(&mut self, text: &'static str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.end_line();
    }

    /// An error. What would end the line early is replaced, since the text may quote the caller.
    pub fn error(&mut self, text: &str) {
        self.bytes.push(b'-');
        self.bytes.extend(text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
        self.end_line();
    }

    /// A number.
    #[inline]
    pub fn integer(&mut self, value: i64) {
        self.header(b':', value);
    }

    /// Bytes of any kind.
    pub fn bulk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.header(b'$', len(bytes.len()));
        self.bytes.extend_from_slice(bytes);
        self.end_line();
    }

    /// Nothing.
    pub fn null(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            Version::Two => b"$-1\r\n",
            Version::Three => b"_\r\n",
        });
    }

    /// The beginning of a list; `count` replies follow.
    pub fn array(&mut self, count: usize) {
        self.header(b'*', len(count));
    }

    /// The beginning of a map; `count` pairs follow. In version 2 a list of twice as many.
    pub fn map(&mut self, count: usize) {
        match self.version {
            Version::Two => self.header(b'*', len(count * 2)),
            Version::Three => self.header(b'%', len(count)),
        }
    }

    /// A list of five numbers, which is what most replies are.
    #[inline]
    pub fn five(&mut self, numbers: [i64; 5]) {
        self.lines(*b"*5\r\n", numbers.map(|number| (b':', number)));
    }

    fn header(&mut self, kind: u8, value: i64) {
        self.lines([], [(kind, value)]);
    }

    /// Writes a beginning, and numbers with their kinds, a line each.
    #[inline]
    fn lines<const H: usize, const N: usize>(&mut self, head: [u8; H], numbers: [(u8, i64); N]) {
        // Written where they will stay, into more room than they take: to put them together elsewhere and copy them would
        // be to wait for what was just written, byte by byte, to come back as a whole.
        let start = self.bytes.len();
        self.bytes.resize(start + H + N * LINE, 0);
        let room = &mut self.bytes[start..];
        room[..H].copy_from_slice(&head);
        let end = numbers.into_iter().fold(H, |at, (kind, value)| put_line(room, at, kind, value));
        self.bytes.truncate(start + end);
    }

    fn end_line(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }
}

/// Room for a line of one number: kind, sign, digits and line end are at most 23 bytes, written eight digits at a time.
const LINE: usize = 32;

/// Writes a number as a line at `at`, and tells where it ends.
#[inline]
fn put_line(room: &mut [u8], at: usize, kind: u8, value: i64) -> usize {
    let room = &mut room[at..at + LINE];
    let magnitude = value.unsigned_abs();
    room[0] = kind;
    room[1] = b'-';
    let mut end = 1 + usize::from(value < 0);
    let mut rest = magnitude;
    if magnitude >= 100_000_000 {
        let high = magnitude / 100_000_000;
        if high >= 100_000_000 {
            end += put_digits(&mut room[end..], high / 100_000_000);
            end += put_all_digits(&mut room[end..], high % 100_000_000);
        } else {
            end += put_digits(&mut room[end..], high);
        }
        rest = magnitude % 100_000_000;
        end += put_all_digits(&mut room[end..], rest);
    } else {
        end += put_digits(&mut room[end..], rest);
    }
    room[end..end + 2].copy_from_slice(b"\r\n");
    at + end + 2
}

/// Writes a number below 10⁸, and tells how many digits it has.
#[inline]
fn put_digits(room: &mut [u8], number: u64) -> usize {
    let digits = eight_digits(number);
    // The first digits are the lowest bytes; the last one stays, even if it is zero.
    let leading = (digits.trailing_zeros() / 8).min(7);
    room[..8].copy_from_slice(&((digits | ZEROS) >> (8 * leading)).to_le_bytes());
    8 - leading as usize
}

/// Writes eight digits, with zeros before the number.
#[inline]
fn put_all_digits(room: &mut [u8], number: u64) -> usize {
    room[..8].copy_from_slice(&(eight_digits(number) | ZEROS).to_le_bytes());
    8
}

/// Eight times the character zero.
const ZEROS: u64 = u64::from_le_bytes([b'0'; 8]);

/// The eight digits of a number below 10⁸, one to a byte, the first in the lowest: halves, then quarters, then digits are
/// parted in all places at once. The factors are 1/100 and 1/10 as fractions of powers of two, exact up to 10⁴ and 100.
#[inline]
fn eight_digits(number: u64) -> u64 {
    let halves = (number / 10_000) | ((number % 10_000) << 32);
    let hundreds = ((halves * 10_486) >> 20) & 0x0000_007F_0000_007F;
    let quarters = hundreds | ((halves - 100 * hundreds) << 16);
    let tens = ((quarters * 103) >> 10) & 0x000F_000F_000F_000F;
    tens | ((quarters - 10 * tens) << 8)
}

fn len(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
