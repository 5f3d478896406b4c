//! TLS on the ports of HTTP and the Redis protocol, as seen by `curl`, `redis-cli` and `openssl`.

use crate::common;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{Folder, Server, run_program};
use tollgate_testkit::servers::Certificates;

fn start(folder: &Folder, made: &Certificates) -> Server {
    let (certificate, key) = (folder.join("now.pem"), folder.join("now.key"));
    replace_certificate(folder, made);
    Server::start(&["--tls-cert", &certificate, "--tls-key", &key])
}

/// Replaces the server's certificate in the same way as renewal tools.
fn replace_certificate(folder: &Folder, made: &Certificates) {
    for (from, to) in [(made.certificate(), "now.pem"), (made.key(), "now.key")] {
        std::fs::copy(from, folder.join("new")).expect("a copy");
        std::fs::rename(folder.join("new"), folder.join(to)).expect("in its place");
    }
}

fn make_certificates(folder: &Folder, name: &str) -> Certificates {
    let directory = folder.path().join(name);
    std::fs::create_dir_all(&directory).expect("a directory");
    Certificates::create(&directory)
}

fn curl_command(server: &Server, authority: &Path) -> Command {
    let port = server.http.expect("HTTP is on").port();
    let mut command = Command::new("curl");
    command.args(["--silent", "--show-error", "--noproxy", "*", "--max-time", "30", "--cacert"]).arg(authority);
    command.args(["--data", r#"{"key":"k","limit":"2/day"}"#, &format!("https://localhost:{port}/v1/check")]);
    command
}

/// A Redis protocol connection that stays open.
struct Session(Child, BufReader<std::process::ChildStdout>);

impl Session {
    fn open(server: &Server, authority: &Path) -> Self {
        let mut command = Command::new("openssl");
        command.args(["s_client", "-quiet", "-no_ign_eof", "-verify_return_error", "-connect"]);
        command.arg(format!("localhost:{}", server.resp_port())).arg("-CAfile").arg(authority);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().expect("openssl runs");
        let output = BufReader::new(child.stdout.take().expect("a pipe"));
        Self(child, output)
    }

    fn ping(&mut self) -> String {
        let mut line = String::new();
        self.0.stdin.as_mut().expect("a pipe").write_all(b"PING\r\n").expect("openssl reads");
        self.1.read_line(&mut line).expect("an answer");
        line
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn both_protocols_are_served_over_tls_only() {
    let folder = Folder::new();
    let made = make_certificates(&folder, "a");
    let server = start(&folder, &made);
    let output = run_program(&mut curl_command(&server, &made.authority()));
    assert!(output.contains(r#""allowed":true"#), "{output}");
    let mut redis = Command::new("redis-cli");
    redis.args(["-h", "localhost", "-p", &server.resp_port(), "--tls", "--cacert"]).arg(made.authority());
    // Sends a pipeline that spans several TLS records.
    let mut child = redis.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("redis-cli runs");
    let commands = "CL.THROTTLE k 1 2 86400\n".repeat(3) + &format!("PING {}\n", "x".repeat(50_000));
    child.stdin.take().expect("a pipe").write_all(commands.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let output = String::from_utf8_lossy(&output.stdout);
    let refusals: Vec<&str> = output.lines().step_by(5).take(3).collect();
    assert_eq!(refusals, ["0", "0", "1"], "{output}");
    assert!(output.trim_end().ends_with(&"x".repeat(50_000)));
    // A connection without TLS is closed, whatever the protocol.
    let mut plain = server.connect_http();
    plain.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
    assert!(!plain.read_to_end().contains("200 OK"));
    let mut plain = server.connect_resp();
    plain.send("PING\r\n");
    assert!(!plain.read_to_end().contains("PONG"));
    assert!(
        run_program(&mut curl_command(&server, &made.authority())).contains("allowed"),
        "TLS connections are still served"
    );
}

#[test]
fn renewed_certificate_is_used_for_new_connections_and_open_ones_stay() {
    let folder = Folder::new();
    let (old, new) = (make_certificates(&folder, "old"), make_certificates(&folder, "new-ones"));
    let server = start(&folder, &old);
    let mut session = Session::open(&server, &old.authority());
    assert_eq!(session.ping(), "+PONG\r\n");
    replace_certificate(&folder, &new);
    server.wait_for_line("certificate renewed");
    assert!(run_program(&mut curl_command(&server, &new.authority())).contains("allowed"));
    let output = curl_command(&server, &old.authority()).output().expect("curl runs");
    assert!(!output.status.success(), "the old authority has not signed the new certificate");
    assert_eq!(session.ping(), "+PONG\r\n", "open connections stay open");
    // An unusable certificate is ignored.
    std::fs::write(folder.join("now.pem"), "nonsense").expect("a file");
    server.wait_for_line("cannot renew the certificate; keeping the current one");
    assert!(run_program(&mut curl_command(&server, &new.authority())).contains("allowed"));
}

#[test]
fn stopped_server_closes_encrypted_connections() {
    let folder = Folder::new();
    let made = make_certificates(&folder, "a");
    let mut server = start(&folder, &made);
    let mut session = Session::open(&server, &made.authority());
    assert_eq!(session.ping(), "+PONG\r\n");
    // Opens a connection that never begins its handshake.
    let mut silent = server.connect_http();
    server.signal("TERM");
    let mut line = String::new();
    assert_eq!(session.1.read_line(&mut line).expect("an orderly end"), 0);
    assert_eq!(silent.read_to_end(), "");
    assert!(server.wait().success());
}

#[test]
fn unusable_certificate_files_are_an_error_at_start() {
    let output = Server::stderr_of_failed_start(&["--tls-cert", "/nowhere.pem", "--tls-key", "/nowhere.key"]);
    assert!(output.contains("--tls-cert: cannot read /nowhere.pem"), "{output}");
}
