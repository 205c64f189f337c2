//! Solves a program with HiGHS instead of `microlp` (cargo feature `highs`): larger to build, and much quicker at closing
//! the gap of programs whose relaxation is weak, as those under latency limits are.
//!
//! One thread and a fixed seed (HiGHS' own default), so that the same program gives the same answer.
use super::program::{Answer, Effort, Point, Program};
use super::reduced::Reduced;
use highs::{Col, HighsModelStatus, HighsSolutionStatus, RowProblem, Sense};
use microlp::ComparisonOp;

/// By how much an integer may miss a whole number: shares of variants that are not chosen stay below what a worker's cap
/// notices.
const INTEGER_TOLERANCE: f64 = 1e-8;

/// Solves a program; columns and rows that are decided already are left out (see [`Reduced`]).
pub(super) fn solve(program: &Program, effort: &Effort<'_>) -> Option<Answer> {
    let (columns, rows) = program.parts();
    let Some(reduced) = Reduced::of(columns, rows) else { return Some(Answer::Infeasible) };
    let mut problem = RowProblem::default();
    let mut fixed_cost = program.fixed_cost;
    let mut has_integers = false;
    let mut own: Vec<Option<Col>> = Vec::with_capacity(columns.len());
    for (column, given) in columns.iter().zip(&reduced.fixed) {
        own.push(match given {
            Some(value) => {
                fixed_cost += column.cost * value;
                None
            }
            None => {
                let is_integer = column.integer && !effort.relaxed;
                has_integers |= is_integer;
                let bounds = column.low..=column.high;
                Some(problem.add_column_with_integrality(column.cost, bounds, is_integer))
            }
        });
    }
    let values_of = |solved: &[f64]| -> Vec<f64> {
        let value = |(own, given): (&Option<Col>, &Option<f64>)| {
            given.or(own.and_then(|own| solved.get(own.index()).copied())).unwrap_or(0.0)
        };
        own.iter().zip(&reduced.fixed).map(value).collect()
    };
    if own.iter().all(Option::is_none) {
        let values = values_of(&[]);
        return Some(Answer::Found(Point {
            values,
            cost: fixed_cost,
            bound: fixed_cost,
            nodes: 0,
            by_time: false,
        }));
    }
    for row in &reduced.rows {
        let terms: Vec<(Col, f64)> =
            row.terms.iter().filter_map(|(column, value)| Some((own[*column]?, *value))).collect();
        match row.operator {
            ComparisonOp::Eq => problem.add_row(row.right..=row.right, terms),
            ComparisonOp::Le => problem.add_row(..=row.right, terms),
            ComparisonOp::Ge => problem.add_row(row.right.., terms),
        }
    }
    run(problem, effort, start(effort, &own), has_integers)?.answer(fixed_cost, has_integers, values_of)
}

/// The whole numbers to begin with, of the columns that are left; HiGHS completes them by a linear program.
fn start(effort: &Effort<'_>, own: &[Option<Col>]) -> Option<Vec<f64>> {
    let values = effort.start.filter(|_| !effort.relaxed)?;
    let left = own.iter().zip(values).filter(|(own, _)| own.is_some());
    Some(left.map(|(_, value)| *value).collect())
}

/// What HiGHS left behind.
struct Solved {
    model: highs::SolvedModel,
}

/// None where HiGHS refuses something.
fn run(
    problem: RowProblem,
    effort: &Effort<'_>,
    start: Option<Vec<f64>>,
    has_integers: bool,
) -> Option<Solved> {
    let mut model = problem.try_optimise(Sense::Minimise).ok()?;
    model.make_quiet();
    let mut numbers = vec![("mip_abs_gap", 0.0), ("mip_feasibility_tolerance", INTEGER_TOLERANCE)];
    if has_integers {
        numbers.push(("mip_rel_gap", effort.gap));
    }
    if effort.seconds.is_finite() {
        numbers.push(("time_limit", effort.seconds.max(1e-3)));
    }
    for (name, value) in numbers {
        model.try_set_option(name, value).ok()?;
    }
    model.try_set_option("threads", 1).ok()?;
    if let Some(nodes) = i32::try_from(effort.nodes).ok().filter(|nodes| *nodes > 0) {
        model.try_set_option("mip_max_nodes", nodes).ok()?;
    }
    if let Some(values) = start {
        // A point that does not fit is refused; it was a hint only.
        let _ = model.try_set_solution(Some(&values), None, None, None);
    }
    let model = model.try_solve().ok()?;
    Some(Solved { model })
}

