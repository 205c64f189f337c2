//! The state in a real folder: damage, leftovers, concurrent opening.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tidemill_state::{
    Content, Damage, Digest, Folder, Identity, Manifest, ObjectReference, SinkState, StageState, State,
    StateError, Store, StoreError, Token,
};

fn identity() -> Identity {
    let operators = [("count".to_owned(), Digest(1))];
    Identity { workflow_name: "w".to_owned(), operators: operators.into(), plan: Digest(2) }
}

/// The manifest with one object, and the object.
fn checkpoint(number: u64, bytes: &[u8]) -> (Manifest, Vec<(String, Vec<u8>)>) {
    let reference = ObjectReference::new(number, "Count/0", Content::Snapshot { epoch: number }, bytes);
    let mut manifest = Manifest { checkpoint: number, epoch: number, ..Manifest::new(identity()) };
    let object = (reference.name.clone(), bytes.to_vec());
    let stage = StageState { objects: vec![reference] };
    manifest.stages.insert("Count/0".to_owned(), stage);
    (manifest, vec![object])
}

/// A state with one checkpoint in a new folder: the folder, the state's path in it and the object's path.
fn committed() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().join("deep/er");
    let mut state = State::in_folder(&path).expect("a new state");
    let (manifest, objects) = checkpoint(1, b"17 shoes");
    let object = path.join("objects").join(&objects[0].0);
    state.commit(manifest, objects).expect("a commit");
    (folder, path, object)
}

fn only_reference(state: &State) -> ObjectReference {
    state.manifest().and_then(|manifest| manifest.references().next().cloned()).expect("a reference")
}

fn damage(path: &Path) -> Damage {
    let state = State::in_folder(path).expect("a state");
    match state.object(&only_reference(&state)) {
        Err(StateError::Corrupted { damage, .. }) => damage,
        other => panic!("{other:?}"),
    }
}

fn refusal<T>(result: Result<T, StateError>) -> String {
    result.err().expect("it is refused").to_string()
}

#[test]
fn a_manifest_comes_back_as_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = State::in_folder(folder.path()).unwrap();
    let (mut manifest, objects) = checkpoint(u64::MAX, b"");
    manifest.complete = true;
    manifest.seconds = 0.1 + 0.2;
    manifest.sources.insert("ä".to_owned(), serde_json::json!({"z": 1, "a": [u64::MAX, "\u{0}"]}));
    let token = Some(Token(vec![0, 255, 7]));
    manifest.sinks.insert("out".to_owned(), SinkState { committed: 4, rows: 5, token });
    manifest.letters = serde_json::json!({"epoch": 3});
    state.commit(manifest.clone(), objects).unwrap();
    assert_eq!(state.manifest(), Some(&manifest));
    drop(state);
    let state = State::in_folder(folder.path()).unwrap();
    assert_eq!(state.manifest(), Some(&manifest));
    assert_eq!(state.object(&only_reference(&state)).unwrap(), b"");
}

#[test]
fn a_new_commit_deletes_what_it_does_not_refer_to() {
    let (_folder, path, object) = committed();
    let mut state = State::in_folder(&path).unwrap();
    assert!(object.exists());
    let (manifest, objects) = checkpoint(2, b"18 shoes");
    state.commit(manifest, objects).unwrap();
    assert!(!object.exists());
    assert_eq!(fs::read_dir(path.join("objects")).unwrap().count(), 1);
}

#[test]
fn a_state_is_forgotten() {
    let (_folder, path, object) = committed();
    let mut state = State::in_folder(&path).unwrap();
    state.reset().unwrap();
    assert!(state.manifest().is_none() && !object.exists());
    let (manifest, objects) = checkpoint(1, b"anew");
    state.commit(manifest, objects).unwrap();
    drop(state);
    assert_eq!(State::in_folder(&path).unwrap().manifest().unwrap().checkpoint, 1);
}

#[test]
fn a_damaged_object_is_told() {
    let (_folder, path, object) = committed();
    fs::write(&object, b"17 shots").unwrap();
    assert_eq!(damage(&path), Damage::Checksum);
    fs::write(&object, b"17 shoe").unwrap();
    assert_eq!(damage(&path), Damage::Length { expected: 8, found: 7 });
}

