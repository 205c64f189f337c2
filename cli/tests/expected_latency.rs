//! Plans that meet the latency level as expected by a simulation, beside those with a guaranteed bound.
use crate::command::{Outcome, Place, VQA, command, tidemill};
use serde_json::Value;

/// Files with distributions of service times, so that a plan can be simulated.
const MEASURED: [&str; 4] =
    ["--infra", "examples/vqa/infrastructure.yaml", "--profiles", "examples/vqa/profile.yaml"];

fn plan(more: &[&str]) -> Outcome {
    tidemill(&[&["plan", VQA], &MEASURED[..], more].concat())
}

#[track_caller]
fn number(value: &Value) -> f64 {
    value.as_f64().unwrap_or_else(|| panic!("no number: {value}"))
}

/// A level on the 99th percentile below the least possible bound.
fn level() -> String {
    let refused = plan(&["--slo", "latency=p99:1ms", "--output", "json"]).expect(1).json();
    let relaxations = refused["relaxations"].as_array().unwrap();
    let bound = relaxations.iter().find(|one| one["level"] == "latency").unwrap();
    format!("latency=p99:{}ms", (0.8 * number(&bound["to"])).floor())
}

#[test]
fn a_plan_is_found_that_no_bound_guarantees() {
    let (place, level) = (Place::example("vqa"), level());
    let (asked, file) = (["--slo", level.as_str()], place.argument("plan.yaml"));
    let output = plan(&[&asked[..], &["--latency", "expected", "--out", &file]].concat()).expect(0).stdout;
    assert!(output.contains("latency is expected, not guaranteed: "), "{output}");
    assert!(place.read("plan.yaml").contains("latency_basis: expected"));
    tidemill(&["validate", VQA, &file]).expect(0);
}

#[test]
#[ignore = "long: make test-long"]
fn readers_of_a_plan_know_that_no_bound_guarantees_it() {
    let place = Place::example("vqa");
    let (file, other) = (place.argument("plan.yaml"), place.argument("guaranteed.yaml"));
    let level = level();
    let asked = ["--slo", level.as_str()];
    let refused = plan(&asked).expect(1).stdout;
    assert!(refused.contains("infeasible, no plan keeps all service levels"), "{refused}");
    assert!(refused.contains("`--latency expected` plans by simulation"), "{refused}");
    let hint = plan(&[&asked[..], &["--output", "json"]].concat()).expect(1).json();
    assert_eq!(hint["without_latency_bound"]["is_kept"], true, "{hint}");

    let more = ["--latency", "expected", "--out", &file];
    let output = plan(&[&asked[..], &more].concat()).expect(0).stdout;
    for words in [
        " expected  ",
        ", not guaranteed",
        "latency is expected, not guaranteed: ",
        "no plan costs less than ",
    ] {
        assert!(output.contains(words), "{words}: {output}");
    }
    let found = plan(&[&asked[..], &["--latency", "expected", "--output", "json"]].concat()).expect(0).json();
    assert_eq!(found["latency_basis"], "expected");
    let kept = &found["expectation"]["levels"][0];
    assert!(number(&kept["expected_ms"]) <= number(&kept["below_ms"]), "{kept}");
    assert!(
        number(&found["latency"]["sum_ms"]) > number(&kept["below_ms"])
            || found["latency"]["is_bounded"] == false
    );
    assert!(number(&found["bound"]) <= number(&found["cost"]["total"]));
    assert!(number(&found["plans_simulated"]) >= 1.0);
    // The alternative offered with the refused guarantee is the one that is found.
    assert!(number(&hint["without_latency_bound"]["cost"]) >= number(&found["cost"]["total"]) * (1.0 - 1e-6));

    // All readers of plans know it.
    assert!(place.read("plan.yaml").contains("latency_basis: expected"));
    tidemill(&["validate", VQA, &file]).expect(0);
    let simulated = tidemill(&[&["simulate", &file, VQA], &MEASURED[..], &asked].concat()).expect(0).stdout;
    assert!(simulated.contains("met"), "{simulated}");
    let explained = tidemill(&[&["explain", VQA, &file], &MEASURED[..], &asked].concat()).expect(0).stdout;
    assert!(explained.contains("expected, not guaranteed, wanted p99 below"), "{explained}");
    assert!(!explained.contains("it does not keep"), "{explained}");
    plan(&["--out", &other]).expect(0);
    let changes = tidemill(&["plan", "diff", &other, &file]).expect(1).stdout;
    assert!(changes.contains("latency basis: guaranteed -> expected"), "{changes}");
    let run = tidemill(&["run", VQA, "--plan", &file, "--records", "20", "--rate", "max"]).expect(0).stderr;
    assert!(
        run.contains("its level on latency in a simulation") && run.contains("no bound guarantees it"),
        "{run}"
    );
}

