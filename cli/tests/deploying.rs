//! `tidemill deploy`, `health` and join files; through the built binary.
use crate::cluster::Cluster;
use crate::cluster_watching::agent;
use crate::command::{Place, command, root, tidemill};
use std::collections::BTreeSet;

const FILES: [&str; 13] = [
    ".gitignore",
    "README.md",
    "cloud/compose.yaml",
    "cloud/env.example",
    "cloud/secrets/.gitignore",
    "cloud/secrets/README.md",
    "deployment.json",
    "infrastructure.yaml",
    "monitoring/alerts.yaml",
    "monitoring/grafana-dashboard.json",
    "monitoring/prometheus.yaml",
    "monitoring/secrets/.gitignore",
    "plan.yaml",
];

const PLAN: &str = "version: 1
workflow: {name: vqa}
workers: [{id: cloud-large-0, tier: cloud, worker_type: large, price: 0.083 $/h}]
stages:
  - {id: images, operator: images, worker: cloud-large-0}
  - {id: questions, operator: questions, worker: cloud-large-0}
  - {id: scene, operator: scene_features, worker: cloud-large-0, variant: scene-features-small}
  - {id: speech, operator: speech, worker: cloud-large-0, variant: speech-small}
  - {id: pair, operator: pair, worker: cloud-large-0}
  - {id: answerer, operator: answerer, worker: cloud-large-0, variant: answerer-small}
  - {id: answers, operator: answers, worker: cloud-large-0}
classes:
  - id: 0
    share: 1
    route:
      {images: images, questions: questions, scene_features: scene, speech: speech, pair: pair, answerer: answerer, answers: answers}
edges:
  - {from: images, to: scene}
  - {from: questions, to: speech}
  - {from: scene, to: pair}
  - {from: speech, to: pair, input: 1}
  - {from: pair, to: answerer}
  - {from: answerer, to: answers}
";

fn place() -> Place {
    let place = Place::example("vqa");
    place.write("plan.yaml", PLAN);
    place
}

/// Containers would start, but their run would not.
#[test]
fn an_image_without_the_backend_of_the_plan_is_refused() {
    let place = place();
    place.change("plan.yaml", "variant: scene-features-small", "variant: scene-features-small, backend: ort");
    let (plan, out) = (place.argument("plan.yaml"), place.argument("out"));
    let refused = tidemill(&["deploy", &plan, "--out", &out]).expect(78).stderr;
    assert!(refused.contains("has no ONNX Runtime") && refused.contains("-onnxruntime`"), "{refused}");
    assert!(!place.path("out").exists());
    tidemill(&["deploy", &plan, "--out", &out, "--image", "mine:1"]).expect(0);
}

#[test]
fn what_lies_beside_the_plan_is_taken() {
    let place = place();
    let (plan, out) = (place.argument("plan.yaml"), place.argument("out/of/it"));
    let told = tidemill(&["deploy", &plan, "--out", &out, "--output", "json"]).expect(0).json();
    let files: Vec<&str> =
        told["files"].as_array().unwrap().iter().map(|file| file.as_str().unwrap()).collect();
    assert_eq!(files, FILES);
    for file in files {
        assert!(place.path("out/of/it").join(file).is_file(), "{file}");
    }
    let document: serde_json::Value = serde_json::from_str(&place.read("out/of/it/deployment.json")).unwrap();
    assert_eq!(document["files"]["workflow"], "../../../workflow.yaml", "{document}");
    assert!(place.path("out/of/it/../../../workflow.yaml").is_file());
    let compose = place.read("out/of/it/cloud/compose.yaml");
    assert!(compose.contains("cpus: 2") && compose.contains("mem_limit: 8g"), "{compose}");
    assert_eq!(place.read("out/of/it/plan.yaml"), PLAN);
}

#[test]
fn folders_with_other_things_are_left_alone() {
    let place = place();
    let (plan, out) = (place.argument("plan.yaml"), place.argument("here"));
    place.write("here/notes.txt", "mine");
    let refused = tidemill(&["deploy", &plan, "--out", &out]).expect(78);
    assert!(refused.stderr.contains("notes.txt") && refused.stderr.contains("--force"), "{}", refused.stderr);
    assert_eq!(place.files("here"), ["notes.txt"]);
    let told = tidemill(&["deploy", &plan, "--out", &out, "--force"]).expect(0).stdout;
    assert!(told.contains("├── cloud/\n│   ├── compose.yaml") && told.contains("tidemill up"), "{told}");
    assert_eq!(place.read("here/notes.txt"), "mine");
    // The second time it is a deployment that would be overwritten.
    std::fs::remove_file(place.path("here/notes.txt")).unwrap();
    let again = tidemill(&["deploy", &plan, "--out", &out]).expect(78);
    assert!(again.stderr.contains("contains a deployment already"), "{}", again.stderr);
    let file = place.argument("plan.yaml");
    let no_folder = tidemill(&["deploy", &plan, "--out", &file, "--force"]).expect(69);
    assert!(no_folder.stderr.contains("is not a folder"), "{}", no_folder.stderr);
}

