//! The state in a bucket of a service that verifies signatures. `scripts/s3_server.sh` installs it; without it the
//! tests print `skipped: WHY`, and with `TIDEMILL_TEST_SIGNATURES=1` they fail instead.

use futures_util::future::join_all;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path as ObjectPath;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, UpdateVersion};
use serde_json::Value;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use tidemill_bucket::{Address, Bucket, Settings};
use tidemill_state::{
    Content, Digest, Identity, Manifest, ObjectReference, StageState, State, StateError, StoreError,
};

/// The server as a process; it ends with the test, whose pipe it reads.
struct Service {
    child: Child,
    input: Option<ChildStdin>,
    variables: BTreeMap<String, String>,
}

impl Drop for Service {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.child.wait();
    }
}

/// The server, if it is installed.
fn service() -> Option<Service> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"));
    let python = folder.join("../../target/s3-server/bin/python3");
    if !python.is_file() {
        let why = "no S3 server that verifies signatures: scripts/s3_server.sh installs one";
        assert!(std::env::var_os("TIDEMILL_TEST_SIGNATURES").is_none(), "{why}");
        eprintln!("skipped: {why}");
        return None;
    }
    let mut command = Command::new(python);
    command.arg(folder.join("tests/signing/server.py")).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    let variables = lines.take_while(|line| line != "ready").filter_map(|line| {
        let (name, value) = line.split_once('=')?;
        Some((name.to_owned(), value.to_owned()))
    });
    let variables: BTreeMap<String, String> = variables.collect();
    assert!(variables.contains_key("AWS_ENDPOINT_URL"), "the server did not start: {:?}", child.wait());
    let input = child.stdin.take();
    Some(Service { child, input, variables })
}

impl Service {
    fn settings(&self, changes: &[(&str, &str)]) -> Settings {
        let changes = changes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        self.variables.clone().into_iter().chain(changes).collect()
    }

    /// A read-only access key.
    fn reader(&self) -> Settings {
        let of = |name: &str| self.variables[&format!("READER_{name}")].clone();
        let (id, secret) = (of("AWS_ACCESS_KEY_ID"), of("AWS_SECRET_ACCESS_KEY"));
        self.settings(&[("AWS_ACCESS_KEY_ID", &id), ("AWS_SECRET_ACCESS_KEY", &secret)])
    }

    fn open(&self) -> State {
        State::open(Box::new(Bucket::open(&address(), &self.settings(&[])).unwrap())).unwrap()
    }

    fn look(&self) -> State {
        State::read(Box::new(Bucket::look(&address(), &self.settings(&[])).unwrap())).unwrap()
    }

    /// The bucket itself, without our code in between.
    fn bucket(&self) -> impl ObjectStore {
        let of = |name: &str| self.variables[name].clone();
        AmazonS3Builder::new()
            .with_endpoint(of("AWS_ENDPOINT_URL"))
            .with_allow_http(true)
            .with_region(of("AWS_REGION"))
            .with_bucket_name("abc")
            .with_access_key_id(of("AWS_ACCESS_KEY_ID"))
            .with_secret_access_key(of("AWS_SECRET_ACCESS_KEY"))
            .build()
            .unwrap()
    }
}

