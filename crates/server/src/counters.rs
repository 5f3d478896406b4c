//! Snapshots of the in-memory counters on disk, so that counts, quotas, bans and leases survive a restart.
//!
//! A snapshot is written every `--snapshot-every` seconds and on shutdown, and restored on startup. A killed process
//! loses the changes since its last snapshot, which is at most one interval old unless writes failed. If a file cannot
//! be restored completely, the server renames it and starts with empty counters. If a write fails, the server logs the
//! error and continues to decide.

use std::fs::{DirBuilder, File, TryLockError};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::{Instant, MissedTickBehavior, interval_at, sleep};
use tollgate::clock::PreciseClock;
use tollgate::core::{Mono, Time};
use tollgate::redis_cell::RedisCellTable;
use tollgate::snapshot::{RestoreError, SnapshotReader, SnapshotWriter, replace_file};
use tollgate_engine::{Engine, MemoryStore};

use crate::app::App;
use crate::net::background::BackgroundThread;

/// Name of the snapshot file in the data directory.
const SNAPSHOT_FILE: &str = "counters.snapshot";
/// Name that a snapshot file gets if it cannot be restored.
const REFUSED_SNAPSHOT_FILE: &str = "counters.snapshot.refused";
/// Name of the file that a running server locks.
const LOCK_FILE: &str = "counters.lock";
/// Maximum time that a server waits at the start until another server has released the data directory. A server that
/// is stopping needs up to half a second, and a killed process may still be exiting.
const MAX_LOCK_WAIT: Duration = Duration::from_secs(3);
/// Pause between two attempts to lock the data directory.
const LOCK_RETRY_PAUSE: Duration = Duration::from_millis(20);

/// Where and how often snapshots are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotConfig {
    /// The data directory.
    pub directory: PathBuf,
    /// Interval between snapshots. Must not be zero.
    pub every: Duration,
}

/// Metrics of the snapshots and of the keys in memory. Relaxed ordering suffices, because the values are independent.
#[derive(Debug, Default)]
pub struct SnapshotStatus {
    /// The time of the last snapshot, in nanoseconds of [`App::now`]; 0 if there is none.
    written_at: AtomicU64,
    /// Number of failed writes since the last successful write.
    failures: AtomicU64,
    keys: AtomicU64,
    capacity: AtomicU64,
}

impl SnapshotStatus {
    /// Returns the seconds since the last snapshot was written. Returns `None` before the first snapshot.
    pub fn snapshot_age_seconds(&self, now: Time<Mono>) -> Option<u64> {
        let at = Some(self.written_at.load(Ordering::Relaxed)).filter(|at| *at > 0)?;
        Some(now.since(Time::from_nanos(at)).as_nanos() / 1_000_000_000)
    }

