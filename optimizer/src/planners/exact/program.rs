//! A mixed-integer linear program, kept so that it can be relaxed, restricted and solved again by `microlp`.
use microlp::{
    ComparisonOp, Error, OptimizationDirection, SolutionStatus, SolveOptions, SolveOutcome, TerminationReason,
};
use std::time::Duration;

/// Position of a column.
pub(super) type Column = usize;

/// A sum of columns with coefficients.
pub(super) type Terms = Vec<(Column, f64)>;

#[derive(Debug, Clone)]
struct ColumnFacts {
    cost: f64,
    low: f64,
    high: f64,
    integer: bool,
}

#[derive(Debug, Clone)]
struct Row {
    terms: Terms,
    operator: ComparisonOp,
    right: f64,
}

/// Minimise a linear cost under linear rows, some columns integer.
#[derive(Debug, Clone, Default)]
pub(super) struct Program {
    columns: Vec<ColumnFacts>,
    rows: Vec<Row>,
    /// Cost that does not depend on the columns.
    pub(super) fixed_cost: f64,
}

/// How far to solve.
#[derive(Debug, Clone, Default)]
pub(super) struct Effort<'a> {
    /// Ignore that columns are integer.
    pub(super) relaxed: bool,
    pub(super) gap: f64,
    pub(super) nodes: u64,
    pub(super) seconds: f64,
    /// Values of a point that is known to be feasible; its integer columns are a hint.
    pub(super) start: Option<&'a [f64]>,
}

/// What the solver said.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    /// There is no point.
    Infeasible,
    /// The best point found; `bound` is proven.
    Found(Point),
    /// A limit came first.
    Nothing { bound: f64, nodes: u64, by_time: bool },
    /// A fault of the solver.
    Fault(String),
}

/// A point with what is known of it.
#[derive(Debug, Clone)]
pub(super) struct Point {
    pub(super) values: Vec<f64>,
    pub(super) cost: f64,
    pub(super) bound: f64,
    pub(super) nodes: u64,
    pub(super) by_time: bool,
}

impl Program {
    pub(super) fn real(&mut self, cost: f64, low: f64, high: f64) -> Column {
        self.columns.push(ColumnFacts { cost, low, high, integer: false });
        self.columns.len() - 1
    }

    pub(super) fn integer(&mut self, cost: f64, low: u32, high: u32) -> Column {
        self.columns.push(ColumnFacts { cost, low: f64::from(low), high: f64::from(high), integer: true });
        self.columns.len() - 1
    }

    pub(super) fn equal(&mut self, terms: Terms, right: f64) {
        self.row(terms, ComparisonOp::Eq, right);
    }

    pub(super) fn at_most(&mut self, terms: Terms, right: f64) {
        self.row(terms, ComparisonOp::Le, right);
    }

    pub(super) fn at_least(&mut self, terms: Terms, right: f64) {
        self.row(terms, ComparisonOp::Ge, right);
    }

    fn row(&mut self, mut terms: Terms, operator: ComparisonOp, right: f64) {
        terms.retain(|(_, coefficient)| *coefficient != 0.0);
        terms.sort_by_key(|(column, _)| *column);
        terms.dedup_by(|later, earlier| {
            let same = later.0 == earlier.0;
            if same {
                earlier.1 += later.1;
            }
            same
        });
        self.rows.push(Row { terms, operator, right });
    }

    /// Number of columns.
    pub(super) fn len(&self) -> usize {
        self.columns.len()
    }

    /// The same program with its integer columns, as far as there are finite values, fixed to these, rounded.
    pub(super) fn with_integers_of(&self, values: &[f64]) -> Self {
        let mut fixed = self.clone();
        for (column, value) in fixed.columns.iter_mut().zip(values) {
            if column.integer && value.is_finite() {
                (column.low, column.high) = (value.round(), value.round());
            }
        }
        fixed
    }

    /// The same program with those columns at most 0.
    pub(super) fn without(&self, columns: impl IntoIterator<Item = Column>) -> Self {
        let mut fixed = self.clone();
        for column in columns {
            fixed.columns[column].high = 0.0;
        }
        fixed
    }

    /// Cost of a point.
    pub(super) fn cost_of(&self, values: &[f64]) -> f64 {
        self.columns.iter().zip(values).map(|(column, value)| column.cost * value).sum::<f64>()
            + self.fixed_cost
    }

    pub(super) fn solve(&self, effort: &Effort<'_>) -> Answer {
        // A row without columns either always holds or never does.
        for row in self.rows.iter().filter(|row| row.terms.is_empty()) {
            let holds = match row.operator {
                ComparisonOp::Eq => row.right.abs() <= 1e-9,
                ComparisonOp::Le => row.right >= -1e-9,
                ComparisonOp::Ge => row.right <= 1e-9,
            };
            if !holds {
                return Answer::Infeasible;
            }
        }
        if self.columns.is_empty() {
            let (cost, bound) = (self.fixed_cost, self.fixed_cost);
            return Answer::Found(Point { values: Vec::new(), cost, bound, nodes: 0, by_time: false });
        }
        let mut problem = microlp::Problem::new(OptimizationDirection::Minimize);
        let mut variables = Vec::with_capacity(self.columns.len());
        for column in &self.columns {
            variables.push(if column.integer && !effort.relaxed {
                problem.add_integer_var(column.cost, (column.low as i32, column.high as i32))
            } else {
                problem.add_var(column.cost, (column.low, column.high))
            });
        }
        for row in self.rows.iter().filter(|row| !row.terms.is_empty()) {
            let terms: Vec<_> =
                row.terms.iter().map(|(column, value)| (variables[*column], *value)).collect();
            problem.add_constraint(&terms, row.operator, row.right);
        }
        let mut options = SolveOptions::default();
        options.mip_gap = effort.gap;
        options.int_tol = 1e-8; // shares of variants that are not chosen stay below what a worker's cap notices
        options.node_limit = (effort.nodes > 0).then_some(effort.nodes);
        options.time_limit =
            effort.seconds.is_finite().then(|| Duration::from_secs_f64(effort.seconds.max(1e-3)));
        options.warm_start = effort.start.filter(|_| !effort.relaxed).map(|values| {
            let integers = (0..values.len()).filter(|&column| self.columns[column].integer);
            integers.map(|column| (variables[column], values[column].round())).collect()
        });
        match problem.solve_with(options) {
            Ok(SolveOutcome::Solution(solution)) => {
                let values: Vec<f64> =
                    variables.iter().map(|&variable| solution.var_value(variable)).collect();
                let stats = solution.stats();
                let objective = solution.objective();
                let bound = match solution.status() {
                    SolutionStatus::Optimal => objective,
                    SolutionStatus::Feasible => stats.best_bound.unwrap_or(0.0).min(objective),
                };
                Answer::Found(Point {
                    values,
                    cost: objective + self.fixed_cost,
                    bound: bound + self.fixed_cost,
                    nodes: stats.nodes_solved,
                    by_time: solution.termination_reason() == TerminationReason::TimeLimit,
                })
            }
            Ok(SolveOutcome::Interrupted(interrupted)) => {
                let stats = interrupted.stats();
                Answer::Nothing {
                    bound: stats.best_bound.unwrap_or(0.0) + self.fixed_cost,
                    nodes: stats.nodes_solved,
                    by_time: interrupted.termination_reason() == TerminationReason::TimeLimit,
                }
            }
            Err(Error::Infeasible) => Answer::Infeasible,
            Err(error) => Answer::Fault(error.to_string()),
        }
    }
}
