//! From measured figures to a plan that runs. `UPDATE_GOLDEN=1` rewrites the golden outputs.
use crate::command::{FILES, Outcome, Place, VQA, command, root, tidemill};
use serde_json::Value;
use std::collections::BTreeMap;

fn plan(more: &[&str]) -> Outcome {
    tidemill(&[&["plan", VQA], &FILES[..], more].concat())
}

/// Compares with `tests/golden/NAME`; both streams, because notes and errors are on the other.
#[track_caller]
fn compare(name: &str, outcome: &Outcome) {
    let path = root().join("cli/tests/golden").join(name);
    let place = root().to_str().unwrap();
    let text = format!("{}{}", outcome.stderr, outcome.stdout).replace(place, "<repository>");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == text, "{} differs; UPDATE_GOLDEN=1 rewrites it. Now:\n{text}", path.display());
}

/// Answers by key.
fn answers(rows: &[Value]) -> BTreeMap<String, String> {
    let text = |row: &Value, column: &str| row[column].as_str().unwrap().to_owned();
    rows.iter().map(|row| (text(row, "key"), text(row, "answer"))).collect()
}

#[test]
fn a_plan_runs_and_answers_as_without_plan() {
    let place = Place::example("vqa");
    let (workflow, file) = (place.argument("workflow.yaml"), place.argument("plan.yaml"));
    // A higher rate than two gateways serve alone, so that the plan has several workers and classes.
    let levels = [
        "--slo",
        "latency=none",
        "--slo",
        "rate=60/s",
        "--slo",
        "accuracy=74",
        "--out",
        &file,
        "--output",
        "json",
    ];
    let planned = tidemill(&[&["plan", &workflow], &FILES[..], &levels[..]].concat()).expect(0).json();
    assert_eq!(planned["status"], "optimal", "{planned}");
    tidemill(&["validate", &workflow, &file]).expect(0);
    let seen = tidemill(&[
        "run",
        &workflow,
        "--plan",
        &file,
        "--records",
        "40",
        "--rate",
        "max",
        "--output",
        "json",
    ]);
    let report = seen.expect(0).json();
    assert!(report.to_string().contains("\"answers\""), "{report}");
    let with_plan = answers(&place.rows("out/answers.jsonl"));
    let mut arguments = vec!["run".to_owned(), workflow];
    for (operator, variant) in planned["variants"].as_object().unwrap() {
        arguments.extend(["--set".to_owned(), format!("{operator}={}", variant.as_str().unwrap())]);
    }
    arguments.extend(["--records", "40", "--rate", "max"].map(str::to_owned));
    tidemill(&arguments.iter().map(String::as_str).collect::<Vec<_>>()).expect(0);
    let without = answers(&place.rows("out/answers.jsonl"));
    assert_eq!(with_plan.len(), 40);
    assert_eq!(with_plan, without);
}

#[test]
fn the_answer_for_programs_has_what_they_need() {
    let answer = plan(&["--output", "json"]).expect(0).json();
    for key in
        ["status", "gap", "accuracy", "latency", "variants", "workers", "planning_seconds", "bound", "notes"]
    {
        assert!(!answer[key].is_null(), "{key}: {answer}");
    }
    let cost = |part: &str| answer["cost"][part].as_f64().unwrap();
    assert!((cost("total") - cost("compute") - cost("network")).abs() < 1e-12);
    assert!(answer["accuracy"].as_f64().unwrap() >= 70.0);
    assert!(answer["latency"]["sum_ms"].as_f64().unwrap() > 0.0);
    assert_eq!(answer["latency"]["is_bounded"], false);
}

#[test]
fn answers_for_people() {
    compare("plan.txt", &plan(&[]).expect(0));
    compare("plan.yaml", &plan(&["--output", "yaml"]).expect(0));
    compare("plan-front.txt", &plan(&["--pareto", "cost,accuracy", "--slo", "latency=none"]).expect(0));
    let front = ["--pareto", "cost,accuracy", "--slo", "latency=none", "--output", "yaml"];
    let yaml = plan(&front).expect(0).stdout;
    assert!(yaml.starts_with("version: 1\nfront:\n") && yaml.contains("accuracy: "), "{yaml}");
    compare("explain.txt", &tidemill(&[&["explain", VQA], &FILES[..]].concat()).expect(0));
}

