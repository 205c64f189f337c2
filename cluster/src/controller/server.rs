//! The HTTP server of the controller: authentication, permissions and routes. The types are in [`crate::api`].
mod feeds;
mod plans;
mod replans;

use super::answering::{Answer, No, Who, asked, blocking, broken, none, person, revoked, token, worker};
use super::runs::SubmitError;
use super::{
    Shared, figures, health, jobs, metrics, net, openapi, page, parts, people, receiving, results, samples,
    sources,
};
use crate::api::{Heartbeat, RenewRequest, Submission, TokenAnswer, TokenRequest};
use crate::blobs::BlobError;
use crate::serving::{self, CallerKind, Offset};
use axum::extract::{ConnectInfo, DefaultBodyLimit, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::Response;
use axum::routing::{MethodRouter, delete, get, post, put};
use axum::{Json, Router};
use serde::Deserialize;
use std::fs::File;
use std::io::{self, Read};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tidemill_http::server::{Peer, TlsListener};
use tidemill_identity::{Action, IdentityError, JoinRequest, JoinTokenOptions, Timestamp};
use tidemill_link::remote::{ClientCertificates, Credentials};
use tokio::sync::oneshot;

/// Bytes of a request with JSON.
const MOST_JSON: usize = 16 << 20;
/// Longest wait for events, in seconds.
const LONGEST_WAIT: u64 = 60;

/// Time after which a request without a place to wait gets its answer.
const CROWDED: Duration = Duration::from_secs(2);

/// A server at work.
pub(super) struct Server {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Server {
    pub(super) fn start(shared: &Arc<Shared>, listener: std::net::TcpListener) -> std::io::Result<Self> {
        Self::of(app(Arc::clone(shared)), Arc::clone(shared) as _, &shared.credentials, listener)
    }

    /// One that answers so.
    pub(super) fn of(
        app: Router,
        doorkeeper: Arc<dyn serving::Doorkeeper>,
        credentials: &Credentials,
        listener: std::net::TcpListener,
    ) -> std::io::Result<Self> {
        let config = credentials
            .server_config(ClientCertificates::Optional)
            .map_err(|error| std::io::Error::other(error.to_string()))?;
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .thread_name("tm-http")
            .enable_all()
            .build()?;
        let (stop, stopped) = oneshot::channel::<()>();
        let listener = {
            let _in_runtime = runtime.enter();
            TlsListener::new(listener, config)?
        };
        let thread = std::thread::Builder::new().name("tm-server".into()).spawn(move || {
            runtime.block_on(async move {
                tokio::select! {
                    () = serving::serve(listener, app, doorkeeper) => {}
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

/// A router that knows its paths: the document of the API must have them all.
pub(super) struct Routes {
    router: Router<Arc<Shared>>,
    pub(super) paths: Vec<&'static str>,
}

impl Routes {
    fn new() -> Self {
        Self { router: Router::new(), paths: Vec::new() }
    }

    fn route(mut self, path: &'static str, methods: MethodRouter<Arc<Shared>>) -> Self {
        self.paths.push(path);
        Self { router: self.router.route(path, methods), paths: self.paths }
    }

    fn limit(self, bytes: usize) -> Self {
        Self { router: self.router.layer(DefaultBodyLimit::max(bytes)), paths: self.paths }
    }
}

pub(super) fn routes() -> Routes {
    Routes::new()
        .route("/v1/blobs/{digest}", get(blob).put(receiving::put))
        .route("/v1/join", post(join))
        .route("/v1/renew", post(renew))
        .route("/v1/heartbeat", post(heartbeat))
        .route("/v1/blobs/missing", post(missing))
        .route("/v1/blobs", post(receiving::parcel))
        .route("/v1/blobs/{digest}/source", post(sources::source))
        .route("/v1/file-parts/{number}", put(parts::sent).post(parts::refused))
        .route("/v1/runs", get(runs).post(submit))
        .route("/v1/runs/{name}", get(run).delete(cancel))
        .route("/v1/runs/{name}/plan", get(plans::plan).post(plans::change))
        .route("/v1/runs/{name}/logs", get(logs))
        .route("/v1/runs/{name}/samples", get(samples::samples))
        .route("/v1/runs/{name}/replan", get(replans::shown).post(replans::asked_for))
        .route("/v1/runs/{name}/feeds", get(feeds::shown).post(feeds::ordered))
        .route("/v1/infrastructure", get(replans::infrastructure))
        .route("/v1/links", get(replans::links))
        .route("/v1/runs/{name}/figures", get(figures::figures))
        .route("/v1/me", get(figures::me))
        .route("/v1/runs/{name}/remove", post(remove_run))
        .route("/v1/runs/{name}/results", get(results::results))
        .route("/v1/runs/{name}/results/{sink}", get(results::result))
        .route("/v1/workers", get(workers))
        .route("/v1/workers/{name}", delete(revoke))
        .route("/v1/workers/{name}/drain", post(drain))
        .route("/v1/workers/{name}/paths/{path}/drain", post(net::drain_path))
        .route("/v1/workers/{name}/paths/{path}/resume", post(net::resume_path))
        .route("/v1/workers/{name}/resume", post(resume))
        .route("/v1/workers/{name}/net", get(net::of_worker))
        .route("/v1/net/policies", get(net::policies).post(net::attach))
        .route("/v1/net/policies/{name}", post(net::set).delete(net::detach))
        .route("/v1/events", get(events))
        .route("/v1/join-tokens", post(join_token))
        .route("/v1/jobs", get(jobs::requests::jobs).post(jobs::requests::submit))
        .route("/v1/jobs/remove", post(jobs::requests::remove))
        .route("/v1/jobs/{job}", get(jobs::requests::job).delete(jobs::requests::cancel))
        .route("/v1/jobs/{job}/explanation", get(jobs::requests::explanation))
        .route("/v1/jobs/{job}/logs", get(jobs::requests::logs))
        .route("/v1/jobs/{job}/tasks/{rank}/{incarnation}/missing", post(jobs::requests::missing))
        .route("/v1/jobs/{job}/tasks/{rank}/{incarnation}/files/{digest}", put(jobs::requests::file))
        .route("/v1/people", get(people::people).post(people::add))
        .route("/v1/people/{name}", delete(people::remove))
        .route("/v1/controller", get(health::controller))
        .route("/v1/probes", get(health::probes).post(health::begin))
        .route("/v1/openapi.json", get(openapi::openapi))
        .limit(MOST_JSON)
}

fn app(shared: Arc<Shared>) -> Router {
    routes()
        .router
        .route("/metrics", get(metrics::served))
        .merge(page::files())
        .fallback(async || {
            No(StatusCode::NOT_FOUND, "there is nothing at this path; see /v1/openapi.json".into())
        })
        .with_state(shared)
}

impl serving::Doorkeeper for Shared {
    fn knows(&self, peer: &Peer, headers: &HeaderMap) -> CallerKind {
        if !peer.chain.is_empty() {
            return CallerKind::Sender;
        }
        match self.authority.authenticate(token(headers), Timestamp::now()) {
            // The least permission that a long body needs.
            Ok(person) if person.role.may(Action::Submit) => CallerKind::Sender,
            Ok(_) => CallerKind::Viewer,
            Err(_) => CallerKind::Nobody,
        }
    }
}

async fn join(
    State(shared): State<Arc<Shared>>,
    Json(request): Json<JoinRequest>,
) -> Answer<tidemill_identity::Issued> {
    blocking(&shared, move |shared| {
        let issued = shared.authority.redeem(&request, Timestamp::now())?;
        // It has no process yet. One of its name is of a worker that it replaces, whose certificate is revoked.
        shared.exchange.expel(&issued.identity.to_string());
        Ok(Json(issued))
    })
    .await
}

async fn renew(
    State(shared): State<Arc<Shared>>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(request): Json<RenewRequest>,
) -> Answer<tidemill_identity::Issued> {
    blocking(&shared, move |shared| {
        let (name, _) = worker(shared, &peer)?;
        let issued = shared.authority.renew(&peer.chain, &request.request_pem, Timestamp::now())?;
        let text = format!("worker {name} has a new certificate");
        shared.tell("certificate_renewed", None, Some(&name), &text);
        Ok(Json(issued))
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
        let duties = shared.heard(&verified, &name, heartbeat, peer.address.ip().to_string());
        let is_revoked = || No(revoked(), "the certificate of this worker was revoked".into());
        duties.map(Json).ok_or_else(is_revoked)
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
            SubmitError::Taken(_)
            | SubmitError::Ended(..)
            | SubmitError::GoesOn(_)
            | SubmitError::Removed(_) => No(StatusCode::CONFLICT, error.to_string()),
            SubmitError::Removal(error) => error.into(),
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

async fn remove_run(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<crate::api::RemovedView> {
    asked(shared, (who, headers), Action::Cancel, move |shared, by| Ok(shared.remove_run(&name, by, "")?))
        .await
}

#[derive(Deserialize)]
pub(crate) struct Behind {
    #[serde(default)]
    pub(super) after: u64,
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
    // A waiting request holds a thread, and threads are few.
    let place = Arc::clone(&shared.waiters).try_acquire_owned().ok();
    if place.is_none() && behind.wait > 0 {
        tokio::time::sleep(CROWDED).await;
    }
    let wait =
        if place.is_some() { Duration::from_secs(behind.wait.min(LONGEST_WAIT)) } else { Duration::ZERO };
    asked(shared, (who, headers), Action::View, move |shared, _| {
        let _held = place;
        Ok(shared.events(behind.after, wait))
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
        match shared.authority.revoke_worker(&worker, "revoked by hand", by, Timestamp::now()) {
            // It was revoked before, and could not be forgotten then.
            Err(IdentityError::NoSuch(_)) if shared.remembers(&name) => {}
            revoked => drop(revoked?),
        }
        shared.forget_worker(&worker, by).map_err(|error| broken(&error))?;
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
        let workers = match (&request.name, options.uses) {
            (Some(name), _) => format!("worker {name}"),
            (None, 1) => "one worker".to_owned(),
            (None, uses) => format!("{uses} workers"),
        };
        shared.tell("token_made", None, None, &format!("{by} creates a join token for {workers}"));
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

async fn blob(
    State(shared): State<Arc<Shared>>,
    Path(digest): Path<String>,
    Query(of): Query<Offset>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Result<Response, No> {
    let wanted = of.wanted(&headers);
    let given = blocking(&shared, move |shared| {
        let worker = match worker(shared, &peer) {
            Ok((name, _)) => Some(name),
            Err(_) => {
                person(shared, &headers, Action::View)?;
                None
            }
        };
        let found = shared.blobs.open_at(&digest, wanted.0).map_err(|error| match error {
            BlobError::System { .. } => broken(&error),
            other => No(StatusCode::BAD_REQUEST, other.to_string()),
        })?;
        let (file, size) = found.ok_or_else(|| none("file", &digest))?;
        Ok((Given { shared: Arc::clone(shared), file, digest, worker }, size))
    });
    let (given, size) = given.await?;
    Ok(serving::content(given, wanted, size))
}

/// A file that is being given: who has it counts as having it as long as it comes.
struct Given {
    shared: Arc<Shared>,
    file: File,
    digest: String,
    worker: Option<String>,
}

impl Read for Given {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(into)?;
        self.shared.sent_bytes.fetch_add(count as u64, Ordering::Relaxed);
        if let Some(worker) = &self.worker {
            self.shared.gives(&self.digest, worker);
        }
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::{Controller, ControllerOptions};
    use crate::serving::Doorkeeper;
    use tidemill_identity::Role;

    #[test]
    fn only_who_may_submit_may_send_what_is_long() {
        let folder = tempfile::tempdir().unwrap();
        let options = ControllerOptions {
            names: vec!["127.0.0.1".into()],
            ..ControllerOptions::of_test(folder.path())
        };
        let controller = Controller::start(&options).unwrap();
        let shared = &controller.shared;
        let peer = Peer { address: "127.0.0.1:1".parse().unwrap(), chain: Arc::default() };
        let of = |role: Role| {
            let now = Timestamp::now();
            let token = shared.authority.add_person(&role.to_string(), role, None, now).unwrap();
            let shown = format!("Bearer {}", token.reveal().as_str());
            shared.knows(
                &peer,
                &HeaderMap::from_iter([("authorization".parse().unwrap(), shown.parse().unwrap())]),
            )
        };
        assert_eq!(Role::ALL.map(of), [CallerKind::Viewer, CallerKind::Sender, CallerKind::Sender]);
        assert_eq!(shared.knows(&peer, &HeaderMap::new()), CallerKind::Nobody);
        controller.end();
    }
}
