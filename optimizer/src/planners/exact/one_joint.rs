//! The cheapest plan with given variants under latency limits: plans and a bound.
//!
//! The program is the cheapest flow over time ([`super::latency_times`]). With one variant of each operator it is small, and
//! smaller still without the workers that the relaxation over whole routes says are too dear to be part of a plan
//! that is cheaper than the best one known (reduced costs, probing). What the program relaxes at joins, rows give back:
//! at the prices of a relaxation over routes each route pays at least what the cheapest pays, and so do flows that are made
//! of routes.
use super::model::{Allowed, Model};
use super::prepared::Prepared;
use super::program::{Answer, Effort, Point};
use super::routes::{KnownRoutes, Prices, Routes, Workers};
use super::search::Search;
use super::tuning::{
    CLOSER, EQUAL_COST, FEW_NODES, MORE_NODES, MOST_PROGRAMS, MOST_RELAXATIONS, PART_FOR_PROBING,
    PART_OF_GAP, PART_OF_OPEN, PROBING_PASSES, PROGRESS, QUICK_PROGRAMS, RELAXATIONS_WITH_NUMBERS,
    SLOW_RELAXATIONS, VIOLATED,
};
use super::{Best, too_small};
use crate::planner::PlannerError;
use std::rc::Rc;

/// Given variants, and what is known of them.
#[derive(Debug)]
pub(super) struct OneJoint<'a> {
    /// For the flow over time, for the relaxation over routes, and for plans.
    in_time: Prepared<'a>,
    bounding: Rc<Prepared<'a>>,
    planning: Prepared<'a>,
    joint: Vec<usize>,
    allowed: Allowed,
    /// Fewest and most workers, by slot of the routes; none before the first relaxation.
    workers: Option<Workers>,
    known: KnownRoutes,
    /// The same for plans.
    known_plans: KnownRoutes,
    /// Prices of relaxations over routes: rows of the program.
    rows: Vec<Prices>,
    /// What workers were left out for: plans that cost less.
    narrowed: f64,
    /// Whether the few nodes that `microlp` gets first did not settle a program.
    is_hard: bool,
    /// No plan with these variants that is cheaper than the best one costs less.
    pub(super) bound: f64,
}

impl<'a> OneJoint<'a> {
    /// Nothing is known yet but a bound. `bounding` is prepared by `LatencyRule::Bound`, `planning` by
    /// `LatencyRule::Plan`.
    pub(super) fn new(bounding: &Prepared<'a>, planning: &Prepared<'a>, joint: &[usize], bound: f64) -> Self {
        let bounding = bounding.only(joint);
        let in_time = bounding.clone().in_time();
        let (bounding, planning) = (Rc::new(bounding), planning.only(joint));
        let allowed = Allowed::only(&in_time, joint);
        let (workers, rows) = (None, Vec::new());
        let (known, known_plans) = (KnownRoutes::new(), KnownRoutes::new());
        let joint = joint.to_vec();
        let (narrowed, is_hard) = (f64::INFINITY, false);
        Self {
            in_time,
            bounding,
            planning,
            joint,
            allowed,
            workers,
            known,
            known_plans,
            rows,
            narrowed,
            is_hard,
            bound,
        }
    }

    /// Searches for plans and a bound until no plan with these variants can be cheaper than the best by more than the gap;
    /// whether the time was up before, or it was to be quick only.
    pub(super) fn close(
        &mut self,
        is_quick: bool,
        search: &mut Search,
        found: &mut Best,
    ) -> Result<bool, PlannerError> {
        if [&self.in_time, &*self.bounding].iter().any(|prepared| !prepared.is_servable()) {
            self.bound = self.bound.max(found.cutoff(search.limits.gap));
            return Ok(false);
        }
        let bounding = Rc::clone(&self.bounding);
        let mut routes = Routes::new(&bounding, &self.joint);
        routes.known = std::mem::take(&mut self.known);
        if self.workers.is_none() || found.cutoff(search.limits.gap) < self.narrowed {
            self.narrow(&mut routes, search, found);
        }
        self.refine(&mut routes, search, found);
        self.programs(is_quick, &mut routes, search, found)?;
        self.known = std::mem::take(&mut routes.known);
        let is_closed = self.bound >= found.cutoff(search.limits.gap);
        Ok(!is_closed && (is_quick || search.time.left_of(search.limits.wall_seconds) <= 0.0))
    }

