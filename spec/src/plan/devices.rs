//! Devices of a plan, and what the planner expects of the models that run on them.
//!
//! ```
//! use tidemill_spec::plan::{Plan, device_of};
//! let text = "
//! version: 1
//! workflow: {name: copy}
//! workers: [{id: local, tier: edge, worker_type: small}]
//! devices: [{id: hub/gpu, kind: gpu-small, worker: hub, address: 'hub.local:7440'}]
//! stages:
//!   - {id: rows, operator: rows, worker: local}
//!   - {id: detect, operator: detect, worker: local, variant: small, device: 'device:hub/gpu'}
//! classes: [{id: 0, share: 1, route: {rows: rows, detect: detect}}]
//! edges: [{from: rows, to: detect}]
//! ";
//! let plan = Plan::parse(text, "plan.yaml")?;
//! let id = plan.stages[1].device.as_deref().and_then(device_of);
//! assert_eq!(plan.devices.iter().find(|device| Some(device.id.as_str()) == id), Some(&plan.devices[0]));
//! # Ok::<(), tidemill_spec::diagnostic::Diagnostics>(())
//! ```
use super::Plan;
use super::check::Check;
use crate::diagnostic::suggestion;
use crate::identifier;
use crate::infrastructure::{ADDRESSES, is_address};
use crate::units::{Bytes, HourlyPrice, Percent, TimeSpan};
use crate::value::Step::{Index, Key};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::HashSet;

/// Scheme of [`super::Stage::device`] for a device of the plan: `device:ID`.
pub const DEVICE_SCHEME: &str = "device";

/// Returns the id of the plan's device that a stage names; none: the stage names an address, or no device.
pub fn device_of(device: &str) -> Option<&str> {
    let named = device.strip_prefix(DEVICE_SCHEME)?.strip_prefix(':')?;
    // An address, such as `tcp://hub:7440`, is none of the plan's.
    (!named.contains("://")).then_some(named)
}

/// A device that runs models of stages.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PlanDevice {
    /// Id, unique among the devices.
    pub id: String,
    /// Kind in the infrastructure.
    pub kind: String,
    /// Name of the machine that has it, which may have no stage.
    pub worker: String,
    /// Where `tidemill device serve` listens: `HOST:PORT` or `tcp://HOST:PORT`, `tls://HOST:PORT` with TLS, or `unix:///PATH`; or a
    /// server of the Open Inference Protocol: `oip:http://HOST:PORT` or `oip:grpc://HOST:PORT`. Without it `tidemill deploy` starts
    /// the device, and other runs do not reach it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// Other addresses, in the same forms, which are tried in this order when it is lost or drained, before stages compute on their
    /// own machines.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub spares: Vec<String>,
    /// Its memory; none: not limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Part of its time that the run may use. Default: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<Percent>,
    /// Its price while it is used, where the planner knew it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub price: Option<HourlyPrice>,
}

/// What goes to a device for a record.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Sends {
    /// The input tensors of the model, prepared by the stage.
    #[default]
    Tensors,
    /// The columns that the model reads, such as a compressed picture; the device prepares them and finishes the results.
    Rows,
}

impl Sends {
    /// Whether it is the default.
    pub fn is_tensors(&self) -> bool {
        *self == Self::Tensors
    }
}

/// What the planner expects of one record of a stage whose model runs on a device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RemoteRun {
    /// Bytes of a record to the device: its input tensors; with `sends: rows` the record before the operator.
    pub sent: Bytes,
    /// Bytes of a record back: its output tensors; with `sends: rows` the record after the operator, or only what the operator adds
    /// to it.
    pub received: Bytes,
    /// Delay of the network there and back.
    pub round_trip: TimeSpan,
    /// Time that the bytes of a batch take at the bandwidth, there and back.
    pub transfer: TimeSpan,
    /// Longest wait for the device, at the percentile of the latency level; 0 without a level.
    pub queue: TimeSpan,
    /// Time that the device takes for a batch: the model; with `sends: rows` also preparing the inputs and finishing the results.
    pub compute: TimeSpan,
    /// Part of the device's time that the stage takes.
    pub share: Percent,
}

const CODE: &str = "E0420";

impl Check<'_> {
    pub(super) fn devices(&mut self, plan: &Plan) {
        let ids: Vec<&str> = plan.devices.iter().map(|device| device.id.as_str()).collect();
        self.unique("devices", "device", &ids);
        for (index, device) in plan.devices.iter().enumerate() {
            let at = |key| [Key("devices"), Index(index), Key(key)];
            if let Some((message, help)) = identifier::wrong(&device.kind, ".") {
                self.report(&at("kind"), "E0115", message, help);
            }
            if device.share.is_some_and(|share| !(share.0 > 0.0 && share.0 <= 100.0)) {
                let message = format!("device `{}` without a share of its time", device.id);
                self.report(&at("share"), CODE, message, "write a part above 0% and at most 100%");
            }
            let spares = device.spares.iter().map(|address| ("spares", address));
            let addresses = device.address.iter().map(|address| ("address", address)).chain(spares);
            if let Some((key, address)) = addresses.into_iter().find(|(_, address)| !is_address(address)) {
                let message = format!("`{address}` is no address of a device");
                self.report(&at(key), CODE, message, ADDRESSES);
            }
        }
        let known: HashSet<&str> = ids.iter().copied().collect();
        for (index, stage) in plan.stages.iter().enumerate() {
            let named = stage.device.as_deref().and_then(device_of);
            if let Some(id) = named.filter(|id| !known.contains(id)) {
                let message = format!("stage `{}` is on the device `{id}`, which does not exist", stage.id);
                let path = [Key("stages"), Index(index), Key("device")];
                self.report(&path, CODE, message, suggestion(id, ids.iter().copied(), "devices"));
            }
        }
    }
}
