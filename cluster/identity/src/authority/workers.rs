//! Workers that have joined.
use rustls::pki_types::CertificateDer;

use super::{Authority, Issued};
use crate::certificate::Serial;
use crate::error::IdentityError;
use crate::name::Name;
use crate::peer::PeerIdentity;
use crate::refusal::Refusal;
use crate::register::{CertificateRecord, KeyHash, Register, Revocation};
use crate::request::CertificateRequest;
use crate::timestamp::Timestamp;

/// Largest number of valid certificates of a worker. It has two while it renews one; one that requests many more
/// fills the register.
pub const MAX_GOOD_CERTIFICATES: usize = 16;

/// A peer whose certificate is good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VerifiedPeer {
    /// Its identity.
    pub identity: PeerIdentity,
    /// The location of the worker in the register.
    pub location: Option<Name>,
    /// The tier of the worker in the register.
    pub tier: Option<Name>,
    /// The serial number of the certificate.
    pub serial: Serial,
    /// The expiry of the certificate.
    pub expires: Timestamp,
}

impl Authority {
    /// Returns the peer that shows this certificate, which may have others after it. Verifies all of it: the
    /// signature, the time, and whether it was revoked. TLS has done most of that already, but once and for a whole
    /// connection.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub fn verify(&self, chain: &[CertificateDer<'_>], now: Timestamp) -> Result<VerifiedPeer, Refusal> {
        let facts = self.verify_signature(chain, now)?;
        self.look(|register| {
            let record = standing(register, &facts.serial)?;
            Ok(VerifiedPeer {
                identity: record.identity.clone(),
                location: record.location.clone(),
                tier: record.tier.clone(),
                serial: record.serial,
                expires: record.expires,
            })
        })
    }

    /// Issues a new certificate for the worker that shows this one, with the facts in the register; the old one stays
    /// valid until its end. The same request gets the same certificate for [`ANSWER_KEPT`](crate::ANSWER_KEPT).
    ///
    /// # Errors
    /// [`IdentityError::Refused`] with the reason.
    pub fn renew(
        &self,
        chain: &[CertificateDer<'_>],
        request_pem: &str,
        now: Timestamp,
    ) -> Result<Issued, IdentityError> {
        let facts = self.verify_signature(chain, now)?;
        let request = CertificateRequest::from_pem(request_pem).map_err(Refusal::Request)?;
        let key = KeyHash(request.key.hash());
        self.change(now, |register| {
            let old = standing(register, &facts.serial)?.clone();
            let Some(name) = old.identity.worker() else {
                return Err(Refusal::NotAWorker { of: old.identity.for_people() }.into());
            };
            let good = || {
                let all = register.certificates.iter();
                all.filter(|record| record.identity == old.identity && record.is_good(now))
            };
            let again = good().find_map(|record| Some((record, record.answer_for(key, now)?)));
            if let Some((record, pem)) = again {
                return Ok(self.issued(record, pem));
            }
            let count = good().count();
            if count >= MAX_GOOD_CERTIFICATES {
                return Err(Refusal::TooManyCertificates { name: name.clone(), count }.into());
            }
            let signed = self.sign(&request.key, &old.identity, Vec::new(), self.lifetimes.worker, now)?;
            let record = CertificateRecord {
                serial: signed.serial,
                issued: now,
                expires: signed.expires,
                key,
                answer: Some(signed.pem.clone()),
                ..old
            };
            let issued = self.issued(&record, &signed.pem);
            register.certificates.push(record);
            Ok(issued)
        })
    }

    /// Revokes all certificates of a worker, also expired ones, because clocks differ: new connections refuse them,
    /// and they cannot be renewed. The caller ends existing connections. Returns the serial numbers.
    ///
    /// # Errors
    /// [`IdentityError::NoSuch`] when there is no such worker, or nothing of it is left to revoke.
    pub fn revoke_worker(
        &self,
        name: &Name,
        reason: &str,
        by: &str,
        now: Timestamp,
    ) -> Result<Vec<Serial>, IdentityError> {
        let identity = PeerIdentity::Worker(name.clone());
        self.revoke(reason, by, now, |record| record.identity == identity && record.revoked.is_none())?
            .ok_or_else(|| IdentityError::NoSuch(format!("worker `{name}` with a certificate to revoke")))
    }

    /// Revokes one certificate, of a worker or of the controller.
    ///
    /// # Errors
    /// [`IdentityError::NoSuch`] when it is not known.
    pub fn revoke_certificate(
        &self,
        serial: Serial,
        reason: &str,
        by: &str,
        now: Timestamp,
    ) -> Result<(), IdentityError> {
        let revoked = self.revoke(reason, by, now, |record| record.serial == serial)?;
        revoked.map(drop).ok_or_else(|| IdentityError::NoSuch(format!("certificate {serial}")))
    }

    fn revoke(
        &self,
        reason: &str,
        by: &str,
        now: Timestamp,
        is_meant: impl Fn(&CertificateRecord) -> bool,
    ) -> Result<Option<Vec<Serial>>, IdentityError> {
        self.change(now, |register| {
            let mut serials = Vec::new();
            for record in register.certificates.iter_mut().filter(|record| is_meant(record)) {
                let revocation = Revocation { at: now, by: by.to_owned(), reason: reason.to_owned() };
                record.revoked.get_or_insert(revocation);
                serials.push(record.serial);
            }
            Ok(Some(serials).filter(|serials| !serials.is_empty()))
        })
    }

    /// Returns all known certificates, oldest first.
    pub fn certificates(&self) -> Vec<CertificateRecord> {
        let strip = |record: &CertificateRecord| CertificateRecord { answer: None, ..record.clone() };
        self.look(|register| register.certificates.iter().map(strip).collect())
    }
}

/// Returns the record of a certificate that this authority signed.
fn standing<'a>(register: &'a Register, serial: &[u8]) -> Result<&'a CertificateRecord, Refusal> {
    let text = || serial.iter().map(|byte| format!("{byte:02x}")).collect();
    let record = register.certificate(serial);
    let record = record.ok_or_else(|| Refusal::CertificateUnknown { serial: text() })?;
    match &record.revoked {
        None => Ok(record),
        Some(Revocation { at, by, reason }) => Err(Refusal::CertificateRevoked {
            serial: text(),
            of: record.identity.for_people(),
            at: *at,
            by: by.clone(),
            reason: reason.clone(),
        }),
    }
}
