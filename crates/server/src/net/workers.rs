//! Worker threads that serve connections: one per core by default, each with its own event loop.
//!
//! A connection stays on one thread, so that its data stays in one core's cache. New connections are assigned
//! round-robin. `SO_REUSEPORT` is not used: it would spread a few dozen connections unevenly, and a second server could
//! start on the same port unnoticed.

use std::future::Future;
use std::io;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;

use tokio::sync::mpsc;

use super::background::lower_priority;

/// Maximum number of queued connections per thread. Further connections stay in the kernel's accept queue.
const MAX_QUEUED_CONNECTIONS: usize = 128;

/// Number of threads for blocking work per worker thread. If all of these threads are busy, further work is queued.
const BLOCKING_THREADS: usize = 2;

/// Worker threads, each with a queue of new connections.
#[derive(Debug)]
pub struct Workers<T> {
    queues: Vec<mpsc::Sender<(TcpStream, T)>>,
    threads: Vec<JoinHandle<()>>,
    next_worker: AtomicUsize,
}

impl<T: Send + 'static> Workers<T> {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// Returns an error if a thread or its event loop cannot be created.
    pub fn start<F, C>(count: usize, serve: F) -> io::Result<Self>
    where
        F: Fn(tokio::net::TcpStream, T) -> C + Send + Sync + 'static,
        C: Future<Output = ()> + Send + 'static,
    {
        let serve = Arc::new(serve);
        let mut workers = Self { queues: Vec::new(), threads: Vec::new(), next_worker: AtomicUsize::new(0) };
        for number in 0..count.max(1) {
            let (queue, mut connections) = mpsc::channel::<(TcpStream, T)>(MAX_QUEUED_CONNECTIONS);
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                // Blocking work, such as explanations, must not take CPU time from the worker threads.
                .on_thread_start(lower_priority)
                .max_blocking_threads(BLOCKING_THREADS)
                .build()?;
            let serve = serve.clone();
            let run = move || {
                runtime.block_on(async {
                    while let Some((stream, extra)) = connections.recv().await {
                        match tokio::net::TcpStream::from_std(stream) {
                            Ok(stream) => drop(tokio::spawn(serve(stream, extra))),
                            Err(error) => tracing::warn!(%error, "cannot register a connection"),
                        }
                    }
                });
            };
            workers.threads.push(std::thread::Builder::new().name(format!("tollgate-{number}")).spawn(run)?);
            workers.queues.push(queue);
        }
        Ok(workers)
    }

    /// Sends a connection to the next thread. Waits while that thread's queue is full.
    ///
    /// # Errors
    /// Returns an error if the connection cannot be removed from this event loop, or if the worker thread has ended.
    pub async fn assign(&self, stream: tokio::net::TcpStream, extra: T) -> io::Result<()> {
        // Relaxed: only the distribution of connections depends on this counter.
        let next_worker = self.next_worker.fetch_add(1, Ordering::Relaxed);
        let stream = stream.into_std()?;
        let sent = self.queues[next_worker % self.queues.len()].send((stream, extra)).await;
        sent.map_err(|_| io::Error::other("the worker thread has ended"))
    }

    /// Stops the threads and closes the remaining connections.
    pub fn stop(self) {
        drop(self.queues);
        for thread in self.threads {
            if thread.join().is_err() {
                tracing::error!("a worker thread panicked");
            }
        }
    }
}
