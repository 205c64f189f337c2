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
use super::check::Check;
use super::{Plan, Stage};
use crate::diagnostic::suggestion;
use crate::identifier;
use crate::infrastructure::{ADDRESSES, is_address};
use crate::units::{Bytes, HourlyPrice, Percent, TimeSpan};
use crate::value::Step::{Index, Key};
use crate::workflow::DeviceChoice;
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
            self.rows(plan, stage, index);
        }
    }

    /// Only a device prepares rows: a model in the process of its stage needs none sent, and a server of models takes tensors.
    fn rows(&mut self, plan: &Plan, stage: &Stage, index: usize) {
        if stage.sends.is_tensors() {
            return;
        }
        let device = stage.device.as_deref().unwrap_or(DeviceChoice::CPU);
        let planned = device_of(device).and_then(|id| plan.devices.iter().find(|device| device.id == id));
        let place = planned.and_then(|device| device.address.as_deref()).unwrap_or(device);
        let scheme = place.split_once(':').map_or(place, |(scheme, _)| scheme);
        let (message, help) = match scheme {
            DeviceChoice::CPU => (
                format!("stage `{}` sends rows, but its model is on no device", stage.id),
                "remove `sends`, or write the device: `device: device:ID`",
            ),
            "oip" => (
                format!(
                    "stage `{}` sends rows to `{place}`, a server of models, which takes tensors",
                    stage.id
                ),
                "remove `sends`, or name a device that `tidemill device serve` offers",
            ),
            _ => return,
        };
        self.report(&[Key("stages"), Index(index), Key("sends")], CODE, message, help);
    }

    /// A stage without a model has nothing for a device.
    pub(super) fn without_model(&mut self, stage: &Stage, index: usize) {
        let at = |key| [Key("stages"), Index(index), Key(key)];
        let of = &stage.operator;
        if let Some(device) = stage.device.as_ref().filter(|device| *device != DeviceChoice::CPU) {
            let message = format!("`{of}` has no models, so nothing of it can compute on `{device}`");
            self.report(&at("device"), CODE, message, "remove `device`");
        }
        if stage.remote_run.is_some() {
            let message = format!("`{of}` has no models, so it runs nothing on a device");
            self.report(&at("remote_run"), CODE, message, "remove `remote_run`");
        }
        if !stage.sends.is_tensors() {
            let message = format!("`{of}` has no models, so it sends nothing to a device");
            self.report(&at("sends"), CODE, message, "remove `sends`");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::PlanFile;
    use crate::workflow::Workflow;
    use proptest::prelude::*;

    const WORKFLOW: &str = "
version: 1
name: seen
sources: [{id: images, kind: image_directory, key: key, options: {path: pictures}}]
operators: [{id: detect, kind: ml, input: images, variants: [detect.yaml]}]
sinks: [{id: seen, kind: jsonl, input: detect, options: {path: out.jsonl}}]
";

    /// Findings, with their lines, where stages have these further keys.
    fn found(detect: &str, images: &str) -> Vec<(String, Option<usize>, String)> {
        let text = format!(
            "version: 1
workflow: {{name: seen}}
workers: [{{id: edge, tier: edge, worker_type: small}}]
devices:
  - {{id: hub/card, kind: card, worker: hub, address: 'hub:7440'}}
  - {{id: hub/server, kind: card, worker: hub, address: 'oip:http://hub:8000'}}
stages:
  - {{id: images, operator: images, worker: edge{images}}}
  - {{id: detect, operator: detect, worker: edge, variant: small{detect}}}
  - {{id: seen, operator: seen, worker: edge}}
edges: [{{from: images, to: detect}}, {{from: detect, to: seen}}]
classes: [{{id: 0, share: 1, route: {{images: images, detect: detect, seen: seen}}}}]
"
        );
        let workflow = Workflow::parse(WORKFLOW, "workflow.yaml").expect("it is right");
        let diagnostics = match PlanFile::parse(&text, "plan.yaml") {
            Ok(file) => file.validate_against(&workflow),
            Err(found) => found,
        };
        let told = |one: &crate::diagnostic::Diagnostic| {
            (one.message.clone(), one.span.line(), one.help.clone().unwrap_or_default())
        };
        diagnostics.iter().map(told).collect()
    }

    #[test]
    fn rows_need_a_device_that_prepares_them() {
        for device in ["device:hub/card", "device:tcp://hub:7440", "proxy"] {
            assert_eq!(found(&format!(", sends: rows, device: '{device}'"), ""), [], "{device}");
        }
        for device in ["", ", device: cpu"] {
            let [(message, line, help)] = &found(&format!(", sends: rows{device}"), "")[..] else {
                panic!("one finding")
            };
            assert_eq!(message, "stage `detect` sends rows, but its model is on no device");
            assert_eq!(*line, Some(9));
            assert!(help.contains("`device: device:ID`"), "{help}");
        }
        for device in ["oip:http://hub:8000", "device:hub/server"] {
            let [(message, line, _)] = &found(&format!(", sends: rows, device: '{device}'"), "")[..] else {
                panic!("one finding")
            };
            let expected =
                "stage `detect` sends rows to `oip:http://hub:8000`, a server of models, which takes tensors";
            assert_eq!((message.as_str(), *line), (expected, Some(9)));
        }
    }

    #[test]
    fn a_stage_without_a_model_has_no_device() {
        let [(message, line, help)] = &found("", ", device: 'device:hub/card'")[..] else {
            panic!("one finding")
        };
        assert_eq!(message, "`images` has no models, so nothing of it can compute on `device:hub/card`");
        assert_eq!((*line, help.as_str()), (Some(8), "remove `device`"));
        assert_eq!(found("", ", device: cpu, sends: tensors"), []);
        let run = ", remote_run: {sent: 1B, received: 1B, round_trip: 1ms, transfer: 1ms, queue: 0s, compute: 1ms, share: 1%}";
        let told = found("", &format!(", device: proxy, sends: rows{run}"));
        assert_eq!(told.len(), 3, "{told:?}");
        assert!(told.iter().all(|(message, line, _)| message.contains("has no models") && *line == Some(8)));
    }

    proptest! {
        /// A plan is accepted exactly if its rows go to something that prepares them.
        #[test]
        fn a_plan_with_rows_is_accepted_where_they_mean_something(device in 0_usize..6, rows in any::<bool>()) {
            let devices = ["cpu", "proxy", "device:hub/card", "device:hub/server", "device:unix:///d.sock", "oip:http://h:1"];
            let takes_rows = [false, true, true, false, true, false];
            let sends = if rows { ", sends: rows" } else { "" };
            let found = found(&format!(", device: '{}'{sends}", devices[device]), "");
            prop_assert_eq!(found.is_empty(), !rows || takes_rows[device], "{:?}", found);
        }
    }
}
