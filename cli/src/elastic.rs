//! `tidemill elastic`: limits of containers that follow their load.
//!
//! | question | module |
//! |---|---|
//! | the loop that moves the limits | [`attach`] |
//! | the present containers | [`finding`] |
//! | the output | [`telling`] |
//! | restoring the limits of a killed agent | [`guarding`] |
mod attach;
mod finding;
mod guarding;
mod telling;

use crate::answer;
use crate::arguments::{ElasticRestoreArguments, ElasticShowArguments, ElasticVerb, OutputForm};
use crate::exit::Exit;
use crate::terminal::Terminal;
use serde_json::json;
use std::io::Write;
use tidemill_app::failure::{Failure, Kind};
use tidemill_app::listener::Listener;
use tidemill_elastic::record::{Record, RecordError, Records};

/// Executes the verb.
pub(crate) fn elastic(verb: &ElasticVerb, terminal: &Terminal) -> anyhow::Result<Exit> {
    match verb {
        ElasticVerb::Attach(arguments) => attach::attach(arguments, terminal),
        ElasticVerb::Show(arguments) => show(arguments, terminal),
        ElasticVerb::Restore(arguments) => restore(arguments, terminal),
        ElasticVerb::Guard(arguments) => guarding::guard(&arguments.name, terminal),
    }
}

fn unavailable(error: &impl ToString) -> Failure {
    Failure::new(Kind::Unavailable, error.to_string())
}

fn recorded(terminal: &Terminal) -> Vec<Record> {
    let (records, errors) = Records::of_user().all();
    for error in errors {
        terminal.warning(&error.to_string());
    }
    records
}

fn show(arguments: &ElasticShowArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let mut records = recorded(terminal);
    let missing = arguments.name.as_deref().and_then(|name| missing(name, &records));
    if let Some(name) = &arguments.name {
        records.retain(|record| record.name == *name);
    }
    let is_well = missing.is_none() && records.iter().all(Record::is_alive);
    let mut out = answer::out();
    if arguments.output == OutputForm::Json {
        let shown = records.iter().map(|record| {
            json!({"name": record.name, "process": record.process, "is_alive": record.is_alive(), "snapshot": record.snapshot})
        });
        let shown = json!({"version": 1, "ok": is_well, "elastic": shown.collect::<Vec<_>>()});
        serde_json::to_writer_pretty(&mut out, &shown)?;
        writeln!(out)?;
    } else if let Some(text) = missing {
        writeln!(out, "{text}")?;
    } else if records.is_empty() {
        writeln!(out, "no agent is attached: `tidemill elastic attach LABEL` starts one")?;
    }
    for record in records.iter().filter(|_| arguments.output == OutputForm::Table) {
        match record.is_alive() {
            true => writeln!(out, "{}, by process {}", record.name, record.process)?,
            false => writeln!(
                out,
                "{}: process {} was killed, and its limits are still in force: `tidemill elastic restore` restores the old ones",
                record.name, record.process
            )?,
        }
        telling::table(&record.snapshot, &mut out)?;
    }
    Ok(if is_well { Exit::Success } else { Exit::No })
}

/// Returns the message if nothing of this name is attached, with the existing names.
fn missing(name: &str, records: &[Record]) -> Option<String> {
    if records.iter().any(|record| record.name == name) {
        return None;
    }
    let known: Vec<String> = records.iter().map(|record| format!("`{}`", record.name)).collect();
    let known = match known.is_empty() {
        true => "nothing is".to_owned(),
        false => format!("attached: {}", known.join(", ")),
    };
    Some(format!("`{name}` is not attached; {known}"))
}

fn restore(arguments: &ElasticRestoreArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let records = Records::of_user();
    let left: Vec<Record> = recorded(terminal).into_iter().filter(|record| !record.is_alive()).collect();
    let mut restored = Vec::new();
    for record in &left {
        restored.push((record.name.clone(), records.restore(record), record.groups()));
    }
    let is_well = restored.iter().all(|(_, done, all)| done == all);
    if arguments.output == OutputForm::Json {
        let told =
            restored.iter().map(|(name, done, all)| json!({"name": name, "restored": done, "of": all}));
        let told = json!({"version": 1, "ok": is_well, "restored": told.collect::<Vec<_>>()});
        let mut out = answer::out();
        serde_json::to_writer_pretty(&mut out, &told)?;
        writeln!(out)?;
    } else {
        for (name, done, all) in &restored {
            writeln!(answer::out(), "{name}: restored the old limits of {done} of {all} containers")?;
        }
        if restored.is_empty() {
            writeln!(answer::out(), "nothing to restore")?;
        }
    }
    Ok(if is_well { Exit::Success } else { Exit::Unavailable })
}

/// Starts a record, and reports restored limits.
fn begin(records: &Records, name: &str, terminal: &Terminal) -> anyhow::Result<Record> {
    let (record, left) = records.begin(name).map_err(|error| match error {
        RecordError::Taken { .. } => unavailable(&error).with_help("end it first: Ctrl-C, or SIGTERM"),
        other => unavailable(&other),
    })?;
    if left > 0 {
        terminal.note(&format!("an agent was killed before; restored the old limits of {left} containers"));
    }
    Ok(record)
}
