//! Models of this repository in a program of a back end, beside what ONNX Runtime computes of the same inputs.
//!
//! `scripts/test-backends.sh` writes a file of each model, and beside it by the same name: `.json` the inputs and outputs, `.in0` and
//! further ones the values of the inputs, `.out0` and further ones those of the outputs. The tests of each back end have this file as a module.
use serde::Deserialize;
use std::fs::{self, File};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;
use tidemill_device::carrier::Carrier;
use tidemill_device::device::{Artifact, ModelFile};
use tidemill_device::session::{CallError, Session};
use tidemill_device::store::hash_of_file;
use tidemill_device::value::{Element, Value};

/// Largest difference of two floats, as a part of the largest output of ONNX Runtime.
const TOLERANCE: f32 = 1e-4;
/// The same where ONNX Runtime computes with 8 bits, and the back end with floats rounded to the same steps: a value at the border
/// between two steps may fall to the other side.
const TOLERANCE_8_BITS: f32 = 5e-2;

#[derive(Deserialize)]
pub struct Port {
    name: String,
    element: Element,
    pub shape: Vec<usize>,
}

/// Inputs and outputs of a model.
#[derive(Default, Deserialize)]
pub struct Reference {
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
}

impl Reference {
    pub fn of(model: &Path) -> Self {
        let text =
            fs::read_to_string(model.with_extension("json")).expect("scripts/test-backends.sh writes it");
        serde_json::from_str(&text).expect("as the script writes it")
    }
}

/// The values of an input.
pub fn input(model: &Path, at: usize) -> Vec<u8> {
    fs::read(model.with_extension(format!("in{at}"))).expect("the values of an input")
}

/// The folder of models that this variable names.
pub fn folder(variable: &str) -> PathBuf {
    let folder = std::env::var_os(variable);
    folder.unwrap_or_else(|| panic!("scripts/test-backends.sh sets {variable} to a folder of models")).into()
}

/// The files of a folder with this end of their names, by path.
pub fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let files = fs::read_dir(folder).expect("a folder").flatten().map(|entry| entry.path());
    let mut found: Vec<PathBuf> =
        files.filter(|path| path.extension().is_some_and(|found| found == end)).collect();
    found.sort();
    found
}

pub fn name(model: &Path) -> String {
    model.file_stem().expect("a name").to_string_lossy().into_owned()
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    let (each, _) = bytes.as_chunks::<4>();
    each.iter().map(|four| f32::from_le_bytes(*four)).collect()
}

/// A process and its files, until this is dropped.
struct Running(Child, #[expect(dead_code, reason = "its files live as long as the process")] TempDir);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A program of a back end, started as an executor starts it, with one session.
pub struct Program {
    session: Session,
    backend: &'static str,
    _running: Running,
}

impl Program {
    pub fn start(backend: &'static str, program: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
        let mut command = Command::new(program);
        command.args(["device-proxy", "--libraries", ".", "--backend", backend]);
        command.env("TIDEMILL_CACHE", folder.path()).stdin(Stdio::from(OwnedFd::from(theirs)));
        let running = Running(command.spawn().expect("the program"), folder);
        // Without the other end here, the end of the program ends the session.
        drop(command);
        let session = Session::open(Carrier::of_socket(ours).expect("a socket"), "default", "test");
        Self { session: session.expect("a session"), backend, _running: running }
    }

    fn artifact(&self, model: &Path, reference: &Reference) -> Artifact {
        let (hash, bytes) = hash_of_file(model).expect("a file");
        let name = model.file_name().expect("a name").to_string_lossy().into_owned();
        let names = |ports: &[Port]| ports.iter().map(|port| port.name.clone()).collect();
        Artifact {
            name: name.clone(),
            backend: self.backend.to_owned(),
            files: vec![ModelFile { name, hash, bytes }],
            inputs: names(&reference.inputs),
            outputs: names(&reference.outputs),
            options: serde_json::Value::Null,
        }
    }

    /// Runs a model on the inputs of its reference.
    pub fn run(&self, model: &Path, reference: &Reference) -> Result<Vec<Value>, CallError> {
        let ports = reference.inputs.iter().enumerate();
        let inputs: Vec<_> = ports.map(|(at, port)| (port.shape.clone(), input(model, at))).collect();
        self.run_on(model, reference, &inputs)
    }

    /// Runs a model on other inputs, which are shapes and values.
    pub fn run_on(
        &self,
        model: &Path,
        reference: &Reference,
        inputs: &[(Vec<usize>, Vec<u8>)],
    ) -> Result<Vec<Value>, CallError> {
        let artifact = self.artifact(model, reference);
        let loaded = self.session.load(&artifact, |_| Ok(Box::new(File::open(model)?)))?;
        let mut lane = self.session.lane();
        let inputs = reference.inputs.iter().zip(inputs);
        let inputs = inputs.map(|(port, (shape, bytes))| lane.upload(port.element, shape, bytes));
        let inputs = inputs.collect::<Result<Vec<_>, _>>()?;
        let wanted: Vec<u32> = (0..reference.outputs.len() as u32).collect();
        let results = lane.run(loaded, &inputs, &wanted)?;
        let pending = results.iter().map(|result| lane.read(*result)).collect::<Result<Vec<_>, _>>()?;
        drop(lane);
        pending.into_iter().map(|one| one.wait()?.value()).collect()
    }

    /// Checks that all outputs of models are those of ONNX Runtime.
    pub fn compare(&self, models: &[PathBuf]) {
        let mut wrong = Vec::new();
        for path in models {
            let (name, reference) = (name(path), Reference::of(path));
            let values = match self.run(path, &reference) {
                Ok(values) => values,
                Err(error) => {
                    wrong.push(format!("{name}: {error}"));
                    continue;
                }
            };
            let tolerance = if name.ends_with("int8") { TOLERANCE_8_BITS } else { TOLERANCE };
            for (at, (port, value)) in reference.outputs.iter().zip(&values).enumerate() {
                let expected = fs::read(path.with_extension(format!("out{at}"))).expect("the values");
                let (expected, found) = (floats(&expected), floats(value.bytes()));
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

    /// Checks that a file with this content is refused as no model, and that the session continues. Returns the reason.
    pub fn refuses(&self, name: &str, content: &[u8]) -> String {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        fs::write(&path, content).expect("it is written");
        let artifact = self.artifact(&path, &Reference::default());
        let refused = self.session.load(&artifact, |_| Ok(Box::new(File::open(&path)?)));
        let refused = refused.and_then(|_| self.session.flush()).expect_err("no model").to_string();
        assert!(refused.contains(&format!("{name} cannot be loaded")), "{refused}");
        self.session.flush().expect("the session continues");
        refused
    }
}