/// Of equally expensive plans the more accurate one, unless idle time is preferred.
#[test]
fn idle_time_of_workers_becomes_accuracy_or_stays() {
    let of = |more: &[&str]| plan(&[more, &["--output", "json"]].concat()).expect(0).json();
    let (accurate, idle) = (of(&[]), of(&["--keep-idle"]));
    assert_eq!(accurate["cost"], idle["cost"]);
    assert_eq!((&accurate["accuracy"], &idle["accuracy"]), (&71.5.into(), &70.0.into()));
}

#[test]
fn what_is_not_possible_says_what_has_to_give_way() {
    compare("plan-infeasible-accuracy.txt", &plan(&["--slo", "accuracy=95"]).expect(1));
    compare("plan-infeasible-rate.txt", &plan(&["--slo", "rate=2000/s", "--slo", "latency=none"]).expect(1));
    let answer = plan(&["--slo", "accuracy=95", "--output", "json"]).expect(1).json();
    assert_eq!(
        (&answer["status"], &answer["relaxations"][0]["level"]),
        (&"infeasible".into(), &"accuracy".into())
    );
    assert_eq!(answer["relaxations"][0]["to"], 82.0);
}

#[test]
fn wrong_files_and_arguments() {
    let infra = FILES[1];
    let missing = tidemill(&["plan", VQA, "--infra", infra, "--profiles", "nowhere/profile.yaml"]);
    compare("plan-no-profile.txt", &missing.expect(78));
    compare("plan-unknown-planner.txt", &plan(&["--planner", "best"]).expect(2));
    compare("plan-wrong-level.txt", &plan(&["--slo", "latency=800ms"]).expect(2));
    let place = Place::example("vqa");
    let profile = std::fs::read_to_string(root().join(FILES[3])).unwrap();
    let tiers = std::fs::read_to_string(root().join(infra)).unwrap();
    place.write(
        "profile.yaml",
        profile.replace("worker_type: gateway\n    how", "worker_type: server\n    how"),
    );
    place.write("unlinked.yaml", tiers.split("links:").next().unwrap());
    let files = |infra: &str| {
        let (infra, profile) = (place.argument(infra), place.argument("profile.yaml"));
        let folder = place.path("").to_str().unwrap().to_owned();
        let mut outcome =
            tidemill(&["plan", &place.argument("workflow.yaml"), "--infra", &infra, "--profiles", &profile]);
        outcome.stderr = outcome.stderr.replace(&folder, "");
        outcome
    };
    // Every figure of a gateway is missing, and the rest is given twice.
    assert!(files("unlinked.yaml").expect(78).stderr.contains("given twice"));
    let mut services = Vec::new();
    for part in profile.split("  - operator: ").skip(1) {
        let text = part.split("messages:").next().unwrap();
        if !text.contains("worker_type: gateway") {
            services.push(format!("  - operator: {text}"));
        }
    }
    let (head, tail) =
        (profile.split("services:").next().unwrap(), profile.split("messages:").nth(1).unwrap());
    let only_server = format!("{head}services:\n{}messages:{tail}", services.concat());
    place.write("profile.yaml", &only_server);
    compare("plan-no-link.txt", &files("unlinked.yaml").expect(78));
    place.write("profile.yaml", only_server.replace("variant: answerer-", "variant: other-"));
    place.write("infrastructure.yaml", &tiers);
    compare("plan-no-figures.txt", &files("infrastructure.yaml").expect(78));
    place.write("profile.yaml", profile.split("accuracy:").next().unwrap());
    compare("plan-no-accuracy.txt", &files("infrastructure.yaml").expect(78));
}

#[test]
fn a_part_for_a_percentage_is_refused() {
    let part = plan(&["--slo", "accuracy=0.85"]).expect(2).stderr;
    assert!(part.contains("0.85 % is less than 1 %; accuracy is in percent: did you mean 85?"), "{part}");
    plan(&["--slo", "accuracy=0.85%"]).expect(0);
    let rate = plan(&["--slo", "rate=40/m"]).expect(2).stderr;
    assert!(rate.contains("did you mean `40/min`?"), "{rate}");
}

