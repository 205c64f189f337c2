//! Sessions of one process that share models, and runs of one model that are computed together.
//!
//! [`Together`] gives each session a device of its own: handles, tensors and errors stay apart. Models are loaded once for all, and
//! runs that wait at the same time are put together along the first dimension, if that of all inputs and outputs is free.
//! Two threads of the process do it: [`Loads`] loads models, [`Computes`] computes batches, one after another.
//!
//! A batch that fails is repeated run by run, so that only the session whose run is wrong gets an error. If none of them is wrong, the
//! model cannot compute them together, and its runs are computed one by one from then on: it is *apart*.
mod member;
mod queue;
mod rows;

use crate::device::{
    Artifact, Device, DeviceError, Limits, Loadable, ModelId, Opener, Run, Snapshot, TensorId,
};
use crate::proxy::Admission;
use crate::value::Value;
use member::Member;
use queue::{Kind, Queue, Waiting};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How runs are put together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Batching {
    /// Rows of a batch at most. A run of more is computed alone.
    pub rows: usize,
    /// How long a run waits for others. Zero: a batch has what waits already when the device is free.
    pub wait: Duration,
}

/// Opens devices that share models. The threads end when it and all of its devices are dropped.
///
/// ```
/// use std::time::Duration;
/// use tidemill_device::batching::{Batching, Sharing, Together};
/// use tidemill_device::device::{Limits, Loadable, ModelId, Opener};
/// use tidemill_device::emulated::{Emulated, Profile, artifact_of};
/// use tidemill_device::proxy::Everybody;
/// let opener = Emulated::new(Profile::default());
/// let (together, loads, computes) = Together::new(Batching { rows: 8, wait: Duration::ZERO });
/// std::thread::scope(|scope| {
///     scope.spawn(|| loads.work(&opener, &mut Everybody::default()));
///     scope.spawn(|| computes.work(&mut Everybody::default()));
///     let sharing = Sharing { opener: &opener, together };
///     let (mut first, mut second) = (sharing.open(&Limits::default())?, sharing.open(&Limits::default())?);
///     let loadable = Loadable { artifact: artifact_of("m", b"content", 1, 1), path: "m.model".into() };
///     first.load(ModelId(1), &loadable)?;
///     second.load(ModelId(1), &loadable)?; // it is there
///     Ok::<(), tidemill_device::device::DeviceError>(())
/// })?;
/// # Ok::<(), tidemill_device::device::DeviceError>(())
/// ```
#[derive(Debug)]
pub struct Together {
    inner: Arc<Inner>,
    requests: Sender<Request>,
}

/// A device whose sessions share models.
#[derive(Debug)]
pub struct Sharing<'a, O: ?Sized> {
    /// The device.
    pub opener: &'a O,
    /// Its sessions.
    pub together: Together,
}

/// Loads models, on a thread of its own.
#[derive(Debug)]
pub struct Loads {
    requests: Receiver<Request>,
    inner: Arc<Inner>,
}

/// Computes batches, on a thread of its own.
#[derive(Debug)]
pub struct Computes(Arc<Inner>);

/// State of all sessions.
#[derive(Debug)]
struct Inner {
    begun: Instant,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug)]
struct State {
    queue: Queue<Posted>,
    /// Sessions, and [`Together`], which may open further ones.
    users: usize,
    /// Nothing is computed any more.
    is_over: bool,
    /// Models that are apart, by a hash of their key: one that is loaded again stays so.
    apart: BTreeSet<u64>,
}

/// A run of a session.
#[derive(Debug)]
struct Posted {
    model: Arc<Model>,
    inputs: Vec<Value>,
    outputs: Vec<u32>,
    answer: SyncSender<Answer>,
}

/// The outputs of a run, and its part of the time of its batch.
#[derive(Debug)]
struct Computed {
    values: Vec<Value>,
    time: Duration,
}

/// A loaded model. It is freed with its last session.
struct Model {
    device: Mutex<Box<dyn Device>>,
    name: String,
    bytes: u64,
    /// Hash of its key.
    key: u64,
    /// Runs of it are put together, as long as it is not apart.
    has_rows: AtomicBool,
    /// Sessions that have loaded it.
    sessions: AtomicUsize,
    freed: Sender<Request>,
}

/// The only model of a device of [`Model`].
const MODEL: ModelId = ModelId(1);

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // Whoever counts may have ended.
        let _ = self.freed.send(Request::Freed);
    }
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there are as many as models are loaded")]
enum Request {
    Load { loadable: Loadable, freed: Sender<Request>, answer: SyncSender<Result<Arc<Model>, DeviceError>> },
    Freed,
}

impl Together {
    /// Returns it, and the work of its threads.
    #[expect(
        clippy::disallowed_methods,
        reason = "times of a device are real time; no record depends on them"
    )]
    pub fn new(batching: Batching) -> (Self, Loads, Computes) {
        let state = State { queue: Queue::new(batching), users: 1, is_over: false, apart: BTreeSet::new() };
        let inner =
            Arc::new(Inner { begun: Instant::now(), state: Mutex::new(state), changed: Condvar::new() });
        let (requests, loads) = channel();
        let loads = Loads { requests: loads, inner: Arc::clone(&inner) };
        (Self { inner: Arc::clone(&inner), requests }, loads, Computes(inner))
    }

    /// Opens the device of a session.
    pub fn open(&self) -> Box<dyn Device> {
        Box::new(Member::new(Arc::clone(&self.inner), self.requests.clone()))
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        self.inner.leave();
    }
}

