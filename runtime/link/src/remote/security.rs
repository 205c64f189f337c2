//! Who may connect to whom.
use super::RemoteError;
use super::carrier::Secured;
use super::credentials::{ClientCertificates, Credentials, Revoked};
use rustls::pki_types::ServerName;
use rustls::{CertificateError, ClientConfig, ClientConnection, ServerConfig, ServerConnection};
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
        rustls::Error::InvalidCertificate(CertificateError::Revoked) => {
            "the certificate of the peer is refused: it has been revoked".into()
        }
        rustls::Error::InvalidCertificate(
            why @ (CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. }),
        ) => format!("the certificate of the peer is refused: {why}; is the clock of this machine right?"),
        rustls::Error::InvalidCertificate(why) => format!("the certificate of the peer is refused: {why}"),
        rustls::Error::NoCertificatesPresented => "the peer shows no certificate".into(),
        rustls::Error::AlertReceived(Alert::CertificateExpired) => {
            "the peer refuses the certificate of this side: it has expired".into()
        }
        rustls::Error::AlertReceived(Alert::CertificateRevoked) => {
            "the peer refuses the certificate of this side: it has been revoked".into()
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
    revoked: Revoked,
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
        Self::with(&Credentials::new(certificates)?)
    }

    /// The same with credentials that can be replaced, and with certificates that are refused, while listeners go on: where one is, nothing
    /// more comes or goes over connections of its peer.
    ///
    /// # Errors
    /// [`RemoteError::Certificates`] when TLS cannot be set up.
    pub fn with(credentials: &Credentials) -> Result<Self, RemoteError> {
        let client = Arc::new(credentials.client_config()?);
        let server = Arc::new(credentials.server_config(ClientCertificates::Required)?);
        Ok(Self(Some(Configurations { client, server, revoked: credentials.revoked().clone() })))
    }

    /// TLS for the side that dials.
    pub(super) fn client(&self) -> Result<Option<Secured>, RemoteError> {
        let Some(configurations) = &self.0 else { return Ok(None) };
        let name = ServerName::try_from(SUBJECT).map_err(|error| RemoteError::Tls(error.to_string()))?;
        let connection = ClientConnection::new(Arc::clone(&configurations.client), name);
        connection
            .map(|connection| Some(Secured::new(connection.into(), configurations.revoked.clone())))
            .map_err(|error| RemoteError::Tls(error.to_string()))
    }

    /// TLS for the side that listens.
    pub(super) fn server(&self) -> Result<Option<Secured>, RemoteError> {
        let Some(configurations) = &self.0 else { return Ok(None) };
        let connection = ServerConnection::new(Arc::clone(&configurations.server));
        connection
            .map(|connection| Some(Secured::new(connection.into(), configurations.revoked.clone())))
            .map_err(|error| RemoteError::Tls(error.to_string()))
    }
}
