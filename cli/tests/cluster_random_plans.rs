//! Random plans follow one another during a run, and models are swapped repeatedly; through the built binary.
use crate::cluster::Cluster;
use crate::cluster_changes::{SPEECH, change, processes, resident, speech_plan, spread};
use crate::command::{Place, tidemill};
use crate::processes::gone;
use serde_json::Value;
use std::collections::BTreeMap;
use std::thread::JoinHandle;
use tidemill_random::Random;

const WORKERS: [&str; 3] = ["edge", "hub", "cloud"];
/// Possible shares of a stateless operator.
const SHARES: [&[f64]; 4] = [&[1.0], &[0.5, 0.5], &[0.25, 0.75], &[0.2, 0.3, 0.5]];

/// A plan of the workflow `spread`: stages on any worker and in any slot, the filter in one to three parts. Sinks stay with
/// their files.
fn random_plan(random: &mut Random) -> String {
    let shares = SHARES[random.below(SHARES.len())];
    let mut stages = String::new();
    let mut stage = |id: &str, operator: &str, worker: Option<&str>, share: f64| {
        let worker = worker.unwrap_or_else(|| WORKERS[random.below(WORKERS.len())]);
        let slot = ["main", "second"][random.below(2)];
        stages += &format!(
            "  - {{id: {id}, operator: {operator}, worker: {worker}, slot_group: {slot}, share: {share}}}\n"
        );
    };
    for operator in ["left", "right", "pair", "counted"] {
        stage(operator, operator, None, 1.0);
    }
    stage("pairs", "pairs", Some("hub"), 1.0);
    stage("table", "table", Some("cloud"), 1.0);
    let (mut classes, mut edges) = (String::new(), String::new());
    for (number, share) in shares.iter().enumerate() {
        let some = format!("some-{number}");
        stage(&some, "some", None, *share);
        classes += &format!(
            "  - {{id: {number}, share: {share}, route: {{left: left, right: right, some: {some}, pair: pair, counted: counted, \
             pairs: pairs, table: table}}}}\n"
        );
        edges += &format!("  - {{from: left, to: {some}}}\n  - {{from: {some}, to: pair}}\n");
    }
    let workers: String =
        WORKERS.iter().map(|id| format!("  - {{id: {id}, tier: {id}, worker_type: small}}\n")).collect();
    format!(
        "version: 1\nworkflow: {{name: spread}}\ntick: 10ms\ncheckpoint_every: 5\nworkers:\n{workers}stages:\n{stages}classes:\n\
         {classes}edges:\n{edges}  - {{from: right, to: pair, input: 1}}\n  - {{from: pair, to: counted}}\n  - {{from: pair, to: pairs}}\n  \
         - {{from: counted, to: table}}\n"
    )
}

