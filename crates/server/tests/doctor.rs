//! `tollgate doctor` with a working installation and with real faults.

use crate::common;

use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use common::cli::Cli;
use common::{CommandResult, Folder, Server, eventually, run_program, tollgate};
use tollgate_testkit::golden;
use tollgate_testkit::golden::Page;
use tollgate_testkit::servers::{Certificates, Kind, Server as StoreServer, free_port};

/// Runs `tollgate doctor` in a folder, with a limit of 512 open files.
fn run_doctor(folder: &Folder, args: &[&str]) -> CommandResult {
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 512; exec \"$0\" doctor \"$@\"", env!("CARGO_BIN_EXE_tollgate")]);
    command.args(args).current_dir(folder.path()).env("TZ", "UTC");
    if !args.contains(&"--server") {
        // Nothing listens on port 1.
        command.args(["--server", "http://127.0.0.1:1"]);
    }
    CommandResult::run(&mut command, b"")
}

/// Replaces values that differ between runs: ports, versions, durations and timestamps.
fn replace_varying_parts(text: &str) -> String {
    let word = |word: &str| {
        let is_time = word.len() >= 20 && word.trim_end_matches(';').ends_with('Z') && word.contains('T');
        let tail: String = word.chars().rev().take_while(|char| ":;,/)".contains(*char)).collect();
        let tail: String = tail.chars().rev().collect();
        match word.split_once("127.0.0.1:") {
            _ if is_time => format!("TIME{tail}"),
            Some((before, port)) if !port.starts_with("1/") && port != "1" => format!("{before}127.0.0.1:PORT{tail}"),
            _ => word.to_owned(),
        }
    };
    let line = |line: &str| match line.split_once("median ") {
        // Store latency depends on the machine.
        Some(_) => "STATUS   store latency median …".to_owned(),
        None => line.split(' ').map(word).collect::<Vec<_>>().join(" "),
    };
    let mut lines: Vec<String> = text.lines().map(line).collect();
    for line in &mut lines {
        if let Some((before, after)) = line.split_once("Redis ") {
            *line = format!("{before}Redis VERSION,{}", after.split_once(',').map_or("", |(_, rest)| rest));
        }
        // The value is two days, or a second less.
        if let Some((before, after)) = line.split_once("expires in ") {
            *line = format!("{before}expires in DAYS,{}", after.split_once(',').map_or("", |(_, rest)| rest));
        }
    }
    lines.join("\n")
}

/// Creates a certificate that expired in 2020.
fn make_expired(folder: &Folder) {
    folder.write_file(
        "ca.cnf",
        "[ca]\ndefault_ca = d\n[d]\ndatabase = index.txt\nnew_certs_dir = .\nserial = serial\ndefault_md = sha256\npolicy = p\n\
         x509_extensions = e\n[p]\ncommonName = supplied\n[e]\nsubjectAltName = DNS:localhost\n",
    );
    folder.write_file("index.txt", "");
    folder.write_file("serial", "01\n");
    let openssl = |line: &str| run_program(Command::new("openssl").args(line.split(' ')).current_dir(folder.path()));
    openssl("req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout old.key -out old.csr -subj /CN=x");
    openssl(
        "ca -batch -config ca.cnf -selfsign -keyfile old.key -in old.csr -out old.pem -startdate 20200101000000Z \
         -enddate 20200201000000Z -notext",
    );
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("permissions");
}

