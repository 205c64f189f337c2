//! Models that run on devices for stages: more modes of a variant on a worker for each device that it can reach, one for
//! tensors and one for rows (`rows.rs`).
//!
//! The profile has times of a whole call, for kinds of devices as for types of workers. Of the times on a worker the
//! stage keeps what is not the model's ([`Service::model_part`]), the preparation of inputs and outputs. Where that was
//! not measured, it is assumed to be a fifth, and noted; a device whose profile does not have the part is assumed to
//! need the whole time. A device of which the workflow has a share is as much slower.
use super::machines::DeviceFacts;
use super::services::{Reader, slowed, undominated};
use super::{Inputs, MEASURE, Model, rows, slowdown};
use crate::problem::{Problem, Remote, ServiceMode};
use std::collections::{BTreeMap, BTreeSet};
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
use tidemill_spec::plan::Sends;
use tidemill_spec::profile::Service;
use tidemill_spec::workflow::Operator;

/// Part of a call on a worker that is taken to be the model's where it was not measured.
const ASSUMED_MODEL_PART: f64 = 0.8;

/// Whether the model of an operator may run on the worker of its stage.
pub(super) fn may_stay(operator: &Operator) -> bool {
    operator.device.as_ref().is_none_or(|device| device.allows(None))
}

fn may_run_on(operator: &Operator, kind: &str) -> bool {
    operator.device.as_ref().is_none_or(|device| device.allows(Some(kind)))
}

/// Kinds of devices that workflows name and the infrastructure does not have.
pub(super) fn check(inputs: &Inputs<'_>, found: &mut Diagnostics) {
    let workers = inputs.infrastructure.tiers.iter().flat_map(|tier| tier.workers.iter());
    let kinds: BTreeSet<&str> =
        workers.flat_map(|worker| &worker.devices).map(|device| device.kind.as_str()).collect();
    for device in inputs.workflow.operators.iter().filter_map(|operator| operator.device.as_ref()) {
        if let Some(kind) = device.kind().filter(|kind| !kinds.contains(kind)) {
            let name = inputs.infrastructure.name.as_str();
            let text = format!("the infrastructure `{name}` has no device of the kind `{kind}`");
            let help = match kinds.is_empty() {
                true => "add it to a worker type: `devices: [{kind: ...}]`, or leave `device` out".to_owned(),
                false => suggestion(kind, kinds.iter().copied(), "kinds of devices"),
            };
            found.push(Diagnostic::error("E0910", text).at(device.span.clone()).with_help(help));
        }
    }
}

/// The note on the part of models that was not measured where their stages prepare tensors for a device; none: it was.
pub(super) fn without_model_part(inputs: &Inputs<'_>, problem: &Problem) -> Option<String> {
    let mut types_of: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for operator in &problem.operators {
        for variant in &operator.variants {
            for (class, modes) in problem.worker_classes.iter().zip(&variant.modes) {
                let remotes = modes.iter().filter_map(|mode| mode.remote.as_ref());
                let worker_type = class.worker_type.as_str();
                let is_it = |service: &&Service| {
                    service.operator == operator.id
                        && service.variant.as_deref() == Some(&variant.id)
                        && service.worker_type == worker_type
                };
                let is_measured = || {
                    inputs.profile.services.iter().filter(is_it).any(|service| service.model_part.is_some())
                };
                if remotes.into_iter().any(|remote| remote.sends == Sends::Tensors) && !is_measured() {
                    types_of.entry(&operator.id).or_default().insert(worker_type);
                }
            }
        }
    }
    let mut operators_of: BTreeMap<BTreeSet<&str>, Vec<&str>> = BTreeMap::new();
    types_of.into_iter().for_each(|(operator, types)| operators_of.entry(types).or_default().push(operator));
    let listed = |types: &BTreeSet<&str>| types.iter().copied().collect::<Vec<_>>().join(", ");
    let parts = operators_of.iter().map(|(types, of)| format!("{} on {}", of.join(", "), listed(types)));
    let parts: Vec<String> = parts.collect();
    (!parts.is_empty()).then(|| {
        let of = parts.join("; ");
        format!(
            "no `model_part` in the profile of {of}: a stage whose model gets tensors on a device is taken to keep a fifth of its time; \
             measure it there: {MEASURE}"
        )
    })
}

/// Form of a record on the path to a device, and its bytes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Form {
    pub(super) sends: Sends,
    pub(super) sent: f64,
    pub(super) received: f64,
    /// Bytes of a call beside its records, in each direction.
    pub(super) of_call: f64,
}

impl Form {
    /// Bytes of a record of a batch, there and back.
    pub(super) fn bytes(&self, batch: u32) -> [f64; 2] {
        [self.sent, self.received].map(|bytes| bytes + self.of_call / f64::from(batch))
    }
}

