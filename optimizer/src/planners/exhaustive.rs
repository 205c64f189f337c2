//! Every plan of a small problem, as an oracle for the other planners. It shares no code with `exact`.
//!
//! For every joint variant and every choice of workers and of the operators that each may run, one small linear program
//! has the flows: a variable per route over locations (one location per source and operator) and one per operator and
//! worker. Routes over locations suffice, because inside a location any record can go to any worker. Under latency
//! limits routes go over single workers with a waiting time each; those that take too long are left out, as are
//! operators on workers that could take less than a millionth of their records.
mod choices;

use super::devices;
use crate::cost::cost;
use crate::planner::{Planner, PlannerError, SearchLimits, without_losses};
use crate::problem::{Problem, Producer};
use crate::search_time::SearchTime;
use crate::solution::{Hosting, Outcome, RouteClass, Solution, Status, UsedWorker};
use choices::{Choice, ChosenWorker, worker_choices};
use microlp::{ComparisonOp, LinearExpr, OptimizationDirection, Variable};

const NAME: &str = "exhaustive";
const SECONDS_PER_HOUR: f64 = 3600.0;
/// Routes over locations, choices of workers and joint variants beyond which the problem is too large for this planner.
const MOST_ROUTES: usize = 4096;
const MOST_CHOICES: usize = 200_000;
const MOST_VARIANTS: u64 = 10_000;
/// While a plan is made, a class refers to the place of an operator by this number plus the place.
const NOT_YET: usize = usize::MAX / 2;
/// Flows below this count as zero.
const FLOW_TOLERANCE: f64 = 1e-9;

/// Tries all variants and workers; for small problems.
///
/// A plan is optimal, and no plan proves that there is none, unless the wall-clock limit ends the search. Under latency
/// limits without listed waits it tries a few waits, and proves nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Exhaustive;

