//! People: who may ask, and what.
use super::Shared;
use super::answering::{Answer, No, asked};
use crate::api::{PersonAnswer, PersonRequest, PersonView};
use axum::Json;
use axum::extract::{ConnectInfo, Path, State};
use axum::http::{HeaderMap, StatusCode};
use std::sync::Arc;
use std::time::Duration;
use tidemill_http::server::Peer;
use tidemill_identity::{Action, Timestamp};

/// Days for which an access token can be made.
const MOST_DAYS: u32 = 3_650;
const DAY: u64 = 24 * 60 * 60;

pub(super) async fn people(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<Vec<PersonView>> {
    asked(shared, (who, headers), Action::ManagePeople, |shared, _| {
        let now = Timestamp::now();
        let views = shared.authority.people().into_iter().map(|record| PersonView {
            is_valid: record.is_good(now),
            token_id: record.id.to_string(),
            made: record.made.to_string(),
            expires: record.expires.map(|expires| expires.to_string()),
            removed: record.revoked.as_ref().map(|revoked| format!("{} by {}", revoked.at, revoked.by)),
            role: record.role,
            name: record.name,
        });
        Ok(views.collect())
    })
    .await
}

pub(super) async fn add(
    State(shared): State<Arc<Shared>>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
    Json(request): Json<PersonRequest>,
) -> Answer<PersonAnswer> {
    asked(shared, (who, headers), Action::ManagePeople, move |shared, by| {
        let now = Timestamp::now();
        let expires = match request.days {
            None => None,
            Some(days) if (1..=MOST_DAYS).contains(&days) => {
                Some(now.after(Duration::from_secs(u64::from(days) * DAY)))
            }
            Some(days) => {
                let text = format!(
                    "{days} days are not possible: write 1 to {MOST_DAYS}, or nothing for a token without end"
                );
                return Err(No(StatusCode::BAD_REQUEST, text));
            }
        };
        let token = shared.authority.add_person(&request.name, request.role, expires, now)?;
        let text =
            format!("{by} creates an access token for {} with the role {}", request.name, request.role);
        shared.tell("person_added", None, None, &text);
        Ok(PersonAnswer {
            name: request.name,
            role: request.role,
            token: token.reveal().to_string(),
            expires: expires.map(|expires| expires.to_string()),
            address: shared.address.to_string(),
        })
    })
    .await
}

pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Path(name): Path<String>,
    who: ConnectInfo<Peer>,
    headers: HeaderMap,
) -> Answer<u64> {
    asked(shared, (who, headers), Action::ManagePeople, move |shared, by| {
        let now = Timestamp::now();
        let count =
            shared.authority.people().iter().filter(|one| one.name == name && one.is_good(now)).count();
        shared.authority.revoke_person(&name, "removed by hand", by, now)?;
        shared.tell(
            "person_removed",
            None,
            None,
            &format!("{by} removes {name}: their access tokens are revoked"),
        );
        Ok(count as u64)
    })
    .await
}
