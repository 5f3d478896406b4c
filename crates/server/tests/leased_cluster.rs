//! Two servers with a leased rule on a Redis Cluster. A primary is killed under load, and the servers behave as
//! `docs/sharing.md` describes.

use crate::common;

use common::{Rules, Server, TEST_TIMEOUT};
use serde_json::Value;
use tokio::time::Instant;
use tollgate_testkit::servers::{Cluster, Kind};

/// Sends a check for a user and returns the standing of the decision. Panics if there is no answer.
fn standing_of_check(server: &Server, user: &str) -> String {
    let body = format!(r#"{{"domain":"api","attributes":{{"user":"{user}"}}}}"#);
    let (status, reply) = server.connect_http().post("/v1/check", &body);
    assert!(status == 200 || status == 429, "{status}: {reply}");
    let reply: Value = serde_json::from_str(&reply).expect("JSON");
    reply["standing"].as_str().expect("a standing").to_owned()
}

/// Sends checks to both servers until the first of `users` gets the standing `wanted` from both. The second user must
/// never get the fallback.
fn check_until_standing(servers: &[Server; 2], users: [&str; 2], wanted: &str) {
    let start = Instant::now();
    loop {
        let found: Vec<String> = servers.iter().map(|server| standing_of_check(server, users[0])).collect();
        for server in servers {
            assert_ne!(standing_of_check(server, users[1]), "fallback", "another primary is not affected");
        }
        if found.iter().all(|found| found == wanted) {
            return;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "{found:?}, not {wanted}");
    }
}

/// Returns the index of the primary that holds a user's state.
fn primary_of(cluster: &Cluster, user: &str) -> usize {
    let holds = |at: &usize| !cluster.servers[*at].command(&["KEYS", &format!("*{user}*")]).list().is_empty();
    (0..3).find(holds).unwrap_or_else(|| panic!("no primary has {user}"))
}

#[test]
fn leased_rule_uses_leases_and_then_the_fallback_until_a_replica_takes_over() {
    let mut cluster = Cluster::start(Kind::Redis);
    let rule = "{id: per-user, per: [user], limit: 500/s, burst: 1000, consistency: leased}";
    let rules = Rules::new(format!("domain: api\nrules:\n- {rule}\n"));
    // The deadline is long, because a busy machine would miss the default.
    let start = || Server::start(&["--rules", rules.path(), "--store", &cluster.url(), "--store-deadline", "1000"]);
    let servers = [start(), start()];
    check_until_standing(&servers, ["alice", "alice"], "leased");
    let primary = primary_of(&cluster, "alice");
    let other = ["bob", "carol", "dave", "erin", "frank", "grace", "heidi"].into_iter().find(|user| {
        check_until_standing(&servers, [*user, *user], "leased");
        primary_of(&cluster, user) != primary
    });
    let users = ["alice", other.expect("a user at another primary")];
    // Stops the replica, so that it is not promoted before the leases are spent.
    let port = cluster.servers[primary].port();
    let follows = |at: &usize| {
        let text = cluster.servers[*at].command(&["INFO", "replication"]).bytes();
        String::from_utf8_lossy(&text).contains(&format!("master_port:{port}"))
    };
    let replica = (3..6).find(follows).expect("the primary has a replica");
    cluster.servers[replica].pause();
    cluster.servers[primary].kill();
    check_until_standing(&servers, users, "fallback");
    cluster.servers[replica].resume();
    check_until_standing(&servers, users, "leased");
}
