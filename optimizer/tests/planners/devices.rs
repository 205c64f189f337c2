//! Models on devices: the exact planner against the exhaustive one, and both against every plan without splits, which is
//! tried by the checker alone.
//!
//! `TIDEMILL_PLANNING_CASES` sets the number of problems.
use crate::agreement::{TOLERANCE, cases, plan};
use tidemill_optimizer::check::{check, recomputed_cost};
use tidemill_optimizer::planner::{Planner, PlannerError, SearchLimits};
use tidemill_optimizer::planners::{best_fit::BestFit, exact::Exact, exhaustive::Exhaustive};
use tidemill_optimizer::problem::{Problem, Sends, ServiceMode};
use tidemill_optimizer::solution::{Hosting, OnDevice, Outcome, RouteClass, Solution, Status, UsedWorker};
use tidemill_optimizer::waits::with_least_waits;
use tidemill_problems::{small_problem_with_devices, small_problem_with_devices_and_latency};

fn uses_a_device(solution: &Solution) -> bool {
    solution.hostings.iter().any(|hosting| hosting.device.is_some())
}

/// Stages that send rows to a device and have the choice, and those that send tensors and have it.
fn forms(problem: &Problem, solution: &Solution) -> [usize; 2] {
    let chosen = |sends: Sends| {
        let has_choice = |hosting: &&Hosting| {
            let remote = problem.remote_of(solution, hosting);
            remote.is_some_and(|remote| remote.sends == sends)
                && problem.other_form(solution, hosting).is_some()
        };
        solution.hostings.iter().filter(has_choice).count()
    };
    [chosen(Sends::Rows), chosen(Sends::Tensors)]
}

/// The outcome of the exhaustive planner; none where the problem is too large for it.
fn oracle(problem: &Problem) -> Option<Outcome> {
    let limits = SearchLimits { gap: 0.0, wall_seconds: None, ..SearchLimits::default() };
    match Exhaustive.plan(problem, &limits) {
        Err(PlannerError::Unsupported { .. }) => None,
        outcome => Some(outcome.unwrap_or_else(|error| panic!("{}: {error}", problem.name))),
    }
}

#[test]
fn exact_and_exhaustive_agree_with_devices() {
    let (mut with, mut without, mut infeasible, mut cheaper) = (0, 0, 0, 0);
    let (mut rows, mut tensors) = (0, 0);
    for seed in 1..=cases(80) {
        let problem = small_problem_with_devices(seed);
        let exact = plan(&Exact, &problem);
        let Some(oracle) = oracle(&problem) else { continue };
        match (oracle.cost, exact.cost) {
            (Some(least), Some(found)) => {
                let near = (least - found).abs() <= TOLERANCE * least.max(1.0);
                assert!(near, "seed {seed}: {found} instead of {least}");
                assert_eq!(exact.status, Status::Optimal, "seed {seed}");
                match exact.solution.as_ref().is_some_and(uses_a_device) {
                    true => with += 1,
                    false => without += 1,
                }
                let [as_rows, as_tensors] =
                    exact.solution.as_ref().map_or([0, 0], |solution| forms(&problem, solution));
                (rows, tensors) = (rows + as_rows, tensors + as_tensors);
                // Planners that know no devices keep the limits too, and find nothing cheaper.
                let heuristic = plan(&BestFit, &problem);
                assert!(!heuristic.solution.as_ref().is_some_and(uses_a_device), "seed {seed}");
                let local = plan(&Exact, &problem.without_remotes()).cost.unwrap_or(f64::INFINITY);
                assert!(found <= local + TOLERANCE * found.max(1.0), "seed {seed}");
                cheaper += usize::from(found < local * (1.0 - 1e-3));
            }
            (None, None) => {
                assert_eq!(exact.bound, Some(f64::INFINITY), "seed {seed}: proven");
                infeasible += 1;
            }
            (least, found) => panic!("seed {seed}: exact finds {found:?}, exhaustive {least:?}"),
        }
    }
    println!("{with} with devices ({cheaper} cheaper for it), {without} without, {infeasible} infeasible");
    println!("{rows} stages send rows and {tensors} tensors, of those with the choice");
    assert!(
        with > 10 && without > 10 && infeasible > 0 && cheaper > 10,
        "{with}, {without}, {infeasible}, {cheaper}"
    );
    assert!(rows > 5 && tensors > 3, "{rows}, {tensors}");
}

#[test]
fn exact_and_exhaustive_agree_with_devices_under_latency_limits() {
    let (mut with, mut without) = (0, 0);
    for seed in 1..=cases(70) {
        let problem = small_problem_with_devices_and_latency(seed);
        let exact = plan(&Exact, &problem);
        let oracle = plan(&Exhaustive, &problem);
        let (least, found) = (oracle.cost.unwrap_or(f64::INFINITY), exact.cost.unwrap_or(f64::INFINITY));
        let bound = exact.bound.unwrap_or(0.0);
        assert!(bound <= least + TOLERANCE * least.clamp(1.0, 1e9), "seed {seed}: {bound} above {least}");
        assert!(found >= least - TOLERANCE * least.clamp(1.0, 1e9), "seed {seed}: {found} below {least}");
        if exact.status == Status::Optimal {
            assert!((least - found).abs() <= TOLERANCE * least.max(1.0), "seed {seed}: {found}, not {least}");
            match exact.solution.as_ref().is_some_and(uses_a_device) {
                true => with += 1,
                false => without += 1,
            }
        }
    }
    println!("{with} with devices, {without} without");
    assert!(with > 3 && without > 3, "{with}, {without}");
}

/// Most plans to try for one problem.
const MOST_TRIED: usize = 20_000;

