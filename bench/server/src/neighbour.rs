//! Measures the waits of one connection while another connection sends the most expensive requests that the server
//! accepts.
//!
//! The server has one thread, which both connections share. A probe sends a small request every millisecond and records
//! the response times: first while the server is otherwise idle, then while each expensive request is repeated. The
//! sender of the expensive requests has idle priority, so that the figures exclude waits for the sender's CPU time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

/// An expensive request: its name, path and body.
pub(crate) struct HeavyRequest {
    pub(crate) name: &'static str,
    pub(crate) path: &'static str,
    pub(crate) body: String,
}

/// Returns a rule file with 10,000 rules. A request with `a=1` matches 256 rules, which is the maximum.
pub(crate) fn rule_file() -> String {
    let matching = (0..256).map(|n| format!("- {{id: m{n}, when: {{a: '1'}}, per: [k], limit: 1M/s}}\n"));
    let others = (0..9_744).map(|n| format!("- {{id: o{n}, when: {{a: '1', b: 'x{n}'}}, limit: 1/s}}\n"));
    format!("domain: api\nrules:\n{}", matching.chain(others).collect::<String>())
}

/// Returns the expensive requests: lists of maximum length, whose items match the maximum number of rules.
pub(crate) fn heavy_requests() -> [HeavyRequest; 2] {
    let list = |count: usize| {
        let items: Vec<String> =
            (0..count).map(|n| format!(r#"{{"domain":"api","attributes":{{"a":"1","k":"{n}"}}}}"#)).collect();
        format!("[{}]", items.join(","))
    };
    [
        HeavyRequest { name: "check of 1000", path: "/v1/check", body: list(1_000) },
        HeavyRequest { name: "explain of 100", path: "/v1/explain", body: list(100) },
    ]
}

/// Returns the longest wait of the probe within `length`, in microseconds, while `request` is repeated on another
/// connection; `None` leaves the server otherwise idle.
///
/// # Errors
/// Returns an error if a connection breaks.
pub(crate) fn longest_wait(
    address: SocketAddr,
    length: Duration,
    request: Option<&HeavyRequest>,
) -> anyhow::Result<f64> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let other = request.map(|request| {
            let over = &over;
            scope.spawn(move || -> anyhow::Result<usize> {
                lower_priority()?;
                let mut stream = connect(address)?;
                let mut count = 0;
                while !over.load(Ordering::Relaxed) {
                    post_expecting_ok(&mut stream, request.path, &request.body)?;
                    count += 1;
                }
                Ok(count)
            })
        });
        let longest = probe(address, length);
        over.store(true, Ordering::Relaxed);
        if let Some(other) = other {
            let count = other.join().map_err(|_| anyhow::anyhow!("the other connection panicked"))??;
            ensure!(count > 0, "the expensive request was never answered");
        }
        longest
    })
}

/// Lowers the priority of this thread, so that it never takes a core from the server or the probe. With two cores, the
/// scheduler otherwise lets a thread that reads 8 MB use its whole time slice of 4 ms first, and the probe waits.
fn lower_priority() -> anyhow::Result<()> {
    let thread = std::fs::read_link("/proc/thread-self")?;
    let id = thread.file_name().context("no thread id")?;
    let status = Command::new("chrt").args(["--idle", "--pid", "0"]).arg(id).status().context("chrt does not run")?;
    ensure!(status.success(), "chrt failed: {status}");
    Ok(())
}

fn probe(address: SocketAddr, length: Duration) -> anyhow::Result<f64> {
    let mut stream = connect(address)?;
    let (begin, mut longest) = (Instant::now(), Duration::ZERO);
    while begin.elapsed() < length {
        std::thread::sleep(Duration::from_millis(1));
        let sent = Instant::now();
        post_expecting_ok(&mut stream, "/v1/check", r#"{"key":"k","limit":"1M/s"}"#)?;
        longest = longest.max(sent.elapsed());
    }
    Ok(longest.as_secs_f64() * 1e6)
}

fn connect(address: SocketAddr) -> anyhow::Result<BufReader<TcpStream>> {
    let stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    Ok(BufReader::new(stream))
}

/// Sends a request and reads the whole response.
fn post_expecting_ok(stream: &mut BufReader<TcpStream>, path: &str, body: &str) -> anyhow::Result<()> {
    let head = format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.get_mut().write_all(format!("{head}{body}").as_bytes())?;
    let (mut line, mut length) = (String::new(), 0);
    stream.read_line(&mut line)?;
    ensure!(line.starts_with("HTTP/1.1 200"), "{path}: {line}");
    loop {
        line.clear();
        ensure!(stream.read_line(&mut line)? > 0, "the server closed the connection");
        match line.trim_end().split_once(": ") {
            Some(("content-length", value)) => length = value.parse().context("content-length")?,
            Some(_) => {}
            None => break,
        }
    }
    std::io::copy(&mut stream.take(length), &mut std::io::sink())?;
    Ok(())
}
