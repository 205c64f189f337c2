//! Common parts of the tests.
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::time_provider::TimeProvider;
use tempfile::TempDir;
use tidemill_identity::*;
use tidemill_link::remote::Certificates;

/// The time at which the tests begin.
pub(crate) const NOON: Timestamp = Timestamp::from_unix(1_795_435_200);

/// Returns the time `count` minutes after noon.
pub(crate) fn minutes(count: u64) -> Timestamp {
    NOON.after(Duration::from_secs(60 * count))
}

/// Workers for an hour, the controller for two, the authority for a day.
pub(crate) fn lifetimes() -> Lifetimes {
    let hours = |count: u64| Duration::from_secs(3_600 * count);
    Lifetimes { worker: hours(1), controller: hours(2), authority: hours(24) }
}

/// An authority in a folder of its own.
pub(crate) struct Cluster {
    pub(crate) folder: TempDir,
    authority: Option<Authority>,
}

impl Cluster {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let authority = Authority::open_or_create(folder.path(), lifetimes(), NOON).expect("an authority");
        Self { folder, authority: Some(authority) }
    }

    pub(crate) fn authority(&self) -> &Authority {
        self.authority.as_ref().expect("it is open")
    }

    /// The process ends and another one begins.
    pub(crate) fn reopen(&mut self) {
        self.authority = None;
        self.authority =
            Some(Authority::open(self.folder.path(), lifetimes(), NOON).expect("the authority is there"));
    }

    /// Gives a token of the register the id of another one: then that one is known, with another secret.
    pub(crate) fn rename_token(&mut self, from: TokenId, to: TokenId) {
        let path = self.folder.path().join("register.json");
        let text = std::fs::read_to_string(&path).expect("the register");
        let json = text.lines().next().expect("a line").replace(&from.to_string(), &to.to_string());
        let check = Fingerprint::of(json.as_bytes());
        std::fs::write(&path, format!("{json}\n{check}\n")).expect("the register");
        self.reopen();
    }

    pub(crate) fn token(&self, options: &JoinTokenOptions, now: Timestamp) -> JoinToken {
        self.authority().create_join_token(options, "Ada", now).expect("a token")
    }

    /// A worker that came in at noon, with its key.
    pub(crate) fn worker(&self, worker: &str) -> Worker {
        let token = self.token(&JoinTokenOptions::default(), NOON);
        let key = NewKey::generate().expect("a key");
        let join = JoinRequest { name: Some(name(worker)), ..join(&token, &key) };
        Worker { issued: self.authority().redeem(&join, NOON).expect("comes in"), key }
    }
}

/// A worker with its certificate.
pub(crate) struct Worker {
    pub(crate) issued: Issued,
    pub(crate) key: NewKey,
}

impl Worker {
    pub(crate) fn chain(&self) -> Vec<CertificateDer<'static>> {
        chain(&self.issued)
    }

    pub(crate) fn facts(&self) -> CertificateFacts {
        CertificateFacts::of_der(&self.chain()[0]).expect("a certificate")
    }

    pub(crate) fn certificates(&self) -> Certificates {
        Certificates {
            chain_pem: self.issued.chain_pem.clone().into_bytes(),
            key_pem: self.key.key_pem().as_bytes().to_vec(),
            authority_pem: self.issued.authority_pem.clone().into_bytes(),
        }
    }
}

pub(crate) fn chain(issued: &Issued) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_slice_iter(issued.chain_pem.as_bytes()).collect::<Result<_, _>>().expect("PEM")
}

pub(crate) fn name(text: &str) -> Name {
    text.parse().expect("a name")
}

pub(crate) fn join(token: &JoinToken, key: &NewKey) -> JoinRequest {
    JoinRequest {
        token: token.reveal().to_string(),
        request_pem: key.request_pem().to_owned(),
        name: None,
        location: None,
        tier: None,
    }
}

pub(crate) fn refusal<T: std::fmt::Debug>(result: Result<T, IdentityError>) -> Refusal {
    let error = result.expect_err("is refused");
    error.refusal().unwrap_or_else(|| panic!("{error} is no refusal")).clone()
}

/// A clock that stands still until it is set.
#[derive(Debug, Clone)]
pub(crate) struct Clock(Arc<AtomicU64>);

impl Clock {
    pub(crate) fn at(time: Timestamp) -> Self {
        Self(Arc::new(AtomicU64::new(time.as_unix())))
    }

    pub(crate) fn set(&self, time: Timestamp) {
        self.0.store(time.as_unix(), Ordering::Relaxed);
    }

    pub(crate) fn now(&self) -> Timestamp {
        Timestamp::from_unix(self.0.load(Ordering::Relaxed))
    }

    pub(crate) fn provider(&self) -> Arc<dyn TimeProvider> {
        Arc::new(self.clone())
    }
}

impl TimeProvider for Clock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(self.now().into())
    }
}
