//! Counters survive a restart of the server.

use crate::common;

use std::path::Path;

use common::service::SmallDisk;
use common::{Client, Folder, Server, eventually};
use std::time::SystemTime;

const RULES: &str = "domain: api\nrules:\n- {id: hourly, per: [who], limit: 3/h}\n\
    - {id: banned, when: {login: \"1\"}, per: [who], limit: 1/h, ban: {after: 1, within: 1m, for: 1h}}\n";

fn check_status(client: &mut Client, attributes: &str) -> u16 {
    client.post("/v1/check", &format!("{{\"domain\":\"api\",\"attributes\":{{{attributes}}}}}")).0
}

struct RestartableServer {
    folder: Folder,
    rules: String,
}

impl RestartableServer {
    fn new() -> Self {
        let folder = Folder::new();
        let rules = folder.write_file("rules.yaml", RULES);
        Self { folder, rules }
    }

    fn data_path(&self) -> String {
        self.folder.join("data")
    }

    fn start(&self, every: &str) -> Server {
        Server::start(&["--rules", &self.rules, "--data", &self.data_path(), "--snapshot-every", every])
    }

    /// Waits until two more snapshots are written. The first may have been begun before this call, but the second was
    /// begun after it.
    fn wait_for_snapshot(&self) {
        let written = || std::fs::metadata(self.snapshot_path()).and_then(|file| file.modified()).ok();
        let mut after: Option<SystemTime> = written();
        for _ in 0..2 {
            eventually("a snapshot", || written() > after);
            after = written();
        }
    }

    fn snapshot_path(&self) -> std::path::PathBuf {
        Path::new(&self.data_path()).join("counters.snapshot")
    }
}

#[test]
fn counts_bans_and_throttles_survive_a_termination() {
    let restarted = RestartableServer::new();
    let server = restarted.start("3600");
    let mut client = server.connect_http();
    let allowed = (0..5).filter(|_| check_status(&mut client, "\"who\":\"alice\"") == 200).count();
    assert_eq!(allowed, 3);
    let mallory = "\"who\":\"mallory\",\"login\":\"1\"";
    assert_eq!([(); 3].map(|()| check_status(&mut client, mallory)), [200, 429, 429]);
    let mut resp = server.connect_resp();
    resp.send_command(&["CL.THROTTLE", "key", "0", "1", "3600"]);
    resp.expect("*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:3600\r\n");
    drop((client, resp));
    server.stop_and_read_log();

    let server = restarted.start("3600");
    let mut client = server.connect_http();
    assert_eq!(check_status(&mut client, "\"who\":\"alice\""), 429);
    assert_eq!(check_status(&mut client, "\"who\":\"bob\""), 200);
    let body = "{\"domain\":\"api\",\"attributes\":{\"who\":\"mallory\",\"login\":\"1\"}}";
    let (status, answer) = client.post("/v1/check", body);
    assert!(status == 429 && answer.contains("ban"), "{status} {answer}");
    let mut resp = server.connect_resp();
    resp.send_command(&["CL.THROTTLE", "key", "0", "1", "3600"]);
    resp.expect("*5\r\n:1\r\n:1\r\n:0\r\n");
}

#[test]
fn killed_server_loses_at_most_the_interval() {
    let restarted = RestartableServer::new();
    let server = restarted.start("1");
    let mut client = server.connect_http();
    (0..3).for_each(|_| assert_eq!(check_status(&mut client, "\"who\":\"alice\""), 200));
    restarted.wait_for_snapshot();
    server.signal("KILL");
    drop(server);
    let server = restarted.start("1");
    assert_eq!(check_status(&mut server.connect_http(), "\"who\":\"alice\""), 429);
}

#[test]
fn damaged_or_foreign_file_is_set_aside() {
    let restarted = RestartableServer::new();
    for (content, reason) in
        [("not a snapshot at all", "this is not a snapshot"), ("tg-store", "the end of the snapshot is missing")]
    {
        restarted.folder.write_file("data/counters.snapshot", content);
        let server = restarted.start("3600");
        assert_eq!(check_status(&mut server.connect_http(), "\"who\":\"alice\""), 200);
        let refused = std::fs::read(format!("{}/counters.snapshot.refused", restarted.data_path())).expect("set aside");
        assert_eq!(refused, content.as_bytes());
        assert!(!restarted.snapshot_path().exists());
        let refused = |line: &&String| line.contains("cannot use the snapshot");
        let line = server.start_log.iter().find(refused).expect("a line in the log");
        assert!(line.contains(reason) && line.contains("starting with empty counters"), "{line}");
    }
}

