//! A device that does not exist: times and memory from a table, outputs that follow from the inputs alone.
//!
//! It has a queue of launches, as an accelerator has: a run returns when it is queued, and a read waits for the runs before
//! it. With an inner device the outputs are those of that device, and only the times are emulated.
use crate::device::{
    Artifact, Device, DeviceError, Limits, Loadable, ModelFile, ModelId, Opener, Run, Snapshot, TensorId,
};
use crate::store::hash_of;
use crate::value::{Element, Value};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Times and memory of a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ModelTimes {
    /// Milliseconds of each run.
    pub run_ms: f64,
    /// Milliseconds of each row of the first input.
    pub row_ms: f64,
    /// Bytes that the loaded model holds; 0: those of its files.
    pub memory: u64,
    /// The first dimension of its inputs and outputs counts rows: runs of several sessions may be computed together, and without
    /// an inner device each row of an output follows from that row of the inputs. Not for texts.
    pub has_rows: bool,
}

/// Times and memory of a device.
///
/// ```
/// use tidemill_device::emulated::Profile;
/// let profile: Profile = serde_json::from_str(r#"{"kind": "gpu", "models": {"detect": {"run_ms": 2, "row_ms": 0.5}}}"#)?;
/// assert_eq!(profile.times("detect", 4).as_micros(), 4000);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Profile {
    /// Kind of the device.
    pub kind: String,
    /// Memory of the device, bytes; none: not limited.
    pub memory: Option<u64>,
    /// Models by name.
    pub models: BTreeMap<String, ModelTimes>,
    /// All others.
    pub others: ModelTimes,
    /// Failures on purpose.
    pub faults: Faults,
}

impl Default for Profile {
    fn default() -> Self {
        Self {
            kind: "emulated".to_owned(),
            memory: None,
            models: BTreeMap::new(),
            others: ModelTimes::default(),
            faults: Faults::default(),
        }
    }
}

impl Profile {
    /// Returns the time of one run of a model with this number of rows.
    pub fn times(&self, model: &str, rows: usize) -> Duration {
        let times = self.of(model);
        Duration::from_secs_f64((times.run_ms + times.row_ms * rows as f64).max(0.0) / 1e3)
    }

    fn of(&self, model: &str) -> &ModelTimes {
        self.models.get(model).unwrap_or(&self.others)
    }
}

/// Failures on purpose, counted in the runs of one session. 0: never.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Faults {
    /// Each n-th run fails.
    pub fail_each: u64,
    /// The process of the proxy ends at this run.
    pub end_at: u64,
    /// This run never ends.
    pub hang_at: u64,
    /// Each n-th upload finds no memory.
    pub no_memory_each: u64,
    /// Runs of more rows fail.
    pub most_rows: u64,
}

/// The time of an emulated device.
pub trait Clock: Send + Sync {
    /// Time since some moment.
    fn now(&self) -> Duration;
    /// Returns when [`Self::now`] has reached this time.
    fn wait_until(&self, time: Duration);
}

/// Real time.
#[derive(Debug)]
pub struct RealClock(Instant);

impl Default for RealClock {
    #[expect(clippy::disallowed_methods, reason = "an emulated device may run in real time")]
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for RealClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn wait_until(&self, time: Duration) {
        if let Some(left) = time.checked_sub(self.now()) {
            std::thread::sleep(left);
        }
    }
}

/// Opens emulated devices.
pub struct Emulated {
    profile: Profile,
    inner: Option<Arc<dyn Opener>>,
    clock: Arc<dyn Clock>,
}

impl Emulated {
    /// A device whose outputs follow from the bytes of the inputs, in real time.
    pub fn new(profile: Profile) -> Self {
        Self { profile, inner: None, clock: Arc::new(RealClock::default()) }
    }

    /// With the outputs of another device.
    #[must_use]
    pub fn with_outputs_of(self, inner: Arc<dyn Opener>) -> Self {
        Self { inner: Some(inner), ..self }
    }

    /// In another time.
    #[must_use]
    pub fn with_clock(self, clock: Arc<dyn Clock>) -> Self {
        Self { clock, ..self }
    }
}

