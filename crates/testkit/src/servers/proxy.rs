//! A proxy that simulates a slow, stalled or broken network between a client and a loopback server.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Forwards bytes with the configured faults. The threads of a proxy end with their connections.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    network_state: Mutex<NetworkState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct NetworkState {
    delay: Duration,
    stalled: bool,
    /// Client address that is cut off in both directions.
    cut_off: Option<IpAddr>,
    streams: Vec<TcpStream>,
}

/// Number of bytes forwarded after each delay.
const CHUNK_BYTES: usize = 1024;

impl Proxy {
    /// Starts a proxy to a loopback port. Initially the proxy forwards without delay.
    ///
    /// # Panics
    /// Panics if there is no free port.
    pub fn to(target: u16) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("the loopback address has free ports");
        let port = listener.local_addr().expect("a listener has an address").port();
        let shared = Arc::new(Shared::default());
        let passing = shared.clone();
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let Ok(source) = client.peer_addr() else { continue };
                // If nothing listens on the target, the client's connection is closed.
                let Ok(server) = TcpStream::connect((Ipv4Addr::LOCALHOST, target)) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (Ok(from), Ok(to), Ok(kept)) = (from.try_clone(), to.try_clone(), from.try_clone()) else {
                        continue;
                    };
                    passing.network_state().streams.push(kept);
                    let passing = passing.clone();
                    std::thread::spawn(move || passing.forward(from, to, source.ip()));
                }
            }
        });
        Self { port, shared }
    }

    /// Returns the port to connect to.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Delays every kilobyte by this time.
    pub fn delay_by(&self, delay: Duration) {
        self.shared.network_state().delay = delay;
    }

    /// Stalls: forwards nothing, but keeps connections open.
    pub fn stall(&self) {
        self.shared.network_state().stalled = true;
    }

    /// Cuts off clients that connect from this address: forwards nothing for them, but keeps their connections open.
    pub fn cut_off(&self, source: Ipv4Addr) {
        self.shared.network_state().cut_off = Some(source.into());
    }

    /// Ends all faults. Bytes that were held back are forwarded now.
    pub fn clear_faults(&self) {
        let mut network_state = self.shared.network_state();
        (network_state.stalled, network_state.cut_off, network_state.delay) = (false, None, Duration::ZERO);
        self.shared.changed.notify_all();
    }

    /// Closes all connections.
    pub fn close_connections(&self) {
        for stream in self.shared.network_state().streams.drain(..) {
            // The connection may already be closed.
            let _ = stream.shutdown(Shutdown::Both);
        }
        self.shared.changed.notify_all();
    }
}

impl Shared {
    fn network_state(&self) -> MutexGuard<'_, NetworkState> {
        self.network_state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    #[expect(clippy::disallowed_methods, reason = "the purpose of the proxy is to delay")]
    fn forward(&self, mut from: TcpStream, mut to: TcpStream, source: IpAddr) {
        let mut piece = [0; CHUNK_BYTES];
        while let Ok(count @ 1..) = from.read(&mut piece) {
            let delay = {
                let network_state = self.changed.wait_while(self.network_state(), |network_state| {
                    network_state.stalled || network_state.cut_off == Some(source)
                });
                network_state.unwrap_or_else(PoisonError::into_inner).delay
            };
            if !delay.is_zero() {
                std::thread::sleep(delay);
            }
            if to.write_all(&piece[..count]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Write);
    }
}
