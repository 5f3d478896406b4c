//! A test client that sends part of a request and then stalls.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Instant;
use tollgate_engine::{Engine, MemoryStore};

use crate::app::App;
use crate::net::shutdown::ConnectionGuard;

/// Sends `sent` and then stalls. Asserts that the server closes the connection after `timeout`, but before twice that
/// time. Returns the server's reply. The runtime's clock must be paused.
pub(crate) async fn assert_closes_after<S, F>(timeout: Duration, sent: &str, serve: S) -> String
where
    S: FnOnce(TcpStream, Arc<App<MemoryStore>>, ConnectionGuard) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let mut client = TcpStream::connect(listener.local_addr().expect("an address")).await.expect("it listens");
    let (stream, _) = listener.accept().await.expect("it connects");
    client.write_all(sent.as_bytes()).await.expect("room for a few bytes");
    let app = Arc::new(App::new(Engine::new(MemoryStore::new(1).expect("a table")).expect("an engine"), None));
    let guard = app.connections.register_connection(crate::net::protocol::Protocol::Resp, 1).expect("there is room");
    let start = Instant::now();
    tokio::spawn(serve(stream, app, guard));
    let mut received = Vec::new();
    client.read_to_end(&mut received).await.expect("an orderly end");
    let waited = start.elapsed();
    assert!((timeout..timeout * 2).contains(&waited), "{sent}: closed after {waited:?}");
    String::from_utf8_lossy(&received).into_owned()
}
