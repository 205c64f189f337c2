//! Who opens what of a workflow.
use super::*;
use crate::listener::Silent;
use std::path::PathBuf;

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
    /// Two sources and two sinks, of which the second has a ground truth; none of their files is there.
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

    fn worker(&self, worker: &str, judge: Judge) -> Result<Prepared, NotOpened> {
        let file = self.path("workflow.yaml");
        prepare_worker((&file, &variables::environment), self.plan(), worker, judge, &Silent)
    }

    fn elsewhere(&self) -> Result<Prepared, String> {
        let sent = Sent { folder: self.0.path(), workflow: "workflow.yaml", variables: &BTreeMap::default() };
        prepare_elsewhere(&sent, Some(self.plan()), &Silent).map_err(|e| format!("{e:#}"))
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
    assert!(refused.checked.is_some());
    let told = refused.error.to_string();
    assert!(told.contains("source `right`") && !told.contains("left"), "{told}");
    files.write("right.csv", "k,v\nx,1\n");
    let told = files.worker("b", Judge::OfThisMachine).err().unwrap().error.to_string();
    assert!(told.contains("E0610") && told.contains("ground truth of `rights`"), "{told}");
    // Where not even the check is passed, nothing can be told to a coordinator.
    files.write(
        "workflow.yaml",
        &std::fs::read_to_string(files.path("workflow.yaml")).unwrap().replace("v: int64", "v: int65"),
    );
    assert!(files.worker("a", Judge::OfThisMachine).err().unwrap().checked.is_none());
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
    assert!(files.worker("a", Judge::Elsewhere).err().unwrap().error.to_string().contains("source `left`"));
}

/// A controller took it for a file; who sees the same files as the worker has seen what it is.
#[test]
fn a_pipe_contradicts_only_who_did_not_look() {
    let files = Files::new("FOLDER/left.csv", "right.csv");
    rustix::fs::mknodat(rustix::fs::CWD, files.path("left.csv"), rustix::fs::FileType::Fifo, 0o600.into(), 0)
        .unwrap();
    assert!(files.worker("a", Judge::OfThisMachine).is_ok());
    let told = files.worker("a", Judge::Elsewhere).err().unwrap().error.to_string();
    assert!(told.contains("E0616") && told.contains("`stream: until_end`"), "{told}");
}
