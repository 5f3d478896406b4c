//! Counters that all threads add to without contention.
//!
//! A counter that all cores add to would be passed between their caches with every addition. So its count is spread
//! over several stripes, each in its own cache line. A thread always adds to the same stripe, and reading adds them up.
//! The counts order nothing and publish nothing, so every access is relaxed.

use std::array;
use std::cell::Cell;
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// `N` counters, each spread over `STRIPES` stripes.
#[derive(Debug)]
pub struct Striped<const N: usize, const STRIPES: usize = 4> {
    stripes: [CacheLine<N>; STRIPES],
}

#[derive(Debug)]
#[repr(align(64))]
struct CacheLine<const N: usize> {
    counts: [AtomicU64; N],
}

impl<const N: usize, const STRIPES: usize> Default for Striped<N, STRIPES> {
    fn default() -> Self {
        Self { stripes: array::from_fn(|_| CacheLine { counts: array::from_fn(|_| AtomicU64::new(0)) }) }
    }
}

impl<const N: usize, const STRIPES: usize> Striped<N, STRIPES> {
    /// Adds to the counter at `counter`.
    ///
    /// # Panics
    /// When there is no such counter.
    #[inline]
    pub fn add(&self, stripe: Stripe, counter: usize, amount: u64) {
        self.stripes[stripe.0 % STRIPES].counts[counter].fetch_add(amount, Ordering::Relaxed);
    }

    /// Returns the count of the counter at `counter`.
    ///
    /// # Panics
    /// When there is no such counter.
    pub fn sum(&self, counter: usize) -> u64 {
        self.stripes.iter().fold(0, |sum, line| sum.wrapping_add(line.counts[counter].load(Ordering::Relaxed)))
    }

    /// Loads a stripe into the cache, without waiting for it.
    #[inline]
    pub(crate) fn prefetch(&self, stripe: Stripe) {
        black_box(self.stripes[stripe.0 % STRIPES].counts[0].load(Ordering::Relaxed));
    }
}

/// The stripe that a thread adds to.
#[derive(Clone, Copy, Debug)]
pub struct Stripe(usize);

impl Stripe {
    /// Returns the stripe of the calling thread. Stripes are assigned to threads in turn.
    #[inline]
    pub fn of_thread() -> Self {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        thread_local! {
            static STRIPE: Cell<usize> = const { Cell::new(usize::MAX) };
        }
        STRIPE.with(|stripe| {
            if stripe.get() == usize::MAX {
                stripe.set(NEXT.fetch_add(1, Ordering::Relaxed) & (usize::MAX >> 1));
            }
            Self(stripe.get())
        })
    }
}
