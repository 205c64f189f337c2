//! A profile as tables.
use crate::table::{Side, Table};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use tidemill_app::figures::{bytes, duration, rate};
use tidemill_app::weak_figures::half_width;
use tidemill_spec::profile::{Accuracy, BatchTime, How, Profile, Service};
use tidemill_spec::units::TimeSpan;

/// Formats for programs: the profile with its keys, and its digest.
pub(super) fn document(profile: &Profile) -> Value {
    json!({"version": 1, "digest": profile.digest(), "profile": profile})
}

/// Writes tables for people.
pub(super) fn tables(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    writeln!(out, "Profile of the workflow {}\n", profile.workflow.name)?;
    machines(profile, out)?;
    overheads(profile, out)?;
    services(profile, out)?;
    messages(profile, out)?;
    if let Some(accuracy) = &profile.accuracy {
        accuracies(accuracy, out)?;
    }
    Ok(())
}

fn machines(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("worker", Side::Left),
        ("figures", Side::Left),
        ("cores", Side::Right),
        ("memory", Side::Right),
        ("factor", Side::Right),
        ("processor", Side::Left),
        ("source", Side::Left),
    ]);
    for machine in &profile.machines {
        table.row([
            machine.worker_type.clone(),
            machine.how.to_string(),
            machine.cores.map(|cores| cores.to_string()).unwrap_or_default(),
            machine.memory.map(|memory| bytes(memory.0)).unwrap_or_default(),
            machine.factor.map(|factor| factor.to_string()).unwrap_or_default(),
            machine.cpu.clone().unwrap_or_default(),
            machine.source.clone().unwrap_or_default(),
        ]);
    }
    table.write(out)?;
    writeln!(out)
}

/// Writes the engine's costs on each type.
fn overheads(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("engine on", Side::Left),
        ("", Side::Left),
        ("mean", Side::Right),
        ("p50", Side::Right),
        ("p90", Side::Right),
        ("p99", Side::Right),
        ("per MiB", Side::Right),
    ]);
    let known =
        profile.machines.iter().filter_map(|machine| Some((&machine.worker_type, machine.overheads?)));
    for (worker_type, overheads) in known.clone() {
        for (name, time) in overheads.times() {
            let [mean, p50, p90, p99] =
                [time.mean, time.p50, time.p90, time.p99].map(|span| duration(span.0 as f64));
            let more = (name == "frame").then(|| duration(overheads.frame_per_mebibyte.0 as f64));
            let name = name.replace('_', " ");
            table.row([worker_type.clone(), name, mean, p50, p90, p99, more.unwrap_or_default()]);
        }
    }
    if known.count() > 0 {
        table.write(out)?;
        writeln!(out)?;
    }
    Ok(())
}

/// The column of the size of the batch.
const BATCH: usize = 4;

fn services(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("operator", Side::Left),
        ("variant", Side::Left),
        ("backend", Side::Left),
        ("worker", Side::Left),
        ("batch", Side::Right),
        ("mean", Side::Right),
        ("+-", Side::Right),
        ("p50", Side::Right),
        ("p75", Side::Right),
        ("p90", Side::Right),
        ("p99", Side::Right),
        ("records", Side::Right),
        ("n", Side::Right),
        ("memory", Side::Right),
        ("load", Side::Right),
        ("of the model", Side::Right),
        ("predicted within", Side::Right),
    ]);
    for service in &profile.services {
        for (index, times) in service.batches.iter().enumerate() {
            table.row(service_row(service, times, index == 0));
        }
        if let Some(after) = &service.after_pause {
            let mut row = service_row(service, &after.times, false);
            row[BATCH] = format!("{} after {}", after.times.batch, after.pause);
            table.row(row);
        }
    }
    table.write(out)?;
    writeln!(out)
}

