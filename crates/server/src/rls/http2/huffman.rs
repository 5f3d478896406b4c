//! The Huffman code of header strings (RFC 7541, section 5.2 and appendix B).
//!
//! The code is canonical: sorted by length and then by symbol, the codes are consecutive numbers, shifted left whenever
//! the length increases. So the code lengths define the whole code. The decoder compares the next 32 bits with the end
//! of each length's code range. Codes of at most eight bits, which cover the common characters, need only one table
//! lookup.

/// Code length of each byte value and of the end-of-string symbol, which must not occur in a string.
const CODE_LENGTHS: [u8; 257] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28,
    28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12,
    10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6, 15, 5, 6,
    5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22,
    22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20,
    22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28,
    27, 27, 27, 20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28,
    27, 27, 27, 27, 27, 26, 30,
];

const END_OF_STRING: u16 = 256;
const MAX_CODE_LENGTH: usize = 30;
/// Maximum length in bits of the codes that are decoded with one table lookup.
const SHORT_CODE_BITS: usize = 8;

struct HuffmanCode {
    /// The symbols, sorted by code length, then by value.
    symbols: [u16; 257],
    /// For each code length: the first code (left-aligned in 32 bits), the index of its symbol, and the exclusive end
    /// of the code range.
    lengths: [(u32, u16, u64); MAX_CODE_LENGTH + 1],
    /// For each value of the next eight bits: the symbol and length of the code at their start. The length is 0 if the
    /// code has more than eight bits.
    short: [(u8, u8); 1 << SHORT_CODE_BITS],
}

const HUFFMAN_CODE: HuffmanCode = build_huffman_code();

const fn build_huffman_code() -> HuffmanCode {
    let mut code = HuffmanCode {
        symbols: [0; 257],
        lengths: [(0, 0, 0); MAX_CODE_LENGTH + 1],
        short: [(0, 0); 1 << SHORT_CODE_BITS],
    };
    let (mut next, mut index, mut length) = (0_u64, 0, 1);
    while length <= MAX_CODE_LENGTH {
        let step = 1_u64 << (32 - length);
        let (first, first_index) = (next as u32, index as u16);
        let mut symbol = 0;
        while symbol < CODE_LENGTHS.len() {
            if CODE_LENGTHS[symbol] as usize == length {
                code.symbols[index] = symbol as u16;
                index += 1;
                if length <= SHORT_CODE_BITS {
                    let mut prefix = (next >> (32 - SHORT_CODE_BITS)) as usize;
                    let end = ((next + step) >> (32 - SHORT_CODE_BITS)) as usize;
                    while prefix < end {
                        code.short[prefix] = (symbol as u8, length as u8);
                        prefix += 1;
                    }
                }
                next += step;
            }
            symbol += 1;
        }
        code.lengths[length] = (first, first_index, next);
        length += 1;
    }
    code
}

/// Returns the symbol and the length of the code at the start of `bits`.
#[inline]
fn find_symbol(bits: u32) -> (u16, u32) {
    let (symbol, length) = HUFFMAN_CODE.short[(bits >> (32 - SHORT_CODE_BITS)) as usize];
    if length > 0 {
        return (symbol.into(), length.into());
    }
    let mut length = SHORT_CODE_BITS + 1;
    // The loop ends because the code is complete: the code range of the maximum length ends at 2^32.
    while u64::from(bits) >= HUFFMAN_CODE.lengths[length].2 {
        length += 1;
    }
    let (first, index, _) = HUFFMAN_CODE.lengths[length];
    let symbol = HUFFMAN_CODE.symbols[usize::from(index) + ((bits - first) >> (32 - length)) as usize];
    (symbol, length as u32)
}

