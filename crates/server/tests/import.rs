//! Limits of other programs are imported and checked, and a server enforces them.

use crate::common;

use common::{Client, CommandResult, Folder, Server, tollgate};

/// Imports a file, writes the rules to a new file and checks that file. Returns its path and the importer's messages.
fn import_and_check(folder: &Folder, args: &[&str]) -> (String, String) {
    let CommandResult { code, out, err } = tollgate(&[&["import"], args].concat(), b"");
    assert_eq!(code, Some(0), "{err}");
    let rules = folder.write_file("rules.yaml", out);
    let checked = tollgate(&["check", &rules], b"");
    assert!(checked.code == Some(0) && checked.err.is_empty(), "{}", checked.err);
    (rules, err)
}

/// Sends up to ten requests with these JSON attributes, until the first refusal. Returns the number of admitted
/// requests and the last status.
fn count_passing(client: &mut Client, domain: &str, attributes: &str) -> (usize, u16) {
    let body = format!(r#"{{"domain":"{domain}","attributes":{{{attributes}}}}}"#);
    let mut last = 0;
    let passed = (0..10).take_while(|_| {
        last = client.post("/v1/check", &body).0;
        last == 200
    });
    (passed.count(), last)
}

#[test]
fn nginx_configuration_with_includes_is_imported_and_enforced() {
    let folder = Folder::new();
    let main = folder.write_file(
        "nginx.conf",
        "events { }\nhttp {\n    include zones.conf;\n    include sites/*.conf;\n    include missing.conf;\n}\n",
    );
    folder.write_file("zones.conf", "limit_req_zone $binary_remote_addr zone=ip:10m rate=1r/m;\n");
    folder.write_file(
        "sites/10-shop.conf",
        "server {\n    server_name shop.example;\n    limit_req zone=ip burst=3 nodelay;\n    include shared/login.inc;\n}\n",
    );
    folder.write_file("sites/20-free.conf", "server { server_name free.example; }\n");
    folder.write_file("sites/ignored.txt", "this is { no configuration");
    // Included paths are relative to the folder of the main file.
    folder.write_file("shared/login.inc", "location /login { limit_req zone=ip; limit_req_log_level warn; }\n");

    let (rules, output) = import_and_check(&folder, &["--domain", "web", &main]);
    assert!(output.contains("nginx.conf:5:13: cannot include `missing.conf`"), "{output}");
    assert!(output.contains("login.inc:1:38: `limit_req_log_level` is not imported"), "{output}");
    let server = Server::start(&["--rules", &rules]);
    let mut client = server.connect_http();
    let mut asks = |host: &str, path: &str, address: &str| {
        count_passing(&mut client, "web", &format!(r#""host":"{host}","path":"{path}","client_ip":"{address}""#))
    };
    assert_eq!(asks("shop.example", "/login", "192.0.2.1"), (1, 503), "refused with nginx's status");
    assert_eq!(asks("shop.example", "/cart", "192.0.2.1"), (3, 503), "the request to /login counts in the same zone");
    assert_eq!(asks("shop.example", "/cart", "192.0.2.2"), (4, 503));
    assert_eq!(asks("free.example", "/cart", "192.0.2.1"), (10, 200));
}

const ENVOY_RULES: &str = "\
domain: shop
descriptors:
- key: area
  value: read
  descriptors:
  - {key: user, rate_limit: {name: reading, requests_per_unit: 2, unit: day}}
- key: page
  value: search
  descriptors:
  - {key: user, rate_limit: {replaces: [{name: reading}], requests_per_unit: 4, unit: day}}
- key: quota
  quota_mode: true
  rate_limit: {requests_per_unit: 1, unit: day}
";

#[test]
fn envoy_file_with_replaces_is_imported_and_enforced() {
    let folder = Folder::new();
    let (rules, output) = import_and_check(&folder, &[&folder.write_file("envoy.yaml", ENVOY_RULES)]);
    assert_eq!(output, "");
    let written = std::fs::read_to_string(&rules).expect("a file");
    assert!(written.contains("replaces: [reading]") && written.contains("suffices: true"), "{written}");
    // An HTTP request contains the entries of one descriptor only, so a Tollgate rule replaces the imported limit.
    let gold =
        "- {id: gold, when: {area: read, user: ann}, limit: 5/day, algorithm: fixed_window, replaces: [reading]}\n";
    folder.write_file("rules.yaml", format!("{written}{gold}"));
    assert_eq!(tollgate(&["check", &rules], b"").code, Some(0));
    let server = Server::start(&["--rules", &rules]);
    let mut client = server.connect_http();
    let mut asks = |attributes: &str| count_passing(&mut client, "shop", attributes);
    assert_eq!(asks(r#""area":"read","user":"bob""#), (2, 429));
    assert_eq!(asks(r#""page":"search","user":"bob""#), (4, 429));
    assert_eq!(asks(r#""area":"read","user":"ann""#), (5, 429), "the rule for ann replaces the general rule");
    assert_eq!(
        asks(r#""area":"read","user":"ann","more":"x""#),
        (0, 429),
        "the imported rule requires exactly its entries"
    );
    assert_eq!(asks(r#""area":"write","user":"bob""#), (10, 200));
    assert_eq!(asks(r#""quota":"a""#), (1, 429));
}
