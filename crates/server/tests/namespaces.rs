//! Real servers that share limits over TLS links, each on a separate host (a network namespace). The tests unplug
//! cables, block one direction of a link, restart all servers one by one, move a DNS name to other addresses, and set
//! clocks an hour apart.
//!
//! Network namespaces need root and `ip`. If the namespaces cannot be created, the tests print the reason and pass.

#![allow(clippy::print_stdout, reason = "a test prints why it is skipped")]

use crate::common;

use std::net::SocketAddr;
use std::process::Command;
use std::time::Duration;

use common::load::Load;
use common::{Folder, Server, eventually};
use serde_json::Value;
use tollgate_testkit::history::excess_observed;
use tollgate_testkit::servers::Namespaces;

use crate::peers::{
    FAULT_FREE_EXCESS, RATE, RULES, addresses, assert_admits_fifty, body_of, bound_with_excess, linked_server_count,
    passes, peer_status, send_verb, wait_until_linked,
};

const PORT: u16 = 7_400;

/// Hosts with the files of their servers.
struct Hosts {
    network: Namespaces,
    folder: Folder,
    count: usize,
    /// Peer addresses for the servers' `--store`.
    seeds: String,
}

impl Hosts {
    /// Creates `count` hosts. Returns `None` if network namespaces are unavailable.
    fn new(count: usize) -> Option<Self> {
        let network = match Namespaces::new(count) {
            Ok(network) => network,
            Err(why) => {
                println!("skipped: this machine permits no network namespaces ({why})");
                return None;
            }
        };
        let folder = Folder::new();
        folder.write_file("rules.yaml", RULES);
        folder.write_file("secret", "0123456789abcdef".repeat(4));
        let seeds: Vec<String> = (0..count).map(|host| format!("{}:{PORT}", network.address(host))).collect();
        Some(Self { network, folder, count, seeds: seeds.join(",") })
    }

    /// Runs the server on a host.
    fn start(&self, host: usize) -> Server {
        self.start_with_command(host, self.network.command(host, env!("CARGO_BIN_EXE_tollgate")))
    }

    fn start_with_command(&self, host: usize, command: Command) -> Server {
        let listen = SocketAddr::from((self.network.address(host), PORT)).to_string();
        let http = SocketAddr::from((self.network.control_address(host), 0)).to_string();
        let store = format!("peers://{}?secret_file={}", self.seeds, self.folder.join("secret"));
        let rules = self.folder.join("rules.yaml");
        let args = [
            "--http",
            &http,
            "--insecure",
            "--resp",
            "off",
            "--rules",
            &rules,
            "--store",
            &store,
            "--peers-listen",
            &listen,
        ];
        Server::start_with_command(command, &[&args[..], &["--store-deadline", "20000"]].concat())
    }

    fn start_all(&self) -> Vec<Server> {
        self.start_each(|host| self.start(host))
    }

    fn start_each(&self, start: impl Fn(usize) -> Server + Sync) -> Vec<Server> {
        let start = &start;
        let servers: Vec<Server> = std::thread::scope(|scope| {
            let starting: Vec<_> = (0..self.count).map(|host| scope.spawn(move || start(host))).collect();
            starting.into_iter().map(|starting| starting.join().expect("it starts")).collect()
        });
        wait_until_linked(&servers);
        servers
    }
}

fn is_used_up(server: &Server, key: &str) -> bool {
    let answer = send_verb(server, "check", "strict", key);
    answer["allowed"] == false && answer["standing"] == "exact"
}

/// Spends the whole limit of a key, and waits until all servers know of all charges.
fn use_up(servers: &[Server], key: &str) {
    for server in servers {
        eventually("the key is used up", || is_used_up(server, key));
    }
    for (index, server) in servers.iter().enumerate() {
        // Deltas are applied in order, so all earlier charges have arrived when the marker has arrived.
        let key = format!("marker {key} {index}");
        assert!(passes(server, "eventual", &key));
        for other in servers {
            eventually("all servers know the charge", || {
                send_verb(other, "peek", "eventual", &key)["limits"][0]["remaining"] == 3
            });
        }
    }
}

#[test]
fn unplugged_hosts_refuse_and_keep_their_counts_when_they_return() {
    let Some(hosts) = Hosts::new(5) else { return };
    let servers = hosts.start_all();
    use_up(&servers, "used");
    let mut load = Load::new([body_of("seen-rate")], Duration::from_millis(10));
    let http = addresses(&servers);
    [0, 4].into_iter().for_each(|host| load.send_to(http[host]));
    load.wait_until_admitted(0, 60);
    let cut_at = load.elapsed();
    hosts.network.unplug(3);
    hosts.network.unplug(4);
    for (host, server) in servers.iter().enumerate() {
        eventually("three of five hosts are a majority, but two are not", || {
            peer_status(server)["majority"] == (host < 3)
        });
    }
    eventually("the majority agrees about homes", || servers[..3].iter().all(|server| is_used_up(server, "used")));
    let answer = send_verb(&servers[4], "check", "strict", "new");
    assert!(answer["allowed"] == false && answer["standing"] != "exact", "`on_fault: closed` refuses: {answer}");
    assert_admits_fifty(&servers[..3], "new");
    load.wait_until_admitted(0, 200);
    hosts.network.plug(3);
    hosts.network.plug(4);
    wait_until_linked(&servers);
    let seconds = (load.elapsed() - cut_at).as_secs() + 1;
    load.wait_until_admitted(0, 20);
    for server in &servers {
        eventually("the charges of the other servers are known", || is_used_up(server, "new"));
        assert!(!passes(server, "strict", "used"), "the key was used up before the cut");
    }
    let [history] = load.finish();
    // Two servers get requests, one on each side of the cut. Each server may admit the fault-free excess, and during
    // the cut each server admits the whole rate.
    let excess = FAULT_FREE_EXCESS + FAULT_FREE_EXCESS + RATE * seconds;
    assert_eq!(excess_observed(&bound_with_excess(excess), &history), None, "{} admitted", history.len());
    assert!(
        excess_observed(&bound_with_excess(RATE * 2), &history).is_some(),
        "the cut had no effect: {} admitted",
        history.len()
    );
}

