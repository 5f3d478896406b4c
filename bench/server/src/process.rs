//! Servers as child processes, with their CPU time and memory.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, bail};

/// A running server. Dropping the `Server` kills its process.
#[derive(Debug)]
pub struct Server {
    child: Child,
    /// The address that the server listens on.
    pub address: SocketAddr,
}

impl Server {
    /// Starts a program and waits until it listens on `address`.
    pub fn start(command: &mut Command, address: SocketAddr) -> anyhow::Result<Self> {
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut server = Self { child: child.with_context(|| format!("cannot start {command:?}"))?, address };
        for _ in 0..200 {
            if TcpStream::connect(address).is_ok() {
                return Ok(server);
            }
            if let Some(status) = server.child.try_wait()? {
                bail!("{command:?} ended with {status}");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        bail!("{command:?} does not listen on {address}")
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Returns the CPU time of all threads, in microseconds.
    pub fn cpu_micros(&self) -> f64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.child.id())).into_iter().flatten().flatten();
        let nanos = threads.filter_map(|thread| {
            let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
            text.split(' ').next()?.parse::<f64>().ok()
        });
        nanos.sum::<f64>() / 1_000.
    }

    /// Returns the resident memory, in megabytes.
    pub fn resident_megabytes(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no resident memory")?;
        Ok(line.trim().trim_end_matches(" kB").parse::<f64>()? / 1_024.)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns a free address.
pub fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}

/// Returns the processor model and the load average, for the heading of a report.
pub fn describe_machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let cpus = read("/proc/cpuinfo");
    let name = cpus.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(": unknown");
    let name = name.trim_start_matches(['\t', ' ', ':']);
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = read("/proc/loadavg");
    format!("processor: {name}, {cores} cores; load average {}", load.split(' ').next().unwrap_or("unknown"))
}
