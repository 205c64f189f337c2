//! Plans simulated through the binary.
use crate::command::{Outcome, Place, command, root, tidemill};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Command;

const INFRASTRUCTURE: &str = "cli/tests/planning/infrastructure.yaml";
const LEVELS: [&str; 4] = ["--slo", "latency=none", "--slo", "accuracy=70"];

/// The VQA example with an infrastructure, a profile and a plan beside it.
fn planned(profile: &str) -> Place {
    let place = Place::example("vqa");
    place.write("infrastructure.yaml", std::fs::read_to_string(root().join(INFRASTRUCTURE)).unwrap());
    place.write("profile.yaml", profile);
    let (workflow, plan) = (place.argument("workflow.yaml"), place.argument("plan.yaml"));
    let (infrastructure, profile) = (place.argument("infrastructure.yaml"), place.argument("profile.yaml"));
    let files = ["plan", &workflow, "--infra", &infrastructure, "--profiles", &profile, "--out", &plan];
    tidemill(&[&files[..], &LEVELS].concat()).expect(0);
    place
}

fn with_percentiles() -> String {
    std::fs::read_to_string(root().join("cli/tests/planning/profile.yaml")).unwrap()
}

/// The profile with distributions: calls take from half to one and a half of the mean.
fn with_distributions() -> String {
    let lines = with_percentiles();
    let lines = lines.lines().map(|line| {
        let mean = line.split_once("mean: ").and_then(|(_, rest)| rest.split_once("ms"));
        match mean {
            None => line.to_owned(),
            Some((mean, _)) => {
                let mean: f64 = mean.parse().unwrap();
                let points: Vec<String> =
                    (0..=20).map(|n| format!("{:.4}ms", mean * (0.5 + f64::from(n) / 20.0))).collect();
                line.replace("}", &format!(", points: [{}]}}", points.join(", ")))
            }
        }
    });
    lines.collect::<Vec<_>>().join("\n") + "\n"
}

fn simulate(place: &Place, more: &[&str]) -> Outcome {
    let plan = place.argument("plan.yaml");
    tidemill(&[&["simulate", &plan, "--slo", "latency=none"], more].concat())
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {value}"))
}

#[test]
fn a_plan_keeps_its_rate_and_the_seed_decides_the_rest() {
    let place = planned(&with_distributions());
    let run = |seed| {
        simulate(&place, &["--for", "1min", "--arrivals", "poisson", "--seed", seed, "--output", "json"])
            .expect(0)
            .json()
    };
    let first = run("5");
    assert_eq!(first, run("5"));
    assert_ne!(first["sinks"], run("6")["sinks"]);
    assert_eq!((&first["ended"], &first["rate"]["met"]), (&"complete".into(), &true.into()));
    assert!((number(&first, "/sinks/0/rate_per_second") - 40.0).abs() < 4.0);
    assert_eq!(first["sinks"][0]["sink"], "answers");
    let latency = |name: &str| number(&first, &format!("/sinks/0/latency/{name}"));
    assert!(0.0 < latency("p50_ms") && latency("p50_ms") <= latency("p99_ms"));
    assert!((0.3..1.0).contains(&number(&first, "/workers/0/utilization")));
    assert!(first["notes"].to_string().contains("the engine's own time"), "{}", first["notes"]);
    let yaml = simulate(&place, &["--for", "10s", "--output", "yaml"]).expect(0).stdout;
    assert!(yaml.contains("ended: complete\n"), "{yaml}");
}

#[test]
fn a_plan_beyond_its_capacity_is_shown_as_such() {
    let place = planned(&with_percentiles());
    let seen = simulate(&place, &["--for", "2min", "--slo", "rate=200/s"]).expect(1).stdout;
    for words in [
        "rate   missed",
        "behind for ",
        "above its capacity: ",
        " is busy all the time; ",
        "note: only percentiles",
    ] {
        assert!(seen.contains(words), "{words}: {seen}");
    }
}

