//! Every plan of a small problem, as an oracle for the other planners. It shares no code with `exact`.
//!
//! For every joint variant and every choice of workers and of the operators that each of them may run, one small linear
//! program has the flows: a variable per route over locations (one location per source and operator) and one per operator
//! and worker. Routes over locations need no more detail, because inside a location any record can go to any worker.
mod choices;

use crate::cost::cost;
use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::problem::{Problem, Producer};
use crate::search_time::SearchTime;
use crate::solution::{Hosting, Outcome, RouteClass, Solution, Status, UsedWorker};
use choices::{Choice, worker_choices};
use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Variable};

const NAME: &str = "exhaustive";
const SECONDS_PER_HOUR: f64 = 3600.0;
/// Routes over locations, choices of workers and joint variants beyond which the problem is too large for this planner.
const MOST_ROUTES: usize = 4096;
const MOST_CHOICES: usize = 200_000;
const MOST_VARIANTS: u64 = 10_000;
/// While a plan is made, a class names the location of an operator by this number plus the location.
const NOT_YET: usize = usize::MAX / 2;
/// Flows below this are nothing.
const FLOW_TOLERANCE: f64 = 1e-9;

/// Tries all variants and workers; for small problems without latency limits.
///
/// What it finds is optimal, and that it finds nothing proves that there is nothing, except when the wall-clock limit ends
/// it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exhaustive;

impl Planner for Exhaustive {
    fn name(&self) -> &'static str {
        NAME
    }

    fn plan(&self, problem: &Problem, limits: &SearchLimits) -> Result<Outcome, PlannerError> {
        problem.check()?;
        let unsupported =
            |reason: &str| PlannerError::Unsupported { planner: NAME.into(), reason: reason.into() };
        if !problem.limits.latency.is_empty() {
            return Err(unsupported("it knows no latency limits"));
        }
        if problem.joint_variants() > MOST_VARIANTS {
            return Err(unsupported("too many joint variants"));
        }
        let time = SearchTime::begin();
        let mut nodes = 0;
        let mut best: Option<(f64, Solution)> = None;
        let mut is_complete = true;
        for variants in joint_variants(problem) {
            if !problem.accepts(&variants) {
                continue;
            }
            let routes = routes(problem, &variants).ok_or_else(|| unsupported("too many routes"))?;
            let choices = worker_choices(problem, &variants, MOST_CHOICES)
                .ok_or_else(|| unsupported("too many choices of workers"))?;
            for choice in choices {
                if best.as_ref().is_some_and(|(least, _)| choice.price >= *least) {
                    break; // choices come by rising price
                }
                if time.left_of(limits.wall_seconds) <= 0.0 {
                    is_complete = false;
                    break;
                }
                nodes += 1;
                let Some(flows) = flows(problem, &variants, &routes, &choice)? else { continue };
                let solution = realise(problem, &variants, &routes, &choice, &flows);
                let fault = |reason: String| PlannerError::Fault { planner: NAME.into(), reason };
                let total = cost(problem, &solution).map_err(|error| fault(error.to_string()))?.total();
                if (total - choice.price - flows.network).abs() > 1e-6 * (1.0 + total) {
                    let (priced, found) = (total, choice.price + flows.network);
                    return Err(fault(format!("a plan of {found} $/h is priced at {priced} $/h")));
                }
                if best.as_ref().is_none_or(|(least, _)| total < *least) {
                    best = Some((total, solution));
                }
            }
        }
        let mut outcome = Outcome::infeasible(NAME, is_complete);
        outcome.nodes = nodes;
        outcome.seconds = time.seconds();
        if !is_complete {
            outcome.status = Status::TimeLimited;
        }
        if let Some((cost, solution)) = best {
            if is_complete {
                outcome.status = Status::Optimal;
                outcome.bound = Some(cost);
                outcome.gap = Some(0.0);
            }
            outcome.cost = Some(cost);
            outcome.solution = Some(solution);
        }
        Ok(outcome)
    }
}

/// All joint variants.
fn joint_variants(problem: &Problem) -> Vec<Vec<usize>> {
    problem.operators.iter().fold(vec![Vec::new()], |partial, operator| {
        let extended = partial.iter().flat_map(|variants: &Vec<usize>| {
            (0..operator.variants.len()).map(|variant| [variants.as_slice(), &[variant]].concat())
        });
        extended.collect()
    })
}

