//! Beam search for workers with given variants: Algorithm 1 of JellyBean, over pools of workers that expand tier by tier
//! and over several topological orders.
use super::assignment::{Assignment, Preference, Routing, Rule, Wait};
use super::{one_worker, selection};
use crate::check::check;
use crate::cost::cost;
use crate::planner::{PlannerError, SearchLimits, without_losses};
use crate::problem::{Problem, Producer};
use crate::search_time::SearchTime;
use crate::solution::{Outcome, Solution, Status};
use tidemill_random::Random;

/// Settings of a search.
#[derive(Debug, Clone)]
pub(super) struct Search {
    /// Worker classes of each pool: `pools[pool][class]`.
    pub(super) pools: Vec<Vec<bool>>,
    /// Assignments kept after each operator.
    pub(super) width: usize,
    /// Most topological orders to try.
    pub(super) orders: usize,
    pub(super) preference: Preference,
    pub(super) routing: Routing,
    pub(super) finishing: bool,
}

/// The best plan of a search so far, and the effort spent.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) best: Option<(f64, Solution)>,
    steps: u64,
    most_steps: u64,
    time: SearchTime,
    limits: SearchLimits,
    ended_by_time: bool,
}

impl Progress {
    pub(super) fn begin(limits: &SearchLimits) -> Self {
        Self {
            best: None,
            steps: 0,
            most_steps: limits.nodes,
            time: SearchTime::begin(),
            limits: *limits,
            ended_by_time: false,
        }
    }

    /// Whether the steps or the time are used up.
    pub(super) fn is_spent(&mut self) -> bool {
        self.ended_by_time |= self.time.left_of(self.limits.wall_seconds) <= 0.0;
        self.ended_by_time || self.steps >= self.most_steps
    }

    /// The planner's outcome.
    pub(super) fn outcome(self, planner: &str) -> Outcome {
        let mut outcome = Outcome::infeasible(planner, false);
        outcome.nodes = self.steps;
        outcome.seconds = self.time.seconds();
        if self.ended_by_time {
            outcome.status = Status::TimeLimited;
        }
        if let Some((cost, solution)) = self.best {
            if !self.ended_by_time {
                outcome.status = Status::Feasible;
            }
            (outcome.cost, outcome.solution) = (Some(cost), Some(solution));
        }
        outcome
    }
}

/// A pool of all classes.
pub(super) fn everywhere(problem: &Problem) -> Vec<bool> {
    vec![true; problem.worker_classes.len()]
}

/// The plan of a baseline: the most accurate variants that run in a pool, and workers for them.
///
/// # Errors
/// An invalid problem; a plan without a cost, which is a fault of the planner.
pub(super) fn with_most_accurate(
    problem: &Problem,
    limits: &SearchLimits,
    settings: &Search,
    pool: fn(&Problem) -> Vec<bool>,
    planner: &str,
) -> Result<Outcome, PlannerError> {
    problem.check()?;
    without_losses(planner, problem)?;
    let problem = &*problem.without_remotes();
    if one_worker::is_asked(problem) {
        return one_worker::planned(problem, limits, planner, |part, limits| {
            with_most_accurate(part, limits, settings, pool, planner)
        });
    }
    let mut progress = Progress::begin(limits);
    let settings = Search { pools: vec![pool(problem)], ..settings.clone() };
    if let Some(variants) = selection::most_accurate(problem, &settings.pools[0]) {
        search(&problem.at(&variants), &variants, &settings, planner, &mut progress)?;
    }
    Ok(progress.outcome(planner))
}

