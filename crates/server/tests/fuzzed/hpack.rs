// Properties that hold for any header block. Shared by the fuzz target and the corpus test.

use tollgate_server::rls::http2::hpack::{Decoder, put_literal};
use tollgate_server::rls::http2::huffman;

/// Checks that a block is decoded or refused, and that two decoders with the same history give the same result. Also
/// checks that strings round-trip, and that a decoded Huffman string is no longer than the shortest code allows.
pub fn check(input: &[u8]) {
    let (mut decoders, past) = ([Decoder::default(), Decoder::default()], &input[..input.len() / 2]);
    let [first, second] = decoders.each_mut().map(|decoder| {
        let mut fields = Vec::new();
        let outcome = decoder.decode(past, |_| {}).and_then(|()| {
            decoder.decode(input, |field| fields.push((field.kind, field.name.to_vec(), field.value.to_vec())))
        });
        (outcome, fields)
    });
    assert_eq!(first, second);
    let mut block = Vec::new();
    put_literal(&mut block, "name", input);
    let mut read = None;
    Decoder::default().decode(&block, |field| read = Some(field.value.to_vec())).expect("a literal");
    assert_eq!(read.as_deref(), Some(input));
    let mut out = Vec::new();
    if huffman::decode(input, &mut out) {
        assert!(out.len() <= input.len() * 8 / 5, "no code is shorter than five bits");
    }
}
