//! Service levels that have to give way together, where none of them alone makes a plan possible.
use super::relax::{Possible, Relaxation, Relaxed, accuracy, is_possible, latency, rate};
use super::scale::{with_accuracy, with_latency, with_rate};
use crate::planner::{PlannerError, SearchLimits};
use crate::problem::Problem;
use std::cell::RefCell;

/// The largest part of a level that is given up: nearly all.
const ALL: f64 = 0.9999;
/// Parts that are tried where nearly all is too much.
const LESS: [f64; 3] = [0.9, 0.6, 0.3];
/// The part that all of them give up is found to this.
const EXACTNESS: f64 = 0.01;

/// A service level that may give way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Level {
    Rate,
    Accuracy,
    Latency,
}

impl Level {
    /// The problem with so large a part of the level given up.
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

    /// The least change of this level that makes a plan possible.
    fn least(self, problem: &Problem, possible: Possible<'_>) -> Result<Option<Relaxation>, PlannerError> {
        match self {
            Self::Rate => rate(problem, possible),
            Self::Accuracy => accuracy(problem, possible),
            Self::Latency => latency(problem, possible),
        }
    }
}

/// The problem with a change that was found.
fn changed(problem: &Problem, relaxation: &Relaxation) -> Problem {
    match relaxation.relaxed {
        Relaxed::Rate { factor } => with_rate(problem, factor),
        Relaxed::Accuracy { to, .. } => with_accuracy(problem, Some(to)),
        Relaxed::Latency { from, to } => with_latency(problem, |seconds| seconds * to / from),
        _ => problem.clone(),
    }
}

/// The fewest service levels that make a plan possible by giving way together, each as little as the others allow; of as
/// many levels those that give up the smallest part of what is asked for. Meant for problems in which no single change does
/// (see [`super::relaxations`]). Empty: not even all of them do.
///
/// # Errors
/// Those of the planner.
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
        // What is not possible by what is the best so far is no better; where cameras of one moment are waited for, giving up
        // less of the rate may be.
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
    // Each by itself as little as the others allow, which gave way together or are settled.
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
