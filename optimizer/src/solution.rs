//! A planner's decisions and proofs.

/// A plan in numbers: variants, workers in use, hostings, and route classes.
#[derive(Debug, Clone, PartialEq)]
pub struct Solution {
    /// Chosen variant of each operator.
    pub variants: Vec<usize>,
    /// Workers in use; each is paid for.
    pub workers: Vec<UsedWorker>,
    /// Operators on workers.
    pub hostings: Vec<Hosting>,
    /// Shares of the key space; the shares add up to 1.
    pub classes: Vec<RouteClass>,
    /// Routes after each loss of workers; empty where the plan need not survive any.
    pub fallbacks: Vec<Fallback>,
}

/// Routes after the loss of some workers.
#[derive(Debug, Clone, PartialEq)]
pub struct Fallback {
    /// Positions of the lost workers in [`Solution::workers`], ascending.
    pub lost: Vec<usize>,
    /// Hostings that start on other workers of the plan. Their position follows those of the solution.
    pub starts: Vec<Hosting>,
    /// Shares of the key space; hostings by their position in the solution's, then in `starts`.
    pub classes: Vec<RouteClass>,
}

impl Solution {
    /// Returns the solution after a loss, without the lost workers and without unused hostings; none where a position is wrong.
    pub fn after(&self, fallback: &Fallback) -> Option<Self> {
        let is_left = |worker: &usize| !fallback.lost.contains(worker);
        let left: Vec<usize> = (0..self.workers.len()).filter(is_left).collect();
        let place = |worker: usize| left.iter().position(|other| *other == worker);
        let all: Vec<&Hosting> = self.hostings.iter().chain(&fallback.starts).collect();
        let mut shares = vec![0.0; all.len()];
        for class in &fallback.classes {
            for hosting in &class.hostings {
                *shares.get_mut(*hosting)? += class.share;
            }
        }
        let mut hostings = Vec::new();
        let mut position = vec![None; all.len()];
        for (index, hosting) in all.into_iter().enumerate().filter(|(index, _)| shares[*index] > 0.0) {
            let worker = match hosting.worker {
                Some(worker) => Some(place(worker)?),
                None => None,
            };
            position[index] = Some(hostings.len());
            hostings.push(Hosting { worker, share: f64::min(shares[index], 1.0), ..hosting.clone() });
        }
        let class = |class: &RouteClass| {
            let own = class.hostings.iter().map(|hosting| position[*hosting]).collect::<Option<Vec<usize>>>();
            own.map(|hostings| RouteClass { hostings, ..class.clone() })
        };
        Some(Self {
            variants: self.variants.clone(),
            workers: left.iter().map(|worker| self.workers[*worker]).collect(),
            hostings,
            classes: fallback.classes.iter().map(class).collect::<Option<Vec<_>>>()?,
            fallbacks: Vec::new(),
        })
    }
}

/// A worker in use.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UsedWorker {
    /// Its worker class in the problem.
    pub class: usize,
    /// Index within the class, from 0, below the class's count.
    pub index: u32,
}

/// One operator on one worker.
#[derive(Debug, Clone, PartialEq)]
pub struct Hosting {
    /// The operator.
    pub operator: usize,
    /// Position in [`Solution::workers`]; none only for a weightless operator.
    pub worker: Option<usize>,
    /// Location of the worker, or of the weightless operator.
    pub location: usize,
    /// Position in the chosen variant's modes on the worker's class; 0 for a weightless operator.
    pub mode: usize,
    /// Share of the operator's records, 0 < share <= 1: the sum of the shares of the route classes that name it.
    pub share: f64,
    /// Most seconds that a record waits for the worker, at the percentile of the latency limits; none without such
    /// limits. Equal for all hostings of one worker.
    pub wait_seconds: Option<f64>,
    /// Where the model runs; none: on the worker.
    pub device: Option<OnDevice>,
}

/// The device that runs the model of a hosting.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OnDevice {
    /// Position of the device in [`Solution::workers`].
    pub worker: usize,
    /// As [`Hosting::wait_seconds`], for the device. Equal for all hostings of one device.
    pub wait_seconds: Option<f64>,
}

/// A share of the key space with one hosting per operator.
#[derive(Debug, Clone, PartialEq)]
pub struct RouteClass {
    /// Share of the keys.
    pub share: f64,
    /// Location of each source's records.
    pub sources: Vec<usize>,
    /// Position in [`Solution::hostings`] for each operator.
    pub hostings: Vec<usize>,
}

/// Proof status of a solution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// No plan is cheaper by more than the gap in the limits (see [`Outcome::gap`]).
    Optimal,
    /// The plan keeps all limits; nothing is proven of its cost beyond [`Outcome::bound`].
    Feasible,
    /// The wall-clock limit ended the search, so another run may find another plan.
    TimeLimited,
    /// No plan keeps all limits, if the bound is infinite. Otherwise the planner found no plan and one may exist: it is
    /// a heuristic, reached its node limit, or latency limits need finer waits. See [`Outcome::bound`].
    Infeasible,
}

/// Result of a planner.
///
/// A bound comes from relaxations, so a plan may be the cheapest and yet be [`Status::Feasible`] with a gap.
#[derive(Debug, Clone, PartialEq)]
pub struct Outcome {
    /// Name of the planner.
    pub planner: String,
    /// Proof status of the solution.
    pub status: Status,
    /// The best plan found.
    pub solution: Option<Solution>,
    /// Total cost of the solution in $/h, by [`crate::cost::cost`].
    pub cost: Option<f64>,
    /// No plan costs less than this, in $/h; none where nothing is proven. With [`Status::Infeasible`] and a bound of
    /// infinity, it is proven that there is no plan.
    pub bound: Option<f64>,
    /// (cost - bound) / cost; none without both.
    pub gap: Option<f64>,
    /// Nodes of the search, over all its parts.
    pub nodes: u64,
    /// Whether HiGHS solved any part.
    pub has_asked_highs: bool,
    /// Wall-clock seconds of the search.
    pub seconds: f64,
}

impl Outcome {
    /// An outcome without a plan; `proven` means that there is none.
    pub fn infeasible(planner: &str, proven: bool) -> Self {
        Self {
            planner: planner.to_owned(),
            status: Status::Infeasible,
            solution: None,
            cost: None,
            bound: proven.then_some(f64::INFINITY),
            gap: None,
            nodes: 0,
            has_asked_highs: false,
            seconds: 0.0,
        }
    }

    /// Returns the gap between a cost and a bound: (cost - bound) / cost, at least 0; 0 for a plan that costs nothing.
    pub fn gap_between(cost: f64, bound: f64) -> f64 {
        if cost <= 0.0 { 0.0 } else { ((cost - bound) / cost).max(0.0) }
    }
}
