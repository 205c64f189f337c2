//! Devices: what computes the calls of one session.
use crate::memory::Placed;
use crate::value::{Element, Value};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

/// Handle of a tensor. The client chooses it, so that no call waits for one; it belongs to the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TensorId(pub u64);

/// Handle of a model, as [`TensorId`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ModelId(pub u64);

/// One run of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    /// The model.
    pub model: ModelId,
    /// One tensor for each input of the model, in the order of [`Artifact::inputs`].
    pub inputs: Vec<TensorId>,
    /// Positions of the wanted outputs in [`Artifact::outputs`], each with the handle that it gets.
    pub outputs: Vec<(u32, TensorId)>,
}

/// A file of a model, known by its content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// Its path in the folder of the model's files.
    pub name: String,
    /// SHA-256 of its content, in hexadecimal.
    pub hash: String,
    /// Size in bytes.
    pub bytes: u64,
}

/// A model, as the device loads it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Artifact {
    /// Name for messages.
    pub name: String,
    /// Back end that computes it; `auto`: the device chooses.
    pub backend: String,
    /// The files; the first one is the model, the others lie beside it.
    pub files: Vec<ModelFile>,
    /// Names of the inputs, in the order of [`Run::inputs`].
    pub inputs: Vec<String>,
    /// Names of the outputs.
    pub outputs: Vec<String>,
    /// Options of the back end, such as its execution provider; each back end reads its own.
    #[serde(default)]
    pub options: serde_json::Value,
}

/// A model whose files are on this host.
#[derive(Debug, Clone)]
pub struct Loadable {
    /// The model.
    pub artifact: Artifact,
    /// The first file. The others lie in the same folder, by their paths.
    pub path: PathBuf,
}

/// Facts of a device: a client reads them from its copy of the handshake, without a message.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Snapshot {
    /// Name of the device, for reports.
    pub name: String,
    /// Kind, as in infrastructure files and profiles.
    pub kind: String,
    /// Back ends with their versions, the preferred one first.
    pub backends: Vec<(String, String)>,
    /// Bytes that this session may hold; none: not limited.
    pub memory: Option<u64>,
    /// Part of the device's time that this session may use while others want it, 0 < share <= 1.
    pub share: Option<f64>,
    /// Bytes of calls that may be on their way.
    pub window: u64,
}

/// Why a call failed. The session continues.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[serde(rename_all = "snake_case")]
pub enum DeviceError {
    /// The handle of no tensor of the session.
    #[error("no tensor of this session has the handle {0}")]
    NoTensor(u64),
    /// The handle of no model of the session.
    #[error("no model of this session has the handle {0}")]
    NoModel(u64),
    /// The handle is taken.
    #[error("the handle {0} is taken")]
    Taken(u64),
    /// The session would hold more than it may.
    #[error(
        "the session holds {held} bytes and may hold {limit}: {wanted} more are too many; raise its memory with `tidemill device limits`, or free tensors"
    )]
    OutOfMemory {
        /// Bytes that were wanted.
        wanted: u64,
        /// Bytes that it holds.
        held: u64,
        /// Its limit.
        limit: u64,
    },
    /// The device cannot load the model.
    #[error("{model} cannot be loaded: {reason}")]
    Load {
        /// The model.
        model: String,
        /// The reason, with a fix.
        reason: String,
    },
    /// A run failed.
    #[error("{model} failed to run: {reason}")]
    Run {
        /// The model.
        model: String,
        /// The reason.
        reason: String,
    },
    /// A value does not fit its call.
    #[error("{0}")]
    Value(String),
    /// The device itself failed.
    #[error("the device failed: {0}")]
    Device(String),
}

impl DeviceError {
    /// The message; of a device that failed, without saying so.
    pub(crate) fn reason(&self) -> String {
        match self {
            Self::Device(reason) => reason.clone(),
            other => other.to_string(),
        }
    }
}

/// Computes the calls of one session, in their order. Whoever drops it frees all that the session holds.
///
/// [`Device::run`] may return before the run has ended: [`Device::read`] and [`Device::flush`] wait.
pub trait Device: Send {
    /// Makes a tensor of zeros.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] and others of the device.
    fn create(&mut self, tensor: TensorId, element: Element, shape: &[usize]) -> Result<(), DeviceError>;
    /// Makes a tensor of a value, or replaces it.
    ///
    /// # Errors
    /// [`DeviceError::OutOfMemory`] and others of the device.
    fn upload(&mut self, tensor: TensorId, value: Value) -> Result<(), DeviceError>;
    /// As [`Self::upload`], of values in shared memory. A device that copies them into memory of its own does it here.
    ///
    /// # Errors
    /// As [`Self::upload`].
    fn upload_placed(&mut self, tensor: TensorId, placed: &Placed) -> Result<(), DeviceError> {
        self.upload(tensor, placed.to_value().map_err(|error| DeviceError::Value(error.to_string()))?)
    }
    /// Loads a model.
    ///
    /// # Errors
    /// [`DeviceError::Load`].
    fn load(&mut self, model: ModelId, loadable: &Loadable) -> Result<(), DeviceError>;
    /// Runs a model, or puts the run into the queue of the device. Returns the time that the device computes it.
    ///
    /// # Errors
    /// [`DeviceError::NoModel`], [`DeviceError::NoTensor`], [`DeviceError::Run`].
    fn run(&mut self, run: &Run) -> Result<Duration, DeviceError>;
    /// Returns the value of a tensor, once it is computed.
    ///
    /// # Errors
    /// [`DeviceError::NoTensor`]; [`DeviceError::Run`] of the run that computes it.
    fn read(&mut self, tensor: TensorId) -> Result<Value, DeviceError>;
    /// Waits for all runs.
    ///
    /// # Errors
    /// [`DeviceError::Run`] of the first that failed.
    fn flush(&mut self) -> Result<(), DeviceError>;
    /// Frees a tensor; one that does not exist is none of its concern.
    fn free(&mut self, tensor: TensorId);
    /// Frees a model.
    fn unload(&mut self, model: ModelId);
    /// Returns whether the first dimension of all inputs and outputs of a loaded model counts rows that are computed independently
    /// of each other: runs of it may then be put together.
    fn has_rows(&self, model: ModelId) -> bool {
        let _ = model;
        false
    }
    /// Returns the bytes of tensors and models that the session holds.
    fn memory(&self) -> u64;
}

/// Makes the devices of a proxy program: one for each session.
pub trait Opener: Send + Sync {
    /// Facts of the device. Limits of the session are those of `limits`.
    fn snapshot(&self, limits: &Limits) -> Snapshot;
    /// Opens the device for a session.
    ///
    /// # Errors
    /// [`DeviceError::Device`] with a fix, if it cannot be used here.
    fn open(&self, limits: &Limits) -> Result<Box<dyn Device>, DeviceError>;
}

/// Limits of a session.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Bytes of tensors and models; none: not limited.
    pub memory: Option<u64>,
    /// Part of the device's time while others want it.
    pub share: Option<f64>,
    /// Bytes of calls that may be on their way.
    pub window: u64,
    /// The longest that a run may compute, without its wait for a turn; a load may take [`LOADING`] times as long.
    pub longest_run: Duration,
}

/// Loading a model may take so many times as long as a run.
pub const LOADING: u32 = 10;

impl Default for Limits {
    fn default() -> Self {
        Self { memory: None, share: None, window: 64 << 20, longest_run: Duration::from_secs(600) }
    }
}
