//! Plans for a load that changes, and for latencies, through the binary. `UPDATE_GOLDEN=1` rewrites the golden outputs.
use crate::command::{FILES, Outcome, Place, VQA, root, tidemill};
use serde_json::Value;
use std::process::Command;

/// An hour: a night, a day, and a burst in it.
const TRACE: &str = "time,rate\n0s,10/s\n20min,40/s\n35min,110/s\n38min,40/s\n50min,10/s\n60min,10/s\n";

fn plan(place: &Place, more: &[&str]) -> Outcome {
    place.write("hour.csv", TRACE);
    let file = place.argument("hour.csv");
    tidemill(&[&["plan", VQA], &FILES[..], &["--trace", &file], more].concat())
}

#[track_caller]
fn compare(name: &str, outcome: &Outcome) {
    let path = root().join("cli/tests/golden").join(name);
    let text =
        format!("{}{}", outcome.stderr, outcome.stdout).replace(root().to_str().unwrap(), "<repository>");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(golden == text, "{} differs; UPDATE_GOLDEN=1 rewrites it. Now:\n{text}", path.display());
}

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {value}"))
}

#[test]
fn plans_for_levels_cost_less_than_the_plan_for_the_peak() {
    let place = Place::example("vqa");
    // A slow machine may print progress.
    compare("plan-load.txt", &plan(&place, &["--quiet"]).expect(0));
    let answer = plan(&place, &["--output", "json"]).expect(0).json();
    let (fixed, switched) = (number(&answer, "/fixed/totals/cost"), number(&answer, "/switched/cost"));
    assert!(0.0 < switched && switched < fixed, "{switched} and {fixed}");
    assert!((number(&answer, "/saved") - (1.0 - switched / fixed)).abs() < 1e-12);
    let levels = answer["levels"].as_array().unwrap();
    assert!((2..=4).contains(&levels.len()));
    let used: f64 = levels.iter().map(|level| number(level, "/used")).sum();
    assert!((used - 1.0).abs() < 1e-9);
    // A trace of rates: the last level is for the peak, and switching misses the level during the reaction.
    assert!((number(levels.last().unwrap(), "/rates_up_to") - 110.0).abs() < 1e-6);
    assert!((0.0..0.1).contains(&number(&answer, "/switched/time_over_level")));
    let spells = answer["schedule"].as_array().unwrap();
    assert_eq!((number(&spells[0], "/begin"), number(spells.last().unwrap(), "/end")), (0.0, 4200.0));
}

#[test]
#[ignore = "long: make test-long"]
fn plans_for_levels_follow_the_options() {
    let place = Place::example("vqa");
    let answer = plan(&place, &["--output", "json"]).expect(0).json();
    let switched = number(&answer, "/switched/cost");
    // Without any delay no level is exceeded.
    let prompt = plan(&place, &["--dwell", "0s", "--reaction", "0s", "--output", "json"]).expect(0).json();
    assert_eq!(number(&prompt, "/switched/time_over_level"), 0.0);
    assert!(number(&prompt, "/switched/cost") <= switched);
    let one = plan(&place, &["--levels", "1", "--output", "json"]).expect(0).json();
    assert_eq!(number(&one, "/switched/cost"), number(&one, "/fixed/totals/cost"));
    let yaml = plan(&place, &["--output", "yaml"]).expect(0).stdout;
    assert!(yaml.contains("planner: exact\n") && yaml.contains("\nlevels:\n"), "{yaml}");
}

