//! Finds the least change that makes a plan possible, one limit at a time.
use super::scale::{with_accuracy, with_bandwidth, with_latency, with_losses, with_rate};
use crate::check::check;
use crate::planner::{Planner, PlannerError, SearchLimits};
use crate::planners::exact::Exact;
use crate::problem::Problem;
use crate::solution::Solution;
use crate::waits::with_least_waits;
use std::cell::RefCell;

/// Relative precision of rates, latencies and bandwidths.
const EXACTNESS: f64 = 1e-3;
/// Most machines of each class to add.
const MOST_MISSING: u32 = 256;

/// A change that makes a plan possible, all else unchanged.
#[derive(Debug, Clone, PartialEq)]
pub struct Relaxation {
    /// The change.
    pub relaxed: Relaxed,
    /// Size of the change relative to the requirement: 0.1 is 10 %.
    pub relative: f64,
}

/// The limit to relax.
#[derive(Debug, Clone, PartialEq)]
pub enum Relaxed {
    /// The rate: this factor of it can be served.
    Rate {
        /// Factor below 1.
        factor: f64,
    },
    /// The accuracy that can be reached.
    Accuracy {
        /// Percent asked for.
        from: f64,
        /// Percent possible.
        to: f64,
    },
    /// The latency that can be kept.
    Latency {
        /// Seconds asked for, of the strictest limit.
        from: f64,
        /// Seconds possible.
        to: f64,
    },
    /// Allow workers to be busier.
    Utilization {
        /// Allowed part of a worker's time.
        from: f64,
        /// Needed part.
        to: f64,
    },
    /// Multiply the bandwidth of all links.
    Bandwidth {
        /// Factor above 1.
        factor: f64,
    },
    /// Allow records to go to a lower tier.
    ReturnTraffic,
    /// Survive fewer losses of workers at a time.
    Survive {
        /// Losses asked for.
        from: u32,
        /// Losses that a plan survives.
        to: u32,
    },
    /// Add machines, the cheapest that suffice.
    Workers(Vec<MissingWorkers>),
}

/// Machines to add.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MissingWorkers {
    /// Their worker class.
    pub class: usize,
    /// Number of machines.
    pub count: u32,
}

/// Finds, for each kind of limit, the least change that makes a plan possible, the smallest first. Kinds that do not
/// suffice alone are left out.
///
/// # Errors
/// Errors of the planner.
pub fn relaxations(problem: &Problem, limits: &SearchLimits) -> Result<Vec<Relaxation>, PlannerError> {
    let (known, limits) = (RefCell::new(Vec::new()), &SearchLimits { every_wait: false, ..*limits });
    let possible = |problem: &Problem| is_possible(problem, limits, &known);
    let mut all = Vec::new();
    all.extend(rate(problem, &possible)?);
    all.extend(accuracy(problem, &possible)?);
    all.extend(latency(problem, &possible)?);
    all.extend(utilization(problem, &possible)?);
    all.extend(bandwidth(problem, &possible)?);
    all.extend(return_traffic(problem, &possible)?);
    all.extend(losses(problem, &possible)?);
    all.sort_by(|a, b| a.relative.total_cmp(&b.relative));
    all.extend(workers(problem, limits)?);
    Ok(all)
}

/// Whether some plan keeps all limits: one found under other limits, or a new one. So a looser level is possible
/// wherever a stricter one was.
pub(super) fn is_possible(
    problem: &Problem,
    limits: &SearchLimits,
    known: &RefCell<Vec<Solution>>,
) -> Result<bool, PlannerError> {
    // Waits that the problem fixes are kept.
    let keeps = |solution: &Solution| match problem.limits.wait_levels.is_empty() {
        true => check(problem, &with_least_waits(problem, solution)).is_empty(),
        false => check(problem, solution).is_empty(),
    };
    if known.borrow().iter().any(keeps) {
        return Ok(true);
    }
    // Any plan will do: a gap that every plan keeps ends the search at the first.
    let any = SearchLimits { gap: 1e6, more_accurate: false, ..*limits };
    let found = Exact.plan(problem, &any)?.solution;
    let is_found = found.is_some();
    known.borrow_mut().extend(found);
    Ok(is_found)
}

