//! A program adds its own backend and runs a workflow with it.
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tidemill_engine::{Program, Run, RunOptions};
use tidemill_inference::backend::{self, Backend, BackendError, Registration, Session};
use tidemill_inference::error::ModelError;
use tidemill_inference::facts::ModelFacts;
use tidemill_inference::tensor::{Tensor, TensorData};
use tidemill_inference::{MlKind, load_manifest, verify};
use tidemill_operators::bind::{Choice, bind_workflow};
use tidemill_operators::registry::Registry;
use tidemill_spec::plan::Plan;
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

const QUARTER: Registration =
    Registration { name: "quarter", summary: "A constant.", open: |_| Ok(Arc::new(Quarter)) };

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

    let workflow = Workflow::load(folder.path().join("workflow.yaml")).unwrap();
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
    let rows = std::fs::read_to_string(folder.path().join("rows.jsonl")).unwrap();
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
