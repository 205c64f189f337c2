//! A connection to a place.
use std::borrow::Cow;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream, lookup_host};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::TlsConnector;

use crate::call::{CallError, broken, timed_out};

/// Where requests go.
#[derive(Clone)]
pub enum Place {
    /// `HOST:PORT`, with TLS.
    Tls {
        /// Host and port.
        address: String,
        /// Says which peer is trusted and which certificate is shown.
        config: Arc<ClientConfig>,
        /// The DNS name that the peer's certificate must be valid for.
        name: Cow<'static, str>,
    },
    /// `HOST:PORT`, without TLS.
    Tcp(String),
    /// A Unix socket.
    Unix(PathBuf),
}

impl Place {
    /// `HOST:PORT`, or the path of the socket.
    pub fn address(&self) -> String {
        match self {
            Self::Tls { address, .. } | Self::Tcp(address) => address.clone(),
            Self::Unix(path) => path.display().to_string(),
        }
    }

    /// The value of the `Host` header.
    pub(crate) fn host(&self) -> &str {
        match self {
            Self::Tls { address, .. } | Self::Tcp(address) => address,
            Self::Unix(_) => "localhost",
        }
    }

    /// Connects. `shakes_by`: until then the peer must have finished the handshake of TLS as well, else it counts as unreachable: its
    /// process stands still.
    pub(crate) async fn connect(&self, by: Instant, shakes_by: Option<Instant>) -> Result<Line, CallError> {
        let unreachable = |source| CallError::Unreachable { place: self.address(), source };
        let reach = shakes_by.map_or(by, |limit| limit.min(by));
        let stream: Box<dyn Stream> = match self {
            Self::Unix(path) => {
                Box::new(within(reach, UnixStream::connect(path)).await.map_err(unreachable)?)
            }
            Self::Tcp(address) => Box::new(within(reach, dial(address)).await.map_err(unreachable)?),
            Self::Tls { address, config, name } => {
                let stream = within(reach, dial(address)).await.map_err(unreachable)?;
                let tls = |reason| CallError::Tls { place: address.clone(), reason };
                let name = ServerName::try_from(name.to_string())
                    .map_err(|error| tls(rustls::Error::General(error.to_string())))?;
                let shaken =
                    within(reach, TlsConnector::from(Arc::clone(config)).connect(name, stream)).await;
                Box::new(shaken.map_err(|error| match (shakes_by, error.kind()) {
                    (Some(_), ErrorKind::TimedOut) => unreachable(error),
                    _ => broken(address, error),
                })?)
            }
        };
        Ok(Line(stream))
    }
}

async fn within<T>(by: Instant, what: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    timeout_at(by, what).await.unwrap_or_else(|_| Err(timed_out()))
}

async fn dial(address: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
    for address in lookup_host(address).await? {
        match TcpStream::connect(address).await {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// A connection. Where the peer has ended it while something was sent, the error is the reason that the peer gave before it did so.
pub(crate) struct Line(Box<dyn Stream>);

impl Line {
    fn last_words<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        let Poll::Ready(Err(error)) = &written else { return written };
        if !matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) {
            return written;
        }
        let mut bytes = [0; 1024];
        match Pin::new(&mut self.0).poll_read(cx, &mut ReadBuf::new(&mut bytes)) {
            Poll::Ready(Err(reason)) => Poll::Ready(Err(reason)),
            _ => written,
        }
    }
}

impl AsyncRead for Line {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, into)
    }
}

impl AsyncWrite for Line {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.0).poll_write(cx, bytes);
        self.last_words(cx, written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.0).poll_flush(cx);
        self.last_words(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
