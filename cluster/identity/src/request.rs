//! Requests for certificates (PKCS #10): a public key, and the proof of having the private one.
use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PublicKeyData, SignatureAlgorithm};
use ring::signature::{ECDSA_P256_SHA256_ASN1, ED25519, UnparsedPublicKey, VerificationAlgorithm};
use rustls::pki_types::CertificateSigningRequestDer;
use rustls::pki_types::pem::PemObject;

use crate::der::{INTEGER, Malformed, Reader, SEQUENCE};
use crate::fingerprint::sha256;

/// Bytes that a request may have, as PEM.
pub const REQUEST_BYTES: usize = 16 << 10;

/// Why a request is refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// It is too long.
    #[error("the certificate request has {found} bytes, but the limit is {REQUEST_BYTES}")]
    Length {
        /// Its length.
        found: usize,
    },
    /// It is no PEM, or the PEM of something else.
    #[error(
        "this is not a certificate request: expected PEM that starts with -----BEGIN CERTIFICATE REQUEST-----"
    )]
    Pem,
    /// It is no PKCS #10.
    #[error("the certificate request is damaged: it is not PKCS #10")]
    Malformed,
    /// A key of another kind.
    #[error("the kind of the key in the certificate request is not supported: use ECDSA P-256 or Ed25519")]
    Key,
    /// The signature was not made with the private key.
    #[error(
        "the signature of the certificate request does not match its key: it was damaged, or created without the private key"
    )]
    Signature,
}

/// A public key of a kind that is taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PublicKey {
    raw: Vec<u8>,
    kind: KeyKind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum KeyKind {
    P256,
    Ed25519,
}

/// The bytes before the key itself in its `SubjectPublicKeyInfo`, the required name of the request's signature, and
/// the length of the key.
const P256_INFO: &[u8] = b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
const P256_SIGNATURE: &[u8] = b"\x30\x0a\x06\x08\x2a\x86\x48\xce\x3d\x04\x03\x02";
const P256_LENGTH: usize = 65;
const ED25519_INFO: &[u8] = b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
const ED25519_SIGNATURE: &[u8] = b"\x30\x05\x06\x03\x2b\x65\x70";
const ED25519_LENGTH: usize = 32;

impl PublicKey {
    fn of(info: &[u8]) -> Option<Self> {
        let kinds =
            [(P256_INFO, P256_LENGTH, KeyKind::P256), (ED25519_INFO, ED25519_LENGTH, KeyKind::Ed25519)];
        kinds.into_iter().find_map(|(before, length, kind)| {
            let raw = info.strip_prefix(before).filter(|raw| raw.len() == length)?;
            Some(Self { raw: raw.to_vec(), kind })
        })
    }

    /// Returns whether this key signed the message, with an algorithm of this name.
    fn signed(&self, message: &[u8], algorithm: &[u8], signature: &[u8]) -> bool {
        let (name, verification): (_, &'static dyn VerificationAlgorithm) = match self.kind {
            KeyKind::P256 => (P256_SIGNATURE, &ECDSA_P256_SHA256_ASN1),
            KeyKind::Ed25519 => (ED25519_SIGNATURE, &ED25519),
        };
        algorithm == name
            && UnparsedPublicKey::new(verification, &self.raw).verify(message, signature).is_ok()
    }

    /// Returns the hash that identifies the key.
    pub(crate) fn hash(&self) -> [u8; 32] {
        sha256(&self.subject_public_key_info())
    }
}

impl PublicKeyData for PublicKey {
    fn der_bytes(&self) -> &[u8] {
        &self.raw
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        match self.kind {
            KeyKind::P256 => &PKCS_ECDSA_P256_SHA256,
            KeyKind::Ed25519 => &PKCS_ED25519,
        }
    }
}

/// A request whose signature was verified. Nothing but its key is used: names and anything else that stands in it are not even
/// read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CertificateRequest {
    pub(crate) key: PublicKey,
}

impl CertificateRequest {
    /// Reads a request and verifies its signature.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn from_pem(text: &str) -> Result<Self, RequestError> {
        if text.len() > REQUEST_BYTES {
            return Err(RequestError::Length { found: text.len() });
        }
        let der = CertificateSigningRequestDer::from_pem_slice(text.as_bytes());
        Self::from_der(&der.map_err(|_| RequestError::Pem)?)
    }

    /// Reads a request in DER and verifies its signature.
    ///
    /// # Errors
    /// See [`RequestError`].
    pub fn from_der(bytes: &[u8]) -> Result<Self, RequestError> {
        if bytes.len() > REQUEST_BYTES {
            return Err(RequestError::Length { found: bytes.len() });
        }
        let parts = Parts::read(bytes).map_err(|Malformed| RequestError::Malformed)?;
        let key = PublicKey::of(parts.key).ok_or(RequestError::Key)?;
        if !key.signed(parts.signed, parts.algorithm, parts.signature) {
            return Err(RequestError::Signature);
        }
        Ok(Self { key })
    }
}