#[test]
fn snapshot_that_cannot_be_written_is_logged_once_and_decisions_continue() {
    let restarted = RestartableServer::new();
    // A directory cannot be created below a file.
    let data = format!("{}/data", restarted.rules);
    let server = Server::start(&["--rules", &restarted.rules, "--data", &data, "--snapshot-every", "1"]);
    let line = server.wait_for_line("cannot write the counter snapshot");
    assert!(line.contains("decisions continue"), "{line}");
    assert_eq!(check_status(&mut server.connect_http(), "\"who\":\"alice\""), 200);
    eventually("a second failure", || {
        let mut client = server.connect_http();
        client.send("GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
        let page = client.read_to_end();
        let failures = page.lines().find_map(|line| line.strip_prefix("tollgate_snapshot_failures "));
        failures.and_then(|failures| failures.parse::<u64>().ok()).is_some_and(|failures| failures >= 2)
    });
    let lines = server.stop_and_read_log();
    assert!(!lines.iter().any(|line| line.contains("cannot write the counter snapshot")), "{lines:?}");
}

#[test]
fn full_disk_keeps_the_last_snapshot_and_decisions_continue() {
    let restarted = RestartableServer::new();
    let Some(disk) = SmallDisk::mount(&restarted.folder, 256) else {
        println!("skipped: this user may not mount a small file system");
        return;
    };
    let data = disk.path().to_str().expect("text");
    let server = Server::start(&["--rules", &restarted.rules, "--data", data, "--snapshot-every", "1"]);
    let file = disk.path().join("counters.snapshot");
    eventually("a snapshot", || file.exists());
    let _ = std::fs::write(disk.path().join("ballast"), vec![0; 256 * 1024]);
    let kept = std::fs::read(&file).expect("a snapshot");
    // Creates more counters than fit on the disk.
    let mut client = server.connect_http();
    for part in 0..10 {
        let items: Vec<String> =
            (0..1000).map(|n| format!("{{\"domain\":\"api\",\"attributes\":{{\"who\":\"{part}-{n}\"}}}}")).collect();
        assert_eq!(client.post("/v1/check", &format!("[{}]", items.join(","))).0, 200);
    }
    let line = server.wait_for_line("cannot write the counter snapshot; decisions continue");
    assert!(line.contains("No space left"), "{line}");
    assert_eq!(std::fs::read(&file).expect("the last snapshot stays"), kept);
    assert_eq!(check_status(&mut client, "\"who\":\"alice\""), 200);
    std::fs::remove_file(disk.path().join("ballast")).expect("it is there");
    disk.resize(8 * 1024);
    server.wait_for_line("counter snapshot written after failures");
}

#[test]
fn no_snapshot_is_written_with_an_interval_of_zero() {
    let restarted = RestartableServer::new();
    let server = restarted.start("0");
    assert_eq!(check_status(&mut server.connect_http(), "\"who\":\"alice\""), 200);
    server.stop_and_read_log();
    assert!(!restarted.snapshot_path().exists());
}

#[test]
fn snapshot_takes_no_memory_for_tables_that_are_not_used() {
    let restarted = RestartableServer::new();
    let server = restarted.start("1");
    let before = server.resident_memory();
    assert_eq!(check_status(&mut server.connect_http(), "\"who\":\"alice\""), 200);
    restarted.wait_for_snapshot();
    let grown = server.resident_memory().saturating_sub(before);
    assert!(grown < 16 << 20, "resident memory grew by {grown} bytes");
}

#[test]
fn second_server_in_the_same_data_directory_is_refused() {
    let restarted = RestartableServer::new();
    let first = restarted.start("3600");
    let (rules, data) = (restarted.rules.clone(), restarted.data_path());
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(["serve", "--http", "127.0.0.1:0", "--resp", "off", "--rules", &rules, "--data", &data]);
    let second = common::CommandResult::run(&mut command, b"");
    assert_eq!(second.code, Some(1), "{}", second.err);
    let expected = format!("the data directory {data} is used by another server (process {})", first.id());
    assert!(second.err.contains(&expected), "{}", second.err);
    drop(first);
    drop(restarted.start("3600"));
}

#[test]
fn server_starts_while_the_previous_one_stops() {
    let restarted = RestartableServer::new();
    let first = restarted.start("3600");
    (0..3).for_each(|_| assert_eq!(check_status(&mut first.connect_http(), "\"who\":\"alice\""), 200));
    // The first server cannot stop before it continues, so the second server has to wait.
    first.pause();
    first.signal("TERM");
    let script = format!("sleep 0.3; kill -CONT {}", first.id());
    let mut resume = std::process::Command::new("sh").args(["-c", &script]).spawn().expect("sh starts");
    let second = restarted.start("3600");
    assert!(resume.wait().expect("sh runs").success());
    let waited = |line: &String| line.contains("data directory in use; waiting for its release");
    assert_eq!(second.start_log.iter().filter(|line| waited(line)).count(), 1, "{:?}", second.start_log);
    assert_eq!(check_status(&mut second.connect_http(), "\"who\":\"alice\""), 429, "the snapshot was restored");
}
