//! How the integer program is solved: candidate by candidate, or all variants in one.
use super::cuts::strengthen;
use super::first_point::MANY_OPERATORS;
use super::incumbent::incumbent;
use super::live::{Live, NotLive};
use super::model::{Allowed, Model};
use super::prepared::Prepared;
use super::probing::without_dear;
use super::program::{Answer, Effort, Point, Program, SolverForm};
use super::variants::{Candidates, candidates};
use crate::planner::{PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::search_time::SearchTime;
use crate::solution::Solution;

/// Joint variants that are solved one by one: usually, with whole workers per operator, with memory in the program.
const FEW: usize = 20;
const FEW_EXCLUSIVE: usize = 1_000;
const FEW_MEMORY: usize = 100;
/// Nodes that the search of an incumbent may use, as a part of all.
const INCUMBENT_PART: u64 = 100;

/// A point that is known already is good enough to begin with where the relaxation costs less by no more than this part.
const NEAR: f64 = 0.1;
/// Part of the gap by which a plan must be cheaper for which no variant is left out.
const PART_OF_PROBING: f64 = 0.7;
/// Nodes after which it is worth to find out which variants can be left out.
const NODES_BEFORE_PROBING: u64 = 150;

/// Part of the cost by which equal costs may differ.
pub(super) const ROUNDING: f64 = 1e-9;

/// Counts what a search has used.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) limits: SearchLimits,
    pub(super) time: SearchTime,
    pub(super) nodes: u64,
    /// Whether the wall-clock limit ended a part of it.
    pub(super) by_time: bool,
    /// The best plan that is known, with its cost.
    known: Option<(f64, Solution)>,
    /// Whether the heuristics have run.
    has_heuristics: bool,
}

/// What was found: a point with its model, and a proven bound (infinite: there is no plan).
#[derive(Debug)]
pub(super) struct Found {
    pub(super) best: Option<(Model, Point)>,
    pub(super) bound: f64,
}

impl Search {
    pub(super) fn new(limits: &SearchLimits, time: SearchTime) -> Self {
        Self { limits: *limits, time, nodes: 0, by_time: false, known: None, has_heuristics: false }
    }

    /// The best plan that is known with its cost; the heuristics run once for it.
    pub(super) fn incumbent(
        &mut self,
        problem: &Problem,
        excluded: &[Vec<usize>],
    ) -> Result<&Option<(f64, Solution)>, PlannerError> {
        if !self.has_heuristics {
            self.has_heuristics = true;
            let left = self.time.left_of(self.limits.wall_seconds);
            let wall_seconds = self.limits.wall_seconds.map(|_| left / 4.0);
            if let Some(found) = incumbent(problem, &SearchLimits { wall_seconds, ..self.limits }, excluded)?
            {
                self.know(&found);
            }
        }
        Ok(&self.known)
    }

    /// Takes note of a plan with its cost.
    pub(super) fn know(&mut self, plan: &(f64, Solution)) {
        if self.known.as_ref().is_none_or(|(cost, _)| plan.0 < *cost) {
            self.known = Some(plan.clone());
        }
    }

    /// Forgets plans: they were those of another problem.
    pub(super) fn forget(&mut self) {
        self.known = None;
        self.has_heuristics = false;
    }

