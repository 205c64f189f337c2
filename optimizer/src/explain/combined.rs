//! Relaxes several service levels together where relaxing a single one makes no plan possible.
use super::relax::{Possible, Relaxation, Relaxed, accuracy, is_possible, latency, rate};
use super::scale::{with_accuracy, with_latency, with_rate};
use crate::planner::{PlannerError, SearchLimits};
use crate::problem::Problem;
use std::cell::RefCell;

/// Largest share of a level to give up: nearly all.
const ALL: f64 = 0.9999;
/// Shares to try where nearly all is too much.
const LESS: [f64; 3] = [0.9, 0.6, 0.3];
/// Precision of the common share.
const EXACTNESS: f64 = 0.01;

/// A service level that may be relaxed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Rate,
    Accuracy,
    Latency,
}

impl Level {
    /// The problem with this share of the level given up.
    fn without(self, part: f64, problem: &Problem) -> Problem {
        match self {
            Self::Rate => with_rate(problem, 1.0 - part),
            Self::Accuracy => {
                let limit = problem.limits.accuracy.filter(|_| part < ALL);
                with_accuracy(problem, limit.map(|limit| limit * (1.0 - part)))
            }
            Self::Latency => with_latency(problem, |seconds| seconds / (1.0 - part)),
        }
    }

    /// Finds the least change of this level that makes a plan possible.
    fn least(self, problem: &Problem, possible: Possible<'_>) -> Result<Option<Relaxation>, PlannerError> {
        match self {
            Self::Rate => rate(problem, possible),
            Self::Accuracy => accuracy(problem, possible),
            Self::Latency => latency(problem, possible),
        }
    }
}

/// The problem with a relaxation applied.
fn changed(problem: &Problem, relaxation: &Relaxation) -> Problem {
    match relaxation.relaxed {
        Relaxed::Rate { factor } => with_rate(problem, factor),
        Relaxed::Accuracy { to, .. } => with_accuracy(problem, Some(to)),
        Relaxed::Latency { from, to } => with_latency(problem, |seconds| seconds * to / from),
        _ => problem.clone(),
    }
}

/// Finds the fewest service levels that make a plan possible when relaxed together, each as little as the others allow.
/// Among equally many, those with the smallest share win. Meant for problems that no single change solves (see
/// [`super::relaxations`]). Empty: not even all of them suffice.
///
/// # Errors
/// Errors of the planner.
pub fn combination(problem: &Problem, limits: &SearchLimits) -> Result<Vec<Relaxation>, PlannerError> {
    let (known, limits) = (RefCell::new(Vec::new()), &SearchLimits { every_wait: false, ..*limits });
    let possible = |problem: &Problem| is_possible(problem, limits, &known);
    let mut levels = vec![Level::Rate];
    levels.extend(problem.limits.accuracy.map(|_| Level::Accuracy));
    levels.extend((!problem.limits.latency.is_empty()).then_some(Level::Latency));
    let pairs = (0..levels.len()).flat_map(|b| (0..b).map(move |a| vec![a, b]));
    let mut sets: Vec<Vec<Level>> =
        pairs.map(|pair| pair.into_iter().map(|index| levels[index]).collect()).collect();
    if levels.len() > 2 {
        sets.push(levels);
    }
    let mut best: Option<(f64, Vec<Level>)> = None;
    for set in sets {
        if best.as_ref().is_some_and(|(_, known)| known.len() < set.len()) {
            break;
        }
        let without = |part: f64| {
            possible(&set.iter().fold(problem.clone(), |problem, level| level.without(part, &problem)))
        };
        // A set that is impossible at the best share so far is no better. Where records wait for all cameras of one
        // moment, giving up less of the rate may help.
        let most = best.as_ref().map_or(ALL, |(part, _)| *part);
        let mut parts = vec![most];
        if problem.waits_for_a_moment() {
            parts.extend(LESS.into_iter().filter(|part| *part < most));
        }
        let mut high = None;
        for part in parts {
            if without(part)? {
                high = Some(part);
                break;
            }
        }
        let Some(mut high) = high else { continue };
        let mut low = 0.0;
        while high - low > EXACTNESS {
            let middle = 0.5 * (low + high);
            match without(middle)? {
                true => high = middle,
                false => low = middle,
            }
        }
        best = Some((high, set));
    }
    let Some((part, set)) = best else { return Ok(Vec::new()) };
    // Each as little as the others allow, which are fully relaxed or already settled.
    let mut settled: Vec<Relaxation> = Vec::new();
    for (index, level) in set.iter().enumerate() {
        let others =
            settled.iter().fold(problem.clone(), |problem, relaxation| changed(&problem, relaxation));
        let others = set[index + 1..].iter().fold(others, |problem, level| level.without(part, &problem));
        if possible(&others)? {
            continue; // that the others give way is enough
        }
        settled.extend(level.least(&others, &possible)?);
    }
    Ok(settled)
}
