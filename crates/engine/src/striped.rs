//! Counters that many threads increment without contention.
//!
//! With a single shared counter, every increment would move its cache line between cores. Therefore, each counter is
//! spread over several stripes, each in cache lines of its own. A thread always adds to the same stripe, and a read
//! sums all stripes. The counters do not synchronise other memory, so every access is relaxed.

use std::array;
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// `N` counters, each spread over `STRIPES` stripes.
#[derive(Debug)]
pub struct Striped<const N: usize, const STRIPES: usize = 4> {
    stripes: [StripeCounts<N>; STRIPES],
}

#[derive(Debug)]
#[repr(align(64))]
struct StripeCounts<const N: usize> {
    counts: [AtomicU64; N],
}

impl<const N: usize, const STRIPES: usize> Default for Striped<N, STRIPES> {
    fn default() -> Self {
        Self { stripes: array::from_fn(|_| StripeCounts { counts: array::from_fn(|_| AtomicU64::new(0)) }) }
    }
}

impl<const N: usize, const STRIPES: usize> Striped<N, STRIPES> {
    /// Adds `amount` to the counter with index `counter`.
    ///
    /// # Panics
    /// If `counter` is `N` or more.
    #[inline]
    pub fn add(&self, stripe: Stripe, counter: usize, amount: u64) {
        self.stripes[stripe.0 % STRIPES].counts[counter].fetch_add(amount, Ordering::Relaxed);
    }

    /// Returns the value of the counter with index `counter`, summed over all stripes.
    ///
    /// # Panics
    /// If `counter` is `N` or more.
    pub fn sum(&self, counter: usize) -> u64 {
        self.stripes.iter().fold(0, |sum, line| sum.wrapping_add(line.counts[counter].load(Ordering::Relaxed)))
    }

    /// Loads a counter of a stripe into the cache without waiting.
    #[inline]
    pub(crate) fn prefetch(&self, stripe: Stripe, counter: usize) {
        black_box(self.stripes[stripe.0 % STRIPES].counts[counter].load(Ordering::Relaxed));
    }
}

/// The stripe that a thread adds to.
#[derive(Clone, Copy, Debug)]
pub struct Stripe(usize);

impl Stripe {
    /// Returns the stripe of the calling thread. Stripes are assigned to threads in turn.
    #[inline]
    pub fn of_thread() -> Self {
        static NEXT_STRIPE: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static THREAD_STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
        }
        THREAD_STRIPE.with(|stripe| {
            if stripe.get() == usize::MAX {
                stripe.set(NEXT_STRIPE.fetch_add(1, Ordering::Relaxed) & (usize::MAX >> 1));
            }
            Self(stripe.get())
        })
    }
}
