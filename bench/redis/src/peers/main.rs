//! Measures limits that three servers share among themselves. Compares `eventual` decisions with the memory store, and
//! `strict` decisions by another node with a bare TCP echo. Also measures CPU time, bytes per update, and a node that
//! joins.
//!
//! This process is one of the nodes; the other nodes are separate processes on the same machine. Measurements that
//! are compared with each other alternate.

mod node;

use std::future::Future;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use node::{ECHO_BYTES, Node, processor_time};
use tollgate_engine::rules::{Rules, Source};
use tollgate_engine::{Attribute, Decisions, Engine, Item, MemoryStore, Request, Store};
use tollgate_peers::PeerStore;

const RULES: &str = "\
domain: api
rules:
- {id: seen, when: {kind: eventual}, per: [key], limit: 1000000/s, consistency: eventual}
- {id: exact, when: {kind: strict}, per: [key], limit: 1000000/s, on_fault: closed}
- {id: joined, when: {kind: joined}, per: [key], limit: 1000/day, consistency: eventual}
";

const PARTS: [&str; 5] = ["eventual", "strict", "load", "bytes", "join"];
const CALLERS: usize = 64;
const KEYS: usize = 1_000;
/// Messages per write of the bare echo under load, about the number of asks per write with [`CALLERS`] callers.
const ECHO_BATCH: usize = 16;
/// Message size of the bare echo under load in bytes, the size of an ask with one charge.
const ASK_BYTES: usize = 40;

type PeersEngine = Engine<Arc<PeerStore>>;

/// Sizes of the measurements. A short run only tests that everything works.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    turns: usize,
    decisions: usize,
    round_trips: usize,
    load: Duration,
    joined_keys: u64,
}

impl Sizes {
    const FULL_RUN: Self = Self {
        turns: 11,
        decisions: 400_000,
        round_trips: 4_000,
        load: Duration::from_secs(2),
        joined_keys: 1_000_000,
    };
    const SHORT_RUN: Self =
        Self { turns: 3, decisions: 20_000, round_trips: 500, load: Duration::from_millis(300), joined_keys: 50_000 };
}

fn main() -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match *words {
        ["node", own, seeds, max_keys] => runtime.block_on(node::run(own, seeds, max_keys)),
        [] | ["short"] => {
            let sizes = if words.is_empty() { Sizes::FULL_RUN } else { Sizes::SHORT_RUN };
            let missed = runtime.block_on(measure(sizes, None))?;
            std::process::exit(missed.into())
        }
        [part] if PARTS.contains(&part) => {
            let missed = runtime.block_on(measure(Sizes::FULL_RUN, Some(part)))?;
            std::process::exit(missed.into())
        }
        _ => anyhow::bail!("usage: bench-peers [short | {}]", PARTS.join(" | ")),
    }
}

/// Runs all measurements, or only one of [`PARTS`]. Returns whether a goal was missed.
async fn measure(sizes: Sizes, part: Option<&str>) -> Result<bool> {
    let is_chosen = |name: &str| part.is_none_or(|part| part == name);
    let addresses: Vec<SocketAddr> = {
        let listeners: Result<Vec<_>, _> = (0..4).map(|_| TcpListener::bind("127.0.0.1:0")).collect();
        listeners?.iter().map(TcpListener::local_addr).collect::<Result<_, _>>()?
    };
    let seeds = addresses[..3].iter().map(SocketAddr::to_string).collect::<Vec<_>>().join(",");
    let max_keys = 2 * sizes.joined_keys as usize;
    let store = Arc::new(PeerStore::start(node::config(addresses[0], &seeds, max_keys)?)?);
    let mut others = [Node::start(addresses[1], &seeds, max_keys)?, Node::start(addresses[2], &seeds, max_keys)?];
    store.wait_until_joined().await;
    wait_until(|| Ok(store.node_count() == 3)).await?;
    let engine: PeersEngine = Engine::new(store.clone())?;
    engine.put(&Rules::read(&[Source { name: "bench", text: RULES.as_bytes() }])?)?;
    let engine = Arc::new(engine);
    let mut goals = Goals::default();
    if is_chosen("eventual") {
        measure_eventual(&engine, sizes, &mut goals)?;
    }
    let (here, elsewhere) = keys_by_home(&engine, &store).await?;
    if is_chosen("strict") {
        measure_strict(&engine, &elsewhere, &others[0], sizes, &mut goals).await?;
    }
    if is_chosen("load") {
        measure_cpu_time(&engine, &here, &elsewhere, &others, sizes, &mut goals).await?;
    }
    if is_chosen("bytes") {
        measure_bytes_per_update(&engine, &mut others, &mut goals).await?;
    }
    if is_chosen("join") {
        measure_join(&engine, &mut others, (addresses[3], &seeds, max_keys), sizes, &mut goals).await?;
    }
    Ok(goals.missed)
}

