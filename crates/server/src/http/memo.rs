//! Limits seen lately. Callers who send a limit along send the same few over and over; reading one costs more than deciding.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use tollgate_engine::rules::LimitText;
use tollgate_engine::{Engine, SentLimits, Store};

use super::decide::refused;
use super::problem::Problem;

/// How many each thread remembers.
const SLOTS: usize = 256;

/// The longest text that is remembered; what is longer is no limit anyway.
const MAX_TEXT: usize = 64;

struct Known {
    limit: Box<str>,
    burst: Option<u64>,
    algorithm: Option<Box<str>>,
    limits: Arc<SentLimits>,
}

struct Memo {
    // Keyed by chance, so that nobody can make up limits that push out somebody else's.
    hasher: RandomState,
    slots: Vec<Option<Known>>,
}

thread_local! {
    static MEMO: RefCell<Memo> =
        RefCell::new(Memo { hasher: RandomState::new(), slots: (0..SLOTS).map(|_| None).collect() });
}

/// The limit that a text says, from the memory of this thread or from the engine.
///
/// # Errors
/// What is wrong with it, and where in the body.
pub(super) fn limits<S: Store>(
    engine: &Engine<S>,
    text: &LimitText<'_>,
    pointer: &str,
) -> Result<Arc<SentLimits>, Problem> {
    MEMO.with_borrow_mut(|memo| {
        let slot = memo.hasher.hash_one(text) as usize % SLOTS;
        if let Some(known) = memo.slots[slot].as_ref().filter(|known| known.is(text)) {
            return Ok(known.limits.clone());
        }
        let limits = text
            .read()
            .map_err(|mistake| Problem::bad_request(mistake.to_string()).at(format!("{pointer}/{}", mistake.word)))?;
        let limits = Arc::new(engine.limits(&limits).map_err(|error| refused(&error, pointer))?);
        if text.limit.len() <= MAX_TEXT {
            memo.slots[slot] = Some(Known {
                limit: text.limit.into(),
                burst: text.burst,
                algorithm: text.algorithm.map(Into::into),
                limits: limits.clone(),
            });
        }
        Ok(limits)
    })
}

impl Known {
    fn is(&self, text: &LimitText<'_>) -> bool {
        *self.limit == *text.limit && self.burst == text.burst && self.algorithm.as_deref() == text.algorithm
    }
}
