//! Plans of running jobs that are changed as a user does it; through the built binary.
use crate::cluster::Cluster;
use crate::command::{Outcome, Place, command, rows, tidemill};
use crate::processes::{children, gone, kill, outputs, place, same};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::process::Child;
use std::thread::JoinHandle;
use std::time::Duration;
use tidemill_random::Random;

/// The workflow of two sources, a join and a window, for about `seconds` seconds.
pub(crate) fn spread(seconds: usize) -> Place {
    let place = place();
    let rate = 6000 / seconds;
    place.change("workflow.yaml", "rate: 4000/s", &format!("rate: {rate}/s"));
    place.change("workflow.yaml", "rate: 2000/s", &format!("rate: {}/s", rate / 2));
    // Both sinks get records continuously, so the pause of a change is known soon.
    place.change("workflow.yaml", "size: 5s", "size: 500ms");
    place
}

/// Outputs of one process at full speed, computed in the background.
fn undisturbed(seconds: usize) -> JoinHandle<Vec<(&'static str, Vec<u8>)>> {
    std::thread::spawn(move || {
        let place = spread(seconds);
        tidemill(&["run", &place.argument("workflow.yaml"), "--rate", "max", "--quiet"]).expect(0);
        outputs(&place)
    })
}

/// The plan with stages on other workers.
fn moved(place: &Place, file: &str, stages: &[(&str, &str)]) {
    let mut text = place.read("plan.yaml");
    for (stage, worker) in stages {
        let line = text.lines().find(|line| line.contains(&format!("{{id: {stage}, "))).unwrap().to_owned();
        let at = line.find("worker: ").unwrap() + "worker: ".len();
        let end = at + line[at..].find([',', '}']).unwrap();
        text = text.replace(&line, &format!("{}{worker}{}", &line[..at], &line[end..]));
    }
    place.write(file, text);
}

pub(crate) fn change(cluster: &Cluster, plan: &str, more: &[&str]) -> Outcome {
    let plan = cluster.place.argument(plan);
    cluster.ask(&[&["change", "spread", "--plan", &plan], more].concat())
}

/// Changes the plan and returns the pause at the sinks and of the sources, milliseconds.
fn changed(cluster: &Cluster, plan: &str) -> (f64, f64) {
    let document =
        change(cluster, plan, &["--yes", "--reason", "a test", "--output", "json"]).expect(0).json();
    let outcome = &document["change"]["outcome"];
    assert_eq!(outcome["kind"], "changed", "{document}");
    (outcome["pause_ms"].as_f64().unwrap(), outcome["gap_ms"].as_f64().unwrap())
}

pub(crate) fn processes(cluster: &Cluster) -> Vec<u32> {
    cluster.workers.iter().flat_map(|(_, agent)| children(agent.id())).collect()
}

/// A run of about `seconds` seconds follows these plans, one after the other.
fn follows(seconds: usize, plans: &[&str]) {
    let expected = undisturbed(seconds);
    let cluster = Cluster::start_in(spread(seconds), &["edge", "hub", "cloud"]);
    cluster.submit().expect(0);
    cluster.until_arrived(100);
    moved(&cluster.place, "filter-on-hub.yaml", &[("some", "hub")]);
    moved(&cluster.place, "state-on-cloud.yaml", &[("some", "cloud"), ("pair", "cloud"), ("right", "hub")]);
    // A preview changes nothing.
    let told = change(&cluster, "filter-on-hub.yaml", &[]).expect(1);
    assert!(told.stdout.contains("~ stage some: on edge -> on hub"), "{}", told.stdout);
    assert!(told.stdout.contains("pairs stays on hub, where its files are"), "{}", told.stdout);
    assert!(told.stderr.contains("add `--yes`"), "{}", told.stderr);
    let before = processes(&cluster);
    let (first, others) = plans.split_first().unwrap();
    let mut pauses = vec![changed(&cluster, first)];
    cluster.until("the processes of the first plan are gone", |_| before.iter().all(|pid| gone(*pid)));
    cluster.until("each worker has one process", |cluster| processes(cluster).len() == 3);
    pauses.extend(others.iter().map(|plan| changed(&cluster, plan)));
    for (pause, gap) in &pauses {
        assert!(*pause > 0.0 && *gap > 0.0, "{pauses:?}");
    }
    println!("pauses at sinks and of sources, milliseconds: {pauses:?}");
    // Repeating it changes nothing.
    let told = change(&cluster, plans.last().unwrap(), &["--yes"]).expect(0);
    assert!(told.stdout.contains("the plans are equivalent"), "{}", told.stdout);
    // Files stay where they are.
    moved(&cluster.place, "sink-elsewhere.yaml", &[("pairs", "edge")]);
    let told = change(&cluster, "sink-elsewhere.yaml", &["--yes"]).expect(78);
    assert!(told.stderr.contains("sink `pairs` writes files, which are only on `hub`"), "{}", told.stderr);
    cluster.place.write("ticks.yaml", cluster.place.read("plan.yaml").replace("tick: 10ms", "tick: 20ms"));
    let told = change(&cluster, "ticks.yaml", &["--yes"]).expect(78);
    assert!(told.stderr.contains("write `tick: 10ms`"), "{}", told.stderr);
    assert_ne!(cluster.run()["state"], "complete", "the test needs more time");
    cluster.until("it is complete", |cluster| cluster.run()["state"] == "complete");
    let hosts = processes(&cluster);
    assert!(hosts.iter().all(|pid| gone(*pid)), "a process outlives its run");
    same(&cluster.outputs(), &expected.join().unwrap());
    let told = cluster.ask(&["events"]).expect(0).stdout;
    assert_eq!(told.matches("sinks paused for ").count(), plans.len(), "{told}");
    let told = change(&cluster, "state-on-cloud.yaml", &["--yes"]).expect(78);
    assert!(told.stderr.contains("is complete"), "{}", told.stderr);
}

