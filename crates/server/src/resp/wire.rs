//! The wire format of the Redis protocol (RESP), independent of sockets and commands.
//!
//! A request is an array of bulk strings, or an inline command: one line of words, as typed at a terminal. Requests are
//! parsed in place: the arguments are slices of the input. Replies are written in version 2 or 3 of the protocol. The
//! replies of this server differ between the versions only in maps and null.

use std::ops::Range;

use super::bounds::{MAX_ARGS, MAX_BULK_BYTES, MAX_COMMAND_BYTES, MAX_LENGTH_DIGITS};

/// The frame at the start of the input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RespFrame {
    /// A complete command, with its size in bytes. An empty array or a blank line is ignored.
    Command(usize),
    /// A partial command, with the minimum input length (in bytes) at which parsing can continue.
    Incomplete(usize),
}

/// The input is not a valid request. The rest of the input cannot be parsed either, so the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The argument count is not a number, or too large.
    ArrayLength,
    /// The length of an argument is not a number, or too large.
    BulkLength,
    /// An argument starts with this byte instead of `$`.
    ExpectedBulk(u8),
    /// An argument is not followed by a line end.
    MissingLineEnd,
    /// The command is longer than [`MAX_COMMAND_BYTES`].
    CommandTooLong,
    /// An inline command contains quotes.
    Quotes,
}

impl std::fmt::Display for ProtocolError {
    /// Starts with Redis's wording where Redis has the same error.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::ArrayLength => write!(f, "invalid multibulk length, expected a number up to {MAX_ARGS}"),
            Self::BulkLength => write!(f, "invalid bulk length, expected a number up to {MAX_BULK_BYTES}"),
            Self::ExpectedBulk(byte) => write!(f, "expected '$', got '{}'", byte.escape_ascii()),
            Self::MissingLineEnd => f.write_str("expected a line end after the argument"),
            Self::CommandTooLong => write!(f, "request too large (maximum {MAX_COMMAND_BYTES} bytes)"),
            Self::Quotes => f.write_str("quotes are not supported in an inline command; send an array of bulk strings"),
        }
    }
}

/// Parses one command at the start of `input` and stores its arguments in `args`.
///
/// # Errors
/// Returns an error if `input` cannot become a valid command, no matter which bytes follow.
#[inline]
pub fn parse_command<'a>(input: &'a [u8], args: &mut Vec<&'a [u8]>) -> Result<RespFrame, ProtocolError> {
    args.clear();
    match input.first() {
        None => Ok(RespFrame::Incomplete(1)),
        Some(b'*') => parse_array(input, args),
        Some(_) => parse_inline_command(input, args),
    }
}

#[inline]
fn parse_array<'a>(input: &'a [u8], args: &mut Vec<&'a [u8]>) -> Result<RespFrame, ProtocolError> {
    let Some((count, at)) = parse_length(input, 1).map_err(|()| ProtocolError::ArrayLength)? else {
        return Ok(RespFrame::Incomplete(input.len() + 1));
    };
    if count > MAX_ARGS as i64 {
        return Err(ProtocolError::ArrayLength);
    }
    // Bounds the fast path; `parse_arg` checks the maximum size itself.
    let bounded = &input[..input.len().min(MAX_COMMAND_BYTES)];
    let mut rest = bounded.get(at..).unwrap_or_default();
    for _ in 0..count {
        if let Some((arg, next)) = try_parse_short_arg(rest) {
            args.push(arg);
            rest = next;
            continue;
        }
        match parse_arg(input, bounded.len() - rest.len())? {
            ArgFrame::Complete(arg) => {
                rest = &bounded[arg.end + 2..];
                args.push(&input[arg]);
            }
            ArgFrame::Incomplete(needed) => return Ok(RespFrame::Incomplete(needed)),
        }
    }
    Ok(RespFrame::Command(bounded.len() - rest.len()))
}

/// Fast path of [`parse_arg`] for a complete argument whose length has one or two digits. Returns the argument and the
/// rest of the input. Takes about 45 instructions instead of 90.
#[inline]
fn try_parse_short_arg(input: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = split_short_length(input.strip_prefix(b"$")?)?;
    let (arg, rest) = rest.split_at_checked(len)?;
    match rest {
        [b'\r', b'\n', rest @ ..] => Some((arg, rest)),
        _ => None,
    }
}

/// An argument at some position of the input.
enum ArgFrame {
    /// The position of its bytes.
    Complete(Range<usize>),
    /// Bytes are missing: the minimum input length at which parsing can continue.
    Incomplete(usize),
}

