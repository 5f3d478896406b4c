//! Limits by rules, with the state in memory or in a shared store.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};

use http::header::{HeaderMap, RETRY_AFTER};
use http::{Request, Response};
use tollgate::core::Nanos;
use tollgate::{Outcome, Retry};
use tollgate_engine::{Attribute, Decision, Engine, Item, PooledDecisions, Receipt, RequestError, Store};
use tower_service::Service;

use super::attributes::Attributes;
use super::body::LimitedBody;
use super::config::{LayerConfig, SendHeaders};
use super::layer::LimitService;
use super::refusal::{ObservedOutcome, Reason, Refusal};
use crate::headers::{DEFAULT_LIMIT_NAME, RATE_LIMIT, RATE_LIMIT_POLICY, add_decision};
use crate::request::RequestView;

/// The configuration hint for a request that matches more than [`Item::MAX_RULES`] rules.
const TOO_MANY_RULES: &str = "the request matches more than 256 rules; make the conditions of the rules more specific";
const _: () = assert!(Item::MAX_RULES == 256, "the hint states the number");

/// Decides by the rules of an engine.
pub struct ByRules<T, F> {
    engine: Arc<Engine<T, F>>,
    domain: String,
    attributes: Attributes,
    /// Number of requests that passed because the engine does not know the domain. Relaxed ordering suffices, because the
    /// number is only a statistic.
    passed_without_rules_count: AtomicU64,
}

/// The decision for one request.
enum RuleDecision<B> {
    Pass,
    Wait(Nanos, Receipt),
    Observed(Outcome),
    Refuse(Box<Response<LimitedBody<B>>>),
}

impl<T, F> ByRules<T, F> {
    pub(super) fn new(engine: Arc<Engine<T, F>>, domain: &str, attributes: Attributes) -> Self {
        Self { engine, domain: domain.to_owned(), attributes, passed_without_rules_count: AtomicU64::new(0) }
    }

    pub(super) fn passed_without_rules(&self) -> u64 {
        self.passed_without_rules_count.load(Ordering::Relaxed)
    }
}

impl<T: Store, F: Store> ByRules<T, F> {
    /// Decides a request. If the request is admitted, writes the response's rate-limit headers into `headers`.
    async fn decide_by_rules<B>(
        &self,
        request: &RequestView<'_>,
        config: &LayerConfig,
        headers: &mut HeaderMap,
    ) -> RuleDecision<B> {
        let values = match self.attributes.read(request, config.on_unidentified) {
            Ok(values) => values,
            Err(reason) => return refuse_uncounted(request, config, reason),
        };
        let attributes: Vec<Attribute<'_>> = values
            .iter()
            .map(|(name, value)| {
                let value = value.as_ref();
                Attribute::new(*name, &value[..value.len().min(Item::MAX_BYTES)])
            })
            .collect();
        let items = [Item::new(&attributes)];
        let asked = tollgate_engine::Request::new(&self.domain, &items);
        let mut decisions = PooledDecisions::take();
        let decision = match self.engine.check(&asked, &mut decisions).await {
            Ok(decision) => decision,
            Err(RequestError::UnknownDomain { .. }) => {
                self.passed_without_rules_count.fetch_add(1, Ordering::Relaxed);
                return RuleDecision::Pass;
            }
            // The values are within the engine's size limits, so this error means that too many rules match. If such
            // requests passed, a client could bypass every limit with them.
            Err(RequestError::TooMany { .. }) => {
                return refuse_uncounted(request, config, Reason::Misconfigured(TOO_MANY_RULES));
            }
            Err(RequestError::NoItems | RequestError::NoAmount | RequestError::BadLimit { .. }) => {
                return refuse_uncounted(request, config, Reason::Misconfigured("the request cannot be decided"));
            }
        };
        if config.send_headers == SendHeaders::Always && decision.is_admitted() {
            add_decision(headers, config.styles, &decision);
        }
        convert_decision(request, config, &decision)
    }
}

