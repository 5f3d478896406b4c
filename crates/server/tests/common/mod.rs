//! Starts the real program on free ports, and provides clients for it.
#![allow(clippy::print_stdout, reason = "the test runner shows the output of failed tests")]
#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test file uses only part of this module")]

pub mod api;
pub mod cli;
pub mod frame_client;
pub mod load;
pub mod proxy;
pub mod rls_client;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, channel};

use serde_json::Value;
use tempfile::TempDir;

pub use tollgate_testkit::eventually::{self, TEST_TIMEOUT, eventually};

pub mod service;

/// Returns a free port below the ephemeral range, for a server that starts later or restarts. The system could assign
/// a free ephemeral port to another test's connection in the meantime.
pub fn stable_port() -> u16 {
    static PORTS_TRIED: AtomicU32 = AtomicU32::new(0);
    let next = || {
        let port =
            10_000 + (std::process::id().wrapping_mul(211) + PORTS_TRIED.fetch_add(1, Ordering::Relaxed)) % 20_000;
        u16::try_from(port).ok()
    };
    let is_free = |port: &u16| TcpListener::bind(("127.0.0.1", *port)).is_ok();
    std::iter::repeat_with(next).flatten().find(is_free).expect("a free port")
}

/// A running server. Dropping the server kills the process.
pub struct Server {
    child: Child,
    log: Receiver<String>,
    /// Log lines up to `listening`.
    pub start_log: Vec<String>,
    pub http: Option<SocketAddr>,
    pub resp: Option<SocketAddr>,
    pub rls: Option<SocketAddr>,
}

impl Server {
    /// Starts `tollgate serve` on free ports with additional arguments.
    pub fn start(args: &[&str]) -> Self {
        Self::start_in(Path::new("."), args)
    }

    /// Starts the server in a directory.
    pub fn start_in(directory: &Path, args: &[&str]) -> Self {
        let mut command = Self::serve_command(Command::new(env!("CARGO_BIN_EXE_tollgate")), args);
        command.current_dir(directory);
        Self::start_command(command)
    }

    /// Starts the server through a command that runs the program, for example on another host.
    pub fn start_with_command(command: Command, args: &[&str]) -> Self {
        Self::start_command(Self::serve_command(command, args))
    }

    fn start_command(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().expect("the program starts");
        let stderr = BufReader::new(child.stderr.take().expect("a pipe"));
        let (lines, log) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                // The test runner shows the output if the test fails.
                println!("{line}");
                let _ = lines.send(line);
            }
        });
        let mut server = Self { child, log, start_log: Vec::new(), http: None, resp: None, rls: None };
        while !server.start_log.last().is_some_and(|line| line.contains("listening")) {
            let line = server.log.recv_timeout(TEST_TIMEOUT).unwrap_or_else(|_| panic!("the server does not listen"));
            server.start_log.push(line);
        }
        let line = server.start_log.last().cloned().unwrap_or_default();
        let address = |name: &str| {
            let text = line.split(&format!("{name}=\"")).nth(1).and_then(|rest| rest.split('"').next());
            text.and_then(|text| text.parse().ok())
        };
        (server.http, server.resp, server.rls) = (address("http"), address("resp"), address("rls"));
        server
    }

    /// Returns the command `tollgate serve`. Uses free ports and no data directory, unless the arguments set them.
    fn serve_command(mut command: Command, args: &[&str]) -> Command {
        command.arg("serve").args(args);
        for (flag, value) in [("--http", "127.0.0.1:0"), ("--resp", "127.0.0.1:0"), ("--data", "off")] {
            if !args.contains(&flag) {
                command.args([flag, value]);
            }
        }
        command
    }

    /// Starts a server that must fail to start. Returns its standard error.
    pub fn stderr_of_failed_start(args: &[&str]) -> String {
        let program = Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = Self::serve_command(program, args).output().expect("the program starts");
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(!output.status.success(), "it ended well:\n{message}");
        message
    }

    /// Waits for a log line that contains `text` and returns it.
    pub fn wait_for_line(&self, text: &str) -> String {
        loop {
            let line =
                self.log.recv_timeout(TEST_TIMEOUT).unwrap_or_else(|_| panic!("no line with {text:?} in the log"));
            if line.contains(text) {
                return line;
            }
        }
    }

    /// Stops the server and returns the log lines that were not read yet.
    pub fn stop_and_read_log(mut self) -> Vec<String> {
        self.signal("TERM");
        let lines = std::iter::from_fn(|| self.log.recv_timeout(TEST_TIMEOUT).ok()).collect();
        self.wait();
        lines
    }

    pub fn connect_resp(&self) -> Client {
        Client::connect(self.resp.expect("the Redis protocol is on"))
    }

    pub fn connect_http(&self) -> Client {
        Client::connect(self.http.expect("HTTP is on"))
    }

    pub fn resp_port(&self) -> String {
        self.resp.expect("the Redis protocol is on").port().to_string()
    }

    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.http.expect("HTTP is on"))
    }

    /// Sends a signal by its name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        signal(self.id(), name);
    }

    /// Stops all threads of the server until `CONT`.
    pub fn pause(&self) {
        self.signal("STOP");
        let tasks = format!("/proc/{}/task", self.id());
        eventually("all threads are stopped", || {
            let stat = |task: std::fs::DirEntry| std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
            let tasks = std::fs::read_dir(&tasks).expect("it runs").map_while(Result::ok).map(stat);
            tasks.into_iter().all(|stat| stat.rsplit(')').next().is_some_and(|rest| rest.starts_with(" T")))
        });
    }

    /// Returns the process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Waits until the process ends.
    pub fn wait(&mut self) -> ExitStatus {
        self.child.wait().expect("it was started")
    }

    /// Returns the resident memory in bytes, without the pages of the program file. The kernel loads those pages when
    /// code first runs, and their number depends on the memory use of other programs.
    pub fn resident_memory(&self) -> usize {
        self.memory_status("RssAnon:")
    }

    /// Returns the peak resident memory in bytes, including pages of the program file.
    pub fn peak_memory(&self) -> usize {
        self.memory_status("VmHWM:")
    }

    fn memory_status(&self, name: &str) -> usize {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).expect("it runs");
        let line = status.lines().find(|line| line.starts_with(name)).expect("a size");
        line.split_whitespace().nth(1).and_then(|kib| kib.parse::<usize>().ok()).expect("a number") * 1024
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A temporary directory.
pub struct Folder(TempDir);

