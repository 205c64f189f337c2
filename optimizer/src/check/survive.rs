//! Losses of workers: after each, the fallback of the plan is checked as a plan of the others.
use super::{TOLERANCE, Violation, levels};
use crate::problem::{Problem, STANDBY_SHARE};
use crate::solution::{Fallback, Solution};
use std::collections::BTreeMap;

pub(super) fn check(problem: &Problem, solution: &Solution, found: &mut Vec<Violation>) {
    let count = solution.workers.len();
    // Every subset of the workers as a number in base 2 would not do for many workers: sets grow one by one.
    let mut open: Vec<Vec<usize>> = (0..count).map(|worker| vec![worker]).collect();
    while let Some(lost) = open.pop() {
        if lost.len() > problem.limits.survive as usize {
            continue;
        }
        let last = lost.last().map_or(0, |last| last + 1);
        open.extend((last..count).map(|next| [lost.as_slice(), &[next]].concat()));
        let violations = match solution.fallbacks.iter().find(|fallback| fallback.lost == lost) {
            None => vec![Violation::Shape("the plan has no routes for it".to_owned())],
            Some(fallback) => after(problem, solution, fallback),
        };
        found.extend(violations.into_iter().map(|violation| {
            let violation = Box::new(violation);
            Violation::Loss { lost: lost.clone(), violation }
        }));
    }
}

fn after(problem: &Problem, solution: &Solution, fallback: &Fallback) -> Vec<Violation> {
    let operators = problem.operators.len();
    let count = solution.hostings.len() + fallback.starts.len();
    let is_whole = |hostings: &[usize]| hostings.len() == operators && hostings.iter().all(|of| *of < count);
    if !fallback.classes.iter().all(|class| is_whole(&class.hostings)) {
        return vec![Violation::Shape("a route class names no stage of an operator".to_owned())];
    }
    let Some(left) = solution.after(fallback) else {
        return vec![Violation::Shape("a route class names a lost worker".to_owned())];
    };
    let mut found = levels(problem, &left);
    let fault = |text: String| Violation::Shape(text);
    for start in &fallback.starts {
        let Some(operator) = problem.operators.get(start.operator) else { continue };
        if operator.survive as usize >= fallback.lost.len() {
            found.push(fault(format!("{} survives it only with a restart", operator.id)));
        }
    }
    // No stage takes over much more than it had.
    let mut shares: BTreeMap<(usize, usize, usize), (f64, f64)> = BTreeMap::new();
    for hosting in &solution.hostings {
        let Some(worker) = hosting.worker else { continue };
        let class = solution.workers[worker].class;
        shares.entry((hosting.operator, class, hosting.mode)).or_default().0 += hosting.share;
    }
    for hosting in &left.hostings {
        let Some(worker) = hosting.worker.filter(|worker| *worker < left.workers.len()) else { continue };
        let class = left.workers[worker].class;
        shares.entry((hosting.operator, class, hosting.mode)).or_default().1 += hosting.share;
    }
    for ((operator, ..), (before, after)) in shares {
        let facts = &problem.operators[operator];
        let survives = !facts.weightless && facts.survive as usize >= fallback.lost.len();
        if survives && before < STANDBY_SHARE * after - TOLERANCE {
            found.push(fault(format!(
                "a stage of {} has {before} of its records, and then {after}",
                facts.id
            )));
        }
    }
    memory(problem, solution, fallback, &mut found);
    found
}

/// The models that stay loaded on the workers that are left, and those that start there.
fn memory(problem: &Problem, solution: &Solution, fallback: &Fallback, found: &mut Vec<Violation>) {
    for (worker, used) in solution.workers.iter().enumerate() {
        let Some(available) = problem.worker_classes[used.class].memory_bytes else { continue };
        if fallback.lost.contains(&worker) || fallback.starts.is_empty() {
            continue;
        }
        let here = solution.hostings.iter().chain(&fallback.starts).filter(|of| of.worker == Some(worker));
        let bytes = here.filter(|of| !problem.operators[of.operator].weightless).map(|of| {
            let variant = &problem.operators[of.operator].variants[solution.variants[of.operator]];
            variant.modes[used.class].get(of.mode).map_or(0.0, |mode| mode.memory_bytes)
        });
        let needed: f64 = bytes.sum();
        if needed > available * (1.0 + 1e-9) {
            found.push(Violation::Memory { worker, needed, available });
        }
    }
}
