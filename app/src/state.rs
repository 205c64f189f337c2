//! The state of a run: what a run continues from, and where its checkpoints go.
#[cfg(feature = "storage-s3")]
mod bucket;
#[cfg(not(feature = "storage-s3"))]
#[path = "state/bucket_absent.rs"]
mod bucket;
pub mod change;
pub(crate) mod checkpoint;
pub mod definition;
pub mod diff;
pub mod fields;
mod outputs;
pub mod place;
mod sharing;
pub mod taking;

use crate::call_objects::take_in;
use crate::failure::{Failure, Kind};
use crate::inputs::Inputs;
use crate::journals::{self, Keeper, Keeping};
use crate::machine;
use crate::preparation::Prepared;
use crate::processes;
use crate::resumption;
use crate::state::change::carried;
use crate::state::definition::Definition;
use crate::state::diff::Changes;
use crate::state::fields::of_plans;
use crate::state::place::StatePlace;
use crate::state::taking::{begin_anew, take_over};
use crate::tally::Tally;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;
use tidemill_engine::{
    Checkpoint, CheckpointWriter, Durability, EpochLog, JournalOrder, LettersPast, Past, SinkPast,
};
use tidemill_spec::plan::Plan;
use tidemill_spec::workflow;
use tidemill_state::{
    Content, Difference, Digest, Identity, Manifest, ObjectReference, SinkState, State, StateError, Token,
    Totals, WORKERS_LOCK, compare,
};

pub use checkpoint::{described, failure};
pub use tidemill_state::Limits;

use checkpoint::{past, value};

/// The start of a run.
pub enum Begin {
    /// The run continues from here, or starts.
    Continued(Continued),
    /// Nothing is left to do.
    Complete(Complete),
}

/// A run that is complete.
pub struct Complete {
    /// Its last checkpoint.
    pub manifest: Manifest,
    /// Changes of its sources since then, in words.
    pub notes: Vec<String>,
}

/// A run that keeps its state.
pub struct Continued {
    /// For the options of the run.
    pub durability: Durability,
    /// State from which the writer of dead letters continues.
    pub letters: Option<Vec<u8>>,
    /// The checkpoint from which it continues, in words; none: it starts.
    pub from: Option<String>,
    /// Sources whose streams had come to their end before, while others went on: nothing more is read of them.
    pub ended: Vec<String>,
    /// Notes for the user about the continuation.
    pub notes: Vec<String>,
    /// Work of the processes before.
    pub before: Tally,
    /// Place of the state.
    pub place: StatePlace,
    /// Held by processes of workers during their life, so that no other run continues beside them.
    pub workers_lock: Option<PathBuf>,
}

/// Settings for writing checkpoints.
#[derive(Debug, Clone, Copy)]
pub struct Habit {
    /// Least time between two.
    pub interval: Duration,
    /// Number of kept checkpoints, including the last one.
    pub keep: usize,
    /// Whether this process reads the sources; else its workers' processes do.
    pub is_read_here: bool,
    /// Whether the files that the sources read are on this machine.
    pub sees_inputs: bool,
    /// Limits that end the run before its sources do.
    pub limits: Limits,
}

/// Opens the state at a place for a run, which writes its checkpoints there. Sources that want a journal are read through it
/// from then on.
///
/// # Errors
/// Another process has it, it is not of this workflow and plan, or it cannot be read. Nothing is touched then.
pub fn open(
    place: &StatePlace,
    prepared: &mut Prepared,
    habit: Habit,
    taking: &Taking<'_>,
) -> Result<Begin, Failure> {
    open_as(place, prepared, habit, None, Some(taking))
}

/// The treatment of a state whose workflow or plan has changed.
pub struct Taking<'a> {
    /// Whether it may change what comes out; see [`Changes::wants_acceptance`].
    pub accepts: bool,
    /// Receives the fate of each part before any change.
    pub tell: &'a dyn Fn(&Changes),
}