/// Adds the modes of a variant whose model runs on a device.
pub(super) fn add(
    reader: &Reader<'_>,
    model: &Model,
    modes: &mut [Vec<ServiceMode>],
    notes: &mut Vec<String>,
) {
    let machines = reader.machines;
    let mut told: BTreeSet<String> = BTreeSet::new();
    for (class, facts) in machines.devices.iter().enumerate() {
        let Some(facts) = facts else { continue };
        let kind = facts.of.kind.value.as_str();
        if !may_run_on(reader.operator, kind) {
            continue;
        }
        let name = reader.name();
        let services: Vec<&Service> = reader.rows(kind).collect();
        if services.is_empty() {
            told.insert(format!("{name} has no figures on the device {kind}: not planned there"));
            continue;
        }
        let tensors = model.tensors.map(|bytes| Form {
            sends: Sends::Tensors,
            sent: bytes.sent as f64,
            received: bytes.received as f64,
            of_call: 0.0,
        });
        let as_rows = rows::form(reader, model, facts, &mut told);
        if tensors.is_none() && as_rows.is_none() {
            told.insert(format!(
                "{name} is not planned on {kind}: the size of its tensors, or the number of its calls, depends on the record, and its rows cannot go there, or their size is not known"
            ));
            continue;
        }
        if !facts.of.remotable && machines.classes[facts.owner].count > 1 {
            told.insert(format!(
                "{name} is not planned on {kind}: plans do not say which of several machines uses its own device"
            ));
            continue;
        }
        for form in tensors.into_iter().chain(as_rows) {
            let runs = services.iter().flat_map(|row| match form.sends {
                Sends::Tensors => runs(reader, row, facts),
                Sends::Rows => rows::runs(reader, row, facts, &mut told),
            });
            for run in undominated(runs.collect(), reader.latency_counts()) {
                for (worker, modes) in modes.iter_mut().enumerate() {
                    let is_reached = facts.of.remotable || worker == facts.owner;
                    if machines.devices[worker].is_some() || !is_reached {
                        continue;
                    }
                    let stage = match form.sends {
                        Sends::Tensors => stage(reader, worker, run.batch),
                        Sends::Rows => rows::stage(reader, worker, &form, run.batch),
                    };
                    let Some(stage) = stage else { continue };
                    let [sent_bytes, received_bytes] = form.bytes(run.batch);
                    let (sends, run) = (form.sends, Box::new(run.clone()));
                    let remote = Remote { class, run, sends, sent_bytes, received_bytes };
                    modes.push(ServiceMode { remote: Some(remote), ..stage });
                }
            }
        }
    }
    // Models of one operator often have equal gaps.
    told.retain(|note| !notes.contains(note));
    notes.extend(told);
}

/// Modes of the model alone on a device.
fn runs(reader: &Reader<'_>, row: &Service, facts: &DeviceFacts) -> Vec<ServiceMode> {
    let part = row.model_part.map_or(1.0, |part| part.0 / 100.0);
    alone(reader, row).map(|mode| scaled(mode, part / facts.of.share())).collect()
}

/// Modes of calls without what the engine does around them.
pub(super) fn alone(reader: &Reader<'_>, row: &Service) -> impl Iterator<Item = ServiceMode> {
    let around = reader.around(&row.worker_type);
    let modes = reader.modes(row).into_iter();
    modes.map(move |mode| ServiceMode { call_seconds: mode.call_seconds - around, ..mode })
}

/// The mode of a stage on a worker without its model, for batches of a size; none without figures of the variant there,
/// or where other programs take all of the worker's time.
fn stage(reader: &Reader<'_>, class: usize, batch: u32) -> Option<ServiceMode> {
    let machines = reader.machines;
    let worker_type = machines.classes[class].worker_type.as_str();
    let factor = slowdown(machines.busy[class], reader.options.max_utilization)?;
    let (_, mode) = around_model(reader, worker_type, batch)?;
    let call_seconds = mode.call_seconds + reader.around(worker_type);
    let fill_seconds = reader.fill_seconds(batch);
    let memory_bytes = program_bytes(reader, worker_type);
    Some(slowed(ServiceMode { backend: None, call_seconds, fill_seconds, memory_bytes, ..mode }, factor))
}

/// The part of calls on a type of worker that is not the model's, for batches of a size, and whether it was measured; none
/// without figures of the variant there.
pub(super) fn around_model(
    reader: &Reader<'_>,
    worker_type: &str,
    batch: u32,
) -> Option<(bool, ServiceMode)> {
    // The largest measured batch that is no larger; larger ones take as much longer as they have more records.
    let of = |row: &Service| {
        let mode = alone(reader, row).filter(|mode| mode.batch <= batch).max_by_key(|mode| mode.batch)?;
        let part = 1.0 - row.model_part.map_or(ASSUMED_MODEL_PART, |part| part.0 / 100.0);
        let calls = f64::from(batch) / f64::from(mode.batch);
        let whole = scaled(mode, part * calls);
        let seconds_per_record = whole.seconds_per_record / calls;
        Some((row.model_part.is_some(), ServiceMode { batch, seconds_per_record, ..whole }))
    };
    // What prepares inputs and outputs is the same for all backends: the measured one, else the least.
    let least = |(a, one): &(bool, ServiceMode), (b, other): &(bool, ServiceMode)| {
        b.cmp(a).then(one.seconds_per_record.total_cmp(&other.seconds_per_record))
    };
    reader.rows(worker_type).filter_map(of).min_by(least)
}

/// Memory of the program without a model: the least that any operator needs.
pub(super) fn program_bytes(reader: &Reader<'_>, worker_type: &str) -> f64 {
    let own = reader.inputs.profile.services.iter().filter(|service| service.worker_type == worker_type);
    own.filter_map(|service| service.peak_memory).min().map_or(0.0, |memory| memory.0 as f64)
}

/// A mode with all times multiplied.
pub(super) fn scaled(mode: ServiceMode, factor: f64) -> ServiceMode {
    ServiceMode {
        seconds_per_record: mode.seconds_per_record * factor,
        call_seconds: mode.call_seconds * factor,
        mean_call_seconds: mode.mean_call_seconds * factor,
        variance_call_seconds: mode.variance_call_seconds * factor * factor,
        samples: mode.samples.into_iter().map(|sample| sample * factor).collect(),
        ..mode
    }
}
