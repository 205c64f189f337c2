//! Protection of connections.
use super::RemoteError;
use super::certificates::{Certificates, SUBJECT};
use super::credentials::{ClientCertificates, Credentials, Revoked};
use super::secured::Secured;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, ServerConfig, ServerConnection};
use std::sync::Arc;

#[derive(Clone)]
struct Configurations {
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
    revoked: Revoked,
}

/// The protection of connections: none, or TLS 1.3 on which both sides show certificates.
#[derive(Clone)]
pub struct Security(Option<Configurations>);

impl std::fmt::Debug for Security {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.0.is_some() { "Security::mutual" } else { "Security::none" })
    }
}

impl Security {
    /// Accepts any peer that reaches the address, and encrypts nothing.
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

    /// As [`Security::mutual`], with credentials that can be replaced, and with certificates that can be refused,
    /// while listeners run: when one is refused, nothing more comes or goes over connections of its peer.
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
