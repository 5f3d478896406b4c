// Any bytes sent to the HTTP port get the same responses with the fast path for checks as without it. Shared by the
// fuzz target and the tests.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tollgate_engine::{Engine, MemoryStore};
use tollgate_server::app::App;
use tollgate_server::http::{AllowedHosts, FastPath, serve};
use tollgate_server::net::protocol::Protocol;
use tollgate_server::net::shutdown::ConnectionGuard;

/// The client's action after it has sent its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AfterSending {
    /// Closes its half of the connection.
    Close,
    /// Waits until the server closes the connection.
    Wait,
}

type State = Arc<App<MemoryStore>>;

/// Sends bytes in parts of `step` bytes to a new server, and returns the responses. The server has its own thread,
/// because inline limits are cached per thread.
fn exchange<F: Future<Output = ()> + Send + 'static>(
    sent: &[u8],
    step: usize,
    then: AfterSending,
    serve: impl FnOnce(DuplexStream, State, ConnectionGuard) -> F + Send,
) -> String {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
        runtime.expect("a runtime").block_on(async {
            let engine = MemoryStore::new(100).and_then(Engine::new).expect("an engine");
            let app = Arc::new(App::new(engine, None).with_allowed_hosts(Some(AllowedHosts::new("limits.example"))));
            let guard = app.connections.register_connection(Protocol::Http, 1).expect("a slot");
            let (mut client, server) = tokio::io::duplex(1 << 20);
            let serving = tokio::spawn(serve(server, app, guard));
            for part in sent.chunks(step) {
                // The server may have closed the connection.
                let _ = client.write_all(part).await;
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            if then == AfterSending::Close {
                let _ = client.shutdown().await;
            }
            let mut received = Vec::new();
            client.read_to_end(&mut received).await.expect("an orderly end");
            serving.await.expect("the connection does not panic");
            without_times(&String::from_utf8_lossy(&received))
        })
    };
    std::thread::scope(|scope| scope.spawn(run).join()).expect("no panic")
}

/// Removes the varying parts: replaces dates, and replaces the digits of waits with zeros.
fn without_times(responses: &str) -> String {
    let mut out = String::new();
    for line in responses.split_inclusive('\n') {
        if line.starts_with("date: ") {
            out.push_str("date: now\n");
            continue;
        }
        let mut rest = line;
        let names = ["_ms\":", ";t=", "retry-after: "];
        while let Some(at) = names.iter().filter_map(|name| Some(rest.find(name)? + name.len())).min() {
            let digits = rest[at..].bytes().take_while(u8::is_ascii_digit).count();
            out.push_str(&rest[..at]);
            out.push_str(&"0".repeat(digits));
            rest = &rest[at + digits..];
        }
        out.push_str(rest);
    }
    out
}

/// Checks that the responses are the same with and without the fast path, and returns them.
pub fn compare_fast_and_slow_path(sent: &[u8], step: usize, then: AfterSending) -> String {
    let responses = |step, fast_path| {
        exchange(sent, step, then, move |stream, app, guard| serve(stream, None, app, guard, fast_path))
    };
    let fast = responses(step, FastPath::Enabled);
    let slow = |step| responses(step, FastPath::Disabled);
    // If a head arrives in parts, hyper reports a mistake in it later than if the head arrives whole. The fast path
    // may report the mistake at either time.
    if fast != slow(step) {
        let sent = String::from_utf8_lossy(sent);
        assert_eq!(fast, slow(usize::MAX), "{step} bytes at a time, then {then:?}: {sent}");
    }
    fast
}

/// Checks the responses to the bytes, sent as a whole and in parts.
pub fn check(sent: &[u8]) {
    let steps: &[usize] = if sent.len() < 1_000 { &[usize::MAX, 1, 7, 64] } else { &[usize::MAX, 1_000] };
    for step in steps {
        compare_fast_and_slow_path(sent, *step, AfterSending::Close);
    }
    compare_fast_and_slow_path(sent, usize::MAX, AfterSending::Wait);
}
