//! A per-thread pool of decision buffers.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use crate::decision::Decisions;

/// Maximum number of [`Decisions`] buffers in a thread's pool.
const MAX_POOLED: usize = 16;

/// Maximum size of a pooled buffer. Larger buffers are freed, so that a huge batch does not hold memory permanently.
const MAX_POOLED_BYTES: usize = 256 * 1024;

thread_local! {
    #[allow(clippy::vec_box, reason = "a large value (1 KiB) would be moved into a future and back for each request")]
    static POOL: RefCell<Vec<Box<Decisions>>> = const { RefCell::new(Vec::new()) };
}

/// [`Decisions`] borrowed from the thread's pool and returned on drop. Once the buffers have grown, deciding allocates
/// nothing. Meant for servers that decide many requests on few threads.
#[derive(Debug)]
pub struct PooledDecisions(Option<Box<Decisions>>);

/// Panic message. [`PooledDecisions`] contain a buffer until `drop` takes it.
const BUFFER_PRESENT_MESSAGE: &str = "the buffer is present until drop";

impl Default for PooledDecisions {
    fn default() -> Self {
        Self(Some(Box::default()))
    }
}

impl PooledDecisions {
    /// Takes a buffer from the pool, or creates one if the pool is empty.
    pub fn take() -> Self {
        Self(Some(POOL.with_borrow_mut(Vec::pop).unwrap_or_default()))
    }
}

impl Deref for PooledDecisions {
    type Target = Decisions;

    fn deref(&self) -> &Decisions {
        self.0.as_deref().expect(BUFFER_PRESENT_MESSAGE)
    }
}

impl DerefMut for PooledDecisions {
    fn deref_mut(&mut self) -> &mut Decisions {
        self.0.as_deref_mut().expect(BUFFER_PRESENT_MESSAGE)
    }
}

impl Drop for PooledDecisions {
    fn drop(&mut self) {
        let Some(decisions) = self.0.take() else { return };
        // The pool may already be destroyed if the thread is exiting.
        let _ = POOL.try_with(|pool| {
            let mut pool = pool.borrow_mut();
            if pool.len() < MAX_POOLED && decisions.buffer_bytes() <= MAX_POOLED_BYTES {
                pool.push(decisions);
            }
        });
    }
}
