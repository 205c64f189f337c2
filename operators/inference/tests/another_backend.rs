//! A program adds its own backend and runs a workflow with it.
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidemill_engine::{Program, Run, RunOptions};
use tidemill_inference::backend::{self, Backend, BackendError, Registration, Session};
use tidemill_inference::blueprint::Blueprint;
use tidemill_inference::error::ModelError;
use tidemill_inference::facts::{Dimension, FactsError, ModelFacts, Port, PortElement};
use tidemill_inference::tensor::{Tensor, TensorData};
use tidemill_inference::{MlKind, load_manifest, verify};
use tidemill_operators::bind::{Choice, bind_workflow};
use tidemill_operators::registry::Registry;
use tidemill_spec::digest::sha256;
use tidemill_spec::plan::Plan;
use tidemill_spec::types::ElementType;
use tidemill_spec::workflow::Workflow;

/// Always returns a quarter.
struct Quarter;

impl Backend for Quarter {
    fn name(&self) -> &'static str {
        "quarter"
    }
    fn version(&self) -> String {
        "1".to_owned()
    }
    fn load(&self, _facts: &ModelFacts) -> Result<Box<dyn Session>, BackendError> {
        Ok(Box::new(Quarter))
    }
}

impl Session for Quarter {
    fn run(&mut self, inputs: &[Tensor], outputs: &[usize]) -> Result<Vec<Tensor>, BackendError> {
        let rows = inputs[0].rows();
        let given = || Tensor::new(vec![rows, 3], TensorData::Float32(vec![0.25; rows * 3])).unwrap();
        Ok(outputs.iter().map(|_| given()).collect())
    }
}

const QUARTER: Registration = Registration::onnx("quarter", "A constant.", |_| Ok(Arc::new(Quarter)));

/// Reads a format of its own: a text with the names and lengths of one input and one output, and the value of all numbers.
struct Plain;

impl Plain {
    fn facts(path: &Path) -> Result<(ModelFacts, f32), FactsError> {
        let unreadable = |source| FactsError::Unreadable { path: path.to_owned(), source };
        let text = std::fs::read_to_string(path).map_err(unreadable)?;
        let other = || FactsError::Other { path: path.to_owned(), reason: format!("no plain model: {text}") };
        let words: Vec<&str> = text.split_whitespace().collect();
        let ["plain", input, output, value] = words[..] else { return Err(other()) };
        let port = |name: &str, sizes: &[usize]| {
            let sizes = sizes.iter().map(|size| Dimension::Fixed(*size));
            let shape = std::iter::once(Dimension::Free("batch".to_owned())).chain(sizes).collect();
            let element = PortElement::Known(ElementType::Float32);
            Port { name: name.to_owned(), element, shape: Some(shape) }
        };
        let (inputs, outputs) = (vec![port(input, &[3, 8, 8])], vec![port(output, &[3])]);
        let facts = ModelFacts { inputs, outputs, ..ModelFacts::of_bytes(path, text.as_bytes()) };
        Ok((facts, value.parse().map_err(|_| other())?))
    }
}

impl Backend for Plain {
    fn name(&self) -> &'static str {
        "plain"
    }
    fn version(&self) -> String {
        "1".to_owned()
    }
    fn load(&self, facts: &ModelFacts) -> Result<Box<dyn Session>, BackendError> {
        Ok(Box::new(Constant(Self::facts(&facts.path).unwrap().1)))
    }
}

struct Constant(f32);

impl Session for Constant {
    fn run(&mut self, inputs: &[Tensor], _outputs: &[usize]) -> Result<Vec<Tensor>, BackendError> {
        let rows = inputs[0].rows();
        Ok(vec![Tensor::new(vec![rows, 3], TensorData::Float32(vec![self.0; rows * 3])).unwrap()])
    }
}

const PLAIN: Registration = Registration {
    inspect: |path| Plain::facts(path).map(|(facts, _)| facts),
    ..Registration::onnx("plain", "Reads texts.", |_| Ok(Arc::new(Plain)))
};

const WORKFLOW: &str = "
version: 1
name: quarters
sources: [{id: images, kind: image_directory, options: {path: images}}]
operators: [{id: means, kind: ml, input: images, variants: [model.yaml], backend: quarter}]
sinks: [{id: rows, kind: jsonl, input: means, options: {path: rows.jsonl}}]
";

const PLAN: &str = "
version: 1
workflow: {name: quarters}
workers: [{id: here, tier: here, worker_type: here}]
stages:
  - {id: images, operator: images, worker: here}
  - {id: means, operator: means, variant: image-means, worker: here, max_batch: 4}
  - {id: rows, operator: rows, worker: here}
classes: [{id: 0, share: 1.0, route: {images: images, means: means, rows: rows}}]
edges: [{from: images, to: means}, {from: means, to: rows}]
";

/// A folder with three pictures and the manifest of a model that runs on `backends`.
fn folder(backends: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("testdata");
    let manifest = std::fs::read_to_string(testdata.join("image_means.yaml")).unwrap();
    let manifest = manifest.replace("backends: [rten, ort]", &format!("backends: {backends}"));
    std::fs::write(folder.path().join("model.yaml"), manifest).unwrap();
    std::fs::copy(testdata.join("image_means.onnx"), folder.path().join("image_means.onnx")).unwrap();
    std::fs::create_dir(folder.path().join("images")).unwrap();
    for name in ["a", "b", "c"] {
        let path = folder.path().join(format!("images/{name}.png"));
        image::RgbImage::from_pixel(8, 8, image::Rgb([9, 9, 9])).save(path).unwrap();
    }
    std::fs::write(folder.path().join("workflow.yaml"), WORKFLOW).unwrap();
    folder
}

