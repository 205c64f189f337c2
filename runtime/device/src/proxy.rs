//! The side of the device: computes the calls of one session.
mod beats;
mod ending;
mod handles;
mod intake;
mod replies;

pub use ending::Ending;

use crate::call::{Failure, HEAD, Head, Hello, MOST_PAYLOAD, Op, RECEIPT, REPLY, VERSION};
use crate::carrier::{Carrier, Fate, Message, Messages, Outgoing, share};
use crate::device::{Artifact, Device, DeviceError, LOADING, Limits, ModelId, Opener, Run, TensorId};
use crate::memory::{Lent, Placed};
use crate::store::Store;
use crate::value::{Element, Value, read_head};
use beats::{BEAT_EACH, Beats, Computation};
use handles::Handles;
use intake::Intake;
use std::io::{self, ErrorKind, IoSlice};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a client may take to read that the device ends its session.
const READING: Duration = Duration::from_secs(5);

/// Decides who may use the device, and when.
pub trait Admission: Send {
    /// Admits a client, or returns the reason of the refusal. The limits of the session follow from its tenant.
    ///
    /// # Errors
    /// The reason of a refusal, with a fix.
    fn admit(&mut self, hello: &Hello) -> Result<Limits, String>;
    /// Waits until the session may run, or must end ([`Ending`]).
    fn turn(&mut self) {}
    /// The run has ended, or is in the queue of the device, which computes it for this time. None: it failed.
    fn ran(&mut self, computes: Option<Duration>) {
        let _ = computes;
    }
    /// So many models failed to compute runs of several sessions together, and compute them one by one from now on.
    fn apart(&mut self, models: u64) {
        let _ = models;
    }
    /// Bytes that the session holds now, in this number of models and in tensors.
    fn holds(&mut self, bytes: u64, models: u64) {
        let _ = (bytes, models);
    }
    /// Returns whether a model of some bytes may be loaded, as [`Self::room`]. Where sessions share models, it is not the session that
    /// holds them.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn room_for_model(&mut self, held: u64, wanted: u64, limits: &Limits) -> Result<(), DeviceError> {
        self.room(held, wanted, limits)
    }
    /// Returns whether the session, which holds some bytes, may hold more. Default: within the limits of its greeting.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`].
    fn room(&mut self, held: u64, wanted: u64, limits: &Limits) -> Result<(), DeviceError> {
        match limits.memory {
            Some(limit) if held.saturating_add(wanted) > limit => {
                Err(DeviceError::OutOfMemory { wanted, held, limit })
            }
            _ => Ok(()),
        }
    }
}

/// Admits everybody with the same limits.
#[derive(Debug, Clone, Copy, Default)]
pub struct Everybody(pub Limits);

impl Admission for Everybody {
    fn admit(&mut self, _hello: &Hello) -> Result<Limits, String> {
        Ok(self.0)
    }
}

/// What a proxy waits for.
#[derive(Debug)]
enum Event {
    Call(Arrived),
    /// A tensor that is larger than the window is about to be read, with so many bytes of payload.
    Large(u64),
    /// The session is to end.
    End,
}

/// A call as it arrived.
#[derive(Debug)]
struct Arrived {
    message: Message,
    at: Instant,
}

/// Serves one session until the client ends it. `folder`: of this session alone, for the files of its models.
///
/// # Errors
/// When the connection breaks, or the client breaks the protocol.
pub fn serve(
    carrier: Carrier,
    opener: &dyn Opener,
    admission: &mut dyn Admission,
    store: &mut Store,
    folder: &Path,
) -> io::Result<()> {
    serve_until(carrier, opener, admission, store, folder, &Ending::default())
}

