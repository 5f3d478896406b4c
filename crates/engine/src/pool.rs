//! A per-thread pool of decision buffers.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use crate::decision::Decisions;

/// Maximum number of decisions in a thread's pool.
const SPARE: usize = 16;

/// Maximum size of pooled decisions. Larger buffers are freed, so that a huge batch does not hold memory permanently.
const SPARE_BYTES: usize = 256 * 1024;

thread_local! {
    #[allow(clippy::vec_box, reason = "a large value (1 KiB) would be moved into a future and back for each request")]
    static SPARES: RefCell<Vec<Box<Decisions>>> = const { RefCell::new(Vec::new()) };
}

/// [`Decisions`] borrowed from the thread's pool and returned on drop. Once the buffers have grown, deciding allocates
/// nothing. For servers that decide many requests on few threads.
#[derive(Debug)]
pub struct PooledDecisions(Option<Box<Decisions>>);

/// Panic message: [`PooledDecisions`] are empty only during `drop`.
const HELD: &str = "decisions are held until they are dropped";

impl Default for PooledDecisions {
    fn default() -> Self {
        Self(Some(Box::default()))
    }
}

impl PooledDecisions {
    /// Takes decisions from the pool.
    pub fn take() -> Self {
        Self(Some(SPARES.with_borrow_mut(Vec::pop).unwrap_or_default()))
    }
}

impl Deref for PooledDecisions {
    type Target = Decisions;

    fn deref(&self) -> &Decisions {
        self.0.as_deref().expect(HELD)
    }
}

impl DerefMut for PooledDecisions {
    fn deref_mut(&mut self) -> &mut Decisions {
        self.0.as_deref_mut().expect(HELD)
    }
}

impl Drop for PooledDecisions {
    fn drop(&mut self) {
        let Some(decisions) = self.0.take() else { return };
        // The pool may already be destroyed if the thread is exiting.
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARE && decisions.bytes() <= SPARE_BYTES {
                spares.push(decisions);
            }
        });
    }
}
