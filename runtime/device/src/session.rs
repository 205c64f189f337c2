//! The side of the client: one session with a device.
use crate::call::{Failure, GOODBYE, HEAD, Head, Hello, MOST_PAYLOAD, Op, RECEIPT, REPLY, VERSION};
use crate::carrier::{Carrier, HangUp, Messages, Outgoing};
use crate::device::{Artifact, ModelId, Snapshot, TensorId};
use crate::value::{Element, Value, write_head};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io::{self, IoSlice, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Calls up to this length wait for the next one, or for the end of their [`Lane`], and go with it.
const SHORT: usize = 4 << 10;
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
    /// Where its time went.
    pub times: Times,
}

impl Answer {
    /// The tensor that was read.
    ///
    /// # Errors
    /// [`CallError::Value`] if the payload is none.
    pub fn value(&self) -> Result<Value, CallError> {
        Value::read(self.payload.clone()).map_err(|error| CallError::Value(error.to_string()))
    }
}

type Outcome = Result<Answer, CallError>;

struct Waiting {
    to: SyncSender<Outcome>,
    begun: Instant,
}

#[derive(Default)]
struct State {
    waiting: BTreeMap<u64, Waiting>,
    /// Bytes of calls that the proxy has handled.
    handled: u64,
    /// Bytes of calls that it receives or has received.
    posted: u64,
    /// Sequence number of the last call that is written as a whole.
    written: u64,
    lost: Option<String>,
    /// The device itself ended the session.
    dismissed: bool,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lose(&self, reason: String) {
        let mut state = self.state();
        let (written, reason) = (state.written, state.lost.get_or_insert(reason).clone());
        for (sequence, waiting) in std::mem::take(&mut state.waiting) {
            let may_have_run = sequence <= written;
            let lost = CallError::Lost { sequence, may_have_run, reason: reason.clone() };
            // The caller may not want it any more.
            let _ = waiting.to.send(Err(lost));
        }
        self.changed.notify_all();
    }
}

struct Writer {
    outgoing: Box<dyn Outgoing>,
    /// Short calls that are not written yet.
    held: Vec<u8>,
    sequence: u64,
    handle: u64,
}

/// A session with a device: models and tensors, known by handles, and one lane of calls, in order.
///
/// Threads may share it. The calls of one [`Lane`] follow each other; several lanes may wait for their replies at once, so
/// that the time on the way is spent once for all of them.
pub struct Session {
    shared: Arc<Shared>,
    writer: Mutex<Writer>,
    snapshot: Snapshot,
    hang_up: HangUp,
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
        let Carrier { outgoing, arriving, hang_up } = carrier;
        let shared = Arc::new(Shared::default());
        let (reading, messages) = (Arc::clone(&shared), Messages::new(arriving));
        let thread = std::thread::Builder::new().name("tm-device".into());
        let reader = thread.spawn(move || read(messages, &reading)).map_err(|error| CallError::Lost {
            sequence: 0,
            may_have_run: false,
            reason: format!("no thread for a session: {error}"),
        })?;
        let writer = Mutex::new(Writer { outgoing, held: Vec::new(), sequence: 0, handle: 0 });
        let snapshot = Snapshot { window: MOST_PAYLOAD as u64, ..Snapshot::default() };
        let mut session = Self { shared, writer, snapshot, hang_up, reader: Some(reader) };
        let hello = Hello { version: VERSION, tenant: tenant.to_owned(), client: client.to_owned() };
        let hello = serde_json::to_vec(&hello).map_err(|error| CallError::Refused(error.to_string()))?;
        let pending = session.lane().sync(Op::Hello, [0; 4], &[&hello])?;
        let answer = match pending.wait_at_most(GREETING) {
            Err(CallError::Failed(failure)) => Err(CallError::Refused(failure.error.to_string())),
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

    /// Returns why the session is lost, if it is.
    pub fn lost(&self) -> Option<String> {
        self.shared.state().lost.clone()
    }

    /// Returns whether the device ended the session, as one that is drained does: it takes no other one either, so that the models
    /// belong elsewhere. [`Self::lost`] has the reason.
    pub fn is_dismissed(&self) -> bool {
        self.shared.state().dismissed
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
        (self.hang_up)();
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Calls that follow each other.
#[derive(Debug)]
pub struct Lane<'a> {
    session: &'a Session,
    writer: MutexGuard<'a, Writer>,
    begun: Instant,
}

impl std::fmt::Debug for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Writer").field("sequence", &self.sequence).finish_non_exhaustive()
    }
}