#[test]
fn a_file_of_another_kind_is_one_error() {
    let told = |arguments: &[&str], said: &str| {
        let text = tidemill(arguments).expect(78).stderr;
        assert!(text.contains(said) && text.matches("error").count() == 1, "{text}");
    };
    let [_, infra, _, profile, ..] = FILES;
    told(
        &["plan", VQA, "--infra", profile, "--profiles", profile],
        "error[E0117]: this is a profile; an infrastructure is needed here",
    );
    told(&["plan", VQA, "--infra", infra, "--profiles", VQA], "this is a workflow; a profile is needed here");
    told(&["plan", infra, "--infra", infra, "--profiles", profile], "this is an infrastructure; a workflow");
    told(&["run", VQA, "--plan", VQA], "this is a workflow; a plan is needed here");
    let model = "operators/inference/testdata/identity.yaml";
    told(&["profile", "show", model], "this is a model manifest; a profile is needed here");
    told(&["models", "inspect", infra], "this is an infrastructure; a model manifest is needed here");
}

#[test]
fn a_misspelt_type_of_worker_is_told_once() {
    let place = Place::example("vqa");
    let tiers = std::fs::read_to_string(root().join(FILES[1])).unwrap();
    place.write("infrastructure.yaml", tiers.replace("type: gateway", "type: gatewy"));
    let infra = place.argument("infrastructure.yaml");
    let arguments = [&["plan", VQA, "--infra", &infra], &FILES[2..]].concat();
    let text = tidemill(&arguments).expect(0).stderr;
    assert!(text.contains("warning[E0312]: no profile has the type of worker `gatewy`"), "{text}");
    assert!(text.contains("did you mean `gateway`?"), "{text}");
    let notes: Vec<&str> =
        text.lines().filter(|line| line.starts_with("note:") && line.contains("gatewy")).collect();
    assert!(notes.len() == 1 && notes[0].starts_with("note: each of "), "{text}");
}

#[test]
fn plans_are_compared() {
    let place = Place::example("vqa");
    let (old, new) = (place.argument("old.yaml"), place.argument("new.yaml"));
    plan(&["--out", &old]).expect(0);
    plan(&["--out", &new, "--slo", "accuracy=75"]).expect(0);
    let same = tidemill(&["plan", "diff", &old, &old]).expect(0);
    assert_eq!(same.stdout, "the plans are equivalent\n");
    compare("plan-diff.txt", &tidemill(&["plan", "diff", &old, &new]).expect(1));
    let changes = tidemill(&["plan", "diff", &old, &new, "--output", "json"]).expect(1).json();
    assert_eq!(changes["differ"], true);
    let given =
        tidemill(&[&["explain", VQA, &new], &FILES[..], &["--output", "json"]].concat()).expect(0).json();
    assert!(given["given"]["cost"].as_f64().unwrap() >= given["cost"].as_f64().unwrap(), "{given}");
    compare("explain-given.txt", &tidemill(&[&["explain", VQA, &new], &FILES[..]].concat()).expect(0));
    // It is judged by the present levels, and named in words.
    let strict = ["--slo", "accuracy=80", "--slo", "latency=p99:60ms", "--slo", "rate=50/s"];
    let seen = tidemill(&[&["explain", VQA, &new], &FILES[..], &strict].concat()).expect(1).stdout;
    for words in [
        "it does not keep: accuracy: 79.50 %, required 80 %",
        "latency: ",
        " busy, limit 85.0 %",
        ": not kept",
    ] {
        assert!(seen.contains(words), "{words}: {seen}");
    }
    assert!(!seen.contains("Some(") && !seen.contains("worker 0"), "{seen}");
    let loose = ["--slo", "latency=p99:5s", "--output", "json"];
    let judged = tidemill(&[&["explain", VQA, &old], &FILES[..], &loose].concat()).expect(0).json();
    let level = &judged["given"]["levels"][2];
    assert_eq!((&level["level"], &level["kept"]), (&"latency".into(), &true.into()), "{judged}");
    let drawn = tidemill(&["graph", VQA, "--plan", &new]).expect(0).stdout;
    assert!(drawn.contains("/s"), "{drawn}");
}

