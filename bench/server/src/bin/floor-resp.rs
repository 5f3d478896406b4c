//! The Redis-protocol floor: a tokio server that finds the end of each command and replies `+OK`.
//!
//! `floor-resp ADDRESS`: one event loop per core, with connections assigned round-robin.

use std::net::TcpStream as StdStream;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

fn main() -> anyhow::Result<()> {
    let address = std::env::args().nth(1).unwrap_or_else(|| "127.0.0.1:6390".into());
    let cores = std::thread::available_parallelism()?.get();
    let queues: Vec<_> = (0..cores)
        .map(|_| {
            let (queue, mut streams) = tokio::sync::mpsc::channel::<StdStream>(128);
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("an event loop").block_on(async {
                    while let Some(stream) = streams.recv().await {
                        if let Ok(stream) = TcpStream::from_std(stream) {
                            tokio::spawn(serve(stream));
                        }
                    }
                });
            });
            queue
        })
        .collect();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        for turn in 0.. {
            queues[turn % cores].send(listener.accept().await?.0.into_std()?).await?;
        }
        Ok(())
    })
}

async fn serve(mut stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let (mut buffer, mut filled, mut out) = (vec![0; 16 * 1024], 0, Vec::new());
    while let Ok(read @ 1..) = stream.read(&mut buffer[filled..]).await {
        filled += read;
        let mut at = 0;
        while let Some(len) = command_len(&buffer[at..filled]) {
            at += len;
            out.extend_from_slice(b"+OK\r\n");
        }
        buffer.copy_within(at..filled, 0);
        filled -= at;
        if !out.is_empty() && stream.write_all(&out).await.is_err() {
            return;
        }
        out.clear();
    }
}

/// Returns the length of the command at the beginning of `input`, if it is complete.
fn command_len(input: &[u8]) -> Option<usize> {
    let (count, mut at) = parse_number(input, 1)?;
    for _ in 0..count {
        let (len, start) = parse_number(input, at + 1)?;
        at = start + len + 2;
        if at > input.len() {
            return None;
        }
    }
    Some(at)
}

fn parse_number(input: &[u8], mut at: usize) -> Option<(usize, usize)> {
    let mut value = 0;
    loop {
        match input.get(at)? {
            digit @ b'0'..=b'9' => value = value * 10 + usize::from(digit - b'0'),
            _ => return Some((value, at + 2)),
        }
        at += 1;
    }
}
