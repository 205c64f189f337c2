//! Checks whether a backend that computes int64 in 32 bits would give other integers than the standard.
//!
//! Integers are tracked from their origin (inputs, constants, casts) through arithmetic, with the least and the largest
//! possible value. Counts (shapes, positions) are assumed to fit: a tensor with more elements does not fit into memory.
//! Bodies of loops and conditions, and operators not listed here, are not tracked: their integers are unknown.
use super::graph::{BOOL, Graph, INT64, Node};
use std::collections::HashMap;

const LEAST: f64 = i32::MIN as f64;
const MOST: f64 = i32::MAX as f64;
/// Assumed number of terms of a sum.
const TERMS: f64 = 65_536.0;

/// Bounds of the integers in a value.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Known {
    /// Derived from shapes and constants alone.
    Count,
    /// Integers in this range; infinite for a cast of any floats, which saturates.
    Between(f64, f64),
    /// Integers that the standard stores in 32 bits or fewer; not tracked through arithmetic.
    Narrow,
}

/// Returns the reason why the model must not run: it has integers beyond 32 bits, or may compute some with the given
/// smallest inputs.
pub(super) fn refused(graph: &Graph, inputs: &HashMap<String, (i64, i64)>) -> Option<String> {
    let is_beyond = |(_, held): &(&String, &super::graph::Held)| {
        held.range.is_some_and(|(least, most)| i32::try_from(least).is_err() || i32::try_from(most).is_err())
    };
    let beyond = graph.held.iter().filter(is_beyond).find(|(name, _)| !is_bound(graph, name, 0));
    if let Some((name, held)) = beyond {
        let (least, most) = held.range.unwrap_or_default();
        return Some(format!(
            "it computes int64 in 32 bits, but the constant `{name}` (opset {}) is out of range: {least} to {most}",
            graph.opset
        ));
    }
    overflow(graph, inputs)
}

/// Returns the reason why a run must not start with integer inputs in these ranges, by name.
pub(super) fn overflow(graph: &Graph, inputs: &HashMap<String, (i64, i64)>) -> Option<String> {
    let mut known: HashMap<&str, Known> = HashMap::new();
    for (name, held) in &graph.held {
        let range =
            held.range.map_or(Known::Count, |(least, most)| Known::Between(least as f64, most as f64));
        known.insert(name, range);
    }
    for (name, (least, most)) in inputs {
        known.insert(name, Known::Between(*least as f64, *most as f64));
    }
    for node in graph.nodes.iter().filter(|node| node.is_standard && !node.is_inner) {
        match follow(node, &known, graph) {
            Ok(Some(found)) => known.extend(node.outputs.iter().map(|output| (output.as_str(), found))),
            Ok(None) => {}
            Err(why) => {
                return Some(format!(
                    "it computes int64 in 32 bits, and {} of opset {} {why}",
                    node.called(),
                    graph.opset
                ));
            }
        }
    }
    None
}

/// Returns whether the numbers are only limits, for which the largest 32-bit number is equivalent: the ends of a Slice, the bounds
/// of a Clip.
fn is_bound(graph: &Graph, value: &str, depth: usize) -> bool {
    let passes = ["Concat", "Unsqueeze", "Squeeze", "Reshape", "Identity", "Cast", "Gather"];
    depth < 16
        && !graph.outputs.iter().any(|output| output == value)
        && graph.readers(value).all(|(node, place)| match node.operator.as_str() {
            "Slice" | "Clip" => place > 0,
            operator => {
                passes.contains(&operator) && node.outputs.iter().all(|to| is_bound(graph, to, depth + 1))
            }
        })
}

