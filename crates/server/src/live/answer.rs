//! Live-data endpoints: `GET /v1/live`, `/v1/history` and `/v1/rules`.

use std::ops::RangeInclusive;
use std::sync::Arc;

use http_body_util::BodyExt;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::http::request::Parts;
use hyper::{Method, Response, StatusCode};
use percent_encoding::percent_decode_str;
use serde::Serialize;
use tokio::task::JoinSet;
use tollgate_engine::Store;

use super::rules::{self, DEFAULT_PAGE_RULES, MAX_PAGE_RULES, RuleFilter};
use super::sample::LiveStatus;
use super::stream::EventStream;
use super::{MAX_LIVE_REQUESTS, MAX_VIEWERS};
use crate::app::App;
use crate::console::session::Credentials;
use crate::http::HttpResponse;
use crate::http::body::ReplyBody;
use crate::http::problem::Problem;

const LIVE_PATH: &str = "/v1/live";
const HISTORY_PATH: &str = "/v1/history";
const RULES_PATH: &str = "/v1/rules";

/// Returns whether a path is a live-data endpoint.
pub(crate) fn owns_path(path: &str) -> bool {
    matches!(path, LIVE_PATH | HISTORY_PATH | RULES_PATH)
}

/// Answers a live-data request. The caller must already be authenticated.
///
/// # Errors
/// Returns an error if the method or a parameter is invalid, or if there are too many viewers or concurrent requests.
pub(crate) async fn answer<S: Store + 'static>(
    app: &Arc<App<S>>,
    head: &Parts,
    credentials: Credentials,
) -> Result<HttpResponse, Problem> {
    let path = head.uri.path();
    if head.method != Method::GET {
        return Err(Problem::method_not_allowed(path, "GET"));
    }
    let query = head.uri.query().unwrap_or("");
    match path {
        LIVE_PATH => {
            let [] = parse_query(query, [])?;
            start_stream(app, credentials)
        }
        HISTORY_PATH => {
            let [domain, rule] = parse_query(query, ["domain", "rule"])?;
            let rule = match (domain, rule) {
                (None, None) => None,
                (Some(domain), Some(rule)) => Some((domain, rule)),
                (Some(_), None) => {
                    let detail = "`rule` is missing; give both `domain` and `rule`, or neither";
                    return Err(Problem::bad_request(detail));
                }
                (None, Some(_)) => {
                    let detail = "`domain` is missing; give both `domain` and `rule`, or neither";
                    return Err(Problem::bad_request(detail));
                }
            };
            respond_in_background(app, async move |app| history_json(&app, rule)).await
        }
        _ => {
            let names = ["q", "domain", "rule", "state", "after", "limit"];
            let [search, domain, id, state, after, limit] = parse_query(query, names)?;
            let is_shadow = state.as_deref().map(parse_state).transpose()?;
            let after = parse_number("after", after, 0, 0..=usize::MAX)?;
            let limit = parse_number("limit", limit, DEFAULT_PAGE_RULES, 1..=MAX_PAGE_RULES)?;
            let filter = RuleFilter::new(&search.unwrap_or_default(), domain, id, is_shadow);
            respond_in_background(app, async move |app| {
                to_json(&rules::rules_page(&app.engine, &filter, after, limit).await)
            })
            .await
        }
    }
}

/// Produces a JSON response on the background thread (if there is one), so that worker threads are not delayed. At most
/// [`MAX_LIVE_REQUESTS`] requests run or wait at a time. If the client disconnects, its request is aborted.
async fn respond_in_background<S: Store + 'static, F: Future<Output = Vec<u8>> + Send + 'static>(
    app: &Arc<App<S>>,
    make: impl FnOnce(Arc<App<S>>) -> F,
) -> Result<HttpResponse, Problem> {
    let Ok(permit) = app.live.reads.clone().try_acquire_owned() else {
        let detail = format!("too many requests for live data (maximum {MAX_LIVE_REQUESTS}); try again later");
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Too many requests for live data", detail));
    };
    let made = make(app.clone());
    // The task holds the permit until it ends, even if the client disconnects earlier.
    let made = async move {
        let _permit = permit;
        made.await
    };
    let body = match app.live.background.get() {
        Some(background) => {
            // Dropping the set aborts its tasks.
            let mut tasks = JoinSet::new();
            tasks.spawn_on(made, background);
            let stopping = || Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Stopping", "the server is stopping");
            tasks.join_next().await.and_then(Result::ok).ok_or_else(stopping)?
        }
        None => made.await,
    };
    let mut answer = Response::new(ReplyBody::from(body));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(answer)
}

fn start_stream<S: Store + 'static>(app: &Arc<App<S>>, credentials: Credentials) -> Result<HttpResponse, Problem> {
    let Ok(permit) = app.live.viewers.clone().try_acquire_owned() else {
        let detail = format!("too many viewers of live data (maximum {MAX_VIEWERS}); try again later");
        return Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "Too many viewers", detail));
    };
    let body = EventStream::new(app.clone(), credentials, permit).boxed_unsync();
    let mut answer = Response::new(ReplyBody::Stream(body));
    answer.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    answer.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    Ok(answer)
}

