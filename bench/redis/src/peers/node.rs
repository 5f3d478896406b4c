//! A node in a separate process, controlled over pipes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use tollgate_peers::{Config, PeerStore};

/// Message size of the bare echo in bytes, about the size of a request with one charge.
pub(crate) const ECHO_BYTES: usize = 96;

/// Returns the configuration of a node at an address.
pub(crate) fn config(own: SocketAddr, seeds: &str, max_keys: usize) -> Result<Config> {
    let config = Config::from_url(&format!("peers://{seeds}"))?.listen(own)?;
    Ok(config.deadline(Duration::from_secs(10)).max_keys(max_keys))
}

/// Runs a node until its standard input ends. For each input line, prints the number of received bytes and the number
/// of keys.
pub(crate) async fn run(own: &str, seeds: &str, max_keys: &str) -> Result<()> {
    let store = PeerStore::start(config(own.parse()?, seeds, max_keys.parse()?)?)?;
    store.wait_until_joined().await;
    let echo = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", echo.local_addr()?);
    std::thread::spawn(move || -> Result<()> {
        for stream in echo.incoming() {
            let mut stream = stream?;
            stream.set_nodelay(true)?;
            let mut buffer = [0; 64 << 10];
            // Ends when the caller closes the connection.
            while let Ok(read @ 1..) = stream.read(&mut buffer) {
                if stream.write_all(&buffer[..read]).is_err() {
                    break;
                }
            }
        }
        Ok(())
    });
    for _ in std::io::stdin().lines() {
        let status = store.status();
        println!("{} {}", status.links.received, status.table.keys);
    }
    Ok(())
}

/// A running node.
#[derive(Debug)]
pub(crate) struct Node {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
    echo: SocketAddr,
}

impl Node {
    /// Starts a node and waits until it has joined.
    pub(crate) fn start(own: SocketAddr, seeds: &str, max_keys: usize) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["node", &own.to_string(), seeds, &max_keys.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let input = child.stdin.take().context("a pipe")?;
        let mut output = BufReader::new(child.stdout.take().context("a pipe")?);
        let mut line = String::new();
        output.read_line(&mut line)?;
        let echo = line.trim().parse().with_context(|| format!("unexpected output of the node: `{line}`"))?;
        Ok(Self { child, input, output, echo })
    }

    /// Returns the number of bytes received from other nodes, and the number of keys.
    pub(crate) fn read_counts(&mut self) -> Result<(u64, u64)> {
        self.input.write_all(b"state\n")?;
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        let (received, keys) =
            line.trim().split_once(' ').with_context(|| format!("unexpected output of the node: `{line}`"))?;
        Ok((received.parse()?, keys.parse()?))
    }

    /// Opens a connection to the node's echo server.
    pub(crate) fn connect_echo(&self) -> Result<TcpStream> {
        let stream = TcpStream::connect(self.echo)?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }

    /// Returns the CPU time of the process, in seconds.
    pub(crate) fn processor_time(&self) -> Result<f64> {
        processor_time(&self.child.id().to_string())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Errors are ignored: the process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the CPU time of a process in seconds, with a resolution of 10 ms.
pub(crate) fn processor_time(process: &str) -> Result<f64> {
    let text = std::fs::read_to_string(format!("/proc/{process}/stat"))?;
    let (_, rest) = text.rsplit_once(") ").context("no name in parentheses")?;
    let fields: Vec<&str> = rest.split(' ').collect();
    ensure!(fields.len() > 12, "too few fields in {text}");
    Ok((fields[11].parse::<f64>()? + fields[12].parse::<f64>()?) / 100.0)
}
