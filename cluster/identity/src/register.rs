//! The register of an authority.
use std::collections::HashMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::certificate::Serial;
use crate::fingerprint::{Fingerprint, sha256};
use crate::hexadecimal::as_hexadecimal;
use crate::name::Name;
use crate::peer::PeerIdentity;
use crate::people::Role;
use crate::timestamp::Timestamp;
use crate::token::{TokenHash, TokenId};

/// Time that the answer to a request is kept, for repetition to a peer that did not get it.
pub const ANSWER_KEPT: Duration = Duration::from_secs(15 * 60);
/// Time after their end that tokens and certificates stay in the lists.
const REMEMBERED: Duration = Duration::from_secs(90 * 86_400);
/// Time that revoked certificates, and the last one of each worker, stay: if the clock was wrong for a while, the
/// former must still be refused, and the latter must still be known.
const LONG_REMEMBERED: Duration = Duration::from_secs(2 * 366 * 86_400);

const FORMAT: u32 = 1;

/// The SHA-256 of a public key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeyHash(pub(crate) [u8; 32]);

as_hexadecimal!(KeyHash, "hash of a key");

/// That something counts no more.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Revocation {
    /// When.
    pub at: Timestamp,
    /// By whom.
    pub by: String,
    /// Why.
    pub reason: String,
}

/// A certificate that was issued.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CertificateRecord {
    /// Its serial number.
    pub serial: Serial,
    /// Its identity.
    pub identity: PeerIdentity,
    /// The location of the worker, if known.
    pub location: Option<Name>,
    /// The tier of the worker, if known.
    pub tier: Option<Name>,
    /// When it was issued.
    pub issued: Timestamp,
    /// Until when it is valid.
    pub expires: Timestamp,
    /// The token that the worker came in with, at first.
    pub token: Option<TokenId>,
    /// Whether it was revoked.
    pub revoked: Option<Revocation>,
    pub(crate) key: KeyHash,
    /// The certificate as PEM, for a while.
    pub(crate) answer: Option<String>,
}

impl CertificateRecord {
    /// Returns whether it is valid at this time.
    pub fn is_good(&self, now: Timestamp) -> bool {
        self.revoked.is_none() && now <= self.expires
    }

    /// The certificate again, for the same key a short time later.
    pub(crate) fn answer_for(&self, key: KeyHash, now: Timestamp) -> Option<&str> {
        let is_recent = now.since(self.issued) <= ANSWER_KEPT;
        self.answer.as_deref().filter(|_| self.key == key && is_recent && self.is_good(now))
    }
}

/// One use of a join token.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TokenUse {
    /// When.
    pub at: Timestamp,
    /// The worker that came in.
    pub worker: Name,
    /// The certificate it got.
    pub serial: Serial,
}

/// A join token, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JoinTokenRecord {
    /// Its id.
    pub id: TokenId,
    /// Its maker.
    pub by: String,
    /// When it was made.
    pub made: Timestamp,
    /// Until when it can be used.
    pub expires: Timestamp,
    /// Number of permitted uses.
    pub uses_allowed: u32,
    /// Its uses.
    pub uses: Vec<TokenUse>,
    /// The only name a worker can get by it.
    pub name: Option<Name>,
    /// The only location a worker can have by it.
    pub location: Option<Name>,
    /// The only tier a worker can have by it.
    pub tier: Option<Name>,
    /// Whether the worker takes the place of one that has its name.
    pub replaces: bool,
    /// Whether it was revoked.
    pub revoked: Option<Revocation>,
    pub(crate) hash: TokenHash,
}

/// An access token of a person, without its secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AccessTokenRecord {
    /// Its id.
    pub id: TokenId,
    /// Name of its owner.
    pub name: String,
    /// Permissions of the person.
    pub role: Role,
    /// When it was made.
    pub made: Timestamp,
    /// Until when it counts; for ever if there is no such time.
    pub expires: Option<Timestamp>,
    /// Whether it was revoked.
    pub revoked: Option<Revocation>,
    pub(crate) hash: TokenHash,
}

impl AccessTokenRecord {
    /// Returns whether it counts at this time.
    pub fn is_good(&self, now: Timestamp) -> bool {
        self.revoked.is_none() && self.expires.is_none_or(|expires| now <= expires)
    }
}

/// All that an authority remembers besides its key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Register {
    format: u32,
    /// The authority that it belongs to.
    pub(crate) authority: Fingerprint,
    /// The first access token is given once only, even when no person is left.
    pub(crate) first_admin_was_given: bool,
    pub(crate) certificates: Vec<CertificateRecord>,
    pub(crate) join_tokens: Vec<JoinTokenRecord>,
    pub(crate) people: Vec<AccessTokenRecord>,
}

impl Register {
    pub(crate) fn new(authority: Fingerprint) -> Self {
        Self {
            format: FORMAT,
            authority,
            first_admin_was_given: false,
            certificates: Vec::new(),
            join_tokens: Vec::new(),
            people: Vec::new(),
        }
    }

