//! The simulation carries the load that the planner assumes, with equal figures.
use proptest::prelude::*;
use std::collections::BTreeMap;
use tidemill_operators::registry::Registry;
use tidemill_optimizer::assemble::{Inputs, Options as Wishes, assemble};
use tidemill_optimizer::planner::{Planner, SearchLimits};
use tidemill_optimizer::planners::exact::Exact;
use tidemill_optimizer::problem::Problem;
use tidemill_simulator::{Arrivals, Options, Times, simulate};
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::profile::Profile;
use tidemill_spec::units::Rate;
use tidemill_spec::workflow::Workflow;

const WORKFLOW: &str = "
version: 1
name: w
sources: [{id: rows, kind: csv, rate: 10/s, options: {path: in.csv}}]
operators: [{id: work, kind: regex_map, input: rows}]
sinks: [{id: lines, kind: jsonl, input: work, options: {path: out.jsonl}}]
";

const INFRASTRUCTURE: &str = "
version: 1
name: one
tiers: [{id: edge, workers: [{type: half, count: 1, price: 0.02 $/h}]}]
";

/// Times on half of a processor and on the whole.
fn profile(half: &str, whole: &str) -> Profile {
    let text = format!(
        "
version: 1
workflow: {{name: w}}
machines:
  - {{worker_type: half, how: limited, cpu: c, cores: 0.5}}
  - {{worker_type: here, how: measured, cpu: c, cores: 2}}
services:
  - {{operator: work, worker_type: half, how: limited, batches: [{{batch: 1, {half}}}]}}
  - {{operator: work, worker_type: here, how: measured, batches: [{{batch: 1, {whole}}}]}}
messages: [{{from: rows, to: work, bytes_per_record: 100B}}]
"
    );
    Profile::parse(&text, "profile.yaml").unwrap_or_else(|errors| panic!("{errors}"))
}

/// The achieved share of the largest load by the planner, and its seconds per record.
fn carried(profile: &Profile) -> (f64, f64) {
    let workflow = Workflow::parse(WORKFLOW, "w").unwrap_or_else(|errors| panic!("{errors}"));
    let infrastructure =
        Infrastructure::parse(INFRASTRUCTURE, "i").unwrap_or_else(|errors| panic!("{errors}"));
    let models = BTreeMap::new();
    let kinds = Registry::builtin().facts();
    let inputs = Inputs {
        workflow: &workflow,
        infrastructure: &infrastructure,
        profile,
        models: &models,
        kinds: &kinds,
    };
    let seconds = |problem: &Problem| problem.operators[0].variants[0].modes[0][0].seconds_per_record;
    let assembled = |rate| {
        let wishes = Wishes { rate: Some(Rate(rate)), max_utilization: 1.0, ..Wishes::default() };
        assemble(&inputs, &wishes).unwrap_or_else(|errors| panic!("{errors}"))
    };
    let counted = seconds(&assembled(1.0).problem);
    let assembly = assembled(0.99 / counted);
    let solution = Exact.plan(&assembly.problem, &SearchLimits::default()).unwrap().solution.unwrap();
    let times = Times::measured(&inputs, &assembly, &solution);
    let options = Options { seconds: 60.0, ..Options::of(&assembly.problem) };
    let found = simulate(&assembly.problem, &solution, &times, &Arrivals::constant(), &options).unwrap();
    (found.achieved(), counted)
}

/// Nine calls of half a processor, most of them short, and two hundred of a whole one that contradict them.
#[test]
fn few_skewed_calls_do_not_promise_more_than_is_carried() {
    let few = "samples: 9, mean: 2.2ms, deviation: 2.4ms, p50: 1ms, p75: 1.2ms, p90: 6ms, \
               points: [0.9ms, 0.9ms, 1ms, 1ms, 1.2ms, 1.5ms, 8ms]";
    let many = "samples: 200, mean: 1.6ms, p50: 1.6ms, p75: 1.7ms, points: [1.2ms, 1.6ms, 2ms]";
    let (part, counted) = carried(&profile(few, many));
    assert!(part > 0.98, "{part}");
    assert!((counted - 0.0032).abs() < 1e-9, "{counted}");
    // A half that was measured slower than half of the whole counts.
    let (part, counted) = carried(&profile("mean: 5ms, p75: 4ms", many));
    assert!(part > 0.98 && (counted - 0.005).abs() < 1e-9, "{part} {counted}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any few measured calls, with a mean or without.
    #[test]
    fn the_planner_counts_on_no_more_than_is_simulated(
        mut half in prop::collection::vec(200u32..20_000, 3..10),
        mut whole in prop::collection::vec(200u32..20_000, 3..10),
        with_mean in any::<bool>(),
    ) {
        let told = |times: &mut Vec<u32>| {
            times.sort_unstable();
            let points: Vec<String> = times.iter().map(|us| format!("{us}us")).collect();
            let mean = times.iter().sum::<u32>() / times.len() as u32;
            let mean = if with_mean { format!("mean: {mean}us, ") } else { String::new() };
            format!("{mean}points: [{}]", points.join(", "))
        };
        let (part, counted) = carried(&profile(&told(&mut half), &told(&mut whole)));
        prop_assert!(part > 0.97, "{part} at {counted}");
    }
}
