//! Serves HTTP to peers that are not trusted: limits how many connections there are, how long each may send nothing, and how slowly it
//! may send. Which requests are answered, and with what, is up to [`Answers`].
//!
//! | what a peer does | what limits it |
//! |---|---|
//! | does not finish a handshake | [`TlsListener`] |
//! | does not finish the head of a request, or asks nothing | [`HEAD`] |
//! | sends a head that is too long | [`HEAD_BYTES`]: 431 |
//! | sends a body by drops | [`SILENCE`], [`SLOWEST`], see [`paced`] |
//! | takes nothing of an answer | [`READING`] |
//! | opens very many connections | the one of which nothing came for longest makes room, those first whose peer has proved nothing |
mod body;
mod connections;
mod file;
mod tls;
mod writing;

pub use body::paced;
pub use connections::PeerActivity;
pub use file::{relayed, streamed};
pub use tls::{TlsListener, plain};

pub use crate::channel::Channel;

// The types of requests and answers are those of hyper.
pub use bytes::Bytes;
pub use http_body_util::Full;
pub use hyper::body::Incoming;
pub use hyper::header::{self, HeaderValue};
pub use hyper::{Method, Request, Response, StatusCode};

use std::convert::Infallible;
use std::error::Error;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use connections::Connections;
use hyper::body::Body;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::watch;
use writing::Writing;

/// The head of a request is whole after so long, counted from the end of the answer before it. A client that keeps its connection for
/// longer than that finds it ended, and makes another one.
pub const HEAD: Duration = Duration::from_secs(20);
/// Bytes of the head of a request.
pub const HEAD_BYTES: usize = 32 << 10;
/// Fields of the head of a request.
const HEAD_FIELDS: usize = 64;
/// Limits how long a body pauses.
pub const SILENCE: Duration = Duration::from_secs(15);
/// Bytes per second of a body, on average, once it has taken longer than [`SILENCE`].
pub const SLOWEST: u64 = 1 << 10;
/// Limits how long a peer takes nothing of an answer.
pub const READING: Duration = Duration::from_secs(60);

/// The other end of a connection.
#[derive(Debug, Clone)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// Its certificates, verified; empty: it showed none.
    pub chain: Arc<Vec<CertificateDer<'static>>>,
}

/// Answers requests.
pub trait Answers: Send + Sync + 'static {
    /// The body of an answer.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static;

    /// Answers one. `heard` notes that something comes over the connection, and that its peer has proved who it is.
    fn answer(
        &self,
        request: Request<Incoming>,
        peer: &Peer,
        heard: &PeerActivity,
    ) -> impl Future<Output = Response<Self::Body>> + Send;
}

/// Connections, as they come.
pub trait Accepts: Send {
    /// A connection.
    type Io: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Waits for the next one.
    fn accept(&mut self) -> impl Future<Output = (Self::Io, Peer)> + Send;
}

/// Serves until it is dropped.
pub async fn serve(listener: impl Accepts, answers: Arc<impl Answers>) {
    let (_never, stop) = watch::channel(false);
    serve_until(listener, answers, stop).await;
}

/// Serves until `stop` becomes true, and then sends the answers to requests that were received before. Connections on which nothing is
/// asked end at once.
pub async fn serve_until(
    mut listener: impl Accepts,
    answers: Arc<impl Answers>,
    mut stop: watch::Receiver<bool>,
) {
    let connections = Arc::new(Connections::for_this_process());
    loop {
        let (stream, peer) = tokio::select! {
            accepted = listener.accept() => accepted,
            // Without its sender it never stops.
            true = is_stopped(&mut stop) => break,
        };
        let answers = Arc::clone(&answers);
        let mut stop = stop.clone();
        connections.hold(|heard| {
            if !peer.chain.is_empty() {
                heard.prove();
            }
            async move {
                let stream = Writing::new(stream, heard.clone());
                let desk = Arc::new((answers, peer, heard));
                let service = service_fn(move |request: Request<Incoming>| {
                    let desk = Arc::clone(&desk);
                    async move {
                        let (answers, peer, heard) = &*desk;
                        heard.now();
                        let answer = answers.answer(request, peer, heard).await;
                        // It may have been waited for, and is sent from now on.
                        heard.now();
                        Ok::<_, Infallible>(answer)
                    }
                });
                let served = http1::Builder::new()
                    .timer(TokioTimer::new())
                    .header_read_timeout(HEAD)
                    .max_buf_size(HEAD_BYTES)
                    .max_headers(HEAD_FIELDS)
                    .serve_connection(TokioIo::new(stream), service);
                let mut served = std::pin::pin!(served);
                let ended = tokio::select! {
                    ended = served.as_mut() => ended,
                    true = is_stopped(&mut stop) => {
                        served.as_mut().graceful_shutdown();
                        served.await
                    }
                };
                if let Err(error) = ended {
                    tracing::debug!("a connection ends: {error}");
                }
            }
        });
    }
    drop(listener); // nobody connects any more
    connections.all_ended().await;
}

/// Waits until it is true; false: it never will be.
async fn is_stopped(stop: &mut watch::Receiver<bool>) -> bool {
    stop.wait_for(|stop| *stop).await.is_ok()
}
