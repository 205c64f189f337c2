use super::*;
use crate::assemble::tests::{Case, INFRASTRUCTURE, PROFILE, WORKFLOW};
use crate::solution::{Hosting, RouteClass as Class, UsedWorker};
use tidemill_spec::plan::PlanFile;
use tidemill_spec::units::Bytes;

fn hosting(operator: usize, worker: usize, location: usize, mode: usize, share: f64) -> Hosting {
    Hosting { operator, worker: Some(worker), location, mode, share, wait_seconds: None, device: None }
}

/// Features on two workers of the edge, everything else in the cloud.
fn solution() -> Solution {
    let class = |share, features| Class { share, sources: vec![0, 0], hostings: vec![features, 2, 3] };
    Solution {
        variants: vec![0, 0, 0],
        workers: vec![
            UsedWorker { class: 0, index: 0 },
            UsedWorker { class: 0, index: 1 },
            UsedWorker { class: 1, index: 0 },
        ],
        hostings: vec![
            hosting(0, 0, 0, 1, 0.25),
            hosting(0, 1, 0, 0, 0.75),
            hosting(1, 2, 1, 0, 1.0),
            hosting(2, 2, 1, 0, 1.0),
        ],
        classes: vec![class(0.25, 0), class(0.75, 1)],
        fallbacks: Vec::new(),
    }
}

fn plan() -> (Case, Plan) {
    let case = Case::new(WORKFLOW, INFRASTRUCTURE, PROFILE);
    let plan = physical(&case.inputs(), &case.assembled(), &solution(), vec!["a".repeat(64)]);
    (case, plan.unwrap_or_else(|error| panic!("{error}")))
}

#[test]
fn a_back_end_with_a_program_of_its_own_computes_in_a_proxy() {
    let case = Case::new(WORKFLOW, INFRASTRUCTURE, &PROFILE.replace("backend: rten", "backend: torch"));
    let plan = physical(&case.inputs(), &case.assembled(), &solution(), Vec::new()).expect("it has a plan");
    let stages = plan.stages.iter().map(|stage| (stage.backend.as_deref(), stage.device.as_deref()));
    let torch: Vec<_> = stages.filter(|(backend, _)| backend.is_some()).collect();
    assert!(
        !torch.is_empty() && torch.iter().all(|at| *at == (Some("torch"), Some("proxy:torch"))),
        "{torch:?}"
    );
    let (_, rten) = self::plan();
    assert!(rten.stages.iter().all(|stage| stage.device.is_none()));
}

#[test]
fn a_plan_is_read_back_and_fits_its_workflow() {
    let (case, plan) = plan();
    let text = plan.to_yaml().unwrap_or_else(|errors| panic!("{errors}"));
    let file = PlanFile::parse(&text, "plan.yaml").unwrap_or_else(|errors| panic!("{errors}\n{text}"));
    assert_eq!(file.plan, plan);
    let found = file.validate_against(&case.workflow);
    assert!(found.is_empty(), "{found}\n{text}");
}

#[test]
fn workers_and_stages_have_names_that_say_where_they_are() {
    let (_, plan) = plan();
    let workers: Vec<(&str, &str, &str)> =
        plan.workers.iter().map(|w| (w.id.as_str(), w.tier.as_str(), w.worker_type.as_str())).collect();
    assert_eq!(
        workers,
        [
            ("device-edge", "edge", SOURCE_DEVICE),
            ("edge-little-0", "edge", "little"),
            ("edge-little-1", "edge", "little"),
            ("cloud-big-0", "cloud", "big"),
        ]
    );
    let stages: Vec<(&str, &str, f64)> =
        plan.stages.iter().map(|s| (s.id.as_str(), s.worker.as_str(), s.share)).collect();
    assert_eq!(
        stages,
        [
            ("images", "device-edge", 1.0),
            ("questions", "device-edge", 1.0),
            ("features@edge-little-0", "edge-little-0", 0.25),
            ("features@edge-little-1", "edge-little-1", 0.75),
            ("speech", "cloud-big-0", 1.0),
            ("pair", "cloud-big-0", 1.0),
            ("answer", "cloud-big-0", 1.0),
            ("answers", "cloud-big-0", 1.0),
        ]
    );
    assert_eq!((plan.stages[2].max_batch, plan.stages[2].batching_budget), (4, TimeSpan(20_000_000)));
    assert_eq!((plan.stages[3].max_batch, plan.stages[3].backend.as_deref()), (1, Some("rten")));
    assert_eq!(plan.stages[2].variant.as_deref(), Some("small"));
}

#[test]
fn edges_carry_what_is_known_of_them() {
    let (_, plan) = plan();
    let edge = |from: &str, to: &str| {
        let found = plan.edges.iter().find(|edge| edge.from == from && edge.to == to);
        found.unwrap_or_else(|| panic!("no edge from {from} to {to}"))
    };
    let up = edge("features@edge-little-1", "pair");
    assert_eq!((up.bytes_per_record, up.rate), (Some(Bytes(1000)), Some(Rate(30.0))));
    assert!(up.price.is_some());
    let inside = edge("pair", "answer");
    assert_eq!(inside.price, None);
    assert_eq!(edge("images", "features@edge-little-0").price, None);
    assert_eq!(edge("speech", "pair").input, 1);
}

/// Stage names are unique.
#[test]
fn two_ways_of_one_operator_on_one_worker_have_two_names() {
    let case = Case::new(WORKFLOW, INFRASTRUCTURE, PROFILE);
    let mut solution = solution();
    solution.hostings[1] = hosting(0, 0, 0, 0, 0.75);
    let names = stage_names(&case.assembled(), &solution);
    let named = |name: &str| Some(name.to_owned());
    let expected =
        [named("features@edge-little-0"), named("features@edge-little-0."), named("speech"), named("answer")];
    assert_eq!(names, expected);
}