/// A plan names the weak figures that it is based on, and no others.
#[test]
#[ignore = "long: make test-long"]
fn weak_figures_are_told() {
    let place = Place::empty("vqa");
    let profile = std::fs::read_to_string(root().join("cli/tests/planning/profile.yaml")).unwrap();
    let source =
        "{worker_type: gateway, how: measured, source: 'measured here; it was busy, load average 7.5'}";
    let profile = profile
        .replace("{worker_type: gateway, how: predicted}", source)
        .replace("how: predicted\n", "how: measured\n")
        .replace(
            "{batch: 1, mean: 13.5ms, deviation: 1.5ms",
            "{batch: 1, samples: 9, mean: 13.5ms, deviation: 13.6ms",
        )
        .replace(
            "{batch: 8, mean: 75.6ms, deviation: 8.4ms",
            "{batch: 8, samples: 9, mean: 75.6ms, deviation: 76ms",
        );
    let profile = profile.replace("accuracy: 82.0%}", "accuracy: 82.0%, interval: [76%, 87%], samples: 200}");
    place.write("profile.yaml", &profile);
    let file = place.argument("profile.yaml");
    let files = [
        FILES[0],
        FILES[1],
        FILES[2],
        &file,
        "--slo",
        "latency=none",
        "--slo",
        "accuracy=82",
        "--slo",
        "rate=10/s",
    ];
    let seen = tidemill(&[&["plan", VQA], &files[..]].concat()).expect(0).stdout;
    let lines: Vec<&str> = seen.lines().filter(|line| line.starts_with("weak figures: ")).collect();
    let expected = [
        "weak figures: few calls were measured: speech-large on gateway (n = 9)",
        "weak figures: the mean time is uncertain: speech-large on gateway (+-66 %)",
        "weak figures: measured on a busy machine, so times are too long: gateway (load average 7.5)",
        "weak figures: calls after a pause were not measured: speech-large on gateway",
    ];
    assert_eq!(lines, expected, "{seen}");
    assert!(seen.contains("82 % (76.0 to 87.0, n = 200)"), "{seen}");
    let document = tidemill(&[&["plan", VQA], &files[..], &["--output", "json"]].concat()).expect(0).json();
    let all = document["weak_figures"].as_array().unwrap();
    let few = all.iter().find(|one| one["why"] == "few_samples").unwrap();
    assert_eq!(
        (all.len(), &few["model"], &few["samples"]),
        (4, &"speech-large".into(), &9.into()),
        "{document}"
    );
    assert_eq!(document["accuracy_interval"]["samples"], 200, "{document}");
    let explained = tidemill(&[&["explain", VQA], &files[..]].concat()).expect(0).stdout;
    assert!(explained.contains(expected[0]), "{explained}");
}

