//! Gives files to other workers of the cluster, who show their certificates.
use crate::api::CHUNK;
use crate::blobs::{Blobs, Offset};
use crate::controller::tls::{Peer, TlsListener};
use crate::serving::{self, Known};
use axum::Router;
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::routing::get;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tidemill_identity::{CertificateFacts, PeerIdentity};
use tidemill_link::remote::{ClientCertificates, Credentials};
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;

/// Answers at once: each has a part of a file in memory.
const MOST_ANSWERS: usize = 8;

/// All who come over TLS have shown a certificate.
struct Workers;

impl serving::Doorkeeper for Workers {
    fn knows(&self, peer: &Peer, _: &HeaderMap) -> Known {
        if peer.chain.is_empty() { Known::Nobody } else { Known::Sender }
    }
}

/// A server at work, until it is dropped.
pub(super) struct Giver {
    port: u16,
    runtime: Option<Runtime>,
}

struct Shared {
    blobs: Arc<Blobs>,
    credentials: Credentials,
    answers: Semaphore,
}

impl Giver {
    /// Listens on a port that the system chooses.
    pub(super) fn start(
        address: IpAddr,
        port: u16,
        blobs: &Arc<Blobs>,
        credentials: &Credentials,
    ) -> std::io::Result<Self> {
        let listener = std::net::TcpListener::bind(SocketAddr::new(address, port))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let config = credentials
            .server_config(ClientCertificates::Required)
            .map_err(|error| std::io::Error::other(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(MOST_ANSWERS)
            .thread_name("tm-give")
            .enable_all()
            .build()?;
        let shared = Arc::new(Shared {
            blobs: Arc::clone(blobs),
            credentials: credentials.clone(),
            answers: Semaphore::new(MOST_ANSWERS),
        });
        let app = Router::new()
            .route("/v1/blobs/{digest}", get(blob))
            .route("/v1/here", get(here))
            .with_state(shared);
        let listener = {
            let _in_runtime = runtime.enter();
            TlsListener::new(tokio::net::TcpListener::from_std(listener)?, config)?
        };
        runtime.spawn(serving::serve(listener, app, Arc::new(Workers)));
        Ok(Self { port, runtime: Some(runtime) })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Giver {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_timeout(Duration::from_secs(1));
        }
    }
}

/// Whether a worker asks that still counts: the connection may be older than its end.
fn is_worker(shared: &Shared, peer: &Peer) -> bool {
    let Some(certificate) = peer.chain.first() else { return false };
    let is_worker = matches!(PeerIdentity::of_verified(certificate), Ok(PeerIdentity::Worker(_)));
    let facts = CertificateFacts::of_der(certificate);
    is_worker && facts.is_ok_and(|facts| !shared.credentials.revoked().contains(&facts.serial))
}

/// Answers that the agent is reachable.
async fn here(State(shared): State<Arc<Shared>>, ConnectInfo(peer): ConnectInfo<Peer>) -> StatusCode {
    match is_worker(&shared, &peer) {
        true => StatusCode::OK,
        false => StatusCode::FORBIDDEN,
    }
}

async fn blob(
    State(shared): State<Arc<Shared>>,
    Path(digest): Path<String>,
    Query(from): Query<Offset>,
    ConnectInfo(peer): ConnectInfo<Peer>,
) -> Result<Vec<u8>, StatusCode> {
    if !is_worker(&shared, &peer) {
        return Err(StatusCode::FORBIDDEN);
    }
    let _one_of_few = shared.answers.try_acquire().map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    let blobs = Arc::clone(&shared.blobs);
    let read = tokio::task::spawn_blocking(move || blobs.read(&digest, from.offset, CHUNK)).await;
    match read {
        Ok(Ok(Some((bytes, _)))) => Ok(bytes),
        Ok(Ok(None)) => Err(StatusCode::NOT_FOUND),
        Ok(Err(_)) => Err(StatusCode::BAD_REQUEST),
        Err(_) => Err(StatusCode::INTERNAL_SERVER_ERROR),
    }
}