    /// Leaves out workers with which no plan is cheap enough, and asks for those without which none is.
    fn narrow(&mut self, routes: &mut Routes<'_, '_>, search: &Search, found: &Best) {
        let cutoff = found.cutoff(search.limits.gap);
        let (time, wall) = (search.time, search.limits.wall_seconds);
        let seconds = || time.left_of(wall);
        let mut workers = self.workers.take().unwrap_or_else(|| routes.all_workers());
        let cost = routes.generate(&workers, f64::INFINITY, &seconds).filter(|_| routes.is_bound);
        if let Some(cost) = cost {
            self.bound = self.bound.max(cost.min(cutoff));
            let prices = routes.prices.take();
            if let Some(prices) = prices.as_ref().filter(|_| cutoff.is_finite()) {
                for ((slot, high), low) in routes.slots.iter().zip(&mut workers.high).zip(&workers.low) {
                    *high = high.min(low + Routes::most_workers(prices, *slot, (cutoff - cost).max(0.0)));
                }
            }
            self.rows.extend(prices);
        }
        let until = PART_FOR_PROBING * seconds();
        let probing = || seconds().min(until);
        let begun = time.seconds();
        let may_probe = || begun + until > time.seconds();
        if cutoff.is_finite() && cost.is_some_and(|cost| cost < cutoff) {
            for _ in 0..PROBING_PASSES {
                let before = (workers.low.clone(), workers.high.clone());
                for slot in 0..routes.slots.len() {
                    if workers.low[slot] >= workers.high[slot] || !may_probe() {
                        continue;
                    }
                    let number = workers.low[slot];
                    let mut more = workers.clone();
                    more.low[slot] = number + 1.0;
                    if routes.costs(&more, cutoff, &probing) {
                        workers.high[slot] = number;
                        continue;
                    }
                    let mut none = workers.clone();
                    none.high[slot] = number;
                    if routes.costs(&none, cutoff, &probing) {
                        workers.low[slot] = number + 1.0;
                    }
                }
                if before == (workers.low.clone(), workers.high.clone()) {
                    break;
                }
            }
            let cost = routes.generate(&workers, f64::INFINITY, &seconds).filter(|_| routes.is_bound);
            if let Some(cost) = cost {
                self.bound = self.bound.max(cost.min(cutoff));
                self.rows.extend(routes.prices.take());
            }
        }
        if cost.is_some() && may_probe() {
            self.narrowed = cutoff; // else there was no time for all of it
        }
        let is_open = |operator: usize, class: Option<usize>| {
            let of_slot = |slot: &(usize, Option<usize>)| {
                Some(slot.0) == class && slot.1.is_none_or(|own| own == operator)
            };
            routes.slots.iter().position(of_slot).is_none_or(|slot| workers.high[slot] > 0.0)
        };
        for (operator, choices) in self.in_time.choices.iter_mut().enumerate() {
            choices.retain(|choice| is_open(operator, choice.class));
        }
        self.workers = Some(workers);
    }

