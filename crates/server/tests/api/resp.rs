//! Tokens over the Redis protocol, sent as plain lines, by redis-cli and by redis-py.

use std::process::Command;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tollgate_server::control::auth::TokenPolicy;
use tollgate_server::control::model::Role;

use crate::test_server::TestServer;

/// Sends commands and a final `QUIT` as lines. Returns the lines of all replies.
async fn send_commands(server: &TestServer, lines: &[&str]) -> Vec<String> {
    let mut stream = TcpStream::connect(server.resp).await.expect("it listens");
    let text = lines.join("\r\n") + "\r\nQUIT\r\n";
    stream.write_all(text.as_bytes()).await.expect("it reads");
    let mut replies = String::new();
    stream.read_to_string(&mut replies).await.expect("text");
    replies.lines().map(str::to_owned).collect()
}

#[tokio::test]
async fn commands_before_authentication_are_refused() {
    let server = TestServer::start(TokenPolicy::Required).await;
    let (token, _) = server.create_token("reader", Role::Reader, &[], None).await;
    let no = "-NOAUTH Authentication required.";
    assert_eq!(
        send_commands(&server, &["PING", "CL.THROTTLE k 1 1 1", "TG.CHECK api 1", "COMMAND", "SELECT 0"]).await,
        [no, no, no, no, no, "+OK"]
    );
    let wrong = "-WRONGPASS invalid username-password pair or user is disabled.";
    assert_eq!(
        send_commands(&server, &["AUTH nonsense", "AUTH default nonsense", "PING"]).await,
        [wrong, wrong, no, "+OK"]
    );
    let replies =
        send_commands(&server, &[&format!("AUTH {token}"), "PING", "AUTH nonsense", "PING", "RESET", "PING"]).await;
    assert_eq!(replies, ["+OK", "+PONG", wrong, "+PONG", "+RESET", no, "+OK"]);
    assert_eq!(send_commands(&server, &[&format!("AUTH anybody {token}"), "ECHO x"]).await, ["+OK", "$1", "x", "+OK"]);
    assert!(send_commands(&server, &["HELLO 3"]).await[0].starts_with("-NOAUTH HELLO must be called"));
    assert_eq!(send_commands(&server, &["HELLO 3 AUTH default nonsense", "PING"]).await, [wrong, no, "+OK"]);
    assert!(send_commands(&server, &[&format!("HELLO 3 AUTH default {token} SETNAME me")]).await[0].starts_with("%7"));
    assert_eq!(
        send_commands(&server, &["AUTH", "AUTH a b c"]).await[1],
        "-ERR wrong number of arguments for 'auth' command"
    );
}

#[tokio::test]
async fn reset_needs_an_operator_and_revoked_tokens_are_refused() {
    let server = TestServer::start(TokenPolicy::Required).await;
    server.create_token("admin", Role::Admin, &[], None).await;
    let (reader, id) = server.create_token("reader", Role::Reader, &[], None).await;
    let (operator, _) = server.create_token("operator", Role::Operator, &["api"], None).await;
    let change = tollgate_server::control::model::Change::by_author("test");
    let rule = br#"{"per":["k"],"limit":"10/h"}"#;
    for domain in ["api", "other"] {
        server.control.rules().put(&change, domain, "a", rule).await.unwrap();
    }
    server.wait_for_latest_revision().await;
    let replies = send_commands(&server, &[&format!("AUTH {reader}"), "TG.PEEK api 1 k x", "TG.RESET api 1 k x"]).await;
    assert!(
        replies.iter().any(|line| line.starts_with("-NOPERM this call needs the role operator for the domain `api`")),
        "{replies:?}"
    );
    let replies =
        send_commands(&server, &[&format!("AUTH {operator}"), "TG.RESET api 1 k x", "TG.RESET other 1 k x"]).await;
    assert_eq!(&replies[..2], ["+OK", ":1"], "{replies:?}");
    assert!(replies[2].starts_with("-NOPERM"), "{replies:?}");
    let mut stream = TcpStream::connect(server.resp).await.unwrap();
    let mut answer = [0; 12];
    stream.write_all(format!("AUTH {reader}\r\nPING\r\n").as_bytes()).await.unwrap();
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"+OK\r\n+PONG\r\n");
    server.control.tokens().revoke(&change, &id).await.unwrap();
    server.wait_for_latest_revision().await;
    stream.write_all(b"PING\r\n").await.unwrap();
    stream.read_exact(&mut answer).await.unwrap();
    assert_eq!(&answer, b"-NOAUTH Auth");
}

#[tokio::test(flavor = "current_thread")]
async fn redis_cli_and_redis_py_authenticate() {
    let server = TestServer::start(TokenPolicy::Required).await;
    let (token, _) = server.create_token("reader", Role::Reader, &[], None).await;
    let port = server.resp.port().to_string();
    let run = async |mut command: Command| {
        let output = tokio::task::spawn_blocking(move || command.output())
            .await
            .unwrap()
            .expect("the program runs; scripts/test installs it");
        String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned()
    };
    for version in ["-2", "-3"] {
        let cli = |args: &[&str]| {
            let mut command = Command::new("redis-cli");
            command.args(["-p", &port, version, "--no-auth-warning"]).args(args);
            command
        };
        assert!(run(cli(&["PING"])).await.contains("NOAUTH"), "{version}");
        assert_eq!(run(cli(&["-a", &token, "PING"])).await, "PONG\n", "{version}");
        assert_eq!(run(cli(&["--user", "me", "--pass", &token, "ECHO", "x"])).await, "x\n", "{version}");
        assert!(run(cli(&["-a", "nonsense", "PING"])).await.contains("WRONGPASS"), "{version}");
    }
    let script = r#"
import sys, redis
port, token = int(sys.argv[1]), sys.argv[2]
for version in (2, 3):
    assert redis.Redis(port=port, password=token, protocol=version).ping()
    assert redis.Redis(port=port, username="me", password=token, protocol=version).echo("x") == b"x"
    for wrong in ({}, {"password": "nonsense"}):
        try:
            redis.Redis(port=port, protocol=version, **wrong).ping()
            raise SystemExit("no error")
        except redis.AuthenticationError:
            pass
print("fine")
"#;
    let python =
        std::env::var_os("TOLLGATE_TEST_PYTHON").expect("TOLLGATE_TEST_PYTHON names a Python; scripts/test sets it");
    let mut command = Command::new(python);
    command.args(["-c", script, &port, &token]);
    assert_eq!(run(command).await, "fine\n");
}
