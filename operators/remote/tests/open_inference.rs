//! Servers of the Open Inference Protocol: `server.py`, over HTTP and gRPC. The interpreter is that of TIDEMILL_TEST_PYTHON, else
//! `python3`; gRPC needs grpcio there, and files of models the version of ONNX Runtime that is here.
use half::f16;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use tidemill_inference::backend::{self, Backend, BackendError, Session};
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::facts::{Dimension, ModelFacts, Port, PortElement};
use tidemill_inference::model::Model;
use tidemill_inference::tensor::{Tensor, TensorData};
use tidemill_remote::open_inference::OpenInference;
use tidemill_remote::tensors::bytes_of;
use tidemill_spec::types::ElementType;

const HERE: &str = env!("CARGO_MANIFEST_DIR");

/// A server in a process of its own, which ends with the test.
pub(crate) struct Server {
    child: Child,
    /// `oip:http://HOST:PORT`.
    pub(crate) device: String,
    /// Its version of ONNX Runtime.
    onnxruntime: Option<String>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    /// Starts a server of `http` or `grpc` with models `NAME=FILE`; none, and a line that says so, if this machine cannot.
    pub(crate) fn start(scheme: &str, files: &[String]) -> Option<Self> {
        let python = std::env::var_os("TIDEMILL_TEST_PYTHON").unwrap_or_else(|| "python3".into());
        let asked =
            Command::new(&python).args(["-c", "import sys; sys.exit(sys.version_info < (3, 10))"]).status();
        if !asked.is_ok_and(|status| status.success()) {
            println!("skipped: {python:?} is no Python 3.10 or newer; TIDEMILL_TEST_PYTHON names one");
            return None;
        }
        let mut child = Command::new(python)
            .arg(Path::new(HERE).join("tests/server.py"))
            .arg(scheme)
            .args(files)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let said: serde_json::Value = serde_json::from_str(&line).expect("the server says its port");
        let onnxruntime = said["onnxruntime"].as_str().map(str::to_owned);
        let port = said["port"].as_u64();
        let server =
            Self { child, device: format!("oip:{scheme}://127.0.0.1:{}", port.unwrap_or(0)), onnxruntime };
        if port.is_none() {
            println!(
                "skipped: no grpcio; `scripts/test-servers.sh python` installs it, and TIDEMILL_TEST_PYTHON names it"
            );
            return None;
        }
        Some(server)
    }

    /// Loads a model: `#NAME`, or options before it.
    fn load(&self, suffix: &str, facts: &ModelFacts) -> Result<Box<dyn Session>, BackendError> {
        OpenInference::at(&format!("{}{suffix}", self.device))?.load(facts)
    }

    fn loaded(&self, suffix: &str, facts: &ModelFacts) -> Box<dyn Session> {
        self.load(suffix, facts).unwrap_or_else(|error| panic!("{suffix}: {error}"))
    }
}

/// The servers that this machine can start.
fn servers() -> Vec<Server> {
    ["http", "grpc"].into_iter().filter_map(|scheme| Server::start(scheme, &[])).collect()
}

fn port(name: &str, element: ElementType) -> Port {
    let shape = vec![Dimension::Free("batch".into()), Dimension::Fixed(2)];
    Port { name: name.into(), element: PortElement::Known(element), shape: Some(shape) }
}

/// Facts of a model that reads `x` and gives `y`.
fn facts(element: ElementType) -> ModelFacts {
    let (inputs, outputs) = (vec![port("x", element)], vec![port("y", element)]);
    ModelFacts { inputs, outputs, ..ModelFacts::of_bytes(Path::new("model.onnx"), b"") }
}

fn floats() -> Tensor {
    Tensor::new(vec![1, 2], TensorData::Float32(vec![0.5, -0.0])).unwrap()
}