fn address() -> Address {
    "s3://abc/runs/shop".parse().unwrap()
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

fn commit(state: &mut State, number: u64) -> Result<(), StateError> {
    let bytes = format!("{number} shoes").into_bytes();
    let operators = [("count".to_owned(), Digest(1))];
    let identity = Identity { workflow_name: "w".to_owned(), operators: operators.into(), plan: Digest(2) };
    let reference = ObjectReference::new(number, "count/0", Content::Snapshot { epoch: number }, &bytes);
    let mut manifest = Manifest { checkpoint: number, epoch: number, ..Manifest::new(identity) };
    let object = (reference.name.clone(), bytes);
    manifest.stages.insert("count/0".to_owned(), StageState { objects: vec![reference] });
    state.commit(manifest, vec![object])
}

/// The number of the last checkpoint and its object's bytes.
fn found(state: &State) -> (u64, Vec<u8>) {
    let manifest = state.manifest().expect("a checkpoint");
    (manifest.checkpoint, state.object(manifest.references().next().unwrap()).unwrap())
}

#[test]
fn signed_checkpoints_are_committed_and_come_back() {
    let Some(service) = service() else { return };
    let mut state = service.open();
    assert!(state.manifest().is_none());
    for number in 1..=3 {
        commit(&mut state, number).unwrap();
        assert_eq!(found(&service.look()), (number, format!("{number} shoes").into_bytes()));
    }
    drop(state);
    let mut state = service.open();
    assert_eq!(found(&state), (3, b"3 shoes".to_vec()));
    commit(&mut state, 4).unwrap();
    state.reset().unwrap();
    commit(&mut state, 1).unwrap();
    assert_eq!(found(&service.look()).0, 1);
}

/// Of several writers with the same view, one writes; a superseded writer writes nothing more.
#[test]
fn signed_writes_compare_and_swap() {
    let Some(service) = service() else { return };
    let bucket = service.bucket();
    let manifest = ObjectPath::from("runs/shop/manifest.json");
    let winners = |mode: &PutMode, path: &ObjectPath| {
        let writes = (0..4).map(|writer| {
            let options = PutOptions::from(mode.clone());
            // The tag is a digest of the bytes, so earlier bytes must not occur again.
            bucket.put_opts(path, format!("{mode:?} by {writer}").into(), options)
        });
        let results = block_on(join_all(writes));
        let lost = |error: &Error| matches!(error, Error::AlreadyExists { .. } | Error::Precondition { .. });
        let (won, others): (Vec<_>, Vec<_>) = results.into_iter().partition(Result::is_ok);
        assert!(others.iter().all(|result| result.as_ref().is_err_and(lost)), "{others:?}");
        won.len()
    };
    for round in 0..5 {
        let path = ObjectPath::from(format!("raced/{round}"));
        assert_eq!(winners(&PutMode::Create, &path), 1);
        let seen = block_on(bucket.head(&path)).unwrap();
        let version = UpdateVersion { e_tag: seen.e_tag, version: seen.version };
        assert_eq!(winners(&PutMode::Update(version), &path), 1);
    }

    let mut first = service.open();
    commit(&mut first, 1).unwrap();
    let refused = Bucket::open(&address(), &service.settings(&[])).err().unwrap();
    assert!(matches!(&refused, StoreError::Locked { .. }), "{refused}");
    // Its holder appears to have ended.
    let bytes = block_on(async { bucket.get(&manifest).await.unwrap().bytes().await.unwrap() });
    let mut document: BTreeMap<String, Box<RawValue>> = serde_json::from_slice(&bytes).unwrap();
    let mut lease: Value = serde_json::from_str(document["lease"].get()).unwrap();
    lease["process"]["started"] = 1.into();
    document.insert("lease".to_owned(), RawValue::from_string(lease.to_string()).unwrap());
    block_on(bucket.put(&manifest, serde_json::to_vec(&document).unwrap().into())).unwrap();
    let mut second = service.open();
    commit(&mut second, 2).unwrap();
    let error = commit(&mut first, 2).unwrap_err();
    assert!(matches!(error, StateError::Store(StoreError::TakenOver { .. })), "{error}");
    drop(first);
    assert_eq!(found(&service.look()), (2, b"2 shoes".to_vec()));
}

#[test]
fn what_is_not_signed_as_it_should_is_refused_with_what_to_look_at() {
    let Some(service) = service() else { return };
    commit(&mut service.open(), 1).unwrap();
    let refused = |settings: &Settings, code: &str| {
        let opened = Bucket::open(&address(), settings).err().expect("it is refused");
        let looked = Bucket::look(&address(), settings);
        let looked = match looked.map(|bucket| State::read(Box::new(bucket))) {
            Err(error) => error.to_string(),
            Ok(read) => read.err().expect("it is refused").to_string(),
        };
        assert!(matches!(opened, StoreError::Denied { .. }), "{opened}");
        for told in [opened.to_string(), looked] {
            assert!(
                told.contains(&format!("403 {code}")) && told.contains("see to AWS_ACCESS_KEY_ID"),
                "{told}"
            );
            assert!(!told.contains("of-nobody"), "a secret: {told}");
        }
    };
    refused(&service.settings(&[("AWS_SECRET_ACCESS_KEY", "secret-of-nobody")]), "SignatureDoesNotMatch");
    refused(&service.settings(&[("AWS_ACCESS_KEY_ID", "AKIAIOSFODNN7EXAMPLE")]), "InvalidAccessKeyId");
    // A reader sees the state, and cannot take it.
    let reader = service.reader();
    let read = State::read(Box::new(Bucket::look(&address(), &reader).unwrap())).unwrap();
    assert_eq!(found(&read).0, 1);
    let denied = Bucket::open(&address(), &reader).err().expect("it is refused");
    assert!(denied.to_string().contains("403 AccessDenied"), "{denied}");
}
