//! Which waits a plan may choose from, where nobody gives them: some to begin with, and those that cheaper plans need.
//!
//! A program has a column for each wait, so there cannot be many, and of few each may be just longer than what a path has
//! time for. So plans under looser limits are made, which are cheaper, or there at all; what their workers keep at least is often
//! short enough for the limit itself. The problem is planned once more with these waits and those of the plan that is there. What
//! is proven is proven for the waits that were chosen from.
use crate::planner::{PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::search_time::SearchTime;
use crate::solution::{Outcome, Solution, Status};
use crate::waits::with_least_waits;

/// Times what a limit leaves for a path under which plans show what waits they need.
const LOOSER: [f64; 4] = [2.5, 1.6, 1.25, 1.1];
/// Times a wait that a plan needs: another in its place, without its batches, say, may need that much.
const LONGER: f64 = 1.15;
/// How close to their cheapest plans under looser limits are searched, where they are to be cheaper.
const LOOSE_GAP: f64 = 0.01;
/// A gap that everything keeps: any plan will do.
const ANY_PLAN: f64 = 1e6;
/// A gap from which on somebody wants any plan.
const MOST_GAP: f64 = 1.0;
/// The part of the time that is left that a plan under a looser limit may take.
const PART_OF_TIME: f64 = 0.2;
/// Waits that differ by less than this part of them are one.
const RELATIVE: f64 = 0.05;
/// Waits of looser plans at most: each takes a column of every model on every kind of worker.
const MOST_WAITS: usize = 10;
/// Halving a range gives a wait that is kept up to rounding.
const ROUNDING: f64 = 1e-6;
/// Costs that differ by a smaller part are equal.
const EQUAL_COST: f64 = 1e-9;

/// Plans a problem with latency limits and without waits to choose from.
pub(super) fn with_waits(
    problem: &Problem,
    limits: &SearchLimits,
    planned: impl Fn(&Problem, &SearchLimits) -> Result<Outcome, PlannerError>,
) -> Result<Outcome, PlannerError> {
    let mut search = Waits { problem, limits, planned, time: SearchTime::begin(), is_cut: false };
    let first = search.tried(&problem.limits.waits(), limits)?;
    let mut best = first;
    // Whether there is a plan does not depend on how cheap it is to be.
    if best.solution.is_none() && best.status == Status::Infeasible && search.could_be_better(&best)? {
        let mut waits = search.of_looser_plans(&best, ANY_PLAN)?;
        if !waits.is_empty() {
            add(&mut waits, problem.limits.waits().into_iter());
            best = search.better(best, &waits)?;
        }
    }
    let is_wanted = best.solution.is_some() && best.status != Status::TimeLimited && limits.gap < MOST_GAP;
    if is_wanted && search.could_be_better(&best)? {
        let mut waits = search.of_looser_plans(&best, LOOSE_GAP)?;
        if let Some(solution) = best.solution.as_ref().filter(|_| !waits.is_empty()) {
            add(&mut waits, of(&with_least_waits(problem, solution)));
            best = search.better(best, &waits)?;
        }
    }
    best.seconds = search.time.seconds();
    // With more time there would have been other waits.
    if search.is_cut && matches!(best.status, Status::Optimal | Status::Infeasible) {
        best.status = Status::TimeLimited;
    }
    Ok(best)
}

struct Waits<'a, F> {
    problem: &'a Problem,
    limits: &'a SearchLimits,
    planned: F,
    time: SearchTime,
    /// The time ended a search that was to find waits.
    is_cut: bool,
}