/// A way over locations.
#[derive(Debug, Clone)]
struct RouteOverLocations {
    /// Which combination of source locations it begins at.
    origin: usize,
    /// Location by source.
    sources: Vec<usize>,
    /// Location by operator.
    operators: Vec<usize>,
    /// Price of its traffic if all records went this way, in $/h.
    price: f64,
    /// Bytes per second between two locations if all records went this way.
    bytes: Vec<((usize, usize), f64)>,
}

#[derive(Debug)]
struct Routes {
    routes: Vec<RouteOverLocations>,
    /// Share of the keys by combination of source locations; different origins are independent.
    origins: Vec<f64>,
}

/// All routes that lead where traffic can go; none where they are too many.
fn routes(problem: &Problem, variants: &[usize]) -> Option<Routes> {
    let locations = problem.locations.len();
    let mut origins = vec![(1.0, vec![0; problem.sources.len()])];
    for origin in problem.origins() {
        let mut extended = Vec::new();
        for (share, sources) in &origins {
            for &(location, part) in &origin.locations {
                let mut sources: Vec<usize> = sources.clone();
                origin.sources.iter().for_each(|&source| sources[source] = location);
                extended.push((share * part, sources));
            }
        }
        origins = extended;
    }
    let mut routes: Vec<RouteOverLocations> = Vec::new();
    for (origin, (_, sources)) in origins.iter().enumerate() {
        let start = RouteOverLocations {
            origin,
            sources: sources.clone(),
            operators: Vec::new(),
            price: 0.0,
            bytes: Vec::new(),
        };
        let mut partial = vec![start];
        for operator in 0..problem.operators.len() {
            partial = partial
                .iter()
                .flat_map(|route| {
                    (0..locations).filter_map(|to| extended(problem, variants, route, operator, to))
                })
                .collect();
            if partial.len() > MOST_ROUTES {
                return None;
            }
        }
        routes.extend(partial);
    }
    Some(Routes { routes, origins: origins.into_iter().map(|(share, _)| share).collect() })
}

/// A route with one operator more; none where its inputs do not get there.
fn extended(
    problem: &Problem,
    variants: &[usize],
    route: &RouteOverLocations,
    operator: usize,
    to: usize,
) -> Option<RouteOverLocations> {
    let mut longer = route.clone();
    longer.operators.push(to);
    for edge in problem.inputs_of(operator) {
        let from = match problem.edges[edge].from {
            Producer::Source(source) => route.sources[source],
            Producer::Operator(producer) => route.operators[producer],
        };
        let bytes = problem.edge_bytes_per_second(edge, variants);
        longer.price += problem.route(from, to)?.price * bytes * SECONDS_PER_HOUR;
        longer.bytes.push(((from, to), bytes));
    }
    Some(longer)
}

/// How records flow at the least price of traffic with chosen variants and workers.
#[derive(Debug)]
struct Flows {
    /// Share of the keys by route.
    routes: Vec<f64>,
    /// Share of an operator's records by chosen worker and operator.
    hosted: Vec<Vec<f64>>,
    /// Price of the traffic, in $/h.
    network: f64,
}

