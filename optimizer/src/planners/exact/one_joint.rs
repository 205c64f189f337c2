//! The cheapest plan with given variants under latency limits: plans and a bound.
//!
//! The program is the cheapest flow over time ([`super::latency_times`]). With one variant of each operator it is
//! small. It gets smaller by removing workers that the relaxation over whole routes proves too expensive for a plan
//! cheaper than the best one known (reduced costs, probing). Rows restore what the program relaxes at joins: at the
//! prices of a relaxation over routes each route pays at least as much as the cheapest, and so do flows made of routes.
use super::best::{Best, too_small};
use super::model::{Allowed, Model};
use super::prepared::{LatencyRule, MemoryRule, Prepared};
use super::program::{Answer, Effort, Point};
use super::routes::{KnownRoutes, Prices, Routes, Slot, Workers};
use super::search::Search;
use super::tuning::{
    CLOSER, EQUAL_COST, FEW_NODES, MORE_NODES, MOST_PROGRAMS, MOST_RELAXATIONS, MOST_SPLITS,
    NODES_OF_INTERVALS, PART_FOR_PROBING, PART_OF_GAP, PART_OF_OPEN, PROBING_PASSES, PROGRESS,
    QUICK_PROGRAMS, RELAXATIONS_WITH_NUMBERS, SLOW_RELAXATIONS, SPLITS_AT_ONCE, STALLED_SPLITS, VIOLATED,
};
use super::wait_levels::WaitLevels;
use crate::planner::PlannerError;
use std::rc::Rc;

/// Given variants, and the knowledge about them.
#[derive(Debug)]
pub(super) struct OneJoint<'a> {
    /// For the flow over time, for the relaxation over routes, and for plans.
    pub(super) in_time: Prepared<'a>,
    pub(super) bounding: Rc<Prepared<'a>>,
    pub(super) planning: Prepared<'a>,
    pub(super) joint: Vec<usize>,
    pub(super) waits: WaitLevels,
    /// Number of splits of the waits.
    pub(super) splits: usize,
    /// Splits since the bound or the plan last improved.
    stalled: usize,
    /// Workers by slot in the last integer program's point.
    pub(super) numbers: Vec<(Slot, u32)>,
    allowed: Allowed,
    /// Fewest and most workers, by slot of the routes; none before the first relaxation.
    workers: Option<Workers>,
    known: KnownRoutes,
    /// Known routes for plans.
    known_plans: KnownRoutes,
    /// Prices of relaxations over routes: rows of the program.
    rows: Vec<Prices>,
    /// Cost below which plans are still complete after workers were removed.
    narrowed: f64,
    /// Whether the few initial nodes of `microlp` did not solve a program.
    is_hard: bool,
    /// Lower bound of plans with these variants that are cheaper than the best one.
    pub(super) bound: f64,
}

/// Number and depth of integer programs.
#[derive(Debug, Clone, Copy)]
struct Depth {
    programs: usize,
    nodes: u64,
}

impl Depth {
    const QUICK: Self = Self { programs: QUICK_PROGRAMS, nodes: FEW_NODES };
    /// After splits of waits there are many columns.
    const LAST: Self = Self { programs: MOST_PROGRAMS, nodes: NODES_OF_INTERVALS };

    fn of(search: &Search) -> Self {
        Self { programs: MOST_PROGRAMS, nodes: search.limits.nodes.saturating_mul(MORE_NODES) }
    }
}

