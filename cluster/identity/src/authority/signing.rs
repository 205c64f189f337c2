//! Signs certificates, and verifies those that were signed.
use std::net::IpAddr;
use std::time::Duration;

use rcgen::{CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, KeyPair};
use rcgen::{KeyUsagePurpose, PKCS_ECDSA_P256_SHA256, PublicKeyData, SanType, SerialNumber};
use rustls::pki_types::CertificateDer;
use tidemill_link::remote::Certificates;

use super::Authority;
use crate::certificate::{CertificateFacts, Serial};
use crate::error::IdentityError;
use crate::fingerprint::{Fingerprint, sha256};
use crate::peer::PeerIdentity;
use crate::refusal::Refusal;
use crate::register::{CertificateRecord, KeyHash};
use crate::timestamp::Timestamp;

/// The DNS name that every certificate of a cluster is valid for.
const SUBJECT: &str = "tidemill";
/// Time before their issue from which certificates are valid, because clocks differ; a tenth of their life at most.
const SKEW: Duration = Duration::from_secs(300);

/// Sets the period in which a certificate is valid.
pub(super) fn set_validity(parameters: &mut CertificateParams, from: Timestamp, to: Timestamp) {
    let beginning = rcgen::date_time_ymd(1970, 1, 1);
    parameters.not_before = beginning + Duration::from_secs(from.as_unix());
    parameters.not_after = beginning + Duration::from_secs(to.as_unix());
}

/// A signed certificate.
pub(super) struct Signed {
    pub(super) serial: Serial,
    pub(super) pem: String,
    pub(super) expires: Timestamp,
}

impl Authority {
    /// Signs a certificate for this key. Only the key comes from the peer.
    pub(super) fn sign(
        &self,
        key: &impl PublicKeyData,
        identity: &PeerIdentity,
        names: Vec<SanType>,
        lifetime: Duration,
        now: Timestamp,
    ) -> Result<Signed, IdentityError> {
        let serial = Serial::draw()?;
        let expires = now.after(lifetime).min(self.facts.not_after);
        if expires <= now || now < self.facts.not_before {
            let (from, to) = (self.facts.not_before, self.facts.not_after);
            let text =
                format!("the authority is valid from {from} to {to}, but now is {now}: is the clock right?");
            return Err(IdentityError::Certificate(text));
        }
        let mut parameters = CertificateParams::default();
        parameters.serial_number = Some(SerialNumber::from_slice(serial.as_bytes()));
        set_validity(&mut parameters, now.before(SKEW.min(expires.since(now) / 10)), expires);
        parameters.distinguished_name = DistinguishedName::new();
        let name = identity.worker().map_or("controller", |name| name.as_str());
        parameters.distinguished_name.push(DnType::CommonName, name);
        let ascii = |text: &str| text.try_into().map_err(IdentityError::certificate);
        parameters.subject_alt_names =
            vec![SanType::DnsName(ascii(SUBJECT)?), SanType::URI(ascii(&identity.to_string())?)];
        parameters.subject_alt_names.extend(names);
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        parameters.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        parameters.use_authority_key_identifier_extension = true;
        let certificate = parameters.signed_by(key, &self.issuer).map_err(IdentityError::certificate)?;
        // Issue only a certificate that this side accepts itself.
        self.verify_signature(&[certificate.der().clone()], now)?;
        Ok(Signed { serial, pem: certificate.pem(), expires })
    }

    /// Issues a certificate for the controller itself, with a new key that is not stored: valid for the DNS names and
    /// addresses by which people reach it, besides `tidemill`. [`CertificateFacts::renewal_due`] is the time for the
    /// next one.
    ///
    /// # Errors
    /// [`IdentityError::Invalid`] when one of the names is none.
    pub fn issue_controller(&self, names: &[&str], now: Timestamp) -> Result<Certificates, IdentityError> {
        let mut others = Vec::new();
        for name in names {
            let inner = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
            let wrong = || {
                let text = "is neither a DNS name nor an IP address: write the names by which people reach the controller";
                IdentityError::Invalid(format!("{name:?} {text}"))
            };
            let other = match inner.parse::<IpAddr>() {
                Ok(address) => SanType::IpAddress(address),
                Err(_) => {
                    let name = rustls::pki_types::DnsName::try_from(*name).map_err(|_| wrong())?;
                    SanType::DnsName(name.as_ref().try_into().map_err(|_| wrong())?)
                }
            };
            others.push(other);
        }
        let key = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).map_err(IdentityError::certificate)?;
        let identity = PeerIdentity::Controller;
        let signed = self.sign(&key, &identity, others, self.lifetimes.controller, now)?;
        let certificates = Certificates {
            chain_pem: self.chain(&signed.pem).into_bytes(),
            key_pem: key.serialize_pem().into_bytes(),
            authority_pem: self.certificate_pem.clone().into_bytes(),
        };
        self.change(now, |register| {
            register.certificates.push(CertificateRecord {
                serial: signed.serial,
                identity,
                location: None,
                tier: None,
                issued: now,
                expires: signed.expires,
                token: None,
                revoked: None,
                key: KeyHash(sha256(&key.subject_public_key_info())),
                answer: None,
            });
            Ok(())
        })?;
        Ok(certificates)
    }

    /// Returns the certificate followed by that of the authority, so that a side that knows only its fingerprint can
    /// verify it.
    pub(super) fn chain(&self, certificate_pem: &str) -> String {
        let newline = if certificate_pem.ends_with('\n') { "" } else { "\n" };
        format!("{certificate_pem}{newline}{}", self.certificate_pem)
    }

    /// Verifies that this authority signed the first certificate of a chain, and that it is valid at this time.
    pub(super) fn verify_signature(
        &self,
        chain: &[CertificateDer<'_>],
        now: Timestamp,
    ) -> Result<CertificateFacts, Refusal> {
        let leaf = chain.first().ok_or(Refusal::NoCertificate)?;
        let facts = CertificateFacts::of_der(leaf).map_err(|_| Refusal::NoCertificate)?;
        let parsed = webpki::EndEntityCert::try_from(leaf).map_err(|_| Refusal::NoCertificate)?;
        // The dates count only once the issuer is known.
        let verified = parsed.verify_for_usage(
            webpki::ALL_VERIFICATION_ALGS,
            &self.anchors,
            &[],
            facts.not_before.into(),
            webpki::KeyUsage::client_auth(),
            None,
            None,
        );
        if verified.is_err() {
            let is_authority =
                |bytes: &&CertificateDer<'_>| CertificateFacts::of_der(bytes).is_ok_and(|it| it.is_authority);
            let theirs = chain.iter().rev().find(is_authority).map(|bytes| Fingerprint::of(bytes));
            let theirs = theirs.filter(|theirs| *theirs != self.fingerprint);
            return Err(Refusal::OtherCluster { theirs, ours: self.fingerprint });
        }
        let serial = || parsed.serial().iter().map(|byte| format!("{byte:02x}")).collect();
        if now > facts.not_after {
            return Err(Refusal::CertificateExpired { serial: serial(), at: facts.not_after });
        }
        if now < facts.not_before {
            return Err(Refusal::CertificateNotYetValid { serial: serial(), from: facts.not_before, now });
        }
        Ok(facts)
    }
}