/// A worker that may be busy all the time is: the report states that the simulation contradicts the plan.
#[test]
#[ignore = "long: make test-long"]
fn a_plan_says_where_its_simulation_denies_it() {
    let place = planned(&with_distributions());
    let files = ["workflow.yaml", "infrastructure.yaml", "profile.yaml"].map(|file| place.argument(file));
    let plan = |more: &[&str]| {
        let files = ["plan", &files[0], "--infra", &files[1], "--profiles", &files[2]];
        tidemill(&[&files[..], &LEVELS, more].concat()).expect(0)
    };
    let quiet = plan(&[]);
    assert!(!quiet.stderr.contains("denies") && !quiet.stdout.contains("denie"), "{quiet:?}");
    let full = ["--max-utilization", "1", "--percentile", "p50", "--slo", "rate=150/s"];
    let seen = plan(&full);
    assert!(
        seen.stderr.contains("warning: the simulation of this plan contradicts its guarantee: "),
        "{seen:?}"
    );
    for words in [
        " % busy in the simulation, 100 % by the plan",
        "none: contradicted by the simulation",
        "by the planner's bounds, which",
    ] {
        assert!(seen.stdout.contains(words), "{words}: {seen:?}");
    }
    let document = plan(&[&full[..], &["--output", "json"]].concat()).json();
    let found = &document["expectation"]["contradictions"][0];
    assert_eq!(found["what"], "worker", "{document}");
    assert!(number(found, "/utilization") > 0.99 && found["text"].is_string(), "{found}");
}