impl Opener for Emulated {
    fn snapshot(&self, limits: &Limits) -> Snapshot {
        let inner = self.inner.as_ref().map(|inner| inner.snapshot(limits));
        Snapshot {
            name: "emulated".to_owned(),
            kind: self.profile.kind.clone(),
            backends: match inner {
                Some(inner) => inner.backends,
                None => vec![("emulated".to_owned(), env!("CARGO_PKG_VERSION").to_owned())],
            },
            memory: limits.memory.or(self.profile.memory),
            share: limits.share,
            window: limits.window,
        }
    }

    fn open(&self, limits: &Limits) -> Result<Box<dyn Device>, DeviceError> {
        let inner: Box<dyn Device> = match &self.inner {
            Some(inner) => inner.open(limits)?,
            None => Box::new(Synthetic {
                profile: self.profile.clone(),
                models: HashMap::new(),
                tensors: HashMap::new(),
            }),
        };
        Ok(Box::new(EmulatedDevice {
            inner,
            profile: self.profile.clone(),
            clock: Arc::clone(&self.clock),
            models: HashMap::new(),
            rows: HashMap::new(),
            ready: HashMap::new(),
            free_at: Duration::ZERO,
            runs: 0,
            uploads: 0,
        }))
    }
}

struct EmulatedDevice {
    inner: Box<dyn Device>,
    profile: Profile,
    clock: Arc<dyn Clock>,
    /// Name and memory of each model beyond that of the inner device.
    models: HashMap<ModelId, (String, u64)>,
    /// First dimension of each tensor.
    rows: HashMap<TensorId, usize>,
    /// When the tensors of runs are computed.
    ready: HashMap<TensorId, Duration>,
    /// When the last run of the queue ends.
    free_at: Duration,
    runs: u64,
    uploads: u64,
}

impl EmulatedDevice {
    fn room(&self, wanted: u64) -> Result<(), DeviceError> {
        match self.profile.memory {
            Some(limit) if self.memory().saturating_add(wanted) > limit => {
                Err(DeviceError::OutOfMemory { wanted, held: self.memory(), limit })
            }
            _ => Ok(()),
        }
    }
}

fn is_nth(count: u64, each: u64) -> bool {
    each > 0 && count.is_multiple_of(each)
}

impl Device for EmulatedDevice {
    fn create(&mut self, tensor: TensorId, element: Element, shape: &[usize]) -> Result<(), DeviceError> {
        self.inner.create(tensor, element, shape)?;
        self.rows.insert(tensor, shape.first().copied().unwrap_or(1));
        self.room(0)
    }

    fn upload(&mut self, tensor: TensorId, value: Value) -> Result<(), DeviceError> {
        self.uploads += 1;
        let wanted = value.bytes().len() as u64;
        if is_nth(self.uploads, self.profile.faults.no_memory_each) {
            return Err(DeviceError::OutOfMemory { wanted, held: self.memory(), limit: self.memory() });
        }
        self.room(wanted)?;
        self.rows.insert(tensor, value.shape().first().copied().unwrap_or(1));
        self.ready.remove(&tensor);
        self.inner.upload(tensor, value)
    }

    fn load(&mut self, model: ModelId, loadable: &Loadable) -> Result<(), DeviceError> {
        let name = loadable.artifact.name.clone();
        let before = self.inner.memory();
        self.inner.load(model, loadable)?;
        let more = self.profile.of(&name).memory.saturating_sub(self.inner.memory() - before);
        self.models.insert(model, (name, more));
        self.room(0)
    }