/// Refuses a request without a client address. An observing layer only reports the refusal.
fn refuse_uncounted<B>(request: &RequestView<'_>, config: &LayerConfig, reason: Reason) -> RuleDecision<B> {
    if config.observing {
        return RuleDecision::Observed(Outcome::Deny(Retry::Never));
    }
    let refusal = Refusal { policy: DEFAULT_LIMIT_NAME, reason };
    RuleDecision::Refuse(Box::new(config.refuse(request, &refusal, |_| {})))
}

fn convert_decision<B>(request: &RequestView<'_>, config: &LayerConfig, decision: &Decision<'_>) -> RuleDecision<B> {
    let outcome = match (decision.observed(), decision.outcome()) {
        (Some(observed), _) => return RuleDecision::Observed(observed),
        (None, Outcome::Allow) => return RuleDecision::Pass,
        (None, outcome @ (Outcome::Delay(_) | Outcome::Deny(_))) if config.observing => {
            return RuleDecision::Observed(outcome);
        }
        (None, outcome) => outcome,
    };
    let retry = match outcome {
        Outcome::Allow => Retry::NOW,
        Outcome::Delay(wait) => return RuleDecision::Wait(wait, decision.receipt()),
        Outcome::Deny(retry) => retry,
    };
    let policy = decision.rule().filter(|rule| !rule.is_empty()).unwrap_or(DEFAULT_LIMIT_NAME);
    let refusal = Refusal { policy, reason: Reason::Exceeded(retry) };
    let response = config.refuse(request, &refusal, |headers| {
        add_decision(headers, config.styles, decision);
        // gRPC has its own headers for the wait.
        if request.is_grpc() {
            headers.remove(RETRY_AFTER);
        }
    });
    RuleDecision::Refuse(Box::new(response))
}

/// Adds headers to a response. Rate-limit lists are appended; other headers are added only if they are missing.
fn merge_headers(headers: &mut HeaderMap, added: &HeaderMap) {
    let lists = [RATE_LIMIT, RATE_LIMIT_POLICY];
    for (name, value) in added {
        if lists.contains(name) || !headers.contains_key(name) {
            headers.append(name, value.clone());
        }
    }
}

/// Refunds a decision if the request is cancelled while it waits.
struct RefundGuard<T: Store + 'static, F: Store + 'static> {
    decider: Arc<ByRules<T, F>>,
    receipt: Option<Receipt>,
}

impl<T: Store + 'static, F: Store + 'static> Drop for RefundGuard<T, F> {
    fn drop(&mut self) {
        if let Some(receipt) = self.receipt.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let decider = self.decider.clone();
            // A failed refund is not retried; the tokens stay consumed.
            runtime.spawn(async move { _ = decider.engine.refund(&receipt).await });
        }
    }
}

impl<S, T, F, B, R> Service<Request<B>> for LimitService<S, ByRules<T, F>>
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
    // Boxed, because the type of a store's future cannot be named.
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (decider, config, mut inner) = (self.decider.clone(), self.config.clone(), self.take_ready());
        Box::pin(async move {
            // Separates the head from the body, because the body need not be `Sync`.
            let (parts, body) = request.into_parts();
            let mut headers = HeaderMap::new();
            let ruling = decider.decide_by_rules(&RequestView::from_parts(&parts), &config, &mut headers).await;
            let observed = match ruling {
                RuleDecision::Pass => None,
                RuleDecision::Observed(outcome) => Some(outcome),
                RuleDecision::Refuse(response) => return Ok(*response),
                RuleDecision::Wait(wait, receipt) => {
                    let mut reserved = RefundGuard { decider, receipt: Some(receipt) };
                    tokio::time::sleep(wait.into()).await;
                    reserved.receipt = None;
                    None
                }
            };
            let mut response = inner.call(Request::from_parts(parts, body)).await?;
            merge_headers(response.headers_mut(), &headers);
            if let Some(outcome) = observed {
                response.extensions_mut().insert(ObservedOutcome(outcome));
            }
            Ok(response.map(|body| LimitedBody::from_service(body, None)))
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
