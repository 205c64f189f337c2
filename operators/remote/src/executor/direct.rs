//! A model on a device and nowhere else: for measurements of the device.
use super::{Connected, Device, Target, There, Times, take, text};
use crate::reach::{Own, Place, ReachError, Reached};
use arrow_array::RecordBatch;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidemill_device::device::Snapshot;
use tidemill_inference::{MlKind, files_of};
use tidemill_operators::api::{Inference, OperatorError, Output};
use tidemill_operators::model::{ChosenBackend, ModelSpec};

/// Name of the sessions in lists of a device.
const CLIENT: &str = "profile";

/// Asks a device at an address, as in [`Place::at`], for its facts.
///
/// # Errors
/// [`ReachError`].
pub fn look(address: &str) -> Result<Snapshot, ReachError> {
    let Reached { session, own: _ } = Place::at(address)?.reach(Path::new("."), "default", CLIENT)?;
    Ok(session.snapshot().clone())
}

/// A model that a device computes. Its rows are prepared and finished here; a call whose device is lost fails.
pub struct Direct {
    connected: Connected,
    model: Box<dyn Inference>,
    times: Times,
    /// Time that the device has computed so far.
    computed: Duration,
}

impl Direct {
    /// Loads a model on a device as plans name it: `proxy:BACKEND` or `device:ADDRESS`.
    ///
    /// # Errors
    /// The device cannot be reached, or cannot load the model.
    pub fn open(spec: &ModelSpec, device: &str) -> Result<Self, OperatorError> {
        let device = Device {
            tenant: "default".to_owned(),
            name: device.to_owned(),
            targets: vec![Target::Device(device.parse().map_err(text)?)],
            spec: spec.clone(),
            models: MlKind::default(),
            client: CLIENT.to_owned(),
            sends_rows: false,
        };
        let connected = Arc::new(device).connected(0)?;
        let (model, times) = connected.instance()?;
        Ok(Self { connected, model, times, computed: Duration::ZERO })
    }

    /// The process that computes, if it was started here.
    pub fn process(&self) -> Option<u32> {
        match &self.connected.there {
            There::Device { own, .. } => own.as_ref().map(Own::process),
            There::Server(_) => None,
        }
    }
}

/// Bytes of a model's files: the least memory that it needs on a device.
///
/// # Errors
/// A file cannot be read.
pub fn bytes_of_files(spec: &ModelSpec) -> Result<u64, OperatorError> {
    let (folder, names) = files_of(&spec.manifest)?;
    let bytes = |name: &String| std::fs::metadata(folder.join(name)).map(|facts| facts.len());
    names.iter().map(bytes).sum::<std::io::Result<u64>>().map_err(text)
}

impl Inference for Direct {
    fn infer(&mut self, batch: &RecordBatch, output: &mut Output) -> Result<(), OperatorError> {
        self.infer_parts(std::slice::from_ref(batch), output)
    }

    fn infer_parts(&mut self, parts: &[RecordBatch], output: &mut Output) -> Result<(), OperatorError> {
        let result = self.model.infer_parts(parts, output);
        let times = take(&self.times);
        self.computed += times.compute;
        output.device = Some(times);
        match self.connected.lost() {
            Some(reason) => Err(OperatorError::lost(reason)),
            None => result,
        }
    }

    fn backend(&self) -> Option<ChosenBackend> {
        self.model.backend()
    }

    fn model_time(&self) -> Option<Duration> {
        Some(self.computed)
    }
}