    fn run(&mut self, run: &Run) -> Result<Duration, DeviceError> {
        let (name, _) = self.models.get(&run.model).ok_or(DeviceError::NoModel(run.model.0))?;
        let rows = run.inputs.first().and_then(|input| self.rows.get(input)).copied().unwrap_or(1);
        let lasts = self.profile.times(name, rows);
        self.runs += 1;
        let faults = self.profile.faults;
        let has_too_many = faults.most_rows > 0 && rows as u64 > faults.most_rows;
        if has_too_many || is_nth(self.runs, faults.fail_each) {
            return Err(DeviceError::Run { model: name.clone(), reason: "it fails on purpose".to_owned() });
        }
        if faults.end_at == self.runs {
            // As a crash of a back end would.
            std::process::abort();
        }
        let inputs_ready = run.inputs.iter().filter_map(|input| self.ready.get(input)).max().copied();
        let begins = self.clock.now().max(self.free_at).max(inputs_ready.unwrap_or_default());
        self.inner.run(run)?;
        let ends = if faults.hang_at == self.runs { Duration::MAX } else { begins.saturating_add(lasts) };
        self.free_at = ends;
        for (_, output) in &run.outputs {
            self.ready.insert(*output, ends);
            self.rows.insert(*output, rows);
        }
        self.room(0).map(|()| lasts)
    }

    fn read(&mut self, tensor: TensorId) -> Result<Value, DeviceError> {
        let value = self.inner.read(tensor)?;
        if let Some(ready) = self.ready.get(&tensor) {
            self.clock.wait_until(*ready);
        }
        Ok(value)
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        self.inner.flush()?;
        self.clock.wait_until(self.free_at);
        Ok(())
    }

    fn free(&mut self, tensor: TensorId) {
        self.inner.free(tensor);
        self.rows.remove(&tensor);
        self.ready.remove(&tensor);
    }

    fn unload(&mut self, model: ModelId) {
        self.inner.unload(model);
        self.models.remove(&model);
    }

    fn has_rows(&self, model: ModelId) -> bool {
        self.inner.has_rows(model)
    }

    fn memory(&self) -> u64 {
        self.inner.memory() + self.models.values().map(|(_, more)| more).sum::<u64>()
    }
}

/// Outputs that follow from the bytes of the model and the inputs.
struct Synthetic {
    profile: Profile,
    models: HashMap<ModelId, (Artifact, u64)>,
    tensors: HashMap<TensorId, Value>,
}

/// Type and row of an output, in the option `outputs` of a model without an inner device: `[{"element": "int64", "row": [10]}]`.
/// Default: the type and dimensions of the first input.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Declared {
    element: Element,
    row: Vec<usize>,
}

impl Device for Synthetic {
    fn create(&mut self, tensor: TensorId, element: Element, shape: &[usize]) -> Result<(), DeviceError> {
        let zeros =
            Value::zeros(element, shape.to_vec()).map_err(|error| DeviceError::Value(error.to_string()))?;
        self.upload(tensor, zeros)
    }

    fn upload(&mut self, tensor: TensorId, value: Value) -> Result<(), DeviceError> {
        self.tensors.insert(tensor, value);
        Ok(())
    }

    fn load(&mut self, model: ModelId, loadable: &Loadable) -> Result<(), DeviceError> {
        if self.models.contains_key(&model) {
            return Err(DeviceError::Taken(model.0));
        }
        let bytes = loadable.artifact.files.iter().map(|file| file.bytes).sum();
        self.models.insert(model, (loadable.artifact.clone(), bytes));
        Ok(())
    }

