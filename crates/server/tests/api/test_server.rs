//! A server in this process: HTTP, the Redis protocol, a database, and a task that installs rules and tokens.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use reqwest::{Method, RequestBuilder, Response};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tollgate_engine::rules::{Rules, Source as Text};
use tollgate_engine::{Engine, MemoryStore};
use tollgate_server::app::App;
use tollgate_server::control::Control;
use tollgate_server::control::api::RulesService;
use tollgate_server::control::auth::TokenPolicy;
use tollgate_server::control::model::{Change, Role, TokenGrant};
use tollgate_server::net::protocol::Protocol;
use tollgate_server::rules_source::status::RulesSource;
use tollgate_server::{http, resp};

use crate::eventually::{TEST_TIMEOUT, eventually_async};

/// A running server, which ends when dropped.
pub struct TestServer {
    pub url: String,
    pub resp: SocketAddr,
    pub app: Arc<App<MemoryStore>>,
    pub control: Arc<Control>,
    client: reqwest::Client,
    _folder: TempDir,
    _keeper: crate::DatabaseOwner,
    _end: oneshot::Sender<()>,
}

impl TestServer {
    /// Starts a server with a new database.
    pub async fn start(tokens: TokenPolicy) -> Self {
        static STARTED_SERVERS: AtomicU32 = AtomicU32::new(0);
        let count = STARTED_SERVERS.fetch_add(1, Ordering::Relaxed);
        let folder = tempfile::tempdir().expect("a folder");
        let (url, keeper) = crate::new_database(folder.path(), count);
        // The control plane has its own thread, as in the program.
        let (ready, opened) = oneshot::channel();
        let (end, ended) = oneshot::channel::<()>();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
            runtime.block_on(async {
                let control = Arc::new(Control::open(&url).await.expect("a database"));
                let _ = ready.send((control, tokio::runtime::Handle::current()));
                let _ = ended.await;
            });
        });
        let (control, runtime) = opened.await.expect("the thread runs");
        let app = App::new(Engine::new(MemoryStore::new(1_000).expect("a table")).expect("an engine"), None);
        let service = RulesService::new(control.clone(), runtime.clone(), app.connections.clone());
        let app = Arc::new(app.with_token_policy(tokens).with_rules_source(RulesSource::Database(Box::new(service))));
        runtime.spawn(install_revisions(control.clone(), app.clone()));
        let (address, resp) = (serve_http(app.clone()).await, serve_resp(app.clone()).await);
        let client = http_client();
        Self {
            url: format!("http://{address}"),
            resp,
            app,
            control,
            client,
            _folder: folder,
            _keeper: keeper,
            _end: end,
        }
    }

    /// Creates a token, and returns it with its id.
    pub async fn create_token(
        &self,
        name: &str,
        role: Role,
        domains: &[&str],
        expires_ms: Option<i64>,
    ) -> (String, String) {
        let domains = domains.iter().map(|domain| (*domain).to_owned()).collect();
        let token = TokenGrant { name: name.into(), role, domains, expires_ms };
        let change = Change::by_author("test");
        let made = self.control.tokens().create(&change, &token).await.expect("a token");
        self.wait_for_latest_revision().await;
        (made.token, made.stored.id)
    }

    /// Waits until the latest revision is installed.
    pub async fn wait_for_latest_revision(&self) {
        let revision = self.control.snapshot().await.expect("a snapshot").revision;
        let installed = async || self.app.source.status(self.app.now()).revision >= Some(revision);
        eventually_async(&format!("revision {revision} is installed"), installed).await;
    }

    /// Returns an HTTP request to this server, to which headers and a body can be added.
    pub fn request(&self, method: &str, path: &str) -> RequestBuilder {
        let method = Method::from_bytes(method.as_bytes()).expect("a method");
        self.client.request(method, format!("{}{path}", self.url))
    }

    /// Sends a request and returns the reply.
    pub async fn call(&self, method: &str, path: &str, body: &str) -> ApiReply {
        send(self.request(method, path).header("content-type", "application/json").body(body.to_owned())).await
    }
}

/// A reply.
pub struct ApiReply {
    pub status: u16,
    pub tag: String,
    pub headers: reqwest::header::HeaderMap,
    pub text: String,
}

impl ApiReply {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error} in {}", self.text))
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("text"))
    }

    /// Fails unless the reply has this status.
    pub fn expect_status(self, status: u16) -> Self {
        assert_eq!(self.status, status, "{}", self.text);
        self
    }
}

/// Sends a request.
pub async fn send(request: RequestBuilder) -> ApiReply {
    let response: Response = request.send().await.expect("an answer");
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let tag = headers.get("etag").map_or(String::new(), |tag| tag.to_str().expect("text").to_owned());
    let reply = ApiReply { status, tag, headers, text: response.text().await.expect("a body") };
    // A reply with status 429 contains a decision. Every other error contains problem details.
    if status >= 400 && status != 429 {
        assert_eq!(reply.header("content-type"), "application/problem+json", "{}", reply.text);
        assert_eq!(reply.json()["status"], status, "{}", reply.text);
    }
    reply
}

/// Installs the rules and tokens of every new revision.
async fn install_revisions(control: Arc<Control>, app: Arc<App<MemoryStore>>) {
    let mut revisions = control.watch_revision();
    loop {
        revisions.borrow_and_update();
        let snapshot = control.snapshot().await.expect("a snapshot");
        app.auth.replace_tokens(&snapshot.tokens);
        let rules = Rules::read(&[Text { name: "snapshot", text: snapshot.rules.as_bytes() }]).expect("rules");
        app.engine.put(&rules).expect("rules");
        app.source.set_loaded(snapshot.revision, &snapshot.checksum, app.now());
        if revisions.changed().await.is_err() {
            return;
        }
    }
}

/// Serves HTTP on a free port.
pub async fn serve_http(app: Arc<App<MemoryStore>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let guard = app.connections.register_connection(Protocol::Http, 10_000).expect("room");
            tokio::spawn(http::serve(stream, None, app.clone(), guard, http::FastPath::Enabled));
        }
    });
    address
}

async fn serve_resp(app: Arc<App<MemoryStore>>) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let guard = app.connections.register_connection(Protocol::Resp, 10_000).expect("room");
            let app = app.clone();
            tokio::spawn(async move { resp::serve(stream, app, guard).await });
        }
    });
    address
}

/// Returns an HTTP client. Installs the cryptography provider first, in the same way as the program's own client.
pub fn http_client() -> reqwest::Client {
    let _ = tokio_rustls::rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder().timeout(TEST_TIMEOUT).build().expect("a client")
}