    /// Refines the points of time, and adds rows, by relaxations.
    fn refine(&mut self, routes: &mut Routes<'_, '_>, search: &mut Search, found: &Best) {
        let cutoff = found.cutoff(search.limits.gap);
        let (mut before, mut slow) = (0.0f64, 0);
        for _ in 0..MOST_RELAXATIONS {
            if self.bound >= cutoff {
                return;
            }
            let model = self.model(routes);
            let effort = Effort { relaxed: true, ..search.effort(1.0) };
            match search.solve(&model.program, &effort) {
                Answer::Found(point) => {
                    let is_slow = point.cost < before * (1.0 + PROGRESS);
                    slow = if is_slow { slow + 1 } else { 0 };
                    before = before.max(point.cost);
                    self.bound = self.bound.max(point.cost.min(cutoff));
                    let is_new = self.in_time.refine(&model, &point.values)
                        || self.add_row(routes, &model, &point, search, found).0;
                    if !is_new || slow >= SLOW_RELAXATIONS {
                        break;
                    }
                }
                Answer::Infeasible => self.bound = self.bound.max(cutoff),
                Answer::Nothing { .. } => break,
            }
        }
    }

    /// Solves integer programs, the points of each being plans, or refined away.
    fn programs(
        &mut self,
        is_quick: bool,
        routes: &mut Routes<'_, '_>,
        search: &mut Search,
        found: &mut Best,
    ) -> Result<(), PlannerError> {
        let gap = search.limits.gap;
        let mut part_of_open = PART_OF_OPEN;
        let most = if is_quick { QUICK_PROGRAMS } else { MOST_PROGRAMS };
        for _ in 0..most {
            let (cutoff, before) = (found.cutoff(gap), self.bound);
            if self.bound >= cutoff || search.time.left_of(search.limits.wall_seconds) <= 0.0 {
                break;
            }
            let mut model = self.model(routes);
            if cutoff.is_finite() {
                model.program.cheaper_than(cutoff);
            }
            let open = (cutoff - self.bound) / cutoff;
            let open = if open.is_finite() { open } else { 0.0 };
            let nodes = if is_quick { FEW_NODES } else { search.limits.nodes.saturating_mul(MORE_NODES) };
            let of_program = (PART_OF_GAP * gap).max(part_of_open * open);
            let effort = Effort {
                gap: of_program,
                nodes,
                highs: search.limits.solver.highs(),
                is_hard: self.is_hard,
                ..search.effort(1.0)
            };
            let nodes_before = search.nodes;
            let answer = search.solve(&model.program, &effort);
            self.is_hard |= search.nodes - nodes_before >= FEW_NODES;
            match answer {
                Answer::Found(point) => {
                    self.bound = self.bound.max(point.bound.min(cutoff));
                    let (is_new, least) = self.add_row(routes, &model, &point, search, found);
                    let is_finer = self.refine_by_numbers(&model, &point, search);
                    let is_dear = least >= found.cutoff(gap);
                    let is_new =
                        if is_dear { is_new } else { is_new | self.plan(&model, &point, search, found)? };
                    let is_raised = self.bound > before * (1.0 + EQUAL_COST);
                    if !is_new && !is_finer && !is_raised && found.cutoff(gap) >= cutoff {
                        // The same program, closer, unless it was searched as far as it can be.
                        let open = (point.cost - point.bound) / point.cost;
                        if open > effort.gap || open <= PART_OF_GAP * gap + EQUAL_COST {
                            break;
                        }
                        part_of_open *= CLOSER;
                    }
                }
                Answer::Infeasible => self.bound = self.bound.max(cutoff),
                Answer::Nothing { bound, .. } => {
                    self.bound = self.bound.max(bound.min(cutoff));
                    break;
                }
            }
        }
        Ok(())
    }

    fn model(&self, routes: &Routes<'_, '_>) -> Model {
        let mut model = Model::new(&self.in_time, &self.allowed);
        if let Some(workers) = &self.workers {
            for ((slot, low), high) in routes.slots.iter().zip(&workers.low).zip(&workers.high) {
                if let Some(column) = model.count(*slot) {
                    model.program.narrow(column, *low, *high);
                }
            }
        }
        let in_time = Routes::new(&self.in_time, &self.joint);
        self.rows.iter().for_each(|prices| in_time.add_row(&mut model, prices));
        model
    }

