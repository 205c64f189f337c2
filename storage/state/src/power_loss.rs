//! After a loss of power at any moment, the folder holds an allowed manifest, and all objects that it refers to.
//!
//! After ALICE (Pillai and others, 2014): the file operations of a sequence of commits are recorded; before each of
//! them the power is lost, and data that was not synced by then is there, lost, torn or out of order.

mod machine;

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::power_loss::machine::{Fault, Forgets, Machine, Recorded, Recording};
use crate::{Content, Digest, Folder, Identity, Manifest, ObjectReference, StageState, State, StateError};
use crate::{Store, StoreError};

/// The allowed manifests; none is a new state.
type May = Vec<Option<Manifest>>;

type Shared = Arc<Mutex<Recording<May>>>;

const ROOT: &str = "/";

fn identity() -> Identity {
    let operators = [("a".to_owned(), Digest(1)), ("b".to_owned(), Digest(2))];
    Identity { workflow_name: "w".to_owned(), operators: operators.into(), plan: Digest(3) }
}

fn recording(machine: Machine, thought: May) -> Shared {
    let history = Vec::new();
    Arc::new(Mutex::new(Recording { machine, thought, history, fault: None, forgets: None, operations: 0 }))
}

fn with<Result>(shared: &Shared, act: impl FnOnce(&mut Recording<May>) -> Result) -> Result {
    act(&mut shared.lock().expect("no test panics with it"))
}

fn open(shared: &Shared) -> Result<State, StateError> {
    let folder = Folder::on(Path::new(ROOT), Box::new(Recorded(Arc::clone(shared))))?;
    State::open(Box::new(folder))
}

/// State of a stage after a checkpoint.
fn bytes(checkpoint: u64, stage: &str, attempt: usize) -> Vec<u8> {
    format!("{stage} after checkpoint {checkpoint}, attempt {attempt}").into_bytes()
}

type Objects = Vec<(String, Vec<u8>)>;

/// The next manifest: stage a has snapshots at odd checkpoints and calls in between, stage b snapshots at every third.
/// Every seventh changes nothing.
fn next(before: Option<&Manifest>, attempt: usize) -> (Manifest, Objects) {
    let mut manifest = before.cloned().unwrap_or_else(|| Manifest::new(identity()));
    manifest.older.clear();
    manifest.checkpoint += 1;
    manifest.epoch = manifest.checkpoint * 10;
    manifest.seconds += 0.25;
    let number = manifest.checkpoint;
    let mut new = Vec::new();
    let mut add = |stage: &str, content| {
        let bytes = bytes(number, stage, attempt);
        let reference = ObjectReference::new(number, stage, content, &bytes);
        let empty = || StageState { objects: Vec::new() };
        let kept = manifest.stages.entry(stage.to_owned()).or_insert_with(empty);
        if let Content::Snapshot { .. } = content {
            kept.objects.clear();
        }
        kept.objects.push(reference.clone());
        new.push((reference.name, bytes));
    };
    if number % 7 != 0 {
        let calls = Content::Calls { from: number * 10 - 9, to: number * 10 };
        add("a", if number % 2 == 1 { Content::Snapshot { epoch: number * 10 } } else { calls });
        if number % 3 == 1 {
            add("b", Content::Snapshot { epoch: number * 10 });
        }
    }
    (manifest, new)
}

/// Commits once; the allowed content of the folder is known before, during and after.
fn commit(shared: &Shared, state: &mut State, attempt: usize) -> bool {
    // The first two attempts are equal: a retrying run may give the same objects or others.
    let (manifest, objects) = next(state.manifest(), attempt / 2);
    with(shared, |it| it.thought.push(Some(manifest.clone())));
    let committed = state.commit(manifest.clone(), objects);
    with(shared, |it| match committed {
        Ok(()) => it.thought = vec![Some(manifest)],
        // A killed process does not know the outcome.
        Err(_) if matches!(it.fault, Some(Fault::Killed(_))) => {}
        Err(StateError::Store(StoreError::Unconfirmed { .. })) => {}
        Err(StateError::Store(_)) => it.thought.retain(|may| may.as_ref() != Some(&manifest)),
        Err(ref error) => panic!("{error}"),
    });
    committed.is_ok()
}

fn reset(shared: &Shared, state: &mut State) -> bool {
    with(shared, |it| it.thought.push(None));
    let result = state.reset();
    if result.is_ok() {
        with(shared, |it| it.thought = vec![None]);
    }
    result.is_ok()
}

/// Opens the folder until it works: twice at most, because a fault happens once.
fn reopen(shared: &Shared) -> State {
    let state = open(shared).or_else(|_| open(shared)).expect("one fault at most");
    let found = state.manifest().map(|manifest| Manifest { older: Vec::new(), ..manifest.clone() });
    with(shared, |it| it.thought = vec![found]);
    state
}

/// Two runs, a reset, and a third run; failures are retried.
fn life(shared: &Shared) {
    let is_killed =
        || with(shared, |it| it.fault.is_some_and(|f| matches!(f, Fault::Killed(at) if at < it.operations)));
    for (run, commits) in [(0, 4), (1, 3), (2, 2)] {
        let Ok(mut state) = open(shared).or_else(|_| open(shared)) else {
            assert!(is_killed());
            return;
        };
        if run == 2 {
            state.keep(2);
        }
        for index in 0..commits {
            for attempt in 0..3 {
                if is_killed() {
                    return;
                }
                if commit(shared, &mut state, run * 100 + index * 10 + attempt) {
                    break;
                }
            }
        }
        if run == 1 && !reset(shared, &mut state) {
            reset(shared, &mut state);
        }
    }
}

