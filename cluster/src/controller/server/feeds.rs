//! Routes of the feeds of live sources.
use crate::api::{FeedRequest, FeedsView};
use crate::controller::Shared;
use crate::controller::answering::{Answer, No, asked, none};
use crate::controller::locked;
use axum::Json;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderMap, StatusCode};
use std::sync::Arc;
use tidemill_engine::Observer;
use tidemill_http::server::Peer;
use tidemill_identity::Action;

fn observer(shared: &Shared, name: &str) -> Result<(String, Option<Observer>), No> {
    let workflow = shared.facts.look(|document| document.runs.get(name).map(|run| run.workflow.clone()));
    let workflow = workflow.ok_or_else(|| none("run", name))?;
    Ok((workflow, locked(&shared.runs).get(name).and_then(|live| live.observer.clone())))
}

/// `GET /v1/runs/NAME/feeds`.
pub(super) async fn shown(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<FeedsView> {
    asked(shared, (who, headers), Action::View, move |shared, _| {
        let (workflow, observer) = observer(shared, &name)?;
        Ok(FeedsView { workflow, sources: observer.map(|observer| observer.feeds()).unwrap_or_default() })
    })
    .await
}

/// `POST /v1/runs/NAME/feeds`.
pub(super) async fn ordered(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
    Json(request): Json<FeedRequest>,
) -> Answer<FeedsView> {
    asked(shared, (who, headers), Action::ApplyPlan, move |shared, _| {
        let (workflow, observer) = observer(shared, &name)?;
        let observer = observer
            .ok_or_else(|| No(StatusCode::CONFLICT, format!("run `{name}` does not run at this moment")))?;
        observer
            .order_feeds(&request.source, &request.order)
            .map_err(|why| No(StatusCode::UNPROCESSABLE_ENTITY, why))?;
        Ok(FeedsView { workflow, sources: observer.feeds() })
    })
    .await
}