    pub(super) fn best(
        &mut self,
        prepared: &Prepared<'_>,
        excluded: &[Vec<usize>],
    ) -> Result<Found, PlannerError> {
        if !prepared.plans_routes || !prepared.has_circles() {
            return self.directly(prepared, excluded, None);
        }
        // Flows per link are quicker to plan. Often the best whole routes for the same variants and workers cost no
        // more, which proves them; where they cost a little more, a closer search may still do.
        let gap = self.limits.gap;
        let mut bound = 0.0f64;
        let mut routed: Option<(Model, Point)> = None;
        let parts: &[f64] = if gap > 1e-4 { &[1.0, 0.6] } else { &[0.9] };
        for part in parts {
            self.limits.gap = part * gap;
            let flows = self.directly(&prepared.without_routes(), excluded, None);
            self.limits.gap = gap;
            let flows = flows?;
            bound = bound.max(flows.bound);
            match flows.best {
                None if flows.bound == f64::INFINITY => return Ok(Found { best: None, bound }),
                None => {}
                Some((model, point)) => {
                    let whole = Model::new(prepared, &model.allowed);
                    let given = &point.values[..model.first_flow];
                    let mut answer = self.solve(&whole.program.with_integers_of(given), &self.effort(0.5));
                    if let Answer::Infeasible = answer {
                        // The same variants on other workers.
                        let binaries = whole.binaries.iter().flatten().flatten();
                        let fixed =
                            whole.program.with(binaries.map(|&binary| (binary, given[binary].round())));
                        answer = self.solve(&fixed, &self.incumbent_effort());
                    }
                    if let Answer::Found(point) = answer {
                        let (whole, point) = self.polished(whole, point);
                        if point.cost - bound <= (gap + ROUNDING) * point.cost {
                            return Ok(Found { best: Some((whole, point)), bound });
                        }
                        routed = Some((whole, point));
                    }
                }
            }
        }
        let start = routed.as_ref().map(|(model, point)| point.values[..model.first_flow].to_vec());
        let found = self.directly(prepared, excluded, start.as_deref())?;
        let best = match (found.best, routed) {
            (Some(found), Some(routed)) if routed.1.cost < found.1.cost => Some(routed),
            (found, routed) => found.or(routed),
        };
        Ok(Found { best, bound: found.bound.max(bound) })
    }

    /// `start`: values of the columns for variants and workers in a point that is known, if all variants are in one program.
    fn directly(
        &mut self,
        prepared: &Prepared<'_>,
        excluded: &[Vec<usize>],
        start: Option<&[f64]>,
    ) -> Result<Found, PlannerError> {
        let has_memory = prepared.classes.iter().any(|class| class.memory.is_some());
        let few = if prepared.problem.limits.one_operator_per_worker {
            FEW_EXCLUSIVE
        } else if has_memory {
            FEW_MEMORY
        } else {
            FEW
        };
        let found = match candidates(prepared, excluded, few) {
            Candidates::Few(joints) => self.one_by_one(prepared, &joints),
            Candidates::Many(allowed) => self.together(prepared, &allowed, start)?,
        };
        Ok(Found { best: found.best.map(|(model, point)| self.polished(model, point)), bound: found.bound })
    }

    pub(super) fn one_by_one(&mut self, prepared: &Prepared<'_>, joints: &[Vec<usize>]) -> Found {
        let mut open: Vec<(f64, Model)> = Vec::new();
        for joint in joints {
            let mut model = Model::new(prepared, &Allowed::only(prepared, joint));
            match self.root(prepared, &mut model) {
                Ok(point) => open.push((point.bound, model)),
                Err(NotLive::Unknown) => open.push((0.0, model)),
                Err(NotLive::Infeasible) => {}
            }
        }
        open.sort_by(|a, b| a.0.total_cmp(&b.0)); // stable: the order of the list decides between equals
        let mut best: Option<(Model, Point)> = None;
        let mut bound = f64::INFINITY;
        for (relaxed, mut model) in open {
            if best.as_ref().is_some_and(|(_, point)| relaxed >= point.cost * (1.0 - self.limits.gap) - 1e-12)
            {
                bound = bound.min(relaxed);
                break;
            }
            // What cannot be cheaper than the best by more than the gap need not be searched to its end.
            if let Some((_, point)) = &best {
                model.program.cheaper_than(point.cost * (1.0 - 0.5 * self.limits.gap));
            }
            match self.integral(prepared, &model, 1.0, None) {
                Answer::Found(point) => {
                    bound = bound.min(point.bound.max(relaxed));
                    if best.as_ref().is_none_or(|(_, other)| point.cost < other.cost * (1.0 - 1e-9)) {
                        best = Some((model, point));
                    }
                }
                Answer::Nothing { bound: proven, .. } => bound = bound.min(proven.max(relaxed)),
                Answer::Infeasible => {
                    if let Some((_, point)) = &best {
                        bound = bound.min(point.cost * (1.0 - 0.5 * self.limits.gap));
                    }
                }
            }
        }
        if let Some((_, point)) = &best {
            bound = bound.min(point.cost);
        }
        Found { best, bound }
    }

