//! tonic as a stock client and a stock server of the same service, for messages that are bytes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use tokio::sync::mpsc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::{KeyAndValueRef, MetadataMap};
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint, Server, server::TcpIncoming};
use tonic::{Request, Response, Status, Streaming};
use tower_service::Service;

use crate::shop::{Events, Waiting};

/// Messages as they are.
#[derive(Clone, Copy, Default)]
pub(crate) struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

/// A stock client.
#[derive(Clone)]
pub(crate) struct Client(tonic::client::Grpc<Channel>);

impl Client {
    pub(crate) async fn new(uri: &str) -> Client {
        let channel = Endpoint::from_shared(uri.to_owned()).unwrap().connect().await.unwrap();
        Client(tonic::client::Grpc::new(channel).max_decoding_message_size(16 << 20))
    }

    /// Calls a method that has one answer.
    pub(crate) async fn unary(
        &self,
        method: &str,
        request: Request<Bytes>,
    ) -> Result<Response<Bytes>, Status> {
        let mut grpc = self.0.clone();
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        grpc.unary(request, path(method), Raw).await
    }

    /// Calls a method that has a stream of answers.
    pub(crate) async fn streaming(
        &self,
        method: &str,
        request: Request<Bytes>,
    ) -> Result<Streaming<Bytes>, Status> {
        let mut grpc = self.0.clone();
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        Ok(grpc.server_streaming(request, path(method), Raw).await?.into_inner())
    }

    /// Calls a method with any number of requests.
    pub(crate) async fn requests(
        &self,
        method: &str,
        requests: Vec<Bytes>,
    ) -> Result<Response<Bytes>, Status> {
        let mut grpc = self.0.clone();
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        grpc.client_streaming(Request::new(stream::iter(requests)), path(method), Raw).await
    }
}

fn path(method: &str) -> http::uri::PathAndQuery {
    let path = if method.starts_with('/') { method.to_owned() } else { format!("/test.Shop/{method}") };
    path.parse().unwrap()
}

/// A stock server that dies at once when it is dropped.
pub(crate) struct StockServer {
    pub(crate) address: SocketAddr,
    pub(crate) events: Events,
    runtime: Option<tokio::runtime::Runtime>,
}

impl StockServer {
    pub(crate) fn uri(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Starts a server on an address; port 0 is any.
    pub(crate) async fn start(address: SocketAddr) -> StockServer {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (sender, events) = mpsc::unbounded_channel();
        let starting = runtime.spawn(async move {
            let incoming = TcpIncoming::bind(address).unwrap();
            let address = incoming.local_addr().unwrap();
            let serving =
                Server::builder().add_service(StockShop { events: sender }).serve_with_incoming(incoming);
            tokio::spawn(serving);
            address
        });
        let address = starting.await.unwrap();
        StockServer { address, events, runtime: Some(runtime) }
    }

    pub(crate) async fn any() -> StockServer {
        StockServer::start("127.0.0.1:0".parse().unwrap()).await
    }
}

impl Drop for StockServer {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

#[derive(Clone)]
struct StockShop {
    events: mpsc::UnboundedSender<String>,
}

impl NamedService for StockShop {
    const NAME: &'static str = "test.Shop";
}

impl Service<http::Request<tonic::body::Body>> for StockShop {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        let method = request.uri().path().trim_start_matches("/test.Shop/").to_owned();
        let timeout = request.headers().get("grpc-timeout").map(|value| value.to_str().unwrap().to_owned());
        let answering = Answering { method, timeout, events: self.events.clone() };
        async move {
            let mut grpc = tonic::server::Grpc::new(Raw).max_decoding_message_size(16 << 20);
            Ok(grpc.server_streaming(answering, request).await)
        }
        .boxed()
    }
}

struct Answering {
    method: String,
    timeout: Option<String>,
    events: mpsc::UnboundedSender<String>,
}

type Answers = BoxStream<'static, Result<Bytes, Status>>;

impl Service<Request<Bytes>> for Answering {
    type Response = Response<Answers>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Answers>, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (method, timeout, events) = (self.method.clone(), self.timeout.clone(), self.events.clone());
        async move {
            let (metadata, _, message) = request.into_parts();
            let echoed = echoed(&metadata);
            let text = || String::from_utf8(message.to_vec()).unwrap();
            match method.as_str() {
                "Echo" => {
                    let end = Err(with_metadata(Status::ok(""), echoed.clone()));
                    let mut response = Response::new(stream::iter([Ok(message), end]).boxed());
                    *response.metadata_mut() = echoed;
                    Ok(response)
                }
                "Count" => {
                    let count: u32 = text().parse().unwrap();
                    Ok(Response::new(
                        stream::iter((0..count).map(|number| Ok(number.to_string().into()))).boxed(),
                    ))
                }
                "Fail" => {
                    let code: i32 = metadata.get("code").unwrap().to_str().unwrap().parse().unwrap();
                    Err(with_metadata(Status::new(code.into(), text()), echoed))
                }
                "Timeout" => {
                    let text = timeout.unwrap_or("none".to_owned());
                    Ok(Response::new(stream::iter([Ok(text.into())]).boxed()))
                }
                "Wait" => {
                    let _waiting = Waiting::new(&events, "Wait", &message);
                    std::future::pending().await
                }
                "Begin" => {
                    let waiting = Waiting::new(&events, "Begin", &message);
                    let rest = stream::pending().map(move |item| {
                        let _ = &waiting;
                        item
                    });
                    Ok(Response::new(stream::iter([Ok("first".into())]).chain(rest).boxed()))
                }
                _ => Err(Status::unimplemented(format!("no method {method}"))),
            }
        }
        .boxed()
    }
}

fn echoed(metadata: &MetadataMap) -> MetadataMap {
    let mut echoed = MetadataMap::new();
    for pair in metadata.iter() {
        match pair {
            KeyAndValueRef::Ascii(name, value) if name.as_str().starts_with("x-") => {
                echoed.append(name, value.clone());
            }
            KeyAndValueRef::Binary(name, value) if name.as_str().starts_with("x-") => {
                echoed.append_bin(name, value.clone());
            }
            _ => {}
        }
    }
    echoed
}

fn with_metadata(status: Status, metadata: MetadataMap) -> Status {
    Status::with_metadata(status.code(), status.message(), metadata)
}
