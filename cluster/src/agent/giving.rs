//! Gives files to other workers of the cluster, who show their certificates; of a file that is still arriving, the part that is here.
use crate::blobs::Blobs;
use crate::serving::{self, CallerKind, Offset};
use axum::Router;
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::get;
use std::io::{self, Read};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tidemill_http::server::{Peer, TlsListener};
use tidemill_identity::{CertificateFacts, PeerIdentity};
use tidemill_link::remote::{ClientCertificates, Credentials};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Answers at once: each has a file open and a part of it in memory.
const MOST_ANSWERS: usize = 8;

/// All who come over TLS have shown a certificate.
struct Workers;

impl serving::Doorkeeper for Workers {
    fn knows(&self, peer: &Peer, _: &HeaderMap) -> CallerKind {
        if peer.chain.is_empty() { CallerKind::Nobody } else { CallerKind::Sender }
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
    answers: Arc<Semaphore>,
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
            answers: Arc::new(Semaphore::new(MOST_ANSWERS)),
        });
        let app = Router::new()
            .route("/v1/blobs/{digest}", get(blob))
            .route("/v1/here", get(here))
            .with_state(shared);
        let listener = {
            let _in_runtime = runtime.enter();
            TlsListener::new(listener, config)?
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
    Query(of): Query<Offset>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Result<Response, StatusCode> {
    if !is_worker(&shared, &peer) {
        return Err(StatusCode::FORBIDDEN);
    }
    let answers = Arc::clone(&shared.answers);
    let one_of_few = answers.try_acquire_owned().map_err(|_| StatusCode::SERVICE_UNAVAILABLE)?;
    let (blobs, wanted) = (Arc::clone(&shared.blobs), of.wanted(&headers));
    match tokio::task::spawn_blocking(move || blobs.open_or_follow(&digest, wanted.0)).await {
        Ok(Ok(Some((from, size)))) => {
            Ok(serving::content(Given { from, _one_of_few: one_of_few }, wanted, size))
        }
        Ok(Ok(None)) => Err(StatusCode::NOT_FOUND),
        Ok(Err(_)) => Err(StatusCode::BAD_REQUEST),
        Err(_) => Err(StatusCode::INTERNAL_SERVER_ERROR),
    }
}

/// A file that is being given.
struct Given {
    from: Box<dyn Read + Send>,
    _one_of_few: OwnedSemaphorePermit,
}

impl Read for Given {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.from.read(into)
    }
}