    pub(super) fn together(
        &mut self,
        prepared: &Prepared<'_>,
        allowed: &Allowed,
        start: Option<&[f64]>,
    ) -> Result<Found, PlannerError> {
        let mut model = Model::new(prepared, allowed);
        if self.limits.solver.is_highs() {
            return Ok(self.at_once(model, 1.0, None));
        }
        let root = match self.root(prepared, &mut model) {
            Ok(root) => root,
            Err(NotLive::Infeasible) => return Ok(Found { best: None, bound: f64::INFINITY }),
            Err(NotLive::Unknown) => return Ok(Found { best: None, bound: 0.0 }),
        };
        let effort = self.incumbent_effort();
        let known = self.known.as_ref().and_then(|(_, solution)| model.integers_of(prepared, solution));
        let mut best = None;
        let start = start.filter(|values| values.len() == model.first_flow);
        for values in start.into_iter().chain(known.as_deref()) {
            self.improve(&model.program.with_integers_of(values), &effort, &mut best);
        }
        // Where there was a search before this one, the problem is not an easy one.
        let is_large = model.binaries.len() >= MANY_OPERATORS;
        let nodes = if best.is_some() { 1 } else { NODES_BEFORE_PROBING };
        let few = Effort { nodes: self.limits.nodes.min(nodes), ..self.effort(1.0) };
        let is_near = |point: &Point| point.cost - root.bound <= NEAR * point.cost;
        let mut is_bound_far = false;
        if is_large || !best.as_ref().is_some_and(is_near) {
            let first;
            (first, is_bound_far) = self.first_point(prepared, &model, &root);
            best = best.into_iter().chain(first).min_by(|a, b| a.cost.total_cmp(&b.cost));
        }
        if best.is_none() {
            // One from a heuristic, its variants and numbers of workers.
            let known = self.incumbent(prepared.problem, &allowed.excluded)?;
            let values = known.as_ref().and_then(|(_, solution)| model.integers_of(prepared, solution));
            if let Some(values) = values {
                self.improve(&model.program.with_integers_of(&values), &effort, &mut best);
            }
        }
        let (mut best, mut bound) = match best {
            Some(point) if is_large && is_bound_far => (Some(point), root.bound),
            best => self.all_of(prepared, &model, best, root.bound, &few),
        };
        let gap = self.limits.gap + ROUNDING;
        let is_settled =
            best.as_ref().map_or(bound == f64::INFINITY, |point| point.cost - bound <= gap * point.cost);
        if !is_settled && few.nodes < self.limits.nodes {
            match best {
                Some(point) => return Ok(self.without_dear_variants(prepared, model, point, bound)),
                None => (best, bound) = self.all_of(prepared, &model, None, bound, &self.effort(1.0)),
            }
        }
        Ok(Found { best: best.map(|point| (model, point)), bound })
    }

    /// Searches on from a point and a bound, without the variants that can be part of no cheaper plan.
    fn without_dear_variants(
        &mut self,
        prepared: &Prepared<'_>,
        model: Model,
        point: Point,
        bound: f64,
    ) -> Found {
        let cutoff = point.cost * (1.0 - PART_OF_PROBING * self.limits.gap);
        let (time, wall) = (self.time, self.limits.wall_seconds);
        let near = without_dear(&model, &point.values, cutoff, || time.left_of(wall)).and_then(|allowed| {
            let all = model.binaries.iter().flatten().zip(allowed.variants.iter().flatten());
            let out = all.filter_map(|(binary, is_allowed)| binary.filter(|_| !is_allowed));
            let mut near = Model { program: model.program.without(out), ..model.clone() };
            let root = self.root(prepared, &mut near).ok()?;
            Some((near, root.bound))
        });
        let (model, least, cutoff) = match near {
            Some((near, least)) => (near, least, cutoff),
            None => (model, 0.0, f64::INFINITY),
        };
        let (best, next) = self.all_of(prepared, &model, Some(point), bound.max(least), &self.effort(1.0));
        Found { best: best.map(|best| (model, best)), bound: bound.max(next.min(cutoff)) }
    }

