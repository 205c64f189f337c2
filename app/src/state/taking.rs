//! Transfers the state of a run to another workflow or plan: one further checkpoint, of the present epoch, as that one
//! would have written it. Also resets operators.
use crate::failure::{Failure, Kind};
use crate::letters::of_file;
use crate::machine;
use crate::preparation::Prepared;
use crate::resumption::before_limit;
use crate::state::change::{divided, instance_names, keepers};
use crate::state::checkpoint::{failure, parsed, value};
use crate::state::definition::{Definition, Role};
use crate::state::diff::sinks::{is_text, path};
use crate::state::diff::{Changes, Verdict};
use crate::state::place::StatePlace;
use crate::state::sharing::shared;
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use tidemill_engine::{EpochLog, LettersPast, Program, instance_name};
use tidemill_operators::api::{Computation, Instance, OperatorError};
use tidemill_operators::sinks::cut_back;
use tidemill_spec::workflow::Workflow;
use tidemill_state::{
    Content, Identity, Manifest, ObjectReference, StageState, State, StateError, StoreError,
};

/// Transfers a state to the present definition of a run. Only one manifest is changed, atomically; files of removed sinks
/// are cut back before, to the checkpoint's position.
///
/// # Errors
/// A file differs from the checkpoint, an operator cannot be made, or the state cannot be read or written.
pub(crate) fn take_over(
    state: &mut State,
    (old, new): (&Definition, &Definition),
    changes: &Changes,
    prepared: &Prepared,
    identity: Identity,
) -> Result<(), Failure> {
    let Some(manifest) = state.manifest().cloned() else { return Ok(()) };
    let mut next = Manifest { identity, definition: new.value(), ..manifest.clone() };
    (next.checkpoint, next.written_at) = (manifest.checkpoint + 1, machine::now());
    next.stages.clear();
    next.sources.clear();
    let mut objects = Vec::new();
    for id in keepers(&prepared.program) {
        let role = if prepared.program.sources.contains_key(id) { Role::Source } else { Role::Operator };
        let verdict = changes.verdict(role, id);
        if !matches!(verdict, Some(Verdict::GoesOn | Verdict::Changed)) {
            if role == Role::Source {
                let log = value(&EpochLog::beginning_at(manifest.epoch));
                next.sources
                    .extend(instance_names(&new.plan, id).into_iter().map(|name| (name, log.clone())));
            }
            continue;
        }
        let Some(names) = divided(&old.plan, &new.plan, id) else {
            let shares = shared(state, &manifest, &old.plan, &prepared.program, id).map_err(|text| {
                Failure::new(Kind::Unavailable, format!("cannot divide the state of operator `{id}`: {text}"))
            })?;
            objects.extend(shares.into_iter().map(|(name, snapshot)| keep(&mut next, name, snapshot)));
            continue;
        };
        for (name, before) in names {
            if let Some(stage) = manifest.stages.get(&before) {
                next.stages.insert(name.clone(), stage.clone());
            }
            if let Some(log) = manifest.sources.get(&before) {
                let log: EpochLog = parsed(state, log).map_err(|error| failure(&error))?;
                let log = match (&old.parts[id], &new.parts[id]) {
                    (before, now) if before.rate == now.rate => log,
                    (before, _) => log.with_other_rate(manifest.epoch, before.rate, old.plan.tick.0),
                };
                next.sources.insert(name, value(&log));
            }
        }
    }
    let goes_on =
        |id: &String| matches!(changes.verdict(Role::Sink, id), Some(Verdict::GoesOn | Verdict::Changed));
    next.sinks.retain(|id, _| goes_on(id));
    next.inputs.retain(|id, _| prepared.program.sources.contains_key(id));
    if changes.is_of_rows() {
        // Rows that cannot be undone are repeated from the checkpoint on, by the new definition.
        next.sinks.values_mut().for_each(|sink| sink.committed = sink.committed.min(manifest.epoch));
    }
    if old.dead_letters != new.dead_letters {
        let letters: LettersPast = parsed(state, &manifest.letters).map_err(|error| failure(&error))?;
        next.letters = value(&LettersPast { token: None, ..letters });
    }
    objects.extend(fill(&mut next, &prepared.program)?);
    for (file, token) in left(&manifest, old, new, changes, &prepared.workflow) {
        cut_back(&file, &token).map_err(|error| Failure::new(Kind::Unavailable, error.to_string()))?;
    }
    state.commit(next, objects).map_err(|error| failure(&error))
}

