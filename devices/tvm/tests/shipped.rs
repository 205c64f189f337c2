//! The shipped models as modules of TVM, through a session, beside the outputs of ONNX Runtime.
//!
//! `scripts/test-backends.sh tvm` writes the files and names their folder in `TIDEMILL_TVM_MODELS`.
use serde::Deserialize;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tidemill_device::carrier::Carrier;
use tidemill_device::daemon::tenants::Tenants;
use tidemill_device::daemon::{Daemon, Options};
use tidemill_device::device::{Artifact, ModelFile};
use tidemill_device::dial;
use tidemill_device::session::{CallError, Session};
use tidemill_device::store::hash_of_file;
use tidemill_device::value::{Element, Value};
use tidemill_link::remote::{Address, Security};

/// Largest difference of two floats, as a part of the largest output of ONNX Runtime.
const TOLERANCE: f32 = 1e-4;
/// The same where ONNX Runtime computes with 8 bits, and TVM with floats rounded to the same steps: a value at the border between
/// two steps may fall to the other side.
const TOLERANCE_8_BITS: f32 = 5e-2;
/// The shipped models that TVM cannot compile, each with the reason that `tidemill models compile` gives.
const NOT_COMPILED: [(&str, &str); 0] = [];

#[derive(Deserialize)]
struct Port {
    name: String,
    element: Element,
    shape: Vec<usize>,
}

#[derive(Deserialize)]
struct Reference {
    inputs: Vec<Port>,
    outputs: Vec<Port>,
}

/// The program, started as an executor starts it. Its end ends the session.
struct Program(
    Child,
    #[expect(dead_code, reason = "its files live as long as the program")] tempfile::TempDir,
);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn session() -> (Program, Session) {
    let folder = tempfile::tempdir().expect("a folder");
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill-device-tvm"));
    command.args(["device-proxy", "--libraries", ".", "--backend", "tvm"]);
    command.env("TIDEMILL_CACHE", folder.path()).stdin(Stdio::from(OwnedFd::from(theirs)));
    let program = Program(command.spawn().expect("the program"), folder);
    // Without the other end here, the end of the program ends the session.
    drop(command);
    let session = Session::open(Carrier::of_socket(ours).expect("a socket"), "default", "test");
    (program, session.expect("a session"))
}

fn artifact(path: &Path, reference: &Reference) -> Artifact {
    let (hash, bytes) = hash_of_file(path).expect("a file");
    let name = path.file_name().expect("a name").to_string_lossy().into_owned();
    let names = |ports: &[Port]| ports.iter().map(|port| port.name.clone()).collect();
    Artifact {
        name: name.clone(),
        backend: "tvm".to_owned(),
        files: vec![ModelFile { name, hash, bytes }],
        inputs: names(&reference.inputs),
        outputs: names(&reference.outputs),
        options: serde_json::Value::Null,
    }
}

/// Runs a model on the inputs of its reference, of which those in `values` are other ones.
fn run_on(
    session: &Session,
    path: &Path,
    reference: &Reference,
    value: impl Fn(usize, &Port) -> (Vec<usize>, Vec<u8>),
) -> Result<Vec<Value>, CallError> {
    let model = session.load(&artifact(path, reference), |_| Ok(Box::new(File::open(path)?)))?;
    let mut lane = session.lane();
    let mut inputs = Vec::new();
    for (at, port) in reference.inputs.iter().enumerate() {
        let (shape, bytes) = value(at, port);
        inputs.push(lane.upload(port.element, &shape, &bytes)?);
    }
    let wanted: Vec<u32> = (0..reference.outputs.len() as u32).collect();
    let results = lane.run(model, &inputs, &wanted)?;
    let pending = results.iter().map(|result| lane.read(*result)).collect::<Result<Vec<_>, _>>()?;
    drop(lane);
    pending.into_iter().map(|one| one.wait()?.value()).collect()
}

fn run(session: &Session, path: &Path, reference: &Reference) -> Result<Vec<Value>, CallError> {
    run_on(session, path, reference, |at, port| (port.shape.clone(), input(path, at)))
}

fn input(path: &Path, at: usize) -> Vec<u8> {
    fs::read(path.with_extension(format!("in{at}"))).expect("the values of an input")
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (each, _) = bytes.as_chunks::<4>();
    each.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

fn folder() -> PathBuf {
    let folder = std::env::var_os("TIDEMILL_TVM_MODELS");
    folder.expect("scripts/test-backends.sh tvm sets TIDEMILL_TVM_MODELS to the folder of the models").into()
}

fn reference(path: &Path) -> Reference {
    let text = fs::read_to_string(path.with_extension("json")).expect("scripts/test-backends.sh writes it");
    serde_json::from_str(&text).expect("what the script writes")
}

/// Files of the folder that end like this, by name.
fn files(end: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(folder()).expect("a folder").flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|found| found == end)).collect();
    found.sort();
    found
}

fn name(path: &Path) -> String {
    path.file_stem().expect("a name").to_string_lossy().into_owned()
}

