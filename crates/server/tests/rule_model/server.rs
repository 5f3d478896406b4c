//! A server in this process on real sockets, whose limits use a clock set by the test.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use tokio::net::TcpListener;
use tollgate::clock::ManualClock;
use tollgate::core::Nanos;
use tollgate_engine::{Engine, MemoryStore};
use tollgate_server::app::App;
use tollgate_server::net::accept::{Acceptor, NewConnection};
use tollgate_server::net::protocol::Protocol;
use tollgate_server::net::workers::Workers;
use tollgate_testkit::rule_model::{RuleSet, memory};

type ManualApp = App<MemoryStore<ManualClock>>;

/// The server. Each trace gets a new `App`, which is used by connections that are opened afterwards.
pub(crate) struct ModelServer {
    pub(crate) http: SocketAddr,
    pub(crate) resp: SocketAddr,
    pub(crate) rls: SocketAddr,
    clock: Arc<ManualClock>,
    at: u64,
    current: Arc<Mutex<Arc<ManualApp>>>,
}

fn app_on_clock(clock: &Arc<ManualClock>) -> Arc<ManualApp> {
    let store = MemoryStore::with_clock(200, clock.clone()).expect("a small table");
    Arc::new(App::new(Engine::new(store).expect("a table").with_clock(clock.clone()), None))
}

impl ModelServer {
    /// Starts a server that runs until the process ends.
    pub(crate) fn start() -> Self {
        let clock = Arc::new(ManualClock::at(0));
        let current = Arc::new(Mutex::new(app_on_clock(&clock)));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("an event loop");
        let bind = || runtime.block_on(TcpListener::bind("127.0.0.1:0")).expect("a free port");
        let (http, resp, rls) = (bind(), bind(), bind());
        let [http_at, resp_at, rls_at] = [&http, &resp, &rls].map(|it| it.local_addr().expect("an address"));
        let server = Self { http: http_at, resp: resp_at, rls: rls_at, clock, at: 0, current: current.clone() };
        let workers = Workers::start(1, move |stream, (protocol, guard): NewConnection| {
            let app = current.lock().expect("no panic").clone();
            protocol.serve(stream, None, app, guard)
        });
        let workers = workers.expect("a thread");
        std::thread::spawn(move || {
            let connections = Arc::default();
            runtime.block_on(async {
                tokio::join!(
                    Acceptor::new(Protocol::Http, Arc::clone(&connections), usize::MAX, &workers)
                        .accept_connections(http),
                    Acceptor::new(Protocol::Resp, Arc::clone(&connections), usize::MAX, &workers)
                        .accept_connections(resp),
                    Acceptor::new(Protocol::Rls, connections.clone(), usize::MAX, &workers).accept_connections(rls)
                )
            })
        });
        server
    }

    /// Clears all state and sets the clock to `at`.
    pub(crate) fn begin(&mut self, at: u64) {
        (self.clock, self.at) = (Arc::new(ManualClock::at(at)), at);
        *self.current.lock().expect("no panic") = app_on_clock(&self.clock);
    }

    /// Sets the clock forward.
    pub(crate) fn advance_to(&mut self, at: u64) {
        self.clock.advance(Nanos::from_nanos(at - self.at));
        self.at = at;
    }

    /// Puts rules in force.
    pub(crate) fn put(&self, rules: &RuleSet) {
        memory::put(&self.current.lock().expect("no panic").engine, rules);
    }
}
