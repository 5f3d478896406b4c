//! Measures the waits of callers when the store of a server is stopped under load, compared with the same load on a
//! working store.

use std::net::SocketAddr;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The number of callers.
const CONNECTIONS: usize = 20;

/// The waits of the callers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Waits {
    /// Number of answers.
    pub(crate) answers: usize,
    /// The median wait, in milliseconds.
    pub(crate) middle: f64,
    /// The longest wait, in milliseconds.
    pub(crate) longest: f64,
}

/// Sends a signal to a process.
pub(crate) fn send_signal(process: u32, name: &str) -> anyhow::Result<()> {
    let status = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status()?;
    if status.success() { Ok(()) } else { bail!("kill -{name} failed") }
}

/// Sends sequential requests on every connection for `length`, and calls `fault` after a third of that time.
///
/// # Errors
/// Returns an error if a request is not answered with a decision.
pub(crate) fn run_callers(
    address: SocketAddr,
    length: Duration,
    fault: impl FnOnce() -> anyhow::Result<()>,
) -> anyhow::Result<Waits> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let waits = runtime.block_on(async {
        let start = Instant::now();
        let mut tasks = Vec::new();
        for number in 0..CONNECTIONS {
            tasks.push(tokio::spawn(run_caller(address, number, start, length)));
        }
        tokio::time::sleep(length / 3).await;
        fault()?;
        let mut waits = Vec::new();
        for task in tasks {
            waits.extend(task.await??);
        }
        anyhow::Ok(waits)
    });
    let mut waits: Vec<f64> = waits?.iter().map(|wait| wait.as_secs_f64() * 1_000.).collect();
    waits.sort_by(f64::total_cmp);
    let at = |place: usize| waits.get(place).copied().context("no answers");
    Ok(Waits { answers: waits.len(), middle: at(waits.len() / 2)?, longest: at(waits.len() - 1)? })
}

async fn run_caller(
    address: SocketAddr,
    number: usize,
    start: Instant,
    length: Duration,
) -> anyhow::Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let key = format!("caller:{number}");
    let command = format!("*5\r\n$11\r\nCL.THROTTLE\r\n${}\r\n{key}\r\n$1\r\n9\r\n$2\r\n10\r\n$1\r\n1\r\n", key.len());
    let (mut waits, mut buffer) = (Vec::new(), [0; 512]);
    while start.elapsed() < length {
        let asked = Instant::now();
        stream.write_all(command.as_bytes()).await?;
        // A reply always fits one read.
        let read = stream.read(&mut buffer).await?;
        if !buffer[..read].starts_with(b"*5\r\n") {
            bail!("no decision: {}", buffer[..read].escape_ascii());
        }
        waits.push(asked.elapsed());
    }
    Ok(waits)
}
