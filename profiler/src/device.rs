//! Devices: what computes models of stages elsewhere, measured by the times that it reports itself.
use tidemill_operators::api::{Inference, OperatorError};
use tidemill_operators::model::ModelSpec;

/// A device to measure.
#[derive(Debug, Clone, PartialEq)]
pub struct Device {
    /// Its kind in the infrastructure, and in the profile.
    pub kind: String,
    /// Where it listens.
    pub address: String,
    /// Its back ends to measure.
    pub backends: Vec<String>,
}

/// A model on a device, whose outputs have the times there.
pub struct OnDevice {
    /// The model.
    pub model: Box<dyn Inference>,
    /// Bytes of its files, which count as its memory there.
    pub bytes: u64,
    /// The process that computes, if it is one of this machine that was started for the model.
    pub process: Option<u32>,
}

/// Loads a model on a device as plans name it: `device:ADDRESS`, or `proxy:BACKEND` for a process of this machine. The errors are
/// those of the device.
pub type Opener<'a> = &'a dyn Fn(&ModelSpec, &str) -> Result<OnDevice, OperatorError>;
