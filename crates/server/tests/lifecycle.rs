//! Starting and stopping.

use crate::common;

use std::process::Command;

use common::{Server, encode};

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
        assert_eq!(resp.rest(), "");
        http.rest();
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
    let command = encode(&["CL.THROTTLE", "k", "0", "1", "60"]);
    client.send([b"PING\r\n", &command[..20]].concat());
    client.expect("+PONG\r\n");
    server.signal("TERM");
    server.wait_for_line("stopping");
    client.send(&command[20..]);
    assert_eq!(client.rest(), "*5\r\n:0\r\n:1\r\n:0\r\n:-1\r\n:60\r\n");
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
    assert_eq!(client.rest(), "");
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
