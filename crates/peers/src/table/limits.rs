//! Limits in the form that nodes share, interned by id and by encoded form.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use tollgate_core::{Algorithm, Limits, Params, Phase};
use tollgate_share::tally::with_debt;

use super::Table;
use crate::wire::limits::{EncodedLimits, decode_limits, encode_limits};

/// Maximum number of limit sets in each map of the interner. When the maximum is reached, the map is cleared, and
/// limits are interned again when they are next used.
const MAX_LIMITS: usize = 1 << 16;

/// The limits of a rule, in the form that nodes share.
#[derive(Debug)]
pub struct SharedLimits {
    /// The limits as written in the rule.
    pub(crate) plain: Limits,
    /// The limits with a larger maximum debt, because several nodes may take the same tokens at the same time.
    pub(crate) with_debt: Limits,
    encoded: EncodedLimits,
    number: u32,
    min_urgent_amount: u64,
}

impl SharedLimits {
    /// Returns the encoded limits, as sent to other nodes.
    pub fn encoded(&self) -> &EncodedLimits {
        &self.encoded
    }

    /// Returns the number that identifies these limits in this node's deltas.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the limits as written in the rule.
    pub fn limits(&self) -> &Limits {
        &self.plain
    }

    /// Returns the minimum unsent amount for which a delta is sent immediately: a sixteenth of the capacity.
    pub(crate) fn min_urgent_amount(&self) -> u64 {
        self.min_urgent_amount
    }

    pub(crate) fn is_same(self: &Arc<Self>, other: &Arc<Self>) -> bool {
        Arc::ptr_eq(self, other) || self.encoded == other.encoded
    }
}

/// Checks whether nodes can share these limits.
///
/// # Errors
/// Fails if nodes cannot share an algorithm. The error names the algorithm and an alternative.
pub fn check_limits(limits: &Limits) -> Result<(), String> {
    for limit in limits.as_slice() {
        let (what, instead) = match limit.params() {
            Params::FixedWindow { phase: Phase::Given(_), .. } => ("a calendar window", "a window of a fixed length"),
            Params::TokenBucket(_)
            | Params::FixedWindow { .. }
            | Params::SlidingWindow(_)
            | Params::SlidingSlices { .. } => continue,
            Params::SlidingLog { .. } => ("sliding_log", "sliding_slices"),
            Params::Concurrency { .. } => ("concurrency", "a store on Redis"),
            Params::LeakyBucket { .. } => ("leaky_bucket", "token_bucket"),
            Params::IntervalBucket { .. } => ("interval_bucket", "token_bucket"),
            Params::Unlimited | Params::DenyAll => ("an unlimited or deny-all limit", "no limit"),
        };
        return Err(format!("{what} cannot be shared by peers; use {instead}"));
    }
    Ok(())
}

/// All limits in use on this node.
#[derive(Debug, Default)]
pub(super) struct Interner {
    /// Limits by the engine's id, for the fast path.
    by_id: RwLock<HashMap<u32, Arc<SharedLimits>>>,
    by_encoded: Mutex<HashMap<EncodedLimits, Arc<SharedLimits>>>,
    next: AtomicU32,
}

impl Interner {
    pub(super) fn intern_by_id(&self, id: u32, limits: &Limits) -> Result<Arc<SharedLimits>, String> {
        if let Some(found) = self.by_id.read().unwrap_or_else(PoisonError::into_inner).get(&id) {
            return Ok(found.clone());
        }
        check_limits(limits)?;
        let interned = self.intern_encoded(&encode_limits(limits))?;
        let mut by_id = self.by_id.write().unwrap_or_else(PoisonError::into_inner);
        if by_id.len() >= MAX_LIMITS {
            by_id.clear();
        }
        by_id.insert(id, interned.clone());
        Ok(interned)
    }

    /// Returns the limits with this encoded form.
    pub(super) fn intern_encoded(&self, encoded: &EncodedLimits) -> Result<Arc<SharedLimits>, String> {
        let mut by_encoded = self.by_encoded.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = by_encoded.get(encoded) {
            return Ok(found.clone());
        }
        let plain = decode_limits(encoded).map_err(|error| error.to_string())?;
        check_limits(&plain)?;
        // A limit that takes centuries to refill gets no additional debt.
        let with_debt = with_debt(&plain).unwrap_or_else(|| plain.clone());
        let min_urgent_amount = plain.capacity().div_ceil(16);
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let interned = Arc::new(SharedLimits { plain, with_debt, encoded: encoded.clone(), number, min_urgent_amount });
        if by_encoded.len() >= MAX_LIMITS {
            by_encoded.clear();
        }
        by_encoded.insert(encoded.clone(), interned.clone());
        Ok(interned)
    }
}

/// The limits that a peer used last, by their encoded form. A hit saves the lock and the hash of
/// [`Interner::intern_encoded`].
#[derive(Debug, Default)]
pub(crate) struct LimitsCache {
    slots: [Option<Arc<SharedLimits>>; LimitsCache::SLOTS],
}

impl LimitsCache {
    /// Number of limit sets in a cache. Limits whose hashes select the same slot replace each other.
    const SLOTS: usize = 32;

    /// Returns the limits with this encoded form, or `None` if nodes cannot share them.
    pub(crate) fn get(&mut self, table: &Table, encoded: &[u8]) -> Option<&Arc<SharedLimits>> {
        let hash =
            encoded.iter().fold(0u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        let slot = &mut self.slots[(hash >> 32) as usize % Self::SLOTS];
        if slot.as_ref().is_none_or(|limits| limits.encoded()[..] != *encoded) {
            *slot = Some(table.intern_encoded_limits(&encoded.into()).ok()?);
        }
        slot.as_ref()
    }
}