/// The id of a deployment is drawn once; everything else is constant.
#[test]
fn deployments_have_names_of_their_own() {
    let place = place();
    let plan = place.argument("plan.yaml");
    let deployed = |folder: &str, more: &[&str]| {
        let out = place.argument(folder);
        tidemill(&[&["deploy", &plan, "--out", &out], more].concat())
    };
    let document = |folder: &str| -> serde_json::Value {
        serde_json::from_str(&place.read(&format!("{folder}/deployment.json"))).unwrap()
    };
    deployed("staging", &[]).expect(0);
    deployed("live", &[]).expect(0);
    let (staging, live) = (document("staging"), document("live"));
    assert_ne!(staging["id"], live["id"]);
    let compose = place.read("staging/cloud/compose.yaml");
    let id = staging["id"].as_str().unwrap();
    assert_eq!(compose.replace(id, live["id"].as_str().unwrap()), place.read("live/cloud/compose.yaml"));
    assert_eq!(staging["locations"][0]["project"], format!("tidemill-vqa-{id}-cloud"));
    // Rewritten it stays that deployment, and a location that the plan lacks stays known.
    place.change("plan.yaml", "tier: cloud", "tier: basement");
    for name in ["id", "from", "to"] {
        place.change("infrastructure.yaml", &format!("{name}: cloud"), &format!("{name}: basement"));
    }
    deployed("staging", &["--force"]).expect(0);
    let again = document("staging");
    assert_eq!(again["id"], staging["id"]);
    assert_eq!(again["former"][0]["project"], staging["locations"][0]["project"], "{again}");
    let other = deployed("staging", &["--force", "--id", "live"]).expect(78).stderr;
    assert!(other.contains("`--id` names \"live\""), "{other}");
    assert!(deployed("own", &["--id", "Live"]).expect(2).stderr.contains("lower-case letters"));
    deployed("own", &["--id", "live"]).expect(0);
    assert_eq!(document("own")["project"], "tidemill-vqa-live");
    // A deployment from before ids has other names: it must be removed first.
    let old = place.read("own/deployment.json").replace("\"id\": \"live\",", "");
    place.write("own/deployment.json", old);
    let told = deployed("own", &["--force"]).expect(78).stderr;
    assert!(told.contains("older version") && told.contains("tidemill down"), "{told}");
}

#[test]
fn mistakes_are_told() {
    let place = place();
    let plan = place.argument("plan.yaml");
    let out = place.argument("out");
    let wrong = |arguments: &[&str], code: i32| {
        tidemill(&[&["deploy", &plan, "--out", &out], arguments].concat()).expect(code).stderr
    };
    let controller = wrong(&["--controller", "clod"], 78);
    assert!(
        controller.contains("no location or tier `clod`") && controller.contains("cloud"),
        "{controller}"
    );
    place.change("plan.yaml", "tier: cloud", "tier: clod");
    let tier = wrong(&[], 78);
    assert!(
        tier.contains("E0951") && tier.contains("plan.yaml:3") && tier.contains("did you mean `cloud`?"),
        "{tier}"
    );
    place.change("plan.yaml", "tier: clod", "tier: cloud");
    // A named workflow must be the plan's; one that is only in the folder may be another.
    place.change("plan.yaml", "workflow: {name: vqa}", "workflow: {name: other}");
    let workflow = place.argument("workflow.yaml");
    wrong(&["--workflow", &workflow], 78);
    assert!(!place.path("out").exists(), "nothing is written before all is right");
    let told = wrong(&[], 0);
    assert!(told.contains("beside the plan is `vqa`, but the plan is for `other`"), "{told}");
    let document: serde_json::Value = serde_json::from_str(&place.read("out/deployment.json")).unwrap();
    assert!(document["files"]["workflow"].is_null(), "{document}");
}

#[test]
fn what_a_target_does_not_know_is_refused() {
    let place = place();
    let (plan, out) = (place.argument("plan.yaml"), place.argument("out"));
    for (target, option) in [
        ("kubernetes", ["--first-port", "7520"]),
        ("kubernetes", ["--network", "host"]),
        ("kubernetes", ["--id", "live"]),
        ("systemd", ["--id", "live"]),
    ] {
        let own = ["deploy", &plan, "--out", &out, "--target", target];
        let told = tidemill(&[&own[..], &option].concat()).expect(2).stderr;
        assert!(told.contains(&format!("`{}`", option[0])) && told.contains("leave it out"), "{told}");
    }
    assert!(!place.path("out").exists(), "nothing is written");
}

