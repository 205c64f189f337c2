//! `tidemill state`: looks at the state of a run, compares it with a workflow, forgets it.
use crate::answer;
use crate::arguments::{OutputForm, StateDiffArguments, StateResetArguments, StateShowArguments, StateVerb};
use crate::exit::Exit;
use crate::table::{Side, Table};
use crate::terminal::Terminal;
use serde_json::json;
use std::collections::BTreeMap;
use std::io::Write;
use tidemill_app::figures::{bytes, grouped};
use tidemill_app::journals::extents;
use tidemill_app::levels;
use tidemill_app::listener::Listener;
use tidemill_app::preparation::prepare;
use tidemill_app::state::{self as app, described, failure, identity};
use tidemill_app::state_place::StatePlace;
use tidemill_operators::journal::Extent;
use tidemill_state::{Manifest, StateError, StoreError, compare};

/// Does what the verb says.
pub(crate) fn state(verb: &StateVerb, terminal: &Terminal) -> anyhow::Result<Exit> {
    match verb {
        StateVerb::Show(arguments) => show(arguments),
        StateVerb::Diff(arguments) => diff(arguments, terminal),
        StateVerb::Reset(arguments) => reset(arguments, terminal),
    }
}

/// The last checkpoint at a place.
fn manifest(place: &StatePlace) -> anyhow::Result<Manifest> {
    let look = || -> Result<Manifest, StateError> {
        let missing = || StoreError::NoState { place: place.to_string() };
        place.look()?.manifest().cloned().ok_or_else(|| missing().into())
    };
    Ok(look().map_err(|error| failure(&error))?)
}

fn show(arguments: &StateShowArguments) -> anyhow::Result<Exit> {
    let manifest = manifest(&arguments.place)?;
    let journals = extents(&arguments.place)?;
    let mut out = answer::out();
    if arguments.output == OutputForm::Json {
        let mut shown = json!({"version": 1, "ok": true, "state": manifest});
        if !journals.is_empty() {
            let journals = journals.iter().map(|(source, of)| (source.clone(), journal_json(of)));
            shown["journals"] = journals.collect::<serde_json::Map<_, _>>().into();
        }
        serde_json::to_writer_pretty(&mut out, &shown)?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    let how = if manifest.complete { "complete" } else { "to be continued" };
    writeln!(out, "{}: {how}", manifest.identity.workflow_name)?;
    writeln!(
        out,
        "checkpoint {} of {} by tidemill {}, after {:.1} s, {}",
        manifest.checkpoint,
        manifest.written_at,
        manifest.written_by,
        manifest.seconds,
        place_of(manifest.epoch)
    )?;
    parts(&manifest, &journals).write(&mut out)?;
    for older in &manifest.older {
        let place = place_of(older.epoch);
        writeln!(out, "also kept: checkpoint {} of {}, {place}", older.checkpoint, older.written_at)?;
    }
    Ok(Exit::Success)
}

/// Where a checkpoint is, with the number that `--to` takes.
fn place_of(epoch: u64) -> String {
    match epoch {
        u64::MAX => format!("epoch {epoch} (all are done)"),
        epoch => format!("epoch {epoch}"),
    }
}

fn journal_json(of: &Extent) -> serde_json::Value {
    json!({
        "first_byte": of.first, "end_byte": of.end, "records": of.records, "segments": of.segments,
        "bytes_on_disk": of.bytes,
    })
}

fn parts(manifest: &Manifest, journals: &BTreeMap<String, Extent>) -> Table {
    let columns = [
        ("part", Side::Left),
        ("of", Side::Left),
        ("records", Side::Right),
        ("state", Side::Right),
        ("continues", Side::Left),
    ];
    let mut table = Table::new(&columns);
    for (source, log) in &manifest.sources {
        let records = log["emitted"].as_u64().unwrap_or(0);
        let ended = if log["end"].is_null() { "reads again from the checkpoint" } else { "has ended" };
        table.row(["source".into(), source.clone(), grouped(records), String::new(), ended.into()]);
    }
    for (source, of) in journals {
        let what = format!("bytes {} to {} of its stream", of.first, of.end);
        table.row(["journal".into(), source.clone(), grouped(of.records), bytes(of.bytes), what]);
    }
    for (stage, state) in &manifest.stages {
        let size = state.objects.iter().map(|object| object.bytes).sum();
        table.row(["stage".into(), stage.clone(), String::new(), bytes(size), "from its snapshot".into()]);
    }
    for (sink, state) in &manifest.sinks {
        let how = match (&state.token, manifest.complete) {
            (_, true) => "is complete",
            (Some(_), false) => "exactly once",
            (None, false) => "at least once",
        };
        table.row(["sink".into(), sink.clone(), grouped(state.rows), String::new(), how.into()]);
    }
    table
}

fn diff(arguments: &StateDiffArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let manifest = manifest(&arguments.place)?;
    let mut prepared = prepare(&arguments.workflow, arguments.plan.as_deref(), &[], terminal)?;
    // The rate of a run is that of its plan where it has one.
    levels::settle(&mut prepared, None, terminal);
    let difference = compare(&manifest.identity, &identity(&prepared));
    let (is_same, mut out) = (difference.is_none(), answer::out());
    match arguments.output {
        OutputForm::Json => {
            serde_json::to_writer_pretty(
                &mut out,
                &json!({"version": 1, "ok": is_same, "difference": difference}),
            )?;
            writeln!(out)?;
        }
        OutputForm::Table if is_same => writeln!(out, "the run goes on from this state")?,
        OutputForm::Table => writeln!(out, "{difference}")?,
    }
    Ok(if is_same { Exit::Success } else { Exit::No })
}

fn reset(arguments: &StateResetArguments, terminal: &Terminal) -> anyhow::Result<Exit> {
    let place = &arguments.place;
    match arguments.to {
        None => {
            app::reset(place)?;
            terminal.note(&format!("the state in `{place}` is forgotten"));
        }
        Some(epoch) => {
            let manifest = app::go_back(place, epoch).map_err(|error| failure(&error))?;
            let from = manifest.as_ref().map(described).unwrap_or_default();
            terminal.note(&format!(
                "the next run with the state in `{place}` goes on from epoch {epoch}: {from}"
            ));
        }
    }
    Ok(Exit::Success)
}