/// Returns the effect of a run on a state; none where an older version wrote it without a list of its parts.
pub fn changes(manifest: &Manifest, prepared: &Prepared) -> Option<Changes> {
    let old = Definition::read(&manifest.definition)?;
    Some(diff::compare(manifest, &old, &definition_of(prepared), &prepared.program))
}

fn definition_of(prepared: &Prepared) -> Definition {
    Definition::of(&prepared.workflow, &prepared.program)
}

/// Compares a run with the run of a state.
pub fn difference_of(manifest: &Manifest, prepared: &Prepared) -> Difference {
    difference(manifest, &identity(prepared), &definition_of(prepared))
}

fn difference(manifest: &Manifest, identity: &Identity, definition: &Definition) -> Difference {
    let mut difference = compare(&manifest.identity, identity);
    if let Some(old) = Definition::read(&manifest.definition).filter(|_| difference.plan_changed) {
        // Without a given plan, the note names the figures that changed.
        let changes = of_plans(&old.plan, &definition.plan);
        difference.plan = changes.iter().map(ToString::to_string).collect();
    }
    difference
}

/// Opens the state for a run that had another plan before: that state continues under this plan and then belongs to it.
///
/// # Errors
/// As [`open`]; the state cannot continue under this plan. Nothing is touched then.
pub fn open_after(
    place: &StatePlace,
    prepared: &mut Prepared,
    habit: Habit,
    former: Option<&Plan>,
) -> Result<Begin, Failure> {
    open_as(place, prepared, habit, former, None)
}

