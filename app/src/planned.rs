//! From a planning problem to the plan that is guaranteed, with all that is said of it: what `tidemill plan` and a controller
//! ask for.
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

/// A plan with all that is said of it.
pub struct Planned {
    /// What the planner found.
    pub solution: Solution,
    /// The plan.
    pub plan: Plan,
    /// Ids of the workers in use, as in the solution.
    pub workers: Vec<String>,
    /// Loads, traffic, latencies.
    pub summary: Summary,
}

impl Planned {
    /// Of a solution.
    ///
    /// # Errors
    /// A solution that is no plan is a defect.
    pub fn new(case: &Case, assembly: &Assembly, solution: &Solution) -> Result<Self, Failure> {
        let bug = |error: String| Failure::new(Kind::Defect, format!("the solution is no plan: {error}"));
        let plan = physical(&case.inputs(), assembly, solution, case.digests.clone())
            .map_err(|error| bug(error.to_string()))?;
        let summary = Summary::new(&assembly.problem, solution).map_err(|error| bug(error.to_string()))?;
        Ok(Self { solution: solution.clone(), plan, workers: worker_names(assembly, solution), summary })
    }
}

/// A plan with what is expected of it.
pub struct Found {
    /// The plan.
    pub planned: Planned,
    /// What it would do.
    pub expectation: Expectation,
}

/// The plan that is guaranteed; where there is none, that of the problem with a checkpoint every tick, which then takes the
/// place of `assembly`.
///
/// # Errors
/// Those of the planner.
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
    // A plan of the first problem is one of this: what is proven here, or not, is what counts.
    let outcome = planner.plan(&assembly.problem, &case.limits).map_err(failed)?;
    if outcome.solution.is_some() {
        listener.note(&format!(
            "no plan keeps the levels with a checkpoint every {asked} ticks; with one every tick this does"
        ));
    }
    Ok(outcome)
}

/// The problem with a checkpoint every tick, where that leaves paths more of the latency that is allowed.
fn with_most_checkpoints(case: &Case, assembly: &Assembly) -> Result<Option<Assembly>, Diagnostics> {
    if assembly.problem.limits.latency.is_empty() || assembly.checkpoint_every <= 1 {
        return Ok(None);
    }
    let options = Options { checkpoint_every: Some(1), ..case.options.clone() };
    let sooner = assemble(&case.inputs(), &options)?;
    let seconds = |assembly: &Assembly| assembly.problem.limits.publication_seconds;
    Ok((seconds(&sooner) < seconds(assembly)).then_some(sooner))
}

/// The plan of an outcome, with what is expected of it.
///
/// # Errors
/// A solution that is no plan is a defect.
pub fn guaranteed(case: &Case, assembly: &Assembly, outcome: &Outcome) -> Result<Option<Found>, Failure> {
    let Some(solution) = &outcome.solution else { return Ok(None) };
    // A plan file does not say which waits were chosen from; what its workers keep, it can be held to.
    let solution = with_least_waits(&assembly.problem, solution);
    let mut planned = Planned::new(case, assembly, &solution)?;
    let expectation = expectation(case, assembly, &planned.solution, &planned.plan, FIRST_SEED);
    expectation.write_into(&mut planned.plan);
    Ok(Some(Found { planned, expectation }))
}
