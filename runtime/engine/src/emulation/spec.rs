//! Specification and report of an emulation, as plain data.
use crate::failure::RunError;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// An emulation; ids are those of the plan.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Emulation {
    /// Workers with an enforced speed, by id. The models of all others run as they would without emulation.
    pub workers: BTreeMap<String, WorkerSpeed>,
    /// By stage, for calls of 1, 2, ... records: time on the stage's worker per processor time on this machine. A call
    /// with more records has the last one; none: 1.
    pub ratios: BTreeMap<String, Vec<f64>>,
    /// Expected times of calls here, by stage. Differences from them in the run, because this processor has other
    /// work too, do not count on the worker. None: they count.
    pub assumed: BTreeMap<String, AssumedTimes>,
    /// Wires between two places.
    pub wires: Vec<WireSpec>,
    /// Position in [`Emulation::wires`] by edge (sending stage, receiving stage, input); all others are not emulated.
    pub edges: BTreeMap<(String, String, u32), usize>,
    /// Ids of the devices that compute models for stages.
    pub devices: Vec<String>,
    /// By stage whose model one of them computes. Its `ratios` and `assumed` times do not count.
    pub on_devices: BTreeMap<String, OnDevice>,
}

/// The model of a stage on an emulated device.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct OnDevice {
    /// Position in [`Emulation::devices`].
    pub device: usize,
    /// Calls on the worker of the stage without the model: the preparation of inputs and outputs.
    pub stage: CallTimes,
    /// Calls of the model on the device, of which the run may have a share only: then they are as much longer.
    pub model: CallTimes,
    /// Bytes of a record to the device.
    pub sent: u64,
    /// Bytes of a record back.
    pub received: u64,
    /// Position in [`Emulation::wires`] of the one to the device; none: both are at one place.
    pub there: Option<usize>,
    /// Position of the one back.
    pub back: Option<usize>,
}

/// Durations of calls, seconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct CallTimes {
    /// Calls with 1, 2, ... records. One with more has the last one; none: 0.
    pub seconds: Vec<f64>,
    /// Extra time of a call that does not follow another.
    pub after_pause: f64,
}

/// Durations of calls of a stage, seconds.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct AssumedTimes {
    /// Processor time on this machine of calls with 1, 2, ... records, one right after the other.
    pub here: Vec<f64>,
    /// Extra time of a call that does not follow another of the stage: on the worker, and here.
    pub after_pause: (f64, f64),
}

/// Speed of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum WorkerSpeed {
    /// In the processor time of a call times the stage's ratio.
    Ratio,
    /// As one that may use this share of a processor, 0 < share <= 1, in each period of 10 ms, like the processor
    /// quota of a control group. Ratios count as well.
    Quota(f64),
}

/// One direction between two places.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct WireSpec {
    /// Sending place.
    pub from: String,
    /// Receiving place.
    pub to: String,
    /// Bits per second; none: not limited.
    pub bandwidth: Option<u64>,
    /// Delay of every byte, nanoseconds.
    pub delay: u64,
}

/// The work of a worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerReport {
    /// Worker id.
    pub worker: String,
    /// Plan seconds in which it computed.
    pub busy_seconds: f64,
    /// Its stages with models.
    pub stages: Vec<PacedStageReport>,
}

/// The work of a stage on its worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PacedStageReport {
    /// Stage id.
    pub stage: String,
    /// Calls of its model.
    pub calls: u64,
    /// Records in them.
    pub records: u64,
    /// Plan seconds that the worker was held for it.
    pub busy_seconds: f64,
    /// Seconds of the worker's processor that its calls needed: less than it was held where a quota stopped them.
    pub needed_seconds: f64,
    /// Plan seconds that its calls really took.
    pub elapsed_seconds: f64,
    /// Seconds of processor time of its calls on this machine.
    pub processor_seconds: f64,
    /// Calls that took longer here than on the worker: this machine was too busy, or is too slow.
    pub overruns: u64,
    /// Plan seconds that these calls took, and that they should have taken.
    pub overrun_seconds: (f64, f64),
}

