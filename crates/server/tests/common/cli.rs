//! Runs commands of the program against a server.

use std::process::Command;

use super::{CommandResult, Folder, Server};

/// The command line with a server and an optional token.
pub struct Cli {
    pub server: String,
    pub token: Option<String>,
}

impl Cli {
    pub fn for_server(server: &Server) -> Self {
        Self { server: server.url(""), token: None }
    }

    pub fn with_token(&self, token: &str) -> Self {
        Self { server: self.server.clone(), token: Some(token.trim().to_owned()) }
    }

    pub fn run(&self, args: &[&str]) -> CommandResult {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        command.args(args).env("TOLLGATE_SERVER", &self.server).env("TZ", "UTC").env_remove("TOLLGATE_TOKEN");
        if let Some(token) = &self.token {
            command.env("TOLLGATE_TOKEN", token);
        }
        CommandResult::run(&mut command, b"")
    }
}

/// Starts a server with its own database.
pub fn start_with_database(folder: &Folder, more: &[&str]) -> (Server, Cli) {
    let server = Server::start(&[&["--data", &folder.join("data")], more].concat());
    let cli = Cli::for_server(&server);
    (server, cli)
}
