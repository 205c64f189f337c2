//! Operators whose records must all meet on one worker: branch and bound around a planner that ignores this.
//!
//! A problem is first planned without the requirement, which is a relaxation. Where the plan spreads such an operator,
//! there is a branch for each class of workers: one worker is taken out of the class, and only it may run the operator.
//! So the proofs of a branch hold for it, and the best of all branches is the best of the whole.
use crate::planner::{PlannerError, SearchLimits};
use crate::problem::{Problem, WorkerClass};
use crate::search_time::SearchTime;
use crate::solution::{Outcome, Solution, Status, UsedWorker};

/// Most branches to plan; unplanned ones keep their bound.
const MOST_BRANCHES: usize = 256;

/// Whether some operator must stay on one worker.
pub(super) fn is_asked(problem: &Problem) -> bool {
    problem.operators.iter().any(|operator| operator.on_one_worker && !operator.weightless)
}

/// Plans with a planner that ignores the requirement.
///
/// # Errors
/// Errors of the planner.
pub(super) fn planned(
    problem: &Problem,
    limits: &SearchLimits,
    planner: &str,
    plan: impl Fn(&Problem, &SearchLimits) -> Result<Outcome, PlannerError>,
) -> Result<Outcome, PlannerError> {
    let time = SearchTime::begin();
    let mut all = Outcome { bound: Some(f64::INFINITY), ..Outcome::infeasible(planner, true) };
    let mut open = vec![(0.0f64, Branch::whole(problem))];
    let mut looked_at = 0;
    let (mut is_out_of_time, mut is_limited) = (false, false);
    let prove = |all: &mut Outcome, bound: Option<f64>| {
        all.bound = all.bound.zip(bound).map(|(least, bound)| least.min(bound));
    };
    while let Some((known, branch)) = open.pop() {
        let left = limits.wall_seconds.map(|_| time.left_of(limits.wall_seconds).max(0.0));
        // The first plan is always made.
        is_out_of_time |= looked_at > 0 && left.is_some_and(|left| left <= 0.0);
        if known.max(limits.floor) >= limits.cutoff(all.cost) || is_out_of_time || looked_at == MOST_BRANCHES
        {
            prove(&mut all, Some(known));
            continue;
        }
        looked_at += 1;
        let own = SearchLimits { wall_seconds: left, ..limits.of_part(known, all.cost) };
        let found = plan(&branch.problem, &own)?;
        all.nodes += found.nodes;
        all.has_asked_highs |= found.has_asked_highs;
        // A branch that ended at its node limit leaves time for the others.
        is_limited |= found.status == Status::TimeLimited;
        let Some(solution) = found.solution else {
            prove(&mut all, found.bound);
            continue;
        };
        let Some(spread) = spread(problem, &solution) else {
            prove(&mut all, found.bound);
            if let Some(cost) = found.cost.filter(|cost| all.cost.is_none_or(|least| *cost < least)) {
                (all.cost, all.solution) = (Some(cost), Some(branch.of_whole(solution)));
            }
            continue;
        };
        if found.bound.is_none() {
            all.bound = None;
        }
        let bound = found.bound.unwrap_or(0.0).max(known);
        // The class with most of the operator's work comes first: it often leads to the best plan.
        let mut classes: Vec<(f64, usize)> = branch
            .classes_of(spread)
            .map(|class| {
                let here = |hosting: &&crate::solution::Hosting| {
                    hosting.operator == spread
                        && hosting.worker.is_some_and(|worker| solution.workers[worker].class == class)
                };
                (solution.hostings.iter().filter(here).map(|hosting| hosting.share).sum(), class)
            })
            .collect();
        classes.sort_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)));
        open.extend(classes.into_iter().map(|(_, class)| (bound, branch.on_one_of(spread, class))));
    }
    all.seconds = time.seconds();
    all.status = match (all.cost, all.bound) {
        (None, _) if is_out_of_time || is_limited => Status::TimeLimited,
        (None, _) => Status::Infeasible,
        (Some(cost), bound) => {
            all.bound = bound.map(|bound| bound.min(cost));
            all.gap = all.bound.map(|bound| Outcome::gap_between(cost, bound));
            match all.gap {
                Some(gap) if gap <= limits.gap + 1e-9 => Status::Optimal,
                _ if is_out_of_time || is_limited => Status::TimeLimited,
                _ => Status::Feasible,
            }
        }
    };
    Ok(all)
}

/// The first operator that must stay on one worker and is spread.
fn spread(problem: &Problem, solution: &Solution) -> Option<usize> {
    (0..problem.operators.len()).find(|&index| {
        let operator = &problem.operators[index];
        let hostings = solution.hostings.iter().filter(|hosting| hosting.operator == index);
        operator.on_one_worker && !operator.weightless && hostings.count() > 1
    })
}

/// A problem in which some operators have one worker that may run them, and none has the requirement any more.
#[derive(Debug, Clone)]
struct Branch {
    problem: Problem,
    /// The class in the whole problem, by class of the branch.
    classes: Vec<usize>,
}

impl Branch {
    fn whole(problem: &Problem) -> Self {
        let mut problem = problem.clone();
        problem.operators.iter_mut().for_each(|operator| operator.on_one_worker = false);
        Self { classes: (0..problem.worker_classes.len()).collect(), problem }
    }

    /// Classes on which an operator runs.
    fn classes_of(&self, operator: usize) -> impl Iterator<Item = usize> + '_ {
        let runs = move |class: usize| {
            self.problem.operators[operator].variants.iter().any(|variant| !variant.modes[class].is_empty())
        };
        (0..self.classes.len())
            .filter(move |class| self.problem.worker_classes[*class].count > 0 && runs(*class))
    }

    /// Separates one worker of a class, the only one that may run an operator.
    fn on_one_of(&self, operator: usize, class: usize) -> Self {
        let mut branch = self.clone();
        let problem = &mut branch.problem;
        let mut only = class;
        if problem.worker_classes[class].count > 1 {
            only = problem.worker_classes.len();
            problem.worker_classes[class].count -= 1;
            problem.worker_classes.push(WorkerClass { count: 1, ..problem.worker_classes[class].clone() });
            branch.classes.push(self.classes[class]);
            for variant in problem.operators.iter_mut().flat_map(|operator| &mut operator.variants) {
                if !variant.modes.is_empty() {
                    variant.modes.push(variant.modes[class].clone());
                }
            }
        }
        for variant in &mut problem.operators[operator].variants {
            variant
                .modes
                .iter_mut()
                .enumerate()
                .filter(|(at, _)| *at != only)
                .for_each(|(_, modes)| modes.clear());
        }
        branch
    }

    /// Converts a solution of the branch to the whole problem.
    fn of_whole(&self, mut solution: Solution) -> Solution {
        let mut used = vec![0; self.classes.len()];
        for worker in &mut solution.workers {
            let class = self.classes[worker.class];
            *worker = UsedWorker { class, index: used[class] };
            used[class] += 1;
        }
        solution
    }
}
