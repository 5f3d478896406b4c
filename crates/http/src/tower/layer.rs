//! The layer and the service that it makes.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use tower_layer::Layer;

use super::config::{LayerConfig, OnUnidentified, SendHeaders};
use super::refusal::Refusal;
use crate::headers::Styles;

/// Puts limits around a service.
///
/// Made by [`by_key`](LimitLayer::by_key), [`global`](LimitLayer::global), [`in_flight`](LimitLayer::in_flight) or, with the
/// feature `engine`, `by_rules`. All services made from one layer and its clones share the same state.
pub struct LimitLayer<G> {
    pub(super) gate: Arc<G>,
    config: Arc<LayerConfig>,
}

impl<G> LimitLayer<G> {
    pub(super) fn with(gate: G, config: LayerConfig) -> Self {
        Self { gate: Arc::new(gate), config: Arc::new(config) }
    }

    /// Sets the name of the limit in headers and refusals; `default` if it is not set. Limits by rules have the names of the
    /// rules.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        self.configure(|config| config.policy = config.policy.renamed(name))
    }

    /// Sets the style of the rate-limit headers; [`Styles::IETF`] if it is not set.
    #[must_use]
    pub fn styles(self, styles: Styles) -> Self {
        self.configure(|config| config.styles = styles)
    }

    /// Sets which responses carry rate-limit headers; all of them if it is not set.
    #[must_use]
    pub fn send_headers(self, send_headers: SendHeaders) -> Self {
        self.configure(|config| config.send_headers = send_headers)
    }

    /// Sets what happens to requests without an identity.
    ///
    /// If it is not set, a missing header or cookie counts all such requests together, and a missing peer address, which
    /// only a misconfigured server leaves out, is answered with status 500 and what to configure. With limits by rules this is
    /// about the peer address alone: rules decide about other missing attributes.
    #[must_use]
    pub fn on_unidentified(self, choice: OnUnidentified) -> Self {
        self.configure(|config| config.on_unidentified = Some(choice))
    }

    /// Sets the function that makes the response to a refused request, except for gRPC. The layer
    /// adds the rate-limit headers, and `Retry-After` unless the response has one.
    #[must_use]
    pub fn answer(self, answer: impl Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        self.configure(|config| config.answer = Some(Arc::new(answer)))
    }

    /// Lets all requests pass immediately, and puts what the layer would have done into the
    /// extensions of the response, as [`Observed`](super::Observed): for trying a limit before
    /// enforcing it.
    #[must_use]
    pub fn observe(self) -> Self {
        self.configure(|config| config.observing = true)
    }

    fn configure(mut self, change: impl FnOnce(&mut LayerConfig)) -> Self {
        change(Arc::make_mut(&mut self.config));
        self
    }
}

impl<S, G> Layer<S> for LimitLayer<G> {
    type Service = Limited<S, G>;

    fn layer(&self, inner: S) -> Self::Service {
        Limited { inner, gate: self.gate.clone(), config: self.config.clone() }
    }
}

impl<G> Clone for LimitLayer<G> {
    fn clone(&self) -> Self {
        Self { gate: self.gate.clone(), config: self.config.clone() }
    }
}

impl<G> fmt::Debug for LimitLayer<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LimitLayer").field(&self.config).finish()
    }
}

/// A service with limits around it; made by a [`LimitLayer`].
pub struct Limited<S, G> {
    pub(super) inner: S,
    pub(super) gate: Arc<G>,
    pub(super) config: Arc<LayerConfig>,
}

impl<S: Clone, G> Limited<S, G> {
    /// Takes out the service that reported ready, to be called later, and leaves a clone, which is polled for readiness again.
    pub(super) fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}

impl<S: Clone, G> Clone for Limited<S, G> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), gate: self.gate.clone(), config: self.config.clone() }
    }
}

impl<S: fmt::Debug, G> fmt::Debug for Limited<S, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limited").field("inner", &self.inner).field("config", &self.config).finish()
    }
}
