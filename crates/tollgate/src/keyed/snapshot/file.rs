//! Replaces a file atomically: a reader finds either the complete old file or the complete new file, even after a
//! crash.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Calls `write` with a new file that only the owner may read, and renames that file to `path`.
///
/// The new file is in the same folder, because renaming works only within a file system. The new file's name is random,
/// so that two processes never write to the same file. The new file is removed on any error before the renaming. The
/// new file is left behind only if the process is killed.
pub(crate) fn replace<R>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<R>) -> io::Result<R> {
    let (folder, beside) = folder_and_temporary_name(path)?;
    let mut file = create(&beside)?;
    let written = write(&mut file).and_then(|result| {
        // Synced before renaming, because otherwise a power failure could leave an empty file at `path`.
        file.sync_all()?;
        drop(file);
        fs::rename(&beside, path)?;
        Ok(result)
    });
    match written {
        Ok(result) => sync_folder(&folder).map(|()| result),
        Err(error) => {
            // Errors of the removal are ignored, because the first error is reported, and there may be no file to
            // remove.
            let _ = fs::remove_file(&beside);
            Err(error)
        }
    }
}

/// Returns the folder of `path`, and a temporary name in it.
fn folder_and_temporary_name(path: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the path does not name a file"));
    };
    let folder = match path.parent() {
        Some(folder) if folder != Path::new("") => folder.to_owned(),
        _ => PathBuf::from("."),
    };
    let drawn = getrandom::u64().unwrap_or_else(|_| RandomState::new().hash_one(0));
    let mut beside = std::ffi::OsString::from(".");
    beside.push(name);
    beside.push(format!(".{drawn:016x}.tmp"));
    let beside = folder.join(beside);
    Ok((folder, beside))
}

fn create(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Syncs the folder, so that the new file name is on disk. Only on Unix, because
/// `File::open` cannot open a folder on other systems.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}
