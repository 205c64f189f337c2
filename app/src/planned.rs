//! From a planning problem to a guaranteed plan with its figures, for `tidemill plan` and a controller.
use crate::expectation::{Expectation, FIRST_SEED, expectation};
use crate::failure::{Failure, Kind};
use crate::listener::Listener;
use crate::planning::{Case, failed};
use tidemill_optimizer::assemble::{Assembly, Options, assemble};
use tidemill_optimizer::physical::{physical, worker_names};
use tidemill_optimizer::planner::Planner;
use tidemill_optimizer::solution::{Outcome, Solution};
use tidemill_optimizer::summary::Summary;
use tidemill_optimizer::waits::with_least_waits;
use tidemill_spec::diagnostic::Diagnostics;
use tidemill_spec::plan::Plan;

/// A plan with its figures.
pub struct Planned {
    /// The planner's solution.
    pub solution: Solution,
    /// The plan.
    pub plan: Plan,
    /// Ids of the workers in use, as in the solution.
    pub workers: Vec<String>,
    /// Loads, traffic, latencies.
    pub summary: Summary,
}

impl Planned {
    /// Creates it from a solution.
    ///
    /// # Errors
    /// A solution that is no plan is a defect.
    pub fn new(case: &Case, assembly: &Assembly, solution: &Solution) -> Result<Self, Failure> {
        let bug = |error: String| Failure::new(Kind::Defect, format!("the solution is not a plan: {error}"));
        let plan = physical(&case.inputs(), assembly, solution, case.digests.clone())
            .map_err(|error| bug(error.to_string()))?;
        let summary = Summary::new(&assembly.problem, solution).map_err(|error| bug(error.to_string()))?;
        Ok(Self { solution: solution.clone(), plan, workers: worker_names(assembly, solution), summary })
    }
}

/// A plan with its expected behaviour.
pub struct JudgedPlan {
    /// The plan.
    pub planned: Planned,
    /// Its expected behaviour.
    pub expectation: Expectation,
}

/// Returns the guaranteed plan; if there is none, that of the problem with a checkpoint every tick, which then replaces
/// `assembly`.
///
/// # Errors
/// Errors of the planner.
pub fn planned(
    case: &Case,
    assembly: &mut Assembly,
    planner: &dyn Planner,
    listener: &dyn Listener,
) -> anyhow::Result<Outcome> {
    let outcome = planner.plan(&assembly.problem, &case.limits).map_err(failed)?;
    if outcome.solution.is_some() {
        return Ok(outcome);
    }
    let Some(sooner) = with_most_checkpoints(case, assembly)? else { return Ok(outcome) };
    let asked = std::mem::replace(assembly, sooner).checkpoint_every;
    // A plan of the first problem is one of this: the proof here, or its failure, counts.
    let outcome = planner.plan(&assembly.problem, &case.limits).map_err(failed)?;
    if outcome.solution.is_some() {
        listener.note(&format!(
            "no plan keeps the levels with a checkpoint every {asked} ticks; this one keeps them with a checkpoint every tick"
        ));
    }
    Ok(outcome)
}

/// Returns the problem with a checkpoint every tick, if that leaves paths more of the permitted latency.
fn with_most_checkpoints(case: &Case, assembly: &Assembly) -> Result<Option<Assembly>, Diagnostics> {
    if assembly.problem.limits.latency.is_empty() || assembly.checkpoint_every <= 1 {
        return Ok(None);
    }
    let options = Options { checkpoint_every: Some(1), ..case.options.clone() };
    let sooner = assemble(&case.inputs(), &options)?;
    let seconds = |assembly: &Assembly| assembly.problem.limits.publication_seconds;
    Ok((seconds(&sooner) < seconds(assembly)).then_some(sooner))
}

/// Returns the plan of an outcome, with its expected behaviour.
///
/// # Errors
/// A solution that is no plan is a defect.
pub fn guaranteed(
    case: &Case,
    assembly: &Assembly,
    outcome: &Outcome,
) -> Result<Option<JudgedPlan>, Failure> {
    let Some(solution) = &outcome.solution else { return Ok(None) };
    // A plan file does not have the alternatives for waits; it is judged by those that its workers keep.
    let solution = with_least_waits(&assembly.problem, solution);
    let mut planned = Planned::new(case, assembly, &solution)?;
    let expectation = expectation(case, assembly, &planned.solution, &planned.plan, FIRST_SEED);
    expectation.write_into(&mut planned.plan);
    Ok(Some(JudgedPlan { planned, expectation }))
}
