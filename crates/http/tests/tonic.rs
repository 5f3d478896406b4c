//! Checks that a real tonic client understands the refusals of a real tonic server with limits.

#![allow(clippy::unwrap_used, reason = "a failure ends the test")]

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BufMut};
use tokio::net::TcpListener;
use tollgate::core::Nanos;
use tollgate::{Concurrency, Keyed, TokenBucket};
use tollgate_http::{ByHeader, ClientIp, LimitLayer, OnUnidentified};
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::server::{TcpConnectInfo, TcpIncoming};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};
use tonic_types::StatusExt;
use tower_service::Service;

/// A codec for raw bytes, because these tests do not depend on the message format.
#[derive(Clone, Copy, Default)]
struct RawBytesCodec;

impl Codec for RawBytesCodec {
    type Encode = Vec<u8>;
    type Decode = Vec<u8>;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for RawBytesCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, item: Vec<u8>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(&item);
        Ok(())
    }
}

impl Decoder for RawBytesCodec {
    type Item = Vec<u8>;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Vec<u8>>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining()).to_vec()))
    }
}

/// A service that echoes its input.
#[derive(Clone, Copy)]
struct EchoService;

impl NamedService for EchoService {
    const NAME: &'static str = "test.Echo";
}

impl UnaryService<Vec<u8>> for EchoService {
    type Response = Vec<u8>;
    type Future = Ready<Result<Response<Vec<u8>>, Status>>;

    fn call(&mut self, request: Request<Vec<u8>>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner())))
    }
}

impl Service<http::Request<Body>> for EchoService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = std::pin::Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move { Ok(tonic::server::Grpc::new(RawBytesCodec).unary(EchoService, request).await) })
    }
}

/// Serves the echo service behind `$layer` and returns a connected client channel. A macro, because the type of a
/// server with layers is hard to name.
macro_rules! serve {
    ($layer:expr) => {{
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = Server::builder().layer($layer).add_service(EchoService);
        tokio::spawn(async move { server.serve_with_incoming(TcpIncoming::from(listener)).await.unwrap() });
        connect(address).await
    }};
}

async fn connect(address: SocketAddr) -> Channel {
    Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap()
}

async fn call_echo(channel: &Channel, user: Option<&'static str>) -> Result<Vec<u8>, Status> {
    let mut client = Grpc::new(channel.clone());
    client.ready().await.unwrap();
    let mut request = Request::new(b"hello".to_vec());
    if let Some(user) = user {
        request.metadata_mut().insert("x-user", user.parse().unwrap());
    }
    let path = http::uri::PathAndQuery::from_static("/test.Echo/Say");
    client.unary(request, path, RawBytesCodec).await.map(Response::into_inner)
}

const BY_USER: ByHeader = ByHeader::named("x-user");

#[tokio::test]
async fn client_sees_the_limit_and_when_to_retry() {
    let keyed = Keyed::new(TokenBucket::new("2/m".parse().unwrap(), 2).unwrap(), 1_000).unwrap();
    let channel = serve!(LimitLayer::by_key(keyed, BY_USER).name("per-user"));
    for _ in 0..2 {
        assert_eq!(call_echo(&channel, Some("alice")).await.unwrap(), b"hello");
    }
    let refused = call_echo(&channel, Some("alice")).await.unwrap_err();
    assert_eq!((refused.code(), refused.message()), (Code::ResourceExhausted, "the limit `per-user` is exceeded"));
    let delay = refused.get_details_retry_info().unwrap().retry_delay.unwrap();
    assert!(delay > Duration::from_secs(20) && delay <= Duration::from_secs(30), "{delay:?}");
    let pushback: u64 = refused.metadata().get("grpc-retry-pushback-ms").unwrap().to_str().unwrap().parse().unwrap();
    assert!(u128::from(pushback) == delay.as_nanos().div_ceil(1_000_000), "{pushback} for {delay:?}");
    assert_eq!(refused.metadata().get("ratelimit-policy").unwrap(), r#""per-user";q=2;w=60"#);
    assert_eq!(call_echo(&channel, Some("bob")).await.unwrap(), b"hello");
}

#[tokio::test]
async fn peer_is_read_from_tonic_extensions() {
    let keyed = Keyed::new(TokenBucket::new("1/m".parse().unwrap(), 1).unwrap(), 1_000).unwrap();
    let client =
        ClientIp::direct().peer(|request| Some(request.extensions().get::<TcpConnectInfo>()?.remote_addr()?.ip()));
    let channel = serve!(LimitLayer::by_key(keyed, client).on_unidentified(OnUnidentified::Allow));
    assert!(call_echo(&channel, None).await.is_ok());
    assert_eq!(call_echo(&channel, None).await.unwrap_err().code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn unidentified_request_is_refused_if_configured() {
    let keyed = Keyed::new(TokenBucket::new("1/m".parse().unwrap(), 1).unwrap(), 1_000).unwrap();
    let channel = serve!(LimitLayer::by_key(keyed, BY_USER).on_unidentified(OnUnidentified::Refuse));
    assert_eq!(call_echo(&channel, None).await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn sequential_calls_use_one_slot() {
    let keyed = Keyed::new(Concurrency::new(1, Nanos::from_secs(60)).unwrap(), 1_000).unwrap();
    let channel = serve!(LimitLayer::in_flight(keyed, BY_USER));
    for _ in 0..20 {
        assert_eq!(call_echo(&channel, Some("alice")).await.unwrap(), b"hello");
    }
}
