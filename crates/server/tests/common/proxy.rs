//! Real reverse proxies in front of an application, with the configurations printed by `tollgate snippets`.
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses only part of this module")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};

use tollgate_testkit::servers::free_port;

use super::{Folder, TEST_TIMEOUT, eventually, tollgate};

/// A running proxy. Dropping the proxy stops the process.
pub struct Proxy {
    child: Child,
    pub address: SocketAddr,
    folder: Folder,
}

impl Proxy {
    /// Starts a proxy in front of `app`. The proxy calls Tollgate at `server`. `edit` changes the proxy's
    /// snippet (for HAProxy, also its Lua action).
    pub fn start(name: &str, server: SocketAddr, app: SocketAddr, edit: impl Fn(String) -> String) -> Self {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()));
        let snippet = |name: &str| {
            let (server, app, listen) = (server.to_string(), app.to_string(), address.to_string());
            tollgate(&["snippets", name, "--server", &server, "--app", &app, "--listen", &listen], b"").expect_success()
        };
        let lua = if name == "haproxy" { edit(snippet("haproxy-lua")) } else { String::new() };
        Self::start_with(name, address, &edit(snippet(name)), &lua)
    }

    /// Starts a proxy with this configuration and waits until it answers at `address`. `lua` is the Lua action for
    /// HAProxy.
    pub fn start_with(name: &str, address: SocketAddr, config: &str, lua: &str) -> Self {
        let folder = Folder::new();
        let file = folder.write_file("config.yaml", config);
        let mut command = match name {
            "nginx" => {
                folder.write_file("nginx.conf", NGINX_CONFIG.replace("SNIPPET", &file));
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
        // Traefik and Envoy listen before their routes are ready.
        eventually("the proxy's routes are ready", || {
            try_send(address, "GET / HTTP/1.1\r\nhost: ready\r\nconnection: close\r\n\r\n")
                .is_some_and(|r| r.status == 200)
        });
        proxy
    }

    /// Sends a request and returns the response.
    pub fn send(&self, method: &str, path: &str, headers: &[(&str, &str)]) -> Response {
        try_send(self.address, &request_text(method, path, headers)).expect("the proxy answers")
    }

    /// Sends a request. Returns the connection and the received bytes as soon as the response has
    /// started.
    pub fn begin_request(&self, path: &str) -> (TcpStream, String) {
        let mut stream = TcpStream::connect(self.address).expect("the proxy listens");
        stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a timeout");
        stream.write_all(request_text("GET", path, &[]).as_bytes()).expect("the proxy reads");
        let (mut begun, mut buffer) = (Vec::new(), [0; 1024]);
        while !begun.windows(4).any(|end| end == b"\r\n\r\n") {
            let read = stream.read(&mut buffer).expect("the proxy answers");
            assert!(read > 0, "the proxy closed the connection");
            begun.extend_from_slice(&buffer[..read]);
        }
        (stream, String::from_utf8_lossy(&begun).into_owned())
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // Sends TERM, because KILL would leave the child processes of the proxy running.
        super::signal(self.child.id(), "TERM");
        let _ = self.child.wait();
    }
}

/// Extends a snippet's timeouts to two seconds, for refusal tests. With the snippet's 50 ms, a server on a busy
/// machine may answer too late, and requests that should be refused would pass.
pub fn with_long_timeouts(snippet: &str) -> String {
    snippet.replace("50ms", "2s").replace("0.05s", "2s").replace("timeout = 50 ", "timeout = 2000 ")
}

fn request_text(method: &str, path: &str, headers: &[(&str, &str)]) -> String {
    let lines: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    format!("{method} {path} HTTP/1.1\r\nhost: api.example.org\r\n{lines}connection: close\r\n\r\n")
}

const NGINX_CONFIG: &str = "
daemon off; master_process off; pid nginx.pid; error_log error.log; worker_processes 1;
events {}
http {
  access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi; uwsgi_temp_path uwsgi;
  scgi_temp_path scgi;
  include SNIPPET;
}
";

/// A proxy's response.
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
    stream.set_read_timeout(Some(TEST_TIMEOUT)).ok()?;
    stream.write_all(request.as_bytes()).ok()?;
    let mut text = Vec::new();
    stream.read_to_end(&mut text).ok()?;
    let text = String::from_utf8_lossy(&text).into_owned();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let status = head.split(' ').nth(1)?.parse().ok()?;
    Some(Response { status, head: head.to_owned(), body: body.to_owned() })
}

/// Starts an application that answers every request with 200 and the body `app`, until the test ends.
pub fn start_app() -> SocketAddr {
    start_app_named("app")
}

/// Starts an application that answers every request with 200 and `name` as the body.
pub fn start_app_named(name: &'static str) -> SocketAddr {
    start_app_with(move |_, stream| write_response(stream, name))
}

/// Starts an application that answers every request with the request's head.
pub fn start_echo() -> SocketAddr {
    start_app_with(|head, stream| write_response(stream, head))
}

/// Starts an application that begins its response to `/held` and waits. The response ends when a message is sent on
/// the returned sender, or when the sender is dropped.
pub fn start_holding_app() -> (SocketAddr, Sender<()>) {
    let (release, released) = channel();
    let released = Mutex::new(released);
    let address = start_app_with(move |head, stream| {
        if !head.starts_with("GET /held ") {
            return write_response(stream, "app");
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nap")?;
        let _ = released.lock().expect("no panic").recv();
        stream.write_all(b"p")
    });
    (address, release)
}

/// Starts an application that answers each request's head with `respond`, until the test ends.
fn start_app_with<F>(respond: F) -> SocketAddr
where
    F: Fn(&str, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
{
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
    let address = listener.local_addr().expect("an address");
    let respond = Arc::new(respond);
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let respond = respond.clone();
            std::thread::spawn(move || drop(answer_requests(stream, &*respond)));
        }
    });
    address
}

fn answer_requests(
    mut stream: TcpStream,
    respond: &impl Fn(&str, &mut TcpStream) -> std::io::Result<()>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?);
    let mut head = String::new();
    while lines.read_line(&mut head)? > 0 {
        if head.ends_with("\r\n\r\n") {
            respond(&head, &mut stream)?;
            head.clear();
        }
    }
    Ok(())
}

fn write_response(stream: &mut TcpStream, body: &str) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\ncontent-type: text/plain\r\n\r\n{body}", body.len());
    stream.write_all(head.as_bytes())
}

fn tools_folder() -> PathBuf {
    let python = super::required_variable("TOLLGATE_TEST_PYTHON", "a Python interpreter in the folder of the proxies");
    PathBuf::from(python).parent().expect("a folder").to_owned()
}

/// Returns the path of a program in the folder of the Python interpreter `TOLLGATE_TEST_PYTHON`.
pub fn tool_path(name: &str) -> PathBuf {
    tools_folder().join(name)
}