/// Parses the argument at `at`.
fn parse_arg(input: &[u8], at: usize) -> Result<ArgFrame, ProtocolError> {
    match input.get(at) {
        None => return Ok(ArgFrame::Incomplete(at + 1)),
        Some(b'$') => {}
        Some(other) => return Err(ProtocolError::ExpectedBulk(*other)),
    }
    let Some((len, start)) = parse_length(input, at + 1).map_err(|()| ProtocolError::BulkLength)? else {
        return Ok(ArgFrame::Incomplete(input.len() + 1));
    };
    let len = usize::try_from(len).ok().filter(|len| *len <= MAX_BULK_BYTES).ok_or(ProtocolError::BulkLength)?;
    let end = start + len;
    if end + 2 > MAX_COMMAND_BYTES {
        return Err(ProtocolError::CommandTooLong);
    }
    match input.get(end..end + 2) {
        None => Ok(ArgFrame::Incomplete(end + 2)),
        Some(b"\r\n") => Ok(ArgFrame::Complete(start..end)),
        Some(_) => Err(ProtocolError::MissingLineEnd),
    }
}

/// Parses a length and its line end at `at`. Returns the length and the next position, or `None` if bytes are missing.
#[inline]
fn parse_length(input: &[u8], at: usize) -> Result<Option<(i64, usize)>, ()> {
    match input.get(at..).and_then(split_short_length) {
        Some((len, rest)) => Ok(Some((len as i64, input.len() - rest.len()))),
        None => parse_long_length(input, at),
    }
}

/// Fast path of [`parse_length`] for one or two digits, which [`try_parse_short_arg`] uses too; the figures are there.
/// Returns the length and the bytes after its line end. Needs four bytes of input; shorter input takes the slow path.
#[inline]
pub(super) fn split_short_length(input: &[u8]) -> Option<(usize, &[u8])> {
    let (chunk, _) = input.split_first_chunk::<4>()?;
    let [tens, ones] = [chunk[0], chunk[1]].map(|digit| digit.wrapping_sub(b'0'));
    if tens > 9 {
        None
    } else if chunk[1..3] == *b"\r\n" {
        Some((tens.into(), &input[3..]))
    } else if ones <= 9 && chunk[2..] == *b"\r\n" {
        Some(((10 * tens + ones).into(), &input[4..]))
    } else {
        None
    }
}

#[cold]
#[inline(never)]
fn parse_long_length(input: &[u8], at: usize) -> Result<Option<(i64, usize)>, ()> {
    let mut value: i64 = 0;
    let (negative, first) = match input.get(at) {
        Some(b'-') => (true, at + 1),
        _ => (false, at),
    };
    let mut end = first;
    loop {
        match input.get(end) {
            None => return Ok(None),
            // Fail at the first excess digit, without waiting for more bytes.
            Some(b'0'..=b'9') if end - first == MAX_LENGTH_DIGITS => return Err(()),
            Some(digit @ b'0'..=b'9') => {
                value = value.checked_mul(10).and_then(|tens| tens.checked_add(i64::from(digit - b'0'))).ok_or(())?;
            }
            Some(b'\r') if end > first => break,
            Some(_) => return Err(()),
        }
        end += 1;
    }
    match input.get(end + 1) {
        None => Ok(None),
        Some(b'\n') => Ok(Some((if negative { -value } else { value }, end + 2))),
        Some(_) => Err(()),
    }
}

fn parse_inline_command<'a>(input: &'a [u8], args: &mut Vec<&'a [u8]>) -> Result<RespFrame, ProtocolError> {
    let Some(end) = input.iter().position(|byte| *byte == b'\n') else {
        return if input.len() > MAX_COMMAND_BYTES {
            Err(ProtocolError::CommandTooLong)
        } else {
            Ok(RespFrame::Incomplete(input.len() + 1))
        };
    };
    let line = input[..end].strip_suffix(b"\r").unwrap_or(&input[..end]);
    if line.len() > MAX_COMMAND_BYTES {
        return Err(ProtocolError::CommandTooLong);
    }
    if line.iter().any(|byte| matches!(byte, b'"' | b'\'')) {
        return Err(ProtocolError::Quotes);
    }
    for word in line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty()) {
        if args.len() == MAX_ARGS {
            return Err(ProtocolError::ArrayLength);
        }
        if word.len() > MAX_BULK_BYTES {
            return Err(ProtocolError::BulkLength);
        }
        args.push(word);
    }
    Ok(RespFrame::Command(end + 1))
}

