//! Verification of the controller by its clients.
use std::sync::Arc;

use rustls::SignatureScheme;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, Error, OtherError, RootCertStore};
use tidemill_link::remote::Credentials;

use crate::certificate::CertificateFacts;
use crate::error::IdentityError;
use crate::fingerprint::Fingerprint;
use crate::peer::PeerIdentity;
use crate::timestamp::Timestamp;

/// The DNS name that every certificate of a cluster is valid for, and that a client requires, by whatever name it
/// dials.
pub const TLS_NAME: &str = "tidemill";

/// Why a peer that answers is not the controller that is meant.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ControllerError {
    /// The peer showed another authority than the one that is meant.
    #[error(
        "this is another cluster: the fingerprint of its authority is {shown}, but the address has \
         {wanted}; copy the address again; if it is right, another program answers there"
    )]
    OtherCluster {
        /// The fingerprint of the authority that the peer showed.
        shown: Fingerprint,
        /// The fingerprint in the address.
        wanted: Fingerprint,
    },
    /// The peer showed no authority: it is no controller.
    #[error(
        "the server shows no certificate of an authority: is it the controller of a cluster? The expected \
         fingerprint is {wanted}"
    )]
    NoAuthority {
        /// The fingerprint in the address.
        wanted: Fingerprint,
    },
    /// The authority is the right one, but not at this time.
    #[error(
        "the certificate of the authority is valid from {from} to {to}, but now is {now}: is the clock of this machine right?"
    )]
    AuthorityNotValid {
        /// Beginning of its validity.
        from: Timestamp,
        /// Its expiry.
        to: Timestamp,
        /// The time of this machine.
        now: Timestamp,
    },
    /// A peer of this cluster answers that is not its controller.
    #[error("{of} answers, which is not the controller: another machine intercepts the connection")]
    NotTheController {
        /// The identity in its certificate.
        of: String,
    },
    /// A peer of this cluster answers that is no worker.
    #[error("{of} answers, which is not a worker of the cluster")]
    NotAWorker {
        /// The identity in its certificate.
        of: String,
    },
}

impl From<ControllerError> for CertificateError {
    fn from(error: ControllerError) -> Self {
        Self::Other(OtherError(Arc::new(error)))
    }
}

/// Checks that a verified certificate is that of the controller: workers have valid ones, too, for the same name.
fn is_controller(certificate: &CertificateDer<'_>) -> Result<(), CertificateError> {
    let of = match PeerIdentity::of_verified(certificate) {
        Ok(PeerIdentity::Controller) => return Ok(()),
        Ok(other) => other.for_people(),
        Err(error) => format!("a peer of unknown identity ({error})"),
    };
    Err(ControllerError::NotTheController { of }.into())
}

/// Returns the configuration of TLS 1.3 for a client that knows only the fingerprint of an authority: a worker that
/// joins, or a person. The other side must show the certificate of exactly this authority, and one of the controller
/// that is valid under it at this time and for the name `tidemill`. The client shows no certificate.
///
/// # Errors
/// [`IdentityError::Certificate`] when TLS cannot be set up.
pub fn fingerprint_config(
    wanted: Fingerprint,
    time: Arc<dyn TimeProvider>,
) -> Result<ClientConfig, IdentityError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier = ByFingerprint { wanted, provider: Arc::clone(&provider) };
    let mut config = ClientConfig::builder_with_details(provider, time)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(IdentityError::certificate)?
        .dangerous() // what the authority signed is verified by rustls itself
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    Ok(config)
}

/// Returns the configuration of TLS 1.3 for a worker that has joined: it shows its certificate, and the other side
/// must be the controller.
///
/// # Errors
/// [`IdentityError::Certificate`] when TLS cannot be set up.
pub fn worker_config(credentials: &Credentials) -> Result<ClientConfig, IdentityError> {
    credentials.client_config_that(Arc::new(is_controller)).map_err(IdentityError::certificate)
}

/// Returns the configuration of TLS 1.3 for a worker that calls another worker: it shows its certificate, and the
/// other side must be a worker of the cluster whose revocation is not known here.
///
/// # Errors
/// [`IdentityError::Certificate`] when TLS cannot be set up.
pub fn between_workers_config(credentials: &Credentials) -> Result<ClientConfig, IdentityError> {
    credentials.client_config_that(Arc::new(is_worker)).map_err(IdentityError::certificate)
}

fn is_worker(certificate: &CertificateDer<'_>) -> Result<(), CertificateError> {
    let of = match PeerIdentity::of_verified(certificate) {
        Ok(PeerIdentity::Worker(_)) => return Ok(()),
        Ok(other) => other.for_people(),
        Err(error) => format!("a peer of unknown identity ({error})"),
    };
    Err(ControllerError::NotAWorker { of }.into())
}

#[derive(Debug)]
struct ByFingerprint {
    wanted: Fingerprint,
    provider: Arc<CryptoProvider>,
}

impl ByFingerprint {
    /// The authority that is wanted, among the certificates that were shown.
    fn authority<'a>(
        &self,
        shown: &'a [CertificateDer<'a>],
        now: Timestamp,
    ) -> Result<&'a CertificateDer<'a>, ControllerError> {
        let wanted = self.wanted;
        let mut others = None;
        for certificate in shown {
            let Ok(facts) = CertificateFacts::of_der(certificate) else { continue };
            if !facts.is_authority {
                continue;
            }
            let fingerprint = Fingerprint::of(certificate);
            if fingerprint != wanted {
                others = Some(fingerprint);
            } else if facts.is_valid(now) {
                return Ok(certificate);
            } else {
                let (from, to) = (facts.not_before, facts.not_after);
                return Err(ControllerError::AuthorityNotValid { from, to, now });
            }
        }
        Err(match others {
            Some(shown) => ControllerError::OtherCluster { shown, wanted },
            None => ControllerError::NoAuthority { wanted },
        })
    }
}

impl ServerCertVerifier for ByFingerprint {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let time = Timestamp::from_unix(now.as_secs());
        let authority = self.authority(intermediates, time);
        let authority = authority.map_err(|error| Error::InvalidCertificate(error.into()))?;
        let mut authorities = RootCertStore::empty();
        authorities.add(authority.clone().into_owned())?;
        let provider = Arc::clone(&self.provider);
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(authorities), provider)
            .build()
            .map_err(|error| Error::General(error.to_string()))?;
        let name = ServerName::try_from(TLS_NAME).map_err(|error| Error::General(error.to_string()))?;
        let verified = verifier.verify_server_cert(end_entity, intermediates, &name, ocsp, now)?;
        is_controller(end_entity).map_err(Error::InvalidCertificate)?;
        Ok(verified)
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