fn service_row(service: &Service, times: &BatchTime, is_first: bool) -> Vec<String> {
    let first = |text: String| if is_first { text } else { String::new() };
    let time = |time: Option<TimeSpan>| time.map(|time| duration(time.0 as f64)).unwrap_or_default();
    let per_second = times.typical().or(times.p75).filter(|time| time.0 > 0);
    let per_second = per_second.map(|time| rate(f64::from(times.batch) * 1e9 / time.0 as f64));
    vec![
        first(service.operator.clone()),
        first(service.variant.clone().unwrap_or_default()),
        first(service.backend.clone().unwrap_or_default()),
        first(service.worker_type.clone()),
        times.batch.to_string(),
        time(times.mean),
        half_width(times).map(|percent| format!("{percent:.0} %")).unwrap_or_default(),
        time(times.p50),
        time(times.p75),
        time(times.p90),
        time(times.p99),
        per_second.unwrap_or_default(),
        times.samples.map(|samples| samples.to_string()).unwrap_or_default(),
        first(service.peak_memory.map(|memory| bytes(memory.0)).unwrap_or_default()),
        first(time(service.load_time)),
        first(service.model_part.map(|part| format!("{:.0} %", part.0)).unwrap_or_default()),
        first(predicted(service)),
    ]
}

/// Returns the expected error of predicted times.
fn predicted(service: &Service) -> String {
    match (service.how, service.within) {
        (How::Predicted, Some(factor)) => format!("a factor of {factor}"),
        (How::Predicted, None) => "?".to_owned(),
        _ => String::new(),
    }
}

fn messages(profile: &Profile, out: &mut dyn Write) -> io::Result<()> {
    let mut table = Table::new(&[
        ("from", Side::Left),
        ("to", Side::Left),
        ("with", Side::Left),
        ("bytes a record", Side::Right),
    ]);
    for message in &profile.messages {
        table.row([
            message.from.clone(),
            message.to.clone(),
            choice(&message.variants),
            bytes(message.bytes_per_record.0),
        ]);
    }
    if !profile.messages.is_empty() {
        table.write(out)?;
        writeln!(out)?;
    }
    let mut table = Table::new(&[
        ("operator", Side::Left),
        ("with", Side::Left),
        ("records out per record in", Side::Right),
    ]);
    for ratio in profile.ratios.iter().filter(|ratio| ratio.output_per_input != 1.0) {
        table.row([
            ratio.operator.clone(),
            choice(&ratio.holds_for()),
            format!("{:.4}", ratio.output_per_input),
        ]);
    }
    if profile.ratios.iter().any(|ratio| ratio.output_per_input != 1.0) {
        table.write(out)?;
        writeln!(out)?;
    }
    Ok(())
}

fn accuracies(accuracy: &Accuracy, out: &mut dyn Write) -> io::Result<()> {
    if !accuracy.end_to_end.is_empty() {
        writeln!(out, "Accuracy of the workflow: {}", accuracy.metric)?;
        let mut table = Table::new(&[
            ("models", Side::Left),
            ("accuracy", Side::Right),
            ("95 % interval", Side::Right),
            ("n", Side::Right),
        ]);
        for row in &accuracy.end_to_end {
            table.row([
                choice(&row.variants),
                format!("{:.2} %", row.accuracy.0),
                row.interval.map(|(low, high)| format!("{:.1} to {:.1}", low.0, high.0)).unwrap_or_default(),
                row.samples.or(accuracy.samples).map(|samples| samples.to_string()).unwrap_or_default(),
            ]);
        }
        table.write(out)?;
        writeln!(out)?;
    }
    if !accuracy.models.is_empty() {
        let mut table = Table::new(&[
            ("operator", Side::Left),
            ("variant", Side::Left),
            ("metric", Side::Left),
            ("value", Side::Right),
        ]);
        for metric in &accuracy.models {
            table.row([
                metric.operator.clone(),
                metric.variant.clone(),
                metric.name.clone(),
                format!("{:.4}", metric.value),
            ]);
        }
        table.write(out)?;
    }
    Ok(())
}

/// `eye=small, ear=large`.
pub(super) fn choice(variants: &BTreeMap<String, String>) -> String {
    variants.iter().map(|(operator, variant)| format!("{operator}={variant}")).collect::<Vec<_>>().join(", ")
}
