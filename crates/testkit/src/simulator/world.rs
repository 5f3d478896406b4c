//! Shared parts of all simulations: seeded randomness, the event queue, links and clocks.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Seeded random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator for a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678_9abc_def0)
    }

    /// Returns a number below `bound`, or zero if `bound` is zero.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(mixed ^ mixed >> 31) * u128::from(bound)) >> 64) as u64
    }

    /// Returns a number from `low` to `high`, inclusive.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// Returns `true` with a probability of `chance` percent.
    pub fn happens_in_percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    /// Returns a random element.
    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }
}

/// Events in time order. Events of the same instant keep their insertion order.
#[derive(Debug)]
pub struct EventQueue<E> {
    events: BinaryHeap<ScheduledEvent<E>>,
    next: u64,
}

#[derive(Debug)]
struct ScheduledEvent<E> {
    at: u64,
    number: u64,
    event: E,
}

impl<E> Ord for ScheduledEvent<E> {
    /// Reverses the order of times, because the heap returns the greatest element first.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.number).cmp(&(self.at, self.number))
    }
}

impl<E> PartialOrd for ScheduledEvent<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for ScheduledEvent<E> {
    fn eq(&self, other: &Self) -> bool {
        self.number == other.number
    }
}

impl<E> Eq for ScheduledEvent<E> {}

impl<E> Default for EventQueue<E> {
    fn default() -> Self {
        Self { events: BinaryHeap::new(), next: 0 }
    }
}

impl<E> EventQueue<E> {
    /// Adds an event at an instant.
    pub fn add(&mut self, at: u64, event: E) {
        self.next += 1;
        self.events.push(ScheduledEvent { at, number: self.next, event });
    }

    /// Removes the next event.
    pub fn pop(&mut self) -> Option<(u64, E)> {
        self.events.pop().map(|scheduled| (scheduled.at, scheduled.event))
    }
}

/// One direction of a connection. The link delays and loses messages but keeps their order, like TCP with occasional
/// disconnects.
#[derive(Clone, Debug)]
pub struct SimulatedLink {
    delay: (u64, u64),
    /// Percentage of messages that are lost.
    loss: u64,
    /// Intervals in which no message passes.
    cuts: Vec<(u64, u64)>,
    last: u64,
}

impl SimulatedLink {
    /// Draws a link: mostly fast, sometimes slow, lossy or cut for part of the run.
    pub fn draw(random: &mut Random, length: u64) -> Self {
        let slow = random.pick(&[200_000, 1_000_000, 1_000_000, 30_000_000]);
        let loss = random.pick(&[0, 0, 0, 2, 20]);
        let mut cuts = Vec::new();
        while random.happens_in_percent(25) {
            let start = random.below(length);
            cuts.push((start, start + random.below(length / 3)));
        }
        Self { delay: (50_000, slow), loss, cuts, last: 0 }
    }

    /// Returns a link without loss and with a delay of at most 0.5 ms.
    pub fn without_loss() -> Self {
        Self { delay: (100_000, 500_000), loss: 0, cuts: Vec::new(), last: 0 }
    }

    /// Returns the arrival time of a message sent now, or `None` if it is lost.
    pub fn deliver(&mut self, random: &mut Random, now: u64) -> Option<u64> {
        let arrives = (now + random.between(self.delay.0, self.delay.1)).max(self.last);
        let is_cut = self.cuts.iter().any(|(start, end)| (start..end).contains(&&now));
        if is_cut || random.happens_in_percent(self.loss) {
            return None;
        }
        self.last = arrives;
        Some(arrives)
    }
}

/// A clock with its own start, a slightly different rate, and steps.
#[derive(Clone, Debug)]
pub struct SimulatedClock {
    start: u64,
    /// Rate in ten-thousandths of true time.
    rate: u64,
    /// Steps of the clock: the time and the amount of each.
    steps: Vec<(u64, i64)>,
}

impl SimulatedClock {
    /// Returns a clock that shows `start` at time zero and runs at `rate` ten-thousandths of true time.
    pub fn new(start: u64, rate: u64) -> Self {
        Self { start, rate, steps: Vec::new() }
    }

    /// Draws a node's clock: any start, and a rate within 1%.
    pub fn draw(random: &mut Random) -> Self {
        Self::new(random.below(1 << 50), random.between(9_900, 10_100))
    }

    /// Adds a step at an instant.
    pub fn add_step(&mut self, at: u64, by: i64) {
        self.steps.push((at, by));
    }

    /// Returns the clock's reading at an instant of true time.
    pub fn shown_at(&self, now: u64) -> u64 {
        let passed = (u128::from(now) * u128::from(self.rate) / 10_000) as u64;
        let steps: i64 = self.steps.iter().filter(|(at, _)| *at <= now).map(|(_, by)| by).sum();
        (self.start + passed).saturating_add_signed(steps)
    }

    /// Returns the first instant of true time at which a clock without steps shows at least `shown`.
    pub fn instant_of_shown(&self, shown: u64) -> u64 {
        let passed = u128::from(shown.saturating_sub(self.start));
        u64::try_from((passed * 10_000).div_ceil(u128::from(self.rate))).unwrap_or(u64::MAX)
    }
}
