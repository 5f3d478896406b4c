//! A primary with two replicas, watched by three sentinels.

use std::net::Ipv4Addr;
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

use crate::eventually::eventually;

use super::{Certificates, Kind, Proxy, Reply, RespConnection, Server, free_port, is_listening};

/// Name under which the sentinels monitor the primary.
pub const PRIMARY_NAME: &str = "limits";

/// Address from which replicas and sentinels connect if they reach the primary through a proxy.
pub const REPLICA_SIDE_ADDRESS: Ipv4Addr = Ipv4Addr::new(127, 0, 0, 2);

/// Options that make a server accept connections from any loopback address. In protected mode, which is the default,
/// Redis 7.0 accepts only 127.0.0.1 and ::1.
const ACCEPT_ANY_LOOPBACK: [&str; 2] = ["--protected-mode", "no"];

/// Running servers and their sentinels.
#[derive(Debug)]
pub struct Sentinels {
    /// All servers. Initially the first server is the primary.
    pub servers: Vec<Server>,
    sentinels: Vec<Sentinel>,
}

#[derive(Debug)]
struct Sentinel {
    /// The port without TLS.
    port: u16,
    /// The port for clients.
    client_port: u16,
    process: Child,
    /// Contains the configuration, which the sentinel rewrites.
    _directory: TempDir,
}

impl Sentinels {
    /// Starts one primary, two replicas and three sentinels. The sentinels require `password` unless it is empty.
    /// Returns when the sentinels know each other and the replicas.
    ///
    /// # Panics
    /// Panics if the servers do not start.
    pub fn start(kind: Kind, password: &str) -> Self {
        let primary = Server::start_with(kind, &ACCEPT_ANY_LOOPBACK);
        let port = primary.port();
        Self::start_with_primary(primary, kind, port, password, None)
    }

    /// Like [`start`](Self::start), but replicas, sentinels and clients reach the primary through a proxy. Replicas
    /// and sentinels connect from [`REPLICA_SIDE_ADDRESS`], clients from another address, so that a test can cut off the replicas
    /// and sentinels but not the clients.
    ///
    /// # Panics
    /// Panics if the servers do not start.
    pub fn start_behind_proxy(kind: Kind) -> (Self, Proxy) {
        let primary = Server::start_with(kind, &ACCEPT_ANY_LOOPBACK);
        let proxy = Proxy::to(primary.port());
        (Self::start_with_primary(primary, kind, proxy.port(), "", None), proxy)
    }

    /// Like [`start`](Self::start), but all connections use TLS.
    ///
    /// # Panics
    /// Panics if the servers do not start.
    pub fn start_with_tls(certificates: &Certificates) -> Self {
        let port = free_port();
        let options = tls_options(certificates, port);
        let options: Vec<&str> = options.iter().map(String::as_str).chain(ACCEPT_ANY_LOOPBACK).collect();
        Self::start_with_primary(Server::start_with(Kind::Redis, &options), Kind::Redis, port, "", Some(certificates))
    }

    fn start_with_primary(
        primary: Server,
        kind: Kind,
        port: u16,
        password: &str,
        certificates: Option<&Certificates>,
    ) -> Self {
        let options = format!(
            "--replicaof 127.0.0.1 {port} --bind-source-addr {REPLICA_SIDE_ADDRESS} --replica-announce-ip 127.0.0.1 \
             --repl-diskless-sync-delay 0"
        );
        let replica = || {
            let with_tls = certificates.map(|certificates| tls_options(certificates, free_port())).unwrap_or_default();
            let with_tls = with_tls.iter().map(String::as_str);
            let options: Vec<&str> = options.split(' ').chain(ACCEPT_ANY_LOOPBACK).chain(with_tls).collect();
            Server::start_with(kind, &options)
        };
        let servers = vec![primary, replica(), replica()];
        for replica in &servers[1..] {
            eventually("a replica follows", || info_contains(replica, "master_link_status:up"));
        }
        let sentinels = (0..3).map(|_| Sentinel::start(kind, port, password, certificates)).collect();
        let new = Self { servers, sentinels };
        for sentinel in &new.sentinels {
            let mut link = sentinel.connect(password);
            let count = |link: &mut RespConnection, what: &str| match link.command(&["SENTINEL", what, PRIMARY_NAME]) {
                Reply::List(list) => list.len(),
                _ => 0,
            };
            eventually("the sentinels know each other", || {
                count(&mut link, "SENTINELS") == 2 && count(&mut link, "REPLICAS") == 2
            });
        }
        new
    }

