//! A workflow whose plan puts a model on a server of the Open Inference Protocol.
use crate::open_inference::Server;
use std::path::Path;
use std::time::Duration;
use tidemill_engine::{Program, Run, RunOptions};
use tidemill_inference::MlKind;
use tidemill_operators::bind::{Choice, bind_workflow};
use tidemill_operators::registry::Registry;
use tidemill_spec::plan::Plan;
use tidemill_spec::workflow::Workflow;

const WORKFLOW: &str = r#"
version: 1
name: norms
sources: [{id: rows, kind: jsonl, options: {path: rows.jsonl, columns: {x: "tensor<float32>[4]"}}}]
operators: [{id: norm, kind: ml, input: rows, variants: [identity.yaml]}]
sinks: [{id: norms, kind: jsonl, input: norm, options: {path: norms.jsonl}}]
"#;

fn plan(device: &str) -> String {
    format!(
        "
version: 1
workflow: {{name: norms}}
workers: [{{id: here, tier: here, worker_type: here}}]
stages:
  - {{id: rows, operator: rows, worker: here}}
  - {{id: norm, operator: norm, variant: identity, device: \"{device}\", worker: here, max_batch: 4}}
  - {{id: norms, operator: norms, worker: here}}
classes: [{{id: 0, share: 1.0, route: {{rows: rows, norm: norm, norms: norms}}}}]
edges: [{{from: rows, to: norm}}, {{from: norm, to: norms}}]
"
    )
}

/// A folder with the workflow and its rows: numbers from 0 to 19.
pub(crate) fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../inference/testdata");
    for name in ["identity.yaml", "identity.onnx"] {
        std::fs::copy(testdata.join(name), folder.path().join(name)).unwrap();
    }
    let rows: String = (0..20).map(|row| format!("{{\"x\": [{row}, 1, 2, 3]}}\n")).collect();
    std::fs::write(folder.path().join("rows.jsonl"), rows).unwrap();
    std::fs::write(folder.path().join("workflow.yaml"), WORKFLOW).unwrap();
    folder
}

/// Runs the workflow with the model on this device; returns its rows.
fn run(folder: &Path, device: &str) -> Result<String, String> {
    tidemill_remote::executor::install();
    let workflow = Workflow::load(folder.join("workflow.yaml")).unwrap();
    let mut registry = Registry::builtin();
    registry.register_operator(MlKind::default());
    let bound = bind_workflow(&workflow, &registry, |_| Choice::default()).unwrap();
    let (sources, operators, sinks) = (bound.sources, bound.operators, bound.sinks);
    let plan = Plan::parse(&plan(device), "plan.yaml").unwrap();
    let (on_panic, when_cut) = Default::default();
    let program = Program { plan, sources, operators, sinks, on_panic, when_cut };
    let run = Run::start(program, RunOptions::default()).map_err(|error| error.to_string())?;
    let report = run.wait_for(Duration::from_secs(50)).expect("does not hang").unwrap();
    assert!(report.complete);
    Ok(std::fs::read_to_string(folder.join("norms.jsonl")).unwrap())
}

#[test]
fn the_rows_of_a_server_are_those_of_this_process() {
    let folder = folder();
    let expected = run(folder.path(), "cpu").unwrap();
    assert_eq!(expected.lines().count(), 20);
    for scheme in ["http", "grpc"] {
        let Some(server) = Server::start(scheme, &[]) else { continue };
        assert_eq!(run(folder.path(), &server.device).unwrap(), expected, "{scheme}");
    }
}

#[test]
fn a_server_that_dies_within_a_run_costs_no_row() {
    let folder = folder();
    let expected = run(folder.path(), "cpu").unwrap();
    for scheme in ["http", "grpc"] {
        let Some(server) = Server::start(scheme, &[]) else { continue };
        // The row with a 7 ends it.
        let device = format!("{}#mortal", server.device);
        assert_eq!(run(folder.path(), &device).unwrap(), expected, "{scheme}");
        let refused = run(folder.path(), &device).unwrap_err();
        assert!(refused.contains("start the server, or correct the address"), "{refused}");
    }
}
