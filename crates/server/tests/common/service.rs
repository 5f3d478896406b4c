//! Rules services for tests: the real service over TLS, and a fake service with scripted answers.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_testkit::servers::{Certificates, free_port};

use super::{Folder, Server};

/// The real program with a database, over TLS on a fixed port.
pub struct Service {
    pub folder: Folder,
    pub certificates: Certificates,
    pub port: u16,
    server: Option<Server>,
}

impl Service {
    pub fn start() -> Self {
        let folder = Folder::new();
        let certificates = Certificates::create(folder.path());
        let mut service = Self { folder, certificates, port: free_port(), server: None };
        service.restart();
        service
    }

    /// Kills the service with SIGKILL, so that it cannot clean up.
    pub fn kill(&mut self) {
        if let Some(server) = self.server.take() {
            server.signal("KILL");
        }
    }

    pub fn restart(&mut self) {
        self.kill();
        let (http, data) = (format!("127.0.0.1:{}", self.port), self.folder.join("data"));
        let (certificate, key) = (self.folder.join("server.pem"), self.folder.join("server.key"));
        let args = ["--http", &http, "--resp", "off", "--data", &data, "--tls-cert", &certificate, "--tls-key", &key];
        self.server = Some(Server::start(&args));
    }

    pub fn authority(&self) -> String {
        self.certificates.authority().to_str().expect("text").to_owned()
    }

    pub fn url(&self) -> String {
        format!("https://localhost:{}", self.port)
    }

    /// Sends a request with `curl` and returns the status and the JSON.
    pub fn call(&self, method: &str, path: &str, body: Option<&Value>) -> (u16, Value) {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "30", "--cacert", &self.authority()]);
        command.args(["--write-out", "\n%{http_code}", "--request", method, &format!("{}{path}", self.url())]);
        if let Some(body) = body {
            command.args(["--header", "content-type: application/json", "--data", &body.to_string()]);
        }
        let answer = super::run_program(&mut command);
        let (body, status) = answer.rsplit_once('\n').expect("a status");
        (status.parse().expect("a status"), serde_json::from_str(body).unwrap_or(Value::Null))
    }

    /// Sets the limit of the only rule in the domain `api` and returns the revision.
    pub fn set_limit(&self, limit: &str) -> i64 {
        let (status, answer) = self.call("PUT", "/v1/domains/api/rules/all", Some(&json!({"limit": limit})));
        assert!(status == 200 || status == 201, "{status} {answer}");
        self.call("GET", "/v1/snapshot", None).1["revision"].as_i64().expect("a revision")
    }
}

/// Starts a node that follows the service at `url`.
pub fn start_follower(service: &Service, url: &str, name: &str, data: &str) -> Server {
    Server::start(&["--rules", url, "--rules-ca", &service.authority(), "--node", name, "--data", data])
}

/// Returns the limit that a node applies to requests of the domain `api`.
pub fn limit_of(node: &Server) -> u64 {
    let (status, body) = node.connect_http().post("/v1/peek", r#"{"domain":"api","attributes":{}}"#);
    assert_eq!(status, 200, "{body}");
    let answer: Value = serde_json::from_str(&body).expect("JSON");
    answer["limits"][0]["limit"].as_u64().unwrap_or_else(|| panic!("no limit in {body}"))
}

/// Returns the body of a page.
pub fn get_body(node: &Server, path: &str) -> String {
    let mut client = node.connect_http();
    client.send(format!("GET {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"));
    client.read_to_end().split_once("\r\n\r\n").expect("a body").1.to_owned()
}

/// Returns the value of a metric, or `None` if it is missing.
pub fn read_metric(node: &Server, name: &str) -> Option<u64> {
    let page = get_body(node, "/metrics");
    page.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// A fake service that sends scripted answers, which may be invalid.
pub struct FakeService {
    port: u16,
    /// The answer to send, and the last received request.
    shared: Arc<Mutex<(Vec<u8>, String)>>,
}

impl FakeService {
    pub fn start(answer: impl Into<Vec<u8>>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a free port");
        let port = listener.local_addr().expect("an address").port();
        let shared = Arc::new(Mutex::new((answer.into(), String::new())));
        let answering = shared.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let answering = answering.clone();
                std::thread::spawn(move || answer_connection(stream, &answering));
            }
        });
        Self { port, shared }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Sets the answer.
    pub fn set_answer(&self, answer: impl Into<Vec<u8>>) {
        self.shared.lock().expect("no panic").0 = answer.into();
    }

    /// Returns the last request.
    pub fn last_request(&self) -> String {
        self.shared.lock().expect("no panic").1.clone()
    }
}