struct Parts<'a> {
    signed: &'a [u8],
    key: &'a [u8],
    algorithm: &'a [u8],
    signature: &'a [u8],
}

impl<'a> Parts<'a> {
    fn read(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let mut outer = Reader::new(bytes);
        let mut request = Reader::new(outer.expect(SEQUENCE)?.content);
        outer.end()?;
        let signed = request.expect(SEQUENCE)?;
        let algorithm = request.expect(SEQUENCE)?.whole;
        let signature = request.bits()?;
        request.end()?;
        let mut information = Reader::new(signed.content);
        if information.expect(INTEGER)?.content != [0] {
            return Err(Malformed);
        }
        let _name = information.expect(SEQUENCE)?;
        let key = information.expect(SEQUENCE)?.whole;
        let _attributes = information.optional(0xa0)?;
        information.end()?;
        Ok(Self { signed: signed.whole, key, algorithm, signature })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rcgen::{CertificateParams, KeyPair, PKCS_ECDSA_P384_SHA384};

    use super::*;
    use crate::new_key::NewKey;

    fn request(algorithm: &'static SignatureAlgorithm) -> (KeyPair, Vec<u8>) {
        let pair = KeyPair::generate_for(algorithm).expect("random bytes");
        let parameters = CertificateParams::new(vec!["evil.example".to_owned()]).expect("a name");
        let request = parameters.serialize_request(&pair).expect("a request");
        (pair, request.der().to_vec())
    }

    #[test]
    fn requests_prove_their_key() {
        for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_ED25519] {
            let (pair, bytes) = request(algorithm);
            let read = CertificateRequest::from_der(&bytes).unwrap();
            assert_eq!(read.key.subject_public_key_info(), pair.subject_public_key_info());
        }
        let new = NewKey::generate().unwrap();
        let read = CertificateRequest::from_pem(new.request_pem()).unwrap();
        let again = NewKey::from_pem(new.key_pem()).unwrap();
        assert_eq!(CertificateRequest::from_pem(again.request_pem()), Ok(read));
        assert_eq!(format!("{new:?}"), "NewKey");
    }

    #[test]
    fn other_requests_are_refused() {
        let (_, bytes) = request(&PKCS_ECDSA_P384_SHA384);
        assert_eq!(CertificateRequest::from_der(&bytes), Err(RequestError::Key));
        let long = "x".repeat(REQUEST_BYTES + 1);
        assert_eq!(
            CertificateRequest::from_pem(&long),
            Err(RequestError::Length { found: REQUEST_BYTES + 1 })
        );
        assert_eq!(CertificateRequest::from_pem("hello"), Err(RequestError::Pem));
        let certificate = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        assert_eq!(CertificateRequest::from_pem(certificate), Err(RequestError::Pem));
        assert_eq!(CertificateRequest::from_der(&[0x30, 0]), Err(RequestError::Malformed));
    }

    /// Whatever byte of a request is changed, it is not taken for one of the key.
    #[test]
    fn a_request_that_was_changed_is_refused() {
        for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_ED25519] {
            let (pair, bytes) = request(algorithm);
            let mut broken_signatures = 0;
            for place in 0..bytes.len() {
                let mut changed = bytes.clone();
                changed[place] ^= 1;
                let error = CertificateRequest::from_der(&changed).expect_err("was changed");
                broken_signatures += usize::from(error == RequestError::Signature);
            }
            assert!(broken_signatures > 64, "{broken_signatures}");
            // The key of another worker in a request that was signed with one's own.
            let (other, _) = request(algorithm);
            let (ours, theirs) = (pair.public_key_raw(), other.public_key_raw());
            let at = bytes.windows(ours.len()).position(|window| window == ours).unwrap();
            let mut stolen = bytes.clone();
            stolen[at..at + ours.len()].copy_from_slice(theirs);
            assert_eq!(CertificateRequest::from_der(&stolen), Err(RequestError::Signature));
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_request_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..400), at in 0usize..150) {
            prop_assert!(CertificateRequest::from_der(&bytes).is_err());
            prop_assert!(CertificateRequest::from_pem(&String::from_utf8_lossy(&bytes)).is_err());
            let (_, good) = request(&PKCS_ED25519);
            let damaged = [&good[..at.min(good.len())], &bytes].concat();
            prop_assert!(CertificateRequest::from_der(&damaged).is_err());
        }
    }
}
