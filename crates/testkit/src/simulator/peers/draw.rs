//! Draws the parameters, faults and requests of a run from its seed.

use std::collections::BTreeSet;

use tollgate::fingerprint::Fingerprint;
use tollgate_core::{FixedWindow, Limit, LimitError, Limits, Nanos, Rate, SlidingSlices, SlidingWindow, TokenBucket};

use super::net::SimulatedNetwork;
use super::node::Host;
use super::{MILLI, PeersDefect, PeersEvent, PeersOutcome, PeersSimulation, SECOND};
use crate::simulator::{EventQueue, Random};

/// Draws a run on 2 to 100 nodes, in which every kind of fault may occur.
pub(super) fn draw(seed: u64, defect: PeersDefect) -> PeersSimulation {
    let mut random = Random::new(seed);
    let hosts = match random.below(1_000) {
        0..4 => 100,
        4..20 => random.between(20, 40),
        20..200 => random.between(7, 15),
        _ => random.between(2, 6),
    } as usize;
    let mut run = without_faults(random, hosts, defect);
    match run.random.below(100) {
        0..25 => draw_partition(&mut run),
        25..40 => {
            draw_join(&mut run);
            return run;
        }
        40..55 => draw_groups(&mut run),
        _ => draw_faults(&mut run),
    }
    draw_requests(&mut run);
    run
}

/// Creates a run without faults or requests. All hosts start at about the same time.
pub(super) fn without_faults(mut random: Random, hosts: usize, defect: PeersDefect) -> PeersSimulation {
    let capacity = random.pick(&[1, 4, 10, 50, 200]);
    let (limit, rate, window) = draw_limit(&mut random, capacity);
    let mut queue = EventQueue::default();
    for one in 0..hosts {
        queue.add(random.below(300 * MILLI), PeersEvent::Start { host: one });
    }
    PeersSimulation {
        hosts: (0..hosts).map(|_| Host::draw(&mut random)).collect(),
        net: SimulatedNetwork::draw(&mut random, hosts),
        queue,
        // The key is in the first shard of every table, which is the first part of every snapshot.
        key: Fingerprint::from_parts(random.below(1 << 61), (random.below(1 << 20) << 12) as u32),
        limits: Limits::from(limit),
        capacity,
        rate,
        window,
        is_strict: random.happens_in_percent(40),
        partition: None,
        defect,
        ring_bytes: random.pick(&[16 << 20, 16 << 20, 2_000]),
        length: random.between(4, 7) * SECOND,
        counted_from: 0,
        next_id: 1,
        wrong_members: false,
        has_faults: false,
        duplicates: false,
        history: Vec::new(),
        deciders: BTreeSet::new(),
        applied: BTreeSet::new(),
        longest_lag: 0,
        longest_transit: 0,
        worst_debt: 0,
        last_fault: 0,
        faults: super::Faults::default(),
        outcome: PeersOutcome::default(),
        asks: std::collections::BTreeMap::new(),
        next_ask: 0,
        group_size: 1,
        group_admitted: Vec::new(),
        groups: std::collections::BTreeMap::new(),
        group_asks: std::collections::BTreeMap::new(),
        relays: std::collections::BTreeMap::new(),
        violation: None,
        random,
    }
}

/// Replaces the limit with a token bucket.
pub(super) fn set_bucket<E: std::fmt::Display>(run: &mut PeersSimulation, rate: Result<Rate, E>, burst: u64) {
    let rate = rate.unwrap_or_else(|error| panic!("{error}"));
    let bucket = TokenBucket::new(rate, burst).unwrap_or_else(|error| panic!("{error}"));
    (run.limits, run.capacity, run.rate, run.window) = (Limit::from(bucket).into(), burst, Some(rate), 0);
}

/// Draws a run whose only fault is a temporary partition into two sides.
fn draw_partition(run: &mut PeersSimulation) {
    let hosts = run.hosts.len();
    let start = 3 * SECOND + run.random.below(SECOND);
    let long = run.random.pick(&[2, 5, 13, 16]) * SECOND;
    let mut side: BTreeSet<usize> = (0..hosts).filter(|_| run.random.happens_in_percent(50)).collect();
    if side.is_empty() || side.len() == hosts {
        side = BTreeSet::from([run.random.below(hosts as u64) as usize]);
    }
    for one in 0..hosts {
        for other in 0..hosts {
            if side.contains(&one) != side.contains(&other) {
                run.net.cut(one, other, start, start + long);
            }
        }
    }
    run.length = start + long + 2 * SECOND;
    run.partition = Some((start, start + long, side));
    if run.random.happens_in_percent(50) {
        let (rate, burst) = (run.random.pick(&[4, 50, 200]), run.random.pick(&[4, 10, 50]));
        set_bucket(run, Rate::per_second(rate), burst);
        // Both sides get more requests than the limit admits.
        let count = (2 * rate * long / SECOND).min(2_000);
        for number in 0..2 * count {
            let host = run.random.below(hosts as u64) as usize;
            run.queue.add(start + number * long / (2 * count), PeersEvent::Request { host, cost: 1, key: 0 });
        }
    }
}

