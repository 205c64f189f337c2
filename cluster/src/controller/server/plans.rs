//! The plan of a run: looked at and changed.
use crate::api::{ChangeRequest, PlanView};
use crate::controller::Shared;
use crate::controller::answering::{Answer, No, asked, broken, none};
use crate::controller::changing::ChangeError;
use axum::Json;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderMap, StatusCode};
use std::sync::Arc;
use tidemill_http::server::Peer;
use tidemill_identity::Action;

pub(super) async fn plan(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<PlanView> {
    asked(shared, (who, headers), Action::View, move |shared, _| {
        shared.plan_view(&name).ok_or_else(|| none("run", &name))
    })
    .await
}

pub(super) async fn change(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
    Json(request): Json<ChangeRequest>,
) -> Answer<PlanView> {
    asked(shared, (who, headers), Action::Submit, move |shared, by| {
        let ChangeRequest { plan, reason } = request;
        let reason = if reason.is_empty() { format!("{by} changes it") } else { format!("{reason} ({by})") };
        shared.change_plan(&name, plan, &reason).map_err(refused)?;
        shared.plan_view(&name).ok_or_else(|| none("run", &name))
    })
    .await
}

fn refused(error: ChangeError) -> No {
    let status = match error {
        ChangeError::NoRun(_) => StatusCode::NOT_FOUND,
        ChangeError::Wrong(_) => StatusCode::UNPROCESSABLE_ENTITY,
        ChangeError::Over { .. } | ChangeError::NotRunning(_) | ChangeError::Busy { .. } => {
            StatusCode::CONFLICT
        }
        ChangeError::Facts(error) => return broken(&error),
    };
    No(status, error.to_string())
}
