//! Real reverse proxies in front of an application, with the configurations that `tollgate snippets` prints.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses a part of this")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use tollgate_testkit::servers::free_port;

use super::{Folder, PATIENCE, eventually, tollgate};

/// A running proxy; dropping it stops it.
pub struct Proxy {
    child: Child,
    pub address: SocketAddr,
    folder: Folder,
}

/// The proxies, by the name of their snippet.
pub const PROXIES: [&str; 5] = ["nginx", "haproxy", "caddy", "traefik", "envoy"];

impl Proxy {
    /// Starts a proxy in front of `app` that asks the Tollgate at `server`, with its snippet after `edit`.
    pub fn start(name: &str, server: SocketAddr, app: SocketAddr, edit: impl Fn(String) -> String) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let snippet = |name: &str| {
            let (server, app, listen) = (server.to_string(), app.to_string(), address.to_string());
            tollgate(&["snippets", name, "--server", &server, "--app", &app, "--listen", &listen], b"").done()
        };
        let lua = with_long_timeouts(&snippet("haproxy-lua"));
        Self::start_with(name, address, &with_long_timeouts(&edit(snippet(name))), &lua)
    }

    /// Starts a proxy that listens on `address` with a configuration; `lua` is for HAProxy.
    pub fn start_with(name: &str, address: SocketAddr, config: &str, lua: &str) -> Self {
        let folder = Folder::new();
        let file = folder.write_file("config.yaml", config);
        let mut command = match name {
            "nginx" => {
                folder.write_file("nginx.conf", NGINX.replace("SNIPPET", &file));
                let mut command = Command::new("nginx");
                command.args(["-p", &folder.join(""), "-c", &folder.join("nginx.conf"), "-e", "error.log"]);
                command
            }
            "haproxy" => {
                folder.write_file("tollgate.lua", lua);
                let mut command = Command::new("haproxy");
                command.args(["-db", "-f", &file]);
                command
            }
            "caddy" => {
                let mut command = Command::new(tool_path("caddy"));
                command.args(["run", "--adapter", "caddyfile", "--config", &file]).env("HOME", folder.path());
                command
            }
            "traefik" => {
                let mut command = Command::new(tool_path("traefik"));
                command.arg(format!("--entryPoints.web.address={address}"));
                command.arg(format!("--providers.file.filename={file}"));
                command
            }
            _ => {
                let mut command = Command::new(tool_path("envoy"));
                command.args(["-c", &file, "--use-dynamic-base-id", "--concurrency", "1", "--log-level", "error"]);
                command
            }
        };
        command.current_dir(folder.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.env(
            "PATH",
            format!("{}:/usr/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin", tools_folder().display()),
        );
        let child = command.spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?} does not run: {error}; scripts/test installs it"));
        let proxy = Self { child, address, folder };
        // Traefik and Envoy listen before they have their routes.
        eventually("the proxy has its routes", || {
            try_send(address, "GET / HTTP/1.1\r\nhost: ready\r\nconnection: close\r\n\r\n")
                .is_some_and(|r| r.status == 200)
        });
        proxy
    }

    /// Sends a request and returns the response.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
        let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
        let request = format!("{method} {path} HTTP/1.1\r\nhost: api.example.org\r\n{lines}connection: close\r\n\r\n");
        try_send(self.address, &request).expect("the proxy answers")
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // TERM lets a proxy end its own child processes; KILL would leave them.
        super::signal(self.child.id(), "TERM");
        let _ = self.child.wait();
    }
}

/// Lets a proxy wait for two seconds. The snippets say 50 ms, in which a busy machine may not answer, and then requests pass that
/// should be refused.
fn with_long_timeouts(snippet: &str) -> String {
    snippet.replace("50ms", "2s").replace("0.05s", "2s").replace("timeout = 50 ", "timeout = 2000 ")
}

const NGINX: &str = "
daemon off; master_process off; pid nginx.pid; error_log error.log; worker_processes 1;
events {}
http {
  access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  include SNIPPET;
}
";

/// A response of a proxy.
#[derive(Debug)]
pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: String,
}

impl Response {
    /// Returns the value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        let mut lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.find(|(found, _)| found.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }
}

fn try_send(address: SocketAddr, request: &str) -> Option<Response> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Response { status, head: head.to_owned(), body: body.to_owned() })
}

/// Starts an application that answers every request with 200 and `app`, until the test ends.
pub fn start_app() -> SocketAddr {
    start_app_named("app")
}

/// Starts an application that answers every request with 200 and its name.
pub fn start_app_named(name: &'static str) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("an address");
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            std::thread::spawn(move || drop(answer(stream, name)));
        }
    });
    address
}

fn answer(mut stream: TcpStream, name: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\ncontent-type: text/plain\r\n\r\n{name}", name.len());
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut line = String::new();
    while lines.read_line(&mut line)? > 0 {
        if line == "\r\n" {
            stream.write_all(head.as_bytes())?;
        }
        line.clear();
    }
    Ok(())
}

fn tools_folder() -> PathBuf {
    let python = super::required_variable("TOLLGATE_TEST_PYTHON", "a Python interpreter with the proxies beside it");
    PathBuf::from(python).parent().expect("a folder").to_owned()
}

fn tool_path(name: &str) -> PathBuf {
    tools_folder().join(name)
}
