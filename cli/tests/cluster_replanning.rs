//! Plans that follow measurements of running jobs: service times, loads, free capacity of workers; through the built
//! binary.
//!
//! The profiles here are so far from any machine that its speed does not matter: a measured time counts with at most twenty
//! times its profiled value, and at least with a twentieth.
use crate::cluster::Cluster;
use crate::command::{Place, command};
use rustix::fs::{CWD, FileType, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs::OpenOptions;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Speeds up the waiting times, which are in seconds.
pub(crate) const FAST: [&str; 2] = ["--replan-pace", "30"];

const HEAR: &str = "version: 1
name: hear
sources:
  - {id: questions, kind: wav_directory, key: key, rate: 40/s, repeat: true, options: {path: data/questions}}
operators:
  - {id: speech, kind: ml, input: questions, variants: [../../models/vqa/speech-small.yaml, ../../models/vqa/speech-large.yaml]}
sinks:
  - {id: texts, kind: jsonl, input: speech, options: {path: out/texts.jsonl, columns: [key, question]}}
run: {tick: 50ms, checkpoint_every: 4}
";

/// Milliseconds of each model on gateways and servers, as the profile says.
fn profile(services: &[(&str, &str, f64)]) -> String {
    let mut text = "version: 1\nworkflow: {name: hear}\nmachines: [{worker_type: gateway, how: predicted}, {worker_type: server, how: predicted}]\nservices:\n".to_owned();
    for (variant, machine, ms) in services {
        let micros = (ms * 1000.0).round() as u64;
        text += &format!(
            "  - {{operator: speech, variant: {variant}, backend: rten, worker_type: {machine}, how: predicted, peak_memory: 80MiB, \
             batches: [{{batch: 1, mean: {micros}us, deviation: 1us, p50: {micros}us, p75: {micros}us, p90: {micros}us}}]}}\n"
        );
    }
    text + "messages:\n  - {from: questions, to: speech, bytes_per_record: 36kB}\n  - {from: speech, to: texts, bytes_per_record: 1kB}\n\
            accuracy:\n  metric: share of right answers\n  sink: texts\n  end_to_end:\n    \
            - {variants: {speech: speech-small}, accuracy: 75%}\n    - {variants: {speech: speech-large}, accuracy: 90%}\n"
}

pub(crate) fn hear(services: &[(&str, &str, f64)]) -> Place {
    let place = Place::example("vqa");
    place.write("workflow.yaml", HEAR);
    place.write("hear-profile.yaml", profile(services));
    place
}

/// A gateway at the edge, and a more expensive server in the cloud.
pub(crate) fn cluster(place: Place) -> Cluster {
    let mut cluster = Cluster::without_workers(place, &FAST);
    cluster.start_worker_with("north", &["--tier", "edge", "--type", "gateway", "--price", "0.03 $/h"]);
    cluster.start_worker_with("rack", &["--tier", "cloud", "--type", "server", "--price", "0.4 $/h"]);
    cluster.until_joined(2);
    cluster
}

pub(crate) fn submit(cluster: &Cluster, name: &str, replan: &str, more: &[&str]) {
    let (workflow, profile) =
        (cluster.place.argument("workflow.yaml"), cluster.place.argument("hear-profile.yaml"));
    let own = ["submit", &workflow, "--profiles", &profile, "--as", name, "--replan", replan];
    let told = cluster.ask(&[&own, more].concat()).expect(0);
    assert!(told.stderr.contains("planned hear"), "{}", told.stderr);
}

pub(crate) fn view(cluster: &Cluster, run: &str) -> Value {
    cluster.ask(&["change", run, "--proposal", "--output", "json"]).expect(0).json()["replan"].clone()
}

/// Workers of an operator's stages, and their models.
pub(crate) fn stages(plan: &Value, operator: &str) -> Vec<(String, Option<String>)> {
    let stages = plan["stages"].as_array().unwrap().iter().filter(|stage| stage["operator"] == operator);
    let text = |value: &Value| value.as_str().map(str::to_owned);
    stages.map(|stage| (text(&stage["worker"]).unwrap(), text(&stage["variant"]))).collect()
}

/// The workers of an operator's stages. A plan of equal cost may leave a part of them in place.
pub(crate) fn workers(plan: &Value, operator: &str) -> Vec<String> {
    stages(plan, operator).into_iter().map(|stage| stage.0).collect()
}

/// The texts of all events of a kind, the oldest first.
pub(crate) fn events(cluster: &Cluster, kind: &str) -> Vec<String> {
    let told = cluster.ask(&["events", "--output", "json"]).expect(0).stdout;
    let all = told.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        line.get("event").cloned().unwrap_or(line)
    });
    let of_kind = all.filter(|event| event["kind"] == kind);
    of_kind.map(|event| event["text"].as_str().unwrap().to_owned()).collect()
}

