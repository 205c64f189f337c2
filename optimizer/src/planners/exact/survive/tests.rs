#![expect(
    clippy::needless_range_loop,
    clippy::type_complexity,
    reason = "numbers of workers and classes, as in the problem"
)]
use super::capacity;
use crate::check::{Violation, check};
use crate::cost::cost;
use crate::generator::{small_problem, small_problem_with_latency};
use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::planners::exact::Exact;
use crate::planners::{beam::Beam, cloud_only::CloudOnly, exhaustive::Exhaustive};
use crate::problem::{Problem, Producer, STANDBY_SHARE};
use crate::solution::{Outcome, Status};
use microlp::{ComparisonOp, OptimizationDirection, SolveOptions, SolveOutcome};

/// A small problem whose operators all survive losses.
fn surviving(mut problem: Problem, losses: u32) -> Problem {
    problem.limits.survive = losses;
    for operator in &mut problem.operators {
        operator.survive = if super::restarts(operator) { 0 } else { losses };
    }
    problem
}

fn planned(problem: &Problem) -> Outcome {
    Exact
        .plan(problem, &SearchLimits { wall_seconds: None, ..SearchLimits::default() })
        .expect("it takes the problem")
}

/// The least cost of any plan, by trying every set of single workers with every joint variant. Routes name single workers, so nothing
/// is shared with the planner but the cost of routes.
fn by_trying_all(problem: &Problem) -> Option<f64> {
    let workers: Vec<usize> = problem
        .worker_classes
        .iter()
        .enumerate()
        .flat_map(|(class, facts)| std::iter::repeat_n(class, facts.count as usize))
        .collect();
    let mut least: Option<f64> = None;
    let mut joints: Vec<Vec<usize>> = vec![Vec::new()];
    for operator in &problem.operators {
        let longer = joints.iter().flat_map(|joint| {
            (0..operator.variants.len()).map(move |variant| [joint.as_slice(), &[variant]].concat())
        });
        joints = longer.collect();
    }
    joints.retain(|joint| problem.accepts(joint));
    for joint in &joints {
        for number in 1usize..1 << workers.len() {
            let used: Vec<usize> = (0..workers.len())
                .filter(|worker| number >> worker & 1 == 1)
                .map(|worker| workers[worker])
                .collect();
            let price: f64 = used.iter().map(|class| problem.worker_classes[*class].price).sum();
            if least.is_some_and(|least| least <= price) {
                continue;
            }
            if let Some(traffic) = least_traffic(problem, joint, &used) {
                least = Some(least.map_or(price + traffic, |least| least.min(price + traffic)));
            }
        }
    }
    least
}

