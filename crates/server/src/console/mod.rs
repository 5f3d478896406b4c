//! The web console at `/console`: its static files, and browser sessions.
//!
//! The console is an ordinary client of the public API without special privileges. The pages are the static files of
//! `crates/server/console/`; the files that every page needs are joined into one module. A browser session has the
//! rights of the token with which it was opened.
//!
//! Every server refuses requests from web pages (`http/web.rs`). Requests from the console are accepted if they meet
//! three conditions:
//!
//! - They have the header `Tollgate-Console`. A page of another origin cannot send this header without a preflight
//!   request, which this server refuses.
//! - `Sec-Fetch-Site`, if present, is `same-origin` or `none`.
//! - `Origin`, if present, names the host of the request.

mod files;
pub(crate) mod session;

use hyper::header::{
    ACCEPT_ENCODING, CACHE_CONTROL, CONTENT_ENCODING, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue,
    REFERRER_POLICY, VARY, X_CONTENT_TYPE_OPTIONS,
};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};

use crate::http::HttpResponse;
use crate::http::body::ReplyBody;
use crate::http::problem::Problem;
use files::StaticFile;

/// The header that marks requests from the console.
pub(crate) const CONSOLE_HEADER: &str = "tollgate-console";

/// The content security policy: load everything from this server (images also from data URLs), no inline scripts or
/// styles, no embedding in frames.
const CONTENT_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
                      base-uri 'none'; form-action 'self'; frame-ancestors 'none'";

/// Returns whether a path belongs to the console.
pub(crate) fn owns_path(path: &str) -> bool {
    path.strip_prefix("/console").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Compresses the files in advance, so that the first request is not delayed.
pub(crate) fn compress_files() {
    files::compress_files();
}

/// Answers a request for a page or a file of the console. All pages are the same document, whose script selects the
/// content by the URL.
///
/// # Errors
/// Returns an error if the file does not exist, or if the method is not GET or HEAD.
pub(crate) fn answer(head: &Parts) -> Result<HttpResponse, Problem> {
    let path = head.uri.path();
    if !matches!(head.method, Method::GET | Method::HEAD) {
        return Err(Problem::method_not_allowed(path, "GET, HEAD"));
    }
    let file = match path.strip_prefix(files::FILES_PATH_PREFIX) {
        None => files::document(),
        Some(name) => files::find_file(name)
            .ok_or_else(|| Problem::not_found("no such file in this version of the console; load the page again"))?,
    };
    Ok(file_response(file, head))
}

fn file_response(file: &StaticFile, head: &Parts) -> HttpResponse {
    let accepts = head.headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    let gzip = accepts.flat_map(|value| value.split(',')).any(|coding| coding.trim().starts_with("gzip"));
    let body = if gzip { file.gzipped.clone() } else { file.plain.clone() };
    let mut answer = Response::new(ReplyBody::from(body));
    *answer.status_mut() = StatusCode::OK;
    let headers = answer.headers_mut();
    let text = HeaderValue::from_static;
    headers.insert(CONTENT_TYPE, text(file.content_type));
    headers.insert(VARY, text("accept-encoding"));
    headers.insert(CONTENT_SECURITY_POLICY, text(CONTENT_POLICY));
    headers.insert(X_CONTENT_TYPE_OPTIONS, text("nosniff"));
    headers.insert(REFERRER_POLICY, text("no-referrer"));
    headers.insert(HeaderName::from_static("cross-origin-resource-policy"), text("same-origin"));
    headers.insert(HeaderName::from_static("cross-origin-opener-policy"), text("same-origin"));
    if gzip {
        headers.insert(CONTENT_ENCODING, text("gzip"));
    }
    // File paths contain a digest, so files never change. The document refers to these paths and must not be cached.
    headers.insert(
        CACHE_CONTROL,
        text(if file.is_document { "no-store" } else { "private, max-age=31536000, immutable" }),
    );
    answer
}

#[cfg(test)]
mod tests {
    use super::*;

    fn get(path: &str, accepts: &str) -> Result<HttpResponse, Problem> {
        let request = hyper::Request::get(path).header(ACCEPT_ENCODING, accepts).body(()).unwrap();
        answer(&request.into_parts().0)
    }

    #[test]
    fn every_page_is_the_document_and_file_paths_contain_the_digest() {
        for path in ["/console", "/console/", "/console/rules/api%2Fv1/per-client?q=a"] {
            let page = get(path, "gzip, br").unwrap();
            assert_eq!(page.headers()[CONTENT_TYPE], "text/html; charset=utf-8", "{path}");
            assert_eq!(
                (page.headers()[CONTENT_ENCODING].as_bytes(), page.headers()[CACHE_CONTROL].as_bytes()),
                (&b"gzip"[..], &b"no-store"[..])
            );
        }
        let script = format!("{}{}/main.js", files::FILES_PATH_PREFIX, files::files_digest());
        let file = get(&script, "").unwrap();
        assert_eq!(file.headers()[CONTENT_TYPE], "text/javascript; charset=utf-8");
        assert!(!file.headers().contains_key(CONTENT_ENCODING));
        for headers in [get("/console", "").unwrap().headers(), file.headers()] {
            assert_eq!(headers[CONTENT_SECURITY_POLICY], CONTENT_POLICY);
        }
        assert_eq!(
            get(&format!("{}{}/none.js", files::FILES_PATH_PREFIX, files::files_digest()), "").unwrap_err().status(),
            StatusCode::NOT_FOUND
        );
        assert_eq!(
            get(&format!("{}0000/main.js", files::FILES_PATH_PREFIX), "").unwrap_err().status(),
            StatusCode::NOT_FOUND
        );
        assert!(
            owns_path("/console") && owns_path("/console/keys") && !owns_path("/consoles") && !owns_path("/v1/console")
        );
    }
}
