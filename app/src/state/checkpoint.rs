//! The contents of a checkpoint, read from the state of a run.
use crate::failure::{Failure, Kind};
use crate::figures::grouped;
use serde::de::DeserializeOwned;
use tidemill_engine::{Past, SinkPast, StagePast};
use tidemill_state::{Content, Manifest, SinkState, StageState, State, StateError, StoreError};

/// A checkpoint in words.
pub fn described(manifest: &Manifest) -> String {
    let rows: u64 = manifest.sinks.values().map(|sink| sink.rows).sum();
    format!(
        "checkpoint {} of {}, {} rows in its outputs",
        manifest.checkpoint,
        manifest.written_at,
        grouped(rows)
    )
}

/// An error of the state as one of the application.
pub fn failure(error: &StateError) -> Failure {
    let kind = match error {
        StateError::Store(StoreError::NoState { .. }) | StateError::NotKept { .. } => Kind::Missing,
        StateError::Store(StoreError::Foreign { .. } | StoreError::Denied { .. })
        | StateError::Format { .. } => Kind::Configuration,
        StateError::Manifest { .. } | StateError::Corrupted { .. } => Kind::Data,
        StateError::Refused(_) => Kind::Defect,
        StateError::Store(_) => Kind::Unavailable,
    };
    Failure::new(kind, error.to_string())
}

/// Reads what a run continues from.
pub(crate) fn past(state: &State, manifest: &Manifest) -> Result<Past, StateError> {
    let mut past =
        Past { epoch: manifest.epoch, elapsed: (manifest.seconds * 1e9) as i64, ..Past::default() };
    for (stage, kept) in &manifest.stages {
        past.stages.insert(stage.clone(), stage_past(state, kept)?);
    }
    for (source, log) in &manifest.sources {
        past.sources.insert(source.clone(), parsed(state, log)?);
    }
    for (sink, SinkState { committed, rows, token }) in &manifest.sinks {
        let token = token.as_ref().map(|token| token.0.clone());
        past.sinks.insert(sink.clone(), SinkPast { committed: *committed, rows: *rows, token });
    }
    past.letters = parsed(state, &manifest.letters)?;
    Ok(past)
}

/// Reads what one stage continues from.
pub(crate) fn stage_past(state: &State, kept: &StageState) -> Result<StagePast, StateError> {
    let mut past = StagePast::default();
    for object in &kept.objects {
        let bytes = state.object(object)?;
        match object.content {
            Content::Snapshot { epoch } => past.snapshot = (epoch, bytes),
            Content::Calls { .. } => past.calls.push(bytes),
        }
    }
    Ok(past)
}

pub(crate) fn parsed<T: DeserializeOwned>(state: &State, value: &serde_json::Value) -> Result<T, StateError> {
    let damaged =
        |error: serde_json::Error| StateError::Manifest { place: state.place(), reason: error.to_string() };
    serde_json::from_value(value.clone()).map_err(damaged)
}

pub(crate) fn value<T: serde::Serialize>(of: &T) -> serde_json::Value {
    serde_json::to_value(of).expect("a checkpoint is JSON")
}
