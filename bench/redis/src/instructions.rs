//! Counts the instructions per decision on a key in steady use, with callgrind in a child process. The counts are
//! repeatable even on a busy machine. The work of other threads, such as exchanges with the store, is not counted.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use tollgate_engine::{Attribute, Decisions, Engine, Item, MemoryStore, Request, Store};
use tollgate_peers::PeerStore;
use tollgate_redis::{Config, RedisStore};
use tollgate_testkit::servers::{Kind, Server};

use crate::nodes::engine_with_rules;

const DECISIONS: usize = 20_000;

/// Prints the instructions per decision: in memory, `eventual` on Redis, and `eventual` among peers.
pub(crate) fn count_all() -> Result<()> {
    let server = Server::start(Kind::Redis);
    let memory = count_instructions("memory", "-")?;
    println!("instructions of a decision in memory: {memory:.0}");
    // `leased` is omitted: it reads the clock through the kernel's vDSO, which valgrind hides.
    for (subject, url) in [("eventual", &*server.url()), ("peers", "-")] {
        let found = count_instructions(subject, url)?;
        println!("{subject}: {found:.0}; memory store, relative to this number: {:.2}", memory / found);
    }
    Ok(())
}

fn count_instructions(subject: &str, url: &str) -> Result<f64> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let profile = std::env::temp_dir().join(format!("tollgate-callgrind-{}-{subject}", std::process::id()));
    let output = Command::new("valgrind")
        .arg("--tool=callgrind")
        .arg("--toggle-collect=*callgrind_region*")
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(program)
        .args(["child", subject, url])
        .output()
        .context("cannot start valgrind")?;
    ensure!(output.status.success(), "callgrind failed on {subject}: {}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(&profile).with_context(|| format!("callgrind left no {}", profile.display()))?;
    if std::env::var_os("TOLLGATE_KEEP_PROFILES").is_none() {
        std::fs::remove_file(&profile)?;
    }
    let totals =
        text.lines().find_map(|line| line.strip_prefix("totals: ")).context("no totals in callgrind's output")?;
    let total: f64 = totals.trim().parse()?;
    ensure!(total > 0.0, "callgrind did not find the region");
    Ok(total / DECISIONS as f64)
}

/// Runs in the child process: makes uncounted decisions for warm-up, then the same number of counted decisions.
pub(crate) fn run_counted_decisions(subject: &str, url: &str) -> Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let connect = || -> Result<RedisStore> {
        let config = Config::from_url(url)?.namespace(subject)?.deadline(std::time::Duration::from_secs(10));
        Ok(runtime.block_on(RedisStore::connect(config)))
    };
    match subject {
        "memory" => decide(&runtime, &engine_with_rules(MemoryStore::new(1_000)?, "strict")?),
        "eventual" => decide(&runtime, &engine_with_rules(connect()?, "eventual")?),
        _ => {
            let config = tollgate_peers::Config::from_url("peers://127.0.0.1:0")?.listen("127.0.0.1:0".parse()?)?;
            let store = PeerStore::start(config)?;
            runtime.block_on(store.wait_until_joined());
            decide(&runtime, &engine_with_rules(store, "eventual")?)
        }
    }
}

fn decide<S: Store>(runtime: &tokio::runtime::Runtime, engine: &Engine<S>) -> Result<()> {
    runtime.block_on(decide_all(engine))?;
    callgrind_region(runtime, engine)
}

/// Runs the counted decisions. callgrind finds this function by its name and counts only while it runs.
#[inline(never)]
fn callgrind_region<S: Store>(runtime: &tokio::runtime::Runtime, engine: &Engine<S>) -> Result<()> {
    runtime.block_on(decide_all(engine))
}

async fn decide_all<S: Store>(engine: &Engine<S>) -> Result<()> {
    let (attributes, mut decisions) = ([Attribute::new("user", "alice")], Decisions::default());
    let items = [Item::new(&attributes)];
    let request = Request::new("d", &items);
    for _ in 0..DECISIONS {
        ensure!(engine.check(&request, &mut decisions).await?.is_admitted(), "a request was refused");
    }
    Ok(())
}
