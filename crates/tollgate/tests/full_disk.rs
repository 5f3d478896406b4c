//! A snapshot that runs out of disk space. The test runs this program again with a file-size limit.
#![cfg(unix)]

use std::path::Path;
use std::process::Command;

use tollgate::{Keyed, TokenBucket};

/// Environment variable with the folder that the child process writes to.
const FOLDER: &str = "TOLLGATE_TEST_FOLDER";

fn limits() -> Keyed {
    Keyed::new(TokenBucket::new("1/h".parse().expect("a rate"), 10).expect("a bucket"), 20_000).expect("a small table")
}

fn old_file(folder: &Path) {
    let limits = limits();
    let _ = limits.check("alice", 9);
    limits.save(folder.join("limits")).expect("space for one key");
}

fn assert_old_file_alone(folder: &Path) {
    let mut limits = limits();
    assert_eq!(limits.load(folder.join("limits")).expect("the old file, whole"), 1);
    assert!(!limits.check("alice", 9).is_allowed());
    assert_eq!(std::fs::read_dir(folder).expect("a folder").count(), 1, "a temporary file was left behind");
}

#[test]
fn snapshot_on_a_full_disk_leaves_the_old_one() {
    let folder = tempfile::tempdir().expect("a folder");
    old_file(folder.path());
    // Ignores the signal that would end the process, so that the write fails as on a full disk.
    let child = Command::new("sh")
        .args(["-c", "trap '' XFSZ; ulimit -f 64; exec \"$@\"", "sh"])
        .arg(std::env::current_exe().expect("this program"))
        .args(["--exact", "child", "--ignored"])
        .env(FOLDER, folder.path())
        .output()
        .expect("a shell");
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stdout));
    assert_old_file_alone(folder.path());
}

/// Saves half a megabyte with a file-size limit below that.
#[test]
#[ignore = "run by the other test, with a file-size limit"]
fn child() {
    let folder = std::env::var_os(FOLDER).expect("where to save");
    let limits = limits();
    for key in 0..20_000u32 {
        let _ = limits.check(&key.to_le_bytes(), 9);
    }
    let error = limits.save(Path::new(&folder).join("limits")).expect_err("there is no space");
    assert!(matches!(error.kind(), std::io::ErrorKind::FileTooLarge | std::io::ErrorKind::StorageFull), "{error}");
}