    fn run(&mut self, run: &Run) -> Result<Duration, DeviceError> {
        let (artifact, _) = self.models.get(&run.model).ok_or(DeviceError::NoModel(run.model.0))?;
        let mut inputs = Vec::with_capacity(run.inputs.len());
        for input in &run.inputs {
            inputs.push(self.tensors.get(input).ok_or(DeviceError::NoTensor(input.0))?);
        }
        let rows = inputs.first().and_then(|input| input.shape().first()).copied().unwrap_or(0);
        let by_row = self.has_rows(run.model)
            && inputs
                .iter()
                .all(|input| input.shape().first() == Some(&rows) && input.element().bytes().is_some());
        // The seed of each part of the outputs: of a row, or of the whole.
        let parts = if by_row { rows } else { 1 };
        let seeds = (0..parts).map(|part| {
            let mut hasher = DefaultHasher::new();
            artifact.files.iter().for_each(|file| file.hash.hash(&mut hasher));
            for value in &inputs {
                let each = value.bytes().len() / parts;
                let shape = if by_row { &value.shape()[1..] } else { value.shape() };
                (shape, &value.bytes()[part * each..(part + 1) * each]).hash(&mut hasher);
            }
            hasher.finish()
        });
        let seeds: Vec<u64> = seeds.collect();
        let first = run.inputs.first().and_then(|input| self.tensors.get(input));
        let (element, shape) = match first {
            Some(value) => (value.element(), value.shape().to_vec()),
            None => (Element::Float32, vec![1]),
        };
        let declared = artifact.options.get("outputs").cloned().unwrap_or_else(|| serde_json::json!([]));
        let declared: Vec<Declared> = serde_json::from_value(declared)
            .map_err(|error| DeviceError::Value(format!("option `outputs` of {}: {error}", artifact.name)))?;
        let mut made = Vec::with_capacity(run.outputs.len());
        for (position, output) in &run.outputs {
            if *position as usize >= artifact.outputs.len() {
                let reason = format!("it has {} outputs, {position} is wanted", artifact.outputs.len());
                return Err(DeviceError::Run { model: artifact.name.clone(), reason });
            }
            let (element, shape) = match declared.get(*position as usize) {
                Some(Declared { element, row }) => {
                    let rows = shape.first().copied().unwrap_or(1);
                    (*element, std::iter::once(rows).chain(row.iter().copied()).collect())
                }
                None => (element, shape.clone()),
            };
            let zeros =
                Value::zeros(element, shape).map_err(|error| DeviceError::Value(error.to_string()))?;
            made.push((*output, filled(&zeros, seeds.iter().map(|seed| seed ^ u64::from(*position)))));
        }
        self.tensors.extend(made);
        Ok(Duration::ZERO)
    }

    fn read(&mut self, tensor: TensorId) -> Result<Value, DeviceError> {
        self.tensors.get(&tensor).cloned().ok_or(DeviceError::NoTensor(tensor.0))
    }

    fn flush(&mut self) -> Result<(), DeviceError> {
        Ok(())
    }

    fn free(&mut self, tensor: TensorId) {
        self.tensors.remove(&tensor);
    }

    fn unload(&mut self, model: ModelId) {
        self.models.remove(&model);
    }

    fn has_rows(&self, model: ModelId) -> bool {
        self.models.get(&model).is_some_and(|(artifact, _)| self.profile.of(&artifact.name).has_rows)
    }

    fn memory(&self) -> u64 {
        let tensors: u64 = self.tensors.values().map(|value| value.bytes().len() as u64).sum();
        tensors + self.models.values().map(|(_, bytes)| bytes).sum::<u64>()
    }
}

/// A tensor like this one, with values that follow from a number for each of its equal parts. Texts stay empty; floats are small.
fn filled(zeros: &Value, seeds: impl ExactSizeIterator<Item = u64>) -> Value {
    let count: usize = zeros.shape().iter().product();
    let each = count / seeds.len().max(1);
    let mut bytes = Vec::with_capacity(zeros.bytes().len());
    for seed in seeds {
        fill(zeros.element(), seed, each, &mut bytes);
    }
    Value::new(zeros.element(), zeros.shape().to_vec(), bytes).unwrap_or_else(|_| zeros.clone())
}

/// Adds elements that follow from a number.
fn fill(element: Element, seed: u64, count: usize, bytes: &mut Vec<u8>) {
    let mut state = seed;
    let mut next = move || {
        // SplitMix64.
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    };
    for _ in 0..count {
        let number = next();
        match element {
            Element::Float32 => {
                bytes.extend_from_slice(&((number >> 40) as f32 / 16_777_216.0).to_le_bytes())
            }
            Element::Float64 => {
                bytes.extend_from_slice(&((number >> 40) as f64 / 16_777_216.0).to_le_bytes())
            }
            // Between 0 and 1: half precision has few exponents.
            Element::Float16 => bytes.extend_from_slice(&((number as u16 & 0x03ff) | 0x3800).to_le_bytes()),
            Element::Int64 => bytes.extend_from_slice(&((number >> 57) as i64).to_le_bytes()),
            Element::Int32 => bytes.extend_from_slice(&((number >> 57) as i32).to_le_bytes()),
            Element::Int8 | Element::Uint8 => bytes.push((number >> 57) as u8),
            Element::Bool => bytes.push((number >> 63) as u8),
            Element::Text => bytes.extend_from_slice(&0u32.to_le_bytes()),
        }
    }
}