#[test]
fn a_missing_object_is_told() {
    let (_folder, path, object) = committed();
    fs::remove_file(object).unwrap();
    assert_eq!(damage(&path), Damage::Missing);
}

#[test]
fn a_damaged_manifest_is_refused_and_nothing_is_deleted() {
    let (_folder, path, object) = committed();
    let manifest = path.join("manifest.json");
    let whole = fs::read_to_string(&manifest).unwrap();
    let cut = (0..whole.len() - 1).step_by(37).map(|end| whole[..end].to_owned());
    for text in cut.chain([whole.replace("\"epoch\": 1", "\"epoch\": 2"), "[]".to_owned()]) {
        assert_ne!(text, whole);
        fs::write(&manifest, &text).unwrap();
        let error = State::in_folder(&path).err().unwrap();
        assert!(matches!(error, StateError::Manifest { .. }), "{error}");
        assert!(object.exists());
    }
}

#[test]
fn another_format_is_refused_with_both_versions() {
    let (_folder, path, object) = committed();
    let text = r#"{"format":7,"other":[],"manifest":{"written_by":"9.1.0","stages":4}}"#;
    fs::write(path.join("manifest.json"), text).unwrap();
    let text = refusal(State::in_folder(&path));
    for part in ["format 7", "9.1.0", "format 2", tidemill_state::PROGRAM, "continue with the version"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(object.exists());
}

#[test]
fn other_folders_are_refused_and_not_touched() {
    for files in
        [&["notes.txt"][..], &["objects/photo.png"], &["objects/x.object", "HEAD"], &["manifest.json"]]
    {
        let folder = tempfile::tempdir().unwrap();
        for file in files {
            let file = folder.path().join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, "mine").unwrap();
        }
        let count = fs::read_dir(folder.path()).unwrap().count();
        let error = State::in_folder(folder.path()).err().unwrap();
        assert!(matches!(error, StateError::Store(StoreError::Foreign { .. })), "{files:?}: {error}");
        assert!(files.iter().all(|file| fs::read(folder.path().join(file)).unwrap() == b"mine"));
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), count, "{files:?}");
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("file");
    fs::write(&file, "mine").unwrap();
    assert!(State::in_folder(&file).is_err());
    assert!(State::in_folder(&file.join("below")).is_err());
}

#[test]
fn leftovers_of_a_crash_are_deleted() {
    let (_folder, path, object) = committed();
    let left = [path.join("objects/00000002-a-snapshot-4-00.object"), path.join("manifest.json.new")];
    for path in &left {
        fs::write(path, "half of").unwrap();
    }
    drop(State::look(&path).unwrap());
    assert!(left.iter().all(|path| path.exists()), "who looks deletes nothing");
    let state = State::in_folder(&path).unwrap();
    assert!(left.iter().all(|path| !path.exists()) && object.exists());
    assert_eq!(state.object(&only_reference(&state)).unwrap(), b"17 shoes");
    // A crash before the first commit.
    let folder = tempfile::tempdir().unwrap();
    drop(State::in_folder(folder.path()).unwrap());
    let left = folder.path().join("objects/00000001-a-snapshot-4-00.object");
    fs::write(&left, "half of").unwrap();
    assert!(State::in_folder(folder.path()).unwrap().manifest().is_none());
    assert!(!left.exists());
}

#[test]
fn a_second_opener_is_told_who_has_it_open() {
    let (_folder, path, _) = committed();
    let mut state = State::in_folder(&path).unwrap();
    match State::in_folder(&path) {
        Err(StateError::Store(StoreError::Locked { holder: Some(holder), .. })) => {
            assert_eq!(holder.pid, std::process::id());
            assert!(
                !holder.host.is_empty() && holder.since.ends_with('Z') && holder.command.contains("folder")
            );
        }
        other => panic!("{:?}", other.err()),
    }
    // Reading is allowed, and shows the last commit; writing is not.
    let (manifest, objects) = checkpoint(2, b"18 shoes");
    state.commit(manifest, objects).unwrap();
    let mut look = State::look(&path).unwrap();
    assert_eq!(look.object(&only_reference(&look)).unwrap(), b"18 shoes");
    let (manifest, objects) = checkpoint(3, b"19 shoes");
    assert!(refusal(look.commit(manifest, objects)).contains("looked at only"));
    assert!(refusal(look.reset()).contains("looked at only"));
    drop(state);
    State::in_folder(&path).unwrap();
}

