//! Optional contents of responses: rate-limit headers and metadata.

use anyhow::{Context, ensure};
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use tollgate_engine::Decision;
use tollgate_http::Styles;
use tollgate_http::headers::{self, LimitStatus, X_RATE_LIMIT_LIMIT, X_RATE_LIMIT_REMAINING, X_RATE_LIMIT_RESET};

/// Optional contents of responses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResponseOptions {
    /// Headers that the proxy adds to the response to the client.
    pub headers: AddedHeaders,
    /// Headers that the proxy adds to an admitted request for the application.
    pub request_headers: AddedHeaders,
    /// When to send dynamic metadata.
    pub metadata: MetadataWhen,
}

impl Default for ResponseOptions {
    fn default() -> Self {
        let request_headers = AddedHeaders { styles: Styles::NONE, names: None };
        Self { headers: AddedHeaders::default(), request_headers, metadata: MetadataWhen::Rules }
    }
}

/// When responses contain dynamic metadata.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum MetadataWhen {
    /// Only responses to requests that match a rule with `metadata` contain metadata.
    Rules,
    /// All responses contain metadata.
    Always,
}

/// The rate-limit headers to add, and their names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddedHeaders {
    styles: Styles,
    /// Custom names for the three headers of [`Styles::X_RATE_LIMIT`]: limit, remaining and reset.
    names: Option<[HeaderName; 3]>,
}

impl Default for AddedHeaders {
    fn default() -> Self {
        Self { styles: Styles::IETF, names: None }
    }
}

impl AddedHeaders {
    /// Parses `ietf`, `x-ratelimit`, `both`, `off`, or three comma-separated header names.
    ///
    /// # Errors
    /// Returns an error if `text` has none of these forms.
    pub fn parse(text: &str) -> anyhow::Result<Self> {
        let styles = match text {
            "ietf" => Styles::IETF,
            "x-ratelimit" => Styles::X_RATE_LIMIT,
            "both" => Styles::IETF.and(Styles::X_RATE_LIMIT),
            "off" => Styles::NONE,
            names => return Self::parse_names(names),
        };
        Ok(Self { styles, names: None })
    }

    fn parse_names(text: &str) -> anyhow::Result<Self> {
        let wrong =
            || format!("{text}: write ietf, x-ratelimit, both, off, or three header names, separated by commas");
        let names: Vec<&str> = text.split(',').map(str::trim).collect();
        ensure!(names.len() == 3, wrong());
        let name = |name: &str| HeaderName::from_bytes(name.as_bytes()).with_context(wrong);
        Ok(Self { styles: Styles::X_RATE_LIMIT, names: Some([name(names[0])?, name(names[1])?, name(names[2])?]) })
    }

    /// Returns the headers for a decision. Limits of shadow rules are omitted.
    pub(super) fn headers_of(&self, decision: &Decision<'_>) -> Vec<(String, String)> {
        if self.styles == Styles::NONE && decision.is_admitted() {
            return Vec::new();
        }
        let mut map = HeaderMap::new();
        let limits = decision.reports().filter(|report| !report.shadow).map(LimitStatus::from);
        headers::add(&mut map, self.styles, decision.retry(), limits);
        let text = |value: &HeaderValue| String::from_utf8_lossy(value.as_bytes()).into_owned();
        map.iter().map(|(name, value)| (self.output_name(name).as_str().to_owned(), text(value))).collect()
    }

    fn output_name<'a>(&'a self, name: &'a HeaderName) -> &'a HeaderName {
        let known = [X_RATE_LIMIT_LIMIT, X_RATE_LIMIT_REMAINING, X_RATE_LIMIT_RESET];
        let index = known.iter().position(|known| known == name);
        self.names.as_ref().zip(index).map_or(name, |(names, index)| &names[index])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn styles_and_names_are_parsed() {
        assert_eq!(AddedHeaders::parse("ietf").unwrap(), AddedHeaders::default());
        let named = AddedHeaders::parse("RateLimit-Limit, RateLimit-Remaining,RateLimit-Reset").unwrap();
        assert_eq!(named.output_name(&X_RATE_LIMIT_RESET), "ratelimit-reset");
        assert_eq!(named.output_name(&hyper::header::RETRY_AFTER), "retry-after");
        for wrong in ["", "all", "a,b", "a,b,c,d", "a,b,c d"] {
            assert!(AddedHeaders::parse(wrong).is_err(), "{wrong}");
        }
    }
}
