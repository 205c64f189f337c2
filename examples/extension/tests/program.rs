//! The built program runs a workflow of the parts.
use serde_json::Value;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// The built program.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_tidemill-extension");

/// Content of the output: numbers below 300, below 700, and all others of 1000.
pub(crate) const SIZES: &str = "{\"large\":300,\"medium\":400,\"small\":300}\n";

/// A copy of the demo.
pub(crate) fn demo() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("demo");
    for file in ["workflow.yaml", "plan.yaml", "size.yaml", "size.weights"] {
        std::fs::copy(demo.join(file), folder.path().join(file)).unwrap();
    }
    folder
}

/// The program in a folder, isolated from the user's settings.
fn program(folder: &TempDir, arguments: &[&str]) -> Command {
    let mut program = Command::new(PROGRAM);
    program.args(arguments).current_dir(folder.path()).env("XDG_CACHE_HOME", folder.path().join("cache"));
    for variable in ["TIDEMILL_LOG_LEVEL", "TIDEMILL_LOG_FORMAT", "TIDEMILL_CACHE", "COLUMNS"] {
        program.env_remove(variable);
    }
    program.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    program
}

fn run(folder: &TempDir, arguments: &[&str]) -> Output {
    program(folder, arguments).output().unwrap()
}

#[track_caller]
fn text(output: &Output) -> String {
    let [text, errors] =
        [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert!(output.status.success(), "{text}{errors}");
    text
}

#[test]
fn a_workflow_of_all_parts_runs() {
    let folder = demo();
    let run = |more: &[&str]| {
        let output = run(&folder, &[&["run", "workflow.yaml", "--output", "json"], more].concat());
        assert_eq!(text(&output).matches("\"records_out\"").count(), 4, "stages");
        let path = folder.path().join("out/sizes.json");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), SIZES);
        std::fs::remove_file(path).unwrap();
        text(&output)
    };
    assert!(!run(&[]).contains("turns:0"), "without a plan the model is on the processors");
    assert!(run(&["--plan", "plan.yaml"]).contains("\"turns:0\""));
    assert!(run(&["--plan", "plan.yaml", "--processes"]).contains("\"turns:0\""));
}

/// The counter continues at its position, the tally with its counts.
#[test]
fn a_killed_run_continues_in_another_process() {
    let folder = demo();
    let path = folder.path().join("workflow.yaml");
    let text_of_file = std::fs::read_to_string(&path).unwrap();
    let often = text_of_file.replace("\nsinks:", "\nrun: {tick: 10ms, checkpoint_every: 2}\nsinks:");
    std::fs::write(&path, often).unwrap();
    let part =
        ["run", "workflow.yaml", "--state", "state", "--output", "json", "--checkpoint-interval", "10ms"];
    let mut first = program(&folder, &[&part[..], &["--rate", "50/s"]].concat()).spawn().unwrap();
    let has_rows = || {
        let shown = run(&folder, &["state", "show", "state", "--output", "json"]);
        let state: Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
        state["state"]["sinks"]["sizes"]["rows"].as_u64().is_some_and(|rows| rows > 0)
    };
    while !has_rows() {
        assert!(first.try_wait().unwrap().is_none(), "it takes 20 s");
    }
    first.kill().unwrap();
    first.wait().unwrap();
    assert!(!folder.path().join("out/sizes.json").exists());

    let second = run(&folder, &[&part[..], &["--rate", "max", "--accept-changes"]].concat());
    let report: Value = serde_json::from_str(&text(&second)).unwrap();
    assert!(report["sinks"][0]["records"].as_u64().is_some_and(|rows| rows < 1000), "{report}");
    assert_eq!(std::fs::read_to_string(folder.path().join("out/sizes.json")).unwrap(), SIZES);
}

#[test]
fn the_parts_are_known_to_the_whole_program() {
    let folder = demo();
    text(&run(&folder, &["validate", "workflow.yaml", "plan.yaml", "size.yaml"]));
    assert!(text(&run(&folder, &["models", "verify", "size.yaml"])).contains("weights ok"));
    let schema = text(&run(&folder, &["schema", "workflow"]));
    for kind in ["counter", "pack", "tally"] {
        assert!(schema.contains(&format!("\"{kind}\"")), "{kind}");
    }
}
