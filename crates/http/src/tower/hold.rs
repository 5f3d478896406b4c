//! What a decision took, and gives back unless it is kept.

use std::sync::Arc;

use tollgate::clock::Clock;
use tollgate::{Algorithm, Keyed, Verdict};

/// Given back when dropped: a place among those in flight, or the turn of somebody who stopped waiting for it.
pub(super) struct Taken<A: Algorithm, C: Clock> {
    keyed: Arc<Keyed<A, C>>,
    key: Box<[u8]>,
    verdict: Option<Verdict<A::Stamp>>,
}

impl<A: Algorithm, C: Clock> Taken<A, C> {
    pub(super) fn new(keyed: &Arc<Keyed<A, C>>, key: &[u8], verdict: Verdict<A::Stamp>) -> Self {
        Self { keyed: keyed.clone(), key: key.into(), verdict: Some(verdict) }
    }
}

impl<A: Algorithm, C: Clock> Drop for Taken<A, C> {
    fn drop(&mut self) {
        if let Some(verdict) = &self.verdict {
            self.keyed.refund(&self.key, verdict);
        }
    }
}

/// Something that is given back unless it is kept.
pub(super) trait Pledge: Send + Sync {
    /// From now on it stays taken.
    fn keep(&mut self);
}

impl<A, C> Pledge for Taken<A, C>
where
    A: Algorithm + Send + Sync,
    A::Stamp: Send + Sync,
    C: Clock + Send + Sync,
{
    fn keep(&mut self) {
        self.verdict = None;
    }
}