/// Parses a decimal integer with an optional `-` or `+`.
#[inline]
pub fn parse_integer(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if digits.is_empty() {
        return None;
    }
    if let Some(value) = try_parse_digits_fast(digits) {
        return value.map(|value| if negative { -value } else { value });
    }
    // 18 digits cannot overflow.
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
    str::from_utf8(text).ok()?.parse().ok()
}

/// Fast path of [`parse_integer`] for four to eight digits. Three multiplications combine digits into pairs, pairs into
/// groups of four, and groups of four into a number of eight digits.
///
/// Returns `None` for any other length, and `Some(None)` if a byte is not a digit. Parsing the four numbers of a
/// `CL.THROTTLE` call such as `1000000 1000000 60 1` takes 237 instructions instead of 308.
#[inline]
fn try_parse_digits_fast(digits: &[u8]) -> Option<Option<i64>> {
    let (Some(first), Some(last), 4..=8) = (digits.first_chunk(), digits.last_chunk(), digits.len()) else {
        return None;
    };
    // With fewer than eight digits, the two reads overlap. The overlapping digits have the same bit positions.
    let len = digits.len() as u32;
    let text = u64::from(u32::from_le_bytes(*first)) | u64::from(u32::from_le_bytes(*last)) << (8 * (len - 4));
    const ASCII_ZEROS: u64 = 0x3030_3030_3030_3030;
    // Pad with leading zeros to eight digits.
    let text = text << (64 - 8 * len) | ASCII_ZEROS.checked_shr(8 * len).unwrap_or(0);
    let values = text ^ ASCII_ZEROS;
    if (values | values.wrapping_add(0x7676_7676_7676_7676)) & 0x8080_8080_8080_8080 != 0 {
        return Some(None);
    }
    let pairs = values.wrapping_mul(10 << 8 | 1) >> 8 & 0x00FF_00FF_00FF_00FF;
    let fours = pairs.wrapping_mul(100 << 16 | 1) >> 16 & 0x0000_FFFF_0000_FFFF;
    Some(Some((fours.wrapping_mul(10_000 << 32 | 1) >> 32) as i64))
}

/// The version of the protocol.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RespVersion {
    /// The version of a new connection.
    #[default]
    Two,
    /// The version after `HELLO 3`.
    Three,
}

/// An output buffer of encoded replies.
#[derive(Debug, Default)]
pub struct Replies {
    /// The bytes to send.
    pub bytes: Vec<u8>,
    /// The protocol version for the next replies.
    pub version: RespVersion,
    /// The limit of the last `CL.THROTTLE` reply, and its encoded line.
    last_limit: Option<(i64, EncodedLine)>,
}

impl Replies {
    /// Creates a buffer that continues `bytes`.
    pub fn new(bytes: Vec<u8>, version: RespVersion) -> Self {
        Self { bytes, version, ..Self::default() }
    }

    /// Writes a simple string: `+OK`.
    pub fn write_simple(&mut self, text: &'static str) {
        self.bytes.push(b'+');
        self.bytes.extend_from_slice(text.as_bytes());
        self.write_line_end();
    }

    /// Writes an error. Control characters are replaced with spaces, because the text may quote the caller's input.
    pub fn write_error_reply(&mut self, text: &str) {
        self.bytes.push(b'-');
        self.bytes.extend(text.bytes().map(|byte| if byte.is_ascii_control() { b' ' } else { byte }));
        self.write_line_end();
    }

    /// Writes an integer.
    #[inline]
    pub fn write_integer(&mut self, value: i64) {
        self.write_header(b':', value);
    }

    /// Writes a bulk string.
    pub fn write_bulk(&mut self, bytes: impl AsRef<[u8]>) {
        let bytes = bytes.as_ref();
        self.write_header(b'$', to_length(bytes.len()));
        self.bytes.extend_from_slice(bytes);
        self.write_line_end();
    }

    /// Writes null.
    pub fn write_null(&mut self) {
        self.bytes.extend_from_slice(match self.version {
            RespVersion::Two => b"$-1\r\n",
            RespVersion::Three => b"_\r\n",
        });
    }

    /// Begins an array. The caller then writes `count` replies.
    pub fn begin_array(&mut self, count: usize) {
        self.write_header(b'*', to_length(count));
    }

    /// Begins a map. The caller then writes `count` pairs. In version 2, a map is an array of `2 * count` replies.
    pub fn begin_map(&mut self, count: usize) {
        match self.version {
            RespVersion::Two => self.write_header(b'*', to_length(count * 2)),
            RespVersion::Three => self.write_header(b'%', to_length(count)),
        }
    }

