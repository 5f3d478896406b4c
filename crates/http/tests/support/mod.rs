//! Services for the layer tests.
#![allow(dead_code, reason = "each test uses part of this module")]

use std::convert::Infallible;
use std::future::{Ready, poll_fn, ready};
use std::pin::Pin;
use std::str::Chars;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body::Frame;
use http_body_util::Full;
use tower_service::Service;

pub(crate) type Body = Full<Bytes>;

/// A service that answers `hello` and counts its calls.
#[derive(Clone, Debug, Default)]
pub(crate) struct HelloService {
    calls: Arc<AtomicUsize>,
}

impl HelloService {
    pub(crate) fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }
}

impl Service<Request<Body>> for HelloService {
    type Response = Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Response<Body>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        self.calls.fetch_add(1, Ordering::Relaxed);
        ready(Ok(Response::new(Full::new(Bytes::from_static(b"hello")))))
    }
}

/// A service that always fails.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FailingService;

impl Service<Request<Body>> for FailingService {
    type Response = Response<Body>;
    type Error = &'static str;
    type Future = Ready<Result<Response<Body>, &'static str>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), &'static str>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Err("failed"))
    }
}

/// A service whose response body consists of the frames in the string: `d` for data, `t` for trailers, `e` for an
/// error.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StreamingService(pub(crate) &'static str);

impl Service<Request<Body>> for StreamingService {
    type Response = Response<FrameBody>;
    type Error = Infallible;
    type Future = Ready<Result<Response<FrameBody>, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Request<Body>) -> Self::Future {
        ready(Ok(Response::new(FrameBody(self.0.chars()))))
    }
}

/// The body of [`StreamingService`].
#[derive(Debug)]
pub(crate) struct FrameBody(Chars<'static>);

impl http_body::Body for FrameBody {
    type Data = Bytes;
    type Error = &'static str;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, &'static str>>> {
        Poll::Ready(match self.0.next() {
            Some('d') => Some(Ok(Frame::data(Bytes::from_static(b"data")))),
            Some('t') => Some(Ok(Frame::trailers(HeaderMap::new()))),
            Some('e') => Some(Err("failed")),
            _ => None,
        })
    }
}

pub(crate) fn request_of(user: &str) -> Request<Body> {
    Request::builder().header("x-user", user).body(Full::default()).unwrap()
}

pub(crate) async fn try_call<S, R>(service: &mut S, request: Request<Body>) -> Result<R, S::Error>
where
    S: Service<Request<Body>, Response = R>,
{
    poll_fn(|context| service.poll_ready(context)).await?;
    service.call(request).await
}

pub(crate) async fn call<S, R>(service: &mut S, request: Request<Body>) -> R
where
    S: Service<Request<Body>, Response = R, Error = Infallible>,
{
    match try_call(service, request).await {
        Ok(response) => response,
        Err(never) => match never {},
    }
}
