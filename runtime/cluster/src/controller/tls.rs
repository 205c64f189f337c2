//! TLS before HTTP: every handshake is a task of its own, so that one who says nothing holds up nobody. Where there are many of those,
//! the one that has been at it for longest makes room.
use axum::serve::Listener;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::task::AbortHandle;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A handshake may take so long.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes at once; one more ends the oldest of them.
const MOST_HANDSHAKES: usize = 256;

/// Who is at the other end.
#[derive(Debug, Clone)]
pub(crate) struct Peer {
    pub(crate) address: SocketAddr,
    /// Verified; empty: it showed none.
    pub(crate) chain: Arc<Vec<CertificateDer<'static>>>,
}

/// Connections whose handshake is done.
pub(crate) struct TlsListener {
    local: SocketAddr,
    ready: Receiver<(TlsStream<TcpStream>, Peer)>,
}

impl TlsListener {
    /// Accepts on tasks of its own.
    pub(crate) fn new(listener: TcpListener, config: ServerConfig) -> io::Result<Self> {
        let local = listener.local_addr()?;
        let (sender, ready) = channel(64);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        tokio::spawn(async move {
            let mut handshakes = VecDeque::new();
            loop {
                let (stream, address) = match listener.accept().await {
                    Ok((stream, address)) => {
                        // Answers are small, and connections stay open: nothing is to wait for more.
                        if let Err(error) = stream.set_nodelay(true) {
                            tracing::debug!(%address, "{error}");
                        }
                        (stream, address)
                    }
                    Err(error) => {
                        tracing::debug!("a connection was lost at once: {error}");
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    }
                };
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
                        // Whoever looks whether the port is open, such as `up`, says nothing more.
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
        Ok(Self { local, ready })
    }
}

/// A peer that is being asked who it is.
struct Handshake {
    task: AbortHandle,
    is_done: Arc<AtomicBool>,
}

/// Ends the oldest of many.
fn make_room(handshakes: &mut VecDeque<Handshake>) {
    handshakes
        .retain(|handshake| !handshake.is_done.load(Ordering::Acquire) && !handshake.task.is_finished());
    if handshakes.len() >= MOST_HANDSHAKES
        && let Some(oldest) = handshakes.pop_front()
    {
        oldest.task.abort();
    }
}

impl Listener for TlsListener {
    type Io = TlsStream<TcpStream>;
    type Addr = Peer;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.ready.recv().await {
            Some(ready) => ready,
            None => std::future::pending().await, // the server is being ended
        }
    }

    fn local_addr(&self) -> io::Result<Self::Addr> {
        Ok(Peer { address: self.local, chain: Arc::default() })
    }
}
