//! Operators that backends are known to compute differently from the ONNX standard, in one list. A model with such an
//! operator is refused, with the operator and the reason; another backend of its manifest may compute it.
use super::graph::{BOOL, Graph, Node};
use super::{ranges, rten};
use std::collections::HashMap;

/// A known fault.
struct Fault {
    backend: &'static str,
    /// The operators that have it.
    operators: &'static [&'static str],
    /// Returns the reason why this operator is affected in this file, if it is.
    why: fn(&Node, &Graph) -> Option<String>,
}

/// All known faults, for the pinned version of rten and any accepted version of ONNX Runtime (which has none).
const FAULTS: &[Fault] = &[
    Fault { backend: rten::NAME, operators: &["Softmax", "LogSoftmax", "Hardmax"], why: old_softmax },
    Fault { backend: rten::NAME, operators: &["Resize"], why: cubic },
    Fault { backend: rten::NAME, operators: &["Cast"], why: truth_of_floats },
    Fault {
        backend: rten::NAME,
        operators: &["Sign"],
        why: |_, _| Some("the sign of 0 is 1 there".to_owned()),
    },
    Fault { backend: rten::NAME, operators: &["NonMaxSuppression"], why: suppression },
];

/// Returns the reason why a backend must not run the model. `inputs`: the least and the largest of its integer inputs, at
/// their smallest.
pub(super) fn refused(backend: &str, graph: &Graph, inputs: &HashMap<String, (i64, i64)>) -> Option<String> {
    let of = |node: &Node| {
        let known = FAULTS.iter().filter(|fault| fault.backend == backend);
        let mut here =
            known.filter(|fault| node.is_standard && fault.operators.contains(&node.operator.as_str()));
        let why = here.find_map(|fault| (fault.why)(node, graph))?;
        Some(format!("it computes {} of opset {} not as in the standard: {why}", node.called(), graph.opset))
    };
    graph.nodes.iter().find_map(of).or_else(|| match backend {
        rten::NAME => ranges::refused(graph, inputs),
        _ => None,
    })
}

/// A Softmax that is correct only if its axis is the last one, which the rank of its output shows.
pub(super) struct Doubtful {
    /// Its output value.
    pub(super) output: String,
    /// Its name in messages.
    called: String,
    opset: i64,
    /// The first of the axes that the standard takes together.
    axis: usize,
    is_explicit: bool,
}

impl Doubtful {
    /// Returns the reason why the operator is affected, given the shape of its output.
    pub(super) fn why(&self, shape: &[usize]) -> Option<String> {
        let together = shape.get(self.axis + 1..).unwrap_or_default();
        let is_same =
            self.axis + 1 == shape.len() || self.is_explicit && together.iter().all(|size| *size == 1);
        (!is_same).then(|| {
            format!(
                "it computes {} of opset {} not as in the standard: before opset 13 all dimensions from {} on count \
                 together, it takes one of them alone (the shape is {shape:?})",
                self.called, self.opset, self.axis
            )
        })
    }
}

/// Returns the operators whose meaning depends on a rank, which the file may omit.
pub(super) fn doubtful(graph: &Graph) -> Vec<Doubtful> {
    let old = graph.nodes.iter().filter(|node| {
        graph.opset < 13
            && node.is_standard
            && !node.is_inner
            && matches!(node.operator.as_str(), "Softmax" | "LogSoftmax" | "Hardmax")
    });
    let doubtful = |node: &Node| {
        let axis = usize::try_from(node.integer("axis").unwrap_or(1)).ok()?;
        Some(Doubtful {
            output: node.outputs.first()?.clone(),
            called: node.called(),
            opset: graph.opset,
            axis,
            is_explicit: node.integer("axis").is_some(),
        })
    };
    old.filter_map(doubtful).collect()
}

/// Negative axes count from the end, so the rank does not matter; within a body shapes are unknown.
fn old_softmax(node: &Node, graph: &Graph) -> Option<String> {
    let axis = node.integer("axis").unwrap_or(1);
    let is_sure = axis < -1 || node.is_inner && axis != -1;
    (graph.opset < 13 && is_sure).then(|| {
        format!(
            "before opset 13 all dimensions from axis {axis} on count together, it takes one of them alone"
        )
    })
}

fn cubic(node: &Node, _graph: &Graph) -> Option<String> {
    (node.text("mode") == Some("cubic")).then(|| "with mode cubic it computes mode linear".to_owned())
}

fn suppression(_node: &Node, _graph: &Graph) -> Option<String> {
    Some(
        "it counts the boxes of all classes and pictures together, and accepts corners in only one order"
            .to_owned(),
    )
}

/// Operators that return floats for any input.
const OF_FLOATS: &[&str] = &[
    "AveragePool",
    "BatchNormalization",
    "Conv",
    "Exp",
    "Gemm",
    "GlobalAveragePool",
    "InstanceNormalization",
    "LayerNormalization",
    "Log",
    "Sigmoid",
    "Softmax",
    "Sqrt",
    "Tanh",
];

/// A cast to bool truncates first, so 0.5 becomes false.
fn truth_of_floats(node: &Node, graph: &Graph) -> Option<String> {
    let from = node.inputs.first()?;
    let maker = graph.nodes.iter().find(|other| other.outputs.contains(from))?;
    let is_float = OF_FLOATS.contains(&maker.operator.as_str());
    (node.integer("to") == Some(BOOL) && is_float)
        .then(|| "it converts numbers to truth values by their integer part, so that 0.5 is false".to_owned())
}
