//! The certificate that a side shows and the authorities that it trusts, replaceable while listeners and connections
//! exist.
use super::RemoteError;
use super::certificates::{Certificates, SUBJECT};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ResolvesClientCert, Resumption, WebPkiServerVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::server::{ClientHello, NoServerSessionStorage, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::time_provider::{DefaultTimeProvider, TimeProvider};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, RootCertStore,
    ServerConfig, SignatureScheme,
};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

/// Serial numbers of revoked certificates. Clones share the set. It is checked at every new connection of all
/// [`Credentials`] that have it, and at every read and write over connections that [`dial`](super::dial) and
/// [`Listener`](super::Listener) have made.
#[derive(Clone, Default)]
pub struct Revoked(Arc<Serials>);

#[derive(Default)]
struct Serials {
    all: RwLock<BTreeSet<Vec<u8>>>,
    /// Counts additions and replacements: without a change a connection need not look again.
    changes: AtomicU64,
}

impl std::fmt::Debug for Revoked {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let count = self.0.all.read().unwrap_or_else(PoisonError::into_inner).len();
        write!(f, "Revoked({count} certificates)")
    }
}

impl Revoked {
    /// Adds the serial number of a certificate: an unsigned number, big-endian.
    pub fn add(&self, serial: &[u8]) {
        let mut all = self.0.all.write().unwrap_or_else(PoisonError::into_inner);
        if all.insert(significant(serial).to_vec()) {
            self.0.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Replaces the whole set, for a side that receives all of it from time to time.
    pub fn replace<Serial: AsRef<[u8]>>(&self, serials: impl IntoIterator<Item = Serial>) {
        let new: BTreeSet<_> =
            serials.into_iter().map(|serial| significant(serial.as_ref()).to_vec()).collect();
        let mut all = self.0.all.write().unwrap_or_else(PoisonError::into_inner);
        if *all != new {
            *all = new;
            self.0.changes.fetch_add(1, Ordering::Release);
        }
    }

    /// Returns whether the serial number is in the set.
    pub fn contains(&self, serial: &[u8]) -> bool {
        self.0.all.read().unwrap_or_else(PoisonError::into_inner).contains(significant(serial))
    }

    /// Another number than before where the set is another one.
    pub(super) fn changes(&self) -> u64 {
        self.0.changes.load(Ordering::Acquire)
    }

    pub(super) fn check(&self, certificate: &CertificateDer<'_>) -> Result<(), Error> {
        let parsed = webpki::EndEntityCert::try_from(certificate)
            .map_err(|_| Error::InvalidCertificate(CertificateError::BadEncoding))?;
        if self.contains(parsed.serial()) {
            return Err(Error::InvalidCertificate(CertificateError::Revoked));
        }
        Ok(())
    }
}

/// DER puts a zero before a number whose first bit is set.
fn significant(serial: &[u8]) -> &[u8] {
    let zeros = serial.iter().take_while(|byte| **byte == 0).count();
    &serial[zeros..]
}

/// Checks a certificate that is good otherwise; the error is the reason of the refusal.
pub type FurtherCheck = Arc<dyn Fn(&CertificateDer<'_>) -> Result<(), CertificateError> + Send + Sync>;

/// Whether the side that accepts wants a certificate of the other one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClientCertificates {
    /// A peer without one is refused.
    Required,
    /// A peer without one is accepted; one that is shown must be good.
    Optional,
}

/// The certificate and the authorities of a side, and the certificates that it refuses. A handle: clones share the
/// same state, so that a certificate can be renewed and others be refused while listeners stay as they are. Existing
/// connections continue with the certificate that they have shown, and new ones use the change; over one whose peer
/// is refused nothing more comes or goes.
#[derive(Clone)]
pub struct Credentials(Arc<Shared>);

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the key.
        f.debug_struct("Credentials").field("revoked", &self.0.revoked).finish_non_exhaustive()
    }
}

struct Shared {
    current: RwLock<Arc<Current>>,
    revoked: Revoked,
    provider: Arc<CryptoProvider>,
    time: Arc<dyn TimeProvider>,
}

/// The state at one time.
struct Current {
    shown: Arc<CertifiedKey>,
    clients: Arc<dyn ClientCertVerifier>,
    servers: Arc<WebPkiServerVerifier>,
}

fn failed(what: &str, error: &dyn std::fmt::Display) -> RemoteError {
    RemoteError::Certificates(format!("{what}: {error}"))
}

