//! Header compression (RFC 7541): a decoder for requests, and an encoder for the few representations that responses
//! need.
//!
//! The encoder does not use a dynamic table. Almost all response header blocks are short constants, so a dynamic table
//! would save little.

use std::collections::VecDeque;

use super::field::{FieldName, STATIC_TABLE};
use super::huffman;

/// Maximum size of the dynamic table in bytes, which is the protocol's default.
pub const MAX_TABLE_BYTES: usize = 4_096;

/// HPACK defines the size of a field as the lengths of its name and value plus this number of bytes.
pub const FIELD_OVERHEAD: usize = 32;

/// Maximum number of bytes after the prefix of an integer. Four bytes can represent numbers up to 2^28, which is more
/// than any valid length.
const MAX_INTEGER_BYTES: u32 = 4;

/// A decoded field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderField<'a> {
    /// The classified name.
    pub kind: FieldName,
    /// The name as sent.
    pub name: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

impl HeaderField<'_> {
    /// Returns the size of the field in bytes, including [`FIELD_OVERHEAD`].
    pub const fn size(&self) -> usize {
        self.name.len() + self.value.len() + FIELD_OVERHEAD
    }
}

/// Error: a header block cannot be decoded. Afterwards, the dynamic tables of client and server may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HpackError(pub &'static str);

/// The decoder of one connection.
#[derive(Debug)]
pub struct Decoder {
    /// The dynamic table, newest entry first.
    entries: VecDeque<TableEntry>,
    size: usize,
    max_size: usize,
    /// Number of changes made to the dynamic table.
    version: u64,
    /// Reusable buffers for the decoded name and value.
    name: Vec<u8>,
    value: Vec<u8>,
}

#[derive(Debug)]
struct TableEntry {
    kind: FieldName,
    name_length: usize,
    /// The name and the value.
    bytes: Box<[u8]>,
}

impl TableEntry {
    fn field(&self) -> HeaderField<'_> {
        let (name, value) = self.bytes.split_at(self.name_length);
        HeaderField { kind: self.kind, name, value }
    }
}

impl Default for Decoder {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            size: 0,
            max_size: MAX_TABLE_BYTES,
            version: 0,
            name: Vec::new(),
            value: Vec::new(),
        }
    }
}

impl Decoder {
    /// Returns the version of the dynamic table. As long as the version does not change, a block decodes to the same
    /// fields.
    pub const fn version(&self) -> u64 {
        self.version
    }