/// As [`serve`], until the client or `ending` ends the session.
///
/// # Errors
/// As [`serve`].
pub fn serve_until(
    carrier: Carrier,
    opener: &dyn Opener,
    admission: &mut dyn Admission,
    store: &mut Store,
    folder: &Path,
    ending: &Ending,
) -> io::Result<()> {
    let Carrier { mut outgoing, arriving, hang_up, shares } = carrier;
    let mut messages = Messages::new(arriving, shares);
    let invalid = |text: String| io::Error::new(ErrorKind::InvalidData, text);
    let Some(greeting) = messages.next_by(&mut |head| match head.payload {
        ..=intake::GREETING => Ok(Fate::Read),
        bytes => {
            Err(invalid(format!("a greeting of {bytes} bytes, at most {} are allowed", intake::GREETING)))
        }
    })?
    else {
        return Ok(());
    };
    let head = greeting.head;
    let greeted = greet(head, &greeting.payload, admission);
    let (limits, device) = match greeted.and_then(|limits| {
        opener.open(&limits).map(|device| (limits, device)).map_err(|error| error.reason())
    }) {
        Ok(both) => both,
        Err(reason) => {
            let failure = Failure {
                sequence: head.sequence,
                op: Op::Hello,
                error: DeviceError::Device(reason.clone()),
            };
            let text = serde_json::to_vec(&failure).unwrap_or_default();
            let (payload, sequence) = (text.len() as u32, head.sequence);
            let reply = Head { kind: REPLY, failed: true, payload, sequence, ..Head::default() };
            outgoing.send(&mut [IoSlice::new(&reply.to_bytes()), IoSlice::new(&text)])?;
            return Err(invalid(reason));
        }
    };
    let window = limits.window.max(HEAD as u64);
    let (queued, gone) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let lent = messages.has_memory().then(|| share(&mut *outgoing)).flatten();
    let (to, calls) = channel();
    ending.wakes(Some(to.clone()));
    if ending.is_due() {
        // It was to end before the proxy could be woken.
        let _ = to.send(Event::End);
    }
    let (moved, computation, outgoing) = (messages.moved(), Computation::default(), Mutex::new(outgoing));
    let (answer, answers) = channel();
    let reading = {
        let (queued, gone) = (Arc::clone(&queued), Arc::clone(&gone));
        move || {
            let ended = Intake { messages, window, queued: &queued, to: &to, answers }.run();
            // The client is gone: what it wanted is not needed any more.
            gone.store(true, Ordering::Release);
            // Wakes the proxy where it waits for calls.
            let _ = to.send(Event::End);
            ended
        }
    };
    let mut proxy = Proxy {
        device,
        limits,
        admission,
        store,
        folder,
        outgoing: &outgoing,
        computation: &computation,
        runs: 0,
        refused: None,
        answer,
        first_failure: None,
        first_arrival: None,
        queued: &queued,
        taken: 0,
        lent,
        handled: greeting.bytes(),
        reported: 0,
        models: 0,
        handles: Handles::default(),
        ending,
        computed: Duration::ZERO,
    };
    proxy.store.pin_in(&folder.join("offered"));
    let facts = serde_json::to_vec(&opener.snapshot(&limits)).map_err(io::Error::other)?;
    proxy.reply(head.sequence, false, now(), &[&facts])?;
    std::thread::scope(|scope| {
        let reader =
            std::thread::Builder::new().name("tm-device-calls".into()).spawn_scoped(scope, reading)?;
        let ends_reader = EndsReader(&*hang_up);
        let beats = Beats { outgoing: &outgoing, queued: &queued, moved, computation: &computation };
        let (ends_beats, until) = channel();
        std::thread::Builder::new()
            .name("tm-device-beats".into())
            .spawn_scoped(scope, move || beats.run(&until, BEAT_EACH))?;
        let served = proxy.serve(&calls, &gone);
        ending.wakes(None);
        if matches!(served, Ok(true)) {
            proxy.wait_for_client(&calls, &gone);
        }
        drop((ends_reader, ends_beats));
        // A reader that waits for an answer ends.
        drop((calls, proxy));
        let read = reader.join().unwrap_or_else(|_| Err(io::Error::other("the reader panicked")));
        served.and(read)
    })
}

/// Ends the reader, which the scope waits for, also where the back end panics: the client would wait without an end.
struct EndsReader<'a>(&'a (dyn Fn() + Send + Sync));

impl Drop for EndsReader<'_> {
    fn drop(&mut self) {
        (self.0)();
    }
}