/// Decodes `input` and appends the string to `out`. Returns false if the input is invalid; the appended bytes are then
/// meaningless.
#[must_use]
pub fn decode(input: &[u8], out: &mut Vec<u8>) -> bool {
    // The pending bits, left-aligned, and their count.
    let (mut bits, mut count) = (0_u64, 0_u32);
    let mut input = input.iter();
    loop {
        while count <= 56 {
            let Some(byte) = input.next() else { break };
            bits |= u64::from(*byte) << (56 - count);
            count += 8;
        }
        let (symbol, length) = find_symbol((bits >> 32) as u32);
        if length > count {
            // The remaining bits must be padding: fewer than eight bits, all of them ones.
            return count < 8 && bits.leading_ones() == count;
        }
        if symbol == END_OF_STRING {
            return false;
        }
        out.push(symbol as u8);
        bits <<= length;
        count -= length;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_all(input: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode(input, &mut out).then_some(out)
    }

    /// Encodes a string bit by bit, as a reference for the decoder.
    fn encode(bytes: &[u8]) -> Vec<u8> {
        let code = |symbol: usize| {
            let length = usize::from(CODE_LENGTHS[symbol]);
            let (first, index, _) = HUFFMAN_CODE.lengths[length];
            let place = HUFFMAN_CODE.symbols.iter().position(|it| usize::from(*it) == symbol).expect("a symbol");
            ((first >> (32 - length)) + (place - usize::from(index)) as u32, length)
        };
        let mut bits: Vec<bool> = Vec::new();
        for byte in bytes {
            let (code, length) = code((*byte).into());
            bits.extend((0..length).rev().map(|bit| code >> bit & 1 == 1));
        }
        bits.resize(bits.len().next_multiple_of(8), true);
        bits.chunks(8).map(|byte| byte.iter().fold(0, |byte, bit| byte << 1 | u8::from(*bit))).collect()
    }

    #[test]
    fn huffman_code_is_complete() {
        assert_eq!(HUFFMAN_CODE.lengths[MAX_CODE_LENGTH].2, 1 << 32);
    }

    #[test]
    fn rfc_7541_example_strings_are_decoded() {
        for (encoded, text) in [
            ("f1e3c2e5f23a6ba0ab90f4ff", "www.example.com"),
            ("a8eb10649cbf", "no-cache"),
            ("25a849e95ba97d7f", "custom-key"),
            ("25a849e95bb8e8b4bf", "custom-value"),
            ("6402", "302"),
            ("d07abe941054d444a8200595040b8166e082a62d1bff", "Mon, 21 Oct 2013 20:13:21 GMT"),
            ("9d29ad171863c78f0b97c8e9ae82ae43d3", "https://www.example.com"),
        ] {
            assert_eq!(decode_all(&hex::decode(encoded).expect("hex")).as_deref(), Some(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn every_byte_is_decoded_at_every_bit_offset() {
        let bytes: Vec<u8> = (0..=255).flat_map(|byte: u8| [byte, byte.reverse_bits(), b'a']).collect();
        for start in 0..bytes.len() {
            let bytes = &bytes[start..bytes.len().min(start + 9)];
            assert_eq!(decode_all(&encode(bytes)).as_deref(), Some(bytes));
        }
    }

    #[test]
    fn invalid_padding_and_end_of_string_symbol_are_rejected() {
        assert_eq!(decode_all(b"").as_deref(), Some(&b""[..]));
        // `a` is 00011.
        assert_eq!(decode_all(&[0b0001_1111]).as_deref(), Some(&b"a"[..]));
        assert_eq!(decode_all(&[0b0001_1110]), None, "padding with a zero");
        assert_eq!(decode_all(&[0b0001_1111, 0xff]), None, "padding of more than seven bits");
        assert_eq!(decode_all(&[0xff]), None, "a byte of padding");
        assert_eq!(decode_all(&[0xff, 0xff, 0xff, 0xfc]), None, "the end of the string");
        assert_eq!(decode_all(&[0xff, 0xff, 0xff, 0xff]), None, "the end of the string with padding");
    }
}