pub(super) type Possible<'a> = &'a dyn Fn(&Problem) -> Result<bool, PlannerError>;

/// The largest value for which a plan is possible, between a possible and an impossible one.
fn border(
    mut possible: f64,
    mut not: f64,
    is_possible: impl Fn(f64) -> Result<bool, PlannerError>,
) -> Result<f64, PlannerError> {
    while (not - possible).abs() > EXACTNESS * possible.abs().min(not.abs()) {
        let middle = 0.5 * (possible + not);
        match is_possible(middle)? {
            true => possible = middle,
            false => not = middle,
        }
    }
    Ok(possible)
}

pub(super) fn rate(problem: &Problem, possible: Possible<'_>) -> Result<Option<Relaxation>, PlannerError> {
    // If even the least rate is impossible, the rate is not the cause. That is no proof by itself: records that wait
    // for all cameras of one moment wait longer at a lower rate.
    let mut found = None;
    for factor in [1e-4, 0.9, 0.7, 0.5, 0.3, 0.1, 0.01] {
        if possible(&with_rate(problem, factor))? {
            found = Some(factor);
            if factor > 1e-4 {
                break;
            }
        } else if factor <= 1e-4 && !problem.waits_for_a_moment() {
            return Ok(None);
        }
    }
    let Some(known) = found else { return Ok(None) };
    let above = [1.0, 0.9, 0.7, 0.5, 0.3, 0.1, 0.01].into_iter().filter(|factor| *factor > known);
    let not = above.reduce(f64::min).unwrap_or(1.0);
    let factor = border(known, not, |factor| possible(&with_rate(problem, factor)))?;
    Ok(Some(Relaxation { relaxed: Relaxed::Rate { factor }, relative: 1.0 - factor }))
}

