//! Drawings are what they were. `UPDATE_GOLDEN=1` rewrites them.
use crate::command::{root, tidemill};

#[track_caller]
fn compare(name: &str, arguments: &[&str]) {
    let path = root().join("cli/tests/golden").join(name);
    let text = tidemill(&[&["graph"], arguments].concat()).expect(0).stdout;
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert!(golden == text, "{} differs; UPDATE_GOLDEN=1 rewrites it. Now:\n{text}", path.display());
}

const VQA: &str = "examples/vqa/workflow.yaml";
const PLAN: [&str; 2] = ["--plan", "examples/vqa/plan-two-workers.yaml"];

#[test]
fn workflows() {
    compare("quickstart.txt", &["examples/quickstart/workflow.yaml"]);
    compare("vqa.txt", &[VQA]);
    compare("vqa.mmd", &[VQA, "--format", "mermaid"]);
    compare("vqa.dot", &[VQA, "--format", "dot"]);
}

#[test]
fn plans() {
    compare("vqa-plan.txt", &[&[VQA], &PLAN[..]].concat());
    compare("vqa-plan.mmd", &[&[VQA, "--format", "mermaid"], &PLAN[..]].concat());
    compare("vqa-plan.dot", &[&[VQA, "--format", "dot"], &PLAN[..]].concat());
}