#[test]
fn there_is_nothing_to_look_at() {
    let folder = tempfile::tempdir().unwrap();
    for path in [folder.path().to_owned(), folder.path().join("none")] {
        let error = State::look(&path).err().unwrap();
        assert!(matches!(error, StateError::Store(StoreError::NoState { .. })), "{error}");
        assert!(fs::read_dir(folder.path()).unwrap().next().is_none());
    }
}

const HELD: &str = "TIDEMILL_STATE_HELD_BY_A_CHILD";

/// Not a test by itself: the process that the next test starts and kills.
#[test]
fn a_child_holds_the_lock() {
    let Some(path) = std::env::var_os(HELD) else { return };
    let _state = State::in_folder(Path::new(&path)).unwrap();
    println!("\nheld");
    std::thread::sleep(std::time::Duration::from_secs(50));
}

#[test]
fn the_lock_of_a_killed_process_is_free() {
    let (_folder, path, _) = committed();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "a_child_holds_the_lock", "--nocapture"])
        .env(HELD, &path)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap() == "held"));
    let text = refusal(State::in_folder(&path));
    assert!(text.contains(&format!("process {} on ", child.id())), "{text}");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(State::in_folder(&path).unwrap().manifest().unwrap().checkpoint, 1);
}

#[test]
fn a_commit_that_does_not_fit_is_refused() {
    let (_folder, path, object) = committed();
    let mut state = State::in_folder(&path).unwrap();
    let (good, objects) = checkpoint(2, b"18 shoes");
    let mut endless = good.clone();
    endless.seconds = f64::INFINITY;
    let mut reused = objects.clone();
    reused.push((object.file_name().unwrap().to_str().unwrap().to_owned(), b"other".to_vec()));
    let mut unused = objects.clone();
    unused.push(("x.object".to_owned(), Vec::new()));
    let cases = [
        (checkpoint(1, b"again"), "checkpoint 1 follows 1"),
        ((endless, objects.clone()), "time is inf"),
        ((good.clone(), Vec::new()), "not there"),
        ((good.clone(), vec![(objects[0].0.clone(), b"18 shows".to_vec())]), "another one"),
        ((good.clone(), reused), "there is another object"),
        ((good.clone(), unused), "does not refer to object x.object"),
    ];
    for ((manifest, objects), reason) in cases {
        let text = refusal(state.commit(manifest, objects));
        assert!(text.contains(reason), "{text}");
    }
    state.commit(good, objects).unwrap();
}

#[test]
fn many_objects_are_committed_together() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = State::in_folder(folder.path()).unwrap();
    let mut manifest = Manifest { checkpoint: 1, ..Manifest::new(identity()) };
    let mut objects = Vec::new();
    for index in 0..150 {
        let stage = format!("Stufe/{index}");
        let bytes = vec![index; 100];
        let reference = ObjectReference::new(1, &stage, Content::Calls { from: 1, to: 2 }, &bytes);
        objects.push((reference.name.clone(), bytes));
        manifest.stages.insert(stage, StageState { objects: vec![reference] });
    }
    state.commit(manifest, objects).unwrap();
    drop(state);
    let state = State::in_folder(folder.path()).unwrap();
    for (index, reference) in state.manifest().unwrap().references().enumerate() {
        assert_eq!(state.object(reference).unwrap().len(), 100, "{index}");
    }
}

#[test]
fn a_store_takes_no_other_names() {
    let folder = tempfile::tempdir().unwrap();
    let mut store = Folder::open(folder.path()).unwrap();
    for name in ["../manifest.json", "x", "../lock.object"] {
        assert!(matches!(store.put(name, b""), Err(StoreError::Name { .. })), "{name}");
        assert!(matches!(store.delete(name), Err(StoreError::Name { .. })), "{name}");
    }
}

