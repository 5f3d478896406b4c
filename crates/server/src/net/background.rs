//! A background thread with its own event loop, for work that must not delay decisions: database access, the rules API,
//! and polling a rules service.

use std::future::Future;
use std::io;
use std::thread::JoinHandle;

use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// A low-priority thread with its own event loop.
#[derive(Debug)]
pub struct BackgroundThread {
    handle: Handle,
    stop_sender: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl BackgroundThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// Returns an error if the thread or its event loop cannot be created.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().on_thread_start(lower_priority).build()?;
        let handle = runtime.handle().clone();
        let (stop_sender, stopped) = oneshot::channel();
        let run = move || {
            lower_priority();
            // An error means that the sender was dropped, which also stops the thread.
            let _ = runtime.block_on(stopped);
            // Do not wait for blocking work, such as a write to a disk that does not respond.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { handle, stop_sender, thread })
    }

    /// Returns a handle to spawn tasks on the thread.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs a task on the thread and returns its result.
    ///
    /// # Errors
    /// Returns an error if the task panics or the thread has ended.
    pub async fn run_task<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> anyhow::Result<T> {
        Ok(self.handle.spawn(task).await?)
    }

    /// Stops the thread and all its tasks.
    pub fn stop(self) {
        // An error is ignored, because the thread may have ended already.
        let _ = self.stop_sender.send(());
        if self.thread.join().is_err() {
            tracing::error!("a background thread panicked");
        }
    }
}

/// Nice value of background threads. With a lower value, compiling 10,000 rules would slow down decisions. With a
/// higher value, a fully loaded machine would take very long to compile new rules.
const BACKGROUND_NICE: i32 = 10;

/// Lowers the priority of the current thread below the worker threads.
pub(super) fn lower_priority() {
    // On Linux, this call affects only the current thread. A failure is harmless. `nice` is not used, because it is
    // relative to the inherited value.
    let _ = rustix::process::setpriority_process(None, BACKGROUND_NICE);
}