    /// Adds what the relaxation over routes says of the point's numbers of workers, if the point costs less; whether it does,
    /// and what plans with these workers cost at least.
    fn add_row(
        &mut self,
        routes: &mut Routes<'_, '_>,
        model: &Model,
        point: &Point,
        search: &Search,
        found: &Best,
    ) -> (bool, f64) {
        let number = |slot: &(usize, Option<usize>)| model.number(&point.values, *slot).max(0.0);
        let most = found.cutoff(0.0);
        let workers = Workers::exactly(routes.slots.iter().map(number).collect(), most);
        let (time, wall) = (search.time, search.limits.wall_seconds);
        let cost = routes.generate(&workers, f64::INFINITY, &|| time.left_of(wall));
        let is_violated = routes.is_bound && cost.is_some_and(|cost| cost > point.cost * (1.0 + VIOLATED));
        self.rows.extend(routes.prices.take().filter(|_| is_violated));
        (is_violated, cost.filter(|_| routes.is_bound).unwrap_or(0.0))
    }

    /// Offers the cheapest plan with the point's numbers of workers; whether its models do not fit into them, which from then
    /// on the program counts.
    fn plan(
        &mut self,
        model: &Model,
        point: &Point,
        search: &mut Search,
        found: &mut Best,
    ) -> Result<bool, PlannerError> {
        let problem = self.planning.problem;
        let count = |class: usize, operator: Option<usize>| {
            model.number(&point.values, (class, operator)).round() as u32
        };
        let most = found.cutoff(0.0);
        let placement = if model.hosts.is_empty() {
            let mut routes = Routes::new(&self.planning, &self.joint);
            routes.known = std::mem::take(&mut self.known_plans);
            let placement = search.with_workers(&mut routes, count, most);
            self.known_plans = routes.known;
            placement
        } else {
            let planning = self.with_models_of(model, point);
            search.with_workers(&mut Routes::new(&planning, &self.joint), count, most)
        };
        let mut is_new = false;
        for (class, _) in placement.iter().flat_map(|placement| too_small(problem, placement)) {
            for facts in self.in_time.classes.iter_mut().filter(|facts| facts.class == class) {
                is_new |= facts.memory.is_none();
                facts.memory = problem.worker_classes[class].memory_bytes;
            }
        }
        found.offer_placement(problem, placement)?;
        Ok(is_new)
    }

    /// What plans may choose from where the workers of a class and wait have only the models that the point gives them.
    fn with_models_of(&self, model: &Model, point: &Point) -> Prepared<'a> {
        let mut planning = self.planning.clone();
        let without = model.hosts.iter().filter(|(.., hosts)| point.values[*hosts] < 0.5);
        let without = without.map(|&(operator, index, _)| (operator, &self.in_time.choices[operator][index]));
        for (operator, out) in without {
            planning.choices[operator].retain(|choice| (choice.class, choice.mode) != (out.class, out.mode));
        }
        planning
    }

    /// Refines the points of time by a point, and by what its whole numbers cost then, again and again; whether there
    /// are points that were not there before.
    fn refine_by_numbers(&mut self, model: &Model, point: &Point, search: &mut Search) -> bool {
        let numbers = &point.values[..model.first_flow];
        let (mut model, mut values) = (model.clone(), point.values.clone());
        let mut is_refined = false;
        for _ in 0..RELAXATIONS_WITH_NUMBERS {
            if !self.in_time.refine(&model, &values) {
                break;
            }
            is_refined = true;
            model = Model::new(&self.in_time, &self.allowed);
            let given = model.program.with_integers_of(numbers);
            let effort = Effort { relaxed: true, ..search.effort(1.0) };
            let Answer::Found(point) = search.solve(&given, &effort) else { break };
            values = point.values;
        }
        is_refined
    }
}