/// The least cost of traffic with these workers, all of them in use; none: they do not survive every loss.
fn least_traffic(problem: &Problem, joint: &[usize], used: &[usize]) -> Option<f64> {
    let mut program = microlp::Problem::new(OptimizationDirection::Minimize);
    let origins = problem.origins();
    let losses = problem.limits.survive as usize;
    let lost_sets = (0usize..1 << used.len()).filter(|set| set.count_ones() as usize <= losses);
    // By operator, worker and mode: its share before any loss.
    let mut before: Vec<Vec<Vec<(usize, usize, microlp::Variable)>>> = Vec::new();
    for lost in lost_sets {
        let places: Vec<Vec<(usize, usize)>> = (0..joint.len())
            .map(|operator| {
                let modes = |worker: usize| {
                    problem.operators[operator].variants[joint[operator]].modes[used[worker]].len()
                };
                let left = (0..used.len()).filter(|worker| lost >> worker & 1 == 0);
                left.flat_map(|worker| (0..modes(worker)).map(move |mode| (worker, mode))).collect()
            })
            .collect();
        let mut routes: Vec<(Vec<usize>, Vec<(usize, usize)>)> = vec![(Vec::new(), Vec::new())];
        for origin in &origins {
            let longer = routes.iter().flat_map(|(of, rest)| {
                (0..origin.locations.len()).map(move |at| ([of.as_slice(), &[at]].concat(), rest.clone()))
            });
            routes = longer.collect();
        }
        for of in &places {
            let longer = routes.iter().flat_map(|(origin, route)| {
                of.iter().map(move |place| (origin.clone(), [route.as_slice(), &[*place]].concat()))
            });
            routes = longer.collect();
        }
        let location = |place: (usize, usize)| problem.worker_classes[used[place.0]].location;
        let mut columns = Vec::new();
        let mut carried: Vec<((usize, usize), microlp::Variable, f64)> = Vec::new();
        for (origin, route) in &routes {
            let mut price = 0.0;
            let mut ways = Vec::new();
            let mut is_linked = true;
            for (index, edge) in problem.edges.iter().enumerate() {
                let from = match edge.from {
                    Producer::Source(source) => {
                        let of = origins
                            .iter()
                            .position(|of| of.sources.contains(&source))
                            .expect("has an origin");
                        origins[of].locations[origin[of]].0
                    }
                    Producer::Operator(producer) => location(route[producer]),
                };
                let to = location(route[edge.to]);
                match problem.route(from, to) {
                    None => is_linked = false,
                    Some(way) => {
                        let bytes = problem.edge_bytes_per_second(index, joint);
                        price += way.price * bytes * 3600.0;
                        ways.push(((from, to), bytes));
                    }
                }
            }
            if is_linked {
                let column = program.add_var(if lost == 0 { price } else { 0.0 }, (0.0, 1.0));
                carried.extend(ways.into_iter().map(|(way, bytes)| (way, column, bytes)));
                columns.push((origin, route, column));
            }
        }
        for (index, origin) in origins.iter().enumerate() {
            for (at, (_, share)) in origin.locations.iter().enumerate() {
                let of: Vec<_> =
                    columns.iter().filter(|(o, ..)| o[index] == at).map(|(.., c)| (*c, 1.0)).collect();
                if of.is_empty() {
                    return None;
                }
                program.add_constraint(&of, ComparisonOp::Eq, *share);
            }
        }
        for worker in 0..used.len() {
            let mut load = Vec::new();
            for (_, route, column) in &columns {
                let busy: f64 = route
                    .iter()
                    .enumerate()
                    .filter(|(_, place)| place.0 == worker)
                    .map(|(operator, (_, mode))| {
                        let of = &problem.operators[operator];
                        of.rate * of.variants[joint[operator]].modes[used[worker]][*mode].seconds_per_record
                    })
                    .sum();
                load.push((*column, busy));
            }
            program.add_constraint(&load, ComparisonOp::Le, problem.limits.max_utilization);
        }
        for from in 0..problem.locations.len() {
            for to in 0..problem.locations.len() {
                let Some(most) = problem.route(from, to).and_then(|way| way.bandwidth) else { continue };
                let mut by_column: std::collections::BTreeMap<usize, (microlp::Variable, f64)> =
                    Default::default();
                for (_, column, bytes) in carried.iter().filter(|(way, ..)| *way == (from, to)) {
                    by_column.entry(column.idx()).or_insert((*column, 0.0)).1 += bytes / most;
                }
                let terms: Vec<_> = by_column.into_values().collect();
                program.add_constraint(&terms, ComparisonOp::Le, 1.0);
            }
        }
        let takes = |operator: usize, class: usize, mode: usize| -> Vec<(microlp::Variable, f64)> {
            let there = columns
                .iter()
                .filter(|(_, route, _)| used[route[operator].0] == class && route[operator].1 == mode);
            there.map(|(.., column)| (*column, 1.0)).collect()
        };
        if lost == 0 {
            before = (0..joint.len())
                .map(|operator| {
                    (0..problem.worker_classes.len())
                        .map(|class| {
                            let modes =
                                problem.operators[operator].variants[joint[operator]].modes[class].len();
                            let all = (0..modes).flat_map(|mode| {
                                takes(operator, class, mode)
                                    .into_iter()
                                    .map(move |(column, _)| (class, mode, column))
                            });
                            all.collect()
                        })
                        .collect()
                })
                .collect();
            continue;
        }
        for (operator, by_class) in before.iter().enumerate() {
            for class in 0..by_class.len() {
                let modes = problem.operators[operator].variants[joint[operator]].modes[class].len();
                for mode in 0..modes {
                    let mut terms: Vec<_> = takes(operator, class, mode)
                        .into_iter()
                        .map(|(column, _)| (column, STANDBY_SHARE))
                        .collect();
                    let had = by_class[class].iter().filter(|(_, of, _)| *of == mode);
                    terms.extend(had.map(|(.., column)| (*column, -1.0)));
                    program.add_constraint(&terms, ComparisonOp::Le, 0.0);
                }
            }
        }
    }
    match program.solve_with(SolveOptions::default()) {
        Ok(SolveOutcome::Solution(solution)) => Some(solution.objective()),
        _ => None,
    }
}

/// At most three operators, four workers and no weightless operator: small enough to try all.
fn tiny(seed: u64) -> Option<Problem> {
    let mut problem = small_problem(seed);
    problem.limits.one_operator_per_worker = false;
    for class in &mut problem.worker_classes {
        class.memory_bytes = None;
    }
    // Half of the records, as otherwise few survive anything.
    for operator in &mut problem.operators {
        operator.rate *= 0.5;
    }
    let workers: u32 = problem.worker_classes.iter().map(|class| class.count).sum();
    let is_tiny =
        problem.operators.len() <= 3 && workers <= 4 && problem.operators.iter().all(|of| !of.weightless);
    is_tiny.then_some(problem)
}