/// An infeasible level is refused with the closest feasible one.
#[test]
fn what_nothing_is_expected_to_keep_is_refused() {
    let asked = ["--slo", "latency=p99:1ms", "--latency", "expected"];
    let output = plan(&asked).expect(1).stdout;
    assert!(output.contains("found no plan that keeps all service levels in a simulation"), "{output}");
    assert!(output.contains(" simulated; the nearest has p99 "), "{output}");
    let answer = plan(&[&asked[..], &["--output", "json"]].concat()).expect(1).json();
    assert_eq!(answer["nearest"]["is_kept"], false, "{answer}");
    assert_eq!(answer["status"], "not_found", "nothing is proven: {answer}");
    assert!(answer["bound"].is_number(), "a plan without a level is a bound: {answer}");
}

/// Percentiles alone allow no expectation.
#[test]
fn a_profile_without_distributions_is_refused() {
    let files = [
        "--infra",
        "cli/tests/planning/infrastructure.yaml",
        "--profiles",
        "cli/tests/planning/profile.yaml",
    ];
    let levels = ["--slo", "accuracy=70", "--latency", "expected"];
    let refused = tidemill(&[&["plan", VQA], &files[..], &levels].concat()).expect(78).stderr;
    assert!(refused.contains("the expected latency is not known"), "{refused}");
    assert!(refused.contains("tidemill profile"), "{refused}");
    // Without a level on latency there is nothing to expect.
    let found =
        tidemill(&[&["plan", VQA], &files[..], &levels, &["--slo", "latency=none"]].concat()).expect(0);
    assert!(found.stdout.contains("optimal: no plan costs less"), "{}", found.stdout);
}

/// Two unreachable levels: the message has their combination, and the distance.
#[test]
fn levels_that_give_way_together_are_named() {
    let wrong = ["--slo", "accuracy=99", "--slo", "rate=100000/s", "--slo", "latency=none"];
    let output = plan(&wrong).expect(1).stdout;
    assert!(output.contains("no single change makes a plan possible, but these together do:"), "{output}");
    let answer = plan(&[&wrong[..], &["--output", "json"]].concat()).expect(1).json();
    let together = answer["relaxations_together"].as_array().unwrap();
    let to = |level: &str| number(&together.iter().find(|one| one["level"] == level).unwrap()["to"]);
    let (rate, accuracy) = (format!("rate={}/s", to("rate").floor()), format!("accuracy={}", to("accuracy")));
    plan(&["--slo", &accuracy, "--slo", &rate, "--slo", "latency=none"]).expect(0);
}

/// Of equally expensive plans the most accurate, for any requested level.
#[test]
#[ignore = "long: make test-long"]
fn accuracy_for_the_same_money_does_not_depend_on_the_level() {
    let of = |accuracy: &str| plan(&["--slo", accuracy, "--output", "json"]).expect(0).json();
    let (low, high) = (of("accuracy=85"), of("accuracy=93"));
    assert_eq!(low["cost"]["total"], high["cost"]["total"]);
    assert!(number(&high["accuracy"]) >= 93.0);
    assert_eq!(low["accuracy"], high["accuracy"]);
}

#[test]
fn tables_keep_to_the_width_of_the_terminal() {
    let wide = plan(&[]).expect(0).stdout;
    let widest = |text: &str| text.lines().map(|line| line.chars().count()).max().unwrap();
    assert!(widest(&wide) > 100, "a pipe has no width");
    let narrow = command(&[&["plan", VQA], &MEASURED[..]].concat()).env("COLUMNS", "80").output().unwrap();
    let narrow = String::from_utf8(narrow.stdout).unwrap();
    assert!(widest(&narrow) <= 80, "{narrow}");
    let words = |text: &str| {
        let mut words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        words.sort();
        words
    };
    assert_eq!(words(&narrow), words(&wide));
}

#[test]
fn a_plan_of_another_workflow_is_one_error() {
    let place = Place::example("vqa");
    let file = place.argument("plan.yaml");
    plan(&["--out", &file]).expect(0);
    let other = "examples/published-vqa/workflow.yaml";
    let infra = "examples/published-vqa/infrastructure.yaml";
    let profiles = "examples/published-vqa/profiles.yaml";
    let output = tidemill(&["validate", other, &file]).expect(78).stderr;
    for arguments in [
        vec!["validate", other, &file],
        vec!["explain", other, &file, "--infra", infra, "--profiles", profiles],
        vec!["simulate", &file, other, "--infra", infra, "--profiles", profiles],
    ] {
        let text = tidemill(&arguments).expect(78).stderr;
        assert_eq!(text.matches("error").count(), 1, "{text}");
        assert!(text.contains("error[E0411]: the plan is for the workflow `vqa`, this is"), "{text}");
        assert!(text.contains("`tidemill plan "), "{text}");
    }
    assert!(output.lines().count() < 20, "{output}");
}
