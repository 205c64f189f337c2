//! Runs by plans of the planner equal runs without a plan, with a process per worker and on a cluster; through the built
//! binary. Many more, in one process, are in `app/tests/planned_runs.rs`.
use crate::cluster::Cluster;
use crate::command::{Place, tidemill};
use std::collections::BTreeMap;
use tidemill_problems::{Files, files};
use tidemill_random::Random;

/// Random files in the folder, and the lines of each output of a run without a plan.
fn drawn(place: &Place, seed: u64) -> (Files, BTreeMap<String, Vec<String>>) {
    let files = files(&mut Random::of_seed(seed));
    place.write("workflow.yaml", &files.workflow);
    place.write("infrastructure.yaml", &files.infrastructure);
    place.write("profile.yaml", &files.profile);
    files.inputs.iter().for_each(|(name, text)| place.write(name, text));
    tidemill(&["run", &place.argument("workflow.yaml"), "--quiet"]).expect(0);
    let expected =
        files.outputs.iter().map(|name| (name.clone(), sorted(&place.read(&format!("out/{name}")))));
    let expected = expected.collect();
    (files, expected)
}

fn sorted(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// Plans, and returns the number of workers in the plan; `None` without a plan.
fn planned(place: &Place) -> Option<usize> {
    let [workflow, machines, profile, plan] =
        ["workflow.yaml", "infrastructure.yaml", "profile.yaml", "plan.yaml"]
            .map(|file| place.argument(file));
    let done = tidemill(&["plan", &workflow, "--infra", &machines, "--profiles", &profile, "--out", &plan]);
    let plan = (done.code == Some(0)).then(|| place.read("plan.yaml"))?;
    let plan = tidemill_spec::plan::Plan::parse(&plan, "plan.yaml").unwrap();
    Some(plan.workers.len())
}

/// Number of runs: `make test-long` makes more of them.
fn number() -> usize {
    if std::env::var_os("TIDEMILL_PLANNED_RUNS").is_some() { 6 } else { 1 }
}

#[test]
fn planned_runs_of_the_processes_of_workers_give_what_one_process_gives() {
    let mut runs = 0;
    for seed in 1_000.. {
        let place = Place::empty("drawn");
        let (files, expected) = drawn(&place, seed);
        if planned(&place).is_none_or(|workers| workers < 3) {
            continue;
        }
        let (workflow, plan) = (place.argument("workflow.yaml"), place.argument("plan.yaml"));
        tidemill(&["run", &workflow, "--plan", &plan, "--processes", "--rate", "max", "--quiet"]).expect(0);
        for name in &files.outputs {
            assert_eq!(sorted(&place.read(&format!("out/{name}"))), expected[name], "seed {seed}, {name}");
        }
        runs += 1;
        if runs == number() {
            return;
        }
    }
}

#[test]
#[ignore = "long: make test-long"]
fn planned_runs_of_a_cluster_give_what_one_process_gives() {
    let mut cluster = Cluster::without_workers(Place::empty("drawn"), &[]);
    for (name, tier, of) in [("first", "edge", "e"), ("second", "edge", "e"), ("rack", "cloud", "c")] {
        cluster.start_worker_with(name, &["--tier", tier, "--type", of, "--price", "0.02 $/h"]);
    }
    cluster.until_joined(3);
    let mut runs = 0;
    for seed in 2_000.. {
        let place = Place::empty("drawn");
        let (files, expected) = drawn(&place, seed);
        let (workflow, profile) = (place.argument("workflow.yaml"), place.argument("profile.yaml"));
        let name = format!("drawn-{seed}");
        let told = cluster.ask(&["submit", &workflow, "--profiles", &profile, "--as", &name]);
        if told.code != Some(0) {
            assert!(told.stderr.contains("no plan keeps"), "seed {seed}: {}", told.stderr);
            continue;
        }
        cluster.until("it is complete", |cluster| {
            let run = cluster.run_of(&name);
            assert_ne!(run["state"], "failed", "seed {seed}: {run}");
            run["state"] == "complete"
        });
        for file in &files.outputs {
            // A sink is on one worker.
            let written: Vec<String> = ["first", "second", "rack"]
                .iter()
                .flat_map(|worker| {
                    let roles = cluster.place.path(&format!("w-{worker}/runs/{name}"));
                    let roles = std::fs::read_dir(roles).into_iter().flatten();
                    roles.filter_map(|role| {
                        std::fs::read_to_string(role.unwrap().path().join("out").join(file)).ok()
                    })
                })
                .collect();
            assert_eq!(written.len(), 1, "seed {seed}, {file}");
            assert_eq!(sorted(&written[0]), expected[file], "seed {seed}, {file}");
        }
        runs += 1;
        if runs == 3 {
            return;
        }
    }
}

/// One site with several workers, and two: each group is counted once and as a whole.
#[test]
#[ignore = "long: make test-long"]
fn a_window_of_groups_counts_every_record_under_the_plan_of_the_planner() {
    let place = Place::empty("spread");
    let rows = |i: u64| format!("s{},{}\n", i * i % 50, 1_700_000_000_000 + i * 10);
    place.write("in.csv", format!("sensor,at\n{}", (0..4_000).map(rows).collect::<String>()));
    let workflow = |key: &str| {
        format!(
            "version: 1
name: spread
sources: [{{id: s, kind: csv, {key}rate: 10000/s, options: {{path: in.csv, columns: {{sensor: text, at: int64}}, event_time: at}}}}]
operators:
  - {{id: f, kind: filter, input: s, options: {{where: at > 0}}}}
  - {{id: n, kind: window, input: f, options: {{size: 10s, group_by: [sensor], aggregates: [{{function: count, as: n}}]}}}}
sinks: [{{id: z, kind: jsonl, input: n, options: {{path: out.jsonl, overwrite: true}}}}]
slo: {{rate: 10000/s}}
"
        )
    };
    let service = |operator: &str| {
        format!(
            "  - {{operator: {operator}, worker_type: e, how: predicted, batches: [{{batch: 1, p50: 60us, p75: 60us, p90: 60us}}]}}\n"
        )
    };
    place.write(
        "profile.yaml",
        format!(
            "version: 1\nworkflow: {{name: spread}}\nmachines: [{{worker_type: e, how: predicted}}]\nservices:\n{}{}messages: [{{from: s, \
             to: f, bytes_per_record: 40B}}, {{from: f, to: n, bytes_per_record: 40B}}]\n",
            service("f"),
            service("n")
        ),
    );
    let write = |key: &str, machines: &str| {
        place.write("workflow.yaml", workflow(key));
        place.write("infrastructure.yaml", format!("version: 1\nname: m\n{machines}\n"));
    };
    let counted = |key: &str, machines: &str| {
        write(key, machines);
        planned(&place).expect("there is a plan");
        let plan = tidemill_spec::plan::Plan::parse(&place.read("plan.yaml"), "plan.yaml").unwrap();
        let stages = plan.stages.iter().filter(|stage| stage.operator == "n").count();
        let (workflow, plan) = (place.argument("workflow.yaml"), place.argument("plan.yaml"));
        tidemill(&["run", &workflow, "--plan", &plan, "--rate", "max", "--quiet"]).expect(0);
        let rows = place.rows("out.jsonl");
        let groups: std::collections::BTreeSet<_> =
            rows.iter().map(|row| (row["window_start"].to_string(), row["sensor"].to_string())).collect();
        assert_eq!(groups.len(), rows.len(), "each group once");
        (rows.iter().map(|row| row["n"].as_u64().unwrap()).sum::<u64>(), stages)
    };
    let sites =
        "tiers: [{id: edge, locations: [north, south], workers: [{type: e, count: 2, price: 0.01 $/h}]}]";
    let linked = format!("{sites}\nlinks: [{{from: edge, to: edge, price: 0.1 $/GiB}}]");
    let site = "tiers: [{id: edge, workers: [{type: e, count: 4, price: 0.01 $/h}]}]";
    assert_eq!(counted("", &linked), (4_000, 1));
    assert_eq!(counted("", site), (4_000, 1));
    assert_eq!(counted("key: sensor, ", sites), (4_000, 2));
    // Groups that are at both sites cannot meet without a link.
    write("", sites);
    let arguments = ["workflow.yaml", "infrastructure.yaml", "profile.yaml"].map(|file| place.argument(file));
    let [workflow, machines, profile] = &arguments;
    let told = tidemill(&["plan", workflow, "--infra", machines, "--profiles", profile]).expect(1).stdout;
    let told = told.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        told.contains("all records of `n` meet on one worker") && told.contains("edge/north, edge/south"),
        "{told}"
    );
    assert!(told.contains("as their `key`"), "{told}");
}