fn open_as(
    place: &StatePlace,
    prepared: &mut Prepared,
    habit: Habit,
    former: Option<&Plan>,
    taking: Option<&Taking<'_>>,
) -> Result<Begin, Failure> {
    resumption::check_program(prepared)?;
    journals::check_place(place, &prepared.program)?;
    // A run that is refused makes no state. Where there is one, former processes of it may be about to end.
    if habit.sees_inputs && place.is_empty() {
        outputs::check_new(prepared)?;
    }
    let mut state = place.open().map_err(|error| failure(&error))?;
    state.keep(habit.keep);
    let workers_lock = match place {
        StatePlace::Folder(path) => Some(path.join(WORKERS_LOCK)),
        StatePlace::Bucket(_) | StatePlace::Service(_) => None, // they end with the process that has its lease
    };
    if let Some(lock) = workers_lock.as_deref().filter(|lock| lock.exists()) {
        // They may still write the outputs, also where this run has no processes of its own.
        processes::wait_for_workers(lock)?;
    }
    let (identity, definition) = (identity(prepared), definition_of(prepared));
    let mut notes = Vec::new();
    let mut inputs = None;
    if let Some(manifest) = state.manifest() {
        let difference = difference(manifest, &identity, &definition);
        let is_of_former = |plan: &&Plan| {
            let same = difference.same_operators() && difference.workflow_name.is_none();
            same && manifest.identity.plan == plan_digest(plan)
        };
        let former = former.filter(is_of_former);
        // Without acceptance, opening that file fails.
        let has_other_letters = Definition::read(&manifest.definition)
            .is_some_and(|old| old.dead_letters != definition.dead_letters)
            && taking.is_some_and(|taking| taking.accepts);
        let is_other = !difference.is_none() || has_other_letters;
        let beyond = resumption::beyond(&state, &habit.limits);
        let taken = match taking.filter(|_| is_other && former.is_none()) {
            Some(taking) => {
                let from = beyond.unwrap_or(manifest);
                Some(accepted(place, from, &definition, prepared, taking, &difference)?)
            }
            None if is_other && former.is_none() => return Err(refused(place, &difference, "")),
            None => None,
        };
        if manifest.complete && beyond.is_none() {
            let seen = |manifest: &Manifest| Inputs::changes(&prepared.program, &manifest.inputs);
            let notes = if habit.sees_inputs { seen(manifest) } else { Vec::new() };
            return Ok(Begin::Complete(Complete { manifest: manifest.clone(), notes }));
        }
        notes.extend(beyond.and(manifest.stopped_at.as_ref()).map(resumption::told_beyond));
        if habit.sees_inputs {
            let (watched, told) = resumption::inputs(place, prepared, beyond.or(Some(manifest)))?;
            inputs = Some(watched);
            notes.extend(told);
            outputs::check_continued(
                prepared,
                (beyond.unwrap_or(manifest), beyond.and(Some(manifest)).filter(|last| last.complete)),
                taken.as_ref(),
                &definition,
            )?;
        }
        // Before the other is given up.
        beyond.map(|pinned| past(&state, pinned)).transpose().map_err(|error| failure(&error))?;
        // From here on the state is changed.
        let former = former.filter(|_| is_other);
        if let Some(epoch) = beyond.map(|pinned| pinned.epoch) {
            state.go_back(epoch).map_err(|error| failure(&error))?;
        }
        if let Some(former) = former {
            carry(&mut state, former, prepared, &identity)?;
        }
        if let Some((old, changes)) = taken {
            take_over(&mut state, (&old, &definition), &changes, prepared, identity.clone())?;
        }
        begin_anew(&mut state, &prepared.program)?;
    }
    if inputs.is_none() && habit.sees_inputs {
        inputs = Some(resumption::inputs(place, prepared, None)?.0);
    }
    let past = match state.manifest() {
        Some(manifest) => Some(past(&state, manifest).map_err(|error| failure(&error))?),
        None => None,
    };
    let letters = past.as_ref().and_then(|past| past.letters.token.clone());
    let from = state.manifest().map(described);
    let ended =
        past.as_ref().map(|past| journals::ended(&prepared.program, &past.sources)).unwrap_or_default();
    let before =
        state.manifest().map(|manifest| Tally::of(manifest, &prepared.program.plan)).unwrap_or_default();
    let journals = match place {
        StatePlace::Folder(path) => {
            let opened = match habit.is_read_here {
                true => journals::read_through(path, prepared, |_| true)?,
                false => BTreeMap::new(),
            };
            let keeper = Keeper::new(path, &prepared.program, opened, habit.keep);
            let number = state.manifest().and_then(|manifest| manifest.pinned);
            let older = state.older().rev().filter(|older| Some(older.checkpoint) != number);
            let kept: Vec<_> = older.chain(state.manifest()).map(resumption::logs).collect();
            let keeper = keeper.known(&kept, state.pinned().map(resumption::logs).as_ref());
            // Who reads the sources is on the machine that has what they read.
            let mut keeper = if habit.sees_inputs { keeper } else { keeper.elsewhere() };
            give_up_older(&mut state, &mut keeper)?;
            Some(keeper)
        }
        StatePlace::Bucket(_) | StatePlace::Service(_) => None,
    };
    let mut totals = state.manifest().map(|manifest| manifest.totals).unwrap_or_default();
    totals.processes += 1;
    let definition = definition.value();
    let limits = habit.limits;
    let writer = Box::new(Writer { state, identity, definition, journals, inputs, limits, totals });
    let durability = Durability { writer, past, interval: habit.interval };
    let place = place.clone();
    Ok(Begin::Continued(Continued { durability, letters, from, ended, notes, before, place, workers_lock }))
}

/// Gives up older checkpoints without which a stream would wait for ever: none would be written that releases its journal.
fn give_up_older(state: &mut State, keeper: &mut Keeper) -> Result<(), Failure> {
    let (Some(keeping), Some(manifest)) = (keeper.stuck(), state.manifest()) else { return Ok(()) };
    let mut next = Manifest { older: Vec::new(), ..manifest.clone() };
    next.checkpoint += 1;
    next.written_at = machine::now();
    next.pinned = next.pinned.filter(|_| keeping.is_pinned());
    state.keep(keeping.checkpoints);
    state.commit(next, Vec::new()).map_err(|error| failure(&error))?;
    keeper.written(keeping, false);
    Ok(())
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
    Identity { workflow_name: workflow.name.value.clone(), operators, plan: plan_digest(&program.plan) }
}

