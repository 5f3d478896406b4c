//! Counts the body bytes of unanswered calls on all connections. A call is unanswered while its body is incomplete, or
//! while the call waits for a shared store or is delayed.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::bounds::{MAX_TOTAL_BODY_BYTES, SMALL_BODY_BYTES};

/// The total size of all held bodies, in bytes.
#[derive(Debug, Default)]
pub struct HeldBodies {
    /// All accesses use relaxed ordering, because no other data depends on this count.
    total: AtomicUsize,
}

impl HeldBodies {
    /// Changes the number of bytes held by one connection from `before` to `after`. Returns false if the total exceeds
    /// [`MAX_TOTAL_BODY_BYTES`] and this connection holds more than [`SMALL_BODY_BYTES`].
    #[must_use]
    pub(super) fn update(&self, before: usize, after: usize) -> bool {
        self.total.fetch_add(after, Ordering::Relaxed);
        let total = self.total.fetch_sub(before, Ordering::Relaxed) - before;
        after <= SMALL_BODY_BYTES || total <= MAX_TOTAL_BODY_BYTES
    }

    /// Removes the bytes of a closed connection.
    pub(super) fn remove(&self, held: usize) {
        self.total.fetch_sub(held, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn above_the_maximum_only_large_connections_are_refused() {
        let bodies = HeldBodies::default();
        assert!(bodies.update(0, MAX_TOTAL_BODY_BYTES), "the whole budget");
        assert!(bodies.update(0, SMALL_BODY_BYTES));
        assert!(!bodies.update(0, SMALL_BODY_BYTES + 1));
        bodies.remove(SMALL_BODY_BYTES + 1);
        bodies.remove(SMALL_BODY_BYTES);
        assert!(bodies.update(MAX_TOTAL_BODY_BYTES, MAX_TOTAL_BODY_BYTES - 1));
        assert_eq!(bodies.total.load(Ordering::Relaxed), MAX_TOTAL_BODY_BYTES - 1);
    }
}
