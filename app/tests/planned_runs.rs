//! Whatever plan a planner makes of whatever files, a run gives what a run without a plan gives.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use tidemill_app::listener::Silent;
use tidemill_app::planned::Planned;
use tidemill_app::planning::{Case, PlanningOptions, SolverName};
use tidemill_app::preparation::{PlanFrom, prepare_here};
use tidemill_engine::{Run, RunOptions};
use tidemill_optimizer::assemble::Options;
use tidemill_optimizer::planner::{Planner, PlannerError};
use tidemill_optimizer::planners::beam::Beam;
use tidemill_optimizer::planners::best_fit::BestFit;
use tidemill_optimizer::planners::cloud_only::CloudOnly;
use tidemill_optimizer::planners::edge_only::EdgeOnly;
use tidemill_optimizer::planners::exact::Exact;
use tidemill_optimizer::planners::exhaustive::Exhaustive;
use tidemill_optimizer::planners::first_fit::FirstFit;
use tidemill_problems::{Files, files};
use tidemill_random::Random;
use tidemill_spec::plan::Plan;
use tidemill_spec::units::TimeSpan;

fn write(files: &Files, folder: &Path) {
    let own = [
        ("workflow.yaml", &files.workflow),
        ("infrastructure.yaml", &files.infrastructure),
        ("profile.yaml", &files.profile),
    ];
    let inputs = files.inputs.iter().map(|(name, text)| (name.as_str(), text));
    for (name, text) in own.into_iter().chain(inputs) {
        std::fs::write(folder.join(name), text).unwrap();
    }
    std::fs::create_dir_all(folder.join("out")).unwrap();
}

/// Runs, and gives the lines of each output in order.
fn run(files: &Files, folder: &Path, plan: Option<&Path>) -> Result<BTreeMap<String, Vec<String>>, String> {
    let plan = PlanFrom::file_or(plan, PlanFrom::Settings(&[]));
    let prepared = prepare_here(&folder.join("workflow.yaml"), plan, &Silent);
    let prepared = prepared.map_err(|error| format!("{error:?}"))?;
    let run = Run::start(prepared.program, RunOptions::default()).map_err(|error| error.to_string())?;
    run.wait().map_err(|error| error.to_string())?;
    let lines = |name: &String| {
        let text = std::fs::read_to_string(folder.join("out").join(name)).unwrap_or_default();
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort();
        (name.clone(), lines)
    };
    Ok(files.outputs.iter().map(lines).collect())
}

/// The plans that planners make of the files of a folder.
fn plans(folder: &Path) -> BTreeMap<String, Plan> {
    let options = PlanningOptions {
        infrastructure: Some(folder.join("infrastructure.yaml")),
        profiles: vec![folder.join("profile.yaml")],
        problem: Options::default(),
        gap: 1e-3,
        time_limit: TimeSpan(1_000_000_000),
        keep_idle: false,
        solver: SolverName::Microlp,
    };
    let case = Case::load(&folder.join("workflow.yaml"), &options, &Silent).unwrap();
    let Ok(assembly) = case.assemble() else { return BTreeMap::new() };
    let beam = Beam::default();
    let planners: [&dyn Planner; 7] =
        [&Exact, &beam, &BestFit, &FirstFit, &CloudOnly, &EdgeOnly, &Exhaustive];
    let mut plans = BTreeMap::new();
    for planner in planners {
        let outcome = match planner.plan(&assembly.problem, &case.limits) {
            Ok(outcome) => outcome,
            Err(PlannerError::Unsupported { .. }) => continue,
            Err(error) => panic!("{}: {error}", planner.name()),
        };
        let Some(solution) = outcome.solution else { continue };
        let plan = Planned::new(&case, &assembly, &solution).unwrap().plan;
        plans.insert(plan.to_yaml().unwrap(), plan);
    }
    plans
}

/// Counts over all cases that were looked at.
#[derive(Debug, Default)]
struct Seen {
    runs: usize,
    /// Kinds of operators that had several stages in a plan, and in how many plans.
    spread: BTreeMap<String, usize>,
}

fn look(seed: u64, seen: &mut Seen) {
    let folder = tempfile::tempdir().unwrap();
    let files = files(&mut Random::of_seed(seed));
    write(&files, folder.path());
    let expected = run(&files, folder.path(), None)
        .unwrap_or_else(|error| panic!("{seed}: {error}\n{}", files.workflow));
    for (text, plan) in plans(folder.path()) {
        let file = folder.path().join("plan.yaml");
        std::fs::write(&file, &text).unwrap();
        let found = run(&files, folder.path(), Some(&file));
        let told = || format!("files of seed {seed}\n{}\n{}\n{text}", files.workflow, files.infrastructure);
        let found = found.unwrap_or_else(|error| panic!("{error}\n{}", told()));
        for (name, lines) in &expected {
            let (here, there) = (found[name].len(), lines.len());
            assert!(found[name] == *lines, "{name}: {here} lines of {there}, or others\n{}", told());
        }
        seen.runs += 1;
        let mut operators = BTreeSet::new();
        let several = plan.stages.iter().filter(|stage| !operators.insert(stage.operator.as_str()));
        let several: BTreeSet<&str> = several.map(|stage| stage.operator.as_str()).collect();
        for operator in several {
            let line = files.workflow.lines().find(|line| line.contains(&format!("{{id: {operator}, ")));
            let kind =
                line.and_then(|line| line.split("kind: ").nth(1)?.split(',').next()).unwrap_or_default();
            *seen.spread.entry(kind.to_owned()).or_default() += 1;
        }
    }
}

/// Looks at a quarter of the cases: each test takes some seconds, and they run beside each other.
fn look_at_quarter(quarter: u64) {
    let number = std::env::var("TIDEMILL_PLANNED_RUNS").ok().and_then(|text| text.parse().ok()).unwrap_or(40);
    let mut seen = Seen::default();
    (0..number).filter(|seed| seed % 4 == quarter).for_each(|seed| look(seed, &mut seen));
    let kinds = ["filter", "map", "window", "distinct", "join", "track"];
    let kinds = kinds.map(|kind| (kind, seen.spread.get(kind).copied().unwrap_or(0)));
    println!("{} workflows, {} runs with plans; kinds with several stages: {kinds:?}", number / 4, seen.runs);
    // Else it would look at nothing.
    let that_meet: usize = kinds[2..].iter().map(|(_, spread)| spread).sum();
    let is_few = number < 200;
    assert!(
        seen.runs as u64 >= number / 4 && (is_few || that_meet as u64 >= number / 20),
        "{} runs, {kinds:?}",
        seen.runs
    );
}

#[test]
fn planned_runs_of_the_first_quarter() {
    look_at_quarter(0);
}

#[test]
fn planned_runs_of_the_second_quarter() {
    look_at_quarter(1);
}

#[test]
fn planned_runs_of_the_third_quarter() {
    look_at_quarter(2);
}

#[test]
fn planned_runs_of_the_last_quarter() {
    look_at_quarter(3);
}
