//! Joining of workers.
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::Authority;
use crate::error::IdentityError;
use crate::name::Name;
use crate::peer::PeerIdentity;
use crate::refusal::Refusal;
use crate::register::{CertificateRecord, JoinTokenRecord, KeyHash, Register, Revocation, TokenUse};
use crate::request::CertificateRequest;
use crate::timestamp::Timestamp;
use crate::token::{JoinToken, TokenId};

/// Largest number of workers that may join by one token.
pub const MAX_USES: u32 = 10_000;
/// Longest lifetime of a token.
pub const MAX_TOKEN_LIFETIME: Duration = Duration::from_secs(366 * 86_400);

/// The purpose of a join token. The default is for one worker of any name, within an hour.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JoinTokenOptions {
    /// Number of workers that can join by it.
    pub uses: u32,
    /// Lifetime.
    pub lifetime: Duration,
    /// The only name that its worker can get.
    pub name: Option<Name>,
    /// The only location that its workers can have.
    pub location: Option<Name>,
    /// The only tier that its workers can have.
    pub tier: Option<Name>,
    /// Whether its worker takes the place of one that has its name, whose certificates are revoked then: a machine
    /// that was set up again. Requires a name.
    pub replaces: bool,
}

impl Default for JoinTokenOptions {
    fn default() -> Self {
        let lifetime = Duration::from_secs(3_600);
        Self { uses: 1, lifetime, name: None, location: None, tier: None, replaces: false }
    }
}

impl JoinTokenOptions {
    fn check(&self) -> Result<(), IdentityError> {
        let wrong = |text: String| Err(IdentityError::Invalid(text));
        if self.uses == 0 || self.uses > MAX_USES {
            return wrong(format!("a join token can be used 1 to {MAX_USES} times, not {}", self.uses));
        }
        if self.lifetime.as_secs() == 0 || self.lifetime > MAX_TOKEN_LIFETIME {
            return wrong(format!(
                "a join token can be used for 1 second to 366 days, not {} seconds",
                self.lifetime.as_secs()
            ));
        }
        if let Some(name) = self.name.as_ref().filter(|_| self.uses > 1) {
            return wrong(format!(
                "only one worker can have the name `{name}`: let the token be used once, or leave out the name"
            ));
        }
        if self.replaces && self.name.is_none() {
            return wrong("a join token that replaces a worker must name it".to_owned());
        }
        Ok(())
    }
}

/// The request of a worker to join.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinRequest {
    /// The token: `tmj_…`.
    pub token: String,
    /// The request for a certificate, as PEM: [`NewKey::request_pem`](crate::NewKey::request_pem).
    pub request_pem: String,
    /// The requested name. The authority decides, and names a worker that requests none.
    #[serde(default)]
    pub name: Option<Name>,
    /// Its location.
    #[serde(default)]
    pub location: Option<Name>,
    /// Its tier.
    #[serde(default)]
    pub tier: Option<Name>,
}

impl std::fmt::Debug for JoinRequest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the token.
        f.debug_struct("JoinRequest").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A certificate for a worker. Nothing in it is secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Issued {
    /// The identity in it.
    pub identity: PeerIdentity,
    /// The location of the worker in the register.
    pub location: Option<Name>,
    /// The tier of the worker in the register.
    pub tier: Option<Name>,
    /// The certificate and that of the authority, as PEM.
    pub chain_pem: String,
    /// The certificate of the authority, as PEM.
    pub authority_pem: String,
    /// Its expiry.
    pub expires: Timestamp,
}

impl Authority {
    /// Makes a token for workers. Show its text once: only a hash of it is kept. `by`: its maker, for the list.
    ///
    /// # Errors
    /// [`IdentityError::Invalid`] when the options cannot be.
    pub fn create_join_token(
        &self,
        options: &JoinTokenOptions,
        by: &str,
        now: Timestamp,
    ) -> Result<JoinToken, IdentityError> {
        options.check()?;
        self.change(now, |register| {
            let token = loop {
                let token = JoinToken::draw()?;
                if register.join_tokens.iter().all(|other| other.id != token.id()) {
                    break token;
                }
            };
            register.join_tokens.push(JoinTokenRecord {
                id: token.id(),
                by: by.to_owned(),
                made: now,
                expires: now.after(options.lifetime),
                uses_allowed: options.uses,
                uses: Vec::new(),
                name: options.name.clone(),
                location: options.location.clone(),
                tier: options.tier.clone(),
                replaces: options.replaces,
                revoked: None,
                hash: token.hash(),
            });
            Ok(token)
        })
    }

    /// Returns all known join tokens, oldest first.
    pub fn join_tokens(&self) -> Vec<JoinTokenRecord> {
        self.look(|register| register.join_tokens.clone())
    }

    /// Revokes a token: no more workers join by it. Workers that have joined by it stay.
    ///
    /// # Errors
    /// [`IdentityError::NoSuch`] when there is no such token.
    pub fn revoke_join_token(
        &self,
        id: TokenId,
        reason: &str,
        by: &str,
        now: Timestamp,
    ) -> Result<(), IdentityError> {
        self.change(now, |register| {
            let token = register.join_tokens.iter_mut().find(|token| token.id == id);
            let token = token.ok_or_else(|| IdentityError::NoSuch(format!("join token {id}")))?;
            let revocation = Revocation { at: now, by: by.to_owned(), reason: reason.to_owned() };
            token.revoked.get_or_insert(revocation);
            Ok(())
        })
    }