impl<O: Opener + ?Sized> Opener for Sharing<'_, O> {
    fn snapshot(&self, limits: &Limits) -> Snapshot {
        self.opener.snapshot(limits)
    }

    fn open(&self, _limits: &Limits) -> Result<Box<dyn Device>, DeviceError> {
        Ok(self.together.open())
    }
}

impl Loads {
    /// Loads models until the last session has ended. `memory` decides whether they have room.
    pub fn work(self, opener: &dyn Opener, memory: &mut dyn Admission) {
        let mut all: HashMap<String, Weak<Model>> = HashMap::new();
        // A model may have been freed after the request that is next: what lives now counts, not what was told.
        let held = |all: &HashMap<String, Weak<Model>>| -> u64 {
            all.values().filter_map(Weak::upgrade).map(|model| model.bytes).sum()
        };
        for request in self.requests {
            let answered = match request {
                Request::Freed => None,
                Request::Load { loadable, freed, answer } => {
                    let key = key_of(&loadable.artifact);
                    let loaded = match all.get(&key).and_then(Weak::upgrade) {
                        Some(model) => Ok(model),
                        None => load(opener, memory, &loadable, held(&all), freed).inspect(|model| {
                            if self.inner.state().apart.contains(&model.key) {
                                model.has_rows.store(false, Ordering::Relaxed);
                            }
                            all.insert(key, Arc::downgrade(model));
                        }),
                    };
                    Some((answer, loaded))
                }
            };
            all.retain(|_, model| model.strong_count() > 0);
            memory.holds(held(&all), all.len() as u64);
            if let Some((answer, loaded)) = answered {
                // The session may have ended.
                let _ = answer.send(loaded);
            }
        }
    }
}

/// Key of a model: content, back end and options. The store has checked the hashes of the files.
fn key_of(artifact: &Artifact) -> String {
    let Artifact { name: _, backend, files, inputs, outputs, options } = artifact;
    let files: Vec<_> = files.iter().map(|file| (&file.name, &file.hash)).collect();
    serde_json::json!([backend, files, inputs, outputs, options]).to_string()
}

fn hash_of(key: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    key.hash(&mut hasher);
    hasher.finish()
}

