//! Asks the controller.
use crate::api::{CHUNK, Refused};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::sync::Arc;
use std::time::Duration;
use tidemill_identity::{
    AccessToken, Answer, Call, CallError, IdentityError, JoinAddress, fingerprint_config, worker_config,
};
use tidemill_link::remote::Credentials;

/// An answer may take so long.
const PATIENCE: Duration = Duration::from_secs(60);

/// Why there is no answer, or which.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody answered, or somebody else.
    #[error(transparent)]
    Call(#[from] CallError),
    /// TLS cannot be set up.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// The controller says no.
    #[error("{text}")]
    Refused {
        /// The number of HTTP.
        status: u16,
        /// Why.
        text: String,
    },
    /// The controller says something that is not understood.
    #[error("the controller's answer is not understood ({0}): have both the same version of this program?")]
    Malformed(String),
}

impl ClientError {
    /// The controller was there and said no: asking again gives the same.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Refused { status, .. } if (400..500).contains(status))
    }
}

/// Asks one controller.
pub struct Client {
    place: String,
    config: Arc<rustls::ClientConfig>,
    token: Option<AccessToken>,
}

impl Client {
    /// As a person, or as a worker that has not joined.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(address: &JoinAddress, token: Option<AccessToken>) -> Result<Self, ClientError> {
        let time = Arc::new(rustls::time_provider::DefaultTimeProvider);
        let config = Arc::new(fingerprint_config(address.fingerprint(), time)?);
        Ok(Self { place: address.host_and_port(), config, token })
    }

    /// As a worker.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn of_worker(address: &JoinAddress, credentials: &Credentials) -> Result<Self, ClientError> {
        let config = Arc::new(worker_config(credentials)?);
        Ok(Self { place: address.host_and_port(), config, token: None })
    }

    /// Asks for JSON.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        parsed(&self.bytes("GET", path, b"")?)
    }

    /// Sends JSON.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| ClientError::Malformed(error.to_string()))?;
        parsed(&self.bytes("POST", path, &body)?)
    }

    /// Ends or removes something.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        parsed(&self.bytes("DELETE", path, b"")?)
    }

    /// Sends a file.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn put(&self, path: &str, bytes: &[u8]) -> Result<(), ClientError> {
        self.bytes("PUT", path, bytes).map(drop)
    }

    /// Fetches a blob of a known size.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn blob(&self, digest: &str, size: u64) -> Result<Vec<u8>, ClientError> {
        let mut all = Vec::new();
        while (all.len() as u64) < size {
            let part = self.bytes("GET", &format!("/v1/blobs/{digest}?offset={}", all.len()), b"")?;
            if part.is_empty() || part.len() as u64 > CHUNK {
                return Err(ClientError::Malformed(format!("{} bytes of a file", part.len())));
            }
            all.extend(part);
        }
        Ok(all)
    }

    fn bytes(&self, method: &str, path: &str, body: &[u8]) -> Result<Vec<u8>, ClientError> {
        let call = Call { method, path, token: self.token.as_ref(), body };
        let Answer { status, body } = call.send(&self.place, &self.config, PATIENCE)?;
        if (200..300).contains(&status) {
            return Ok(body);
        }
        let text = match serde_json::from_slice::<Refused>(&body) {
            Ok(refused) => refused.error,
            Err(_) => format!("the controller answers {status}: {}", String::from_utf8_lossy(&body)),
        };
        Err(ClientError::Refused { status, text })
    }
}

fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(bytes).map_err(|error| ClientError::Malformed(error.to_string()))
}