#[test]
fn a_stage_moves_and_the_output_is_the_same() {
    follows(15, &["filter-on-hub.yaml"]);
}

#[test]
#[ignore = "long: make test-long"]
fn stages_move_there_and_back_and_the_output_is_the_same() {
    follows(20, &["filter-on-hub.yaml", "state-on-cloud.yaml", "plan.yaml"]);
}

pub(crate) const SPEECH: &str = "version: 1
name: spread
sources:
  - {id: questions, kind: wav_directory, key: key, rate: 12/s, options: {path: data/questions}}
operators:
  - id: speech
    kind: ml
    input: questions
    variants: [../../models/vqa/speech-small.yaml, ../../models/vqa/speech-medium.yaml, broken.yaml]
    batching: {max_batch: 8, budget: 20ms}
sinks:
  - {id: texts, kind: jsonl, input: speech, options: {path: out/texts.jsonl, columns: [key, question]}}
run: {tick: 50ms, checkpoint_every: 4}
";

pub(crate) fn speech_plan(variant: &str, worker: &str) -> String {
    format!(
        "version: 1
workflow: {{name: spread}}
tick: 50ms
checkpoint_every: 4
workers:
  - {{id: edge, tier: edge, worker_type: small}}
  - {{id: hub, tier: hub, worker_type: small}}
stages:
  - {{id: questions, operator: questions, worker: edge}}
  - {{id: speech, operator: speech, variant: {variant}, worker: {worker}}}
  - {{id: texts, operator: texts, worker: edge}}
classes:
  - {{id: 0, share: 1, route: {{questions: questions, speech: speech, texts: texts}}}}
edges:
  - {{from: questions, to: speech}}
  - {{from: speech, to: texts}}
"
    )
}

/// Recognised texts by key.
fn texts(text: &str) -> BTreeMap<String, Value> {
    let rows = rows(text);
    let count = rows.len();
    let texts: BTreeMap<String, Value> =
        rows.into_iter().map(|row| (row["key"].as_str().unwrap().to_owned(), row)).collect();
    assert_eq!(texts.len(), count, "a record came twice");
    texts
}

