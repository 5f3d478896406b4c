//! A snapshot that runs out of disk space: this program runs itself again with a limit on file sizes.
#![cfg(unix)]

use std::path::Path;
use std::process::Command;

use tollgate::{Keyed, TokenBucket};

/// The file that the child process writes.
const FOLDER: &str = "TOLLGATE_TEST_FOLDER";

fn limits() -> Keyed {
    Keyed::new(TokenBucket::new("1/h".parse().expect("a rate"), 10).expect("a bucket"), 20_000).expect("a small table")
}

fn old_file(folder: &Path) {
    let limits = limits();
    let _ = limits.check("alice", 9);
    limits.save(folder.join("limits")).expect("room for one key");
}

fn assert_old_file_alone(folder: &Path) {
    let mut limits = limits();
    assert_eq!(limits.load(folder.join("limits")).expect("the old file, whole"), 1);
    assert!(!limits.check("alice", 9).is_allowed());
    assert_eq!(std::fs::read_dir(folder).expect("a folder").count(), 1, "something was left behind");
}

#[test]
fn snapshot_on_a_full_disk_leaves_the_old_one() {
    let folder = tempfile::tempdir().expect("a folder");
    old_file(folder.path());
    // The signal that would end the process is ignored, so that the write fails instead, as on a full disk.
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

/// Saves half a megabyte with less space than that.
#[test]
#[ignore = "the other test runs it with little room"]
fn child() {
    let folder = std::env::var_os(FOLDER).expect("where to save");
    let limits = limits();
    for key in 0..20_000u32 {
        let _ = limits.check(&key.to_le_bytes(), 9);
    }
    let error = limits.save(Path::new(&folder).join("limits")).expect_err("there is no room");
    assert!(matches!(error.kind(), std::io::ErrorKind::FileTooLarge | std::io::ErrorKind::StorageFull), "{error}");
}
