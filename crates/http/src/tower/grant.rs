//! What a decision took, with a way to return it.

/// Returns what a decision took when it is dropped, unless it was committed: a slot in flight, or
/// the turn of a request that was abandoned while waiting.
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

/// A [`Taken`] of any type.
pub(super) trait Grant: Send + Sync {
    /// Keeps what was taken: dropping the grant does not return it.
    fn commit(&mut self);
}

impl<F: FnOnce() + Send + Sync> Grant for Taken<F> {
    fn commit(&mut self) {
        self.0 = None;
    }
}