impl Current {
    fn new(certificates: &Certificates, provider: &Arc<CryptoProvider>) -> Result<Self, RemoteError> {
        let read = |what: &str, pem: &[u8]| {
            let all = CertificateDer::pem_slice_iter(pem).collect::<Result<Vec<_>, _>>();
            let all = all.map_err(|error| failed(what, &error))?;
            if all.is_empty() { Err(failed(what, &"there is no certificate")) } else { Ok(all) }
        };
        let chain = read("the chain", &certificates.chain_pem)?;
        let key = PrivateKeyDer::from_pem_slice(&certificates.key_pem)
            .map_err(|error| failed("the key", &error))?;
        let mut authorities = RootCertStore::empty();
        for authority in read("the authority", &certificates.authority_pem)? {
            authorities.add(authority).map_err(|error| failed("the authority", &error))?;
        }
        let authorities = Arc::new(authorities);
        let shown = CertifiedKey::from_der(chain, key, provider)
            .map_err(|error| failed("the chain and its key", &error))?;
        let clients =
            WebPkiClientVerifier::builder_with_provider(Arc::clone(&authorities), Arc::clone(provider))
                .build()
                .map_err(|error| failed("the authority", &error))?;
        let servers = WebPkiServerVerifier::builder_with_provider(authorities, Arc::clone(provider))
            .build()
            .map_err(|error| failed("the authority", &error))?;
        Ok(Self { shown: Arc::new(shown), clients, servers })
    }
}

impl Shared {
    fn current(&self) -> Arc<Current> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Credentials {
    /// Makes credentials of these certificates; none is revoked yet.
    ///
    /// # Errors
    /// [`RemoteError::Certificates`] when they cannot be read or do not belong together.
    pub fn new(certificates: &Certificates) -> Result<Self, RemoteError> {
        Self::with(certificates, Revoked::default(), Arc::new(DefaultTimeProvider))
    }

    /// Makes credentials that refuse the certificates in `revoked` at any time, and that take the time from `time`.
    ///
    /// # Errors
    /// As [`Credentials::new`].
    pub fn with(
        certificates: &Certificates,
        revoked: Revoked,
        time: Arc<dyn TimeProvider>,
    ) -> Result<Self, RemoteError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let current = RwLock::new(Arc::new(Current::new(certificates, &provider)?));
        Ok(Self(Arc::new(Shared { current, revoked, provider, time })))
    }

    /// Replaces certificates and authorities from the next connection on, in all clones and all configurations made
    /// of them.
    ///
    /// # Errors
    /// As [`Credentials::new`]; then everything stays as it was.
    pub fn replace(&self, certificates: &Certificates) -> Result<(), RemoteError> {
        let new = Arc::new(Current::new(certificates, &self.0.provider)?);
        *self.0.current.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    /// Returns the set of revoked certificates, to be filled.
    pub fn revoked(&self) -> &Revoked {
        &self.0.revoked
    }

    /// The certificate that is shown now, as DER.
    pub fn certificate(&self) -> CertificateDer<'static> {
        let shown = &self.0.current().shown;
        // A chain that is empty is refused above.
        shown.cert.first().cloned().unwrap_or_else(|| CertificateDer::from(Vec::new()))
    }

    /// TLS 1.3 for a side that dials, for any protocol. The other side must have a certificate for the name `tidemill`,
    /// whatever name it is dialled by.
    ///
    /// # Errors
    /// [`RemoteError::Certificates`] when TLS cannot be set up.
    pub fn client_config(&self) -> Result<ClientConfig, RemoteError> {
        self.client_config_that(Arc::new(|_| Ok(())))
    }

