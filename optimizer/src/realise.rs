//! Converts shares per worker class to single workers and route classes.
//!
//! A planner that aggregates identical workers decides the share of each operator on a number of workers of a class,
//! and the shares of the keys by location ([`Pattern`]). Any worker of a location may then serve a key: prices,
//! bandwidths and delays depend on locations only, and a worker's load only on its share. So every operator's workers
//! are laid out along the key space, and splitting it at all borders gives route classes. Both inputs of every join
//! meet, because a class names one hosting per operator.
mod deal;
mod pattern;

pub use pattern::{Factor, Joined, Pattern, join};

use crate::problem::Problem;
use crate::solution::{Hosting, RouteClass, Solution, UsedWorker};
use std::collections::BTreeMap;

/// Shares below this are rounding errors.
pub const SMALL_SHARE: f64 = 1e-9;

/// A plan without single workers.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// Chosen variant of each operator.
    pub variants: Vec<usize>,
    /// Workers in use.
    pub groups: Vec<WorkerGroup>,
    /// Shares of the keys by location; the shares add up to 1.
    pub patterns: Vec<Pattern>,
}

/// Identical workers and their common work.
#[derive(Debug, Clone, PartialEq)]
pub struct WorkerGroup {
    /// Worker class in the problem.
    pub class: usize,
    /// Number of workers.
    pub count: u32,
    /// Most seconds of waiting at each; see [`Hosting::wait_seconds`].
    pub wait_seconds: Option<f64>,
    /// Parts of operators.
    pub parts: Vec<Part>,
}

/// A part of an operator on a group of workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Part {
    /// The operator.
    pub operator: usize,
    /// Position in the chosen variant's modes on the class.
    pub mode: usize,
    /// Share of the operator's records.
    pub share: f64,
}

/// The workers that serve an operator's keys of a pattern.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Lane {
    /// Position in [`Placement::groups`].
    pub group: usize,
    /// Position in the variant's modes on the group's class.
    pub mode: usize,
}

/// A location, and a lane where the patterns name them.
type Place = (usize, Option<Lane>);

/// Why a placement cannot become a plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum RealiseError {
    /// The models do not fit into the memory of this number of workers of the class, as far as tried.
    #[error("the models do not fit into the memory of {count} workers of class {class}")]
    Memory {
        /// The worker class.
        class: usize,
        /// Number of its workers.
        count: u32,
    },
    /// The work exceeds the capacity of the workers.
    #[error("the work on worker class {class} is more than {count} workers can do")]
    Load {
        /// The worker class.
        class: usize,
        /// Number of its workers.
        count: u32,
    },
    /// Patterns and workers contradict each other about an operator.
    #[error(
        "operator {operator} has {hosted} of its records at location {location} by its workers, {routed} by its routes"
    )]
    Shares {
        /// The operator.
        operator: usize,
        /// The location.
        location: usize,
        /// Share by the hostings.
        hosted: f64,
        /// Share by the patterns.
        routed: f64,
    },
}

/// Assigns a placement to single workers and splits the key space into route classes.
///
/// # Errors
/// See [`RealiseError`]; a memory error names each class once, the first that failed.
pub fn realise(problem: &Problem, placement: &Placement) -> Result<Solution, RealiseError> {
    let mut next: BTreeMap<usize, u32> = BTreeMap::new();
    let mut workers = Vec::new();
    let mut hostings = Vec::new();
    let mut lanes = Vec::new();
    for (index, group) in placement.groups.iter().enumerate() {
        let first = next.entry(group.class).or_insert(0);
        let dealt = deal::deal(problem, &placement.variants, group)?;
        for parts in dealt.into_iter().filter(|parts| !parts.is_empty()) {
            for part in parts {
                lanes.push(Some(Lane { group: index, mode: part.mode }));
                hostings.push(Hosting {
                    operator: part.operator,
                    worker: Some(workers.len()),
                    location: problem.worker_classes[group.class].location,
                    mode: part.mode,
                    share: part.share,
                    wait_seconds: group.wait_seconds,
                    device: None,
                });
            }
            workers.push(UsedWorker { class: group.class, index: *first });
            *first += 1;
        }
    }
    // Where patterns name no lanes, all workers at the location serve them.
    if placement.patterns.iter().all(|pattern| pattern.lanes.is_empty()) {
        lanes.fill(None);
    }
    route(problem, placement.variants.clone(), workers, hostings, lanes, &placement.patterns)
}

