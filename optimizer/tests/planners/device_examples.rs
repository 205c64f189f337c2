//! Golden plans of the examples with devices: one of each pair runs a model on the device, the other moves stages.
use std::collections::BTreeSet;
use std::path::Path;
use tidemill_operators::registry::Registry;
use tidemill_optimizer::assemble::{
    Assembly, Inputs, Level, Model, Models, Options, Rows, TensorBytes, assemble,
};
use tidemill_optimizer::check::{check, recomputed_cost};
use tidemill_optimizer::explain::explain;
use tidemill_optimizer::physical::{physical, solution_of};
use tidemill_optimizer::planner::{Planner, SearchLimits};
use tidemill_optimizer::planners::exact::Exact;
use tidemill_optimizer::solution::Status;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::manifest::{Dimension, Manifest};
use tidemill_spec::plan::Sends;
use tidemill_spec::profile::Profile;
use tidemill_spec::workflow::Workflow;

/// Bytes of tensors whose shapes the manifest has.
fn tensors(manifest: &Manifest) -> Option<TensorBytes> {
    let values = |shape: &[Dimension]| -> Option<u64> {
        let size = |dimension: &Dimension| match dimension {
            Dimension::Batch => Some(1),
            Dimension::Fixed(size) => Some(u64::from(*size)),
            Dimension::Any => None,
        };
        shape.iter().map(size).product()
    };
    let sent = manifest.inputs.iter().map(|input| Some(values(&input.shape)? * input.dtype.bytes()?));
    let received = manifest.outputs.iter().map(|output| Some(values(&output.shape)? * output.dtype.bytes()?));
    Some(TensorBytes { sent: sent.sum::<Option<u64>>()?, received: received.sum::<Option<u64>>()? })
}