/// Returns the history of a rule (domain and id) as JSON. If `rule` is `None`, returns the history of all decisions.
fn history_json<S: Store>(app: &App<S>, rule: Option<(String, String)>) -> Vec<u8> {
    let at_ms = app.wall_ms();
    match rule {
        None => {
            let page = app.live.lock_history().history_page(at_ms, LiveStatus::current(app));
            to_json(&page)
        }
        Some((domain, id)) => {
            let page = app.live.lock_history().rule_page(&domain, &id, at_ms);
            to_json(&page)
        }
    }
}

/// Parses the parameter `state`. Returns true for shadow rules, false for enforced rules.
fn parse_state(state: &str) -> Result<bool, Problem> {
    match state {
        "enforced" => Ok(false),
        "shadow" => Ok(true),
        other => {
            let other: String = other.chars().take(100).collect();
            Err(Problem::bad_request(format!("`state` is `{other}`; expected enforced or shadow")))
        }
    }
}

/// Parses query parameters. Each name may occur at most once.
fn parse_query<const N: usize>(query: &str, names: [&str; N]) -> Result<[Option<String>; N], Problem> {
    let mut values = [const { None }; N];
    for pair in query.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        let Some(at) = names.iter().position(|known| *known == name) else {
            let name: String = name.chars().take(100).collect();
            let valid = match N {
                0 => "this endpoint has no parameters".to_owned(),
                _ => format!("available: {}", names.join(", ")),
            };
            return Err(Problem::bad_request(format!("unknown parameter `{name}`; {valid}")));
        };
        let value = value.replace('+', " ");
        let value = percent_decode_str(&value).decode_utf8();
        let value = value.map_err(|_| Problem::bad_request(format!("the parameter `{name}` is not UTF-8")))?;
        if values[at].replace(value.into_owned()).is_some() {
            return Err(Problem::bad_request(format!("the parameter `{name}` is given twice")));
        }
    }
    Ok(values)
}

fn parse_number(
    name: &str,
    value: Option<String>,
    default: usize,
    valid: RangeInclusive<usize>,
) -> Result<usize, Problem> {
    let Some(value) = value else { return Ok(default) };
    value.parse().ok().filter(|number| valid.contains(number)).ok_or_else(|| {
        let value: String = value.chars().take(100).collect();
        let most = if *valid.end() == usize::MAX { String::new() } else { format!(" to {}", valid.end()) };
        Problem::bad_request(format!("`{name}` is `{value}`; expected a whole number from {}{most}", valid.start()))
    })
}

fn to_json(value: &impl Serialize) -> Vec<u8> {
    // Serialising structs of numbers and strings cannot fail.
    serde_json::to_vec(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Poll;
    use tokio::runtime::Handle;
    use tollgate_engine::{Engine, MemoryStore};

    #[tokio::test]
    async fn requests_are_bounded_and_abandoned_requests_are_aborted() {
        let app = Arc::new(App::new(Engine::new(MemoryStore::new(10).unwrap()).unwrap(), None));
        app.live.set_background(Handle::current());
        let read = || Box::pin(respond_in_background(&app, |_| std::future::pending()));
        let mut waiting: Vec<_> = (0..MAX_LIVE_REQUESTS).map(|_| read()).collect();
        std::future::poll_fn(|context| {
            assert!(waiting.iter_mut().all(|request| request.as_mut().poll(context).is_pending()));
            Poll::Ready(())
        })
        .await;
        let problem = read().await.expect_err("one too many");
        assert_eq!(problem.detail(), "too many requests for live data (maximum 64); try again later");
        drop(waiting);
        for _ in 0..MAX_LIVE_REQUESTS {
            tokio::task::yield_now().await;
        }
        assert_eq!(app.live.reads.available_permits(), MAX_LIVE_REQUESTS);
    }

    #[test]
    fn parameters_are_decoded_and_unknown_ones_refused() {
        let of = |query| parse_query(query, ["q", "after"]).map_err(|problem| problem.detail().to_owned());
        assert_eq!(of(""), Ok([None, None]));
        assert_eq!(of("q=a%2Fb+c&after=7"), Ok([Some("a/b c".into()), Some("7".into())]));
        assert_eq!(of("q&"), Ok([Some(String::new()), None]));
        assert_eq!(of("p=1"), Err("unknown parameter `p`; available: q, after".into()));
        let none = parse_query("p=1", []).map_err(|problem| problem.detail().to_owned());
        assert_eq!(none, Err("unknown parameter `p`; this endpoint has no parameters".into()));
        assert_eq!(of("q=1&q=2"), Err("the parameter `q` is given twice".into()));
        assert_eq!(of("q=%ff"), Err("the parameter `q` is not UTF-8".into()));
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        let of = |value: &str| {
            parse_number("limit", Some(value.into()), 100, 1..=1_000).map_err(|problem| problem.detail().to_owned())
        };
        assert_eq!((of("1"), of("1000")), (Ok(1), Ok(1_000)));
        for wrong in ["0", "1001", "-1", "x", ""] {
            assert_eq!(of(wrong), Err(format!("`limit` is `{wrong}`; expected a whole number from 1 to 1000")));
        }
        assert_eq!(parse_number("after", None, 0, 0..=usize::MAX), Ok(0));
    }
}