/// Searches workers for these variants; keeps the cheapest plan.
///
/// # Errors
/// A plan without a cost, which is a fault of the planner.
pub(super) fn search(
    problem: &Problem,
    variants: &[usize],
    search: &Search,
    planner: &str,
    progress: &mut Progress,
) -> Result<(), PlannerError> {
    for wait in waits(problem) {
        let rule = Rule {
            preference: search.preference,
            routing: search.routing,
            finishing: search.finishing,
            wait,
            longest: longest_services(problem, variants, wait),
        };
        for order in topological_orders(problem, search.orders) {
            if progress.is_spent() && progress.best.is_some() {
                return Ok(());
            }
            let mut kept = vec![Assignment::empty(problem, variants)];
            let last = order.last().copied();
            for operator in order {
                // A partial plan that costs as much as a whole one leads to no cheaper one. The last step is exempt,
                // because unneeded workers are dropped only from a whole plan.
                let known = progress.best.as_ref().filter(|_| last != Some(operator));
                let most = known.map_or(f64::INFINITY, |(cost, _)| *cost);
                let mut next: Vec<Assignment<'_>> = Vec::new();
                for assignment in &kept {
                    for pool in &search.pools {
                        next.extend(assignment.assign(operator, pool, &rule, most, &mut progress.steps));
                    }
                }
                next.retain(|assignment| assignment.cost() < most);
                next.sort_by(|a, b| a.cost().total_cmp(&b.cost()));
                next.dedup_by(|later, earlier| later.is_like(earlier));
                next.truncate(search.width);
                kept = next;
            }
            for assignment in kept {
                let Some(solution) = assignment.solution(wait) else { continue };
                consider(problem, solution, planner, progress)?;
            }
        }
    }
    Ok(())
}

/// Keeps a plan that is cheaper than the best so far, unless it violates a limit that greedy steps ignore: bandwidths,
/// the latency of paths, a worker where a weightless operator runs.
fn consider(
    problem: &Problem,
    solution: Solution,
    planner: &str,
    progress: &mut Progress,
) -> Result<(), PlannerError> {
    let fault = |reason: String| PlannerError::Fault { planner: planner.to_owned(), reason };
    let total = cost(problem, &solution).map_err(|error| fault(error.to_string()))?.total();
    if progress.best.as_ref().is_none_or(|(least, _)| total < *least) && check(problem, &solution).is_empty()
    {
        progress.best = Some((total, solution));
    }
    Ok(())
}

/// Waiting times to plan with, one for all workers of a plan.
fn waits(problem: &Problem) -> Vec<Option<Wait>> {
    let percentiles = problem.limits.latency.iter().map(|limit| limit.percentile);
    match percentiles.reduce(f64::max) {
        None => vec![None],
        Some(percentile) => {
            problem.limits.waits().into_iter().map(|seconds| Some(Wait { seconds, percentile })).collect()
        }
    }
}

/// Seconds that each operator may take, excluding waits, if everything before and after it were as fast as possible.
fn longest_services(problem: &Problem, variants: &[usize], wait: Option<Wait>) -> Vec<f64> {
    let operators = problem.operators.len();
    let wait = wait.map_or(0.0, |wait| wait.seconds);
    let beside = |operator: usize| {
        let facts = &problem.operators[operator];
        let tick = problem.held_seconds(operator);
        if facts.weightless { tick } else { tick + wait }
    };
    let fastest = |operator: usize| {
        let modes = problem.operators[operator].variants[variants[operator]].modes.iter().flatten();
        let seconds = modes.map(|mode| mode.fill_seconds + mode.call_seconds).reduce(f64::min);
        beside(operator) + seconds.unwrap_or(0.0)
    };
    let mut before = vec![0.0f64; operators];
    for operator in 0..operators {
        for edge in problem.edges.iter().filter(|edge| edge.to == operator) {
            if let Producer::Operator(producer) = edge.from {
                before[operator] = before[operator].max(before[producer] + fastest(producer));
            }
        }
    }
    let mut longest = vec![f64::INFINITY; operators];
    for limit in &problem.limits.latency {
        // Seconds from the end of an operator to the sink; none: the sink does not follow it.
        let mut behind: Vec<Option<f64>> = vec![None; operators];
        for operator in (0..operators).rev() {
            let mut outputs = problem.outputs_of(operator).into_iter().peekable();
            let is_sink = limit.sink.map_or(outputs.peek().is_none(), |sink| sink == operator);
            let paths = outputs.filter_map(|edge| {
                let to = problem.edges[edge].to;
                Some(behind[to]? + fastest(to))
            });
            behind[operator] = paths.chain(is_sink.then_some(0.0)).reduce(f64::max);
            if let Some(behind) = behind[operator] {
                let left = problem.limits.path_seconds(limit) - before[operator] - beside(operator) - behind;
                longest[operator] = longest[operator].min(left + 1e-9);
            }
        }
    }
    longest
}

