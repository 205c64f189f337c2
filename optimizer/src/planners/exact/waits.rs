//! Chooses waits where the problem lists none, with a bound that holds for all waits.
//!
//! A program has a column for each wait, so there cannot be many. A few fractions of the limit come first. Where the
//! plan is no cheaper without a limit, that proves it. Otherwise the waits of given variants are divided more and more
//! finely (`exact/narrow_waits.rs`), with a bound for every wait. Where that does not close the gap, plans under looser
//! limits are made, which are cheaper, or exist at all. The least waits of their workers are often short enough for the
//! limit itself, and the problem is planned once more with these waits.
use super::Asked;
use super::fault::NAME;
use crate::planner::{PlannerError, SearchLimits};
use crate::problem::Problem;
use crate::search_time::SearchTime;
use crate::solution::{Hosting, Outcome, Solution, Status};
use crate::waits::with_least_waits;

/// Factors of a limit's time for paths; plans under these looser limits show the waits that they need.
const LOOSER: [f64; 4] = [2.5, 1.6, 1.25, 1.1];
/// Factor of a wait that a plan needs: another plan, for example without batches, may need that much.
const LONGER: f64 = 1.15;
/// Gap of cheaper plans under looser limits.
const LOOSE_GAP: f64 = 0.01;
/// A gap too small for a search for other waits.
const NEAR_GAP: f64 = 0.001;
/// A gap that every plan keeps: any plan will do.
const ANY_PLAN: f64 = 1e6;
/// From this gap on the caller accepts any plan.
const MOST_GAP: f64 = 1.0;
/// Share of the remaining time for a bound for every wait.
const PART_FOR_BOUND: f64 = 0.2;
/// Share of the remaining time for a plan under a looser limit.
const PART_OF_TIME: f64 = 0.2;
/// Waits that differ by less than this part are equal.
const RELATIVE: f64 = 0.05;
/// Most waits of looser plans: each takes a column of every model on every kind of worker.
const MOST_WAITS: usize = 10;
/// Relative rounding of a wait found by bisection.
const ROUNDING: f64 = 1e-6;
/// Costs that differ by less than this part are equal.
const EQUAL_COST: f64 = 1e-9;

/// Plans a problem with latency limits and without listed waits.
pub(super) fn with_waits<F>(
    problem: &Problem,
    limits: &SearchLimits,
    planned: F,
) -> Result<Outcome, PlannerError>
where
    F: Fn(&Problem, &SearchLimits, Asked<'_>) -> Result<Outcome, PlannerError>,
{
    let time = SearchTime::begin();
    let mut search = Waits { problem, limits, planned, time, bound: limits.floor, nodes: 0, is_cut: false };
    let few = problem.limits.waits();
    // Where only a cheap plan is wanted, the bound without a limit often excludes one. With devices a search is over at
    // the first plan that costs no more.
    let is_bound_first = limits.ceiling.is_finite() || (problem.has_remotes() && limits.gap < MOST_GAP);
    let none = Outcome::infeasible(NAME, false);
    if is_bound_first {
        search.without_limit(limits.gap)?;
        if search.is_closed(&none) {
            return Ok(search.outcome(none));
        }
    }
    let mut best = search.tried(&few, &search.of_time(1.0), Asked::default())?;
    if !is_bound_first && !search.is_closed(&best) && (best.solution.is_none() || limits.gap < MOST_GAP) {
        search.without_limit(if best.cost.is_some() { limits.gap } else { ANY_PLAN })?;
    }
    if limits.every_wait && !search.is_closed(&best) {
        let of_time = search.of_time(PART_FOR_BOUND);
        let next = search.tried(&few, &of_time, Asked { known: best.solution.as_ref(), every_wait: true })?;
        search.bound = search.bound.max(next.bound.unwrap_or(0.0));
        search.is_cut |= next.status == Status::TimeLimited;
        best = search.better(best, next);
    }
    let gap = if best.solution.is_some() { LOOSE_GAP } else { ANY_PLAN };
    if !search.is_near(&best) {
        let mut waits = search.of_looser_plans(&best, gap)?;
        if !waits.is_empty() {
            match &best.solution {
                Some(solution) => add(&mut waits, of(&with_least_waits(problem, solution))),
                None => add(&mut waits, few.into_iter()),
            }
            let known = best.solution.clone();
            let asked = Asked { known: known.as_ref(), every_wait: false };
            let next = search.tried(&waits, &search.of_time(1.0), asked)?;
            search.is_cut |= next.status == Status::TimeLimited;
            best = search.better(best, next);
        }
    }
    Ok(search.outcome(best))
}

struct Waits<'a, F> {
    problem: &'a Problem,
    limits: &'a SearchLimits,
    planned: F,
    time: SearchTime,
    /// No plan costs less, with any waits; infinite: there is none.
    bound: f64,
    /// Nodes of searches whose plans are not taken.
    nodes: u64,
    /// Whether time ended a search.
    is_cut: bool,
}

