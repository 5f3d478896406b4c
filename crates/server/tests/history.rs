//! Runs two servers on one Redis under load. By the clients' clocks, the servers together never admit more than the
//! limit.

use crate::common;

use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use common::{Client, Rules, Server};
use tollgate::clock::{Clock, PreciseClock};
use tollgate_testkit::history::{Bound, ObservedRequest, excess_observed};
use tollgate_testkit::servers::{Kind, Server as StoreServer};

/// All clients compete for the burst. The rate is low: far less than one token is refilled while a reply is on its
/// way, so the exact time of a decision does not matter.
const RULES: &str = "domain: api\nrules:\n- {id: shared, limit: 20/s, burst: 200}\n";

fn history_bound() -> Bound {
    Bound::from_rate("20/s".parse().expect("a rate"), 200)
}

/// Number of admitted requests after which the clients stop: the burst plus two seconds of the
/// rate.
const ENOUGH_ADMITTED: u64 = 240;

/// A client that uses HTTP or the Redis protocol.
enum Caller {
    Http(Client),
    Resp(Client),
}

impl Caller {
    fn is_admitted(&mut self) -> bool {
        match self {
            Self::Http(client) => {
                let (status, body) = client.post("/v1/check", r#"{"domain":"api"}"#);
                assert!(body.contains(r#""standing":"exact""#), "{status} {body}");
                status == 200
            }
            Self::Resp(client) => {
                client.send("TG.CHECK api 1\r\n");
                // The first pair of the map is `allowed`. The last number is the limit's
                // `reset_after_ms`.
                assert_eq!(client.line(), "*12");
                let allowed = (0..3).map(|_| client.line()).last();
                let rest: Vec<String> =
                    std::iter::from_fn(|| Some(client.line()).filter(|line| line != "reset_after_ms")).collect();
                client.line();
                assert!(rest.iter().any(|line| line == "exact"), "{rest:?}");
                allowed.as_deref() == Some(":1")
            }
        }
    }
}

/// Collects all admitted requests, each with the client's time before it sent the request and after it received the
/// reply.
fn collect_history(servers: &[Server]) -> Vec<ObservedRequest> {
    let (clock, passed) = (PreciseClock::new(), AtomicU64::new(0));
    let ask = |mut caller: Caller| {
        let mut seen = Vec::new();
        while passed.load(Ordering::Relaxed) < ENOUGH_ADMITTED {
            let asked = clock.mono().as_nanos();
            if caller.is_admitted() {
                seen.push(ObservedRequest { asked, answered: clock.mono().as_nanos(), cost: 1 });
                passed.fetch_add(1, Ordering::Relaxed);
            }
        }
        seen
    };
    let callers = servers.iter().flat_map(|server| {
        (0..2).flat_map(|_| [Caller::Http(server.connect_http()), Caller::Resp(server.connect_resp())])
    });
    let callers: Vec<Caller> = callers.collect();
    thread::scope(|scope| {
        let threads: Vec<_> = callers.into_iter().map(|caller| scope.spawn(|| ask(caller))).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a client")).collect()
    })
}

#[test]
fn two_servers_together_keep_the_limit_in_any_interval() {
    let (store, rules) = (StoreServer::start(Kind::Redis), Rules::new(RULES));
    // The deadline is far longer than the store takes, even on a busy machine, because every decision must come from
    // the store.
    let args = ["--rules", rules.path(), "--store", &store.url(), "--store-deadline", "20000"];
    let mut history = collect_history(&[Server::start(&args), Server::start(&args)]);
    assert!(history.len() as u64 >= ENOUGH_ADMITTED);
    assert_eq!(excess_observed(&history_bound(), &history), None);

    // The checker detects a single additional request.
    history.push(history[history.len() / 2]);
    assert!(excess_observed(&history_bound(), &history).is_some(), "one request above the limit was not noticed");
}
