//! Limits by rules, with the state in any store.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use http::header::{HOST, HeaderMap, HeaderName, RETRY_AFTER};
use http::{Request, Response};
use tollgate::{Nanos, Outcome, Retry};
use tollgate_engine::{Decision, Engine, Entry, Item, Lent, Receipt, Store};
use tower_service::Service;

use super::body::LimitedBody;
use super::layer::{LimitLayer, Limited};
use super::manners::{Manners, Policy, Tell};
use super::refusal::{Observed, Reason, Refusal};
use crate::asked::Asked;
use crate::client::ClientIp;
use crate::headers::{RATE_LIMIT, RATE_LIMIT_POLICY, UNNAMED, add_decision};
use crate::identify::{ByCookie, ByHeader, Identify, Identity, MAX_IDENTITY};

/// What rules may ask about a request: names and how to find their values.
///
/// | call | name in rules | value |
/// |---|---|---|
/// | [`method`](Self::method) | `method` | `GET` |
/// | [`path`](Self::path) | `path` | `/v1/items`, as it was sent: nothing is decoded or taken out |
/// | [`host`](Self::host) | `host` | `api.example.org`, in lower case and without a port |
/// | [`client_ip`](Self::client_ip) | `client_ip` | `203.0.113.7`, `2001:db8:1:2::/64` |
/// | [`header`](Self::header) | `header.x` | as it was sent; the first, if there are several |
/// | [`cookie`](Self::cookie) | `cookie.x` | the same |
/// | [`query`](Self::query) | `query.x` | the same, not decoded |
/// | [`with`](Self::with) | any | any |
///
/// What a request does not have is not there for the rules either. Values longer than [`Item::MAX_BYTES`] are cut.
#[derive(Default)]
pub struct Attributes {
    list: Vec<(String, Box<Find>)>,
}

type Find = dyn Identify + Send + Sync;

impl Attributes {
    /// The most there may be; further ones are left out.
    pub const MAX: usize = Item::MAX_ENTRIES;

    /// None.
    pub fn new() -> Self {
        Self::default()
    }

    /// And what `find` finds, under this name.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, find: impl Identify + Send + Sync + 'static) -> Self {
        if self.list.len() < Self::MAX {
            self.list.push((name.into(), Box::new(find)));
        }
        self
    }

    /// And the method.
    #[must_use]
    pub fn method(self) -> Self {
        self.with("method", method)
    }

    /// And the path.
    #[must_use]
    pub fn path(self) -> Self {
        self.with("path", path)
    }

    /// And the host: that of the target, else that of the header.
    #[must_use]
    pub fn host(self) -> Self {
        self.with("host", host)
    }

    /// And the client's address.
    #[must_use]
    pub fn client_ip(self, client: ClientIp) -> Self {
        self.with("client_ip", ClientText(client))
    }

    /// And a header.
    #[must_use]
    pub fn header(self, name: HeaderName) -> Self {
        self.with(format!("header.{name}"), ByHeader::new(name))
    }

    /// And a cookie.
    #[must_use]
    pub fn cookie(self, name: &str) -> Self {
        self.with(format!("cookie.{name}"), ByCookie::new(name))
    }

    /// And a parameter of the query.
    #[must_use]
    pub fn query(self, name: &str) -> Self {
        self.with(format!("query.{name}"), ByQuery(name.to_owned()))
    }

    fn read<'a>(&'a self, asked: &Asked<'a>) -> Vec<(&'a str, Identity<'a>)> {
        self.list.iter().filter_map(|(name, find)| Some((&**name, find.identify(asked)?))).collect()
    }
}

impl fmt::Debug for Attributes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.list.iter().map(|(name, _)| name)).finish()
    }
}

fn method<'r>(asked: &Asked<'r>) -> Option<Identity<'r>> {
    Some(asked.method().as_str().into())
}

fn path<'r>(asked: &Asked<'r>) -> Option<Identity<'r>> {
    Some(asked.uri().path().into())
}