impl Solved {
    fn answer(
        self,
        fixed_cost: f64,
        has_integers: bool,
        values: impl Fn(&[f64]) -> Vec<f64>,
    ) -> Option<Answer> {
        let status = self.model.status();
        let nodes = self.model.int_info_value(c"mip_node_count").unwrap_or(0);
        let nodes = if has_integers { u64::try_from(nodes).unwrap_or(0) } else { 0 };
        let by_time = status == HighsModelStatus::ReachedTimeLimit;
        let proven = self.model.double_info_value(c"mip_dual_bound").ok().filter(|bound| bound.is_finite());
        match status {
            HighsModelStatus::Infeasible => return Some(Answer::Infeasible),
            HighsModelStatus::Optimal
            | HighsModelStatus::ReachedTimeLimit
            | HighsModelStatus::ReachedSolutionLimit
            | HighsModelStatus::ReachedIterationLimit => {}
            _ => return None,
        }
        let cost = self.model.objective_value() + fixed_cost;
        let is_optimal = status == HighsModelStatus::Optimal;
        let bound = match proven {
            _ if is_optimal && !has_integers => cost,
            Some(proven) if has_integers => (proven + fixed_cost).min(cost),
            _ => 0.0,
        };
        let is_point = self.model.primal_solution_status() == HighsSolutionStatus::Feasible;
        if !is_point || (!is_optimal && !has_integers) {
            let bound = if has_integers { proven.map_or(0.0, |proven| proven + fixed_cost) } else { 0.0 };
            return Some(Answer::Nothing { bound, nodes, by_time });
        }
        let values = values(self.model.get_solution().columns());
        Some(Answer::Found(Point { values, cost, bound, nodes, by_time }))
    }
}

#[cfg(test)]
mod tests {
    use crate::generator::{small_problem, small_problem_with_latency};
    use crate::planner::{Planner, SearchLimits, Solver};
    use crate::planners::exact::Exact;
    use crate::planners::exhaustive::Exhaustive;

    /// Both solvers find plans of the same cost, and bounds under latency limits that no plan undercuts.
    #[test]
    fn both_solvers_agree() {
        let limits = SearchLimits { solver: Solver::Highs, ..SearchLimits::default() };
        let (mut planned, mut limited) = (0, 0);
        for seed in 1..=60 {
            let problem = small_problem(seed);
            let ours = Exact.plan(&problem, &limits).expect("it takes the problem");
            let other = Exact.plan(&problem, &SearchLimits::default()).expect("it takes the problem");
            assert_eq!(ours.status, other.status, "seed {seed}");
            if let (Some(ours), Some(other)) = (ours.cost, other.cost) {
                assert!((ours - other).abs() <= 2e-6 * other.max(1.0), "seed {seed}: {ours} and {other}");
                planned += 1;
            }
            let problem = small_problem_with_latency(seed);
            let ours = Exact.plan(&problem, &limits).expect("it takes the problem");
            let all = Exhaustive.plan(&problem, &SearchLimits::default()).expect("it takes the problem");
            if let (Some(bound), Some(least)) = (ours.bound, all.cost) {
                assert!(bound <= least + 1e-6 * least.max(1.0), "seed {seed}: {bound} above {least}");
                assert!(ours.cost.is_some(), "seed {seed} has a plan");
                limited += 1;
            }
        }
        assert!(planned > 20 && limited > 10, "{planned} planned, {limited} under latency limits");
    }
}
