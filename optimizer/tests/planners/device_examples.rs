//! Golden plans of the examples with devices: one of each pair runs a model on the device, the other moves stages.
use std::path::Path;
use tidemill_operators::registry::Registry;
use tidemill_optimizer::assemble::{Inputs, Level, Model, Models, Options, assemble};
use tidemill_optimizer::check::{check, recomputed_cost};
use tidemill_optimizer::physical::{physical, solution_of};
use tidemill_optimizer::planner::{Planner, SearchLimits};
use tidemill_optimizer::planners::exact::Exact;
use tidemill_optimizer::solution::Status;
use tidemill_spec::infrastructure::Infrastructure;
use tidemill_spec::manifest::Manifest;
use tidemill_spec::profile::Profile;
use tidemill_spec::workflow::Workflow;

/// The plan of an example without its latency level: its cost in $/h to six decimals, and its devices in use; then where
/// each model runs: operator, worker, device.
fn planned(example: &str, infrastructure: &str) -> (String, usize, Vec<String>) {
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
            tensors: manifest.tensor_bytes(),
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
    let options = Options { without: [Level::Latency].into(), ..Options::default() };
    let assembly = assemble(&inputs, &options).unwrap_or_else(|errors| panic!("{errors}"));
    let limits = SearchLimits { wall_seconds: None, ..SearchLimits::default() };
    let outcome = Exact.plan(&assembly.problem, &limits).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(outcome.status, Status::Optimal, "{example}");
    let solution = outcome.solution.expect("an optimal outcome has a plan");
    assert_eq!(check(&assembly.problem, &solution), []);
    let total = recomputed_cost(&assembly.problem, &solution);
    assert!((total - outcome.cost.unwrap_or_default()).abs() < 1e-9);
    let plan = physical(&inputs, &assembly, &solution, Vec::new()).unwrap_or_else(|error| panic!("{error}"));
    let found = plan.validate_against(&workflow);
    assert!(found.is_empty(), "{found}");
    let again = solution_of(&inputs, &assembly, &plan).unwrap_or_else(|error| panic!("{error}"));
    assert!((recomputed_cost(&assembly.problem, &again) - total).abs() < 1e-6);
    let stages = plan.stages.iter().filter(|stage| stage.variant.is_some());
    let stage = |stage: &tidemill_spec::plan::Stage| {
        let device = stage.device.as_deref().unwrap_or("its worker");
        format!("{} at {} on {device}", stage.operator, stage.worker)
    };
    (format!("{total:.6}"), plan.devices.len(), stages.map(stage).collect())
}

#[test]
fn a_model_runs_on_the_device_where_traffic_is_free() {
    let (cost, devices, stages) = planned("aicity", "with-device.yaml");
    assert_eq!((cost.as_str(), devices), ("0.018000", 1));
    assert!(stages.contains(&"detect at edge-small-0 on device:hub-large-0/large".to_owned()), "{stages:?}");
    assert!(stages.iter().all(|stage| stage.contains("at edge-small-0")), "{stages:?}");
    let (cost, devices, stages) = planned("vqa", "with-device.yaml");
    assert_eq!((cost.as_str(), devices), ("0.018000", 1));
    assert!(stages.iter().all(|stage| stage.contains("at edge-small-0")), "{stages:?}");
    assert!(stages.iter().any(|stage| stage.ends_with("device:hub-large-0/large")), "{stages:?}");
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
