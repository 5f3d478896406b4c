//! Replacing a file so that a reader finds the old one or the new one, whole, whatever happens in between.

use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, RandomState};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// Has `write` fill a new file, which then takes the place of the one at `path`. Only the reader may read it.
///
/// The new one is made in the same folder, since a file can only be renamed within a disk. Its name is drawn at random, so that
/// two processes that save at the same time do not write to the same file. It is removed if anything fails; only
/// a process that is killed leaves it behind.
pub(crate) fn replace<R>(path: &Path, write: impl FnOnce(&mut File) -> io::Result<R>) -> io::Result<R> {
    let (folder, beside) = beside(path)?;
    let mut file = create(&beside)?;
    let written = write(&mut file).and_then(|result| {
        // On the disk before it has the name, or a power cut might leave the name with nothing behind it.
        file.sync_all()?;
        drop(file);
        fs::rename(&beside, path)?;
        Ok(result)
    });
    match written {
        Ok(result) => sync_folder(&folder).map(|()| result),
        Err(error) => {
            // The first failure is what matters, and the file may be gone already.
            let _ = fs::remove_file(&beside);
            Err(error)
        }
    }
}

/// The folder of `path`, and a name in it for a file that becomes the one at `path`.
fn beside(path: &Path) -> io::Result<(PathBuf, PathBuf)> {
    let Some(name) = path.file_name() else {
        return Err(io::Error::new(ErrorKind::InvalidInput, "the path names no file"));
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

/// Brings the new name to the disk. Elsewhere than on Unix a folder cannot be opened, and the system sees to it.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}
