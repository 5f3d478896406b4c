//! Five real servers share limits over a network that the tests cut into parts.

use crate::common;

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use common::{Folder, Server, eventually, stable_port};

use crate::peers::{RULES, assert_admits_fifty, passes, peer_status, send_verb, wait_until_linked};

const SERVER_COUNT: usize = 5;

/// A network of loopback addresses, one per server. Bytes sent in a cut direction wait until the direction is restored,
/// as with TCP.
pub(crate) struct Network {
    /// Addresses at which the servers reach each other.
    addresses: [SocketAddr; SERVER_COUNT],
    /// Addresses on which the servers listen.
    targets: [SocketAddr; SERVER_COUNT],
    cuts: Arc<Cuts>,
}

#[derive(Default)]
struct Cuts {
    /// Whether a direction is cut, by sender and receiver.
    is_cut: Mutex<[[bool; SERVER_COUNT]; SERVER_COUNT]>,
    changed: Condvar,
}

impl Cuts {
    /// Waits until a direction is open.
    fn wait(&self, from: usize, to: usize) {
        let cut = self.is_cut.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(cut, |cut| cut[from][to]).unwrap_or_else(PoisonError::into_inner));
    }

    /// Forwards bytes from `source` to `target` until one of the two connections ends, and then closes the other one.
    fn forward(&self, (from, to): (usize, usize), mut source: &TcpStream, mut target: &TcpStream) {
        let mut bytes = [0; 4_096];
        while let Ok(length @ 1..) = source.read(&mut bytes) {
            self.wait(from, to);
            if target.write_all(&bytes[..length]).is_err() {
                break;
            }
        }
        for stream in [source, target] {
            // The stream may already be closed.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
    }
}

impl Network {
    pub(crate) fn new() -> Self {
        let listeners = [(); SERVER_COUNT].map(|()| TcpListener::bind("127.0.0.1:0").expect("a free port"));
        let addresses = listeners.each_ref().map(|listener| listener.local_addr().expect("an address"));
        let targets = [(); SERVER_COUNT].map(|()| SocketAddr::from(([127, 0, 0, 1], stable_port())));
        let cuts = Arc::new(Cuts::default());
        for (to, listener) in listeners.into_iter().enumerate() {
            let cuts = cuts.clone();
            std::thread::spawn(move || {
                for client in listener.incoming().map_while(Result::ok) {
                    let cuts = cuts.clone();
                    // The thread ends with the connection.
                    std::thread::spawn(move || forward_connection(&cuts, &client, to, &addresses, targets[to]));
                }
            });
        }
        Self { addresses, targets, cuts }
    }

    /// Cuts these directions and restores all others.
    pub(crate) fn cut(&self, is_cut: impl Fn(usize, usize) -> bool) {
        let cuts = std::array::from_fn(|from| std::array::from_fn(|to| is_cut(from, to)));
        *self.cuts.is_cut.lock().unwrap_or_else(PoisonError::into_inner) = cuts;
        self.cuts.changed.notify_all();
    }
}

/// Connects one server to another. The first frame from the connecting server is its greeting, which contains its
/// address.
fn forward_connection(
    cuts: &Cuts,
    client: &TcpStream,
    to: usize,
    addresses: &[SocketAddr; SERVER_COUNT],
    target: SocketAddr,
) -> Option<()> {
    let mut greeting = vec![0; 4];
    let mut reader = client;
    reader.read_exact(&mut greeting).ok()?;
    let length = u32::from_le_bytes(*greeting.first_chunk()?) as usize;
    greeting.resize(4 + length.min(1_024), 0);
    reader.read_exact(&mut greeting[4..]).ok()?;
    let has = |address: &SocketAddr| {
        let address = address.to_string();
        greeting.windows(address.len()).any(|part| part == address.as_bytes())
    };
    let from = addresses.iter().position(has)?;
    cuts.wait(from, to);
    // If the target does not listen yet, the connection ends.
    let server = TcpStream::connect(target).ok()?;
    (&server).write_all(&greeting).ok()?;
    for stream in [client, &server] {
        stream.set_nodelay(true).ok()?;
    }
    std::thread::scope(|scope| {
        scope.spawn(|| cuts.forward((from, to), client, &server));
        cuts.forward((to, from), &server, client);
    });
    Some(())
}

