//! Identities of a cluster: an authority with its certificates, join tokens for workers, access tokens for people.
//!
//! A cluster has a controller, workers on many machines, and people. The controller has the [`Authority`], a folder with a key and
//! a register. A worker brings a one-time [`JoinToken`] and a request for a certificate to the [`JoinAddress`] of the
//! controller, which has the fingerprint of the authority in it, so that no other peer can answer. From then on its certificate
//! proves its [`PeerIdentity`]. People show an [`AccessToken`], which has a [`Role`].
//!
//! This crate opens no port. Its items for each side:
//!
//! | | |
//! |---|---|
//! | the controller's HTTPS server | [`Authority::issue_controller`], of which [`Credentials`](tidemill_link::remote::Credentials) make a configuration of rustls; [`Authority::redeem`], [`Authority::renew`], [`Authority::authenticate`] to serve requests |
//! | a worker | [`WorkerFolder`], [`fingerprint_config`] to join, [`worker_config`] from then on, for the client of `tidemill-http` |
//! | links between workers | [`Security::with`](tidemill_link::remote::Security::with) the same credentials, and [`PeerIdentity::of_verified`] of the certificate that the other side showed |
//! | people at a terminal | [`fingerprint_config`] and a token in the request |
//!
//! # Guarantees
//!
//! - The result of a method of the authority is on the disk. A process that is killed, or a loss of power, leaves the state either
//!   before or after a call.
//! - A token lets in as many workers as it was made for, however many come at the same time. An answer that was lost in transit
//!   can be requested again with the same key for [`ANSWER_KEPT`].
//! - Of a request for a certificate nothing is used but its key, after its signature was verified. Of tokens only a hash is kept.
//! - Nothing here reads a clock: every call takes the time, and TLS reads the clock that it was given.
//! - A [`Refusal`] has two texts, one for the log and one for the other side.
//!
//! # Example
//!
//! ```
//! use tidemill_identity::{Action, Authority, JoinRequest, JoinTokenOptions, Lifetimes, NewKey, PeerIdentity};
//! use tidemill_identity::Timestamp;
//!
//! # let temporary = tempfile::tempdir()?;
//! # let folder = temporary.path().join("authority");
//! # let now = Timestamp::from_unix(1_795_435_200);
//! let authority = Authority::open_or_create(&folder, Lifetimes::default(), now)?;
//! let address = authority.join_address("hub.example", 4100)?; // tidemill://hub.example:4100/3f0c…
//! let admin = authority.first_admin(now, |_| Ok(()))?.expect("it is the first start");
//! let token = authority.create_join_token(&JoinTokenOptions::default(), "admin", now)?;
//!
//! // At the worker, which shows them to the controller:
//! let key = NewKey::generate()?;
//! let request = JoinRequest {
//!     token: token.reveal().to_string(), // tmj_…
//!     request_pem: key.request_pem().to_owned(),
//!     name: Some("edge-1".parse()?),
//!     location: None,
//!     tier: None,
//! };
//!
//! // At the controller:
//! let issued = authority.redeem(&request, now)?;
//! assert_eq!(issued.identity, PeerIdentity::Worker("edge-1".parse()?));
//!
//! // Somebody shows an access token and wants to start a run:
//! let person = authority.authenticate(&admin.reveal(), now)?;
//! person.require(Action::Submit)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod address;
mod authority;
mod base32;
mod certificate;
mod controller;
mod der;
mod error;
mod files;
mod fingerprint;
mod folder;
#[doc(hidden)]
pub mod fuzz_entry;
mod hexadecimal;
mod name;
mod new_key;
mod peer;
mod people;
mod person;
#[cfg(test)]
mod power_loss;
mod refusal;
mod register;
mod registry;
mod request;
mod timestamp;
mod token;
mod worker;

pub use address::{JoinAddress, JoinAddressError};
pub use authority::{
    Authority, FIRST_ADMIN, Issued, JoinRequest, JoinTokenOptions, Lifetimes, MAX_GOOD_CERTIFICATES,
    MAX_TOKEN_LIFETIME, MAX_USES, PERSON_LENGTH, VerifiedPeer,
};
pub use certificate::{CertificateError, CertificateFacts, Serial, SerialError};
pub use controller::{ControllerError, TLS_NAME, between_workers_config, fingerprint_config, worker_config};
pub use error::{IdentityError, StoreError};
pub use fingerprint::{Fingerprint, FingerprintError};
pub use name::{NAME_LENGTH, Name, NameError};
pub use new_key::NewKey;
pub use peer::{PeerIdentity, PeerIdentityError};
pub use people::{Action, Role, RoleError};
pub use person::Person;
pub use refusal::{Refusal, RefusalKind};
pub use register::{
    ANSWER_KEPT, AccessTokenRecord, CertificateRecord, JoinTokenRecord, Revocation, TokenUse,
};
pub use registry::Registry;
pub use request::{CertificateRequest, REQUEST_BYTES, RequestError};
pub use timestamp::Timestamp;
pub use token::{AccessToken, JoinToken, NoRandomness, TokenError, TokenId, TokenIdError};
pub use worker::{WorkerFolder, WorkerIdentity};
