//! Encodings of limits, so that each set of limits is encoded once and not for every charge.

use std::collections::HashMap;
use std::sync::{Arc, PoisonError, RwLock};

use tollgate_engine::store::Charge;

use crate::params::EncodedLimits;

/// Maximum number of cached encodings. When the cache is full, it is cleared.
const MAX_ENCODED: usize = 1 << 15;

/// Encoded limits by limits id. The map is read for every charge and written once per set of
/// limits.
#[derive(Default)]
pub(crate) struct EncodedLimitsCache(RwLock<HashMap<u32, Arc<EncodedLimits>>>);

impl EncodedLimitsCache {
    /// Returns the encoded limits of a charge, and encodes the limits if they are not in the cache.
    pub(crate) fn get(&self, charge: &Charge<'_>) -> Result<Arc<EncodedLimits>, String> {
        let known = self.0.read().unwrap_or_else(PoisonError::into_inner).get(&charge.limits_id).cloned();
        // Compares the limits too, because ids wrap around after four billion limits.
        if let Some(encoded) = known.filter(|encoded| encoded.limits() == charge.limits) {
            return Ok(encoded);
        }
        let encoded = Arc::new(EncodedLimits::new(charge.limits)?);
        let mut all = self.0.write().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MAX_ENCODED {
            all.clear();
        }
        all.insert(charge.limits_id, encoded.clone());
        Ok(encoded)
    }
}
