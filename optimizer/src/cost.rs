//! The only cost function: it prices every planner's result and every report.
//!
//! Total cost per hour = prices of the workers in use + over all edges and route classes, traffic x price of the route
//! (equation 5.1 of JellyBean, with route classes instead of proportional mixing).
use crate::problem::{Problem, Producer};
use crate::solution::{RouteClass, Solution};
use std::collections::BTreeMap;

const SECONDS_PER_HOUR: f64 = 3600.0;

/// Cost of a plan per hour.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Cost {
    /// Prices of the workers in use, $/h.
    pub compute: f64,
    /// Traffic at the prices of its routes, $/h.
    pub network: f64,
}

impl Cost {
    /// Compute and network, $/h.
    pub fn total(&self) -> f64 {
        self.compute + self.network
    }
}

/// Why a solution has no cost.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CostError {
    /// Records would have to cross locations without a route.
    #[error("no route leads from {from} to {to}")]
    NoRoute {
        /// Name of the sending location.
        from: String,
        /// Name of the receiving location.
        to: String,
    },
    /// A position out of range.
    #[error("{0} names nothing in the problem or the solution")]
    Position(&'static str),
}

/// Returns the price of a plan.
///
/// # Errors
/// A missing route; a position out of range.
pub fn cost(problem: &Problem, solution: &Solution) -> Result<Cost, CostError> {
    let mut compute = 0.0;
    for worker in &solution.workers {
        compute += problem.worker_classes.get(worker.class).ok_or(CostError::Position("a worker"))?.price;
    }
    let mut network = 0.0;
    for ((from, to), bytes_per_second) in traffic(problem, solution)? {
        let route = problem.route(from, to).ok_or_else(|| CostError::NoRoute {
            from: problem.locations[from].name.clone(),
            to: problem.locations[to].name.clone(),
        })?;
        network += bytes_per_second * SECONDS_PER_HOUR * route.price;
    }
    Ok(Cost { compute, network })
}

/// Returns the bytes per second between every two locations (from, to), over all edges and route classes.
///
/// # Errors
/// A position out of range.
pub fn traffic(problem: &Problem, solution: &Solution) -> Result<BTreeMap<(usize, usize), f64>, CostError> {
    let mut traffic = BTreeMap::new();
    if solution.variants.len() != problem.operators.len() {
        return Err(CostError::Position("the list of variants"));
    }
    for class in &solution.classes {
        for (index, edge) in problem.edges.iter().enumerate() {
            let from = match edge.from {
                Producer::Source(source) => {
                    *class.sources.get(source).ok_or(CostError::Position("a source of a route class"))?
                }
                Producer::Operator(operator) => location(solution, class, operator)?,
            };
            let to = location(solution, class, edge.to)?;
            if from.max(to) >= problem.locations.len() {
                return Err(CostError::Position("a location"));
            }
            let bytes = class.share * problem.edge_bytes_per_second(index, &solution.variants);
            *traffic.entry((from, to)).or_insert(0.0) += bytes;
        }
        for (operator, &hosting) in class.hostings.iter().enumerate() {
            let hosting = solution.hostings.get(hosting).ok_or(CostError::Position("a route class"))?;
            let Some(remote) = problem.remote_of(solution, hosting) else { continue };
            let at =
                problem.worker_classes.get(remote.class).ok_or(CostError::Position("a device"))?.location;
            let records = class.share * problem.operator_rate(operator, &solution.variants);
            *traffic.entry((hosting.location, at)).or_insert(0.0) += records * remote.sent_bytes;
            *traffic.entry((at, hosting.location)).or_insert(0.0) += records * remote.received_bytes;
        }
    }
    Ok(traffic)
}

fn location(solution: &Solution, class: &RouteClass, operator: usize) -> Result<usize, CostError> {
    let hosting = *class.hostings.get(operator).ok_or(CostError::Position("an operator of a route class"))?;
    Ok(solution.hostings.get(hosting).ok_or(CostError::Position("a hosting of a route class"))?.location)
}

/// Converts a price per GiB (2^30 bytes) to a price per byte.
pub fn per_gib(price: f64) -> f64 {
    price / (1u64 << 30) as f64
}
