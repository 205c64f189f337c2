//! Who opens what of a workflow.
use super::*;
use crate::listener::Silent;
use crate::sent::Sent;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use tidemill_engine::{ExecutorFactory, ExecutorRequest, ModelExecutor, Run, RunOptions, register_executors};
use tidemill_operators::api::MakeInstance;

const PLAN: &str = "version: 1
workflow: {name: two}
workers:
  - {id: a, tier: edge, worker_type: small}
  - {id: b, tier: edge, worker_type: small}
stages:
  - {id: left, operator: left, worker: a}
  - {id: right, operator: right, worker: b}
  - {id: lefts, operator: lefts, worker: a}
  - {id: rights, operator: rights, worker: b}
classes: [{id: 0, share: 1, route: {left: left, right: right, lefts: lefts, rights: rights}}]
edges: [{from: left, to: lefts}, {from: right, to: rights}]
";

struct Files(tempfile::TempDir);

impl Files {
    /// Two sources and two sinks, the second one with a ground truth; none of their files is there.
    fn new(left: &str, right: &str) -> Self {
        let files = Self(tempfile::tempdir().unwrap());
        let folder = files.0.path().display().to_string();
        let source = |id: &str, path: &str| {
            format!(
                "  - {{id: {id}, kind: csv, options: {{path: {path}, columns: {{k: text, v: int64}}}}}}\n"
            )
        };
        let text = format!(
            "version: 1\nname: two\nsources:\n{}{}sinks:\n  - {{id: lefts, kind: jsonl, input: left, options: {{path: l.jsonl}}}}\n  \
             - {{id: rights, kind: jsonl, input: right, options: {{path: r.jsonl}}, ground_truth: {{path: truth.csv, key: k, \
             prediction: v, truth: right}}}}\n",
            source("left", &left.replace("FOLDER", &folder)),
            source("right", &right.replace("FOLDER", &folder)),
        );
        files.write("workflow.yaml", &text);
        files.write("plan.yaml", PLAN);
        files
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.path(file), text).unwrap();
    }

    fn plan(&self) -> Plan {
        PlanFile::load(self.path("plan.yaml")).unwrap().plan
    }

    fn prepared(&self, scope: Scope<'_>) -> anyhow::Result<Prepared> {
        let file = self.path("workflow.yaml");
        let workflow = match scope {
            Scope::Elsewhere(sent) => sent.load(&Silent)?,
            _ => load(&file, &variables::environment, Scope::Manifests, &Silent)?,
        };
        prepare(workflow, PlanFrom::Given(&self.plan()), scope, &Silent)
    }

    fn worker(&self, worker: &str, judge: Judge) -> anyhow::Result<Prepared> {
        self.prepared(Scope::Worker(worker, judge))
    }

    fn elsewhere(&self) -> Result<Prepared, String> {
        let sent = Sent { folder: self.0.path(), workflow: "workflow.yaml", variables: &BTreeMap::default() };
        self.prepared(Scope::Elsewhere(&sent)).map_err(|error| format!("{error:#}"))
    }
}

#[test]
fn a_worker_opens_its_own_and_nothing_else() {
    let files = Files::new("left.csv", "right.csv");
    files.write("left.csv", "k,v\nx,1\n");
    let prepared = files.worker("a", Judge::OfThisMachine).unwrap();
    let sources = &prepared.program.sources;
    assert!((sources["left"].make)().is_ok());
    assert!((sources["right"].make)().err().unwrap().message.contains("not opened here"));
    let refused = files.worker("b", Judge::OfThisMachine).err().unwrap();
    assert!(files.prepared(Scope::Manifests).is_ok(), "a coordinator can be told");
    let told = refused.to_string();
    assert!(told.contains("source `right`") && !told.contains("left"), "{told}");
    files.write("right.csv", "k,v\nx,1\n");
    let told = files.worker("b", Judge::OfThisMachine).err().unwrap().to_string();
    assert!(told.contains("E0610") && told.contains("ground truth of `rights`"), "{told}");
    // Before the check is passed, no coordinator can be informed.
    files.write(
        "workflow.yaml",
        &std::fs::read_to_string(files.path("workflow.yaml")).unwrap().replace("v: int64", "v: int65"),
    );
    assert!(files.prepared(Scope::Manifests).is_err());
}

#[test]
fn a_plan_without_policies_has_those_of_its_workflow() {
    let files = Files::new("left.csv", "right.csv");
    let text = std::fs::read_to_string(files.path("workflow.yaml")).unwrap();
    files
        .write("workflow.yaml", &format!("{text}policies: [{{edge: left -> lefts, log: {{size: 1MiB}}}}]\n"));
    let ids = || -> Vec<String> {
        let policies = files.prepared(Scope::Manifests).unwrap().program.plan.policies;
        policies.into_iter().map(|policy| policy.id).collect()
    };
    assert_eq!(ids(), ["log-1"]);
    files.write("plan.yaml", &format!("{PLAN}policies: [{{id: own, kind: log}}]\n"));
    assert_eq!(ids(), ["own"]);
}

