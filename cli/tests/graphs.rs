//! Drawings match the golden ones. `UPDATE_GOLDEN=1` rewrites them.
use crate::command::{VQA, root, tidemill};

/// Every SVG is well-formed and loads nothing.
#[track_caller]
fn sound_svg(text: &str) {
    let document = roxmltree::Document::parse(text).unwrap();
    assert!(document.root_element().has_tag_name(("http://www.w3.org/2000/svg", "svg")));
    let fetched = ["href", "src", "url(", "@import"];
    assert!(fetched.iter().all(|word| !text.contains(word)), "{text}");
}

#[track_caller]
fn compare(name: &str, arguments: &[&str]) {
    let path = root().join("cli/tests/golden").join(name);
    let text = tidemill(&[&["graph"], arguments].concat()).expect(0).stdout;
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    if name.ends_with(".svg") {
        sound_svg(&text);
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert!(golden == text, "{} differs; UPDATE_GOLDEN=1 rewrites it. Now:\n{text}", path.display());
}

const PLAN: [&str; 2] = ["--plan", "examples/vqa/plan-two-workers.yaml"];

#[test]
fn workflows() {
    compare("quickstart.txt", &["examples/quickstart/workflow.yaml"]);
    compare("vqa.txt", &[VQA]);
    compare("vqa.mmd", &[VQA, "--format", "mermaid"]);
    compare("vqa.dot", &[VQA, "--format", "dot"]);
    compare("vqa.svg", &[VQA, "--format", "svg"]);
    compare("quickstart.svg", &["examples/quickstart/workflow.yaml", "--format", "svg"]);
}

#[test]
fn plans() {
    compare("vqa-plan.txt", &[&[VQA], &PLAN[..]].concat());
    compare("vqa-plan.mmd", &[&[VQA, "--format", "mermaid"], &PLAN[..]].concat());
    compare("vqa-plan.dot", &[&[VQA, "--format", "dot"], &PLAN[..]].concat());
    compare("vqa-plan.svg", &[&[VQA, "--format", "svg"], &PLAN[..]].concat());
}
