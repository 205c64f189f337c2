//! Asks the controller: the one that leads, where there are several.
mod several;

use crate::api::{REVOKED, Refused};
use rustls::AlertDescription;
use serde::Serialize;
use serde::de::DeserializeOwned;
use several::Several;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tidemill_http::{Answer, Call, CallError, Payload, Repeat, Reply};
use tidemill_identity::{
    AccessToken, IdentityError, JoinAddress, between_workers_config, fingerprint_config, worker_config,
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
    #[error(
        "cannot understand the answer of the controller ({0}): do both have the same version of this program?"
    )]
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
        self.uploaded(path, length, || File::open(file))?;
        Ok(length)
    }

    /// Sends `length` bytes of a reader as they are read, and returns JSON. `open` is called again where another controller leads.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn upload<T: DeserializeOwned, R: Read>(
        &self,
        path: &str,
        length: u64,
        open: impl FnMut() -> io::Result<R>,
    ) -> Result<T, ClientError> {
        parsed(&self.uploaded(path, length, open)?)
    }

    fn uploaded<R: Read>(
        &self,
        path: &str,
        length: u64,
        mut open: impl FnMut() -> io::Result<R>,
    ) -> Result<Vec<u8>, ClientError> {
        let patience = self.patience + Duration::from_secs(length / SLOWEST);
        self.with(Call { method: "PUT", ..Call::get(path) }, |call| {
            self.caller.find(Repeat::Refused, |caller| {
                // A removed file is reported like one that became shorter.
                let mut content: Box<dyn Read + '_> = match open() {
                    Ok(content) => Box::new(content),
                    Err(_) => Box::new(io::empty()),
                };
                caller.upload(call, Payload { from: &mut content, length }, patience).map(judged)
            })
        })
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

    /// Asks for bytes, to be read as they come, from one of them on.
    ///
    /// # Errors
    /// See [`ClientError`].
    pub fn open(&self, path: &str, from: u64) -> Result<Reply, ClientError> {
        // Controllers of versions before 0063 know the query.
        let end = if path.contains('?') { '&' } else { '?' };
        let path = if from > 0 { format!("{path}{end}offset={from}") } else { path.to_owned() };
        self.with(Call { from, ..Call::get(&path) }, |call| {
            self.caller.find(Repeat::Allowed, |caller| {
                let reply = caller.open(call, self.patience, Repeat::Allowed)?;
                if is_good(reply.status) { Ok(Ok(reply)) } else { reply.whole().map(Err) }
            })
        })
    }

    /// A blob of a known size, which is read as it comes; after a cut the rest is asked for.
    pub fn blob(&self, digest: &str, size: u64) -> BlobReader<'_> {
        self.blob_from(digest, size, 0)
    }

    /// As [`Client::blob`], from a byte on.
    pub fn blob_from(&self, digest: &str, size: u64, offset: u64) -> BlobReader<'_> {
        BlobReader { client: self, path: format!("/v1/blobs/{digest}"), size, offset, reply: None }
    }

    fn bytes(&self, method: &str, path: &str, body: &[u8], repeat: Repeat) -> Result<Vec<u8>, ClientError> {
        self.with(Call { method, body, ..Call::get(path) }, |call| {
            self.caller.find(repeat, |caller| caller.send(call, self.patience, repeat).map(judged))
        })
    }

    /// Shows the token, where there is one.
    fn with<T>(&self, call: Call<'_>, ask: impl FnOnce(&Call<'_>) -> T) -> T {
        let token = self.token.as_ref().map(AccessToken::reveal);
        ask(&Call { token: token.as_ref().map(|token| token.as_str()), ..call })
    }
}

fn is_good(status: u16) -> bool {
    (200..300).contains(&status)
}

/// The body of an answer that is good.
fn judged(answer: Answer) -> Result<Vec<u8>, Answer> {
    if is_good(answer.status) { Ok(answer.body) } else { Err(answer) }
}

/// Why an answer refuses.
fn refused(Answer { status, body }: &Answer) -> ClientError {
    let text = match serde_json::from_slice::<Refused>(body) {
        Ok(refused) => refused.error,
        Err(_) => format!("the controller answers {status}: {}", String::from_utf8_lossy(body)),
    };
    ClientError::Refused { status: *status, text }
}

/// See [`Client::blob`]. An error of the client is within the one of reading.
pub struct BlobReader<'a> {
    client: &'a Client,
    path: String,
    size: u64,
    offset: u64,
    /// The body of an answer, and whether some of it has arrived.
    reply: Option<(Reply, bool)>,
}

impl Read for BlobReader<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.size - self.offset).unwrap_or(usize::MAX);
        let most = left.min(into.len());
        if most == 0 {
            return Ok(0);
        }
        loop {
            let (reply, has_come) = match &mut self.reply {
                Some(reply) => reply,
                none => {
                    let reply = self.client.open(&self.path, self.offset).map_err(io::Error::other)?;
                    none.insert((reply, false))
                }
            };
            match (reply.read(&mut into[..most]), *has_come) {
                (Ok(0), false) => return Err(io::ErrorKind::UnexpectedEof.into()),
                (Err(error), false) => return Err(error),
                // A cut: the rest is asked for, over another connection.
                (Ok(0) | Err(_), true) => self.reply = None,
                (Ok(count), _) => {
                    *has_come = true;
                    self.offset += count as u64;
                    return Ok(count);
                }
            }
        }
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
