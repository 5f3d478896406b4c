//! Files that are polled for changes.
//!
//! Files are polled rather than watched through the kernel: editors replace files, orchestrators swap symbolic links,
//! and network file systems send no notifications. Polling a local file takes about a microsecond and
//! detects all of these changes.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tollgate_engine::rules::MAX_FILE_BYTES;

/// Interval between polls. A changed file is read after it has stayed unchanged for one interval.
pub const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// Number of consecutive polls after which a missing file is reported.
pub(super) const MAX_MISSING_POLLS: u32 = 10;

/// A file, and its metadata at the last read and at the last poll.
#[derive(Debug)]
pub struct WatchedFile {
    path: PathBuf,
    read: Option<FileVersion>,
    seen: Option<FileVersion>,
    /// Number of consecutive polls that did not find the file.
    missed: u32,
}

/// Metadata that distinguishes one version of a file from another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct FileVersion {
    modified: Option<SystemTime>,
    len: u64,
    inode: u64,
    /// The time of the last metadata change, in seconds and nanoseconds.
    changed: (i64, i64),
}

impl WatchedFile {
    /// Creates a watch on a file. Reads nothing yet.
    pub fn new(path: PathBuf) -> Self {
        Self { path, read: None, seen: None, missed: 0 }
    }

    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file now.
    ///
    /// # Errors
    /// Returns an error if the file cannot be read or is too large.
    pub fn read(&mut self) -> io::Result<Vec<u8>> {
        let metadata = std::fs::metadata(&self.path)?;
        let stat = FileVersion::from_metadata(&metadata);
        // Stored before the file is read, so that an unreadable file is reported only once. New permissions change the
        // metadata and cause another attempt.
        (self.read, self.seen) = (Some(stat), Some(stat));
        let too_large = |bytes: &str| {
            let problem = format!("file too large: {bytes} bytes (maximum {MAX_FILE_BYTES})");
            io::Error::new(io::ErrorKind::FileTooLarge, problem)
        };
        if metadata.len() > MAX_FILE_BYTES as u64 {
            return Err(too_large(&metadata.len().to_string()));
        }
        // The read is limited too, because the metadata of devices and pipes reports a size of zero.
        let mut bytes = Vec::with_capacity(metadata.len() as usize);
        File::open(&self.path)?.take(MAX_FILE_BYTES as u64 + 1).read_to_end(&mut bytes)?;
        if bytes.len() > MAX_FILE_BYTES { Err(too_large("more")) } else { Ok(bytes) }
    }

    /// Adds the path to an error.
    pub(super) fn with_path(&self, error: &io::Error) -> io::Error {
        io::Error::new(error.kind(), format!("{}: {error}", self.path.display()))
    }

    /// Polls the file. Returns whether the file has changed since the last read but not since the last poll. A reported
    /// change counts as read, so each change is reported once. A file that is missing only briefly counts as unchanged.
    ///
    /// # Errors
    /// Returns an error once if the file is missing for [`MAX_MISSING_POLLS`] polls in a row.
    pub(crate) fn check_for_change(&mut self) -> io::Result<bool> {
        let metadata = match std::fs::metadata(&self.path) {
            Ok(metadata) => metadata,
            Err(error) => {
                self.missed = self.missed.saturating_add(1);
                return if self.missed == MAX_MISSING_POLLS { Err(error) } else { Ok(false) };
            }
        };
        self.missed = 0;
        let stat = Some(FileVersion::from_metadata(&metadata));
        let settled = self.seen == stat;
        self.seen = stat;
        let changed = settled && self.read != stat;
        if changed {
            self.read = stat;
        }
        Ok(changed)
    }
}

impl FileVersion {
    fn from_metadata(metadata: &Metadata) -> Self {
        use std::os::unix::fs::MetadataExt;
        Self {
            modified: metadata.modified().ok(),
            len: metadata.len(),
            inode: metadata.ino(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}
