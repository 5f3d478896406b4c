//! The layer and its service.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use tollgate::clock::Clock;
use tollgate::core::Algorithm;
use tollgate::{Concurrency, Keyed, Limiter, Limits};
#[cfg(feature = "engine")]
use tollgate_engine::{Engine, Store};
use tower_layer::Layer;

#[cfg(feature = "engine")]
use super::attributes::Attributes;
use super::config::{LayerConfig, OnUnidentified, Policy, SendHeaders};
use super::decide::RefundTime;
use super::global::Global;
use super::key::ByKey;
use super::refusal::Refusal;
#[cfg(feature = "engine")]
use super::rules::ByRules;
use crate::headers::{DEFAULT_LIMIT_NAME, Styles};
use crate::identify::Identify;

/// Applies limits to a service.
///
/// Create a layer with [`by_key`](LimitLayer::by_key), [`global`](LimitLayer::global),
/// [`in_flight`](LimitLayer::in_flight) or, with the feature `engine`, `by_rules`. All services created from one layer
/// and its clones share the same state.
pub struct LimitLayer<G> {
    decider: Arc<G>,
    config: Arc<LayerConfig>,
}

impl<G> LimitLayer<G> {
    /// Creates a layer. `limits` determines the `RateLimit-Policy` header; `None` if each decision reports its own
    /// limits.
    fn with_decider(decider: G, limits: Option<Limits>) -> Self {
        let config = LayerConfig::new(Policy::new(DEFAULT_LIMIT_NAME, limits));
        Self { decider: Arc::new(decider), config: Arc::new(config) }
    }

    /// Sets the name of the limit in headers and refusals; the default is `default`. Limits by rules use the rule
    /// names.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        self.configure(|config| config.policy = config.policy.with_policy_name(name))
    }

    /// Sets the style of the rate-limit headers; the default is [`Styles::IETF`].
    #[must_use]
    pub fn styles(self, styles: Styles) -> Self {
        self.configure(|config| config.styles = styles)
    }

    /// Sets which responses have rate-limit headers; by default, all responses have them.
    #[must_use]
    pub fn send_headers(self, send_headers: SendHeaders) -> Self {
        self.configure(|config| config.send_headers = send_headers)
    }

    /// Sets how requests without an identity are handled.
    ///
    /// By default, requests without the header or cookie are counted together. A missing peer address is answered with
    /// status 500 and a configuration hint, because only a misconfigured server omits it. With limits by rules, this
    /// setting applies only to a missing peer address. For other missing attributes, the rules decide.
    #[must_use]
    pub fn on_unidentified(self, choice: OnUnidentified) -> Self {
        self.configure(|config| config.on_unidentified = Some(choice))
    }

    /// Sets the function that creates the response to a refused request, except for gRPC. The layer adds the rate-limit
    /// headers, and `Retry-After` unless the response has one.
    #[must_use]
    pub fn refusal_response(self, respond: impl Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        self.configure(|config| config.refusal_response = Some(Arc::new(respond)))
    }

    /// Lets all requests pass immediately. If the layer would have refused or delayed a request, the response's
    /// extensions contain an [`ObservedOutcome`](super::ObservedOutcome). Use an observing layer to test a limit before
    /// you enforce it.
    #[must_use]
    pub fn observe(self) -> Self {
        self.configure(|config| config.observing = true)
    }

    fn configure(mut self, change: impl FnOnce(&mut LayerConfig)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }
}

impl<A, C, I> LimitLayer<ByKey<A, C, I>>
where
    A: Algorithm + Clone + Into<Limits>,
    C: Clock,
    I: Identify,
{
    /// Charges 1 to the client's limit for each request.
    ///
    /// If the limit delays requests (for example, a [`LeakyBucket`](tollgate::LeakyBucket)), the request waits before
    /// it reaches the service. The maximum wait is the limit's `max_wait`, or the time in which its burst drains. A
    /// request that is cancelled while waiting refunds its charge. Waiting needs a tokio runtime with time enabled.
    pub fn by_key(keyed: impl Into<Arc<Keyed<A, C>>>, identify: I) -> Self {
        Self::with_keyed_limit(keyed.into(), identify, RefundTime::Never)
    }

    fn with_keyed_limit(keyed: Arc<Keyed<A, C>>, identify: I, refund_time: RefundTime) -> Self {
        let limits = keyed.limit().into();
        Self::with_decider(ByKey::new(keyed, identify, refund_time), Some(limits))
    }
}

