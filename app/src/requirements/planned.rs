//! Facts of a plan about the models that are judged: the form of their records, their batches, and their devices.
use super::links::KnownLink;
use crate::choice::Candidate;
use tidemill_spec::plan::{Plan, PlanDevice, RemoteRun, Sends, Stage, device_of};

/// How a plan runs a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// The form of a record that goes to the device.
    pub sends: Sends,
    /// Records in a run.
    pub batch: u32,
    /// The device; none: its model is on the worker of the stage.
    pub device: Option<PlannedDevice>,
}

/// A device of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedDevice {
    /// Its id.
    pub id: String,
    /// Its kind.
    pub kind: String,
    /// The part of its time that the plan may use.
    pub share: f64,
    /// Expectations of the plan of a run there; none where it is hand-written.
    pub expected: Option<RemoteRun>,
}

impl PlannedDevice {
    fn of(device: &PlanDevice, stage: &Stage) -> Self {
        Self {
            id: device.id.clone(),
            kind: device.kind.clone(),
            share: device.share.map_or(1.0, |share| share.0 / 100.0),
            expected: stage.remote_run.clone(),
        }
    }

    /// The link to it that the plan expects, for batches of this size.
    fn link(&self, operator: &str, batch: u32) -> Option<KnownLink> {
        let run = self.expected.as_ref()?;
        let bytes = f64::from(batch) * (run.sent.0 + run.received.0) as f64;
        let transfer = run.transfer.0 as f64 / 1e9;
        // The plan has the time of both directions together, and no headers.
        let bits = if transfer > 0.0 { 8.0 * bytes / transfer } else { f64::INFINITY };
        let name = format!("as planned for {operator}, to {}", self.id);
        Some(KnownLink::of_plan(name, run.round_trip.0 as f64 / 1e9, bits, (&self.id, operator)))
    }
}

/// The ways in which a plan runs a model; empty: the plan has no stage of it.
pub(super) fn of(plan: &Plan, operator: &str, candidate: &Candidate) -> Vec<Planned> {
    let mut all: Vec<Planned> = Vec::new();
    let stages = plan.stages.iter().filter(|stage| stage.operator == operator);
    for stage in stages.filter(|stage| candidate.is_named(stage.variant.as_deref())) {
        let id = stage.device.as_deref().and_then(device_of);
        let device = id.and_then(|id| plan.devices.iter().find(|device| device.id == id));
        let device = device.map(|device| PlannedDevice::of(device, stage));
        let planned = Planned { sends: stage.sends, batch: stage.max_batch, device };
        // Stages at several sites are often alike.
        if !all.contains(&planned) {
            all.push(planned);
        }
    }
    all
}

/// The links to devices that a plan expects.
pub(super) fn links(plan: &Plan) -> Vec<KnownLink> {
    let mut all: Vec<KnownLink> = Vec::new();
    for stage in &plan.stages {
        let id = stage.device.as_deref().and_then(device_of);
        let Some(device) = id.and_then(|id| plan.devices.iter().find(|device| device.id == id)) else {
            continue;
        };
        let link = PlannedDevice::of(device, stage).link(&stage.operator, stage.max_batch);
        all.extend(link.filter(|link| !all.contains(link)));
    }
    all
}