fn host<'r>(asked: &Asked<'r>) -> Option<Identity<'r>> {
    let host = match asked.uri().host() {
        Some(host) => host,
        None => {
            let authority: http::uri::Authority = asked.headers().get(HOST)?.as_bytes().try_into().ok()?;
            return Some(authority.host().to_ascii_lowercase().into());
        }
    };
    Some(host.to_ascii_lowercase().into())
}

struct ClientText(ClientIp);

impl Identify for ClientText {
    fn identify<'r>(&self, asked: &Asked<'r>) -> Option<Identity<'r>> {
        self.0.text_of(asked).map(Identity::from)
    }
}

struct ByQuery(String);

impl Identify for ByQuery {
    fn identify<'r>(&self, asked: &Asked<'r>) -> Option<Identity<'r>> {
        let query = asked.uri().query()?.as_bytes();
        let mut pairs = query[..query.len().min(MAX_IDENTITY)].split(|byte| *byte == b'&');
        pairs.find_map(|pair| pair.strip_prefix(self.0.as_bytes())?.strip_prefix(b"=")).map(Identity::from)
    }
}

/// Decides by the rules of an engine.
pub struct ByRules<T, F> {
    engine: Arc<Engine<T, F>>,
    domain: String,
    attributes: Attributes,
    /// Only counted; it orders nothing.
    without_rules: AtomicU64,
}

impl<T: Store, F: Store> LimitLayer<ByRules<T, F>> {
    /// Each request is decided by the rules of `domain`, which see its `attributes`.
    ///
    /// - Where a rule says to wait, the request waits before the service sees it. Who goes away meanwhile gives back what was
    ///   taken, in a task of its own.
    /// - What happens when the store does not answer is said by the rules; there is always a decision.
    /// - If there are no rules for the domain, because its name is misspelt or its rules were taken away, everything passes,
    ///   uncounted by any limit. [`passed_without_rules`](Self::passed_without_rules) says how often that happened: watch it.
    /// - What a rule counts as in flight comes back when its lease ends; use [`in_flight`](LimitLayer::in_flight) for places that
    ///   are given back at the end of an answer.
    ///
    /// ```no_run
    /// use std::sync::Arc;
    /// use tollgate_engine::{Engine, MemoryStore, rules::{Rules, Source}};
    /// use tollgate_http::{Attributes, ByHeader, LimitLayer};
    ///
    /// let engine = Engine::new(MemoryStore::new(100_000)?)?;
    /// let text = b"{domain: api, rules: [{id: per-key, per: [api_key], limit: 10/s}]}";
    /// engine.put(&Rules::read(&[Source { name: "rules.yaml", text }])?)?;
    /// let attributes = Attributes::new().path().with("api_key", ByHeader::named("x-api-key"));
    /// let layer = LimitLayer::by_rules(Arc::new(engine), "api", attributes);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn by_rules(engine: Arc<Engine<T, F>>, domain: &str, attributes: Attributes) -> Self {
        let policy = Policy::new(UNNAMED, None);
        let gate = ByRules { engine, domain: domain.to_owned(), attributes, without_rules: AtomicU64::new(0) };
        Self::with(gate, Manners::new(policy))
    }

    /// How many requests passed, in all services of this layer and its clones, because the engine has no rules for the domain.
    pub fn passed_without_rules(&self) -> u64 {
        self.gate.without_rules.load(Ordering::Relaxed)
    }
}

/// What becomes of a request.
enum Ruling<B> {
    Pass,
    Wait(Nanos, Receipt),
    Observed(Outcome),
    Refuse(Box<Response<LimitedBody<B>>>),
}

impl<T: Store, F: Store> ByRules<T, F> {
    /// Decides, and writes down what everybody is to be told.
    async fn rule<B>(&self, asked: &Asked<'_>, manners: &Manners, told: &mut HeaderMap) -> Ruling<B> {
        let values = self.attributes.read(asked);
        let entries: Vec<Entry<'_>> = values
            .iter()
            .map(|(name, value)| {
                let value = value.as_ref();
                Entry::new(*name, &value[..value.len().min(Item::MAX_BYTES)])
            })
            .collect();
        let items = [Item::new(&entries)];
        let request = tollgate_engine::Request::new(&self.domain, &items);
        let mut decisions = Lent::take();
        // Only an unknown domain is left of what could be wrong with it.
        let Ok(decision) = self.engine.check(&request, &mut decisions).await else {
            self.without_rules.fetch_add(1, Ordering::Relaxed);
            return Ruling::Pass;
        };
        if manners.tell == Tell::Everybody && decision.is_allowed() {
            add_decision(told, manners.styles, &decision);
        }
        ruling(asked, manners, &decision)
    }
}

