// Properties that hold for any bytes parsed as rules. Included by the fuzz target, by the test that replays its
// corpus, and by the property tests, which generate texts that are almost valid.

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tollgate_engine::rules::{Expression, LimitText, Mistakes, Rules, Source};
use tollgate_engine::{Attribute, Decisions, Engine, Item, MemoryStore, Request};

/// Checks that parsing returns either rules that can be loaded and used, or mistakes with positions in the text.
pub fn check(text: &[u8]) {
    match Rules::read(&[Source { name: "f", text }]) {
        Ok(rules) => check_loaded_rules(&rules, text),
        Err(mistakes) => check_mistakes(&mistakes, text),
    }
    if let Ok(limit) = str::from_utf8(text) {
        // Parse the same bytes as an expression. Most inputs are not valid expressions.
        if let Err(problem) = Expression::new(limit) {
            assert!(problem.len() < MAX_MESSAGE_BYTES, "message too long: {problem}");
        }
        // Parse the same bytes as an inline limit. Most inputs are not valid limits.
        for algorithm in [None, Some("fixed_window"), Some("concurrency")] {
            if let Err(mistake) = (LimitText { limit, burst: None, algorithm }).read() {
                assert!(mistake.to_string().len() < MAX_MESSAGE_BYTES, "message too long: {mistake}");
            }
        }
    }
}

/// Maximum length of a message. A longer message is unreadable.
const MAX_MESSAGE_BYTES: usize = 2_000;

fn check_loaded_rules(rules: &Rules, text: &[u8]) {
    let memory = || MemoryStore::new(1).expect("a tiny table");
    let engine = Engine::with_fallback(memory(), memory());
    assert_eq!(engine.put(rules), Ok(1));
    // Words of the text itself serve as values, so that some conditions match and others do not.
    let words: Vec<&[u8]> = text.split(|byte| !byte.is_ascii_graphic()).filter(|word| !word.is_empty()).collect();
    let names = rules.domains().iter().flat_map(|domain| domain.rules()).flat_map(|rule| rule.per());
    let names = names.map(|counted| counted.text.as_bytes()).chain([&b"path"[..], b"method"]);
    let values = words.iter().copied().cycle().chain([&b"/"[..]]);
    let attributes: Vec<Attribute<'_>> =
        names.zip(values).take(8).map(|(name, value)| Attribute { name, value }).collect();
    let items = [Item::new(&attributes).cost(1)];
    let mut decisions = Decisions::default();
    for domain in rules.domains() {
        let request = Request::new(domain.name(), &items);
        let peeked = poll_once(engine.peek(&request, &mut decisions)).map(|decision| decision.is_admitted());
        let checked = poll_once(engine.check(&request, &mut decisions)).map(|decision| decision.is_admitted());
        assert_eq!(peeked, checked, "no decision in between changed the state");
    }
}

fn check_mistakes(mistakes: &Mistakes, text: &[u8]) {
    let lines = 1 + text.iter().filter(|byte| **byte == b'\n' || **byte == b'\r').count() as u32;
    assert!(!mistakes.as_slice().is_empty() && mistakes.as_slice().len() <= Mistakes::MAX);
    for mistake in mistakes.as_slice() {
        assert!((1..=lines + 1).contains(&mistake.position.line) && mistake.position.column >= 1, "{mistake}");
        assert!(mistake.to_string().len() < MAX_MESSAGE_BYTES, "message too long: {mistake}");
    }
}

/// Runs a future of the memory store, which is always ready.
fn poll_once<T>(future: impl Future<Output = T>) -> T {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("the future is not ready"),
    }
}