impl Lane<'_> {
    fn handle(&mut self) -> u64 {
        self.writer.handle += 1;
        self.writer.handle
    }

    /// Makes a tensor of zeros, such as the first state of a loop.
    ///
    /// # Errors
    /// [`CallError::Lost`]; others surface at the next call that waits. So for all calls that post only.
    pub fn create(&mut self, element: Element, shape: &[usize]) -> Result<TensorId, CallError> {
        let (tensor, mut head) = (self.handle(), Vec::new());
        write_head(element, shape, &mut head);
        self.post(Op::Create, [tensor, 0, 0, 0], &[&head])?;
        Ok(TensorId(tensor))
    }

    /// Makes a tensor of these bytes, see [`Value`]. They are copied before it returns.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn upload(&mut self, element: Element, shape: &[usize], bytes: &[u8]) -> Result<TensorId, CallError> {
        let (tensor, mut head) = (self.handle(), Vec::new());
        write_head(element, shape, &mut head);
        self.post(Op::Upload, [tensor, 0, 0, 0], &[&head, bytes])?;
        Ok(TensorId(tensor))
    }

    /// Loads a model whose files the host has, see [`Session::load`].
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn load(&mut self, artifact: &Artifact) -> Result<ModelId, CallError> {
        let text = serde_json::to_vec(artifact).map_err(|error| CallError::Value(error.to_string()))?;
        let model = self.handle();
        self.post(Op::Load, [model, 0, 0, 0], &[&text])?;
        Ok(ModelId(model))
    }

    /// Frees a model.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn unload(&mut self, model: ModelId) -> Result<(), CallError> {
        self.post(Op::Unload, [model.0, 0, 0, 0], &[]).map(drop)
    }

    /// Runs a model. `outputs`: positions of the wanted outputs; the result has their tensors.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn run(
        &mut self,
        model: ModelId,
        inputs: &[TensorId],
        outputs: &[u32],
    ) -> Result<Vec<TensorId>, CallError> {
        let results: Vec<TensorId> = outputs.iter().map(|_| TensorId(self.handle())).collect();
        let mut payload = Vec::with_capacity(8 * inputs.len() + 12 * outputs.len());
        inputs.iter().for_each(|tensor| payload.extend_from_slice(&tensor.0.to_le_bytes()));
        for (output, tensor) in outputs.iter().zip(&results) {
            payload.extend_from_slice(&output.to_le_bytes());
            payload.extend_from_slice(&tensor.0.to_le_bytes());
        }
        self.post(Op::Run, [model.0, inputs.len() as u64, outputs.len() as u64, 0], &[&payload])?;
        Ok(results)
    }

    /// Asks for the value of a tensor.
    ///
    /// # Errors
    /// [`CallError::Lost`]; others come with the answer.
    pub fn read(&mut self, tensor: TensorId) -> Result<Pending, CallError> {
        self.sync(Op::Read, [tensor.0, 0, 0, 0], &[])
    }

    /// Asks for the end of all runs.
    ///
    /// # Errors
    /// As [`Self::read`].
    pub fn flush(&mut self) -> Result<Pending, CallError> {
        self.sync(Op::Flush, [0; 4], &[])
    }

    /// Frees tensors.
    ///
    /// # Errors
    /// As [`Self::create`].
    pub fn free(&mut self, tensors: &[TensorId]) -> Result<(), CallError> {
        let payload: Vec<u8> = tensors.iter().flat_map(|tensor| tensor.0.to_le_bytes()).collect();
        self.post(Op::Free, [0; 4], &[&payload]).map(drop)
    }

    /// Sends what was posted in this lane. Dropping the lane does it too.
    ///
    /// # Errors
    /// [`CallError::Lost`].
    pub fn send(&mut self) -> Result<(), CallError> {
        let sequence = self.writer.sequence;
        self.write(sequence, &[])
    }

    fn sync(&mut self, op: Op, numbers: [u64; 4], parts: &[&[u8]]) -> Result<Pending, CallError> {
        let (to, from) = sync_channel(1);
        let sequence = self.writer.sequence + 1;
        {
            let mut state = self.session.shared.state();
            if let Some(reason) = state.lost.clone() {
                return Err(CallError::Lost { sequence, may_have_run: false, reason });
            }
            state.waiting.insert(sequence, Waiting { to, begun: self.begun });
        }
        match self.post(op, numbers, parts) {
            Ok(sequence) => Ok(Pending { sequence, from }),
            Err(error) => {
                self.session.shared.state().waiting.remove(&sequence);
                Err(error)
            }
        }
    }

    /// Posts a call and returns its sequence number.
    fn post(&mut self, op: Op, numbers: [u64; 4], parts: &[&[u8]]) -> Result<u64, CallError> {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let payload = u32::try_from(length).ok().filter(|_| length <= MOST_PAYLOAD);
        let payload = payload.ok_or_else(|| {
            CallError::Value(format!(
                "{length} bytes are too many for one call, at most {MOST_PAYLOAD} are allowed"
            ))
        })?;
        let sequence = self.writer.sequence + 1;
        self.wait_for_credit(sequence, (HEAD + length) as u64)?;
        self.writer.sequence = sequence;
        let head = Head { kind: op as u8, failed: false, payload, sequence, numbers }.to_bytes();
        if HEAD + length <= SHORT && self.writer.held.len() < SHORT {
            self.writer.held.extend_from_slice(&head);
            parts.iter().for_each(|part| self.writer.held.extend_from_slice(part));
        } else {
            let mut all: Vec<&[u8]> = vec![&head];
            all.extend(parts);
            self.write(sequence, &all)?;
        }
        Ok(sequence)
    }

    /// Waits until the window has room. A call that is larger than the window goes alone.
    fn wait_for_credit(&mut self, sequence: u64, bytes: u64) -> Result<(), CallError> {
        let (shared, window) = (Arc::clone(&self.session.shared), self.session.snapshot.window);
        let fits = |state: &State| {
            let under_way = state.posted - state.handled;
            under_way == 0 || under_way + bytes <= window
        };
        let mut state = shared.state();
        if state.lost.is_none() && !fits(&state) {
            // What is held would never be handled, and a receipt of the rest may be far.
            state.posted += HEAD as u64;
            drop(state);
            let report =
                Head { kind: Op::Report as u8, failed: false, payload: 0, sequence: 0, numbers: [0; 4] };
            self.write(sequence - 1, &[&report.to_bytes()])?;
            state = shared.state();
            while state.lost.is_none() && !fits(&state) {
                state = shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
        if let Some(reason) = state.lost.clone() {
            return Err(CallError::Lost { sequence, may_have_run: false, reason });
        }
        state.posted += bytes;
        Ok(())
    }

    fn write(&mut self, sequence: u64, parts: &[&[u8]]) -> Result<(), CallError> {
        let Writer { outgoing, held, .. } = &mut *self.writer;
        if held.is_empty() && parts.is_empty() {
            return Ok(());
        }
        let mut slices: Vec<IoSlice<'_>> = vec![IoSlice::new(held)];
        slices.extend(parts.iter().map(|part| IoSlice::new(part)));
        let sent = outgoing.send(&mut slices);
        held.clear();
        match sent {
            Ok(()) => {
                self.session.shared.state().written = sequence;
                Ok(())
            }
            Err(error) => {
                let reason = error.to_string();
                // Part of a call may have arrived, and nothing can follow it.
                (self.session.hang_up)();
                self.session.shared.lose(reason.clone());
                Err(CallError::Lost { sequence, may_have_run: false, reason })
            }
        }
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        // A loss ends the calls that wait.
        let _ = self.send();
    }
}

/// A call that waits for its answer. Its lane must be dropped, or [sent](Lane::send), before a wait.
#[derive(Debug)]
pub struct Pending {
    sequence: u64,
    from: Receiver<Outcome>,
}

impl Pending {
    /// Its sequence number.
    pub fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Waits for the answer.
    ///
    /// # Errors
    /// [`CallError::Failed`] with the first call of the lane that failed since the last call that waited, or
    /// [`CallError::Lost`].
    pub fn wait(self) -> Outcome {
        self.from.recv().unwrap_or_else(|_| Err(self.ended("the session has ended")))
    }

    fn wait_at_most(self, limit: Duration) -> Outcome {
        match self.from.recv_timeout(limit) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Timeout) => {
                Err(self.ended(&format!("it did not answer within {} s", limit.as_secs())))
            }
            Err(RecvTimeoutError::Disconnected) => Err(self.ended("the session has ended")),
        }
    }

    fn ended(&self, reason: &str) -> CallError {
        CallError::Lost { sequence: self.sequence, may_have_run: true, reason: reason.to_owned() }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the time on the way is measured in real time; no record depends on it"
)]
fn now() -> Instant {
    Instant::now()
}

