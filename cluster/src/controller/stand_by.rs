//! A controller that does not lead: it names the leader to every caller. This is no secret to those who know its address, and it knows
//! nothing else: no run, worker or person.
use super::server::Server;
use super::{ControllerError, ControllerOptions, renewal, take};
use crate::api::NotLeading;
use crate::serving::{CallerKind, Doorkeeper};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use axum::{Json, Router};
use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tidemill_http::server::Peer;
use tidemill_identity::{Authority, Fingerprint, Timestamp};
use tidemill_link::remote::{Certificates, Credentials, Revoked};
use tidemill_postgres::Leader;

/// `HOST:PORT` of the one that leads.
type LeaderAddress = Arc<Mutex<Option<String>>>;

/// See the module.
pub struct StandBy {
    server: Server,
    leader: LeaderAddress,
    fingerprint: Fingerprint,
    options: ControllerOptions,
    credentials: Credentials,
    /// When a renewal is tried again that has failed.
    again: Option<Timestamp>,
    _lock: File,
}

/// Certificates for these options; `None` without a key of the authority.
fn certificates(
    options: &ControllerOptions,
    now: Timestamp,
) -> Result<Option<(Certificates, Fingerprint)>, ControllerError> {
    let names: Vec<&str> = options.names.iter().map(String::as_str).collect();
    Ok(Authority::stand_by(&options.folder.join("identities"), options.lifetimes, &names, now)?)
}

impl StandBy {
    /// Answers at the address of a controller with these options; `None` while there is no key of the authority.
    ///
    /// # Errors
    /// The folder is in use, or the address cannot be listened on.
    pub fn start(options: &ControllerOptions) -> Result<Option<Self>, ControllerError> {
        let lock = take(&options.folder)?;
        let stands = certificates(options, Timestamp::now())?;
        let Some((certificates, fingerprint)) = stands else { return Ok(None) };
        let time = Arc::new(rustls::time_provider::DefaultTimeProvider);
        let credentials = Credentials::with(&certificates, Revoked::default(), time)?;
        let failed = |source| ControllerError::Listen { address: options.listen.clone(), source };
        let listener = std::net::TcpListener::bind(&options.listen).map_err(failed)?;
        let leader = LeaderAddress::default();
        let app = Router::new().fallback(redirect).with_state(Arc::clone(&leader));
        let server = Server::of(app, Arc::new(Unread), &credentials, listener).map_err(failed)?;
        let options = options.clone();
        Ok(Some(Self { server, leader, fingerprint, options, credentials, again: None, _lock: lock }))
    }

    /// Renews the certificate if that is due at `now`; it is shown to new connections. To be called every few seconds.
    pub fn renew_if_due(&mut self, now: Timestamp) {
        if self.again.is_some_and(|again| now < again) || !renewal::is_due(&self.credentials, now) {
            return;
        }
        match self.renewed(now) {
            Ok(()) => {
                self.again = None;
                tracing::info!("renewed the certificate of this standby controller");
            }
            Err(error) => {
                self.again = Some(now.after(Duration::from_secs(renewal::PATIENCE.into())));
                tracing::warn!("cannot renew the certificate of this controller now: {error}");
            }
        }
    }

    fn renewed(&self, now: Timestamp) -> Result<(), String> {
        let issued = certificates(&self.options, now).map_err(|error| error.to_string())?;
        let (issued, _) = issued.ok_or("the key of the authority is gone")?;
        self.credentials.replace(&issued).map_err(|error| error.to_string())
    }

    /// The fingerprint of the authority.
    pub fn fingerprint(&self) -> Fingerprint {
        self.fingerprint
    }

    /// Sets the leader that is named from now on, if any.
    pub fn tell(&self, leader: Option<&Leader>) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) =
            leader.map(|leader| leader.address.clone());
    }

    /// Ends it.
    pub fn end(mut self) {
        self.server.end();
    }
}

/// Needs no limit for bodies, because none is read here.
struct Unread;

impl Doorkeeper for Unread {
    fn knows(&self, _: &Peer, _: &HeaderMap) -> CallerKind {
        CallerKind::Sender
    }
}

async fn redirect(State(leader): State<LeaderAddress>, uri: Uri) -> Response {
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
            let error =
                "this controller stands by, and no controller leads at the moment: try again".to_owned();
            (StatusCode::SERVICE_UNAVAILABLE, Json(NotLeading { error, leader: None })).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use tidemill_identity::CertificateFacts;

    #[test]
    fn one_that_stands_by_for_long_renews_its_certificate() {
        let folder = tempfile::tempdir().unwrap();
        let options = ControllerOptions::of_test(folder.path());
        let identities = options.folder.join("identities");
        let now = Timestamp::now();
        drop(Authority::open_or_create(&identities, options.lifetimes, now).unwrap());
        let mut stands = StandBy::start(&options).unwrap().unwrap();
        let ends =
            |stands: &StandBy| CertificateFacts::of_der(&stands.credentials.certificate()).unwrap().not_after;
        let (first, day) = (ends(&stands), Duration::from_secs(86_400));
        stands.renew_if_due(now.after(6 * day));
        assert_eq!(ends(&stands), first);
        // The key is absent for a while; no renewal is tried then.
        let (key, aside) = (Authority::shared_key(&identities), folder.path().join("aside"));
        std::fs::rename(&key, &aside).unwrap();
        let due = now.after(7 * day);
        stands.renew_if_due(due);
        std::fs::rename(&aside, &key).unwrap();
        stands.renew_if_due(due.after(Duration::from_secs(59)));
        assert_eq!(ends(&stands), first);
        stands.renew_if_due(due.after(Duration::from_secs(60)));
        assert!(ends(&stands) >= due.after(9 * day));
        stands.end();
    }
}