#[test]
fn every_element_type_goes_there_and_back() {
    let all = [
        ("FP32", TensorData::Float32(vec![1.5, f32::MIN_POSITIVE, f32::INFINITY, -0.0])),
        ("FP16", TensorData::Float16([1.5, -2.0, 65504.0, 0.0].map(f16::from_f64).to_vec())),
        ("FP64", TensorData::Float64(vec![1.5, f64::MIN_POSITIVE, f64::MAX, -0.0])),
        ("INT64", TensorData::Int64(vec![i64::MIN, -1, 1 << 40, i64::MAX])),
        ("INT32", TensorData::Int32(vec![i32::MIN, -1, 1, i32::MAX])),
        ("INT8", TensorData::Int8(vec![i8::MIN, -1, 1, i8::MAX])),
        ("UINT8", TensorData::Uint8(vec![0, 1, 254, 255])),
        ("BOOL", TensorData::Bool(vec![true, false, false, true])),
        ("BYTES", TensorData::Text(["", "a", "Größe \u{1f980}", "\0\n"].map(str::to_owned).to_vec())),
    ];
    for server in servers() {
        for (name, data) in &all {
            let mut session = server.loaded(&format!("#echo-{name}"), &facts(data.element()));
            let tensor = Tensor::new(vec![2, 2], data.clone()).unwrap();
            assert_eq!(session.run(std::slice::from_ref(&tensor), &[0]).unwrap(), [tensor], "{name}");
            let none = Tensor::zeros(data.element(), vec![0, 2]);
            assert_eq!(session.run(std::slice::from_ref(&none), &[0]).unwrap(), [none], "{name}");
        }
        let mut session = server.loaded("#texts", &facts(ElementType::Text));
        let texts =
            |a: &str, b: &str| Tensor::new(vec![1, 2], TensorData::Text(vec![a.into(), b.into()])).unwrap();
        assert_eq!(session.run(&[texts("ä", "no")], &[0]).unwrap(), [texts("ää", "nono")]);
        // Integers that stand for truth values.
        let mut session = server.loaded("#echo-BOOL", &facts(ElementType::Bool));
        let numbers = Tensor::new(vec![1, 2], TensorData::Int64(vec![0, 7])).unwrap();
        let truth = Tensor::new(vec![1, 2], TensorData::Bool(vec![false, true])).unwrap();
        assert_eq!(session.run(&[numbers], &[0]).unwrap(), [truth]);
    }
}

#[test]
fn a_tensor_of_many_megabytes_goes_there_and_back() {
    for server in servers() {
        let mut session = server.loaded("#echo-INT32", &facts(ElementType::Int32));
        let many = Tensor::new(vec![2 << 20, 2], TensorData::Int32((0..4 << 20).collect())).unwrap();
        assert!(session.run(std::slice::from_ref(&many), &[0]).unwrap() == [many]);
    }
}

#[test]
fn a_model_that_is_not_the_one_of_the_file_is_refused_in_words() {
    for server in servers() {
        let text =
            |suffix, facts: &ModelFacts| server.load(suffix, facts).err().expect("it is refused").to_string();
        let float = facts(ElementType::Float32);
        let missing = text("", &float);
        assert!(missing.contains("unknown model: 'model'") && missing.contains("`#NAME`"), "{missing}");
        let missing = text("#a/b%", &float);
        assert!(missing.contains("a model `a/b%`"), "{missing}");
        let loading = text("#loading", &float);
        assert!(loading.contains("`loading`") && loading.contains("is not ready; wait"), "{loading}");
        let type_ = text("#echo-FP16", &float);
        assert!(type_.contains("input `x` is FP16 [-1, 2] on the server, and [batch, 2] float32"), "{type_}");
        let mut wide = facts(ElementType::Float32);
        wide.outputs[0].shape = Some(vec![Dimension::Free(String::new()); 3]);
        wide.inputs.push(port("z", ElementType::Float32));
        let wide = text("#echo-FP32", &wide);
        assert!(wide.contains("no input `z`, but x; output `y` is FP32 [-1, 2]"), "{wide}");
        // It says nothing, so nothing can be wrong.
        server.loaded("#silent", &float);
    }
}