fn greet(head: Head, payload: &[u8], admission: &mut dyn Admission) -> Result<Limits, String> {
    if Op::of(head.kind) != Some(Op::Hello) {
        return Err("a session begins with a greeting".to_owned());
    }
    let hello: Hello = serde_json::from_slice(payload).map_err(|error| format!("a greeting: {error}"))?;
    if hello.version != VERSION {
        let theirs = hello.version;
        return Err(format!(
            "the client speaks version {theirs} of the protocol, this device {VERSION}: install the same version of tidemill on both"
        ));
    }
    let limits = admission.admit(&hello)?;
    Ok(Limits { window: limits.window.clamp(64 << 10, MOST_PAYLOAD as u64), ..limits })
}

struct Proxy<'a> {
    device: Box<dyn Device>,
    limits: Limits,
    admission: &'a mut dyn Admission,
    store: &'a mut Store,
    folder: &'a Path,
    outgoing: &'a Mutex<Box<dyn Outgoing>>,
    /// Present work of the device, for the thread that sends signs of life.
    computation: &'a Computation,
    /// Runs since the last call that waited: it waits for all of them.
    runs: u32,
    /// Why the next payload is not read.
    refused: Option<DeviceError>,
    /// Answers to [`Event::Large`].
    answer: Sender<Fate>,
    /// The first call that failed since the last one that waited. Those after it are skipped.
    first_failure: Option<Failure>,
    /// Arrival of the first call since the last one that waited, without those that only free something: the client adds these
    /// to the end of a run, and the next one may come much later.
    first_arrival: Option<Instant>,
    /// Bytes of calls that have arrived and are not handled.
    queued: &'a AtomicU64,
    /// Values that were copied out of the memory of the client.
    taken: u64,
    /// Memory for values that the client reads.
    lent: Option<Lent>,
    /// Bytes of all calls that were handled, and of those that the client knows of.
    handled: u64,
    reported: u64,
    /// Models that were laid out.
    models: u64,
    handles: Handles,
    ending: &'a Ending,
    /// Time of the device since the last reply.
    computed: Duration,
}