/// Starts five servers on a network.
pub(crate) fn start_five_servers(network: &Network, folder: &Folder) -> Vec<Server> {
    let rules = folder.write_file("rules.yaml", RULES);
    let store = format!("peers://{}", network.addresses.map(|address| address.to_string()).join(","));
    let (rules, store) = (&rules, &store);
    let servers: Vec<Server> = std::thread::scope(|scope| {
        let starting: Vec<_> = (0..SERVER_COUNT)
            .map(|index| {
                let (listen, advertise) = (network.targets[index].to_string(), network.addresses[index].to_string());
                scope.spawn(move || {
                    let addresses = ["--peers-listen", &listen, "--peers-advertise", &advertise];
                    let args = ["--rules", rules, "--store", store, "--store-deadline", "20000"];
                    Server::start(&[&args[..], &addresses].concat())
                })
            })
            .collect();
        starting.into_iter().map(|starting| starting.join().expect("it starts")).collect()
    });
    wait_until_linked(&servers);
    servers
}

#[test]
fn healed_partition_of_five_servers_resets_no_key() {
    let (network, folder) = (Network::new(), Folder::new());
    let servers = start_five_servers(&network, &folder);
    let is_used_up = |server: &Server, key: &str| {
        let answer = send_verb(server, "check", "strict", key);
        answer["allowed"] == false && answer["standing"] == "exact"
    };
    eventually("the key is used up", || !passes(&servers[0], "strict", "used"));
    // Deltas are applied in order, so all earlier charges have arrived when the markers have arrived.
    for (index, server) in servers.iter().enumerate() {
        let key = format!("marker {index}");
        assert!(passes(server, "eventual", &key));
        for other in &servers {
            eventually("all servers know the charge", || {
                send_verb(other, "peek", "eventual", &key)["limits"][0]["remaining"] == 3
            });
        }
    }
    let is_minority = |index: usize| index < 2;
    network.cut(|from, to| is_minority(from) != is_minority(to));
    for (index, server) in servers.iter().enumerate() {
        eventually("three of five servers are a majority, but two are not", || {
            peer_status(server)["majority"] == !is_minority(index)
        });
    }
    eventually("the majority agrees about homes", || servers[2..].iter().all(|server| is_used_up(server, "used")));
    for server in &servers[..2] {
        let answer = send_verb(server, "check", "strict", "new");
        assert!(answer["allowed"] == false && answer["standing"] != "exact", "`on_fault: closed` refuses: {answer}");
        assert!(passes(server, "eventual", "new"), "eventual rules still work");
    }
    assert_admits_fifty(&servers[2..], "new");
    network.cut(|_, _| false);
    wait_until_linked(&servers);
    for server in &servers {
        eventually("the charges of the other servers are known", || is_used_up(server, "new"));
        assert!(!passes(server, "strict", "used"), "the key was used up before the cut");
    }
}

#[test]
fn strict_limits_stay_exact_when_a_server_does_not_hear_another() {
    let (network, folder) = (Network::new(), Folder::new());
    let servers = start_five_servers(&network, &folder);
    network.cut(|from, to| (from, to) == (0, 1));
    let is_linked_with = |server: &Server, index: usize| {
        let (page, name) = (peer_status(server), network.addresses[index].to_string());
        page["peers"].as_array().is_some_and(|peers| {
            peers.iter().any(|peer| peer["address"] == name && peer["linked"] == true && peer["state"] == "ready")
        })
    };
    eventually("the server drops the link", || !is_linked_with(&servers[1], 0));
    for index in [0, 1] {
        assert_eq!(peer_status(&servers[index])["majority"], true, "the other servers are enough for a majority");
    }
    for number in 0..6 {
        assert_admits_fifty(&servers[..3], &format!("key {number}"));
    }
    network.cut(|_, _| false);
    wait_until_linked(&servers);
}
