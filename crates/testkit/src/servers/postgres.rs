//! A real PostgreSQL server.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::free_port;

/// Program directories on Debian and similar systems, newest first. Searched before the PATH.
const DEBIAN_FOLDERS: [&str; 4] = [
    "/usr/lib/postgresql/17/bin",
    "/usr/lib/postgresql/16/bin",
    "/usr/lib/postgresql/15/bin",
    "/usr/lib/postgresql/14/bin",
];

/// A running PostgreSQL server on a free loopback port. The data directory of the server is deleted on drop.
#[derive(Debug)]
pub struct Postgres {
    port: u16,
    directory: TempDir,
    process: Option<Child>,
}

impl Postgres {
    /// Starts a server with a new data directory.
    ///
    /// # Panics
    /// Panics if the program is missing or does not start.
    pub fn start() -> Self {
        let directory = TempDir::new().unwrap_or_else(|error| panic!("no temporary directory: {error}"));
        let mut server = Self { port: 0, directory, process: None };
        if is_root() {
            let given = Command::new("chown").arg("postgres").arg(server.directory.path()).status();
            assert!(
                given.is_ok_and(|status| status.success()),
                "the user `postgres`, which runs the server, does not exist"
            );
        }
        let made = server
            .program_command("initdb")
            .args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-sync", "--pgdata"])
            .arg(server.data_directory())
            .stdout(Stdio::null())
            .status();
        assert!(made.is_ok_and(|status| status.success()), "{INSTALLATION_HINT}");
        for _ in 0..10 {
            server.port = free_port();
            if server.try_run() {
                return server;
            }
        }
        panic!("PostgreSQL did not start on any of ten free ports");
    }

    /// Creates a database and returns its URL.
    ///
    /// # Panics
    /// Panics if the database cannot be created.
    pub fn create_database(&self, name: &str) -> String {
        let made = self.run_psql(&format!("CREATE DATABASE {name}"));
        assert!(made, "no database {name}");
        self.url(name)
    }

    /// Returns the URL of a database.
    pub fn url(&self, name: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{name}", self.port)
    }

    /// Stops the server immediately, without a checkpoint, as a crash would. Committed data is on disk. Nothing listens
    /// on the server's port until [`Postgres::restart`].
    pub fn kill(&mut self) {
        if let Some(mut process) = self.process.take() {
            // With `runuser`, the server is a grandchild process, so its process id is read from
            // `postmaster.pid`.
            let id = std::fs::read_to_string(self.data_directory().join("postmaster.pid")).unwrap_or_default();
            if let Some(id) = id.lines().next() {
                let _ = Command::new("kill").args(["-QUIT", id]).status();
            }
            let _ = process.wait();
        }
    }

    /// Restarts the server on the same port with its data.
    ///
    /// # Panics
    /// Panics if the server does not start.
    pub fn restart(&mut self) {
        self.kill();
        assert!(self.try_run(), "PostgreSQL did not start again on port {}", self.port);
    }

    fn data_directory(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn program_command(&self, name: &str) -> Command {
        let folder = DEBIAN_FOLDERS.iter().map(Path::new).find(|folder| folder.join(name).exists());
        let program = folder.map_or_else(|| PathBuf::from(name), |folder| folder.join(name));
        let mut command = if is_root() {
            let mut command = Command::new("runuser");
            command.args(["-u", "postgres", "--"]).arg(program);
            command
        } else {
            Command::new(program)
        };
        command.current_dir(self.directory.path()).stdin(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn run_psql(&self, statement: &str) -> bool {
        let port = self.port.to_string();
        let mut command = self.program_command("psql");
        command.args(["-h", "127.0.0.1", "-U", "postgres", "-X", "-q", "-p", &port, "-c", statement]);
        command.stdout(Stdio::null()).status().is_ok_and(|status| status.success())
    }

    fn try_run(&mut self) -> bool {
        let port = self.port.to_string();
        let mut command = self.program_command("postgres");
        command.arg("-D").arg(self.data_directory()).args(["-p", &port, "-c", "listen_addresses=127.0.0.1"]);
        command.arg("-c").arg(format!("unix_socket_directories={}", self.directory.path().display()));
        let process =
            command.stdout(Stdio::null()).spawn().unwrap_or_else(|error| panic!("{INSTALLATION_HINT} ({error})"));
        self.process = Some(process);
        for _ in 0..300 {
            if self.run_psql("SELECT 1") {
                return true;
            }
            let ended = self.process.as_mut().is_some_and(|process| matches!(process.try_wait(), Ok(Some(_))));
            if ended {
                break;
            }
            sleep_between_polls();
        }
        self.kill();
        false
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.kill();
    }
}

const INSTALLATION_HINT: &str =
    "this test needs PostgreSQL: `apt-get install postgresql`, or have `initdb`, `postgres` and `psql` on the PATH";

/// Returns whether this process is root. PostgreSQL refuses to run as root.
fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|id| id.stdout.trim_ascii() == b"0")
}

/// Waits before the next poll. PostgreSQL reports readiness only in its log, whose location differs between systems.
#[expect(clippy::disallowed_methods, reason = "the server sends no notification to wait for")]
fn sleep_between_polls() {
    std::thread::sleep(Duration::from_millis(100));
}
