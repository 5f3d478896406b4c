//! A per-thread cache of inline limits. Callers send the same few limits repeatedly, and parsing a limit takes longer
//! than deciding a request.

use std::cell::RefCell;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use tollgate_engine::rules::LimitText;
use tollgate_engine::{Engine, InternedLimits, Store};

use super::error::OpError;

/// Number of cached limits per thread.
const CACHE_SLOTS: usize = 256;

/// Maximum length of a cached limit text, in bytes. A longer text is parsed on every call.
const MAX_CACHED_TEXT_BYTES: usize = 64;

struct CachedLimit {
    limit: Box<str>,
    burst: Option<u64>,
    algorithm: Option<Box<str>>,
    limits: Arc<InternedLimits>,
}

struct LimitCache {
    /// Randomly seeded, so that a caller cannot choose limits that share the slot of another caller's limit.
    hasher: RandomState,
    slots: Vec<Option<CachedLimit>>,
}

thread_local! {
    static LIMIT_CACHE: RefCell<LimitCache> =
        RefCell::new(LimitCache { hasher: RandomState::new(), slots: (0..CACHE_SLOTS).map(|_| None).collect() });
}

/// Returns the limit that `text` describes, from this thread's cache or from the engine.
///
/// # Errors
/// Returns an error if the text is not a valid limit, or if the engine cannot store another limit.
pub fn resolve_limit<S: Store>(engine: &Engine<S>, text: &LimitText<'_>) -> Result<Arc<InternedLimits>, OpError> {
    LIMIT_CACHE.with_borrow_mut(|cache| {
        let slot = cache.hasher.hash_one(text) as usize % CACHE_SLOTS;
        if let Some(known) = cache.slots[slot].as_ref().filter(|known| known.matches(text)) {
            return Ok(known.limits.clone());
        }
        let limits = text.read().map_err(|mistake| OpError::invalid(mistake.word, mistake.to_string()))?;
        let limits = Arc::new(engine.intern_limits(&limits)?);
        if text.limit.len() <= MAX_CACHED_TEXT_BYTES {
            cache.slots[slot] = Some(CachedLimit {
                limit: text.limit.into(),
                burst: text.burst,
                algorithm: text.algorithm.map(Into::into),
                limits: limits.clone(),
            });
        }
        Ok(limits)
    })
}

impl CachedLimit {
    fn matches(&self, text: &LimitText<'_>) -> bool {
        *self.limit == *text.limit && self.burst == text.burst && self.algorithm.as_deref() == text.algorithm
    }
}