/// Two small machines would be the cheapest, but partners would miss each other there: the run would be refused (`E0417`).
#[test]
#[ignore = "long: make test-long"]
fn a_join_on_a_computed_column_is_planned_in_one_stage() {
    let place = Place::empty("pairs");
    place.write("rows.csv", "site,lane\nnorth,2\nsouth,3\n");
    let columns = "columns: {site: text, lane: int64}";
    let workflow = format!(
        "version: 1
name: pairs
sources:
  - {{id: left, kind: csv, key: site, rate: 100/s, options: {{path: rows.csv, {columns}}}}}
  - {{id: right, kind: csv, key: site, rate: 100/s, options: {{path: rows.csv, {columns}}}}}
operators:
  - {{id: named, kind: map, input: left, options: {{columns: {{site: \"site + '!'\"}}}}}}
  - {{id: pair, kind: join, inputs: [named, right], options: {{key: site, within: 2s, same_names: keep_first}}}}
sinks:
  - {{id: out, kind: jsonl, input: pair, options: {{path: out/pairs.jsonl}}}}
"
    );
    place.write("workflow.yaml", workflow);
    let machines = "[{type: little, count: 3, price: 0.02 $/h}, {type: big, price: 0.5 $/h}]";
    place.write(
        "machines.yaml",
        format!("version: 1\nname: hall\ntiers:\n  - {{id: hall, workers: {machines}}}\n"),
    );
    let profile = "version: 1
workflow: {name: pairs}
machines: [{worker_type: little, how: measured}, {worker_type: big, how: measured}]
services:
  - {operator: pair, worker_type: little, how: measured, batches: [{batch: 1, p75: 12ms}]}
  - {operator: pair, worker_type: big, how: measured, batches: [{batch: 1, p75: 2ms}]}
messages:
  - {from: left, to: named, bytes_per_record: 20B}
  - {from: named, to: pair, bytes_per_record: 20B}
  - {from: right, to: pair, input: 1, bytes_per_record: 20B}
";
    place.write("profile.yaml", profile);
    let files = ["workflow.yaml", "machines.yaml", "profile.yaml", "plan.yaml"];
    let [workflow, machines, profile, file] = files.map(|file| place.argument(file));
    let stages = || {
        let files = ["--infra", &machines, "--profiles", &profile, "--out", &file];
        tidemill(&[&["plan", &workflow], &files[..]].concat()).expect(0);
        tidemill(&["validate", &workflow, &file]).expect(0);
        let plan = tidemill_spec::plan::Plan::parse(&place.read("plan.yaml"), "plan.yaml").unwrap();
        plan.stages.iter().filter(|stage| stage.operator == "pair").count()
    };
    assert_eq!(stages(), 1);
    place.change("workflow.yaml", "columns: {site: \"", "columns: {other: \"");
    assert_eq!(stages(), 2);
}

#[test]
fn the_front_is_drawn() {
    let place = Place::empty("vqa");
    let file = place.argument("front.svg");
    plan(&["--pareto", "cost,accuracy", "--svg", &file, "--slo", "latency=none", "--output", "json"])
        .expect(0);
    let text = place.read("front.svg");
    assert!(
        roxmltree::Document::parse(&text)
            .unwrap()
            .root_element()
            .has_tag_name(("http://www.w3.org/2000/svg", "svg"))
    );
}
const PUBLISHED: [&str; 13] = [
    "plan",
    "examples/published-vqa/workflow.yaml",
    "--infra",
    "examples/published-vqa/infrastructure.yaml",
    "--profiles",
    "examples/published-vqa/profiles.yaml",
    "--max-utilization",
    "1.0",
    "--percentile",
    "p75",
    "--slo",
    "rate=40/s",
    "--output",
];

/// Total cost of the published case in $/h.
#[track_caller]
fn published(more: &[&str]) -> f64 {
    let answer =
        tidemill(&[&PUBLISHED[..], &["json", "--slo", "accuracy=56.0"], more].concat()).expect(0).json();
    assert!(answer["accuracy"].as_f64().unwrap() >= 56.0);
    answer["cost"]["total"].as_f64().unwrap()
}

#[test]
#[ignore = "long: make test-long"]
fn the_published_case_costs_what_it_must() {
    let near =
        |cost: f64, expected: f64| assert!((cost - expected).abs() < 5e-4, "{cost} instead of {expected}");
    near(published(&["--one-operator-per-worker", "--return-traffic", "forbid"]), 7.4850);
    near(published(&["--return-traffic", "forbid"]), 7.0115);
    near(published(&["--return-traffic", "priced"]), 5.3296);
    let beam = published(&["--one-operator-per-worker", "--return-traffic", "forbid", "--planner", "beam"]);
    assert!((7.4850 - 5e-4..=7.5088 + 1e-9).contains(&beam), "{beam}");
}

/// The machines of a plan may have libraries that this one lacks.
#[test]
fn a_plan_for_other_machines_needs_no_library_here() {
    let files = ["examples/vqa/infrastructure.yaml", "examples/vqa/profile.yaml"];
    let mut plan = command(&["plan", VQA, "--infra", files[0], "--profiles", files[1], "--output", "yaml"]);
    let output = plan.env("TIDEMILL_ONNXRUNTIME", "/no/such/libonnxruntime.so").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{said}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("backend: ort"), "{said}");
}