#[test]
#[ignore = "long: make test-long"]
fn a_trace_with_a_burst_is_simulated_over_its_length() {
    let place = planned(&with_percentiles());
    let script = root().join("scripts/bursty_trace.py");
    let made = Command::new("python3").arg(script).args(["--hours", "0.05", "--seed", "3"]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    place.write("day.csv", &made.stdout);
    let file = place.argument("day.csv");
    let document = simulate(&place, &["--trace", &file, "--output", "json"]).json();
    assert_eq!((number(&document, "/seconds"), number(&document, "/trace_seconds")), (180.0, 180.0));
    place.write("day.csv", "time,factor\n0s,1\nsoon,2\n");
    let printed = simulate(&place, &["--trace", &file]).expect(78).stderr;
    assert!(printed.contains("day.csv: line 3 is `soon,2`: write a time and a factor"), "{printed}");
    place.write("day.csv", "time,factor\n0,1\n1e308,1\n");
    let printed = simulate(&place, &["--trace", &file]).expect(78).stderr;
    assert!(
        printed.contains("day.csv: line 3: 1e308,1 is too late: write a time of at most 36525d"),
        "{printed}"
    );
    place.write("day.csv", "when,what\n");
    let printed = simulate(&place, &["--trace", &file]).expect(78).stderr;
    assert!(printed.contains("`when,what`: write `time,factor` or `time,rate`"), "{printed}");
}

/// Due and arrived records are counted over one time span: a quiet start hides nothing.
#[test]
#[ignore = "long: make test-long"]
fn a_quiet_beginning_does_not_hide_a_miss() {
    let place = planned(&with_percentiles());
    place.write("quiet.csv", "time,factor\n0s,0\n300s,1\n");
    let file = place.argument("quiet.csv");
    let run = |rate: &str, exit| {
        let more = ["--trace", &file, "--slo", rate, "--output", "json"];
        simulate(&place, &more).expect(exit).json()
    };
    let missed = run("rate=200/s", 1);
    assert_eq!((number(&missed, "/seconds"), &missed["rate"]["met"]), (600.0, &false.into()));
    let (records, due) = (number(&missed, "/sources/0/records"), number(&missed, "/sources/0/due"));
    let share = number(&missed, "/rate/achieved_share");
    assert!(
        due == 60_000.0 && share < 0.9 && (share - records / due).abs() < 0.02,
        "{share}: {records} of {due}"
    );
    let met = run("rate=40/s", 0);
    assert!((number(&met, "/rate/achieved_share") - 1.0).abs() < 1e-3);
    assert!((number(&met, "/sinks/0/rate_per_second") - 20.0).abs() < 0.02);
}

#[test]
fn what_is_too_short_to_tell_is_said_to_be() {
    let place = planned(&with_percentiles());
    let seen = simulate(&place, &["--for", "1ms"]).expect(1).stdout;
    assert!(
        seen.contains("rate   open  all due records  too short: it ended before the first record arrived"),
        "{seen}"
    );
    assert!(!seen.contains("above its capacity") && !seen.contains("missed"), "{seen}");
    let document = simulate(&place, &["--for", "1ms", "--output", "json"]).expect(1).json();
    assert_eq!((&document["rate"]["met"], &document["rate"]["achieved_share"]), (&Value::Null, &Value::Null));
    for worker in document["workers"].as_array().unwrap() {
        assert!(number(worker, "/utilization") <= 1.0, "{worker}");
    }
}

#[test]
fn missing_files_are_named() {
    let place = planned(&with_percentiles());
    std::fs::remove_file(place.path("infrastructure.yaml")).unwrap();
    let printed = simulate(&place, &[]).expect(2).stderr;
    assert!(
        printed.contains("no `infrastructure.yaml` in ") && printed.contains("--infra FILE"),
        "{printed}"
    );
}

#[test]
fn what_is_expected_stands_in_the_plan() {
    let place = planned(&with_distributions());
    let plan = place.read("plan.yaml");
    let predicted = plan.split_once("\npredicted:").unwrap().1;
    assert!(predicted.contains("p50:") && predicted.contains("p99:"), "{predicted}");
    let place = planned(&with_percentiles());
    let plan = place.read("plan.yaml");
    let predicted = plan.split_once("\npredicted:").unwrap().1;
    assert!(!predicted.contains("p50:") && !predicted.contains("p99:"), "{predicted}");
}

/// Each engine cost, in milliseconds.
fn with_engine(milliseconds: f64) -> String {
    let time = format!(
        "{{mean: {milliseconds}ms, p50: {milliseconds}ms, p90: {milliseconds}ms, p99: {milliseconds}ms}}"
    );
    let times = ["source", "hand_over", "frame", "call"].map(|name| format!("{name}: {time}"));
    let overheads = format!("overheads: {{{}, frame_per_mebibyte: 0s}}", times.join(", "));
    let profile = with_distributions().replace("how: predicted}", &format!("how: predicted, {overheads}}}"));
    assert_eq!(profile.matches("overheads").count(), 2);
    profile
}

#[test]
#[ignore = "long: make test-long"]
fn the_engine_itself_takes_time_and_no_worker_is_busy_with_it() {
    let place = planned(&with_engine(0.0));
    let of = |milliseconds: f64| {
        place.write("profile.yaml", with_engine(milliseconds));
        simulate(&place, &["--for", "5min", "--slo", "rate=5/s", "--output", "json"]).expect(0).json()
    };
    let (without, with) = (of(0.0), of(2.0));
    assert_eq!(with["notes"], Value::Array(Vec::new()), "known of all workers");
    let mean = |found: &Value| number(found, "/sinks/0/arrival/mean_ms");
    // From the source to the first model and around its call, then around the answerer's: at least 4 times; all stages
    // apart: 10.
    let longer = mean(&with) - mean(&without);
    assert!((7.9..20.1).contains(&longer), "{longer} ms");
    let busy = |found: &Value| number(found, "/workers/0/utilization");
    assert!((busy(&with) - busy(&without)).abs() < 0.01);
}

#[test]
fn an_interrupted_simulation_tells_what_it_has_seen() {
    let place = planned(&with_percentiles());
    let plan = place.argument("plan.yaml");
    let mut child = command(&["simulate", &plan, "--slo", "latency=none", "--for", "3650d"]).spawn().unwrap();
    // It prints progress once it simulates: an earlier signal would end it without figures.
    let mut printed = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(printed.any(|line| line.unwrap().starts_with("simulated ")));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(130), "{text}");
    assert!(
        text.contains("interrupted: these are the figures up to then") && text.contains("answers"),
        "{text}"
    );
}
