//! Decisions whose buffers are pooled by thread.

use std::cell::RefCell;
use std::ops::{Deref, DerefMut};

use crate::decision::Decisions;

/// How many decisions a thread keeps in its pool.
const SPARE: usize = 16;

/// The largest that is kept, so that a huge batch does not keep its memory permanently.
const SPARE_BYTES: usize = 256 * 1024;

thread_local! {
    #[allow(clippy::vec_box, reason = "a kilobyte would be moved out of the pool, into a future and back for each request")]
    static SPARES: RefCell<Vec<Box<Decisions>>> = const { RefCell::new(Vec::new()) };
}

/// [`Decisions`] from the pool of the thread, to which they return when dropped: once their buffers have grown, deciding allocates
/// nothing. For servers that decide many requests on few threads.
#[derive(Debug)]
pub struct PooledDecisions(Option<Box<Decisions>>);

/// [`PooledDecisions`] are empty only while they are dropped.
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
        // The pool of a thread that ends may be gone.
        let _ = SPARES.try_with(|spares| {
            let mut spares = spares.borrow_mut();
            if spares.len() < SPARE && decisions.bytes() <= SPARE_BYTES {
                spares.push(decisions);
            }
        });
    }
}