pub(crate) fn until_event(cluster: &Cluster, kind: &str) -> String {
    cluster.until(kind, |cluster| !events(cluster, kind).is_empty());
    events(cluster, kind).remove(0)
}

pub(crate) fn cancel(cluster: &Cluster, run: &str) {
    cluster.ask(&["cancel", run]).expect(0);
    cluster.until("it is over", |cluster| cluster.run_of(run)["state"] == "cancelled");
}

/// Really so slow that the gateway exceeds its utilization; the server would be fast enough, by all known figures.
pub(crate) const SLOW_GATEWAY: [(&str, &str, f64); 2] =
    [("speech-small", "gateway", 0.05), ("speech-small", "server", 0.4)];
/// Low limit on the utilization of a worker.
pub(crate) const HARDLY: [&str; 2] = ["--max-utilization", "0.02"];

#[test]
fn a_run_changes_its_plan_when_a_service_time_leaves_the_range() {
    let cluster = cluster(hear(&SLOW_GATEWAY));
    submit(&cluster, "hear", "auto", &HARDLY);
    assert_eq!(workers(&view(&cluster, "hear")["current"], "speech"), ["north"]);
    let why = until_event(&cluster, "replan_accepted");
    for part in
        ["levels are missed", "now 0.03", "then 0.4", "on gateway takes ", "times as long as in its profile"]
    {
        assert!(why.contains(part), "`{part}` is not in: {why}");
    }
    let changed = until_event(&cluster, "plan_changed");
    assert!(changed.contains("run hear has plan 2") && changed.contains("sinks paused for"), "{changed}");
    let current = view(&cluster, "hear")["current"].clone();
    assert!(workers(&current, "speech").contains(&"rack".to_owned()), "{current}");
    let arrived = || cluster.run_of("hear")["arrived"].as_u64().unwrap();
    let before = arrived();
    cluster.until("records come under the new plan", |_| arrived() > before + 20);
    cancel(&cluster, "hear");
}

#[test]
#[ignore = "long: make test-long"]
fn what_is_proposed_is_applied_when_somebody_wants_it() {
    let cluster = cluster(hear(&SLOW_GATEWAY));
    submit(&cluster, "hear", "ask", &HARDLY);
    let why = until_event(&cluster, "replan_proposed");
    assert!(why.contains("takes ") && why.contains("`tidemill change hear`"), "{why}");
    assert!(events(&cluster, "plan_changed").is_empty(), "nobody has said yes");
    let status = cluster.ask(&["status", "hear"]).expect(0).stdout;
    assert!(
        status.contains("the controller proposes another plan") && status.contains("on gateway takes "),
        "{status}"
    );
    let shown = view(&cluster, "hear");
    assert_eq!(workers(&shown["current"], "speech"), ["north"], "{shown}");
    let proposed = workers(&shown["proposal"]["plan"], "speech");
    assert!(proposed.contains(&"rack".to_owned()), "{shown}");
    let told = cluster.ask(&["plan", "apply", "hear"]).expect(2).stderr;
    assert!(told.contains("--yes"), "{told}");
    let told = cluster.ask(&["plan", "apply", "hear", "--yes"]).expect(0);
    assert!(told.stdout.contains("stage speech") && told.stdout.contains("rack"), "{}", told.stdout);
    until_event(&cluster, "plan_changed");
    assert_eq!(workers(&view(&cluster, "hear")["current"], "speech"), proposed);
    cancel(&cluster, "hear");
}

#[test]
#[ignore = "long: make test-long"]
fn nobody_looks_where_nobody_is_to_look() {
    let cluster = cluster(hear(&SLOW_GATEWAY));
    submit(&cluster, "hear", "off", &HARDLY);
    // The request reports that there is a reason, and has been for longer than needed.
    let mut decision = String::new();
    for _ in 0..300 {
        let answer = cluster.ask(&["change", "hear", "--dry-run", "--output", "json"]);
        if answer.code == Some(0) {
            decision = answer.json()["replan"]["decision"].as_str().unwrap_or_default().to_owned();
        }
        if decision.contains("on gateway takes ") {
            break;
        }
        assert!(events(&cluster, "replan_accepted").is_empty());
        std::thread::sleep(Duration::from_millis(200));
    }
    assert!(
        decision.contains("on gateway takes ") && decision.contains("it keeps more of the levels"),
        "{decision}"
    );
    std::thread::sleep(Duration::from_secs(3));
    assert!(events(&cluster, "replan_kept").is_empty() && events(&cluster, "replan_accepted").is_empty());
    assert_eq!(workers(&view(&cluster, "hear")["current"], "speech"), ["north"]);
    cancel(&cluster, "hear");
}

