//! The side of the client: one session with a device.
mod lane;
mod patience;
mod waiting;

pub use lane::Lane;
pub use waiting::Pending;

use crate::call::{Failure, Hello, MOST_PAYLOAD, Op, VERSION};
use crate::carrier::{Carrier, Messages, Outgoing, share};
use crate::device::{Artifact, ModelId, Snapshot};
use crate::memory::{Lent, Traffic};
use crate::value::Value;
use bytes::Bytes;
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use waiting::Shared;

/// Bytes of a piece of a model file.
const PIECE: usize = 1 << 20;
/// How long a device may take to answer the greeting: it may start a process and load a library.
const GREETING: Duration = Duration::from_secs(30);

/// Why a call has no result.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// It, or an asynchronous call of the lane before it, failed. The session continues.
    #[error(transparent)]
    Failed(Failure),
    /// The device, its proxy or the connection is lost; all handles are gone.
    #[error("the device is lost{}: {reason}", if *.may_have_run { "" } else { " before it had the call" })]
    Lost {
        /// Sequence number of the call.
        sequence: u64,
        /// Whether the device may have computed it.
        may_have_run: bool,
        /// The reason.
        reason: String,
    },
    /// The device does not want the session.
    #[error("the device refused: {0}")]
    Refused(String),
    /// A file of a model cannot be read.
    #[error("{file}: {reason}")]
    File {
        /// Its name.
        file: String,
        /// The reason.
        reason: String,
    },
    /// A value that cannot be sent.
    #[error("{0}")]
    Value(String),
}

/// Where the time of a call went.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// From the first call of the lane to the reply.
    pub total: Duration,
    /// At the proxy: from the arrival of the first call of the lane to the reply.
    pub at_device: Duration,
    /// Of it, the device computed for this session.
    pub computed: Duration,
}

impl Times {
    /// The time on the way: [`Self::total`] without the time at the proxy.
    pub fn network(&self) -> Duration {
        self.total.saturating_sub(self.at_device)
    }

    /// The time in queues of the device: at the proxy, but not computing.
    pub fn queue(&self) -> Duration {
        self.at_device.saturating_sub(self.computed)
    }
}

/// The result of a call that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    /// Its payload.
    pub payload: Bytes,
    /// The values of a tensor that came in shared memory.
    placed: Option<Bytes>,
    /// Where its time went.
    pub times: Times,
}

impl Answer {
    /// Bytes of the payload and of the values in shared memory.
    pub fn bytes(&self) -> usize {
        self.payload.len() + self.placed.as_ref().map_or(0, Bytes::len)
    }

    /// The tensor that was read.
    ///
    /// # Errors
    /// [`CallError::Value`] if the payload is none.
    pub fn value(&self) -> Result<Value, CallError> {
        Value::read(&self.payload, self.placed.clone()).map_err(|error| CallError::Value(error.to_string()))
    }
}

struct Writer {
    outgoing: Box<dyn Outgoing>,
    /// Short calls that are not written yet.
    held: Vec<u8>,
    sequence: u64,
    handle: u64,
    /// Memory for values that the proxy reads.
    lent: Option<Lent>,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

/// A session with a device: models and tensors, known by handles, and one lane of calls, in order.
///
/// Threads may share it. The calls of one [`Lane`] follow each other; several lanes may wait for their replies at once, so
/// that the time on the way is spent once for all of them.
pub struct Session {
    shared: Arc<Shared>,
    writer: Mutex<Writer>,
    snapshot: Snapshot,
    reader: Option<JoinHandle<()>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("snapshot", &self.snapshot).finish_non_exhaustive()
    }
}

impl Session {
    /// Greets the device. `client`: a name for lists of sessions.
    ///
    /// # Errors
    /// [`CallError::Refused`] with the reason of the device, [`CallError::Lost`].
    pub fn open(carrier: Carrier, tenant: &str, client: &str) -> Result<Self, CallError> {
        let Carrier { mut outgoing, arriving, hang_up, shares } = carrier;
        let lost = |reason: String| CallError::Lost { sequence: 0, may_have_run: false, reason };
        outgoing.limit(patience::LOOK).map_err(|error| lost(error.to_string()))?;
        let shared = Arc::new(Shared::new(Messages::new(arriving, shares), hang_up));
        let reading = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("tm-device".into());
        let reader = thread.spawn(move || reading.attend());
        let reader = reader.map_err(|error| lost(format!("no thread for a session: {error}")))?;
        let lent = shares.then(|| share(&mut *outgoing)).flatten();
        let writer = Mutex::new(Writer { outgoing, held: Vec::new(), sequence: 0, handle: 0, lent });
        let snapshot = Snapshot { window: MOST_PAYLOAD as u64, ..Snapshot::default() };
        let mut session = Self { shared, writer, snapshot, reader: Some(reader) };
        let hello = Hello { version: VERSION, tenant: tenant.to_owned(), client: client.to_owned() };
        let hello = serde_json::to_vec(&hello).map_err(|error| CallError::Refused(error.to_string()))?;
        let pending = session.lane().sync(Op::Hello, [0; 4], &[&hello])?;
        let answer = match pending.wait_at_most(GREETING) {
            Err(CallError::Failed(failure)) => Err(CallError::Refused(failure.error.reason())),
            other => other,
        }?;
        session.snapshot = serde_json::from_slice(&answer.payload)
            .map_err(|error| CallError::Refused(format!("its facts cannot be read: {error}")))?;
        Ok(session)
    }