/// The traffic of a wire.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WireReport {
    /// The wire.
    #[serde(flatten)]
    pub wire: WireSpec,
    /// Bytes of frames with records, as they travel: header and Arrow message (replays included).
    pub data_bytes: u64,
    /// Bytes of frames with progress.
    pub progress_bytes: u64,
    /// Bytes of tensors to devices, or from them.
    pub tensor_bytes: u64,
    /// Plan seconds in which it sent; 0 where the bandwidth is not limited.
    pub busy_seconds: f64,
    /// Its edges.
    pub edges: Vec<WireEdgeReport>,
}

/// The work of a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EmulatedDeviceReport {
    /// Device id.
    pub device: String,
    /// Plan seconds in which it computed.
    pub busy_seconds: f64,
    /// The stages whose models it computed.
    pub stages: Vec<DeviceStageReport>,
}

/// The work of a device for a stage.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct DeviceStageReport {
    /// Stage id.
    pub stage: String,
    /// Calls of its model.
    pub calls: u64,
    /// Records in them.
    pub records: u64,
    /// Plan seconds that the device computed for it.
    pub busy_seconds: f64,
    /// Plan seconds that its calls waited at the device.
    pub waited_seconds: f64,
}

/// The traffic of an edge on its wire.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WireEdgeReport {
    /// Sending stage.
    pub from: String,
    /// Receiving stage.
    pub to: String,
    /// Input of the receiver.
    pub input: u32,
    /// Records.
    pub records: u64,
    /// Bytes of the records in memory, as the edge itself counts them.
    pub record_bytes: u64,
    /// Bytes of their frames as they travel.
    pub data_bytes: u64,
}

/// Report of an emulation.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct EmulationReport {
    /// Emulated workers, by id.
    pub workers: Vec<WorkerReport>,
    /// Wires in the order in which they were given.
    pub wires: Vec<WireReport>,
    /// Devices in the order in which they were given.
    pub devices: Vec<EmulatedDeviceReport>,
}

impl Emulation {
    /// # Errors
    /// A speed or an edge is invalid.
    pub(super) fn check(&self) -> Result<(), RunError> {
        for (id, speed) in &self.workers {
            if let WorkerSpeed::Quota(share) = speed
                && !(*share > 0.0 && *share <= 1.0)
            {
                return Err(RunError::Plan(format!("worker '{id}' has {share} of a processor")));
            }
        }
        let is_no_number = |ratio: &f64| !(*ratio >= 0.0 && ratio.is_finite());
        if let Some((stage, _)) = self.ratios.iter().find(|(_, ratios)| ratios.iter().any(is_no_number)) {
            return Err(RunError::Plan(format!("stage '{stage}' has a ratio of speeds that is no number")));
        }
        for (stage, on) in &self.on_devices {
            if self.devices.get(on.device).is_none() {
                return Err(RunError::Plan(format!("stage '{stage}' is on a device that is not emulated")));
            }
            if on.there.into_iter().chain(on.back).any(|wire| wire >= self.wires.len()) {
                return Err(RunError::Plan(format!(
                    "no wire leads from stage '{stage}' to its device and back"
                )));
            }
            let times = [&on.stage, &on.model].into_iter();
            if times.flat_map(|times| times.seconds.iter().chain([&times.after_pause])).any(is_no_number) {
                return Err(RunError::Plan(format!(
                    "stage '{stage}' has a time on its device that is no number"
                )));
            }
        }
        match self.edges.iter().find(|(_, wire)| **wire >= self.wires.len()) {
            Some((edge, _)) => Err(RunError::Plan(format!("edge {} -> {} has no wire", edge.0, edge.1))),
            None => Ok(()),
        }
    }
}
