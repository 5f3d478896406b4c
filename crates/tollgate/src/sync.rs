//! Atomics of this crate. Loom replaces them in model tests, to explore the interleavings of threads.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// Allocates `len` zero words; `None` if there is not enough memory. The kernel zeroes the pages on first touch, so
/// unused memory costs nothing.
#[cfg(not(loom))]
pub(crate) fn zeroed(len: usize) -> Option<Box<[AtomicU64]>> {
    bytemuck::try_zeroed_slice_box(len).ok()
}

#[cfg(loom)]
pub(crate) fn zeroed(len: usize) -> Option<Box<[AtomicU64]>> {
    Some((0..len).map(|_| AtomicU64::new(0)).collect())
}

/// Fetches the cache line of a word without waiting for it. Where the prefetch instruction is not available, a load is
/// used, which is slower: a later lock waits for the load, and until then the processor can execute only a limited
/// number of instructions.
#[inline(always)]
pub(crate) fn prefetch(word: &AtomicU64) {
    #[cfg(all(target_arch = "x86_64", not(loom)))]
    safe_arch::prefetch_t0(word);
    // The compiler does not remove atomic loads.
    #[cfg(not(all(target_arch = "x86_64", not(loom))))]
    word.load(Ordering::Relaxed);
}

/// Pauses in a spin loop while another thread finishes a few instructions. `turn` counts the iterations.
pub(crate) fn spin_or_yield(turn: u32) {
    #[cfg(loom)]
    {
        let _ = turn;
        loom::thread::yield_now();
    }
    // The other thread may have been preempted, so this thread yields its core after 64 iterations.
    #[cfg(not(loom))]
    if turn < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
