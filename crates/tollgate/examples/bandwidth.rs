//! Shapes a link to a million bytes per second. Packets leave evenly, and old packets are dropped instead of being
//! delivered late.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tollgate::clock::{Clock, ManualClock};
use tollgate::shaper::{Overflow, PushResult, Shaper};

struct Packet {
    number: u32,
    bytes: u64,
}

pub(crate) fn main() -> Result<(), Box<dyn std::error::Error>> {
    let clock = Arc::new(ManualClock::default());
    let link = Shaper::with_clock("1M/s".parse()?, 100, Arc::clone(&clock))
        .overflow(Overflow::Oldest)
        .max_age(Duration::from_millis(50));

    // A burst of 120 packets of 1500 bytes: 180,000 bytes.
    let mut displaced = Vec::new();
    for number in 0..120 {
        match link.push_with_cost(Packet { number, bytes: 1_500 }, 1_500) {
            PushResult::Queued => {}
            PushResult::Displaced(packet) | PushResult::Rejected(packet) => displaced.push(packet.number),
        }
    }
    assert_eq!(displaced, (0..20).collect::<Vec<_>>(), "the oldest packets are displaced");
    link.close();

    // The receiving side: `while let Some(packet) = link.next().await`.
    let mut sent = Vec::new();
    let mut next = Box::pin(link.next());
    loop {
        match next.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(None) => break,
            Poll::Ready(Some(packet)) => {
                sent.push((clock.mono().as_nanos() / 1_000, packet.bytes));
                next = Box::pin(link.next());
            }
            Poll::Pending => clock.advance_through_alarms(Duration::from_micros(100)),
        }
    }

    // The link sends one packet every 1.5 ms, and drops packets that have waited longer than 50 ms.
    assert!(sent.windows(2).all(|pair| pair[1].0 - pair[0].0 == 1_500));
    let bytes: u64 = sent.iter().map(|(_, bytes)| bytes).sum();
    assert_eq!((sent.len(), bytes, link.expired_jobs()), (34, 51_000, 66));
    Ok(())
}