impl<F> Waits<'_, F>
where
    F: Fn(&Problem, &SearchLimits, Asked<'_>) -> Result<Outcome, PlannerError>,
{
    fn tried(&self, waits: &[f64], limits: &SearchLimits, asked: Asked<'_>) -> Result<Outcome, PlannerError> {
        let mut problem = self.problem.clone();
        problem.limits.wait_levels = waits.to_vec();
        (self.planned)(&problem, limits, asked)
    }

    /// Whether a plan is proven close enough to the cheapest, or no wanted plan exists.
    fn is_closed(&self, best: &Outcome) -> bool {
        self.bound >= self.limits.ceiling || self.is_proven(best)
    }

    fn is_proven(&self, best: &Outcome) -> bool {
        let gap = |cost| Outcome::gap_between(cost, self.bound.min(cost));
        best.cost.is_some_and(|cost| gap(cost) <= self.limits.gap + EQUAL_COST)
    }

    /// Whether the gap is closed or too small to search for other waits.
    fn is_near(&self, best: &Outcome) -> bool {
        let gap = best.cost.map(|cost| Outcome::gap_between(cost, self.bound.min(cost)));
        self.is_closed(best) || gap.is_some_and(|gap| gap <= NEAR_GAP)
    }

    /// The outcome of the best plan; its proofs hold for all waits.
    fn outcome(&self, best: Outcome) -> Outcome {
        let status = match best.cost {
            Some(_) if self.is_proven(&best) => Status::Optimal,
            _ if self.is_cut && !self.is_closed(&best) => Status::TimeLimited,
            Some(_) => Status::Feasible,
            None => Status::Infeasible, // proven only where the bound is infinite
        };
        let bound = best.cost.map_or(self.bound, |cost| cost.min(self.bound));
        Outcome {
            status,
            bound: Some(bound),
            gap: best.cost.map(|cost| Outcome::gap_between(cost, bound)),
            nodes: best.nodes + self.nodes,
            seconds: self.time.seconds(),
            ..best
        }
    }

    fn of_time(&self, part: f64) -> SearchLimits {
        let wall = self.limits.wall_seconds;
        let wall_seconds = wall.map(|_| part * self.time.left_of(wall));
        SearchLimits { wall_seconds, floor: self.bound, ..*self.limits }
    }

    /// A quick intermediate search; if time ended it, that counts for the final outcome.
    fn quick(&mut self, problem: &Problem, gap: f64, ceiling: f64) -> Result<Outcome, PlannerError> {
        let limits = SearchLimits { more_accurate: false, gap, ceiling, ..self.of_time(PART_OF_TIME) };
        let outcome = (self.planned)(problem, &limits, Asked::default())?;
        self.is_cut |= outcome.status == Status::TimeLimited;
        self.nodes += outcome.nodes;
        Ok(outcome)
    }

    /// Bounds the cost by that of a plan without a latency limit.
    fn without_limit(&mut self, gap: f64) -> Result<(), PlannerError> {
        let mut free = self.problem.clone();
        free.limits.latency.clear();
        let free = self.quick(&free, gap, self.limits.ceiling)?;
        self.bound = self.bound.max(free.bound.unwrap_or(0.0));
        Ok(())
    }

    /// The least waits that workers of cheaper plans under looser limits keep; of any plans where there is none.
    fn of_looser_plans(&mut self, best: &Outcome, gap: f64) -> Result<Vec<f64>, PlannerError> {
        let mut waits: Vec<f64> = Vec::new();
        let ceiling = best.cost.map_or(self.limits.ceiling, |cost| cost.min(self.limits.ceiling));
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
            let outcome = self.quick(&looser, gap, ceiling)?;
            match outcome.solution.as_ref().filter(|_| is_cheaper(&outcome, best)) {
                Some(solution) => add(&mut waits, of(&with_least_waits(&looser, solution))),
                None if waits.is_empty() => break, // the loosest is no cheaper, so stricter ones are not
                None => {}
            }
        }
        Ok(waits)
    }

    /// The better of two plans: the cheaper one; at equal cost the more accurate one, else the second.
    fn better(&self, first: Outcome, second: Outcome) -> Outcome {
        let (nodes, has_asked_highs) =
            (first.nodes + second.nodes, first.has_asked_highs || second.has_asked_highs);
        let accuracy = |outcome: &Outcome| {
            let solution = outcome.solution.as_ref();
            solution.and_then(|solution| self.problem.accuracy_of(&solution.variants)).unwrap_or(0.0)
        };
        let is_first = match is_cheaper(&first, &second) == is_cheaper(&second, &first) {
            true => accuracy(&first) > accuracy(&second),
            false => is_cheaper(&first, &second),
        };
        Outcome { nodes, has_asked_highs, ..if is_first { first } else { second } }
    }
}

