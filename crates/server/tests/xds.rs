//! Rules from an xDS server that is written with grpcio. The server sends the resources with which Envoy Gateway
//! configures the reference rate-limit service.

use crate::common;

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::rls_client::RlsClient;
use common::{Server, TEST_TIMEOUT, eventually, run_program, stable_port};
use serde_json::{Value, json};
use tollgate_testkit::servers::Certificates;

const PYTHON_FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/xds_server");

/// Maximum number of xDS requests before Tollgate pauses for [`LONG_PAUSE`], if the xDS server answers each refusal
/// immediately. The pauses are random; their upper bound starts at 250 ms and doubles.
const MAX_REQUESTS: usize = 20;
const LONG_PAUSE: Duration = Duration::from_millis(500);

/// An xDS server. Dropping the server kills the process.
struct XdsServer {
    child: Child,
    responses: ChildStdin,
    requests: Receiver<Value>,
    port: u16,
}

impl XdsServer {
    /// Starts a server on a port, with additional arguments for TLS.
    fn start(port: u16, tls: &[&str]) -> Self {
        let python =
            common::required_variable("TOLLGATE_TEST_PYTHON", "a Python interpreter that can import `grpc_tools`");
        let mut command = Command::new(python);
        command.arg(format!("{PYTHON_FOLDER}/server.py")).args([&format!("localhost:{port}"), PYTHON_FOLDER]).args(tls);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("Python starts");
        let (responses, printed) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
        let (lines, requests) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(printed).lines().map_while(Result::ok) {
                let _ = lines.send(serde_json::from_str(&line).expect("JSON"));
            }
        });
        let mut server = Self { child, responses, requests, port };
        assert_eq!(server.next_request()["port"], port);
        server
    }

    fn send(&mut self, response: &Value) {
        writeln!(self.responses, "{response}").expect("the server runs");
    }

    /// Sends one resource for the domain `edge`, with a yearly limit per `user` key.
    fn send_limit(&mut self, version: &str, limit: u32) {
        let descriptor = json!({"key": "user", "rateLimit": {"unit": 6, "requestsPerUnit": limit}});
        let resource = json!({"name": "first", "domain": "edge", "descriptors": [descriptor]});
        self.send(&json!({"version": version, "resources": [resource]}));
    }

    /// Returns the next request.
    fn next_request(&mut self) -> Value {
        self.requests.recv_timeout(TEST_TIMEOUT).expect("a request")
    }

    /// Returns the version, the nonce and the error of the next request.
    fn next_ack(&mut self) -> (String, String, String) {
        let request = self.next_request();
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        (text(&request["versionInfo"]), text(&request["responseNonce"]), text(&request["errorDetail"]["message"]))
    }
}