fn load(
    opener: &dyn Opener,
    memory: &mut dyn Admission,
    loadable: &Loadable,
    held: u64,
    freed: Sender<Request>,
) -> Result<Arc<Model>, DeviceError> {
    let limits = Limits::default();
    memory.room(held, loadable.artifact.files.iter().map(|file| file.bytes).sum(), &limits)?;
    let mut device = opener.open(&limits)?;
    device.load(MODEL, loadable)?;
    let bytes = device.memory();
    memory.room(held.saturating_add(bytes), 0, &limits)?;
    Ok(Arc::new(Model {
        key: hash_of(&key_of(&loadable.artifact)),
        has_rows: AtomicBool::new(device.has_rows(MODEL)),
        device: Mutex::new(device),
        name: loadable.artifact.name.clone(),
        bytes,
        sessions: AtomicUsize::new(0),
        freed,
    }))
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self) {
        self.state().users -= 1;
        self.changed.notify_all();
    }

    /// Adds a run. None: nothing is computed any more.
    fn post(&self, model: Arc<Model>, inputs: Vec<Value>, outputs: Vec<u32>) -> Option<Receiver<Answer>> {
        let kind = model.has_rows.load(Ordering::Relaxed);
        let kind = kind.then(|| Kind::of(Arc::as_ptr(&model) as usize, &outputs, &inputs)).flatten();
        let (answer, answered) = sync_channel(1);
        let mut state = self.state();
        if state.is_over {
            return None;
        }
        let run = Posted { model, inputs, outputs, answer };
        state.queue.push(Waiting { since: self.begun.elapsed(), kind, run });
        self.changed.notify_all();
        Some(answered)
    }

    /// The number of models that are apart, if that of this batch has just become one of them.
    fn newly_apart(&self, batch: &[Waiting<Posted>]) -> Option<u64> {
        // Each of its runs was one that might be put together.
        let Waiting { kind: Some(_), run, .. } = batch.first()? else { return None };
        let mut state = self.state();
        let is_new = !run.model.has_rows.load(Ordering::Relaxed) && state.apart.insert(run.model.key);
        if !is_new {
            return None;
        }
        state.queue.separate(|waiting| Arc::ptr_eq(&waiting.model, &run.model));
        Some(state.apart.len() as u64)
    }

    /// Waits until a batch is due; false: no session is left.
    fn wait(&self) -> bool {
        let mut state = self.state();
        loop {
            let left = state.queue.due(Posted::sessions).map(|due| due.saturating_sub(self.begun.elapsed()));
            state = match left {
                Some(Duration::ZERO) => return true,
                Some(left) => {
                    self.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
                None if state.users == 0 => return false,
                None => self.changed.wait(state).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

impl Posted {
    fn sessions(&self) -> usize {
        self.model.sessions.load(Ordering::Relaxed)
    }
}

impl Computes {
    /// Computes batches until the last session has ended. A batch is one turn.
    pub fn work(self, turns: &mut dyn Admission) {
        let _over = Over(&self.0);
        while self.0.wait() {
            turns.turn();
            // What came while it waited for its turn is in the batch.
            let batch = self.0.state().queue.take(self.0.begun.elapsed(), Posted::sessions);
            let (time, answers) = computed(&batch);
            turns.ran(time);
            if let Some(apart) = self.0.newly_apart(&batch) {
                turns.apart(apart);
            }
            for (waiting, answer) in batch.iter().zip(answers) {
                // The session may have ended.
                let _ = waiting.run.answer.send(answer);
            }
        }
    }
}

/// Answers no run any more, also where a back end panics.
struct Over<'a>(&'a Inner);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.is_over = true;
        state.queue.clear();
    }
}

type Answer = Result<Computed, DeviceError>;

/// Computes a batch. Returns its time, and the answer of each run; no time: all have failed.
fn computed(batch: &[Waiting<Posted>]) -> (Option<Duration>, Vec<Answer>) {
    let Some(Waiting { run: Posted { model, outputs, .. }, .. }) = batch.first() else {
        return (Some(Duration::ZERO), Vec::new());
    };
    let mut device = model.device.lock().unwrap_or_else(PoisonError::into_inner);
    let device = &mut **device;
    let rows: Vec<usize> = batch.iter().filter_map(|one| Some(one.kind.as_ref()?.1)).collect();
    let together = (batch.len() > 1).then(|| run_together(device, model, batch, &rows, outputs));
    let failed = match together {
        Some(Ok((parts, time))) => {
            let all: usize = rows.iter().sum();
            let answers = parts.into_iter().zip(rows);
            let answers = answers
                .map(|(values, rows)| Ok(Computed { values, time: time.mul_f64(rows as f64 / all as f64) }));
            return (Some(time), answers.collect());
        }
        Some(Err(error)) => Some(error),
        None => None,
    };
    let mut total = None;
    let answers = batch.iter().map(|one| {
        let (values, time) = run(device, &one.run.inputs, outputs)?;
        *total.get_or_insert(Duration::ZERO) += time;
        Ok(Computed { values, time })
    });
    let answers: Vec<Answer> = answers.collect();
    if let Some(error) = failed
        && (answers.iter().all(Result::is_ok) || !model.has_rows.load(Ordering::Relaxed))
    {
        let (name, count) = (&model.name, batch.len());
        tracing::warn!("{name}: {count} runs failed together, and are put together no more: {error}");
        model.has_rows.store(false, Ordering::Relaxed);
    }
    (total, answers)
}

/// Computes several runs as one. Returns the outputs of each, and the time of all.
fn run_together(
    device: &mut dyn Device,
    model: &Model,
    batch: &[Waiting<Posted>],
    rows: &[usize],
    outputs: &[u32],
) -> Result<(Vec<Vec<Value>>, Duration), DeviceError> {
    let count = batch.first().map_or(0, |first| first.run.inputs.len());
    let inputs = (0..count).map(|input| {
        let parts: Vec<&Value> = batch.iter().filter_map(|one| one.run.inputs.get(input)).collect();
        rows::concatenated(&parts).map_err(|error| DeviceError::Value(error.to_string()))
    });
    let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
    let (wholes, time) = run(device, &inputs, outputs)?;
    let mut parts = vec![Vec::with_capacity(outputs.len()); batch.len()];
    for whole in wholes {
        let Some(split) = rows::split(&whole, rows) else {
            let rows: usize = rows.iter().sum();
            // Whatever the runs say one by one.
            model.has_rows.store(false, Ordering::Relaxed);
            return Err(DeviceError::Value(format!("{rows} rows give an output {whole}")));
        };
        parts.iter_mut().zip(split).for_each(|(parts, part)| parts.push(part));
    }
    Ok((parts, time))
}

/// Runs the model of a device, which holds nothing else before and after.
fn run(
    device: &mut dyn Device,
    inputs: &[Value],
    outputs: &[u32],
) -> Result<(Vec<Value>, Duration), DeviceError> {
    let ids = (0..).map(TensorId);
    let run = Run {
        model: MODEL,
        inputs: ids.clone().take(inputs.len()).collect(),
        outputs: outputs.iter().copied().zip(ids.skip(inputs.len())).collect(),
    };
    let result = (|| {
        for (id, value) in run.inputs.iter().zip(inputs) {
            device.upload(*id, value.clone())?;
        }
        let time = device.run(&run)?;
        let values = run.outputs.iter().map(|(_, id)| device.read(*id)).collect::<Result<_, _>>()?;
        Ok((values, time))
    })();
    let outputs = run.outputs.iter().map(|(_, id)| id);
    run.inputs.iter().chain(outputs).for_each(|id| device.free(*id));
    result
}

#[cfg(test)]
mod tests;
