//! A controller that does not lead: it says to everybody who does. What it says is no secret to those who know its address, and there is nothing
//! else that it could say: it knows no run, no worker and no person.
use super::server::Server;
use super::tls::Peer;
use super::{ControllerError, ControllerOptions, take};
use crate::api::NotLeading;
use crate::serving::Doorkeeper;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use tidemill_identity::{Authority, Fingerprint, Lifetimes, Timestamp};
use tidemill_link::remote::{Credentials, Revoked};
use tidemill_postgres::Leader;

/// `HOST:PORT` of the one that leads.
type Told = Arc<Mutex<Option<String>>>;

/// See the module.
pub struct StandBy {
    server: Server,
    leader: Told,
    fingerprint: Fingerprint,
    _lock: File,
}

impl StandBy {
    /// Answers where a controller with these options would; none: it has no key of the authority, by which others would know it, yet.
    ///
    /// # Errors
    /// The folder is taken, or the address cannot be listened on.
    pub fn start(options: &ControllerOptions) -> Result<Option<Self>, ControllerError> {
        let lock = take(&options.folder)?;
        let names: Vec<&str> = options.names.iter().map(String::as_str).collect();
        let identities = options.folder.join("identities");
        let stands = Authority::stand_by(&identities, Lifetimes::default(), &names, Timestamp::now())?;
        let Some((certificates, fingerprint)) = stands else { return Ok(None) };
        let time = Arc::new(rustls::time_provider::DefaultTimeProvider);
        let credentials = Credentials::with(&certificates, Revoked::default(), time)?;
        let failed = |source| ControllerError::Listen { address: options.listen.clone(), source };
        let listener = std::net::TcpListener::bind(&options.listen).map_err(failed)?;
        let leader = Told::default();
        let app = Router::new().fallback(redirect).with_state(Arc::clone(&leader));
        let server = Server::of(app, Arc::new(Unread), &credentials, listener).map_err(failed)?;
        Ok(Some(Self { server, leader, fingerprint, _lock: lock }))
    }

    /// The fingerprint of the authority.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Says from now on that this one leads, or nobody.
    pub fn tell(&self, leader: Option<&Leader>) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) =
            leader.map(|leader| leader.address.clone());
    }

    /// Ends it.
    pub fn end(mut self) {
        self.server.end();
    }
}

/// No body is read here: how long one is does not matter.
struct Unread;

impl Doorkeeper for Unread {
    fn knows(&self, _: &Peer, _: &HeaderMap) -> bool {
        true
    }
}

async fn redirect(State(leader): State<Told>, uri: Uri) -> Response {
    let leader = leader.lock().unwrap_or_else(PoisonError::into_inner).clone();
    match leader {
        Some(leader) => {
            let path = uri.path_and_query().map_or("/", |path| path.as_str());
            let location = format!("https://{leader}{path}");
            let error = format!("this controller stands by: {leader} leads");
            let told = NotLeading { error, leader: Some(leader) };
            (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, location)], Json(told)).into_response()
        }
        None => {
            let error = "this controller stands by, and nobody leads for the moment: ask again".to_owned();
            (StatusCode::SERVICE_UNAVAILABLE, Json(NotLeading { error, leader: None })).into_response()
        }
    }
}
