//! Tests a snapshot that runs out of disk space. The test runs its own executable again with a file-size limit.
#![cfg(unix)]

use std::path::Path;
use std::process::Command;

use tollgate::{Keyed, TokenBucket};

/// The environment variable with the output folder of the child process.
const FOLDER_VARIABLE: &str = "TOLLGATE_TEST_FOLDER";

fn new_limiter() -> Keyed {
    Keyed::new(TokenBucket::new("1/h".parse().expect("a rate"), 10).expect("a bucket"), 20_000).expect("a small table")
}

fn write_old_file(folder: &Path) {
    let limits = new_limiter();
    let _ = limits.check("alice", 9);
    limits.save(folder.join("limits")).expect("space for one key");
}

fn assert_only_old_file_exists(folder: &Path) {
    let mut limits = new_limiter();
    assert_eq!(limits.load(folder.join("limits")).expect("the complete old file"), 1);
    assert!(!limits.check("alice", 9).is_allowed());
    assert_eq!(std::fs::read_dir(folder).expect("a folder").count(), 1, "a temporary file was left behind");
}

#[test]
fn failed_snapshot_on_a_full_disk_keeps_the_old_file() {
    let folder = tempfile::tempdir().expect("a folder");
    write_old_file(folder.path());
    // Ignores the signal that would end the process, so that the write fails as on a full disk.
    let child = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().expect("the path of this program"))
        .args(["--exact", "snapshot_beyond_the_file_size_limit_is_an_error", "--ignored"])
        .env(FOLDER_VARIABLE, folder.path())
        .output()
        .expect("a shell");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    assert_only_old_file_exists(folder.path());
}

/// Saves half a megabyte although the file-size limit is lower.
#[test]
#[ignore = "run by the other test, with a file-size limit"]
fn snapshot_beyond_the_file_size_limit_is_an_error() {
    let folder = std::env::var_os(FOLDER_VARIABLE).expect("the folder of the other test");
    let limits = new_limiter();
    for key in 0..20_000u32 {
        let _ = limits.check(&key.to_le_bytes(), 9);
    }
    let error = limits.save(Path::new(&folder).join("limits")).expect_err("there is no space");
    assert!(matches!(error.kind(), std::io::ErrorKind::FileTooLarge | std::io::ErrorKind::StorageFull), "{error}");
}
