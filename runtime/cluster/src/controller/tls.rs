//! TLS before HTTP: every handshake is a task of its own, so that one who says nothing holds up nobody.
use axum::extract::connect_info::Connected;
use axum::serve::{IncomingStream, Listener};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::sync::mpsc::{Receiver, channel};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

/// A handshake may take so long.
const HANDSHAKE: Duration = Duration::from_secs(10);
/// Handshakes at once.
const MOST_HANDSHAKES: usize = 256;

/// Who is at the other end.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) address: SocketAddr,
    /// Verified; empty: it showed none.
    pub(super) chain: Arc<Vec<CertificateDer<'static>>>,
}

impl Connected<IncomingStream<'_, TlsListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, TlsListener>) -> Self {
        stream.remote_addr().clone()
    }
}

/// Connections whose handshake is done.
pub(super) struct TlsListener {
    local: SocketAddr,
    ready: Receiver<(TlsStream<TcpStream>, Peer)>,
}

impl TlsListener {
    /// Accepts on tasks of its own.
    pub(super) fn new(listener: TcpListener, config: ServerConfig) -> io::Result<Self> {
        let local = listener.local_addr()?;
        let (sender, ready) = channel(64);
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let handshakes = Arc::new(Semaphore::new(MOST_HANDSHAKES));
        tokio::spawn(async move {
            loop {
                let Ok(permit) = Arc::clone(&handshakes).acquire_owned().await else { return };
                let (stream, address) = match listener.accept().await {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        tracing::debug!("a connection was lost at once: {error}");
                        tokio::time::sleep(Duration::from_millis(20)).await;
                        continue;
                    }
                };
                let (acceptor, sender) = (acceptor.clone(), sender.clone());
                tokio::spawn(async move {
                    let shaken = tokio::time::timeout(HANDSHAKE, acceptor.accept(stream)).await;
                    drop(permit);
                    match shaken {
                        Ok(Ok(stream)) => {
                            let chain = stream.get_ref().1.peer_certificates().unwrap_or_default();
                            let chain = Arc::new(chain.iter().map(|one| one.clone().into_owned()).collect());
                            let _ = sender.send((stream, Peer { address, chain })).await;
                        }
                        Ok(Err(error)) => tracing::warn!(%address, "a peer is turned away: {error}"),
                        Err(_) => tracing::debug!(%address, "a peer said nothing"),
                    }
                });
            }
        });
        Ok(Self { local, ready })
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
