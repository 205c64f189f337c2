//! A cluster of three sites in network namespaces with faults: `benches/experiments/cluster_chaos.py` cuts a link, kills an agent and
//! kills the controller, and compares the outputs with those of an undisturbed run. The script makes a hundred of these.
use crate::command::root;
use std::path::Path;
use std::process::{Command, Output};

/// With this seed a link is cut first, then an agent and the controller are killed.
const SEED: &str = "14";
const ROUNDS: usize = 3;
/// Exit code of the script if namespaces are not available.
const NOT_PERMITTED: i32 = 77;

fn disturbed(result: &Path, more: &[&str]) -> Output {
    Command::new("python3")
        .arg(root().join("benches/experiments/cluster_chaos.py"))
        .args(["--binary", env!("CARGO_BIN_EXE_tidemill"), "--seed", SEED, "--rounds", &ROUNDS.to_string()])
        .args(["--seconds", "12", "--json"])
        .arg(result)
        .args(more)
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root())
        .output()
        .unwrap()
}

#[test]
#[ignore = "long: make test-long"]
fn a_cluster_that_is_disturbed_gives_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("result.json");
    let mut output = disturbed(&path, &[]);
    let has_namespaces = output.status.code() != Some(NOT_PERMITTED);
    if !has_namespaces {
        let said = String::from_utf8_lossy(&output.stderr);
        println!("skipped: links that are cut. There are no network namespaces here: {said}");
        output = disturbed(&path, &["--no-namespaces"]);
    }
    let printed = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned());
    assert_eq!(output.status.code(), Some(0), "{}", printed.join("\n"));
    let result: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let rounds = result["rounds"].as_array().unwrap();
    assert_eq!(rounds.len(), ROUNDS, "{result}");
    assert!(result["runs"].as_u64().unwrap() >= 1 && result["left"].as_array().unwrap().is_empty());
    if has_namespaces {
        let faults: Vec<&str> = rounds.iter().map(|round| round["fault"].as_str().unwrap()).collect();
        let expected = [
            "a link between sites cut",
            "an agent killed, and with it its processes of the run",
            "the controller killed",
        ];
        assert_eq!(faults, expected);
    }
}
