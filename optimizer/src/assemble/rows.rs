//! Models whose records go to a device as rows: the columns that a model reads, which the device prepares and finishes.
//!
//! A record has at most the bytes that it has on the edge before its operator, and its results those on the edges after it.
//! An operator that gives on all columns of its input makes records longer by the results alone.
//!
//! The device needs the whole time of a call. Where its profile has the model alone (`model_part: 100%`), the part around
//! the model is that of the machine that has the device, else the longest known one, and noted. The stage keeps what
//! writing and reading a frame of these bytes takes.
use super::devices::{Form, alone, around_model, program_bytes, scaled};
use super::machines::DeviceFacts;
use super::services::{Reader, slowed};
use super::{Model, slowdown};
use crate::problem::ServiceMode;
use std::collections::BTreeSet;
use tidemill_spec::plan::Sends;
use tidemill_spec::profile::{MessageSize, Service};

/// Bytes of a record with no columns but those that every record has.
const LEAST_RECORD: f64 = 300.0;
/// Bytes of a call beside its records, in each direction: mostly the schema of its columns.
pub const ROWS_OF_CALL: f64 = 1500.0;

/// Bytes of a record there and back as rows. `before` and `after`: those of the records before and after the operator; none where
/// there are none. `keeps_all`: all columns of a record stay, so that only those that the operator adds return.
pub fn row_bytes(before: &[f64], after: &[f64], keeps_all: bool) -> Option<[f64; 2]> {
    let most = |sizes: &[f64]| sizes.iter().copied().reduce(f64::max);
    let (sent, after) = most(before).zip(most(after))?;
    let least = before.iter().copied().fold(sent, f64::min);
    Some([sent, if keeps_all { LEAST_RECORD + (after - least).max(0.0) } else { after }])
}

/// Bytes of a record as rows; none where its sizes are not known, or neither the model nor the device has them prepared.
pub(super) fn form(
    reader: &Reader<'_>,
    model: &Model,
    facts: &DeviceFacts,
    told: &mut BTreeSet<String>,
) -> Option<Form> {
    // Servers of the Open Inference Protocol take tensors alone.
    let is_server = facts.of.address.as_ref().is_some_and(|address| address.value.starts_with("oip:"));
    let rows = model.rows.filter(|_| !is_server)?;
    let [input] = reader.operator.inputs.as_slice() else { return None };
    let id = &reader.operator.id.value;
    let is_own = |message: &&MessageSize| message.variants.get(id).is_none_or(|variant| *variant == model.id);
    let messages = || reader.inputs.profile.messages.iter().filter(is_own);
    let before = messages().filter(|message| message.from == input.from.value && message.to == *id);
    let before: Vec<f64> = before.map(|message| message.bytes_per_record.0 as f64).collect();
    let after = messages().filter(|message| message.from == *id);
    let after: Vec<f64> = after.map(|message| message.bytes_per_record.0 as f64).collect();
    let Some([sent, received]) = row_bytes(&before, &after, rows.keeps_all) else {
        let name = reader.name();
        told.insert(format!(
            "{name} sends no rows to devices: the profile lacks sizes of its records, before or after it"
        ));
        return None;
    };
    Some(Form { sends: Sends::Rows, sent, received, of_call: ROWS_OF_CALL })
}

/// Modes of a device that prepares rows, runs the model and finishes its results.
pub(super) fn runs(
    reader: &Reader<'_>,
    row: &Service,
    facts: &DeviceFacts,
    told: &mut BTreeSet<String>,
) -> Vec<ServiceMode> {
    let machines = reader.machines;
    let is_model_alone = row.model_part.is_some_and(|part| part.0 >= 100.0);
    let of = |run: ServiceMode| {
        let run = match is_model_alone {
            false => run,
            true => {
                let own = machines.classes[facts.owner].worker_type.as_str();
                let (around, worker_type) = match around_model(reader, own, run.batch) {
                    Some((_, around)) => (around, own),
                    None => longest_around(reader, run.batch)?,
                };
                told.insert(format!(
                    "{} is measured on {} without preparing inputs: where it gets rows, that is taken to last as long as on {worker_type}",
                    reader.name(),
                    facts.of.kind
                ));
                longer(run, &around)
            }
        };
        Some(scaled(run, 1.0 / facts.of.share()))
    };
    alone(reader, row).filter_map(of).collect()
}

/// The longest part around the model on any type of worker, and that type.
fn longest_around<'a>(reader: &Reader<'a>, batch: u32) -> Option<(ServiceMode, &'a str)> {
    let types = reader.machines.worker_types().into_iter();
    let known = types.filter_map(|of| Some((around_model(reader, of, batch)?.1, of)));
    known.max_by(|(a, _), (b, _)| a.seconds_per_record.total_cmp(&b.seconds_per_record))
}

/// A mode with another part of each call.
fn longer(mode: ServiceMode, by: &ServiceMode) -> ServiceMode {
    ServiceMode {
        seconds_per_record: mode.seconds_per_record + by.seconds_per_record,
        call_seconds: mode.call_seconds + by.call_seconds,
        mean_call_seconds: mode.mean_call_seconds + by.mean_call_seconds,
        variance_call_seconds: mode.variance_call_seconds + by.variance_call_seconds,
        samples: mode.samples.iter().map(|sample| sample + by.mean_call_seconds).collect(),
        ..mode
    }
}

/// The mode of a stage that sends rows; none where the worker has no figures of the model, which it runs while the device
/// is lost, or other programs take all of its time.
pub(super) fn stage(reader: &Reader<'_>, class: usize, form: &Form, batch: u32) -> Option<ServiceMode> {
    let worker_type = reader.machines.classes[class].worker_type.as_str();
    let factor = slowdown(reader.machines.busy[class], reader.options.max_utilization)?;
    reader.rows(worker_type).next()?;
    let machine = reader.inputs.profile.machine(worker_type);
    let frame = machine.and_then(|machine| machine.overheads).map(|overheads| {
        let bytes = overheads.of_bytes(f64::from(batch) * form.bytes(batch).iter().sum::<f64>());
        let mean = overheads.frame.mean.0 as f64 / 1e9 + bytes;
        (mean.max(overheads.frame.at(reader.options.percentile) + bytes), mean)
    });
    let (call, mean) = frame.unwrap_or_default();
    let mode = ServiceMode {
        batch,
        seconds_per_record: call / f64::from(batch),
        call_seconds: call + reader.around(worker_type),
        mean_call_seconds: mean,
        fill_seconds: reader.fill_seconds(batch),
        memory_bytes: program_bytes(reader, worker_type),
        ..ServiceMode::constant(0.0)
    };
    Some(slowed(mode, factor))
}
