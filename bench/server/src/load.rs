//! Load generators: redis-benchmark, wrk, and two small clients for other loads.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};

use tollgate_server_bench::process::Server;

/// The results of one run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunResult {
    /// Answers per second.
    pub(crate) per_second: f64,
    /// The server's CPU time per answer, in microseconds.
    pub(crate) cpu_micros: f64,
}

/// Runs redis-benchmark with 50 connections and pipelines of `pipeline` commands.
pub(crate) fn run_redis_benchmark(
    server: &Server,
    pipeline: usize,
    count: usize,
    command: &[&str],
) -> anyhow::Result<RunResult> {
    let before = server.cpu_micros();
    let output = Command::new("redis-benchmark")
        .args(["-p", &server.address.port().to_string(), "-c", "50", "-r", "100000", "-q"])
        .args(["-P", &pipeline.to_string(), "-n", &count.to_string()])
        .args(command)
        .output()
        .context("redis-benchmark does not run; it is in the package redis-tools")?;
    let cpu_micros = (server.cpu_micros() - before) / count as f64;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let last = text.split(['\r', '\n']).rfind(|line| line.contains("requests per second"));
    let per_second = last.and_then(|line| line.split(": ").nth(1)?.split(' ').next()?.parse().ok());
    Ok(RunResult { per_second: per_second.with_context(|| format!("no result in {text}"))?, cpu_micros })
}

/// Loads a script into Redis and returns its digest.
pub(crate) fn load_script(server: &Server, script: &str) -> anyhow::Result<String> {
    let output = Command::new("redis-cli")
        .args(["-p", &server.address.port().to_string(), "SCRIPT", "LOAD", script])
        .output()
        .context("redis-cli does not run; it is in the package redis-tools")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// The responses that a run must get.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Expected {
    /// Only status 200.
    Admitted,
    /// At least one response has a status other than 200. The first request of each key is admitted, so the first run
    /// on a server refuses only some requests.
    Refused,
}

/// Runs wrk with 50 connections for two seconds. `script` chooses a random key for every request.
pub(crate) fn run_wrk(server: &Server, path: &str, script: &str, expected: Expected) -> anyhow::Result<RunResult> {
    let before = server.cpu_micros();
    let output = Command::new("wrk")
        .args(["-t1", "-c50", "-d2s", "-s", script])
        .arg(format!("http://{}{path}", server.address))
        .output()
        .context("wrk does not run; it is in the package wrk")?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let number = |after: &str| text.split(after).nth(1)?.split_whitespace().next()?.parse::<f64>().ok();
    let per_second = number("Requests/sec:").with_context(|| format!("no result in {text}"))?;
    if text.contains("Non-2xx") != (expected == Expected::Refused) {
        bail!("expected {expected:?}: {text}");
    }
    let line = text.lines().find(|line| line.contains(" requests in ")).context("no count")?;
    let count: f64 = line.split_whitespace().next().context("no count")?.parse()?;
    Ok(RunResult { per_second, cpu_micros: (server.cpu_micros() - before) / count })
}

/// Calls `CL.THROTTLE` once on each of `keys` different keys.
pub(crate) fn fill_with_keys(address: SocketAddr, keys: usize) -> anyhow::Result<()> {
    const COMMANDS_PER_WRITE: usize = 100;
    let mut stream = TcpStream::connect(address)?;
    let mut received = vec![0; 64 * 1024];
    for first in (0..keys).step_by(COMMANDS_PER_WRITE) {
        let mut commands = Vec::new();
        for key in first..first + COMMANDS_PER_WRITE {
            let key = format!("some-client:{key:08}");
            commands.extend_from_slice(
                format!("*5\r\n$11\r\nCL.THROTTLE\r\n${}\r\n{key}\r\n$2\r\n10\r\n$1\r\n1\r\n$4\r\n3600\r\n", key.len())
                    .as_bytes(),
            );
        }
        stream.write_all(&commands)?;
        let mut replies = 0;
        while replies < COMMANDS_PER_WRITE {
            let read = stream.read(&mut received)?;
            if read == 0 {
                bail!("the server closed the connection");
            }
            replies += received[..read].iter().filter(|byte| **byte == b'*').count();
        }
    }
    Ok(())
}

/// Sends `rate` commands per second over 50 connections for `length`, and returns the median response time in
/// microseconds. Choose a moderate rate, at which the server is neither idle nor overloaded.
pub(crate) fn median_latency(address: SocketAddr, rate: u32, length: Duration) -> anyhow::Result<f64> {
    const CONNECTIONS: u32 = 50;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let start = tokio::time::Instant::now() + Duration::from_millis(50);
        let mut tasks = Vec::new();
        for number in 0..CONNECTIONS {
            let stream = tokio::net::TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let every = Duration::from_secs(1) * CONNECTIONS / rate;
            let first = start + every * number / CONNECTIONS;
            tasks.push(tokio::spawn(measure_connection(stream, first, every, length)));
        }
        let mut times = Vec::new();
        for task in tasks {
            times.extend(task.await??);
        }
        times.sort_unstable();
        Ok(times.get(times.len() / 2).context("no answers")?.as_nanos() as f64 / 1_000.)
    })
}

async fn measure_connection(
    mut stream: tokio::net::TcpStream,
    first: tokio::time::Instant,
    every: Duration,
    length: Duration,
) -> anyhow::Result<Vec<Duration>> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let command = b"*5\r\n$11\r\nCL.THROTTLE\r\n$6\r\nclient\r\n$7\r\n1000000\r\n$7\r\n1000000\r\n$2\r\n60\r\n";
    let (mut times, mut buffer) = (Vec::new(), [0; 4096]);
    let mut due = first;
    while due < first + length {
        // The timer has a resolution of 1 ms, so requests are sent in bursts of about twenty. The floor gets the same
        // bursts.
        tokio::time::sleep_until(due).await;
        let sent = Instant::now();
        stream.write_all(command).await?;
        if stream.read(&mut buffer).await? == 0 {
            bail!("the server closed the connection");
        }
        times.push(sent.elapsed());
        due += every;
    }
    Ok(times)
}
