//! A bound under latency limits: no plan is cheaper than the cheapest flow over time, with times rounded down to points
//! ([`super::latency_times`]). The points are refined where the flow would really end too late, first by relaxations,
//! which take a part of a second each, then by integer programs. Often the workers of the flow make a plan that costs as
//! much, which settles all.
use super::joints::Joints;
use super::model::Model;
use super::prepared::{LatencyRule, MemoryRule, Prepared};
use super::program::{Answer, Effort, Point};
use super::routes::Routes;
use super::search::{Found, Search};
use super::under_latency::within;
use super::variants::{Candidates, candidates};
use super::{Best, fault, realised_placement};
use crate::check::check;
use crate::cost::cost;
use crate::planner::PlannerError;
use crate::problem::Problem;
use crate::realise::Placement;
use crate::solution::Solution;

/// Operators times locations up to which the bound tells times apart.
const MOST_TIMED: usize = 40;

/// Relaxations by which the points are refined at first, and the part of the time for them.
const RELAXATIONS: usize = 10;
const PART_OF_RELAXATIONS: f64 = 0.4;

/// Relaxations with given whole numbers by which the points are refined after an integer program.
const RELAXATIONS_WITH_NUMBERS: usize = 30;

/// Part of the time for one integer program; the rest is for a plan with its workers.
const PART_OF_FLOW: f64 = 0.85;

/// Part of the gap that one integer program may leave.
const PART_OF_GAP: f64 = 0.5;

/// Finds a bound, and plans on the way; the variants of the cheapest flow.
pub(super) fn keys_in_time(
    problem: &Problem,
    excluded: &[Vec<usize>],
    joints: &mut Joints,
    search: &mut Search,
    found: &mut Best,
) -> Result<Option<Vec<usize>>, PlannerError> {
    let rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
    let is_small = problem.operators.len() * problem.locations.len() <= MOST_TIMED;
    let rule = if is_small { LatencyRule::Times } else { LatencyRule::Means };
    let mut prepared = Prepared::new(problem, &rules, rule, 1.0)?;
    if !prepared.is_servable() {
        found.bound = f64::INFINITY;
        return Ok(None);
    }
    let for_routes = Prepared::new(problem, &rules, LatencyRule::Budgets, 1.0)?;
    let bound = search.refine_by_relaxations(&mut prepared, excluded);
    found.bound = found.bound.max(bound);
    let mut variants: Option<Vec<usize>> = None;
    while !found.is_close(search.limits.gap) && search.time.left_of(search.limits.wall_seconds) > 0.0 {
        let known = found.plan.as_ref().map(|(_, solution)| solution);
        let flow = within(search, PART_OF_FLOW, |search| search.cheapest_flow(&prepared, excluded, known))?;
        found.bound = found.bound.max(flow.bound);
        let Some((model, point)) = flow.best else { break };
        let joint = model.joint(&point.values);
        let mut routes = Routes::new(&for_routes, &joint);
        let count = |class: usize, operator: Option<usize>| {
            model.number(&point.values, (class, operator)).round() as u32
        };
        let placement = search.with_workers(&mut routes, count, f64::INFINITY);
        offer(problem, placement, found)?;
        if !found.is_close(search.limits.gap) && joints.planned.insert(joint.clone()) {
            let most = found.plan.as_ref().map_or(f64::INFINITY, |(cost, _)| *cost);
            let placement = search.over_routes(&mut routes, most);
            offer(problem, placement, found)?;
        }
        variants = Some(joint);
        // Without HiGHS one integer program takes what time there is.
        let is_last = !search.limits.solver.is_highs();
        if is_last || !search.refine_by_numbers(&mut prepared, &model, &point) {
            break;
        }
    }
    Ok(variants)
}

/// Keeps the plan of a placement where the checker accepts it and it is cheaper.
pub(super) fn offer(
    problem: &Problem,
    placement: Option<Placement>,
    found: &mut Best,
) -> Result<(), PlannerError> {
    let solution = placement.and_then(|placement| realised_placement(problem, placement).ok());
    if let Some(solution) = solution.filter(|solution| check(problem, solution).is_empty()) {
        let total = cost(problem, &solution).map_err(|error| fault(&error))?.total();
        found.offer(total, solution);
    }
    Ok(())
}

impl Search {
    /// Refines the points of time until the relaxation has no keys that end too late, as long as there is time; what
    /// no plan undercuts by it.
    fn refine_by_relaxations(&mut self, prepared: &mut Prepared<'_>, excluded: &[Vec<usize>]) -> f64 {
        let mut bound = 0.0f64;
        let longest = PART_OF_RELAXATIONS * self.time.left_of(self.limits.wall_seconds);
        let begun = self.time.seconds();
        for _ in 0..RELAXATIONS {
            let Candidates::Many(allowed) = candidates(prepared, excluded, 0) else {
                return f64::INFINITY; // none is left
            };
            let model = Model::new(prepared, &allowed);
            let effort = Effort { relaxed: true, ..self.effort(1.0) };
            match self.solve(&model.program, &effort) {
                Answer::Found(point) => {
                    bound = bound.max(point.cost);
                    if !prepared.refine(&model, &point.values) {
                        break;
                    }
                }
                Answer::Infeasible => return f64::INFINITY,
                Answer::Nothing { .. } => break,
            }
            if self.time.seconds() - begun > longest {
                break;
            }
        }
        bound
    }

    /// Refines the points of time by a point, and by what its whole numbers cost then, again and again; whether there
    /// are points that were not there before.
    pub(super) fn refine_by_numbers(
        &mut self,
        prepared: &mut Prepared<'_>,
        model: &Model,
        point: &Point,
    ) -> bool {
        let numbers = &point.values[..model.first_flow];
        let (mut model, mut values) = (model.clone(), point.values.clone());
        let mut is_refined = false;
        for _ in 0..RELAXATIONS_WITH_NUMBERS {
            if !prepared.refine(&model, &values) {
                break;
            }
            is_refined = true;
            model = Model::new(prepared, &model.allowed);
            let given = model.program.with_integers_of(numbers);
            let effort = Effort { relaxed: true, ..self.effort(1.0) };
            let Answer::Found(point) = self.solve(&given, &effort) else { break };
            values = point.values;
        }
        is_refined
    }

    /// The cheapest flow over time with whole numbers; a plan that is known is where the solver begins.
    fn cheapest_flow(
        &mut self,
        prepared: &Prepared<'_>,
        excluded: &[Vec<usize>],
        known: Option<&Solution>,
    ) -> Result<Found, PlannerError> {
        if !self.limits.solver.is_highs() {
            return self.best(prepared, excluded);
        }
        let Candidates::Many(allowed) = candidates(prepared, excluded, 0) else {
            return Ok(Found { best: None, bound: f64::INFINITY });
        };
        let model = Model::new(prepared, &allowed);
        let mut start = None;
        if let Some(values) = known.and_then(|known| model.integers_of(prepared, known)) {
            let given = model.program.with_integers_of(&values);
            let effort = Effort { relaxed: true, ..self.effort(1.0) };
            if let Answer::Found(point) = self.solve(&given, &effort) {
                start = Some(point.values);
            }
        }
        Ok(self.at_once(model, PART_OF_GAP, start.as_deref()))
    }
}
