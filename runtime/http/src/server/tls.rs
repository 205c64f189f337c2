//! TLS before HTTP: each handshake is a task, so a silent peer delays no other. With too many handshakes the oldest is dropped.
use super::{Accepts, Peer};
use rustls::ServerConfig;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// Pause after the system gave no connection.
const LOST: Duration = Duration::from_millis(20);
/// Time limit of a handshake.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Largest number of handshakes at once.
const MOST_HANDSHAKES: usize = 256;

/// Connections whose handshake is done.
pub struct TlsListener {
    ready: Receiver<(TlsStream<TcpStream>, Peer)>,
}

impl TlsListener {
    /// Accepts connections on separate tasks. Call it within a runtime.
    ///
    /// # Errors
    /// The runtime cannot take the listener.
    pub fn new(listener: std::net::TcpListener, config: ServerConfig) -> io::Result<Self> {
        let mut listener = plain(listener)?;
        let (sender, ready) = channel(64);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            let mut handshakes = VecDeque::new();
            loop {
                let (stream, peer) = Accepts::accept(&mut listener).await;
                let address = peer.address;
                // Answers are small, and connections stay open: send without delay.
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%address, "{error}");
                }
                make_room(&mut handshakes);
                let (acceptor, sender) = (acceptor.clone(), sender.clone());
                let is_done = Arc::new(AtomicBool::new(false));
                let done = Arc::clone(&is_done);
                let task = tokio::spawn(async move {
                    let shaken = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await;
                    done.store(true, Ordering::Release);
                    match shaken {
                        Ok(Ok(stream)) => {
                            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
                            let chain = Arc::new(chain.iter().map(|one| one.clone().into_owned()).collect());
                            let _ = sender.send((stream, Peer { address, chain })).await;
                        }
                        // A check whether the port is open, such as that of `up`, ends like this.
                        Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                            tracing::debug!(%address, "a peer went away: {error}");
                        }
                        Ok(Err(error)) => tracing::warn!(%address, "a peer is turned away: {error}"),
                        Err(_) => tracing::debug!(%address, "a peer said nothing"),
                    }
                });
                handshakes.push_back(Handshake { task: task.abort_handle(), is_done });
            }
        });
        Ok(Self { ready })
    }
}

/// A handshake in progress.
struct Handshake {
    task: AbortHandle,
    is_done: Arc<AtomicBool>,
}

/// Aborts the oldest handshake if there are too many.
fn make_room(handshakes: &mut VecDeque<Handshake>) {
    handshakes
        .retain(|handshake| !handshake.is_done.load(Ordering::Acquire) && !handshake.task.is_finished());
    if handshakes.len() >= MOST_HANDSHAKES
        && let Some(oldest) = handshakes.pop_front()
    {
        oldest.task.abort();
    }
}

impl Accepts for TlsListener {
    type Io = TlsStream<TcpStream>;

    async fn accept(&mut self) -> (Self::Io, Peer) {
        match self.ready.recv().await {
            Some(ready) => ready,
            None => std::future::pending().await, // the server is being ended
        }
    }
}

/// Makes a listener without TLS. Call it within a runtime.
///
/// # Errors
/// The runtime cannot take the listener.
pub fn plain(listener: std::net::TcpListener) -> io::Result<TcpListener> {
    listener.set_nonblocking(true)?;
    TcpListener::from_std(listener)
}

impl Accepts for TcpListener {
    type Io = TcpStream;

    async fn accept(&mut self) -> (TcpStream, Peer) {
        loop {
            match TcpListener::accept(self).await {
                Ok((stream, address)) => {
                    // Answers are small, and connections stay open: send without delay.
                    if let Err(error) = stream.set_nodelay(true) {
                        tracing::debug!(%address, "{error}");
                    }
                    return (stream, Peer { address, chain: Arc::default() });
                }
                Err(error) => {
                    tracing::debug!("a connection was lost at once: {error}");
                    tokio::time::sleep(LOST).await;
                }
            }
        }
    }
}