fn answer_connection(mut stream: TcpStream, shared: &Mutex<(Vec<u8>, String)>) {
    let mut asked = Vec::new();
    let mut byte = [0];
    while !asked.ends_with(b"\r\n\r\n") && stream.read(&mut byte).is_ok_and(|count| count == 1) {
        asked.push(byte[0]);
    }
    let answer = {
        let mut shared = shared.lock().expect("no panic");
        shared.1 = String::from_utf8_lossy(&asked).into_owned();
        shared.0.clone()
    };
    // With an empty scripted answer, the service does not answer and waits until the client gives up.
    if answer.is_empty() {
        let _ = stream.set_read_timeout(Some(Duration::from_secs(120)));
        let _ = stream.read(&mut byte);
    }
    let _ = stream.write_all(&answer);
}

/// Returns an answer with a rule set.
pub fn rule_set_answer(revision: i64, rules: &str) -> Vec<u8> {
    answer_with_checksum(revision, rules, &sha256(rules))
}

/// Returns an answer with a rule set and a valid reader token.
pub fn rule_set_answer_with_token(revision: i64, rules: &str, token: &str) -> Vec<u8> {
    let token = json!({"digest": sha256(token), "id": token, "name": token, "role": "reader", "domains": []});
    answer_with(&json!({"revision": revision, "checksum": sha256(rules), "rules": rules, "tokens": [token]}))
}

/// Returns an answer with a rule set and a possibly wrong checksum.
pub fn answer_with_checksum(revision: i64, rules: &str, checksum: &str) -> Vec<u8> {
    answer_with(&json!({"revision": revision, "checksum": checksum, "rules": rules, "tokens": []}))
}

fn answer_with(set: &Value) -> Vec<u8> {
    let (revision, body) = (set["revision"].clone(), set.to_string());
    let head =
        format!("HTTP/1.1 200 OK\r\netag: \"{revision}\"\r\nconnection: close\r\ncontent-length: {}", body.len());
    format!("{head}\r\n\r\n{body}").into_bytes()
}

/// Returns the SHA-256 digest of a text in hexadecimal, computed by `sha256sum`.
pub fn sha256(text: &str) -> String {
    let file = super::Rules::new(text);
    super::run_program(Command::new("sha256sum").arg(file.path())).split(' ').next().expect("a sum").to_owned()
}

/// A small file system. Only root can mount the file system.
pub struct SmallDisk(PathBuf);

impl SmallDisk {
    pub fn mount(folder: &Folder, kilobytes: u32) -> Option<Self> {
        let path = folder.path().join("small");
        std::fs::create_dir_all(&path).expect("a directory");
        let size = format!("size={kilobytes}k");
        let mut mount = Command::new("mount");
        let mounted = mount.args(["-t", "tmpfs", "-o", &size, "tmpfs"]).arg(&path).output();
        mounted.is_ok_and(|output| output.status.success()).then_some(Self(path))
    }

    /// Resizes the file system.
    pub fn resize(&self, kilobytes: u32) {
        let size = format!("remount,size={kilobytes}k");
        assert!(Command::new("mount").args(["-o", &size]).arg(&self.0).status().expect("mount runs").success());
    }

    pub fn path(&self) -> &std::path::Path {
        &self.0
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}
