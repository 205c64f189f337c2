//! Asks the controller: the one that leads, where there are several.
mod several;

use crate::api::{CHUNK, REVOKED, Refused};
use rustls::AlertDescription;
use serde::Serialize;
use serde::de::DeserializeOwned;
use several::Several;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidemill_identity::{
    AccessToken, Answer, Call, CallError, Caller, IdentityError, JoinAddress, Repeat, between_workers_config,
    fingerprint_config, worker_config,
};
use tidemill_link::remote::Credentials;

/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(60);
/// Bytes of a file a second that are waited for, at least.
const SLOWEST: u64 = 64 << 10;
/// Time limit of an answer of another worker, which is not the only source.
const PATIENCE_WITH_PEERS: Duration = Duration::from_secs(10);

/// The reason why there is no answer, or the answer that is an error.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// No answer, or one from another server.
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
    /// A file that is to be sent cannot be read.
    #[error("{path}: {source}")]
    File {
        /// Which.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// The controller says something that is not understood.
    #[error("the controller's answer is not understood ({0}): have both the same version of this program?")]
    Malformed(String),
}

impl ClientError {
    /// The controller was there and said no: asking again gives the same.
    pub fn is_refusal(&self) -> bool {
        match self {
            Self::Refused { status, .. } => (400..500).contains(status),
            _ => self.is_revocation(),
        }
    }

    /// The controller says that the certificate that was shown is revoked: no clock that is wrong for a while, and no controller that cannot
    /// check it now, is a reason for that.
    pub fn is_revocation(&self) -> bool {
        match self {
            Self::Refused { status, .. } => *status == REVOKED,
            Self::Call(CallError::Tls { reason, .. }) => {
                *reason == rustls::Error::AlertReceived(AlertDescription::CertificateRevoked)
            }
            _ => false,
        }
    }

    /// Whether the caller cannot prove its identity at the moment, such as while a clock is wrong.
    pub(crate) fn is_unproved(&self) -> bool {
        matches!(self, Self::Refused { status: 401, .. })
    }
}

/// Asks the controller that leads, over a connection that stays open between questions.
pub struct Client {
    caller: Several,
    token: Option<AccessToken>,
    patience: Duration,
}

