//! A more accurate plan at the same cost: workers are paid for whole, and what is idle of them may do for better models. The
//! workers of the cheapest plan stay; joint variants whose work they may be able to do are tried on them, the most accurate
//! first, and where none of many fits, better variants one operator at a time.
use super::model::{Allowed, Model};
use super::prepared::{LatencyRule, MemoryRule, Prepared};
use super::program::{Answer, Effort};
use super::routes::Routes;
use super::search::Search;
use super::variants::product;
use super::{Best, extract};
use crate::check::check;
use crate::cost::cost;
use crate::planner::PlannerError;
use crate::problem::{AccuracyModel, Problem, ServiceMode, Variant};
use crate::realise::realise;
use crate::solution::Solution;

/// By how many percentage points a plan must be more accurate to be worth busier workers.
const WORTH: f64 = 0.5;
/// Most joint variants that are listed, and that are tried.
const LISTED: u64 = 20_000;
const TRIED: usize = 32;
/// Costs that differ by less than this part are equal.
const EQUAL: f64 = 1e-9;
/// The same for relaxations, which are rounded more.
const NEARLY: f64 = 1e-6;

/// Takes a more accurate plan on the same workers, where one costs the same and keeps all limits.
pub(super) fn more_accurate(
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
    let is_as_cheap = |solution: &Solution| costs(solution) <= total * (1.0 + EQUAL);
    let Some(work) = Work::on_workers_of(problem, &solution) else { return Ok(()) };
    let better = more_accurate_joints(problem, excluded, &solution.variants, &work);
    if better.is_empty() {
        return Ok(());
    }
    let rules = vec![MemoryRule::Ignored; problem.worker_classes.len()];
    let prepared = Prepared::new(problem, &rules, LatencyRule::Budgets, 1.0)?;
    for joint in better.iter().take(TRIED) {
        if search.time.left_of(search.limits.wall_seconds) <= 0.0 {
            return Ok(());
        }
        let in_place = in_place(problem, &solution, joint).filter(is_as_cheap);
        let planned_anew = || on_same_workers(&prepared, &solution, joint, total, search).filter(is_as_cheap);
        if let Some(better) = in_place.or_else(planned_anew) {
            found.plan = Some((total, better));
            return Ok(());
        }
    }
    if better.len() > TRIED {
        let climbed = climbed(problem, excluded, solution, &is_as_cheap);
        found.plan = Some((total, climbed));
    }
    Ok(())
}

/// The plan with better variants, one operator after the other, as far as its workers do: each time the exchange that gains
/// most.
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
                if its >= accuracy(&solution.variants) + WORTH && !excluded.contains(&joint) {
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

/// The least work that variants are on the workers of a plan, and what these can do, in workers.
#[derive(Debug)]
struct Work {
    /// By operator and variant; infinite where it runs on none of them.
    least: Vec<Vec<f64>>,
    most: f64,
}

impl Work {
    /// None where the plan has no workers.
    fn on_workers_of(problem: &Problem, plan: &Solution) -> Option<Self> {
        let mut classes: Vec<usize> = plan.workers.iter().map(|worker| worker.class).collect();
        classes.sort_unstable();
        classes.dedup();
        let least = problem.operators.iter().map(|operator| {
            let seconds = |variant: &Variant| {
                let modes = classes.iter().flat_map(|&class| variant.modes.get(class).into_iter().flatten());
                modes.map(|mode| mode.seconds_per_record).fold(f64::INFINITY, f64::min)
            };
            let work = |variant| if operator.weightless { 0.0 } else { operator.rate * seconds(variant) };
            operator.variants.iter().map(work).collect()
        });
        let most = plan.workers.len() as f64 * problem.limits.max_utilization;
        (!classes.is_empty()).then(|| Self { least: least.collect(), most: most * (1.0 + EQUAL) })
    }

    fn may_fit(&self, joint: &[usize]) -> bool {
        self.least.iter().zip(joint).map(|(of, &variant)| of[variant]).sum::<f64>() <= self.most
    }
}

/// Joint variants whose accuracy is known and higher, and whose work may fit, the most accurate first.
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
        _ if problem.joint_variants() > LISTED => return Vec::new(),
        _ => {
            let all: Vec<Vec<bool>> =
                problem.operators.iter().map(|operator| vec![true; operator.variants.len()]).collect();
            product(&all)
        }
    };
    let worth = |joint: Vec<usize>| {
        let its = problem.accuracy_of(&joint)?;
        (its >= accuracy + WORTH && work.may_fit(&joint) && !excluded.contains(&joint))
            .then_some((its, joint))
    };
    let mut better: Vec<(f64, Vec<usize>)> = all.into_iter().filter_map(worth).collect();
    better.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    better.into_iter().map(|(_, joint)| joint).collect()
}

/// The same plan with other variants, each in the mode most like the one before; none where one does not run there.
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
    Some(with_joint)
}

/// The cheapest shares and routes for those variants with the numbers of workers of a plan.
fn on_same_workers(
    prepared: &Prepared<'_>,
    plan: &Solution,
    joint: &[usize],
    total: f64,
    search: &mut Search,
) -> Option<Solution> {
    let placement = if prepared.problem.limits.latency.is_empty() {
        let with_joint = Solution { variants: joint.to_vec(), ..plan.clone() };
        let model = Model::new(prepared, &Allowed::only(prepared, joint));
        let given = model.program.with_integers_of(&model.integers_of(prepared, &with_joint)?);
        match search.solve(&given, &Effort { relaxed: true, ..search.effort(1.0) }) {
            Answer::Found(point) => extract::placement(prepared, &model, &point.values),
            _ => return None,
        }
    } else {
        let mut routes = Routes::new(prepared, joint);
        let count = |class: usize, operator: Option<usize>| prepared.workers_of(class, operator, plan);
        search.with_workers(&mut routes, count, total * (1.0 + NEARLY))?
    };
    realise(prepared.problem, &placement).ok()
}

#[cfg(test)]
mod tests {
    use crate::check::check;
    use crate::generator::{small_problem, small_problem_with_latency};
    use crate::planner::{Planner, SearchLimits};
    use crate::planners::exact::Exact;
    use crate::problem::{AccuracyModel, Problem};

    /// The first operator gets, for each of its variants, one more that is `slower` times as slow.
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
            // As quick as the others.
            let Some((cost, accuracy)) = planned(&with_more_accurate_copies(problem.clone(), 1.0, 10.0))
            else {
                continue;
            };
            planned_in_all += 1;
            assert!(accuracy > 59.0, "{}: {accuracy}", problem.name);
            // So slow that no worker could keep up: the cheap plan stays as it is.
            let (same, less) =
                planned(&with_more_accurate_copies(problem.clone(), 1e4, 10.0)).expect("a plan");
            assert!((same - cost).abs() <= 2e-4 * cost && less < 51.0, "{}: {same}, {less}", problem.name);
        }
        assert!(planned_in_all > 20, "{planned_in_all}");
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
