//! The state of a run: what a run continues from, and where its checkpoints go.
use crate::failure::{Failure, Kind};
use crate::figures::grouped;
use crate::journals::{self, Keeper};
use crate::machine;
use crate::preparation::Prepared;
use crate::state_place::StatePlace;
use serde::de::DeserializeOwned;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tidemill_engine::{Checkpoint, CheckpointWriter, Durability, LettersPast, Past, SinkPast, StagePast};
use tidemill_spec::workflow;
use tidemill_state::{
    Content, Difference, Digest, Identity, Manifest, ObjectReference, SinkState, StageState, State,
    StateError, StoreError, Token, WORKERS_LOCK, compare,
};

/// Objects with calls of one stage; more are put together.
const MOST_CALLS: usize = 32;

/// What a run begins with.
pub enum Begin {
    /// The run goes on from here, or begins.
    Continued(Continued),
    /// Nothing is left to do.
    Complete(Manifest),
}

/// A run that keeps its state.
pub struct Continued {
    /// For the options of the run.
    pub durability: Durability,
    /// What the writer of dead letters continues from.
    pub letters: Option<Vec<u8>>,
    /// The checkpoint that it goes on from, in words; none: it begins.
    pub from: Option<String>,
    /// Held by processes of workers as long as they live: nobody continues beside them.
    pub workers_lock: Option<PathBuf>,
}

/// How checkpoints are written.
#[derive(Debug, Clone, Copy)]
pub struct Habit {
    /// Least time between two.
    pub interval: Duration,
    /// So many are kept, the last one among them.
    pub keep: usize,
    /// Whether this process reads the sources; else its workers' processes do.
    pub is_read_here: bool,
}

/// Opens the state at a place for a run, which writes its checkpoints there. Sources that want a journal are read through it
/// from then on.
///
/// # Errors
/// Another process has it, it is not of this workflow and plan, or it cannot be read. Nothing is touched then.
pub fn open(place: &StatePlace, prepared: &mut Prepared, habit: Habit) -> Result<Begin, Failure> {
    journals::check_place(place, &prepared.program)?;
    let mut state = place.open().map_err(|error| failure(&error))?;
    state.keep(habit.keep);
    let workers_lock = match place {
        StatePlace::Folder(path) => Some(path.join(WORKERS_LOCK)),
        StatePlace::Bucket(_) => None, // they end with the process that has its lease
    };
    let identity = identity(prepared);
    if let Some(manifest) = state.manifest() {
        let difference = compare(&manifest.identity, &identity);
        if !difference.is_none() {
            return Err(refused(place, &difference));
        }
        if manifest.complete {
            return Ok(Begin::Complete(manifest.clone()));
        }
    }
    let past = match state.manifest() {
        Some(manifest) => Some(past(&state, manifest).map_err(|error| failure(&error))?),
        None => None,
    };
    let letters = past.as_ref().and_then(|past| past.letters.token.clone());
    let from = state.manifest().map(described);
    let known = state.manifest().map_or(0, |manifest| manifest.older.len() + 1);
    let journals = match place {
        StatePlace::Folder(path) => {
            let opened = match habit.is_read_here {
                true => journals::read_through(path, prepared, |_| true)?,
                false => BTreeMap::new(),
            };
            Some(Keeper::new(path, &prepared.program, opened, (habit.keep, known)))
        }
        StatePlace::Bucket(_) => None,
    };
    let writer = Box::new(Writer { state, identity, journals });
    let durability = Durability { writer, past, interval: habit.interval };
    Ok(Begin::Continued(Continued { durability, letters, from, workers_lock }))
}

/// Whose state a run would continue: its sources with their rates, operators, sinks and plan.
pub fn identity(prepared: &Prepared) -> Identity {
    let (workflow, program) = (&prepared.workflow, &prepared.program);
    let mut operators = BTreeMap::new();
    for source in &workflow.sources {
        let rate = program.sources.get(&source.id.value).and_then(|bound| bound.rate_per_second);
        // How much of a stream is kept does not change what is read.
        let source = workflow::Source { journal: None, ..source.clone() };
        operators.insert(source.id.value.clone(), digest(&(&source, rate)));
    }
    for operator in &workflow.operators {
        operators.insert(operator.id.value.clone(), digest(operator));
    }
    for sink in &workflow.sinks {
        operators.insert(sink.id.value.clone(), digest(sink));
    }
    let plan = &program.plan;
    // Not where its stages run: they go on elsewhere.
    let stages = plan.stages.iter().map(|stage| {
        let models = (&stage.variant, &stage.backend, stage.max_batch);
        (&stage.id, &stage.operator, models, stage.partitions, stage.share)
    });
    let edges = plan.edges.iter().map(|edge| (&edge.from, &edge.to, edge.input, &edge.freshness));
    let (stages, edges): (Vec<_>, Vec<_>) = (stages.collect(), edges.collect());
    let plan = digest(&(stages, edges, &plan.classes, &plan.tick, plan.checkpoint_every));
    Identity { workflow_name: workflow.name.value.clone(), operators, plan }
}

/// The digest of a part of a workflow or plan, by what it says.
fn digest(of: &impl serde::Serialize) -> Digest {
    Digest::of(&serde_json::to_vec(of).expect("parts of workflows and plans are JSON"))
}

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
        StateError::Store(
            StoreError::Foreign { .. } | StoreError::NoState { .. } | StoreError::Denied { .. },
        )
        | StateError::NotKept { .. }
        | StateError::Format { .. } => Kind::Configuration,
        StateError::Refused(_) => Kind::Defect,
        StateError::Store(_) | StateError::Manifest { .. } | StateError::Corrupted { .. } => {
            Kind::Unavailable
        }
    };
    Failure::new(kind, error.to_string())
}

