//! `tollgate serve`: puts the parts together, runs them, and takes them apart again when told to stop.

use std::future::pending;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;

use anyhow::Context;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tollgate::Throttles;
use tollgate_engine::{Engine, MemoryStore, Store};
use tollgate_redis::{Health, RedisStore};

use crate::config::raw::ServeArgs;
use crate::config::{Config, StoreConfig};
use crate::front::accept::{Newcomer, Protocol, accept};
use crate::front::{http, resp};
use crate::gate::Gate;
use crate::retrieve::file::{self, RuleFile};
use crate::worker::Workers;

/// Serves until told to stop.
///
/// # Errors
/// When the configuration is wrong, or a port or the rules cannot be had.
pub fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_target(false).init();
    let config = Config::new(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(with_store(&config))?;
    Ok(ExitCode::SUCCESS)
}

/// The only place that knows which stores there are.
async fn with_store(config: &Config) -> anyhow::Result<()> {
    match &config.store {
        StoreConfig::Memory => {
            let engine = Engine::new(MemoryStore::new(config.capacity)?)?;
            serve(config, Gate::new(engine, Some(Throttles::new(config.capacity)?)), |_| pending()).await
        }
        StoreConfig::Redis(url) => {
            let store = tollgate_redis::Config::from_url(url.reveal()).context("--store")?;
            let store = store.deadline(config.store_deadline);
            let store = RedisStore::connect(store).await;
            let (health, nodes) = (store.watch_health(), store.watch_nodes());
            serve(config, Gate::new(Engine::new(store)?, None), |gate| follow(health, nodes, gate)).await
        }
    }
}

/// Passes on how the store is and how many nodes share it, for as long as there is one.
async fn follow(mut health: watch::Receiver<Health>, mut nodes: watch::Receiver<u32>, gate: Arc<Gate<RedisStore>>) {
    loop {
        match &*health.borrow_and_update() {
            Health::Up => gate.health.up(),
            Health::Connecting => gate.health.down("there is no connection yet"),
            Health::Down { why } => gate.health.down(why),
        }
        gate.engine.set_nodes(*nodes.borrow_and_update());
        let changed = tokio::select! {
            changed = health.changed() => changed,
            changed = nodes.changed() => changed,
        };
        if changed.is_err() {
            return pending().await;
        }
    }
}

async fn serve<S: Store + 'static, F: Future<Output = ()>>(
    config: &Config,
    gate: Gate<S>,
    follow: impl FnOnce(Arc<Gate<S>>) -> F,
) -> anyhow::Result<()> {
    let mut stop = Stop::new()?;
    let gate = Arc::new(gate.with_names(config.top_keys));
    let rules = config.rules.clone().map(RuleFile::new);
    let rules = rules.map(|mut rules| file::load(&gate, &mut rules).map(|()| rules)).transpose()?;
    let workers = start(config.threads, &gate)?;
    let (http, resp) = (bind("--http", config.http).await?, bind("--resp", config.resp).await?);
    tracing::info!(http = address(&http), resp = address(&resp), store = config.store.name(), "listening");
    let take = async |listener: Option<TcpListener>, protocol| match listener {
        Some(listener) => accept(listener, protocol, gate.drain.clone(), config.connections, &workers).await,
        None => pending().await,
    };
    let watch = async {
        match rules {
            Some(rules) => file::watch(gate.clone(), rules).await,
            None => pending().await,
        }
    };
    tokio::select! {
        () = take(http, Protocol::Http) => {}
        () = take(resp, Protocol::Resp) => {}
        () = watch => {}
        () = follow(gate.clone()) => {}
        () = stop.told() => {}
    }
    tracing::info!(connections = gate.connections(), "stopping");
    gate.drain.stop();
    tokio::select! {
        () = gate.drain.empty() => tracing::info!("stopped"),
        () = tokio::time::sleep(config.drain) => {
            tracing::warn!(connections = gate.connections(), "stopped without waiting for the rest");
        }
        () = stop.told() => tracing::warn!("told again, stopped at once"),
    }
    workers.stop();
    Ok(())
}

fn start<S: Store + 'static>(threads: usize, gate: &Arc<Gate<S>>) -> anyhow::Result<Workers<Newcomer>> {
    let gate = gate.clone();
    let workers = Workers::start(threads, move |stream, (protocol, guest)| {
        let gate = gate.clone();
        async move {
            match protocol {
                Protocol::Http => http::serve(stream, gate, guest).await,
                Protocol::Resp => resp::serve(stream, gate, guest).await,
            }
        }
    });
    workers.context("cannot start the threads for connections")
}

async fn bind(flag: &str, address: Option<SocketAddr>) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = address else { return Ok(None) };
    let listener = TcpListener::bind(address).await;
    listener.map(Some).with_context(|| format!("cannot listen on {address}; choose another address with {flag}"))
}

fn address(listener: &Option<TcpListener>) -> String {
    let address = listener.as_ref().and_then(|listener| listener.local_addr().ok());
    address.map_or("off".to_owned(), |address| address.to_string())
}

/// The signals that end the server.
struct Stop {
    terminate: Signal,
    interrupt: Signal,
}

impl Stop {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn told(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
