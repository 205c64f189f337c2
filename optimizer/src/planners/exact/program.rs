//! A mixed-integer linear program that can be relaxed, restricted and solved again by `microlp` or HiGHS.
use super::reduced::Reduced;
use super::tuning::NEGLIGIBLE_COEFFICIENT;
use crate::planner::Highs;
use crate::search_time::SearchTime;
use microlp::{
    ComparisonOp, Error, OptimizationDirection, SolutionStatus, SolveOptions, SolveOutcome,
    TerminationReason, Variable,
};
use std::time::Duration;

/// Position of a column.
pub(super) type Column = usize;

/// A sum of columns with coefficients.
pub(super) type Terms = Vec<(Column, f64)>;

/// A column: cost, bounds, whether it is integer.
#[derive(Debug, Clone)]
pub(super) struct ColumnFacts {
    pub(super) cost: f64,
    pub(super) low: f64,
    pub(super) high: f64,
    pub(super) integer: bool,
}

/// A row: a sum of columns compared with a number.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) terms: Terms,
    pub(super) operator: ComparisonOp,
    pub(super) right: f64,
}

/// Minimises a linear cost under linear rows, some columns integer.
#[derive(Debug, Clone, Default)]
pub(super) struct Program {
    columns: Vec<ColumnFacts>,
    rows: Vec<Row>,
    /// Binaries that add up to 1, one set per choice.
    choices: Vec<Vec<Column>>,
    /// Cost that does not depend on the columns.
    pub(super) fixed_cost: f64,
}

/// Limits of a solution.
#[derive(Debug, Clone, Default)]
pub(super) struct Effort<'a> {
    /// Ignore that columns are integer.
    pub(super) relaxed: bool,
    pub(super) gap: f64,
    pub(super) nodes: u64,
    pub(super) seconds: f64,
    /// Values of a feasible point; its integer columns are a hint.
    pub(super) start: Option<&'a [f64]>,
    /// HiGHS, where it was found and solves this kind of program sooner than `microlp`.
    pub(super) highs: Option<Highs>,
    /// Whether HiGHS runs at once instead of after a few nodes of `microlp`.
    pub(super) is_hard: bool,
}

/// The solver's answer.
#[derive(Debug, Clone)]
pub(super) enum Answer {
    /// There is no point.
    Infeasible,
    /// The best point found; `bound` is proven.
    Found(Point),
    /// A limit was reached, or the solver failed: then the bound is 0.
    Nothing { bound: f64, nodes: u64, by_time: bool },
}

