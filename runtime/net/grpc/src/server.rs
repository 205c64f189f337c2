//! The server: connections, their limits, and their end.

mod answer;
mod health;

use std::future::{Future, poll_fn};
use std::sync::Arc;
use std::time::Duration;

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::calls::Calls;
use crate::frame::Frame;
use crate::socket;

/// Pause after the system refused a connection, which it does while it has no room for more files.
const PAUSE: Duration = Duration::from_millis(50);

/// Limits of a server.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest message of a request, in bytes; [`crate::MESSAGE_BYTES`] by default. Each running call may hold one of this size.
    pub message: usize,
    /// Sum of the names and values of a request's headers, in bytes; 16 KiB by default.
    pub headers: u32,
    /// Calls at a time on each connection; 256 by default. A client waits with more, or is refused.
    pub streams: u32,
    /// Connections at a time; 1,024 by default. One more is closed at once.
    pub connections: usize,
    /// Time for a new connection to speak HTTP/2, and for the message of a request to arrive; 20 s by default.
    pub arrival: Duration,
    /// Time without calls after which a connection is closed; 30 minutes by default.
    pub idle: Duration,
    /// Time that calls have to end by themselves after the shutdown; 10 s by default.
    pub drain: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            message: crate::MESSAGE_BYTES,
            headers: 16 << 10,
            streams: 256,
            connections: 1024,
            arrival: Duration::from_secs(20),
            idle: Duration::from_secs(30 * 60),
            drain: Duration::from_secs(10),
        }
    }
}

/// Serves all methods by [`Calls`], and `grpc.health.v1.Health/Check` by itself, to clients that speak HTTP/2 from the first byte.
///
/// After `shutdown` it accepts nothing more, asks clients to go away, and returns when the running calls have ended or
/// [`Limits::drain`] is over; calls that are left then are dropped. Dropping the future ends all connections at once.
pub async fn serve(
    listener: TcpListener,
    calls: Arc<dyn Calls>,
    limits: Limits,
    shutdown: impl Future<Output = ()>,
) {
    let limits = Arc::new(limits);
    let places = Arc::new(Semaphore::new(limits.connections.min(Semaphore::MAX_PERMITS)));
    let (stop, stopped) = watch::channel(false);
    let mut connections = JoinSet::new();
    let mut shutdown = std::pin::pin!(shutdown);
    loop {
        let accepted = tokio::select! {
            biased;
            () = &mut shutdown => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, from)) => match Arc::clone(&places).try_acquire_owned() {
                Ok(place) => {
                    let connection = Connection {
                        calls: Arc::clone(&calls),
                        limits: Arc::clone(&limits),
                        stopped: stopped.clone(),
                    };
                    connections.spawn(async move {
                        if let Err(error) = connection.run(stream).await {
                            tracing::debug!(%from, %error, "a gRPC connection ended");
                        }
                        drop(place);
                    });
                }
                Err(_) => tracing::warn!(%from, limit = limits.connections, "one gRPC connection too many"),
            },
            Err(error) => {
                tracing::warn!(%error, "a gRPC connection could not be accepted");
                tokio::select! {
                    () = &mut shutdown => break,
                    () = sleep(PAUSE) => {}
                }
            }
        }
    }
    drop(listener);
    stop.send_replace(true);
    let _ = timeout(limits.drain, async { while connections.join_next().await.is_some() {} }).await;
    connections.shutdown().await;
}

/// One connection and the parts of the server that it needs.
struct Connection {
    calls: Arc<dyn Calls>,
    limits: Arc<Limits>,
    stopped: watch::Receiver<bool>,
}

impl Connection {
    async fn run(mut self, stream: TcpStream) -> Result<(), h2::Error> {
        if let Err(error) = socket::prepare(&stream) {
            tracing::debug!(%error, "options of a gRPC connection");
        }
        let limits = Arc::clone(&self.limits);
        let streams = usize::try_from(limits.streams).unwrap_or(usize::MAX);
        let mut builder = h2::server::Builder::new();
        builder
            .initial_window_size(socket::STREAM_WINDOW)
            .initial_connection_window_size(socket::SERVER_WINDOW)
            .max_frame_size(socket::FRAME)
            .max_header_list_size(limits.headers)
            .max_concurrent_streams(limits.streams)
            // A client may cancel all of its calls before the first is seen here.
            .max_pending_accept_reset_streams(streams);
        let handshake = builder.handshake::<_, Frame>(stream);
        let mut connection = tokio::select! {
            connection = timeout(limits.arrival, handshake) => match connection {
                Ok(connection) => connection?,
                Err(_) => return Ok(()),
            },
            _ = self.stopped.wait_for(|stopped| *stopped) => return Ok(()),
        };
        // Dropped with the connection: then the calls of a lost client end.
        let mut running = JoinSet::new();
        let mut leaving = false;
        loop {
            let idle = !leaving && running.is_empty();
            tokio::select! {
                biased;
                _ = self.stopped.wait_for(|stopped| *stopped), if !leaving => {
                    leaving = true;
                    connection.graceful_shutdown();
                }
                // Each request and each end of one starts this time again.
                () = sleep(limits.idle), if idle => {
                    leaving = true;
                    connection.graceful_shutdown();
                }
                request = poll_fn(|context| connection.poll_accept(context)) => {
                    let Some(request) = request else { break };
                    let (request, respond) = request?;
                    running.spawn(answer::answer(request, respond, Arc::clone(&self.calls), Arc::clone(&limits)));
                }
                Some(ended) = running.join_next(), if !running.is_empty() => {
                    if let Err(error) = ended {
                        tracing::error!(%error, "a gRPC call");
                    }
                }
            }
        }
        poll_fn(|context| connection.poll_closed(context)).await
    }
}