impl<'a> OneJoint<'a> {
    /// Starts with a bound only. `bounding` is prepared by `LatencyRule::Bound`, `planning` by `LatencyRule::Plan`.
    pub(super) fn new(
        bounding: &Prepared<'a>,
        planning: &Prepared<'a>,
        joint: &[usize],
        bound: f64,
        waits: WaitLevels,
    ) -> Self {
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
            waits,
            splits: 0,
            stalled: 0,
            numbers: Vec::new(),
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

    /// Searches for plans and a bound until no plan with these variants can be cheaper than the best by more than the
    /// gap. Returns whether time ran out first, or the search was quick only.
    pub(super) fn close(
        &mut self,
        is_quick: bool,
        search: &mut Search,
        found: &mut Best,
    ) -> Result<bool, PlannerError> {
        if is_quick || !self.waits.is_every {
            let depth = if is_quick { Depth::QUICK } else { Depth::of(search) };
            let is_open = self.close_with_waits(depth, search, found)?;
            return Ok(is_open && (is_quick || search.time.left_of(search.limits.wall_seconds) <= 0.0));
        }
        for _ in 0..SPLITS_AT_ONCE {
            let before = (self.bound, found.cutoff(0.0));
            let is_over = self.splits == MOST_SPLITS || self.stalled == STALLED_SPLITS;
            if is_over || search.splits == 0 || !self.narrow_waits(search, found)? {
                self.close_with_waits(Depth::LAST, search, found)?;
                return Ok(false);
            }
            search.splits -= 1;
            self.close_with_waits(Depth::QUICK, search, found)?;
            let is_moved =
                self.bound > before.0 * (1.0 + PROGRESS) || found.cutoff(0.0) < before.1 * (1.0 - PROGRESS);
            self.stalled = if is_moved { 0 } else { self.stalled + 1 };
            let is_open = self.bound < found.cutoff(search.limits.gap);
            if !is_open || search.time.left_of(search.limits.wall_seconds) <= 0.0 {
                return Ok(is_open);
            }
        }
        Ok(true)
    }

    /// Closes the gap with the present intervals of waits; returns whether a plan may still be cheaper.
    fn close_with_waits(
        &mut self,
        depth: Depth,
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
        self.programs(depth, &mut routes, search, found)?;
        self.known = std::mem::take(&mut routes.known);
        Ok(self.bound < found.cutoff(search.limits.gap))
    }

    /// Removes workers with which no plan is cheap enough, and requires those without which none is.
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
        // Each of many intervals of waits may have few workers or none: probing them all takes long and removes little.
        if self.splits == 0 && cutoff.is_finite() && cost.is_some_and(|cost| cost < cutoff) {
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

    /// Solves integer programs; each point becomes a plan or is refined away.
    fn programs(
        &mut self,
        depth: Depth,
        routes: &mut Routes<'_, '_>,
        search: &mut Search,
        found: &mut Best,
    ) -> Result<(), PlannerError> {
        let gap = search.limits.gap;
        let mut part_of_open = PART_OF_OPEN;
        for _ in 0..depth.programs {
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
            let of_program = (PART_OF_GAP * gap).max(part_of_open * open);
            let effort = Effort {
                gap: of_program,
                nodes: depth.nodes,
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
                    let number = |slot: &Slot| (*slot, model.number(&point.values, *slot).round() as u32);
                    self.numbers = routes.slots.iter().map(number).collect();
                    let (is_new, least) = self.add_row(routes, &model, &point, search, found);
                    let is_finer = self.refine_by_numbers(&model, &point, search);
                    let is_dear = least >= found.cutoff(gap);
                    let is_new =
                        if is_dear { is_new } else { is_new | self.plan(&model, &point, search, found)? };
                    let is_raised = self.bound > before * (1.0 + EQUAL_COST);
                    if !is_new && !is_finer && !is_raised && found.cutoff(gap) >= cutoff {
                        // Solves it again with a smaller gap, unless it was solved as far as possible.
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

    /// Starts again with the present intervals of waits; known bounds stay valid.
    pub(super) fn begin_anew(&mut self) -> Result<(), PlannerError> {
        let problem = self.planning.problem;
        let rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
        let prepared = |rule| Prepared::with_waits(problem, &rules, rule, 1.0, &self.waits);
        let (bounding, planning) = (prepared(LatencyRule::Bound)?, prepared(LatencyRule::Plan)?);
        let mut anew = Self::new(&bounding, &planning, &self.joint, self.bound, self.waits.clone());
        for facts in &mut anew.in_time.classes {
            let known = self.in_time.classes.iter().find(|known| known.class == facts.class);
            facts.memory = known.and_then(|known| known.memory);
        }
        (anew.splits, anew.stalled) = (self.splits, self.stalled);
        *self = anew;
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

    /// Adds the row that the relaxation over routes proves for the point's numbers of workers, if the point costs less.
    /// Returns whether it does, and a lower bound for plans with these workers.
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

    /// Offers the cheapest plan with the point's numbers of workers. Returns whether its models do not fit; from then
    /// on the program counts memory.
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

    /// Choices for plans where the workers of a class and wait have only the models that the point gives them.
    fn with_models_of(&self, model: &Model, point: &Point) -> Prepared<'a> {
        let mut planning = self.planning.clone();
        let without = model.hosts.iter().filter(|(.., hosts)| point.values[*hosts] < 0.5);
        let without = without.map(|&(operator, index, _)| (operator, &self.in_time.choices[operator][index]));
        for (operator, out) in without {
            planning.choices[operator].retain(|choice| (choice.class, choice.mode) != (out.class, out.mode));
        }
        planning
    }

    /// Refines the points of time by a point, and repeatedly by the costs of its whole numbers; returns whether there
    /// are new points.
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