    /// Returns the sentinels' addresses as a comma-separated list for a URL.
    pub fn addresses(&self) -> String {
        let seeds: Vec<String> = self.sentinels.iter().map(|one| format!("127.0.0.1:{}", one.client_port)).collect();
        seeds.join(",")
    }

    /// Requests a failover and waits until a sentinel starts it.
    ///
    /// # Panics
    /// Panics if no failover starts.
    pub fn start_failover(&self, password: &str) {
        let mut link = self.sentinels[0].connect(password);
        eventually("the failover begins", || {
            link.command(&["SENTINEL", "FAILOVER", PRIMARY_NAME]) == Reply::Status("OK".to_owned())
        });
    }

    /// Waits until exactly one running server is a primary, and returns its index.
    ///
    /// # Panics
    /// Panics if this does not happen in time.
    pub fn wait_for_primary(&self) -> usize {
        let mut found = None;
        eventually("there is one primary", || {
            let primaries = (0..self.servers.len()).filter(|index| {
                self.servers[*index].is_running() && info_contains(&self.servers[*index], "role:master")
            });
            let primaries: Vec<usize> = primaries.collect();
            found = primaries.first().copied();
            primaries.len() == 1
        });
        found.expect("it was found")
    }
}

impl Sentinel {
    fn start(kind: Kind, primary: u16, password: &str, certificates: Option<&Certificates>) -> Self {
        let (port, tls_port) = (free_port(), free_port());
        let directory = tempfile::tempdir().expect("a temporary directory");
        let mut text = format!(
            "port {port}\nbind 127.0.0.1\nprotected-mode no\nbind-source-addr {REPLICA_SIDE_ADDRESS}\nsentinel announce-ip 127.0.0.1\ndir {}\n\
             sentinel monitor {PRIMARY_NAME} 127.0.0.1 {primary} 2\nsentinel down-after-milliseconds {PRIMARY_NAME} 500\n\
             sentinel failover-timeout {PRIMARY_NAME} 3000\n",
            directory.path().display()
        );
        if !password.is_empty() {
            text += &format!("requirepass {password}\nsentinel sentinel-pass {password}\n");
        }
        if let Some(certificates) = certificates {
            for option in tls_options(certificates, tls_port).chunks(2) {
                text += &format!("{} {}\n", option[0].trim_start_matches('-'), option[1]);
            }
        }
        let file = directory.path().join("sentinel.conf");
        std::fs::write(&file, text).expect("files can be created in a temporary directory");
        let mut command = Command::new(kind.program());
        command.arg(&file).arg("--sentinel").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let process = command.spawn().unwrap_or_else(|error| panic!("{} ({error})", kind.installation_hint()));
        eventually("a sentinel listens", || is_listening(port));
        let client_port = if certificates.is_some() { tls_port } else { port };
        Self { port, client_port, process, _directory: directory }
    }

    fn connect(&self, password: &str) -> RespConnection {
        let mut link = RespConnection::to(self.port);
        if !password.is_empty() {
            link.command(&["AUTH", password]);
        }
        link
    }
}

impl Drop for Sentinel {
    fn drop(&mut self) {
        // The process may have exited already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Returns the options of a server that uses TLS with clients and other servers.
fn tls_options(certificates: &Certificates, port: u16) -> Vec<String> {
    let mut options = certificates.server_options(port);
    options.extend(["--tls-replication".to_owned(), "yes".to_owned()]);
    options
}

/// Returns whether a server's `INFO replication` contains a line.
fn info_contains(server: &Server, line: &str) -> bool {
    // A server closes its connections when its role changes.
    let Ok(reply) = server.connect().try_command(&["INFO", "replication"]) else { return false };
    String::from_utf8_lossy(&reply.bytes()).lines().any(|found| found.trim_end() == line)
}
