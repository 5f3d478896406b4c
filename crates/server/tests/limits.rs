//! Input that reaches or exceeds its bounds. The server reports a clear error and continues.

use crate::common;

use common::{Client, Rules, Server, encode_command};
use tollgate_testkit::servers::{Kind, Server as StoreServer};

const RULES: &str = "domain: api\nrules:\n- {id: all, per: [k], limit: 5/h}\n";

/// Sends a request over HTTP and checks the status and part of the response.
#[track_caller]
fn assert_http_response(client: &mut Client, body: &str, status: u16, expected: &str) {
    let (got, text) = client.post("/v1/check", body);
    let shown = &body[..body.len().min(60)];
    assert!(got == status && text.contains(expected), "{shown}: {got} {}", &text[..text.len().min(300)]);
}

#[test]
fn lengths_of_keys_and_values_and_number_of_attributes_are_bounded() {
    let rules = Rules::new(RULES);
    let server = Server::start(&["--rules", rules.path()]);
    let mut http = server.connect_http();
    let sent = |length: usize| format!(r#"{{"key":"{}","limit":"1/h"}}"#, "k".repeat(length));
    assert_http_response(&mut http, &sent(8_192), 200, "allow");
    assert_http_response(&mut http, &sent(8_193), 400, "8192");
    let value = |length: usize| format!(r#"{{"domain":"api","attributes":{{"k":"{}"}}}}"#, "v".repeat(length));
    assert_http_response(&mut http, &value(8_192), 200, "allow");
    assert_http_response(&mut http, &value(8_193), 400, "8192");
    let attributes = |count: usize| {
        let values = vec![r#""v""#; count].join(",");
        format!(r#"{{"domain":"api","attributes":{{"k":[{values}]}}}}"#)
    };
    assert_http_response(&mut http, &attributes(128), 200, "allow");
    assert_http_response(&mut http, &attributes(129), 400, "too many attributes (maximum 128)");

    let mut resp = server.connect_resp();
    let attributes = |count: usize| [vec!["TG.CHECK", "api", "1"], vec!["a"; 2 * count]].concat();
    resp.send_command(&attributes(128));
    assert_eq!(resp.line(), "*12");
    let mut resp = server.connect_resp();
    resp.send_command(&attributes(129));
    assert!(resp.line().contains("(maximum 128)"));
}

#[test]
fn bytes_that_are_not_utf8_are_an_error_in_json_and_a_value_in_resp() {
    let rules = Rules::new(RULES);
    let server = Server::start(&["--rules", rules.path()]);
    let mut http = server.connect_http();
    http.send(b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-length: 13\r\n\r\n{\"key\":\"\xff\xfe\"} ");
    assert_eq!(http.line(), "HTTP/1.1 400 Bad Request");
    let mut resp = server.connect_resp();
    resp.send(b"*5\r\n$8\r\nTG.CHECK\r\n$3\r\napi\r\n$1\r\n1\r\n$1\r\nk\r\n$2\r\n\xff\xfe\r\n");
    assert_eq!(resp.line(), "*12");
    let mut resp = server.connect_resp();
    resp.send(b"*3\r\n$8\r\nTG.CHECK\r\n$2\r\n\xff\n\r\n$1\r\n1\r\nPING\r\n");
    assert!(resp.line().starts_with("-ERR unknown domain"), "the error is one line, whatever the domain contains");
    resp.expect("+PONG\r\n");
}

#[test]
fn name_of_a_connection_is_bounded() {
    let server = Server::start(&[]);
    let mut client = server.connect_resp();
    let (long, spaced) = ("n".repeat(129), "a b");
    for (name, error) in [
        (long.as_str(), "-ERR client name too long (maximum 128 bytes)"),
        (spaced, "-ERR Client names cannot contain spaces, newlines or special characters."),
    ] {
        client.send_command(&["HELLO", "3", "SETNAME", name]);
        assert_eq!(client.line(), error);
        client.send_command(&["CLIENT", "SETNAME", name]);
        assert_eq!(client.line(), error);
    }
    client.send("CLIENT GETNAME\r\n");
    client.expect("$-1\r\n");
}

#[test]
fn cost_above_the_capacity_is_refused_permanently_and_above_64_bits_is_an_error() {
    let server = Server::start(&[]);
    let mut http = server.connect_http();
    let ask = |cost: &str| format!(r#"{{"key":"k","limit":"5/h","cost":{cost}}}"#);
    assert_http_response(&mut http, &ask("18446744073709551615"), 429, r#""retry_after_ms":null"#);
    assert_http_response(&mut http, &ask("18446744073709551616"), 400, "expected an integer");
    assert_http_response(&mut http, &ask("0"), 200, r#""remaining":5"#);
    assert_http_response(&mut http, r#"{"key":"k","limit":"99999999999999999999/s"}"#, 400, "/limit");
    assert_http_response(&mut http, r#"{"key":"","limit":"1/s"}"#, 200, "allow");
}

#[test]
fn rules_with_mistakes_leave_the_rules_in_force() {
    let rules = Rules::new(RULES);
    let server = Server::start(&["--rules", rules.path()]);
    let mut http = server.connect_http();
    let ask = r#"{"domain":"api","attributes":{"k":"a"}}"#;
    assert_http_response(&mut http, ask, 200, r#""remaining":4"#);
    let too_large = vec![b'#'; (16 << 20) + 1];
    for (text, output) in [
        (&b"domain: api\nrules:\n- {id: all, limit: 5/x}\n"[..], ":3:"),
        (b"domain: api\nrules: [", "invalid YAML"),
        (b"\xff\xfe", "not UTF-8"),
        (b"", "rules.yaml:1:1"),
        (&too_large, "file too large"),
    ] {
        rules.write(text);
        server.wait_for_line(output);
        server.wait_for_line("the rules in force stay");
    }
    assert_http_response(&mut http, ask, 200, r#""remaining":3"#);
    rules.write("domain: api\nrules:\n- {id: all, per: [k], limit: 9/h}\n");
    server.wait_for_line("version=2");
    assert_http_response(&mut http, ask, 200, r#""limit":9,"remaining":6"#);
}

#[test]
fn parameters_that_the_store_cannot_compute_are_refused_and_the_rules_in_force_stay() {
    let (store, rules) = (StoreServer::start(Kind::Redis), Rules::new(RULES));
    let args = ["--rules", rules.path(), "--store", &store.url(), "--store-deadline", "20000"];
    let server = Server::start(&args);
    rules.write("domain: api\nrules:\n- {id: all, per: [k], limit: 1/1500ns, algorithm: fixed_window}\n");
    server.wait_for_line("the store does not support the limits of `all`");
    let mut http = server.connect_http();
    assert_http_response(&mut http, r#"{"domain":"api","attributes":{"k":"a"}}"#, 200, r#""limit":5"#);
}

/// Returns the replies to consecutive calls of `CL.THROTTLE`.
fn throttle_replies(server: &Server, calls: &[&str]) -> Vec<String> {
    let mut client = server.connect_resp();
    let ask = |call: &&str| {
        client.send(encode_command(&[&["CL.THROTTLE"], &call.split(' ').collect::<Vec<_>>()[..]].concat()));
        match client.line() {
            line if line == "*5" => (0..5).map(|_| client.line()).collect(),
            error => error,
        }
    };
    calls.iter().map(ask).collect()
}

#[test]
fn throttle_on_a_shared_store_replies_as_in_memory() {
    // The periods are days, so that the test's duration does not change the reported seconds.
    let calls = [
        "k 2 1 86400",
        "k 2 1 86400",
        "k 2 1 86400 0",
        "k 2 1 86400 2",
        "k 2 1 86400",
        "k 2 1 86400",
        "k 5 1 86400",
        "k 2 1 86400 4",
        "other 0 1 86400",
        "other 0 1 86400",
        "large 1000000 1000000 86400 1000",
        "k 2 0 86400",
        "k 2 1 0",
        "k x 1 86400",
        "k 2 1",
        "k 2 1 86400 1 1",
    ];
    let in_memory = throttle_replies(&Server::start(&[]), &calls);
    assert!(in_memory[0].starts_with(":0") && in_memory[3].starts_with(":1"), "{in_memory:?}");
    for kind in Kind::ALL {
        let store = StoreServer::start(kind);
        let server = Server::start(&["--store", &store.url(), "--store-deadline", "20000"]);
        for ((call, expected), reply) in calls.iter().zip(&in_memory).zip(throttle_replies(&server, &calls)) {
            assert_eq!(reply, *expected, "{call} on {kind:?}");
        }
    }
}
