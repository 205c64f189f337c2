//! The HTTP server of the controller: who asks, whether they may, and what they get. What is said is in [`crate::api`].
use super::Shared;
use super::runs::SubmitError;
use super::tls::{Peer, TlsListener};
use crate::api::{CHUNK, Heartbeat, Refused, RenewRequest, Submission, TokenAnswer, TokenRequest};
use crate::blobs::BlobError;
use axum::body::Bytes;
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post};
use axum::{Json, Router};
use serde::Deserialize;
use std::sync::Arc;
use std::time::Duration;
use tidemill_identity::{
    Action, IdentityError, JoinRequest, JoinTokenOptions, Refusal, RefusalKind, Timestamp, VerifiedPeer,
};
use tidemill_link::remote::ClientCertificates;
use tokio::sync::oneshot;

/// Bytes of a request with JSON.
const MOST_JSON: usize = 16 << 20;
/// Bytes of a file that is sent.
const MOST_FILE: usize = 4 << 30;
/// Who waits for events waits at most so long.
const LONGEST_WAIT: u64 = 60;

/// A server at work.
pub(super) struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub(super) fn start(shared: &Arc<Shared>, listener: std::net::TcpListener) -> std::io::Result<Self> {
        listener.set_nonblocking(true)?;
        let config = shared
            .credentials
            .server_config(ClientCertificates::Optional)
            .map_err(|error| std::io::Error::other(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("tm-http")
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let app = app(Arc::clone(shared));
        let listener = {
            let _in_runtime = runtime.enter();
            TlsListener::new(tokio::net::TcpListener::from_std(listener)?, config)?
        };
        let thread = std::thread::Builder::new().name("tm-server".into()).spawn(move || {
            runtime.block_on(async move {
                let service = app.into_make_service_with_connect_info::<Peer>();
                tokio::select! {
                    _ = axum::serve(listener, service) => {}
                    _ = stopped => {}
                }
            });
            runtime.shutdown_timeout(Duration::from_secs(1));
        })?;
        Ok(Self { stop: Some(stop), thread: Some(thread) })
    }

    pub(super) fn end(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn app(shared: Arc<Shared>) -> Router {
    let files = Router::new()
        .route("/v1/blobs/{digest}", get(blob).put(put_blob))
        .layer(DefaultBodyLimit::max(MOST_FILE));
    Router::new()
        .route("/v1/join", post(join))
        .route("/v1/renew", post(renew))
        .route("/v1/heartbeat", post(heartbeat))
        .route("/v1/blobs/missing", post(missing))
        .route("/v1/runs", get(runs).post(submit))
        .route("/v1/runs/{name}", get(run).delete(cancel))
        .route("/v1/runs/{name}/logs", get(logs))
        .route("/v1/workers", get(workers))
        .route("/v1/workers/{name}", delete(revoke))
        .route("/v1/workers/{name}/drain", post(drain))
        .route("/v1/workers/{name}/resume", post(resume))
        .route("/v1/events", get(events))
        .route("/v1/join-tokens", post(join_token))
        .layer(DefaultBodyLimit::max(MOST_JSON))
        .merge(files)
        .fallback(async || No(StatusCode::NOT_FOUND, "there is nothing at this path; see the API".into()))
        .with_state(shared)
}

/// A request that is refused.
struct No(StatusCode, String);

impl IntoResponse for No {
    fn into_response(self) -> Response {
        (self.0, Json(Refused { error: self.1 })).into_response()
    }
}

impl From<Refusal> for No {
    fn from(refusal: Refusal) -> Self {
        tracing::warn!("refused: {refusal}");
        let status = match refusal.kind() {
            RefusalKind::Malformed => StatusCode::BAD_REQUEST,
            RefusalKind::Unauthenticated => StatusCode::UNAUTHORIZED,
            RefusalKind::Forbidden => StatusCode::FORBIDDEN,
            RefusalKind::Conflict => StatusCode::CONFLICT,
        };
        Self(status, refusal.for_peer())
    }
}

impl From<IdentityError> for No {
    fn from(error: IdentityError) -> Self {
        match error {
            IdentityError::Refused(refusal) => refusal.into(),
            IdentityError::Invalid(text) => Self(StatusCode::BAD_REQUEST, text),
            IdentityError::NoSuch(what) => Self(StatusCode::NOT_FOUND, format!("there is no {what}")),
            other => broken(&other),
        }
    }
}

fn broken(error: &dyn std::fmt::Display) -> No {
    tracing::error!("{error}");
    No(StatusCode::INTERNAL_SERVER_ERROR, format!("the controller cannot do it now: {error}"))
}

fn none(what: &str, name: &str) -> No {
    No(StatusCode::NOT_FOUND, format!("there is no {what} `{name}`"))
}

type Answer<T> = Result<Json<T>, No>;
type Who = (ConnectInfo<Peer>, HeaderMap);

/// Does something that may wait for the disk.
async fn blocking<T: Send + 'static>(
    shared: &Arc<Shared>,
    act: impl FnOnce(&Arc<Shared>) -> Result<T, No> + Send + 'static,
) -> Result<T, No> {
    let shared = Arc::clone(shared);
    tokio::task::spawn_blocking(move || act(&shared)).await.map_err(|error| broken(&error))?
}

/// The worker that asks.
fn worker(shared: &Shared, peer: &Peer) -> Result<(String, VerifiedPeer), No> {
    if peer.chain.is_empty() {
        return Err(No(StatusCode::UNAUTHORIZED, "a worker shows its certificate: join first".into()));
    }
    let verified = shared.authority.verify(&peer.chain, Timestamp::now())?;
    match verified.identity.worker() {
        Some(name) => Ok((name.to_string(), verified)),
        None => Err(No(StatusCode::FORBIDDEN, "only workers may do this".into())),
    }
}

/// The name of the person that asks, who may do it.
fn person(shared: &Shared, headers: &HeaderMap, action: Action) -> Result<String, No> {
    let shown = headers.get("authorization").and_then(|value| value.to_str().ok());
    let token = shown.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default();
    let person = shared.authority.authenticate(token, Timestamp::now())?;
    person.require(action)?;
    Ok(person.name)
}

async fn join(
    State(shared): State<Arc<Shared>>,
    Json(request): Json<JoinRequest>,
) -> Answer<tidemill_identity::Issued> {
    blocking(&shared, move |shared| Ok(Json(shared.authority.redeem(&request, Timestamp::now())?))).await
}

async fn renew(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(request): Json<RenewRequest>,
) -> Answer<tidemill_identity::Issued> {
    blocking(&shared, move |shared| {
        worker(shared, &peer)?;
        Ok(Json(shared.authority.renew(&peer.chain, &request.request_pem, Timestamp::now())?))
    })
    .await
}

async fn heartbeat(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(heartbeat): Json<Heartbeat>,
) -> Answer<crate::api::Duties> {
    blocking(&shared, move |shared| {
        let (name, verified) = worker(shared, &peer)?;
        Ok(Json(shared.heard(&verified, &name, heartbeat, peer.address.ip().to_string())))
    })
    .await
}

/// Asks `act` where the person may do it.
async fn asked<T: Send + 'static>(
    shared: Arc<Shared>,
    (_, headers): Who,
    action: Action,
    act: impl FnOnce(&Arc<Shared>, &str) -> Result<T, No> + Send + 'static,
) -> Answer<T> {
    blocking(&shared, move |shared| {
        let name = person(shared, &headers, action)?;
        act(shared, &name).map(Json)
    })
    .await
}

async fn runs(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<Vec<crate::api::RunView>> {
    asked(shared, (who, headers), Action::View, |shared, _| Ok(shared.run_views())).await
}

async fn run(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<crate::api::RunView> {
    asked(shared, (who, headers), Action::View, move |shared, _| {
        shared.run_view(&name).ok_or_else(|| none("run", &name))
    })
    .await
}

async fn submit(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
    Json(submission): Json<Submission>,
) -> Answer<crate::api::RunView> {
    asked(shared, (who, headers), Action::Submit, move |shared, by| {
        shared.submit(submission, by).map_err(|error| match error {
            SubmitError::Wrong(text) => No(StatusCode::UNPROCESSABLE_ENTITY, text),
            SubmitError::Taken(_) => No(StatusCode::CONFLICT, error.to_string()),
            SubmitError::Facts(error) => broken(&error),
        })
    })
    .await
}

async fn cancel(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<crate::api::RunView> {
    asked(shared, (who, headers), Action::Cancel, move |shared, by| {
        shared.cancel(&name, by).map_err(|error| broken(&error))?.ok_or_else(|| none("run", &name))
    })
    .await
}

#[derive(Deserialize)]
struct Behind {
    #[serde(default)]
    after: u64,
    #[serde(default)]
    wait: u64,
}

async fn logs(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    Query(behind): Query<Behind>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<Vec<crate::api::LogLine>> {
    asked(shared, (who, headers), Action::View, move |shared, _| match shared.run_view(&name) {
        Some(_) => Ok(shared.logs(&name, behind.after)),
        None => Err(none("run", &name)),
    })
    .await
}

async fn events(
    State(shared): State<Arc<Shared>>,
    Query(behind): Query<Behind>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<Vec<crate::api::Event>> {
    asked(shared, (who, headers), Action::View, move |shared, _| {
        Ok(shared.events(behind.after, Duration::from_secs(behind.wait.min(LONGEST_WAIT))))
    })
    .await
}

async fn workers(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<Vec<crate::api::WorkerView>> {
    asked(shared, (who, headers), Action::View, |shared, _| Ok(shared.worker_views())).await
}

async fn set_drained(
    shared: Arc<Shared>,
    name: String,
    who: Who,
    is_drained: bool,
) -> Answer<crate::api::WorkerView> {
    asked(shared, who, Action::Drain, move |shared, by| {
        shared.drain(&name, is_drained, by).map_err(|error| broken(&error))?;
        shared.worker_views().into_iter().find(|view| view.name == name).ok_or_else(|| none("worker", &name))
    })
    .await
}

async fn drain(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<crate::api::WorkerView> {
    set_drained(shared, name, (who, headers), true).await
}

async fn resume(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<crate::api::WorkerView> {
    set_drained(shared, name, (who, headers), false).await
}

async fn revoke(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<u64> {
    asked(shared, (who, headers), Action::ManageWorkers, move |shared, by| {
        let worker = name.parse().map_err(|_| none("worker", &name))?;
        shared.authority.revoke_worker(&worker, "revoked by hand", by, Timestamp::now())?;
        shared.forget_worker(&name, by).map_err(|error| broken(&error))?;
        Ok(1)
    })
    .await
}

async fn join_token(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
    Json(request): Json<TokenRequest>,
) -> Answer<TokenAnswer> {
    asked(shared, (who, headers), Action::ManageTokens, move |shared, by| {
        let mut options = JoinTokenOptions { replaces: request.replaces, ..JoinTokenOptions::default() };
        options.uses = request.uses.unwrap_or(options.uses);
        options.lifetime = request.seconds.map_or(options.lifetime, Duration::from_secs);
        if let Some(name) = &request.name {
            let name = name.parse().map_err(|error| No(StatusCode::BAD_REQUEST, format!("{error}")))?;
            options.name = Some(name);
        }
        let token = shared.authority.create_join_token(&options, by, Timestamp::now())?;
        Ok(TokenAnswer { token: token.reveal().to_string(), address: shared.address.to_string() })
    })
    .await
}

async fn missing(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
    Json(digests): Json<Vec<String>>,
) -> Answer<Vec<String>> {
    asked(shared, (who, headers), Action::Submit, move |shared, _| {
        Ok(digests.into_iter().filter(|digest| !shared.blobs.has(digest)).collect())
    })
    .await
}

async fn put_blob(
    State(shared): State<Arc<Shared>>,
    Path(digest): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
    bytes: Bytes,
) -> Answer<u64> {
    asked(shared, (who, headers), Action::Submit, move |shared, _| {
        shared.blobs.put(&digest, &bytes[..]).map(|()| bytes.len() as u64).map_err(|error| match error {
            BlobError::System { .. } => broken(&error),
            other => No(StatusCode::BAD_REQUEST, other.to_string()),
        })
    })
    .await
}

#[derive(Deserialize)]
struct Offset {
    #[serde(default)]
    offset: u64,
}

async fn blob(
    State(shared): State<Arc<Shared>>,
    Path(digest): Path<String>,
    Query(from): Query<Offset>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Result<Vec<u8>, No> {
    blocking(&shared, move |shared| {
        if worker(shared, &peer).is_err() {
            person(shared, &headers, Action::View)?;
        }
        let found = shared.blobs.read(&digest, from.offset, CHUNK).map_err(|error| match error {
            BlobError::System { .. } => broken(&error),
            other => No(StatusCode::BAD_REQUEST, other.to_string()),
        })?;
        found.map(|(bytes, _)| bytes).ok_or_else(|| none("file", &digest))
    })
    .await
}
