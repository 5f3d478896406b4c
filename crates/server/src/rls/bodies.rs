//! The bytes of bodies that all connections hold: calls that are not complete, or wait for a shared
//! store or their delay.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::bounds::{MAX_BODIES, SMALL_BODIES};

/// The bytes of bodies that all connections hold.
#[derive(Debug, Default)]
pub struct HeldBodies {
    /// Relaxed: a count, which orders nothing else.
    total: AtomicUsize,
}

impl HeldBodies {
    /// Replaces what a connection holds. Returns false if all together hold too much and this
    /// connection is among the large.
    #[must_use]
    pub(super) fn replace(&self, before: usize, after: usize) -> bool {
        self.total.fetch_add(after, Ordering::Relaxed);
        let total = self.total.fetch_sub(before, Ordering::Relaxed) - before;
        after <= SMALL_BODIES || total <= MAX_BODIES
    }

    /// Removes what a connection holds.
    pub(super) fn remove(&self, held: usize) {
        self.total.fetch_sub(held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_connections_are_refused_beyond_the_budget_and_small_ones_are_not() {
        let bodies = HeldBodies::default();
        assert!(bodies.replace(0, MAX_BODIES), "the whole budget");
        assert!(bodies.replace(0, SMALL_BODIES));
        assert!(!bodies.replace(0, SMALL_BODIES + 1));
        bodies.remove(SMALL_BODIES + 1);
        bodies.remove(SMALL_BODIES);
        assert!(bodies.replace(MAX_BODIES, MAX_BODIES - 1));
        assert_eq!(bodies.total.load(Ordering::Relaxed), MAX_BODIES - 1);
    }
}
