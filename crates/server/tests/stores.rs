//! The same requests get the same decisions from a server in memory, on a real Redis, on a real Valkey, and with peers.

use crate::common;

use std::process::Command;

use common::{Rules, Server, run_program, stable_port};
use serde_json::{Value, json};
use tollgate_testkit::servers::{Kind, Server as StoreServer};

use crate::peers::wait_until_linked;

/// The limits have long periods, so that the duration of a test does not matter.
const RULES: &str = "\
domain: api
rules:
- {id: per-client, when: {path: '/v1/**'}, per: [client], limits: [{limit: 5/day}, {limit: 8/week, algorithm: sliding_window}]}
- {id: search, when: {path: /v1/search}, limit: 3/day, algorithm: sliding_log}
- {id: quiet, limit: 1/week, on_exceed: shadow}
";

/// A store deadline that is long enough even on a busy machine.
const LONG_STORE_DEADLINE: [&str; 2] = ["--store-deadline", "20000"];

fn test_requests() -> impl Iterator<Item = (&'static str, &'static str, u64)> {
    let pattern =
        [("/v1/search", "a", 1), ("/v1/x", "a", 2), ("/v1/search", "b", 1), ("/other", "a", 1), ("/v1/x", "b", 3)];
    pattern.into_iter().cycle().take(20)
}

/// Returns the parts of a decision that are compared. Times differ, so they are left out.
fn without_times(decision: &Value) -> Value {
    let limits = decision["limits"].as_array().expect("limits").iter();
    let limits: Vec<_> = limits.map(|limit| json!([limit["rule"], limit["limit"], limit["remaining"]])).collect();
    let truth = |value: &Value| value.as_bool().unwrap_or(value == 1);
    json!([truth(&decision["allowed"]), decision["outcome"], decision["rule"], decision["standing"], limits])
}

fn decide_over_http(server: &Server) -> Vec<Value> {
    let ask = |(path, client, cost): (&str, &str, u64)| {
        let body = json!({"domain": "api", "attributes": {"path": path, "client": client}, "cost": cost});
        let text = run_program(Command::new("curl").args(["-s", "-d", &body.to_string(), &server.url("/v1/check")]));
        without_times(&serde_json::from_str(&text).expect("JSON"))
    };
    test_requests().map(ask).collect()
}

fn decide_over_resp(server: &Server) -> Vec<Value> {
    let ask = |(path, client, cost): (&str, &str, u64)| {
        let cost = cost.to_string();
        let args =
            ["-p", &server.resp_port(), "-3", "--json", "TG.CHECK", "api", &cost, "path", path, "client", client];
        without_times(&serde_json::from_str(&run_program(Command::new("redis-cli").args(args))).expect("JSON"))
    };
    test_requests().map(ask).collect()
}

#[test]
fn http_and_resp_decide_the_same_in_memory_on_redis_and_on_valkey() {
    let rules = Rules::new(RULES);
    let rules = rules.path();
    let expected = decide_over_http(&Server::start(&["--rules", rules]));
    assert!(
        expected.iter().any(|decision| decision[0] == true) && expected.iter().any(|decision| decision[0] == false)
    );
    assert_eq!(decide_over_resp(&Server::start(&["--rules", rules])), expected, "TG.CHECK in memory");
    for kind in Kind::ALL {
        let store = StoreServer::start(kind);
        let url = |namespace: &str| format!("{}?namespace={namespace}", store.url());
        let start =
            |url: &str| Server::start(&[&["--rules", rules, "--store", url], &LONG_STORE_DEADLINE[..]].concat());
        assert_eq!(decide_over_http(&start(&url("http"))), expected, "HTTP on {kind:?}");
        assert_eq!(decide_over_resp(&start(&url("resp"))), expected, "TG.CHECK on {kind:?}");
    }
}

/// Peers cannot share `sliding_log` limits, so these rules use `sliding_slices` instead.
#[test]
fn http_and_resp_decide_the_same_with_peers() {
    let rules = Rules::new(RULES.replace("sliding_log", "sliding_slices"));
    let rules = rules.path();
    let expected = decide_over_http(&Server::start(&["--rules", rules]));
    for nodes in [1, 3] {
        for (front_end, decide) in
            [("HTTP", decide_over_http as fn(&Server) -> Vec<Value>), ("TG.CHECK", decide_over_resp)]
        {
            let addresses: Vec<String> = (0..nodes).map(|_| format!("127.0.0.1:{}", stable_port())).collect();
            let store = &format!("peers://{}", addresses.join(","));
            let start = |listen: &String| {
                Server::start(
                    &[&["--rules", rules, "--store", store, "--peers-listen", listen], &LONG_STORE_DEADLINE[..]]
                        .concat(),
                )
            };
            let servers: Vec<Server> = std::thread::scope(|scope| {
                let starting: Vec<_> = addresses.iter().map(|listen| scope.spawn(move || start(listen))).collect();
                starting.into_iter().map(|starting| starting.join().expect("it starts")).collect()
            });
            wait_until_linked(&servers);
            assert_eq!(decide(&servers[0]), expected, "{front_end} on {nodes}");
        }
    }
}

#[test]
fn two_servers_on_one_store_share_their_counters() {
    let store = StoreServer::start(Kind::Redis);
    let url = store.url();
    let start = || Server::start(&[&["--store", &url], &LONG_STORE_DEADLINE[..]].concat());
    let (first, second) = (start(), start());
    let (mut one, mut two) = (first.connect_resp(), second.connect_resp());
    one.send("CL.THROTTLE k 1 1 86400\r\n");
    one.expect("*5\r\n:0\r\n:2\r\n:1\r\n:-1\r\n:86400\r\n");
    two.send("CL.THROTTLE k 1 1 86400\r\nCL.THROTTLE k 1 1 86400\r\nCL.THROTTLE k\r\nPING\r\n");
    two.expect("*5\r\n:0\r\n:2\r\n:0\r\n:-1\r\n:172800\r\n");
    two.expect("*5\r\n:1\r\n:2\r\n:0\r\n:86400\r\n:172800\r\n");
    assert!(two.line().starts_with("-Cell error: Store error: Usage"));
    two.expect("+PONG\r\n");
    // For an unused key, a limit of 0 admits a quantity of 0 and nothing else, as in memory.
    two.send("CL.THROTTLE unused -1 1 60 0\r\nCL.THROTTLE unused -1 1 60 1\r\n");
    two.expect("*5\r\n:0\r\n:0\r\n:0\r\n:-1\r\n:0\r\n*5\r\n:1\r\n:0\r\n:0\r\n:-1\r\n:0\r\n");
}