#[test]
#[ignore = "long: make test-long"]
fn a_worker_joins_by_one_file_and_both_are_well() {
    let mut cluster = Cluster::without_workers(Place::empty("joining"), &["--metrics", "127.0.0.1:0"]);
    let state = cluster.place.argument("controller");
    let address = std::fs::read_to_string(cluster.place.path("controller/address")).unwrap();
    assert_eq!(address.trim(), cluster.address);
    let token = ["token", "--name", "edge-1", "--controller-state", &state, "--for-join-file"];
    let join = tidemill(&token).expect(0).stdout;
    assert!(join.starts_with(&address) && join.lines().count() == 2, "{join}");
    cluster.place.write("join-edge-1", &join);
    let (file, folder) = (cluster.place.argument("join-edge-1"), cluster.place.argument("w-edge-1"));
    let own = ["worker", "--join-file", &file, "--state", &folder, "--name", "edge-1", "--quiet"];
    cluster.workers.push(("edge-1".to_owned(), command(&own).spawn().unwrap()));
    cluster.until_joined(1);

    let (mut spare, of_agent) = agent(&cluster, "spare");
    let health = |address: &str, ready: bool| {
        let arguments = ["health", address, "--output", "json", "--timeout", "20s", "--ready"];
        tidemill(if ready { &arguments } else { &arguments[..6] })
    };
    cluster.until("the agent is ready", |_| health(&of_agent, true).code == Some(0));
    assert_eq!(health(&of_agent, false).expect(0).json()["what"], "agent");
    // A name without an address gives no answer: the next one is asked.
    tidemill(&["health", "no-such-name.invalid:9464", &of_agent]).expect(0);
    // Without its controller it continues, but is not ready.
    let mut controller = cluster.controller.take().unwrap();
    controller.kill().unwrap();
    controller.wait().unwrap();
    let until = |is_so: &dyn Fn() -> bool| {
        (0..400).any(|_| {
            std::thread::sleep(std::time::Duration::from_millis(100));
            is_so()
        })
    };
    assert!(until(&|| health(&of_agent, true).code == Some(1)), "it is still ready without its controller");
    assert_eq!(health(&of_agent, false).expect(0).json()["ok"], true);
    spare.kill().unwrap();
    spare.wait().unwrap();
    let gone = health(&of_agent, false).expect(1).json();
    assert!(gone["ok"] == false && gone["text"].as_str().unwrap().starts_with("no answer"), "{gone}");
    let unknown = health("no-such-name.invalid:9464", false).expect(1).json();
    assert!(unknown["text"].as_str().unwrap().starts_with("no answer"), "{unknown}");
    let wrong = tidemill(&["health", "nonsense"]).expect(2);
    assert!(wrong.stderr.contains("127.0.0.1:9464"), "{}", wrong.stderr);
}

#[test]
fn a_join_file_without_an_address_is_told() {
    let place = Place::empty("joining");
    place.write("join", "secret\n");
    let (file, folder) = (place.argument("join"), place.argument("worker"));
    let told = tidemill(&["worker", "--join-file", &file, "--state", &folder]).expect(78).stderr;
    assert!(told.contains("no line with an address") && told.contains("tidemill://"), "{told}");
}

/// Texts of the dashboard that are sent to Prometheus.
pub(crate) fn queries(dashboard: &serde_json::Value) -> BTreeSet<String> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.filter_map(|panel| panel["targets"].as_array()).flatten();
    targets.map(|target| target["expr"].as_str().unwrap().to_owned()).collect()
}

#[test]
fn the_dashboard_names_metrics_that_exist() {
    let known = crate::monitoring::names();
    let place = place();
    let (plan, out) = (place.argument("plan.yaml"), place.argument("out"));
    tidemill(&["deploy", &plan, "--out", &out]).expect(0);
    let text = place.read("out/monitoring/grafana-dashboard.json");
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert!(queries(&dashboard).len() >= 20, "{dashboard}");
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_".contains(c);
    let named: BTreeSet<&str> =
        text.split(|c| !is_part(c)).filter(|word| word.starts_with("tidemill_")).collect();
    let unknown: Vec<&&str> = named
        .iter()
        .filter(|name| !known.contains(**name) && !known.contains(name.trim_end_matches("_bucket")))
        .collect();
    assert!(unknown.is_empty() && named.len() > 15, "unknown: {unknown:?}");
    let rules = std::fs::read_to_string(root().join("docs/monitoring/alerts.yaml")).unwrap();
    assert_eq!(place.read("out/monitoring/alerts.yaml"), rules);
}
