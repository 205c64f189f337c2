//! Requests about jobs, and files of tasks.
use super::JobError;
use crate::api::{JobExplanation, JobRemoval, JobSubmission, JobView, JobsRemoved, LogLine};
use crate::controller::Shared;
use crate::controller::answering::{Answer, No, asked, blocking, broken, worker};
use crate::controller::receiving::take_file;
use crate::controller::server::Behind;
use axum::Json;
use axum::body::Body;
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use std::sync::Arc;
use tidemill_http::server::Peer;
use tidemill_identity::Action;

impl From<JobError> for No {
    fn from(error: JobError) -> Self {
        match error {
            JobError::Wrong(text) => Self(StatusCode::UNPROCESSABLE_ENTITY, text),
            JobError::NoSuch(_) => Self(StatusCode::NOT_FOUND, error.to_string()),
            JobError::Facts(error) => broken(&error),
        }
    }
}

pub(in crate::controller) async fn jobs(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<Vec<JobView>> {
    asked(shared, (who, headers), Action::View, |shared, _| Ok(shared.job_views())).await
}

pub(in crate::controller) async fn submit(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
    Json(submission): Json<JobSubmission>,
) -> Answer<JobView> {
    asked(shared, (who, headers), Action::Submit, move |shared, by| Ok(shared.submit_job(submission, by)?))
        .await
}

pub(in crate::controller) async fn job(
    State(shared): State<Arc<Shared>>,
    Path(job): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<JobView> {
    asked(shared, (who, headers), Action::View, move |shared, _| {
        Ok(shared.job_view(&job).ok_or(JobError::NoSuch(job))?)
    })
    .await
}

pub(in crate::controller) async fn cancel(
    State(shared): State<Arc<Shared>>,
    Path(job): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<JobView> {
    asked(shared, (who, headers), Action::Cancel, move |shared, by| Ok(shared.cancel_job(&job, by)?)).await
}

pub(in crate::controller) async fn remove(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
    Json(wanted): Json<JobRemoval>,
) -> Answer<JobsRemoved> {
    asked(shared, (who, headers), Action::Cancel, move |shared, by| Ok(shared.remove_jobs(&wanted, by)?))
        .await
}

pub(in crate::controller) async fn explanation(
    State(shared): State<Arc<Shared>>,
    Path(job): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<JobExplanation> {
    asked(shared, (who, headers), Action::View, move |shared, _| {
        Ok(shared.explain_job(&job).ok_or(JobError::NoSuch(job))?)
    })
    .await
}

pub(in crate::controller) async fn logs(
    State(shared): State<Arc<Shared>>,
    Path(job): Path<String>,
    Query(behind): Query<Behind>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<Vec<LogLine>> {
    asked(shared, (who, headers), Action::View, move |shared, _| match shared.job_view(&job) {
        Some(_) => Ok(shared.job_logs(&job, behind.after)),
        None => Err(JobError::NoSuch(job).into()),
    })
    .await
}

/// The worker that asks, which must have this start of a task.
fn owner(shared: &Shared, peer: &Peer, of: &(String, u32, u64)) -> Result<(), No> {
    let (name, _) = worker(shared, peer)?;
    let (job, rank, incarnation) = of;
    match shared.has_task(&name, job, *rank, *incarnation) {
        true => Ok(()),
        false => {
            let text = format!("worker {name} does not have start {incarnation} of task {rank} of job {job}");
            Err(No(StatusCode::CONFLICT, text))
        }
    }
}

/// Files of these that the controller does not have.
pub(in crate::controller) async fn missing(
    State(shared): State<Arc<Shared>>,
    Path(of): Path<(String, u32, u64)>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    Json(digests): Json<Vec<String>>,
) -> Answer<Vec<String>> {
    blocking(&shared, move |shared| {
        owner(shared, &peer, &of)?;
        Ok(Json(digests.into_iter().filter(|digest| !shared.blobs.has(digest)).collect()))
    })
    .await
}

/// A file of a checkpoint, or a result.
pub(in crate::controller) async fn file(
    State(shared): State<Arc<Shared>>,
    Path((job, rank, incarnation, digest)): Path<(String, u32, u64, String)>,
    ConnectInfo(peer): ConnectInfo<Peer>,
    body: Body,
) -> Answer<u64> {
    blocking(&shared, move |shared| {
        owner(shared, &peer, &(job, rank, incarnation))?;
        take_file(shared, &digest, body)
    })
    .await
}
