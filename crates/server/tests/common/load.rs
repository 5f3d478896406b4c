//! Clients that continuously send checks to a server and record the admitted requests.

use std::io::{BufRead, BufReader, ErrorKind, Read, Result, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;
use tollgate_testkit::history::ObservedRequest;

use super::{TEST_TIMEOUT, eventually};

/// Clients that send the same check, and the number of their admitted requests.
pub struct Clients {
    request: String,
    pause: Duration,
    admitted: AtomicU64,
    is_cut: AtomicBool,
}

impl Clients {
    /// Creates clients that repeatedly send a check with this body and pause after each check. Each call of
    /// [`run_client`](Self::run_client) is one client.
    pub fn new(body: &Value, pause: Duration) -> Self {
        let body = body.to_string();
        let head = format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
        Self { request: head + &body, pause, admitted: AtomicU64::new(0), is_cut: AtomicBool::new(false) }
    }

    /// Sends checks over one connection until `over` is set or the connection fails. Returns the admitted requests.
    pub fn run_client(&self, address: SocketAddr, epoch: Instant, over: &AtomicBool) -> Vec<ObservedRequest> {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
        let (mut stream, mut history) = (BufReader::new(stream), Vec::new());
        while !over.load(Ordering::Relaxed) {
            let asked = epoch.elapsed().as_nanos() as u64;
            match send_check(&mut stream, &self.request) {
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
            std::thread::park_timeout(self.pause);
        }
        history
    }

    /// Returns the number of admitted requests.
    pub fn admitted(&self) -> u64 {
        self.admitted.load(Ordering::Relaxed)
    }

    /// Waits until this many more requests are admitted.
    pub fn wait_until_admitted(&self, more: u64) {
        let end = self.admitted() + more;
        eventually("requests are admitted", || self.admitted() >= end);
    }

    /// Waits until the connection of a client has failed.
    pub fn wait_until_closed(&self) {
        eventually("the connection has failed", || self.is_cut.load(Ordering::Relaxed));
    }
}

/// Clients of several servers. Each server gets one client per kind of request.
pub struct Load<const KINDS: usize> {
    clients: [Arc<Clients>; KINDS],
    epoch: Instant,
    over: Arc<AtomicBool>,
    running: Vec<[JoinHandle<Vec<ObservedRequest>>; KINDS]>,
}

impl<const KINDS: usize> Load<KINDS> {
    /// Creates clients that repeatedly send checks with these bodies and pause after each check.
    /// [`send_to`](Self::send_to) starts the clients.
    pub fn new(bodies: [Value; KINDS], pause: Duration) -> Self {
        let clients = bodies.map(|body| Arc::new(Clients::new(&body, pause)));
        Self { clients, epoch: Instant::now(), over: Arc::default(), running: Vec::new() }
    }

    /// Starts the clients of a server. The clients end when their connections fail or [`finish`](Self::finish) is
    /// called.
    pub fn send_to(&mut self, address: SocketAddr) {
        self.running.push(self.clients.each_ref().map(|clients| {
            let (clients, epoch, over) = (clients.clone(), self.epoch, self.over.clone());
            std::thread::spawn(move || clients.run_client(address, epoch, &over))
        }));
    }

    /// Returns the time since the load was created.
    pub fn elapsed(&self) -> Duration {
        self.epoch.elapsed()
    }

    /// Waits until all servers together have admitted `more` further requests of a kind. The servers compete for
    /// tokens, so a single server may admit none for a while.
    pub fn wait_until_admitted(&self, kind: usize, more: u64) {
        self.clients[kind].wait_until_admitted(more);
    }

    /// Ends the clients and returns the admitted requests of each kind.
    pub fn finish(mut self) -> [Vec<ObservedRequest>; KINDS] {
        self.over.store(true, Ordering::Relaxed);
        let mut histories = [const { Vec::new() }; KINDS];
        for threads in std::mem::take(&mut self.running) {
            for (history, thread) in histories.iter_mut().zip(threads) {
                history.extend(thread.join().expect("a history"));
            }
        }
        histories
    }
}

impl<const KINDS: usize> Drop for Load<KINDS> {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
    }
}

/// Ends the clients when dropped, even after a failed assertion. Otherwise the thread scope would never end.
pub struct StopOnDrop<'a>(pub &'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Sends a check and returns whether it was admitted.
fn send_check(stream: &mut BufReader<TcpStream>, request: &str) -> Result<bool> {
    stream.get_mut().write_all(request.as_bytes())?;
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