/// A model of one file, for tests and examples: with this name, content and numbers of inputs and outputs.
pub fn artifact_of(name: &str, content: &[u8], inputs: usize, outputs: usize) -> Artifact {
    let names = |word: &str, count: usize| (0..count).map(|at| format!("{word}{at}")).collect();
    Artifact {
        name: name.to_owned(),
        backend: "auto".to_owned(),
        files: vec![ModelFile {
            name: format!("{name}.model"),
            hash: hash_of(content),
            bytes: content.len() as u64,
        }],
        inputs: names("in", inputs),
        outputs: names("out", outputs),
        options: serde_json::Value::Null,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    /// Time that stands still until somebody waits.
    #[derive(Default)]
    struct Virtual(Mutex<Duration>);

    impl Clock for Virtual {
        fn now(&self) -> Duration {
            *self.0.lock().unwrap()
        }

        fn wait_until(&self, time: Duration) {
            let mut now = self.0.lock().unwrap();
            *now = time.max(*now);
        }
    }

    fn device(profile: Profile) -> (Arc<Virtual>, Box<dyn Device>) {
        let clock = Arc::new(Virtual::default());
        let emulated = Emulated::new(profile).with_clock(Arc::clone(&clock) as Arc<dyn Clock>);
        let mut device = emulated.open(&Limits::default()).unwrap();
        let loadable = Loadable { artifact: artifact_of("m", b"abc", 1, 2), path: "m.model".into() };
        device.load(ModelId(1), &loadable).unwrap();
        let value = Value::new(Element::Float32, vec![2], vec![0; 8]).unwrap();
        device.upload(TensorId(1), value).unwrap();
        (clock, device)
    }

    fn run(output: u64) -> Run {
        Run { model: ModelId(1), inputs: vec![TensorId(1)], outputs: vec![(0, TensorId(output))] }
    }

    fn profile(run_ms: f64) -> Profile {
        Profile {
            others: ModelTimes { run_ms, row_ms: 1.0, memory: 1000, has_rows: false },
            ..Profile::default()
        }
    }

    #[test]
    fn runs_queue_and_reads_wait() {
        let (clock, mut device) = device(profile(8.0));
        assert_eq!(device.run(&run(2)), Ok(Duration::from_millis(10)));
        device.run(&run(3)).unwrap();
        assert_eq!(clock.now(), Duration::ZERO, "a launch does not wait");
        let first = device.read(TensorId(2)).unwrap();
        assert_eq!(clock.now(), Duration::from_millis(10));
        assert_eq!(device.read(TensorId(3)).unwrap(), first, "outputs follow from inputs");
        assert_eq!(clock.now(), Duration::from_millis(20));
    }

    #[test]
    fn memory_is_that_of_the_table_and_freed() {
        let (_, mut device) = device(profile(0.0));
        assert_eq!(device.memory(), 1000 + 8);
        device.run(&run(2)).unwrap();
        assert_eq!(device.memory(), 1000 + 16);
        device.free(TensorId(2));
        device.unload(ModelId(1));
        assert_eq!(device.memory(), 8);
        let (_, mut small) = self::device(Profile { memory: Some(1010), ..profile(0.0) });
        assert!(matches!(small.run(&run(2)), Err(DeviceError::OutOfMemory { held: 1016, limit: 1010, .. })));
    }

    #[test]
    fn faults_happen_as_ordered() {
        let (_, mut device) =
            device(Profile { faults: Faults { fail_each: 2, ..Faults::default() }, ..profile(0.0) });
        assert!(device.run(&run(2)).is_ok());
        assert!(matches!(device.run(&run(3)), Err(DeviceError::Run { .. })));
        assert!(device.run(&run(4)).is_ok());
        assert!(matches!(device.run(&Run { model: ModelId(9), ..run(5) }), Err(DeviceError::NoModel(9))));
    }
}
