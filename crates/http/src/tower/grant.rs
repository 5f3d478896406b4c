//! Charges that are refunded when dropped.

/// Refunds a charge when dropped, unless the charge was committed. Used for concurrency slots, and for requests that
/// are cancelled while they wait.
pub(super) struct RefundOnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> RefundOnDrop<F> {
    pub(super) fn new(refund: F) -> Self {
        Self(Some(refund))
    }
}

impl<F: FnOnce()> Drop for RefundOnDrop<F> {
    fn drop(&mut self) {
        if let Some(refund) = self.0.take() {
            refund();
        }
    }
}

/// A [`RefundOnDrop`] with its closure type erased.
pub(super) trait Grant: Send + Sync {
    /// Makes the charge permanent: dropping the grant then refunds nothing.
    fn commit(&mut self);
}

impl<F: FnOnce() + Send + Sync> Grant for RefundOnDrop<F> {
    fn commit(&mut self) {
        self.0 = None;
    }
}