impl Client {
    /// As a person, or as a worker that has not joined.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(address: &JoinAddress, token: Option<AccessToken>) -> Result<Self, ClientError> {
        let time = Arc::new(rustls::time_provider::DefaultTimeProvider);
        let caller = Several::new(address, fingerprint_config(address.fingerprint(), time)?);
        Ok(Self { caller, token, patience: PATIENCE })
    }

    /// As a worker.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn of_worker(address: &JoinAddress, credentials: &Credentials) -> Result<Self, ClientError> {
        let caller = Several::new(address, worker_config(credentials)?);
        Ok(Self { caller, token: None, patience: PATIENCE })
    }

    /// As a worker that asks another worker, at `HOST:PORT`.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn of_peer(place: &str, credentials: &Credentials) -> Result<Self, ClientError> {
        let caller = Several::one(place.to_owned(), between_workers_config(credentials)?);
        Ok(Self { caller, token: None, patience: PATIENCE_WITH_PEERS })
    }

    /// Sets the time limit of an answer. A request over a connection that is cut is sent again over a new one.
    #[must_use]
    pub fn with_patience(self, patience: Duration) -> Self {
        Self { patience, ..self }
    }

    /// Does not wait for a leader: the next request finds out.
    #[must_use]
    pub fn at_once(self) -> Self {
        Self { caller: self.caller.at_once(), ..self }
    }

    /// `HOST:PORT` of the controller that was asked last.
    pub fn place(&self) -> String {
        self.caller.place()
    }

    /// Asks another controller from now on, where there is one: this one says what is not so any more.
    pub fn turn_from(&self, place: &str) {
        self.caller.turn_from(place);
    }

    /// Has the next question make a connection, with the certificate that there is then.
    pub fn reconnect(&self) {
        self.caller.reconnect();
    }

    /// Connections that were made so far.
    pub fn connections(&self) -> u64 {
        self.caller.connections()
    }

    /// Asks for JSON.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        parsed(&self.bytes("GET", path, b"", Repeat::Allowed)?)
    }

    /// Sends JSON.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn post<T: DeserializeOwned>(&self, path: &str, body: &impl Serialize) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| ClientError::Malformed(error.to_string()))?;
        parsed(&self.bytes("POST", path, &body, Repeat::Refused)?)
    }

    /// Sends JSON with a request that may arrive twice, if the connection is lost.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn post_again<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ClientError> {
        let body = serde_json::to_vec(body).map_err(|error| ClientError::Malformed(error.to_string()))?;
        parsed(&self.bytes("POST", path, &body, Repeat::Allowed)?)
    }

    /// Ends or removes something.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, ClientError> {
        parsed(&self.bytes("DELETE", path, b"", Repeat::Refused)?)
    }

    /// Sends a file.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn put(&self, path: &str, bytes: &[u8]) -> Result<(), ClientError> {
        self.bytes("PUT", path, bytes, Repeat::Allowed).map(drop)
    }

    /// Sends a file as it is read; how many bytes it has.
    ///
    /// # Errors
    /// See [`ClientError`]; [`ClientError::File`] where it cannot be read.
    pub fn put_file(&self, path: &str, file: &Path) -> Result<u64, ClientError> {
        let unreadable = |source| ClientError::File { path: file.to_owned(), source };
        let length = File::open(file).and_then(|file| file.metadata()).map_err(unreadable)?.len();
        let call = Call { method: "PUT", path, token: self.token.as_ref(), body: b"" };
        let patience = self.patience + Duration::from_secs(length / SLOWEST);
        let again = |error: &CallError| matches!(error, CallError::Unreachable { .. });
        let send = |caller: &Caller| {
            // A removed file is reported like one that became shorter.
            let content = File::open(file).ok();
            let mut content: Box<dyn Read> = content.map_or(Box::new(io::empty()), |file| Box::new(file));
            caller.send_all_of(&call, &mut content, length, patience)
        };
        accepted(self.caller.find(send, again)?)?;
        Ok(length)
    }

    /// Sends bytes with a request that may arrive twice, and returns JSON.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn post_bytes<T: DeserializeOwned>(&self, path: &str, bytes: &[u8]) -> Result<T, ClientError> {
        parsed(&self.bytes("POST", path, bytes, Repeat::Allowed)?)
    }

    /// Asks for bytes.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn content(&self, path: &str) -> Result<Vec<u8>, ClientError> {
        self.bytes("GET", path, b"", Repeat::Allowed)
    }

    /// Sends bytes and gets JSON.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn put_for<T: DeserializeOwned>(&self, path: &str, bytes: &[u8]) -> Result<T, ClientError> {
        parsed(&self.bytes("PUT", path, bytes, Repeat::Refused)?)
    }

    /// A blob of a known size, fetched part by part while it is read.
    pub fn blob(&self, digest: &str, size: u64) -> BlobReader<'_> {
        BlobReader { client: self, digest: digest.to_owned(), size, offset: 0, part: io::Cursor::default() }
    }

    fn bytes(&self, method: &str, path: &str, body: &[u8], repeat: Repeat) -> Result<Vec<u8>, ClientError> {
        let call = Call { method, path, token: self.token.as_ref(), body };
        accepted(self.caller.send(&call, self.patience, repeat)?)
    }
}

/// The body of an answer that says yes.
fn accepted(Answer { status, body }: Answer) -> Result<Vec<u8>, ClientError> {
    if (200..300).contains(&status) {
        return Ok(body);
    }
    let text = match serde_json::from_slice::<Refused>(&body) {
        Ok(refused) => refused.error,
        Err(_) => format!("the controller answers {status}: {}", String::from_utf8_lossy(&body)),
    };
    Err(ClientError::Refused { status, text })
}

/// See [`Client::blob`]. An error of the client is within the one of reading.
pub struct BlobReader<'a> {
    client: &'a Client,
    digest: String,
    size: u64,
    offset: u64,
    part: io::Cursor<Vec<u8>>,
}

impl Read for BlobReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.part.position() == self.part.get_ref().len() as u64 && self.offset < self.size {
            let path = format!("/v1/blobs/{}?offset={}", self.digest, self.offset);
            let part = self.client.content(&path).map_err(io::Error::other)?;
            if part.is_empty() || part.len() as u64 > CHUNK {
                let error = ClientError::Malformed(format!("{} bytes of a file", part.len()));
                return Err(io::Error::other(error));
            }
            self.offset += part.len() as u64;
            self.part = io::Cursor::new(part);
        }
        self.part.read(into)
    }
}

/// A name as a part of a path.
pub fn segment(name: &str) -> String {
    name.bytes().fold(String::with_capacity(name.len()), |mut text, byte| {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                text.push(char::from(byte))
            }
            other => text.push_str(&format!("%{other:02X}")),
        }
        text
    })
}

fn parsed<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ClientError> {
    serde_json::from_slice(bytes).map_err(|error| ClientError::Malformed(error.to_string()))
}