/// Returns the bounds of an operator's integers; an error if they exceed 32 bits.
fn follow(node: &Node, known: &HashMap<&str, Known>, graph: &Graph) -> Result<Option<Known>, String> {
    use Known::{Between, Count};
    let read = |place: usize| node.inputs.get(place).and_then(|name| known.get(name.as_str())).copied();
    let all: Vec<Option<Known>> = node
        .inputs
        .iter()
        .filter(|name| !name.is_empty())
        .map(|name| known.get(name.as_str()).copied())
        .collect();
    let held = |name: &String| graph.held.contains_key(name);
    let counts = |name: &String| name.is_empty() || held(name) || known.get(name.as_str()) == Some(&Count);
    let ends = |place: usize| match read(place) {
        Some(Between(least, most)) => Some((least, most)),
        _ => None,
    };
    let within = |least: f64, most: f64| match least >= LEAST && most <= MOST {
        true => Ok(Some(Between(least, most))),
        false => Err("can return integers out of range".to_owned()),
    };
    match node.operator.as_str() {
        "Constant" => return Ok(node.outputs.first().and_then(|name| known.get(name.as_str())).copied()),
        "Shape" | "Size" | "ArgMax" | "ArgMin" | "NonZero" | "NonMaxSuppression" => return Ok(Some(Count)),
        "Equal" | "Greater" | "GreaterOrEqual" | "Less" | "LessOrEqual" | "Not" | "And" | "Or" | "Xor"
        | "IsNaN" | "IsInf" => {
            let stopped =
                (0..node.inputs.len()).any(|place| ends(place).is_some_and(|(least, _)| least.is_infinite()));
            return match stopped {
                true => Err("compares integers that can be out of range".to_owned()),
                false => Ok(Some(Between(0.0, 1.0))),
            };
        }
        _ if !node.inputs.is_empty() && node.inputs.iter().all(counts) => return Ok(Some(Count)),
        "Cast" => {
            return Ok(match (node.integer("to"), read(0)) {
                (Some(INT64), Some(Known::Narrow)) => Some(Between(LEAST, MOST)),
                (Some(INT64), None) => Some(Between(f64::NEG_INFINITY, f64::INFINITY)),
                (Some(INT64), from) => from,
                (_, Some(Between(least, _))) if least.is_infinite() => {
                    return Err("reads integers that can be out of range".to_owned());
                }
                (Some(BOOL), Some(_)) => Some(Between(0.0, 1.0)),
                // The types from uint8 to int32.
                (Some(2..=6), _) => Some(Known::Narrow),
                _ => None,
            });
        }
        _ => {}
    }
    let products = |a: (f64, f64), b: (f64, f64)| {
        let all = [a.0 * b.0, a.0 * b.1, a.1 * b.0, a.1 * b.1];
        let not_a_number = all.iter().any(|product| product.is_nan());
        match not_a_number {
            true => (f64::NEG_INFINITY, f64::INFINITY),
            false => (all.into_iter().fold(f64::MAX, f64::min), all.into_iter().fold(f64::MIN, f64::max)),
        }
    };
    // A count combined with integers of data is not tracked further: its size is unknown here.
    match (node.operator.as_str(), ends(0), ends(1)) {
        ("Add", Some(a), Some(b)) => within(a.0 + b.0, a.1 + b.1),
        ("Sub", Some(a), Some(b)) => within(a.0 - b.1, a.1 - b.0),
        ("Mul", Some(a), Some(b)) => {
            let (least, most) = products(a, b);
            within(least, most)
        }
        ("Neg" | "Abs" | "Div" | "Mod", Some(a), _) => {
            let most = a.0.abs().max(a.1.abs());
            let least = if node.operator == "Abs" { 0.0 } else { -most };
            // If only a limit is known, the one integer without a 32-bit counterpart is no reason for a refusal.
            if most.is_finite() {
                Ok(Some(Between(least.max(LEAST), most.min(MOST))))
            } else {
                within(least, most)
            }
        }
        ("Pow" | "ReduceProd" | "BitShift", Some(_), _) => within(f64::NEG_INFINITY, f64::INFINITY),
        ("ReduceSum" | "CumSum", Some(a), _) => within(a.0.min(0.0) * TERMS, a.1.max(0.0) * TERMS),
        (
            "Identity" | "Reshape" | "Flatten" | "Squeeze" | "Unsqueeze" | "Transpose" | "Slice" | "Gather"
            | "GatherElements" | "GatherND" | "Expand" | "Tile" | "Split" | "ReduceMax" | "ReduceMin",
            Some((least, most)),
            _,
        ) => Ok(Some(Between(least, most))),
        ("Concat" | "Max" | "Min" | "Where", ..) => {
            let chosen = if node.operator == "Where" { all.get(1..).unwrap_or_default() } else { &all };
            let join = |a: Option<(f64, f64)>, b: &Option<Known>| match (a, b) {
                (Some(a), Some(Between(least, most))) => Some((a.0.min(*least), a.1.max(*most))),
                _ => None,
            };
            let joined = chosen.iter().fold(Some((f64::INFINITY, f64::NEG_INFINITY)), join);
            Ok(joined.filter(|(least, most)| least <= most).map(|(least, most)| Between(least, most)))
        }
        _ => Ok(None),
    }
}
