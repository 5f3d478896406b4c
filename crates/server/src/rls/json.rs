//! `POST /json` of the reference service: the request and the response as proto3 JSON, with status 200 or 429.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use serde::{Deserialize, Serialize};
use tollgate_engine::Store;

use super::bounds::{MAX_DESCRIPTORS, MAX_ENTRIES};
use super::decide::decide;
use super::wire::{Code, Descriptor, LimitOverride, RateLimitRequest, RateLimitResponse, Status};
use crate::app::App;
use crate::control::auth::Access;
use crate::ops::error::OpError;

/// The path of the endpoint.
pub(crate) const JSON: &str = "/json";
/// The path of the health check of the reference service.
pub(crate) const HEALTHCHECK: &str = "/healthcheck";

/// Returns the body of the health check, or `None` while the server stops.
pub(crate) fn healthcheck_body<S: Store>(app: &App<S>) -> Option<&'static str> {
    (!app.connections.is_stopping()).then_some("OK")
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JsonRequest {
    #[serde(default)]
    domain: String,
    #[serde(default)]
    descriptors: Vec<JsonDescriptor>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JsonDescriptor {
    #[serde(default)]
    entries: Vec<JsonEntry>,
    #[serde(default)]
    limit: Option<JsonLimit>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: Option<Hits>,
    #[serde(default, alias = "is_negative_hits")]
    is_negative_hits: bool,
}

#[derive(Deserialize)]
struct JsonEntry {
    #[serde(default)]
    key: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JsonLimit {
    #[serde(default, alias = "requests_per_unit")]
    requests_per_unit: u32,
    #[serde(default)]
    unit: JsonUnit,
}

/// A number of 64 bits, which proto3 JSON writes as a string.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "NumberOrText")]
struct Hits(u64);

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u64),
    Text(String),
}

impl TryFrom<NumberOrText> for Hits {
    type Error = std::num::ParseIntError;

    fn try_from(value: NumberOrText) -> Result<Self, Self::Error> {
        Ok(Self(match value {
            NumberOrText::Number(number) => number,
            NumberOrText::Text(text) => text.parse()?,
        }))
    }
}

/// A unit by its name or number.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
#[serde(rename_all = "UPPERCASE")]
enum JsonUnit {
    #[default]
    Unknown,
    Second,
    Minute,
    Hour,
    Day,
    Month,
    Year,
    Week,
}

const JSON_UNITS: [JsonUnit; 8] = [
    JsonUnit::Unknown,
    JsonUnit::Second,
    JsonUnit::Minute,
    JsonUnit::Hour,
    JsonUnit::Day,
    JsonUnit::Month,
    JsonUnit::Year,
    JsonUnit::Week,
];

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonResponse<'a> {
    overall_code: &'static str,
    statuses: Vec<JsonStatus<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<JsonHeader<'a>>,
    /// In Base64, as proto3 JSON has bytes.
    #[serde(skip_serializing_if = "String::is_empty")]
    raw_body: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_metadata: Option<&'a serde_json::Map<String, serde_json::Value>>,
}

#[derive(Serialize)]
struct JsonHeader<'a> {
    key: &'a str,
    value: &'a str,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonStatus<'a> {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<JsonCurrentLimit<'a>>,
    #[serde(skip_serializing_if = "is_zero")]
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonCurrentLimit<'a> {
    requests_per_unit: u32,
    unit: JsonUnit,
    #[serde(skip_serializing_if = "str::is_empty")]
    name: &'a str,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// Decides a request and returns the status and the body of the response.
///
/// # Errors
/// When the body is not a request, the request is not valid, or the caller may not take from the domain.
pub(crate) async fn answer<S: Store>(
    app: &App<S>,
    access: &Access,
    body: &[u8],
) -> Result<(StatusCode, Vec<u8>), OpError> {
    let request: JsonRequest =
        serde_json::from_slice(body).map_err(|error| OpError::invalid("", format!("not a request: {error}")))?;
    let (response, delay) = decide(app, access, &request.message()?).await?;
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    let status = if response.code == Code::Ok { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    // A struct of numbers and strings always serialises.
    Ok((status, serde_json::to_vec(&JsonResponse::new(&response)).unwrap_or_default()))
}

impl JsonRequest {
    fn message(&self) -> Result<RateLimitRequest<'_>, OpError> {
        let most = self.descriptors.iter().map(|descriptor| descriptor.entries.len()).max().unwrap_or(0);
        if self.descriptors.len() > MAX_DESCRIPTORS || most > MAX_ENTRIES {
            let detail = format!("too many descriptors or entries (maximum {MAX_DESCRIPTORS} and {MAX_ENTRIES})");
            return Err(OpError::invalid("descriptors", detail));
        }
        Ok(RateLimitRequest {
            domain: self.domain.as_bytes(),
            descriptors: self.descriptors.iter().map(JsonDescriptor::message).collect(),
            hits_addend: self.hits_addend,
        })
    }
}

impl JsonDescriptor {
    fn message(&self) -> Descriptor<'_> {
        Descriptor {
            entries: self.entries.iter().map(|entry| (entry.key.as_bytes(), entry.value.as_bytes())).collect(),
            limit: self
                .limit
                .as_ref()
                .map(|limit| LimitOverride { requests_per_unit: limit.requests_per_unit, unit: limit.unit as u64 }),
            hits_addend: self.hits_addend.map(|hits| hits.0),
            is_negative_hits: self.is_negative_hits,
        }
    }
}

impl<'a> JsonResponse<'a> {
    fn new(response: &'a RateLimitResponse) -> Self {
        let header = |(key, value): &'a (String, String)| JsonHeader { key, value };
        Self {
            overall_code: code_name(response.code),
            statuses: response.statuses.iter().map(JsonStatus::new).collect(),
            response_headers_to_add: response.headers.iter().map(header).collect(),
            raw_body: STANDARD.encode(&response.body),
            dynamic_metadata: response.metadata.as_ref(),
        }
    }
}

impl<'a> JsonStatus<'a> {
    fn new(status: &'a Status) -> Self {
        let current_limit = status.limit.as_ref().map(|limit| JsonCurrentLimit {
            requests_per_unit: limit.requests_per_unit,
            unit: JSON_UNITS.get(limit.unit as usize).copied().unwrap_or_default(),
            name: &limit.name,
        });
        Self {
            code: code_name(status.code),
            current_limit,
            limit_remaining: status.remaining,
            duration_until_reset: status.reset_seconds.map(|seconds| format!("{seconds}s")),
        }
    }
}

const fn code_name(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::OverLimit => "OVER_LIMIT",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rls::status::UNITS;

    #[test]
    fn every_unit_has_the_number_of_the_protocol() {
        for (number, _) in UNITS {
            assert_eq!(JSON_UNITS[number as usize] as u32, number);
        }
    }
}
