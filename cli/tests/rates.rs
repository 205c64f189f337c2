//! Plans with models that determine the number of later records.
use crate::command::{FILES, Place, VQA, tidemill};
use tidemill_spec::plan::Plan;

const PROFILE: &str = "version: 1
workflow: {name: vqa}
machines: []
services: []
ratios:
  - {operator: pair, output_per_input: 0.5}
  - {operator: pair, variants: {scene_features: scene-features-large}, output_per_input: 6}
";

/// Cost, model of the pictures, and records per second for the answerer.
fn planned(place: &Place, accuracy: &str) -> (f64, String, f64) {
    let out = place.argument("plan.yaml");
    let level = format!("accuracy={accuracy}");
    let profile = place.argument("rates.yaml");
    let more = ["--profiles", &profile, "--slo", &level, "--out", &out, "--keep-idle", "--output", "json"];
    let document = tidemill(&[&["plan", VQA][..], &FILES, &more].concat()).expect(0).json();
    let plan = Plan::parse(&place.read("plan.yaml"), "plan.yaml").unwrap_or_else(|errors| panic!("{errors}"));
    let to_answerer = plan.edges.iter().filter(|edge| edge.to.split('@').next() == Some("answerer"));
    let rate = to_answerer.filter_map(|edge| edge.rate).map(|rate| rate.0).sum();
    let variant = plan.stages.iter().find(|stage| stage.operator == "scene_features").unwrap();
    (document["cost"]["total"].as_f64().unwrap(), variant.variant.clone().unwrap(), rate)
}

#[test]
fn a_plan_has_the_rates_of_its_models() {
    let place = Place::empty("rates");
    place.write("rates.yaml", PROFILE);
    let (cheap, model, rate) = planned(&place, "70");
    assert_eq!((model.as_str(), rate), ("scene-features-medium", 20.0));
    let (dear, model, rate) = planned(&place, "78");
    assert_eq!((model.as_str(), rate), ("scene-features-large", 240.0));
    assert!(dear > cheap, "{dear} for twelve times as many records, {cheap} for few");
    place.change("rates.yaml", "output_per_input: 6", "output_per_input: 0.5");
    let (few, model, rate) = planned(&place, "78");
    assert_eq!((model.as_str(), rate), ("scene-features-large", 20.0));
    assert!(few <= dear, "{few} for few records, {dear} for many");
}