impl<C: Clock, I: Identify> LimitLayer<ByKey<Concurrency, C, I>> {
    /// Limits the number of requests that each client has in flight.
    ///
    /// A request is in flight until its response body has ended or was dropped, so a download counts until its last
    /// byte. A request also stops counting when the service fails, when the client cancels the request, or when the
    /// limit's lease expires.
    pub fn in_flight(keyed: impl Into<Arc<Keyed<Concurrency, C>>>, identify: I) -> Self {
        Self::with_keyed_limit(keyed.into(), identify, RefundTime::AtEnd)
    }
}

impl<A, C> LimitLayer<Global<A, C>>
where
    A: Algorithm + Clone + Into<Limits>,
    C: Clock,
{
    /// Charges 1 to a single limit for each request of any client, to protect the service itself. If the limit delays
    /// requests, they wait as described for [`by_key`](LimitLayer::by_key).
    ///
    /// ```
    /// use tollgate::{Limiter, TokenBucket};
    /// use tollgate_http::LimitLayer;
    ///
    /// let all = LimitLayer::global(Limiter::new(TokenBucket::new("5000/s".parse()?, 500)?)).name("all");
    /// // Router::new().route(…).layer(all)
    /// # Ok::<(), tollgate::LimitError>(())
    /// ```
    pub fn global(limiter: impl Into<Arc<Limiter<A, C>>>) -> Self {
        Self::with_global_limit(limiter.into(), RefundTime::Never)
    }

    fn with_global_limit(limiter: Arc<Limiter<A, C>>, refund_time: RefundTime) -> Self {
        let limits = limiter.limit().clone().into();
        Self::with_decider(Global::new(limiter, refund_time), Some(limits))
    }
}

impl<C: Clock> LimitLayer<Global<Concurrency, C>> {
    /// Limits the number of requests in flight in the whole service. [`in_flight`](LimitLayer::in_flight) describes how
    /// long a request counts.
    pub fn global_in_flight(limiter: impl Into<Arc<Limiter<Concurrency, C>>>) -> Self {
        Self::with_global_limit(limiter.into(), RefundTime::AtEnd)
    }
}

#[cfg(feature = "engine")]
impl<T: Store, F: Store> LimitLayer<ByRules<T, F>> {
    /// Decides each request by the rules of `domain` and the request's `attributes`.
    ///
    /// - If a rule delays the request, the request waits before it reaches the service. If the request is cancelled
    ///   while waiting, a separate task refunds its charges.
    /// - If the store does not answer, the rule's `on_fault` setting determines the decision.
    /// - If the engine does not know the domain, because its name is misspelt or it was removed, all requests pass
    ///   uncounted. [`passed_without_rules`](Self::passed_without_rules) returns the number of these requests; monitor
    ///   it.
    /// - If a request matches more rules than the engine can charge (256), it is refused with status 500.
    /// - A concurrency slot taken by a rule is freed only when its lease expires. With
    ///   [`in_flight`](LimitLayer::in_flight), the slot is freed at the end of the response.
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
        Self::with_decider(ByRules::new(engine, domain, attributes), None)
    }

    /// Returns the number of requests that passed because the engine does not know the domain. The count covers all
    /// services of this layer and its clones.
    pub fn passed_without_rules(&self) -> u64 {
        self.decider.passed_without_rules()
    }
}

impl<S, G> Layer<S> for LimitLayer<G> {
    type Service = LimitService<S, G>;

    fn layer(&self, inner: S) -> Self::Service {
        LimitService { inner, decider: self.decider.clone(), config: self.config.clone() }
    }
}

impl<G> Clone for LimitLayer<G> {
    fn clone(&self) -> Self {
        Self { decider: self.decider.clone(), config: self.config.clone() }
    }
}

impl<G> fmt::Debug for LimitLayer<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LimitLayer").field(&self.config).finish()
    }
}

/// A service with limits; created by a [`LimitLayer`].
pub struct LimitService<S, G> {
    pub(super) inner: S,
    pub(super) decider: Arc<G>,
    pub(super) config: Arc<LayerConfig>,
}

impl<S: Clone, G> LimitService<S, G> {
    /// Returns the inner service, which has reported that it is ready, and replaces it with a clone. The clone must be
    /// polled for readiness before its first call.
    pub(super) fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}

impl<S: Clone, G> Clone for LimitService<S, G> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), decider: self.decider.clone(), config: self.config.clone() }
    }
}

impl<S: fmt::Debug, G> fmt::Debug for LimitService<S, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LimitService").field("inner", &self.inner).field("config", &self.config).finish()
    }
}