/// One worker, and a model that turns out to be too slow for it: no plan keeps the accuracy.
#[test]
#[ignore = "long: make test-long"]
fn accuracy_gives_way_where_the_user_lets_it_and_never_in_silence() {
    let place = hear(&[("speech-small", "gateway", 0.01), ("speech-large", "gateway", 0.05)]);
    let mut cluster = Cluster::without_workers(place, &FAST);
    cluster.start_worker_with("north", &["--tier", "edge", "--type", "gateway", "--price", "0.03 $/h"]);
    cluster.until_joined(1);
    let level = ["--slo", "accuracy=85"];
    let told = {
        let (workflow, profile) =
            (cluster.place.argument("workflow.yaml"), cluster.place.argument("hear-profile.yaml"));
        let own = ["submit", &workflow, "--profiles", &profile, "--degrade", "accuracy=95"];
        cluster.ask(&[&own, &level[..]].concat()).expect(78).stderr
    };
    assert!(told.contains("is not below the level, 85 %"), "{told}");
    // Levels that the user does not name do not give way.
    submit(&cluster, "strict", "auto", &[&HARDLY[..], &level].concat());
    let why = until_event(&cluster, "replan_impossible");
    assert!(why.contains("no plan keeps the service levels"), "{why}");
    assert!(why.contains("accuracy: 75 % instead of 85 %"), "what would have to give way: {why}");
    let speech = stages(&view(&cluster, "strict")["current"], "speech");
    assert_eq!(speech[0].1.as_deref(), Some("speech-large"));
    cancel(&cluster, "strict");
    submit(&cluster, "lenient", "auto", &[&HARDLY[..], &level, &["--degrade", "accuracy=70"]].concat());
    cluster.until("the plan is changed", |cluster| {
        let changed = events(cluster, "plan_changed");
        changed.iter().any(|text| text.contains("run lenient has plan 2"))
    });
    let why = events(&cluster, "replan_accepted").pop().unwrap();
    assert!(why.contains("accuracy is relaxed: 75.0 % instead of 85.0 %"), "{why}");
    let speech = stages(&view(&cluster, "lenient")["current"], "speech");
    assert_eq!(speech[0].1.as_deref(), Some("speech-small"));
    // Without ground truth here it is still reported.
    cluster.until("the level is told as missed", |cluster| {
        let levels = cluster.run_of("lenient")["levels"].clone();
        let accuracy = levels.as_array().unwrap().iter().find(|level| level["level"] == "accuracy").cloned();
        accuracy.is_some_and(|accuracy| accuracy["is_kept"] == false && accuracy["gives_way"] == "75.0 %")
    });
    let status = cluster.ask(&["status", "lenient"]).expect(0).stdout;
    assert!(status.contains("accuracy (at least 85%) MISSED: nothing measured yet; relaxed"), "{status}");
    let metrics = String::from_utf8(cluster.call("GET", "/metrics", &cluster.admin()).body).unwrap();
    let missed =
        metrics.lines().find(|line| line.starts_with("tidemill_slo_missed{") && line.contains("accuracy"));
    assert!(missed.is_some_and(|line| line.ends_with(" 1.0") || line.ends_with(" 1")), "{missed:?}");
    let told = until_event(&cluster, "level_missed");
    assert!(told.contains("run lenient misses its level on accuracy"), "{told}");
    // The larger model was too slow: it is not tried repeatedly.
    std::thread::sleep(Duration::from_secs(4));
    assert_eq!(view(&cluster, "lenient")["current"]["plan_version"], 2);
    cancel(&cluster, "lenient");
}

/// The agent of a site: while it is stopped, it is silent, and its processes continue.
struct Agent(Pid);

impl Agent {
    fn stop(cluster: &Cluster, name: &str) -> Self {
        let (_, child) = cluster.workers.iter().find(|(known, _)| known == name).unwrap();
        let agent = Self(Pid::from_raw(child.id().cast_signed()).unwrap());
        kill_process(agent.0, Signal::STOP).unwrap();
        agent
    }

    fn go_on(&self) {
        kill_process(self.0, Signal::CONT).unwrap();
    }
}

