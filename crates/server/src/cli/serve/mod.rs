//! `tollgate serve`: builds the parts of the server, runs them, and shuts them down after a signal.

mod access;
mod args;
mod config;
pub(super) mod doctor;
mod source;
mod start_rules;
mod warnings;

use std::future::pending;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tollgate_engine::{Engine, Store};
use tollgate_peers::{PeerStore, Stage};
use tollgate_redis::{Health, RedisStore};

use crate::app::App;
use crate::console;
use crate::counters;
use crate::live;
use crate::net::accept::{Acceptor, NewConnection};
use crate::net::protocol::Protocol;
use crate::net::tls::Tls;
use crate::net::unix;
use crate::net::workers::Workers;
use crate::observe::log;
use crate::observe::refusals::RefusalLog;
use crate::observe::stalls::StallLog;

pub(super) use args::{EXAMPLES, ServeArgs};
pub(super) use config::parse_count;
use config::{Config, StoreConfig};

/// Serves until SIGTERM or SIGINT.
///
/// # Errors
/// Returns an error if the configuration is invalid, a port cannot be bound, or the rules cannot be loaded.
pub(super) fn run(args: ServeArgs) -> anyhow::Result<ExitCode> {
    let from_environment = std::env::var("RUST_LOG").ok().filter(|level| !level.is_empty());
    let level = args.log_level.clone().or(from_environment);
    log::init(args.log_format, log::parse_filter(level.as_deref().unwrap_or("info"))?);
    let mut config = Config::new(args)?;
    let command_line: Vec<String> = std::env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect();
    warnings::config_warnings(&config, &command_line).iter().for_each(|warning| tracing::warn!("{warning}"));
    fit_file_limit(&mut config);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(open_store_and_serve(&config))?;
    Ok(ExitCode::SUCCESS)
}

/// Opens the store and serves. The rest of the server is generic over the store.
async fn open_store_and_serve(config: &Config) -> anyhow::Result<()> {
    match &config.store {
        StoreConfig::Memory => {
            let _lock = match &config.snapshots {
                Some(snapshots) => Some(counters::lock_directory(&snapshots.directory).await?),
                None => None,
            };
            let (engine, throttles) = counters::restore_or_create(config.capacity, config.snapshots.as_ref())?;
            let app = App::new(engine, Some(throttles));
            app.snapshots.set_key_capacity(config.capacity);
            let app =
                serve(config, app, |app| counters::count_keys_and_save_periodically(app, config.snapshots.clone()))
                    .await?;
            if let Some(snapshots) = &config.snapshots {
                counters::save_snapshot(&app, snapshots);
            }
            Ok(())
        }
        StoreConfig::Redis(url) => {
            let store = tollgate_redis::Config::from_url(url.reveal()).context("--store")?;
            let store = store.deadline(config.store_deadline);
            let store = RedisStore::connect(store).await;
            let (health, nodes, membership) = (store.watch_health(), store.watch_nodes(), store.membership());
            let served =
                serve(config, App::new(Engine::new(store)?, None), |app| watch_redis_status(health, nodes, app)).await;
            if let Ok(app) = &served {
                app.engine.store().flush().await;
            }
            membership.leave().await;
            served.map(drop)
        }
        StoreConfig::Peers(peers) => {
            let listen = peers.listen_address();
            let store = PeerStore::start((**peers).clone()).with_context(|| {
                format!("cannot listen for other servers on {listen}; choose another address with --peers-listen")
            })?;
            let store = Arc::new(store);
            // Waits until this server has joined its peers. Until then, all limits look unused.
            let stage = match timeout(JOIN_WARNING_DELAY, store.wait_until_joined()).await {
                Ok(stage) => stage,
                Err(_) => {
                    tracing::warn!(
                        "other servers answer, but none has accepted this server; waiting until one accepts it or all \
                         stop answering"
                    );
                    store.wait_until_joined().await
                }
            };
            tracing::info!(
                complete = stage == Stage::Ready { complete: true },
                nodes = store.node_count(),
                "joined peers"
            );
            let app = App::new(Engine::new(store.clone())?, None);
            let served = serve(config, app, |app| watch_peer_status(store.clone(), app)).await;
            store.leave().await;
            served.map(drop)
        }
    }
}