/// Solves the linear program of one choice; none where it has no solution.
fn flows(
    problem: &Problem,
    variants: &[usize],
    routes: &Routes,
    choice: &Choice,
) -> Result<Option<Flows>, PlannerError> {
    let mut program = microlp::Problem::new(OptimizationDirection::Minimize);
    // A weightless operator runs on some worker that the plan has anyway.
    let runs_at = |operator: usize, location: usize| {
        choice.workers.iter().any(|worker| {
            problem.worker_classes[worker.class].location == location
                && (problem.operators[operator].weightless || worker.modes[operator].is_some())
        })
    };
    let route_flows: Vec<Option<Variable>> = routes
        .routes
        .iter()
        .map(|route| {
            let possible = route.operators.iter().enumerate().all(|(operator, &at)| runs_at(operator, at));
            possible.then(|| program.add_var(route.price, (0.0, 1.0)))
        })
        .collect();
    let mut hosted: Vec<Vec<Option<Variable>>> = Vec::new();
    for worker in &choice.workers {
        let mut load = LinearExpr::empty();
        let mut variables = Vec::new();
        for (operator, mode) in worker.modes.iter().enumerate() {
            variables.push(mode.map(|mode| {
                let variable = program.add_var(0.0, (0.0, 1.0));
                let modes = &problem.operators[operator].variants[variants[operator]].modes[worker.class];
                let seconds = modes[mode].seconds_per_record / problem.limits.max_utilization;
                load.add(variable, problem.operators[operator].rate * seconds);
                variable
            }));
        }
        program.add_constraint(load, ComparisonOp::Le, 1.0);
        hosted.push(variables);
    }
    let add_sum = |keeps: &dyn Fn(&RouteOverLocations) -> bool,
                   minus: &dyn Fn(usize) -> Option<Variable>,
                   value: f64,
                   program: &mut microlp::Problem| {
        let mut sum = LinearExpr::empty();
        for (route, variable) in routes.routes.iter().zip(&route_flows) {
            if let (true, Some(variable)) = (keeps(route), variable) {
                sum.add(*variable, 1.0);
            }
        }
        (0..choice.workers.len()).filter_map(minus).for_each(|variable| sum.add(variable, -1.0));
        program.add_constraint(sum, ComparisonOp::Eq, value);
    };
    for (origin, share) in routes.origins.iter().enumerate() {
        add_sum(&|route| route.origin == origin, &|_| None, *share, &mut program);
    }
    for operator in (0..problem.operators.len()).filter(|&v| !problem.operators[v].weightless) {
        for location in 0..problem.locations.len() {
            let here = |worker: usize| {
                let class = choice.workers[worker].class;
                let at = problem.worker_classes[class].location;
                hosted[worker][operator].filter(|_| at == location)
            };
            add_sum(&|route| route.operators[operator] == location, &here, 0.0, &mut program);
        }
    }
    add_bandwidths(problem, routes, &route_flows, &mut program);
    let solution = match program.solve() {
        Ok(outcome) => outcome.into_solution().map_err(|stopped| fault(format!("{stopped:?}")))?,
        Err(microlp::Error::Infeasible) => return Ok(None),
        Err(error) => return Err(fault(error.to_string())),
    };
    let value = |variable: &Option<Variable>| {
        variable.map_or(0.0, |variable| solution.var_value(variable)).clamp(0.0, 1.0)
    };
    Ok(Some(Flows {
        routes: route_flows.iter().map(value).collect(),
        hosted: hosted.iter().map(|variables| variables.iter().map(value).collect()).collect(),
        network: solution.objective(),
    }))
}

fn add_bandwidths(
    problem: &Problem,
    routes: &Routes,
    flows: &[Option<Variable>],
    program: &mut microlp::Problem,
) {
    for from in 0..problem.locations.len() {
        for to in 0..problem.locations.len() {
            let Some(bandwidth) = problem.route(from, to).and_then(|route| route.bandwidth) else { continue };
            let mut sum = LinearExpr::empty();
            for (route, variable) in routes.routes.iter().zip(flows) {
                let here = route.bytes.iter().filter(|(pair, _)| *pair == (from, to));
                let bytes: f64 = here.map(|(_, bytes)| bytes).sum();
                if let (Some(variable), true) = (variable, bytes > 0.0) {
                    sum.add(*variable, bytes / bandwidth.max(1e-300));
                }
            }
            program.add_constraint(sum, ComparisonOp::Le, 1.0);
        }
    }
}

fn fault(reason: String) -> PlannerError {
    PlannerError::Fault { planner: NAME.into(), reason }
}

