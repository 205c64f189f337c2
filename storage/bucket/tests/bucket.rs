//! The state in a bucket: committed, taken over, damaged; with a failing service, and lost answers.

use crate::server::{Mood, Server};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use tidemill_bucket::{Address, Bucket, Settings};
use tidemill_state::{
    Content, Damage, Digest, Identity, Manifest, ObjectReference, StageState, State, StateError, Store,
    StoreError,
};

const MANIFEST: &str = "runs/shop/manifest.json";

fn address() -> Address {
    "s3://abc/runs/shop".parse().unwrap()
}

fn settings(server: &Server) -> Settings {
    server.variables().into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

fn bucket(server: &Server) -> Result<Bucket, StoreError> {
    Bucket::open(&address(), &settings(server))
}

fn open(server: &Server) -> State {
    State::open(Box::new(bucket(server).unwrap())).unwrap()
}

fn look(server: &Server) -> Result<State, StateError> {
    State::read(Box::new(Bucket::look(&address(), &settings(server))?))
}

/// The manifest with one object, and the object.
fn checkpoint(number: u64, bytes: &[u8]) -> (Manifest, Vec<(String, Vec<u8>)>) {
    let operators = [("count".to_owned(), Digest(1))];
    let identity = Identity { workflow_name: "w".to_owned(), operators: operators.into(), plan: Digest(2) };
    let reference = ObjectReference::new(number, "count/0", Content::Snapshot { epoch: number }, bytes);
    let mut manifest = Manifest { checkpoint: number, epoch: number, ..Manifest::new(identity) };
    let object = (reference.name.clone(), bytes.to_vec());
    manifest.stages.insert("count/0".to_owned(), StageState { objects: vec![reference] });
    (manifest, vec![object])
}

fn commit(state: &mut State, number: u64) -> Result<(), StateError> {
    let (manifest, objects) = checkpoint(number, format!("{number} shoes").as_bytes());
    state.commit(manifest, objects)
}

/// The number of the last checkpoint and its object's bytes.
fn found(state: &State) -> (u64, Vec<u8>) {
    let manifest = state.manifest().expect("a checkpoint");
    (manifest.checkpoint, state.object(manifest.references().next().unwrap()).unwrap())
}

/// Changes the lease in the bucket; all else stays to the byte.
fn change_lease(server: &Server, change: impl FnOnce(&mut Value)) {
    let mut document: BTreeMap<String, Box<RawValue>> =
        serde_json::from_slice(&server.object(MANIFEST).unwrap()).unwrap();
    let mut lease = serde_json::from_str(document["lease"].get()).unwrap();
    change(&mut lease);
    document.insert("lease".to_owned(), RawValue::from_string(lease.to_string()).unwrap());
    server.put(MANIFEST, &serde_json::to_vec(&document).unwrap());
}

#[test]
fn a_checkpoint_comes_back_and_the_one_before_is_deleted() {
    let server = Server::start();
    let mut state = open(&server);
    assert!(state.manifest().is_none());
    for number in 1..=5 {
        commit(&mut state, number).unwrap();
        assert_eq!(found(&look(&server).unwrap()), (number, format!("{number} shoes").into_bytes()));
    }
    drop(state);
    assert_eq!(server.names().len(), 2, "{:?}", server.names());
    // Given back, so that the next process need not wait.
    let document: Value = serde_json::from_slice(&server.object(MANIFEST).unwrap()).unwrap();
    assert!(document["lease"].is_null(), "{document}");
    let mut state = open(&server);
    assert_eq!(found(&state), (5, b"5 shoes".to_vec()));
    state.reset().unwrap();
    commit(&mut state, 1).unwrap();
    drop(state);
    assert_eq!(found(&open(&server)), (1, b"1 shoes".to_vec()));
}

#[test]
fn what_a_crash_left_is_deleted() {
    let server = Server::start();
    commit(&mut open(&server), 1).unwrap();
    server.put("runs/shop/objects/00000002-left-over.object", b"x");
    drop(open(&server));
    assert_eq!(server.names().len(), 2, "{:?}", server.names());
    assert_eq!(found(&look(&server).unwrap()).0, 1);
}

#[test]
fn two_do_not_share_a_state() {
    let server = Server::start();
    let mut state = open(&server);
    commit(&mut state, 1).unwrap();
    let refused = bucket(&server).err().unwrap();
    assert!(
        matches!(&refused, StoreError::Locked { holder: Some(holder), .. } if holder.pid == std::process::id())
    );
    assert!(refused.to_string().contains("in use by process"), "{refused}");
    commit(&mut state, 2).unwrap();
}

#[test]
fn a_holder_of_this_machine_that_has_ended_is_followed_at_once() {
    let server = Server::start();
    let mut first = open(&server);
    commit(&mut first, 1).unwrap();
    change_lease(&server, |lease| lease["process"]["started"] = 1.into());
    server.requests();
    let mut second = open(&server);
    let looks =
        server.requests().iter().filter(|request| *request == "GET /abc/runs/shop/manifest.json").count();
    assert_eq!(looks, 1);
    // The first holder comes back: it can write nothing, not even delete an object of the same name.
    commit(&mut second, 2).unwrap();
    for _ in 0..2 {
        let error = commit(&mut first, 2).unwrap_err();
        assert!(matches!(error, StateError::Store(StoreError::TakenOver { holder: Some(_), .. })), "{error}");
        assert!(error.to_string().contains("taken over by process"), "{error}");
    }
    drop(first);
    assert_eq!(found(&look(&server).unwrap()), (2, b"2 shoes".to_vec()));
    commit(&mut second, 3).unwrap();
}

#[test]
fn a_holder_of_another_machine_is_watched() {
    let server = Server::start();
    let mut state = open(&server);
    commit(&mut state, 1).unwrap();
    drop(state);
    let other = |server: &Server| {
        let other = serde_json::json!({
            "holder": {"pid": 7, "host": "far", "since": "2026-11-23T08:30:00Z", "command": "tidemill run"},
            "process": {"boot": "another", "namespace": "pid:[1]", "number": 7, "started": 7},
        });
        change_lease(server, |lease| *lease = other);
    };
    other(&server);
    server.requests();
    // It is renewed while it is watched: the ETag changes.
    let renewing = server.clone();
    let renewal = std::thread::spawn(move || {
        let is_look = |request: &String| request == "GET /abc/runs/shop/manifest.json";
        while !renewing.requests().iter().any(is_look) {
            std::thread::yield_now();
        }
        other(&renewing);
    });
    let refused = bucket(&server).err().unwrap().to_string();
    assert!(refused.contains("process 7 on far"), "{refused}");
    renewal.join().unwrap();
    // Now it is not renewed.
    assert_eq!(found(&open(&server)), (1, b"1 shoes".to_vec()));
}

#[test]
fn of_many_that_take_a_state_one_gets_it() {
    let server = Server::start();
    commit(&mut open(&server), 1).unwrap();
    for _ in 0..10 {
        let taken: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| bucket(&server))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(taken.iter().filter(|taken| taken.is_ok()).count(), 1);
    }
}

