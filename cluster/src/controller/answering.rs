//! Answers of the controller's HTTP server: who asks, whether they may, and what an error becomes.
use super::Shared;
use super::removal::RemovalError;
use crate::api::Refused;
use axum::Json;
use axum::extract::ConnectInfo;
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};
use std::sync::Arc;
use tidemill_http::server::Peer;
use tidemill_identity::{Action, IdentityError, Person, Refusal, RefusalKind, Timestamp, VerifiedPeer};

/// A request that is refused.
pub(super) struct No(pub(super) StatusCode, pub(super) String);

impl IntoResponse for No {
    fn into_response(self) -> Response {
        (self.0, Json(Refused { error: self.1 })).into_response()
    }
}

/// See [`crate::api::REVOKED`].
pub(super) fn revoked() -> StatusCode {
    StatusCode::from_u16(crate::api::REVOKED).unwrap_or(StatusCode::GONE)
}

impl From<Refusal> for No {
    fn from(refusal: Refusal) -> Self {
        tracing::warn!("refused: {refusal}");
        let status = match refusal.kind() {
            _ if matches!(refusal, Refusal::CertificateRevoked { .. }) => revoked(),
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

pub(super) fn broken(error: &dyn std::fmt::Display) -> No {
    tracing::error!("{error}");
    No(StatusCode::INTERNAL_SERVER_ERROR, format!("the controller cannot do this now: {error}"))
}

pub(super) fn none(what: &str, name: &str) -> No {
    No(StatusCode::NOT_FOUND, format!("there is no {what} `{name}`"))
}

pub(super) type Answer<T> = Result<Json<T>, No>;
pub(super) type Who = (ConnectInfo<Peer>, HeaderMap);

/// Does something that may wait for the disk.
pub(super) async fn blocking<T: Send + 'static>(
    shared: &Arc<Shared>,
    act: impl FnOnce(&Arc<Shared>) -> Result<T, No> + Send + 'static,
) -> Result<T, No> {
    let shared = Arc::clone(shared);
    tokio::task::spawn_blocking(move || act(&shared)).await.map_err(|error| broken(&error))?
}

/// The worker that asks.
pub(super) fn worker(shared: &Shared, peer: &Peer) -> Result<(String, VerifiedPeer), No> {
    if peer.chain.is_empty() {
        return Err(No(StatusCode::UNAUTHORIZED, "a worker must show its certificate: join first".into()));
    }
    let verified = shared.authority.verify(&peer.chain, Timestamp::now())?;
    match verified.identity.worker() {
        Some(name) => Ok((name.to_string(), verified)),
        None => Err(No(StatusCode::FORBIDDEN, "only workers may do this".into())),
    }
}

/// The access token that a request shows.
pub(super) fn token(headers: &HeaderMap) -> &str {
    let shown = headers.get("authorization").and_then(|value| value.to_str().ok());
    shown.and_then(|value| value.strip_prefix("Bearer ")).unwrap_or_default()
}

/// The person that asks, who may do it.
pub(super) fn known_person(shared: &Shared, headers: &HeaderMap, action: Action) -> Result<Person, No> {
    let person = shared.authority.authenticate(token(headers), Timestamp::now())?;
    person.require(action)?;
    Ok(person)
}

/// Their name.
pub(super) fn person(shared: &Shared, headers: &HeaderMap, action: Action) -> Result<String, No> {
    Ok(known_person(shared, headers, action)?.name)
}

/// Asks `act` where the person may do it.
pub(super) async fn asked<T: Send + 'static>(
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

impl From<RemovalError> for No {
    fn from(error: RemovalError) -> Self {
        match error {
            RemovalError::NoSuch(name) => none("run", &name),
            RemovalError::Running(_) => No(StatusCode::CONFLICT, error.to_string()),
            RemovalError::Facts(_) | RemovalError::System(..) => broken(&error),
        }
    }
}