/// Reads replies and receipts until the connection ends.
fn read(mut messages: Messages, shared: &Shared) {
    let reason = loop {
        let (head, payload) = match messages.next() {
            Ok(Some(message)) => message,
            Ok(None) => break "the other side ended the connection".to_owned(),
            Err(error) => break error.to_string(),
        };
        let mut state = shared.state();
        let [handled, at_device, computed, _] = head.numbers;
        if handled > state.posted {
            break format!("the device handled {handled} bytes of {}", state.posted);
        }
        state.handled = state.handled.max(handled);
        shared.changed.notify_all();
        match head.kind {
            RECEIPT => {}
            GOODBYE => {
                state.dismissed = true;
                break String::from_utf8_lossy(&payload).into_owned();
            }
            REPLY => {
                let Some(waiting) = state.waiting.remove(&head.sequence) else {
                    break format!("the device answered call {}, which waits for nothing", head.sequence);
                };
                drop(state);
                let times = Times {
                    total: now().saturating_duration_since(waiting.begun),
                    at_device: Duration::from_nanos(at_device),
                    computed: Duration::from_nanos(computed),
                };
                let outcome = if head.failed {
                    match serde_json::from_slice(&payload) {
                        Ok(failure) => Err(CallError::Failed(failure)),
                        Err(error) => Err(CallError::Value(format!("an error that cannot be read: {error}"))),
                    }
                } else {
                    Ok(Answer { payload, times })
                };
                // The caller may not want it any more.
                let _ = waiting.to.send(outcome);
            }
            other => break format!("the device sent a message of the kind {other}"),
        }
    };
    shared.lose(reason);
}
