//! Starting and stopping.

use crate::common;

use std::process::Command;

use common::{Server, encode_command, eventually};

#[test]
fn stopped_server_closes_idle_connections_and_exits_with_success() {
    for signal in ["TERM", "INT"] {
        let mut server = Server::start(&[]);
        let (mut resp, mut http) = (server.connect_resp(), server.connect_http());
        resp.send("PING\r\n");
        resp.expect("+PONG\r\n");
        http.send("GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n");
        assert_eq!(http.line(), "HTTP/1.1 200 OK");
        server.signal(signal);
        assert_eq!(resp.read_to_end(), "");
        http.read_to_end();
        assert!(server.wait().success(), "after SIG{signal}");
    }
}

#[test]
fn request_received_before_the_stop_is_answered() {
    let mut server = Server::start(&[]);
    let mut client = server.connect_resp();
    client.send("PING\r\n");
    client.expect("+PONG\r\n");
    // Sends half a command. While stopping, the server waits only for the rest of this command.
    let command = encode_command(&["CL.THROTTLE", "k", "0", "1", "60"]);
    client.send([b"PING\r\n", &command[..20]].concat());
    client.expect("+PONG\r\n");
    server.signal("TERM");
    server.wait_for_line("stopping");
    client.send(&command[20..]);
    assert_eq!(client.read_to_end(), "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:60\r\n");
    assert!(server.wait().success());
}

#[test]
fn drain_timeout_ends_connections_that_never_finish() {
    let mut server = Server::start(&["--drain", "0"]);
    let mut client = server.connect_resp();
    client.send("PING\r\n*2\r\n");
    client.expect("+PONG\r\n");
    server.signal("TERM");
    assert!(server.wait().success());
    assert_eq!(client.read_to_end(), "");
}

/// A client pipelines requests without reading until all buffers are full, and reads only when the server stops. If the
/// server closed the socket with unread input, the kernel would discard responses that are not sent yet.
#[test]
fn slow_reader_gets_the_responses_to_all_decisions_of_a_stopping_server() {
    let throttle = String::from_utf8(encode_command(&["CL.THROTTLE", "k", "1000000", "1000000", "60"])).expect("text");
    let body = r#"{"key":"k","limit":"1M/s"}"#;
    let check = |header: &str| {
        format!("POST /v1/check HTTP/1.1\r\nhost: localhost\r\n{header}content-length: {}\r\n\r\n{body}", body.len())
    };
    for (request, count, response) in [
        (throttle, 400_000, "*5\r\n"),
        // The fast path serves this connection.
        (check(""), 60_000, "HTTP/1.1 200 "),
        // hyper serves this connection because of the header.
        (check("x: y\r\n"), 60_000, "HTTP/1.1 200 "),
    ] {
        let mut server = Server::start(&[]);
        let mut client = if response == "*5\r\n" { server.connect_resp() } else { server.connect_http() };
        let sender = client.send_in_background(request.repeat(count).into_bytes());
        let mut decided = 0;
        eventually("the server waits for the client to read", || {
            let before = std::mem::replace(&mut decided, count_decisions(&server));
            decided > 0 && decided == before
        });
        server.signal("TERM");
        server.wait_for_line("stopping");
        let received = client.read_to_end().matches(response).count();
        assert!(received >= decided, "{response}: {received} responses to {decided} decisions");
        drop(client);
        sender.join().expect("no panic");
        assert!(server.wait().success());
    }
}

/// Returns the number of decisions so far.
fn count_decisions(server: &Server) -> usize {
    let mut client = server.connect_http();
    client.send("GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n");
    let page = client.read_to_end();
    let counts = page.lines().filter(|line| line.starts_with("tollgate_decisions_total{"));
    counts.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum()
}

#[test]
fn port_in_use_is_reported_with_its_flag() {
    let server = Server::start(&[]);
    let taken = server.resp.expect("on").to_string();
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(["serve", "--http", "off", "--resp", &taken, "--data", "off"])
        .output()
        .expect("the program starts");
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && text.contains("choose another address with --resp"), "{text}");
}

#[test]
fn help_shows_a_first_command_and_the_next_steps() {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("--help").output().expect("the program starts");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(text.contains("tollgate serve\n") && text.contains("curl -i -d"), "{text}");
}

#[test]
fn check_reports_every_mistake_with_its_position_and_fails() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("rules.yaml");
    let check = |text: &str| {
        std::fs::write(&path, text).expect("a file");
        let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("check").arg(&path).output();
        let output = output.expect("the program starts");
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8_lossy(&text).into_owned())
    };
    let (code, output) = check("domain: api\nrules:\n- {id: a, limit: 5/m}\n");
    assert!(code == Some(0) && output.contains("1 rule in 1 domain, no mistakes"), "{output}");
    let (code, output) = check("domain: api\nrules:\n- {id: a, deny: true}\n- {id: b, limit: 5/m}\n");
    assert!(code == Some(0) && output.contains("warning: "), "{output}");
    let (code, output) = check("domain: api\nrules:\n- id: a\n  limt: 5/m\n- id: b\n  limit: 5/x\n");
    assert_eq!(code, Some(1));
    let name = path.display();
    assert!(output.contains(&format!("{name}:4:3: `limt` is not a key of a rule")), "{output}");
    assert!(output.contains(&format!("{name}:6:")), "{output}");
    std::fs::remove_file(&path).expect("it was written");
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate")).arg("check").arg(&path).output().expect("it starts");
    assert!(!output.status.success() && String::from_utf8_lossy(&output.stderr).contains("cannot read"));
}
