//! A thread with an event loop of its own, for what must not stand in the way of decisions: the database, the API for rules, and
//! following a rules service. However long those take, the threads that decide and the one that accepts know nothing of it.

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
    /// When a thread or its event loop cannot be had.
    pub fn start(name: &str) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().on_thread_start(stand_back).build()?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel();
        let run = move || {
            stand_back();
            // An error says that whoever would stop it is gone, which is as good.
            let _ = runtime.block_on(stopped);
            // What is being compiled or written to a disk that does not answer is not waited for.
            runtime.shutdown_background();
        };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
        Ok(Self { handle, stop, thread })
    }

    /// For whoever has something to run there.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Runs something there and waits for what comes of it.
    ///
    /// # Errors
    /// When it panics, or the thread has ended.
    pub async fn run<T: Send + 'static>(&self, task: impl Future<Output = T> + Send + 'static) -> anyhow::Result<T> {
        Ok(self.handle.spawn(task).await?)
    }

    /// Ends it, with whatever runs there.
    pub fn stop(self) {
        // It may have ended by itself.
        let _ = self.stop.send(());
        if self.thread.join().is_err() {
            tracing::error!("a thread had panicked");
        }
    }
}

/// How much these threads give way, of 19. Less, and ten thousand rules are felt by those who ask for decisions; more,
/// and a machine that has nothing to spare would not get new rules at all.
const NICE: i32 = 10;

/// Lets the threads that decide go first: rules that come a little later do no harm, decisions that do would.
fn stand_back() {
    // It is about this thread alone, and whoever may not do it has lost nothing.
    let _ = rustix::process::nice(NICE);
}
