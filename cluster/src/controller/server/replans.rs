//! Routes of plans and of what they are made for.
use crate::api::{InfrastructureView, MeasuredLinkView, ReplanRequest, ReplanView};
use crate::controller::Shared;
use crate::controller::answering::{Answer, No, asked, none};
use crate::controller::replanning::ReplanError;
use axum::Json;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderMap, StatusCode};
use std::sync::Arc;
use tidemill_http::server::Peer;
use tidemill_identity::Action;

pub(super) async fn shown(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<ReplanView> {
    asked(shared, (who, headers), Action::View, move |shared, _| {
        shared.replan_view(&name).ok_or_else(|| none("run", &name))
    })
    .await
}

pub(super) async fn asked_for(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
    Json(request): Json<ReplanRequest>,
) -> Answer<ReplanView> {
    asked(shared, (who, headers), Action::ApplyPlan, move |shared, by| {
        shared.replan(&name, request, by).map_err(|error| match error {
            ReplanError::NoRun(_) => No(StatusCode::NOT_FOUND, error.to_string()),
            ReplanError::Refused(_) => No(StatusCode::UNPROCESSABLE_ENTITY, error.to_string()),
        })
    })
    .await
}

pub(super) async fn infrastructure(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<InfrastructureView> {
    asked(shared, (who, headers), Action::View, |shared, _| {
        shared.infrastructure_view().map_err(|text| No(StatusCode::UNPROCESSABLE_ENTITY, text))
    })
    .await
}

pub(super) async fn links(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<Vec<MeasuredLinkView>> {
    asked(shared, (who, headers), Action::View, |shared, _| Ok(shared.way_views())).await
}
