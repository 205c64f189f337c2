//! Solves the integer program: candidate by candidate, or all variants in one.
use super::incumbent::incumbent;
use super::model::{Allowed, Model};
use super::prepared::Prepared;
use super::probing::without_expensive;
use super::program::{Answer, Effort, Point, Program};
use super::tuning::{
    EQUAL_COST, FEW, FEW_EXCLUSIVE, FEW_MEMORY, FEW_NODES, MANY_OPERATORS, NODES_BEFORE_PROBING,
    PART_FOR_INCUMBENT, PART_OF_GAP_PROBED, SPLITS_OF_A_SEARCH,
};
use super::variants::{Candidates, candidates};
use crate::planner::{Highs, PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::search_time::SearchTime;
use crate::solution::Solution;

/// State of a search: limits, effort spent, best known plan.
#[derive(Debug)]
pub(super) struct Search {
    pub(super) limits: SearchLimits,
    pub(super) time: SearchTime,
    pub(super) nodes: u64,
    /// Whether HiGHS solved any part.
    pub(super) has_asked_highs: bool,
    /// Whether the wall-clock limit ended any part.
    pub(super) by_time: bool,
    /// Whether bounds must hold for every wait, not only for those that plans choose from.
    pub(super) every_wait: bool,
    /// Remaining splits of intervals of waits.
    pub(super) splits: usize,
    /// The best known plan, with its cost.
    known: Option<(f64, Solution)>,
    /// Whether the heuristics have run.
    has_heuristics: bool,
}

/// A result: a point with its model, and a proven bound (infinite: there is no plan).
#[derive(Debug)]
pub(super) struct Found {
    pub(super) best: Option<(Model, Point)>,
    pub(super) bound: f64,
}

impl Search {
    pub(super) fn new(limits: &SearchLimits, time: SearchTime) -> Self {
        Self {
            limits: *limits,
            time,
            nodes: 0,
            has_asked_highs: false,
            by_time: false,
            every_wait: false,
            splits: SPLITS_OF_A_SEARCH,
            known: None,
            has_heuristics: false,
        }
    }

    /// The limits with a share of the remaining time.
    pub(super) fn limits_of_part(&self, part: f64) -> SearchLimits {
        let left = self.time.left_of(self.limits.wall_seconds);
        let wall_seconds = self.limits.wall_seconds.map(|_| self.time.seconds() + part * left);
        SearchLimits { wall_seconds, ..self.limits }
    }

    /// Runs a part of the search under its own limits.
    pub(super) fn under<T>(&mut self, limits: SearchLimits, of: impl FnOnce(&mut Self) -> T) -> T {
        let known = self.known.take();
        let mut part = Self { limits, known, ..*self };
        let answer = of(&mut part);
        *self = Self { limits: self.limits, ..part };
        answer
    }

    /// The best known plan with its cost; runs the heuristics once for it.
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

    /// Records a plan with its cost.
    pub(super) fn know(&mut self, plan: &(f64, Solution)) {
        if self.known.as_ref().is_none_or(|(cost, _)| plan.0 < *cost) {
            self.known = Some(plan.clone());
        }
    }

    /// Forgets plans, because they were for another problem.
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
        // more, which proves them; where they cost slightly more, a smaller gap may suffice.
        let gap = self.limits.gap;
        let mut bound = self.limits.floor;
        let mut routed: Option<(Model, Point)> = None;
        let parts: &[f64] = if gap > 1e-4 { &[1.0, 0.6] } else { &[0.9] };
        for part in parts {
            let limits = SearchLimits { gap: part * gap, ..self.limits };
            let flows =
                self.under(limits, |search| search.directly(&prepared.without_routes(), excluded, None))?;
            bound = bound.max(flows.bound);
            match flows.best {
                None if flows.bound >= self.limits.ceiling => return Ok(Found { best: None, bound }),
                None => {}
                Some((model, point)) => {
                    let whole = Model::new(prepared, &model.allowed);
                    let given = &point.values[..model.first_flow];
                    let mut answer = self.solve(&whole.program.with_integers_of(given), &self.effort(0.5));
                    if let Answer::Infeasible = answer {
                        // These variants on other workers.
                        let binaries = whole.binaries.iter().flatten().flatten();
                        let fixed =
                            whole.program.with(binaries.map(|&binary| (binary, given[binary].round())));
                        answer = self.solve(&fixed, &self.incumbent_effort());
                    }
                    if let Answer::Found(point) = answer {
                        let (whole, point) = self.polished(whole, point);
                        if point.cost - bound <= (gap + EQUAL_COST) * point.cost {
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

    /// `start`: values of the columns for variants and workers in a known point, if all variants are in one program.
    fn directly(
        &mut self,
        prepared: &Prepared<'_>,
        excluded: &[Vec<usize>],
        start: Option<&[f64]>,
    ) -> Result<Found, PlannerError> {
        let few = if prepared.problem.limits.one_operator_per_worker {
            FEW_EXCLUSIVE
        } else if prepared.has_memory() {
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
            let model = Model::new(prepared, &Allowed::only(prepared, joint));
            match self.relaxed(&model.program) {
                Answer::Found(point) => open.push((point.cost, model)),
                Answer::Nothing { .. } => open.push((0.0, model)),
                Answer::Infeasible => {}
            }
        }
        let effort = Effort { highs: self.highs_at_once(prepared), ..self.effort(1.0) };
        open.sort_by(|a, b| a.0.total_cmp(&b.0)); // stable: the order of the list decides between equals
        let mut best: Option<(Model, Point)> = None;
        let mut bound = f64::INFINITY;
        for (relaxed, model) in open {
            let relaxed = relaxed.max(self.limits.floor);
            let cutoff = self.limits.cutoff(best.as_ref().map(|(_, point): &(Model, Point)| point.cost));
            if relaxed >= cutoff - 1e-12 {
                bound = bound.min(relaxed);
                break;
            }
            // A candidate that cannot be cheaper than the best by more than the gap is not solved to its end.
            let mut cheaper = model.clone();
            let most =
                best.as_ref().map_or(f64::INFINITY, |(_, point)| point.cost * (1.0 - 0.5 * self.limits.gap));
            let most = most.min(self.limits.ceiling);
            if most.is_finite() {
                cheaper.program.cheaper_than(most);
            }
            let effort = Effort { seconds: self.time.left_of(self.limits.wall_seconds), ..effort.clone() };
            match self.integral(&cheaper, &effort, None) {
                Answer::Found(point) => {
                    bound = bound.min(point.bound.max(relaxed));
                    let is_better = |point: &Point, best: &Option<(Model, Point)>| {
                        best.as_ref().is_none_or(|(_, other)| point.cost < other.cost * (1.0 - 1e-9))
                    };
                    if is_better(&point, &best) {
                        // Numbers of workers are whole only within a tolerance. A point that is cheaper only by that is
                        // not taken, or each of many with equal cost would lower the bound further.
                        let fixed = model.program.with_integers_of(&point.values);
                        let point = match self.relaxed(&fixed) {
                            Answer::Found(whole) => Point { values: whole.values, cost: whole.cost, ..point },
                            _ => point,
                        };
                        if is_better(&point, &best) {
                            best = Some((model, point));
                        }
                    }
                }
                Answer::Nothing { bound: proven, .. } => bound = bound.min(proven.max(relaxed)),
                Answer::Infeasible => bound = bound.min(most),
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
        let model = Model::new(prepared, allowed);
        if let Some(highs) = self.highs_at_once(prepared) {
            return Ok(self.at_once(model, highs));
        }
        let root = match self.relaxed(&model.program) {
            Answer::Found(root) if root.cost >= self.limits.ceiling => {
                return Ok(Found { best: None, bound: root.cost });
            }
            Answer::Found(root) => Point { cost: root.cost.max(self.limits.floor), ..root },
            Answer::Infeasible => return Ok(Found { best: None, bound: f64::INFINITY }),
            Answer::Nothing { .. } => return Ok(Found { best: None, bound: 0.0 }),
        };
        let gap = self.limits.gap + EQUAL_COST;
        let effort = self.incumbent_effort();
        let known = self.known.as_ref().and_then(|(_, solution)| model.integers_of(prepared, solution));
        let mut best = None;
        let start = start.filter(|values| values.len() == model.first_flow);
        for values in start.into_iter().chain(known.as_deref()) {
            self.improve(&model.program.with_integers_of(values), &effort, &mut best);
        }
        // An earlier search means that the problem is not easy.
        let nodes = if best.is_some() { 1 } else { NODES_BEFORE_PROBING };
        let is_large = model.binaries.len() >= MANY_OPERATORS;
        let is_close = |point: &Point| point.cost - root.cost <= gap * point.cost;
        let mut is_bound_far = false;
        if !best.as_ref().is_some_and(is_close) {
            let first;
            (first, is_bound_far) = self.first_point(&model, &root);
            best = best.into_iter().chain(first).min_by(|a, b| a.cost.total_cmp(&b.cost));
        }
        let few = Effort { nodes: self.limits.nodes.min(nodes), ..self.effort(1.0) };
        let (mut best, mut bound) = match best {
            Some(point) if is_large && is_bound_far => (Some(point), root.cost),
            best => self.all_of(&model, best, root.cost, &few),
        };
        let is_settled =
            best.as_ref().map_or(bound == f64::INFINITY, |point| point.cost - bound <= gap * point.cost);
        if !is_settled && few.nodes < self.limits.nodes {
            match best {
                Some(point) => return Ok(self.without_expensive_variants(model, point, bound)),
                None => (best, bound) = self.all_of(&model, None, bound, &self.effort(1.0)),
            }
        }
        Ok(Found { best: best.map(|point| (model, point)), bound })
    }

    /// Continues from a point and a bound, without variants that cannot be part of a cheaper plan.
    fn without_expensive_variants(&mut self, model: Model, point: Point, bound: f64) -> Found {
        let cutoff = point.cost * (1.0 - PART_OF_GAP_PROBED * self.limits.gap);
        let (time, wall) = (self.time, self.limits.wall_seconds);
        let near =
            without_expensive(&model, &point.values, cutoff, || time.left_of(wall)).and_then(|allowed| {
                let all = model.binaries.iter().flatten().zip(allowed.variants.iter().flatten());
                let out = all.filter_map(|(binary, is_allowed)| binary.filter(|_| !is_allowed));
                let near = Model { program: model.program.without(out), ..model.clone() };
                match self.relaxed(&near.program) {
                    Answer::Found(root) => Some((near, root.cost)),
                    _ => None,
                }
            });
        let (model, least, cutoff) = match near {
            Some((near, least)) => (near, least, cutoff),
            None => (model, 0.0, f64::INFINITY),
        };
        let (best, next) = self.all_of(&model, Some(point), bound.max(least), &self.effort(1.0));
        Found { best: best.map(|best| (model, best)), bound: bound.max(next.min(cutoff)) }
    }

    /// Searches a whole program from the best point so far, if any; returns the best point and a bound.
    fn all_of(
        &mut self,
        model: &Model,
        mut best: Option<Point>,
        mut bound: f64,
        effort: &Effort<'_>,
    ) -> (Option<Point>, f64) {
        let is_close = |point: &Point| (point.cost - bound) <= self.limits.gap * point.cost;
        if !best.as_ref().is_some_and(is_close) {
            let start = best.as_ref().map(|point| point.values.clone());
            match self.integral(model, effort, start.as_deref()) {
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

    /// HiGHS, where it is used without latency limits: for programs with memory, unless they are large. One program
    /// with all variants goes to it at once.
    pub(super) fn highs_at_once(&self, prepared: &Prepared<'_>) -> Option<Highs> {
        let is_large = prepared.problem.operators.len() >= MANY_OPERATORS;
        self.limits.solver.highs().filter(|_| prepared.has_memory() && !is_large)
    }

    /// Solves the whole program by HiGHS, which finds its own cuts and first points.
    fn at_once(&mut self, model: Model, highs: Highs) -> Found {
        let effort = Effort { highs: Some(highs), is_hard: true, ..self.effort(1.0) };
        match self.solve(&model.program, &effort) {
            Answer::Found(point) => Found { bound: point.bound, best: Some((model, point)) },
            Answer::Nothing { bound, .. } => Found { best: None, bound },
            Answer::Infeasible => Found { best: None, bound: f64::INFINITY },
        }
    }

    /// Solves the relaxation of a program.
    pub(super) fn relaxed(&mut self, program: &Program) -> Answer {
        self.solve(program, &Effort { relaxed: true, ..self.effort(1.0) })
    }

    /// Keeps the better of the best point so far and the optimum of a restricted program.
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
        Effort { nodes: (effort.nodes / PART_FOR_INCUMBENT).max(1), seconds: effort.seconds / 3.0, ..effort }
    }

    /// Solves a model.
    pub(super) fn integral(&mut self, model: &Model, effort: &Effort<'_>, start: Option<&[f64]>) -> Answer {
        let answer = self.solve(&model.program, &Effort { start, ..effort.clone() });
        // The solver may lose the start; the better of the two counts.
        match (answer, start) {
            (Answer::Nothing { bound, nodes, by_time }, Some(values)) => {
                let cost = model.program.cost_of(values);
                Answer::Found(Point { values: values.to_vec(), cost, bound: bound.min(cost), nodes, by_time })
            }
            (Answer::Found(point), Some(values)) if model.program.cost_of(values) < point.cost - 1e-9 => {
                let cost = model.program.cost_of(values);
                Answer::Found(Point { values: values.to_vec(), cost, ..point })
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
            highs: None,
            is_hard: false,
        }
    }

    /// Solves a program and adds up the effort. Where HiGHS is available, it runs after a few nodes of `microlp` did
    /// not solve an integer program: `microlp` is quicker on most small programs and on all linear ones.
    pub(super) fn solve(&mut self, program: &Program, effort: &Effort<'_>) -> Answer {
        if effort.relaxed || effort.nodes <= FEW_NODES || effort.highs.is_none() {
            return self.solve_once(program, &Effort { highs: None, ..effort.clone() });
        }
        if effort.is_hard {
            return self.solve_once(program, effort);
        }
        let answer = self.solve_once(program, &Effort { nodes: FEW_NODES, highs: None, ..effort.clone() });
        let start = match &answer {
            Answer::Infeasible => return answer,
            Answer::Found(point) if point.cost - point.bound <= effort.gap * point.cost => return answer,
            Answer::Found(point) => Some(point.values.as_slice()),
            Answer::Nothing { .. } => effort.start,
        };
        match (self.solve_once(program, &Effort { start, ..effort.clone() }), answer) {
            (Answer::Nothing { bound, .. }, Answer::Found(point)) => {
                Answer::Found(Point { bound: point.bound.max(bound.min(point.cost)), ..point })
            }
            (by_highs, _) => by_highs,
        }
    }

    /// Solves a program by HiGHS alone where the effort names it, otherwise by `microlp` alone.
    fn solve_once(&mut self, program: &Program, effort: &Effort<'_>) -> Answer {
        let left = self.time.left_of(self.limits.wall_seconds);
        self.has_asked_highs |= effort.highs.is_some();
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
