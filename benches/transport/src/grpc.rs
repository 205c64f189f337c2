//! tonic: gRPC over HTTP/2, its messages written by hand. One thread in each process and no router before the one service,
//! which is the quickest for it here.
use crate::contender::{Contender, Gate, Running, Serve, listening, locked};
use crate::drive::{Caller, Failure, Role};
use crate::load::{Filter, Load, Outcome, SMALL, Scenario, Workload};
use crate::process::Room;
use anyhow::Context;
use bytes::Bytes;
use http::uri::PathAndQuery;
use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::task::Poll;
use tokio_stream::StreamExt;
use tonic::body::Body;
use tonic::client::Grpc;
use tonic::server::{ClientStreamingService, NamedService, UnaryService};
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

/// The one message, for requests and replies.
#[derive(Clone, PartialEq, prost::Message)]
pub struct Message {
    #[prost(bytes = "bytes", tag = "1")]
    payload: Bytes,
    #[prost(uint64, tag = "2")]
    count: u64,
}

const UNARY: &str = "/bench.Bench/Unary";
const STREAM: &str = "/bench.Bench/Stream";
/// More than the largest payload.
const LONGEST: usize = 8 << 20;

/// A client.
#[derive(Clone)]
pub struct TonicCaller(Channel);

impl TonicCaller {
    /// Connects to an address.
    ///
    /// # Errors
    /// When nothing listens there.
    pub async fn connect(address: &str) -> anyhow::Result<Self> {
        let endpoint = Endpoint::from_shared(format!("http://{address}"))?.tcp_nodelay(true);
        Ok(Self(endpoint.connect().await.with_context(|| format!("to {address}"))?))
    }

    async fn unary(&self, payload: Bytes, role: Role) -> Result<Message, Status> {
        let mut request = Request::new(Message { payload, count: 1 });
        if let Some(role) = role.text() {
            request.metadata_mut().insert("x-role", tonic::metadata::MetadataValue::from_static(role));
        }
        let mut client = Grpc::new(self.0.clone()).max_decoding_message_size(LONGEST);
        client.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let path = PathAndQuery::from_static(UNARY);
        Ok(client.unary(request, path, ProstCodec::<Message, Message>::default()).await?.into_inner())
    }
}

impl Caller for TonicCaller {
    async fn call(&self, payload: Bytes, role: Role) -> Result<usize, Failure> {
        match self.unary(payload, role).await {
            Ok(reply) => Ok(reply.payload.len()),
            Err(status) if status.code() == Code::PermissionDenied => Err(Failure::Refused),
            Err(status) => Err(Failure::Broken(status.to_string())),
        }
    }

    async fn stream(&self, payload: Bytes, count: u64) -> Result<u64, Failure> {
        let broken = |status: Status| Failure::Broken(status.to_string());
        let messages = (0..count).map(move |_| Message { payload: payload.clone(), count: 1 });
        let mut client = Grpc::new(self.0.clone());
        client.ready().await.map_err(|error| Failure::Broken(error.to_string()))?;
        let (path, codec) = (PathAndQuery::from_static(STREAM), ProstCodec::<Message, Message>::default());
        let request = Request::new(tokio_stream::iter(messages));
        Ok(client.client_streaming(request, path, codec).await.map_err(broken)?.into_inner().count)
    }
}

/// A server, or a service of a chain.
#[derive(Clone)]
struct Bench {
    next: Option<TonicCaller>,
}

impl NamedService for Bench {
    const NAME: &'static str = "bench.Bench";
}

type Answer<T> = Pin<Box<dyn Future<Output = Result<T, Status>> + Send>>;

impl UnaryService<Message> for Bench {
    type Response = Message;
    type Future = Answer<Response<Message>>;

