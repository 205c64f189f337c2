//! A solved relaxation that stays in the solver: fixing a column or adding a row takes a few pivots instead of a
//! solution from scratch.
use super::program::{Column, SolverForm, Terms, time_limit};
use microlp::{ComparisonOp, Error, Solution, SolveOptions, SolveOutcome, Variable};

/// The solved relaxation of a program.
#[derive(Debug, Clone)]
pub(super) struct Live {
    solution: Solution,
}

/// Why there is no solution.
#[derive(Debug)]
pub(super) enum NotLive {
    /// The relaxation has no point, so the program has none.
    Infeasible,
    /// Out of time, or the solver failed: nothing is known.
    Unknown,
}

impl Live {
    /// Solves a relaxation within some seconds.
    pub(super) fn new(form: &SolverForm, seconds: f64) -> Result<Self, NotLive> {
        let mut options = SolveOptions::default();
        options.time_limit = time_limit(seconds);
        Self::of(form.problem.solve_with(options))
    }

    fn of(outcome: Result<SolveOutcome, Error>) -> Result<Self, NotLive> {
        match outcome {
            Ok(SolveOutcome::Solution(solution)) => Ok(Self { solution }),
            Err(Error::Infeasible) => Err(NotLive::Infeasible),
            Ok(SolveOutcome::Interrupted(_)) | Err(_) => Err(NotLive::Unknown),
        }
    }

    /// Value of an undecided column.
    pub(super) fn value(&self, form: &SolverForm, column: Column) -> Option<f64> {
        form.variables[column].map(|variable| self.solution.var_value(variable))
    }

    /// Values of all columns.
    pub(super) fn values(&self, form: &SolverForm) -> Vec<f64> {
        form.values(|variable| self.solution.var_value(variable))
    }

    /// Its cost: a lower bound of the program.
    pub(super) fn cost(&self, form: &SolverForm) -> f64 {
        self.solution.objective() + form.fixed_cost
    }

    /// Fixes a column.
    pub(super) fn fixed(self, form: &SolverForm, column: Column, value: f64) -> Result<Self, NotLive> {
        let variable = form.variables[column].ok_or(NotLive::Unknown)?;
        Self::of(self.solution.fix_var(variable, value))
    }

    /// Adds a row `terms >= right`, which must hold in every point of the program.
    pub(super) fn with_row(self, form: &SolverForm, terms: &Terms, right: f64) -> Result<Self, NotLive> {
        let mut right = right;
        let mut left: Vec<(Variable, f64)> = Vec::with_capacity(terms.len());
        for &(column, value) in terms {
            match form.variables[column] {
                Some(variable) => left.push((variable, value)),
                None => right -= value * form.given(column),
            }
        }
        Self::of(self.solution.add_constraint(left.as_slice(), ComparisonOp::Ge, right))
    }
}