/// Waits of the workers of a plan, and of its devices.
fn of(solution: &Solution) -> impl Iterator<Item = f64> + use<'_> {
    let of_hosting =
        |hosting: &Hosting| [hosting.wait_seconds, hosting.device.and_then(|device| device.wait_seconds)];
    solution.hostings.iter().flat_map(of_hosting).flatten().map(|wait| wait * (1.0 + ROUNDING))
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

    /// Where none of the four fractions of the level fits, the wait of a plan under a looser limit does.
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

    /// Searches that time ended prove nothing: more time would have found other waits.
    #[test]
    fn what_the_time_ended_is_not_called_optimal() {
        let mut problem = crate::generator::small_problem_with_latency(1);
        problem.limits.wait_levels.clear();
        let limits = SearchLimits { gap: 0.0, ..SearchLimits::default() };
        let calls = std::cell::Cell::new(0);
        let outcome = with_waits(&problem, &limits, |problem, _, asked| {
            calls.set(calls.get() + 1);
            let is_free = problem.limits.latency.is_empty();
            let (status, cost, bound) = match (is_free, asked.every_wait) {
                (true, _) => (Status::TimeLimited, 1.0, 0.5),
                (false, true) => (Status::TimeLimited, 2.0, 1.5),
                (false, false) => (Status::Optimal, 2.0, 2.0),
            };
            let solution = Solution {
                variants: vec![0; problem.operators.len()],
                workers: Vec::new(),
                hostings: Vec::new(),
                classes: Vec::new(),
                fallbacks: Vec::new(),
            };
            Ok(Outcome {
                status,
                cost: Some(cost),
                bound: Some(bound),
                solution: Some(solution),
                ..Outcome::infeasible("test", false)
            })
        });
        let outcome = outcome.expect("plans");
        assert_eq!(
            (outcome.status, outcome.bound, outcome.gap),
            (Status::TimeLimited, Some(1.5), Some(0.25))
        );
        assert_eq!(
            calls.get(),
            4,
            "few waits, no limit, every wait, and under the loosest, which is no cheaper"
        );
    }
}