    /// Decodes a header block and calls `each` for every field, in order.
    ///
    /// # Errors
    /// Returns an error if the block is malformed. The caller must then close the connection, because the dynamic
    /// tables of client and server may differ.
    pub fn decode(&mut self, mut block: &[u8], mut each: impl FnMut(HeaderField<'_>)) -> Result<(), HpackError> {
        let mut is_first = true;
        while let Some(&first) = block.first() {
            match first {
                0x80.. => each(self.field_at(take_integer(&mut block, 7)?)?),
                0x40..0x80 => self.decode_literal(&mut block, 6, &mut each)?,
                // The representations "without indexing" and "never indexed" differ only in how proxies must forward
                // them.
                0x00..0x20 => self.decode_literal(&mut block, 4, &mut each)?,
                0x20..0x40 if is_first => {
                    self.resize_table(take_integer(&mut block, 5)?)?;
                    continue;
                }
                0x20..0x40 => return Err(HpackError("a table size update after a field")),
            }
            is_first = false;
        }
        Ok(())
    }

    /// Decodes a literal field whose name index has a prefix of `bits` bits. If `bits` is 6, the field is also inserted
    /// into the dynamic table.
    fn decode_literal(
        &mut self,
        block: &mut &[u8],
        bits: u32,
        each: &mut impl FnMut(HeaderField<'_>),
    ) -> Result<(), HpackError> {
        // The buffers are moved out of `self` because `self` is borrowed below.
        let (mut name, mut value) = (std::mem::take(&mut self.name), std::mem::take(&mut self.value));
        name.clear();
        value.clear();
        match take_integer(block, bits)? {
            0 => take_string(block, &mut name)?,
            index => name.extend_from_slice(self.field_at(index)?.name),
        }
        take_string(block, &mut value)?;
        let field = HeaderField { kind: FieldName::classify(&name, &value), name: &name, value: &value };
        each(field);
        if bits == 6 {
            self.insert_entry(field);
        }
        (self.name, self.value) = (name, value);
        Ok(())
    }

    /// Returns the field at an index. Indices begin with the static table, followed by the dynamic table from newest to
    /// oldest entry.
    fn field_at(&self, index: usize) -> Result<HeaderField<'_>, HpackError> {
        let index = index.checked_sub(1).ok_or(HpackError("index 0"))?;
        match STATIC_TABLE.get(index) {
            Some((name, value, kind)) => {
                Ok(HeaderField { kind: *kind, name: name.as_bytes(), value: value.as_bytes() })
            }
            None => {
                let entry = self.entries.get(index - STATIC_TABLE.len());
                entry.map(TableEntry::field).ok_or(HpackError("an index beyond the tables"))
            }
        }
    }

    fn insert_entry(&mut self, field: HeaderField<'_>) {
        self.version += 1;
        self.evict_to_size(self.max_size.saturating_sub(field.size()));
        // A field that is larger than the table empties the table and is not inserted.
        if field.size() <= self.max_size {
            self.size += field.size();
            let bytes = [field.name, field.value].concat().into();
            self.entries.push_front(TableEntry { kind: field.kind, name_length: field.name.len(), bytes });
        }
    }

    fn resize_table(&mut self, size: usize) -> Result<(), HpackError> {
        if size > MAX_TABLE_BYTES {
            return Err(HpackError("a table size above 4096"));
        }
        self.version += 1;
        self.max_size = size;
        self.evict_to_size(size);
        Ok(())
    }

    fn evict_to_size(&mut self, size: usize) {
        while self.size > size {
            let Some(entry) = self.entries.pop_back() else { return };
            self.size -= entry.field().size();
        }
    }
}

/// Removes an integer with a prefix of `bits` bits from the start of the block.
fn take_integer(block: &mut &[u8], bits: u32) -> Result<usize, HpackError> {
    let truncated = HpackError("the block ends within an integer");
    let (first, mut rest) = block.split_first().ok_or(truncated)?;
    let max = (1 << bits) - 1;
    let mut number = usize::from(*first) & max;
    if number == max {
        let mut shift = 0;
        loop {
            let (byte, after) = rest.split_first().ok_or(truncated)?;
            rest = after;
            number += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
            if shift == 7 * MAX_INTEGER_BYTES {
                return Err(HpackError("an integer is too large"));
            }
        }
    }
    *block = rest;
    Ok(number)
}

/// Removes a string from the start of the block and appends the decoded string to `out`. Decoding can enlarge a string
/// by a factor of at most 8/5.
fn take_string(block: &mut &[u8], out: &mut Vec<u8>) -> Result<(), HpackError> {
    let is_huffman = block.first().is_some_and(|first| first & 0x80 != 0);
    let length = take_integer(block, 7)?;
    let (bytes, rest) = block.split_at_checked(length).ok_or(HpackError("the block ends within a string"))?;
    *block = rest;
    if !is_huffman {
        out.extend_from_slice(bytes);
    } else if !huffman::decode(bytes, out) {
        return Err(HpackError("a string is not valid Huffman code"));
    }
    Ok(())
}

/// A dynamic-table size update to 0. At the start of a header block, this update announces that the sender uses no
/// dynamic table.
pub const NO_DYNAMIC_TABLE: u8 = 0x20;

/// Appends a literal field without indexing.
pub fn put_literal(out: &mut Vec<u8>, name: &str, value: &[u8]) {
    out.push(0);
    put_length(out, name.len());
    out.extend_from_slice(name.as_bytes());
    put_length(out, value.len());
    out.extend_from_slice(value);
}

fn put_length(out: &mut Vec<u8>, length: usize) {
    if length < 0x7f {
        return out.push(length as u8);
    }
    out.push(0x7f);
    let mut rest = length - 0x7f;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    type DecodedFields = Result<Vec<(String, String)>, HpackError>;

    fn decode_to_strings(decoder: &mut Decoder, block: &[u8]) -> DecodedFields {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decoder.decode(block, |field| fields.push((text(field.name), text(field.value))))?;
        Ok(fields)
    }

    fn to_fields(pairs: &[(&str, &str)]) -> DecodedFields {
        Ok(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    /// RFC 7541, sections C.3 and C.4: three requests on one connection, without and with Huffman coding.
    #[test]
    fn rfc_7541_example_requests_are_decoded() {
        let plain = [
            "828684410f7777772e6578616d706c652e636f6d",
            "828684be58086e6f2d6361636865",
            "828785bf400a637573746f6d2d6b65790c637573746f6d2d76616c7565",
        ];
        let huffman = [
            "828684418cf1e3c2e5f23a6ba0ab90f4ff",
            "828684be5886a8eb10649cbf",
            "828785bf408825a849e95ba97d7f8925a849e95bb8e8b4bf",
        ];
        let get = (":method", "GET");
        let authority = (":authority", "www.example.com");
        for blocks in [plain, huffman] {
            let mut decoder = Decoder::default();
            let mut next = |block: usize| decode_to_strings(&mut decoder, &hex::decode(blocks[block]).expect("hex"));
            assert_eq!(next(0), to_fields(&[get, (":scheme", "http"), (":path", "/"), authority]));
            let cached = ("cache-control", "no-cache");
            assert_eq!(next(1), to_fields(&[get, (":scheme", "http"), (":path", "/"), authority, cached]));
            let custom = ("custom-key", "custom-value");
            assert_eq!(next(2), to_fields(&[get, (":scheme", "https"), (":path", "/index.html"), authority, custom]));
            assert_eq!((decoder.size, decoder.entries.len()), (164, 3));
        }
    }

    #[test]
    fn oldest_entries_are_evicted_from_a_full_table() {
        let mut decoder = Decoder::default();
        let mut block = vec![0x3f, 0x45]; // a size of 100
        for name in ["a", "b", "c", "d"] {
            block.extend_from_slice(&[0x40, 1, name.as_bytes()[0], 1, b'1']);
        }
        assert_eq!(decode_to_strings(&mut decoder, &block).map(|fields| fields.len()), Ok(4));
        assert_eq!((decoder.size, decoder.entries.len()), (68, 2), "two entries of 34 bytes");
        assert_eq!(decode_to_strings(&mut decoder, &[0xbe, 0xbf]), to_fields(&[("d", "1"), ("c", "1")]));
        assert_eq!(decode_to_strings(&mut decoder, &[0xc0]), Err(HpackError("an index beyond the tables")));
        let large = [&[0x40, 1, b'x', 70][..], &[b'y'; 70]].concat();
        assert_eq!(decode_to_strings(&mut decoder, &large).map(|fields| fields.len()), Ok(1));
        assert_eq!((decoder.size, decoder.entries.len()), (0, 0), "a field larger than the table empties it");
        assert_eq!(
            decode_to_strings(&mut decoder, &[0x20, 0x3f, 0xe1, 0x1f]).map(|fields| fields.len()),
            Ok(0),
            "0, then 4096"
        );
        assert_eq!(decoder.max_size, MAX_TABLE_BYTES);
    }

    #[test]
    fn entry_may_reuse_the_name_of_the_entry_that_it_evicts() {
        let mut decoder = Decoder::default();
        // The table size is 40 bytes, so the second entry evicts the first, whose name it reuses.
        assert!(decode_to_strings(&mut decoder, &[0x3f, 0x09, 0x40, 2, b'a', b'b', 1, b'1']).is_ok());
        assert_eq!(decode_to_strings(&mut decoder, &[0x7e, 1, b'2']), to_fields(&[("ab", "2")]));
        assert_eq!(decode_to_strings(&mut decoder, &[0xbe]), to_fields(&[("ab", "2")]));
    }

    /// The cases of the h2spec test suite for HPACK, and truncated input.
    #[test]
    fn malformed_blocks_are_refused() {
        for (block, expected) in [
            (&[0x80][..], "index 0"),
            (&[0xc6], "an index beyond the tables"),
            (&[0x7f, 0x07, 1, b'x'], "an index beyond the tables"),
            (&[0x82, 0x20], "a table size update after a field"),
            (&[0x3f, 0xe2, 0x1f], "a table size above 4096"),
            (&[0xff], "the block ends within an integer"),
            (&[0xff, 0x80, 0x80, 0x80, 0x80, 0x01], "an integer is too large"),
            (&[0x40], "the block ends within an integer"),
            (&[0x40, 3, b'a'], "the block ends within a string"),
            (&[0x40, 1, b'a'], "the block ends within an integer"),
            (&[0x40, 0x7f, 0xff, 0xff, 0xff, 0x7f], "the block ends within a string"),
            (&[0x00, 1, b'a', 0x81, 0x1e], "a string is not valid Huffman code"),
            (&[0x00, 1, b'a', 0x82, 0x1f, 0xff], "a string is not valid Huffman code"),
            (&[0x00, 1, b'a', 0x84, 0xff, 0xff, 0xff, 0xfc], "a string is not valid Huffman code"),
        ] {
            assert_eq!(decode_to_strings(&mut Decoder::default(), block), Err(HpackError(expected)), "{block:x?}");
        }
    }

    #[test]
    fn encoded_literals_are_decoded() {
        for length in [0, 1, 126, 127, 128, 254, 255, 256, 1_000, 16_000] {
            let mut block = Vec::new();
            put_literal(&mut block, "name", &vec![b'v'; length]);
            assert_eq!(decode_to_strings(&mut Decoder::default(), &block), to_fields(&[("name", &"v".repeat(length))]));
        }
    }
}