#[test]
fn the_name_is_that_of_the_device_the_manifest_or_the_file() {
    for server in servers() {
        let float = ModelFacts { path: "folder/fails.onnx".into(), ..facts(ElementType::Float32) };
        let of_file = OpenInference::at(&server.device).unwrap();
        assert_eq!(of_file.version(), "odd 1.0");
        let error = of_file.load(&float).unwrap().run(&[floats()], &[0]).unwrap_err().to_string();
        assert!(error.contains("failed to run fails at "), "{error}");
        let of_manifest = OpenInference::at(&server.device).unwrap().for_model("echo-FP32");
        assert_eq!(of_manifest.load(&float).unwrap().run(&[floats()], &[0]).unwrap(), [floats()]);
        let of_device =
            OpenInference::at(&format!("{}#echo-FP32", server.device)).unwrap().for_model("fails");
        assert_eq!(of_device.load(&float).unwrap().run(&[floats()], &[0]).unwrap(), [floats()]);
    }
}

#[test]
fn the_error_of_a_model_is_told_and_the_session_continues() {
    for server in servers() {
        let mut session = server.loaded("#fails", &facts(ElementType::Float32));
        for _ in 0..2 {
            let error = session.run(&[floats()], &[0]).unwrap_err();
            assert!(matches!(error, BackendError::Run { .. }), "{error:?}");
            assert!(error.to_string().contains("the cat sat on it, 50 % of Größe"), "{error}");
        }
        let mut session = server.loaded("#json", &facts(ElementType::Float32));
        let error = session.run(&[floats()], &[0]).unwrap_err();
        assert!(matches!(error, BackendError::Run { .. }) && error.to_string().contains("bytes"), "{error}");
        let error = session.run(&[], &[0]).unwrap_err().to_string();
        assert!(error.contains("0 inputs given, it has 1"), "{error}");
        assert!(session.run(&[floats()], &[7]).is_err_and(|error| error.to_string().contains("no output 7")));
    }
}

#[test]
fn a_server_that_dies_is_lost_not_wrong() {
    for scheme in ["http", "grpc"] {
        for model in ["dies", "half"] {
            let Some(mut server) = Server::start(scheme, &[]) else { continue };
            if (scheme, model) == ("grpc", "half") {
                continue; // the library of Python sends whole answers
            }
            let mut session = server.loaded(&format!("#{model}"), &facts(ElementType::Float32));
            for _ in 0..2 {
                let error = session.run(&[floats()], &[0]).unwrap_err();
                assert!(matches!(error, BackendError::Lost { .. }), "{scheme} {model}: {error:?}");
            }
            assert_eq!(server.child.wait().unwrap().code(), Some(1), "it ended by itself");
            let error = server.load("", &facts(ElementType::Float32)).err().expect("it is gone");
            assert!(matches!(error, BackendError::Lost { .. }), "{error:?}");
            assert!(error.to_string().contains("start the server, or correct the address"), "{error}");
        }
    }
}

#[test]
fn a_server_without_an_answer_and_an_unloaded_model_are_lost() {
    for server in servers() {
        let mut session = server.loaded("?timeout=200ms#never", &facts(ElementType::Float32));
        let error = session.run(&[floats()], &[0]).unwrap_err();
        assert!(matches!(error, BackendError::Lost { .. }), "{error:?}");
        assert!(
            error.to_string().contains("no answer in 200ms") && error.to_string().contains("?timeout="),
            "{error}"
        );
        let mut session = server.loaded("#unloaded", &facts(ElementType::Float32));
        let error = session.run(&[floats()], &[0]).unwrap_err();
        assert!(matches!(error, BackendError::Lost { .. }), "{error:?}");
        assert!(error.to_string().contains("model 'unloaded' is not loaded"), "{error}");
    }
}

#[test]
fn a_connection_is_kept() {
    let Some(server) = Server::start("http", &[]) else { return };
    let facts = ModelFacts {
        inputs: vec![],
        outputs: vec![port("y", ElementType::Int64)],
        ..facts(ElementType::Int64)
    };
    let mut session = server.loaded(
        "#connections",
        &ModelFacts { outputs: vec![Port { shape: None, ..facts.outputs[0].clone() }], ..facts },
    );
    for _ in 0..3 {
        assert_eq!(session.run(&[], &[0]).unwrap()[0].as_i64(), Some([1].as_slice()));
    }
}

