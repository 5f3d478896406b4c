//! Measures the decisions per second of a Redis server and its CPU time per decision. Compares Tollgate's store, in
//! which callers share calls, with one script call per decision on one multiplexed connection. The contenders alternate
//! on the same server, with the same keys and the same number of callers. Further parts compare `leased` and `eventual`
//! rules with the memory store, and a cluster with one primary. Other parts flood a refused key and stop the server
//! under load.

mod attack;
mod cluster;
mod contenders;
mod floor;
mod instructions;
mod measure;
mod nodes;
mod stopped;

use anyhow::Result;
use contenders::{Contender, Incr, ScriptPerRequest, TollgateStore};
use floor::Floor;
use measure::{Figures, measure, request_every_key};
use tollgate_core::{FixedWindow, Limit, Limits, Nanos, SlidingWindow, TokenBucket};
use tollgate_testkit::servers::{Kind, Server};

const CALLERS: usize = 64;
const TURNS: usize = 5;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match &*words {
        [] | ["strict" | "shared" | "cluster"] | ["cluster", _] => {}
        ["instructions"] => return instructions::count_all(),
        ["child", subject, url] => return instructions::run_counted_decisions(subject, url),
        _ => anyhow::bail!("usage: tollgate-redis-bench [cluster [LANES] | strict | shared | instructions]"),
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut missed = false;
    let mut kinds = vec![Kind::Redis];
    if std::env::var_os("TOLLGATE_VALKEY_SERVER").is_some() {
        kinds.push(Kind::Valkey);
    }
    for kind in kinds {
        if words == ["shared"] {
            missed |= runtime.block_on(nodes::compare_with_memory(kind))?;
            continue;
        }
        if words != ["strict"] {
            missed |=
                runtime.block_on(cluster::compare_with_one_primary(kind, words.get(1).copied().unwrap_or_default()))?;
        }
        if words.contains(&"cluster") {
            continue;
        }
        missed |= runtime.block_on(compare_contenders(kind))?;
        missed |= runtime.block_on(compare_keys_in_steady_use(kind, true))?;
        missed |= runtime.block_on(compare_keys_in_steady_use(kind, false))?;
        if words == ["strict"] {
            continue;
        }
        missed |= runtime.block_on(nodes::compare_with_memory(kind))?;
        missed |= runtime.block_on(nodes::measure_three_nodes(kind))?;
        missed |= runtime.block_on(attack::flood_refused_key(kind))?;
        missed |= runtime.block_on(stopped::measure_stopped_store(kind))?;
    }
    std::process::exit(missed.into())
}

/// Prints whether a goal is met, and returns whether the goal is missed.
fn check_goal(what: &str, value: f64, holds: bool, goal: &str) -> bool {
    println!("{} {what}: {value:.2} ({goal})", if holds { "ok    " } else { "MISSED" });
    !holds
}

/// Compares decisions on keys in steady use with one call of a plain script per decision, and with the floor. The floor
/// is a script that only reads the keys, and writes them if requests pass. Every key is used shortly before each turn.
/// Returns whether a goal was missed.
async fn compare_keys_in_steady_use(kind: Kind, passes: bool) -> Result<bool> {
    let server = Server::start(kind);
    let (bucket, plain, goal) = if passes {
        (TokenBucket::new("1000000/s".parse()?, 1_000_000)?, ScriptPerRequest::gcra_script(&server).await?, 0.5)
    } else {
        (TokenBucket::new("1/day".parse()?, 1)?, ScriptPerRequest::refusing_gcra_script(&server).await?, 0.35)
    };
    let bucket = Limits::from(Limit::from(bucket));
    let ours = Contender::Ours("ours, callers share calls", TollgateStore::new(&server.url(), bucket, 1).await?);
    let plain = Contender::Each("a plain script, one call per request", plain);
    let mut floor = tokio::task::block_in_place(|| Floor::new(&server, passes))?;
    let (mut of_ours, mut of_floor) = (Vec::new(), Vec::new());
    for _ in 0..TURNS {
        let calls = ours.counts();
        request_every_key(&ours, CALLERS).await?;
        let ours_micros = measure(&[&server], &ours, CALLERS, passes).await?.cpu_micros;
        request_every_key(&plain, CALLERS).await?;
        let plain_micros = measure(&[&server], &plain, CALLERS, passes).await?.cpu_micros;
        let per_call = charges_per_call(calls, ours.counts()).max(1.0) as usize;
        let floor_micros = tokio::task::block_in_place(|| floor.cpu_micros(&server, per_call))?;
        of_ours.push(ours_micros / plain_micros);
        of_floor.push(floor_micros / plain_micros);
    }
    let outcome = if passes { "admitted" } else { "refused" };
    println!("\n{kind:?}, {CALLERS} callers, 100,000 keys in steady use, {outcome}, medians of {TURNS} turns");
    let (ratio, floor) = (nodes::median(&mut of_ours), nodes::median(&mut of_floor));
    println!("       the floor's server CPU time, relative to one call of a plain script: {floor:.2} (no goal)");
    Ok(check_goal(
        "server CPU time, relative to one call of a plain script",
        ratio,
        ratio <= goal,
        &format!("at most {goal}"),
    ))
}