#[test]
#[ignore = "long: make test-long"]
fn each_level_has_a_plan_that_can_be_simulated() {
    let place = Place::example("vqa");
    let (folder, workflow) = (place.argument("levels"), place.argument("workflow.yaml"));
    let output = plan(&place, &["--out", &folder]).expect(0).stderr;
    assert!(output.contains("the plans and `schedule.csv` are in "), "{output}");
    let schedule = place.read("levels/schedule.csv");
    let mut lines = schedule.lines();
    assert_eq!(lines.next(), Some("time,plan,rate"));
    for line in lines {
        let [time, file, rate] = line.split(',').collect::<Vec<_>>()[..] else { panic!("{line}") };
        assert!(time.ends_with('s') && rate.ends_with("/s"), "{line}");
        let file = place.argument(&format!("levels/{file}"));
        tidemill(&["validate", &workflow, &file]).expect(0);
        let files = ["simulate", &file, &workflow, FILES[0], FILES[1], FILES[2], FILES[3]];
        tidemill(&[&files[..], &["--for", "5s", "--slo", "latency=none"]].concat()).expect(0);
    }
    // With fewer levels, plans of removed levels are deleted.
    assert!(place.files("levels").contains(&"level-2.yaml".to_owned()), "{:?}", place.files("levels"));
    let output = plan(&place, &["--out", &folder, "--levels", "1"]).expect(0).stderr;
    assert!(output.contains("level-2.yaml, the plan of an old level"), "{output}");
    assert_eq!(place.files("levels"), ["level-1.yaml", "schedule.csv"]);
    let taken = plan(&place, &["--out", &place.argument("workflow.yaml")]).expect(2).stderr;
    assert!(taken.contains("is a file") && taken.contains("name a folder"), "{taken}");
}

#[test]
fn accuracies_for_a_load_are_shown() {
    let scaling = ["--planner", "accuracy-scaling", "--quiet"];
    compare("plan-load-accuracy.txt", &plan(&Place::example("vqa"), &scaling).expect(0));
}

#[test]
#[ignore = "long: make test-long"]
fn accuracy_scaling_keeps_its_workers_and_gives_up_accuracy() {
    let place = Place::example("vqa");
    let scaling = ["--planner", "accuracy-scaling"];
    let run = |fleet: &str| {
        plan(&place, &[&scaling[..], &["--fleet", fleet, "--output", "json"]].concat()).expect(0).json()
    };
    let (mean, more) = (run("mean"), run("60/s"));
    for answer in [&mean, &more] {
        let levels = answer["levels"].as_array().unwrap();
        let accuracies: Vec<f64> = levels.iter().map(|level| number(level, "/accuracy")).collect();
        assert!(accuracies.windows(2).all(|two| two[1] < two[0]), "{accuracies:?}");
        let price = number(answer, "/fleet/cost_per_hour");
        assert!(levels.iter().all(|level| number(level, "/cost_per_hour/compute") == price));
    }
    assert!(number(&more, "/switched/accuracy") > number(&mean, "/switched/accuracy"));
    assert!(number(&more, "/switched/cost") > number(&mean, "/switched/cost"));
    let goal = [&scaling[..], &["--goal", "level", "--output", "json"]].concat();
    let enough = plan(&place, &goal).expect(0).json();
    assert_eq!(number(&enough, "/fleet/cost_per_hour"), number(&mean, "/fleet/cost_per_hour"));
    assert!(number(&enough, "/switched/accuracy") < number(&mean, "/switched/accuracy"));
    let bought = run("0.46 $/h");
    assert!(number(&bought, "/fleet/cost_per_hour") <= 0.46);
    let poor = plan(&place, &[&scaling[..], &["--fleet", "0.01 $/h"]].concat()).expect(1).stderr;
    assert!(poor.contains("no workers for 0.01 $/h or less keep the levels"), "{poor}");
    for option in [["--fleet", "mean"], ["--goal", "most"]] {
        let output = plan(&place, &option).expect(2).stderr;
        assert!(output.contains(option[0]) && output.contains("--planner accuracy-scaling"), "{output}");
    }
    let without = tidemill(&[&["plan", VQA], &FILES[..], &scaling].concat()).expect(2).stderr;
    assert!(without.contains("give the load with `--trace FILE`"), "{without}");
}

