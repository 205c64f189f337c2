//! Narrows intervals of waits, for given variants: where the waits that a point of the relaxation needs do not fit into
//! the time of its paths, the intervals are split so that the next relaxation excludes the point.
//!
//! A point assigns each worker an interval, and its work needs a wait in it. Paths have time for the shortest waits of
//! the intervals plus a share of the difference to the waits needed. A split at that share makes waits available that a
//! plan can have. One slightly above it keeps workers from counting the shorter wait while doing the work of the
//! longer.
use super::best::{Best, realised_placement};
use super::one_joint::OneJoint;
use super::prepared::{LatencyRule, MemoryRule, Prepared};
use super::routes::Routes;
use super::search::Search;
use super::tuning::{NEAR_WAITS, NEARER_WAITS, SPLIT_HALVINGS, STEPS_OF_WAITS};
use super::wait_levels::WaitLevels;
use crate::check::{Violation, check};
use crate::planner::PlannerError;
use crate::problem::Problem;
use crate::realise::Placement;
use crate::solution::Solution;
use crate::waits::with_least_waits;

impl OneJoint<'_> {
    /// Splits intervals of waits where the last point needs it, and searches plans with waits near the needed ones;
    /// returns whether any were split.
    pub(super) fn narrow_waits(
        &mut self,
        search: &mut Search,
        found: &mut Best,
    ) -> Result<bool, PlannerError> {
        let problem = self.planning.problem;
        let is_cut = match self.relaxed_plan(search) {
            Some(relaxed) => {
                let least = with_least_waits(problem, &relaxed);
                found.offer_solution(problem, least.clone())?;
                let best = found.plan.as_ref().filter(|(_, plan)| plan.variants == self.joint);
                let near = [Some(&least), best.map(|(_, plan)| plan)];
                self.plan_near(&near.into_iter().flatten().cloned().collect::<Vec<_>>(), search, found)?;
                self.cut_at(problem, &relaxed, &least)
            }
            None => self.waits.halve(),
        };
        self.splits += 1;
        if is_cut {
            self.begin_anew()?;
        }
        Ok(is_cut)
    }

    /// Searches plans with waits near those of others: the more splits, the nearer.
    fn plan_near(
        &self,
        others: &[Solution],
        search: &mut Search,
        found: &mut Best,
    ) -> Result<(), PlannerError> {
        let problem = self.planning.problem;
        let mut waits = WaitLevels::none(problem);
        let step = NEAR_WAITS * NEARER_WAITS.powi(i32::try_from(self.splits).unwrap_or(i32::MAX));
        for other in others {
            for hosting in &other.hostings {
                let worker = hosting.worker.map(|worker| other.workers[worker].class);
                let Some((class, wait)) = worker.zip(hosting.wait_seconds) else { continue };
                for times in -STEPS_OF_WAITS..=STEPS_OF_WAITS {
                    waits.cut(class, wait * (1.0 + step).powi(times));
                }
            }
        }
        let rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
        let near = Prepared::with_waits(problem, &rules, LatencyRule::Plan, 1.0, &waits)?.only(&self.joint);
        if !near.is_servable() {
            return Ok(());
        }
        let most = found.cutoff(0.0);
        let placement = search.over_routes(&mut Routes::new(&near, &self.joint), most);
        self.offer(problem, placement, found)
    }

    /// The plan of the relaxation, if each worker could do the work of the longest wait of its interval.
    fn relaxed_plan(&self, search: &mut Search) -> Option<Solution> {
        let mut routes = Routes::new(&self.bounding, &self.joint);
        let number = |class: usize, operator: Option<usize>| {
            let known = self.numbers.iter().find(|(slot, _)| *slot == (class, operator));
            known.map_or(0, |(_, number)| *number)
        };
        let placement = match self.numbers.is_empty() {
            true => None,
            false => search.with_workers(&mut routes, number, f64::INFINITY),
        };
        let placement = placement.or_else(|| search.over_routes(&mut routes, f64::INFINITY))?;
        realised_placement(self.planning.problem, placement).ok()
    }

    /// Splits the intervals of a relaxed plan's workers, given in `least` the waits that they need; returns whether any
    /// were split.
    fn cut_at(&mut self, problem: &Problem, relaxed: &Solution, least: &Solution) -> bool {
        let waits = |position: usize, solution: &Solution| {
            let hosting = solution.hostings.iter().find(|hosting| hosting.worker == Some(position));
            hosting.and_then(|hosting| hosting.wait_seconds)
        };
        let ranges: Vec<(f64, f64)> = (0..relaxed.workers.len())
            .map(|position| {
                let class = relaxed.workers[position].class;
                let longest = waits(position, relaxed);
                let needed = waits(position, least).or(longest).unwrap_or(0.0);
                let level = self.waits.of_class(class).find(|(wait, _)| *wait == longest);
                let shortest = level.and_then(|(_, shortest)| shortest).unwrap_or(0.0);
                (shortest.min(needed), needed)
            })
            .collect();
        let at = |part: f64, (shortest, needed): (f64, f64)| shortest + part * (needed - shortest);
        let keeps = |part: f64| {
            let mut solution = relaxed.clone();
            for hosting in &mut solution.hostings {
                hosting.wait_seconds = hosting.worker.map(|worker| at(part, ranges[worker]));
            }
            let is_late = |violation: &Violation| matches!(violation, Violation::Latency { .. });
            !check(problem, &solution).iter().any(is_late)
        };
        let (mut low, mut high) = (0.0, 1.0);
        if keeps(high) {
            return self.waits.halve(); // it is no plan for another reason, such as rounding
        }
        for _ in 0..SPLIT_HALVINGS {
            let middle = 0.5 * (low + high);
            if keeps(middle) { low = middle } else { high = middle }
        }
        let mut is_cut = false;
        for (worker, &range) in relaxed.workers.iter().zip(&ranges).filter(|(_, (a, b))| a < b) {
            for part in [low, 0.5 * (1.0 + low)] {
                is_cut |= self.waits.cut(worker.class, at(part, range));
            }
        }
        is_cut
    }

    /// Offers the plan of a placement, with the least waits that its workers keep.
    fn offer(
        &self,
        problem: &Problem,
        placement: Option<Placement>,
        found: &mut Best,
    ) -> Result<(), PlannerError> {
        let solution = placement.and_then(|placement| realised_placement(problem, placement).ok());
        match solution {
            Some(solution) => found.offer_solution(problem, with_least_waits(problem, &solution)),
            None => Ok(()),
        }
    }
}
