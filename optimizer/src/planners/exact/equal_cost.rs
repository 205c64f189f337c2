//! Finds a more accurate plan at the same cost: workers are paid for whole, and their idle time may suffice for better
//! models. Joint variants whose work may cost no more are tried, the most accurate first: in place of those of the
//! cheapest plan, then on its workers, then on any workers at that total cost. Where none of many fits, better variants
//! are tried one operator at a time.
//!
//! A busier worker keeps only longer waits, so the waits of a plan are chosen again for other variants: latency limits
//! often leave room for them.
use super::best::Best;
use super::extract;
use super::extract::realised;
use super::model::{Allowed, Model};
use super::one_joint::OneJoint;
use super::prepared::{LatencyRule, MemoryRule, Prepared};
use super::program::{Answer, Effort};
use super::search::Search;
use super::tuning::{
    EQUAL_COST, EQUAL_PROGRAM_COST, MOST_ACCURATE_LISTED, MOST_ACCURATE_TRIED, PART_FOR_ACCURACY,
    WORTHWHILE_ACCURACY,
};
use super::variants::product;
use super::wait_levels::WaitLevels;
use crate::check::check;
use crate::cost::cost;
use crate::planner::{PlannerError, SearchLimits};
use crate::problem::{AccuracyModel, Problem, ServiceMode, Variant};
use crate::realise::realise;
use crate::solution::Solution;
use crate::waits::keeps;

/// Takes a more accurate plan at the same cost that keeps all limits, where one is found.
pub(super) fn more_accurate(
    problem: &Problem,
    excluded: &[Vec<usize>],
    search: &mut Search,
    found: &mut Best,
) -> Result<(), PlannerError> {
    let limits = SearchLimits { gap: EQUAL_PROGRAM_COST, ..search.limits_of_part(PART_FOR_ACCURACY) };
    let by_time = search.by_time;
    let done = search.under(limits, |search| within_time(problem, excluded, search, found));
    search.by_time = by_time; // what is proven of the cost stays proven where the time for this is up
    done
}

fn within_time(
    problem: &Problem,
    excluded: &[Vec<usize>],
    search: &mut Search,
    found: &mut Best,
) -> Result<(), PlannerError> {
    if !search.limits.more_accurate {
        return Ok(());
    }
    let Some((total, solution)) = found.plan.clone() else { return Ok(()) };
    let costs = |solution: &Solution| match cost(problem, solution) {
        Ok(cost) if check(problem, solution).is_empty() => cost.total(),
        _ => f64::INFINITY,
    };
    let is_as_cheap = |solution: &Solution| costs(solution) <= total * (1.0 + EQUAL_COST);
    let work = Work::for_cost(problem, total);
    let better = more_accurate_joints(problem, excluded, &solution.variants, &work);
    if better.is_empty() {
        return Ok(());
    }
    let anew = Anew::new(problem, total)?;
    for joint in better.iter().take(MOST_ACCURATE_TRIED) {
        if search.time.left_of(search.limits.wall_seconds) <= 0.0 {
            return Ok(());
        }
        let better = match in_place(problem, &solution, joint).filter(is_as_cheap) {
            Some(better) => Some(better),
            None => anew.plan(&solution, joint, search)?.filter(is_as_cheap),
        };
        if let Some(better) = better {
            found.plan = Some((total, better));
            return Ok(());
        }
    }
    if better.len() > MOST_ACCURATE_TRIED {
        let climbed = climbed(problem, excluded, solution, &is_as_cheap);
        found.plan = Some((total, climbed));
    }
    Ok(())
}