#[test]
fn a_load_beyond_all_machines_and_wrong_files_are_told() {
    let place = Place::example("vqa");
    place.write("day.csv", "time,rate\n0s,10/s\n1h,3000/s\n");
    let run = |more: &[&str]| {
        let file = place.argument("day.csv");
        tidemill(&[&["plan", VQA], &FILES[..], &["--trace", &file], more].concat())
    };
    let refused = run(&[]).expect(1).stdout;
    assert!(refused.starts_with("at 3000/s, the rate of a single plan:\n"), "{refused}");
    assert!(refused.contains("infeasible") && refused.contains("each of these changes alone"), "{refused}");
    assert_eq!(run(&["--output", "json"]).expect(1).json()["status"], "infeasible");
    place.write("day.csv", "time,rate\n0s,10/s\nsoon,3000/s\n");
    let output = run(&[]).expect(78).stderr;
    assert!(output.contains("day.csv: line 3 is `soon,3000/s`"), "{output}");
    let file = place.argument("nothing.csv");
    let missing = tidemill(&[&["plan", VQA], &FILES[..], &["--trace", &file]].concat()).expect(78).stderr;
    assert!(missing.contains("scripts/bursty_trace.py"), "{missing}");
    for wrong in [["--levels", "0"], ["--fleet", "many"], ["--dwell", "long"]] {
        run(&wrong).expect(2);
    }
    tidemill(&[&["plan", VQA], &FILES[..], &["--dwell", "5min"]].concat()).expect(2);
}

#[test]
#[ignore = "long: make test-long"]
fn a_bursty_day_is_planned_with_few_switches() {
    let place = Place::example("vqa");
    let script = root().join("scripts/bursty_trace.py");
    let made = Command::new("python3").arg(script).args(["--seed", "7"]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    place.write("day.csv", &made.stdout);
    let file = place.argument("day.csv");
    let run = |dwell: &str| {
        let options = ["--trace", &file, "--slo", "rate=20/s", "--dwell", dwell, "--output", "json"];
        tidemill(&[&["plan", VQA], &FILES[..], &options].concat()).expect(0).json()
    };
    let (short, long) = (run("1min"), run("30min"));
    let switches = |answer: &Value| number(answer, "/switched/switches_per_day");
    assert!(switches(&long) <= 48.0 && switches(&long) <= switches(&short), "{long}");
    assert!(number(&short, "/saved") > 0.2, "{short}");
}

/// Plans against latency.
#[track_caller]
fn front(more: &[&str]) -> Outcome {
    let levels = ["--slo", "accuracy=none", "--slo", "latency=p95:800ms", "--slo", "rate=20/s"];
    let front = ["--pareto", "cost,accuracy,latency"];
    tidemill(&[&["plan", VQA], &FILES[..4], &levels[..], &front[..], more].concat()).expect(0)
}

#[test]
fn plans_against_latency_are_shown() {
    let place = Place::example("vqa");
    compare("plan-surface.txt", &front(&["--svg", &place.argument("front.svg"), "--quiet"]));
}

#[test]
#[ignore = "long: make test-long"]
fn plans_against_latency_are_not_dominated() {
    let place = Place::example("vqa");
    let svg = place.argument("front.svg");
    let answer = front(&["--svg", &svg, "--output", "json"]).json();
    let drawing = place.read("front.svg");
    let document = roxmltree::Document::parse(&drawing).unwrap();
    let texts: Vec<&str> = document.descendants().filter_map(|node| node.text()).collect();
    assert!(texts.contains(&"latency within") && texts.iter().any(|text| text.contains("p95")), "{texts:?}");
    assert_eq!(answer["percentile"], 95.0);
    let points: Vec<[f64; 3]> = answer["front"]
        .as_array()
        .unwrap()
        .iter()
        .map(|point| {
            [number(point, "/cost"), -number(point, "/accuracy"), number(point, "/latency_bound_ms")]
        })
        .collect();
    assert!(points.len() > 3);
    let yaml = front(&["--output", "yaml"]).stdout;
    assert!(yaml.contains("\nfront:\n") && yaml.contains("latency_bound_ms: "), "{yaml}");
    for (at, a) in points.iter().enumerate() {
        for (other, b) in points.iter().enumerate() {
            assert!(at == other || a.iter().zip(b).any(|(a, b)| a > b), "{a:?} beats {b:?}");
        }
    }
}
