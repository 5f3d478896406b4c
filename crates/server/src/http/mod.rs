//! The HTTP front end: parses JSON bodies into inputs and serialises outputs as JSON.

pub mod body;
pub mod bounds;
mod call;
mod explain;
mod fast;
pub(crate) mod forward;
mod half_close;
mod json;
pub mod problem;
mod receive;
mod route;
mod serve;
mod translate;
mod web;
pub mod wire;

pub(crate) use call::decide_json_request;
pub(crate) use json::write_decision_json;
pub(crate) use serve::bearer_token;
pub use serve::{FastPath, HttpResponse, serve};
pub use web::AllowedHosts;

/// The complete response sent on a connection above the connection limit.
pub(crate) const TOO_MANY_CONNECTIONS: &[u8] =
    b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/problem+json\r\nconnection: close\r\n\
      retry-after: 1\r\ncontent-length: 137\r\n\r\n\
      {\"type\":\"about:blank\",\"title\":\"Too many connections\",\"status\":503,\"detail\":\"the server cannot accept more connections; try again later\"}\n";

#[cfg(test)]
mod tests {
    #[test]
    fn response_above_the_connection_limit_states_its_length() {
        let text = std::str::from_utf8(super::TOO_MANY_CONNECTIONS).expect("UTF-8");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("content-length: {}", body.len())), "the body has {} bytes", body.len());
    }
}
