//! Measures rules with `consistency: leased` and `eventual`. Compares the cost of a decision with the memory store.
//! Runs three nodes that share a `leased` limit under a demand of twice the limit.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use tollgate_core::{Limit, TokenBucket};
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::store::Consistency;
use tollgate_engine::{Attribute, Decisions, Engine, Item, MemoryStore, Request, Store};
use tollgate_redis::{Config, RedisStore};
use tollgate_testkit::servers::{Kind, Server};

use crate::contenders::TollgateStore;
use crate::{TURNS, check_goal};

/// Length of a turn.
const TURN_DURATION: Duration = Duration::from_millis(1_000);
/// Number of decisions between two clock readings.
const DECISIONS_PER_CLOCK_READING: u32 = 1_000;

/// Compares `leased` and `eventual` rules with the memory store, in decisions per CPU second of this process. Returns
/// whether a goal was missed.
pub(crate) async fn compare_with_memory(kind: Kind) -> Result<bool> {
    let server = Server::start(kind);
    let memory = engine_with_rules(MemoryStore::new(1_000)?, "strict")?;
    let leased = engine_with_rules(connect(&server, "leased").await?, "leased")?;
    let eventual = engine_with_rules(connect(&server, "eventual").await?, "eventual")?;
    let (mut of_leased, mut of_eventual) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let base = decisions_per_cpu_second(&memory).await?;
        of_leased.push(decisions_per_cpu_second(&leased).await? / base);
        of_eventual.push(decisions_per_cpu_second(&eventual).await? / base);
    }
    println!("\n{kind:?}, one key in steady use, decisions per CPU second of this process, medians of {TURNS} turns");
    let (leased, eventual) = (median(&mut of_leased), median(&mut of_eventual));
    let missed = check_goal("leased, relative to the memory store", leased, leased >= 0.5, "at least 0.50");
    Ok(missed | check_goal("eventual, relative to the memory store", eventual, eventual >= 0.66, "at least 0.66"))
}

async fn connect(server: &Server, namespace: &str) -> Result<RedisStore> {
    let config = Config::from_url(&server.url())?.namespace(namespace)?.deadline(Duration::from_secs(1));
    Ok(RedisStore::connect(config).await)
}

pub(crate) fn engine_with_rules<S: Store>(store: S, consistency: &str) -> Result<Engine<S>> {
    let engine = Engine::new(store)?;
    let rule = format!("{{id: r, per: [user], limit: 100000000/s, consistency: {consistency}}}");
    let text = format!("{{domain: d, rules: [{rule}]}}");
    let rules = Rules::read(&[Source { name: "rules", text: text.as_bytes() }]);
    engine.put(&rules.map_err(|mistakes| anyhow::anyhow!("{mistakes}"))?)?;
    Ok(engine)
}

async fn decisions_per_cpu_second<S: Store>(engine: &Engine<S>) -> Result<f64> {
    let (attributes, mut decisions) = ([Attribute::new("user", "alice")], Decisions::default());
    let items = [Item::new(&attributes)];
    let request = Request::new("d", &items);
    let (start, cpu, mut decided) = (Instant::now(), processor_time()?, 0_u64);
    while start.elapsed() < TURN_DURATION {
        for _ in 0..DECISIONS_PER_CLOCK_READING {
            ensure!(engine.check(&request, &mut decisions).await?.is_admitted(), "a request was refused");
        }
        decided += u64::from(DECISIONS_PER_CLOCK_READING);
        // Yields to the tasks that exchange leases and merge counts.
        tokio::task::yield_now().await;
    }
    Ok(decided as f64 / (processor_time()? - cpu).as_secs_f64())
}

/// Returns the CPU time of this process so far, in steps of 10 ms.
fn processor_time() -> Result<Duration> {
    let stat = std::fs::read_to_string("/proc/self/stat")?;
    let fields = stat.rsplit_once(") ").context("no name in /proc/self/stat")?.1;
    let ticks = |index: usize| fields.split(' ').nth(index).and_then(|field| field.parse::<u64>().ok());
    let (user, system) = ticks(11).zip(ticks(12)).context("no times in /proc/self/stat")?;
    Ok(Duration::from_millis((user + system) * 10))
}

pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The limit that three nodes share, per second.
const SHARED_RATE: u64 = 1_000;
const RUN_DURATION: Duration = Duration::from_secs(10);

/// Runs three nodes with unequal shares of a demand of twice the limit. Returns whether a goal was missed.
pub(crate) async fn measure_three_nodes(kind: Kind) -> Result<bool> {
    let server = Server::start(kind);
    let limit = Limit::from(TokenBucket::new(format!("{SHARED_RATE}/s").parse()?, SHARED_RATE)?);
    let mut nodes = Vec::new();
    for _ in 0..3 {
        nodes.push(TollgateStore::with_namespace(&server.url(), "three", limit.into(), Consistency::Leased).await?);
    }
    let before: u64 = nodes.iter().map(|node| node.store.counts().calls).sum();
    let start = Instant::now();
    // The nodes get 6/11, 3/11 and 2/11 of the requests (in proportion to 1, 1/2 and 1/3).
    let tasks: Vec<_> = nodes
        .iter()
        .zip([6, 3, 2])
        .map(|(node, part)| tokio::spawn(request_at_rate(node.clone(), 2 * SHARED_RATE * part / 11, start)))
        .collect();
    let mut admitted = 0;
    for task in tasks {
        admitted += task.await??;
    }
    let calls: u64 = nodes.iter().map(|node| node.store.counts().calls).sum::<u64>() - before;
    let possible = SHARED_RATE as f64 * (1.0 + start.elapsed().as_secs_f64());
    println!(
        "\n{kind:?}, three nodes share {SHARED_RATE} tokens per second by leases; demand of twice the limit for {RUN_DURATION:?}"
    );
    let share = admitted as f64 / possible;
    let missed = check_goal("admitted fraction of the limit", share, share >= 0.97, "at least 0.97");
    let per_request = calls as f64 / admitted as f64;
    Ok(missed | check_goal("store calls per admitted request", per_request, per_request <= 0.25, "at most 0.25"))
}

/// Makes `per_second` requests per second, and returns the number of admitted requests.
async fn request_at_rate(node: TollgateStore, per_second: u64, start: Instant) -> Result<u64> {
    let (mut asked, mut admitted) = (0, 0);
    while start.elapsed() < RUN_DURATION {
        let due = (start.elapsed().as_micros() as u64 * per_second) / 1_000_000;
        while asked < due {
            asked += 1;
            admitted += u64::from(node.ask(0).await?);
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    Ok(admitted)
}
