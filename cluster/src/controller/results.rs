//! Fetches committed output of sinks from the workers that hold it.
use super::Shared;
use super::answering::{Answer, No, Who, asked, blocking, none, person};
use super::parts::Coming;
use crate::api::{FilePart, ResultView, RunState};
use crate::facts::RunFacts;
use crate::run_id::run_id;
use crate::serving::Offset;
use axum::body::Body;
use axum::extract::{ConnectInfo, Path, Query, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;
use tidemill_http::range;
use tidemill_http::server::Peer;
use tidemill_identity::Action;
use tidemill_state::{StateError, StoreError};

/// Committed part of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Committed {
    All,
    Bytes(u64),
    /// The file appears when the run is complete.
    AtTheEnd,
}

/// Content of a text file's token.
#[derive(Deserialize)]
struct Length {
    length: u64,
}

impl Shared {
    /// Committed part of each sink's file in the last checkpoint.
    fn committed(&self, name: &str, run: &RunFacts) -> Result<BTreeMap<String, Committed>, No> {
        let sinks = run.outputs.iter().map(|output| output.sink.clone());
        if run.state == RunState::Complete {
            return Ok(sinks.map(|sink| (sink, Committed::All)).collect());
        }
        let state = match self.state_place(name).look() {
            Ok(state) => state,
            Err(StateError::Store(StoreError::NoState { .. })) => {
                return Ok(sinks.map(|sink| (sink, Committed::Bytes(0))).collect());
            }
            Err(error) => return Err(super::answering::broken(&error)),
        };
        if state.manifest().is_none() {
            // Before the first checkpoint.
            return Ok(sinks.map(|sink| (sink, Committed::Bytes(0))).collect());
        }
        let manifest = state.manifest();
        // The sinks are closed a moment before the run becomes complete.
        if manifest.is_some_and(|manifest| manifest.complete) {
            return Ok(sinks.map(|sink| (sink, Committed::All)).collect());
        }
        let of = |sink: &str| {
            let Some(state) = manifest.and_then(|manifest| manifest.sinks.get(sink)) else {
                return Committed::Bytes(0);
            };
            match &state.token {
                Some(token) => match serde_json::from_slice::<Length>(&token.0) {
                    Ok(Length { length }) => Committed::Bytes(length),
                    Err(_) => Committed::AtTheEnd,
                },
                None => Committed::AtTheEnd,
            }
        };
        Ok(sinks.map(|sink| (sink.clone(), of(&sink))).collect())
    }

    fn result_views(&self, name: &str) -> Result<Vec<ResultView>, No> {
        let run = self.run_facts(name)?;
        let committed = self.committed(name, &run)?;
        let views = run.outputs.iter().map(|output| ResultView {
            sink: output.sink.clone(),
            path: output.path.clone(),
            worker: run.roles.get(&output.role).and_then(|role| role.worker.clone()),
            committed_bytes: match committed.get(&output.sink) {
                Some(Committed::Bytes(bytes)) => Some(*bytes),
                _ => None,
            },
            is_final: run.state.is_over(),
        });
        Ok(views.collect())
    }

    fn run_facts(&self, name: &str) -> Result<RunFacts, No> {
        let run = self.facts.look(|document| document.runs.get(name).cloned());
        run.ok_or_else(|| none("run", name))
    }

    /// Part of a file, and the worker to fetch it from; `None`: nothing more is committed now.
    fn result_part(
        &self,
        name: &str,
        sink: &str,
        offset: u64,
        path: Option<&str>,
    ) -> Result<Option<(String, FilePart)>, No> {
        let run = self.run_facts(name)?;
        let output = run
            .outputs
            .iter()
            .find(|output| output.sink == sink && path.is_none_or(|path| path == output.path));
        let Some(output) = output else {
            let known: Vec<&str> = run.outputs.iter().map(|output| output.sink.as_str()).collect();
            let text = match known[..] {
                [] => format!("no sink of run {name} writes a file"),
                _ => format!(
                    "run {name} has no sink `{sink}` that writes a file: write {}",
                    known.join(" or ")
                ),
            };
            return Err(No(StatusCode::NOT_FOUND, text));
        };
        let worker = run.roles.get(&output.role).and_then(|role| role.worker.clone());
        let bytes = match self.committed(name, &run)?.get(sink) {
            Some(Committed::All) => u64::MAX,
            Some(Committed::Bytes(bytes)) => bytes.saturating_sub(offset),
            Some(Committed::AtTheEnd) | None => {
                let text = match run.state.is_over() {
                    true => format!(
                        "run {name} is {}: sink `{sink}` writes its file when a run is complete",
                        run.state
                    ),
                    false => format!("sink `{sink}` writes its file when the run is complete: wait for it"),
                };
                return Err(No(StatusCode::CONFLICT, text));
            }
        };
        if bytes == 0 {
            return Ok(None);
        }
        let Some(worker) = worker else { return Ok(None) };
        if !self.is_alive(&worker) {
            let text =
                format!("worker {worker}, which has the file of sink `{sink}`, is unreachable: restart it");
            return Err(No(StatusCode::SERVICE_UNAVAILABLE, text));
        }
        let part = FilePart {
            number: 0,
            run: name.to_owned(),
            id: run_id(&run.secret),
            role: output.role.clone(),
            path: output.path.clone(),
            offset,
            bytes,
        };
        Ok(Some((worker, part)))
    }
}

pub(super) async fn results(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<Vec<ResultView>> {
    let who: Who = (who, headers);
    asked(shared, who, Action::View, move |shared, _| shared.result_views(&name)).await
}

#[derive(Deserialize)]
pub(crate) struct Which {
    /// One of several files of a sink.
    path: Option<String>,
}

pub(super) async fn result(
    State(shared): State<Arc<Shared>>,
    Path((name, sink)): Path<(String, String)>,
    Query(of): Query<Which>,
    Query(from): Query<Offset>,
    headers: HeaderMap,
) -> Result<Response, No> {
    let (first, most) = from.wanted(&headers);
    let wanted = blocking(&shared, move |shared| {
        let person = person(shared, &headers, Action::View)?;
        let part = shared.result_part(&name, &sink, first, of.path.as_deref())?;
        Ok(part.map(|(worker, part)| (worker, FilePart { bytes: part.bytes.min(most), ..part }, person)))
    });
    let coming = match wanted.await? {
        None => Coming { bytes: 0, body: Body::empty() },
        Some((worker, part, person)) => shared.parts.have(&worker, part, &person).await?,
    };
    let mut answer = coming.body.into_response();
    *answer.status_mut() = range::mark(answer.headers_mut(), first, coming.bytes, None);
    Ok(answer)
}