/// The plan of these flows: routes are cut where a worker is full and the next one begins.
fn realise(
    problem: &Problem,
    variants: &[usize],
    routes: &Routes,
    choice: &Choice,
    flows: &Flows,
) -> Solution {
    let mut classes: Vec<RouteClass> = routes
        .routes
        .iter()
        .zip(&flows.routes)
        .filter(|(_, share)| **share > FLOW_TOLERANCE)
        .map(|(route, &share)| RouteClass {
            share,
            sources: route.sources.clone(),
            hostings: route.operators.iter().map(|&location| NOT_YET + location).collect(),
        })
        .collect();
    let mut hostings: Vec<Hosting> = Vec::new();
    for operator in 0..problem.operators.len() {
        for location in 0..problem.locations.len() {
            let first = hostings.len();
            let mut room: Vec<f64> = Vec::new();
            if problem.operators[operator].weightless {
                hostings.push(Hosting {
                    operator,
                    worker: None,
                    location,
                    mode: 0,
                    share: 0.0,
                    wait_seconds: None,
                });
                room.push(f64::INFINITY);
            }
            for (worker, used) in choice.workers.iter().enumerate() {
                let at = problem.worker_classes[used.class].location;
                let (Some(mode), true) = (used.modes[operator], at == location) else { continue };
                if flows.hosted[worker][operator] <= FLOW_TOLERANCE {
                    continue;
                }
                hostings.push(Hosting {
                    operator,
                    worker: Some(worker),
                    location,
                    mode,
                    share: 0.0,
                    wait_seconds: None,
                });
                room.push(flows.hosted[worker][operator]);
            }
            // Rounding must not leave records without a worker: the last one takes what is left.
            if let Some(last) = room.last_mut() {
                *last = f64::INFINITY;
            }
            classes = classes
                .into_iter()
                .flat_map(|class| {
                    let is_here = class.hostings[operator] == NOT_YET + location;
                    if is_here { cut(class, operator, first, &mut room) } else { vec![class] }
                })
                .collect();
        }
    }
    finished(variants, choice, hostings, classes)
}

/// Cuts a class at the borders of workers.
fn cut(mut class: RouteClass, operator: usize, first: usize, room: &mut [f64]) -> Vec<RouteClass> {
    let mut parts = Vec::new();
    for (at, room) in room.iter_mut().enumerate().filter(|(_, room)| **room > FLOW_TOLERANCE) {
        let share = class.share.min(*room);
        *room -= share;
        let mut part = class.clone();
        part.share = share;
        part.hostings[operator] = first + at;
        parts.push(part);
        class.share -= share;
        if class.share <= FLOW_TOLERANCE {
            break;
        }
    }
    parts
}

/// Sums shares, and leaves out workers and hostings that nothing needs.
fn finished(
    variants: &[usize],
    choice: &Choice,
    mut hostings: Vec<Hosting>,
    mut classes: Vec<RouteClass>,
) -> Solution {
    let sum: f64 = classes.iter().map(|class| class.share).sum();
    for class in &mut classes {
        class.share /= sum;
        class.hostings.iter().for_each(|&hosting| hostings[hosting].share += class.share);
    }
    let mut new_hosting = vec![0; hostings.len()];
    let mut kept: Vec<Hosting> = Vec::new();
    for (old, hosting) in hostings.into_iter().enumerate() {
        new_hosting[old] = kept.len();
        if hosting.share > 0.0 {
            kept.push(hosting);
        }
    }
    for class in &mut classes {
        class.hostings.iter_mut().for_each(|hosting| *hosting = new_hosting[*hosting]);
    }
    let mut counts: Vec<(usize, u32)> = Vec::new();
    let mut workers = Vec::new();
    for used in &choice.workers {
        let index = counts.iter().filter(|(class, _)| *class == used.class).count() as u32;
        counts.push((used.class, index));
        workers.push(UsedWorker { class: used.class, index });
    }
    Solution { variants: variants.to_vec(), workers, hostings: kept, classes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::{PublishedSetting, published_vqa_problem};

    #[test]
    fn a_case_that_can_be_seen_through() {
        // 2 questions per second: cpu-1, the cheapest, would be busy 2 x (135.1 + 264.5 + 45.9) ms = 0.89 of its time.
        let mut problem = published_vqa_problem(2.0, 54.0, PublishedSetting::Shared);
        problem.limits.max_utilization = 0.85;
        let outcome = Exhaustive.plan(&problem, &SearchLimits::default()).expect("it takes the problem");
        // cpu-2, the next, carries all: 2 x (100.3 + 186.1 + 29.3) ms = 0.63.
        assert_eq!((outcome.status, outcome.cost), (Status::Optimal, Some(0.192)));
        let solution = outcome.solution.expect("a plan");
        assert_eq!(solution.workers, [UsedWorker { class: 1, index: 0 }]);
        assert_eq!(crate::check::check(&problem, &solution), []);
    }

    #[test]
    fn what_cannot_be_is_proven() {
        let mut problem = published_vqa_problem(2.0, 54.0, PublishedSetting::Shared);
        problem.limits.accuracy = Some(60.0);
        let outcome = Exhaustive.plan(&problem, &SearchLimits::default()).expect("it takes the problem");
        assert_eq!((outcome.status, outcome.bound), (Status::Infeasible, Some(f64::INFINITY)));
    }
}