impl Proxy<'_> {
    /// Makes calls until the client or the device ends the session; returns whether it was the device.
    fn serve(&mut self, calls: &Receiver<Event>, gone: &AtomicBool) -> io::Result<bool> {
        for event in calls {
            if gone.load(Ordering::Acquire) {
                return Ok(false);
            }
            let (message, at) = match event {
                Event::Call(Arrived { message, at }) => (message, at),
                Event::Large(bytes) => {
                    // After a failure it would be skipped.
                    let has_failed = self.first_failure.is_some();
                    self.refused = if has_failed { None } else { self.room(bytes).err() };
                    let is_dropped = has_failed || self.refused.is_some();
                    // The reader may have ended.
                    let _ = self.answer.send(if is_dropped { Fate::Dropped } else { Fate::Read });
                    continue;
                }
                Event::End => return self.say_goodbye().map(|()| true),
            };
            let (head, bytes, in_memory) = (message.head, message.bytes(), message.placed.is_some());
            let invalid = |text: String| io::Error::new(ErrorKind::InvalidData, text);
            let op =
                Op::of(head.kind).ok_or_else(|| invalid(format!("no call has the number {}", head.kind)))?;
            // What is freed after a read belongs to no wait.
            let began = match op {
                Op::Free | Op::Unload | Op::Report => self.first_arrival.unwrap_or(at),
                _ => *self.first_arrival.get_or_insert(at),
            };
            if let Some(lent) = &mut self.lent {
                lent.returned(head.numbers[3]).map_err(invalid)?;
            }
            self.computation.begin(self.limits.longest_run);
            let result = self.call(op, message);
            self.computation.end();
            // Copied, or not needed.
            self.taken += u64::from(in_memory);
            self.queued.fetch_sub(bytes, Ordering::AcqRel);
            self.handled += bytes;
            let is_sync = matches!(op, Op::Offer | Op::Read | Op::Flush);
            let result = match (result, self.first_failure.take()) {
                (Ok(payload), None) => Ok(payload),
                (_, Some(failure)) => Err(failure),
                (Err(error), None) => Err(Failure { sequence: head.sequence, op, error }),
            };
            match result {
                Ok(Payload::Goodbye) => return self.say_goodbye().map(|()| true),
                Ok(value) if is_sync => self.reply_value(head.sequence, began, value)?,
                Ok(_) => {}
                Err(failure) if is_sync => {
                    let text = serde_json::to_vec(&failure).map_err(io::Error::other)?;
                    self.reply(head.sequence, true, began, &[&text])?;
                }
                Err(failure) => self.first_failure = Some(failure),
            }
            if op == Op::Report || self.handled - self.reported >= self.limits.window / 4 {
                self.write(Head { kind: RECEIPT, ..Head::default() }, &[])?;
            }
        }
        Ok(false)
    }

    /// Drops what the client still sends until it has read the goodbye and hangs up. A connection that ends with calls that nobody has
    /// read is reset, and replies on their way may be lost with it.
    fn wait_for_client(&self, calls: &Receiver<Event>, gone: &AtomicBool) {
        let until = now() + READING;
        while !gone.load(Ordering::Acquire) {
            match calls.recv_timeout(until.saturating_duration_since(now())) {
                // The reader may have ended.
                Ok(Event::Large(_)) => drop(self.answer.send(Fate::Dropped)),
                Ok(Event::Call(_) | Event::End) => {}
                Err(_) => return,
            }
        }
    }

    /// Makes a call. After one that failed, only those that free or store something are made until a call waits.
    fn call(&mut self, op: Op, message: Message) -> Result<Payload, DeviceError> {
        let Message { head, payload, placed, fate } = message;
        let [first, second, third, _] = head.numbers;
        let is_skipped = self.first_failure.is_some();
        if placed.is_some() && op != Op::Upload {
            return Err(DeviceError::Value("only values of tensors go through shared memory".into()));
        }
        match op {
            Op::Store => {
                let hash = payload.get(..64).and_then(|hash| std::str::from_utf8(hash).ok());
                let hash = hash.ok_or_else(|| DeviceError::Value("a piece of a file has no hash".into()))?;
                let kept = self.store.write(hash, first, &payload[64..], second != 0);
                kept.map_err(|error| DeviceError::Value(error.to_string()))?;
            }
            Op::Free => {
                for tensor in payload.chunks_exact(8).map(|handle| TensorId(number(handle))) {
                    self.device.free(tensor);
                    self.handles.tensors.remove(&tensor);
                }
                self.admission.holds(self.device.memory(), self.handles.models());
            }
            Op::Unload => {
                self.device.unload(ModelId(first));
                self.handles.models.remove(&ModelId(first));
                self.admission.holds(self.device.memory(), self.handles.models());
            }
            _ if is_skipped => {}
            _ if fate == Fate::Dropped => {
                let gone = || DeviceError::Value("its payload was not read".into());
                return Err(self.refused.take().unwrap_or_else(gone));
            }
            Op::Hello | Op::Facts => {
                return Err(DeviceError::Value("a session has one greeting".into()));
            }
            Op::Offer => {
                let hashes: Vec<String> = serde_json::from_slice(&payload).map_err(|error| wrong(&error))?;
                let missing =
                    serde_json::to_vec(&self.store.offer(&hashes)).map_err(|error| wrong(&error))?;
                return Ok(Payload::Text(missing));
            }
            Op::Load => {
                let artifact: Artifact = serde_json::from_slice(&payload).map_err(|error| wrong(&error))?;
                self.handles.room(1)?;
                self.models += 1;
                let folder = self.folder.join(self.models.to_string());
                let loadable = self.store.lay_out(&artifact, &folder);
                let loadable = loadable
                    .map_err(|error| DeviceError::Load { model: artifact.name, reason: error.to_string() })?;
                let bytes = loadable.artifact.files.iter().map(|file| file.bytes).sum();
                self.admission.room_for_model(self.device.memory(), bytes, &self.limits)?;
                self.computation.begin(self.limits.longest_run.saturating_mul(LOADING));
                let loaded = self.device.load(ModelId(first), &loadable);
                // What it has open stays; nothing is left behind if this process is killed.
                let _ = std::fs::remove_dir_all(&folder);
                loaded?;
                self.handles.models.insert(ModelId(first));
                self.held()?;
            }
            Op::Create => {
                let (element, shape, _) = read_head(&payload).map_err(|error| wrong(&error))?;
                self.handles.room(1)?;
                self.room(bytes_of(element, &shape)?)?;
                self.device.create(TensorId(first), element, &shape)?;
                self.handles.tensors.insert(TensorId(first));
                self.held()?;
            }
            Op::Upload => {
                let tensor = TensorId(first);
                self.handles.room(1)?;
                match placed {
                    Some(place) => {
                        let (element, shape, _) = read_head(&payload).map_err(|error| wrong(&error))?;
                        self.room(place.bytes() as u64)?;
                        let placed = Placed::new(element, shape, place).map_err(|error| wrong(&error))?;
                        self.device.upload_placed(tensor, &placed)?;
                    }
                    None => {
                        let value = Value::read(&payload, None).map_err(|error| wrong(&error))?;
                        self.room(value.bytes().len() as u64)?;
                        self.device.upload(tensor, value)?;
                    }
                }
                self.handles.tensors.insert(tensor);
                self.held()?;
            }
            Op::Run => {
                let run = read_run(ModelId(first), second, third, &payload)?;
                self.handles.room(run.outputs.len())?;
                // Others may compute for long before it.
                self.computation.end();
                self.admission.turn();
                if self.ending.is_due() {
                    return Ok(Payload::Goodbye);
                }
                self.runs += 1;
                self.computation.begin(self.limits.longest_run);
                let ran = self.device.run(&run);
                self.admission.ran(ran.as_ref().ok().copied());
                self.computed += ran?;
                self.handles.tensors.extend(run.outputs.iter().map(|(_, tensor)| *tensor));
                self.held()?;
            }
            Op::Read => {
                self.waits();
                return self.device.read(TensorId(first)).map(Payload::Value);
            }
            Op::Flush => {
                self.waits();
                self.device.flush()?;
            }
            Op::Report => {}
        }
        Ok(Payload::Nothing)
    }

    /// Begins a wait for all runs in the queue of the device.
    fn waits(&mut self) {
        let runs = std::mem::take(&mut self.runs).max(1);
        self.computation.begin(self.limits.longest_run.saturating_mul(runs));
    }

    fn room(&mut self, wanted: u64) -> Result<(), DeviceError> {
        self.admission.room(self.device.memory(), wanted, &self.limits)
    }

    /// Reports what the session holds. Outputs of a run are known only after it: the one that exceeds the limit fails.
    fn held(&mut self) -> Result<(), DeviceError> {
        self.admission.holds(self.device.memory(), self.handles.models());
        self.room(0)
    }
}

