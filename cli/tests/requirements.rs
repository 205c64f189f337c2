//! Links over which models may be remote. `UPDATE_GOLDEN=1` rewrites the golden output.
use crate::command::{Outcome, VQA, root, tidemill};
use serde_json::Value;

const PROFILES: [&str; 2] = ["--profiles", "cli/tests/planning/profile.yaml"];
const INFRASTRUCTURE: [&str; 2] = ["--infra", "cli/tests/planning/infrastructure.yaml"];

fn requirements(more: &[&str]) -> Outcome {
    tidemill(&[&["requirements", VQA], &PROFILES[..], more].concat())
}

/// All models of an answer.
fn models(answer: &Value) -> Vec<&Value> {
    let operators = answer["operators"].as_array().unwrap().iter();
    operators.flat_map(|operator| operator["models"].as_array().unwrap()).collect()
}

#[test]
fn people_read_the_frontier_and_the_verdicts() {
    let outcome = requirements(&[&INFRASTRUCTURE[..], &["--budget", "20%"]].concat());
    let path = root().join("cli/tests/golden/requirements.txt");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &outcome.stdout).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == outcome.stdout, "UPDATE_GOLDEN=1 rewrites it. Now:\n{}", outcome.stdout);
}

#[test]
fn a_link_of_the_frontier_fits_and_a_narrower_one_does_not() {
    let answer = requirements(&["--device", "server", "--budget", "20%", "--rtt", "1ms", "--output", "json"])
        .expect(0)
        .json();
    let models = models(&answer);
    let large = models.iter().find(|of| of["variant"] == "scene-features-large").unwrap();
    let least = large["frontier"][0]["bandwidth"].as_f64().unwrap();
    for (part, fits) in [(1.001, true), (0.8, false)] {
        let bandwidth = format!("{}bps", (least * part).round());
        let link = ["--budget", "20%", "--rtt", "1ms", "--bandwidth", &bandwidth, "--device", "server"];
        let outcome = requirements(&[&link[..], &["--output", "json"]].concat()).json();
        let models = self::models(&outcome);
        let large = models.iter().find(|of| of["variant"] == "scene-features-large").unwrap();
        let verdict = &large["links"][0];
        assert_eq!(verdict["fits"], fits, "{verdict}");
        assert_eq!(verdict["slow_down"].as_f64().unwrap() <= 0.2, fits, "{verdict}");
    }
}

#[test]
fn the_exit_code_is_the_verdict() {
    let fast = ["--rtt", "1us", "--bandwidth", "1Tbps", "--budget", "90%"];
    requirements(&fast).expect(0);
    let slow = ["--rtt", "200ms", "--bandwidth", "1Mbps"];
    let answer = requirements(&[&slow[..], &["--output", "json"]].concat()).expect(1).json();
    assert_eq!(answer["fits"], false);
    // Without a link nothing is judged.
    requirements(&[]).expect(0);
}

#[test]
fn errors_say_what_helps() {
    let without = tidemill(&["requirements", VQA]).expect(2).stderr;
    assert!(
        without.contains("measure one: `tidemill profile examples/vqa/workflow.yaml --infra"),
        "{without}"
    );
    let absent = tidemill(&["requirements", VQA, "--profiles", "absent.yaml"]).expect(78).stderr;
    assert!(absent.contains("absent.yaml") && absent.contains("`tidemill profile"), "{absent}");
    let number = requirements(&["--budget", "5"]).expect(2).stderr;
    assert!(number.contains("such as `5%`"), "{number}");
    let device = requirements(&["--device", "nothing"]).expect(2).stderr;
    assert!(device.contains("no profile has the kind of device `nothing`"), "{device}");
}