#[test]
fn every_check_says_what_is_wrong_and_what_to_do() {
    let (folder, store) = (Folder::new(), StoreServer::start(Kind::Redis));
    let mut page = Page::default();
    let mut case = |what: &str, args: &[&str], code: i32| {
        let result = run_doctor(&folder, args);
        assert_eq!(result.code, Some(code), "{what}: {}{}", result.out, result.err);
        page.add_case(what, &replace_varying_parts(&result.out));
    };
    let port = || format!("127.0.0.1:{}", free_port());
    let (http, resp) = (port(), port());
    let ports = ["--http", &http, "--resp", &resp];
    Certificates::create(folder.path());
    set_mode(&folder.path().join("server.key"), 0o600);
    folder.write_file("rules.yaml", "domain: api\nrules:\n- {id: all, limit: 100/s}\n");
    let url = store.url();
    // The deadline is long, because a store on a busy machine may exceed the default.
    let well = ["--rules", "rules.yaml", "--store", &url, "--store-deadline", "10000", "--connections", "100"];
    let tls = ["--tls-cert", "server.pem", "--tls-key", "server.key"];
    case(
        "no faults, but a certificate that expires in two days and no running server",
        &[&ports[..], &well, &tls].concat(),
        0,
    );
    case("the defaults, in a new directory", &ports, 0);

    folder.write_file("rules.yaml", "domain: api\nrules:\n- {id: all, limt: 100/s}\n");
    make_expired(&folder);
    set_mode(&folder.path().join("old.key"), 0o640);
    let other = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let taken = other.local_addr().expect("an address").to_string();
    let broken = [
        &["--rules", "rules.yaml", "--store", "redis://127.0.0.1:1", "--http", &taken, "--resp", &resp][..],
        &["--tls-cert", "old.pem", "--tls-key", "old.key"],
    ];
    case(
        "invalid rules, no store, few open files, an expired certificate and a group-readable key",
        &broken.concat(),
        1,
    );
    case("a port that another program uses", &["--data", "off", "--http", &taken, "--resp", "off"], 1);
    case(
        "a certificate with another key",
        &[&ports[..], &["--tls-cert", "server.pem", "--tls-key", "old.key"]].concat(),
        1,
    );
    case("flags that contradict each other", &["--rules", "a", "--database", "postgres://b/c"], 1);

    let peers = ["--data", "off", "--store", "peers://127.0.0.1:1", "--peers-listen", &taken];
    case("a peer port that another program uses", &[&ports[..], &peers].concat(), 1);
    let socket = |path: &'static str| ["--data", "off", "--rls", path];
    case("a Unix socket", &[&ports[..], &socket("unix:rls.sock")].concat(), 0);
    assert!(!folder.path().join("rls.sock").exists(), "the socket is removed");
    case("a Unix socket in a missing directory", &[&ports[..], &socket("unix:nowhere/rls.sock")].concat(), 1);
    case("a Unix socket at the path of a regular file", &[&ports[..], &socket("unix:rules.yaml")].concat(), 1);
    let listener = UnixListener::bind(folder.path().join("other.sock")).expect("a socket");
    case("a Unix socket of another program", &[&ports[..], &socket("unix:other.sock")].concat(), 1);
    drop(listener);
    case("a Unix socket of a server that has ended", &[&ports[..], &socket("unix:other.sock")].concat(), 0);

    let xds = ["--data", "off", "--rules", "xds://127.0.0.1:1"];
    case("an xDS server that is not running", &[&ports[..], &xds].concat(), 1);

    let cluster = url.replace("redis://", "redis+cluster://");
    let cluster = ["--data", "off", "--store", &cluster, "--store-deadline", "10000"];
    case("a single Redis server with the URL of a cluster", &[&ports[..], &cluster].concat(), 1);

    store.command(&["CONFIG", "SET", "maxmemory", "100mb"]);
    store.command(&["CONFIG", "SET", "maxmemory-policy", "allkeys-lru"]);
    case(
        "a store that deletes counters",
        &[&ports[..], &["--data", "off", "--store", &url, "--store-deadline", "10000"]].concat(),
        0,
    );
    std::fs::create_dir(folder.path().join("data")).expect("a directory");
    folder.write_file(
        "data/rules.db",
        "this text is not a database, but it is longer than the header of a database, which has exactly 100 bytes",
    );
    case("a damaged database", &[&ports[..], &["--data", "data"]].concat(), 1);
    golden!("doctor", page);
}

#[test]
fn service_is_followed_only_with_the_role_that_nodes_need() {
    let folder = Folder::new();
    let data = folder.join("data");
    let token = |role: &str| {
        let made =
            tollgate(&["tokens", "create", "--role", role, "--name", role, "--data", &data], b"").expect_success();
        made.split_whitespace().find(|word| word.starts_with("tg_")).expect("a token").to_owned()
    };
    // An admin token is created too, because a server that requires tokens does not start without one.
    let (_, reader, node) = (token("admin"), token("reader"), token("node"));
    let service = Server::start(&["--data", &data, "--tokens", "required"]);
    let look = |url: &str, token: &str| {
        let args = ["--data", "off", "--http", "127.0.0.1:0", "--resp", "off", "--rules", url, "--rules-token", token];
        run_doctor(&folder, &args).out
    };
    let url = service.url("");
    assert!(
        look(&url, &node).contains(&format!("ok       rules         followed from {url}")),
        "{}",
        look(&url, &node)
    );
    for wrong in [&*reader, "tg_0_unknown"] {
        let found = look(&url, wrong);
        assert!(found.contains("error    rules") && found.contains("refuses the token: 40"), "{found}");
        assert!(found.contains("tollgate tokens create --role node"), "{found}");
    }
    let rules = common::Rules::new("domain: api\nrules:\n- {id: all, limit: 1/s}\n");
    let file = Server::start(&["--rules", rules.path()]);
    let found = look(&file.url(""), &node);
    assert!(found.contains("has no rules to follow: 404") && found.contains("in a database"), "{found}");
}

#[test]
fn nodes_that_are_behind_and_a_key_with_nearly_all_traffic_are_reported() {
    let folder = Folder::new();
    let service = Server::start(&["--data", &folder.join("data")]);
    let (url, cli) = (service.url(""), Cli::for_server(&service));
    let put = |limit: &str| {
        let body = format!(r#"{{"per": ["user"], "limit": "{limit}"}}"#);
        run_program(
            Command::new("curl").args(["-s", "-X", "PUT", "-d", &body]).arg(format!("{url}/v1/domains/api/rules/each")),
        )
    };
    put("10000/s");
    let node = Server::start(&["--rules", &url, "--node", "edge-1"]);
    eventually("the node has reported", || cli.run(&["rules", "nodes"]).out.contains("edge-1"));
    let look = || {
        run_doctor(&folder, &["--data", "off", "--http", "127.0.0.1:0", "--resp", "off", "--server", &url])
            .expect_success()
    };
    eventually("the node is up to date", || look().contains("ok       nodes         1 node up to date"));

    node.pause();
    put("20000/s");
    let mut client = service.connect_http();
    eventually("the rule is in force", || {
        client.post("/v1/check", r#"{"domain": "api", "attributes": {"user": "b"}}"#).0 == 200
    });
    for _ in 0..1_200 {
        client.post("/v1/check", r#"{"domain": "api", "attributes": {"user": "a"}}"#);
    }
    let found = look();
    node.signal("CONT");
    assert!(
        found.contains("warning  node          edge-1 runs revision 1, but the newest is 2; check again"),
        "{found}"
    );
    assert!(
        found.contains("warning  key           user=a takes 99 % of the tokens of each; a proxy in front"),
        "{found}"
    );
    assert!(found.contains("runs with 1 rule, from database"), "{found}");
}