    /// Writes an array of five integers: the reply to `CL.THROTTLE`. The first number is 0 or 1.
    #[inline]
    pub fn write_throttle_reply(&mut self, numbers: [i64; 5]) {
        let [limited, limit, remaining, retry, reset] = numbers;
        self.bytes.extend_from_slice(if limited == 0 { b"*5\r\n:0\r\n" } else { b"*5\r\n:1\r\n" });
        self.write_limit(limit);
        self.write_integer(remaining);
        self.write_integer(retry);
        self.write_integer(reset);
    }

    /// Writes the limit of a call. Consecutive calls usually have the same limit, and appending its encoded form again
    /// takes 15 instructions instead of 80.
    #[inline]
    fn write_limit(&mut self, limit: i64) {
        let line = match self.last_limit {
            Some((last, line)) if last == limit => line,
            Some(_) | None => {
                let Ok(value @ 0..100_000_000) = u32::try_from(limit) else { return self.write_integer(limit) };
                let line = encode_line(b':', value);
                self.last_limit = Some((limit, line));
                line
            }
        };
        self.append_line(line);
    }

    /// Writes a type byte, a number and a line end. Numbers with one or two digits (almost all lengths) and -1 (the
    /// retry time of every admitted call) are written with one append.
    #[inline(always)]
    fn write_header(&mut self, kind: u8, value: i64) {
        match value {
            0..10 => self.bytes.extend_from_slice(&[kind, b'0' + value as u8, b'\r', b'\n']),
            10..100 => {
                let digits = [b'0' + (value / 10) as u8, b'0' + (value % 10) as u8];
                self.bytes.extend_from_slice(&[kind, digits[0], digits[1], b'\r', b'\n']);
            }
            -1 => self.bytes.extend_from_slice(&[kind, b'-', b'1', b'\r', b'\n']),
            _ => self.write_long_header(kind, value),
        }
    }

    #[inline(never)]
    fn write_long_header(&mut self, kind: u8, value: i64) {
        match u32::try_from(value) {
            Ok(value @ 0..100_000_000) => self.append_line(encode_line(kind, value)),
            Ok(_) | Err(_) => {
                self.bytes.push(kind);
                self.bytes.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
                self.write_line_end();
            }
        }
    }

    /// Appends an encoded line. An append of sixteen bytes, of which some are removed again, needs no call, unlike an
    /// append of variable length.
    #[inline]
    fn append_line(&mut self, line: EncodedLine) {
        let end = self.bytes.len() + line.len;
        self.bytes.extend_from_slice(&line.bytes.to_le_bytes());
        self.bytes.truncate(end);
    }

    fn write_line_end(&mut self) {
        self.bytes.extend_from_slice(b"\r\n");
    }
}

/// The encoding of a type byte, a number and a line end.
#[derive(Clone, Copy, Debug)]
struct EncodedLine {
    /// The first byte is in the lowest bits.
    bytes: u128,
    len: usize,
}

const LINE_END: u16 = u16::from_le_bytes(*b"\r\n");

/// Encodes a type byte, a number below 100,000,000 and a line end.
#[inline]
fn encode_line(kind: u8, value: u32) -> EncodedLine {
    let digits = split_digits(value);
    // At least the last digit is written.
    let leading_zeros = (digits | 1 << 56).trailing_zeros() / 8;
    let digits_and_line_end = u128::from(digits | 0x3030_3030_3030_3030) | u128::from(LINE_END) << 64;
    let bytes = (digits_and_line_end >> (8 * leading_zeros)) << 8 | u128::from(kind);
    EncodedLine { bytes, len: 11 - leading_zeros as usize }
}

/// Returns the eight decimal digits of a number below 100,000,000 as the bytes of a word, with the first digit in the
/// lowest byte. Splits the number into groups of four digits, then pairs, then digits, and computes the parts of each
/// step together. Writing a number of seven digits takes about 80 instructions, compared with 125 with itoa.
#[inline]
fn split_digits(value: u32) -> u64 {
    let value = u64::from(value);
    let fours = (value / 10_000) | ((value % 10_000) << 32);
    // Divides both numbers by 100: 10486 / 2^20 gives the exact quotient of numbers below 10,000.
    let hundreds = ((fours * 10_486) >> 20) & 0x0000_007F_0000_007F;
    let pairs = hundreds | (fours - 100 * hundreds) << 16;
    // Divides all four numbers by 10: 103 / 2^10 gives the exact quotient of numbers below 100.
    let tens = ((pairs * 103) >> 10) & 0x000F_000F_000F_000F;
    tens | (pairs - 10 * tens) << 8
}

fn to_length(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;