/// Runs the workflow of a folder; gives its rows.
fn run(folder: &Path) -> String {
    let workflow = Workflow::load(folder.join("workflow.yaml")).unwrap();
    assert!(backend::check_workflow(&workflow).is_empty());
    let mut registry = Registry::builtin();
    registry.register_operator(MlKind::default());
    let bound = bind_workflow(&workflow, &registry, |_| Choice::default()).unwrap();
    let plan = Plan::parse(PLAN, "plan.yaml").unwrap();
    let (sources, operators, sinks) = (bound.sources, bound.operators, bound.sinks);
    let program = Program {
        plan,
        sources,
        operators,
        sinks,
        on_panic: Default::default(),
        when_cut: Default::default(),
    };
    let run = Run::start(program, RunOptions::default()).unwrap();
    let report = run.wait_for(Duration::from_secs(50)).expect("does not hang").unwrap();
    assert!(report.complete);
    std::fs::read_to_string(folder.join("rows.jsonl")).unwrap()
}

#[test]
fn a_backend_loads_a_file_of_its_own() {
    const TEXT: &str = "plain image means 0.5";
    assert!(backend::register(PLAIN));
    let folder = folder("[plain, rten]");
    let path = folder.path().join("model.yaml");
    let write = |file: &str, from: &str, to: &str| {
        let text = std::fs::read_to_string(folder.path().join(file)).unwrap();
        std::fs::write(folder.path().join(file), text.replacen(from, to, 1)).unwrap();
    };
    write("workflow.yaml", "backend: quarter", "backend: plain");
    let artifact =
        format!("artifacts: {{plain: {{file: means.txt, sha256: {}}}}}\nlicence:", sha256(TEXT.as_bytes()));
    write("model.yaml", "licence:", &artifact);
    let missing = Blueprint::read(&path).unwrap_err();
    assert!(matches!(&missing[..], [ModelError::File { .. }]), "{missing:?}");
    std::fs::write(folder.path().join("means.txt"), TEXT).unwrap();
    let rows = run(folder.path());
    assert_eq!(rows.matches("[0.5,0.5,0.5]").count(), 3, "{rows}");
    let names: Vec<String> =
        verify(&path, folder.path()).unwrap().backends.into_iter().map(|one| one.backend).collect();
    assert_eq!(names, ["plain", "rten"], "each loads its own file");

    // Where all backends have one, `file` may be left out.
    let text = std::fs::read_to_string(&path).unwrap().replace("[plain, rten]", "[plain]");
    let kept = |line: &&str| !line.starts_with("file:") && !line.starts_with("sha256:");
    let text: Vec<&str> = text.lines().filter(kept).collect();
    std::fs::write(&path, text.join("\n")).unwrap();
    std::fs::remove_file(folder.path().join("image_means.onnx")).unwrap();
    assert_eq!(run(folder.path()), rows);
    // Its own code reads what the file declares.
    let other = "plain image others 0.5";
    std::fs::write(folder.path().join("means.txt"), other).unwrap();
    let text = text.join("\n").replace(&sha256(TEXT.as_bytes()), &sha256(other.as_bytes()));
    std::fs::write(&path, text).unwrap();
    let found = Blueprint::read(&path).unwrap_err();
    assert!(matches!(&found[..], [ModelError::NoPort { name, .. }] if name == "means"), "{found:?}");
}

#[test]
fn a_registered_backend_runs_a_workflow() {
    let folder = folder("[quarter, rten]");
    let manifest = folder.path().join("model.yaml");
    let unknown = load_manifest(&manifest).unwrap_err().render(false);
    assert!(unknown.contains("unknown value `quarter`"), "{unknown}");

    assert!(backend::register(QUARTER));
    assert!(!backend::register(QUARTER), "the name is taken");
    assert_eq!(backend::registered().filter(|backend| backend.name == "quarter").count(), 1);
    assert!(load_manifest(&manifest).is_ok());

    let rows = run(folder.path());
    assert_eq!(rows.matches("[0.25,0.25,0.25]").count(), 3, "{rows}");

    // It does not compute what the model says, which a comparison shows.
    let report = verify(&manifest, folder.path()).unwrap();
    assert!(!report.is_usable());
    let differing = report.backends.iter().find(|backend| backend.backend == "rten").unwrap();
    match &differing.result {
        Err(ModelError::Differs { backend, other, output, difference, tolerance, .. }) => {
            assert_eq!((backend.as_str(), other.as_str(), output.as_str()), ("rten", "quarter", "means"));
            assert!(difference > tolerance && *difference < 30.0, "{difference}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn an_unknown_backend_is_told_with_its_place_and_the_nearest_one() {
    let folder = folder("[rten, ortt]");
    let found = load_manifest(&folder.path().join("model.yaml")).unwrap_err();
    let first = found.iter().next().unwrap();
    assert_eq!((first.code, first.line(), first.column()), ("E0114", Some(8), Some(18)));
    assert!(first.render(false).contains("did you mean `ort`?"), "{}", first.render(false));

    let text = WORKFLOW.replace("backend: quarter", "backend: rtem");
    let workflow = Workflow::parse(&text, "workflow.yaml").unwrap();
    let found = backend::check_workflow(&workflow);
    let first = found.iter().next().unwrap();
    assert_eq!((first.code, first.line()), ("E0114", Some(5)));
    assert!(first.render(false).contains("did you mean `rten`?"), "{}", first.render(false));
    let auto = WORKFLOW.replace("backend: quarter", "backend: auto");
    assert!(backend::check_workflow(&Workflow::parse(&auto, "workflow.yaml").unwrap()).is_empty());
}