    /// As [`Credentials::client_config`], with one more check of a certificate after all others, such as one of its
    /// identity.
    ///
    /// # Errors
    /// As [`Credentials::client_config`].
    pub fn client_config_that(&self, is_wanted: FurtherCheck) -> Result<ClientConfig, RemoteError> {
        let ours = Arc::new(Ours { is_wanted, ..Ours::new(self, ClientCertificates::Required)? });
        let (provider, time) = (Arc::clone(&self.0.provider), Arc::clone(&self.0.time));
        let mut config = ClientConfig::builder_with_details(provider, time)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| failed("TLS 1.3", &error))?
            .dangerous() // the verifier is that of rustls, with one more question
            .with_custom_certificate_verifier(Arc::<Ours>::clone(&ours))
            .with_client_cert_resolver(ours);
        // A resumed connection would not check certificates again.
        config.resumption = Resumption::disabled();
        Ok(config)
    }

    /// TLS 1.3 for a side that accepts, for any protocol.
    ///
    /// # Errors
    /// [`RemoteError::Certificates`] when TLS cannot be set up.
    pub fn server_config(&self, clients: ClientCertificates) -> Result<ServerConfig, RemoteError> {
        let ours = Arc::new(Ours::new(self, clients)?);
        let (provider, time) = (Arc::clone(&self.0.provider), Arc::clone(&self.0.time));
        let mut config = ServerConfig::builder_with_details(provider, time)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .map_err(|error| failed("TLS 1.3", &error))?
            .with_client_cert_verifier(Arc::<Ours>::clone(&ours))
            .with_cert_resolver(ours);
        // Connections last for hours, and a resumed one would not check certificates again.
        config.send_tls13_tickets = 0;
        config.session_storage = Arc::new(NoServerSessionStorage {});
        Ok(config)
    }
}

/// Reads the credentials at every handshake.
struct Ours {
    shared: Arc<Shared>,
    clients: ClientCertificates,
    /// The authorities at the time when this was made; only browsers look at them, to offer no other certificates.
    hints: Vec<DistinguishedName>,
    subject: ServerName<'static>,
    is_wanted: FurtherCheck,
}

impl std::fmt::Debug for Ours {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Ours").field("clients", &self.clients).finish_non_exhaustive()
    }
}

impl Ours {
    fn new(credentials: &Credentials, clients: ClientCertificates) -> Result<Self, RemoteError> {
        let shared = Arc::clone(&credentials.0);
        let hints = shared.current().clients.root_hint_subjects().to_vec();
        let subject = ServerName::try_from(SUBJECT).map_err(|error| failed("the name", &error))?;
        Ok(Self { shared, clients, hints, subject, is_wanted: Arc::new(|_| Ok(())) })
    }
}

/// Whether a peer has the key of its certificate: the same question to either side, of two traits.
macro_rules! signatures_of_a_peer {
    () => {
        fn verify_tls12_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.shared.provider.signature_verification_algorithms;
            verify_tls12_signature(message, certificate, signature, algorithms)
        }

        fn verify_tls13_signature(
            &self,
            message: &[u8],
            certificate: &CertificateDer<'_>,
            signature: &DigitallySignedStruct,
        ) -> Result<HandshakeSignatureValid, Error> {
            let algorithms = &self.shared.provider.signature_verification_algorithms;
            verify_tls13_signature(message, certificate, signature, algorithms)
        }

        fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
            self.shared.provider.signature_verification_algorithms.supported_schemes()
        }
    };
}

impl ServerCertVerifier for Ours {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let current = self.shared.current();
        let verified =
            current.servers.verify_server_cert(end_entity, intermediates, &self.subject, ocsp, now)?;
        self.shared.revoked.check(end_entity)?;
        (self.is_wanted)(end_entity).map_err(Error::InvalidCertificate)?;
        Ok(verified)
    }

    signatures_of_a_peer!();
}

impl ClientCertVerifier for Ours {
    fn client_auth_mandatory(&self) -> bool {
        self.clients == ClientCertificates::Required
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &self.hints
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self.shared.current().clients.verify_client_cert(end_entity, intermediates, now)?;
        self.shared.revoked.check(end_entity)?;
        Ok(verified)
    }

    signatures_of_a_peer!();
}

impl ResolvesServerCert for Ours {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.shared.current().shown))
    }
}

impl ResolvesClientCert for Ours {
    fn resolve(&self, _hints: &[&[u8]], _schemes: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.shared.current().shown))
    }

    fn has_certs(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn serial_numbers_are_numbers() {
        let revoked = Revoked::default();
        revoked.add(&[0, 0x80, 1]);
        assert!(revoked.clone().contains(&[0x80, 1]) && !revoked.contains(&[0x80]));
        revoked.replace([[7]]);
        assert!(revoked.contains(&[0, 7]) && !revoked.contains(&[0x80, 1]));
        assert_eq!(format!("{revoked:?}"), "Revoked(1 certificates)");
        // Repetition is no change.
        assert_eq!(revoked.changes(), 2);
        revoked.replace([[0, 7]]);
        revoked.add(&[7]);
        assert_eq!(revoked.clone().changes(), 2);
    }
}