/// The problem of an example, without some of its levels, given to a function.
fn with_problem<T>(
    example: &str,
    infrastructure: &str,
    without: BTreeSet<Level>,
    of: impl FnOnce(&Inputs<'_>, &Assembly) -> T,
) -> T {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples").join(example);
    let workflow = Workflow::load(folder.join("workflow.yaml")).unwrap_or_else(|errors| panic!("{errors}"));
    let infrastructure = Infrastructure::load(folder.join(infrastructure));
    let infrastructure = infrastructure.unwrap_or_else(|errors| panic!("{errors}"));
    let profile = Profile::load(folder.join("profile.yaml")).unwrap_or_else(|errors| panic!("{errors}"));
    let model = |path: &str| {
        let manifest = Manifest::load(folder.join(path)).unwrap_or_else(|errors| panic!("{errors}"));
        Model {
            id: manifest.id.value.clone(),
            backends: manifest.backends.iter().map(|backend| backend.value.to_string()).collect(),
            tensors: tensors(&manifest),
            // The detector keeps its picture.
            rows: Some(Rows { keeps_all: path.contains("vehicles") }),
            obstacle: path.contains("third_party").then(|| "it is not fetched".to_owned()),
        }
    };
    let with_models = workflow.operators.iter().filter(|operator| !operator.variants.is_empty());
    let models: Models = with_models
        .map(|operator| {
            let all = operator.variants.iter().map(|path| model(&path.value));
            (operator.id.value.clone(), all.collect())
        })
        .collect();
    let kinds = Registry::builtin().facts();
    let inputs = Inputs {
        workflow: &workflow,
        infrastructure: &infrastructure,
        profile: &profile,
        models: &models,
        kinds: &kinds,
    };
    let options = Options { without, ..Options::default() };
    let assembly = assemble(&inputs, &options).unwrap_or_else(|errors| panic!("{errors}"));
    of(&inputs, &assembly)
}

fn limits() -> SearchLimits {
    SearchLimits { wall_seconds: None, ..SearchLimits::default() }
}

/// The plan of an example without its latency level: its cost in $/h to six decimals, and its devices in use; then where
/// each model runs: operator, worker, device.
fn planned(example: &str, infrastructure: &str) -> (String, usize, Vec<String>) {
    with_problem(example, infrastructure, [Level::Latency].into(), plan_of)
}

fn plan_of(inputs: &Inputs<'_>, assembly: &Assembly) -> (String, usize, Vec<String>) {
    let outcome = Exact.plan(&assembly.problem, &limits()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(outcome.status, Status::Optimal, "{}", assembly.problem.name);
    let solution = outcome.solution.expect("an optimal outcome has a plan");
    assert_eq!(check(&assembly.problem, &solution), []);
    let total = recomputed_cost(&assembly.problem, &solution);
    assert!((total - outcome.cost.unwrap_or_default()).abs() < 1e-9);
    let plan = physical(inputs, assembly, &solution, Vec::new()).unwrap_or_else(|error| panic!("{error}"));
    let found = plan.validate_against(inputs.workflow);
    assert!(found.is_empty(), "{found}");
    let again = solution_of(inputs, assembly, &plan).unwrap_or_else(|error| panic!("{error}"));
    assert!((recomputed_cost(&assembly.problem, &again) - total).abs() < 1e-6);
    let stages = plan.stages.iter().filter(|stage| stage.variant.is_some());
    let stage = |stage: &tidemill_spec::plan::Stage| {
        let device = stage.device.as_deref().unwrap_or("its worker");
        let form = if stage.sends == Sends::Rows { " as rows" } else { "" };
        format!("{} at {} on {device}{form}", stage.operator, stage.worker)
    };
    (format!("{total:.6}"), plan.devices.len(), stages.map(stage).collect())
}

#[test]
fn a_model_runs_on_the_device_where_traffic_is_free() {
    let (cost, devices, stages) = planned("aicity", "with-device.yaml");
    assert_eq!((cost.as_str(), devices), ("0.018000", 1));
    let detect = "detect at edge-small-0 on device:hub-large-0/large as rows";
    assert!(stages.contains(&detect.to_owned()), "{stages:?}");
    assert!(stages.iter().all(|stage| stage.contains("at edge-small-0")), "{stages:?}");
    let (cost, devices, stages) = planned("vqa", "with-device.yaml");
    assert_eq!((cost.as_str(), devices), ("0.018000", 1));
    assert!(stages.iter().all(|stage| stage.contains("at edge-small-0")), "{stages:?}");
    // Its tensors are smaller than its records.
    let answerer = "answerer at edge-small-0 on device:hub-large-0/large";
    assert!(stages.contains(&answerer.to_owned()), "{stages:?}");
}

#[test]
fn stages_move_where_traffic_costs() {
    let (cost, devices, stages) = planned("aicity", "with-device-metered.yaml");
    assert_eq!((cost.as_str(), devices), ("0.315154", 0));
    assert!(stages.iter().any(|stage| stage.starts_with("detect at hub-large-0")), "{stages:?}");
    let (cost, devices, stages) = planned("vqa", "with-device-metered.yaml");
    assert_eq!((cost.as_str(), devices), ("0.288256", 0));
    assert!(stages.contains(&"scene_features at hub-large-0 on its worker".to_owned()), "{stages:?}");
}

/// The effort of an explanation, counted: searches from nothing take a hundred nodes each.
#[test]
fn an_explanation_takes_few_searches() {
    with_problem("aicity", "with-device.yaml", BTreeSet::new(), |_, assembly| {
        let problem = &assembly.problem;
        let outcome = Exact.plan(problem, &limits()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(outcome.status, Status::Optimal);
        assert!(outcome.nodes < 1_000, "{} nodes for the plan", outcome.nodes);
        let explained = explain(problem, &outcome, assembly.rate, &[], &limits(), &mut |_| {});
        let explained = explained.unwrap_or_else(|error| panic!("{error}"));
        let effort = explained.effort;
        assert!(effort.searches <= 8 && effort.nodes < 1_000, "{effort:?}");
        assert_eq!((effort.answered, effort.cut), (explained.questions, 0));
        let first = &explained.devices[0];
        let other = first.other.as_ref().map(|other| format!("{:.4}", other.cost.total()));
        assert_eq!(other.as_deref(), Some("0.0830"), "{first:?}");
    });
}
