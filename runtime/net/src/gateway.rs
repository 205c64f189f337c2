//! The way between stock gRPC programs and those that call through the service.
//!
//! It is a program as others are: it calls and serves through shared memory, so that policies look at its calls, too (`grpc -> shop.Prices/*`).
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::stream::{self, BoxStream};
use futures_util::{FutureExt, StreamExt};
use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_grpc::{Call, Calls, Item, Limits, Peer};
use tidemill_rpc::schema::{Layout, Schema};
use tidemill_rpc::{
    Channel, Code, Incoming, Metadata, Net, Replies, Request, Response, Service, Serving, Status,
};
use tokio::sync::oneshot;

/// Pause before a service is tried again.
const PAUSE: Duration = Duration::from_millis(200);
/// Time for calls that run when the gateway ends.
const DRAIN: Duration = Duration::from_secs(1);
/// The name of the gateway among programs.
const NAME: &str = "grpc";

/// A stock gRPC server whose service programs call as one of this host.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct GrpcServer {
    /// The full name of the service.
    pub service: String,
    /// Where it is served: `http://HOST:PORT`.
    pub uri: String,
    /// Its schema: a set of file descriptors.
    pub descriptors: Vec<u8>,
}

/// The way between stock gRPC programs and those that call through the service. It ends when this is dropped.
pub struct Gateway {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
    address: Option<SocketAddr>,
}

impl Gateway {
    /// Serves the services of this host to gRPC clients at `listen`, and those of gRPC servers to programs of this host.
    ///
    /// # Errors
    /// The address is taken, or a server has a wrong address or schema; for people.
    pub fn start(
        socket: &Path,
        listen: Option<SocketAddr>,
        servers: Vec<GrpcServer>,
    ) -> Result<Self, String> {
        let failed = |error: std::io::Error| format!("gRPC: {error}");
        let at = |address: SocketAddr| move |error: std::io::Error| format!("gRPC at {address}: {error}");
        let listener = match listen {
            // Another version has the address until it retires.
            Some(address) if crate::supervise::is_beside(socket) => Listening::Later(address),
            Some(address) => {
                let listener = std::net::TcpListener::bind(address).map_err(at(address))?;
                listener.set_nonblocking(true).map_err(at(address))?;
                Listening::Now(listener)
            }
            None => Listening::Not,
        };
        let address = match &listener {
            Listening::Now(listener) => listener.local_addr().ok(),
            Listening::Later(address) => Some(*address),
            Listening::Not => None,
        };
        let servers: Vec<FarService> = servers.into_iter().map(FarService::new).collect::<Result<_, _>>()?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let (stop, stopped) = oneshot::channel();
        let socket = socket.to_owned();
        let thread = std::thread::Builder::new().name("tm-net-grpc".into()).spawn(move || {
            runtime.block_on(work(socket, listener, servers, stopped));
            runtime.shutdown_timeout(DRAIN);
        });
        Ok(Self { stop: Some(stop), thread: Some(thread.map_err(failed)?), address })
    }

    /// Where gRPC clients reach it.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic of it was reported by the hook.
            let _ = thread.join();
        }
    }
}