/// Splits the key space so that every hosting gets its share of the keys at its location.
///
/// Hostings of weightless operators follow from the patterns and may be missing. Shares of hostings at a location are
/// scaled to those of the patterns.
///
/// # Errors
/// [`RealiseError::Shares`] where they differ by more than a millionth.
pub(crate) fn route(
    problem: &Problem,
    variants: Vec<usize>,
    workers: Vec<UsedWorker>,
    mut hostings: Vec<Hosting>,
    lanes: Vec<Option<Lane>>,
    patterns: &[Pattern],
) -> Result<Solution, RealiseError> {
    let mut patterns: Vec<Pattern> =
        patterns.iter().filter(|pattern| pattern.share > SMALL_SHARE).cloned().collect();
    // Neighbours share most locations: fewer splits.
    patterns.sort_by(|a, b| (&a.sources, &a.operators, &a.lanes).cmp(&(&b.sources, &b.operators, &b.lanes)));
    let total: f64 = patterns.iter().map(|pattern| pattern.share).sum();
    for pattern in &mut patterns {
        pattern.share /= total;
    }
    // Per operator and place: the hostings with the rest of their shares.
    let place_of = |pattern: &Pattern, operator: usize| {
        (pattern.operators[operator], pattern.lanes.get(operator).copied().flatten())
    };
    let given = hostings.len();
    let mut left: Vec<BTreeMap<Place, Vec<(usize, f64)>>> = Vec::new();
    for operator in 0..problem.operators.len() {
        let mut places: Vec<Place> = patterns.iter().map(|pattern| place_of(pattern, operator)).collect();
        let hosted = hostings[..given].iter().zip(&lanes).filter(|(hosting, _)| hosting.operator == operator);
        places.extend(hosted.map(|(hosting, lane)| (hosting.location, *lane)));
        places.sort_unstable();
        places.dedup();
        let mut of_operator: BTreeMap<Place, Vec<(usize, f64)>> = BTreeMap::new();
        for place in places {
            let location = place.0;
            let routed: f64 =
                patterns.iter().filter(|p| place_of(p, operator) == place).map(|p| p.share).sum();
            let mut there: Vec<(usize, f64)> = Vec::new();
            for (index, (hosting, lane)) in hostings[..given].iter().zip(&lanes).enumerate() {
                if hosting.operator == operator && (hosting.location, *lane) == place {
                    there.push((index, hosting.share));
                }
            }
            if there.is_empty() && problem.operators[operator].weightless && routed > 0.0 {
                there.push((hostings.len(), routed));
                hostings.push(Hosting {
                    operator,
                    worker: None,
                    location,
                    mode: 0,
                    share: routed,
                    wait_seconds: None,
                    device: None,
                });
            }
            let hosted: f64 = there.iter().map(|(_, share)| share).sum();
            if (hosted - routed).abs() > 1e-6 {
                return Err(RealiseError::Shares { operator, location, hosted, routed });
            }
            if hosted > 0.0 {
                there.iter_mut().for_each(|(_, share)| *share *= routed / hosted);
                of_operator.insert(place, there);
            }
        }
        left.push(of_operator);
    }
    let mut classes: Vec<RouteClass> = Vec::new();
    for pattern in &patterns {
        let mut share = pattern.share;
        while share > SMALL_SHARE {
            let mut taken = share;
            let mut chosen = Vec::with_capacity(left.len());
            for (operator, of_operator) in left.iter_mut().enumerate() {
                let location = pattern.operators[operator];
                let queue = of_operator
                    .get_mut(&place_of(pattern, operator))
                    .filter(|queue| !queue.is_empty())
                    .ok_or({
                        RealiseError::Shares { operator, location, hosted: 0.0, routed: pattern.share }
                    })?;
                while queue.len() > 1 && queue[0].1 <= SMALL_SHARE {
                    queue.remove(0);
                }
                if queue.len() > 1 {
                    taken = taken.min(queue[0].1);
                }
                chosen.push(queue[0].0);
            }
            for (operator, of_operator) in left.iter_mut().enumerate() {
                if let Some(queue) = of_operator.get_mut(&place_of(pattern, operator)) {
                    queue[0].1 -= taken;
                }
            }
            share -= taken;
            match classes.last_mut() {
                Some(last) if last.hostings == chosen && last.sources == pattern.sources => {
                    last.share += taken
                }
                _ => classes.push(RouteClass {
                    share: taken,
                    sources: pattern.sources.clone(),
                    hostings: chosen,
                }),
            }
        }
    }
    Ok(tidy(Solution { variants, workers, hostings, classes, fallbacks: Vec::new() }))
}

/// Normalises shares to 1, takes hostings' shares from the classes, drops unused hostings and workers.
fn tidy(mut solution: Solution) -> Solution {
    let total: f64 = solution.classes.iter().map(|class| class.share).sum();
    let mut shares = vec![0.0; solution.hostings.len()];
    for class in &mut solution.classes {
        class.share /= total;
        for &hosting in &class.hostings {
            shares[hosting] += class.share;
        }
    }
    let mut place = vec![None; solution.hostings.len()];
    let mut hostings = Vec::new();
    for (index, mut hosting) in solution.hostings.into_iter().enumerate() {
        if shares[index] > 0.0 {
            hosting.share = shares[index].min(1.0);
            place[index] = Some(hostings.len());
            hostings.push(hosting);
        }
    }
    for class in &mut solution.classes {
        class.hostings.iter_mut().for_each(|hosting| *hosting = place[*hosting].unwrap_or(*hosting));
    }
    let mut worker_place = vec![None; solution.workers.len()];
    let mut workers: Vec<UsedWorker> = Vec::new();
    for hosting in &mut hostings {
        if let Some(worker) = hosting.worker {
            let position = *worker_place[worker].get_or_insert_with(|| {
                workers.push(solution.workers[worker]);
                workers.len() - 1
            });
            hosting.worker = Some(position);
        }
    }
    Solution {
        variants: solution.variants,
        workers,
        hostings,
        classes: solution.classes,
        fallbacks: Vec::new(),
    }
}
