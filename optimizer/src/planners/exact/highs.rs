//! Solves a program with HiGHS instead of `microlp`, where its library was found. It closes the gap of programs with a
//! weak relaxation, such as those under latency limits, much sooner.
//!
//! One thread and a fixed seed (HiGHS' own default) keep answers reproducible.
use super::program::{Answer, Effort, Point, Program};
use super::reduced::Reduced;
use super::tuning::INTEGER_TOLERANCE;
use microlp::ComparisonOp;
use tidemill_highs::{Column, Highs, Program as Reduction, Settings, Solved, Status};

/// Solves a program without its decided columns and rows (see [`Reduced`]). None: HiGHS refused something or failed
/// numerically.
pub(super) fn solve(program: &Program, effort: &Effort<'_>, highs: Highs) -> Option<Answer> {
    let (columns, rows) = program.parts();
    let Some(reduced) = Reduced::of(columns, rows) else { return Some(Answer::Infeasible) };
    let mut problem = Reduction::default();
    let mut fixed_cost = program.fixed_cost;
    let mut own: Vec<Option<Column>> = Vec::with_capacity(columns.len());
    for (column, given) in columns.iter().zip(&reduced.fixed) {
        own.push(match given {
            Some(value) => {
                fixed_cost += column.cost * value;
                None
            }
            None => {
                let is_integer = column.integer && !effort.relaxed;
                Some(problem.column(column.cost, column.low, column.high, is_integer))
            }
        });
    }
    let values_of = |solved: &[f64]| -> Vec<f64> {
        let value = |(own, given): (&Option<Column>, &Option<f64>)| {
            given.or(own.and_then(|own| solved.get(own).copied())).unwrap_or(0.0)
        };
        own.iter().zip(&reduced.fixed).map(value).collect()
    };
    if problem.columns() == 0 {
        let (cost, values) = (fixed_cost, values_of(&[]));
        return Some(Answer::Found(Point { values, cost, bound: cost, nodes: 0, by_time: false }));
    }
    for row in &reduced.rows {
        let terms = row.terms.iter().filter_map(|(column, value)| Some((own[*column]?, *value)));
        let (low, high) = match row.operator {
            ComparisonOp::Eq => (row.right, row.right),
            ComparisonOp::Le => (f64::NEG_INFINITY, row.right),
            ComparisonOp::Ge => (row.right, f64::INFINITY),
        };
        problem.row(low, high, terms);
    }
    let start = start(effort, &own);
    let settings = Settings {
        relative_gap: if problem.has_integers() { effort.gap } else { 0.0 },
        integer_tolerance: INTEGER_TOLERANCE,
        seconds: effort.seconds,
        nodes: (effort.nodes > 0).then_some(effort.nodes),
        start: start.as_deref(),
    };
    let solved = highs.solve(&problem, &settings).ok()?;
    answer(solved, fixed_cost, problem.has_integers(), values_of)
}

/// The initial whole numbers of the remaining columns; HiGHS completes them by a linear program.
fn start(effort: &Effort<'_>, own: &[Option<Column>]) -> Option<Vec<f64>> {
    let values = effort.start.filter(|_| !effort.relaxed)?;
    let left = own.iter().zip(values).filter(|(own, _)| own.is_some());
    Some(left.map(|(_, value)| *value).collect())
}

fn answer(
    solved: Solved,
    fixed_cost: f64,
    has_integers: bool,
    values_of: impl Fn(&[f64]) -> Vec<f64>,
) -> Option<Answer> {
    let Solved { status, values, objective, bound, nodes } = solved;
    match status {
        Status::Infeasible => return Some(Answer::Infeasible),
        Status::Unknown => return None,
        Status::Optimal | Status::TimeLimit | Status::NodeLimit => {}
    }
    let by_time = status == Status::TimeLimit;
    let cost = objective + fixed_cost;
    let proven = bound.map(|bound| bound + fixed_cost);
    // The point of an interrupted linear program proves nothing.
    let values = values.filter(|_| has_integers || status == Status::Optimal);
    Some(match values {
        Some(values) => {
            let bound = proven.map_or(0.0, |proven| proven.min(cost));
            Answer::Found(Point { values: values_of(&values), cost, bound, nodes, by_time })
        }
        None => Answer::Nothing { bound: proven.filter(|_| has_integers).unwrap_or(0.0), nodes, by_time },
    })
}

#[cfg(test)]
mod tests {
    use super::Highs;
    use crate::generator::{small_problem, small_problem_with_latency};
    use crate::planner::{Planner, SearchLimits, Solver};
    use crate::planners::exact::Exact;
    use crate::planners::exact::model::{Allowed, Model};
    use crate::planners::exact::prepared::{LatencyRule, MemoryRule, Prepared};
    use crate::planners::exact::program::{Answer, Effort};
    use crate::planners::exhaustive::Exhaustive;

    /// The library from `make setup`.
    fn library() -> Highs {
        let fetched = concat!(env!("CARGO_MANIFEST_DIR"), "/../.tidemill/lib/libhighs.so.1.15.1");
        let path = std::env::var("TIDEMILL_HIGHS").unwrap_or_else(|_| fetched.to_owned());
        Highs::open(path.as_ref()).expect("`make setup` fetches HiGHS")
    }

    /// Both solvers find plans of the same cost, and bounds under latency limits that no plan undercuts.
    #[test]
    fn both_solvers_agree() {
        let limits = SearchLimits { solver: Solver::Highs(library()), ..SearchLimits::default() };
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

    /// Solves whole programs with HiGHS, with and without memory: small problems rarely reach it in a search.
    #[test]
    fn programs_cost_the_same_with_both() {
        let mut compared = 0;
        for seed in 1..=60 {
            let problem = small_problem(seed);
            for rule in [MemoryRule::Ignored, MemoryRule::Single] {
                let rules = vec![rule; problem.worker_classes.len()];
                let prepared = Prepared::new(&problem, &rules, LatencyRule::Plan, 1.0).expect("it is sound");
                if !prepared.is_servable() {
                    continue;
                }
                let joint: Vec<usize> = prepared.choices.iter().map(|choices| choices[0].variant).collect();
                let program = Model::new(&prepared, &Allowed::only(&prepared, &joint)).program;
                let effort = Effort {
                    relaxed: false,
                    gap: 0.0,
                    nodes: 10_000,
                    seconds: f64::INFINITY,
                    start: None,
                    highs: None,
                    is_hard: false,
                };
                let other = program.solve(&effort);
                let ours = super::solve(&program, &Effort { highs: Some(library()), ..effort }, library());
                match (ours.expect("no numerical failure"), other) {
                    (Answer::Found(ours), Answer::Found(other)) => {
                        let difference = (ours.cost - other.cost).abs();
                        assert!(difference <= 2e-6 * other.cost.max(1.0), "seed {seed}: {ours:?}, {other:?}");
                        compared += 1;
                    }
                    (Answer::Infeasible, Answer::Infeasible) => {}
                    (ours, other) => panic!("seed {seed}: {ours:?} with HiGHS, {other:?} with microlp"),
                }
            }
        }
        assert!(compared > 40, "{compared} programs compared");
    }
}
