//! Plans that survive the loss of a worker, through the binary.
use crate::command::{Place, tidemill};
use serde_json::Value;
use std::collections::BTreeSet;
use tidemill_spec::plan::Plan;

const BOXES: [&str; 5] = [
    "examples/vqa/three-boxes/workflow.yaml",
    "--infra",
    "examples/vqa/three-boxes/infrastructure.yaml",
    "--profiles",
    "examples/vqa/profile.yaml",
];

fn number(value: &Value, path: &str) -> f64 {
    value.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("{path} in {value}"))
}

#[test]
fn a_plan_for_three_boxes_goes_on_without_any_of_them() {
    let answer = tidemill(&[&["plan"], &BOXES[..], &["--what-if", "lose=2", "--output", "json"]].concat());
    let answer = answer.expect(0).json();
    assert_eq!((number(&answer, "/survive/losses"), answer["status"].as_str()), (1.0, Some("optimal")));
    let one = &answer["what_if"][1];
    assert_eq!(number(one, "/chance_of_all_levels"), 1.0, "{one}");
    assert_eq!(number(one, "/sets"), number(&answer, "/survive/fallbacks"));
    let without = tidemill(&[&["plan"], &BOXES[..], &["--slo", "survive=none", "--output", "json"]].concat());
    assert!(number(&without.expect(0).json(), "/cost/total") < number(&answer, "/cost/total"));

    let place = Place::empty("lost_workers");
    let file = place.argument("plan.yaml");
    tidemill(&[&["plan"], &BOXES[..], &["--out", &file]].concat()).expect(0);
    let plan = Plan::load(&file).unwrap_or_else(|found| panic!("{found}"));
    let boxes: Vec<&str> = plan
        .workers
        .iter()
        .filter(|worker| worker.price.is_some())
        .map(|worker| worker.id.as_str())
        .collect();
    assert_eq!((plan.survive, plan.fallbacks.len()), (1, boxes.len()));
    for lost in &boxes {
        let after = plan.without(&BTreeSet::from([(*lost).to_owned()])).unwrap();
        let found = after.check(None);
        assert!(!found.has_errors(), "{found}");
        let models = |plan: &Plan| -> BTreeSet<String> {
            plan.stages
                .iter()
                .filter(|stage| stage.variant.is_some())
                .map(|stage| stage.operator.clone())
                .collect()
        };
        assert_eq!(models(&after), models(&plan));
        for stage in after.stages.iter().filter(|stage| stage.variant.is_some()) {
            assert!(
                plan.stages.iter().any(|known| (&known.id, &known.worker) == (&stage.id, &stage.worker)),
                "{}",
                stage.id
            );
        }
        let again = place.argument("after.yaml");
        std::fs::write(&again, after.to_yaml().unwrap_or_else(|found| panic!("{found}"))).unwrap();
        tidemill(&["validate", BOXES[0], &again, "--without-files"]).expect(0);
        tidemill(&[&["simulate", &file], &BOXES[..], &["--for", "30s", "--lose", lost]].concat()).expect(0);
    }
    let none = tidemill(&[&["simulate", &file], &BOXES[..], &["--lose"], &boxes[..]].concat()).expect(2);
    assert!(none.stderr.contains("no stage is left of"), "{}", none.stderr);
    // The file has the plan that was printed.
    tidemill(&[&["explain", BOXES[0], &file], &BOXES[1..], &["--output", "json"]].concat()).expect(0);
}

#[test]
fn without_enough_machines_the_missing_ones_are_named() {
    let place = Place::empty("lost_workers");
    let two = "version: 1\nname: two\ntiers:\n  - id: edge\n    workers:\n      - {type: large, count: 2, price: 0.083 $/h}\n";
    place.write("two.yaml", two);
    let file = place.argument("two.yaml");
    let arguments = ["plan", BOXES[0], "--infra", &file, "--profiles", BOXES[4]];
    let refused = tidemill(&arguments).expect(1);
    assert!(refused.stdout.contains("more `large` in edge"), "{}", refused.stdout);
    assert!(refused.stdout.contains("--slo survive=0"), "{}", refused.stdout);
    let other = tidemill(&[&arguments[..], &["--planner", "beam"]].concat());
    assert!(other.code != Some(0) && other.stderr.contains("`exact`"), "{other:?}");
}