/// Sets a stage's snapshot of the manifest's epoch; returns its object.
fn keep(manifest: &mut Manifest, stage: String, snapshot: Vec<u8>) -> (String, Vec<u8>) {
    let content = Content::Snapshot { epoch: manifest.epoch };
    let reference = ObjectReference::new(manifest.checkpoint, &stage, content, &snapshot);
    let name = reference.name.clone();
    manifest.stages.insert(stage, StageState { objects: vec![reference] });
    (name, snapshot)
}

/// Files of sinks with which the run does not continue, each with the id of the sink and its data in a checkpoint.
pub(crate) fn left_of_sinks<'a>(
    manifest: &'a Manifest,
    old: &'a Definition,
    changes: &'a Changes,
    workflow: &'a Workflow,
) -> impl Iterator<Item = (&'a String, PathBuf, Vec<u8>)> {
    let is_left =
        |id: &String| matches!(changes.verdict(Role::Sink, id), Some(Verdict::Gone | Verdict::BeginsAnew));
    manifest.sinks.iter().filter(move |(id, _)| is_left(id)).filter_map(|(id, sink)| {
        let part = old.parts.get(id).filter(|part| is_text(part))?;
        Some((id, workflow.resolve(path(part)?), sink.token.as_ref()?.0.clone()))
    })
}

/// Files with which the run does not continue, each with its data in a checkpoint.
pub(crate) fn left(
    manifest: &Manifest,
    old: &Definition,
    new: &Definition,
    changes: &Changes,
    workflow: &Workflow,
) -> Vec<(PathBuf, Vec<u8>)> {
    let of_sinks = left_of_sinks(manifest, old, changes, workflow).map(|(_, file, token)| (file, token));
    let letters: Option<LettersPast> = serde_json::from_value(manifest.letters.clone()).ok();
    let letters = letters.filter(|_| old.dead_letters != new.dead_letters);
    let letters =
        letters.and_then(|past| Some((workflow.resolve(old.dead_letters.as_ref()?), of_file(&past.token?))));
    of_sinks.chain(letters).collect()
}

/// The snapshot of an operator without input.
fn nothing(program: &Program, stage: &str) -> Result<Option<Vec<u8>>, OperatorError> {
    let Some(bound) = program.operators.get(stage) else { return Ok(None) };
    match (bound.make)()? {
        Instance::Stateful(operator) => operator.snapshot().map(Some),
        Instance::Stateless(_) | Instance::Inference(_) => Ok(None),
    }
}

/// Sets an empty state for every stateful stage that has none in the manifest; returns the objects.
fn fill(manifest: &mut Manifest, program: &Program) -> Result<Vec<(String, Vec<u8>)>, Failure> {
    let mut objects = Vec::new();
    // Before the first epoch stages start by themselves, and after the last one they have no work.
    if matches!(manifest.epoch, 0 | u64::MAX) {
        return Ok(objects);
    }
    for stage in &program.plan.stages {
        let bound = program.operators.get(&stage.id);
        if bound.is_none_or(|bound| bound.computation != Computation::Stateful) {
            continue;
        }
        for partition in 0..stage.partitions.max(1) {
            let name = instance_name(stage, partition);
            if manifest.stages.get(&name).is_some_and(|state| !state.objects.is_empty()) {
                continue;
            }
            let empty = nothing(program, &stage.id).map_err(|error| {
                Failure::new(Kind::Unavailable, format!("operator `{}`: {error}", stage.operator))
            })?;
            let Some(bytes) = empty else { continue };
            objects.push(keep(manifest, name, bytes));
        }
    }
    Ok(objects)
}

/// Resets operators without a state in the manifest.
///
/// # Errors
/// An operator cannot be made, or the state cannot be written.
pub(crate) fn begin_anew(state: &mut State, program: &Program) -> Result<(), Failure> {
    let Some(manifest) = state.manifest() else { return Ok(()) };
    let mut next = Manifest { checkpoint: manifest.checkpoint + 1, ..manifest.clone() };
    let objects = fill(&mut next, program)?;
    if objects.is_empty() {
        return Ok(());
    }
    next.written_at = machine::now();
    state.commit(next, objects).map_err(|error| failure(&error))
}

