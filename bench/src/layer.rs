//! Measures the overhead of the tower layer, compared with the bare decision.
//!
//! A no-op service is called with and without the layer. The difference is the overhead, including the decision and the
//! identification of the client. The request object is reused, so that creating it is not measured.

use std::cell::Cell;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use anyhow::{Context as _, Result, bail};
use http::{HeaderName, HeaderValue, Request, Response, StatusCode};
use tollgate_http::{ByHeader, ClientIp, ForwardedBy, LimitLayer, SendHeaders, TrustedProxies};
use tower_layer::Layer;
use tower_service::Service;

use crate::contender::Contender;
use crate::keys::{Pattern, numbered_key};
use crate::measure::{Expect, Plan, race};
use crate::ours;
use crate::report::{Goal, Report, Row};

/// The goal of at most 2.2 times the cost of the bare keyed check.
const NEAR_BARE_CHECK: Goal = Goal::RatioAtLeast(0.45);

/// The contenders and their goals. The floor, addresses behind two proxies, and headers on every response have no goal.
pub(crate) const CASES: [(&str, Option<Goal>); 5] = [
    ("layer-floor", None),
    ("layer-header", Some(NEAR_BARE_CHECK)),
    ("layer-address", Some(NEAR_BARE_CHECK)),
    ("layer-forwarded", None),
    ("layer-headers", None),
];

/// The service without a layer.
const BARE_SERVICE: &str = "service";

/// Runs the cases that the report selects.
pub(crate) fn run(report: &mut Report, plan: Plan) -> Result<()> {
    if !CASES.iter().any(|(case, _)| report.includes(case)) {
        return Ok(());
    }
    report.print_section("overhead of the tower layer per request, ns, and the bare check of a hot key");
    let mut contenders: Vec<Box<dyn Contender>> =
        vec![Box::new(ours::Keyed::new(1_000)?), contender_by_name(BARE_SERVICE)?];
    for (case, _) in CASES {
        contenders.push(contender_by_name(case)?);
    }
    let medians = race(plan, Expect::Allowed, &mut contenders, &[Pattern::Hot.access_sequence(1)])?;
    let median = |name: &str| {
        let found = medians.iter().find(|(own, _)| *own == name);
        found.map(|(_, nanos)| *nanos).with_context(|| format!("{name} was not measured"))
    };
    add_rows(report, "", median("ours")?, median, |goal| goal)
}

/// Compares instruction counts. `check` is the instruction count of the bare check, and `count` counts the instructions
/// of a contender.
pub(crate) fn add_instruction_rows(report: &mut Report, check: f64, count: impl Fn(&str) -> Result<f64>) -> Result<()> {
    // The rows have no goals, because the goals apply to time.
    add_rows(report, "instructions-", check, count, |_| None)
}

fn add_rows(
    report: &mut Report,
    prefix: &str,
    check: f64,
    measured: impl Fn(&str) -> Result<f64>,
    goal_of: fn(Option<Goal>) -> Option<Goal>,
) -> Result<()> {
    for (name, goal) in CASES {
        let case = format!("{prefix}{name}");
        if report.includes(&case) {
            let added = measured(name)? - measured(BARE_SERVICE)?;
            let peer = "bare-check".to_owned();
            report.add_row(Row { case, ours: added, peer, theirs: check, goal: goal_of(goal) });
        }
    }
    Ok(())
}

