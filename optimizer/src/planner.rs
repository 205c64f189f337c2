//! The trait that every planner implements.
use crate::problem::{Problem, ProblemError};
use crate::solution::Outcome;
pub use tidemill_highs::{Highs, HighsError};

/// Searches for a plan.
pub trait Planner {
    /// Name in reports and on the command line.
    fn name(&self) -> &'static str;

    /// Searches for a plan. Equal problems and limits give equal plans, unless the wall-clock limit ends the search.
    ///
    /// An infeasible problem is not an error: see [`crate::solution::Status::Infeasible`].
    ///
    /// # Errors
    /// An invalid problem, or a fault of the planner itself.
    fn plan(&self, problem: &Problem, limits: &SearchLimits) -> Result<Outcome, PlannerError>;
}

/// Refuses a problem whose plans must survive losses, for a planner that does not plan for them.
///
/// # Errors
/// [`PlannerError::Unsupported`], which names the planner that does.
pub(crate) fn without_losses(planner: &str, problem: &Problem) -> Result<(), PlannerError> {
    match problem.limits.survive {
        0 => Ok(()),
        losses => Err(PlannerError::Unsupported {
            planner: planner.to_owned(),
            reason: format!(
                "only the planner `exact` makes plans that survive {}",
                if losses == 1 {
                    "the loss of a worker".to_owned()
                } else {
                    format!("the loss of {losses} workers")
                }
            ),
        }),
    }
}

/// Limits of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchLimits {
    /// Stop at a plan when it is proven that no other is cheaper by more than this share of its cost. Default: 1e-6.
    pub gap: f64,
    /// Nodes of the search tree of one integer program; this limit keeps plans reproducible. Default: 200000.
    pub nodes: u64,
    /// Wall-clock guard in seconds, over the whole search; none: no guard. Default: 60.
    pub wall_seconds: Option<f64>,
    /// Solver for the programs of the exact planner. Default: [`Solver::Microlp`].
    pub solver: Solver,
    /// Whether the exact planner takes a more accurate plan where it finds one at the same cost. Default: true.
    pub more_accurate: bool,
    /// Whether the exact planner, under a latency level, searches for a bound and a plan over every wait. Otherwise it
    /// chooses from few waits; its bound also holds for every wait, but is that without the level. Answers that need
    /// many plans set this to false. Default: true.
    pub every_wait: bool,
    /// Cost in $/h that no plan of the problem undercuts, by an earlier proof: a plan at this cost ends the search.
    /// Default: 0.
    pub floor: f64,
    /// Cost in $/h that a plan must undercut to be of use: a bound at this cost ends the search, whose outcome then may
    /// have no plan, or a dearer one. Default: infinite.
    pub ceiling: f64,
}

impl SearchLimits {
    /// Returns the cost that a further plan must undercut, given that of the cheapest plan so far.
    pub(crate) fn cutoff(&self, least: Option<f64>) -> f64 {
        least.map_or(f64::INFINITY, |least| least * (1.0 - self.gap)).min(self.ceiling)
    }

    /// Returns the limits for a part of a problem: a bound of the part, and the cheapest plan of the others. A part
    /// whose plan costs as much is searched, as it may be more accurate.
    #[must_use]
    pub(crate) fn of_part(&self, bound: f64, least: Option<f64>) -> Self {
        let equal = least.map_or(f64::INFINITY, |least| least + 2.0 * SAME_COST * least.max(1.0));
        Self { floor: self.floor.max(bound), ceiling: self.ceiling.min(equal), ..*self }
    }
}

/// Costs that differ by no more than this share are equal.
pub(crate) const SAME_COST: f64 = 1e-9;

/// Solver of linear and integer programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Solver {
    /// `microlp` alone, in Rust: available in every build.
    #[default]
    Microlp,
    /// Also HiGHS, in C++, where its library was found. It solves programs that `microlp` does not finish in a few
    /// nodes, and proves more where latency is limited or memory binds.
    Highs(Highs),
}

impl Solver {
    /// Returns HiGHS, if it is chosen.
    pub fn highs(self) -> Option<Highs> {
        match self {
            Self::Microlp => None,
            Self::Highs(highs) => Some(highs),
        }
    }
}

impl Default for SearchLimits {
    fn default() -> Self {
        Self {
            gap: 1e-6,
            nodes: 200_000,
            wall_seconds: Some(60.0),
            solver: Solver::default(),
            more_accurate: true,
            every_wait: true,
            floor: 0.0,
            ceiling: f64::INFINITY,
        }
    }
}

/// Why a planner returned no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlannerError {
    /// The problem is invalid.
    #[error("the problem is wrong: {0}")]
    Problem(#[from] ProblemError),
    /// This planner does not support the problem.
    #[error("{planner} does not accept this problem: {reason}")]
    Unsupported {
        /// The planner.
        planner: String,
        /// Why not.
        reason: String,
    },
    /// An error in the planner: a plan that violates limits, or an internal error of a solver.
    #[error("fault in {planner}: {reason}")]
    Fault {
        /// The planner.
        planner: String,
        /// The reason.
        reason: String,
    },
}
