//! Tests tokens for one domain over the Redis protocol and the rate-limit service (over HTTP: `api/roles.rs`), and the
//! audit log.

use crate::common;

use common::api::send_request;
use common::cli::start_with_database;
use common::rls_client::{RlsClient, descriptor};
use common::{Folder, encode_command, eventually, tollgate};
use serde_json::json;

#[test]
fn token_of_one_domain_takes_nothing_from_another_over_any_protocol() {
    let folder = Folder::new();
    let token = |role: &str, name: &str, domain: &[&str]| {
        let data = folder.join("data");
        let line = [&["tokens", "create", "--role", role, "--name", name, "--data", &data], domain].concat();
        tollgate(&line, b"").expect_success().trim().to_owned()
    };
    let admin = token("admin", "admin", &[]);
    let of_b = token("operator", "of-b", &["--domain", "b"]);
    let (server, cli) = start_with_database(&folder, &["--tokens", "required", "--rls", "127.0.0.1:0"]);
    let cli = cli.with_token(&admin);
    for domain in ["a", "b"] {
        let file = folder
            .write_file(&format!("{domain}.yaml"), format!("domain: {domain}\nrules:\n- {{id: all, limit: 5/h}}\n"));
        cli.run(&["rules", "apply", "--yes", &file]).expect_success();
    }
    let mut client = server.connect_resp();
    client.send_command(&["AUTH", &of_b]);
    client.expect("+OK\r\n");
    eventually("both domains have their rules", || {
        client.send_command(&["TG.PEEK", "a", "1"]);
        let line = client.line();
        let found = line.starts_with('*');
        if found {
            // Reconnects, because the rest of this answer is not read.
            client = server.connect_resp();
            client.send_command(&["AUTH", &of_b]);
            client.expect("+OK\r\n");
        }
        found
    });
    let missing = "for the domain `a`; the token";
    for words in [
        &["TG.CHECK", "a", "1"][..],
        &["TG.CHARGE", "a", "1"],
        &["TG.TAKEUPTO", "a", "1"],
        &["TG.DRAIN", "a"],
        &["TG.RESERVE", "a", "1"],
        &["TG.ACQUIRE", "a", "1", "10"],
        &["TG.RESET", "a", "1"],
    ] {
        client.send_command(words);
        let line = client.line();
        assert!(line.starts_with("-NOPERM this call needs the role ") && line.contains(missing), "{words:?}: {line}");
    }
    let receipt = {
        let header = format!("authorization: Bearer {admin}");
        let reserved = send_request(&server, "POST", "/v1/reserve", &[&header], r#"{"domain":"a","cost":1}"#);
        reserved.json()["receipt"].as_str().expect("a receipt").to_owned()
    };
    for words in [
        &["TG.COMMIT", &receipt, "0"][..],
        &["TG.CANCEL", &receipt],
        &["TG.RELEASE", &receipt],
        &["TG.RENEW", &receipt],
        &["TG.REFUND", &receipt],
    ] {
        client.send_command(words);
        let line = client.line();
        assert!(
            line.starts_with("-NOPERM this call needs the role reader ") && line.contains(missing),
            "{words:?}: {line}"
        );
    }
    let header = format!("authorization: Bearer {of_b}");
    for path in ["check", "charge", "take-up-to", "drain", "reserve", "acquire", "reset"] {
        let body = match path {
            "drain" => r#"{"domain":"a"}"#,
            "acquire" => r#"{"domain":"a","cost":1,"wait_ms":10}"#,
            _ => r#"{"domain":"a","cost":1}"#,
        };
        let refused = send_request(&server, "POST", &format!("/v1/{path}"), &[&header], body);
        assert!(refused.status == 403 && refused.body.contains(missing), "{path}: {} {}", refused.status, refused.body);
    }
    let mut rls = RlsClient::connect(&server.rls.expect("the rate-limit service is on").to_string());
    let mut call = |domain: &str, negative: bool| {
        let mut descriptor = descriptor(&[("k", "v")]);
        descriptor["is_negative_hits"] = negative.into();
        let request = json!({"domain": domain, "descriptors": [descriptor]});
        rls.call(&json!({"request": request, "metadata": {"authorization": format!("Bearer {of_b}")}}))
    };
    for negative in [false, true] {
        let refused = call("a", negative);
        assert!(refused["error"] == "PERMISSION_DENIED" && refused["detail"].to_string().contains("`a`"), "{refused}");
    }
    assert_eq!(call("b", false)["overall_code"], "OK");
    let header = format!("authorization: Bearer {admin}");
    let peek = send_request(&server, "POST", "/v1/peek", &[&header], r#"{"domain":"a"}"#).json();
    assert_eq!(peek["limits"][0]["remaining"], 4, "only the admin's request was charged: {peek}");
}

#[test]
fn ten_thousand_resets_and_two_switches_are_all_in_the_audit_log() {
    let folder = Folder::new();
    let (server, _) = start_with_database(&folder, &[]);
    let mut client = server.connect_resp();
    let switch = |mode: &str| {
        let answer = send_request(&server, "POST", "/v1/enforcement", &[], &format!("{{\"mode\":\"{mode}\"}}"));
        assert_eq!(answer.status, 200, "{}", answer.body);
    };
    assert_eq!(
        send_request(&server, "PUT", "/v1/domains/api/rules/all", &[], r#"{"per":["k"],"limit":"5/h"}"#).status,
        201
    );
    eventually("the rule is in force", || {
        send_request(&server, "POST", "/v1/peek", &[], r#"{"domain":"api"}"#).status == 200
    });
    let (mut done, mut refused) = (0, 0);
    for batch in 0..100 {
        if batch == 50 {
            switch("observe");
        }
        let commands: Vec<u8> =
            (0..100).flat_map(|n| encode_command(&["TG.RESET", "api", "1", "k", &format!("{batch}-{n}")])).collect();
        client.send(commands);
        for _ in 0..100 {
            match client.line().as_str() {
                ":1" => done += 1,
                // Too many entries are waiting for the audit log, so nothing is reset and the caller gets an error.
                line => {
                    assert!(line.contains("audit log"), "{line}");
                    refused += 1;
                }
            }
        }
    }
    switch("enforce");
    assert_eq!(done + refused, 10_000);
    let logged = || {
        let (mut resets, mut switches, mut after) = (0, 0, String::new());
        loop {
            let page = send_request(&server, "GET", &format!("/v1/audit?limit=1000{after}"), &[], "").json();
            for entry in page["items"].as_array().expect("a list") {
                let subject = entry["subject"].as_str().expect("a subject");
                match entry["kind"].as_str() {
                    Some("key") => {
                        resets +=
                            subject.split_once(" requests").map_or(1, |(count, _)| count.parse().expect("a count"));
                    }
                    Some("enforcement") => switches += 1,
                    _ => {}
                }
            }
            match page["next"].as_str() {
                Some(next) => after = format!("&after={next}"),
                None => return (resets, switches),
            }
        }
    };
    eventually("all successful resets and both changes of mode are in the log", || logged() == (done, 2));
}
