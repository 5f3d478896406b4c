//! A body of `/v1/check` that did not come over HTTP.

use bytes::Bytes;
use http_body_util::BodyExt;
use tollgate_engine::Store;

use super::decide::decide;
use super::problem::Problem;
use crate::app::{App, Verb};

/// The body of the answer to `POST /v1/check`.
///
/// # Errors
/// What is wrong with the body.
pub(crate) async fn check<S: Store>(app: &App<S>, body: &[u8]) -> Result<Bytes, Problem> {
    let answer = decide(app, Verb::Check, body).await?;
    let Ok(body) = answer.into_body().collect().await;
    Ok(body.to_bytes())
}