/// Returns the digest of the parts of a plan that determine its state.
pub(crate) fn plan_digest(plan: &Plan) -> Digest {
    // The places of stages do not count: they continue elsewhere.
    let stages = plan.stages.iter().map(|stage| {
        let models = (&stage.variant, &stage.backend, stage.max_batch);
        (&stage.id, &stage.operator, models, stage.partitions, stage.share)
    });
    let edges = plan.edges.iter().map(|edge| (&edge.from, &edge.to, edge.input, &edge.freshness));
    let (stages, edges): (Vec<_>, Vec<_>) = (stages.collect(), edges.collect());
    digest(&(stages, edges, &plan.classes, &plan.tick, plan.checkpoint_every))
}

/// Continues a state under another plan: the same checkpoint, with the new names of its stages.
fn carry(state: &mut State, former: &Plan, prepared: &Prepared, identity: &Identity) -> Result<(), Failure> {
    let names = carried(former, &prepared.program)
        .map_err(|error| Failure::new(Kind::Configuration, error.to_string()))?;
    let Some(manifest) = state.manifest() else { return Ok(()) };
    let definition = definition_of(prepared).value();
    let mut next = Manifest { identity: identity.clone(), definition, ..manifest.clone() };
    next.checkpoint += 1;
    next.written_at = machine::now();
    let stages = names.iter().filter_map(|(new, old)| Some((new.clone(), manifest.stages.get(old)?.clone())));
    next.stages = stages.collect();
    let sources =
        names.iter().filter_map(|(new, old)| Some((new.clone(), manifest.sources.get(old)?.clone())));
    next.sources = sources.collect();
    state.commit(next, Vec::new()).map_err(|error| failure(&error))
}

/// The digest of a part of a workflow or plan, by what it says.
fn digest(of: &impl serde::Serialize) -> Digest {
    Digest::of(&serde_json::to_vec(of).expect("parts of workflows and plans are JSON"))
}

fn refused(place: &StatePlace, difference: &Difference, accept: &str) -> Failure {
    Failure::new(Kind::Configuration, format!("the state in `{place}` is of another run: {difference}"))
        .with_help(format!(
            "{accept}undo the change, name another place, or start from the beginning with `tidemill state reset {place}`"
        ))
}

/// Checks that a run may continue from the state of another workflow or plan; returns that definition, and the changes.
fn accepted(
    place: &StatePlace,
    manifest: &Manifest,
    definition: &Definition,
    prepared: &Prepared,
    taking: &Taking<'_>,
    difference: &Difference,
) -> Result<(Definition, Changes), Failure> {
    let Some(old) = Definition::read(&manifest.definition) else {
        return Err(refused(place, difference, ""));
    };
    let changes = diff::compare(manifest, &old, definition, &prepared.program);
    (taking.tell)(&changes);
    if changes.is_refused() {
        return Err(refused(place, difference, ""));
    }
    if changes.wants_acceptance() && !taking.accepts {
        let accept = "add `--accept-changes` to continue from the checkpoint with these changes, ";
        return Err(refused(place, difference, accept));
    }
    Ok((old, changes))
}