/// Compares `eventual` decisions with decisions of the memory store, on one thread.
fn measure_eventual(peers: &PeersEngine, sizes: Sizes, goals: &mut Goals) -> Result<()> {
    let memory = Engine::new(MemoryStore::new(100_000)?)?;
    memory.put(&Rules::read(&[Source { name: "bench", text: RULES.as_bytes() }])?)?;
    let keys: Vec<String> = (0..KEYS).map(|number| format!("key {number}")).collect();
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..sizes.turns {
        ours.push(nanos_per_decision(peers, "eventual", &keys, sizes.decisions)?);
        theirs.push(nanos_per_decision(&memory, "eventual", &keys, sizes.decisions)?);
    }
    let ratios: Vec<f64> = ours.iter().zip(&theirs).map(|(ours, theirs)| theirs / ours).collect();
    println!("an eventual decision: {:.0} ns; memory store: {:.0} ns", median(&ours), median(&theirs));
    goals.at_least("speed of eventual decisions, relative to the memory store", median(&ratios), 0.66);
    Ok(())
}

/// Returns the nanoseconds per decision. The decisions must complete on the first poll.
fn nanos_per_decision<S: Store>(engine: &Engine<S>, kind: &str, keys: &[String], decisions: usize) -> Result<f64> {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    let (mut buffers, mut allowed) = (Decisions::default(), 0);
    let start = Instant::now();
    for number in 0..decisions {
        let attributes = [Attribute::new("kind", kind), Attribute::new("key", &keys[number % keys.len()])];
        let items = [Item::new(&attributes)];
        let request = Request::new("api", &items);
        if let std::task::Poll::Ready(decision) =
            std::pin::pin!(engine.check(&request, &mut buffers)).poll(&mut context)
        {
            allowed += usize::from(decision.is_ok_and(|decision| decision.is_admitted()));
        }
    }
    let elapsed = start.elapsed();
    ensure!(allowed == decisions, "{allowed} of {decisions} requests were admitted");
    Ok(elapsed.as_nanos() as f64 / decisions as f64)
}

async fn check_is_admitted(engine: &PeersEngine, kind: &str, key: &str, decisions: &mut Decisions) -> Result<()> {
    let attributes = [Attribute::new("kind", kind), Attribute::new("key", key)];
    let items = [Item::new(&attributes)];
    let decision = engine.check(&Request::new("api", &items), decisions).await?;
    ensure!(decision.is_admitted(), "refused: {key}");
    Ok(())
}

/// Returns keys whose home is this node, and keys with other homes.
async fn keys_by_home(engine: &PeersEngine, store: &PeerStore) -> Result<(Vec<String>, Vec<String>)> {
    let (mut here, mut elsewhere, mut decisions) = (Vec::new(), Vec::new(), Decisions::default());
    for number in 0.. {
        if here.len() >= KEYS && elsewhere.len() >= KEYS {
            break;
        }
        let (key, before) = (format!("key {number}"), store.status().links.asked);
        check_is_admitted(engine, "strict", &key, &mut decisions).await?;
        let is_asked = store.status().links.asked > before;
        if is_asked { elsewhere.push(key) } else { here.push(key) }
    }
    Ok((here, elsewhere))
}