/// The sorted lines of each output: if an operator is divided, rows of one time may change places.
fn lines(outputs: &[(&'static str, Vec<u8>)]) -> BTreeMap<&'static str, Vec<String>> {
    let sorted = |bytes: &[u8]| {
        let mut lines: Vec<String> = String::from_utf8_lossy(bytes).lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    outputs.iter().map(|(file, bytes)| (*file, sorted(bytes))).collect()
}

/// Outputs of one undisturbed process at full speed, computed in the background.
fn undisturbed(place: &Place) -> JoinHandle<Vec<(&'static str, Vec<u8>)>> {
    let alone = Place::empty("spread");
    for file in ["workflow.yaml", "left.csv", "right.csv"] {
        alone.write(file, place.read(file));
    }
    std::thread::spawn(move || {
        tidemill(&["run", &alone.argument("workflow.yaml"), "--rate", "max", "--quiet"]).expect(0);
        crate::processes::outputs(&alone)
    })
}

/// Costs of the changes of a run.
#[derive(Default)]
struct Changes {
    /// By sink, milliseconds.
    pauses: BTreeMap<String, Vec<f64>>,
    longest: Vec<f64>,
    later: Vec<f64>,
    prepared: Vec<f64>,
}

impl Changes {
    fn count(&self) -> usize {
        self.prepared.len()
    }

    /// Changes to the plan in this file; false if the run is over.
    fn make(&mut self, cluster: &Cluster, plan: &str) -> bool {
        let told = change(cluster, plan, &["--yes", "--output", "json"]);
        if told.code != Some(0) {
            cluster.until(&format!("{}{}", told.stdout, told.stderr), |cluster| {
                cluster.run()["state"] == "complete"
            });
            return false;
        }
        let document = told.json();
        let outcome = &document["change"]["outcome"];
        if outcome.is_null() {
            return true; // the plan does the same
        }
        assert_eq!(outcome["kind"], "changed", "{document}");
        for (sink, pause) in outcome["sinks_ms"].as_object().into_iter().flatten() {
            self.pauses.entry(sink.clone()).or_default().push(pause.as_f64().unwrap());
        }
        self.longest.extend(outcome["pause_ms"].as_f64());
        self.later.extend(outcome["gap_ms"].as_f64());
        self.prepared.push(outcome["prepared_ms"].as_f64().unwrap());
        true
    }

    fn print(&mut self) {
        println!("{} changes\n\n| milliseconds | p50 | p90 | p99 | worst | of |", self.count());
        println!("|---|--:|--:|--:|--:|--:|");
        let pauses = self.pauses.iter_mut().map(|(sink, all)| (format!("pause at the sink `{sink}`"), all));
        let others = [
            ("pause, the longest of both".to_owned(), &mut self.longest),
            ("schedule later by".to_owned(), &mut self.later),
            ("preparation".to_owned(), &mut self.prepared),
        ];
        for (what, values) in pauses.chain(others) {
            values.sort_by(f64::total_cmp);
            let at = |q: f64| values.get(((values.len().max(1) - 1) as f64 * q).round() as usize).copied();
            let [a, b, c, d] = [0.5, 0.9, 0.99, 1.0].map(|q| at(q).unwrap_or(f64::NAN));
            println!("| {what} | {a:.0} | {b:.0} | {c:.0} | {d:.0} | {} |", values.len());
        }
    }
}

/// A run under `most` random plans has the output of an undisturbed one.
fn random_plans(place: Place, seed: u64, most: usize) -> Changes {
    let expected = undisturbed(&place);
    let cluster = Cluster::start_in(place, &WORKERS);
    cluster.submit().expect(0);
    cluster.until_arrived(50);
    let (mut random, mut changes) = (Random::of_seed(seed), Changes::default());
    while changes.count() < most {
        cluster.place.write("random.yaml", random_plan(&mut random));
        if !changes.make(&cluster, "random.yaml") {
            break;
        }
    }
    // The rest of the run needs no further change of plan.
    loop {
        let run = cluster.run();
        if run["state"] == "complete" {
            break;
        }
        assert_eq!(run["state"], "running", "{}", cluster.ask(&["events"]).stdout);
        std::thread::sleep(std::time::Duration::from_millis(500));
    }
    let (found, expected) = (cluster.outputs(), expected.join().unwrap());
    assert!(expected.iter().all(|(_, content)| content.len() > 500), "there is too little to compare");
    let (sorted, wanted) = (lines(&found), lines(&expected));
    for (file, lines) in &wanted {
        let (here, there) = (sorted[file].len(), lines.len());
        assert!(sorted[file] == *lines, "{file}: {here} lines, {there} expected, or others");
    }
    println!("equal to the undisturbed run: yes; to the byte: {}", found == expected);
    let hosts = processes(&cluster);
    assert!(hosts.iter().all(|pid| gone(*pid)), "a process outlives its run");
    changes
}

#[test]
#[ignore = "long: make test-long"]
fn plans_that_nobody_chose_change_nothing_that_comes_out() {
    let place = spread(20);
    let changes = random_plans(place, 20261125, 4);
    assert!(changes.count() >= 2, "{} changes: the test needs more time", changes.count());
}

fn number(name: &str, default: usize) -> usize {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// `benches/experiments/plan_changes.sh` runs it and keeps its output.
#[test]
#[ignore = "long: make test-long"]
fn many_plans_that_nobody_chose() {
    let most = number("TIDEMILL_PLAN_CHANGES", 100);
    let seconds = number("TIDEMILL_PLAN_SECONDS", 4 * most);
    let (left, right) = (300, 150);
    let place = spread(1);
    place.change("workflow.yaml", "rate: 6000/s", &format!("rate: {left}/s"));
    place.change("workflow.yaml", "rate: 3000/s", &format!("rate: {right}/s"));
    let side = |rows: usize, step: usize, name: &str| {
        let row = |i: usize| match i % 1000 {
            998 => format!("k{:02},{},none\n", i % 50, 1_700_000_000_000 + i * step),
            _ => format!("k{:02},{},{i}\n", i % 50, 1_700_000_000_000 + i * step),
        };
        format!("key,at,{name}\n{}", (0..rows).map(row).collect::<String>())
    };
    place.write("left.csv", side(left * seconds, 3, "value"));
    place.write("right.csv", side(right * seconds, 6, "weight"));
    let mut changes = random_plans(place, 20, most);
    changes.print();
    assert!(changes.count() >= most, "{} changes: give it more TIDEMILL_PLAN_SECONDS", changes.count());
}

/// Mebibytes of the long-lived processes, and of the largest process of the run.
fn memory(cluster: &Cluster) -> Vec<(String, f64)> {
    let mib = |pid: u32| resident(pid) as f64 / 1048576.0;
    let mut all: Vec<(String, f64)> =
        cluster.workers.iter().map(|(name, agent)| (format!("agent {name}"), mib(agent.id()))).collect();
    all.extend(cluster.controller.iter().map(|child| ("controller".to_owned(), mib(child.id()))));
    for (name, agent) in &cluster.workers {
        let hosts = crate::processes::children(agent.id());
        let largest = hosts.into_iter().map(mib).fold(0.0, f64::max);
        all.push((format!("process of the run on {name}"), largest));
    }
    all
}

/// Two models take turns; `benches/experiments/plan_changes.sh` runs it and keeps its output.
#[test]
#[ignore = "long: make test-long"]
fn many_swaps_of_a_model() {
    let most = number("TIDEMILL_PLAN_CHANGES", 100);
    let place = Place::example("vqa");
    let workflow = SPEECH.replace(", broken.yaml", "").replace("path: data/questions", "path: long");
    place.write("workflow.yaml", workflow.replace("rate: 12/s", "rate: 4/s"));
    // Of any length: the run is cancelled in the end.
    for entry in std::fs::read_dir(place.path("data/questions")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let first = format!("long/0-{name}");
        place.write(&first, std::fs::read(place.path("data/questions").join(&name)).unwrap());
        for copy in 1..most.div_ceil(8) {
            std::fs::hard_link(place.path(&first), place.path(&format!("long/{copy}-{name}"))).unwrap();
        }
    }
    place.write("plan.yaml", speech_plan("speech-small", "hub"));
    place.write("medium.yaml", speech_plan("speech-medium", "hub"));
    let cluster = Cluster::start_in(place, &["edge", "hub"]);
    cluster.submit().expect(0);
    cluster.until_arrived(20);
    let (mut changes, mut before) = (Changes::default(), Vec::new());
    for swap in 1..=most {
        let plan = if swap % 2 == 1 { "medium.yaml" } else { "plan.yaml" };
        assert!(changes.make(&cluster, plan), "the run is over after {swap} swaps");
        if swap == most.div_ceil(10) {
            before = memory(&cluster);
        }
    }
    let after = memory(&cluster);
    changes.print();
    let logs = cluster.ask(&["logs", "spread", "--stage", "speech"]).expect(0).stdout;
    println!(
        "\nlast words of a model: {}",
        logs.lines().rfind(|line| line.contains("warms up")).unwrap_or("none")
    );
    println!("\n| MiB of memory | after {} swaps | after {most} |\n|---|--:|--:|", most.div_ceil(10));
    for ((name, before), (_, after)) in before.iter().zip(&after) {
        println!("| {name} | {before:.1} | {after:.1} |");
        // A leak of one model per swap would add dozens of them.
        assert!(*after <= before * 1.25 + 8.0, "{name} grew from {before:.1} to {after:.1} MiB");
    }
    let run: Value = cluster.run();
    assert_eq!((&run["state"], &run["restarts"]), (&Value::from("running"), &Value::from(0)), "{run}");
    cluster.ask(&["cancel", "spread"]).expect(0);
}
