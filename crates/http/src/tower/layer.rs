//! The layer and the service it makes.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use tower_layer::Layer;

use super::manners::{Manners, Missing, Tell};
use super::refusal::Refusal;
use crate::headers::Styles;

/// Puts limits around a service.
///
/// Made by [`by_key`](LimitLayer::by_key), [`in_flight`](LimitLayer::in_flight) or, with the feature `engine`, `by_rules`. All services
/// made from one layer, and from its clones, share the same state.
pub struct LimitLayer<G> {
    pub(super) gate: Arc<G>,
    manners: Arc<Manners>,
}

impl<G> LimitLayer<G> {
    pub(super) fn with(gate: G, manners: Manners) -> Self {
        Self { gate: Arc::new(gate), manners: Arc::new(manners) }
    }

    /// With a name for the limit, to be told in headers and refusals. Without one it is `default`. Limits by rules have the
    /// names of the rules.
    #[must_use]
    pub fn name(self, name: &str) -> Self {
        self.manner(|manners| manners.policy = manners.policy.renamed(name))
    }

    /// With other headers than those of [`Styles::IETF`].
    #[must_use]
    pub fn styles(self, styles: Styles) -> Self {
        self.manner(|manners| manners.styles = styles)
    }

    /// With limits told to others than those who are refused.
    #[must_use]
    pub fn tell(self, tell: Tell) -> Self {
        self.manner(|manners| manners.tell = tell)
    }

    /// With another fate for requests of which it is not known who sent them. Rules see no identity, but attributes, and decide
    /// for themselves: this is not for them.
    #[must_use]
    pub fn missing(self, missing: Missing) -> Self {
        self.manner(|manners| manners.missing = missing)
    }

    /// With an answer of your own to those who are refused, except for gRPC. `Retry-After` and the headers about limits are added to
    /// it, unless it has a `Retry-After` already.
    #[must_use]
    pub fn answer(self, answer: impl Fn(&Refusal<'_>) -> Response<Bytes> + Send + Sync + 'static) -> Self {
        self.manner(|manners| manners.answer = Some(Arc::new(answer)))
    }

    /// Everybody passes, at once. What would have been done instead is told in the extensions of the answer, as
    /// [`Observed`](super::Observed): for trying a limit before it is enforced.
    #[must_use]
    pub fn observe(self) -> Self {
        self.manner(|manners| manners.observing = true)
    }

    fn manner(mut self, change: impl FnOnce(&mut Manners)) -> Self {
        change(Arc::make_mut(&mut self.manners));
        self
    }
}

impl<S, G> Layer<S> for LimitLayer<G> {
    type Service = Limited<S, G>;

    fn layer(&self, inner: S) -> Self::Service {
        Limited { inner, gate: self.gate.clone(), manners: self.manners.clone() }
    }
}

impl<G> Clone for LimitLayer<G> {
    fn clone(&self) -> Self {
        Self { gate: self.gate.clone(), manners: self.manners.clone() }
    }
}

impl<G> fmt::Debug for LimitLayer<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LimitLayer").field(&self.manners).finish()
    }
}

/// A service with limits around it; made by a [`LimitLayer`].
pub struct Limited<S, G> {
    pub(super) inner: S,
    pub(super) gate: Arc<G>,
    pub(super) manners: Arc<Manners>,
}

impl<S: Clone, G> Limited<S, G> {
    /// The service that was found ready, to be called later. Its clone takes its place and is asked for readiness anew.
    pub(super) fn take_ready(&mut self) -> S {
        let clone = self.inner.clone();
        std::mem::replace(&mut self.inner, clone)
    }
}

impl<S: Clone, G> Clone for Limited<S, G> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), gate: self.gate.clone(), manners: self.manners.clone() }
    }
}

impl<S: fmt::Debug, G> fmt::Debug for Limited<S, G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limited").field("inner", &self.inner).field("manners", &self.manners).finish()
    }
}
