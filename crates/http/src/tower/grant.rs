//! Charges that are refunded when dropped.

/// Refunds a charge when dropped, unless it was committed: a concurrency slot, or the turn of a
/// request that was abandoned while waiting.
pub(super) struct Taken<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Taken<F> {
    pub(super) fn new(give_back: F) -> Self {
        Self(Some(give_back))
    }
}

impl<F: FnOnce()> Drop for Taken<F> {
    fn drop(&mut self) {
        if let Some(give_back) = self.0.take() {
            give_back();
        }
    }
}

/// A [`Taken`] of any closure type.
pub(super) trait Grant: Send + Sync {
    /// Keeps the charge: dropping the grant then refunds nothing.
    fn commit(&mut self);
}

impl<F: FnOnce() + Send + Sync> Grant for Taken<F> {
    fn commit(&mut self) {
        self.0 = None;
    }
}
