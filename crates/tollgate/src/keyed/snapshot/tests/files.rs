//! Checks that the file on disk is complete, readable only by its owner, and replaced atomically.

use std::fs;

use tempfile::TempDir;

use super::*;

fn file_names(folder: &TempDir) -> Vec<String> {
    fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn saved_file_is_loaded_replaced_and_readable_by_its_owner_only() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits");
    let (here, clock) = keyed(bucket(10), 100);
    for spent in 1..4 {
        let _ = here.check("alice", 1);
        assert_eq!(here.save(&path).unwrap(), 1);
        assert_eq!(file_names(&folder), ["limits"]);
        let mut there = limiter_in_other_process(bucket(10), 100, &clock, 3);
        assert_eq!(there.load(&path).unwrap(), 1);
        assert_eq!(there.report("alice", 1).remaining, 10 - spent);
    }
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }
}

#[test]
fn failed_write_leaves_the_old_file_and_no_temporary_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("limits");
    fs::write(&path, "the old one").unwrap();
    let result: io::Result<()> = file::replace(&path, |file| {
        file.write_all(b"half of it")?;
        Err(io::ErrorKind::StorageFull.into())
    });
    assert_eq!(result.unwrap_err().kind(), io::ErrorKind::StorageFull);
    assert_eq!((fs::read_to_string(&path).unwrap().as_str(), file_names(&folder).len()), ("the old one", 1));
}

#[test]
fn unwritable_path_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let (here, _) = keyed(bucket(10), 100);
    assert_eq!(here.save(folder.path().join("no such folder/limits")).unwrap_err().kind(), io::ErrorKind::NotFound);
    assert_eq!(here.save(folder.path().join("..")).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    // The path is a folder, so the last step, renaming, fails.
    fs::create_dir(folder.path().join("limits")).unwrap();
    assert!(here.save(folder.path().join("limits")).is_err());
    assert_eq!(file_names(&folder), ["limits"]);
}

/// A writer that accepts `bytes_left` bytes and then fails, like a full disk.
struct FullDiskWriter {
    bytes_left: usize,
}

impl Write for FullDiskWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let taken = bytes.len().min(self.bytes_left);
        self.bytes_left -= taken;
        if taken == 0 { Err(io::ErrorKind::StorageFull.into()) } else { Ok(taken) }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn full_disk_is_an_error_and_the_next_snapshot_works() {
    let (here, clock) = keyed(bucket(10), 100);
    let _ = here.check("alice", 4);
    let whole = snapshot_bytes(&here).len();
    for bytes_left in 0..whole {
        assert_eq!(here.snapshot(FullDiskWriter { bytes_left }).unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
    assert_eq!(here.snapshot(FullDiskWriter { bytes_left: whole }).unwrap(), 1);
    let mut there = limiter_in_other_process(bucket(10), 100, &clock, 0);
    there.restore(&*snapshot_bytes(&here)).unwrap();
    assert_eq!(there.report("alice", 1).remaining, 6);
}