fn ruling<B>(asked: &Asked<'_>, manners: &Manners, decision: &Decision<'_>) -> Ruling<B> {
    let outcome = match (decision.observed(), decision.outcome()) {
        (Some(observed), _) => return Ruling::Observed(observed),
        (None, Outcome::Allow) => return Ruling::Pass,
        (None, outcome @ (Outcome::Delay(_) | Outcome::Deny(_))) if manners.observing => {
            return Ruling::Observed(outcome);
        }
        (None, outcome) => outcome,
    };
    let retry = match outcome {
        Outcome::Allow => Retry::NOW,
        Outcome::Delay(wait) => return Ruling::Wait(wait, decision.receipt()),
        Outcome::Deny(retry) => retry,
    };
    let policy = decision.rule().filter(|rule| !rule.is_empty()).unwrap_or(UNNAMED);
    let refusal = Refusal { policy, reason: Reason::Exceeded(retry) };
    let response = manners.refuse(asked, &refusal, |headers| {
        add_decision(headers, manners.styles, decision);
        // Who speaks gRPC has been told in its own way.
        if asked.is_grpc() {
            headers.remove(RETRY_AFTER);
        }
    });
    Ruling::Refuse(Box::new(response))
}

/// Adds what was written down, beside what the service or another layer had to tell.
fn extend(headers: &mut HeaderMap, told: &HeaderMap) {
    let lists = [RATE_LIMIT, RATE_LIMIT_POLICY];
    for (name, value) in told {
        if lists.contains(name) || !headers.contains_key(name) {
            headers.append(name, value.clone());
        }
    }
}

/// Gives back what was taken when somebody stops waiting for it.
struct Reserved<T: Store + 'static, F: Store + 'static> {
    gate: Arc<ByRules<T, F>>,
    receipt: Option<Receipt>,
}

impl<T: Store + 'static, F: Store + 'static> Drop for Reserved<T, F> {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let gate = self.gate.clone();
            // If the store does not take it back it stays taken, as with everything that is abandoned.
            runtime.spawn(async move { _ = gate.engine.refund(&receipt).await });
        }
    }
}

impl<S, T, F, B, R> Service<Request<B>> for Limited<S, ByRules<T, F>>
where
    S: Service<Request<B>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send,
    T: Store + 'static,
    F: Store + 'static,
    B: Send + 'static,
    R: Send + 'static,
{
    type Response = Response<LimitedBody<R>>;
    type Error = S::Error;
    // In a box, since a store's own future has no name.
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (gate, manners, mut inner) = (self.gate.clone(), self.manners.clone(), self.take_ready());
        Box::pin(async move {
            // Apart from its body, which need not be shareable between threads.
            let (parts, body) = request.into_parts();
            let mut told = HeaderMap::new();
            let ruling = gate.rule(&Asked::of_parts(&parts), &manners, &mut told).await;
            let observed = match ruling {
                Ruling::Pass => None,
                Ruling::Observed(outcome) => Some(outcome),
                Ruling::Refuse(response) => return Ok(*response),
                Ruling::Wait(wait, receipt) => {
                    let mut reserved = Reserved { gate, receipt: Some(receipt) };
                    tokio::time::sleep(wait.into()).await;
                    reserved.receipt = None;
                    None
                }
            };
            let mut response = inner.call(Request::from_parts(parts, body)).await?;
            extend(response.headers_mut(), &told);
            if let Some(outcome) = observed {
                response.extensions_mut().insert(Observed(outcome));
            }
            Ok(response.map(|body| LimitedBody::inner(body, None)))
        })
    }
}

impl<T, F> fmt::Debug for ByRules<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ByRules")
            .field("domain", &self.domain)
            .field("attributes", &self.attributes)
            .finish_non_exhaustive()
    }
}
