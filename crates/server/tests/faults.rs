//! Real nodes on one store that are killed or stopped, join and leave under load: nothing more is admitted.

use crate::common;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use common::load::{Clients, StopOnDrop};
use common::{Rules, Server};
use serde_json::json;
use tokio::time::Instant;
use tollgate_testkit::history::{Bound, excess_observed};
use tollgate_testkit::servers::{Kind, Server as StoreServer};

#[test]
fn nodes_that_are_killed_or_stopped_join_or_leave_admit_nothing_more() {
    lose_nodes("strict");
}

#[test]
fn nodes_with_leases_that_are_killed_or_stopped_join_or_leave_admit_nothing_more() {
    lose_nodes("leased");
}

fn lose_nodes(consistency: &str) {
    let store = StoreServer::start(Kind::Redis);
    // Refused while the store is late, so that a busy machine admits no more either.
    let rule = format!("{{id: all, limit: 50/s, burst: 100, on_fault: closed, consistency: {consistency}}}");
    let rules = Rules::new(format!("domain: d\nrules:\n- {rule}\n"));
    let start = || Server::start(&["--rules", rules.path(), "--store", &store.url(), "--store-deadline", "2000"]);
    let (killed, stopped, mut leaving) = (start(), start(), start());
    let body = json!({"domain": "d", "attributes": {}});
    let clients = [(); 4].map(|()| Clients::new(&body, Duration::from_millis(2)));
    let (epoch, over) = (Instant::now(), AtomicBool::new(false));
    let mut history = Vec::new();
    std::thread::scope(|scope| {
        let stop = StopOnDrop(&over);
        let load = |clients, node: &Server| {
            let (address, over): (_, &AtomicBool) = (node.http.expect("HTTP is on"), &over);
            let clients: &Clients = clients;
            scope.spawn(move || clients.run(address, epoch, over))
        };
        let mut threads = vec![load(&clients[0], &killed), load(&clients[1], &stopped), load(&clients[2], &leaving)];
        clients[..3].iter().for_each(|clients| clients.until_admitted(5));

        killed.signal("KILL");
        clients[0].until_cut();
        stopped.pause();
        clients[2].until_admitted(20);
        stopped.signal("CONT");
        clients[1].until_admitted(5);
        let joined = start();
        threads.push(load(&clients[3], &joined));
        clients[3].until_admitted(5);
        leaving.signal("TERM");
        assert!(leaving.wait().success());
        clients[3].until_admitted(20);
        drop(stop);
        threads.into_iter().for_each(|thread| history.extend(thread.join().expect("a history")));
    });
    let bound = Bound::new(100, 50, 1_000_000_000);
    assert_eq!(excess_observed(&bound, &history), None, "{} admitted", history.len());
    assert!(excess_observed(&Bound::new(50, 50, 1_000_000_000), &history).is_some(), "the load reaches the limit");
}
