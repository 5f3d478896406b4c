//! A Redis Cluster of three primaries with one replica each.

use std::process::{Command, Stdio};

use super::{Kind, Reply, Server};
use crate::eventually::eventually;

/// Number of primaries.
const PRIMARIES: usize = 3;

/// A running cluster. Initially the first three servers are the primaries, each with a third of the slots. The server
/// three positions further is the primary's replica.
#[derive(Debug)]
pub struct Cluster {
    /// All servers.
    pub servers: Vec<Server>,
}

impl Cluster {
    /// Starts a cluster. Returns when all slots are served and the replicas follow.
    ///
    /// # Panics
    /// If the cluster does not start.
    pub fn start(kind: Kind) -> Self {
        let options = "--cluster-enabled yes --cluster-node-timeout 1000 --cluster-require-full-coverage no \
                       --repl-diskless-sync-delay 0";
        let options: Vec<&str> = options.split_whitespace().collect();
        let servers: Vec<Server> = (0..2 * PRIMARIES).map(|_| Server::start_with(kind, &options)).collect();
        let new = Self { servers };
        let addresses: Vec<String> = new.servers.iter().map(|server| format!("127.0.0.1:{}", server.port())).collect();
        // The order is kept: the first half becomes the primaries.
        let created = Command::new("redis-cli")
            .args(["--cluster", "create"])
            .args(&addresses)
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

    /// Returns the URL of one node.
    pub fn url(&self) -> String {
        format!("redis+cluster://127.0.0.1:{}", self.servers[0].port())
    }

    /// Returns the index of the server that owns a slot.
    ///
    /// # Panics
    /// If no server owns it.
    pub fn primary_of(&self, slot: u16) -> usize {
        let asked = self.servers.iter().find(|server| server.is_running()).expect("a server runs");
        let Reply::List(ranges) = asked.command(&["CLUSTER", "SLOTS"]) else { panic!("slots are a list") };
        let port = ranges.into_iter().find_map(|range| {
            let fields = range.list();
            let (first, last) = (fields[0].clone().number(), fields[1].clone().number());
            (first..=last).contains(&i64::from(slot)).then(|| fields[2].clone().list()[1].clone().number())
        });
        let port = port.expect("every slot is served");
        self.servers.iter().position(|server| i64::from(server.port()) == port).expect("it belongs to this cluster")
    }

    /// Returns the cluster node id of a server.
    pub fn server_id(&self, server: usize) -> String {
        String::from_utf8(self.servers[server].command(&["CLUSTER", "MYID"]).bytes()).expect("an id is text")
    }
}

/// Returns whether a server's `CLUSTER INFO` or `INFO` contains a line.
fn info_contains(server: &Server, command: &str, line: &str) -> bool {
    let arguments: &[&str] = if command == "CLUSTER" { &["CLUSTER", "INFO"] } else { &["INFO", "replication"] };
    let text = server.command(arguments).bytes();
    String::from_utf8_lossy(&text).lines().any(|found| found.trim_end() == line)
}
