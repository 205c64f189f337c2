//! One mode for an operator on a worker. A plan over shares may mix two backends or batches of one model on a worker at
//! equal cost, which loads the model twice. Where one of them can do all the work, it does.
use crate::check::check;
use crate::problem::Problem;
use crate::solution::{Hosting, RouteClass, Solution};
use std::collections::BTreeMap;

/// The plan with one mode each, as far as it keeps all limits. Workers, locations and thus the cost stay.
pub(super) fn one_mode_each(problem: &Problem, mut solution: Solution) -> Solution {
    // By operator and worker class: workers of a class host the same.
    let mut mixed: BTreeMap<(usize, usize), Vec<usize>> = BTreeMap::new();
    for (hosting, other) in pairs(&solution.hostings) {
        if let Some(worker) = hosting.worker {
            let modes = mixed.entry((hosting.operator, solution.workers[worker].class)).or_default();
            modes.extend([hosting.mode, other.mode]);
        }
    }
    for ((operator, class), mut modes) in mixed {
        let variant = solution.variants[operator];
        let all = &problem.operators[operator].variants[variant].modes[class];
        modes.sort_by(|&a, &b| {
            all[a].seconds_per_record.total_cmp(&all[b].seconds_per_record).then(a.cmp(&b))
        });
        modes.dedup();
        let with = |mode: usize| merged(&solution, operator, class, mode);
        let first = modes.into_iter().map(with).find(|merged| check(problem, merged).is_empty());
        solution = first.unwrap_or(solution);
    }
    solution
}

/// Hostings of the same operator on the same worker.
fn pairs(hostings: &[Hosting]) -> impl Iterator<Item = (&Hosting, &Hosting)> {
    hostings.iter().enumerate().flat_map(move |(index, hosting)| {
        let rest = hostings[index + 1..].iter();
        let alike = move |other: &&Hosting| {
            hosting.worker.is_some() && (other.operator, other.worker) == (hosting.operator, hosting.worker)
        };
        rest.filter(alike).map(move |other| (hosting, other))
    })
}

/// Merges the modes of an operator on workers of a class into one, where they mix several.
fn merged(solution: &Solution, operator: usize, class: usize, mode: usize) -> Solution {
    let is_there = |hosting: &Hosting| {
        hosting.operator == operator
            && hosting.worker.is_some_and(|worker| solution.workers[worker].class == class)
    };
    let mut hostings: Vec<Hosting> = Vec::new();
    let mut place: Vec<usize> = Vec::new();
    for hosting in &solution.hostings {
        let known = hostings
            .iter()
            .position(|other| is_there(hosting) && is_there(other) && other.worker == hosting.worker);
        match known {
            Some(known) => {
                hostings[known].share += hosting.share;
                hostings[known].mode = mode;
                place.push(known);
            }
            None => {
                hostings.push(hosting.clone());
                place.push(hostings.len() - 1);
            }
        }
    }
    let mut classes: Vec<RouteClass> = Vec::new();
    for class in &solution.classes {
        let own: Vec<usize> = class.hostings.iter().map(|&hosting| place[hosting]).collect();
        let alike = |other: &&mut RouteClass| other.sources == class.sources && other.hostings == own;
        match classes.iter_mut().find(alike) {
            Some(same) => same.share += class.share,
            None => classes.push(RouteClass { hostings: own, ..class.clone() }),
        }
    }
    Solution { hostings, classes, ..solution.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::cost;
    use crate::planner::{Planner, SearchLimits};
    use crate::planners::exact::Exact;

    /// One operator with two equal modes, mixed half and half: one of them takes all at the same cost.
    #[test]
    fn a_mix_of_equal_modes_becomes_one() {
        let mut problem = crate::generator::small_problem(1);
        for variant in problem.operators.iter_mut().flat_map(|operator| &mut operator.variants) {
            for modes in variant.modes.iter_mut().filter(|modes| !modes.is_empty()) {
                let mut second = modes[0].clone();
                second.backend = Some("another".to_owned());
                modes.truncate(1);
                modes.push(second);
            }
        }
        let outcome = Exact.plan(&problem, &SearchLimits::default()).expect("it takes the problem");
        let solution = outcome.solution.expect("it has a plan");
        assert!(pairs(&solution.hostings).next().is_none(), "{:?}", solution.hostings);
        let mut mixed = solution.clone();
        let index = mixed.hostings.iter().position(|hosting| hosting.worker.is_some()).expect("a worker");
        mixed.hostings[index].share /= 2.0;
        let other = Hosting { mode: 1, ..mixed.hostings[index].clone() };
        mixed.hostings.push(other);
        let classes = mixed.classes.clone();
        mixed.classes = classes
            .into_iter()
            .flat_map(|class| {
                let mut halves = [class.clone(), class];
                halves.iter_mut().for_each(|half| half.share /= 2.0);
                let second = mixed.hostings.len() - 1;
                halves[1].hostings.iter_mut().filter(|at| **at == index).for_each(|at| *at = second);
                halves
            })
            .collect();
        assert!(pairs(&mixed.hostings).next().is_some());
        let one = one_mode_each(&problem, mixed);
        assert!(pairs(&one.hostings).next().is_none(), "{:?}", one.hostings);
        assert!(check(&problem, &one).is_empty());
        let total = |solution: &Solution| cost(&problem, solution).expect("it has a cost").total();
        assert!((total(&one) - total(&solution)).abs() < 1e-9);
    }
}
