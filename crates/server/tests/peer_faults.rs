//! Faults of servers that share limits as peers. For each fault, the admitted amount must be within the bound in
//! `docs/sharing.md`. Each test also shows that the fault had an effect.

use crate::common;

use std::time::Duration;

use common::load::Load;
use common::{Client, Folder, Server, eventually, signal};
use serde_json::{Value, json};
use tollgate_testkit::history::excess_observed;

use crate::partitions::{Network, start_five_servers};
use crate::peers::{
    FAULT_FREE_EXCESS, RATE, ThreeServers, addresses, body_of, bound_with_excess, peer_status, send_verb,
    wait_until_linked,
};

/// Cuts the directions that `is_cut` selects in a network of five servers. The two servers `asked` get requests for
/// an `eventual` rule until together they have admitted far more than a single server may. `is_noticed` returns
/// whether the servers have noticed the cut.
fn cut_under_load(is_cut: impl Fn(usize, usize) -> bool, asked: [usize; 2], is_noticed: impl Fn(&[Server]) -> bool) {
    let (network, folder) = (Network::new(), Folder::new());
    let servers = start_five_servers(&network, &folder);
    let mut load = Load::new([body_of("seen-rate")], Duration::from_millis(10));
    let all = addresses(&servers);
    asked.into_iter().for_each(|index| load.send_to(all[index]));
    load.wait_until_admitted(0, 60);
    let cut_at = load.elapsed();
    network.cut(is_cut);
    eventually("the servers have noticed the cut", || is_noticed(&servers));
    // Two servers that each admit requests at the rule's rate take five seconds to admit this amount. One server
    // would admit half as much.
    load.wait_until_admitted(0, 200);
    network.cut(|_, _| false);
    wait_until_linked(&servers);
    let seconds = (load.elapsed() - cut_at).as_secs() + 1;
    load.wait_until_admitted(0, 20);
    let [history] = load.finish();
    // The excess without faults, plus the excess of the cut. During the cut, the disconnected server admits a burst and
    // the rate for `seconds`. The server's charges are known only some time after the cut.
    let excess = FAULT_FREE_EXCESS + FAULT_FREE_EXCESS + RATE * seconds;
    assert_eq!(excess_observed(&bound_with_excess(excess), &history), None, "{} admitted", history.len());
    let without = excess_observed(&bound_with_excess(RATE * 2), &history);
    assert!(without.is_some(), "the cut of {seconds} s had no effect: {} admitted", history.len());
}

#[test]
fn eventual_limits_during_a_partition_stay_within_the_bound_of_each_side() {
    let is_minority = |index: usize| index < 2;
    cut_under_load(
        |from, to| is_minority(from) != is_minority(to),
        [0, 2],
        |servers| peer_status(&servers[0])["majority"] == false && peer_status(&servers[2])["majority"] == true,
    );
}

#[test]
fn eventual_limits_during_a_one_way_cut_stay_within_the_bound_of_two_servers() {
    let is_unlinked = |server: &Server| {
        peer_status(server)["peers"].as_array().is_some_and(|peers| peers.iter().any(|peer| peer["linked"] == false))
    };
    cut_under_load(|from, to| (from, to) == (0, 1), [0, 1], |servers| is_unlinked(&servers[1]));
}

/// Sends `count` checks in one request. Returns the number of admitted checks.
fn send_checks_at_once(server: &Server, key: &str, count: usize) -> u64 {
    let body = json!({"domain": "api", "attributes": {"kind": "seen-many", "key": key}});
    let (_, answers) =
        Client::connect(server.http.expect("HTTP is on")).post("/v1/check", &json!(vec![body; count]).to_string());
    let answers: Vec<Value> = serde_json::from_str(&answers).expect("a list");
    answers.iter().filter(|answer| answer["allowed"] == true).count() as u64
}

#[test]
fn killed_server_loses_at_most_its_last_tick_of_eventual_charges() {
    let three = ThreeServers::new();
    let mut servers = three.start_all();
    // Charges below a sixteenth of the burst are sent only at the next tick. A server that is killed immediately loses
    // such charges, unless a tick happens in between.
    let lost = (0..5).any(|turn| {
        let key = format!("key {turn}");
        assert_eq!(send_checks_at_once(&servers[2], &key, 100), 100);
        let left = |server: &Server| send_verb(server, "peek", "seen-many", &key)["limits"][0]["remaining"].as_u64();
        eventually("the other servers know the charges", || {
            servers[..2].iter().all(|server| left(server) == Some(900))
        });
        assert_eq!(send_checks_at_once(&servers[2], &key, 50), 50);
        signal(servers[2].id(), "KILL");
        servers.pop();
        servers.push(three.start(2));
        wait_until_linked(&servers);
        let left: Vec<_> = servers.iter().map(left).collect();
        // All servers know of the charges that were sent at the previous tick. The last 50 charges are lost, unless
        // they were sent just in time.
        assert!(left.iter().all(|left| *left == Some(900)) || left.iter().all(|left| *left == Some(850)), "{left:?}");
        left[0] == Some(900)
    });
    assert!(lost, "in every round, a tick came before the kill");
}

#[test]
fn stopping_all_servers_at_once_resets_their_limits() {
    let three = ThreeServers::new();
    let used_up = |servers: &[Server]| {
        let mut admitted = 0;
        for server in servers {
            eventually("the key is used up", || {
                let answer = send_verb(server, "check", "strict", "k");
                admitted += u64::from(answer["allowed"] == true);
                answer["allowed"] == false && answer["standing"] == "exact"
            });
        }
        admitted
    };
    let servers = three.start_all();
    let before = used_up(&servers);
    servers.iter().for_each(|server| server.signal("TERM"));
    drop(servers);
    let after = used_up(&three.start_all());
    assert_eq!((before, after), (50, 50), "all usage is lost, so one more burst passes, but no more");
}