#[test]
fn all_workers_and_the_judge_make_the_same_of_a_plan() {
    let files = Files::new("left.csv", "right.csv");
    for file in ["left.csv", "right.csv"] {
        files.write(file, "k,v\nx,1\n");
    }
    files.write("truth.csv", "k,right\nx,1\n");
    let outputs = |prepared: Prepared| -> Vec<String> {
        prepared.program.sources.values().map(|source| source.output.to_string()).collect()
    };
    let judged = outputs(files.elsewhere().unwrap());
    for worker in ["a", "b"] {
        assert_eq!(outputs(files.worker(worker, Judge::Elsewhere).unwrap()), judged);
    }
}

#[test]
fn what_was_sent_is_judged_at_once_and_what_lies_on_workers_is_not() {
    let files = Files::new("FOLDER/left.csv", "right.csv");
    let told = files.elsewhere().err().unwrap();
    assert!(told.contains("source `right`") && !told.contains("source `left`"), "{told}");
    files.write("right.csv", "k,v\nx,1\n");
    let told = files.elsewhere().err().unwrap();
    assert!(told.contains("ground truth of `rights`"), "{told}");
    files.write("truth.csv", "k,right\nx,1\n");
    let prepared = files.elsewhere().unwrap();
    assert_eq!(prepared.program.sinks["rights"].ground_truth.as_ref().unwrap().answers.len(), 1);
    assert!(prepared.workflow.sources.iter().map(is_of_worker).eq([true, false]));
    assert!(files.worker("a", Judge::Elsewhere).err().unwrap().to_string().contains("source `left`"));
}

/// A controller took it for a file; who sees the same files as the worker has seen what it is.
#[test]
fn a_pipe_contradicts_only_who_did_not_look() {
    let files = Files::new("FOLDER/left.csv", "right.csv");
    rustix::fs::mknodat(rustix::fs::CWD, files.path("left.csv"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    assert!(files.worker("a", Judge::OfThisMachine).is_ok());
    let told = files.worker("a", Judge::Elsewhere).err().unwrap().to_string();
    assert!(told.contains("E0616") && told.contains("`stream: until_end`"), "{told}");
}

/// Computes elsewhere; keeps what it is to load.
#[derive(Default)]
struct There(Mutex<Vec<ExecutorSpec>>);

impl ExecutorFactory for There {
    fn scheme(&self) -> &str {
        "there"
    }
    fn prepare(&self, spec: &ExecutorSpec, _make: &MakeInstance) -> Result<PreparedModel, OperatorError> {
        self.0.lock().unwrap().push(spec.clone());
        Ok(PreparedModel::default())
    }
    fn start(&self, request: &ExecutorRequest) -> Result<Arc<dyn ModelExecutor>, OperatorError> {
        assert!((request.make)().is_err(), "the model is not loaded here");
        Err(OperatorError::new("nothing is there"))
    }
}

#[test]
fn a_model_on_another_device_is_left_to_its_factory() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
    let manifest =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../operators/inference/testdata/image_means.yaml");
    write("model.yaml", &std::fs::read_to_string(manifest).unwrap());
    std::fs::create_dir(folder.path().join("images")).unwrap();
    write("images/a.png", "a picture");
    write(
        "workflow.yaml",
        "version: 1
name: means
sources: [{id: images, kind: image_directory, options: {path: images}}]
operators: [{id: means, kind: ml, input: images, variants: [model.yaml], backend: rten}]
sinks: [{id: rows, kind: jsonl, input: means, options: {path: rows.jsonl}}]
",
    );
    let plan = "version: 1
workflow: {name: means}
workers: [{id: here, tier: here, worker_type: here}]
stages:
  - {id: images, operator: images, worker: here}
  - {id: means, operator: means, variant: image-means, device: 'there:host/0', worker: here, max_batch: 4}
  - {id: rows, operator: rows, worker: here}
classes: [{id: 0, share: 1.0, route: {images: images, means: means, rows: rows}}]
edges: [{from: images, to: means}, {from: means, to: rows}]
";
    write("plan.yaml", plan);
    let (workflow, file) = (folder.path().join("workflow.yaml"), folder.path().join("plan.yaml"));
    let prepared = || prepare_here(&workflow, PlanFrom::File(&file), &Silent);
    let refused = prepared().err().unwrap();
    let refused = refused.downcast_ref::<Diagnostics>().unwrap().iter().next().unwrap();
    assert_eq!((refused.code, refused.line()), ("E0419", Some(6)));
    assert!(refused.message.contains("this program serves 'cpu'"), "{}", refused.message);

    // Its file is not here either.
    let there = Arc::new(There::default());
    assert!(register_executors(Arc::clone(&there) as Arc<dyn ExecutorFactory>));
    let prepared = prepared().unwrap();
    assert_eq!(prepared.models[0].to_string(), "means: image-means (as planned) on rten (on there:host/0)");
    let spec = there.0.lock().unwrap().pop().unwrap();
    assert_eq!((spec.device.as_str(), spec.max_batch), ("there:host/0", 4));
    let model = spec.model.unwrap();
    assert_eq!((model.manifest, model.backend.as_str()), (folder.path().join("model.yaml"), "rten"));
    let error = Run::start(prepared.program, RunOptions::default()).err().unwrap().to_string();
    assert_eq!(error, "'means' failed: nothing is there");
}