    fn call(&mut self, request: Request<Message>) -> Self::Future {
        let next = self.next.clone();
        Box::pin(async move {
            if let Some(next) = next {
                return Ok(Response::new(next.unary(request.into_inner().payload, Role::Silent).await?));
            }
            Ok(Response::new(Message { payload: Bytes::from_static(&[9; SMALL]), count: 1 }))
        })
    }
}

impl ClientStreamingService<Message> for Bench {
    type Response = Message;
    type Future = Answer<Response<Message>>;

    fn call(&mut self, request: Request<Streaming<Message>>) -> Self::Future {
        Box::pin(async move {
            let (mut messages, mut count) = (request.into_inner(), 0);
            while let Some(message) = messages.next().await {
                count += message?.count;
            }
            Ok(Response::new(Message { payload: Bytes::from_static(&[9; SMALL]), count }))
        })
    }
}

impl tower_service::Service<http::Request<Body>> for Bench {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let bench = self.clone();
        let codec = ProstCodec::<Message, Message>::default();
        let mut grpc = tonic::server::Grpc::new(codec).max_decoding_message_size(LONGEST);
        Box::pin(async move {
            Ok(match request.uri().path() {
                STREAM => grpc.client_streaming(bench, request).await,
                _ => grpc.unary(bench, request).await,
            })
        })
    }
}

/// Serves until the process ends.
///
/// # Errors
/// When it cannot listen.
pub fn serve(order: &Serve) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::bind(&order.listen).await?;
        let next = match &order.next {
            Some(address) => Some(TonicCaller::connect(address).await?),
            None => None,
        };
        listening(listener.local_addr()?);
        let incoming = tokio_stream::wrappers::TcpListenerStream::new(listener)
            .map(|stream| stream.and_then(|stream| stream.set_nodelay(true).map(|()| stream)));
        Ok(Server::builder().serve_with_incoming(Bench { next }, incoming).await?)
    })
}

/// tonic without anything between client and server.
pub struct Tonic {
    /// Whether calls of [`Workload::Qos`] have a connection for each kind.
    pub apart: bool,
}

impl Contender for Tonic {
    fn name(&self) -> String {
        if self.apart { "tonic, a connection each" } else { "tonic" }.into()
    }

    fn ready(&self) -> Result<String, String> {
        Ok(["tonic", "prost", "hyper", "h2", "tokio"].map(locked).join(", "))
    }

    fn covers(&self, scenario: &Scenario) -> bool {
        scenario.filter == Filter::None
            && !matches!(scenario.workload, Workload::Channel(_) | Workload::Paired(_))
            && (!self.apart || matches!(scenario.workload, Workload::Qos(..)))
    }

    fn start(&self, scenario: &Scenario, room: &Room) -> anyhow::Result<Running> {
        let (host, namespace) = match &scenario.link {
            Some(link) => (link.address.as_str(), Some(link.server.as_str())),
            None => ("127.0.0.1", None),
        };
        let (mut processes, mut target) = (Vec::new(), None);
        for _ in 0..scenario.services {
            let order = Serve { listen: format!("{host}:0"), next: target.take(), ..Serve::default() };
            let (child, address) = room.server("tonic", &order, namespace)?;
            processes.push(child);
            target = Some(address);
        }
        Ok(Running { target: target.context("no service")?, processes })
    }

    fn serve(&self, order: &Serve) -> anyhow::Result<()> {
        serve(order)
    }

    fn client(&self, load: &Load, target: &str, gate: &mut Gate) -> anyhow::Result<Outcome> {
        if self.apart {
            return crate::drive::run(load, gate, || TonicCaller::connect(target));
        }
        client(load, target, gate)
    }
}

/// A client that has one connection, whatever it calls.
///
/// # Errors
/// When nothing listens there.
pub fn client(load: &Load, target: &str, gate: &mut Gate) -> anyhow::Result<Outcome> {
    let one = tokio::sync::OnceCell::new();
    crate::drive::run(load, gate, || async {
        one.get_or_try_init(|| TonicCaller::connect(target)).await.cloned()
    })
}
