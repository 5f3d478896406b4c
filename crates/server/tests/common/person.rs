//! Somebody at a terminal with a folder of rules and a server to ask.
#![allow(clippy::disallowed_methods, reason = "waits for another process")]

use std::process::Command;
use std::time::Duration;

use super::{Folder, Ran, Server};

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
        Ran::of(&mut command, b"")
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
    let server = Server::start(&[&["--data", &folder.join("data")], more].concat());
    let person = Person::of(&server);
    (server, person)
}