/// Time after which a warning is logged if this server has not joined its peers. Without other servers, joining takes
/// two seconds.
const JOIN_WARNING_DELAY: Duration = Duration::from_secs(4);

/// Forwards the store's health and node count to `app`, logs store stalls, and charges arrears to the store servers
/// that are up.
async fn watch_redis_status(
    mut health: watch::Receiver<Health>,
    mut nodes: watch::Receiver<u32>,
    app: Arc<App<RedisStore>>,
) {
    let (mut stalls, mut every_second) = (StallLog::default(), interval(Duration::from_secs(1)));
    every_second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        match &*health.borrow_and_update() {
            Health::Up => app.health.set_up(),
            Health::Connecting => app.health.set_down("not connected yet"),
            Health::Down { why } => app.health.set_down(why),
        }
        app.engine.set_node_count(*nodes.borrow_and_update());
        // Arrears are charged even while the store is down, because some primaries of a cluster may be up.
        app.engine.repay().await;
        let changed = tokio::select! {
            changed = health.changed() => changed,
            changed = nodes.changed() => changed,
            _ = every_second.tick() => {
                app.metrics.set_store_counts(app.engine.store().counts());
                app.metrics.set_sharing_stats(app.engine.store().sharing_stats());
                stalls.log_ended_stall(app.engine.counts().fallback, app.health.is_up());
                Ok(())
            }
        };
        if changed.is_err() {
            return pending().await;
        }
    }
}

/// Forwards the peer status (node count, majority and metrics) to `app`, logs stalls, and charges arrears while there
/// is a majority.
async fn watch_peer_status(store: Arc<PeerStore>, app: Arc<App<Arc<PeerStore>>>) {
    let (mut stalls, mut every_second) = (StallLog::default(), interval(Duration::from_secs(1)));
    every_second.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        every_second.tick().await;
        let rules = app.source.status(app.now());
        let checksum = rules.checksum.as_deref().and_then(|checksum| checksum.get(..16));
        let checksum = checksum.and_then(|digits| u64::from_str_radix(digits, 16).ok());
        store.set_rules(rules.revision.and_then(|it| u64::try_from(it).ok()).unwrap_or(0), checksum.unwrap_or(0));
        let status = store.status();
        match status.has_majority {
            true => app.health.set_up(),
            false => app.health.set_down("this server does not see a majority of the servers that share the limits"),
        }
        app.engine.set_node_count(status.nodes);
        if app.health.is_up() {
            app.engine.repay().await;
        }
        stalls.log_ended_stall(app.engine.counts().fallback, app.health.is_up());
        app.metrics.peers.set(status);
    }
}

