//! Buffers of decisions that are used again.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use crate::decision::Decisions;

/// Decisions a thread keeps while nobody needs them.
const SPARE: usize = 16;

/// The largest that is kept: a huge batch must not hold on to its memory for good.
const SPARE_BYTES: usize = 256 * 1024;

thread_local! {
    static SPARES: RefCell<Vec<Decisions>> = const { RefCell::new(Vec::new()) };
}

/// [`Decisions`] lent by the thread and given back on dropping: once they have grown, deciding allocates nothing. For whoever
/// serves many requests on few threads and has nowhere to keep buffers of its own.
#[derive(Debug, Default)]
pub struct Lent(Decisions);

impl Lent {
    /// Buffers to use.
    pub fn take() -> Self {
        Self(SPARES.with_borrow_mut(Vec::pop).unwrap_or_default())
    }
}

impl Deref for Lent {
    type Target = Decisions;

    fn deref(&self) -> &Decisions {
        &self.0
    }
}

impl DerefMut for Lent {
    fn deref_mut(&mut self) -> &mut Decisions {
        &mut self.0
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let decisions = std::mem::take(&mut self.0);
        // A thread that ends has nobody left to lend them to.
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARE && decisions.bytes() <= SPARE_BYTES {
                spares.push(decisions);
            }
        });
    }
}
