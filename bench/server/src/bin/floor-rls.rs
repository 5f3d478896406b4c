//! The floors of the rate-limit service: gRPC servers that read a message and reply with a fixed message.
//!
//! `floor-rls ADDRESS tonic|hyper`: a plain tonic server, or hyper's HTTP/2 with one event loop per core.

use std::convert::Infallible;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use http::{HeaderMap, HeaderValue};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::Server;
use tonic::{Request, Response, Status};
use tower_service::Service;

/// The fixed reply, which is as long as Tollgate's reply for two matching rules.
const FIXED_REPLY: [u8; 170] = [b'x'; 170];

fn main() -> anyhow::Result<()> {
    let mut args = std::env::args().skip(1);
    let address: SocketAddr = args.next().unwrap_or_else(|| "127.0.0.1:8091".into()).parse()?;
    match args.next().as_deref() {
        Some("hyper") => serve_hyper(address),
        _ => tokio::runtime::Builder::new_multi_thread()
            .enable_all()
            .build()?
            .block_on(async { Ok(Server::builder().add_service(Fixed).serve(address).await?) }),
    }
}

/// A codec that passes message bytes through.
#[derive(Clone, Copy, Default)]
struct Plain;

impl Codec for Plain {
    type Encode = &'static [u8];
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Plain {
    type Item = &'static [u8];
    type Error = Status;

    fn encode(&mut self, item: &'static [u8], out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put_slice(item);
        Ok(())
    }
}

impl Decoder for Plain {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining())))
    }
}

/// A service with a fixed reply.
#[derive(Clone, Copy)]
struct Fixed;

impl NamedService for Fixed {
    const NAME: &'static str = "envoy.service.ratelimit.v3.RateLimitService";
}

impl UnaryService<Bytes> for Fixed {
    type Response = &'static [u8];
    type Future = Ready<Result<Response<&'static [u8]>, Status>>;

    fn call(&mut self, _: Request<Bytes>) -> Self::Future {
        ready(Ok(Response::new(&FIXED_REPLY)))
    }
}

impl Service<http::Request<Body>> for Fixed {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        Box::pin(async move { Ok(tonic::server::Grpc::new(Plain).unary(Fixed, request).await) })
    }
}

fn serve_hyper(address: SocketAddr) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    let queues: Vec<_> = (0..cores)
        .map(|_| {
            let (queue, mut streams) = tokio::sync::mpsc::channel::<std::net::TcpStream>(128);
            std::thread::spawn(move || {
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
                runtime.expect("an event loop").block_on(async {
                    while let Some(stream) = streams.recv().await {
                        if let Ok(stream) = TcpStream::from_std(stream) {
                            tokio::spawn(serve(stream));
                        }
                    }
                });
            });
            queue
        })
        .collect();
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
        let listener = TcpListener::bind(address).await?;
        for turn in 0.. {
            queues[turn % cores].send(listener.accept().await?.0.into_std()?).await?;
        }
        Ok(())
    })
}

async fn serve(stream: TcpStream) {
    let _ = stream.set_nodelay(true);
    let service = hyper::service::service_fn(|request: http::Request<hyper::body::Incoming>| async {
        let read = request.into_body().collect().await.map(|body| body.to_bytes().len());
        let mut message = Vec::with_capacity(5 + FIXED_REPLY.len());
        message.extend_from_slice(&[0, 0, 0, 0, FIXED_REPLY.len() as u8]);
        message.extend_from_slice(&FIXED_REPLY);
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert("grpc-status", HeaderValue::from_static("0"));
        let frames = [Frame::data(Bytes::from(message)), Frame::trailers(trailers)];
        let frames = ready_stream(frames.into_iter());
        let mut response = http::Response::new(StreamBody::new(frames));
        response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        read.map(|_| response)
    });
    let connection = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
    let _ = connection.serve_connection(TokioIo::new(stream), service).await;
}

/// Returns a stream of `frames` that is always ready.
fn ready_stream(
    frames: impl Iterator<Item = Frame<Bytes>> + Unpin,
) -> impl futures_core::Stream<Item = Result<Frame<Bytes>, Infallible>> {
    struct Always<I>(I);
    impl<I: Iterator<Item = Frame<Bytes>> + Unpin> futures_core::Stream for Always<I> {
        type Item = Result<Frame<Bytes>, Infallible>;
        fn poll_next(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Self::Item>> {
            Poll::Ready(self.0.next().map(Ok))
        }
    }
    Always(frames)
}
