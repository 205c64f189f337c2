//! The best plan so far, and plans of placements.
use super::fault::{NAME, fault};
use super::search::Search;
use crate::check::check;
use crate::cost::cost;
use crate::planner::{PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::realise::{Placement, RealiseError, WorkerGroup, realise};
use crate::solution::{Outcome, Solution, Status};

/// The best plan and bound so far.
#[derive(Debug)]
pub(super) struct Best {
    /// The cheapest plan that passes the check, with its cost in $/h.
    pub(super) plan: Option<(f64, Solution)>,
    /// No plan costs less; infinite: there is none.
    pub(super) bound: f64,
    /// Cost from which on no plan is wanted (see [`SearchLimits::ceiling`]).
    pub(super) ceiling: f64,
}

impl Best {
    /// Whether the search is complete: its plan is proven, or no wanted plan exists.
    pub(super) fn is_done(&self, gap: f64) -> bool {
        self.bound >= self.ceiling || self.is_close(gap)
    }

    /// Whether the plan is proven, or that there is none.
    fn is_close(&self, gap: f64) -> bool {
        let is_near =
            |(cost, _): &(f64, Solution)| Outcome::gap_between(*cost, self.bound.min(*cost)) <= gap + 1e-9;
        self.plan.as_ref().map_or(self.bound == f64::INFINITY, is_near)
    }

    /// Only plans below this cost are searched for; infinite without a plan and a ceiling.
    pub(super) fn cutoff(&self, gap: f64) -> f64 {
        self.plan.as_ref().map_or(f64::INFINITY, |(cost, _)| cost * (1.0 - gap)).min(self.ceiling)
    }

    pub(super) fn offer(&mut self, cost: f64, solution: Solution) {
        if self.plan.as_ref().is_none_or(|(least, _)| cost < *least) {
            self.plan = Some((cost, solution));
        }
    }

    /// Keeps the plan of a placement if it passes the check and is cheaper.
    pub(super) fn offer_placement(
        &mut self,
        problem: &Problem,
        placement: Option<Placement>,
    ) -> Result<(), PlannerError> {
        match placement.and_then(|placement| realised_placement(problem, placement).ok()) {
            Some(solution) => self.offer_solution(problem, solution),
            None => Ok(()),
        }
    }

    /// Keeps a plan if it passes the check and is cheaper.
    pub(super) fn offer_solution(
        &mut self,
        problem: &Problem,
        solution: Solution,
    ) -> Result<(), PlannerError> {
        if check(problem, &solution).is_empty() {
            let total = cost(problem, &solution).map_err(|error| fault(&error))?.total();
            self.offer(total, solution);
        }
        Ok(())
    }

    pub(super) fn outcome(self, limits: &SearchLimits, search: &Search) -> Outcome {
        let is_close = self.is_close(limits.gap);
        let by_time = search.by_time && self.bound < self.ceiling;
        let Some((total, solution)) = self.plan else {
            return without_plan(self.bound, by_time, search);
        };
        let bound = self.bound.min(total);
        let status = if is_close {
            Status::Optimal
        } else if by_time {
            Status::TimeLimited
        } else {
            Status::Feasible
        };
        Outcome {
            planner: NAME.to_owned(),
            status,
            solution: Some(solution),
            cost: Some(total),
            bound: Some(bound),
            gap: Some(Outcome::gap_between(total, bound)),
            nodes: search.nodes,
            has_asked_highs: search.has_asked_highs,
            seconds: search.time.seconds(),
        }
    }
}

/// The outcome without a plan: none exists where the bound is infinite, otherwise none was found.
fn without_plan(bound: f64, by_time: bool, search: &Search) -> Outcome {
    let is_proven = bound == f64::INFINITY;
    Outcome {
        status: if is_proven || !by_time { Status::Infeasible } else { Status::TimeLimited },
        bound: Some(bound),
        nodes: search.nodes,
        has_asked_highs: search.has_asked_highs,
        seconds: search.time.seconds(),
        ..Outcome::infeasible(NAME, is_proven)
    }
}

/// Realises a placement, with up to two more workers of a class whose models do not fit. Its cost counts them.
pub(super) fn realised_placement(
    problem: &Problem,
    mut placement: Placement,
) -> Result<Solution, RealiseError> {
    let first = realise(problem, &placement);
    let mut last = first.clone();
    for _ in 0..2 * problem.worker_classes.len() {
        let Err(RealiseError::Memory { class, count }) = last else { break };
        let taken: u32 = placement.groups.iter().filter(|g| g.class == class).map(|g| g.count).sum();
        let is_full = taken >= problem.worker_classes[class].count;
        let group = placement.groups.iter_mut().find(|group| group.class == class && group.count == count);
        let Some(group) = group.filter(|_| !is_full) else { break };
        group.count += 1;
        last = realise(problem, &placement);
    }
    if last.is_ok() { last } else { first }
}

/// Worker classes, with numbers of workers, whose memory is too small for the models.
pub(super) fn too_small(problem: &Problem, placement: &Placement) -> Vec<(usize, u32)> {
    let alone = |group: &WorkerGroup| {
        let of_group = Placement { groups: vec![group.clone()], ..placement.clone() };
        matches!(realise(problem, &of_group), Err(RealiseError::Memory { .. }))
    };
    let groups = placement.groups.iter().filter(|group| alone(group));
    groups.map(|group| (group.class, group.count)).collect()
}