/// Manifests of the shipped models.
fn manifests() -> Vec<PathBuf> {
    let folders = ["vqa", "aicity"].map(|name| Path::new(HERE).join("../../models").join(name));
    let mut all: Vec<PathBuf> = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()))
        .filter(|path| path.extension().is_some_and(|end| end == "yaml"))
        .collect();
    all.sort();
    all
}

/// A tensor of numbers from a fixed generator.
fn numbers(port: &Port, batch: usize) -> Tensor {
    let size = |(at, dimension): (usize, &Dimension)| match dimension {
        Dimension::Fixed(size) => *size,
        Dimension::Free(_) if at == 0 => batch,
        Dimension::Free(_) => 64, // for models that take any width
    };
    let shape: Vec<usize> = port.shape.as_ref().unwrap().iter().enumerate().map(size).collect();
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let random = std::iter::repeat_with(next).take(shape.iter().product());
    let data = match port.element {
        PortElement::Known(ElementType::Float32) => {
            TensorData::Float32(random.map(|bits| (bits >> 40) as f32 / (1 << 23) as f32 - 1.0).collect())
        }
        PortElement::Known(ElementType::Int64) => {
            TensorData::Int64(random.map(|bits| (bits % 5) as i64).collect())
        }
        PortElement::Known(ElementType::Uint8) => {
            TensorData::Uint8(random.map(|bits| (bits >> 56) as u8).collect())
        }
        _ => panic!("no shipped model reads {}", port.type_text()),
    };
    Tensor::new(shape, data).unwrap()
}

#[test]
fn shipped_models_give_there_what_they_give_here() {
    let ort = match backend::backend("ort", Path::new(HERE)) {
        Ok(ort) => ort,
        Err(error) => return println!("skipped: {error}"),
    };
    let blueprints: Vec<Arc<Blueprint>> =
        manifests().iter().map(|path| Blueprint::read(path).unwrap()).collect();
    assert!(blueprints.len() >= 20, "{}", blueprints.len());
    let file = |blueprint: &Arc<Blueprint>| {
        format!("{}={}", blueprint.manifest.id.value, blueprint.facts.path.display())
    };
    let files: Vec<String> = blueprints.iter().map(file).collect();
    for scheme in ["http", "grpc"] {
        let Some(server) = Server::start(scheme, &files) else { continue };
        if server.onnxruntime.as_deref() != Some(ort.version().as_str()) {
            println!(
                "skipped: ONNX Runtime is {} here, and {:?} in Python",
                ort.version(),
                server.onnxruntime
            );
            continue;
        }
        for blueprint in &blueprints {
            let (facts, id) = (&blueprint.facts, blueprint.manifest.id.to_string());
            let there = OpenInference::at(&server.device).unwrap().for_model(&id);
            let mut sessions =
                [ort.load(facts).unwrap(), there.load(facts).unwrap_or_else(|error| panic!("{error}"))];
            // As a plan's stage loads it, although no manifest names the backend; zeros are tried.
            let model = Model::load(Arc::clone(blueprint), &there).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(model.backend(), "oip");
            let outputs: Vec<usize> = (0..facts.outputs.len()).collect();
            for batch in if blueprint.one_by_one { vec![1] } else { vec![1, 3] } {
                let inputs: Vec<Tensor> = facts.inputs.iter().map(|port| numbers(port, batch)).collect();
                let [a, b] = sessions.each_mut().map(|session| session.run(&inputs, &outputs).unwrap());
                assert_eq!(a.len(), facts.outputs.len());
                for (a, b) in a.iter().zip(&b) {
                    assert_eq!(a.shape(), b.shape(), "{id}");
                    assert!(bytes_of(a) == bytes_of(b), "{scheme} {id}, batch {batch}");
                }
            }
        }
        println!("{} models over {scheme}", blueprints.len());
    }
}