/// The references have two records, and the modules compute one at a time.
#[test]
fn outputs_are_those_of_onnx_runtime() {
    let (_program, session) = session();
    let (mut wrong, models) = (Vec::new(), files("so"));
    for path in &models {
        let (name, reference) = (name(path), reference(path));
        let values = match run(&session, path, &reference) {
            Ok(values) => values,
            Err(error) => {
                wrong.push(format!("{name}: {error}"));
                continue;
            }
        };
        let tolerance = if name.ends_with("int8") { TOLERANCE_8_BITS } else { TOLERANCE };
        for (at, (port, value)) in reference.outputs.iter().zip(&values).enumerate() {
            let expected = floats(&fs::read(path.with_extension(format!("out{at}"))).expect("the values"));
            let found = floats(value.bytes());
            assert_eq!((value.element(), value.shape()), (port.element, &port.shape[..]), "{name}");
            let most = expected.iter().fold(0f32, |most, number| most.max(number.abs()));
            let off = expected.iter().zip(&found).fold(0f32, |most, (a, b)| most.max((a - b).abs()));
            println!("{name:28} {:10} differs by {off:.2e} of {most:.2e}", port.name);
            if off > tolerance * most || found.iter().any(|number| number.is_nan()) {
                wrong.push(format!("{name}: {} differs by {off} of {most}", port.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn exactly_these_models_cannot_be_compiled() {
    let refused: Vec<(String, String)> = files("refused")
        .iter()
        .map(|path| (name(path), fs::read_to_string(path).expect("what the command said")))
        .collect();
    let names: Vec<&str> = refused.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, NOT_COMPILED.map(|(name, _)| name), "{refused:?}");
    for ((name, said), (_, reason)) in refused.iter().zip(NOT_COMPILED) {
        assert!(said.contains(reason), "{name}: {said}");
    }
    let models = files("so").len() + refused.len();
    assert!(models >= 22, "the repository has 21 models, and one is for tests; found {models}");
}

#[test]
fn any_number_of_records_runs_in_the_batches_of_the_module() {
    let (_program, session) = session();
    let path = folder().join("scene-features-tiny.so");
    let reference = reference(&path);
    let both = run(&session, &path, &reference).expect("two records");
    let (port, first) = (&reference.inputs[0], input(&path, 0));
    let each = first.len() / port.shape[0];
    // The second record, then the first one three times.
    let order = [1, 0, 0, 0];
    let mixed: Vec<u8> = order.iter().flat_map(|at| first[at * each..(at + 1) * each].to_vec()).collect();
    let shape: Vec<usize> = std::iter::once(order.len()).chain(port.shape[1..].iter().copied()).collect();
    let values =
        run_on(&session, &path, &reference, |_, _| (shape.clone(), mixed.clone())).expect("four records");
    let out = both[0].bytes().len() / 2;
    let expected: Vec<u8> =
        order.iter().flat_map(|at| both[0].bytes()[at * out..(at + 1) * out].to_vec()).collect();
    assert_eq!(values[0].shape()[0], 4);
    assert!(values[0].bytes()[..] == expected[..], "each record has its own result, in its place");
}

#[test]
fn a_tensor_of_another_size_is_refused_with_the_size_that_fits_and_the_session_continues() {
    let (_program, session) = session();
    let path = folder().join("scene-features-tiny.so");
    let reference = reference(&path);
    let refused = run_on(&session, &path, &reference, |_, _| (vec![1, 3, 4, 4], vec![0; 4 * 48]));
    let refused = refused.expect_err("another size").to_string();
    assert!(refused.contains("was compiled for Float32 [1, 3, 128, 128]"), "{refused}");
    assert!(run(&session, &path, &reference).is_ok());
}

#[test]
fn a_file_that_is_no_module_is_refused_and_the_session_continues() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_program, session) = session();
    let none = Reference { inputs: Vec::new(), outputs: Vec::new() };
    for (name, content) in [("broken.so", &b"\x7fELF no library"[..]), ("model.onnx", b"\x08\x09")] {
        let path = folder.path().join(name);
        fs::write(&path, content).expect("it is written");
        let refused = session.load(&artifact(&path, &none), |_| Ok(Box::new(File::open(&path)?)));
        let refused = refused.and_then(|_| session.flush()).expect_err("no model").to_string();
        assert!(refused.contains(&format!("{name} cannot be loaded")), "{refused}");
    }
    session.flush().expect("it continues");
}

#[test]
fn other_names_than_those_of_the_module_are_told() {
    let (_program, session) = session();
    let path = folder().join("scene-features-tiny.so");
    let right = reference(&path);
    let none = Reference { inputs: Vec::new(), outputs: right.outputs };
    let told = run(&session, &path, &none).expect_err("it needs a picture").to_string();
    assert!(told.contains("its inputs are image, but those of its manifest are"), "{told}");
}

/// The client of a daemon may be anybody, and a module is code.
#[test]
fn a_daemon_computes_only_where_its_clients_are_trusted() {
    for trust in ["", "1"] {
        let cache = tempfile::tempdir().expect("a folder");
        let device = format!("tvm{trust}-{}", std::process::id());
        let program = env!("CARGO_BIN_EXE_tidemill-device-tvm");
        let command = ["env", &format!("TIDEMILL_TVM_TRUST_CLIENTS={trust}"), program].map(str::to_owned);
        let daemon = Daemon::start(Options {
            device,
            kind: None,
            listen: vec![Address::tcp("127.0.0.1:0")],
            security: Security::none(),
            command: command.to_vec(),
            cache: cache.path().to_owned(),
            cache_limit: 1 << 30,
            memory: None,
            slots: 1,
            tenants: Tenants::new([], false).expect("no tenants"),
            most_sessions: 4,
            longest_run: Duration::from_secs(60),
        });
        let daemon = daemon.expect("a daemon");
        let opened = dial::open(&daemon.addresses()[0], &Security::none(), "default", "test");
        match (opened, trust) {
            (Ok(session), "1") => assert_eq!(session.snapshot().backends[0].0, "tvm"),
            (Err(refused), "") => assert!(refused.to_string().contains("a TVM module is code"), "{refused}"),
            (opened, _) => panic!("{:?} with {trust:?}", opened.err()),
        }
        drop(daemon);
    }
}
