//! The atomics of this crate, so that loom can replace them and explore every interleaving.

#[cfg(not(loom))]
pub(crate) use std::sync::atomic::{AtomicU64, Ordering, fence};

#[cfg(loom)]
pub(crate) use loom::sync::atomic::{AtomicU64, Ordering, fence};

/// `len` zero words, or `None` if there is not that much memory. The allocator returns pages that the kernel zeroes on
/// first touch, so that unused memory costs nothing.
#[cfg(not(loom))]
pub(crate) fn zeroed(len: usize) -> Option<Box<[AtomicU64]>> {
    bytemuck::try_zeroed_slice_box(len).ok()
}

#[cfg(loom)]
pub(crate) fn zeroed(len: usize) -> Option<Box<[AtomicU64]>> {
    Some((0..len).map(|_| AtomicU64::new(0)).collect())
}

/// One iteration of a loop that waits for another thread to finish a few instructions.
pub(crate) fn spin_or_yield(turn: u32) {
    #[cfg(loom)]
    {
        let _ = turn;
        loom::thread::yield_now();
    }
    // The other thread may have been preempted: after a few iterations, yield this core.
    #[cfg(not(loom))]
    if turn < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