pub(super) fn accuracy(
    problem: &Problem,
    possible: Possible<'_>,
) -> Result<Option<Relaxation>, PlannerError> {
    let Some(from) = problem.limits.accuracy else { return Ok(None) };
    let lower: Vec<f64> = problem.accuracy_levels().into_iter().filter(|accuracy| *accuracy < from).collect();
    // Levels get harder as they rise: finds the first possible one.
    let (mut low, mut high) = (0, lower.len());
    while low < high {
        let middle = (low + high) / 2;
        match possible(&with_accuracy(problem, Some(lower[middle])))? {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    let found = lower.get(low).map(|&to| Relaxation {
        relaxed: Relaxed::Accuracy { from, to },
        relative: if from > 0.0 { (from - to) / from } else { 0.0 },
    });
    Ok(found)
}

pub(super) fn latency(problem: &Problem, possible: Possible<'_>) -> Result<Option<Relaxation>, PlannerError> {
    let Some(from) = problem.limits.latency.iter().map(|limit| limit.seconds).reduce(f64::min) else {
        return Ok(None);
    };
    let (mut not, mut factor) = (1.0, 1.25);
    while !possible(&with_latency(problem, |seconds| seconds * factor))? {
        (not, factor) = (factor, factor * 2.0);
        if factor > 1e4 {
            return Ok(None);
        }
    }
    let factor = border(factor, not, |factor| possible(&with_latency(problem, |seconds| seconds * factor)))?;
    Ok(Some(Relaxation { relaxed: Relaxed::Latency { from, to: from * factor }, relative: factor - 1.0 }))
}

fn utilization(problem: &Problem, possible: Possible<'_>) -> Result<Option<Relaxation>, PlannerError> {
    let from = problem.limits.max_utilization;
    let with = |value: f64| {
        let mut changed = problem.clone();
        changed.limits.max_utilization = value;
        changed
    };
    if from >= 1.0 || !possible(&with(1.0))? {
        return Ok(None);
    }
    let to = border(1.0, from, |value| possible(&with(value)))?;
    Ok(Some(Relaxation { relaxed: Relaxed::Utilization { from, to }, relative: to / from - 1.0 }))
}

fn bandwidth(problem: &Problem, possible: Possible<'_>) -> Result<Option<Relaxation>, PlannerError> {
    let bounded = problem.routes.iter().flatten().flatten().any(|route| route.bandwidth.is_some());
    if !bounded || !possible(&with_bandwidth(problem, f64::INFINITY))? {
        return Ok(None);
    }
    let (mut not, mut factor) = (1.0, 1.25);
    while !possible(&with_bandwidth(problem, factor))? {
        (not, factor) = (factor, factor * 2.0);
        if factor > 1e6 {
            return Ok(None);
        }
    }
    let factor = border(factor, not, |factor| possible(&with_bandwidth(problem, factor)))?;
    Ok(Some(Relaxation { relaxed: Relaxed::Bandwidth { factor }, relative: factor - 1.0 }))
}

fn return_traffic(problem: &Problem, possible: Possible<'_>) -> Result<Option<Relaxation>, PlannerError> {
    let mut changed = problem.clone();
    if changed.limits.return_traffic == crate::problem::ReturnTraffic::Priced {
        return Ok(None);
    }
    changed.limits.return_traffic = crate::problem::ReturnTraffic::Priced;
    let helps = possible(&changed)?;
    Ok(helps.then_some(Relaxation { relaxed: Relaxed::ReturnTraffic, relative: 1.0 }))
}

fn losses(problem: &Problem, possible: Possible<'_>) -> Result<Option<Relaxation>, PlannerError> {
    let from = problem.limits.survive;
    for to in (0..from).rev() {
        if possible(&with_losses(problem, to))? {
            let relative = f64::from(from - to) / f64::from(from);
            return Ok(Some(Relaxation { relaxed: Relaxed::Survive { from, to }, relative }));
        }
    }
    Ok(None)
}

/// The cheapest machines to add: existing ones cost nothing here, additional ones their price.
fn workers(problem: &Problem, limits: &SearchLimits) -> Result<Option<Relaxation>, PlannerError> {
    let mut more = problem.clone();
    let own = problem.worker_classes.len();
    more.worker_classes.iter_mut().for_each(|class| class.price = 0.0);
    more.routes.iter_mut().flatten().flatten().for_each(|route| route.price = 0.0);
    for class in &problem.worker_classes {
        more.worker_classes.push(crate::problem::WorkerClass { count: MOST_MISSING, ..class.clone() });
    }
    for variant in more.operators.iter_mut().flat_map(|operator| &mut operator.variants) {
        if variant.modes.len() == own {
            variant.modes.extend_from_within(..);
        }
    }
    let found = match Exact.plan(&more, &SearchLimits { gap: limits.gap.max(0.01), ..*limits }) {
        // With so many more workers there may be too many losses to plan for.
        Err(PlannerError::Unsupported { .. }) if problem.limits.survive > 0 => return Ok(None),
        found => found?,
    };
    let Some(solution) = found.solution else { return Ok(None) };
    let mut missing = Vec::new();
    let mut total = 0;
    for class in 0..own {
        let count = solution.workers.iter().filter(|worker| worker.class == own + class).count();
        if let Some(count) = u32::try_from(count).ok().filter(|count| *count > 0) {
            missing.push(MissingWorkers { class, count });
            total += count;
        }
    }
    let have: u32 = problem.worker_classes.iter().map(|class| class.count).sum();
    let relative = f64::from(total) / f64::from(have.max(1));
    Ok((total > 0).then_some(Relaxation { relaxed: Relaxed::Workers(missing), relative }))
}
