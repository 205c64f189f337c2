//! Links over which models may be remote. `UPDATE_GOLDEN=1` rewrites the golden output.
use crate::command::{Outcome, Place, VQA, root, tidemill};
use serde_json::{Value, json};

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
    // No bandwidth is enough for the answerer.
    let answer = requirements(&["--device", "server", "--budget", "20%", "--rtt", "1ms", "--output", "json"])
        .expect(1)
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
fn a_round_trip_alone_is_judged_over_any_bandwidth() {
    let outcome = requirements(&["--device", "server", "--budget", "20%", "--rtt", "1ms"]).expect(1).stdout;
    let (_, verdicts) =
        outcome.split_once("the given round trip: 1 ms round trip, no limit each way\n").unwrap();
    let of = |variant: &str| verdicts.lines().find(|line| line.contains(variant)).unwrap();
    assert!(of("scene-features-large").contains("yes, from 42.6 Gbps"), "{verdicts}");
    assert!(
        of("answerer-small").contains("no: round trips") && of("answerer-small").contains("a window of"),
        "{verdicts}"
    );
    // A link of the infrastructure is judged alone.
    let known = requirements(&[&INFRASTRUCTURE[..], &["--rtt", "1ms"]].concat()).stdout;
    assert!(!known.contains("the given round trip"), "{known}");
}

/// A stage that sends rows in batches of 4 to half of a server, and one on no device.
const PLAN: &str = "version: 1
workflow: {name: vqa}
workers: [{id: edge, tier: edge, worker_type: gateway}]
devices: [{id: cloud/server, kind: server, worker: cloud-server-0, share: 50%}]
stages:
  - {id: images, operator: images, worker: edge}
  - {id: questions, operator: questions, worker: edge}
  - {id: scene_features, operator: scene_features, worker: edge, variant: scene-features-large, max_batch: 4,
     device: 'device:cloud/server', sends: rows, remote_run: {sent: 20kB, received: 5kB, round_trip: 4ms, transfer: 8ms,
     queue: 90ms, compute: 60ms, share: 20%}}
  - {id: speech, operator: speech, worker: edge, variant: speech-large}
  - {id: pair, operator: pair, worker: edge}
  - {id: answerer, operator: answerer, worker: edge, variant: answerer-large}
  - {id: answers, operator: answers, worker: edge}
edges: [{from: images, to: scene_features}, {from: questions, to: speech}, {from: scene_features, to: pair},
        {from: speech, to: pair, input: 1}, {from: pair, to: answerer}, {from: answerer, to: answers}]
classes: [{id: 0, share: 1, route: {images: images, questions: questions, scene_features: scene_features, speech: speech,
           pair: pair, answerer: answerer, answers: answers}}]
";

#[test]
fn a_plan_is_judged_as_it_runs() {
    let place = Place::empty("requirements-of-a-plan");
    place.write("plan.yaml", PLAN);
    let plan = place.argument("plan.yaml");
    let judged = |more: &[&str]| {
        let fixed = ["--plan", &plan, "--budget", "25%", "--software", "0s"];
        requirements(&[&fixed[..], more].concat())
    };
    let answer = judged(&["--output", "json"]).expect(0).json();
    let models = models(&answer);
    let of = |variant: &str| models.iter().filter(move |of| of["variant"] == variant).collect::<Vec<_>>();
    let [large] = of("scene-features-large")[..] else { panic!("one device: {answer:#}") };
    let fields =
        ["device", "sends", "batch", "local", "bytes_to_device", "bytes_back"].map(|key| &large[key]);
    assert_eq!(fields.map(Value::to_string), ["\"server\"", "\"rows\"", "4", "0.06", "80000.0", "20000.0"]);
    let device = &large["planned_device"];
    assert_eq!(
        (&device["id"], &device["share"], &device["compute"]),
        (&json!("cloud/server"), &json!(0.5), &json!(0.06))
    );
    // 4 ms, and 100 kB at 100 Mbit/s of which 95.6 % carry data, of 60 ms.
    let link = &large["links"][0];
    assert_eq!(link["link"], "as planned for scene_features, to cloud/server");
    assert!((link["slow_down"].as_f64().unwrap() - (0.004 + 0.008 / 0.956) / 0.06).abs() < 1e-3, "{link}");
    assert_eq!(link["fits"], true);
    // On no device, with the plan's single records: nothing leads anywhere.
    assert!(
        of("speech-large")
            .iter()
            .all(|of| of["links"] == json!([]) && of["batch"] == 1 && of["sends"] == "tensors")
    );
    assert!(of("speech-small").is_empty() && of("scene-features-tiny").is_empty());
    let text = judged(&[]).expect(0).stdout;
    assert!(text.contains("A run of a batch of the plan takes"), "{text}");
    let told = "plan: scene-features-large sends rows in batches of 4 to cloud/server: 60 ms there, which is `local`, over a round trip of 4 ms";
    assert!(text.contains(told), "{text}");
    assert!(
        text.contains("speech-large is on no device of the plan; judged as if it sent tensors"),
        "{text}"
    );
    // Another size of batches needs its time in the profile.
    let other = judged(&["--batch", "3"]).expect(78).stderr;
    assert!(other.contains("the profile has no batches of 3 on server, only of 1, 8"), "{other}");
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
