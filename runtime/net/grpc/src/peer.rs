//! The client: calls to a server elsewhere.

mod connection;
mod exchange;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use http::Uri;
use http::uri::{Authority, Scheme};

use crate::calls::{Call, Calls, Item};
use crate::status::Status;
use connection::Connection;

/// An address that is not of the form `http://host:port`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{uri}` is no address of a gRPC server: {why}, as in http://127.0.0.1:50051")]
pub struct BadUri {
    /// The address as it was given.
    pub uri: String,
    /// The fault in it.
    pub why: &'static str,
}

/// Limits of a client.
#[derive(Clone, Debug)]
pub struct PeerLimits {
    /// Largest message of an answer, in bytes; [`crate::MESSAGE_BYTES`] by default.
    pub message: usize,
    /// Sum of the names and values of an answer's headers, in bytes; 64 KiB by default.
    pub headers: u32,
    /// Time to connect; 10 s by default.
    pub connecting: Duration,
    /// Pause after the first connection that failed; 100 ms by default. Each further one makes it 1.6 times as long, and calls in
    /// such a pause fail at once.
    pub first_pause: Duration,
    /// Longest pause between two attempts to connect; 10 s by default.
    pub longest_pause: Duration,
}

impl Default for PeerLimits {
    fn default() -> Self {
        PeerLimits {
            message: crate::MESSAGE_BYTES,
            headers: 64 << 10,
            connecting: Duration::from_secs(10),
            first_pause: Duration::from_millis(100),
            longest_pause: Duration::from_secs(10),
        }
    }
}

/// A gRPC server elsewhere, over one connection that is made when it is first needed and again when it is lost.
///
/// Calls to a server that is away end with [`crate::Code::Unavailable`], and with the same code if its connection is lost before they
/// end. Clones share the connection. Calls need a runtime of tokio with I/O and time.
#[derive(Clone, Debug)]
pub struct Peer {
    inner: Arc<Inner>,
}

/// State that the calls of one peer share.
#[derive(Debug)]
struct Inner {
    authority: Authority,
    limits: PeerLimits,
    connection: Connection,
}

impl Peer {
    /// Names a server by `http://host:port`; nothing is sent before the first call. Without a port it is 80.
    ///
    /// # Errors
    ///
    /// [`BadUri`] if the address has another form.
    pub fn connect(uri: &str) -> Result<Peer, BadUri> {
        Peer::with_limits(uri, PeerLimits::default())
    }

    /// Names a server as [`Peer::connect`] does, with other limits.
    ///
    /// # Errors
    ///
    /// [`BadUri`] if the address has another form.
    pub fn with_limits(uri: &str, limits: PeerLimits) -> Result<Peer, BadUri> {
        let bad = |why| BadUri { uri: uri.to_owned(), why };
        let parts = uri.parse::<Uri>().map_err(|_| bad("it is no URI"))?.into_parts();
        if parts.scheme != Some(Scheme::HTTP) {
            return Err(bad("it needs the scheme http"));
        }
        if parts.path_and_query.is_some_and(|path| path != "/") {
            return Err(bad("it has a path"));
        }
        let authority = parts.authority.ok_or_else(|| bad("it has no host"))?;
        if authority.host().is_empty() || authority.as_str().contains('@') {
            return Err(bad("it needs a host without a user"));
        }
        let host = authority.host().trim_start_matches('[').trim_end_matches(']').to_owned();
        let connection = Connection::new(host, authority.port_u16().unwrap_or(80));
        Ok(Peer { inner: Arc::new(Inner { authority, limits, connection }) })
    }
}

impl Calls for Peer {
    fn call(&self, call: Call) -> BoxFuture<'static, Result<BoxStream<'static, Item>, Status>> {
        exchange::exchange(Arc::clone(&self.inner), call).boxed()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_scheme_and_a_host() {
        for good in ["http://localhost:50051", "http://[::1]:1/", "http://shop.example"] {
            assert!(Peer::connect(good).is_ok(), "{good}");
        }
        for bad in
            ["", "localhost:50051", "https://a:1", "http://a:1/x", "http://u@a:1", "http://", "unix:/a", "/a"]
        {
            assert!(Peer::connect(bad).is_err(), "{bad}");
        }
    }
}