/// A point with its bound.
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

    /// Declares that these binaries add up to 1 (the row has to be added too).
    pub(super) fn choice(&mut self, binaries: Vec<Column>) {
        self.choices.push(binaries);
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

    /// Columns and rows.
    pub(super) fn parts(&self) -> (&[ColumnFacts], &[Row]) {
        (&self.columns, &self.rows)
    }

    /// Number of columns.
    pub(super) fn len(&self) -> usize {
        self.columns.len()
    }

    /// Fixes the integer columns to the rounded finite values.
    pub(super) fn with_integers_of(&self, values: &[f64]) -> Self {
        let mut fixed = self.clone();
        for (column, value) in fixed.columns.iter_mut().zip(values) {
            if column.integer && value.is_finite() {
                (column.low, column.high) = (value.round(), value.round());
            }
        }
        fixed
    }

    /// Fixes columns to values within their bounds.
    pub(super) fn with(&self, given: impl IntoIterator<Item = (Column, f64)>) -> Self {
        let mut fixed = self.clone();
        for (column, value) in given {
            (fixed.columns[column].low, fixed.columns[column].high) = (value, value);
        }
        fixed
    }

    /// Makes columns real.
    pub(super) fn with_real(&self, columns: impl IntoIterator<Item = Column>) -> Self {
        let mut relaxed = self.clone();
        for column in columns {
            relaxed.columns[column].integer = false;
        }
        relaxed
    }

    /// Whether a column is integer.
    pub(super) fn is_integer(&self, column: Column) -> bool {
        self.columns[column].integer
    }

    /// Limits columns to at most 0.
    pub(super) fn without(&self, columns: impl IntoIterator<Item = Column>) -> Self {
        let mut fixed = self.clone();
        for column in columns {
            fixed.columns[column].high = 0.0;
        }
        fixed
    }

    /// Requires a cost below this.
    pub(super) fn cheaper_than(&mut self, most: f64) {
        let scale = most.abs().max(1e-9);
        let costs = self.columns.iter().enumerate().filter(|(_, column)| column.cost != 0.0);
        let terms = costs.map(|(column, facts)| (column, facts.cost / scale)).collect();
        self.at_most(terms, (most - self.fixed_cost) / scale);
    }

    /// Narrows the bounds of a column.
    pub(super) fn narrow(&mut self, column: Column, low: f64, high: f64) {
        let facts = &mut self.columns[column];
        (facts.low, facts.high) = (facts.low.max(low), facts.high.min(high));
    }

    /// Requires that the costs of the real columns plus these terms reach `least`. No coefficient exceeds `most`;
    /// negligible ones are dropped and subtracted from the requirement.
    pub(super) fn real_costs_at_least(&mut self, least: f64, most: f64, plus: Terms) {
        let mut weights = vec![0.0; self.columns.len()];
        for (weight, column) in weights.iter_mut().zip(&self.columns).filter(|(_, column)| !column.integer) {
            *weight = column.cost;
        }
        plus.into_iter().for_each(|(column, value)| weights[column] += value);
        let mut right = least - self.fixed_cost;
        if right <= 0.0 {
            return; // it always holds
        }
        let most = most.max(right);
        let scale = right.abs().max(1e-9);
        let mut terms = Terms::new();
        for (column, weight) in weights.into_iter().enumerate().filter(|(_, weight)| *weight != 0.0) {
            if weight.abs() < NEGLIGIBLE_COEFFICIENT * scale {
                right -= weight.max(0.0) * self.columns[column].high;
            } else {
                terms.push((column, weight.min(most) / scale));
            }
        }
        self.at_least(terms, right / scale);
    }

    /// Cost of a point.
    pub(super) fn cost_of(&self, values: &[f64]) -> f64 {
        self.columns.iter().zip(values).map(|(column, value)| column.cost * value).sum::<f64>()
            + self.fixed_cost
    }

    /// Solves the program without decided continuous columns and rows (see [`Reduced`]). Costs are not negative.
    pub(super) fn solve(&self, effort: &Effort<'_>) -> Answer {
        let begun = SearchTime::begin();
        let answer = match effort.highs {
            Some(highs) => super::highs::solve(self, effort, highs),
            None => self.solve_by_microlp(effort, false),
        };
        // With numbers of very different size a solver sometimes ends with an internal error, but rarely again with the
        // rows in another order. "Infeasible" from the second attempt would be no proof.
        let again = || {
            let seconds = effort.seconds - begun.seconds();
            let effort = Effort { start: None, seconds, ..effort.clone() };
            if seconds > 0.0 { self.solve_by_microlp(&effort, true) } else { None }
        };
        let is_certain = |answer: &Answer| !matches!(answer, Answer::Infeasible);
        let nothing = Answer::Nothing { bound: 0.0, nodes: 0, by_time: false };
        answer.or_else(|| again().filter(is_certain)).unwrap_or(nothing)
    }

    /// Returns none if the solver failed.
    fn solve_by_microlp(&self, effort: &Effort<'_>, is_backwards: bool) -> Option<Answer> {
        let Some(form) = SolverForm::in_order(self, effort.relaxed, is_backwards) else {
            return Some(Answer::Infeasible);
        };
        if form.is_decided() {
            let (values, cost) = (form.values(|_| 0.0), form.fixed_cost);
            return Some(Answer::Found(Point { values, cost, bound: cost, nodes: 0, by_time: false }));
        }
        let mut options = SolveOptions::default();
        options.mip_gap = effort.gap;
        options.int_tol = 1e-8; // shares of variants that are not chosen stay below what a worker's cap notices
        options.node_limit = (effort.nodes > 0).then_some(effort.nodes);
        options.time_limit = time_limit(effort.seconds);
        options.warm_start = effort.start.filter(|_| !effort.relaxed).map(|values| {
            let integers = (0..values.len()).filter(|&column| self.columns[column].integer);
            integers.filter_map(|c| Some((form.variables[c]?, values[c].round()))).collect()
        });
        Some(match form.problem.solve_with(options) {
            Ok(SolveOutcome::Solution(solution)) => {
                let values = form.values(|variable| solution.var_value(variable));
                let stats = solution.stats();
                let objective = solution.objective();
                let bound = match solution.status() {
                    SolutionStatus::Optimal => objective,
                    SolutionStatus::Feasible => stats.best_bound.unwrap_or(-form.fixed_cost).min(objective),
                };
                Answer::Found(Point {
                    values,
                    cost: objective + form.fixed_cost,
                    bound: bound + form.fixed_cost,
                    nodes: stats.nodes_solved,
                    by_time: solution.termination_reason() == TerminationReason::TimeLimit,
                })
            }
            Ok(SolveOutcome::Interrupted(interrupted)) => {
                let stats = interrupted.stats();
                Answer::Nothing {
                    bound: stats.best_bound.map_or(0.0, |bound| bound + form.fixed_cost),
                    nodes: stats.nodes_solved,
                    by_time: interrupted.termination_reason() == TerminationReason::TimeLimit,
                }
            }
            Err(Error::Infeasible) => Answer::Infeasible,
            Err(_) => return None,
        })
    }
}

