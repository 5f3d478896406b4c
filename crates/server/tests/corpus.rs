//! Checks the inputs that fuzzing found (see `fuzz/`).

#[path = "fuzzed/form.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod form;

#[path = "fuzzed/hpack.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod hpack;

#[path = "fuzzed/http1.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
pub(crate) mod http1;

#[path = "fuzzed/http2.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod http2;

#[path = "fuzzed/log.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod log;

#[path = "fuzzed/resp.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod resp;

#[path = "fuzzed/rls.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod rls;

#[path = "fuzzed/xds.rs"]
#[allow(unreachable_pub, reason = "the fuzz target includes it too")]
mod xds;

/// Passes every input of a corpus to `check`.
fn replay(name: &str, check: impl Fn(&[u8])) {
    let folder = format!("{}/../../fuzz/corpus/{name}", env!("CARGO_MANIFEST_DIR"));
    let mut count = 0;
    for file in std::fs::read_dir(folder).expect("the corpus is part of the repository") {
        check(&std::fs::read(file.expect("a file").path()).expect("a readable file"));
        count += 1;
    }
    assert!(count >= 10, "only {count} inputs in the corpus");
}

#[test]
fn rls_corpus_is_decoded_within_the_limits_or_refused() {
    replay("rls", rls::check);
}

#[test]
fn corpus_inputs_parse_the_same_for_every_split() {
    replay("resp", resp::check);
}

#[test]
fn http_corpus_gets_the_responses_of_the_slow_path() {
    replay("http1", http1::check);
}

#[test]
fn http2_corpus_gets_the_same_reaction_for_every_split() {
    replay("http2", http2::check);
}

#[test]
fn corpus_of_an_xds_server_is_decoded_or_refused() {
    replay("xds", xds::check);
}

#[test]
fn corpus_of_header_blocks_is_decoded_or_refused() {
    replay("hpack", hpack::check);
}

#[test]
fn forms_of_the_corpus_are_split_at_their_boundaries() {
    replay("form", form::check);
}

#[test]
fn every_log_of_the_corpus_is_replayed() {
    replay("log", log::check);
}