impl<F: Fn(&Problem, &SearchLimits) -> Result<Outcome, PlannerError>> Waits<'_, F> {
    fn tried(&self, waits: &[f64], limits: &SearchLimits) -> Result<Outcome, PlannerError> {
        let mut problem = self.problem.clone();
        problem.limits.wait_levels = waits.to_vec();
        (self.planned)(&problem, limits)
    }

    fn of_time(&self, part: f64) -> SearchLimits {
        let wall = self.limits.wall_seconds;
        SearchLimits { wall_seconds: wall.map(|_| part * self.time.left_of(wall)), ..*self.limits }
    }

    /// A search on the way: quick, and whether the time ended it counts for all that follows.
    fn quick(&mut self, problem: &Problem, gap: f64) -> Result<Outcome, PlannerError> {
        let limits = SearchLimits { more_accurate: false, gap, ..self.of_time(PART_OF_TIME) };
        let outcome = (self.planned)(problem, &limits)?;
        self.is_cut |= outcome.status == Status::TimeLimited;
        Ok(outcome)
    }

    /// Whether a plan is cheaper, or there, without a latency limit: only then other waits can make one cheaper.
    fn could_be_better(&mut self, best: &Outcome) -> Result<bool, PlannerError> {
        let mut free = self.problem.clone();
        free.limits.latency.clear();
        let gap = if best.cost.is_some() { self.limits.gap } else { ANY_PLAN };
        let free = self.quick(&free, gap)?;
        Ok(match (best.cost, free.cost) {
            (Some(best), Some(free)) => free < best * (1.0 - self.limits.gap - EQUAL_COST),
            (None, free) => free.is_some(),
            (Some(_), None) => false,
        })
    }

    /// What the workers of cheaper plans under looser limits keep at least; of any plans where there is none.
    fn of_looser_plans(&mut self, best: &Outcome, gap: f64) -> Result<Vec<f64>, PlannerError> {
        let mut waits: Vec<f64> = Vec::new();
        for times in LOOSER {
            let mut looser = self.problem.clone();
            let publication = looser.limits.publication_seconds;
            for limit in &mut looser.limits.latency {
                limit.seconds = publication + times * (limit.seconds - publication).max(0.0);
            }
            let mut own = looser.limits.waits();
            own.extend(waits.iter().flat_map(|wait| [*wait, LONGER * wait]));
            own.sort_by(f64::total_cmp);
            looser.limits.wait_levels = own;
            let outcome = self.quick(&looser, gap)?;
            match outcome.solution.as_ref().filter(|_| is_cheaper(&outcome, best)) {
                Some(solution) => add(&mut waits, of(&with_least_waits(&looser, solution))),
                None if waits.is_empty() => break, // the loosest is no cheaper, so stricter ones are not
                None => {}
            }
        }
        Ok(waits)
    }

    /// The better of a plan and one with these waits; where both are alike, the second, for which more is proven.
    fn better(&mut self, first: Outcome, waits: &[f64]) -> Result<Outcome, PlannerError> {
        let second = self.tried(waits, &self.of_time(1.0))?;
        let (nodes, has_asked_highs) =
            (first.nodes + second.nodes, first.has_asked_highs || second.has_asked_highs);
        let accuracy = |outcome: &Outcome| {
            let solution = outcome.solution.as_ref();
            solution.and_then(|solution| self.problem.accuracy_of(&solution.variants)).unwrap_or(0.0)
        };
        // Where the time was up, or of two waits that are nearly one the shorter would not do, the plan that was there counts.
        let is_first = match is_cheaper(&first, &second) == is_cheaper(&second, &first) {
            true => accuracy(&first) > accuracy(&second),
            false => is_cheaper(&first, &second),
        };
        // With more time the second might have been cheaper.
        self.is_cut |= is_first && second.status == Status::TimeLimited;
        Ok(Outcome { nodes, has_asked_highs, ..if is_first { first } else { second } })
    }
}

/// Waits of the workers of a plan.
fn of(solution: &Solution) -> impl Iterator<Item = f64> + use<'_> {
    solution.hostings.iter().filter_map(|hosting| hosting.wait_seconds).map(|wait| wait * (1.0 + ROUNDING))
}

fn add(waits: &mut Vec<f64>, more: impl Iterator<Item = f64>) {
    for wait in more {
        let is_new = waits.iter().all(|known| (known - wait).abs() > RELATIVE * wait);
        if is_new && waits.len() < MOST_WAITS {
            waits.push(wait);
        }
    }
    waits.sort_by(f64::total_cmp);
}

fn is_cheaper(one: &Outcome, other: &Outcome) -> bool {
    match (one.cost, other.cost) {
        (Some(one), Some(other)) => one < other * (1.0 - EQUAL_COST),
        (one, other) => one.is_some() && other.is_none(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::check;
    use crate::planner::Planner;
    use crate::planners::exact::Exact;

    /// Where none of the four parts of the level fits, the wait of a plan under a looser limit does.
    #[test]
    fn a_wait_that_a_looser_plan_needs_makes_one_cheaper_or_possible() {
        let limits = SearchLimits::default();
        let (mut cheaper, mut more_possible) = (0, 0);
        // Later ones take seconds each.
        for seed in 1..=24 {
            let mut problem = crate::generator::small_problem_with_latency(seed);
            problem.limits.wait_levels.clear();
            let mut few = problem.clone();
            few.limits.wait_levels = few.limits.waits();
            let few = Exact.plan(&few, &limits).expect("takes it");
            let outcome = Exact.plan(&problem, &limits).expect("takes it");
            if let Some(solution) = &outcome.solution {
                assert_eq!(check(&problem, solution), [], "seed {seed}");
            }
            match (few.cost, outcome.cost) {
                (Some(few), Some(cost)) => {
                    assert!(cost <= few * (1.0 + 1e-6), "seed {seed}: {cost} of {few}");
                    cheaper += u32::from(cost < few * 0.999);
                }
                (None, Some(_)) => more_possible += 1,
                (Some(_), None) => panic!("seed {seed}: a plan is lost"),
                (None, None) => {}
            }
        }
        assert!(cheaper > 0 && more_possible > 0, "{cheaper}, {more_possible}");
    }

    /// Searches that the time ends are no proof: with more time there would have been other waits.
    #[test]
    fn what_the_time_ended_is_not_called_optimal() {
        let mut problem = crate::generator::small_problem_with_latency(1);
        problem.limits.wait_levels.clear();
        let limits = SearchLimits { gap: 0.0, ..SearchLimits::default() };
        let calls = std::cell::Cell::new(0);
        let outcome = with_waits(&problem, &limits, |problem, _| {
            calls.set(calls.get() + 1);
            let status =
                if problem.limits.latency.is_empty() { Status::TimeLimited } else { Status::Optimal };
            let cost = if problem.limits.latency.is_empty() { 1.0 } else { 2.0 };
            let solution = Solution {
                variants: Vec::new(),
                workers: Vec::new(),
                hostings: Vec::new(),
                classes: Vec::new(),
            };
            Ok(Outcome {
                status,
                cost: Some(cost),
                solution: Some(solution),
                ..Outcome::infeasible("test", false)
            })
        });
        assert_eq!(outcome.expect("plans").status, Status::TimeLimited);
        assert_eq!(calls.get(), 3, "as it is, without a limit, and under the loosest, which is no cheaper");
    }
}