impl Folder {
    pub fn new() -> Self {
        Self(tempfile::tempdir().expect("a directory"))
    }

    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of a file or directory in this directory.
    pub fn join(&self, name: &str) -> String {
        self.path().join(name).to_str().expect("text").to_owned()
    }

    /// Writes a file and returns its path.
    pub fn write_file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.join(name);
        std::fs::create_dir_all(Path::new(&path).parent().expect("a folder")).expect("a directory");
        std::fs::write(&path, text).expect("a file");
        path
    }
}

/// A temporary rule file.
pub struct Rules(Folder, String);

impl Rules {
    pub fn new(text: impl AsRef<[u8]>) -> Self {
        let folder = Folder::new();
        let path = folder.write_file("rules.yaml", text);
        Self(folder, path)
    }

    pub fn write(&self, text: impl AsRef<[u8]>) {
        self.0.write_file("rules.yaml", text);
    }

    pub fn path(&self) -> &str {
        &self.1
    }
}

/// A plain TCP connection.
pub struct Client {
    stream: TcpStream,
}

impl Client {
    pub fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("the server listens");
        stream.set_read_timeout(Some(TEST_TIMEOUT)).expect("a time-out");
        stream.set_nodelay(true).expect("no delay");
        Self { stream }
    }

    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the server reads");
    }

    /// Sends bytes and returns whether the server accepted them.
    pub fn try_send(&mut self, bytes: &[u8]) -> bool {
        self.stream.write_all(bytes).is_ok()
    }

    /// Sends a command as an array of bulk strings.
    pub fn send_command(&mut self, args: &[&str]) {
        self.send(encode_command(args));
    }

    /// Reads `expected.len()` bytes and asserts that they equal `expected`.
    pub fn expect(&mut self, expected: impl AsRef<[u8]>) {
        let expected = expected.as_ref();
        let mut received = vec![0; expected.len()];
        let outcome = self.stream.read_exact(&mut received);
        assert!(
            outcome.is_ok() && received == expected,
            "expected {}\nreceived {} ({outcome:?})",
            expected.escape_ascii(),
            received.escape_ascii()
        );
    }

    /// Sets the read timeout, for slow requests.
    pub fn set_read_timeout(&self, time: std::time::Duration) {
        self.stream.set_read_timeout(Some(time)).expect("a time-out");
    }

    /// Reads one line and returns it without its line ending.
    pub fn line(&mut self) -> String {
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            let mut byte = [0];
            self.stream.read_exact(&mut byte).expect("a whole line");
            line.push(byte[0]);
        }
        line.truncate(line.len() - 2);
        String::from_utf8(line).expect("text")
    }

    /// Reads `length` bytes and the line ending after them. Returns the bytes as text.
    pub fn read_text(&mut self, length: usize) -> String {
        let mut bytes = vec![0; length + 2];
        self.stream.read_exact(&mut bytes).expect("a whole string");
        bytes.truncate(length);
        String::from_utf8(bytes).expect("text")
    }

    /// Sends a POST request on this connection and returns the status and the body.
    pub fn post(&mut self, path: &str, body: &str) -> (u16, String) {
        self.send(format!("POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {}\r\n\r\n{body}", body.len()));
        let status = self.line().split(' ').nth(1).and_then(|status| status.parse().ok()).expect("a status");
        let mut length = 0;
        loop {
            match self.line().split_once(": ") {
                Some(("content-length", value)) => length = value.parse().expect("a length"),
                Some(_) => {}
                None => break,
            }
        }
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).expect("a whole body");
        (status, String::from_utf8(body).expect("text"))
    }

    /// Reads a response that has a `Content-Length`, and discards it.
    pub fn skip_reply(&mut self) {
        let mut length = 0;
        loop {
            match self.line().split_once(": ") {
                Some(("content-length", value)) => length = value.parse().expect("a length"),
                // A line without a colon is the status line (the length is still 0) or the empty line after the
                // headers.
                None if length > 0 => break,
                Some(_) | None => {}
            }
        }
        self.stream.read_exact(&mut vec![0; length]).expect("a whole body");
    }

    /// Sends bytes from another thread, so that the caller can read meanwhile.
    pub fn send_in_background(&self, bytes: Vec<u8>) -> std::thread::JoinHandle<()> {
        let mut stream = self.stream.try_clone().expect("a descriptor");
        // The server may close the connection before it has read everything.
        std::thread::spawn(move || drop(stream.write_all(&bytes)))
    }

    /// Closes the sending side of the connection.
    pub fn close_sending_side(&self) {
        self.stream.shutdown(std::net::Shutdown::Write).expect("it is open");
    }

    /// Reads until the server closes the connection.
    pub fn read_to_end(&mut self) -> String {
        let mut rest = Vec::new();
        // Errors are ignored, because a reset after the last byte also closes the connection.
        let _ = self.stream.read_to_end(&mut rest);
        String::from_utf8_lossy(&rest).into_owned()
    }
}

