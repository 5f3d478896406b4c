//! Measures waiting: an acquire that passes immediately, and the cost of a grant and of a cancellation among few and
//! among many waiters.

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

const ACQUIRE_CASE: &str = "acquire";
const CHECK_NAME: &str = "ours-check";
const FEW_WAITERS: usize = 100;
const MANY_WAITERS: usize = 100_000;
/// Number of timed grants or cancellations among many waiters, in groups of [`FEW_WAITERS`].
const TIMED_OPERATIONS: usize = 10_000;

/// Runs the cases that the report selects.
pub(crate) fn run(report: &mut Report, plan: Plan) -> Result<()> {
    measure_acquire(report, plan)?;
    measure_waiters(report, "waiters", None)?;
    measure_waiters(report, "waiters-deadline", Some(Duration::from_secs(1 << 30)))
}

/// Polls a future once and returns whether it is ready.
#[inline(always)]
pub(crate) fn is_ready<F: Future>(future: F) -> bool {
    matches!(pin!(future).poll(&mut Context::from_waker(Waker::noop())), Poll::Ready(_))
}

fn measure_acquire(report: &mut Report, plan: Plan) -> Result<()> {
    if !report.includes(ACQUIRE_CASE) {
        return Ok(());
    }
    report.print_section(
        "acquire without other waiters: ns each; a ratio of 0.8 to our own check means 1.25 times its cost",
    );
    let mut contenders: Vec<Box<dyn Contender>> = vec![
        Box::new(ours::Acquiring::with_precise_clock()?),
        Box::new(ours::Acquiring::with_cached_clock()?),
        Box::new(governor::UntilReady::new()),
        Box::new(leaky_bucket::Acquiring::new()),
        Box::new(ours::Named(CHECK_NAME, ours::Direct::with_precise_clock()?)),
        Box::new(ours::ClockReading(PreciseClock::new())),
    ];
    let medians = race(plan, Expect::Allowed, &mut contenders, &[Pattern::Hot.access_sequence(1)])?;
    let [(_, precise), (_, cached), others @ ..] = &*medians else { return Ok(()) };
    let mut row = |case: &str, ours, peer: &str, theirs, goal| {
        report.add_row(Row { case: case.to_owned(), ours, peer: peer.to_owned(), theirs, goal });
    };
    for &(peer, theirs) in others {
        // The goals are close to 1: both limiters read the same hardware counter once, which takes nearly all of the
        // time.
        let goal = match peer {
            CHECK_NAME => Some(0.8),
            ours::CLOCK_READING => None,
            _ => Some(1.3),
        };
        row(ACQUIRE_CASE, *precise, peer, theirs, goal.map(Goal::RatioAtLeast));
    }
    for &(peer, theirs) in others.iter().filter(|(peer, _)| ![CHECK_NAME, ours::CLOCK_READING].contains(peer)) {
        row("acquire-cached", *cached, peer, theirs, Some(Goal::RatioAtLeast(1.3)));
    }
    Ok(())
}

/// Nanoseconds per operation: the median over groups of [`FEW_WAITERS`] operations.
struct Costs {
    grant: f64,
    cancel: f64,
}

fn measure_waiters(report: &mut Report, case: &str, deadline: Option<Duration>) -> Result<()> {
    if !report.includes(case) {
        return Ok(());
    }
    report.print_section(&format!(
        "{case}, {MANY_WAITERS} waiters on one limiter compared with {FEW_WAITERS}, on a manual clock: ns each"
    ));
    let few = measure_rounds(FEW_WAITERS, FEW_WAITERS, 200, deadline)?;
    let many = measure_rounds(MANY_WAITERS, TIMED_OPERATIONS, 15, deadline)?;
    let mut row = |what: &str, ours, peer: &str, theirs, goal| {
        report.add_row(Row { case: format!("{case}-{what}"), ours, peer: peer.to_owned(), theirs, goal });
    };
    // Among many waiters, an operation may take at most twice as long as among few.
    row("grant", many.grant, "grant-among-100", few.grant, Some(Goal::RatioAtLeast(0.5)));
    row("cancel", many.cancel, "cancel-among-100", few.cancel, Some(Goal::RatioAtLeast(0.5)));
    row("cancel", many.cancel, "grant-among-100000", many.grant, Some(Goal::RatioAtLeast(1.0)));
    row("cancel", many.cancel, "cache-miss", measure_cache_miss(), None);
    Ok(())
}

/// A cache line that holds the index of another cache line.
#[derive(Clone)]
#[repr(align(64))]
struct CacheLine(usize);

/// Returns the nanoseconds to load a random cache line, after other memory has displaced it from the cache. A
/// cancellation among many waiters has to load such a line. The number of lines equals the number of waiters. The other
/// memory is as large as the waiters' futures.
fn measure_cache_miss() -> f64 {
    let (mut loads, mut random) = (Vec::new(), Random::new(5));
    for _ in 0..15 {
        let mut order: Vec<usize> = (0..MANY_WAITERS).collect();
        (0..MANY_WAITERS)
            .for_each(|place| order.swap(place, place + random.below((MANY_WAITERS - place) as u64) as usize));
        let mut lines = vec![CacheLine(0); MANY_WAITERS];
        order.iter().zip(order.iter().cycle().skip(1)).for_each(|(line, next)| lines[*line].0 = *next);
        black_box(vec![CacheLine(1); 2 * MANY_WAITERS]);
        let (start, mut line) = (Instant::now(), 0);
        (0..TIMED_OPERATIONS).for_each(|_| line = lines[line].0);
        black_box(line);
        loads.push(start.elapsed().as_nanos() as f64 / TIMED_OPERATIONS as f64);
    }
    median(loads)
}

fn measure_rounds(waiters: usize, timed: usize, rounds: usize, deadline: Option<Duration>) -> Result<Costs> {
    let (mut grants, mut cancels) = (Vec::new(), Vec::new());
    let mut random = Random::new(3);
    // The timed groups have the same size in both cases, so that interruptions are equally rare.
    let per = |start: Instant| start.elapsed().as_nanos() as f64 / FEW_WAITERS as f64;
    for _ in 0..rounds {
        let clock = Arc::new(ManualClock::at(1 << 40));
        let limit = TokenBucket::new("1000/s".parse()?, 1)?;
        let limiter = Arc::new(Limiter::with_clock(limit, Arc::clone(&clock)).max_waiters(waiters));
        limiter.drain();
        let mut line = add_waiters(&limiter, waiters, deadline);
        for places in line[..timed].chunks_mut(FEW_WAITERS) {
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

        let mut line = add_waiters(&limiter, waiters, deadline);
        // Shuffles, so that the waiters that leave are spread over the whole queue.
        for place in 0..timed {
            let other = place + random.below((waiters - place) as u64) as usize;
            line.swap(place, other);
        }
        for places in line[..timed].chunks_mut(FEW_WAITERS) {
            let start = Instant::now();
            for place in places {
                *black_box(place) = None;
            }
            cancels.push(per(start));
        }
    }
    Ok(Costs { grant: median(grants), cancel: median(cancels) })
}

type WaitQueue<'a> = Vec<Option<Acquire<'a, Limiter<TokenBucket, Arc<ManualClock>>>>>;

fn add_waiters(
    limiter: &Arc<Limiter<TokenBucket, Arc<ManualClock>>>,
    count: usize,
    deadline: Option<Duration>,
) -> WaitQueue<'_> {
    let join = |_| {
        let mut future = deadline.map_or(limiter.acquire(1), |deadline| limiter.acquire(1).within(deadline));
        (!is_ready(&mut future)).then_some(future)
    };
    (0..count).map(join).collect()
}