/// Returns the number of charges per call between two readings of the number of calls and charges.
fn charges_per_call(before: Option<(u64, u64)>, after: Option<(u64, u64)>) -> f64 {
    let ((calls, charges), (later_calls, later_charges)) = (before.unwrap_or_default(), after.unwrap_or_default());
    (later_charges - charges) as f64 / (later_calls - calls).max(1) as f64
}

/// Compares the contenders. Returns whether a goal was missed.
async fn compare_contenders(kind: Kind) -> Result<bool> {
    let server = Server::start(kind);
    let bucket = TokenBucket::new("1000000/s".parse()?, 1_000_000)?;
    let one = Limits::from(Limit::from(bucket));
    let second = Nanos::from_secs(1);
    let four = Limits::new([
        bucket.into(),
        FixedWindow::new(1_000_000_000, second)?.into(),
        SlidingWindow::new(1_000_000_000, second)?.into(),
        TokenBucket::new("7777777/s".parse()?, 100_000)?.into(),
    ])?;
    let contenders: Vec<Contender> = vec![
        Contender::Ours("ours, callers share calls", TollgateStore::new(&server.url(), one.clone(), 1).await?),
        Contender::Each("our script, one call per request", ScriptPerRequest::store_script(&server).await?),
        Contender::Each("a plain script, one call per request", ScriptPerRequest::gcra_script(&server).await?),
        Contender::Incr("INCR only", Incr::new(&server).await?),
        Contender::Ours("ours, four limits on a key", TollgateStore::new(&server.url(), four, 1).await?),
        Contender::Ours("ours, four keys in a request", TollgateStore::new(&server.url(), one, 4).await?),
    ];
    let mut figures: Vec<Vec<Figures>> = contenders.iter().map(|_| Vec::new()).collect();
    for _ in 0..TURNS {
        for (contender, figures) in contenders.iter().zip(&mut figures) {
            figures.push(measure(&[&server], contender, CALLERS, true).await?);
        }
    }

    println!("\n{kind:?}, {CALLERS} callers, 100,000 keys, medians of {TURNS} turns");
    println!("{:34} {:>12} {:>22} {:>14} {:>10}", "", "requests/s", "server CPU µs/request", "waited p50 µs", "p99 µs");
    let medians: Vec<Figures> = figures.iter().map(|turns| Figures::median(turns)).collect();
    for (contender, figures) in contenders.iter().zip(&medians) {
        println!(
            "{:34} {:>12.0} {:>22.2} {:>14.0} {:>10.0}",
            contender.name(),
            figures.per_second,
            figures.cpu_micros,
            figures.p50,
            figures.p99
        );
        if let Some((calls, charges)) = contender.counts() {
            println!("    {:.1} charges per call", charges as f64 / calls as f64);
        }
    }
    let ratio = |a: usize, b: usize, of: fn(&Figures) -> f64| {
        let mut ratios: Vec<f64> = figures[a].iter().zip(&figures[b]).map(|(a, b)| of(a) / of(b)).collect();
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    };
    let mut missed = false;
    for (place, name) in [(1, "one call of our script per decision"), (2, "one call of a plain script per decision")] {
        let cpu = ratio(0, place, |figures| figures.cpu_micros);
        missed |= check_goal(&format!("server CPU time, relative to {name}"), cpu, cpu <= 0.5, "at most 0.50");
        let speed = ratio(0, place, |figures| figures.per_second);
        missed |= check_goal(&format!("requests per second, relative to {name}"), speed, speed >= 1.5, "at least 1.50");
    }
    let four = ratio(4, 0, |figures| figures.per_second);
    missed |= check_goal(
        "requests per second with four limits on a key, relative to one limit",
        four,
        four >= 0.6,
        "at least 0.60",
    );
    let four = ratio(5, 0, |figures| figures.per_second);
    println!("       requests per second with four keys in a request, relative to one key: {four:.2} (no goal)");
    Ok(missed)
}
