//! Stops the store under load and measures the longest wait of a request. For comparison, measures the longest wait of
//! tasks that only wait for a timer of the same length as the store's deadline. These tasks show the noise of the
//! machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tollgate_core::{Limit, TokenBucket};
use tollgate_engine::{Decisions, Engine, Exactness, Item, Request};
use tollgate_redis::{Config, Health, RedisStore};
use tollgate_testkit::servers::{Kind, Server};

const CALLERS: u64 = 64;
/// Pause between an answer and the caller's next request, chosen so that all callers together make about 10,000
/// requests per second.
const PAUSE_BETWEEN_REQUESTS: Duration = Duration::from_millis(5);
const STOP_DURATION: Duration = Duration::from_secs(2);
const STORE_DEADLINE: Duration = Duration::from_millis(10);

/// The answers and waits of the callers.
#[derive(Debug, Default)]
struct CallerResults {
    exact: AtomicU64,
    fallback: AtomicU64,
    longest_nanos: AtomicU64,
}

impl CallerResults {
    /// Returns the longest wait since the previous call of this method.
    fn take_longest_wait(&self) -> Duration {
        Duration::from_nanos(self.longest_nanos.swap(0, Ordering::Relaxed))
    }
}

/// Callers that send sequential requests until they are stopped.
struct Load {
    seen: Arc<CallerResults>,
    ended: Arc<AtomicBool>,
    callers: Vec<tokio::task::JoinHandle<Result<()>>>,
}

impl Load {
    fn start<F: Future<Output = Result<Exactness>> + Send>(ask: impl Fn(u64) -> F + Clone + Send + 'static) -> Self {
        let (seen, ended) = (Arc::<CallerResults>::default(), Arc::<AtomicBool>::default());
        let callers = (0..CALLERS).map(|caller| {
            let (seen, ended, ask) = (seen.clone(), ended.clone(), ask.clone());
            tokio::spawn(async move {
                while !ended.load(Ordering::Relaxed) {
                    let start = Instant::now();
                    let exactness = ask(caller).await?;
                    seen.longest_nanos.fetch_max(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
                    let count = match exactness {
                        Exactness::Exact | Exactness::Leased | Exactness::Eventual => &seen.exact,
                        Exactness::Fallback => &seen.fallback,
                    };
                    count.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(PAUSE_BETWEEN_REQUESTS).await;
                }
                Ok(())
            })
        });
        let callers = callers.collect();
        Self { seen, ended, callers }
    }

    /// Stops the callers. Fails if any request got no decision.
    async fn stop_callers(self) -> Result<()> {
        self.ended.store(true, Ordering::Relaxed);
        for caller in self.callers {
            caller.await??;
        }
        Ok(())
    }
}

/// Stops a store under load. Returns whether a goal was missed.
pub(crate) async fn measure_stopped_store(kind: Kind) -> Result<bool> {
    let control = Load::start(async |_| {
        tokio::time::sleep(STORE_DEADLINE).await;
        Ok(Exactness::Exact)
    });
    tokio::time::sleep(STOP_DURATION).await;
    let timer = control.seen.take_longest_wait();
    control.stop_callers().await?;

    let server = Server::start(kind);
    let store = RedisStore::connect(Config::from_url(&server.url())?.deadline(STORE_DEADLINE)).await;
    ensure!(store.health() == Health::Up, "{:?}", store.health());
    let engine = Arc::new(Engine::new(store)?);
    let limit = Limit::from(TokenBucket::new("1000000/s".parse()?, 1_000_000)?);
    let limits = engine.intern_limits(&limit.into())?;
    let load = Load::start({
        let (engine, limits) = (engine.clone(), limits.clone());
        move |caller| {
            let (engine, limits) = (engine.clone(), limits.clone());
            async move {
                let key = format!("caller{caller}");
                let item = [Item::inline(&key, &limits)];
                let mut decisions = Decisions::default();
                Ok(engine.check(&Request::without_rules(&item), &mut decisions).await?.exactness())
            }
        }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (usual, decided) = (load.seen.take_longest_wait(), load.seen.exact.load(Ordering::Relaxed));
    ensure!(decided > 0, "the store decided no request");
    let before = load.seen.fallback.load(Ordering::Relaxed);
    server.pause();
    tokio::time::sleep(STOP_DURATION).await;
    let (stopped, turned) = (load.seen.take_longest_wait(), load.seen.fallback.load(Ordering::Relaxed) - before);
    server.resume();
    let (resumed, mut health) = (Instant::now(), engine.store().watch_health());
    health.wait_for(|health| *health == Health::Up).await?;
    let (recovered, exact) = (resumed.elapsed(), load.seen.exact.load(Ordering::Relaxed));
    tokio::time::sleep(Duration::from_secs(1)).await;
    let after = load.seen.exact.load(Ordering::Relaxed) - exact;
    load.stop_callers().await.context("a request got no decision")?;

    let noise = (timer.saturating_sub(STORE_DEADLINE) * 2).max(Duration::from_millis(5));
    let holds = stopped <= STORE_DEADLINE + noise && after > 0;
    println!(
        "\n{kind:?} stopped for {STOP_DURATION:?} under load, {CALLERS} callers, a deadline of {STORE_DEADLINE:?}"
    );
    println!("       longest wait for a timer of {STORE_DEADLINE:?}: {timer:.1?}");
    println!("       longest wait while the store answers: {usual:.1?}");
    println!(
        "{} longest wait while the store is stopped: {stopped:.1?} (at most the deadline plus 5 ms or twice the timer's noise, whichever is longer)",
        if holds { "ok    " } else { "MISSED" }
    );
    println!(
        "       {turned} requests decided without the store; the store was used again after {recovered:.1?}, for {after} requests in the next second"
    );
    Ok(!holds)
}
