//! Cost against accuracy: the plans that nothing beats in both.
use super::scale::with_accuracy;
use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::solution::Solution;

/// Plans that are looked for at most.
const MOST: usize = 200;
/// The next plan is more accurate than the last by more than this, in percentage points.
const STEP: f64 = 1e-6;

/// A plan that is both the cheapest of its accuracy and the most accurate of its cost, as far as the planner proves it.
#[derive(Debug, Clone, PartialEq)]
pub struct FrontPoint {
    /// Accuracy in percent.
    pub accuracy: f64,
    /// Cost in $/h.
    pub cost: f64,
    /// The plan.
    pub solution: Solution,
}

/// The front, the cheapest first: plans again and again, each time with a higher least accuracy (the epsilon-constraint
/// method, Haimes, Lasdon and Wismer 1971).
///
/// # Errors
/// Those of the planner.
pub fn accuracy_front(
    problem: &Problem,
    planner: &dyn Planner,
    limits: &SearchLimits,
) -> Result<Vec<FrontPoint>, PlannerError> {
    let mut points: Vec<FrontPoint> = Vec::new();
    let mut least = 0.0;
    while points.len() < MOST {
        let outcome = planner.plan(&with_accuracy(problem, Some(least)), limits)?;
        let (Some(solution), Some(cost)) = (outcome.solution, outcome.cost) else { break };
        let Some(accuracy) = problem.accuracy_of(&solution.variants) else { break };
        // One that is more accurate and costs no more makes the last one pointless.
        while points.last().is_some_and(|last| last.cost >= cost * (1.0 - 1e-9)) {
            points.pop();
        }
        points.push(FrontPoint { accuracy, cost, solution });
        least = accuracy + STEP;
    }
    Ok(points)
}