#[test]
fn plans_cost_as_much_as_the_cheapest_of_all() {
    let (mut plans, mut none, mut dearer) = (0, 0, 0);
    let limit =
        std::env::var("TIDEMILL_PLANNING_CASES").ok().and_then(|text| text.parse().ok()).unwrap_or(120);
    for seed in 1..=limit {
        let Some(problem) = tiny(seed) else { continue };
        for losses in [1, 2] {
            let problem = surviving(problem.clone(), losses);
            let outcome = planned(&problem);
            let expected = by_trying_all(&problem);
            match (outcome.cost, expected) {
                (Some(found), Some(least)) => {
                    assert!(
                        (found - least).abs() <= 1e-5 * least.max(1e-3),
                        "seed {seed}, {losses}: {found} {least}"
                    );
                    assert_eq!(outcome.status, Status::Optimal, "seed {seed}, {losses}");
                    plans += 1;
                    let plain = planned(&surviving(problem.clone(), 0)).cost.expect("a plan");
                    assert!(plain <= found * (1.0 + 1e-9), "seed {seed}");
                    dearer += usize::from(plain < found * (1.0 - 1e-6));
                }
                (None, None) => {
                    assert_eq!(
                        (outcome.status, outcome.bound),
                        (Status::Infeasible, Some(f64::INFINITY)),
                        "seed {seed}"
                    );
                    none += 1;
                }
                other => panic!("seed {seed}, {losses} losses: {other:?}, {:?}", outcome.status),
            }
        }
    }
    assert!(
        plans >= limit as usize / 10 && none >= 5 && dearer >= 5,
        "{plans} plans, {none} without, {dearer} dearer"
    );
}

#[test]
fn every_loss_has_its_routes_and_the_check_needs_them() {
    let (problem, solution) = (1..)
        .filter_map(tiny)
        .map(|problem| surviving(problem, 1))
        .find_map(|problem| planned(&problem).solution.map(|solution| (problem, solution)))
        .expect("a plan");
    assert_eq!(check(&problem, &solution), []);
    assert_eq!(solution.fallbacks.len(), solution.workers.len());
    let mut without = solution.clone();
    without.fallbacks.remove(0);
    assert!(matches!(&check(&problem, &without)[..], [Violation::Loss { lost, .. }] if *lost == [0]));
    // The routes of another loss name the worker that is lost now.
    let mut wrong = solution.clone();
    wrong.fallbacks[0].classes.clone_from(&solution.classes);
    assert!(!check(&problem, &wrong).is_empty());
    // Twice the rate is more than the survivors carry, though all workers together might.
    let mut fast = problem.clone();
    fast.operators.iter_mut().for_each(|operator| operator.rate *= 50.0);
    assert!(check(&fast, &solution).iter().any(|found| matches!(found, Violation::Loss { .. })));
    for loss in capacity(&problem, &solution, 1).expect("it is small") {
        assert!(loss.carried > 1.0 - 1e-6 && loss.without_stage.is_empty(), "{loss:?}");
    }
}

#[test]
fn losses_under_a_latency_level_keep_it() {
    let (mut plans, mut memory) = (0, 0);
    for seed in 1..=60 {
        let mut problem = small_problem_with_latency(seed);
        if problem.operators.len() > 3 {
            continue;
        }
        problem.worker_classes.iter_mut().for_each(|class| class.count = 2);
        let problem = surviving(problem, 1);
        if let Some(solution) = planned(&problem).solution {
            assert_eq!(check(&problem, &solution), [], "seed {seed}");
            let least = crate::waits::with_least_waits(&problem, &solution);
            assert_eq!(check(&problem, &least), [], "seed {seed}");
            plans += 1;
        }
    }
    for seed in 1..=300 {
        let mut problem = small_problem(seed);
        let has_limit = problem.worker_classes.iter().any(|class| class.memory_bytes.is_some());
        if !has_limit || problem.operators.len() > 3 {
            continue;
        }
        problem.operators.iter_mut().for_each(|operator| operator.rate *= 0.3);
        problem.worker_classes.iter_mut().for_each(|class| class.count = 2);
        let problem = surviving(problem, 1);
        if let Some(solution) = planned(&problem).solution {
            assert_eq!(check(&problem, &solution), [], "seed {seed}");
            assert!(cost(&problem, &solution).is_ok());
            memory += 1;
        }
    }
    assert!(plans >= 5 && memory >= 2, "{plans} plans under latency, {memory} with little memory");
}

#[test]
fn other_planners_name_the_one_that_survives() {
    let problem = surviving((1..).find_map(tiny).expect("a tiny one"), 1);
    let planners: [&dyn Planner; 3] = [&Beam::default(), &CloudOnly, &Exhaustive];
    for planner in planners {
        let refused = planner.plan(&problem, &SearchLimits::default()).expect_err("refuses");
        assert!(
            matches!(refused, PlannerError::Unsupported { .. }) && refused.to_string().contains("`exact`"),
            "{refused}"
        );
    }
}