impl Planner for Exhaustive {
    fn name(&self) -> &'static str {
        NAME
    }

    fn plan(&self, problem: &Problem, limits: &SearchLimits) -> Result<Outcome, PlannerError> {
        problem.check()?;
        without_losses(NAME, problem)?;
        if devices::are_offered(problem) {
            return devices::each(problem, limits, NAME, |part, limits| self.plan(part, limits));
        }
        let unsupported =
            |reason: &str| PlannerError::Unsupported { planner: NAME.into(), reason: reason.into() };
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
            let problem = &*problem.at(&variants);
            let places: Vec<Place> = (0..problem.locations.len()).map(Place::location).collect();
            let over_locations =
                routes(problem, &variants, &[], places).ok_or_else(|| unsupported("too many routes"))?;
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
                let over_workers;
                let routes = if problem.limits.latency.is_empty() {
                    &over_locations
                } else {
                    let places = places_of(problem, &choice);
                    over_workers = routes(problem, &variants, &choice.workers, places)
                        .ok_or_else(|| unsupported("too many routes"))?;
                    &over_workers
                };
                let Some(flows) = flows(problem, &variants, routes, &choice)? else { continue };
                let solution = realise(problem, &variants, routes, &choice, &flows);
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
        // Other waits may allow more plans, or cheaper ones.
        let is_every_wait = problem.limits.latency.is_empty() || !problem.limits.wait_levels.is_empty();
        let mut outcome = Outcome::infeasible(NAME, is_complete && is_every_wait);
        outcome.nodes = nodes;
        outcome.seconds = time.seconds();
        if !is_complete {
            outcome.status = Status::TimeLimited;
        }
        if let Some((cost, solution)) = best {
            if is_complete && is_every_wait {
                outcome.status = Status::Optimal;
                outcome.bound = Some(cost);
                outcome.gap = Some(0.0);
            } else if is_complete {
                outcome.status = Status::Feasible;
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

/// A place of an operator: all workers of a location, or one.
#[derive(Debug, Clone, Copy)]
struct Place {
    location: usize,
    /// Position in the chosen workers; none: any at the location.
    worker: Option<usize>,
}

impl Place {
    fn location(location: usize) -> Self {
        Self { location, worker: None }
    }

    /// Whether a chosen worker belongs to it.
    fn has(self, problem: &Problem, choice: &Choice, worker: usize) -> bool {
        let location = problem.worker_classes[choice.workers[worker].class].location;
        self.worker.map_or(self.location == location, |only| only == worker)
    }
}

/// Every chosen worker, and the locations for operators without a worker of their own.
fn places_of(problem: &Problem, choice: &Choice) -> Vec<Place> {
    let workers = choice.workers.iter().enumerate().map(|(index, worker)| Place {
        location: problem.worker_classes[worker.class].location,
        worker: Some(index),
    });
    workers.chain((0..problem.locations.len()).map(Place::location)).collect()
}

/// A route over places.
#[derive(Debug, Clone)]
struct RouteOverPlaces {
    /// Combination of source locations that it starts at.
    origin: usize,
    /// Location by source.
    sources: Vec<usize>,
    /// Place by operator.
    operators: Vec<usize>,
    /// Price of its traffic if all records took this route, in $/h.
    price: f64,
    /// Bytes per second between two locations if all records took this route.
    bytes: Vec<((usize, usize), f64)>,
    /// Seconds after which each operator ends; 0 without latency limits.
    ends: Vec<f64>,
}

#[derive(Debug)]
struct Routes {
    places: Vec<Place>,
    routes: Vec<RouteOverPlaces>,
    /// Share of the keys by combination of source locations; different origins are independent.
    origins: Vec<f64>,
}

/// All routes that links allow and that keep the latency limits; none where they are too many. `workers` are the chosen
/// ones where places name them.
fn routes(
    problem: &Problem,
    variants: &[usize],
    workers: &[ChosenWorker],
    places: Vec<Place>,
) -> Option<Routes> {
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
    let mut routes: Vec<RouteOverPlaces> = Vec::new();
    for (origin, (_, sources)) in origins.iter().enumerate() {
        let start = RouteOverPlaces {
            origin,
            sources: sources.clone(),
            operators: Vec::new(),
            price: 0.0,
            bytes: Vec::new(),
            ends: Vec::new(),
        };
        let mut partial = vec![start];
        for operator in 0..problem.operators.len() {
            let mut longer = Vec::new();
            for route in &partial {
                let to = (0..places.len()).filter(|&to| may_run(problem, workers, operator, places[to]));
                longer.extend(
                    to.filter_map(|to| extended(problem, variants, workers, &places, route, operator, to)),
                );
            }
            partial = longer;
            if partial.len() > MOST_ROUTES {
                return None;
            }
        }
        routes.extend(partial);
    }
    Some(Routes { places, routes, origins: origins.into_iter().map(|(share, _)| share).collect() })
}

/// Whether an operator may run at a place, as far as places name workers.
fn may_run(problem: &Problem, workers: &[ChosenWorker], operator: usize, place: Place) -> bool {
    let is_weightless = problem.operators[operator].weightless;
    match place.worker {
        Some(worker) => !is_weightless && workers[worker].modes[operator].is_some(),
        None => is_weightless || workers.is_empty(),
    }
}

/// A route with one more operator; none where its inputs do not reach the place, or too late.
fn extended(
    problem: &Problem,
    variants: &[usize],
    workers: &[ChosenWorker],
    places: &[Place],
    route: &RouteOverPlaces,
    operator: usize,
    to: usize,
) -> Option<RouteOverPlaces> {
    let mut longer = route.clone();
    longer.operators.push(to);
    let place = places[to];
    let mut begin = 0.0f64;
    for edge in problem.inputs_of(operator) {
        let (from, before) = match problem.edges[edge].from {
            Producer::Source(source) => (route.sources[source], 0.0),
            Producer::Operator(producer) => {
                (places[route.operators[producer]].location, route.ends[producer])
            }
        };
        let bytes = problem.edge_bytes_per_second(edge, variants);
        let way = problem.route(from, place.location)?;
        longer.price += way.price * bytes * SECONDS_PER_HOUR;
        longer.bytes.push(((from, place.location), bytes));
        let rate = problem.edges[edge].rate;
        let transfer =
            way.bandwidth.filter(|_| bytes > 0.0).map_or(0.0, |bandwidth| bytes / rate / bandwidth);
        if !problem.is_reply(&problem.edges[edge]) {
            begin = begin.max(before + way.delay + transfer);
        }
    }
    if problem.limits.latency.is_empty() {
        longer.ends.push(0.0);
        return Some(longer);
    }
    let facts = &problem.operators[operator];
    let mut end = begin + problem.held_seconds(operator);
    if let Some(worker) = place.worker.map(|worker| &workers[worker]) {
        let mode = &facts.variants[variants[operator]].modes[worker.class][worker.modes[operator]?];
        end += mode.fill_seconds + mode.call_seconds + worker.wait.unwrap_or(0.0);
    }
    longer.ends.push(end);
    let is_last = problem.outputs_of(operator).is_empty();
    let mut limits = problem.limits.latency.iter();
    let is_late = limits.any(|limit| {
        limit.sink.map_or(is_last, |sink| sink == operator)
            && end > problem.limits.path_seconds(limit) + limit.seconds * 1e-9
    });
    (!is_late).then_some(longer)
}

/// Flows of records at the least price of traffic with chosen variants and workers.
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
    // A weightless operator runs on a worker that the plan has for others.
    let runs_at = |operator: usize, place: Place| {
        choice.workers.iter().enumerate().any(|(index, worker)| {
            place.has(problem, choice, index)
                && (problem.operators[operator].weightless || worker.modes[operator].is_some())
        })
    };
    let route_flows: Vec<Option<Variable>> = routes
        .routes
        .iter()
        .map(|route| {
            let mut stops = route.operators.iter().enumerate();
            let possible = stops.all(|(operator, &at)| runs_at(operator, routes.places[at]));
            possible.then(|| program.add_var(route.price, (0.0, 1.0)))
        })
        .collect();
    let mut hosted: Vec<Vec<Option<Variable>>> = Vec::new();
    for worker in &choice.workers {
        let (mut time, mut waiting) = (LinearExpr::empty(), LinearExpr::empty());
        let mut variables = Vec::new();
        for operator in 0..problem.operators.len() {
            variables.push(worker.loads(problem, variants, operator).map(|(by_time, by_waiting)| {
                let variable = program.add_var(0.0, (0.0, 1.0));
                time.add(variable, by_time);
                waiting.add(variable, by_waiting);
                variable
            }));
        }
        program.add_constraint(time, ComparisonOp::Le, 1.0);
        program.add_constraint(waiting, ComparisonOp::Le, 1.0);
        hosted.push(variables);
    }
    let add_sum = |keeps: &dyn Fn(&RouteOverPlaces) -> bool,
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
        let by_worker = routes.places.iter().any(|place| place.worker.is_some());
        let places = routes.places.iter().enumerate();
        for (index, place) in places.filter(|(_, place)| place.worker.is_some() == by_worker) {
            let here =
                |worker: usize| hosted[worker][operator].filter(|_| place.has(problem, choice, worker));
            add_sum(&|route| route.operators[operator] == index, &here, 0.0, &mut program);
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

/// The plan of these flows: routes are split where a worker is full and the next one starts.
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
            hostings: route.operators.iter().map(|&place| NOT_YET + place).collect(),
        })
        .collect();
    let mut hostings: Vec<Hosting> = Vec::new();
    for operator in 0..problem.operators.len() {
        for (index, place) in routes.places.iter().enumerate() {
            let first = hostings.len();
            let mut room: Vec<f64> = Vec::new();
            let location = place.location;
            if problem.operators[operator].weightless {
                hostings.push(Hosting {
                    operator,
                    worker: None,
                    location,
                    mode: 0,
                    share: 0.0,
                    wait_seconds: None,
                    device: None,
                });
                room.push(f64::INFINITY);
            }
            for (worker, used) in choice.workers.iter().enumerate() {
                let share = flows.hosted[worker][operator];
                let Some(mode) = used.modes[operator] else { continue };
                if share <= FLOW_TOLERANCE || !place.has(problem, choice, worker) {
                    continue;
                }
                hostings.push(Hosting {
                    operator,
                    worker: Some(worker),
                    location,
                    mode,
                    share: 0.0,
                    wait_seconds: used.wait,
                    device: None,
                });
                room.push(share);
            }
            // Rounding must not leave records without a worker: the last one takes the rest.
            if let Some(last) = room.last_mut() {
                *last = f64::INFINITY;
            }
            classes = classes
                .into_iter()
                .flat_map(|class| {
                    let is_here = class.hostings[operator] == NOT_YET + index;
                    if is_here { cut(class, operator, first, &mut room) } else { vec![class] }
                })
                .collect();
        }
    }
    finished(variants, choice, hostings, classes)
}

/// Splits a class at the borders of workers.
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

/// Sums shares, and drops unused workers and hostings.
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
    Solution { variants: variants.to_vec(), workers, hostings: kept, classes, fallbacks: Vec::new() }
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
