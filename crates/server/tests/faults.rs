//! Real nodes on one store that are killed or stopped, join and leave under load: nothing more is admitted.

use crate::common;

use std::io::{BufRead, BufReader, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use common::{Rules, Server, eventually};
use tokio::time::Instant;
use tollgate_testkit::history::{Bound, ObservedRequest, excess_observed};
use tollgate_testkit::servers::{Kind, Server as StoreServer};

const REQUEST: &str =
    "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 30\r\n\r\n{\"domain\":\"d\",\"attributes\":{}}";

/// Sends a check; returns whether it was admitted.
fn ask(stream: &mut BufReader<TcpStream>) -> Result<bool> {
    stream.get_mut().write_all(REQUEST.as_bytes())?;
    let (mut line, mut status, mut length) = (String::new(), None, 0);
    loop {
        line.clear();
        if stream.read_line(&mut line)? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let text = line.trim_end();
        match text.split_once(": ") {
            Some(("content-length", value)) => length = value.parse().expect("a length"),
            Some(_) => {}
            None if text.is_empty() => break,
            None => status = text.split(' ').nth(1).map(str::to_owned),
        }
    }
    stream.read_exact(&mut vec![0; length])?;
    match status.as_deref() {
        Some("200") => Ok(true),
        Some("429") => Ok(false),
        other => panic!("unexpected status {other:?}"),
    }
}

/// The clients of one node.
#[derive(Default)]
struct Clients {
    admitted: AtomicU64,
    /// Whether the node has closed the connection.
    is_cut: AtomicBool,
}

impl Clients {
    /// Sends checks until all are sent or the node has stopped; returns what was admitted.
    fn run(&self, address: SocketAddr, epoch: Instant, over: &AtomicBool) -> Vec<ObservedRequest> {
        let stream = TcpStream::connect(address).expect("the node listens");
        stream.set_read_timeout(Some(common::PATIENCE)).expect("a timeout");
        let (mut stream, mut history) = (BufReader::new(stream), Vec::new());
        while !over.load(Ordering::Relaxed) {
            let asked = epoch.elapsed().as_nanos() as u64;
            match ask(&mut stream) {
                Ok(true) => {
                    let answered = epoch.elapsed().as_nanos() as u64;
                    history.push(ObservedRequest { asked, answered, cost: 1 });
                    self.admitted.fetch_add(1, Ordering::Relaxed);
                }
                Ok(false) => {}
                Err(_) => {
                    self.is_cut.store(true, Ordering::Relaxed);
                    break;
                }
            }
            std::thread::park_timeout(Duration::from_millis(2));
        }
        history
    }

    /// Waits until this many more are admitted.
    fn until_admitted(&self, more: u64) {
        let end = self.admitted.load(Ordering::Relaxed) + more;
        eventually("requests are admitted", || self.admitted.load(Ordering::Relaxed) >= end);
    }
}

#[test]
fn nodes_that_are_killed_or_stopped_join_or_leave_admit_nothing_more() {
    let store = StoreServer::start(Kind::Redis);
    // Refused while the store is late, so that a busy machine admits no more either.
    let rules = Rules::new("domain: d\nrules:\n- {id: all, limit: 50/s, burst: 100, on_fault: closed}\n");
    let start = || Server::start(&["--rules", rules.path(), "--store", &store.url(), "--store-deadline", "2000"]);
    let (killed, stopped, mut leaving) = (start(), start(), start());
    let clients: [Clients; 4] = Default::default();
    let (epoch, over) = (Instant::now(), AtomicBool::new(false));
    let mut history = Vec::new();
    std::thread::scope(|scope| {
        let load = |clients, node: &Server| {
            let (address, over): (_, &AtomicBool) = (node.http.expect("HTTP is on"), &over);
            let clients: &Clients = clients;
            scope.spawn(move || clients.run(address, epoch, over))
        };
        let mut threads = vec![load(&clients[0], &killed), load(&clients[1], &stopped), load(&clients[2], &leaving)];
        clients[..3].iter().for_each(|clients| clients.until_admitted(5));

        killed.signal("KILL");
        eventually("the node is gone", || clients[0].is_cut.load(Ordering::Relaxed));
        stopped.pause();
        clients[2].until_admitted(20);
        stopped.signal("CONT");
        clients[1].until_admitted(5);
        let joined = start();
        threads.push(load(&clients[3], &joined));
        clients[3].until_admitted(5);
        leaving.signal("TERM");
        assert!(leaving.wait().success());
        clients[3].until_admitted(20);
        over.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| history.extend(thread.join().expect("a history")));
    });
    let bound = Bound::new(100, 50, 1_000_000_000);
    assert_eq!(excess_observed(&bound, &history), None, "{} admitted", history.len());
    assert!(excess_observed(&Bound::new(50, 50, 1_000_000_000), &history).is_some(), "the load reaches the limit");
}
