//! Keys routed as the engine does it: both inputs of every join meet, and edges carry the shares that the plan says.
//!
//! The engine gives a key its class from its position in the hash space and the classes' cumulated shares (keys that end
//! in a number are spread by the golden-ratio sequence). The same rule stands here again, because the optimizer does not
//! depend on the engine; a test of both together holds them to each other.
use crate::problem::{Problem, Producer};
use crate::solution::Solution;
use std::collections::BTreeMap;
use xxhash_rust::xxh3::xxh3_64;

const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15; // 2^64 / golden ratio (Fibonacci hashing; Knuth, TAOCP vol. 3, section 6.4)

/// What routing some keys showed.
#[derive(Debug, Clone, PartialEq)]
pub struct KeyReport {
    /// Keys routed.
    pub keys: u64,
    /// Keys whose records met at different workers at some operator with several inputs.
    pub missed: u64,
    /// Largest difference between a planned and a counted share of an edge between two hostings, or of a source's
    /// location and a hosting, as a part of all keys.
    pub largest_deviation: f64,
}

/// Routes the keys `prefix0`, `prefix1`, ... along every edge, hop by hop.
///
/// Each source gives the key its class by itself; at every hop the class alone decides the next hosting, as in the engine.
pub fn check_keys(problem: &Problem, solution: &Solution, prefix: &str, keys: u64) -> KeyReport {
    let ends = ends(&solution.classes.iter().map(|class| class.share).collect::<Vec<_>>());
    let mut counted: BTreeMap<(usize, Option<usize>, usize), u64> = BTreeMap::new();
    let mut missed = 0;
    for number in 0..keys {
        let key = format!("{prefix}{number}");
        let mut did_meet = true;
        // Where each operator's records of this key have come to, by the first input.
        let mut place: Vec<Option<usize>> = vec![None; problem.operators.len()];
        for (index, edge) in problem.edges.iter().enumerate() {
            let class = class_of(&ends, key.as_bytes()); // the source's, carried along
            let sender = match edge.from {
                Producer::Source(_) => None,
                Producer::Operator(operator) => Some(solution.classes[class].hostings[operator]),
            };
            let receiver = solution.classes[class].hostings[edge.to];
            let before = *place[edge.to].get_or_insert(receiver);
            did_meet &= before == receiver;
            *counted.entry((index, sender, receiver)).or_insert(0) += 1;
        }
        missed += u64::from(!did_meet);
    }
    let mut planned: BTreeMap<(usize, Option<usize>, usize), f64> = BTreeMap::new();
    for class in &solution.classes {
        for (index, edge) in problem.edges.iter().enumerate() {
            let sender = match edge.from {
                Producer::Source(_) => None,
                Producer::Operator(operator) => Some(class.hostings[operator]),
            };
            *planned.entry((index, sender, class.hostings[edge.to])).or_insert(0.0) += class.share;
        }
    }
    let all: std::collections::BTreeSet<_> = planned.keys().chain(counted.keys()).copied().collect();
    let deviation = |flow: &(usize, Option<usize>, usize)| {
        let share = planned.get(flow).copied().unwrap_or(0.0);
        (counted.get(flow).copied().unwrap_or(0) as f64 / keys.max(1) as f64 - share).abs()
    };
    KeyReport { keys, missed, largest_deviation: all.iter().map(deviation).fold(0.0, f64::max) }
}

fn position(key: &[u8]) -> u64 {
    let digits = key.iter().rev().take(18).take_while(|byte| byte.is_ascii_digit()).count();
    let (prefix, number) = key.split_at(key.len() - digits);
    if number.is_empty() {
        return xxh3_64(key);
    }
    let number = number.iter().fold(0u64, |value, byte| value * 10 + u64::from(byte - b'0'));
    xxh3_64(prefix).wrapping_add(number.wrapping_mul(GOLDEN))
}

fn ends(shares: &[f64]) -> Vec<u64> {
    let total: f64 = shares.iter().sum();
    let mut sum = 0.0;
    let mut ends = Vec::with_capacity(shares.len());
    for share in shares {
        sum += share / total;
        ends.push((sum * 2f64.powi(64)) as u64); // saturates at the top
    }
    if let Some(last) = ends.last_mut() {
        *last = u64::MAX;
    }
    ends
}

fn class_of(ends: &[u64], key: &[u8]) -> usize {
    let position = position(key);
    ends.iter().position(|end| position < *end).unwrap_or(ends.len() - 1)
}
