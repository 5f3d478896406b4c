//! Measures the replication traffic and the excess without faults, by node count.

use tollgate_core::Rate;

use super::{MILLI, PeersDefect, PeersEvent, PeersOutcome, PeersSimulation, SECOND};
use crate::simulator::Random;

/// Number of seconds during which requests are made.
pub const TRAFFIC_SECONDS: u64 = 5;
/// Requests per second and node.
pub const REQUESTS_PER_SECOND: u64 = 200;
/// Number of keys over which the requests are spread.
pub const KEY_COUNT: u64 = 1_000;

const START: u64 = 3 * SECOND;

fn without_faults(hosts: usize) -> PeersSimulation {
    let mut run = super::draw::without_faults(Random::new(1), hosts, PeersDefect::None);
    run.is_strict = false;
    run.ring_bytes = 16 << 20;
    run.length = START + TRAFFIC_SECONDS * SECOND;
    run.counted_from = START;
    run
}

/// Creates a run in which every node makes [`REQUESTS_PER_SECOND`] requests per second, spread over [`KEY_COUNT`] keys.
/// All requests are admitted.
pub fn run_with_steady_traffic(hosts: usize) -> PeersSimulation {
    let mut run = without_faults(hosts);
    super::draw::set_bucket(&mut run, Rate::per_second(1_000), 1_000);
    for host in 0..hosts {
        for number in 0..REQUESTS_PER_SECOND * TRAFFIC_SECONDS {
            let at = START + number * SECOND / REQUESTS_PER_SECOND + run.random.below(SECOND / REQUESTS_PER_SECOND);
            let key = 1 + run.random.below(KEY_COUNT) as u32;
            run.queue.add(at, PeersEvent::Request { host, cost: 1, key });
        }
    }
    run
}

/// Creates a run with the largest possible excess: all nodes receive requests for a whole burst of one key at the
/// same instant, and then more requests than the limit admits.
pub fn simultaneous_bursts(hosts: usize, rate: u64, burst: u64) -> PeersSimulation {
    let mut run = without_faults(hosts);
    super::draw::set_bucket(&mut run, Rate::per_second(rate), burst);
    for host in 0..hosts {
        (0..2 * burst).for_each(|_| run.queue.add(START, PeersEvent::Request { host, cost: 1, key: 0 }));
        for number in 0..TRAFFIC_SECONDS * 100 {
            run.queue.add(START + number * 10 * MILLI, PeersEvent::Request { host, cost: 1, key: 0 });
        }
    }
    run
}

/// Returns the traffic and the largest excess for a node count.
///
/// # Errors
/// Returns an error if a check fails.
pub fn measure_traffic_and_excess(hosts: usize) -> Result<(PeersOutcome, PeersOutcome), String> {
    Ok((run_with_steady_traffic(hosts).run()?, simultaneous_bursts(hosts, 100, 100).run()?))
}