    /// Returns whether anything was ever written into it.
    pub(crate) fn is_new(&self) -> bool {
        *self == Self::new(self.authority)
    }

    /// JSON on one line, and its SHA-256 on the next.
    pub(crate) fn to_bytes(&self) -> Result<Vec<u8>, String> {
        let mut bytes = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        let check = Fingerprint(sha256(&bytes));
        bytes.extend_from_slice(format!("\n{check}\n").as_bytes());
        Ok(bytes)
    }

    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<Self, String> {
        let end = bytes.iter().position(|byte| *byte == b'\n').ok_or("it is truncated")?;
        let (json, check) = bytes.split_at(end);
        if check != format!("\n{}\n", Fingerprint(sha256(json))).as_bytes() {
            return Err("its bytes differ from those that were written".to_owned());
        }
        #[derive(Deserialize)]
        struct Format {
            format: u32,
        }
        let Format { format } = serde_json::from_slice(json).map_err(|error| error.to_string())?;
        if format != FORMAT {
            return Err(format!("it has format {format}, but this program reads format {FORMAT}"));
        }
        serde_json::from_slice(json).map_err(|error| error.to_string())
    }

    /// Forgets records that are not needed any more.
    pub(crate) fn prune(&mut self, now: Timestamp) {
        let over = |end: Timestamp| now.since(end) > REMEMBERED;
        for certificate in &mut self.certificates {
            if now.since(certificate.issued) > ANSWER_KEPT || certificate.revoked.is_some() {
                certificate.answer = None;
            }
        }
        // In the order of their issue: what stays is the last one of each.
        let last: HashMap<PeerIdentity, Serial> =
            self.certificates.iter().map(|it| (it.identity.clone(), it.serial)).collect();
        self.certificates.retain(|certificate| {
            let is_last = last.get(&certificate.identity) == Some(&certificate.serial);
            let is_long_remembered = is_last || certificate.revoked.is_some();
            let remembered = if is_long_remembered { LONG_REMEMBERED } else { REMEMBERED };
            now.since(certificate.expires) <= remembered
        });
        self.join_tokens.retain(|token| !over(token.expires));
        self.people.retain(|token| {
            let end = token.revoked.as_ref().map(|revocation| revocation.at);
            !end.or(token.expires).is_some_and(over)
        });
    }

    pub(crate) fn certificate(&self, serial: &[u8]) -> Option<&CertificateRecord> {
        self.certificates.iter().find(|certificate| certificate.serial.as_bytes() == serial)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn register() -> Register {
        let revocation =
            Revocation { at: Timestamp::from_unix(3), by: "Ada".to_owned(), reason: String::new() };
        let certificate = |serial: u8, revoked| CertificateRecord {
            serial: Serial([serial; 16]),
            identity: PeerIdentity::Controller,
            location: None,
            tier: None,
            issued: Timestamp::from_unix(10),
            expires: Timestamp::from_unix(1_000),
            token: Some(TokenId([1; 5])),
            revoked,
            key: KeyHash([2; 32]),
            answer: Some("PEM".to_owned()),
        };
        let mut register = Register::new(Fingerprint([7; 32]));
        register.certificates =
            vec![certificate(1, None), certificate(2, Some(revocation)), certificate(3, None)];
        register
    }

    #[test]
    fn a_register_comes_back_whole_or_not_at_all() {
        let register = register();
        let bytes = register.to_bytes().unwrap();
        assert_eq!(Register::from_bytes(&bytes), Ok(register));
        for place in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[place] ^= 1;
            assert!(
                Register::from_bytes(&damaged).is_err() && Register::from_bytes(&bytes[..place]).is_err()
            );
        }
        let mut later = Register::new(Fingerprint([7; 32]));
        assert!(later.is_new());
        later.format = 2;
        let error = Register::from_bytes(&later.to_bytes().unwrap()).unwrap_err();
        assert_eq!(error, "it has format 2, but this program reads format 1");
    }

    #[test]
    fn what_is_long_over_is_forgotten() {
        let mut register = register();
        register.prune(Timestamp::from_unix(10).after(ANSWER_KEPT));
        let answers: Vec<_> = register.certificates.iter().map(|it| it.answer.is_some()).collect();
        assert_eq!(answers, [true, false, true]);
        let end = Timestamp::from_unix(1_000).after(REMEMBERED);
        register.prune(end);
        assert_eq!(register.certificates.len(), 3);
        assert!(register.certificates.iter().all(|it| it.answer.is_none()));
        register.prune(end.after(Duration::from_secs(1)));
        let serials: Vec<_> = register.certificates.iter().map(|it| it.serial).collect();
        assert_eq!(serials, [Serial([2; 16]), Serial([3; 16])], "the one that was revoked, and the last one");
        register.prune(Timestamp::from_unix(1_001).after(LONG_REMEMBERED));
        assert!(register.certificates.is_empty());
    }
}
