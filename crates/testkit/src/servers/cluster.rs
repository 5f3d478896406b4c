//! A Redis Cluster of three primaries with one replica each.

use std::net::Ipv4Addr;
use std::process::{Command, Stdio};

use super::{Certificates, Kind, Proxy, REPLICA_SIDE_ADDRESS, Reply, Server, free_tls_port};
use crate::eventually::eventually;

/// Number of primaries.
const PRIMARIES: usize = 3;
/// Offset of a server's cluster bus port from its client port.
const BUS_PORT_OFFSET: u16 = 10_000;

/// A running cluster. Initially the first three servers are the primaries, each with a third of the slots. The replica
/// of each primary is the server three positions after it.
#[derive(Debug)]
pub struct Cluster {
    /// All servers.
    pub servers: Vec<Server>,
    ports: Vec<u16>,
}

/// The proxies through which the servers of a cluster reach each other.
#[derive(Debug)]
pub struct BusProxies {
    proxies: Vec<Proxy>,
}

impl BusProxies {
    /// Holds back all messages between the first server and the other servers.
    pub fn isolate_first(&self) {
        self.proxies[0].cut_off(REPLICA_SIDE_ADDRESS);
        self.proxies[1..].iter().for_each(|proxy| proxy.cut_off(Ipv4Addr::LOCALHOST));
    }

    /// Connects the servers again.
    pub fn reconnect(&self) {
        self.proxies.iter().for_each(Proxy::clear_faults);
    }
}

impl Cluster {
    /// Starts a cluster. Returns when all slots are served and the replicas follow their primaries.
    ///
    /// # Panics
    /// Panics if the cluster does not start.
    pub fn start(kind: Kind) -> Self {
        let servers: Vec<Server> = (0..2 * PRIMARIES).map(|_| start_server(kind, &[])).collect();
        let ports = servers.iter().map(Server::port).collect();
        Self::create(servers, ports, &[])
    }

    /// Starts a cluster whose servers use TLS with clients and with each other.
    ///
    /// # Panics
    /// Panics if the cluster does not start.
    pub fn start_with_tls(certificates: &Certificates) -> Self {
        let ports: Vec<u16> = (0..2 * PRIMARIES).map(|_| free_tls_port()).collect();
        let start = |port: &u16| {
            let mut options = certificates.server_options(*port);
            options.extend(["--tls-cluster", "yes", "--tls-replication", "yes"].map(str::to_owned));
            start_server(Kind::Redis, &options)
        };
        let servers = ports.iter().map(start).collect();
        Self::create(servers, ports, &certificates.client_options())
    }

    /// Starts a cluster whose servers reach each other through proxies, so that the first server can be cut off from
    /// the other servers. Clients and replication do not use the proxies.
    ///
    /// # Panics
    /// Panics if the cluster does not start.
    pub fn start_behind_proxies(kind: Kind) -> (Self, BusProxies) {
        let start = |place: usize| {
            let mut options: Vec<String> =
                ["--protected-mode", "no", "--cluster-announce-ip", "127.0.0.1"].map(str::to_owned).into();
            if place > 0 {
                options.extend(["--bind-source-addr".to_owned(), REPLICA_SIDE_ADDRESS.to_string()]);
            }
            start_server(kind, &options)
        };
        let servers: Vec<Server> = (0..2 * PRIMARIES).map(start).collect();
        let proxies: Vec<Proxy> = servers.iter().map(|server| Proxy::to(server.port() + BUS_PORT_OFFSET)).collect();
        for (server, proxy) in servers.iter().zip(&proxies) {
            server.command(&["CONFIG", "SET", "cluster-announce-bus-port", &proxy.port().to_string()]);
        }
        let ports = servers.iter().map(Server::port).collect();
        (Self::create(servers, ports, &[]), BusProxies { proxies })
    }

    fn create(servers: Vec<Server>, ports: Vec<u16>, client_options: &[String]) -> Self {
        let new = Self { servers, ports };
        // `redis-cli` keeps the order: the first half of the servers become the primaries.
        let created = Command::new("redis-cli")
            .args(client_options)
            .args(["--cluster", "create"])
            .args(new.ports.iter().map(|port| format!("127.0.0.1:{port}")))
            .args(["--cluster-replicas", "1", "--cluster-yes"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        assert!(created.is_ok_and(|status| status.success()), "`redis-cli --cluster create` failed");
        for server in &new.servers {
            eventually("the cluster is up", || info_contains(server, "CLUSTER", "cluster_state:ok"));
        }
        for server in &new.servers[PRIMARIES..] {
            eventually("a replica follows", || info_contains(server, "INFO", "master_link_status:up"));
        }
        new
    }

    /// Returns the port of a server for clients: its TLS port if it has one.
    pub fn port(&self, server: usize) -> u16 {
        self.ports[server]
    }

    /// Returns the URL of one node.
    pub fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}", self.servers[0].port())
    }

    /// Returns the index of the server that owns a slot.
    ///
    /// # Panics
    /// Panics if no server owns the slot.
    pub fn primary_of(&self, slot: u16) -> usize {
        let asked = self.servers.iter().find(|server| server.is_running()).expect("a server runs");
        let Reply::List(ranges) = asked.command(&["CLUSTER", "SLOTS"]) else { panic!("slots are a list") };
        let port = ranges.into_iter().find_map(|range| {
            let fields = range.list();
            let (first, last) = (fields[0].clone().number(), fields[1].clone().number());
            (first..=last).contains(&i64::from(slot)).then(|| fields[2].clone().list()[1].clone().number())
        });
        let port = port.expect("every slot is served");
        self.servers.iter().position(|server| i64::from(server.port()) == port).expect("a port of this cluster")
    }

    /// Returns the cluster node id of a server.
    pub fn server_id(&self, server: usize) -> String {
        String::from_utf8(self.servers[server].command(&["CLUSTER", "MYID"]).bytes()).expect("an id is text")
    }
}

fn start_server(kind: Kind, further: &[String]) -> Server {
    let options = "--cluster-enabled yes --cluster-node-timeout 1000 --cluster-require-full-coverage no \
                   --repl-diskless-sync-delay 0";
    let options: Vec<&str> = options.split_whitespace().chain(further.iter().map(String::as_str)).collect();
    Server::start_with(kind, &options)
}

/// Returns whether a server's `CLUSTER INFO` or `INFO` contains a line.
fn info_contains(server: &Server, command: &str, line: &str) -> bool {
    let arguments: &[&str] = if command == "CLUSTER" { &["CLUSTER", "INFO"] } else { &["INFO", "replication"] };
    let text = server.command(arguments).bytes();
    String::from_utf8_lossy(&text).lines().any(|found| found.trim_end() == line)
}