/// Where an operator runs: variant, class and index of the worker, mode.
type Place = (usize, usize, u32, usize);

fn places(problem: &Problem, operator: usize) -> Vec<Place> {
    let mut places = Vec::new();
    for (variant, of) in problem.operators[operator].variants.iter().enumerate() {
        for (class, modes) in of.modes.iter().enumerate() {
            for index in 0..problem.worker_classes[class].count {
                places.extend((0..modes.len()).map(|mode| (variant, class, index, mode)));
            }
        }
    }
    places
}

/// The plan in which all records of each operator are at one place, and its model on the first device of the class.
fn unsplit(problem: &Problem, chosen: &[Place]) -> Solution {
    let mut workers: Vec<UsedWorker> = Vec::new();
    let mut position = |class: usize, index: u32| {
        let worker = UsedWorker { class, index };
        workers.iter().position(|other| *other == worker).unwrap_or_else(|| {
            workers.push(worker);
            workers.len() - 1
        })
    };
    let mode = |operator: usize, (variant, class, _, mode): Place| -> &ServiceMode {
        &problem.operators[operator].variants[variant].modes[class][mode]
    };
    let hosting = |(operator, place): (usize, &Place)| Hosting {
        operator,
        worker: Some(position(place.1, place.2)),
        location: problem.worker_classes[place.1].location,
        mode: place.3,
        share: 1.0,
        wait_seconds: None,
        device: mode(operator, *place)
            .remote
            .as_ref()
            .map(|remote| OnDevice { worker: position(remote.class, 0), wait_seconds: None }),
    };
    let hostings: Vec<Hosting> = chosen.iter().enumerate().map(hosting).collect();
    let origins = problem.origins();
    let mut classes =
        vec![RouteClass { share: 1.0, sources: vec![0; problem.sources.len()], hostings: vec![] }];
    for origin in &origins {
        classes = classes
            .iter()
            .flat_map(|class| {
                origin.locations.iter().map(|(location, share)| {
                    let mut own = class.clone();
                    own.share *= share;
                    origin.sources.iter().for_each(|source| own.sources[*source] = *location);
                    own
                })
            })
            .collect();
    }
    let all: Vec<usize> = (0..hostings.len()).collect();
    classes.iter_mut().for_each(|class| class.hostings.clone_from(&all));
    Solution {
        variants: chosen.iter().map(|place| place.0).collect(),
        workers,
        hostings,
        classes,
        fallbacks: Vec::new(),
    }
}

/// Raises waits to the levels that planners choose from; none where a worker keeps none of them.
fn at_levels(problem: &Problem, solution: &Solution) -> Option<Solution> {
    let mut solution = with_least_waits(problem, solution);
    let levels = problem.limits.waits();
    let raised =
        |wait: Option<f64>| levels.iter().copied().find(|level| wait.is_some_and(|wait| wait <= *level));
    for hosting in &mut solution.hostings {
        hosting.wait_seconds = Some(raised(hosting.wait_seconds)?);
        if let Some(device) = &mut hosting.device {
            device.wait_seconds = Some(raised(device.wait_seconds)?);
        }
    }
    Some(solution)
}

/// The least cost of a plan without splits that the checker accepts; none where there are too many to try.
fn least_unsplit(problem: &Problem) -> Option<(f64, bool)> {
    if problem.operators.iter().any(|operator| operator.weightless) {
        return None;
    }
    let all: Vec<Vec<Place>> =
        (0..problem.operators.len()).map(|operator| places(problem, operator)).collect();
    let count = all.iter().fold(1usize, |product, of| product.saturating_mul(of.len()));
    if count > MOST_TRIED {
        return None;
    }
    let (mut least, mut is_remote) = (f64::INFINITY, false);
    for mut number in 0..count {
        let chosen: Vec<Place> = all
            .iter()
            .map(|of| {
                let place = of[number % of.len()];
                number /= of.len();
                place
            })
            .collect();
        // One variant of each operator is in the plan; places of other variants are other plans.
        let mut solution = unsplit(problem, &chosen);
        if recomputed_cost(problem, &solution) >= least {
            continue;
        }
        if !problem.limits.latency.is_empty() {
            let Some(waiting) = at_levels(problem, &solution) else { continue };
            solution = waiting;
        }
        if check(problem, &solution).is_empty() {
            (least, is_remote) = (recomputed_cost(problem, &solution), uses_a_device(&solution));
        }
    }
    Some((least, is_remote))
}

#[test]
fn no_plan_that_the_checker_accepts_is_cheaper() {
    let (mut tried, mut remote, mut equal) = (0, 0, 0);
    for seed in 1..=cases(150) {
        for problem in [small_problem_with_devices(seed), small_problem_with_devices_and_latency(seed)] {
            let Some((least, is_remote)) = least_unsplit(&problem) else { continue };
            let exact = plan(&Exact, &problem);
            let found = exact.bound.unwrap_or(0.0);
            assert!(
                found <= least + TOLERANCE * least.clamp(1.0, 1e9),
                "{}: bound {found}, but a plan costs {least}",
                problem.name
            );
            if exact.status == Status::Optimal {
                let cost = exact.cost.unwrap_or(f64::INFINITY);
                assert!(
                    cost <= least + TOLERANCE * least.clamp(1.0, 1e9),
                    "{}: {cost}, not {least}",
                    problem.name
                );
                equal += usize::from((cost - least).abs() <= TOLERANCE * least.max(1.0));
            }
            tried += 1;
            remote += usize::from(is_remote);
        }
    }
    println!("{tried} problems, {remote} cheapest with devices without splits, {equal} as cheap as the plan");
    assert!(tried > 30 && remote > 10 && equal > 10, "{tried}, {remote}, {equal}");
}