    /// Facts of the device, from the greeting.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Counts how the values of tensors went.
    pub fn traffic(&self) -> Traffic {
        self.shared.state().traffic
    }

    /// Returns why the session is lost, if it is. Right after a wait, a loss may be noticed some milliseconds later.
    pub fn lost(&self) -> Option<String> {
        self.shared.state().lost.clone()
    }

    /// Returns whether the device ended the session, as one that is drained does: it takes no other one either, so that the models
    /// belong elsewhere. [`Self::lost`] has the reason.
    pub fn is_dismissed(&self) -> bool {
        self.shared.state().dismissed
    }

    /// Returns whether the device ended it with all others, and serves nobody any more. A device of an older version does not say so.
    pub fn is_drained(&self) -> bool {
        self.shared.state().drained
    }

    /// Returns whether it is lost because the device gave no sign of life, or computed for too long.
    pub fn is_stalled(&self) -> bool {
        self.shared.state().stalled
    }

    /// Begins calls that follow each other; other threads wait until the lane is dropped. Calls that are short are written when it
    /// is.
    pub fn lane(&self) -> Lane<'_> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        Lane { session: self, writer, begun: now() }
    }

    /// Uploads the files of a model that the host lacks, and loads it. `open` opens a file by its place in
    /// [`Artifact::files`].
    ///
    /// Takes one round trip if the host has the files, else also the time for their bytes. That the device cannot load the model is
    /// reported by the next call that waits.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn load(
        &self,
        artifact: &Artifact,
        mut open: impl FnMut(usize) -> io::Result<Box<dyn Read>>,
    ) -> Result<ModelId, CallError> {
        let hashes: Vec<&str> = artifact.files.iter().map(|file| file.hash.as_str()).collect();
        let offer = serde_json::to_vec(&hashes).map_err(|error| CallError::Value(error.to_string()))?;
        let pending = self.lane().sync(Op::Offer, [0; 4], &[&offer])?;
        let missing: Vec<String> = serde_json::from_slice(&pending.wait()?.payload)
            .map_err(|error| CallError::Value(format!("an answer to an offer: {error}")))?;
        for (at, file) in artifact.files.iter().enumerate() {
            let is_double = artifact.files[..at].iter().any(|other| other.hash == file.hash);
            if is_double || !missing.contains(&file.hash) {
                continue;
            }
            let failed = |reason: String| CallError::File { file: file.name.clone(), reason };
            let mut content = open(at).map_err(|error| failed(error.to_string()))?;
            let (mut piece, mut offset) = (Vec::with_capacity(PIECE), 0);
            loop {
                piece.clear();
                let read = content.by_ref().take(PIECE as u64).read_to_end(&mut piece);
                read.map_err(|error| failed(error.to_string()))?;
                let is_last = offset + piece.len() as u64 >= file.bytes;
                if piece.is_empty() && !is_last {
                    return Err(failed(format!("it has {offset} bytes, not {}", file.bytes)));
                }
                // A lane for each piece: calls of others come between.
                let numbers = [offset, u64::from(is_last), 0, 0];
                self.lane().post(Op::Store, numbers, &[file.hash.as_bytes(), &piece])?;
                offset += piece.len() as u64;
                if is_last {
                    break;
                }
            }
        }
        self.lane().load(artifact)
    }

    /// Waits for the first error of the calls until now, if there is one.
    ///
    /// # Errors
    /// [`CallError`].
    pub fn flush(&self) -> Result<(), CallError> {
        let pending = self.lane().flush()?;
        pending.wait().map(drop)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.shared.hang_up();
        self.shared.close();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the time on the way is measured in real time; no record depends on it"
)]
fn now() -> Instant {
    Instant::now()
}
