//! Waiting: an acquire that passes immediately, and the cost of a grant and of a cancellation among few and many
//! waiters.

use std::future::Future;
use std::hint::black_box;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tollgate::acquire::Acquire;
use tollgate::clock::{ManualClock, PreciseClock};
use tollgate::core::Nanos;
use tollgate::{Limiter, TokenBucket};

use crate::contender::Contender;
use crate::keys::{Pattern, Random};
use crate::measure::{Expect, Plan, median, race};
use crate::ours;
use crate::peers::{governor, leaky_bucket};
use crate::report::{Goal, Report, Row};

const ACQUIRE: &str = "acquire";
const CHECK: &str = "ours-check";
const FEW: usize = 100;
const MANY: usize = 100_000;
/// Number of timed grants or cancellations among many waiters, in groups of [`FEW`].
const TIMED: usize = 10_000;

/// Runs the cases that the report selects.
pub(crate) fn run(report: &mut Report, plan: Plan) -> Result<()> {
    acquire(report, plan)?;
    measure_waiters(report, "waiters", None)?;
    measure_waiters(report, "waiters-deadline", Some(Duration::from_secs(1 << 30)))
}

/// Polls a future once and returns whether it is ready.
#[inline(always)]
pub(crate) fn is_ready<F: Future>(future: F) -> bool {
    matches!(pin!(future).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
}

fn acquire(report: &mut Report, plan: Plan) -> Result<()> {
    if !report.includes(ACQUIRE) {
        return Ok(());
    }
    report.print_section("acquire without other waiters: ns each; 0.67 beside our own check means 1.5 times its cost");
    let mut contenders: Vec<Box<dyn Contender>> = vec![
        Box::new(ours::Acquiring::with_precise_clock()?),
        Box::new(ours::Acquiring::with_cached_clock()?),
        Box::new(governor::UntilReady::new()),
        Box::new(leaky_bucket::Acquiring::new()),
        Box::new(ours::Named(CHECK, ours::Direct::with_precise_clock()?)),
        Box::new(ours::ClockReading(PreciseClock::new())),
    ];
    let medians = race(plan, Expect::Allowed, &mut contenders, &[Pattern::Hot.access_sequence(1)])?;
    let [(_, precise), (_, cached), others @ ..] = &*medians else { return Ok(()) };
    let mut row = |case: &str, ours, peer: &str, theirs, goal| {
        report.add_row(Row { case: case.to_owned(), ours, peer: peer.to_owned(), theirs, goal });
    };
    for &(peer, theirs) in others {
        // Both read the same hardware counter once, which takes nearly all of the time.
        let goal = match peer {
            CHECK => Some(0.67),
            ours::CLOCK_READING => None,
            _ => Some(1.5),
        };
        row(ACQUIRE, *precise, peer, theirs, goal.map(Goal::RatioAtLeast));
    }
    for &(peer, theirs) in others.iter().filter(|(peer, _)| ![CHECK, ours::CLOCK_READING].contains(peer)) {
        row("acquire-cached", *cached, peer, theirs, Some(Goal::RatioAtLeast(1.5)));
    }
    Ok(())
}

/// Nanoseconds per operation: the median over groups of [`FEW`] operations.
struct Costs {
    grant: f64,
    cancel: f64,
}

fn measure_waiters(report: &mut Report, case: &str, deadline: Option<Duration>) -> Result<()> {
    if !report.includes(case) {
        return Ok(());
    }
    report.print_section(&format!("{case}, {MANY} on one limiter beside {FEW}, on a manual clock: ns each"));
    let few = measure_rounds(FEW, FEW, 200, deadline)?;
    let many = measure_rounds(MANY, TIMED, 15, deadline)?;
    let mut row = |what: &str, ours, peer: &str, theirs, goal| {
        report.add_row(Row { case: format!("{case}-{what}"), ours, peer: peer.to_owned(), theirs, goal });
    };
    // Among many waiters, an operation may take at most three times as long: a ratio of at least a third.
    row("grant", many.grant, "grant-among-100", few.grant, Some(Goal::RatioAtLeast(0.33)));
    row("cancel", many.cancel, "cancel-among-100", few.cancel, Some(Goal::RatioAtLeast(0.33)));
    row("cancel", many.cancel, "grant-among-100000", many.grant, Some(Goal::RatioAtLeast(1.0)));
    row("cancel", many.cancel, "cache-miss", measure_cache_miss(), None);
    Ok(())
}

/// A cache line that holds the index of another one.
#[derive(Clone)]
#[repr(align(64))]
struct CacheLine(usize);

/// Returns the nanoseconds of a load from a random one of as many lines as there are waiters, after as much other
/// memory was written as their futures take: a cancellation among many waiters has to load such a line.
fn measure_cache_miss() -> f64 {
    let (mut loads, mut random) = (Vec::new(), Random::new(5));
    for _ in 0..15 {
        let mut order: Vec<usize> = (0..MANY).collect();
        (0..MANY).for_each(|place| order.swap(place, place + random.below((MANY - place) as u64) as usize));
        let mut lines = vec![CacheLine(0); MANY];
        order.iter().zip(order.iter().cycle().skip(1)).for_each(|(line, next)| lines[*line].0 = *next);
        black_box(vec![CacheLine(1); 2 * MANY]);
        let (start, mut line) = (Instant::now(), 0);
        (0..TIMED).for_each(|_| line = lines[line].0);
        black_box(line);
        loads.push(start.elapsed().as_nanos() as f64 / TIMED as f64);
    }
    median(loads)
}

fn measure_rounds(waiters: usize, timed: usize, rounds: usize, deadline: Option<Duration>) -> Result<Costs> {
    let (mut grants, mut cancels) = (Vec::new(), Vec::new());
    let mut random = Random::new(3);
    // The timed groups have the same size in both cases, so that both are interrupted equally rarely.
    let per = |start: Instant| start.elapsed().as_nanos() as f64 / FEW as f64;
    for _ in 0..rounds {
        let clock = Arc::new(ManualClock::at(1 << 40));
        let limit = TokenBucket::new("1000/s".parse()?, 1)?;
        let limiter = Arc::new(Limiter::with_clock(limit, Arc::clone(&clock)).max_waiters(waiters));
        limiter.drain();
        let mut line = join(&limiter, waiters, deadline);
        for places in line[..timed].chunks_mut(FEW) {
            let start = Instant::now();
            for place in places {
                clock.advance(Nanos::from_millis(1));
                let Some(first) = place else { continue };
                ensure!(is_ready(first), "the first waiter was not served");
                *place = None;
            }
            grants.push(per(start));
        }
        drop(line);

        let mut line = join(&limiter, waiters, deadline);
        // Shuffles, so that the waiters that leave are spread over the queue.
        for place in 0..timed {
            let other = place + random.below((waiters - place) as u64) as usize;
            line.swap(place, other);
        }
        for places in line[..timed].chunks_mut(FEW) {
            let start = Instant::now();
            for place in places {
                *black_box(place) = None;
            }
            cancels.push(per(start));
        }
    }
    Ok(Costs { grant: median(grants), cancel: median(cancels) })
}

type Line<'a> = Vec<Option<Acquire<'a, Limiter<TokenBucket, Arc<ManualClock>>>>>;

fn join(limiter: &Arc<Limiter<TokenBucket, Arc<ManualClock>>>, count: usize, deadline: Option<Duration>) -> Line<'_> {
    let join = |_| {
        let mut future = deadline.map_or(limiter.acquire(1), |deadline| limiter.acquire(1).within(deadline));
        (!is_ready(&mut future)).then_some(future)
    };
    (0..count).map(join).collect()
}