/// A site that may continue by itself has the source, and a server has a model that is too slow for it; a more expensive
/// one would be fast enough, by all known figures. There is no decision in the first seconds.
fn with_a_site(replan: &str) -> Cluster {
    let place = hear(&[("speech-small", "server", 0.05), ("speech-small", "tower", 0.4)]);
    place.change("workflow.yaml", "input: questions,", "input: {from: questions, when_cut: buffer},");
    let server = "{worker_type: server, how: predicted}";
    place.change("hear-profile.yaml", server, &format!("{server}, {}", server.replace("server", "tower")));
    let mut cluster = Cluster::without_workers(place, &["--replan-pace", "6"]);
    cluster.start_worker_with("north", &["--tier", "edge", "--type", "gateway", "--price", "0.03 $/h"]);
    cluster.start_worker_with("rack", &["--tier", "cloud", "--type", "server", "--price", "0.4 $/h"]);
    cluster.start_worker_with("tower", &["--tier", "cloud", "--type", "tower", "--price", "0.9 $/h"]);
    cluster.until_joined(3);
    submit(&cluster, "hear", replan, &HARDLY);
    let current = view(&cluster, "hear")["current"].clone();
    assert_eq!(workers(&current, "speech"), ["rack"]);
    cluster.until("it runs", |cluster| cluster.run_of("hear")["arrived"].as_u64().unwrap() > 0);
    assert_eq!(cluster.run_of("hear")["placement"]["device-edge"], "north");
    cluster
}

#[test]
#[ignore = "long: make test-long"]
fn nothing_is_decided_while_a_part_of_the_run_is_silent() {
    let cluster = with_a_site("auto");
    let north = Agent::stop(&cluster, "north");
    assert!(events(&cluster, "replan_accepted").is_empty(), "it was decided before anybody was silent");
    let why = until_event(&cluster, "replan_waits");
    let silent =
        "worker north, which has 'device-edge', sends no heartbeats, and may continue by itself (`when_cut`)";
    assert!(why.contains("run hear keeps its plan") && why.contains(silent), "{why}");
    let asked = cluster.ask(&["change", "hear", "--dry-run"]).expect(0).stdout;
    assert!(asked.contains("no search for another plan until the run is complete again"), "{asked}");
    // A decision takes ten seconds when all agents respond.
    std::thread::sleep(Duration::from_secs(13));
    for kind in ["replan_accepted", "replan_kept", "replan_goes_on", "role_moved"] {
        assert_eq!(events(&cluster, kind), Vec::<String>::new(), "{kind} while north is silent");
    }
    assert_eq!(events(&cluster, "replan_waits").len(), 1, "it is told once");
    north.go_on();
    let why = until_event(&cluster, "replan_goes_on");
    assert!(why.contains("run hear is complete again after "), "{why}");
    let why = until_event(&cluster, "replan_accepted");
    assert!(why.contains("levels are missed") && why.contains("on server takes "), "{why}");
    until_event(&cluster, "plan_changed");
    assert_eq!(cluster.run_of("hear")["placement"]["device-edge"], "north");
    cancel(&cluster, "hear");
}

/// A requested plan is prepared beside the present one, and replaces it when all of the run is reachable.
#[test]
#[ignore = "long: make test-long"]
fn a_plan_that_somebody_wants_waits_for_a_part_that_is_silent() {
    let cluster = with_a_site("ask");
    until_event(&cluster, "replan_proposed");
    let proposed = view(&cluster, "hear")["proposal"]["plan"].clone();
    cluster.place.write("other.yaml", serde_json::to_string(&proposed).unwrap());
    let north = Agent::stop(&cluster, "north");
    until_event(&cluster, "worker_lost");
    let told = cluster.ask(&["plan", "apply", "hear", "--yes"]);
    assert!(
        told.code != Some(0) && told.stderr.contains("keeps its plan until it is complete again"),
        "{}",
        told.stderr
    );
    let file = cluster.place.argument("other.yaml");
    let token = std::fs::read_to_string(cluster.place.path("controller/admin.token")).unwrap();
    let mut change = command(&["change", "hear", "--plan", &file, "--yes"]);
    change.env("TIDEMILL_CONTROLLER", &cluster.address).env("TIDEMILL_TOKEN", token.trim());
    let mut change = change.spawn().unwrap();
    let why = until_event(&cluster, "plan_change_waits");
    assert!(why.contains("worker north, which has 'device-edge', sends no heartbeats"), "{why}");
    let arrived = || cluster.run_of("hear")["arrived"].as_u64().unwrap();
    let before = arrived();
    cluster.until("the plan that it has goes on", |_| arrived() > before + 20);
    assert_eq!(view(&cluster, "hear")["current"]["plan_version"], 1);
    north.go_on();
    until_event(&cluster, "plan_changed");
    assert!(change.wait().unwrap().success());
    assert_eq!(workers(&view(&cluster, "hear")["current"], "speech"), workers(&proposed, "speech"));
    cancel(&cluster, "hear");
}

