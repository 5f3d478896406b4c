//! The threads that serve connections: one for each core, each with an event loop of its own.
//!
//! A connection stays with one thread for life, so nothing it uses is passed between cores, and its buffers are warm. New
//! connections are dealt out in turn: the kernel's own way (several listeners on one port) spreads a few dozen of them
//! unevenly, and would let a second server start on the same port unnoticed.

use std::future::Future;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::sync::mpsc;

/// Connections that wait for a thread to take them; more are left in the kernel's queue.
const BACKLOG: usize = 128;

/// A set of threads, each of which runs `serve` on the connections it is given.
#[derive(Debug)]
pub struct Workers<T> {
    queues: Vec<mpsc::Sender<(TcpStream, T)>>,
    threads: Vec<JoinHandle<()>>,
    turn: AtomicUsize,
}

impl<T: Send + 'static> Workers<T> {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// When a thread or its event loop cannot be had.
    pub fn start<F, C>(count: usize, serve: F) -> io::Result<Self>
    where
        F: Fn(tokio::net::TcpStream, T) -> C + Send + Sync + 'static,
        C: Future<Output = ()> + Send + 'static,
    {
        let serve = Arc::new(serve);
        let mut workers = Self { queues: Vec::new(), threads: Vec::new(), turn: AtomicUsize::new(0) };
        for number in 0..count.max(1) {
            let (queue, mut connections) = mpsc::channel::<(TcpStream, T)>(BACKLOG);
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            let serve = serve.clone();
            let run = move || {
                runtime.block_on(async {
                    while let Some((stream, extra)) = connections.recv().await {
                        match tokio::net::TcpStream::from_std(stream) {
                            Ok(stream) => drop(tokio::spawn(serve(stream, extra))),
                            Err(error) => tracing::warn!(%error, "a connection was lost"),
                        }
                    }
                });
            };
            workers.threads.push(std::thread::Builder::new().name(format!("tollgate-{number}")).spawn(run)?);
            workers.queues.push(queue);
        }
        Ok(workers)
    }

    /// Gives a connection to the thread whose turn it is, waiting while that one has too many waiting.
    ///
    /// # Errors
    /// When the connection cannot be taken from this event loop, or the thread has ended.
    pub async fn take(&self, stream: tokio::net::TcpStream, extra: T) -> io::Result<()> {
        // Only the spreading depends on it.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let stream = stream.into_std()?;
        let sent = self.queues[turn % self.queues.len()].send((stream, extra)).await;
        sent.map_err(|_| io::Error::other("the thread has ended"))
    }

    /// Ends the threads, and with them whatever connections are left.
    pub fn stop(self) {
        drop(self.queues);
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a thread had panicked");
            }
        }
    }
}