    /// Searches a whole program on from the best point so far, where there is one; the best then, and a bound.
    fn all_of(
        &mut self,
        prepared: &Prepared<'_>,
        model: &Model,
        mut best: Option<Point>,
        mut bound: f64,
        effort: &Effort<'_>,
    ) -> (Option<Point>, f64) {
        let is_close = |point: &Point| (point.cost - bound) <= self.limits.gap * point.cost;
        if !best.as_ref().is_some_and(is_close) {
            let start = best.as_ref().map(|point| point.values.clone());
            match self.integral_with(prepared, model, effort, start.as_deref()) {
                Answer::Found(point) => {
                    bound = bound.max(point.bound);
                    if best.as_ref().is_none_or(|other| point.cost <= other.cost) {
                        best = Some(point);
                    }
                }
                Answer::Nothing { bound: proven, .. } => bound = bound.max(proven),
                Answer::Infeasible => {
                    if best.is_none() {
                        bound = f64::INFINITY;
                    }
                }
            }
        }
        (best, bound)
    }

    /// The whole program, with a solver that finds its own cuts and first points.
    pub(super) fn at_once(&mut self, model: Model, part_of_gap: f64, start: Option<&[f64]>) -> Found {
        let effort = Effort { start, ..self.effort(part_of_gap) };
        match self.solve(&model.program, &effort) {
            Answer::Found(point) => Found { bound: point.bound, best: Some((model, point)) },
            Answer::Nothing { bound, .. } => Found { best: None, bound },
            Answer::Infeasible => Found { best: None, bound: f64::INFINITY },
        }
    }

    /// The relaxation, strengthened; with the rows that did it in the program.
    pub(super) fn root(&mut self, prepared: &Prepared<'_>, model: &mut Model) -> Result<Point, NotLive> {
        let (time, wall) = (self.time, self.limits.wall_seconds);
        let left = || time.left_of(wall);
        let form = SolverForm::of(&model.program, true).ok_or(NotLive::Infeasible)?;
        let point = |values, cost| Point { values, cost, bound: cost, nodes: 0, by_time: false };
        if form.is_decided() {
            return Ok(point(form.values(|_| 0.0), form.fixed_cost));
        }
        let mut live = Live::new(&form, left());
        if let (Err(NotLive::Unknown), true) = (&live, left() > 0.0)
            && let Some(backwards) = SolverForm::in_order(&model.program, true, true)
        {
            live = Live::new(&backwards, left()); // the solver lost its way: on another one
        }
        self.by_time |= left() <= 0.0;
        let live = strengthen(prepared, model, &form, live?, left);
        Ok(point(live.values(&form), live.cost(&form)))
    }

    /// Keeps the better of the best point so far and what a restricted program has.
    pub(super) fn improve(
        &mut self,
        program: &Program,
        effort: &Effort<'_>,
        best: &mut Option<Point>,
    ) -> bool {
        let Answer::Found(point) = self.solve(program, effort) else { return false };
        let is_better = best.as_ref().is_none_or(|other| point.cost < other.cost * (1.0 - 1e-9));
        if is_better {
            *best = Some(point);
        }
        is_better
    }