#[test]
fn what_goes_to_a_sink_has_no_price() {
    let case = Case::new(WORKFLOW, INFRASTRUCTURE, PROFILE);
    let mut solution = solution();
    // A quarter of the answers is made at the edge; the sink is placed with the majority.
    solution.hostings.extend([hosting(1, 0, 0, 0, 0.25), hosting(2, 0, 0, 0, 0.25)]);
    solution.hostings[2].share = 0.75;
    solution.hostings[3].share = 0.75;
    solution.classes[0].hostings = vec![0, 4, 5];
    let plan = physical(&case.inputs(), &case.assembled(), &solution, Vec::new()).expect("is a plan");
    let edges = plan.edges.iter().filter(|edge| edge.to == "answers");
    let mut prices: Vec<_> = edges.map(|edge| (edge.from.as_str(), edge.price)).collect();
    prices.sort_by_key(|(from, _)| *from);
    assert_eq!(prices, [("answer@cloud-big-0", None), ("answer@edge-little-0", None)]);
}

#[test]
fn the_prediction_is_that_of_the_cost_function() {
    let (case, plan) = plan();
    let problem = case.assembled().problem;
    let total = cost(&problem, &solution()).expect("has a cost").total();
    let predicted = plan.predicted.expect("is there");
    assert!((predicted.cost.expect("is there").value.0 - total).abs() < 1e-6);
    assert_eq!(predicted.accuracy.map(|accuracy| accuracy.value), Some(Percent(55.0)));
    // The second worker takes 30/s at 20 ms: 0.6 of the allowed 0.85.
    let rate = predicted.rate.expect("is there");
    assert_eq!((rate.value, rate.to), (Rate(40.0), Some(Rate(56.666_667))));
}

#[test]
fn a_source_at_several_sites_has_a_stage_at_each() {
    let sites = INFRASTRUCTURE.replace("{id: edge,", "{id: edge, locations: [north, south],");
    let case = Case::new(WORKFLOW, &sites, PROFILE);
    let class = |at: usize| Class { share: 0.5, sources: vec![at, at], hostings: vec![0, 1, 2] };
    let solution = Solution {
        variants: vec![1, 0, 0],
        workers: vec![UsedWorker { class: 2, index: 0 }],
        hostings: (0..3).map(|operator| hosting(operator, 0, 2, 0, 1.0)).collect(),
        classes: vec![class(0), class(1)],
        fallbacks: Vec::new(),
    };
    let plan = physical(&case.inputs(), &case.assembled(), &solution, Vec::new()).expect("is a plan");
    let found = plan.validate_against(&case.workflow);
    assert!(found.is_empty(), "{found}");
    assert_eq!(plan.stages[0].id, "images@device-edge-north");
    assert_eq!(plan.stages[1].id, "images@device-edge-south");
    assert_eq!(plan.workers[1].location.as_deref(), Some("south"));
}

#[test]
fn a_plan_is_turned_back_into_the_numbers_it_was_made_of() {
    let (case, plan) = plan();
    let assembly = case.assembled();
    let again = solution_of(&case.inputs(), &assembly, &plan).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(again.workers, solution().workers);
    assert_eq!(physical(&case.inputs(), &assembly, &again, plan.profiles.clone()), Ok(plan.clone()));
    let mut other = plan.clone();
    other.workers[1].worker_type = "huge".into();
    let refused = solution_of(&case.inputs(), &case.assembled(), &other);
    assert_eq!(refused, Err(ReadError::Worker("edge-little-0".into())));
}

#[test]
fn machines_with_names_keep_them_in_plans() {
    let named = INFRASTRUCTURE
        .replace(
            "count: 3, memory: 1GiB, price: 0.02 $/h",
            "count: 3, memory: 1GiB, price: 0.02 $/h, names: [a, b, c]",
        )
        .replace(
            "{type: big, count: 2, price: 0.5 $/h}",
            "{type: big, price: 0.5 $/h, names: [x]}, {type: big, price: 0.5 $/h, names: [y]}",
        );
    let case = Case::new(WORKFLOW, &named, PROFILE);
    let assembly = case.assembled();
    let mut solution = solution();
    solution.workers = vec![
        UsedWorker { class: 0, index: 2 },
        UsedWorker { class: 0, index: 0 },
        UsedWorker { class: 2, index: 0 },
    ];
    let plan = physical(&case.inputs(), &assembly, &solution, Vec::new());
    let plan = plan.unwrap_or_else(|error| panic!("{error}"));
    let workers: Vec<&str> = plan.workers.iter().map(|worker| worker.id.as_str()).collect();
    assert_eq!(workers, ["device-edge", "c", "a", "y"]);
    let read = solution_of(&case.inputs(), &assembly, &plan).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(read.workers, solution.workers);
}

#[test]
fn a_plan_has_the_policies_of_its_workflow_and_infrastructure() {
    let workflow = format!("{WORKFLOW}policies: [{{edge: images -> features, rate_limit: {{rps: 5}}}}]\n");
    let added = "policies: [{edge: '*', workflow: other, log: }, {edge: '*', workflow: vqa, encrypt: }]\n";
    let case = Case::new(&workflow, &format!("{INFRASTRUCTURE}{added}"), PROFILE);
    let plan = physical(&case.inputs(), &case.assembled(), &solution(), Vec::new()).expect("is a plan");
    let ids: Vec<&str> = plan.policies.iter().map(|policy| policy.id.as_str()).collect();
    assert_eq!(ids, ["rate_limit-1", "encrypt-1"]);
    assert!(
        plan.policies[0].applies_to("images", "features") && plan.policies[1].applies_to("pair", "answer")
    );
}