    /// Returns the number of keys in use at the last count.
    pub fn key_count(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Returns the maximum number of keys in memory, or 0 if the counters are not in memory.
    pub fn key_capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    /// Sets the maximum number of keys in memory.
    pub fn set_key_capacity(&self, capacity: usize) {
        self.capacity.store(capacity as u64, Ordering::Relaxed);
    }

    /// Returns the number of failed writes since the last successful write.
    pub fn failed_writes(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }
}

/// The in-memory counters of a server: the engine for rules, and the table for `CL.THROTTLE`.
pub type Counters = (Engine<MemoryStore>, RedisCellTable);

/// A lock on the data directory. Dropping the lock releases the directory.
#[derive(Debug)]
pub struct DirectoryLock(#[expect(dead_code, reason = "the lock lasts as long as the file is open")] Option<File>);

/// Locks the data directory, so that no other server overwrites the snapshot. Waits up to three seconds for another
/// server that is stopping. A directory in which the lock file cannot be opened, such as a read-only directory, is not
/// locked.
///
/// # Errors
/// Returns an error if another server uses the directory.
pub async fn lock_directory(directory: &Path) -> anyhow::Result<DirectoryLock> {
    lock_directory_within(directory, MAX_LOCK_WAIT).await
}

async fn lock_directory_within(directory: &Path, max_wait: Duration) -> anyhow::Result<DirectoryLock> {
    let opened = DirBuilder::new().recursive(true).mode(0o700).create(directory).and_then(|()| {
        File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(directory.join(LOCK_FILE))
    });
    let Ok(mut file) = opened else { return Ok(DirectoryLock(None)) };
    let mut locked = file.try_lock();
    if matches!(locked, Err(TryLockError::WouldBlock)) {
        tracing::info!(directory = %directory.display(), ?max_wait, "data directory in use; waiting for its release");
        let start = Instant::now();
        while matches!(locked, Err(TryLockError::WouldBlock)) && start.elapsed() < max_wait {
            sleep(LOCK_RETRY_PAUSE).await;
            locked = file.try_lock();
        }
    }
    match locked {
        Ok(()) => {
            // A second server reads the process id for its error message. A failed write does no harm.
            let _ = file.set_len(0).and_then(|()| write!(file, "{}", std::process::id()));
            Ok(DirectoryLock(Some(file)))
        }
        Err(TryLockError::WouldBlock) => {
            let process = io::read_to_string(file.take(20)).unwrap_or_default();
            let process = if process.is_empty() { String::new() } else { format!(" (process {process})") };
            anyhow::bail!(
                "the data directory {} is used by another server{process}; give each server its own with --data DIR",
                directory.display()
            )
        }
        // Some network file systems do not support locks.
        Err(TryLockError::Error(error)) => {
            tracing::warn!(directory = %directory.display(), %error, "cannot lock the data directory");
            Ok(DirectoryLock(None))
        }
    }
}

/// Restores the counters from the last snapshot, or creates empty counters for `capacity` keys.
///
/// # Errors
/// Returns an error if tables for `capacity` keys would be too large.
pub fn restore_or_create(capacity: usize, config: Option<&SnapshotConfig>) -> anyhow::Result<Counters> {
    if let Some(config) = config {
        let path = config.directory.join(SNAPSHOT_FILE);
        remove_temporary_files(&config.directory);
        match read_snapshot_file(&path, capacity) {
            Ok(counters) => {
                tracing::info!(file = %path.display(), "counters restored");
                return Ok(counters);
            }
            Err(RestoreError::Unreadable(error)) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                let aside = config.directory.join(REFUSED_SNAPSHOT_FILE);
                let moved = std::fs::rename(&path, &aside);
                let kept =
                    moved.map_or_else(|error| format!("cannot be renamed: {error}"), |()| aside.display().to_string());
                let file = path.display();
                tracing::error!(%file, %error, moved_to = kept, "cannot use the snapshot; starting with empty counters");
            }
        }
    }
    Ok((Engine::new(MemoryStore::new(capacity)?)?, RedisCellTable::new(capacity)?))
}

fn read_snapshot_file(path: &Path, capacity: usize) -> Result<Counters, RestoreError> {
    let file = File::open(path).map_err(RestoreError::Unreadable)?;
    let mut reader = SnapshotReader::new(BufReader::with_capacity(1 << 16, file))?;
    let throttles = RedisCellTable::restored(capacity, PreciseClock::new(), &mut reader)?;
    let fallback = MemoryStore::new(FALLBACK_CAPACITY).map_err(RestoreError::CapacityError)?;
    let engine = Engine::restored(capacity, Arc::new(PreciseClock::new()), fallback, &mut reader)?;
    reader.finish()?;
    Ok((engine, throttles))
}

/// Capacity of the fallback store, in keys. The fallback is never used, because an in-memory store does not fail.
const FALLBACK_CAPACITY: usize = 1;

/// Removes the temporary files of interrupted writes.
fn remove_temporary_files(directory: &Path) {
    let Ok(files) = std::fs::read_dir(directory) else { return };
    for file in files.flatten() {
        let name = file.file_name();
        let name = name.to_string_lossy();
        if name.starts_with(&format!(".{SNAPSHOT_FILE}.")) && name.ends_with(".tmp") {
            // Errors are ignored, because a leftover file only takes disk space.
            let _ = std::fs::remove_file(file.path());
        }
    }
}

/// Writes a snapshot and returns the number of counters in it.
fn write_snapshot_file(path: &Path, app: &App<MemoryStore>) -> io::Result<u64> {
    if let Some(directory) = path.parent() {
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    }
    replace_file(path, |file| {
        let mut buffered = BufWriter::with_capacity(1 << 16, file);
        let mut writer = SnapshotWriter::new(&mut buffered)?;
        let throttles = app.throttles.as_ref().map_or(Ok(0), |throttles| throttles.write_snapshot(&mut writer))?;
        let counters = app.engine.write_snapshot(&mut writer)?;
        writer.finish()?;
        buffered.flush()?;
        Ok(throttles + counters)
    })
}

/// Writes a snapshot. If several writes fail in a row, only the first failure is logged.
pub fn save_snapshot(app: &App<MemoryStore>, config: &SnapshotConfig) {
    let path = config.directory.join(SNAPSHOT_FILE);
    let (file, status) = (path.display(), &app.snapshots);
    match write_snapshot_file(&path, app) {
        Ok(counters) => {
            if status.failures.swap(0, Ordering::Relaxed) > 0 {
                tracing::info!(%file, "counter snapshot written after failures");
            }
            status.written_at.store(app.now().as_nanos(), Ordering::Relaxed);
            tracing::debug!(%file, counters, "snapshot written");
        }
        Err(error) => {
            if status.failures.fetch_add(1, Ordering::Relaxed) == 0 {
                tracing::error!(%file, %error, "cannot write the counter snapshot; decisions continue");
            }
        }
    }
}

/// Counts the keys periodically, and writes snapshots if they are configured. Never returns.
pub async fn count_keys_and_save_periodically(app: Arc<App<MemoryStore>>, config: Option<SnapshotConfig>) {
    let thread = match BackgroundThread::start("tollgate-counters") {
        Ok(thread) => thread,
        Err(error) => {
            tracing::error!(%error, "cannot start the thread for snapshots; no snapshot is written until the server stops");
            return std::future::pending().await;
        }
    };
    let counting = {
        let app = app.clone();
        run_periodically(&thread, KEY_COUNT_INTERVAL, Duration::ZERO, move || update_key_count(&app))
    };
    let saving = async {
        match config {
            Some(config) => {
                run_periodically(&thread, config.every, config.every, move || save_snapshot(&app, &config)).await;
            }
            None => std::future::pending().await,
        }
    };
    tokio::join!(counting, saving);
}

/// Interval between key counts for the metrics.
const KEY_COUNT_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of hash buckets of the `CL.THROTTLE` table that one count visits. The count of a larger table is an
/// estimate.
const MAX_COUNTED_BUCKETS: usize = 1 << 16;

fn update_key_count(app: &App<MemoryStore>) {
    let throttles = app.throttles.as_ref().map_or(0, |throttles| throttles.count_used_keys(MAX_COUNTED_BUCKETS));
    app.snapshots.keys.store(throttles + app.engine.count_used_keys(), Ordering::Relaxed);
}

/// Runs `work` on the background thread after the delay `first` and then at every interval. Never returns.
async fn run_periodically(
    thread: &BackgroundThread,
    every: Duration,
    first: Duration,
    work: impl Fn() + Clone + Send + 'static,
) {
    let mut ticks = interval_at(Instant::now() + first, every);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(error) = thread.handle().spawn_blocking(work.clone()).await {
            tracing::error!(%error, "counter maintenance panicked");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn data_directory_is_locked_until_the_first_server_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("data");
        let first = lock_directory(&directory).await.unwrap();
        let why = lock_directory_within(&directory, Duration::ZERO).await.unwrap_err().to_string();
        let process = std::process::id();
        assert!(why.contains(&format!("is used by another server (process {process}); give each")), "{why}");
        let stop_first = async {
            sleep(Duration::from_millis(200)).await;
            drop(first);
        };
        let (second, ()) = tokio::join!(lock_directory(&directory), stop_first);
        assert!(second.is_ok(), "the second server waits for the first");
        assert!(lock_directory(Path::new("/proc/nowhere")).await.is_ok(), "nothing can be written there");
    }
}