/// A time limit for the solver; none where the seconds are infinite.
pub(super) fn time_limit(seconds: f64) -> Option<Duration> {
    seconds.is_finite().then(|| Duration::from_secs_f64(seconds.max(1e-3)))
}

/// A program in the solver's form.
#[derive(Debug)]
pub(super) struct SolverForm {
    pub(super) problem: microlp::Problem,
    /// Per column; none where it is decided.
    pub(super) variables: Vec<Option<Variable>>,
    given: Vec<Option<f64>>,
    /// Cost of the decided columns and of the program itself.
    pub(super) fixed_cost: f64,
}

impl SolverForm {
    /// Returns none where the program is seen to be infeasible.
    pub(super) fn of(program: &Program, relaxed: bool) -> Option<Self> {
        Self::in_order(program, relaxed, false)
    }

    /// Converts with the rows in their order or reversed.
    pub(super) fn in_order(program: &Program, relaxed: bool, is_backwards: bool) -> Option<Self> {
        let mut reduced = Reduced::of(&program.columns, &program.rows)?;
        if is_backwards {
            reduced.rows.reverse();
        }
        let mut problem = microlp::Problem::new(OptimizationDirection::Minimize);
        let mut fixed_cost = program.fixed_cost;
        let mut variables: Vec<Option<Variable>> = Vec::with_capacity(program.columns.len());
        let shifts = if relaxed { Vec::new() } else { shifts(program, &reduced) };
        for (index, (column, given)) in program.columns.iter().zip(&reduced.fixed).enumerate() {
            let shift = shifts.get(index).copied().unwrap_or(0.0);
            variables.push(match given {
                Some(value) => {
                    fixed_cost += column.cost * value;
                    None
                }
                None if column.integer && !relaxed => Some(
                    problem.add_integer_var(column.cost + shift, (column.low as i32, column.high as i32)),
                ),
                None => Some(problem.add_var(column.cost, (column.low, column.high))),
            });
        }
        for row in &reduced.rows {
            let terms = row.terms.iter();
            let terms: Vec<_> = terms.filter_map(|(c, value)| Some((variables[*c]?, *value))).collect();
            problem.add_constraint(&terms, row.operator, row.right);
        }
        Some(Self { problem, variables, given: reduced.fixed, fixed_cost })
    }

    /// The value of a decided column.
    pub(super) fn given(&self, column: Column) -> f64 {
        self.given[column].unwrap_or(0.0)
    }

    /// Whether every column is decided.
    pub(super) fn is_decided(&self) -> bool {
        self.variables.iter().all(Option::is_none)
    }

    /// Values of all columns, from the solver's values.
    pub(super) fn values(&self, of: impl Fn(Variable) -> f64) -> Vec<f64> {
        let columns = self.variables.iter().zip(&self.given);
        columns.map(|(variable, given)| given.or(variable.map(&of)).unwrap_or(0.0)).collect()
    }
}

/// Shifts of the costs of binaries, so that the solver branches on them before numbers of workers. Its first estimate
/// of a branch is the cost of the column, and binaries have none, although whole numbers of workers cost next to
/// nothing while variants may be mixed. All binaries of a choice get the same shift, and all choices together 0, so the
/// cost of a point does not change.
fn shifts(program: &Program, reduced: &Reduced) -> Vec<f64> {
    let counts = program.columns.iter().filter(|column| column.integer);
    let size = 2.0 * counts.map(|column| column.cost).fold(0.0, f64::max);
    let is_open = |choice: &&Vec<Column>| choice.iter().filter(|&&c| reduced.fixed[c].is_none()).count() > 1;
    let is_untouched =
        |choice: &&Vec<Column>| choice.iter().all(|&c| reduced.fixed[c].is_none_or(|v| v == 0.0));
    let open: Vec<&Vec<Column>> = program.choices.iter().filter(is_open).filter(is_untouched).collect();
    let mut shifts = vec![0.0; program.columns.len()];
    if open.len() < 2 {
        return shifts;
    }
    for (index, choice) in open.iter().enumerate() {
        let is_odd = open.len() % 2 == 1;
        let of_choice = match index {
            0 => size,
            1 | 2 if is_odd => -0.5 * size,
            _ if (index % 2 == 0) != is_odd => size,
            _ => -size,
        };
        for &column in *choice {
            shifts[column] = of_choice;
        }
    }
    shifts
}