/// Payload of a reply.
enum Payload {
    Nothing,
    /// The session ends before this call.
    Goodbye,
    Text(Vec<u8>),
    Value(Value),
}

fn wrong(error: &dyn std::fmt::Display) -> DeviceError {
    DeviceError::Value(error.to_string())
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0u64, |number, byte| number << 8 | u64::from(*byte))
}

fn bytes_of(element: Element, shape: &[usize]) -> Result<u64, DeviceError> {
    let each = element.bytes().unwrap_or(4) as u64;
    let bytes = shape.iter().try_fold(each, |product, size| product.checked_mul(*size as u64));
    bytes.ok_or_else(|| DeviceError::Value(format!("the shape {shape:?} is too large")))
}

fn read_run(model: ModelId, inputs: u64, outputs: u64, payload: &[u8]) -> Result<Run, DeviceError> {
    let cut = || DeviceError::Value("a run is cut off".into());
    let split = usize::try_from(inputs).ok().and_then(|inputs| inputs.checked_mul(8)).ok_or_else(cut)?;
    let (inputs, rest) = payload.split_at_checked(split).ok_or_else(cut)?;
    if usize::try_from(outputs).ok().and_then(|outputs| outputs.checked_mul(12)) != Some(rest.len()) {
        return Err(cut());
    }
    let inputs = inputs.chunks_exact(8).map(|handle| TensorId(number(handle))).collect();
    let outputs = rest.chunks_exact(12).map(|pair| (number(&pair[..4]) as u32, TensorId(number(&pair[4..]))));
    Ok(Run { model, inputs, outputs: outputs.collect() })
}

#[expect(clippy::disallowed_methods, reason = "times of a device are real time; no record depends on them")]
fn now() -> Instant {
    Instant::now()
}

#[cfg(test)]
mod tests;