#[test]
fn older_checkpoints_are_kept_and_gone_back_to() {
    let folder = tempfile::tempdir().unwrap();
    let mut state = State::in_folder(folder.path()).unwrap();
    state.keep(3);
    for number in 1..=5 {
        let (manifest, objects) = checkpoint(number * 10, &[number as u8]);
        state.commit(manifest, objects).unwrap();
    }
    drop(state);
    let epochs = |state: &State| -> Vec<u64> {
        state.manifest().unwrap().older.iter().map(|older| older.epoch).collect()
    };
    let mut state = State::in_folder(folder.path()).unwrap();
    assert_eq!(epochs(&state), [40, 30]);
    assert!(refusal(state.go_back(20)).contains("those of 40, 30"));
    assert_eq!(state.manifest().unwrap().epoch, 50);
    let other = checkpoint(45, b"45").0;
    let change = |manifest: &mut Manifest| manifest.stages.clone_from(&other.stages);
    assert!(refusal(state.go_back_with(40, change)).contains("is not there"));
    state.go_back(40).unwrap();
    let manifest = state.manifest().unwrap().clone();
    assert_eq!((manifest.epoch, manifest.checkpoint, epochs(&state)), (40, 51, vec![30]));
    assert_eq!(state.object(&only_reference(&state)).unwrap(), [4]);
    // Two objects of stages and the older manifest.
    assert_eq!(fs::read_dir(folder.path().join("objects")).unwrap().count(), 3);
    drop(state);
    // A damaged older one costs nothing else.
    let name = &manifest.older[0].name;
    fs::write(folder.path().join("objects").join(name), "{}").unwrap();
    let mut state = State::in_folder(folder.path()).unwrap();
    assert_eq!(state.manifest(), Some(&manifest));
    assert!(refusal(state.go_back(30)).contains("it keeps none"));
    let (manifest, objects) = checkpoint(60, b"6");
    state.commit(manifest, objects).unwrap();
    assert_eq!(epochs(&state), Vec::<u64>::new());
    assert_eq!(fs::read_dir(folder.path().join("objects")).unwrap().count(), 1);
}

#[test]
fn a_pinned_checkpoint_is_kept_however_many_follow() {
    let folder = tempfile::tempdir().unwrap();
    let commit = |state: &mut State, number: u64, pinned: Option<u64>| {
        let (manifest, objects) = checkpoint(number, format!("{number} shoes").as_bytes());
        state.commit(Manifest { pinned, ..manifest }, objects).unwrap();
    };
    let mut state = State::in_folder(folder.path()).unwrap();
    commit(&mut state, 1, None);
    commit(&mut state, 2, None);
    assert!(state.pinned().is_none());
    for number in 3..6 {
        commit(&mut state, number, Some(2));
    }
    drop(state);
    // Another process finds it, with its object.
    let mut state = State::in_folder(folder.path()).unwrap();
    let kept: Vec<u64> = state.manifest().unwrap().older.iter().map(|older| older.checkpoint).collect();
    assert_eq!(kept, [2]);
    let pinned = state.pinned().unwrap().clone();
    assert_eq!(state.object(pinned.references().next().unwrap()).unwrap(), b"2 shoes");
    state.go_back(pinned.epoch).unwrap();
    let manifest = state.manifest().unwrap().clone();
    assert_eq!((manifest.epoch, manifest.checkpoint, manifest.pinned), (2, 6, None));
    assert_eq!(fs::read_dir(folder.path().join("objects")).unwrap().count(), 1);
    // Again, without the states of its stages.
    commit(&mut state, 7, Some(6));
    state.go_back_with(2, |manifest| manifest.stages.clear()).unwrap();
    let manifest = state.manifest().unwrap();
    assert_eq!((manifest.epoch, manifest.checkpoint, manifest.stages.len()), (2, 8, 0));
    assert_eq!(fs::read_dir(folder.path().join("objects")).unwrap().count(), 0);
}

/// As written by an earlier version.
#[test]
fn a_manifest_without_inputs_totals_and_limits_is_read() {
    let (_folder, path, _) = committed();
    let manifest = path.join("manifest.json");
    let mut envelope: serde_json::Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    let inner = envelope["manifest"].as_object_mut().unwrap();
    assert!(inner.remove("totals").is_some());
    let text = serde_json::to_string(&inner).unwrap();
    let checksum = Digest::of(text.as_bytes());
    let former = format!("{{\"format\":1,\"checksum\":\"{checksum}\",\"manifest\":{text}}}\n");
    fs::write(&manifest, former).unwrap();
    let state = State::in_folder(&path).unwrap();
    let manifest = state.manifest().unwrap();
    assert_eq!((manifest.totals.processes, manifest.inputs.len()), (0, 0));
    assert!(manifest.stopped_at.is_none() && manifest.pinned.is_none());
}
