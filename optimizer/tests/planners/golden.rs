//! Golden numbers of the published case: proven optima at 40 records per second and 56 % accuracy.
use tidemill_optimizer::check::{check, check_keys, recomputed_cost};
use tidemill_optimizer::cost::cost;
use tidemill_optimizer::planner::{Planner, SearchLimits};
use tidemill_optimizer::planners::exact::Exact;
use tidemill_optimizer::problem::Problem;
use tidemill_optimizer::solution::{Outcome, Status};
use tidemill_problems::{PublishedSetting, published_vqa_problem};

/// Plans without a wall-clock limit, runs all checks on the plan, and compares its cost to four decimals.
fn plan(problem: &Problem, expected: f64) -> Outcome {
    let limits = SearchLimits { wall_seconds: None, ..SearchLimits::default() };
    let outcome = Exact.plan(problem, &limits).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(outcome.status, Status::Optimal, "{outcome:?}");
    let solution = outcome.solution.as_ref().expect("an optimal outcome has a solution");
    assert_eq!(check(problem, solution), []);
    let total = cost(problem, solution).expect("has a cost").total();
    assert!((total - expected).abs() < 5e-5, "{total} instead of {expected}");
    assert!((recomputed_cost(problem, solution) - total).abs() < 1e-9);
    let keys = check_keys(problem, solution, "question-", 100_000);
    assert!(keys.largest_deviation < 0.01, "{keys:?}");
    let (classes, seconds, nodes) = (solution.classes.len(), outcome.seconds, outcome.nodes);
    println!("{total:.4} $/h, {classes} route classes, {nodes} nodes, {seconds:.4} s");
    assert!(classes <= 30, "{classes} route classes");
    outcome
}

fn medium(rate: f64, accuracy: f64) -> Problem {
    published_vqa_problem(rate, accuracy, PublishedSetting::SharedWithReturnTraffic)
}

#[test]
fn one_operator_per_worker() {
    plan(&published_vqa_problem(40.0, 56.0, PublishedSetting::OneOperatorPerWorker), 7.4850);
}

#[test]
fn shared_workers() {
    plan(&published_vqa_problem(40.0, 56.0, PublishedSetting::Shared), 7.0115);
}

#[test]
fn shared_workers_and_return_traffic() {
    plan(&medium(40.0, 56.0), 5.3296);
}

/// One problem planned twice, and once with its machines in reverse order, gives equal costs.
#[test]
fn plans_are_reproducible() {
    let problem = medium(40.0, 56.0);
    let (first, second) = (plan(&problem, 5.3296), plan(&problem, 5.3296));
    assert_eq!((first.solution, first.nodes), (second.solution, second.nodes));
    let mut reversed = problem;
    reversed.worker_classes.reverse();
    for operator in &mut reversed.operators {
        operator.variants.iter_mut().for_each(|variant| variant.modes.reverse());
    }
    plan(&reversed, 5.3296);
}

#[test]
fn too_much_is_proven_infeasible() {
    for problem in [medium(4000.0, 56.0), medium(40.0, 58.5)] {
        let outcome =
            Exact.plan(&problem, &SearchLimits::default()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!((outcome.status, outcome.bound), (Status::Infeasible, Some(f64::INFINITY)));
    }
}
