//! Models that run on devices for stages: one more mode of a variant on a worker for each device that it can reach.
//!
//! The profile has times of a whole call, for kinds of devices as for types of workers. Of the times on a worker the
//! stage keeps what is not the model's ([`Service::model_part`]), the preparation of inputs and outputs. Where that was
//! not measured, it is assumed to be a fifth, and noted; a device whose profile does not have the part is assumed to
//! need the whole time. A device of which the workflow has a share is as much slower.
use super::machines::DeviceFacts;
use super::services::{Reader, slowed, undominated};
use super::{Inputs, Model, slowdown};
use crate::problem::{Remote, ServiceMode};
use std::collections::BTreeSet;
use tidemill_spec::diagnostic::{Diagnostic, Diagnostics, suggestion};
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
        let rows: Vec<&Service> = reader.rows(kind).collect();
        let Some(tensors) = model.tensors.filter(|_| !rows.is_empty()) else {
            let why = match rows.is_empty() {
                true => format!("{name} has no figures on the device {kind}: not planned there"),
                false => format!(
                    "{name} runs on no device: the size of its tensors, or the number of its calls, depends on the record"
                ),
            };
            told.insert(why);
            continue;
        };
        if !facts.of.remotable && machines.classes[facts.owner].count > 1 {
            told.insert(format!(
                "{name} is not planned on {kind}: plans do not say which of several machines uses its own device"
            ));
            continue;
        }
        let runs = rows.iter().flat_map(|row| runs(reader, row, facts)).collect();
        for run in undominated(runs, reader.latency_counts()) {
            for (worker, modes) in modes.iter_mut().enumerate() {
                let is_reached = facts.of.remotable || worker == facts.owner;
                if machines.devices[worker].is_some() || !is_reached {
                    continue;
                }
                let Some(stage) = stage(reader, worker, run.batch, &mut told) else { continue };
                let remote = Remote {
                    class,
                    run: Box::new(run.clone()),
                    sent_bytes: tensors.sent as f64,
                    received_bytes: tensors.received as f64,
                };
                modes.push(ServiceMode { remote: Some(remote), ..stage });
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
    let around = reader.around(&row.worker_type);
    let alone = |mode: ServiceMode| ServiceMode { call_seconds: mode.call_seconds - around, ..mode };
    let modes = reader.modes(row).into_iter().map(alone);
    modes.map(|mode| scaled(mode, part / facts.of.share())).collect()
}

/// The mode of a stage on a worker without its model, for batches of a size; none without figures of the variant there,
/// or where other programs take all of the worker's time.
fn stage(reader: &Reader<'_>, class: usize, batch: u32, told: &mut BTreeSet<String>) -> Option<ServiceMode> {
    let machines = reader.machines;
    let worker_type = machines.classes[class].worker_type.as_str();
    let factor = slowdown(machines.busy[class], reader.options.max_utilization)?;
    let around = reader.around(worker_type);
    // The largest measured batch that is no larger; larger ones take as much longer as they have more records.
    let of = |row: &Service| {
        let modes = reader.modes(row).into_iter().filter(|mode| mode.batch <= batch);
        let mode = modes.max_by_key(|mode| mode.batch)?;
        let part = 1.0 - row.model_part.map_or(ASSUMED_MODEL_PART, |part| part.0 / 100.0);
        let calls = f64::from(batch) / f64::from(mode.batch);
        let alone = ServiceMode { call_seconds: mode.call_seconds - around, ..mode };
        let whole = scaled(alone, part * calls);
        Some((
            row.model_part.is_some(),
            ServiceMode {
                batch,
                seconds_per_record: whole.seconds_per_record / calls,
                call_seconds: whole.call_seconds + around,
                ..whole
            },
        ))
    };
    // What prepares inputs and outputs is the same for all backends: the measured one, else the least.
    let found: Vec<(bool, ServiceMode)> = reader.rows(worker_type).filter_map(of).collect();
    let least = |is_measured: bool| {
        let own = found.iter().filter(|(measured, _)| *measured == is_measured).map(|(_, mode)| mode);
        own.min_by(|a, b| a.seconds_per_record.total_cmp(&b.seconds_per_record))
    };
    let mode = least(true).or_else(|| {
        let assumed = least(false)?;
        told.insert(format!(
            "{} has no `model_part` on {worker_type}: a stage whose model runs on a device is taken to keep a fifth of its time",
            reader.operator.id
        ));
        Some(assumed)
    })?;
    let fill = reader.fill_seconds(batch);
    let memory_bytes = program_bytes(reader, worker_type);
    Some(slowed(ServiceMode { backend: None, fill_seconds: fill, memory_bytes, ..mode.clone() }, factor))
}

/// Memory of the program without a model: the least that any operator needs.
fn program_bytes(reader: &Reader<'_>, worker_type: &str) -> f64 {
    let own = reader.inputs.profile.services.iter().filter(|service| service.worker_type == worker_type);
    own.filter_map(|service| service.peak_memory).min().map_or(0.0, |memory| memory.0 as f64)
}

/// A mode with all times multiplied.
fn scaled(mode: ServiceMode, factor: f64) -> ServiceMode {
    ServiceMode {
        seconds_per_record: mode.seconds_per_record * factor,
        call_seconds: mode.call_seconds * factor,
        mean_call_seconds: mode.mean_call_seconds * factor,
        variance_call_seconds: mode.variance_call_seconds * factor * factor,
        samples: mode.samples.into_iter().map(|sample| sample * factor).collect(),
        ..mode
    }
}