impl Drop for XdsServer {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start_server(xds: &XdsServer) -> (Server, RlsClient) {
    let url = format!("xds://localhost:{}", xds.port);
    let server = Server::start(&["--rules", &url, "--node", "edge-1", "--rls", "127.0.0.1:0"]);
    let client = RlsClient::connect(&server.rls.expect("the rate-limit service is on").to_string());
    (server, client)
}

fn limit_of_domain(client: &mut RlsClient, domain: &str) -> u64 {
    let response = client.check_descriptors(domain, &[&[("user", "a")]]).0;
    response["statuses"][0]["current_limit"]["requests_per_unit"].as_u64().unwrap_or(0)
}

#[test]
fn rules_are_installed_changed_refused_and_removed() {
    let mut xds = XdsServer::start(stable_port(), &[]);
    xds.send_limit("1", 5);
    let (server, mut client) = start_server(&xds);
    let first = xds.next_request();
    assert_eq!((&first["node"]["id"], &first["versionInfo"]), (&json!("edge-1"), &Value::Null), "{first}");
    assert_eq!(first["typeUrl"], "type.googleapis.com/ratelimit.config.ratelimit.v3.RateLimitConfig");
    assert_eq!(xds.next_ack(), ("1".into(), "0".into(), String::new()), "the version is acknowledged");
    assert_eq!(limit_of_domain(&mut client, "edge"), 5);

    xds.send_limit("2", 7);
    assert_eq!(xds.next_ack().0, "2");
    assert_eq!(limit_of_domain(&mut client, "edge"), 7);
    let status = run_program(Command::new("curl").arg("-s").arg(server.url("/v1/rules-status")));
    assert!(status.contains(&format!("\"source\":\"xds://localhost:{}\"", xds.port)), "{status}");

    // A descriptor without a key is refused, and so are bytes that are not a message. The rules in force stay.
    let wrong = json!({"name": "first", "domain": "edge", "descriptors": [{"rateLimit": {"unit": 99}}]});
    xds.send(&json!({"version": "3", "resources": [wrong]}));
    let (version, nonce, error) = xds.next_ack();
    assert_eq!((&*version, &*nonce), ("2", "2"), "{error}");
    assert!(error.contains("key") && error.contains("unknown"), "all mistakes: {error}");
    xds.send(&json!({"version": "4", "raw": [0x0a, 0xff]}));
    let (version, _, error) = xds.next_ack();
    assert_eq!((&*version, &*error), ("2", "resource 0: the message ends within a field"));
    assert_eq!(limit_of_domain(&mut client, "edge"), 7);
    let page = run_program(Command::new("curl").arg("-s").arg(server.url("/metrics")));
    assert!(page.contains("tollgate_rules_refused_total 2"), "{page}");

    let nested =
        json!({"key": "path", "value": "/a", "descriptors": [{"key": "user", "rateLimit": {"unlimited": true}}]});
    let resources = [
        json!({"name": "first", "domain": "edge", "descriptors": [nested]}),
        json!({"name": "second", "domain": "other", "descriptors": [{"key": "user", "rateLimit": {"unit": 1, "requestsPerUnit": 3}}]}),
    ];
    xds.send(&json!({"version": "5", "resources": resources}));
    assert_eq!(xds.next_ack().0, "5", "the next good version is installed");
    let unlimited = client.check_descriptors("edge", &[&[("path", "/a"), ("user", "a")]]);
    assert_eq!(unlimited.remaining(), u64::from(u32::MAX), "{unlimited:?}");
    assert_eq!((limit_of_domain(&mut client, "edge"), limit_of_domain(&mut client, "other")), (0, 3));

    xds.send(&json!({"version": "6", "resources": []}));
    assert_eq!(xds.next_ack().0, "6");
    assert_eq!(limit_of_domain(&mut client, "other"), 0, "an empty set has no rules");
}

#[test]
fn rules_stay_while_the_xds_server_restarts_or_stalls() {
    let port = stable_port();
    let mut xds = XdsServer::start(port, &[]);
    xds.send_limit("1", 5);
    let (server, mut client) = start_server(&xds);
    drop(xds);
    server.wait_for_line("xDS server unavailable; the rules in force stay");
    assert_eq!(limit_of_domain(&mut client, "edge"), 5);
    // Sends the same resources again, and then other resources with the same version.
    let mut xds = XdsServer::start(port, &[]);
    assert_eq!(xds.next_ack().0, "", "a stream starts without a version");
    xds.send_limit("7", 5);
    assert_eq!(xds.next_ack(), ("7".into(), "0".into(), String::new()));
    let page = run_program(Command::new("curl").arg("-s").arg(server.url("/metrics")));
    assert!(page.contains("tollgate_rules_version 1\n"), "the same set is not installed again: {page}");
    drop(xds);
    let mut xds = XdsServer::start(port, &[]);
    xds.send_limit("7", 6);
    eventually("the rules of the new server are in force", || limit_of_domain(&mut client, "edge") == 6);
    common::signal(xds.child.id(), "STOP");
    assert_eq!(limit_of_domain(&mut client, "edge"), 6, "decisions do not wait for a stalled server");
    common::signal(xds.child.id(), "CONT");
    xds.send_limit("3", 8);
    eventually("the stream is used again", || limit_of_domain(&mut client, "edge") == 8);
}

#[test]
fn xds_server_that_resends_refused_rules_is_answered_with_pauses() {
    let mut xds = XdsServer::start(stable_port(), &[]);
    xds.send_limit("1", 5);
    let (server, mut client) = start_server(&xds);
    let wrong = json!({"name": "first", "domain": "edge", "descriptors": [{"rateLimit": {"unit": 99}}]});
    xds.send(&json!({"version": "2", "resources": [wrong], "insists": true}));
    while xds.next_ack().2.is_empty() {}
    let until_a_pause = std::iter::from_fn(|| xds.requests.recv_timeout(LONG_PAUSE).ok());
    assert!(until_a_pause.take(MAX_REQUESTS + 1).count() <= MAX_REQUESTS, "no pause between refusals");
    xds.send_limit("3", 7);
    eventually("the next good version is in force", || limit_of_domain(&mut client, "edge") == 7);
    let page = run_program(Command::new("curl").arg("-s").arg(server.url("/metrics")));
    assert!(page.contains("tollgate_rules_refused_total 1\n"), "{page}");
    let refused = server.stop_and_read_log().iter().filter(|line| line.contains("rules refused")).count();
    assert_eq!(refused, 1, "the same refusal is logged once");
}

#[test]
fn rules_are_received_over_mutual_tls() {
    let folder = common::Folder::new();
    let made = Certificates::create(folder.path());
    let text = |path: std::path::PathBuf| path.to_string_lossy().into_owned();
    let (key, certificate, ca) = (text(made.key()), text(made.certificate()), text(made.authority()));
    let mut xds = XdsServer::start(stable_port(), &[&key, &certificate, &ca]);
    xds.send_limit("1", 5);
    let url = format!("xds+tls://localhost:{}", xds.port);
    let own = ["--rules-cert", &certificate, "--rules-key", &key];
    let server = Server::start(&[&["--rules", &url, "--rules-ca", &ca, "--rls", "127.0.0.1:0"][..], &own].concat());
    let mut client = RlsClient::connect(&server.rls.expect("the rate-limit service is on").to_string());
    assert_eq!(limit_of_domain(&mut client, "edge"), 5);
}

#[test]
fn unusable_xds_arguments_are_reported_at_start() {
    for (args, expected) in [
        (&["--rules", "xds://"][..], "is not the address of an xDS server; write it like xds://127.0.0.1:18001"),
        (&["--rules", "xds+tls://h"], "needs the certificates of its CA: add --rules-ca FILE"),
        (&["--rules", "xds://h", "--rules-token", "t"], "--rules-token is for a rules service of Tollgate"),
        (&["--rules", "xds://h", "--tokens", "required"], "with --rules xds://… there are no tokens"),
    ] {
        let printed = Server::stderr_of_failed_start(args);
        assert!(printed.contains(expected), "{args:?}: {printed}");
    }
}
