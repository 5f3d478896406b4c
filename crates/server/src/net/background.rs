//! A thread with its own event loop for work that must not delay decisions: the database, the API for rules, and
//! polling a rules service.

use std::future::Future;
use std::io;
use std::thread::JoinHandle;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The thread.
#[derive(Debug)]
pub struct BackgroundThread {
    handle: Handle,
    stop: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl BackgroundThread {
    /// Starts it.
    ///
    /// # Errors
    /// When the thread or its event loop cannot be created.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().on_thread_start(lower_priority).build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            lower_priority();
            // An error means that the sender was dropped, which stops the thread too.
            let _ = runtime.block_on(stopped);
            // Does not wait for blocking work, such as a write to a disk that does not answer.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { handle, stop, thread })
    }

    /// Returns a handle to spawn tasks there.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a task there and returns its result.
    ///
    /// # Errors
    /// When it panics, or the thread has ended.
    pub async fn run<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> anyhow::Result<T> {
        Ok(self.handle.spawn(task).await?)
    }

    /// Stops the thread and every task on it.
    pub fn stop(self) {
        // The thread may have ended already.
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            tracing::error!("a background thread panicked");
        }
    }
}

/// The nice value of these threads, from 0 to 19. With a lower one, compiling ten thousand rules slows down decisions; with a
/// higher one, a machine without idle time would never get new rules.
const NICE: i32 = 10;

/// Lowers the priority below that of the threads that decide.
pub(super) fn lower_priority() {
    // It affects this thread only, and a failure is harmless. Not `nice`, which adds to the value that a thread inherits.
    let _ = rustix::process::setpriority_process(None, NICE);
}