/// Draws a run in which one node leaves and returns while the other nodes charge steadily. There are no other faults.
/// The bucket refills slowly, so missing charges stay visible.
fn draw_join(run: &mut PeersSimulation) {
    set_bucket(run, Rate::per_second(1), 500);
    let hosts = run.hosts.len() as u64;
    let (host, at) = (run.random.below(hosts) as usize, run.random.between(3_000, 4_000) * MILLI);
    run.queue.add(at, PeersEvent::Leave { host });
    run.queue.add(at + run.random.between(100, 1_500) * MILLI, PeersEvent::Start { host });
    let apart = run.random.between(15, 40) * MILLI;
    for number in 0..run.length.saturating_sub(2_500 * MILLI) / apart {
        let host = run.random.below(hosts) as usize;
        run.queue.add(2_500 * MILLI + number * apart, PeersEvent::Request { host, cost: 1, key: 0 });
    }
}

/// Draws a run with several keys, in which each request charges some of the keys as a group. The bucket does not
/// refill during the run. Half of the runs have faults.
fn draw_groups(run: &mut PeersSimulation) {
    let burst = run.random.pick(&[4, 10, 50]);
    set_bucket(run, Rate::new(1, Nanos::from_secs(86_400)), burst);
    (run.is_strict, run.group_size) = (true, run.random.between(2, 3));
    run.group_admitted = vec![0; run.group_size as usize];
    if run.random.happens_in_percent(50) {
        draw_faults(run);
    }
}

fn draw_faults(run: &mut PeersSimulation) {
    let (hosts, length) = (run.hosts.len() as u64, run.length);
    run.has_faults = true;
    run.wrong_members = run.random.happens_in_percent(30);
    run.duplicates = run.random.happens_in_percent(30);
    // Some nodes leave or crash while others decide. Most of these nodes start again.
    while run.random.happens_in_percent(40) {
        let host = run.random.below(hosts) as usize;
        let leaves = run.random.between(SECOND, length);
        let event = match run.random.below(3) {
            0 => PeersEvent::Leave { host },
            1 => PeersEvent::Crash { host, silently: true },
            _ => PeersEvent::Crash { host, silently: false },
        };
        run.queue.add(leaves, event);
        if run.random.happens_in_percent(80) {
            run.queue.add(leaves + run.random.below(2 * SECOND), PeersEvent::Start { host });
        }
    }
    while run.random.happens_in_percent(30) {
        let (one, other) = (run.random.below(hosts) as usize, run.random.below(hosts) as usize);
        let start = run.random.below(length);
        let end = start + run.random.below(length / 2);
        run.net.cut(one, other, start, end);
        if run.random.happens_in_percent(60) {
            run.net.cut(other, one, start, end);
        }
    }
    while run.random.happens_in_percent(30) {
        let (one, other) = (run.random.below(hosts) as usize, run.random.below(hosts) as usize);
        if one != other {
            run.queue.add(run.random.below(length), PeersEvent::BreakLink { one, other });
        }
    }
    while run.random.happens_in_percent(20) {
        let (host, at) = (run.random.below(hosts) as usize, run.random.below(length));
        let until = at + run.random.below(3 * SECOND);
        run.queue.add(at, PeersEvent::Pause { host, until });
    }
    while run.random.happens_in_percent(20) {
        let by = run.random.below(20 * SECOND) as i64 - 10 * SECOND as i64;
        let host = run.random.below(hosts) as usize;
        run.queue.add(run.random.below(length), PeersEvent::Step { host, by });
    }
}

fn draw_requests(run: &mut PeersSimulation) {
    let (hosts, length) = (run.hosts.len() as u64, run.length);
    for _ in 0..run.random.between(2, 25) {
        let start = run.random.below(length);
        let everywhere = run.random.happens_in_percent(40);
        let host = run.random.below(hosts) as usize;
        let cost = if run.random.happens_in_percent(80) { 1 } else { run.random.between(1, run.capacity) };
        let apart = run.random.pick(&[0, MILLI, 10 * MILLI, 40 * MILLI, 200 * MILLI]);
        for number in 0..run.random.between(1, (2 * run.capacity / cost).clamp(4, 100)) {
            let at = start + number * apart;
            let host = if everywhere { run.random.below(hosts) as usize } else { host };
            if at < length {
                run.queue.add(at, PeersEvent::Request { host, cost, key: 0 });
            }
        }
    }
}

/// Draws a limit of one of the four algorithms. Returns the limit, and its rate if it is a bucket or its length if it
/// is a window.
fn draw_limit(random: &mut Random, burst: u64) -> (Limit, Option<Rate>, u64) {
    let valid = |limit: Result<Limit, LimitError>| limit.unwrap_or_else(|error| panic!("{error}"));
    if random.happens_in_percent(75) {
        let rate = Rate::per_second(random.pick(&[1, 1, 4, 10, 100, 1_000])).unwrap_or_else(|error| panic!("{error}"));
        return (valid(TokenBucket::new(rate, burst).map(Limit::from)), Some(rate), 0);
    }
    let seconds = random.pick(&[1, 3, 60]);
    let length = Nanos::from_secs(seconds);
    let limit = match random.below(3) {
        0 => FixedWindow::new(burst, length).map(Limit::from),
        1 => SlidingWindow::new(burst, length).map(Limit::from),
        _ => SlidingSlices::new(burst, length, Nanos::from_millis(seconds * 100)).map(Limit::from),
    };
    (valid(limit), None, seconds * SECOND)
}