/// The dropped state of an operator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Forgotten {
    /// The operator.
    pub operator: String,
    /// Bytes of the state of each of its stages.
    pub stages: BTreeMap<String, u64>,
    /// The checkpoint that records it.
    pub checkpoint: u64,
    /// The first epoch of the new state.
    pub epoch: u64,
    /// The limits that had ended the run, or a source of it: it continues from the checkpoint before that.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stopped_at: Option<String>,
}

/// Empties the state of one operator: it restarts at the last checkpoint, all others continue. If a limit has ended a
/// source, that is the checkpoint before the limit, from which the run continues. One manifest is replaced atomically.
///
/// # Errors
/// There is no state, a process has it, it has no such operator or a stateless one, its run has ended, or it cannot be
/// written. Nothing is changed then.
pub fn reset_operator(place: &StatePlace, operator: &str) -> Result<Forgotten, Failure> {
    drop(place.look_at_store().map_err(|error| failure(&error))?);
    let mut state = place.open().map_err(|error| failure(&error))?;
    let missing = || failure(&StateError::from(StoreError::NoState { place: place.to_string() }));
    let last = state.manifest().cloned().ok_or_else(missing)?;
    let before_limit = before_limit(&state).cloned();
    let manifest = before_limit.as_ref().unwrap_or(&last);
    let refused = |text: String, help: String| Err(Failure::new(Kind::Configuration, text).with_help(help));
    let anew = format!("after `tidemill state reset {place}` the whole run starts from the beginning");
    if manifest.complete || manifest.epoch == u64::MAX {
        let text = match &last.stopped_at {
            Some(limits) => format!(
                "the run of the state in `{place}` has ended at {limits}, and the checkpoint before that is \
                 gone: no run can continue from it"
            ),
            None => {
                format!("the run of the state in `{place}` has come to its end: no run can continue from it")
            }
        };
        return refused(text, anew);
    }
    let Some(definition) = Definition::read(&manifest.definition) else {
        let text = format!(
            "the state in `{place}` was written by tidemill {}, which did not record its operators",
            manifest.written_by
        );
        return refused(text, format!("run the workflow briefly with this version, or {anew}"));
    };
    let keepers = definition.of_role(Role::Operator).filter(|id| definition.parts[*id].keeps);
    let keepers: Vec<&str> = keepers.collect();
    if !keepers.contains(&operator) {
        let text = match definition.parts.get(operator).map(|part| part.role) {
            Some(Role::Source) => {
                format!("`{operator}` is a source: its records are in the state of other operators")
            }
            Some(_) => format!("`{operator}` keeps no state"),
            None => format!("the state in `{place}` has no operator `{operator}`"),
        };
        let help = match keepers.is_empty() {
            true => format!("no operator of this workflow keeps a state; {anew}"),
            false => format!("operators with a state: {}", keepers.join(", ")),
        };
        return refused(text, help);
    }
    let is_ahead =
        manifest.sinks.iter().find(|(_, sink)| sink.token.is_some() && sink.committed > manifest.epoch);
    if let Some((sink, _)) = is_ahead {
        let text = format!(
            "sink `{sink}` has rows after the checkpoint, which an older version wrote: the operator's output would be missing there"
        );
        return refused(
            text,
            "run the workflow briefly with this version, stop it with Ctrl-C, then try again".into(),
        );
    }
    let mut stages = BTreeMap::new();
    let names = instance_names(&definition.plan, operator);
    let empty = |next: &mut Manifest| {
        next.written_at = machine::now();
        for name in names {
            let kept = next.stages.insert(name.clone(), StageState::default()).unwrap_or_default();
            stages.insert(name, kept.objects.iter().map(|object| object.bytes).sum());
        }
        for sink in next.sinks.values_mut() {
            sink.committed = sink.committed.min(next.epoch);
        }
    };
    let written = match &before_limit {
        Some(before) => state.go_back_with(before.epoch, empty),
        None => {
            let mut next = Manifest { checkpoint: last.checkpoint + 1, ..last.clone() };
            empty(&mut next);
            state.keep(last.older.len() + 1);
            state.commit(next, Vec::new())
        }
    };
    written.map_err(|error| failure(&error))?;
    Ok(Forgotten {
        operator: operator.to_owned(),
        stages,
        checkpoint: last.checkpoint + 1,
        epoch: manifest.epoch,
        stopped_at: before_limit.as_ref().and(last.stopped_at.as_ref()).map(ToString::to_string),
    })
}
