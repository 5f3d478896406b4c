//! This node's shares of limits, for decisions while the store does not answer. Each share has an id.
//!
//! The arithmetic is in [`tollgate_share::shares`].

use std::sync::{Arc, Mutex, PoisonError};

use arc_swap::ArcSwap;
use tollgate::Limits;
use tollgate_share::shares::share_of_node;

use crate::inline::{InternedLimits, Interner, LimitsById};

/// All shares used so far, with their ids.
#[derive(Debug)]
pub(super) struct Shares {
    interner: Interner,
    limits_by_id: ArcSwap<LimitsById>,
    /// Held while a share is added, so that the share is added to the current table.
    adding: Mutex<()>,
}

impl Shares {
    pub(super) fn new() -> Self {
        Self {
            interner: Interner::default(),
            limits_by_id: ArcSwap::from_pointee(LimitsById::new()),
            adding: Mutex::new(()),
        }
    }

    /// Returns one node's share of `limits` in a fleet of `nodes` nodes.
    pub(super) fn share_of_node(&self, limits: &Limits, nodes: u32) -> InternedLimits {
        let share = share_of_node(limits, nodes);
        if let Some(known) = self.interner.find(&share) {
            return known;
        }
        let _adding = self.adding.lock().unwrap_or_else(PoisonError::into_inner);
        let (known, limits_by_id) = self.interner.add(&share, &self.limits_by_id.load());
        if let Some(limits_by_id) = limits_by_id {
            self.limits_by_id.store(Arc::new(limits_by_id));
        }
        known
    }

    /// Returns the limits of all shares by id.
    pub(super) fn limits_by_id(&self) -> Arc<LimitsById> {
        self.limits_by_id.load_full()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::LimitText;

    #[test]
    fn equal_shares_have_one_id() {
        let shares = Shares::new();
        let limits = LimitText { limit: "10/s", burst: None, algorithm: None }.read().unwrap();
        let (first, again) = (shares.share_of_node(&limits, 2), shares.share_of_node(&limits, 2));
        assert_eq!(first.entry().id, again.entry().id);
        assert_ne!(first.entry().id, shares.share_of_node(&limits, 3).entry().id);
    }
}