/// Checks the contents after a loss of power.
fn check(image: Machine, may: &May) -> Result<(), String> {
    let shared = recording(image, May::new());
    for round in 0..2 {
        let mut state = open(&shared).map_err(|error| format!("round {round}: {error}"))?;
        let mut found = state.manifest().cloned();
        // All named objects are there, complete.
        let named = found.as_mut().map(|manifest| std::mem::take(&mut manifest.older)).unwrap_or_default();
        for (entry, manifest) in state.older.iter() {
            for reference in manifest.references() {
                state.object(reference).map_err(|error| format!("{}: {error}", entry.checkpoint))?;
            }
        }
        if state.older.len() != named.len() {
            return Err(format!("of {} older checkpoints {} are there", named.len(), state.older.len()));
        }
        if round == 0 && !may.contains(&found) {
            let found = found.map(|manifest| manifest.checkpoint);
            return Err(format!("checkpoint {found:?}, of {} that may be there", may.len()));
        }
        let stages = found.iter().flat_map(|manifest| &manifest.stages);
        for reference in stages.flat_map(|(_, stage)| &stage.objects) {
            state.object(reference).map_err(|error| error.to_string())?;
        }
        let (manifest, objects) = next(found.as_ref(), 1000 + round);
        state.commit(manifest, objects).map_err(|error| format!("round {round}: {error}"))?;
    }
    Ok(())
}

/// Simulates a loss of power before each operation of the history; returns the number of outcomes checked.
fn check_history(shared: &Shared, most: usize) -> Result<usize, String> {
    let mut history = with(shared, |it| std::mem::take(&mut it.history));
    history.push(with(shared, |it| (it.machine.clone(), it.thought.clone())));
    let mut looked_at = 0;
    for (number, (machine, may)) in history.iter().enumerate() {
        for image in machine.after_power_loss(most, number as u64) {
            check(image, may).map_err(|error| format!("before operation {number}: {error}"))?;
            looked_at += 1;
        }
    }
    Ok(looked_at)
}

fn new() -> Shared {
    recording(Machine::default(), vec![None])
}

#[test]
fn a_loss_of_power_leaves_the_last_commit_or_the_next() {
    let shared = new();
    life(&shared);
    let looked_at = check_history(&shared, 2048).unwrap();
    println!("{} operations, {looked_at} losses of power", with(&shared, |it| it.operations));
    assert!(looked_at > 1000, "{looked_at}");
}

/// Also if any one earlier operation failed or hit a full disk.
#[test]
fn a_loss_of_power_after_a_failed_operation() {
    let all = new();
    life(&all);
    for at in 0..with(&all, |it| it.operations) {
        let shared = new();
        with(&shared, |it| it.fault = Some(Fault::Full(at)));
        life(&shared);
        check_history(&shared, 12).unwrap_or_else(|error| panic!("operation {at} failed; {error}"));
        // All commits succeeded in the end.
        let last = with(&shared, |it| it.thought.clone());
        let last: Vec<_> = last.iter().map(|may| may.as_ref().map(|manifest| manifest.checkpoint)).collect();
        assert_eq!(last.last(), Some(&Some(2)), "operation {at}: {last:?}");
    }
}

/// Also if a process was killed before any operation, and another one continued.
#[test]
fn a_loss_of_power_after_a_killed_process() {
    let all = new();
    life(&all);
    for at in 0..with(&all, |it| it.operations) {
        let shared = new();
        with(&shared, |it| it.fault = Some(Fault::Killed(at)));
        life(&shared);
        with(&shared, |it| it.fault = None);
        let mut state = reopen(&shared);
        for attempt in 0..2 {
            assert!(commit(&shared, &mut state, 500 + attempt), "operation {at}");
        }
        check_history(&shared, 12).unwrap_or_else(|error| panic!("killed before operation {at}; {error}"));
    }
}

#[test]
fn a_forgotten_sync_would_be_noticed() {
    let all = [Forgets::ObjectBytes, Forgets::ObjectNames, Forgets::ManifestBytes, Forgets::ManifestName];
    for forgets in all {
        let shared = new();
        with(&shared, |it| it.forgets = Some(forgets));
        life(&shared);
        let error = check_history(&shared, 256).expect_err(&format!("{forgets:?} is not noticed"));
        println!("{forgets:?}: {error}");
    }
}

#[test]
fn a_failed_commit_leaves_no_object_behind_and_the_state_as_it_was() {
    let shared = new();
    let mut state = open(&shared).unwrap();
    assert!(commit(&shared, &mut state, 0));
    let before = state.manifest().cloned();
    let at = with(&shared, |it| it.operations);
    with(&shared, |it| it.fault = Some(Fault::Full(at)));
    let (manifest, objects) = next(before.as_ref(), 1);
    let error = state.commit(manifest, objects).expect_err("the disk is full");
    assert!(matches!(error, StateError::Store(StoreError::Full { .. })), "{error}");
    assert_eq!(state.manifest().cloned(), before);
    let folder = Folder::on(Path::new(ROOT), Box::new(Recorded(Arc::clone(&shared)))).unwrap();
    let references: Vec<_> = before.iter().flat_map(Manifest::references).cloned().collect();
    assert_eq!(folder.list().unwrap().len(), references.len());
    assert!(commit(&shared, &mut state, 2));
}
