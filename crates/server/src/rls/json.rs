//! The endpoint `POST /json` of the reference service. Request and response are proto3 JSON. The HTTP status is 200 for
//! admitted requests and 429 for refused ones.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::StatusCode;
use serde::{Deserialize, Deserializer, Serialize};
use tollgate_engine::Store;

use super::bounds::{MAX_DESCRIPTORS, MAX_ENTRIES};
use super::decide::decide;
use super::wire::{
    Descriptor, DescriptorStatus, LimitOverride, RateLimitRequest, RateLimitResponse, ResponseCode, UNIT_NAMES,
};
use crate::app::App;
use crate::control::auth::Access;
use crate::ops::error::OpError;

/// The path of the endpoint.
pub(crate) const JSON_PATH: &str = "/json";
/// The path of the reference service's health check.
pub(crate) const HEALTHCHECK_PATH: &str = "/healthcheck";

/// Returns the body of the health check, or `None` if the server is stopping.
pub(crate) fn healthcheck_body<S: Store>(app: &App<S>) -> Option<&'static str> {
    (!app.connections.is_stopping()).then_some("OK")
}

/// A request in proto3 JSON. Field names are in camel case or as in the `.proto` file, numbers may be encoded as
/// strings, and `null` means the default value.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JsonRequest {
    #[serde(default, deserialize_with = "null_as_default")]
    domain: String,
    #[serde(default, deserialize_with = "null_as_default")]
    descriptors: Vec<JsonDescriptor>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: Option<JsonNumber>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JsonDescriptor {
    #[serde(default, deserialize_with = "null_as_default")]
    entries: Vec<JsonEntry>,
    #[serde(default)]
    limit: Option<JsonLimit>,
    #[serde(default, alias = "hits_addend")]
    hits_addend: Option<JsonNumber>,
    #[serde(default, alias = "is_negative_hits", deserialize_with = "null_as_default")]
    is_negative_hits: bool,
}

#[derive(Deserialize)]
struct JsonEntry {
    #[serde(default, deserialize_with = "null_as_default")]
    key: String,
    #[serde(default, deserialize_with = "null_as_default")]
    value: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct JsonLimit {
    #[serde(default, alias = "requests_per_unit")]
    requests_per_unit: Option<JsonNumber>,
    #[serde(default)]
    unit: Option<JsonUnit>,
}

fn null_as_default<'de, T: Default + Deserialize<'de>, D: Deserializer<'de>>(value: D) -> Result<T, D::Error> {
    Ok(Option::deserialize(value)?.unwrap_or_default())
}

#[derive(Deserialize)]
#[serde(untagged)]
enum NumberOrText {
    Number(u64),
    Text(String),
}

/// A number, encoded as a number or a string.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "NumberOrText")]
struct JsonNumber(u64);

impl TryFrom<NumberOrText> for JsonNumber {
    type Error = std::num::ParseIntError;

    fn try_from(value: NumberOrText) -> Result<Self, Self::Error> {
        Ok(Self(match value {
            NumberOrText::Number(number) => number,
            NumberOrText::Text(text) => text.parse()?,
        }))
    }
}

impl JsonNumber {
    /// Converts a number to 32 bits. `None` becomes 0. If the number is too large, returns an error that contains the
    /// field name.
    fn u32_or_zero_if_absent(number: Option<Self>, name: &'static str) -> Result<u32, OpError> {
        let number = number.map_or(0, |number| number.0);
        let wrong = |_| OpError::invalid(name, format!("`{name}` is too large: {number} (maximum {})", u32::MAX));
        u32::try_from(number).map_err(wrong)
    }
}

/// A unit number, encoded as its name or as a number.
#[derive(Clone, Copy, Deserialize)]
#[serde(try_from = "NumberOrText")]
struct JsonUnit(u64);

impl TryFrom<NumberOrText> for JsonUnit {
    type Error = String;

    fn try_from(value: NumberOrText) -> Result<Self, Self::Error> {
        let name = match value {
            NumberOrText::Number(number) => return Ok(Self(number)),
            NumberOrText::Text(name) => name,
        };
        let index = UNIT_NAMES.iter().position(|known| *known == name);
        let unknown = || format!("unknown unit `{name}`; available: {}", UNIT_NAMES[1..].join(", "));
        index.map(|index| Self(index as u64)).ok_or_else(unknown)
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonResponse<'a> {
    overall_code: &'static str,
    statuses: Vec<JsonStatus<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<JsonHeader<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    request_headers_to_add: Vec<JsonHeader<'a>>,
    /// Encoded in Base64, as proto3 JSON requires for bytes.
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
    unit: &'static str,
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
/// Returns an error if the request is invalid or the caller has no access to the domain.
pub(crate) async fn answer_json<S: Store>(
    app: &App<S>,
    access: &Access,
    body: &[u8],
) -> Result<(StatusCode, Vec<u8>), OpError> {
    let request: JsonRequest =
        serde_json::from_slice(body).map_err(|error| OpError::invalid("", format!("not a request: {error}")))?;
    let (response, delay) = decide(app, access, &request.to_message()?).await?;
    if !delay.is_zero() {
        tokio::time::sleep(delay).await;
    }
    let status = if response.code == ResponseCode::Ok { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS };
    // Serialising numbers and strings cannot fail.
    Ok((status, serde_json::to_vec(&JsonResponse::new(&response)).unwrap_or_default()))
}

impl JsonRequest {
    fn to_message(&self) -> Result<RateLimitRequest<'_>, OpError> {
        let most = self.descriptors.iter().map(|descriptor| descriptor.entries.len()).max().unwrap_or(0);
        if self.descriptors.len() > MAX_DESCRIPTORS || most > MAX_ENTRIES {
            let detail = format!("too many descriptors or entries (maximum {MAX_DESCRIPTORS} and {MAX_ENTRIES})");
            return Err(OpError::invalid("descriptors", detail));
        }
        Ok(RateLimitRequest {
            domain: self.domain.as_bytes(),
            descriptors: self.descriptors.iter().map(JsonDescriptor::to_message).collect::<Result<_, _>>()?,
            hits_addend: JsonNumber::u32_or_zero_if_absent(self.hits_addend, "hitsAddend")?,
        })
    }
}

impl JsonDescriptor {
    fn to_message(&self) -> Result<Descriptor<'_>, OpError> {
        Ok(Descriptor {
            entries: self.entries.iter().map(|entry| (entry.key.as_bytes(), entry.value.as_bytes())).collect(),
            limit: self.limit.as_ref().map(JsonLimit::to_message).transpose()?,
            hits_addend: self.hits_addend.map(|hits| hits.0),
            is_negative_hits: self.is_negative_hits,
        })
    }
}

