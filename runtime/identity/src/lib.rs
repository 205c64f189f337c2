//! Who is who in a cluster: an authority with its certificates, join tokens for workers, access tokens for people.
#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod address;
mod authority;
mod base32;
mod call;
mod certificate;
mod controller;
mod der;
mod error;
mod files;
mod fingerprint;
mod folder;
mod hexadecimal;
mod name;
mod peer;
mod people;
#[cfg(test)]
mod power_loss;
mod refusal;
mod register;
mod request;
mod timestamp;
mod token;
mod worker;

pub use address::{JoinAddress, JoinAddressError};
pub use authority::{
    Authority, FIRST_ADMIN, Issued, JoinRequest, JoinTokenOptions, Lifetimes, MAX_GOOD_CERTIFICATES,
    MAX_TOKEN_LIFETIME, MAX_USES, PERSON_LENGTH, VerifiedPeer,
};
pub use call::{ANSWER_BODY_BYTES, ANSWER_HEAD_BYTES, Answer, Call, CallError};
pub use certificate::{CertificateError, CertificateFacts, Serial, SerialError};
pub use controller::{ControllerError, TLS_NAME, fingerprint_config, worker_config};
pub use error::{IdentityError, StoreError};
pub use fingerprint::{Fingerprint, FingerprintError};
pub use name::{NAME_LENGTH, Name, NameError};
pub use peer::{PeerIdentity, PeerIdentityError};
pub use people::{Action, Person, Role, RoleError};
pub use refusal::{Refusal, RefusalKind};
pub use register::{
    ANSWER_KEPT, AccessTokenRecord, CertificateRecord, JoinTokenRecord, Revocation, TokenUse,
};
pub use request::{CertificateRequest, NewKey, REQUEST_BYTES, RequestError};
pub use timestamp::Timestamp;
pub use token::{AccessToken, JoinToken, NoRandomness, TokenError, TokenId, TokenIdError};
pub use worker::{WorkerFolder, WorkerIdentity};