/// Pools of workers that expand tier by tier, from the lowest upwards and from the highest downwards.
pub(super) fn expanding_pools(problem: &Problem) -> Vec<Vec<bool>> {
    let tiers: Vec<usize> =
        problem.worker_classes.iter().map(|class| problem.locations[class.location].tier).collect();
    let mut limits = tiers.clone();
    limits.sort_unstable();
    limits.dedup();
    let up = limits.iter().map(|limit| tiers.iter().map(|tier| tier <= limit).collect::<Vec<bool>>());
    let down = limits.iter().skip(1).map(|limit| tiers.iter().map(|tier| tier >= limit).collect());
    up.chain(down).collect()
}

/// Different topological orders: the problem's own, depth first, and reproducible random ones.
fn topological_orders(problem: &Problem, most: usize) -> Vec<Vec<usize>> {
    let mut random = Random::of_seed(0);
    let mut orders: Vec<Vec<usize>> = Vec::new();
    for number in 0..most.max(1) {
        let order = order_by(problem, |ready| match number {
            0 => 0,
            1 => ready.len() - 1,
            _ => random.below(ready.len()),
        });
        if !orders.contains(&order) {
            orders.push(order);
        }
    }
    orders
}

fn order_by(problem: &Problem, mut pick: impl FnMut(&[usize]) -> usize) -> Vec<usize> {
    let operators = problem.operators.len();
    let mut waits_for = vec![0usize; operators];
    for edge in &problem.edges {
        waits_for[edge.to] += usize::from(matches!(edge.from, Producer::Operator(_)));
    }
    let mut ready: Vec<usize> = (0..operators).filter(|&v| waits_for[v] == 0).collect();
    let mut order = Vec::with_capacity(operators);
    while !ready.is_empty() {
        let next = ready.remove(pick(&ready));
        order.push(next);
        for edge in problem.edges.iter().filter(|edge| edge.from == Producer::Operator(next)) {
            waits_for[edge.to] -= 1;
            if waits_for[edge.to] == 0 {
                ready.push(edge.to);
            }
        }
        ready.sort_unstable();
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::{PublishedSetting, Size, published_vqa_problem, small_problem, workflow_problem};
    use crate::problem::LatencyLimit;

    #[test]
    fn orders_are_topological_and_different() {
        for seed in 1..=50 {
            for problem in [small_problem(seed), workflow_problem(Size::EXTRA_LARGE, seed)] {
                let orders = topological_orders(&problem, 8);
                for (index, order) in orders.iter().enumerate() {
                    assert!(!orders[..index].contains(order));
                    assert_eq!(order.len(), problem.operators.len());
                    for edge in &problem.edges {
                        let Producer::Operator(from) = edge.from else { continue };
                        let place = |operator| order.iter().position(|&at| at == operator);
                        assert!(place(from) < place(edge.to));
                    }
                }
            }
        }
    }

    #[test]
    fn pools_expand_from_both_ends() {
        let problem = published_vqa_problem(40.0, 56.0, PublishedSetting::Shared);
        let sizes: Vec<usize> = expanding_pools(&problem)
            .iter()
            .map(|pool| pool.iter().filter(|allowed| **allowed).count())
            .collect();
        assert_eq!(sizes, [5, 9, 4]);
    }

    #[test]
    fn what_others_need_at_least_is_left_of_a_latency_limit() {
        let mut problem = published_vqa_problem(40.0, 56.0, PublishedSetting::Shared);
        problem.limits.latency = vec![LatencyLimit { percentile: 95.0, seconds: 0.2, sink: None }];
        let wait = Some(Wait { seconds: 0.02, percentile: 95.0 });
        let longest = longest_services(&problem, &[0, 1, 0], wait);
        // Image features: 200 ms minus its own wait, and minus 4.586 ms and a wait for the answers.
        assert!((longest[0] - (0.2 - 0.02 - 0.004_586 - 0.02)).abs() < 1e-6, "{longest:?}");
        // Answers: minus the slower input, speech in 26.8947 ms.
        assert!((longest[2] - (0.2 - 0.02 - 0.026_894_7 - 0.02)).abs() < 1e-6, "{longest:?}");
    }
}
