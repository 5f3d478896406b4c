//! Measures one contender for one turn.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use tollgate_testkit::servers::Server;

use crate::contenders::Contender;

const WARM_UP: Duration = Duration::from_millis(200);
const TURN_DURATION: Duration = Duration::from_millis(1_000);

/// The result of a turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Figures {
    pub(crate) per_second: f64,
    /// CPU time of the busiest server per request, in microseconds.
    pub(crate) cpu_micros: f64,
    pub(crate) p50: f64,
    pub(crate) p99: f64,
}

impl Figures {
    pub(crate) fn median(turns: &[Self]) -> Self {
        let middle = |of: fn(&Self) -> f64| {
            let mut values: Vec<f64> = turns.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values[values.len() / 2]
        };
        Self {
            per_second: middle(|turn| turn.per_second),
            cpu_micros: middle(|turn| turn.cpu_micros),
            p50: middle(|turn| turn.p50),
            p99: middle(|turn| turn.p99),
        }
    }
}

/// The number of keys.
pub(crate) const KEYS: u32 = 100_000;

/// Returns the next number of a linear congruential generator.
pub(crate) fn next_random(number: u64) -> u64 {
    number.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407)
}

/// Makes one request for every key.
pub(crate) async fn request_every_key(contender: &Contender, callers: usize) -> Result<()> {
    let tasks: Vec<_> = (0..callers as u32)
        .map(|caller| {
            let contender = contender.clone();
            tokio::spawn(async move {
                for key in (caller..KEYS).step_by(callers) {
                    contender.ask(key).await?;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Runs `callers` tasks that send sequential requests for one turn. `passes` is the expected outcome of every request.
pub(crate) async fn measure(
    servers: &[&Server],
    contender: &Contender,
    callers: usize,
    passes: bool,
) -> Result<Figures> {
    let (stop, count) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let tasks: Vec<_> = (0..callers)
        .map(|caller| {
            let (stop, count, contender) = (stop.clone(), count.clone(), contender.clone());
            tokio::spawn(async move {
                let mut waits = Vec::new();
                let mut number = caller as u64;
                while !stop.load(Ordering::Relaxed) {
                    number = next_random(number);
                    let start = Instant::now();
                    let passed = contender.ask((number >> 33) as u32 % KEYS).await?;
                    ensure!(passed == passes, "{}: unexpected outcome, passed: {passed}", contender.name());
                    if count.load(Ordering::Relaxed) {
                        waits.push(start.elapsed().as_nanos() as u64);
                    }
                }
                anyhow::Ok(waits)
            })
        })
        .collect();
    tokio::time::sleep(WARM_UP).await;
    let before: Vec<Duration> = servers.iter().map(|server| server.processor_time()).collect();
    let start = Instant::now();
    count.store(true, Ordering::Relaxed);
    tokio::time::sleep(TURN_DURATION).await;
    let elapsed = start.elapsed();
    let used = servers.iter().zip(before).map(|(server, before)| server.processor_time() - before);
    let cpu = used.max().unwrap_or_default();
    stop.store(true, Ordering::Relaxed);
    let mut waits = Vec::new();
    for task in tasks {
        waits.extend(task.await??);
    }
    waits.sort_unstable();
    let requests = waits.len() as f64;
    let at = |part: f64| waits[((requests - 1.0) * part) as usize] as f64 / 1_000.0;
    Ok(Figures {
        per_second: requests / elapsed.as_secs_f64(),
        cpu_micros: cpu.as_secs_f64() * 1e6 / requests,
        p50: at(0.5),
        p99: at(0.99),
    })
}