    /// Lets a worker in: takes its token and issues its certificate, both or neither. The same request for the same
    /// key gets the same certificate for [`ANSWER_KEPT`](crate::ANSWER_KEPT), so that an answer that was lost in
    /// transit can be requested again.
    ///
    /// # Errors
    /// [`IdentityError::Refused`] says why the worker does not come in.
    pub fn redeem(&self, join: &JoinRequest, now: Timestamp) -> Result<Issued, IdentityError> {
        if join.token.trim().is_empty() {
            return Err(Refusal::NoToken.into());
        }
        let token: JoinToken = join.token.parse().map_err(Refusal::Token)?;
        // A peer without a known token costs no more than this look.
        self.look(|register| known(register, &token).map(drop))?;
        let request = CertificateRequest::from_pem(&join.request_pem);
        self.change(now, |register| {
            let record = known(register, &token)?;
            if let Some(revocation) = &record.revoked {
                let (at, by) = (revocation.at, revocation.by.clone());
                return Err(Refusal::TokenRevoked { id: record.id, at, by }.into());
            }
            let request = request.map_err(Refusal::Request)?;
            let key = KeyHash(request.key.hash());
            if let Some(again) = answered(register, record, key, now) {
                return Ok(self.answer(again));
            }
            check_time_and_uses(record, now)?;
            let id = record.id;
            let name = decide(id, "worker", record.name.as_ref(), join.name.as_ref())?;
            let location = decide(id, "location", record.location.as_ref(), join.location.as_ref())?;
            let tier = decide(id, "tier", record.tier.as_ref(), join.tier.as_ref())?;
            let name = name.map_or_else(|| free_name(register), Ok)?;
            let replaces = record.replaces;
            let identity = PeerIdentity::Worker(name.clone());
            for other in &mut register.certificates {
                if other.identity != identity || other.key == key || other.revoked.is_some() {
                    continue;
                }
                if replaces {
                    let (by, reason) = (format!("join token {id}"), "replaced".to_owned());
                    other.revoked = Some(Revocation { at: now, by, reason });
                } else if other.is_good(now) {
                    return Err(Refusal::NameTaken { name, until: other.expires }.into());
                }
            }
            let signed = self.sign(&request.key, &identity, Vec::new(), self.lifetimes.worker, now)?;
            let certificate = CertificateRecord {
                serial: signed.serial,
                identity,
                location,
                tier,
                issued: now,
                expires: signed.expires,
                token: Some(id),
                revoked: None,
                key,
                answer: Some(signed.pem.clone()),
            };
            let issued = self.issued(&certificate, &signed.pem);
            for token in register.join_tokens.iter_mut().filter(|token| token.id == id) {
                token.uses.push(TokenUse { at: now, worker: name.clone(), serial: signed.serial });
            }
            register.certificates.push(certificate);
            Ok(issued)
        })
    }

    pub(super) fn issued(&self, record: &CertificateRecord, pem: &str) -> Issued {
        Issued {
            identity: record.identity.clone(),
            location: record.location.clone(),
            tier: record.tier.clone(),
            chain_pem: self.chain(pem),
            authority_pem: self.certificate_pem.clone(),
            expires: record.expires,
        }
    }

    fn answer(&self, (record, pem): (&CertificateRecord, &str)) -> Issued {
        self.issued(record, pem)
    }
}

/// Returns the record of a token.
fn known<'a>(register: &'a Register, token: &JoinToken) -> Result<&'a JoinTokenRecord, Refusal> {
    let id = token.id();
    let record = register.join_tokens.iter().find(|record| record.id == id);
    let has_id = record.is_some();
    record.filter(|record| token.is(&record.hash)).ok_or(Refusal::UnknownToken { id, has_id })
}

/// Returns the recent answer to the same key and token.
fn answered<'a>(
    register: &'a Register,
    token: &JoinTokenRecord,
    key: KeyHash,
    now: Timestamp,
) -> Option<(&'a CertificateRecord, &'a str)> {
    token.uses.iter().rev().find_map(|used| {
        let record = register.certificate(used.serial.as_bytes())?;
        Some((record, record.answer_for(key, now)?))
    })
}

fn check_time_and_uses(token: &JoinTokenRecord, now: Timestamp) -> Result<(), Refusal> {
    let id = token.id;
    let is_used = token.uses.len() >= token.uses_allowed as usize;
    if let Some(last) = token.uses.last().filter(|_| is_used) {
        return Err(Refusal::TokenUsed { id, at: last.at, by: last.worker.clone() });
    }
    if now > token.expires {
        return Err(Refusal::TokenExpired { id, at: token.expires });
    }
    Ok(())
}

/// Returns the value that the token requires, or else the requested one.
fn decide(
    id: TokenId,
    what: &'static str,
    allowed: Option<&Name>,
    asked: Option<&Name>,
) -> Result<Option<Name>, Refusal> {
    match (allowed, asked) {
        (Some(allowed), Some(asked)) if allowed != asked => {
            Err(Refusal::Constrained { id, what, allowed: allowed.clone(), asked: asked.clone() })
        }
        (Some(one), _) | (None, Some(one)) => Ok(Some(one.clone())),
        (None, None) => Ok(None),
    }
}

/// Returns `worker-N` with the first number that no known worker has had.
fn free_name(register: &Register) -> Result<Name, IdentityError> {
    let taken = |name: &str| {
        let mut workers = register.certificates.iter().filter_map(|record| record.identity.worker());
        workers.any(|worker| worker.as_str() == name)
    };
    let mut names = (1u32..).map(|number| format!("worker-{number}"));
    let free = names.find(|name| !taken(name)).unwrap_or_default();
    free.parse().map_err(|error| IdentityError::Invalid(format!("{error}")))
}