#[test]
fn a_service_that_fails_for_a_while_fails_nothing() {
    let server = Server::start();
    let mut state = open(&server);
    commit(&mut state, 1).unwrap();
    server.set(Mood::Fails(6));
    commit(&mut state, 2).unwrap();
    assert_eq!(server.mood(), Mood::Serves);
    assert_eq!(found(&look(&server).unwrap()).0, 2);
}

#[test]
fn a_write_whose_answer_is_lost_is_done_once() {
    let server = Server::start();
    let mut state = open(&server);
    for number in 1..=4 {
        // First the object's answer is lost, then the manifest's too.
        server.set(Mood::LosesAnswers(number as usize));
        commit(&mut state, number).unwrap();
        server.set(Mood::Serves);
        assert_eq!(found(&look(&server).unwrap()).0, number);
    }
    drop(state);
    assert_eq!(server.names().len(), 2, "{:?}", server.names());
}

#[test]
fn a_service_that_refuses_is_told_without_secrets() {
    let server = Server::start();
    let mut state = open(&server);
    commit(&mut state, 1).unwrap();
    server.set(Mood::Denies);
    let error = commit(&mut state, 2).unwrap_err().to_string();
    assert!(
        error.contains("403 AccessDenied (of the test)") && error.contains("AWS_ACCESS_KEY_ID"),
        "{error}"
    );
    assert!(!error.contains("name-of-test") && !error.contains("secret-of-test"), "{error}");
    server.set(Mood::Serves);
    commit(&mut state, 2).unwrap();
    let error =
        Bucket::open(&"s3://another/x".parse().unwrap(), &settings(&server)).err().unwrap().to_string();
    assert!(error.contains("404 NoSuchBucket") && error.contains("make the bucket"), "{error}");
}

#[test]
fn what_is_damaged_is_told() {
    let server = Server::start();
    commit(&mut open(&server), 1).unwrap();
    let object = server.names().into_iter().find(|name| name.contains("/objects/")).unwrap();
    let damage = |server: &Server| {
        let state = open(server);
        match state.object(state.manifest().unwrap().references().next().unwrap()) {
            Err(StateError::Corrupted { damage, .. }) => damage,
            other => panic!("{other:?}"),
        }
    };
    server.put(&object, b"1 boots");
    assert_eq!(damage(&server), Damage::Checksum);
    server.put(&object, b"1 sho");
    assert_eq!(damage(&server), Damage::Length { expected: 7, found: 5 });
    server.remove(&object);
    assert_eq!(damage(&server), Damage::Missing);
    for text in ["", "{", "{\"format\": 1}", "[]"] {
        server.put(MANIFEST, text.as_bytes());
        let error = State::open(Box::new(bucket(&server).unwrap())).err().unwrap();
        assert!(matches!(error, StateError::Manifest { .. }), "{error}");
        assert_eq!(server.object(MANIFEST).unwrap(), text.as_bytes());
    }
    server.put(MANIFEST, b"{\"format\": 99, \"manifest\": {\"written_by\": \"9.9\"}}");
    let error = look(&server).err().unwrap();
    assert!(matches!(error, StateError::Format { found: 99, .. }), "{error}");
    // It can be started again.
    let mut store = bucket(&server).unwrap();
    store.remove_manifest().unwrap();
    commit(&mut State::open(Box::new(store)).unwrap(), 1).unwrap();
    assert_eq!(found(&look(&server).unwrap()).0, 1);
}

#[test]
fn other_things_are_left_alone() {
    let server = Server::start();
    assert!(matches!(look(&server), Err(StateError::Store(StoreError::NoState { .. }))));
    for name in ["runs/shop/notes.txt", "runs/shop/pictures/1.png", "runs/shop/objects/1.png"] {
        server.put(name, b"x");
        assert!(matches!(bucket(&server), Err(StoreError::Foreign { .. })), "{name}");
        assert_eq!(server.names(), [name]);
        server.remove(name);
    }
    server.put("runs/shopping.txt", b"x");
    drop(open(&server));
    let mut looking = Bucket::look(&address(), &settings(&server)).unwrap();
    assert!(matches!(looking.put("a.object", b""), Err(StoreError::OnlyLooking { .. })));
    assert!(matches!(looking.remove_manifest(), Err(StoreError::OnlyLooking { .. })));
}