fn refused(place: &StatePlace, difference: &Difference) -> Failure {
    Failure::new(Kind::Configuration, format!("the state in `{place}` is of another run: {difference}"))
        .with_help(format!(
            "undo the change, name another place, or begin anew with `tidemill state reset {place}`"
        ))
}

/// Forgets a state, also one that this program cannot read.
///
/// # Errors
/// There is none, another process has it, or it cannot be written.
pub fn reset(place: &StatePlace) -> Result<(), Failure> {
    // Nothing is made where there is none.
    drop(place.look_at_store().map_err(|error| failure(&error))?);
    let mut store = place.store().map_err(|error| failure(&error))?;
    store.remove_manifest().map_err(|error| failure(&error.into()))?;
    // While the store is still held.
    if let StatePlace::Folder(path) = place {
        journals::forget(path)?;
    }
    State::open(store).map(drop).map_err(|error| failure(&error))
}

/// Goes back to an older checkpoint that is kept; the later ones are forgotten.
///
/// # Errors
/// There is none of that epoch, another process has the state, or it cannot be read or written. Nothing is changed then.
pub fn go_back(place: &StatePlace, epoch: u64) -> Result<Option<Manifest>, StateError> {
    drop(place.look_at_store()?);
    let mut state = place.open()?;
    state.go_back(epoch)?;
    Ok(state.manifest().cloned())
}

/// Reads what a run continues from.
fn past(state: &State, manifest: &Manifest) -> Result<Past, StateError> {
    let mut past =
        Past { epoch: manifest.epoch, elapsed: (manifest.seconds * 1e9) as i64, ..Past::default() };
    for (stage, StageState { objects }) in &manifest.stages {
        let mut of = StagePast::default();
        for object in objects {
            let bytes = state.object(object)?;
            match object.content {
                Content::Snapshot { epoch } => of.snapshot = (epoch, bytes),
                Content::Calls { .. } => of.calls.push(bytes),
            }
        }
        past.stages.insert(stage.clone(), of);
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

fn parsed<T: DeserializeOwned>(state: &State, value: &serde_json::Value) -> Result<T, StateError> {
    let damaged =
        |error: serde_json::Error| StateError::Manifest { place: state.place(), reason: error.to_string() };
    serde_json::from_value(value.clone()).map_err(damaged)
}

/// Writes checkpoints of the engine.
struct Writer {
    state: State,
    identity: Identity,
    /// None where there can be none.
    journals: Option<Keeper>,
}

impl CheckpointWriter for Writer {
    fn write(&mut self, checkpoint: Checkpoint) -> Result<(), String> {
        let (elapsed, is_complete) = (checkpoint.elapsed, checkpoint.is_complete);
        let begins = self.journals.as_ref().map(|journals| journals.begins(&checkpoint.sources));
        let committed = self.commit(checkpoint);
        if let (Some(journals), Some(begins)) = (&mut self.journals, begins) {
            match &committed {
                Ok(()) => journals.written(begins, is_complete),
                Err(_) => journals.failed(elapsed),
            }
        }
        committed.map_err(|error| error.to_string())
    }

    fn past(&mut self) -> Result<Past, String> {
        let manifest = self.state.manifest().ok_or("there is no checkpoint yet")?;
        past(&self.state, manifest).map_err(|error| error.to_string())
    }
}

impl Writer {
    fn commit(&mut self, checkpoint: Checkpoint) -> Result<(), StateError> {
        let Checkpoint { epoch, elapsed, is_complete, stages, sources, sinks, letters } = checkpoint;
        let mut next = Manifest::new(self.identity.clone());
        (next.epoch, next.seconds, next.complete) = (epoch, elapsed as f64 / 1e9, is_complete);
        next.checkpoint = self.state.manifest().map_or(0, |manifest| manifest.checkpoint) + 1;
        next.written_at = machine::now();
        next.letters = value::<LettersPast>(&letters);
        next.sources = sources.iter().map(|(source, log)| (source.clone(), value(log))).collect();
        for (sink, SinkPast { committed, rows, token }) in sinks {
            next.sinks.insert(sink, SinkState { committed, rows, token: token.map(Token) });
        }
        let number = next.checkpoint;
        let mut objects: Vec<(String, Vec<u8>)> = Vec::new();
        for (stage, change) in stages {
            let mut add = |content, bytes: Vec<u8>| {
                let reference = ObjectReference::new(number, &stage, content, &bytes);
                objects.push((reference.name.clone(), bytes));
                reference
            };
            let known = self.state.manifest().and_then(|manifest| manifest.stages.get(&stage));
            let mut of = known.cloned().unwrap_or_default();
            if let Some((epoch, state)) = change.snapshot {
                of.objects = vec![add(Content::Snapshot { epoch }, state.to_vec())];
            }
            let (mut calls, mut from) = (change.calls, change.from);
            if of.objects.len() > MOST_CALLS {
                let mut all = Vec::new();
                for object in of.objects.drain(1..) {
                    all.extend(self.state.object(&object)?);
                    if let Content::Calls { from: first, .. } = object.content {
                        from = from.min(first);
                    }
                }
                all.append(&mut calls);
                calls = all;
            }
            if !calls.is_empty() {
                of.objects.push(add(Content::Calls { from, to: change.upto }, calls));
            }
            next.stages.insert(stage, of);
        }
        self.state.commit(next, objects)
    }
}

fn value<T: serde::Serialize>(of: &T) -> serde_json::Value {
    serde_json::to_value(of).expect("a checkpoint is JSON")
}
