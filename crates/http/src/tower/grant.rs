//! Charges that are refunded when dropped.

/// Refunds a charge when dropped, unless it was committed: a concurrency slot, or the turn of a
/// request that was abandoned while waiting.
pub(super) struct RefundOnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> RefundOnDrop<F> {
    pub(super) fn new(give_back: F) -> Self {
        Self(Some(give_back))
    }
}

impl<F: FnOnce()> Drop for RefundOnDrop<F> {
    fn drop(&mut self) {
        if let Some(give_back) = self.0.take() {
            give_back();
        }
    }
}

/// A [`RefundOnDrop`] of any closure type.
pub(super) trait Grant: Send + Sync {
    /// Keeps the charge: dropping the grant then refunds nothing.
    fn commit(&mut self);
}

impl<F: FnOnce() + Send + Sync> Grant for RefundOnDrop<F> {
    fn commit(&mut self) {
        self.0 = None;
    }
}
