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
use super::decide::Release;
use super::global::Global;
use super::key::ByKey;
use super::refusal::Refusal;
#[cfg(feature = "engine")]
use super::rules::ByRules;
use crate::headers::{Styles, UNNAMED};
use crate::identify::Identify;

/// Applies limits to a service.
///
/// Created by [`by_key`](LimitLayer::by_key), [`global`](LimitLayer::global), [`in_flight`](LimitLayer::in_flight) or,
/// with the feature `engine`, `by_rules`. All services created from one layer and its clones share the same state.
pub struct LimitLayer<G> {
    decider: Arc<G>,
    config: Arc<LayerConfig>,
}

impl<G> LimitLayer<G> {
    /// Creates a layer. `limits` determine the `RateLimit-Policy` header; `None` if each decision reports its own
    /// limits.
    fn with(decider: G, limits: Option<Limits>) -> Self {
        let config = LayerConfig::new(Policy::new(UNNAMED, limits));
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

    /// Sets which responses have rate-limit headers; the default is all of them.
    #[must_use]
    pub fn send_headers(self, send_headers: SendHeaders) -> Self {
        self.configure(|config| config.send_headers = send_headers)
    }

    /// Sets the treatment of requests without an identity.
    ///
    /// By default, requests without the header or cookie are counted together. A missing peer address is answered with
    /// status 500 and a configuration hint, because only a misconfigured server omits it. With limits by rules, this
    /// setting applies only to the peer address: rules decide about other missing attributes.
    #[must_use]
    pub fn on_unidentified(self, choice: OnUnidentified) -> Self {
        self.configure(|config| config.on_unidentified = Some(choice))
    }

    /// Sets the function that creates the response to a refused request, except for gRPC. The layer adds the rate-limit
    /// headers, and `Retry-After` unless the response has one.
    #[must_use]
    pub fn answer(self, answer: impl Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        self.configure(|config| config.answer = Some(Arc::new(answer)))
    }

    /// Lets all requests pass immediately, and stores the outcome that the layer would have applied in the response's
    /// extensions, as [`ObservedOutcome`](super::ObservedOutcome). Used to test a limit before enforcing it.
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
    /// Takes 1 from the client's limit for each request.
    ///
    /// If the limit delays, as a [`LeakyBucket`](tollgate::LeakyBucket) does, the request waits before it reaches the
    /// service: at most the limit's `max_wait`, or the time in which its burst drains. A request that is abandoned
    /// while waiting refunds its turn. Waiting needs a tokio runtime with time enabled.
    pub fn by_key(keyed: impl Into<Arc<Keyed<A, C>>>, identify: I) -> Self {
        Self::per_key(keyed.into(), identify, Release::Never)
    }

    fn per_key(keyed: Arc<Keyed<A, C>>, identify: I, release: Release) -> Self {
        let limits = keyed.limit().into();
        Self::with(ByKey::new(keyed, identify, release), Some(limits))
    }
}

impl<C: Clock, I: Identify> LimitLayer<ByKey<Concurrency, C, I>> {
    /// Limits the number of requests that each client has in flight.
    ///
    /// A request is in flight until its response body has ended or was dropped, so a download counts until its last
    /// byte. It also ends if the service fails or the request is abandoned. A request that takes longer than the
    /// limit's lease stops counting when the lease expires.
    pub fn in_flight(keyed: impl Into<Arc<Keyed<Concurrency, C>>>, identify: I) -> Self {
        Self::per_key(keyed.into(), identify, Release::AtEnd)
    }
}

impl<A, C> LimitLayer<Global<A, C>>
where
    A: Algorithm + Clone + Into<Limits>,
    C: Clock,
{
    /// Takes 1 from a single limit for each request of any client, which protects the service itself. If the limit
    /// delays, requests wait as with [`by_key`](LimitLayer::by_key).
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
        Self::for_all(limiter.into(), Release::Never)
    }

    fn for_all(limiter: Arc<Limiter<A, C>>, release: Release) -> Self {
        let limits = limiter.limit().clone().into();
        Self::with(Global::new(limiter, release), Some(limits))
    }
}

impl<C: Clock> LimitLayer<Global<Concurrency, C>> {
    /// Limits the number of requests in flight in the whole service. See [`in_flight`](LimitLayer::in_flight) for how
    /// long a request counts.
    pub fn global_in_flight(limiter: impl Into<Arc<Limiter<Concurrency, C>>>) -> Self {
        Self::for_all(limiter.into(), Release::AtEnd)
    }
}

#[cfg(feature = "engine")]
impl<T: Store, F: Store> LimitLayer<ByRules<T, F>> {
    /// Decides each request by the rules of `domain` and the request's `attributes`.
    ///
    /// - If a rule delays, the request waits before it reaches the service. A request that is abandoned while waiting
    ///   refunds its charges, in a separate task.
    /// - If the store does not answer, `on_fault` of the rule decides; there is always a decision.
    /// - If the domain has no rules, because its name is misspelt or its rules were removed, all requests pass
    ///   uncounted. [`passed_without_rules`](Self::passed_without_rules) counts them; monitor it.
    /// - A concurrency slot taken by a rule becomes free when its lease expires; [`in_flight`](LimitLayer::in_flight)
    ///   frees slots at the end of the response.
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
        Self::with(ByRules::new(engine, domain, attributes), None)
    }

    /// Returns the number of requests that passed because the engine has no rules for the domain, over all services of
    /// this layer and its clones.
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
    /// Returns the service that reported ready, to be called later, and replaces it with a clone that is polled for
    /// readiness again.
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
