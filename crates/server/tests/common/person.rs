//! Somebody at a terminal with a folder of rules and a server to ask.
#![allow(clippy::unwrap_used)]
#![allow(clippy::disallowed_methods, reason = "waits for another process")]

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;

use super::Server;

/// A folder that is gone after the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("tollgate-person-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    pub fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        std::fs::create_dir_all(self.0.join(name).parent().unwrap()).unwrap();
        std::fs::write(self.0.join(name), text).unwrap();
        self.path(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// What a command came to.
pub struct Ran {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// What it printed, if all went well.
    #[track_caller]
    pub fn done(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.done()).unwrap()
    }

    #[track_caller]
    pub fn failed(self, code: i32, expected: &str) {
        assert!(self.code == Some(code) && self.err.contains(expected), "{:?} {}{}", self.code, self.out, self.err);
    }
}

/// Somebody at a terminal, with a server to ask and perhaps a token.
pub struct Person {
    pub server: String,
    pub token: Option<String>,
}

impl Person {
    pub fn of(server: &Server) -> Self {
        Self { server: server.url(""), token: None }
    }

    pub fn with(&self, token: &str) -> Self {
        Self { server: self.server.clone(), token: Some(token.trim().to_owned()) }
    }

    pub fn run(&self, args: &[&str]) -> Ran {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(args).env("TOLLGATE_SERVER", &self.server).env("TZ", "UTC").env_remove("TOLLGATE_TOKEN");
        if let Some(token) = &self.token {
            command.env("TOLLGATE_TOKEN", token);
        }
        let output = command.stdin(Stdio::null()).output().expect("the program runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Ran { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }
}

/// Runs something until it comes out as expected: what was changed is in force within a second, not at once.
#[track_caller]
pub fn soon(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..100 {
        if is_so() {
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    panic!("not within two seconds: {what}");
}

/// A server with a database of its own.
pub fn serve(folder: &Folder, more: &[&str]) -> (Server, Person) {
    let server = Server::start(&[&["--data", &folder.path("data")], more].concat());
    let person = Person::of(&server);
    (server, person)
}
