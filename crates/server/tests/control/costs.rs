//! What things cost, to be looked at: `cargo test -p tollgate-server --release --test control -- --ignored costs --nocapture`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tollgate_server::control::model::{Cut, Expected, Search};
use tollgate_server::control::{Control, Others};

use crate::place::{Place, by, postgres, put, run, sqlite};

#[test]
#[ignore = "measures"]
fn on_sqlite() {
    run(sqlite(), costs);
}

#[test]
#[ignore = "measures"]
fn on_postgres() {
    run(postgres(), costs);
}

async fn costs(place: Arc<Place>) {
    let control = place.open().await;
    for count in [1_000, 10_000, 100_000] {
        let file = file_of(count);
        let apply = once(async || {
            control.apply(&by("git"), file.as_bytes(), Others::Delete, Expected::Anything, &|_| true).await.unwrap();
        });
        println!("{count} rules: apply {:?}", apply.await);
        let again = once(async || {
            control.apply(&by("git"), file.as_bytes(), Others::Delete, Expected::Anything, &|_| true).await.unwrap();
        });
        println!("{count} rules: apply of the same {:?}", again.await);
        let snapshot = once(async || {
            control.snapshot().await.unwrap();
        });
        println!("{count} rules: snapshot {:?}", snapshot.await);
        page_costs(&control, count).await;
        let mut times = Vec::new();
        for number in 0..20 {
            let text = format!("{{limit: {}/s}}", number + 1000);
            times.push(once(async || drop(put(&control, "api", "r7", &text).await)).await);
        }
        println!("{count} rules: put {:?}", median(times));
    }
}

async fn page_costs(control: &Control, count: usize) {
    // Somewhere in the middle.
    let mut cut = Cut { after: None, limit: Some(1000) };
    for _ in 0..count / 2000 {
        cut.after = control.rules("api", &Search::default(), &cut).await.unwrap().next;
    }
    for (what, after) in [("first", None), ("middle", cut.after)] {
        let cut = Cut { after, limit: Some(100) };
        let mut times = Vec::new();
        for _ in 0..101 {
            times.push(once(async || drop(control.rules("api", &Search::default(), &cut).await.unwrap())).await);
        }
        println!("{count} rules: {what} page of 100 {:?}", median(times));
    }
}

fn file_of(count: usize) -> String {
    let mut text = String::from("{\"domain\":\"api\",\"rules\":[");
    for number in 0..count {
        text += if number > 0 { "," } else { "" };
        text += &format!(
            r#"{{"id":"r{number}","when":{{"path":"/v1/{number}"}},"per":["client"],"limit":"{}/s","burst":5}}"#,
            number % 90 + 1
        );
    }
    text + "]}"
}

async fn once(work: impl AsyncFn()) -> Duration {
    let begun = now();
    work().await;
    begun.elapsed()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

#[expect(clippy::disallowed_methods, reason = "how long things take is what is asked")]
fn now() -> Instant {
    Instant::now()
}
