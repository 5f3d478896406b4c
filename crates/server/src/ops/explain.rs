//! Explains requests on a blocking thread. Comparing a request with 10 000 rules and formatting the result takes
//! milliseconds, which would delay the other connections of the worker thread.

use std::sync::Arc;

use tokio::task::spawn_blocking;
use tollgate::core::Cost;
use tollgate_engine::{Attribute, InternedLimits, Item, PooledDecisions, Store};

use super::error::OpError;
use super::input::{LimitsInput, RequestInput};
use super::run::Caller;
use super::view::Output;
use crate::app::App;

/// Explains a request, in the format of the caller's protocol.
///
/// # Errors
/// Returns an error if the request is invalid.
pub(super) async fn explain<S: Store>(
    app: &App<S>,
    caller: Caller<'_>,
    input: &RequestInput<'_>,
) -> Result<Output<'static>, OpError> {
    let mut decisions = PooledDecisions::take();
    let context = app.engine.decide_to_explain(input.domain(), &input.to_item(input.cost), &mut decisions).await?;
    let (request, format) = (OwnedRequest::new(input), caller.format_explanation);
    let explain = move || {
        let explained = request.with_item(|domain, item| context.explain(domain, item, &decisions));
        // Returns the buffers too, because the worker thread reuses them for its next decision.
        (explained.map(|explanation| format(&explanation)), decisions)
    };
    let (text, _) = spawn_blocking(explain).await.map_err(|_| OpError::invalid("", "the request was not explained"))?;
    Ok(Output::Explained(text?.into()))
}

/// A copy of a request that can be sent to another thread.
struct OwnedRequest {
    domain: Vec<u8>,
    /// Attribute names and values.
    attributes: Vec<(Vec<u8>, Vec<u8>)>,
    inline: Option<(Vec<u8>, Arc<InternedLimits>)>,
    cost: Option<Cost>,
}

impl OwnedRequest {
    fn new(input: &RequestInput<'_>) -> Self {
        let (domain, cost) = (input.domain().to_vec(), input.cost);
        match &input.limits {
            LimitsInput::Rules { attributes, .. } => {
                let attributes =
                    attributes.iter().map(|attribute| (attribute.name.to_vec(), attribute.value.to_vec())).collect();
                Self { domain, attributes, inline: None, cost }
            }
            LimitsInput::Inline { key, limits } => {
                Self { domain, attributes: Vec::new(), inline: Some((key.to_vec(), limits.clone())), cost }
            }
        }
    }

    fn with_item<T>(&self, with: impl FnOnce(&[u8], &Item<'_>) -> T) -> T {
        let attributes: Vec<Attribute<'_>> =
            self.attributes.iter().map(|(name, value)| Attribute::new(name, value)).collect();
        let item = match &self.inline {
            None => Item::new(&attributes),
            Some((key, limits)) => Item::inline(key, limits),
        };
        with(&self.domain, &Item { cost: self.cost, ..item })
    }
}