/// Improves variants one operator at a time, as far as the plan's workers allow: each time the exchange with the
/// largest gain.
fn climbed(
    problem: &Problem,
    excluded: &[Vec<usize>],
    mut solution: Solution,
    is_as_cheap: &impl Fn(&Solution) -> bool,
) -> Solution {
    let accuracy = |joint: &[usize]| problem.accuracy_of(joint).unwrap_or(0.0);
    loop {
        let mut exchanges: Vec<(f64, Vec<usize>)> = Vec::new();
        for (operator, facts) in problem.operators.iter().enumerate() {
            for variant in 0..facts.variants.len() {
                let mut joint = solution.variants.clone();
                joint[operator] = variant;
                let its = accuracy(&joint);
                if its >= accuracy(&solution.variants) + WORTHWHILE_ACCURACY && !excluded.contains(&joint) {
                    exchanges.push((its, joint));
                }
            }
        }
        exchanges.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
        let with = |(_, joint): (f64, Vec<usize>)| in_place(problem, &solution, &joint).filter(is_as_cheap);
        let Some(better) = exchanges.into_iter().find_map(with) else { return solution };
        solution = better;
    }
}

/// Least cost of the work of variants, in $/h, if fractions of workers could be rented.
#[derive(Debug)]
struct Work {
    /// By operator and variant; infinite where it runs on no worker.
    least: Vec<Vec<f64>>,
    most: f64,
}

impl Work {
    fn for_cost(problem: &Problem, total: f64) -> Self {
        let least = problem.operators.iter().map(|operator| {
            let price = |variant: &Variant| {
                let classes = problem.worker_classes.iter().zip(&variant.modes);
                let modes = classes.filter(|(class, _)| class.count > 0).flat_map(|(class, modes)| {
                    modes.iter().map(|mode| mode.seconds_per_record * class.price)
                });
                modes.fold(f64::INFINITY, f64::min)
            };
            let work = |variant| if operator.weightless { 0.0 } else { operator.rate * price(variant) };
            operator.variants.iter().map(work).collect()
        });
        Self { least: least.collect(), most: total * problem.limits.max_utilization * (1.0 + EQUAL_COST) }
    }

    fn may_fit(&self, joint: &[usize]) -> bool {
        self.least.iter().zip(joint).map(|(of, &variant)| of[variant]).sum::<f64>() <= self.most
    }
}

/// Joint variants of higher known accuracy whose work may fit, the most accurate first.
fn more_accurate_joints(
    problem: &Problem,
    excluded: &[Vec<usize>],
    than: &[usize],
    work: &Work,
) -> Vec<Vec<usize>> {
    let accuracy = problem.accuracy_of(than).unwrap_or(0.0);
    let all: Vec<Vec<usize>> = match &problem.accuracy {
        AccuracyModel::Table(rows) => rows.iter().map(|row| row.variants.clone()).collect(),
        AccuracyModel::None => return Vec::new(),
        _ if problem.joint_variants() > MOST_ACCURATE_LISTED => return Vec::new(),
        _ => {
            let all: Vec<Vec<bool>> =
                problem.operators.iter().map(|operator| vec![true; operator.variants.len()]).collect();
            product(&all)
        }
    };
    let worth = |joint: Vec<usize>| {
        let its = problem.accuracy_of(&joint)?;
        (its >= accuracy + WORTHWHILE_ACCURACY && work.may_fit(&joint) && !excluded.contains(&joint))
            .then_some((its, joint))
    };
    let mut better: Vec<(f64, Vec<usize>)> = all.into_iter().filter_map(worth).collect();
    better.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    better.into_iter().map(|(_, joint)| joint).collect()
}

/// The plan with other variants, each in the mode most similar to the previous one, and with the shortest waits that
/// the workers then keep; none where a variant does not run there, or no wait is kept.
fn in_place(problem: &Problem, plan: &Solution, joint: &[usize]) -> Option<Solution> {
    let mut with_joint = Solution { variants: joint.to_vec(), ..plan.clone() };
    for hosting in &mut with_joint.hostings {
        let (before, after) = (plan.variants[hosting.operator], joint[hosting.operator]);
        let Some(worker) = hosting.worker.filter(|_| before != after) else { continue };
        let class = plan.workers[worker].class;
        let modes = |variant: usize| &problem.operators[hosting.operator].variants[variant].modes[class];
        let old = &modes(before)[hosting.mode];
        let alike = |mode: &ServiceMode| mode.backend == old.backend && mode.batch == old.batch;
        let quickest = |modes: &[ServiceMode]| {
            let seconds = |mode: usize| modes[mode].seconds_per_record;
            (0..modes.len()).min_by(|&a, &b| seconds(a).total_cmp(&seconds(b)))
        };
        hosting.mode = modes(after).iter().position(alike).or_else(|| quickest(modes(after)))?;
    }
    if !problem.limits.latency.is_empty() {
        for worker in 0..with_joint.workers.len() {
            let wait = shortest_wait(problem, &with_joint, worker)?;
            let here = with_joint.hostings.iter_mut().filter(|hosting| hosting.worker == Some(worker));
            here.for_each(|hosting| hosting.wait_seconds = Some(wait));
        }
    }
    Some(with_joint)
}