impl JsonLimit {
    fn to_message(&self) -> Result<LimitOverride, OpError> {
        let requests_per_unit = JsonNumber::u32_or_zero_if_absent(self.requests_per_unit, "requestsPerUnit")?;
        Ok(LimitOverride { requests_per_unit, unit: self.unit.map_or(0, |unit| unit.0) })
    }
}

impl<'a> JsonResponse<'a> {
    fn new(response: &'a RateLimitResponse) -> Self {
        let header = |(key, value): &'a (String, String)| JsonHeader { key, value };
        Self {
            overall_code: code_name(response.code),
            statuses: response.statuses.iter().map(JsonStatus::new).collect(),
            response_headers_to_add: response.headers.iter().map(header).collect(),
            request_headers_to_add: response.request_headers.iter().map(header).collect(),
            raw_body: STANDARD.encode(&response.body),
            dynamic_metadata: response.metadata.as_ref(),
        }
    }
}

impl<'a> JsonStatus<'a> {
    fn new(status: &'a DescriptorStatus) -> Self {
        let current_limit = status.limit.as_ref().map(|limit| JsonCurrentLimit {
            requests_per_unit: limit.requests_per_unit,
            unit: UNIT_NAMES.get(limit.unit as usize).copied().unwrap_or(UNIT_NAMES[0]),
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

const fn code_name(code: ResponseCode) -> &'static str {
    match code {
        ResponseCode::Ok => "OK",
        ResponseCode::OverLimit => "OVER_LIMIT",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Parses a request and passes it to `check`. Returns the error message if the request is invalid.
    fn parse_and_check(text: &str, check: impl FnOnce(&RateLimitRequest<'_>)) -> Result<(), String> {
        let request: JsonRequest = serde_json::from_str(text).map_err(|error| error.to_string())?;
        check(&request.to_message().map_err(|error| error.detail.into_owned())?);
        Ok(())
    }

    #[test]
    fn requests_are_parsed_as_proto3_json() {
        for (unit, number) in [("\"HOUR\"", 3), ("3", 3), ("\"WEEK\"", 7), ("99", 99), ("null", 0), ("\"UNKNOWN\"", 0)]
        {
            let text = format!(
                r#"{{"domain": "d", "hitsAddend": "7", "descriptors": [{{
                "entries": [{{"key": "k", "value": null}}], "limit": {{"requestsPerUnit": "5", "unit": {unit}}},
                "hits_addend": "18446744073709551615", "isNegativeHits": true}}]}}"#
            );
            let checked = parse_and_check(&text, |request| {
                assert_eq!((request.domain, request.hits_addend), (&b"d"[..], 7));
                let [descriptor] = &*request.descriptors else { panic!("one descriptor") };
                assert_eq!(descriptor.entries, [(&b"k"[..], &b""[..])]);
                assert_eq!(descriptor.limit, Some(LimitOverride { requests_per_unit: 5, unit: number }));
                assert_eq!((descriptor.hits_addend, descriptor.is_negative_hits), (Some(u64::MAX), true));
            });
            assert_eq!(checked, Ok(()), "{unit}");
        }
    }

    #[test]
    fn null_is_the_default_of_every_field() {
        let empty = r#"{"domain": null, "descriptors": null, "hitsAddend": null, "unknown": 1}"#;
        assert_eq!(parse_and_check(empty, |request| assert_eq!(*request, RateLimitRequest::default())), Ok(()));
        let descriptor = r#"{"entries": null, "limit": null, "hitsAddend": null, "isNegativeHits": null}"#;
        let checked = parse_and_check(&format!(r#"{{"descriptors": [{descriptor}]}}"#), |request| {
            assert_eq!(request.descriptors, [Descriptor::default()]);
        });
        assert_eq!(checked, Ok(()));
    }

    #[test]
    fn invalid_values_are_reported() {
        for (text, expected) in [
            (r#"{"hitsAddend": "many"}"#, "invalid digit"),
            (r#"{"hitsAddend": -1}"#, "did not match"),
            (r#"{"hitsAddend": 4294967296}"#, "`hitsAddend` is too large: 4294967296 (maximum 4294967295)"),
            (r#"{"descriptors": [{"limit": {"unit": "FORTNIGHT"}}]}"#, "unknown unit `FORTNIGHT`; available: SECOND"),
            (r#"{"descriptors": {}}"#, "invalid type"),
        ] {
            let error = parse_and_check(text, |_| {}).expect_err(text);
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