#[test]
#[ignore = "long: make test-long"]
fn a_model_is_swapped_and_one_that_cannot_be_loaded_is_not() {
    let place = Place::example("vqa");
    place.write("workflow.yaml", SPEECH);
    let broken = place.read("../../models/vqa/speech-medium.yaml");
    let broken = broken.replace("id: speech-medium", "id: speech-broken");
    let broken: String = broken
        .lines()
        .filter(|line| !line.starts_with("sha256: ") && !line.starts_with("# yaml-language-server"))
        .map(|line| match line.strip_prefix("file: ") {
            Some(_) => "file: broken.onnx\n".to_owned(),
            None => format!("{line}\n"),
        })
        .collect();
    // A valid file with an unknown operator: only loading it fails.
    let mut weights = std::fs::read(place.path("../../models/vqa/speech-medium.onnx")).unwrap();
    let (known, unknown) = (b"\x22\x04Conv", b"\x22\x04Cxnv");
    let at: Vec<usize> =
        (0..weights.len() - known.len()).filter(|at| weights[*at..].starts_with(known)).collect();
    assert!(!at.is_empty(), "the model has no convolution");
    at.into_iter().for_each(|at| weights[at..at + unknown.len()].copy_from_slice(unknown));
    place.write("broken.onnx", weights);
    let (digest, _) = tidemill_cluster::blobs::digest_of_file(&place.path("broken.onnx")).unwrap();
    place.write("broken.yaml", format!("{broken}sha256: {digest}\n"));
    for (file, variant, worker) in [
        ("plan.yaml", "speech-small", "hub"),
        ("medium.yaml", "speech-medium", "hub"),
        ("elsewhere.yaml", "speech-medium", "edge"),
        ("broken-plan.yaml", "speech-broken", "hub"),
    ] {
        place.write(file, speech_plan(variant, worker));
    }
    let alone = |plan: &str| {
        let (workflow, plan) = (place.argument("workflow.yaml"), place.argument(plan));
        tidemill(&["run", &workflow, "--plan", &plan, "--rate", "max", "--quiet"]).expect(0);
        let found = texts(&place.read("out/texts.jsonl"));
        std::fs::remove_dir_all(place.path("out")).unwrap();
        found
    };
    let (small, medium) = (alone("plan.yaml"), alone("medium.yaml"));
    assert!(small.len() == 200 && small != medium);
    // Models load for seconds on a busy machine, and no worker may count as lost for that.
    let cluster = Cluster::start_at(place, &["edge", "hub"], &["--detection", "30s"]);
    cluster.submit().expect(0);
    cluster.until_arrived(20);
    let before = processes(&cluster);
    let told = change(&cluster, "broken-plan.yaml", &["--yes"]).expect(1);
    assert!(told.stderr.contains("did not change to plan 2"), "{}", told.stderr);
    let after = processes(&cluster);
    assert!(before.iter().all(|pid| after.contains(pid)), "{before:?} {after:?}");
    changed(&cluster, "medium.yaml");
    changed(&cluster, "elsewhere.yaml");
    assert_ne!(cluster.run()["state"], "complete", "the test needs more time");
    cluster.until("it is complete", |cluster| cluster.run()["state"] == "complete");
    // Beside the running one the new model has computed that one's input; elsewhere the input is unknown.
    cluster.until("it says that it is warm", |cluster| {
        let logs = cluster.ask(&["logs", "spread"]).expect(0).stdout;
        logs.contains("speech warms up with ")
    });
    cluster.until("it says that it is cold", |cluster| {
        let logs = cluster.ask(&["logs", "spread"]).expect(0).stdout;
        logs.contains("speech starts cold: this worker keeps no records of `speech`")
    });
    let out = cluster.place.path("w-edge/runs/spread/edge");
    let file = walk(&out).into_iter().find(|path| path.ends_with("texts.jsonl")).unwrap();
    let found = texts(&std::fs::read_to_string(file).unwrap());
    assert_eq!(found.keys().collect::<Vec<_>>(), small.keys().collect::<Vec<_>>(), "each record once");
    let of = |key: &String, texts: &BTreeMap<String, Value>| found[key] == texts[key];
    let neither: Vec<&String> = found.keys().filter(|key| !of(key, &small) && !of(key, &medium)).collect();
    assert!(neither.is_empty(), "{neither:?}");
    let differ: Vec<&String> = found.keys().filter(|key| small[*key] != medium[*key]).collect();
    let by_small = differ.iter().filter(|key| of(key, &small)).count();
    let by_medium = differ.iter().filter(|key| of(key, &medium)).count();
    assert!(by_small > 0 && by_medium > 0, "{by_small} by one, {by_medium} by the other");
    let told = cluster.ask(&["events"]).expect(0).stdout;
    assert!(told.contains("plan 2 is given up") && told.contains("run spread has plan 4"), "{told}");
}

fn walk(folder: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    let Ok(entries) = std::fs::read_dir(folder) else { return found };
    for entry in entries.flatten() {
        match entry.file_type().unwrap().is_dir() {
            true => found.extend(walk(&entry.path())),
            false => found.push(entry.path().to_str().unwrap().to_owned()),
        }
    }
    found
}

/// Number of change events so far: started, ready, and their results.
fn told(cluster: &Cluster) -> BTreeMap<&'static str, usize> {
    let events = cluster.ask(&["events", "--output", "json"]).stdout;
    let count = |kind: &str| events.matches(&format!("\"kind\":\"{kind}\"")).count();
    BTreeMap::from([
        ("begun", count("plan_change_begun")),
        ("ready", count("plan_ready")),
        ("changed", count("plan_changed")),
        ("failed", count("plan_change_failed")),
    ])
}

fn until_told(cluster: &Cluster, what: &'static str, number: usize) {
    cluster.until(&format!("{number} {what}"), |cluster| {
        let told = told(cluster);
        told.get(what).is_some_and(|count| *count >= number)
    });
}