#[test]
fn strict_limits_stay_exact_when_packets_are_lost_in_one_direction() {
    let Some(hosts) = Hosts::new(3) else { return };
    let servers = hosts.start_all();
    hosts.network.block(0, 1);
    eventually("the two servers drop their link", || {
        linked_server_count(&servers[1]) < 3 && linked_server_count(&servers[0]) < 3
    });
    for number in 0..3 {
        assert_admits_fifty(&servers, &format!("key {number}"));
    }
    hosts.network.unblock(0, 1);
    wait_until_linked(&servers);
    assert_admits_fifty(&servers, "after");
}

#[test]
fn rolling_restart_of_hosts_under_load_resets_nothing() {
    let Some(hosts) = Hosts::new(3) else { return };
    let mut servers = hosts.start_all();
    use_up(&servers, "k");
    let mut load = Load::new(["exact-rate", "strict"].map(body_of), Duration::from_millis(10));
    addresses(&servers).into_iter().for_each(|address| load.send_to(address));
    load.wait_until_admitted(0, 20);
    for host in 0..3 {
        let stopping = servers.remove(0);
        assert!(stopping.stop_and_read_log().iter().any(|line| line.contains("stopped")));
        servers.push(hosts.start(host));
        wait_until_linked(&servers);
        assert!(servers.iter().all(|server| !passes(server, "strict", "k")), "after the restart of host {host}");
        load.send_to(servers[2].http.expect("HTTP is on"));
        load.wait_until_admitted(0, 20);
    }
    let [exact, used_up] = load.finish();
    assert_eq!(used_up.len(), 0, "a used-up key stays used up");
    assert_eq!(excess_observed(&bound_with_excess(FAULT_FREE_EXCESS), &exact), None, "{} admitted", exact.len());
}

#[test]
fn server_finds_the_others_when_a_name_gets_their_addresses() {
    let Some(mut hosts) = Hosts::new(3) else { return };
    hosts.seeds = format!("tollgate.test:{PORT}");
    let name = |host: usize, of: &[usize]| {
        let names: Vec<_> = of.iter().map(|other| ("tollgate.test", hosts.network.address(*other))).collect();
        hosts.network.set_host_names(host, &names);
    };
    name(0, &[0]);
    name(1, &[0, 1]);
    let mut servers = vec![hosts.start(0), hosts.start(1)];
    wait_until_linked(&servers);
    // The third server sees only itself until the name resolves to the addresses of the other servers.
    name(2, &[2]);
    servers.push(hosts.start(2));
    assert_eq!(linked_server_count(&servers[2]), 1);
    name(2, &[0, 1]);
    wait_until_linked(&servers);
    assert_admits_fifty(&servers, "k");
}

/// Rules with windows. Windows follow the server's wall clock.
const WINDOW_RULES: &str = "\
- {id: seen-window, when: {kind: seen-window}, per: [key], limit: 30/day, algorithm: fixed_window, consistency: eventual}
- {id: exact-window, when: {kind: exact-window}, per: [key], limit: 30/h, algorithm: fixed_window, on_fault: closed}
";

#[test]
fn clocks_an_hour_apart_keep_strict_limits_exact_and_admit_at_most_one_window_per_server() {
    let Some(hosts) = Hosts::new(3) else { return };
    // Loads the library of `faketime` directly. If `faketime` started the program, killing `faketime` would not kill
    // the program.
    let library = match Command::new("faketime").args(["-m", "-f", "+0", "printenv", "LD_PRELOAD"]).output() {
        Ok(output) => String::from_utf8(output.stdout).expect("a path").trim().to_owned(),
        Err(error) => return println!("skipped: faketime is missing ({error})"),
    };
    hosts.folder.write_file("rules.yaml", format!("{RULES}{WINDOW_RULES}"));
    let servers = hosts.start_each(|host| {
        let mut command = hosts.network.command(host, env!("CARGO_BIN_EXE_tollgate"));
        // Only the wall clock is shifted.
        command.env("LD_PRELOAD", &library).env("FAKETIME", ["-1h", "+0", "+1h"][host]);
        command.env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        hosts.start_with_command(host, command)
    });
    assert_admits_fifty(&servers, "k");
    let admitted = |kind: &str, key: &str| -> usize {
        let checks = (0..180).map(|number| send_verb(&servers[number % 3], "check", kind, key));
        checks.filter(|answer: &Value| answer["allowed"] == true).count()
    };
    // Tries a second key, because an hour may end while the first key is used.
    let is_exact = |key: &str| admitted("exact-window", key) == 30;
    assert!(is_exact("k") || is_exact("l"), "the key's home decides by its own clock");
    // Each of the three servers may admit the whole limit in its own window.
    let seen = admitted("seen-window", "k");
    assert!((30..=90).contains(&seen), "{seen}");
    for server in &servers {
        eventually("all servers know the charges", || !passes(server, "seen-window", "k"));
    }
}