/// The shortest listed wait that a worker keeps with its work.
fn shortest_wait(problem: &Problem, plan: &Solution, worker: usize) -> Option<f64> {
    let percentile = problem.limits.latency.iter().map(|limit| limit.percentile).fold(0.0, f64::max);
    problem.limits.waits().into_iter().find(|wait| keeps(problem, plan, worker, *wait, percentile))
}

/// Searches plans with given variants that cost no more than an existing one.
struct Anew<'a> {
    planning: Prepared<'a>,
    /// Set only under latency limits.
    bounding: Option<Prepared<'a>>,
    total: f64,
}

impl<'a> Anew<'a> {
    fn new(problem: &'a Problem, total: f64) -> Result<Self, PlannerError> {
        let rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
        let planning = Prepared::new(problem, &rules, LatencyRule::Plan, 1.0)?;
        let bounding = match problem.limits.latency.is_empty() {
            true => None,
            false => Some(Prepared::new(problem, &rules, LatencyRule::Bound, 1.0)?),
        };
        Ok(Self { planning, bounding, total })
    }

    /// A plan that costs no more, except for rounding, if one is found soon.
    fn plan(
        &self,
        plan: &Solution,
        joint: &[usize],
        search: &mut Search,
    ) -> Result<Option<Solution>, PlannerError> {
        let most = self.total * (1.0 + EQUAL_PROGRAM_COST) + f64::MIN_POSITIVE;
        match &self.bounding {
            None => Ok(self.on_same_workers(plan, joint, search).or_else(|| {
                let (model, point) = search.with_variants(&self.planning, joint, most)?;
                realised(self.planning.problem, &self.planning, &model, &point).ok()
            })),
            Some(bounding) => {
                // A plan has to be cheaper than this by more than the gap.
                let dearer = most / (1.0 - 2.0 * search.limits.gap);
                let plan = Some((dearer, plan.clone()));
                let mut found = Best { plan, bound: 0.0, ceiling: f64::INFINITY };
                let waits = WaitLevels::of(self.planning.problem, false);
                OneJoint::new(bounding, &self.planning, joint, 0.0, waits).close(true, search, &mut found)?;
                Ok(found.plan.map(|(_, solution)| solution).filter(|found| found.variants == joint))
            }
        }
    }

