//! Hosts with addresses of their own, connected by a switch: network namespaces of Linux.
//!
//! ```text
//!   this process ── control cable ── host 0 ── cable ── switch ── cable ── host 1 ── control cable ── this process
//! ```
//!
//! Each host is a network namespace. A [cable](Namespaces::unplug) can be pulled, and one direction between two hosts can be
//! [blocked](Namespaces::block): packets are lost as in a real network, without an error. The control cables are apart, so that a
//! test always reaches the programs on its hosts.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A network of its own: its addresses mean nothing outside, so many tests can use the same at once.
#[derive(Debug)]
pub struct Namespaces {
    name: String,
    hosts: usize,
    /// The number of the first control cable, of which each has four addresses.
    first_control: u32,
}

/// The control cables use 198.18.0.0/15, which is reserved for measuring networks: 32,768 cables.
const CONTROL: (u32, u32) = (0xC612_0000, 1 << 15);

impl Namespaces {
    /// Makes a switch and hosts, each with a cable.
    ///
    /// # Errors
    /// Returns why this machine cannot have network namespaces: `ip` is missing, or the user is not root.
    pub fn new(hosts: usize) -> Result<Self, String> {
        static MADE: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), MADE.fetch_add(1, Ordering::Relaxed));
        let first_control = (process.wrapping_mul(64) + number * 8) % CONTROL.1;
        let network = Self { name: format!("tg{process}-{number}"), hosts: 0, first_control };
        network.build(hosts)
    }

    fn build(mut self, hosts: usize) -> Result<Self, String> {
        let switch = self.switch();
        ip(&format!("netns add {switch}"))?;
        ip(&format!("-n {switch} link add bridge type bridge"))?;
        ip(&format!("-n {switch} link set bridge up"))?;
        for host in 0..hosts {
            let (name, control) = (self.host(host), format!("{}c{host}", self.name));
            ip(&format!("netns add {name}"))?;
            self.hosts += 1;
            // `ip netns exec` shows this file as /etc/hosts.
            fs::create_dir_all(self.etc(host)).map_err(|error| error.to_string())?;
            self.name_addresses(host, &[]);
            ip(&format!("-n {name} link set lo up"))?;
            ip(&format!("-n {name} link add eth0 type veth peer name port{host} netns {switch}"))?;
            ip(&format!("-n {switch} link set port{host} master bridge up"))?;
            ip(&format!("-n {name} addr add {}/24 dev eth0", self.address(host)))?;
            ip(&format!("-n {name} link set eth0 up"))?;
            let [outside, inside] = self.control_addresses(host);
            ip(&format!("link add {control} type veth peer name control netns {name}"))?;
            ip(&format!("addr add {outside}/30 dev {control}"))?;
            ip(&format!("link set {control} up"))?;
            ip(&format!("-n {name} addr add {inside}/30 dev control"))?;
            ip(&format!("-n {name} link set control up"))?;
        }
        Ok(self)
    }

    /// Returns the address of a host, which other hosts reach.
    pub fn address(&self, host: usize) -> Ipv4Addr {
        Ipv4Addr::from(0x0A4D_0001 + host as u32)
    }

    /// Returns the address of a host which only this process reaches.
    pub fn control_address(&self, host: usize) -> Ipv4Addr {
        self.control_addresses(host)[1]
    }

    /// Returns a command that runs a program on a host. It has the process id of the program.
    pub fn command(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.host(host), program]);
        command
    }

    /// Pulls the cable of a host: it reaches no other, and none reaches it.
    ///
    /// # Panics
    /// If `ip` fails.
    pub fn unplug(&self, host: usize) {
        run(&format!("-n {} link set port{host} down", self.switch()));
    }

    /// Plugs the cable of a host in again.
    ///
    /// # Panics
    /// If `ip` fails.
    pub fn plug(&self, host: usize) {
        run(&format!("-n {} link set port{host} up", self.switch()));
    }

    /// Loses all packets from one host to another; those in the other direction arrive.
    ///
    /// # Panics
    /// If `ip` fails.
    pub fn block(&self, from: usize, to: usize) {
        run(&format!("-n {} route add blackhole {}/32", self.host(from), self.address(to)));
    }

    /// Lets packets from one host to another pass again.
    ///
    /// # Panics
    /// If `ip` fails.
    pub fn unblock(&self, from: usize, to: usize) {
        run(&format!("-n {} route del blackhole {}/32", self.host(from), self.address(to)));
    }

    /// Sets what names stand for on a host; earlier ones are forgotten.
    ///
    /// # Panics
    /// If the file cannot be written.
    pub fn name_addresses(&self, host: usize, names: &[(&str, Ipv4Addr)]) {
        let line = |(name, address): &(&str, Ipv4Addr)| format!("{address} {name}\n");
        let lines: String = names.iter().map(line).collect();
        // In place: programs on the host see this file, not another one of its name.
        fs::write(self.etc(host).join("hosts"), format!("127.0.0.1 localhost\n{lines}")).expect("a file for names");
    }

    fn switch(&self) -> String {
        format!("{}s", self.name)
    }

    fn host(&self, host: usize) -> String {
        format!("{}h{host}", self.name)
    }

    fn etc(&self, host: usize) -> PathBuf {
        PathBuf::from("/etc/netns").join(self.host(host))
    }

    /// Returns the addresses of both ends of a control cable.
    fn control_addresses(&self, host: usize) -> [Ipv4Addr; 2] {
        let first = CONTROL.0 + (self.first_control + host as u32) % CONTROL.1 * 4;
        [first + 1, first + 2].map(Ipv4Addr::from)
    }
}

impl Drop for Namespaces {
    /// Cables end with the namespaces of their ends, and these when the programs on them have ended.
    fn drop(&mut self) {
        for host in 0..self.hosts {
            // As far as it was made.
            let _ = ip(&format!("netns del {}", self.host(host)));
            let _ = fs::remove_dir_all(self.etc(host));
        }
        let _ = ip(&format!("netns del {}", self.switch()));
    }
}

/// Runs `ip` with these arguments.
fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`ip {arguments}`: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

fn run(arguments: &str) {
    if let Err(why) = ip(arguments) {
        panic!("{why}");
    }
}