/// Requests the other plan, until its change has started.
fn begin_change(cluster: &Cluster) -> Child {
    let token = std::fs::read_to_string(cluster.place.path("controller/admin.token")).unwrap();
    let begun = told(cluster)["begun"];
    for _ in 0..100 {
        let is_other = change(cluster, "other.yaml", &["--output", "json"]).code == Some(0);
        let plan = cluster.place.argument(if is_other { "plan.yaml" } else { "other.yaml" });
        let mut command = command(&["change", "spread", "--plan", &plan, "--yes", "--output", "json"]);
        command.env("TIDEMILL_CONTROLLER", &cluster.address).env("TIDEMILL_TOKEN", token.trim());
        let mut child = command.spawn().unwrap();
        while child.try_wait().unwrap().is_none() {
            if told(cluster)["begun"] > begun {
                return child;
            }
        }
        // It is not ready for a change yet.
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("no change is begun: {}", cluster.ask(&["events"]).stdout);
}

/// The process that dies, and the event before.
type Death = (&'static str, &'static str);

/// A run whose plan changes repeatedly while processes die.
fn plan_changes_while(deaths: &[Death], seed: u64) {
    let rounds = std::env::var("TIDEMILL_CHAOS_ROUNDS").ok().and_then(|text| text.parse().ok());
    // A round takes seconds.
    let rounds = rounds.unwrap_or(deaths.len()).min(60);
    let seconds = 6 * rounds;
    let expected = undisturbed(seconds);
    let mut cluster = Cluster::start_in(spread(seconds), &["edge", "hub", "cloud"]);
    moved(&cluster.place, "other.yaml", &[("some", "hub"), ("pair", "cloud")]);
    let mut random = Random::of_seed(seed);
    cluster.submit().expect(0);
    cluster.until_arrived(50);
    let mut died = BTreeSet::new();
    for round in 0..8 * rounds {
        if cluster.run()["state"] == "complete" {
            break;
        }
        // A process that ended by itself before its kill is tried again.
        let again = deaths.iter().find(|death| !died.contains(*death));
        let (who, when) = match again {
            None if round >= rounds => break,
            Some(again) if round >= rounds => *again,
            _ => deaths[round % deaths.len()],
        };
        let (before, counts) = (processes(&cluster), told(&cluster));
        let mut asking = begin_change(&cluster);
        until_told(&cluster, when, counts[when] + 1);
        // A ready plan starts soon.
        let most = if when == "ready" { 10 } else { 150 };
        std::thread::sleep(Duration::from_millis(random.below(most) as u64));
        let is_dead = match who {
            "controller" => {
                let mut controller = cluster.controller.take().unwrap();
                controller.kill().unwrap();
                controller.wait().unwrap();
                cluster.start_controller();
                true
            }
            "old" => before.iter().any(|pid| kill(*pid)),
            _ => kill_a_new_one(&cluster, &before),
        };
        if is_dead {
            died.insert((who, when));
        }
        let _ = asking.wait().unwrap();
        cluster.until("the change is over", |cluster| {
            let told = told(cluster);
            told["changed"] + told["failed"] > counts["changed"] + counts["failed"]
        });
    }
    assert_eq!(died.len(), deaths.len().min(rounds), "{died:?} died");
    for _ in 0..seconds {
        if cluster.run()["state"] == "complete" {
            break;
        }
        std::thread::sleep(Duration::from_secs(1));
    }
    cluster.until("it is complete", |cluster| cluster.run()["state"] == "complete");
    println!("{:?}", told(&cluster));
    same(&cluster.outputs(), &expected.join().unwrap());
    let hosts = processes(&cluster);
    assert!(hosts.iter().all(|pid| gone(*pid)), "a process outlives its run");
}

/// The present plan continues, or both processes continue undisturbed.
#[test]
#[ignore = "long: make test-long"]
fn chaos_processes_die_while_a_plan_is_made_ready() {
    plan_changes_while(&[("old", "begun"), ("new", "begun"), ("controller", "begun")], 20);
}

/// The run continues under one of the two plans, with every record once.
#[test]
#[ignore = "long: make test-long"]
fn chaos_processes_die_while_one_plan_follows_another() {
    plan_changes_while(&[("new", "ready"), ("old", "ready"), ("controller", "ready")], 21);
}

/// Kills a process other than these, once there is one.
fn kill_a_new_one(cluster: &Cluster, before: &[u32]) -> bool {
    for _ in 0..2000 {
        if let Some(pid) = processes(cluster).into_iter().find(|pid| !before.contains(pid)) {
            return kill(pid);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    false
}

/// Bytes of memory of a process.
pub(crate) fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok()).unwrap_or(0) * 1024
}
