//! Who may connect to whom.
use super::RemoteError;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::server::WebPkiClientVerifier;
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection};
use std::sync::Arc;

/// The name that every certificate of a deployment must have: the authority says who belongs to it, not a host's name.
pub(super) const SUBJECT: &str = "tidemill";

/// What a host shows of itself and whom it believes, as PEM.
#[derive(Clone)]
pub struct Certificates {
    /// The certificate of the host, then those between it and the authority. It must be valid for the DNS name `tidemill`,
    /// as a server and as a client.
    pub chain_pem: Vec<u8>,
    /// The private key of the host's certificate.
    pub key_pem: Vec<u8>,
    /// The certificates of the authorities whose hosts are believed.
    pub authority_pem: Vec<u8>,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // Not the key.
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

/// What a failure of TLS is to people.
pub(super) fn explain(error: &rustls::Error) -> String {
    use rustls::AlertDescription as Alert;
    match error {
        rustls::Error::InvalidCertificate(why) => format!("the certificate of the peer is refused: {why}"),
        rustls::Error::NoCertificatesPresented => "the peer shows no certificate".into(),
        rustls::Error::AlertReceived(Alert::CertificateExpired) => {
            "the peer refuses the certificate of this side: it has expired".into()
        }
        rustls::Error::AlertReceived(Alert::UnknownCA | Alert::DecryptError) => {
            "the peer refuses the certificate of this side: it is of another authority".into()
        }
        rustls::Error::AlertReceived(Alert::CertificateRequired) => {
            "the peer wants a certificate of this side".into()
        }
        rustls::Error::AlertReceived(
            alert @ (Alert::BadCertificate | Alert::UnsupportedCertificate | Alert::CertificateUnknown),
        ) => format!("the peer refuses the certificate of this side: {alert:?}"),
        rustls::Error::InvalidMessage(why) => {
            format!("the peer does not speak TLS, or something between damaged it ({why:?})")
        }
        other => other.to_string(),
    }
}

#[derive(Clone)]
struct Configurations {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

/// How connections are secured: not at all, or with TLS 1.3 on which both sides show certificates.
#[derive(Clone)]
pub struct Security(Option<Configurations>);

impl std::fmt::Debug for Security {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Security::mutual" } else { "Security::none" })
    }
}

impl Security {
    /// Anyone who reaches the address is believed, and everything can be read on the way.
    pub fn none() -> Self {
        Self(None)
    }

    /// Both sides show certificates of an authority that the other one believes.
    ///
    /// # Errors
    /// [`RemoteError::Certificates`] when they cannot be read or do not belong together.
    pub fn mutual(certificates: &Certificates) -> Result<Self, RemoteError> {
        let failed =
            |what: &str, error: &dyn std::fmt::Display| RemoteError::Certificates(format!("{what}: {error}"));
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
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let versions = &[&rustls::version::TLS13];
        let client = ClientConfig::builder_with_provider(Arc::clone(&provider))
            .with_protocol_versions(versions)
            .map_err(|error| failed("TLS 1.3", &error))?
            .with_root_certificates(Arc::clone(&authorities))
            .with_client_auth_cert(chain.clone(), key.clone_key())
            .map_err(|error| failed("the chain and its key", &error))?;
        let verifier = WebPkiClientVerifier::builder_with_provider(authorities, Arc::clone(&provider))
            .build()
            .map_err(|error| failed("the authority", &error))?;
        let mut server = ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .map_err(|error| failed("TLS 1.3", &error))?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)
            .map_err(|error| failed("the chain and its key", &error))?;
        // Connections last for hours: no tickets to resume them with.
        server.send_tls13_tickets = 0;
        Ok(Self(Some(Configurations { client: Arc::new(client), server: Arc::new(server) })))
    }

    /// TLS for the side that dials.
    pub(super) fn client(&self) -> Result<Option<rustls::Connection>, RemoteError> {
        let Some(configurations) = &self.0 else { return Ok(None) };
        let name = ServerName::try_from(SUBJECT).map_err(|error| RemoteError::Tls(error.to_string()))?;
        let connection = ClientConnection::new(Arc::clone(&configurations.client), name);
        connection
            .map(|connection| Some(connection.into()))
            .map_err(|error| RemoteError::Tls(error.to_string()))
    }

    /// TLS for the side that listens.
    pub(super) fn server(&self) -> Result<Option<rustls::Connection>, RemoteError> {
        let Some(configurations) = &self.0 else { return Ok(None) };
        let connection = ServerConnection::new(Arc::clone(&configurations.server));
        connection
            .map(|connection| Some(connection.into()))
            .map_err(|error| RemoteError::Tls(error.to_string()))
    }
}
