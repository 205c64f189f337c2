//! The trait that every planner implements.
use crate::problem::{Problem, ProblemError};
use crate::solution::Outcome;
pub use tidemill_highs::{Highs, HighsError};

/// Searches a plan.
pub trait Planner {
    /// Name for reports and for the command line.
    fn name(&self) -> &'static str;

    /// Searches a plan. The same problem and limits give the same plan, unless the wall-clock limit ends the search.
    ///
    /// That there is no plan is not an error: see [`crate::solution::Status::Infeasible`].
    ///
    /// # Errors
    /// What is wrong with the problem, or a fault of the planner itself.
    fn plan(&self, problem: &Problem, limits: &SearchLimits) -> Result<Outcome, PlannerError>;
}

/// How far to search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SearchLimits {
    /// Stop at a plan of which it is proven that no other is cheaper by more than this part of its cost. Default: 1e-6.
    pub gap: f64,
    /// Nodes of the search tree of one integer program; what makes plans reproducible. Default: 200000.
    pub nodes: u64,
    /// Wall-clock guard in seconds, over the whole search; none: no guard. Default: 60.
    pub wall_seconds: Option<f64>,
    /// What solves the programs of the exact planner. Default: [`Solver::Microlp`].
    pub solver: Solver,
    /// Whether the exact planner takes a more accurate plan where it finds one that costs the same. Default:
    /// true.
    pub more_accurate: bool,
    /// Whether the exact planner looks, under a latency level, for a bound and a plan over every wait. Without, it chooses from few
    /// waits, and its bound, which holds for every wait, too, is that without the level. Answers that take many plans go
    /// without. Default: true.
    pub every_wait: bool,
}

/// What solves linear and integer programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Solver {
    /// `microlp` alone, in Rust: in every build.
    #[default]
    Microlp,
    /// HiGHS, in C++, too: where its library was found. It is asked for what `microlp` does not settle in a few nodes, and
    /// proves more where latency is limited or memory binds.
    Highs(Highs),
}

impl Solver {
    /// HiGHS, if it is chosen.
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
        }
    }
}

/// Why a planner gave no answer.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum PlannerError {
    /// The problem is wrong.
    #[error("the problem is wrong: {0}")]
    Problem(#[from] ProblemError),
    /// The problem is outside of what this planner takes.
    #[error("{planner} does not take this problem: {reason}")]
    Unsupported {
        /// The planner.
        planner: String,
        /// Why not.
        reason: String,
    },
    /// The planner made a fault: a plan that does not keep the limits, a solver's internal error.
    #[error("fault in {planner}: {reason}")]
    Fault {
        /// The planner.
        planner: String,
        /// What happened.
        reason: String,
    },
}