    /// The cheapest shares and routes with the plan's numbers of workers; without latency limits.
    fn on_same_workers(&self, plan: &Solution, joint: &[usize], search: &mut Search) -> Option<Solution> {
        let with_joint = Solution { variants: joint.to_vec(), ..plan.clone() };
        let model = Model::new(&self.planning, &Allowed::only(&self.planning, joint));
        let given = model.program.with_integers_of(&model.integers_of(&self.planning, &with_joint)?);
        match search.solve(&given, &Effort { relaxed: true, ..search.effort(1.0) }) {
            Answer::Found(point) => {
                realise(self.planning.problem, &extract::placement(&self.planning, &model, &point.values))
                    .ok()
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::WORTHWHILE_ACCURACY;
    use crate::check::check;
    use crate::explain::with_accuracy;
    use crate::generator::{small_problem, small_problem_with_latency};
    use crate::planner::{Planner, SearchLimits};
    use crate::planners::exact::Exact;
    use crate::problem::{AccuracyModel, Problem};

    /// Adds to the first operator a copy of each variant that takes `slower` times as long.
    fn with_more_accurate_copies(mut problem: Problem, slower: f64, points: f64) -> Problem {
        let first = &mut problem.operators[0];
        let count = first.variants.len();
        let mut copies = first.variants.clone();
        for mode in copies.iter_mut().flat_map(|variant| variant.modes.iter_mut().flatten()) {
            mode.seconds_per_record *= slower;
            mode.call_seconds *= slower;
        }
        first.variants.extend(copies);
        for edge in problem.outputs_of(0) {
            let bytes = problem.edges[edge].bytes.clone();
            problem.edges[edge].bytes.extend(bytes);
        }
        let contributions = problem.operators.iter().enumerate().map(|(operator, facts)| {
            let copied = |variant: usize| f64::from(u8::from(operator == 0 && variant >= count)) * points;
            (0..facts.variants.len()).map(copied).collect()
        });
        problem.accuracy = AccuracyModel::Additive { base: 50.0, contributions: contributions.collect() };
        problem.limits.accuracy = None;
        problem
    }

    fn planned(problem: &Problem) -> Option<(f64, f64)> {
        planned_within(problem, &SearchLimits::default())
    }

    fn planned_within(problem: &Problem, limits: &SearchLimits) -> Option<(f64, f64)> {
        let outcome = Exact.plan(problem, limits).expect("it takes the problem");
        let solution = outcome.solution?;
        assert!(check(problem, &solution).is_empty(), "{}", problem.name);
        Some((outcome.cost?, problem.accuracy_of(&solution.variants)?))
    }

    #[test]
    fn idle_workers_run_the_more_accurate_models() {
        let mut planned_in_all = 0;
        for problem in (1..=30).flat_map(|seed| [small_problem(seed), small_problem_with_latency(seed)]) {
            if problem.operators[0].weightless {
                continue;
            }
            // Copies as quick as the originals.
            let Some((cost, accuracy)) = planned(&with_more_accurate_copies(problem.clone(), 1.0, 10.0))
            else {
                continue;
            };
            planned_in_all += 1;
            assert!(accuracy > 59.0, "{}: {accuracy}", problem.name);
            // Copies too slow for any worker: the cheap plan stays as it is.
            let (same, less) =
                planned(&with_more_accurate_copies(problem.clone(), 1e4, 10.0)).expect("a plan");
            assert!((same - cost).abs() <= 2e-4 * cost && less < 51.0, "{}: {same}, {less}", problem.name);
        }
        assert!(planned_in_all > 20, "{planned_in_all}");
    }

    /// More accuracy than the answer has costs more: no plan found under another level costs as little.
    #[test]
    fn no_level_finds_more_accuracy_for_the_same_money() {
        let (mut asked, mut improved) = (0, 0);
        for seed in 1..=60 {
            for problem in [small_problem(seed), small_problem_with_latency(seed)] {
                if problem.operators[0].weightless {
                    continue;
                }
                for (slower, points) in [(1.3, 4.0), (2.0, 8.0)] {
                    let problem = with_more_accurate_copies(problem.clone(), slower, points);
                    let Some((cost, accuracy)) = planned(&problem) else { continue };
                    improved += usize::from(accuracy > 50.0);
                    let Some((more, _)) =
                        planned(&with_accuracy(&problem, Some(accuracy + WORTHWHILE_ACCURACY)))
                    else {
                        continue;
                    };
                    asked += 1;
                    let name = &problem.name;
                    assert!(
                        more > cost * (1.0 + 1e-8),
                        "{name}, {slower}: {accuracy} for {cost}, more for {more}"
                    );
                }
            }
        }
        assert!(asked > 40 && improved > 40, "{asked} asked, {improved} improved");
    }

    #[test]
    fn a_hair_of_accuracy_is_not_worth_busier_workers() {
        for seed in 1..=20 {
            let problem = with_more_accurate_copies(small_problem(seed), 1.001, 0.1);
            let as_found = SearchLimits { more_accurate: false, ..SearchLimits::default() };
            assert_eq!(planned(&problem), planned_within(&problem, &as_found), "{}", problem.name);
        }
    }
}
