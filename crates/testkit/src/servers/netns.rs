//! Hosts for tests: Linux network namespaces with their own addresses, connected by a switch.
//!
//! ```text
//!   this process ── control cable ── host 0 ── cable ── switch ── cable ── host 1 ── control cable ── this process
//! ```
//!
//! Each host is a network namespace. A test can [unplug](Namespaces::unplug) a cable, or [block](Namespaces::block) one
//! direction between two hosts. Packets are then lost, and open connections notice no error, as in a real network. The
//! control cables are separate, so that a test always reaches the programs on its hosts.

use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A network of namespaces. The addresses of the hosts are local to the network, so concurrent tests can use the same
/// addresses.
#[derive(Debug)]
pub struct Namespaces {
    name: String,
    hosts: usize,
    /// Number of the first control cable. Each cable has four addresses.
    first_control: u32,
}

/// Address range of the control cables: 198.18.0.0/15, which is reserved for benchmarks. The range has room for 32,768
/// cables.
const CONTROL_ADDRESSES: (u32, u32) = (0xC612_0000, 1 << 15);

impl Namespaces {
    /// Creates a switch and `hosts` hosts, each with a cable.
    ///
    /// # Errors
    /// Returns an error if network namespaces cannot be created, because `ip` is missing or the user is not root.
    pub fn new(hosts: usize) -> Result<Self, String> {
        static CREATED_NETWORKS: AtomicU32 = AtomicU32::new(0);
        let (process, number) = (std::process::id(), CREATED_NETWORKS.fetch_add(1, Ordering::Relaxed));
        let first_control = (process.wrapping_mul(64) + number * 8) % CONTROL_ADDRESSES.1;
        let network = Self { name: format!("tg{process}-{number}"), hosts: 0, first_control };
        network.build(hosts)
    }

    fn build(mut self, hosts: usize) -> Result<Self, String> {
        let switch = self.switch_name();
        try_run_ip(&format!("netns add {switch}"))?;
        try_run_ip(&format!("-n {switch} link add bridge type bridge"))?;
        try_run_ip(&format!("-n {switch} link set bridge up"))?;
        for host in 0..hosts {
            let (name, control) = (self.host_name(host), format!("{}c{host}", self.name));
            try_run_ip(&format!("netns add {name}"))?;
            self.hosts += 1;
            // `ip netns exec` shows this file as /etc/hosts.
            fs::create_dir_all(self.etc_folder(host)).map_err(|error| error.to_string())?;
            self.set_host_names(host, &[]);
            try_run_ip(&format!("-n {name} link set lo up"))?;
            try_run_ip(&format!("-n {name} link add eth0 type veth peer name port{host} netns {switch}"))?;
            try_run_ip(&format!("-n {switch} link set port{host} master bridge up"))?;
            try_run_ip(&format!("-n {name} addr add {}/24 dev eth0", self.address(host)))?;
            try_run_ip(&format!("-n {name} link set eth0 up"))?;
            let [outside, inside] = self.control_addresses(host);
            try_run_ip(&format!("link add {control} type veth peer name control netns {name}"))?;
            try_run_ip(&format!("addr add {outside}/30 dev {control}"))?;
            try_run_ip(&format!("link set {control} up"))?;
            try_run_ip(&format!("-n {name} addr add {inside}/30 dev control"))?;
            try_run_ip(&format!("-n {name} link set control up"))?;
        }
        Ok(self)
    }

    /// Returns the address at which other hosts reach this host.
    pub fn address(&self, host: usize) -> Ipv4Addr {
        Ipv4Addr::from(0x0A4D_0001 + host as u32)
    }

    /// Returns the address at which only this process reaches the host.
    pub fn control_address(&self, host: usize) -> Ipv4Addr {
        self.control_addresses(host)[1]
    }

    /// Returns a command that runs a program on a host. The process id of the command is the program's process id.
    pub fn command(&self, host: usize, program: &str) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.host_name(host), program]);
        command
    }

    /// Unplugs a host's cable, which isolates the host from all others.
    ///
    /// # Panics
    /// Panics if `ip` fails.
    pub fn unplug(&self, host: usize) {
        run_ip(&format!("-n {} link set port{host} down", self.switch_name()));
    }

    /// Reconnects a host's cable.
    ///
    /// # Panics
    /// Panics if `ip` fails.
    pub fn plug(&self, host: usize) {
        run_ip(&format!("-n {} link set port{host} up", self.switch_name()));
    }

    /// Drops all packets from one host to another. The other direction still works.
    ///
    /// # Panics
    /// Panics if `ip` fails.
    pub fn block(&self, from: usize, to: usize) {
        run_ip(&format!("-n {} route add blackhole {}/32", self.host_name(from), self.address(to)));
    }

    /// Ends [`block`](Self::block).
    ///
    /// # Panics
    /// Panics if `ip` fails.
    pub fn unblock(&self, from: usize, to: usize) {
        run_ip(&format!("-n {} route del blackhole {}/32", self.host_name(from), self.address(to)));
    }

    /// Replaces the host names that a host can resolve.
    ///
    /// # Panics
    /// Panics if the file cannot be written.
    pub fn set_host_names(&self, host: usize, names: &[(&str, Ipv4Addr)]) {
        let line = |(name, address): &(&str, Ipv4Addr)| format!("{address} {name}\n");
        let lines: String = names.iter().map(line).collect();
        // Writes the file in place, because programs on the host see this inode.
        fs::write(self.etc_folder(host).join("hosts"), format!("127.0.0.1 localhost\n{lines}"))
            .expect("the file of host names can be written");
    }

    fn switch_name(&self) -> String {
        format!("{}s", self.name)
    }

    fn host_name(&self, host: usize) -> String {
        format!("{}h{host}", self.name)
    }

    fn etc_folder(&self, host: usize) -> PathBuf {
        PathBuf::from("/etc/netns").join(self.host_name(host))
    }

    /// Returns the addresses at both ends of a control cable.
    fn control_addresses(&self, host: usize) -> [Ipv4Addr; 2] {
        let first = CONTROL_ADDRESSES.0 + (self.first_control + host as u32) % CONTROL_ADDRESSES.1 * 4;
        [first + 1, first + 2].map(Ipv4Addr::from)
    }
}

impl Drop for Namespaces {
    /// Removes the namespaces. Cables disappear with their namespaces, and namespaces disappear when their programs
    /// end.
    fn drop(&mut self) {
        for host in 0..self.hosts {
            // Ignores errors, because some namespaces may not have been created.
            let _ = try_run_ip(&format!("netns del {}", self.host_name(host)));
            let _ = fs::remove_dir_all(self.etc_folder(host));
        }
        let _ = try_run_ip(&format!("netns del {}", self.switch_name()));
    }
}

/// Runs `ip` with these arguments.
fn try_run_ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|error| format!("ip: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("`ip {arguments}`: {}", String::from_utf8_lossy(&output.stderr).trim()))
}

fn run_ip(arguments: &str) {
    if let Err(why) = try_run_ip(arguments) {
        panic!("{why}");
    }
}
