//! A cluster of three primaries compared with one primary: decisions per CPU second of the busiest primary, and the
//! latency of a group over two lanes. Each primary has a replica, because replication costs CPU time too.

use anyhow::Result;
use tollgate_core::{Limit, Limits, TokenBucket};
use tollgate_testkit::eventually::eventually;
use tollgate_testkit::servers::{Cluster, Kind, Server};

use crate::contenders::{Contender, TollgateStore};
use crate::measure::{Figures, measure};
use crate::{TURNS, check_goal};

const CALLERS: usize = 256;

/// Compares a cluster with one primary. `lanes` is the lane count, or empty for the default. Returns whether a goal was
/// missed.
pub(crate) async fn compare_with_one_primary(kind: Kind, lanes: &str) -> Result<bool> {
    let (server, cluster) = (Server::start(kind), Cluster::start(kind));
    let _replica = Server::start_with(kind, &["--replicaof", "127.0.0.1", &server.port().to_string()]);
    eventually("the replica follows", || {
        String::from_utf8_lossy(&server.command(&["INFO", "replication"]).bytes()).contains("state=online")
    });
    let url = if lanes.is_empty() { cluster.url() } else { format!("{}?lanes={lanes}", cluster.url()) };
    let bucket = Limits::from(Limit::from(TokenBucket::new("1000000/s".parse()?, 1_000_000)?));
    let one = Contender::Ours("one primary", TollgateStore::new(&server.url(), bucket.clone(), 1).await?);
    let three = Contender::Ours("three primaries", TollgateStore::new(&url, bucket.clone(), 1).await?);
    let lanes = Contender::Ours("three primaries, two lanes", TollgateStore::new(&url, bucket, 2).await?);
    let (alone, primaries) = ([&server], [&cluster.servers[0], &cluster.servers[1], &cluster.servers[2]]);
    let mut figures: [Vec<Figures>; 4] = Default::default();
    let (mut calls, mut charges) = (0, 0);
    for _ in 0..TURNS {
        figures[0].push(measure(&alone, &one, CALLERS, true).await?);
        let before = three.counts().unwrap_or_default();
        figures[1].push(measure(&primaries, &three, CALLERS, true).await?);
        let after = three.counts().unwrap_or_default();
        (calls, charges) = (calls + after.0 - before.0, charges + after.1 - before.1);
        // Uses one caller, so that the latency consists only of round trips.
        figures[2].push(measure(&primaries, &three, 1, true).await?);
        figures[3].push(measure(&primaries, &lanes, 1, true).await?);
    }
    println!("\n{kind:?}, a cluster of three primaries compared with one primary, medians of {TURNS} turns");
    println!("{:34} {:>8} {:>12} {:>26} {:>14}", "", "callers", "requests/s", "busiest CPU µs/request", "p50 µs");
    let cases = [
        ("one primary", CALLERS),
        ("three primaries", CALLERS),
        ("three primaries", 1),
        ("three primaries, two lanes", 1),
    ];
    for ((name, callers), turns) in cases.into_iter().zip(&figures) {
        let Figures { per_second, cpu_micros, p50, .. } = Figures::median(turns);
        println!("{name:34} {callers:>8} {per_second:>12.0} {cpu_micros:>26.2} {p50:>14.0}");
    }
    println!("    {:.1} charges per call, three primaries", charges as f64 / calls as f64);
    let median = |mut ratios: Vec<f64>| {
        ratios.sort_by(f64::total_cmp);
        ratios[ratios.len() / 2]
    };
    let [one, three, single, lanes] = &figures;
    let cpu = median(one.iter().zip(three).map(|(one, three)| one.cpu_micros / three.cpu_micros).collect());
    let latency = median(lanes.iter().zip(single).map(|(lanes, single)| lanes.p50 / single.p50).collect());
    let missed = check_goal(
        "decisions per CPU second of the busiest primary, relative to one primary",
        cpu,
        cpu >= 2.2,
        "at least 2.20",
    );
    Ok(missed
        | check_goal("p50 of a group over two lanes, relative to one lane", latency, latency <= 1.3, "at most 1.30"))
}
