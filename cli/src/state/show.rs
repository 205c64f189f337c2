//! `tidemill state show`.
use super::changes::{end_is_null, place_of};
use super::manifest;
use crate::answer;
use crate::arguments::{OutputForm, StateShowArguments};
use crate::exit::Exit;
use crate::table::{Side, Table};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::Write;
use tidemill_app::figures::{bytes, grouped};
use tidemill_app::journals::{self, Look};
use tidemill_engine::EpochLog;
use tidemill_state::{Content, Manifest, SinkState, StageState};

/// Shows the last checkpoint of a state.
pub(super) fn show(arguments: &StateShowArguments) -> anyhow::Result<Exit> {
    let manifest = manifest(&arguments.place)?;
    let journals = journals::look(&arguments.place)?;
    let mut out = answer::out();
    if arguments.output == OutputForm::Json {
        serde_json::to_writer_pretty(&mut out, &document(&manifest, &journals))?;
        writeln!(out)?;
        return Ok(Exit::Success);
    }
    let how = match (&manifest.stopped_at, manifest.complete) {
        (Some(limits), true) => format!("stopped at {limits}; a larger limit, or none, continues it"),
        (Some(limits), false) => format!("not complete; a source has stopped at {limits}"),
        (None, true) => "complete".to_owned(),
        (None, false) => "not complete".to_owned(),
    };
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

fn document(manifest: &Manifest, journals: &BTreeMap<String, Look>) -> Value {
    let state = serde_json::to_value(Manifest { definition: Value::Null, ..manifest.clone() })
        .expect("a manifest is JSON");
    let sources = manifest.sources.iter().map(|(stage, log)| {
        let log = EpochLog::deserialize(log).unwrap_or_default();
        json!({
            "stage": stage, "records": log.records_before(manifest.epoch), "has_ended": log.end.is_some(),
            "position": position(&log, manifest.epoch),
        })
    });
    let stages = manifest.stages.iter().map(|(stage, state)| {
        json!({
            "stage": stage, "bytes": size(state), "objects": state.objects.len(),
            "snapshot_of_epoch": snapshot(state), "begins_anew": state.objects.is_empty(),
        })
    });
    let sinks = manifest.sinks.iter().map(|(sink, state)| {
        json!({
            "sink": sink, "rows": state.rows, "file_bytes": file_bytes(state),
            "committed_before_epoch": state.committed, "can_be_continued": state.token.is_some(),
        })
    });
    let mut shown = json!({
        "version": 1, "ok": true, "ended": manifest.epoch == u64::MAX, "state": state,
        "state_bytes": manifest.stages.values().map(size).sum::<u64>(),
        "sources": sources.collect::<Vec<_>>(), "stages": stages.collect::<Vec<_>>(), "sinks": sinks.collect::<Vec<_>>(),
    });
    if !journals.is_empty() {
        let journals = journals.iter().map(|(source, of)| (source.clone(), journal_json(of)));
        shown["journals"] = journals.collect::<serde_json::Map<_, _>>().into();
    }
    end_is_null(&mut shown);
    shown
}

fn journal_json(Look { extent: of, end_of_lines }: &Look) -> Value {
    json!({
        "first_byte": of.first, "end_byte": of.end, "end_of_lines": end_of_lines, "reads": of.records,
        "segments": of.segments, "bytes_on_disk": of.bytes,
    })
}

/// Position from which a source is read on, in its own form.
fn position(log: &EpochLog, epoch: u64) -> Option<&str> {
    let (_, cut) = log.cuts.range(..=epoch).next_back()?;
    Some(cut.position.0.as_str())
}

fn size(state: &StageState) -> u64 {
    state.objects.iter().map(|object| object.bytes).sum()
}

/// The epoch of a stage's snapshot.
fn snapshot(state: &StageState) -> Option<u64> {
    state.objects.iter().find_map(|object| match object.content {
        Content::Snapshot { epoch } => Some(epoch),
        Content::Calls { .. } => None,
    })
}

/// Committed bytes of a text file.
fn file_bytes(sink: &SinkState) -> Option<u64> {
    let token: Value = serde_json::from_slice(&sink.token.as_ref()?.0).ok()?;
    token["length"].as_u64()
}

fn parts(manifest: &Manifest, journals: &BTreeMap<String, Look>) -> Table {
    let columns = [
        ("part", Side::Left),
        ("of", Side::Left),
        ("records", Side::Right),
        ("bytes", Side::Right),
        ("continues", Side::Left),
    ];
    let mut table = Table::new(&columns);
    for (source, log) in &manifest.sources {
        let log = EpochLog::deserialize(log).unwrap_or_default();
        let how = match (log.end, position(&log, manifest.epoch)) {
            (Some(_), _) => "has ended".to_owned(),
            (None, Some(position)) => format!("reads again from the checkpoint, near {position}"),
            (None, None) => "reads from its start".to_owned(),
        };
        let records = grouped(log.records_before(manifest.epoch));
        table.row(["source".into(), source.clone(), records, String::new(), how]);
    }
    for (source, of) in journals {
        let extent = &of.extent;
        // The bytes of one read are no record: they may be a part of one, or many.
        let half = match of.half_a_line() {
            0 => String::new(),
            half => format!("; the last {half} are half a line"),
        };
        let what = format!(
            "bytes {} to {} of its stream, in {} reads{half}",
            extent.first,
            extent.end,
            grouped(extent.records)
        );
        table.row(["journal".into(), source.clone(), String::new(), bytes(extent.bytes), what]);
    }
    for (stage, state) in &manifest.stages {
        let how = match (snapshot(state), state.objects.len()) {
            (_, 0) => "starts empty".to_owned(),
            (Some(epoch), 1) => format!("from its snapshot of epoch {epoch}"),
            (Some(epoch), _) => format!("from its snapshot of epoch {epoch} and later records"),
            (None, _) => "from the records".to_owned(),
        };
        table.row(["stage".into(), stage.clone(), String::new(), bytes(size(state)), how]);
    }
    for (sink, state) in &manifest.sinks {
        let how = match (&state.token, manifest.complete) {
            (_, true) => "is complete",
            (Some(_), false) => "continues after its rows",
            (None, false) => "repeats rows since the checkpoint",
        };
        let length = file_bytes(state).map(bytes).unwrap_or_default();
        table.row(["sink".into(), sink.clone(), grouped(state.rows), length, how.into()]);
    }
    table
}