async fn serve<S: Store + 'static, F: Future<Output = ()>>(
    config: &Config,
    app: App<S>,
    follow: impl FnOnce(Arc<App<S>>) -> F,
) -> anyhow::Result<Arc<App<S>>> {
    let mut stop = StopSignals::new()?;
    let refusals = config.log_refusals.map(RefusalLog::new).transpose().context("--log-refusals")?;
    let app = app.with_key_display(config.top_keys).with_refusal_log(refusals).with_client_ip(config.client.clone());
    let app = app.with_max_connection_age(config.rls_connection_age).with_rls_options(config.rls_options.clone());
    let app = app.with_allowed_hosts(config.hosts.clone());
    let tls = config.tls.clone().map(Tls::new).transpose()?.map(Arc::new);
    let (app, rules) = start_rules::start(config, app.with_token_policy(config.tokens)).await?;
    app.live.set_background(rules.handle().clone());
    drop(rules.handle().spawn(live::sample_every_second(app.clone())));
    drop(rules.handle().spawn(async { console::compress_files() }));
    let workers = start_workers(config.threads, &app, tls.clone())?;
    let (http, resp) = (bind_listener("--http", config.http).await?, bind_listener("--resp", config.resp).await?);
    let rls = bind_listener("--rls", config.rls).await?;
    let socket = config.rls_socket.as_deref().map(|path| {
        unix::bind(path).with_context(|| format!("cannot listen on {}; choose another path with --rls", path.display()))
    });
    let socket = socket.transpose()?;
    let encrypted = if tls.is_some() { "on" } else { "off" };
    let (store, from, version) = (config.store.name(), app.source.to_string(), env!("CARGO_PKG_VERSION"));
    let count = app.engine.rules().rules().len();
    let [http_at, resp_at, rls_at] = [&http, &resp, &rls].map(listener_address);
    let rls_at = config.rls_socket.as_ref().map_or(rls_at, |path| format!("unix:{}", path.display()));
    tracing::info!(
        http = http_at,
        resp = resp_at,
        rls = rls_at,
        tls = encrypted,
        store,
        rules = from,
        count,
        version,
        "listening"
    );
    let acceptor = |protocol| Acceptor::new(protocol, app.connections.clone(), config.connections, &workers);
    let take = async |listener: Option<TcpListener>, protocol| match listener {
        Some(listener) => acceptor(protocol).accept_connections(listener).await,
        None => pending().await,
    };
    let take_unix = async {
        match socket {
            Some(socket) => acceptor(Protocol::Rls).accept_connections(socket).await,
            None => pending().await,
        }
    };
    let renew = async {
        match tls {
            Some(tls) => tls.watch_files().await,
            None => pending().await,
        }
    };
    tokio::select! {
        () = take(http, Protocol::Http) => {}
        () = take(resp, Protocol::Resp) => {}
        () = take(rls, Protocol::Rls) => {}
        () = take_unix => {}
        () = renew => {}
        () = follow(app.clone()) => {}
        () = stop.wait() => {}
    }
    tracing::info!(connections = app.connections.count(), "stopping");
    app.connections.stop();
    if let Some(path) = &config.rls_socket {
        // An error is ignored: the next start replaces a leftover file.
        let _ = std::fs::remove_file(path);
    }
    tokio::select! {
        () = app.connections.wait_until_all_closed() => tracing::info!("stopped"),
        () = tokio::time::sleep(config.drain) => {
            tracing::warn!(connections = app.connections.count(), "drain timeout: stopped with open connections");
        }
        () = stop.wait() => tracing::warn!("second signal: stopping immediately"),
    }
    workers.stop();
    if let Some(audit) = app.source.audit_queues() {
        audit.flush().await;
    }
    rules.stop();
    Ok(app)
}

fn start_workers<S: Store + 'static>(
    threads: usize,
    app: &Arc<App<S>>,
    tls: Option<Arc<Tls>>,
) -> anyhow::Result<Workers<NewConnection>> {
    let app = app.clone();
    let workers = Workers::start(threads, move |stream, (protocol, guard): NewConnection| {
        protocol.serve(stream, tls.clone(), app.clone(), guard)
    });
    workers.context("cannot start the threads for connections")
}

/// Raises the open-file limit of the process to the hard limit. Lowers `--connections` if the connections would need
/// more files than the limit allows.
fn fit_file_limit(config: &mut Config) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current < limit.maximum {
        // If `setrlimit` fails, the limit is unchanged.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    }
    let Some(files) = getrlimit(Resource::Nofile).current else { return };
    let budgets = [config.http, config.resp, config.rls].iter().flatten().count() + config.rls_socket.iter().count();
    let fits = usize::try_from(files).unwrap_or(usize::MAX).saturating_sub(RESERVED_FILES) / budgets.max(1);
    let fits = fits.max(1);
    if config.connections > fits {
        tracing::warn!(
            connections = fits,
            files,
            "--connections {} lowered to fit the limit of open files",
            config.connections
        );
        config.connections = fits;
    }
}

/// File descriptors reserved for databases, snapshots, health checks and the store.
const RESERVED_FILES: usize = 128;

async fn bind_listener(flag: &str, address: Option<SocketAddr>) -> anyhow::Result<Option<TcpListener>> {
    let Some(address) = address else { return Ok(None) };
    let listener = TcpListener::bind(address).await;
    listener.map(Some).with_context(|| format!("cannot listen on {address}; choose another address with {flag}"))
}

fn listener_address(listener: &Option<TcpListener>) -> String {
    let address = listener.as_ref().and_then(|listener| listener.local_addr().ok());
    address.map_or("off".to_owned(), |address| address.to_string())
}

/// The signals that end the server.
struct StopSignals {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignals {
    fn new() -> anyhow::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn wait(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