    pub(super) fn incumbent_effort(&self) -> Effort<'static> {
        let effort = self.effort(0.5);
        Effort { nodes: (effort.nodes / INCUMBENT_PART).max(1), seconds: effort.seconds / 3.0, ..effort }
    }

    fn integral(
        &mut self,
        prepared: &Prepared<'_>,
        model: &Model,
        part_of_gap: f64,
        start: Option<&[f64]>,
    ) -> Answer {
        self.integral_with(prepared, model, &self.effort(part_of_gap), start)
    }

    /// Solves a model; where waits can be chosen, first with one wait everywhere, as a start for all.
    pub(super) fn integral_with(
        &mut self,
        prepared: &Prepared<'_>,
        model: &Model,
        effort: &Effort<'_>,
        start: Option<&[f64]>,
    ) -> Answer {
        let mut waits: Vec<f64> = prepared.classes.iter().filter_map(|class| class.wait).collect();
        waits.sort_by(f64::total_cmp);
        waits.dedup();
        let mut start: Option<Vec<f64>> = start.map(<[f64]>::to_vec);
        if waits.len() > 1 && start.is_none() {
            let seconds = effort.seconds / (2.0 * waits.len() as f64);
            let mut least = f64::INFINITY;
            for wait in waits {
                let others =
                    prepared.classes.iter().zip(&model.counts).filter(|(class, _)| class.wait != Some(wait));
                let columns = others.flat_map(|(_, counts)| counts.iter().map(|(_, column)| *column));
                let narrow = model.program.without(columns);
                let quick =
                    Effort { gap: 0.02, nodes: (effort.nodes / 200).max(50), seconds, ..effort.clone() };
                if let Answer::Found(point) = self.solve(&narrow, &quick)
                    && point.cost < least
                {
                    least = point.cost;
                    start = Some(point.values);
                }
            }
        }
        let answer = self.solve(&model.program, &Effort { start: start.as_deref(), ..effort.clone() });
        // The solver may forget a start; the better of the two counts.
        match (answer, start) {
            (Answer::Nothing { bound, nodes, by_time }, Some(values)) => {
                let cost = model.program.cost_of(&values);
                Answer::Found(Point { values, cost, bound: bound.min(cost), nodes, by_time })
            }
            (Answer::Found(point), Some(values)) if model.program.cost_of(&values) < point.cost - 1e-9 => {
                let cost = model.program.cost_of(&values);
                Answer::Found(Point { values, cost, ..point })
            }
            (answer, _) => answer,
        }
    }

    /// The best shares for the whole numbers of a point: a vertex, so that few of them are above 0.
    pub(super) fn polished(&mut self, model: Model, point: Point) -> (Model, Point) {
        let fixed = model.program.with_integers_of(&point.values);
        let effort = Effort { relaxed: true, ..self.effort(1.0) };
        match fixed.solve(&Effort { seconds: effort.seconds.max(5.0), ..effort }) {
            Answer::Found(better) if better.cost <= point.cost + 1e-7 * point.cost.abs().max(1.0) => {
                (model, Point { values: better.values, cost: better.cost, ..point })
            }
            _ => (model, point),
        }
    }

    pub(super) fn effort(&self, part_of_gap: f64) -> Effort<'static> {
        Effort {
            relaxed: false,
            gap: self.limits.gap * part_of_gap,
            nodes: self.limits.nodes,
            seconds: self.time.left_of(self.limits.wall_seconds),
            start: None,
            solver: self.limits.solver,
        }
    }

    /// Solves a program, and counts what that took.
    pub(super) fn solve(&mut self, program: &Program, effort: &Effort<'_>) -> Answer {
        let left = self.time.left_of(self.limits.wall_seconds);
        let answer = program.solve(&Effort { seconds: left.min(effort.seconds), ..effort.clone() });
        match &answer {
            Answer::Found(point) => {
                self.nodes += point.nodes;
                self.by_time |= point.by_time;
            }
            Answer::Nothing { nodes, by_time, .. } => {
                self.nodes += nodes;
                self.by_time |= by_time;
            }
            Answer::Infeasible => {}
        }
        answer
    }
}