/// Compares sequential `strict` decisions by another node with a bare echo.
async fn measure_strict(
    engine: &PeersEngine,
    keys: &[String],
    other: &Node,
    sizes: Sizes,
    goals: &mut Goals,
) -> Result<()> {
    let mut stream = other.connect_echo()?;
    let (mut ours, mut bare, mut decisions) = (Vec::new(), Vec::new(), Decisions::default());
    for _ in 0..sizes.turns {
        let (mut asked, mut echoed) = (Vec::new(), Vec::new());
        for number in 0..sizes.round_trips {
            let start = Instant::now();
            check_is_admitted(engine, "strict", &keys[number % keys.len()], &mut decisions).await?;
            asked.push(start.elapsed().as_nanos() as f64);
        }
        let mut message = [7; ECHO_BYTES];
        for _ in 0..sizes.round_trips {
            let start = Instant::now();
            stream.write_all(&message)?;
            stream.read_exact(&mut message)?;
            echoed.push(start.elapsed().as_nanos() as f64);
        }
        ours.push(median(&asked));
        bare.push(median(&echoed));
    }
    let ratios: Vec<f64> = ours.iter().zip(&bare).map(|(ours, bare)| ours / bare).collect();
    println!(
        "a strict decision by another node: p50 {:.1} µs; a bare echo: {:.1} µs",
        median(&ours) / 1e3,
        median(&bare) / 1e3
    );
    goals.at_most("p50 of strict decisions, relative to a bare echo", median(&ratios), 2.0);
    Ok(())
}

/// Measures the CPU time of all nodes per decision, with many callers, and compares decisions by another node with
/// decisions by this node. Also measures bare echoes of [`ECHO_BATCH`] messages per write, which are the floor of
/// decisions by another node.
async fn measure_cpu_time(
    engine: &Arc<PeersEngine>,
    here: &[String],
    elsewhere: &[String],
    others: &[Node],
    sizes: Sizes,
    goals: &mut Goals,
) -> Result<()> {
    let used = || -> Result<f64> {
        let others: Result<Vec<f64>> = others.iter().map(Node::processor_time).collect();
        Ok(processor_time("self")? + others?.iter().sum::<f64>())
    };
    let (mut local, mut asked, mut echoed, mut rates) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    let mut streams = others.iter().map(Node::connect_echo).collect::<Result<Vec<_>>>()?;
    for _ in 0..sizes.turns {
        for (keys, micros) in [(here, &mut local), (elsewhere, &mut asked)] {
            let before = used()?;
            let made = count_decisions(engine, keys, sizes.load).await?;
            micros.push((used()? - before) * 1e6 / made as f64);
            rates.push(made as f64 / sizes.load.as_secs_f64());
        }
        let (before, start, mut made) = (used()?, Instant::now(), 0);
        while start.elapsed() < sizes.load {
            for stream in &mut streams {
                let mut batch = [7; ECHO_BATCH * ASK_BYTES];
                stream.write_all(&batch)?;
                stream.read_exact(&mut batch)?;
                made += ECHO_BATCH;
            }
        }
        echoed.push((used()? - before) * 1e6 / made as f64);
    }
    println!(
        "CPU time of a strict decision, {CALLERS} callers: {:.2} µs by this node, {:.2} µs by another node; {:.0} and {:.0} decisions per second",
        median(&local),
        median(&asked),
        median(&rates.iter().step_by(2).copied().collect::<Vec<_>>()),
        median(&rates.iter().skip(1).step_by(2).copied().collect::<Vec<_>>()),
    );
    println!(
        "CPU time of a message in a bare TCP echo, {ECHO_BATCH} messages per write: {:.2} µs; relative to a decision by this node: {:.2}",
        median(&echoed),
        median(&echoed) / median(&local)
    );
    goals.at_most(
        "CPU time of a decision by another node, relative to a decision by this node",
        median(&asked) / median(&local),
        3.0,
    );
    Ok(())
}

/// Returns the number of decisions that [`CALLERS`] tasks make within `time`.
async fn count_decisions(engine: &Arc<PeersEngine>, keys: &[String], time: Duration) -> Result<u64> {
    let (stop, made) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let tasks: Vec<_> = (0..CALLERS)
        .map(|caller| {
            let (engine, stop, made, keys) = (engine.clone(), stop.clone(), made.clone(), keys.to_vec());
            tokio::spawn(async move {
                let (mut decisions, mut number) = (Decisions::default(), caller);
                while !stop.load(Ordering::Relaxed) {
                    check_is_admitted(&engine, "strict", &keys[number % keys.len()], &mut decisions).await?;
                    made.fetch_add(1, Ordering::Relaxed);
                    number += CALLERS + 1;
                    // A local decision never waits, so the task has to yield to the others explicitly.
                    tokio::task::yield_now().await;
                }
                anyhow::Ok(())
            })
        })
        .collect();
    tokio::time::sleep(time).await;
    stop.store(true, Ordering::Relaxed);
    for task in tasks {
        task.await??;
    }
    Ok(made.load(Ordering::Relaxed))
}

