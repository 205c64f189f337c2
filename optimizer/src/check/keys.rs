//! Routes keys by the engine's rule ([`tidemill_spec::routing`]) and checks that edges carry the planned shares.
//!
//! Both inputs of a join meet by construction: a key has one class, and a class has one hosting of each operator.
use crate::problem::{Problem, Producer};
use crate::solution::Solution;
use std::collections::BTreeMap;
use tidemill_spec::routing::{ClassTable, key_position};

/// Position of an edge, the hosting that sends (none: a source), and the one that receives.
type Flow = (usize, Option<usize>, usize);

/// Result of routing some keys.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyReport {
    /// Keys routed.
    pub keys: u64,
    /// Largest difference between a planned and a counted share of an edge between two hostings, or of a source's
    /// location and a hosting, as a part of all keys.
    pub largest_deviation: f64,
}

/// Routes the keys `prefix0`, `prefix1`, ... along every edge: the class of a key decides the hosting at every hop.
pub fn check_keys(problem: &Problem, solution: &Solution, prefix: &str, keys: u64) -> KeyReport {
    let shares: Vec<f64> = solution.classes.iter().map(|class| class.share).collect();
    let table = ClassTable::new(&shares);
    let mut counts = vec![0u64; table.classes()];
    for number in 0..keys {
        counts[table.class_at(key_position(format!("{prefix}{number}").as_bytes()))] += 1;
    }
    let (mut planned, mut counted) = (BTreeMap::<Flow, f64>::new(), BTreeMap::<Flow, f64>::new());
    for (class, count) in solution.classes.iter().zip(counts) {
        for (index, edge) in problem.edges.iter().enumerate() {
            let sender = match edge.from {
                Producer::Source(_) => None,
                Producer::Operator(operator) => Some(class.hostings[operator]),
            };
            let flow = (index, sender, class.hostings[edge.to]);
            *planned.entry(flow).or_default() += class.share;
            *counted.entry(flow).or_default() += count as f64 / keys.max(1) as f64;
        }
    }
    let deviations = planned.iter().map(|(flow, share)| (counted[flow] - share).abs());
    KeyReport { keys, largest_deviation: deviations.fold(0.0, f64::max) }
}