/// Returns one of the contenders, or the service without a layer.
pub(crate) fn contender_by_name(name: &str) -> Result<Box<dyn Contender>> {
    let limiter = || anyhow::Ok(ours::Keyed::new(1_000)?.into_limiter());
    let by_header = || anyhow::Ok(LimitLayer::by_key(limiter()?, ByHeader::named("x-api-key")));
    let quiet = SendHeaders::OnRefusal;
    Ok(match name {
        BARE_SERVICE => boxed_service(BARE_SERVICE, NoOpService),
        "layer-floor" => boxed_service("layer-floor", Floor { limiter: limiter()?, inner: NoOpService }),
        "layer-header" => boxed_service("layer-header", by_header()?.send_headers(quiet).layer(NoOpService)),
        "layer-address" => {
            let by_address = LimitLayer::by_key(limiter()?, ClientIp::direct()).send_headers(quiet);
            boxed_service("layer-address", by_address.layer(NoOpService))
        }
        "layer-forwarded" => {
            let proxies = TrustedProxies::parse(["10.0.0.0/8", "fd00::/8"])?;
            let client = ClientIp::behind(proxies, ForwardedBy::XForwardedFor);
            boxed_service(
                "layer-forwarded",
                LimitLayer::by_key(limiter()?, client).send_headers(quiet).layer(NoOpService),
            )
        }
        "layer-headers" => {
            boxed_service("layer-headers", by_header()?.send_headers(SendHeaders::Always).layer(NoOpService))
        }
        _ => bail!("unknown contender {name}"),
    })
}

fn boxed_service<S, B>(name: &'static str, service: S) -> Box<dyn Contender>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Send + 'static,
{
    Box::new(CalledService { name, service })
}

thread_local! {
    /// The request, stored between calls.
    static REQUEST: Cell<Option<Request<()>>> = const { Cell::new(None) };
}

fn new_request() -> Request<()> {
    Request::builder()
        .header("host", "example.org")
        .header("user-agent", "bench")
        .header("accept", "*/*")
        .header("x-api-key", numbered_key(0))
        .header("x-forwarded-for", "203.0.113.7, 10.0.0.2")
        .extension(SocketAddr::from(([10, 0, 0, 1], 4711)))
        .body(())
        .unwrap_or_default()
}

/// Returns an empty response, and keeps the request for the next call.
#[derive(Clone, Copy, Debug)]
struct NoOpService;

impl Service<Request<()>> for NoOpService {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    #[inline]
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    #[inline]
    fn call(&mut self, request: Request<()>) -> Self::Future {
        REQUEST.set(Some(request));
        ready(Ok(Response::new(())))
    }
}

/// The least that a layer that identifies clients by a header can do: it finds the header, checks the value, and calls
/// the service. This floor has no options, and its refusals have no body.
struct Floor {
    limiter: Arc<tollgate::Keyed>,
    inner: NoOpService,
}

impl Service<Request<()>> for Floor {
    type Response = Response<()>;
    type Error = Infallible;
    type Future = Ready<Result<Response<()>, Infallible>>;

    #[inline]
    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.inner.poll_ready(context)
    }

    #[inline]
    fn call(&mut self, request: Request<()>) -> Self::Future {
        const API_KEY: HeaderName = HeaderName::from_static("x-api-key");
        let key = request.headers().get(API_KEY).map_or(&b""[..], HeaderValue::as_bytes);
        if self.limiter.check(key, 1).is_allowed() {
            return self.inner.call(request);
        }
        let mut refusal = Response::new(());
        *refusal.status_mut() = StatusCode::TOO_MANY_REQUESTS;
        ready(Ok(refusal))
    }
}

/// Calls a service and polls its future once, which completes it.
struct CalledService<S> {
    name: &'static str,
    service: S,
}

impl<S, B> Contender for CalledService<S>
where
    S: Service<Request<()>, Response = Response<B>, Error = Infallible> + Send,
{
    fn name(&self) -> &'static str {
        self.name
    }

    #[inline(always)]
    fn decide(&mut self, _key: &String) -> bool {
        let request = REQUEST.take().unwrap_or_else(new_request);
        let mut context = Context::from_waker(Waker::noop());
        let _ = self.service.poll_ready(&mut context);
        let future = pin!(self.service.call(request));
        match future.poll(&mut context) {
            Poll::Ready(Ok(response)) => std::hint::black_box(&response).status().is_success(),
            Poll::Ready(Err(never)) => match never {},
            Poll::Pending => false,
        }
    }
}