/// Forgets a state, also one that this program cannot read.
///
/// # Errors
/// There is none, another process has it, or it cannot be written.
pub fn reset(place: &StatePlace) -> Result<(), Failure> {
    // Nothing is made where there is none.
    drop(place.look_at_store().map_err(|error| failure(&error))?);
    let mut store = place.store().map_err(|error| failure(&error))?;
    let mut remove = || store.remove_manifest().map_err(|error| failure(&error.into()));
    match place {
        // While the store is still held.
        StatePlace::Folder(path) => journals::forget_with(path, remove)?,
        StatePlace::Bucket(_) | StatePlace::Service(_) => remove()?,
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

/// Writes checkpoints of the engine.
struct Writer {
    state: State,
    identity: Identity,
    /// See [`Manifest::definition`].
    definition: serde_json::Value,
    /// None where there can be none.
    journals: Option<Keeper>,
    /// None where they are on other machines.
    inputs: Option<Inputs>,
    limits: Limits,
    /// With this process, and what it began with.
    totals: Totals,
}

impl CheckpointWriter for Writer {
    fn write(&mut self, checkpoint: Checkpoint) -> Result<(), String> {
        let (elapsed, is_complete) = (checkpoint.elapsed, checkpoint.is_complete);
        let pinned = self.pinned(&checkpoint.sources);
        let keeping = self
            .journals
            .as_ref()
            .map(|journals| journals.keeping(journals.begins(&checkpoint.sources), pinned.is_some()));
        let pinned = pinned.filter(|_| keeping.as_ref().is_none_or(Keeping::is_pinned));
        if let Some(keeping) = &keeping {
            self.state.keep(keeping.checkpoints);
        }
        let committed = self.commit(checkpoint, pinned);
        // Dropped records stay until a checkpoint confirms it.
        if let (Some(journals), Some(keeping)) = (&mut self.journals, keeping) {
            match &committed {
                Ok(()) => journals.written(keeping, is_complete),
                Err(_) => journals.failed(elapsed),
            }
        }
        committed.map_err(|error| error.to_string())
    }

    fn journals(&mut self) -> BTreeMap<String, JournalOrder> {
        self.journals.as_mut().map(Keeper::orders).unwrap_or_default()
    }

    fn past(&mut self) -> Result<Past, String> {
        let manifest = self.state.manifest().ok_or("there is no checkpoint yet")?;
        past(&self.state, manifest).map_err(|error| error.to_string())
    }
}

/// Whether a limit has ended a source.
fn is_stopped(sources: &BTreeMap<String, EpochLog>) -> bool {
    sources.values().any(|log| log.end.is_some_and(|end| end.limit))
}

impl Writer {
    /// The checkpoint that is kept however many follow it: the last one before a limit ended a source.
    fn pinned(&self, sources: &BTreeMap<String, EpochLog>) -> Option<u64> {
        let last = self.state.manifest().filter(|_| is_stopped(sources))?;
        match last.stopped_at {
            Some(_) => last.pinned,
            None => Some(last.checkpoint),
        }
    }

    fn commit(&mut self, checkpoint: Checkpoint, pinned: Option<u64>) -> Result<(), StateError> {
        let Checkpoint { epoch, elapsed, is_complete, stages, sources, sinks, letters, restarts } =
            checkpoint;
        let mut next = Manifest::new(self.identity.clone());
        (next.epoch, next.seconds, next.complete) = (epoch, elapsed as f64 / 1e9, is_complete);
        next.checkpoint = self.state.manifest().map_or(0, |manifest| manifest.checkpoint) + 1;
        next.written_at = machine::now();
        next.definition = self.definition.clone();
        next.letters = value::<LettersPast>(&letters);
        next.sources = sources.iter().map(|(source, log)| (source.clone(), value(log))).collect();
        next.inputs = self.inputs.as_mut().map(|inputs| inputs.look(&sources)).unwrap_or_default();
        next.totals =
            Totals { restarts: self.totals.restarts + restarts, dead_letters: letters.count, ..self.totals };
        next.pinned = pinned;
        if is_stopped(&sources) {
            let last = self.state.manifest();
            next.stopped_at = last.and_then(|last| last.stopped_at).or(Some(self.limits));
        }
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
            if !change.calls.is_empty() {
                let (mut calls, mut from) = (Vec::new(), change.from);
                for object in take_in(&mut of.objects, change.calls.len() as u64) {
                    calls.extend(self.state.object(&object)?);
                    if let Content::Calls { from: first, .. } = object.content {
                        from = from.min(first);
                    }
                }
                calls.extend(change.calls);
                of.objects.push(add(Content::Calls { from, to: change.upto }, calls));
            }
            next.stages.insert(stage, of);
        }
        self.state.commit(next, objects)
    }
}