/// Sends the signal `name`, such as `TERM`, to a process.
pub fn signal(process: u32, name: &str) {
    let status = Command::new("kill").args([&format!("-{name}"), &process.to_string()]).status();
    assert!(status.expect("kill runs").success());
}

/// Encodes a command as an array of bulk strings.
pub fn encode_command(args: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        bytes.extend_from_slice(format!("${}\r\n{arg}\r\n", arg.len()).as_bytes());
    }
    bytes
}

/// The result of a command.
pub struct CommandResult {
    pub code: Option<i32>,
    pub out: String,
    pub err: String,
}

impl CommandResult {
    /// Runs a command with `input` on its standard input.
    pub fn run(command: &mut Command, input: &[u8]) -> Self {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the program starts");
        let (mut stdin, input) = (child.stdin.take().expect("a pipe"), input.to_vec());
        // Write errors are ignored, because the command may end before it has read all input.
        let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
        let output = child.wait_with_output().expect("it ends");
        writer.join().expect("no panic");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        Self { code: output.status.code(), out: text(&output.stdout), err: text(&output.stderr) }
    }

    /// Returns the standard output. Panics if the exit status is not 0.
    #[track_caller]
    pub fn expect_success(self) -> String {
        assert_eq!(self.code, Some(0), "{}{}", self.out, self.err);
        self.out
    }

    #[track_caller]
    pub fn json(self) -> Value {
        serde_json::from_str(&self.expect_success()).expect("JSON")
    }

    #[track_caller]
    pub fn assert_failed(self, code: i32, expected: &str) {
        assert!(self.code == Some(code) && self.err.contains(expected), "{:?} {}{}", self.code, self.out, self.err);
    }
}

/// Runs the program with arguments and standard input.
pub fn tollgate(args: &[&str], input: &[u8]) -> CommandResult {
    CommandResult::run(Command::new(env!("CARGO_BIN_EXE_tollgate")).args(args), input)
}

/// Returns an environment variable that `scripts/test` sets. Panics if the variable is missing.
pub fn required_variable(name: &str, what: &str) -> std::ffi::OsString {
    std::env::var_os(name).unwrap_or_else(|| panic!("{name} is not set: it names {what}; scripts/test sets it"))
}

/// Runs another program and returns its output.
pub fn run_program(command: &mut Command) -> String {
    let output =
        command.output().unwrap_or_else(|error| panic!("{command:?} does not run: {error}; scripts/test installs it"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?} failed:\n{text}{}", String::from_utf8_lossy(&output.stderr));
    text
}