const COUNT: &str = "version: 1
name: hear
sources:
  - {id: events, kind: jsonl, journal: {}, options: {path: PATH, stream: until_end, columns: {n: int64}}}
operators:
  - {id: some, kind: filter, input: events, options: {where: n >= 0}}
sinks:
  - {id: rows, kind: jsonl, input: some, options: {path: out/rows.jsonl}}
run: {tick: 20ms, checkpoint_every: 2}
checkpoint: {interval: 100ms}
";

/// Measured times of the filter count with a twentieth of these: 2 ms, and 0.05 ms on servers.
const COUNT_PROFILE: &str = "version: 1
workflow: {name: hear}
machines: [{worker_type: gateway, how: predicted}, {worker_type: server, how: predicted}]
services:
  - {operator: some, worker_type: gateway, how: predicted, batches: [{batch: 1, mean: 40ms, deviation: 1us, p50: 40ms, p75: 40ms, p90: 40ms}]}
  - {operator: some, worker_type: server, how: predicted, batches: [{batch: 1, mean: 1ms, deviation: 1us, p50: 1ms, p75: 1ms, p90: 1ms}]}
messages:
  - {from: events, to: some, bytes_per_record: 60B}
  - {from: some, to: rows, bytes_per_record: 60B}
";

/// Writes lines into a pipe at a rate.
struct Writer {
    rate: Arc<AtomicU64>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    fn begin(pipe: &std::path::Path, rate: u64) -> Self {
        // Opened for both, so that it does not wait for a reader.
        let mut pipe = OpenOptions::new().read(true).write(true).open(pipe).unwrap();
        let (rate, ends) = (Arc::new(AtomicU64::new(rate)), Arc::new(AtomicBool::new(false)));
        let (own, is_over) = (Arc::clone(&rate), Arc::clone(&ends));
        let thread = std::thread::spawn(move || {
            let (mut n, mut owed) = (0u64, 0.0);
            while !is_over.load(Ordering::Relaxed) {
                owed += own.load(Ordering::Relaxed) as f64 * 0.02;
                while owed >= 1.0 {
                    pipe.write_all(format!("{{\"n\":{n}}}\n").as_bytes()).unwrap();
                    (n, owed) = (n + 1, owed - 1.0);
                }
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        Self { rate, ends, thread: Some(thread) }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The load rises above the plan's, and falls again after a while.
#[test]
#[ignore = "long: make test-long"]
fn a_plan_follows_the_load_up_and_down() {
    let place = Place::empty("hear");
    let pipe = place.path("events.pipe");
    mknodat(CWD, &pipe, FileType::Fifo, 0o600.into(), 0).unwrap();
    place.write("workflow.yaml", COUNT.replace("PATH", pipe.to_str().unwrap()));
    place.write("hear-profile.yaml", COUNT_PROFILE);
    let mut cluster = Cluster::without_workers(place, &FAST);
    cluster.start_worker_with("north", &["--tier", "edge", "--type", "gateway", "--price", "0.03 $/h"]);
    cluster.start_worker_with("rack", &["--tier", "cloud", "--type", "server", "--price", "0.4 $/h"]);
    cluster.until_joined(2);
    let writer = Writer::begin(&pipe, 15);
    // The promise is 10 per second, even if fewer come.
    submit(&cluster, "hear", "auto", &["--slo", "rate=10/s"]);
    let some = |cluster: &Cluster| workers(&view(cluster, "hear")["current"], "some");
    assert_eq!(some(&cluster), ["north"]);
    cluster.until("it runs", |cluster| cluster.run_of("hear")["arrived"].as_u64().unwrap() > 50);
    writer.rate.store(1500, Ordering::Relaxed);
    cluster.until("more workers are taken", |cluster| some(cluster).contains(&"rack".to_owned()));
    // Reported once the run has it, with its cost.
    let why = until_event(&cluster, "replan_accepted");
    assert!(why.contains("come, the plan is for 10/s"), "{why}");
    cluster.until("it is done", |cluster| !events(cluster, "plan_changed").is_empty());
    writer.rate.store(15, Ordering::Relaxed);
    cluster.until("it goes back", |cluster| some(cluster) == ["north"]);
    cluster.until("that is told", |cluster| {
        let told = events(cluster, "replan_accepted");
        told.last().is_some_and(|why| why.contains("another plan is cheaper") && why.contains("then 0.03"))
    });
    // A stream without a writer ends, and the run with it.
    cancel(&cluster, "hear");
    drop(writer);
}