/// Measures the bytes that another node receives per update of a key.
async fn measure_bytes_per_update(engine: &PeersEngine, others: &mut [Node; 2], goals: &mut Goals) -> Result<()> {
    const UPDATES: u64 = 20_000;
    let mut decisions = Decisions::default();
    let (before, keys) = others[0].read_counts()?;
    for number in 0..UPDATES {
        check_is_admitted(engine, "eventual", &format!("update {number}"), &mut decisions).await?;
    }
    wait_until(|| Ok(others[0].read_counts()?.1 >= keys + UPDATES)).await?;
    let received = others[0].read_counts()?.0 - before;
    goals.at_most("bytes per update of a key and peer", received as f64 / UPDATES as f64, 24.0);
    Ok(())
}

/// Measures a node that joins while the other nodes have many keys. Also measures decisions on another node during
/// the join.
async fn measure_join(
    engine: &Arc<PeersEngine>,
    others: &mut [Node; 2],
    (own, seeds, max_keys): (SocketAddr, &str, usize),
    sizes: Sizes,
    goals: &mut Goals,
) -> Result<()> {
    let mut decisions = Decisions::default();
    let keys = others[0].read_counts()?.1;
    for number in 0..sizes.joined_keys {
        check_is_admitted(engine, "joined", &format!("{number}"), &mut decisions).await?;
        if number % 4_096 == 0 {
            tokio::task::yield_now().await;
        }
    }
    for other in others.iter_mut() {
        wait_until(|| Ok(other.read_counts()?.1 >= keys + sizes.joined_keys / 2)).await?;
    }
    let asked: Vec<String> = (0..KEYS).map(|number| format!("key {number}")).collect();
    let (decided, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let (undisturbed, during, seconds, mut joined) = std::thread::scope(|scope| -> Result<_> {
        let deciding = scope.spawn(|| -> Result<()> {
            while !stop.load(Ordering::Relaxed) {
                nanos_per_decision(engine, "eventual", &asked, KEYS)?;
                decided.fetch_add(KEYS as u64, Ordering::Relaxed);
            }
            Ok(())
        });
        let rate = |begun: Instant, before: u64| {
            (decided.load(Ordering::Relaxed) - before) as f64 / begun.elapsed().as_secs_f64()
        };
        let (begun, before) = (Instant::now(), decided.load(Ordering::Relaxed));
        std::thread::sleep(sizes.load);
        let undisturbed = rate(begun, before);
        let (begun, before) = (Instant::now(), decided.load(Ordering::Relaxed));
        let joined = Node::start(own, seeds, max_keys);
        let (during, seconds) = (rate(begun, before), begun.elapsed().as_secs_f64());
        stop.store(true, Ordering::Relaxed);
        deciding.join().map_err(|_| anyhow::anyhow!("a thread panicked"))??;
        Ok((undisturbed, during, seconds, joined?))
    })?;
    println!("a node joined with {} keys after {seconds:.2} s", joined.read_counts()?.1);
    goals.at_most("seconds to join", seconds, 5.0);
    goals.at_least("decisions on another node during a join", during / undisturbed, 0.9);
    Ok(())
}

/// Polls until a condition holds.
async fn wait_until(mut condition: impl FnMut() -> Result<bool>) -> Result<()> {
    let start = Instant::now();
    while !condition()? {
        ensure!(start.elapsed() < Duration::from_secs(60), "the condition did not hold within a minute");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(())
}

#[derive(Default)]
struct Goals {
    missed: bool,
}

impl Goals {
    fn at_most(&mut self, what: &str, value: f64, goal: f64) {
        self.print_goal(what, value, value <= goal, &format!("at most {goal:.2}"));
    }

    fn at_least(&mut self, what: &str, value: f64, goal: f64) {
        self.print_goal(what, value, value >= goal, &format!("at least {goal:.2}"));
    }

    fn print_goal(&mut self, what: &str, value: f64, holds: bool, goal: &str) {
        println!("{} {what}: {value:.2} ({goal})", if holds { "ok    " } else { "MISSED" });
        self.missed |= !holds;
    }
}

fn median(figures: &[f64]) -> f64 {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}
