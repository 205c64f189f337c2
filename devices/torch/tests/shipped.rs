//! The shipped models as TorchScript and as packages, through a session, beside the outputs of ONNX Runtime.
//!
//! `scripts/test-backends.sh torch` writes the TorchScript files and names their folder in `TIDEMILL_TORCH_MODELS`,
//! `scripts/test-backends.sh packages` those of packages in `TIDEMILL_TORCH_PACKAGES`.
use serde::Deserialize;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tidemill_device::carrier::Carrier;
use tidemill_device::device::{Artifact, ModelFile};
use tidemill_device::session::{CallError, Session};
use tidemill_device::store::hash_of_file;
use tidemill_device::value::{Element, Value};

/// Largest difference of two floats, as a part of the largest output of ONNX Runtime.
const TOLERANCE: f32 = 1e-4;
/// The same where ONNX Runtime computes with 8 bits, and libtorch with floats rounded to the same steps: a value at the border
/// between two steps may fall to the other side.
const TOLERANCE_8_BITS: f32 = 5e-2;

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
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidemill-device-torch"));
    command.args(["device-proxy", "--libraries", ".", "--backend", "torch"]);
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
        backend: "torch".to_owned(),
        files: vec![ModelFile { name, hash, bytes }],
        inputs: names(&reference.inputs),
        outputs: names(&reference.outputs),
        options: serde_json::Value::Null,
    }
}

fn run(session: &Session, path: &Path, reference: &Reference) -> Result<Vec<Value>, CallError> {
    let model = session.load(&artifact(path, reference), |_| Ok(Box::new(File::open(path)?)))?;
    let mut lane = session.lane();
    let mut inputs = Vec::new();
    for (at, port) in reference.inputs.iter().enumerate() {
        let bytes = fs::read(path.with_extension(format!("in{at}"))).expect("the values of an input");
        inputs.push(lane.upload(port.element, &port.shape, &bytes)?);
    }
    let wanted: Vec<u32> = (0..reference.outputs.len() as u32).collect();
    let results = lane.run(model, &inputs, &wanted)?;
    let pending = results.iter().map(|result| lane.read(*result)).collect::<Result<Vec<_>, _>>()?;
    drop(lane);
    pending.into_iter().map(|one| one.wait()?.value()).collect()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (each, _) = bytes.as_chunks::<4>();
    each.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

fn folder(variable: &str) -> PathBuf {
    let folder = std::env::var_os(variable);
    folder.unwrap_or_else(|| panic!("scripts/test-backends.sh sets {variable} to a folder of models")).into()
}

/// The files of a folder with this end of their names, by path.
fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    let mut files: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|found| found == end)).collect();
    files.sort();
    files
}

fn reference(path: &Path) -> Reference {
    let text = fs::read_to_string(path.with_extension("json")).expect("scripts/test-backends.sh writes it");
    serde_json::from_str(&text).expect("what the script writes")
}

#[test]
fn outputs_are_those_of_onnx_runtime() {
    let models = files(&folder("TIDEMILL_TORCH_MODELS"), "pt");
    assert!(models.len() >= 21, "the repository has 21 models, found {}", models.len());
    compare(models);
}

#[test]
#[ignore = "scripts/test-backends.sh packages writes the packages, for which it needs PyTorch"]
fn outputs_of_packages_are_those_of_onnx_runtime() {
    let models = files(&folder("TIDEMILL_TORCH_PACKAGES"), "pt2");
    assert!(models.len() >= 2, "found {} packages", models.len());
    compare(models);
}

/// A package does not notice itself that an input is too small, and would read beyond it.
#[test]
#[ignore = "scripts/test-backends.sh packages writes the packages, for which it needs PyTorch"]
fn a_package_refuses_an_input_of_another_shape_and_the_session_continues() {
    let path = folder("TIDEMILL_TORCH_PACKAGES").join("scene-features-tiny.pt2");
    let right = reference(&path);
    let mut wrong = reference(&path);
    let sides = wrong.inputs[0].shape.len();
    wrong.inputs[0].shape.swap(1, sides - 1);
    let (_program, session) = session();
    let told = run(&session, &path, &wrong).expect_err("a picture with its sides swapped").to_string();
    assert!(told.contains("scene-features-tiny.pt2 failed to run"), "{told}");
    run(&session, &path, &right).expect("the session continues");
}

/// Runs models and compares all of their outputs.
fn compare(models: Vec<PathBuf>) {
    let (_program, session) = session();
    let mut wrong = Vec::new();
    for path in models {
        let (name, reference) = (path.file_stem().expect("a name").to_string_lossy(), reference(&path));
        let values = match run(&session, &path, &reference) {
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
            if !(off <= tolerance * most) || found.iter().any(|number| number.is_nan()) {
                wrong.push(format!("{name}: {} differs by {off} of {most}", port.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_file_that_is_no_model_is_refused_and_the_session_continues() {
    let folder = tempfile::tempdir().expect("a folder");
    let (_program, session) = session();
    let path = folder.path().join("broken.pt");
    fs::write(&path, b"PK\x03\x04 no zip").expect("it is written");
    let none = Reference { inputs: Vec::new(), outputs: Vec::new() };
    let refused = session.load(&artifact(&path, &none), |_| Ok(Box::new(File::open(&path)?)));
    let refused = refused.and_then(|_| session.flush()).expect_err("no model").to_string();
    assert!(refused.contains("broken.pt cannot be loaded"), "{refused}");
    assert!(!refused.contains("frame #"), "addresses of a call stack help nobody: {refused}");
    session.flush().expect("it continues");
}

#[test]
fn a_wrong_number_of_inputs_is_told() {
    let (_program, session) = session();
    let path = folder("TIDEMILL_TORCH_MODELS").join("scene-features-tiny.pt");
    let right = reference(&path);
    let none = Reference { inputs: Vec::new(), outputs: right.outputs };
    let told = run(&session, &path, &none).expect_err("it needs a picture").to_string();
    assert!(told.contains("scene-features-tiny.pt failed to run"), "{told}");
}