async fn connect(socket: &Path) -> Net {
    loop {
        match Net::connect_to(socket, NAME).await {
            Ok(net) => return net,
            Err(status) => {
                tracing::warn!("gRPC: {status}");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

/// The address for gRPC clients.
enum Listening {
    Not,
    Now(std::net::TcpListener),
    /// It is taken as soon as it is free.
    Later(SocketAddr),
}

async fn bind_later(address: SocketAddr) -> std::net::TcpListener {
    loop {
        let bound = std::net::TcpListener::bind(address);
        match bound.and_then(|listener| listener.set_nonblocking(true).map(|()| listener)) {
            Ok(listener) => return listener,
            Err(error) => tracing::debug!("gRPC at {address}: {error}"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn work(
    socket: PathBuf,
    listener: Listening,
    servers: Vec<FarService>,
    stopped: oneshot::Receiver<()>,
) {
    let serve = async {
        let net = connect(&socket).await;
        let mut serving: Vec<Serving> = Vec::new();
        for server in servers {
            match net.serve(server.clone()).await {
                Ok(of) => serving.push(of),
                Err(status) => tracing::error!("gRPC: {} is not served here: {status}", server.name),
            }
        }
        let listener = match listener {
            Listening::Not => return std::future::pending().await,
            Listening::Now(listener) => listener,
            Listening::Later(address) => bind_later(address).await,
        };
        let near = Arc::new(Near { net, channels: Arc::default() });
        let limits = Limits {
            message: tidemill_rpc::protocol::MOST_BYTES as usize,
            drain: DRAIN,
            ..Limits::default()
        };
        match tokio::net::TcpListener::from_std(listener) {
            Ok(listener) => {
                let shutdown = std::future::pending::<()>();
                tidemill_grpc::serve(listener, near, limits, shutdown).await;
            }
            Err(error) => tracing::error!("gRPC: {error}"),
        }
        drop(serving);
    };
    tokio::select! {
        () = serve => {}
        _ = stopped => {}
    }
}

fn to_grpc(status: Status) -> (tidemill_grpc::Status, tidemill_grpc::Metadata) {
    let code = tidemill_grpc::Code::from_number(u32::from(status.code as u8));
    let code = code.unwrap_or(tidemill_grpc::Code::Unknown);
    (tidemill_grpc::Status { code, message: status.message }, pairs(&status.metadata))
}

fn from_grpc(status: tidemill_grpc::Status, metadata: tidemill_grpc::Metadata) -> Status {
    let code = Code::from_number(status.code.number());
    Status { code, message: status.message, metadata: metadata.into_iter().collect() }
}

fn pairs(metadata: &Metadata) -> tidemill_grpc::Metadata {
    metadata.iter().map(|(name, value)| (name.to_owned(), value.to_vec())).collect()
}

/// Brings protobuf into the flat form.
fn decode(schema: &Schema, layout: &Layout, message: &Bytes) -> Result<Vec<Bytes>, Status> {
    layout.decode(schema, message).map_err(|error| Status::invalid_argument(format!("the message: {error}")))
}

/// Brings the flat form into protobuf.
fn encode(schema: &Schema, layout: &Layout, flat: &[u8]) -> Result<Bytes, Status> {
    let mut bytes = Vec::new();
    let encoded = layout.encode(schema, flat, &mut bytes);
    encoded.map_err(|error| Status::internal(format!("the message: {error}")))?;
    Ok(bytes.into())
}

type Known = (Channel, Schema);

/// Services of this host, for gRPC clients.
#[derive(Clone)]
struct Near {
    net: Net,
    channels: Arc<Mutex<HashMap<String, Known>>>,
}

impl Near {
    async fn channel(&self, service: &str) -> Result<Known, Status> {
        let known = self.channels.lock().unwrap_or_else(PoisonError::into_inner).get(service).cloned();
        if let Some(known) = known {
            return Ok(known);
        }
        let found = self.net.discover(service).await;
        let found = found.map_err(|status| match status.code {
            // As gRPC servers say it of services that they do not have.
            Code::Unavailable => Status::unimplemented(status.message),
            _ => status,
        })?;
        let mut channels = self.channels.lock().unwrap_or_else(PoisonError::into_inner);
        channels.insert(service.to_owned(), found.clone());
        Ok(found)
    }

    /// Forgets what is known of a service: its server may be another one now.
    fn forget(&self, service: &str) {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner).remove(service);
    }

    async fn answer(self, call: Call) -> Result<BoxStream<'static, Item>, Status> {
        let path = call.path.strip_prefix('/').and_then(|path| path.split_once('/'));
        let (service, method) = path.ok_or_else(|| Status::unimplemented("this is no path of a method"))?;
        let (channel, schema) = self.channel(service).await?;
        let methods = schema.service(service).map(|of| of.methods.as_slice()).unwrap_or_default();
        let Some(number) = methods.iter().position(|of| of.name == method) else {
            self.forget(service);
            return Err(Status::unimplemented(format!("{service} has no method {method}")));
        };
        let of = methods[number].clone();
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let message = decode(&schema, schema.message(of.input), &call.message)?;
        let metadata: Metadata = call.metadata.into_iter().collect();
        let request = Request { message, metadata, timeout: call.timeout };
        if !of.server_streaming {
            let reply = channel.unary_flat(number, request).await;
            let Response { message, metadata } = reply.inspect_err(|status| {
                if status.code == Code::FailedPrecondition {
                    self.forget(service);
                }
            })?;
            let message = encode(&schema, schema.message(of.output), &message)?;
            let items = [Item::Leading(pairs(&metadata)), Item::Message(message), Item::ok()];
            return Ok(stream::iter(items).boxed());
        }
        let replies = channel.streaming_flat(number, request).await?;
        let next = move |replies: Option<tidemill_rpc::FlatStreaming>| {
            let schema = schema.clone();
            async move {
                let mut replies = replies?;
                let item = match replies.next().await {
                    Ok(Some(reply)) => {
                        encode(&schema, schema.message(of.output), &reply.message).map(Item::Message)
                    }
                    Ok(None) => return Some((Item::ok(), None)),
                    Err(status) => Err(status),
                };
                Some(match item {
                    Ok(item) => (item, Some(replies)),
                    Err(status) => {
                        let (status, trailing) = to_grpc(status);
                        (Item::End { status, trailing }, None)
                    }
                })
            }
        };
        Ok(stream::unfold(Some(replies), next).boxed())
    }
}

impl Calls for Near {
    fn call(
        &self,
        call: Call,
    ) -> BoxFuture<'static, Result<BoxStream<'static, Item>, tidemill_grpc::Status>> {
        let this = self.clone();
        async move {
            match this.answer(call).await {
                Ok(items) => Ok(items),
                Err(status) => {
                    let (status, trailing) = to_grpc(status);
                    Ok(stream::iter([Item::End { status, trailing }]).boxed())
                }
            }
        }
        .boxed()
    }
}

/// A service of a stock gRPC server, for programs of this host.
#[derive(Clone)]
struct FarService {
    name: String,
    schema: Schema,
    peer: Peer,
}

impl FarService {
    fn new(of: GrpcServer) -> Result<Self, String> {
        let GrpcServer { service: name, uri, descriptors } = of;
        let schema =
            Schema::from_bytes(&descriptors).map_err(|error| format!("the schema of {name}: {error}"))?;
        if schema.service(&name).is_none() {
            let names: Vec<&str> = schema.services().iter().map(|of| of.name.as_str()).collect();
            return Err(format!("the schema has no service {name}; it has {}", names.join(", ")));
        }
        let peer = Peer::connect(&uri).map_err(|error| format!("{uri}: {error}"))?;
        Ok(Self { name, schema, peer })
    }

    /// Calls the gRPC server, and answers with what it answers.
    async fn forward(self, method: u32, call: Incoming) {
        let of = self.schema.service(&self.name).and_then(|of| of.methods.get(method as usize)).cloned();
        let Some(of) = of else { return call.fail(Status::unimplemented("there is no such method")) };
        let Request { message, metadata, timeout } = call.flat();
        let message = match encode(&self.schema, self.schema.message(of.input), &message) {
            Ok(message) => message,
            Err(status) => return call.fail(status),
        };
        let path = format!("/{}/{}", self.name, of.name);
        let asked = Call { path, metadata: pairs(&metadata), timeout, message };
        let mut items = match self.peer.call(asked).await {
            Ok(items) => items,
            Err(status) => return call.fail(from_grpc(status, Vec::new())),
        };
        let replies: Replies<()> = call.replies();
        let mut leading = Metadata::default();
        let mut reply = None;
        while let Some(item) = items.next().await {
            match item {
                Item::Leading(metadata) => leading = metadata.into_iter().collect(),
                Item::Message(bytes) => {
                    let parts = match decode(&self.schema, self.schema.message(of.output), &bytes) {
                        Ok(parts) => parts,
                        Err(status) => return call.fail(Status::internal(status.message)),
                    };
                    if !of.server_streaming {
                        reply = Some(parts);
                    } else if replies.send_flat(&std::mem::take(&mut leading), parts).await.is_err() {
                        return;
                    }
                }
                Item::End { status, trailing } if status.code == tidemill_grpc::Code::Ok => {
                    let missing = || Status::internal("the gRPC server ended the call without a message");
                    return match (of.server_streaming, reply) {
                        (true, _) => call.end(Ok(())),
                        (false, Some(message)) => {
                            let metadata =
                                leading.iter().map(|(name, value)| (name.to_owned(), value.to_vec()));
                            let metadata = metadata.chain(trailing).collect();
                            call.reply_flat(Ok(Response { message, metadata })).await;
                        }
                        (false, None) => call.fail(missing()),
                    };
                }
                Item::End { status, trailing } => return call.fail(from_grpc(status, trailing)),
            }
        }
        call.fail(Status::unavailable("the gRPC server went away"));
    }
}

impl Service for FarService {
    fn name(&self) -> &str {
        &self.name
    }

    fn descriptors(&self) -> &[u8] {
        self.schema.bytes()
    }

    fn call(&self, method: u32, call: Incoming) -> tidemill_rpc::BoxFuture<'static, ()> {
        Box::pin(self.clone().forward(method, call))
    }
}
